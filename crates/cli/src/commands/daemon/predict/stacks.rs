//! The stacks that are predicted: each policy with each host cache; and their names, by which
//! both sides of a comparison find each other.

use super::Prediction;
use super::against::{Against, host_cache};
use super::figures::{Figures, Side};
use super::judge::common;
use crate::args::PrefetchArgs;
use crate::caching;
use crate::lists::distinct;
use crate::stacks::{StackLists, StackNames};
use anyhow::{Context, Result, bail};
use seekway_policy::prefetchers;
use seekway_sim::scenario::{Cache, LimitsChoice, Scenario};

/// Each of these policies with each cache that the arguments name, else with those that the
/// runs of `--against` had, else without.
pub fn product(
    base: &Scenario,
    args: &PrefetchArgs,
    policies: &[String],
    against: Option<&Against>,
) -> Result<Vec<Scenario>> {
    let caches = match against {
        Some(Against::Run(side)) if args.cache.is_none() && args.prefetch.is_empty() => {
            caches_of(side)?
        }
        _ => caching::caches(args)?,
    };
    let (policies, limits) = (policies.to_vec(), vec![LimitsChoice::Given]);
    StackLists { policies, caches, limits, hosts: vec![None] }.product(base)
}

/// The caches that a file's runs had; none if it does not say.
fn caches_of(side: &Side) -> Result<Vec<Option<Cache>>> {
    let stacks: Vec<Scenario> = side.runs.iter().filter_map(known_stack).collect();
    for (stack, prefetch) in stacks.iter().filter_map(|stack| Some((stack, stack.prefetch()?))) {
        let what = || format!("--against {}: the run of {}", side.what, stack.policy);
        prefetchers::build(prefetch).with_context(what)?;
    }
    let caches = distinct(stacks.into_iter().map(|stack| stack.cache));
    Ok(if caches.is_empty() { vec![None] } else { caches })
}

/// The stack of a run, if it says which cache it had.
fn known_stack(run: &Figures) -> Option<Scenario> {
    let cache = host_cache(run.cache.as_ref()?)?;
    Some(Scenario { cache, ..Scenario::default().under(&run.policy) })
}

/// Names the runs of both sides by what differs between them. `simulated` are the stacks that
/// were simulated, with limits if the load is `limited`. A run that does not say which cache it
/// had, a live or measured one, stands beside the only one there is.
pub fn name(made: &mut Prediction, simulated: &[Scenario], limited: bool) -> Result<()> {
    let sides = || [Some(&made.predicted), made.against.as_ref()].into_iter().flatten();
    let stacks: Vec<Scenario> =
        sides().flat_map(|side| &side.runs).filter_map(known_stack).collect();
    let names = StackNames::of(&stacks);
    let silent = sides().find(|side| side.runs.iter().any(|run| run.cache.is_none()));
    if let Some(side) = silent.filter(|_| stacks.iter().any(|s| s.cache != stacks[0].cache)) {
        bail!(
            "{}: its runs do not say which host cache they had: give one --cache and one \
             --prefetch, those of the runs",
            side.name()
        );
    }
    made.heading = names.heading();
    for side in [Some(&mut made.predicted), made.against.as_mut()].into_iter().flatten() {
        for run in &mut side.runs {
            run.name = known_stack(run).map(|stack| names.label(&stack));
        }
    }
    if let Some(against) = &made.against
        && common(&made.predicted, against).is_empty()
    {
        bail!(
            "nothing to compare: {} has {}, and {} has {}; give the same --policies, --cache and \
             --prefetch",
            made.predicted.name(),
            made.predicted.stacks().join(", "),
            against.name(),
            against.stacks().join(", ")
        );
    }
    if !simulated.is_empty() {
        let limits = if limited { LimitsChoice::Given } else { LimitsChoice::Dropped };
        let simulated: Vec<Scenario> =
            simulated.iter().map(|stack| Scenario { limits, ..stack.clone() }).collect();
        let names = StackNames::of(&simulated);
        made.same = Some(names.same(&simulated));
    }
    Ok(())
}
