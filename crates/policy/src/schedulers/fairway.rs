//! **fairway**: one policy for every device, that nobody has to tune.
//!
//! Source: ours; `docs/policies/fairway.md` has the design and its relatives. Two parts serve
//! two kinds of device, and this file chooses between them by what the dispatcher says of the
//! device:
//!
//! - A device with a head: [`head`]. One sweep over all VMs that have not had too much of the
//!   device's time; streams are kept together.
//! - A device without a head works on several commands at once: [`flash`]. VMs share it by
//!   the cost of their commands and by weight; a governor keeps what is in the device short
//!   while a VM with little outstanding is active, and large requests go in parts then.

mod cost;
mod flash;
mod governor;
mod head;
mod price;
mod promises;
mod reserves;
mod shares;
mod targets;
#[cfg(test)]
mod tests;

use super::Entry;
use flash::Flash;
use head::Head;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::request::{Completion, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Promise, Scheduler, VmSpec};
use seekway_core::units::{Instant, Sectors};

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    ParamSpec { key: "isolation", kind: Kind::Number(0.0, 1.0), default: "0.6",
        help: "without a head: the part of its own speed that a VM with little outstanding is to keep; 0: shares only" },
    ParamSpec { key: "split", kind: Kind::Flag, default: "true",
        help: "without a head: send large requests in parts while such a VM is active" },
    ParamSpec { key: "underserved", kind: Kind::Flag, default: "true",
        help: "without a head: a VM that gets less than its share counts as such a VM" },
    ParamSpec { key: "part", kind: Kind::Size, default: "32KiB",
        help: "the length of parts" },
    ParamSpec { key: "write_price", kind: Kind::Number(0.0, 20.0), default: "0",
        help: "without a head: what a write costs over a read of as many bytes; 0: learnt" },
    ParamSpec { key: "window", kind: Kind::Duration, default: "10ms",
        help: "with a head: how much device time a VM may be ahead of others" },
    ParamSpec { key: "turn", kind: Kind::Duration, default: "100ms",
        help: "with a head: the same for a stream, which keeps the head for so long" },
    ParamSpec { key: "short_turn", kind: Kind::Duration, default: "10ms",
        help: "with a head: the same while a VM waits with a single request" },
    ParamSpec { key: "slice", kind: Kind::Duration, default: "35ms",
        help: "with a head: how long a VM with several requests keeps it; 0: for one request" },
    ParamSpec { key: "round", kind: Kind::Duration, default: "500ms",
        help: "with a head: the slices of all VMs with work fit into this" },
    ParamSpec { key: "lag", kind: Kind::Duration, default: "10ms",
        help: "with a head: by how much device time a VM that wakes may be behind the others" },
    ParamSpec { key: "stay", kind: Kind::Duration, default: "8ms",
        help: "with a head: how long it is held for a stream's next request at most (half the cost of coming back, if that is less); 0: not at all" },
    ParamSpec { key: "hold", kind: Kind::Duration, default: "2ms",
        help: "with a head: how long it is held for a VM that is behind; 0: not at all" },
    ParamSpec { key: "oldest", kind: Kind::Number(0.0, 100.0), default: "0.5",
        help: "with a head: a request that has waited so many times its VM's mean goes first" },
    ParamSpec { key: "even", kind: Kind::Flag, default: "true",
        help: "with a head: the way from VM to VM costs all the same" },
];

pub(super) const ENTRY: Entry = Entry {
    name: "fairway",
    summary: "fair shares of the device with a short queue in it, on every kind of device",
    source: "ours (docs/policies/fairway.md)",
    params: PARAMS,
    holds: &[head::STREAM, head::SHARE, flash::DEPTH, flash::PRICE],
    keeps: &[Promise::Iops, Promise::Bandwidth, Promise::Latency, Promise::Group],
    starves: &[],
    build: |params| Ok(Box::new(Fairway::new(params)?)),
};

/// The policy: one of its parts is in charge of all requests.
struct Fairway {
    /// For a device with a head.
    head: Head,
    flash: Flash,
    with_head: bool,
    /// The attached VMs by number.
    vms: Vec<Option<VmSpec>>,
}

impl Fairway {
    fn new(params: &Params) -> Result<Self, ParamError> {
        Ok(Fairway {
            head: Head::new(params),
            flash: Flash::new(params),
            with_head: false,
            vms: Vec::new(),
        })
    }

    fn part(&mut self) -> &mut dyn Scheduler {
        if self.with_head { &mut self.head } else { &mut self.flash }
    }

    /// Hand all VMs and requests to the other part. What is in flight stays unknown to it.
    fn switch(&mut self, now: Instant) {
        let vms = std::mem::take(&mut self.vms);
        let known = vms
            .iter()
            .enumerate()
            .filter_map(|(n, spec)| Some((VmId::new(n as u16), spec.clone()?)));
        let mut queued = Vec::new();
        for (vm, spec) in known {
            queued.extend(self.part().detach(now, vm));
            self.with_head = !self.with_head;
            self.part().attach(now, vm, spec);
            self.with_head = !self.with_head;
        }
        (self.vms, self.with_head) = (vms, !self.with_head);
        queued.sort_by_key(|request| request.arrived);
        queued.into_iter().for_each(|request| self.part().arrived(now, request));
    }
}

impl Scheduler for Fairway {
    fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        if self.vms.len() <= vm.index() {
            self.vms.resize(vm.index() + 1, None);
        }
        self.vms[vm.index()] = Some(spec.clone());
        self.part().attach(now, vm, spec);
    }

    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        self.vms[vm.index()] = None;
        self.part().detach(now, vm)
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.part().arrived(now, request);
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        self.part().withdraw(now, id);
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.head.completed(now, completion);
        self.flash.completed(now, completion);
    }

    fn background_most(
        &mut self,
        now: Instant,
        vm: VmId,
        len: Sectors,
        device: &DeviceView<'_>,
    ) -> Sectors {
        self.part().background_most(now, vm, len, device)
    }

    fn background_place(&self, vm: VmId) -> u128 {
        if self.with_head { 0 } else { self.flash.background_place(vm) }
    }

    fn background_sent(&mut self, now: Instant, command: &Request) {
        self.part().background_sent(now, command);
    }

    fn background_completed(&mut self, now: Instant, command: &Request, sent: Instant) {
        self.head.background_completed(now, command, sent);
        self.flash.background_completed(now, command, sent);
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if device.profile.rotational() != self.with_head {
            self.switch(now);
        }
        self.part().decide(now, device)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        match self.with_head {
            true => self.head.metrics(sink),
            false => self.flash.metrics(sink),
        }
    }

    fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        match self.with_head {
            true => self.head.vm_metrics(sink),
            false => self.flash.vm_metrics(sink),
        }
    }
}
