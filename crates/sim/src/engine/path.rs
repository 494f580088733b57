//! The host's thread through which the requests of all VMs pass, one at a time, where its software
//! has one: blktap's tapdisk, or a loop device's.

use seekway_core::request::Op;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::Submit;
use std::collections::VecDeque;

/// The work of the thread on a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostPath {
    /// Time that it takes.
    pub request: Nanos,
    /// Whether it waits for the answer of a read before it takes the next request, as the thread of
    /// a loop device does (Linux 3.2, `drivers/block/loop.c`, `do_lo_receive`). A write goes into
    /// the host's page cache there: it is not waited for.
    pub waits: bool,
}

/// The thread in a run.
pub(super) struct PathThread {
    path: HostPath,
    queued: VecDeque<Submit>,
    /// The request that it works on, and when it is done.
    at_work: Option<(Instant, Submit)>,
    /// Is a read under way that it waits for?
    waiting: bool,
}

impl PathThread {
    pub(super) fn new(path: HostPath) -> PathThread {
        PathThread { path, queued: VecDeque::new(), at_work: None, waiting: false }
    }

    pub(super) fn arrive(&mut self, request: Submit) {
        self.queued.push_back(request);
    }

    /// The next request that reaches the stack now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Submit> {
        if self.waiting {
            return None;
        }
        if self.at_work.is_none() {
            let request = self.queued.pop_front()?;
            self.at_work = Some((now + self.path.request, request));
        }
        let (_, request) = self.at_work.take_if(|(at, _)| *at <= now)?;
        self.waiting = self.path.waits && request.op == Op::Read;
        Some(request)
    }

    /// When it is done with the request that it works on.
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.at_work.map(|(at, _)| at)
    }

    /// A guest has its answer. While the thread waits, the one read under way is the one that it
    /// waits for.
    pub(super) fn answered(&mut self, op: Op) {
        self.waiting &= op != Op::Read;
    }
}

#[cfg(test)]
mod tests {
    use super::{HostPath, PathThread};
    use seekway_core::request::{Extent, Op, VmId};
    use seekway_core::units::{Instant, Lba, Nanos, Sectors};
    use seekway_stack::stack::Submit;

    const REQUEST: Nanos = Nanos::from_micros(100);

    fn submit(op: Op, token: u64) -> Submit {
        let extent = Extent::new(Lba::ZERO, Sectors::new(8)).unwrap();
        Submit { vm: VmId::new(0), tag: None, op, sync: true, extent, token }
    }

    fn tokens(thread: &mut PathThread, us: u64) -> Vec<u64> {
        let now = Instant::ZERO + Nanos::from_micros(us);
        std::iter::from_fn(|| thread.next(now)).map(|request| request.token).collect()
    }

    #[test]
    fn each_request_takes_its_time_and_waits_for_those_before() {
        let mut thread = PathThread::new(HostPath { request: REQUEST, waits: false });
        (0..2).for_each(|n| thread.arrive(submit(Op::Read, n)));
        assert_eq!(tokens(&mut thread, 0), []);
        assert_eq!(thread.next_event(), Some(Instant::ZERO + REQUEST));
        assert_eq!(tokens(&mut thread, 100), [0]);
        assert_eq!(tokens(&mut thread, 199), []);
        assert_eq!(tokens(&mut thread, 200), [1]);
        assert_eq!(thread.next_event(), None);
    }

    #[test]
    fn a_loop_device_waits_for_reads_and_for_no_write() {
        let mut thread = PathThread::new(HostPath { request: Nanos::ZERO, waits: true });
        let ops = [Op::Write, Op::Write, Op::Read, Op::Read, Op::Write];
        (0..).zip(ops).for_each(|(n, op)| thread.arrive(submit(op, n)));
        assert_eq!(tokens(&mut thread, 0), [0, 1, 2]);
        thread.answered(Op::Write);
        assert_eq!(tokens(&mut thread, 10), []);
        thread.answered(Op::Read);
        assert_eq!(tokens(&mut thread, 20), [3]);
        thread.answered(Op::Read);
        assert_eq!(tokens(&mut thread, 30), [4]);
    }
}
