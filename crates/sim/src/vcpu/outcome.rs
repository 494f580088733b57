//! Results of a machine's run.

use super::machine::Machine;
use super::state::Vm;
use super::{MachineResult, TaskResult, VmCpu};
use seekway_core::units::{Instant, Nanos};

impl Machine {
    /// Results from the begin of the measuring up to `now`, to which it has run.
    pub fn result(&mut self, now: Instant) -> MachineResult {
        self.account(now);
        MachineResult {
            policy: self.policy.clone(),
            pcpus: self.pcpus.iter().map(|pcpu| pcpu.result).collect(),
            vms: self.vms.iter().map(|vm| self.vm_result(vm)).collect(),
            events: self.handled,
        }
    }

    fn vm_result(&self, vm: &Vm) -> VmCpu {
        let vcpus = &self.vcpus[vm.first..vm.first + vm.vcpus];
        let tasks = self.tasks[vm.tasks.clone()].iter();
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
            tasks: tasks.map(|t| TaskResult { io: t.is_io(), ..t.result.clone() }).collect(),
            moves: vm.moves,
            releases: vm.releases,
            blocked: vm.blocked,
            moves_min: vm.least.moves(),
            agent: vm.agent_time,
            overhead: vm.switching,
            metrics,
        }
    }
}
