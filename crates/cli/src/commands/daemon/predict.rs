//! `seekway predict`: what a load would get from another disk under each policy,
//! and how far that is from what a better model, or a real disk, gives.

mod against;
mod figures;
mod live;
mod show;

use crate::args::{PredictArgs, PrefetchArgs};
use crate::commands::compare;
use crate::load::{self, distinct};
use crate::runs::{self, Running, Stage, with_seeds};
use crate::stacks::{self, StackLists, StackNames};
use crate::{Verdict, output};
use against::{Against, host_cache};
use anyhow::{Context, Result, bail};
use figures::{Figures, Side, common};
use seekway_policy::{prefetchers, schedulers};
use seekway_sim::scenario::{Cache, LimitsChoice, Load, Ready, Scenario, profile_of};

/// Prediction, and the side that it is compared with.
pub struct Prediction {
    pub predicted: Side,
    pub against: Option<Side>,
    /// Against a measured trace: RMS distance of the distributions of service times, in ms.
    pub demerit_ms: Option<f64>,
    /// Heading of a column with the stacks' names.
    pub heading: &'static str,
    /// Description of what all simulated runs have in common, in a sentence.
    pub same: Option<String>,
}

pub fn run(args: &PredictArgs) -> Result<Verdict> {
    // Wrong arguments are told before minutes of measuring.
    load::seeds(&args.runs)?;
    args.runs.until.as_deref().map(|t| load::duration("--until", t)).transpose()?;
    args.out.report.as_deref().map(output::check_place).transpose()?;
    if args.against.as_deref() == Some("published") {
        load_of_its_own(args, "published figures")?;
        return against::of_maker(args, on(args)?);
    }
    let against = args.against.as_deref().map(Against::open).transpose()?;
    let made = match against {
        Some(Against::Measured(what, records)) => on_measured(args, &what, &records)?,
        against => predict(args, against)?,
    };
    for warning in made.warnings() {
        eprintln!("warning: {warning}");
    }
    output::write_report(args.out.report.as_deref(), || show::page(&made))?;
    show::print(&made, args.out.format)?;
    Ok(Verdict::Done)
}

impl Prediction {
    /// Of both sides; the same of both is said once.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.predicted.warnings.clone();
        if let Some(against) = &self.against {
            let more = against.warnings.iter().filter(|w| !self.predicted.warnings.contains(w));
            warnings.extend(more.cloned());
        }
        warnings
    }
}

/// The profile of `--on`, which has to be given.
fn on(args: &PredictArgs) -> Result<&str> {
    args.on.as_deref().context(
        "which disk? give --on PROFILE (`seekway list devices`, or a file of `seekway calibrate`), \
         or --live SOCKET",
    )
}

/// A measured trace is its own load.
fn on_measured(
    args: &PredictArgs,
    what: &str,
    records: &[seekway_device::validate::Record],
) -> Result<Prediction> {
    load_of_its_own(args, what)?;
    let on = on(args)?;
    let profile = profile_of(on).context("--on")?;
    against::measured((on, &profile), (what, records))
}

/// Refuses what chooses load and stack: `what` was measured on the drive itself, by its own load.
fn load_of_its_own(args: &PredictArgs, what: &str) -> Result<()> {
    if !(args.load.traces.is_empty() && args.load.vms.is_empty() && args.live.live.is_none()) {
        bail!("--against: the load of {what} is its own: leave --trace, --vm and --live away");
    }
    if args.runs.policies.is_some() {
        bail!("--policies: {what} were measured on the drive itself: all policies give the same");
    }
    no_cache(&args.prefetch, "that was measured on the drive itself")
}

