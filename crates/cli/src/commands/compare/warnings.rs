//! What a reader has to know before trusting a figure.

use crate::load::{self, Load};
use crate::promises;
use crate::runs::Outcome;
use crate::stacks::LimitsChoice;
use seekway_policy::units::Nanos;

/// Warnings that a reader needs before trusting a figure. `until` is what `--until` said.
pub fn warnings(load: &Load, outcomes: &[Outcome], until: Option<Nanos>) -> Vec<String> {
    let mut warnings = Vec::new();
    if let (None, Some(vm)) = (until, load.endless()) {
        warnings.push(format!(
            "VM {vm}'s load does not end by itself: each run stops at {} (see --until)",
            load::RUN_DEFAULT
        ));
    }
    let who = |o: &&Outcome| o.label.clone();
    let list = |chosen: Vec<String>| chosen.join(", ");
    if let Some(limit) = load.stalls_at() {
        let full = outcomes.iter().filter(|o| o.result.outstanding_max >= limit);
        let full: Vec<String> = full.map(|o| who(&o)).collect();
        if !full.is_empty() {
            warnings.push(format!(
                "the disk could not keep up with the trace's clock under {}: {limit} requests were \
                 outstanding and the clock waited; response times then measure the backlog \
                 (try --time-scale 2 or --outstanding)",
                list(full)
            ));
        }
    }
    let limits = load.limits.iter().map(|l| &l.limits);
    let limits: Vec<_> = limits.chain(load.groups.iter().map(|(_, limits)| limits)).collect();
    let broken = |o: &Outcome| {
        let keys = promises::not_kept(&o.plan.stack.policy, limits.iter().copied());
        (!keys.is_empty()).then(|| format!("{} ({})", o.label, keys.join(", ")))
    };
    let promised = outcomes.iter().filter(|o| o.plan.stack.limits == LimitsChoice::Given);
    let broken: Vec<String> = promised.filter_map(broken).collect();
    if !broken.is_empty() {
        let keepers = promises::keepers();
        warnings.push(format!(
            "these policies do not keep all promises, {keepers} does: {}",
            list(broken)
        ));
    }
    let forced = outcomes.iter().filter(|o| o.result.stats.forced > 0);
    let forced: Vec<String> =
        forced.map(|o| format!("{} ({})", o.label, o.result.stats.forced)).collect();
    if !forced.is_empty() {
        warnings.push(format!(
            "requests waited past the hard limit and were forced out under {}",
            list(forced)
        ));
    }
    let unfinished = outcomes.iter().filter(|o| !o.result.finished && load.until(until).is_none());
    let unfinished: Vec<String> = unfinished.map(|o| who(&o)).collect();
    if !unfinished.is_empty() {
        warnings.push(format!("the load did not come to its end under {}", list(unfinished)));
    }
    warnings
}
