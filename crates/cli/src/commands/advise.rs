//! `seekway advise`: can this disk carry these traces, and under which policy?

mod gain;
mod judged;
mod overload;
mod words;

use super::compare::{self, Comparison, Contest};
use crate::args::{AdviseArgs, Alone, FairTo, Format, Goal, LoadArgs, PrefetchArgs};
use crate::caller;
use crate::host::NO_AGENT;
use crate::json::Run;
use crate::load::{self, Load};
use crate::runs::{self, Stage};
use crate::stacks::{LimitsChoice, StackLists, StackSpec};
use crate::{Verdict, output, progress};
use anyhow::{Result, bail};
use gain::CacheGain;
use judged::{EQUAL_WITHIN, Judged};
use overload::Overload;
use seekway_policy::units::Nanos;
use seekway_report::html::{Block, Report};
use seekway_report::table::Table;
use serde::Serialize;

/// `advise --format json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Advice {
    recommend: String,
    goal: String,
    /// What the goal's figure is called, with its unit.
    figure: &'static str,
    /// Everyone's figures, best first.
    ranking: Vec<Judged>,
    /// How much better than cfq without a cache, as a share of cfq's figure.
    gain_over_cfq: Option<f64>,
    /// What of the gain is the cache's; null if the recommended stack has none.
    cache_gain: Option<CacheGain>,
    /// VMs that another policy would serve at least 2 % better.
    worse_for: Vec<Loser>,
    /// Does the disk carry the load? Null if the load is closed: it asks for as much as the
    /// disk gives.
    carried: Option<bool>,
    /// The same without a host cache.
    carried_without_cache: Option<bool>,
    /// Null unless `carried` is false.
    overload: Option<Overload>,
    advice: String,
    #[serde(flatten)]
    compared: crate::json::CompareReport,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Loser {
    vm: String,
    /// The stack that serves this VM best.
    better: String,
    /// How much longer its mean response is under the recommended one.
    slower: f64,
}

pub fn run(args: &AdviseArgs) -> Result<Verdict> {
    let p99_limit = load::duration("--p99-limit", &args.p99_limit)?;
    if p99_limit == Nanos::ZERO {
        bail!("--p99-limit {}: more than 0, or no disk carries anything", args.p99_limit);
    }
    let load = load(args)?;
    let jobs = runs::jobs(args.out.jobs);
    let contest = contest(&args.prefetch)?;
    let made = compare::compare(
        &load,
        &args.disk,
        &contest,
        &[1],
        None,
        false,
        &compare::Running::shown(jobs),
    )?;
    let disk = load::disk(&args.disk)?;
    let stage = Stage::new(&load, &disk, &contest.stacks);
    let overload = Overload::find(&stage, &made.outcomes, p99_limit, jobs)?;
    let carried = match overload {
        Some(_) => Carried::No,
        None if !load.open_loop => Carried::Yes,
        None if overload::carried_without_cache(&load, &made.outcomes, p99_limit) => Carried::Yes,
        None => Carried::WithCache,
    };
    let requests = load.requests().map(|n| n * contest.stacks.len() as u64);
    let bar = progress::requests(requests, "each VM alone");
    let alone = stage.run_each_alone(&contest.stacks, 1, jobs, &bar)?;
    bar.finish_and_clear();
    let judged = judged::judge(&made.outcomes, alone.as_deref(), args.goal);
    let advised = Advised {
        goal: args.goal,
        ranking: judged::sort(judged, args.goal),
        open_loop: load.open_loop,
        carried,
        overload: overload.map(|found| (words::overload(&found), found)),
        made,
    };
    output::write_report(args.out.report.as_deref(), || advised.report())?;
    advised.print(args.out.format)?;
    Ok(Verdict::Done)
}

/// Every policy without a cache, and with each cache: what needs less memory comes first, as of
/// equal stacks the first is taken.
fn contest(prefetch: &PrefetchArgs) -> Result<Contest> {
    let lists = StackLists {
        policies: compare::policies("all", &caller::NOBODY)?,
        caches: gain::caches(prefetch)?,
        // Traces have none.
        limits: vec![LimitsChoice::Dropped],
        hosts: vec![(None, NO_AGENT.into())],
    };
    let mut stacks = lists.product()?;
    let place = |stack: &StackSpec| lists.caches.iter().position(|cache| *cache == stack.cache);
    stacks.sort_by_key(place);
    Ok(Contest { stacks, alone: Alone::Auto, fair_to: FairTo::Alone })
}

fn load(args: &AdviseArgs) -> Result<Load> {
    Load::new(&LoadArgs {
        traces: args.traces.clone(),
        vms: Vec::new(),
        groups: Vec::new(),
        reading: args.reading.clone(),
        time_scale: args.time_scale,
        outstanding: args.outstanding,
        map: args.map.clone(),
        weights: Vec::new(),
        capacity: None,
    })
}

