//! `seekway advise`: can this disk carry these traces, and under which policy?

mod gain;
mod judged;
mod overload;
mod words;

use super::compare::{self, Asked, Comparison};
use crate::args::{AdviseArgs, Format, Goal, LoadArgs};
use crate::caller;
use crate::json::Run;
use crate::load;
use crate::runs::Running;
use crate::stacks::StackLists;
use crate::{Verdict, output};
use anyhow::{Result, bail};
use gain::CacheGain;
use judged::{EQUAL_WITHIN, Judged};
use overload::Overload;
use seekway_core::units::Nanos;
use seekway_report::html::{Block, Report};
use seekway_report::table::Table;
use seekway_sim::scenario::{LimitsChoice, Scenario};
use serde::Serialize;

/// `advise --format json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Advice {
    recommend: String,
    goal: String,
    /// Name of the goal's figure, with its unit.
    figure: &'static str,
    /// Everyone's figures, best first.
    ranking: Vec<Judged>,
    /// Gain over cfq without a cache, as a share of cfq's figure.
    gain_over_cfq: Option<f64>,
    /// Cache's part of the gain; null if the recommended stack has none.
    cache_gain: Option<CacheGain>,
    /// VMs that another policy would serve at least 2 % better.
    worse_for: Vec<Loser>,
    /// Does the disk carry the load? Null if the load is closed: it asks for as much as the
    /// disk gives.
    carried: Option<bool>,
    /// As `carried`, without a host cache.
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
    /// Factor by which its mean response is longer under the recommended one.
    slower: f64,
}

pub fn run(args: &AdviseArgs) -> Result<Verdict> {
    let p99_limit = load::duration("--p99-limit", &args.p99_limit)?;
    if p99_limit == Nanos::ZERO {
        bail!("--p99-limit {}: more than 0, or no disk carries anything", args.p99_limit);
    }
    let (asked, running, goal) = (asked(args)?, Running::shown(args.out.jobs), args.goal);
    let made = compare::compare(&asked, &running)?;
    let stage = asked.stage(&running);
    let overload = Overload::find(&stage, &made.outcomes, p99_limit)?;
    let carried = match overload {
        Some(_) => Carried::No,
        None if !asked.ready.load.open_loop => Carried::Yes,
        None if overload::carried_without_cache(&asked.ready.load, &made.outcomes, p99_limit) => {
            Carried::Yes
        }
        None => Carried::WithCache,
    };
    let bar = stage.bar(asked.stacks.len(), "each VM alone");
    let alone = stage.run_each_alone(&asked.stacks, 1, &bar)?;
    bar.finish_and_clear();
    let ranking = judged::sort(judged::judge(&made.outcomes, alone.as_deref(), goal), goal);
    let worse_for = losers(&made.compared.runs, &ranking[0].label);
    let several = made.outcomes[0].result.vms.len() > 1;
    let mut tables = vec![words::ranked(&ranking, goal, &made.compared, several)];
    tables.extend(overload.as_ref().map(words::disks));
    let said = Said {
        overload: overload.as_ref().map(words::overload),
        recommendation: words::recommendation(&ranking, &worse_for, goal, carried, several),
        tables,
    };
    output::write_report(args.out.report.as_deref(), || said.page(&made))?;
    let open_loop = asked.ready.load.open_loop;
    let advice = Advice {
        recommend: ranking[0].policy.clone(),
        goal: words::goal_name(goal),
        figure: judged::figure_name(goal),
        gain_over_cfq: gain_over_cfq(&ranking, goal),
        cache_gain: CacheGain::of(&ranking, goal),
        worse_for,
        ranking,
        carried: open_loop.then_some(carried != Carried::No),
        carried_without_cache: open_loop.then_some(carried == Carried::Yes),
        overload,
        advice: said.advice(),
        compared: made.compared,
    };
    said.print(args.out.format, &advice, &made.warnings)?;
    Ok(Verdict::Done)
}

/// Every policy without a cache, and with each cache: what needs less memory comes first, as of
/// equal stacks the first is taken.
fn asked(args: &AdviseArgs) -> Result<Asked> {
    let load = load::scenario(&LoadArgs {
        traces: args.traces.clone(),
        vms: Vec::new(),
        groups: Vec::new(),
        reading: args.reading.clone(),
        pace: args.pace.clone(),
        weights: Vec::new(),
        capacity: None,
    })?;
    let lists = StackLists {
        policies: compare::policies("all", &caller::NOBODY)?,
        caches: gain::caches(&args.prefetch)?,
        // Traces have none.
        limits: vec![LimitsChoice::Dropped],
        hosts: vec![None],
    };
    let mut stacks =
        lists.product(&load::on_disk(&args.disk.device, &args.disk.dispatch, load)?)?;
    let place = |stack: &Scenario| lists.caches.iter().position(|cache| *cache == stack.cache);
    stacks.sort_by_key(place);
    Asked::of(stacks, vec![1])
}

/// Does the disk carry the load? A closed load it always does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carried {
    Yes,
    /// With a host cache in front, and not without one.
    WithCache,
    No,
}

/// The advice for people.
struct Said {
    /// Of a load that the disk cannot carry: the lines that say so.
    overload: Option<String>,
    recommendation: String,
    tables: Vec<Table>,
}

impl Said {
    /// Text for the user: each overload on a line, then the recommendation.
    fn advice(&self) -> String {
        let overload = self.overload.iter().map(|text| format!("{text}\n"));
        overload.chain([self.recommendation.clone()]).collect()
    }

    fn page(&self, made: &Comparison) -> Report {
        let mut report = compare::report(std::slice::from_ref(made), "Seekway: which policy?");
        report.subtitle.clone_from(&self.recommendation);
        let overload = self.overload.iter().cloned().map(Block::Warning);
        let blocks = overload.chain(self.tables.iter().cloned().map(Block::Table));
        report.sections[0].blocks.splice(0..0, blocks);
        report
    }

    /// The overload first: who reads one line reads that.
    fn print(&self, format: Format, advice: &Advice, warnings: &[String]) -> Result<()> {
        let prose = matches!(format, Format::Table | Format::Markdown);
        match &self.overload {
            Some(text) if prose => output::print(&format!("{text}\n\n"))?,
            Some(text) => eprintln!("warning: {text}"),
            None => {}
        }
        if format == Format::Csv {
            eprintln!("{}", advice.compared.same);
        }
        warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        output::print_as(format, &self.tables, advice)?;
        if prose {
            output::print(&format!("\n{}\n", self.recommendation))?;
        }
        Ok(())
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
