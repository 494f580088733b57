//! A user's own traces and VMs as a scene.

use super::{Played, results};
use crate::args::ArenaArgs;
use crate::load::{self, Load};
use crate::runs::{Outcome, Plan, Running, Stage};
use crate::stacks::StackSpec;
use anyhow::Result;
use indicatif::ProgressBar;
use seekway_device::profile::Profile;
use seekway_policy::dispatcher::Config;
use seekway_policy::units::Nanos;
use seekway_sim::experiments::arena::{Alone, Figures, Judging, Unit, figures};

/// The load of the command line.
pub struct Own {
    load: Load,
    disk: (Profile, Config),
    until: Option<Nanos>,
    device: String,
}

impl Own {
    /// What `--trace` and `--vm` ask for, if they are given.
    pub fn new(args: &ArenaArgs) -> Result<Option<Own>> {
        let until = args.until.as_deref().map(|t| load::duration("--until", t)).transpose()?;
        if args.load.traces.is_empty() && args.load.vms.is_empty() {
            return Ok(None);
        }
        let disk = load::disk(&args.disk)?;
        let (load, device) = (Load::new(&args.load)?, args.disk.device.clone());
        Ok(Some(Own { load, disk, until, device }))
    }

    /// Runs it under every policy with every seed.
    pub fn play(
        &self,
        policies: &[String],
        seeds: &[u64],
        running: &Running<'_>,
    ) -> Result<Played> {
        let stacks: Vec<StackSpec> = policies.iter().map(|p| StackSpec::new(p)).collect();
        let stage = Stage::new(&self.load, &self.disk, &stacks, self.until, running);
        let noop = [StackSpec::new("noop")];
        let alone = stage.run_each_alone(&noop, seeds[0], &ProgressBar::hidden())?;
        let of_vm = |outcomes: &Vec<Outcome>| Alone::of(&outcomes[0].result);
        let alone: Option<Vec<Alone>> = alone.map(|vms| vms.iter().map(of_vm).collect());
        let outcomes = stage.run_shown(&Plan::all(&stacks, seeds), "your load")?;
        let weights = self.load.weights.iter().map(|weight| f64::from(weight.get())).collect();
        // A load of one's own has no quiet VM, and comes and goes.
        let limits = &self.load.limits;
        let judging = Judging {
            shares: true,
            promises: limits.iter().map(|own| own.limits).collect(),
            quiet: None,
            latency: true,
            unit: Unit::MibS,
            window: None,
            settle: Nanos::ZERO,
            weights,
        };
        let runs: Vec<Figures> =
            outcomes.iter().map(|o| figures(&judging, &o.result, alone.as_deref())).collect();
        let (result, by_seed) = results("own", &self.device, &runs, seeds.len());
        Ok(Played {
            about: format!("{} VMs of your own", self.load.disks.len()),
            unit: Unit::MibS,
            relative: alone.is_some(),
            medium: None,
            group: None,
            result,
            by_seed,
            cpu_ns: None,
        })
    }
}
