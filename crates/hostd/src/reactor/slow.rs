//! The last slow requests of a device, with where their time went. How slow is slow is said by
//! whoever asks: the last ones are kept for each of a row of times.

use crate::op_kind::OpKind;
use crate::port::DiskId;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::Stages;
use std::collections::VecDeque;

/// Requests kept of each class.
pub const SLOW_MAX: usize = 100;
/// Classes: from 100 µs, 200 µs, 500 µs, 1 ms and so on, to 50 s.
const CLASSES: usize = 18;

/// The shortest time of each class. A table, because each request is looked up.
const CLASS_FROM: [Nanos; CLASSES] = {
    let mut from = [Nanos::ZERO; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let step = [1, 2, 5][class % 3];
        from[class] = Nanos::from_micros(100 * step * 10_u64.pow(class as u32 / 3));
        class += 1;
    }
    from
};

/// The class of a time; `None` for one that is not slow by anybody's measure.
fn class_of(response: Nanos) -> Option<usize> {
    CLASS_FROM.partition_point(|&from| from <= response).checked_sub(1)
}

/// A request that took long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowRequest {
    pub disk: DiskId,
    pub op: OpKind,
    /// Where on the disk, in bytes; 0 for a flush.
    pub offset_bytes: u64,
    pub len_bytes: u64,
    /// Whether it succeeded; requests that failed are kept too.
    pub ok: bool,
    /// When it was done.
    pub done: Instant,
    /// From its arrival until then.
    pub response: Nanos,
    /// Where that time went.
    pub stages: Stages,
}

/// The last slow requests, in bounded memory.
#[derive(Default)]
pub struct SlowLog {
    classes: [VecDeque<SlowRequest>; CLASSES],
}

impl SlowLog {
    /// A request is done.
    pub fn note(&mut self, request: SlowRequest) {
        let Some(class) = class_of(request.response) else { return };
        let class = &mut self.classes[class];
        if class.len() == SLOW_MAX {
            class.pop_front();
        }
        class.push_back(request);
    }

    /// The disk leaves; its number may become another one's.
    pub fn forget(&mut self, disk: DiskId) {
        self.classes.iter_mut().for_each(|class| class.retain(|request| request.disk != disk));
    }

    /// The last [`SLOW_MAX`] requests that took longer than this, oldest first. Exact for times
    /// that a class begins with; else those of the class in which it lies are among its last
    /// [`SLOW_MAX`].
    pub fn over(&self, time: Nanos) -> Vec<SlowRequest> {
        let slow = self.classes.iter().flatten().filter(|request| request.response >= time);
        let mut slow: Vec<SlowRequest> = slow.copied().collect();
        slow.sort_by_key(|request| request.done);
        slow.split_off(slow.len().saturating_sub(SLOW_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(disk: u16, done_ms: u64, response: Nanos) -> SlowRequest {
        SlowRequest {
            disk: DiskId(disk),
            op: OpKind::Read,
            offset_bytes: 0,
            len_bytes: 4096,
            ok: true,
            done: Instant::ZERO + Nanos::from_millis(done_ms),
            response,
            stages: Stages::default(),
        }
    }

    #[test]
    fn classes_begin_where_people_ask() {
        assert_eq!(class_of(Nanos::from_micros(99)), None);
        for (micros, class) in [(100, 0), (199, 0), (200, 1), (500, 2), (999, 2), (1_000, 3)] {
            assert_eq!(class_of(Nanos::from_micros(micros)), Some(class), "{micros} µs");
        }
        assert_eq!(CLASS_FROM[9], Nanos::from_millis(100));
        assert_eq!(class_of(Nanos::from_secs(50)), Some(CLASSES - 1));
        assert_eq!(class_of(Nanos::from_secs(1_000_000)), Some(CLASSES - 1));
    }

    #[test]
    fn a_flood_of_faster_ones_does_not_hide_a_slow_one() {
        let mut log = SlowLog::default();
        for at in 0..10_000 {
            let ms = if at % 1_000 == 0 { 300 } else { 3 };
            log.note(request(0, at, Nanos::from_millis(ms)));
            log.note(request(1, at, Nanos::from_micros(50)));
        }
        let slow = log.over(Nanos::from_millis(100));
        assert_eq!(slow.len(), 10);
        assert!(slow.windows(2).all(|w| w[0].done < w[1].done));
        let all = log.over(Nanos::ZERO);
        assert_eq!(all.len(), SLOW_MAX);
        assert_eq!(all[SLOW_MAX - 1].done, Instant::ZERO + Nanos::from_millis(9_999));
        assert!(all.iter().all(|request| request.disk == DiskId(0)));
        log.forget(DiskId(0));
        assert_eq!(log.over(Nanos::ZERO), []);
    }
}