fn predict(args: &PredictArgs, against: Option<Against>) -> Result<Prediction> {
    let policies = policies(args, against.as_ref())?;
    let simulates = args.live.live.is_none() || matches!(against, Some(Against::Profile(_)));
    let given = !(args.load.traces.is_empty() && args.load.vms.is_empty());
    if given && !simulates {
        bail!(
            "--live: its guests are the load; --trace and --vm describe them for --against PROFILE \
             only"
        );
    }
    match (&args.live.live, &args.on) {
        (None, _) => _ = on(args)?,
        (Some(_), None) => {}
        (Some(_), Some(on)) => bail!(
            "--on {on}: with --live it is the daemon that emulates a disk: `seekway serve \
             --emulate {on}`"
        ),
    }
    let base = if simulates {
        Scenario {
            measure: load::measure(args.runs.until.as_deref())?,
            ..load::scenario(&args.load)?
        }
    } else {
        Scenario::default()
    };
    let stacks = if simulates {
        product(&base, &args.prefetch, &policies, against.as_ref())?
    } else {
        no_cache(&args.prefetch, "the guests' requests pass through the daemon's own cache")?;
        Vec::new()
    };
    let load = if simulates { Some(load::read(&base)?) } else { None };
    let simulate = |disk: &str| {
        let load = load.as_ref().context("a simulated disk needs --trace or --vm")?;
        simulate(args, load, disk, &stacks)
    };
    let predicted = match &args.live.live {
        Some(socket) => live::measure(args, socket, &policies).context("--live")?,
        None => simulate(on(args)?).context("--on")?,
    };
    let against = match against {
        None => None,
        Some(Against::Run(side)) => {
            let mut side = side;
            side.runs.retain(|run| policies.contains(&run.policy));
            Some(side)
        }
        Some(Against::Profile(what)) => Some(simulate(&what).context("--against")?),
        Some(Against::Measured(..)) => unreachable!("it is its own load"),
    };
    let mut made =
        Prediction { predicted, against, demerit_ms: None, heading: "policy", same: None };
    let limited = load.as_ref().is_some_and(Load::is_limited);
    name(&mut made, &stacks, limited)?;
    Ok(made)
}

/// Refuses `--cache` and `--prefetch` where nothing is simulated, and says why.
fn no_cache(args: &PrefetchArgs, why: &str) -> Result<()> {
    if args.cache.is_some() || !args.prefetch.is_empty() {
        bail!("--cache, --prefetch: for simulated disks only; {why}");
    }
    Ok(())
}

/// The policies to predict: those named, else those of the real run that this
/// program has, else all.
fn policies(args: &PredictArgs, against: Option<&Against>) -> Result<Vec<String>> {
    let real = match against {
        Some(Against::Run(side)) => side.policies(),
        _ => {
            let list = args.runs.policies.as_deref().unwrap_or("all");
            return compare::policies(list, &runs::NOBODY);
        }
    };
    let Some(list) = &args.runs.policies else {
        let (known, unknown): (Vec<String>, Vec<String>) =
            real.into_iter().partition(|p| schedulers::build(p).is_ok());
        for policy in &unknown {
            eprintln!("warning: --against has {policy}, which is no policy here: left out");
        }
        if known.is_empty() {
            bail!("--against: none of its policies is one of ours (`seekway list policies`)");
        }
        return Ok(known);
    };
    let chosen = compare::policies(list, &runs::NOBODY)?;
    if !chosen.iter().any(|p| real.contains(p)) {
        bail!("--policies {list}: --against has none of them, but {}", real.join(", "));
    }
    Ok(chosen)
}

/// The load on one disk through each stack, seed by seed.
fn simulate(args: &PredictArgs, load: &Load, on: &str, stacks: &[Scenario]) -> Result<Side> {
    let seeds = load::seeds(&args.runs)?;
    let on_disk = |stack: &Scenario| load::on_disk(on, &args.dispatch, stack.clone());
    let stacks = stacks.iter().map(on_disk).collect::<Result<Vec<_>>>()?;
    let ready = Ready { load: load.clone(), profile: stacks[0].device.load()? };
    let running = Running::shown(args.out.jobs);
    let stage = Stage::new(&ready, &stacks, &running);
    let outcomes = stage.run_shown(&with_seeds(&stacks, &seeds), on)?;
    let warnings = compare::warnings(load, &compare::Signs::all(&outcomes), &stacks[0].measure);
    Ok(Side {
        what: on.to_string(),
        runs: outcomes.iter().map(Figures::of_run).collect(),
        warnings: warnings.into_iter().map(|w| format!("on {on}: {w}")).collect(),
        notes: Vec::new(),
    })
}

// The stacks that are predicted: each policy with each host cache; and their names, by which
// both sides of a comparison find each other.

/// Each of these policies with each cache that the arguments name, else with those that the
/// runs of `--against` had, else without.
fn product(
    base: &Scenario,
    args: &PrefetchArgs,
    policies: &[String],
    against: Option<&Against>,
) -> Result<Vec<Scenario>> {
    let caches = match against {
        Some(Against::Run(side)) if args.cache.is_none() && args.prefetch.is_empty() => {
            caches_of(side)?
        }
        _ => stacks::caches(args)?,
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
fn name(made: &mut Prediction, simulated: &[Scenario], limited: bool) -> Result<()> {
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
