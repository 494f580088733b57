//! Service-level targets of VMs, on either kind of device: latencies and reservations.

use super::reserves::Reserves;
use super::targets::Targets;
use seekway_core::request::VmId;
use seekway_core::scheduler::{Reserve, VmSpec};
use seekway_core::units::Instant;

/// The promises on one device.
#[derive(Default)]
pub struct Promises {
    pub reserves: Reserves,
    pub targets: Targets,
}

impl Promises {
    pub fn attach(&mut self, vm: usize, spec: &VmSpec) {
        self.reserves.attach(vm, spec.reserve);
        self.targets.attach(vm, spec.latency);
    }

    pub fn detach(&mut self, vm: usize) {
        self.reserves.attach(vm, Reserve::default());
        self.targets.attach(vm, None);
    }

    /// Has this VM a reservation or a target?
    pub fn has(&self, vm: usize) -> bool {
        self.reserves.has(vm) || self.targets.has(vm)
    }

    /// When the VM's oldest request arrived; `None`: it has none queued.
    pub fn set_work(&mut self, now: Instant, vm: usize, arrived: Option<Instant>) {
        self.reserves.set_work(now, vm, arrived.is_some());
        self.targets.set_work(vm, arrived);
    }

    /// The VM that a promise wants to go now: one with a request that is due for a target, if that
    /// VM is level with the others, or else the one whose reservation is furthest behind, unless a
    /// VM without one has its turn (`is_others_turn`).
    pub fn next(
        &mut self,
        now: Instant,
        is_level: impl Fn(usize) -> bool,
        is_others_turn: impl Fn(&Reserves) -> bool,
    ) -> Option<usize> {
        let Promises { reserves, targets } = self;
        let due = targets.due(now, is_level);
        due.or_else(|| reserves.behind(now).filter(|_| !is_others_turn(reserves)))
    }

    /// Shows how reservations are met, all VMs of the device together.
    pub fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("reservations_met", self.reserves.met());
        sink("by_reservation", self.reserves.served as f64);
    }

    /// Of one VM, if it was promised something.
    pub fn vm_metrics(&self, vm: usize, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        let id = VmId::new(vm as u16);
        if self.reserves.has(vm) {
            sink("reservation_met", id, self.reserves.met());
        }
        if let Some(state) = self.targets.state(vm) {
            sink("latency_missed", id, state.missed);
            sink("latency_p99_us", id, state.p99 / 1e3);
            sink("latency_pressure", id, state.pressure);
            if let Some(best) = state.best {
                sink("latency_unreachable_best_us", id, best / 1e3);
            }
        }
    }
}
