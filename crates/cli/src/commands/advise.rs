//! `seekway advise`: can this disk carry these traces, and under which policy?

mod judged;
mod say;
mod search;
mod verdict;

use super::compare::{self, Asked, Comparison};
use crate::args::{AdviseArgs, Format, Goal, LoadArgs, PrefetchArgs};
use crate::json::{CacheChoice, CompareReport};
use crate::load::{self, distinct};
use crate::runs::{self, Outcome, Running, Stage};
use crate::stacks::{self, NO_PREFETCH, StackLists};
use crate::{Verdict, output};
use anyhow::{Result, bail};
use clap::ValueEnum;
use judged::{Judged, Loser, Wait};
use search::{Disk, Headroom, Search, with_write_cache};
use seekway_core::units::Nanos;
use seekway_report::html::{Block, Report};
use seekway_report::rank::EQUAL_WITHIN;
use seekway_report::table::Table;
use seekway_sim::scenario::{Cache, LimitsChoice, Scalar, Scenario};
use serde::Serialize;
use std::num::NonZeroU32;
use verdict::{Excess, Limits, Operation, Service};

/// Requests that a guest has at its disk at once, as Linux has (`BLKDEV_DEFAULT_RQ`).
const GUEST_QUEUE: NonZeroU32 = NonZeroU32::new(128).expect("above 0");
/// Stacks that are tried without the drive's write cache: the best ones with it.
const TRIED_WITHOUT: usize = 3;
const WRITE_CACHE: &str = "write_cache";

/// `advise --format json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Advice<'a> {
    /// The argument of `--device`.
    disk: String,
    recommend: String,
    goal: String,
    /// Name of the goal's figure, with its unit.
    figure: &'static str,
    /// Was each VM run without the others? If not, the best that any policy gives a VM among the
    /// others stands for what it has alone.
    is_alone_measured: bool,
    /// Everyone's figures, best first.
    ranking: Vec<Judged>,
    /// VMs that another policy would serve at least 2 % better.
    worse_for: Vec<Loser>,
    p99_limit_ms: f64,
    longest_limit_ms: f64,
    /// Does the disk carry the load? Null if the load is closed: it asks for as much as the
    /// disk gives.
    carried: Option<bool>,
    /// As `carried`, without a host cache.
    carried_without_cache: Option<bool>,
    /// The load under the recommended policy.
    service: Service,
    /// Limits that this exceeds; none if the disk carries the load.
    excesses: Vec<Excess>,
    /// Another policy that comes nearer to carrying the load, if the disk does not carry it.
    nearer: Option<Nearer>,
    /// Share of the rate that the disk does in the long run, at most 1. Null as `busy`.
    long_run_share: Option<f64>,
    /// Time for which the credit of a cloud volume pays for the load, if it goes on. Null if there is
    /// none, or less than 2 % of the load needs it.
    credit_lasts_s: Option<f64>,
    /// The load with the drive's write cache off. Null if it has none, if nothing is written, and
    /// if `--device` says whether it is on.
    without_write_cache: Option<Without>,
    /// Null unless `carried` is true, and for traces that are too large to be copied.
    headroom: Option<Headroom>,
    /// Other modelled disks with the load; none unless `carried` is false.
    disks: Vec<Disk>,
    /// VMs that write, and whose traces mark no write as synchronous.
    unmarked: Vec<String>,
    advice: String,
    #[serde(flatten)]
    compared: &'a CompareReport,
}

/// A stack that exceeds the limits by less than the recommended one does.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Nearer {
    /// As sentences call the stack.
    #[serde(skip)]
    label: String,
    policy: String,
    #[serde(flatten)]
    cache: CacheChoice,
    /// Its largest excess.
    excess: Excess,
}

/// The load without a part of the disk.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Without {
    service: Service,
    excesses: Vec<Excess>,
}

