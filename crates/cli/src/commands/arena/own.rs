//! A user's own traces and VMs as a scene.

use super::{Played, results};
use crate::args::ArenaArgs;
use crate::load;
use crate::runs::{Outcome, Running, Stage, with_seeds};
use anyhow::Result;
use indicatif::ProgressBar;
use seekway_policy::units::Nanos;
use seekway_sim::experiments::arena::{Alone, Figures, Judging, Unit, figures};
use seekway_sim::scenario::{Ready, Scenario};

/// The load of the command line.
pub struct Own {
    base: Scenario,
    ready: Ready,
}

impl Own {
    /// What `--trace` and `--vm` ask for, if they are given.
    pub fn new(args: &ArenaArgs) -> Result<Option<Own>> {
        let measure = load::measure(args.until.as_deref())?;
        if args.load.traces.is_empty() && args.load.vms.is_empty() {
            return Ok(None);
        }
        let base = load::on_disk(&args.disk, load::scenario(&args.load)?)?;
        let base = Scenario { measure, ..base };
        Ok(Some(Own { ready: load::ready(&base)?, base }))
    }

    /// Runs it under every policy with every seed.
    pub fn play(
        &self,
        policies: &[String],
        seeds: &[u64],
        running: &Running<'_>,
    ) -> Result<Played> {
        let Own { base, ready } = self;
        let stacks: Vec<Scenario> = policies.iter().map(|p| base.under(p)).collect();
        let stage = Stage::new(ready, &stacks, running);
        let noop = [base.under("noop")];
        let alone = stage.run_each_alone(&noop, seeds[0], &ProgressBar::hidden())?;
        let of_vm = |outcomes: &Vec<Outcome>| Alone::of(&outcomes[0].result);
        let alone: Option<Vec<Alone>> = alone.map(|vms| vms.iter().map(of_vm).collect());
        let outcomes = stage.run_shown(&with_seeds(&stacks, seeds), "your load")?;
        let weights = ready.load.weights.iter().map(|weight| f64::from(weight.get())).collect();
        // A load of one's own has no quiet VM, and comes and goes.
        let limits = &ready.load.limits;
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
        let (result, by_seed) = results("own", &base.device.shown(), &runs, seeds.len());
        Ok(Played {
            about: format!("{} VMs of your own", ready.load.disks.len()),
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
