//! **fairway**: one policy for every device, that nobody has to tune.
//!
//! Source: ours; `docs/policies/fairway.md` has the design and its relatives. Two parts serve
//! two kinds of device, and this file chooses between them when the policy takes over a device:
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
mod head_vm;
mod promises;
mod shares;
#[cfg(test)]
mod tests;

use crate::entry::Entry;
use flash::Flash;
use head::Head;
use seekway_core::params::{Kind, ParamSpec, Params, param};
use seekway_core::request::{Completion, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Promise, Scheduler, VmSpec};
use seekway_core::units::{Instant, Sectors};

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("isolation", Kind::Number(0.0, 1.0), "0.6",
        "without a head: the part of its own speed that a VM with little outstanding is to keep; 0: shares only"),
    param("write_price", Kind::Number(0.0, 20.0), "0",
        "without a head: what a write costs over a read of as many bytes; 0: learnt"),
    param("stay", Kind::Duration, "8ms",
        "with a head: how long it is held for a stream's next request at most (half the cost of coming back, if that is less); 0: not at all"),
    param("hold", Kind::Duration, "2ms",
        "with a head: how long it is held for a VM that is behind; 0: not at all"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "fairway",
    summary: "fair shares of the device with a short queue in it, on every kind of device",
    source: "ours (docs/policies/fairway.md)",
    params: PARAMS,
    holds: &[head::STREAM, head::SHARE, flash::DEPTH, flash::PRICE],
    keeps: &[Promise::Iops, Promise::Bandwidth, Promise::Latency, Promise::Group],
    starves: &[],
    build: |params| Ok(Box::new(Fairway::new(params))),
};

/// The policy: the part for the device that it has taken over.
struct Fairway {
    params: Params,
    /// Until the device is known, the part for one without a head.
    part: Box<dyn Scheduler>,
}

impl Fairway {
    fn new(params: &Params) -> Self {
        Fairway { part: Box::new(Flash::new(params)), params: params.clone() }
    }
}

impl Scheduler for Fairway {
    fn takes_over(&mut self, device: &DeviceProfile) {
        if device.rotational() {
            self.part = Box::new(Head::new(&self.params));
        }
    }

    fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        self.part.attach(now, vm, spec);
    }

    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        self.part.detach(now, vm)
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.part.arrived(now, request);
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        self.part.withdraw(now, id);
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.part.completed(now, completion);
    }

    fn background_most(
        &mut self,
        now: Instant,
        vm: VmId,
        len: Sectors,
        device: &DeviceView<'_>,
    ) -> Sectors {
        self.part.background_most(now, vm, len, device)
    }

    fn background_place(&self, vm: VmId) -> u128 {
        self.part.background_place(vm)
    }

    fn background_sent(&mut self, now: Instant, command: &Request) {
        self.part.background_sent(now, command);
    }

    fn background_completed(&mut self, now: Instant, command: &Request, sent: Instant) {
        self.part.background_completed(now, command, sent);
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        self.part.decide(now, device)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        self.part.metrics(sink);
    }

    fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        self.part.vm_metrics(sink);
    }
}
