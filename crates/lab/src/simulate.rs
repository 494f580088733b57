//! The same guests and loads in the simulator.

use anyhow::{Context, Result};
use seekway_policy::units::Nanos;
use seekway_sim::RunResult;
use seekway_sim::scenario::{self, Device, Measure, ProfileText, Scenario, Time, Vm};
use seekway_workload::generators::VmText;
use std::sync::Arc;
use std::time::Duration;

/// VMs with their loads on a disk, for real guests and for the simulator.
#[derive(Clone, Debug)]
pub struct Loads {
    /// Each as `workload run --vm` takes it.
    pub vms: Vec<String>,
    /// The disk's profile: a name, or its text.
    pub device: String,
}

impl Loads {
    /// These loads as a scenario; images lie one behind the other from sector 0.
    ///
    /// # Errors
    /// The text of a VM or of the disk cannot be read.
    pub fn scenario(&self) -> Result<Scenario> {
        let vm = |text: &String| Ok(Vm::generated(VmText::parse(text)?));
        let vms: Vec<Vm> = self.vms.iter().map(vm).collect::<Result<_>>()?;
        let mut device = Device::named(&*self.device);
        if self.device.contains('\n') {
            device.profile = ProfileText::Table(self.device.parse().context("the disk")?);
        }
        Ok(Scenario { vm: Arc::new(vms), device, ..Scenario::default() })
    }
}

/// Runs `scenario` for `settle`, which is not measured, and then for `window`.
pub fn simulate(
    scenario: Scenario,
    (settle, window): (Duration, Duration),
    policy: &str,
    seed: u64,
) -> Result<RunResult> {
    let settle = nanos(settle)?;
    let until = Some(Time(settle + nanos(window)?));
    let measure = Measure { settle: Some(Time(settle)), until, requests: None };
    let scenario = Scenario { policy: policy.into(), seed, measure, ..scenario };
    Ok(scenario::run(&scenario)?.result)
}

fn nanos(span: Duration) -> Result<Nanos> {
    Ok(Nanos::new(u64::try_from(span.as_nanos()).context("the window")?))
}
