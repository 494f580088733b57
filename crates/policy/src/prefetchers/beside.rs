//! Two prefetchers of one cache: a host's own read-ahead goes on below a policy.

use seekway_core::prefetcher::{Access, Prefetcher, Proposal, Stream};
use seekway_core::request::{Extent, VmId};
use seekway_core::units::{Instant, Sectors};

/// A prefetcher, and the host's own, which proposes first.
pub(super) struct Beside {
    pub host: Box<dyn Prefetcher>,
    pub policy: Box<dyn Prefetcher>,
}

impl Prefetcher for Beside {
    fn attach(&mut self, now: Instant, vm: VmId, capacity: Sectors) {
        self.host.attach(now, vm, capacity);
        self.policy.attach(now, vm, capacity);
    }

    fn detach(&mut self, vm: VmId) {
        self.host.detach(vm);
        self.policy.detach(vm);
    }

    fn fetches_as_demand(&self) -> bool {
        self.policy.fetches_as_demand()
    }

    fn bandwidth(&mut self, bytes_per_s: u64) {
        self.host.bandwidth(bytes_per_s);
        self.policy.bandwidth(bytes_per_s);
    }

    fn held(&mut self, vm: VmId, sectors: Sectors) {
        self.host.held(vm, sectors);
        self.policy.held(vm, sectors);
    }

    fn accessed(&mut self, now: Instant, access: &Access) {
        self.host.accessed(now, access);
        self.policy.accessed(now, access);
    }

    fn evicted(&mut self, now: Instant, vm: VmId, extent: Extent, used: bool) {
        self.host.evicted(now, vm, extent, used);
        self.policy.evicted(now, vm, extent, used);
    }

    fn propose(&mut self, now: Instant, room: Sectors) -> Option<Proposal> {
        self.host.propose(now, room).or_else(|| self.policy.propose(now, room))
    }

    fn along(&mut self, now: Instant, most: Sectors) -> Option<Proposal> {
        self.policy.along(now, most)
    }

    fn left(&mut self, now: Instant) -> Option<Extent> {
        self.policy.left(now)
    }

    fn next_wake(&self) -> Option<Instant> {
        [self.host.next_wake(), self.policy.next_wake()].into_iter().flatten().min()
    }

    fn streams(&self, sink: &mut dyn FnMut(&Stream)) {
        self.policy.streams(sink);
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        self.policy.metrics(sink);
    }
}
