//! The machine as a source of requests.

use super::{MachineResult, MachineSpec};
use seekway_policy::units::Instant;
use seekway_workload::{Issue, Source, SourceError, VmDisk};

/// A host with its VMs, running.
pub struct Machine {
    vms: Vec<VmDisk>,
    policy: String,
}

impl Machine {
    /// A machine whose agents have this policy. What happens before `measured_from`
    /// is not part of its result.
    ///
    /// # Errors
    /// The policy is none, or the machine cannot be.
    pub fn new(
        spec: &MachineSpec,
        policy: &str,
        _seed: u64,
        _measured_from: Instant,
    ) -> Result<Machine, String> {
        let disk = |vm: &super::VmSpec| VmDisk { name: vm.name.clone(), capacity: vm.disk };
        Ok(Machine { vms: spec.vms.iter().map(disk).collect(), policy: policy.into() })
    }

    /// How it went, up to `now`.
    pub fn result(&self, _now: Instant) -> MachineResult {
        MachineResult { policy: self.policy.clone(), vms: Vec::new() }
    }
}

impl Source for &mut Machine {
    fn vms(&self) -> &[VmDisk] {
        &self.vms
    }

    fn poll(&mut self, _now: Instant, _out: &mut Vec<Issue>) -> Result<(), SourceError> {
        Ok(())
    }

    fn completed(&mut self, _now: Instant, _token: u64) {}

    fn next_wake(&self) -> Option<Instant> {
        None
    }

    fn finished(&self) -> bool {
        true
    }
}
