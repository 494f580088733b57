//! Figures of a run: what applications moved, how long their tasks waited, what their vCPUs
//! lost.

use super::load::VMS;
use crate::metrics::{RunResult, ms, per_second};
use crate::vcpu::VmCpu;

const MIB: f64 = (1 << 20) as f64;
/// A VM that moved nothing counts as this, so that ratios stay finite.
const RATE_MIN: f64 = 1e-6;

fn machine_of(r: &RunResult, vm: usize) -> &VmCpu {
    &r.machine.as_ref().expect("every cell shares processors").vms[vm]
}

/// What a VM's applications read and wrote, MiB/s.
pub(super) fn rate(r: &RunResult, vm: usize) -> f64 {
    let bytes =
        r.apps.iter().filter(|app| usize::from(app.vm) == vm).map(|app| app.bytes).sum::<u64>();
    per_second(bytes as f64 / MIB, r.simulated).max(RATE_MIN)
}

/// All VMs together, MiB/s.
pub(super) fn total(r: &RunResult) -> f64 {
    (0..VMS).map(|vm| rate(r, vm)).sum()
}

/// Of the times from when a task of the VM begins to wait for the disk to when it executes
/// again: only one in a hundred is longer. At least a millisecond.
pub(super) fn p99_ms(r: &RunResult, vm: usize) -> f64 {
    ms(machine_of(r, vm).waits().value_at_quantile(0.99).max(1_000_000))
}

/// The share of its vCPUs' time in which they had something to run and no processor, per cent.
pub(super) fn lost_percent(r: &RunResult, vm: usize) -> f64 {
    let vm = machine_of(r, vm);
    let span = r.simulated.as_secs_f64() * f64::from(vm.vcpus);
    100.0 * vm.stolen.as_secs_f64() / span.max(1e-9)
}
