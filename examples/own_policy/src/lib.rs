//! **own**: VMs take turns, some requests each; the oldest of a VM goes first.

use seekway_core::params::{Kind, param};
use seekway_core::queues::Pool;
use seekway_core::request::{Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
use seekway_core::units::Instant;
use seekway_policy::schedulers::Entry;
use std::collections::VecDeque;

/// Registry entry of the policy.
pub const ENTRY: Entry = Entry {
    name: "own",
    summary: "VMs take turns, some requests each",
    source: "our own, for docs/extend.md",
    params: &[param("turn", Kind::Count(1, 1_000), "4", "requests of a VM before the next VM's")],
    holds: &[],
    keeps: &[],
    starves: &[],
    build: |params| Ok(Box::new(Own { turn: params.count("turn"), ..Own::default() })),
};

#[derive(Default)]
struct Own {
    turn: u64,
    queued: Pool,
    /// The attached VMs, that of the turn first, each with its requests in order of arrival.
    vms: VecDeque<(VmId, VecDeque<RequestId>)>,
    /// Requests of the first VM that went in this turn.
    gone: u64,
}

impl Own {
    fn requests_of(&mut self, vm: VmId) -> &mut VecDeque<RequestId> {
        let found = self.vms.iter_mut().find(|(id, _)| *id == vm);
        &mut found.expect("attached before its requests arrive").1
    }
}

impl Scheduler for Own {
    fn attach(&mut self, _now: Instant, vm: VmId, _spec: VmSpec) {
        self.vms.push_back((vm, VecDeque::new()));
    }

    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        self.vms.retain(|(id, _)| *id != vm);
        self.queued.take_vm(vm)
    }

    fn arrived(&mut self, _now: Instant, request: Request) {
        self.requests_of(request.vm).push_back(request.id);
        self.queued.insert(request);
    }

    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        self.requests_of(request.vm).retain(|queued| *queued != id);
    }

    fn decide(&mut self, _now: Instant, _device: &DeviceView<'_>) -> Decision {
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        while self.gone >= self.turn || self.vms[0].1.is_empty() {
            self.vms.rotate_left(1);
            self.gone = 0;
        }
        let id = self.vms[0].1.pop_front().expect("just looked at");
        self.gone += 1;
        self.queued.take(id);
        Decision::Dispatch(id)
    }
}
