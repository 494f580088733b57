//! **noop**: one FIFO over all VMs. The baseline that every other policy has
//! to beat, and the cheapest.

use crate::entry::Entry;
use seekway_core::queues::{ExpiryQueue, Links, Slots};
use seekway_core::request::{Extent, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler};
use seekway_core::units::Instant;

pub(super) const ENTRY: Entry = Entry {
    name: "noop",
    summary: "first come, first served",
    source: "Linux block/noop-iosched.c",
    params: &[],
    holds: &[],
    keeps: &[],
    starves: &[],
    build: |_| Ok(Box::new(Noop::default())),
};

#[derive(Default)]
struct Noop {
    queued: Slots<Request>,
    fifo: ExpiryQueue,
    links: Links,
}

impl Scheduler for Noop {
    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        let of_vm = |id| self.queued.get(id).filter(|r: &&Request| r.vm == vm).copied();
        let leaving: Vec<Request> = self.fifo.iter(&self.links).filter_map(of_vm).collect();
        for request in &leaving {
            self.fifo.remove(&mut self.links, request.id);
            self.queued.remove(request.id);
        }
        leaving
    }

    fn arrived(&mut self, _now: Instant, request: Request) {
        self.fifo.push(&mut self.links, request.id);
        self.queued.insert(request.id, request);
    }

    fn merged(&mut self, _now: Instant, id: RequestId, extent: Extent) -> bool {
        self.queued.get_mut(id).is_some_and(|request| {
            request.extent = extent;
            true
        })
    }

    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        self.fifo.remove(&mut self.links, id);
        self.queued.remove(id);
    }

    fn decide(&mut self, _now: Instant, _device: &DeviceView<'_>) -> Decision {
        let Some(id) = self.fifo.head() else { return Decision::Idle };
        self.fifo.remove(&mut self.links, id);
        self.queued.remove(id);
        Decision::Dispatch(id)
    }
}
