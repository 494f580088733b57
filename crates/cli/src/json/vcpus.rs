//! The keys of VMs that share the host's processors, in a comparison.

use super::{Response, response};
use seekway_sim::RunResult;
use seekway_sim::metrics::per_second;
use seekway_sim::vcpu::VmCpu;
use serde::Serialize;

/// A VM that shared processors with others.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Vcpus {
    pub vm: String,
    pub vcpus: u16,
    /// Throughput of its applications.
    pub app_mib_s: f64,
    /// Time for which its vCPUs ran, together.
    pub ran_s: f64,
    /// Time for which they had something to run and no processor, together.
    pub stolen_s: f64,
    /// Waits of its tasks for the disk, until they ran again.
    pub wait_ms: Response,
    /// Moves of tasks that its agent made.
    pub moves: u64,
    /// CPU time of its agent.
    pub agent_s: f64,
}

impl Vcpus {
    /// Those of a run; none where no processors were shared.
    pub fn all(r: &RunResult) -> Vec<Vcpus> {
        let Some(machine) = &r.machine else { return Vec::new() };
        // Their disks come behind those of traces.
        let first = r.vms.len() - machine.vms.last().map_or(0, |vm| vm.disks.end);
        machine.vms.iter().map(|vm| Vcpus::new(r, first, vm)).collect()
    }

    /// `first`: the run's first disk that is the machine's.
    fn new(r: &RunResult, first: usize, vm: &VmCpu) -> Vcpus {
        let waits = vm.waits();
        let disks = first + vm.disks.start..first + vm.disks.end;
        let apps = r.apps.iter().filter(|app| disks.contains(&usize::from(app.vm)));
        let bytes: u64 = apps.map(|app| app.bytes).sum();
        Vcpus {
            vm: r.vms[disks.start].name.clone(),
            vcpus: vm.vcpus,
            app_mib_s: per_second(bytes as f64 / f64::from(1 << 20), r.simulated),
            ran_s: vm.ran.as_secs_f64(),
            stolen_s: vm.stolen.as_secs_f64(),
            wait_ms: response(&waits, waits.max()),
            moves: vm.moves,
            agent_s: vm.agent.as_secs_f64(),
        }
    }
}
