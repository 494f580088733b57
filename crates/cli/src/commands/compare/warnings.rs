//! Warnings: reasons to doubt the figures of a comparison.

use crate::load;
use crate::promises;
use crate::runs::Outcome;
use seekway_core::units::Nanos;
use seekway_sim::RunResult;
use seekway_sim::scenario::{LimitsChoice, Load, Measure, Scenario};

/// Signs of a run that warnings are made of.
pub struct Signs {
    label: String,
    policy: String,
    limits: LimitsChoice,
    outstanding_max: usize,
    forced: u64,
    finished: bool,
}

impl Signs {
    /// Of a run that tables call `label`.
    pub fn new(label: String, scenario: &Scenario, result: &RunResult) -> Signs {
        Signs {
            label,
            policy: scenario.policy.clone(),
            limits: scenario.limits,
            outstanding_max: result.outstanding_max,
            forced: result.stats.forced,
            finished: result.finished,
        }
    }

    /// Of each of these runs.
    pub fn all(outcomes: &[Outcome]) -> Vec<Signs> {
        outcomes.iter().map(|o| Signs::new(o.label.clone(), &o.scenario, &o.result)).collect()
    }
}

/// Warnings that a reader needs before trusting a figure.
pub fn warnings(load: &Load, runs: &[Signs], measure: &Measure) -> Vec<String> {
    let until = measure.until.map(|time| time.0);
    let mut warnings = Vec::new();
    if let (None, Some(vm)) = (until, load.endless()) {
        warnings.push(format!(
            "VM {vm}'s load does not end by itself: each run stops at {} (see --until)",
            load::RUN_DEFAULT
        ));
    }
    // What is to be told of some of the runs, if of any.
    let told = |of: &dyn Fn(&Signs) -> Option<String>| {
        let told: Vec<String> = runs.iter().filter_map(of).collect();
        (!told.is_empty()).then(|| told.join(", "))
    };
    let named = |o: &Signs, is_so: bool| is_so.then(|| o.label.clone());
    if let Some(limit) = load.stalls_at()
        && let Some(full) = told(&|o| named(o, o.outstanding_max >= limit))
    {
        warnings.push(format!(
            "the disk could not keep up with the trace's clock under {full}: {limit} requests were \
             outstanding and the clock waited; response times then measure the backlog \
             (try --time-scale 2 or --outstanding)"
        ));
    }
    let limits = load.limits.iter().map(|l| &l.limits);
    let limits: Vec<_> = limits.chain(load.groups.iter().map(|(_, limits)| limits)).collect();
    let broken = |o: &Signs| {
        let keys = promises::not_kept(&o.policy, limits.iter().copied());
        let is_broken = o.limits == LimitsChoice::Given && !keys.is_empty();
        is_broken.then(|| format!("{} ({})", o.label, keys.join(", ")))
    };
    if let Some(broken) = told(&broken) {
        let keepers = promises::keepers();
        warnings.push(format!("these policies do not keep all promises, {keepers} does: {broken}"));
    }
    let forced = |o: &Signs| {
        let forced = o.forced;
        (forced > 0).then(|| format!("{} ({forced})", o.label))
    };
    if let Some(forced) = told(&forced) {
        warnings.push(format!(
            "requests waited past the hard limit and were forced out under {forced}"
        ));
    }
    let ends = load.until(until, Nanos::ZERO).is_none() && measure.requests.is_none();
    if let Some(unfinished) = told(&|o| named(o, ends && !o.finished)) {
        warnings.push(format!("the load did not come to its end under {unfinished}"));
    }
    warnings
}
