//! The way into the dispatcher: where places on VMs' disks become places on the
//! device, and what each request there is for.

use super::host::ReadId;
use crate::layout::Layout;
use seekway_policy::cache::FetchId;
use seekway_policy::dispatcher::{Arrival, Dispatcher};
use seekway_policy::request::{Extent, Op, ProcessTag, RequestId, VmId};
use seekway_policy::units::Instant;

/// What a request of the dispatcher is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// A source's request: the source, and its own token.
    Source(u32, u64),
    /// A part of a guest's read, past the cache.
    Direct(ReadId),
    /// A read into the cache.
    Fetch(FetchId),
}

/// The dispatcher and what is in it.
pub(super) struct Inlet {
    pub(super) dispatcher: Dispatcher,
    pub(super) layout: Layout,
    /// By request slot.
    owners: Vec<Owner>,
}

impl Inlet {
    pub(super) fn new(dispatcher: Dispatcher, layout: Layout) -> Self {
        Inlet { dispatcher, layout, owners: Vec::new() }
    }

    /// A request that is mapped to the device already.
    pub(super) fn arrive(&mut self, now: Instant, arrival: Arrival, owner: Owner) -> RequestId {
        let id = self.dispatcher.arrive(now, arrival);
        self.own(id, owner)
    }

    /// A read of `extent` of the VM's disk, which somebody waits for.
    pub(super) fn read(
        &mut self,
        now: Instant,
        vm: VmId,
        tag: Option<ProcessTag>,
        extent: Extent,
        owner: Owner,
    ) -> RequestId {
        let extent = self.map(vm, extent);
        self.arrive(now, Arrival { vm, tag, op: Op::Read, sync: true, extent }, owner)
    }

    /// The same for nobody yet.
    pub(super) fn read_ahead(
        &mut self,
        now: Instant,
        vm: VmId,
        tag: Option<ProcessTag>,
        extent: Extent,
        owner: Owner,
    ) -> RequestId {
        let extent = self.map(vm, extent);
        let arrival = Arrival { vm, tag, op: Op::Read, sync: false, extent };
        let id = self.dispatcher.arrive_background(now, arrival);
        self.own(id, owner)
    }

    fn map(&self, vm: VmId, extent: Extent) -> Extent {
        let mapped = self.layout.map(vm.index(), extent.start(), extent.len());
        mapped.expect("the cache keeps to the VM's disk")
    }

    fn own(&mut self, id: RequestId, owner: Owner) -> RequestId {
        if id.slot() >= self.owners.len() {
            self.owners.resize(id.slot() + 1, owner);
        }
        self.owners[id.slot()] = owner;
        id
    }

    /// What the request is for.
    pub(super) fn owner(&self, id: RequestId) -> Owner {
        self.owners[id.slot()]
    }

    /// The sources' own requests that have not completed: VM and arrival.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (usize, Instant)> {
        let own = |id| matches!(self.owner(id), Owner::Source(..));
        let requests = self.dispatcher.waiting().filter(move |r| own(r.id));
        requests.map(|r| (r.vm.index(), r.arrived))
    }
}
