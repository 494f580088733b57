//! The keys of a run on a machine whose processors are shared by vCPUs.

use seekway_policy::units::Nanos;
use seekway_sim::RunResult;
use seekway_sim::experiments::Cell;
use seekway_sim::vcpu::{TaskResult, VmCpu};
use serde::Serialize;
use std::collections::BTreeMap;

/// A run of a cell.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Machine {
    pub scenario: String,
    pub policy: String,
    /// The policy for vCPUs.
    pub vcpu: String,
    pub seed: u64,
    pub simulated_s: f64,
    pub vms: Vec<MachineVm>,
}

/// What a VM had of the processors, and what it made of it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MachineVm {
    pub name: String,
    /// Of the time: some vCPU ran. What its policy can reach.
    pub any_ran_share: f64,
    /// Of the time: its first vCPU ran.
    pub first_ran_share: f64,
    /// CPU time of its vCPUs, of its compute tasks, of its agent.
    pub ran_s: f64,
    pub computed_s: f64,
    pub agent_s: f64,
    /// What its I/O tasks read, and from block to block as they see it.
    pub io_mib_s: f64,
    pub ios: u64,
    pub io_ms: f64,
    /// Time in which I/O tasks could have run and their vCPU was away.
    pub inactive_s: f64,
    pub moves: u64,
    /// Of these, those that waited for a vCPU that was away.
    pub moves_blocked: u64,
    /// What a clairvoyant needs.
    pub moves_least: u64,
    pub vcpu_metrics: BTreeMap<&'static str, f64>,
}

impl Machine {
    /// The run of a cell with a seed, if the cell is a machine.
    pub fn new(cell: &Cell, seed: u64, run: &RunResult) -> Option<Machine> {
        let machine = run.machine.as_ref()?;
        Some(Machine {
            scenario: cell.scenario.name.clone(),
            policy: cell.policy.clone(),
            vcpu: machine.policy.clone(),
            seed,
            simulated_s: run.simulated.as_secs_f64(),
            vms: machine.vms.iter().map(|vm| MachineVm::new(vm, run.simulated)).collect(),
        })
    }
}

impl MachineVm {
    fn new(vm: &VmCpu, simulated: Nanos) -> MachineVm {
        let seconds = simulated.as_secs_f64().max(f64::MIN_POSITIVE);
        let tasks = |io: bool| vm.tasks.iter().filter(move |task| task.io == io);
        let of_io = |figure: fn(&TaskResult) -> u64| tasks(true).map(figure).sum::<u64>();
        let times: f64 = tasks(true).map(|t| t.response.mean() * t.response.len() as f64).sum();
        let count = of_io(|task| task.response.len()).max(1);
        MachineVm {
            name: vm.name.clone(),
            any_ran_share: vm.any_ran.as_secs_f64() / seconds,
            first_ran_share: vm.first_ran.as_secs_f64() / seconds,
            ran_s: vm.ran.as_secs_f64(),
            computed_s: tasks(false).map(|task| task.ran.as_secs_f64()).sum(),
            agent_s: vm.agent.as_secs_f64(),
            io_mib_s: of_io(|task| task.bytes) as f64 / f64::from(1 << 20) / seconds,
            ios: of_io(|task| task.ios),
            io_ms: times / count as f64 / 1e6,
            inactive_s: tasks(true).map(|task| task.inactive.as_secs_f64()).sum(),
            moves: vm.moves,
            moves_blocked: vm.blocked,
            moves_least: vm.moves_min,
            vcpu_metrics: vm.metrics.iter().copied().collect(),
        }
    }
}