pub fn run(args: &AdviseArgs) -> Result<Verdict> {
    let limits = limits(args)?;
    let (asked, running) = (asked(args)?, Running::shown(args.out.jobs));
    let made = compare::compare(&asked, &running)?;
    let mut advice = advise(args, &limits, &asked, &running, &made)?;
    let said = Said::new(&advice, args.goal, made.outcomes[0].result.vms.len() > 1);
    advice.advice = format!("{}\n{}", said.lines.join("\n"), said.recommendation);
    output::write_report(args.out.report.as_deref(), || said.page(&made))?;
    said.print(args.out.format, &advice, &made.warnings)?;
    Ok(Verdict::Done)
}

fn limits(args: &AdviseArgs) -> Result<Limits> {
    let p99_limit = load::duration("--p99-limit", &args.p99_limit)?;
    if p99_limit == Nanos::ZERO {
        bail!("--p99-limit {}: more than 0, or no disk carries anything", args.p99_limit);
    }
    let longest = load::duration("--hard-limit", &args.disk.dispatch.hard_limit)?;
    Ok(Limits { p99_ms: p99_limit.as_millis_f64(), longest_ms: longest.as_millis_f64() })
}

/// Every policy without a cache, and with each cache: what needs less memory comes first, as of
/// equal stacks the first is taken. A drive has its write cache on, as it is sold.
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
        policies: compare::policies("all", &runs::NOBODY)?,
        caches: caches(&args.prefetch)?,
        // Traces have none.
        limits: vec![LimitsChoice::Dropped],
        hosts: vec![None],
    };
    let mut base = load::on_disk(&args.disk.device, &args.disk.dispatch, load)?;
    base.guest_queue = args.pace.outstanding.is_none().then_some(GUEST_QUEUE);
    if !is_write_cache_given(args) && with_write_cache(&base.device.load()?, true).is_some() {
        base.device.change.insert(WRITE_CACHE.into(), Scalar(true.to_string()));
    }
    let mut stacks = lists.product(&base)?;
    let place = |stack: &Scenario| lists.caches.iter().position(|cache| *cache == stack.cache);
    stacks.sort_by_key(place);
    Asked::of(stacks, vec![1])
}

fn is_write_cache_given(args: &AdviseArgs) -> bool {
    args.disk.device.split_once(':').is_some_and(|(_, changes)| changes.contains(WRITE_CACHE))
}

