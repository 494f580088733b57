//! Guests' requests under way, as ports handed them in: what the stack does not know of them.
//! The stack names each by its number here.

use crate::op_kind::OpKind;
use crate::port::{DiskId, Job};
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Lba, Nanos, SECTOR_BYTES, Sectors};
use seekway_stack::stack::Stages;
use std::collections::VecDeque;
use std::ops::Index;

/// A job under way.
pub struct JobSlot {
    /// As the port handed it in.
    pub job: Job,
    /// Its data, in order. Kept when the slot is free, for the next job.
    pub buffers: Vec<libc::iovec>,
    /// When the port handed it in; its response time begins then.
    pub arrived: Instant,
    live: bool,
}

// SAFETY: the iovecs point to memory that the port keeps until `done`; nobody
// but the reactor's thread looks at them.
unsafe impl Send for JobSlot {}

#[derive(Default)]
pub struct Jobs {
    slots: Vec<JobSlot>,
    free: Vec<u32>,
}

impl Jobs {
    /// Keep a job until [`Jobs::remove`]: its number.
    pub fn insert(&mut self, job: &Job, buffers: &[libc::iovec], now: Instant) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(JobSlot { job: *job, buffers: Vec::new(), arrived: now, live: false });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        (slot.job, slot.arrived, slot.live) = (*job, now, true);
        slot.buffers.clear();
        slot.buffers.extend_from_slice(buffers);
        index
    }

    /// Give memory back: what free slots keep for the next jobs.
    pub fn shrink(&mut self) {
        while self.slots.pop_if(|slot| !slot.live).is_some() {}
        let slots = self.slots.len() as u32;
        self.free.retain(|&job| job < slots);
        self.slots.iter_mut().filter(|slot| !slot.live).for_each(|slot| slot.buffers = Vec::new());
        self.slots.shrink_to_fit();
        self.free.shrink_to_fit();
    }

    /// The job is done with.
    pub fn remove(&mut self, job: u32) {
        let slot = &mut self.slots[job as usize];
        assert!(slot.live, "job {job} ends twice");
        slot.live = false;
        self.free.push(job);
    }
}

impl Index<u32> for Jobs {
    type Output = JobSlot;
    fn index(&self, job: u32) -> &JobSlot {
        &self.slots[job as usize]
    }
}

/// The sectors of its disk that a job touches. A flush touches none, and names the first.
pub fn extent_of(job: &Job) -> Extent {
    let start = job.offset / SECTOR_BYTES;
    let end = job.offset.saturating_add(job.len.max(1)).div_ceil(SECTOR_BYTES);
    let extent = Extent::new(Lba::new(start), Sectors::new(end - start));
    extent.expect("jobs are checked when they come")
}

/// Where in a job this part of its disk is: begin and length in bytes.
pub fn bytes_of(job: &Job, part: Extent) -> (u64, u64) {
    let start = (part.start().get() * SECTOR_BYTES).max(job.offset);
    let end = (part.end().get() * SECTOR_BYTES).min(job.offset + job.len);
    (start - job.offset, end - start)
}

/// Append to `out` the pieces of `buffers` that hold bytes `start..start+len`.
pub fn slice_buffers(buffers: &[libc::iovec], start: u64, len: u64, out: &mut Vec<libc::iovec>) {
    let (mut skip, mut left) = (start as usize, len as usize);
    for buffer in buffers {
        if left == 0 {
            break;
        }
        if skip >= buffer.iov_len {
            skip -= buffer.iov_len;
            continue;
        }
        let take = left.min(buffer.iov_len - skip);
        // An address inside the buffer.
        let iov_base = buffer.iov_base.wrapping_byte_add(skip);
        out.push(libc::iovec { iov_base, iov_len: take });
        (skip, left) = (0, left - take);
    }
    assert!(left == 0, "a job's buffers hold less than its length");
}

/// The bytes that buffers hold together.
pub fn buffers_len(buffers: &[libc::iovec]) -> u64 {
    buffers.iter().map(|b| b.iov_len as u64).sum()
}

// The last slow requests of a device, with the stages of their time. The reader says which time is
// slow: the last requests are kept for each of a row of times.

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

    #[test]
    fn memory_of_jobs_that_are_done_is_given_back() {
        let disk = crate::port::DiskId(0);
        let port = crate::port::PortId { index: 0, generation: 0 };
        let (op, offset, len) = (seekway_core::request::Op::Read, 0, 512);
        let (priority, fua, unmap) = (0, false, false);
        let job = Job { disk, port, token: 0, op, offset, len, priority, fua, unmap };
        let buffers = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 512 }; 1000];
        let mut jobs = Jobs::default();
        let numbers: Vec<u32> =
            (0..100).map(|_| jobs.insert(&job, &buffers, Instant::ZERO)).collect();
        for number in numbers.into_iter().filter(|&number| number != 40) {
            jobs.remove(number);
        }
        jobs.shrink();
        assert_eq!((jobs.slots.len(), jobs.free.len()), (41, 40));
        assert_eq!(jobs[40].buffers.len(), 1000);
        assert!(jobs.slots[..40].iter().all(|slot| slot.buffers.capacity() == 0));
        // All numbers can be used, and no one twice.
        let mut numbers: Vec<u32> =
            (0..50).map(|_| jobs.insert(&job, &[], Instant::ZERO)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..=50).filter(|&number| number != 40).collect::<Vec<_>>());
    }

    #[test]
    fn slices_cross_buffers() {
        let iovec = |base: usize, iov_len| libc::iovec { iov_base: base as *mut _, iov_len };
        let buffers = [iovec(1000, 10), iovec(2000, 20), iovec(3000, 30)];
        let mut out = Vec::new();
        slice_buffers(&buffers, 15, 20, &mut out);
        let got: Vec<_> = out.iter().map(|v| (v.iov_base as usize, v.iov_len)).collect();
        assert_eq!(got, [(2005, 15), (3000, 5)]);
        assert_eq!(buffers_len(&buffers), 60);
    }

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
