//! What the vMigrater experiments measure: I/O throughput as the tasks see it, its
//! share of what the recorded schedule of the vCPUs allows, moves, and what it all
//! costs the compute tasks.

pub(super) use super::super::judge::short;
use super::super::judge::{mean, range};
pub(super) use super::super::results::across;
use super::super::results::over;
use super::super::{Key, Results, Ways};
use super::load::{Scene, VANILLA};
use crate::metrics::{RunResult, per_second};
use crate::vcpu::{MachineResult, TaskResult, VmCpu};
use seekway_policy::units::Nanos;

const MIB: f64 = (1 << 20) as f64;

/// The machine of a run: every cell here has one.
pub(super) fn machine(r: &RunResult) -> &MachineResult {
    r.machine.as_ref().expect("every cell of these experiments is a machine")
}

fn of_io(vm: &VmCpu) -> impl Iterator<Item = &TaskResult> {
    vm.tasks.iter().filter(|task| task.io)
}

/// What the I/O tasks of a VM read, MiB/s.
pub(super) fn vm_rate(r: &RunResult, vm: usize) -> f64 {
    let bytes = |vm: &VmCpu| of_io(vm).map(|task| task.bytes).sum::<u64>();
    let bytes = machine(r).vms.get(vm).map_or(0, bytes);
    per_second(bytes as f64 / MIB, r.simulated)
}

/// What all I/O tasks read, MiB/s.
pub(super) fn rate(r: &RunResult) -> f64 {
    (0..machine(r).vms.len()).map(|vm| vm_rate(r, vm)).sum()
}

/// The share of the time in which a VM had any vCPU running: the most that can be had by
/// moving its tasks.
fn any_share(r: &RunResult, vm: &VmCpu) -> f64 {
    vm.any_ran.as_secs_f64() / r.simulated.as_secs_f64()
}

/// The same, the mean over the VMs, in per cent.
pub(super) fn bound(r: &RunResult) -> f64 {
    let vms = &machine(r).vms;
    100.0 * mean(&vms.iter().map(|vm| any_share(r, vm)).collect::<Vec<_>>())
}

/// What a run would have read if each VM's I/O tasks had been served as in `unshared`
/// whenever any of its vCPUs ran, MiB/s.
fn allowed(r: &RunResult, unshared: &RunResult) -> f64 {
    let vms = machine(r).vms.iter().enumerate();
    vms.map(|(n, vm)| vm_rate(unshared, n) * any_share(r, vm)).sum()
}

/// A figure that is the sum over all tasks that do I/O (`io`) or that do not.
fn sum_of(r: &RunResult, io: bool, figure: impl Fn(&TaskResult) -> f64) -> f64 {
    let tasks = machine(r).vms.iter().flat_map(|vm| &vm.tasks);
    tasks.filter(|task| task.io == io).map(figure).sum()
}

/// CPU time that the compute tasks had, s.
pub(super) fn computed(r: &RunResult) -> f64 {
    sum_of(r, false, |task| task.ran.as_secs_f64())
}

/// CPU time that the I/O tasks had, s.
pub(super) fn worked(r: &RunResult) -> f64 {
    sum_of(r, true, |task| task.ran.as_secs_f64())
}

/// Time in which I/O tasks could have run and their vCPU was away, for each of their
/// blocks, s.
pub(super) fn inactive_a_block(r: &RunResult) -> f64 {
    let blocks = sum_of(r, true, |task| task.ios as f64);
    sum_of(r, true, |task| task.inactive.as_secs_f64()) / blocks
}

/// From block to block as I/O tasks see it, the mean, ms.
pub(super) fn response(r: &RunResult) -> f64 {
    let count = sum_of(r, true, |task| task.response.len() as f64);
    sum_of(r, true, |task| task.response.mean() * task.response.len() as f64) / count / 1e6
}

fn total(r: &RunResult, figure: impl Fn(&VmCpu) -> f64) -> f64 {
    machine(r).vms.iter().map(figure).sum()
}

/// Moves of tasks between vCPUs, summed over all VMs.
pub(super) fn moves(r: &RunResult) -> f64 {
    total(r, |vm| vm.moves as f64)
}

/// The paper's P: moves made over the least number that a clairvoyant would have made.
pub(super) fn moves_over_least(r: &RunResult) -> f64 {
    moves(r) / total(r, |vm| vm.moves_min as f64)
}

/// Of the moves, those that waited for a vCPU that was away, in per cent.
pub(super) fn blocked(r: &RunResult) -> f64 {
    100.0 * total(r, |vm| vm.blocked as f64) / moves(r).max(1.0)
}

/// CPU time of the agents, in per cent of what the vCPUs had.
pub(super) fn agent(r: &RunResult) -> f64 {
    let ran: Nanos = machine(r).vms.iter().fold(Nanos::ZERO, |all, vm| all + vm.ran);
    100.0 * total(r, |vm| vm.agent.as_secs_f64()) / ran.as_secs_f64()
}

impl Ways for Scene {
    type Way<'a> = &'a str;
    fn key(&self, vcpu: &str) -> Key {
        let (scenario, policy) = (self.name.clone(), self.disk.policy().into());
        Key { scenario, policy, prefetch: None, vcpu: Some(vcpu.into()) }
    }
}

/// A figure of one scene and policy over that of another, seed by seed.
pub(super) fn ratio(
    results: &Results,
    ours: (&Scene, &str),
    base: (&Scene, &str),
    figure: impl Fn(&RunResult) -> f64,
) -> Vec<f64> {
    over(&results.each(ours.0, ours.1, &figure), &results.each(base.0, base.1, &figure))
}

/// Throughput over that under vanilla, seed by seed.
pub(super) fn gain(results: &Results, scene: &Scene, vcpu: &str) -> Vec<f64> {
    ratio(results, (scene, vcpu), (scene, VANILLA), rate)
}

/// Throughput over what the same VMs have when nothing is shared: the paper's
/// normalized throughput.
pub(super) fn normalized(results: &Results, scene: &Scene, vcpu: &str) -> Vec<f64> {
    ratio(results, (scene, vcpu), (&scene.unshared(), VANILLA), rate)
}

/// Throughput as a share of what the recorded schedule allows (experiments.md, vMigrater,
/// "Accept"), seed by seed. `unshared` is what is had without sharing.
pub(super) fn share_of_bound(
    results: &Results,
    scene: &Scene,
    vcpu: &str,
    unshared: &Scene,
) -> Vec<f64> {
    let free = results.of(unshared, VANILLA);
    let pairs = results.of(scene, vcpu).iter().zip(free);
    pairs.map(|(r, free)| rate(r) / allowed(r, free)).collect()
}

/// Throughput of the VM that has least over that of the one that has most.
pub(super) fn evenness(r: &RunResult) -> f64 {
    let rates: Vec<f64> = (0..machine(r).vms.len()).map(|vm| vm_rate(r, vm)).collect();
    let (least, most) = range(&rates);
    least / most
}
