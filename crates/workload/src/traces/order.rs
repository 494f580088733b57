//! Sorting by time within a bounded window.

use super::raw::Raw;
use std::collections::{BTreeMap, VecDeque};

/// Holds requests back until nothing earlier can come any more, as far as the
/// window reaches. Requests that come in order cost no sorting: they queue;
/// only the late ones go through a map.
pub(super) struct Window {
    records_max: usize,
    time_max_ns: u64,
    in_order: VecDeque<Raw>,
    /// By time, and then in the order in which they came.
    late: BTreeMap<(u64, u64), Raw>,
    /// The latest time that has come in, and the latest that has gone out.
    newest_ns: u64,
    released_ns: u64,
    pub(super) reordered: u64,
    pub(super) clamped: u64,
}

impl Window {
    /// A window of at most `records_max` requests and `time_max_ns` nanoseconds
    /// of trace time, whichever is reached first.
    pub(super) fn new(records_max: usize, time_max_ns: u64) -> Self {
        Window {
            records_max,
            time_max_ns,
            in_order: VecDeque::new(),
            late: BTreeMap::new(),
            newest_ns: 0,
            released_ns: 0,
            reordered: 0,
            clamped: 0,
        }
    }

    /// Take in the next request of the trace.
    pub(super) fn push(&mut self, raw: Raw) {
        if raw.time_ns >= self.newest_ns {
            self.newest_ns = raw.time_ns;
            self.in_order.push_back(raw);
            return;
        }
        self.reordered += 1;
        self.late.insert((raw.time_ns, self.reordered), raw);
    }

    /// The earliest request, once the window is full or `over` says that no
    /// more will come. Times never decrease: a request that came too late for
    /// the window gets the time of the one before it.
    pub(super) fn pop(&mut self, over: bool) -> Option<Raw> {
        let front = self.in_order.front().map(|raw| raw.time_ns);
        let late = self.late.first_key_value().map(|((time_ns, _), _)| *time_ns);
        let earliest = match (front, late) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        let held = self.in_order.len() + self.late.len();
        if !over && held <= self.records_max && self.newest_ns - earliest <= self.time_max_ns {
            return None;
        }
        // Of equal times the one in order came first.
        let mut raw = match (front, late) {
            (Some(a), Some(b)) if b < a => self.late.pop_first()?.1,
            (None, _) => self.late.pop_first()?.1,
            _ => self.in_order.pop_front()?,
        };
        if raw.time_ns < self.released_ns {
            self.clamped += 1;
            raw.time_ns = self.released_ns;
        }
        self.released_ns = raw.time_ns;
        Some(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::super::raw::Span;
    use super::*;
    use seekway_core::request::Op;

    #[test]
    fn later_than_the_window_is_clamped() {
        let read = |records, time_ns| {
            let mut window = Window::new(records, time_ns);
            let mut times = Vec::new();
            for time_ns in [100, 101, 102, 103, 104, 50, 103] {
                let (op, span) = (Op::Read, Span::NONE);
                window.push(Raw { time_ns, volume: 0, process: 0, op, sync: true, span });
                times.extend(std::iter::from_fn(|| window.pop(false)).map(|raw| raw.time_ns));
            }
            times.extend(std::iter::from_fn(|| window.pop(true)).map(|raw| raw.time_ns));
            (times, window.reordered, window.clamped)
        };
        assert_eq!(read(100, 1000), (vec![50, 100, 101, 102, 103, 103, 104], 2, 0));
        assert_eq!(read(3, 1000), (vec![100, 101, 101, 102, 103, 103, 104], 2, 1));
        assert_eq!(read(100, 2), (vec![100, 101, 101, 102, 103, 103, 104], 2, 1));
        assert_eq!(read(0, 0), (vec![100, 101, 102, 103, 104, 104, 104], 2, 2));
    }
}
