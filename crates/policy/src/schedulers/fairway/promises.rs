//! What the policy says of reservations and targets of latency.

use super::reserves::Reserves;
use super::targets::Targets;
use seekway_core::request::VmId;

/// How reservations are met, all VMs of the device together.
pub fn metrics(reserves: &Reserves, sink: &mut dyn FnMut(&'static str, f64)) {
    sink("reservations_met", reserves.met());
    sink("by_reservation", reserves.served as f64);
}

/// Of one VM, if it was promised something.
pub fn vm_metrics(
    reserves: &Reserves,
    targets: &Targets,
    vm: usize,
    sink: &mut dyn FnMut(&'static str, VmId, f64),
) {
    let id = VmId::new(vm as u16);
    if reserves.has(vm) {
        sink("reservation_met", id, reserves.met());
    }
    if let Some(state) = targets.state(vm) {
        sink("latency_missed", id, state.missed);
        sink("latency_p99_us", id, state.p99 / 1e3);
        sink("latency_pressure", id, state.pressure);
        if let Some(best) = state.best {
            sink("latency_unreachable_best_us", id, best / 1e3);
        }
    }
}