/// The caches to rank, from the least to the largest: none first, then each size without a
/// prefetcher and with each.
fn caches(args: &PrefetchArgs) -> Result<Vec<Option<Cache>>> {
    let given: Vec<Cache> = stacks::caches(args)?.into_iter().flatten().collect();
    let mut sizes: Vec<u64> = given.iter().map(|cache| cache.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of_size = |bytes: u64| {
        let plain = Cache::new(bytes, NO_PREFETCH);
        let given = given.iter().filter(move |cache| cache.size == bytes);
        std::iter::once(plain).chain(given.cloned()).map(Some)
    };
    Ok(distinct(std::iter::once(None).chain(sizes.into_iter().flat_map(of_size))))
}

/// Makes the runs that the advice needs beside those of all stacks, `made`.
fn advise<'a>(
    args: &AdviseArgs,
    limits: &Limits,
    asked: &Asked,
    running: &Running<'_>,
    made: &'a Comparison,
) -> Result<Advice<'a>> {
    let (stage, load, goal) = (asked.stage(running), &asked.ready.load, args.goal);
    let is_open = load.open_loop;
    let of = |outcome| Service::of(outcome, load.span(), limits);
    let services: Vec<Service> = made.outcomes.iter().map(of).collect();
    let carries = |service: &Service| !is_open || service.excesses(limits).is_empty();
    let verdicts: Vec<bool> = services.iter().map(carries).collect();
    let bar = stage.bar(asked.stacks.len(), "each VM alone");
    let alone = stage.run_each_alone(&asked.stacks, 1, &bar, |outcome| Wait::of_vm(outcome, 0))?;
    bar.finish_and_clear();
    let judged = judged::judge(&made.outcomes, &verdicts, alone.as_deref(), goal);
    let ranking = judged::sort(judged, goal);
    let carried = is_open.then_some(ranking[0].carries);
    let bare = made.outcomes.iter().zip(&verdicts).filter(|(o, _)| o.scenario.cache.is_none());
    let carried_without_cache = is_open.then(|| bare.into_iter().any(|(_, carries)| *carries));
    let (service, nearer) = of_recommended(services, &ranking[0], limits);

    if service.served.is_empty() {
        bail!("the load has no reads and no writes: there is nothing to judge");
    }
    let search = Search { stage: &stage, limits: *limits };
    let best: Vec<Scenario> = ranking
        .iter()
        .filter(|judged| judged.carries)
        .filter_map(|judged| made.outcomes.iter().find(|o| o.label == judged.label))
        .map(|outcome| outcome.scenario.clone())
        .collect();
    let writes = service.served.iter().any(|served| served.operation != Operation::Read);
    let without_write_cache = match carried {
        Some(true) if writes && !is_write_cache_given(args) => {
            search.without_write_cache(&best[..TRIED_WITHOUT.min(best.len())])?
        }
        _ => None,
    };
    let headroom = match carried {
        Some(true) => search.headroom(&best)?,
        _ => None,
    };
    let recommended = made.outcomes.iter().find(|o| o.label == ranking[0].label);
    let recommended = recommended.expect("it was judged");
    // The first stack is fairway, without a cache.
    let disks = if carried == Some(false) { search.disks(&asked.stacks[0])? } else { Vec::new() };
    Ok(Advice {
        disk: args.disk.device.clone(),
        recommend: ranking[0].policy.clone(),
        goal: goal_name(goal),
        figure: judged::figure_name(goal, alone.is_some()),
        is_alone_measured: alone.is_some(),
        worse_for: judged::losers(&ranking, &made.outcomes[0].result),
        ranking,
        p99_limit_ms: limits.p99_ms,
        longest_limit_ms: limits.longest_ms,
        carried,
        carried_without_cache,
        excesses: if is_open { service.excesses(limits) } else { Vec::new() },
        nearer,
        credit_lasts_s: credit_lasts_s(&stage, recommended, load.span()),
        long_run_share: service.busy.map(|busy| (1.0 / busy).min(1.0)),
        without_write_cache: without_write_cache.map(|service| {
            let excesses = service.excesses(limits);
            Without { service, excesses }
        }),
        headroom,
        disks,
        unmarked: unmarked(&service),
        service,
        advice: String::new(),
        compared: &made.compared,
    })
}

/// Time for which the credit of a cloud volume lasts if a load, of which `outcome` is a run, goes on.
fn credit_lasts_s(stage: &Stage<'_>, outcome: &Outcome, span: Option<Nanos>) -> Option<f64> {
    let mut full = Vec::new();
    stage.ready.profile.build().metrics(&mut |name, value| full.push((name, value)));
    fn of(metrics: &[(&str, f64)], name: &str) -> Option<f64> {
        metrics.iter().find(|metric| metric.0 == name).map(|metric| metric.1)
    }
    let lasts = |[credit, billed]: [&str; 2]| {
        let (full, end) = (of(&full, credit)?, &outcome.result.device_metrics);
        let (used, billed) = (full - of(end, credit)?, of(end, billed)?);
        (used > EQUAL_WITHIN * billed).then_some(span?.as_secs_f64() * full / used)
    };
    let all = [["io_credit", "billed_ios"], ["byte_credit_mib", "billed_mib"]];
    all.into_iter().filter_map(lasts).reduce(f64::min)
}