/// Does the disk carry the load? A closed load it always does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carried {
    Yes,
    /// With a host cache in front, and not without one.
    WithCache,
    No,
}

/// Everything that is printed.
struct Advised {
    goal: Goal,
    /// Best by the goal first; those with forced requests come after all others.
    ranking: Vec<Judged>,
    /// Are requests issued by the traces' clocks?
    open_loop: bool,
    carried: Carried,
    /// A load that the disk cannot carry, and the lines that say so.
    overload: Option<(String, Overload)>,
    made: Comparison,
}

impl Advised {
    fn recommendation(&self) -> String {
        let losers = losers(&self.made.compared.runs, &self.ranking[0].label);
        words::recommendation(&self.ranking, &losers, self.goal, self.carried, self.several())
    }

    fn several(&self) -> bool {
        self.made.outcomes[0].result.vms.len() > 1
    }

    fn tables(&self) -> Vec<Table> {
        let compared = &self.made.compared;
        let mut tables = vec![words::ranked(&self.ranking, self.goal, compared, self.several())];
        tables.extend(self.overload.iter().map(|(_, found)| words::disks(found)));
        tables
    }

    fn report(&self) -> Report {
        let mut report = compare::report(&self.made, "Seekway: which policy?");
        report.subtitle = self.recommendation();
        let overload = self.overload.iter().map(|(text, _)| Block::Warning(text.clone()));
        let blocks = overload.chain(self.tables().into_iter().map(Block::Table));
        report.sections[0].blocks.splice(0..0, blocks);
        report
    }

    /// The overload first: who reads one line reads that.
    fn print(self, format: Format) -> Result<()> {
        let prose = matches!(format, Format::Table | Format::Markdown);
        let overload = self.overload.as_ref().map(|(text, _)| text.as_str());
        match overload {
            Some(text) if prose => output::print(&format!("{text}\n\n"))?,
            Some(text) => eprintln!("warning: {text}"),
            None => {}
        }
        if format == Format::Csv {
            eprintln!("{}", self.made.compared.same);
        }
        for warning in &self.made.warnings {
            eprintln!("warning: {warning}");
        }
        let recommendation = self.recommendation();
        let tables = self.tables();
        let sentences: Vec<&str> = overload.into_iter().chain([recommendation.as_str()]).collect();
        let advice = sentences.join("\n");
        output::print_as(format, &tables, &Advice::new(self, advice))?;
        if prose {
            output::print(&format!("\n{recommendation}\n"))?;
        }
        Ok(())
    }
}

impl Advice {
    fn new(advised: Advised, advice: String) -> Advice {
        let Advised { goal, ranking, open_loop, carried, overload, made } = advised;
        Advice {
            recommend: ranking[0].policy.clone(),
            goal: words::goal_name(goal),
            figure: judged::figure_name(goal),
            gain_over_cfq: gain_over_cfq(&ranking, goal),
            cache_gain: CacheGain::of(&ranking, goal),
            worse_for: losers(&made.compared.runs, &ranking[0].label),
            ranking,
            carried: open_loop.then_some(carried != Carried::No),
            carried_without_cache: open_loop.then_some(carried == Carried::Yes),
            overload: overload.map(|(_, found)| found),
            advice,
            compared: made.compared,
        }
    }
}

fn gain_over_cfq(ranking: &[Judged], goal: Goal) -> Option<f64> {
    let cfq = ranking.iter().find(|j| j.policy == "cfq" && j.cache.cache_mib.is_none())?.value;
    let change = (ranking[0].value - cfq) / cfq;
    let gain = if judged::smaller_is_better(goal) { -change } else { change };
    gain.is_finite().then_some(gain)
}

/// VMs for whom another stack is clearly better, the one that loses most first.
fn losers(runs: &[Run], chosen: &str) -> Vec<Loser> {
    let Some(ours) = runs.iter().find(|run| run.label == chosen) else { return Vec::new() };
    let loser = |(n, vm): (usize, &crate::json::Vm)| {
        let mean = |run: &Run| run.vms[n].response_ms.mean;
        let better = runs.iter().min_by(|a, b| mean(a).total_cmp(&mean(b)))?;
        let slower = vm.response_ms.mean / mean(better) - 1.0;
        let (vm, better) = (vm.name.clone(), better.label.clone());
        (slower >= EQUAL_WITHIN).then_some(Loser { vm, better, slower })
    };
    let mut losers: Vec<Loser> = ours.vms.iter().enumerate().filter_map(loser).collect();
    losers.sort_by(|a, b| b.slower.total_cmp(&a.slower));
    losers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_in_share_is_of_what_is_printed() {
        use seekway_testing::schema;
        schema::<Advice>("advise", "seekway advise --format json");
    }
}
