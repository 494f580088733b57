//! Guests with queues of bounded length: what comes beyond that waits in the guest, requests that
//! somebody waits for in front. Measures what waits: writes by VM, and the bursts.

use super::host::Guest;
use crate::metrics::{BURSTS_MAX, Burst, GuestQueuesResult, VmWrites};
use seekway_core::request::Op;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::Submit;
use std::collections::VecDeque;
use std::num::NonZeroU32;

/// The guests' queues in a run.
pub(super) struct GuestQueues {
    /// Requests that each VM may have outside of the guest.
    depth: usize,
    vms: Vec<VmQueue>,
    /// VMs with a request done since the last [`GuestQueues::next`].
    freed: Vec<u16>,
    now: Waiting,
    /// Those with the longest waits of any request, and of one that somebody waited for.
    bursts: [Vec<Burst>; 2],
}

struct VmQueue {
    outside: usize,
    urgent: VecDeque<Submit>,
    others: VecDeque<Submit>,
    writes: VmWrites,
}

/// Reads and writes of all VMs that have come and are not done.
#[derive(Default)]
struct Waiting {
    requests: u64,
    bytes: u64,
    burst: Option<Burst>,
}

impl GuestQueues {
    pub(super) fn new(depth: NonZeroU32, vms: usize) -> GuestQueues {
        let vm = || VmQueue {
            outside: 0,
            urgent: VecDeque::new(),
            others: VecDeque::new(),
            writes: VmWrites::new(),
        };
        GuestQueues {
            depth: depth.get() as usize,
            vms: std::iter::repeat_with(vm).take(vms).collect(),
            freed: Vec::new(),
            now: Waiting::default(),
            bursts: [Vec::new(), Vec::new()],
        }
    }

    /// A request has come. Gives it back if it may leave the guest at once.
    pub(super) fn arrived(&mut self, now: Instant, request: Submit) -> Option<Submit> {
        let vm = &mut self.vms[request.vm.index()];
        let bytes = request.extent.len().bytes();
        if request.op.is_data() {
            self.now.add(now, bytes);
        }
        if request.op == Op::Write {
            let writes = vm.writes.of(request.sync);
            writes.waiting_bytes += bytes;
            writes.backlog_bytes = writes.backlog_bytes.max(writes.waiting_bytes);
        }
        if vm.outside < self.depth {
            vm.outside += 1;
            return Some(request);
        }
        let is_urgent = request.sync || !matches!(request.op, Op::Write | Op::WriteZeroes);
        let queue = if is_urgent { &mut vm.urgent } else { &mut vm.others };
        queue.push_back(request);
        None
    }

    /// A request is done.
    pub(super) fn answered(&mut self, now: Instant, guest: &Guest) {
        let vm = &mut self.vms[usize::from(guest.vm)];
        vm.outside -= 1;
        self.freed.push(guest.vm);
        let wait = now.since(guest.arrived);
        if guest.op == Op::Write {
            let writes = vm.writes.of(guest.sync);
            writes.requests += 1;
            writes.bytes += guest.bytes;
            writes.waiting_bytes -= guest.bytes;
            writes.longest = writes.longest.max(wait);
            writes.response.record(wait.get());
        }
        if guest.op.is_data()
            && let Some(burst) = self.now.take(now, guest, wait)
        {
            keep(&mut self.bursts[0], burst, |burst| burst.longest);
            let waited = |burst: &Burst| burst.waiter.map_or(Nanos::ZERO, |(.., longest)| longest);
            keep(&mut self.bursts[1], burst, waited);
        }
    }

    /// The next request that leaves its guest now.
    pub(super) fn next(&mut self) -> Option<Submit> {
        while let Some(&number) = self.freed.last() {
            let vm = &mut self.vms[usize::from(number)];
            if vm.outside < self.depth
                && let Some(request) = vm.urgent.pop_front().or_else(|| vm.others.pop_front())
            {
                vm.outside += 1;
                return Some(request);
            }
            self.freed.pop();
        }
        None
    }

    pub(super) fn result(self) -> GuestQueuesResult {
        let writes = self.vms.into_iter().map(|vm| vm.writes).collect();
        let [mut bursts, others] = self.bursts;
        let others: Vec<Burst> = others.into_iter().filter(|o| !bursts.contains(o)).collect();
        bursts.extend(others);
        GuestQueuesResult { writes, bursts }
    }
}

/// Keeps the burst if it is among the [`BURSTS_MAX`] with the longest wait.
fn keep(kept: &mut Vec<Burst>, burst: Burst, wait: fn(&Burst) -> Nanos) {
    let at = kept.partition_point(|known| wait(known) >= wait(&burst));
    if at < BURSTS_MAX {
        kept.truncate(BURSTS_MAX - 1);
        kept.insert(at, burst);
    }
}

impl Waiting {
    fn add(&mut self, now: Instant, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
        let burst = self.burst.get_or_insert(Burst {
            from: now,
            until: now,
            requests: 0,
            bytes: 0,
            longest: Nanos::ZERO,
            waiter: None,
        });
        burst.requests = burst.requests.max(self.requests);
        burst.bytes = burst.bytes.max(self.bytes);
    }

    /// Takes out a request that is done; the burst, if that has ended it.
    fn take(&mut self, now: Instant, guest: &Guest, wait: Nanos) -> Option<Burst> {
        self.requests -= 1;
        self.bytes -= guest.bytes;
        let burst = self.burst.as_mut()?;
        burst.longest = burst.longest.max(wait);
        if guest.sync && burst.waiter.is_none_or(|(.., longest)| longest < wait) {
            burst.waiter = Some((guest.vm, guest.op, wait));
        }
        burst.until = now;
        if self.requests == 0 { self.burst.take() } else { None }
    }
}