/// The service of the recommended stack, and the stack that comes nearest to carrying the load if
/// that is another one.
fn of_recommended(
    mut services: Vec<Service>,
    recommended: &Judged,
    limits: &Limits,
) -> (Service, Option<Nearer>) {
    let place = services.iter().position(|service| service.label == recommended.label);
    // In front: of those that are equally near it is the nearest.
    services[..=place.expect("it was judged")].rotate_right(1);
    let of = |nearest: &Service| Nearer {
        label: nearest.label.clone(),
        policy: nearest.policy.clone(),
        cache: nearest.cache.clone(),
        excess: nearest.largest_excess(limits).expect("it does not carry the load"),
    };
    let nearest = verdict::nearest(&services, limits);
    let nearer = (!recommended.carries && nearest != 0).then(|| of(&services[nearest]));
    (services.swap_remove(0), nearer)
}

/// VMs that write, none of whose writes is synchronous.
fn unmarked(service: &Service) -> Vec<String> {
    let has = |vm: &str, operation| {
        service.served.iter().any(|served| served.vm == vm && served.operation == operation)
    };
    let vms = distinct(service.served.iter().map(|served| served.vm.clone()));
    let is_unmarked = |vm: &String| has(vm, Operation::Write) && !has(vm, Operation::SyncWrite);
    vms.into_iter().filter(is_unmarked).collect()
}

/// As `--for` takes it.
fn goal_name(goal: Goal) -> String {
    goal.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
}

/// The advice for people.
struct Said {
    /// The verdict, its reasons and remarks.
    lines: Vec<String>,
    is_warning: bool,
    recommendation: String,
    /// The ranking is the last one.
    tables: Vec<Table>,
}

impl Said {
    fn new(advice: &Advice<'_>, goal: Goal, several: bool) -> Said {
        let of_load = [Some(say::served(&advice.service)), say::bursts(&advice.service)];
        let tables = of_load.into_iter().chain([say::disks(&advice.disks)]).flatten();
        Said {
            lines: say::verdict(advice),
            is_warning: advice.carried == Some(false),
            recommendation: say::recommendation(advice, goal, several),
            tables: tables.chain([say::ranked(advice, goal, several)]).collect(),
        }
    }

    fn page(&self, made: &Comparison) -> Report {
        let mut report = compare::report(std::slice::from_ref(made), "Seekway: which policy?");
        report.subtitle = format!("{} {}", self.lines[0], self.recommendation);
        let block = if self.is_warning { Block::Warning } else { Block::Text };
        let lines = self.lines[1..].iter().cloned().map(block);
        report.sections[0].blocks.splice(0..0, lines);
        if let Some(in_numbers) = report.sections.last_mut() {
            let mut tables = self.tables.clone();
            tables.rotate_right(1); // the ranking first
            let tables = tables.into_iter().map(Block::Table);
            in_numbers.blocks.splice(0..0, tables);
        }
        report
    }

    /// Prints the verdict first: some read only one line.
    fn print(&self, format: Format, advice: &Advice<'_>, warnings: &[String]) -> Result<()> {
        let prose = matches!(format, Format::Table | Format::Markdown);
        if prose {
            output::print(&format!("{}\n\n", output::sentences(format, &self.lines.join("\n"))))?;
        } else {
            self.lines.iter().for_each(|line| eprintln!("{line}"));
        }
        warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        let tables = match format {
            Format::Csv => &self.tables[self.tables.len() - 1..],
            _ => &self.tables[..],
        };
        output::print_as(format, tables, advice)?;
        if prose {
            let said = output::sentences(format, &self.recommendation);
            output::print(&format!("\n{said}\n"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cache_is_ranked_with_and_without_a_prefetcher() {
        let args = PrefetchArgs { prefetch: vec!["vio".into()], cache: Some("2MiB,1MiB".into()) };
        let made = caches(&args).unwrap();
        let shown: Vec<(u64, &str)> =
            made.iter().flatten().map(|c| (c.size >> 20, c.prefetch.as_str())).collect();
        assert_eq!(made[0], None);
        assert_eq!(shown, [(1, "none"), (1, "vio"), (2, "none"), (2, "vio")]);
    }
}
