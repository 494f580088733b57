//! What is told of a machine's run.

use super::machine::Machine;
use super::state::{Task, Vm};
use super::tasks::SERIES_STEP;
use super::{MachineResult, PcpuResult, TaskResult, VmCpu};
use seekway_policy::units::{Instant, Nanos};

impl Machine {
    /// How it went from the beginning of the measuring up to `now`, to which it has run.
    pub fn result(&mut self, now: Instant) -> MachineResult {
        self.account(now);
        let pcpus = self.pcpus.iter().map(|pcpu| PcpuResult {
            ran: pcpu.ran,
            switching: pcpu.switching,
            idle: pcpu.idle,
            switches: pcpu.switches,
            slices: pcpu.slices,
        });
        MachineResult {
            policy: self.policy.clone(),
            pcpus: pcpus.collect(),
            vms: self.vms.iter().map(|vm| self.vm_result(vm)).collect(),
            events: self.handled,
        }
    }

    fn vm_result(&self, vm: &Vm) -> VmCpu {
        let vcpus = &self.vcpus[vm.first..vm.first + vm.vcpus];
        let mut metrics = Vec::new();
        if let Some(agent) = &vm.agent {
            agent.core.policy.metrics(&mut |name, value| metrics.push((name, value)));
        }
        VmCpu {
            name: vm.name.clone(),
            disks: vm.disks.clone(),
            ran: vcpus.iter().fold(Nanos::ZERO, |sum, vcpu| sum + vcpu.ran.at(self.now)),
            stolen: vcpus.iter().fold(Nanos::ZERO, |sum, vcpu| sum + vcpu.waits.at(self.now)),
            vcpus: vcpus.len() as u16,
            any_ran: vm.any.at(self.now),
            first_ran: vcpus[0].ran.at(self.now),
            tasks: self.tasks[vm.tasks.clone()].iter().map(|t| self.task_result(t)).collect(),
            moves: vm.moves,
            releases: vm.releases,
            blocked: vm.blocked,
            moves_min: vm.least.moves(),
            agent: vm.agent_time,
            overhead: vm.switching,
            metrics,
        }
    }

    fn task_result(&self, task: &Task) -> TaskResult {
        let fared = &task.result;
        let at = |n: usize| self.measured_from + SERIES_STEP.scaled(n as u64, 1);
        let series = fared.series.iter().enumerate().map(|(n, &ios)| (at(n), ios));
        TaskResult {
            name: task.name.clone(),
            io: task.is_io(),
            ran: fared.ran,
            ios: fared.ios,
            bytes: fared.bytes,
            response: fared.response.clone(),
            inactive: fared.inactive,
            moves: fared.moves,
            series: series.collect(),
        }
    }
}
