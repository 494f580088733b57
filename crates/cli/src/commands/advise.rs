//! `seekway advise`: can this disk carry these traces, and under which policy?

mod judged;
mod overload;

use super::compare::{self, Asked, Comparison};
use crate::args::{AdviseArgs, Format, Goal, LoadArgs, PrefetchArgs};
use crate::json::{CacheChoice, CompareReport, Run};
use crate::load::{self, distinct};
use crate::runs::{self, Running};
use crate::stacks::{self, NO_PREFETCH, StackLists};
use crate::{Verdict, output};
use anyhow::{Result, bail};
use clap::ValueEnum;
use judged::{EQUAL_WITHIN, GoalFigure, Judged, are_equal, best};
use overload::{Disk, Overload, Service};
use seekway_core::units::Nanos;
use seekway_report::html::{Block, Report};
use seekway_report::number::{count, significant};
use seekway_report::table::{Cell, Table};
use seekway_sim::scenario::{Cache, LimitsChoice, Scenario};
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
    let mut tables = vec![ranked(&ranking, goal, &made.compared, several)];
    tables.extend(overload.as_ref().map(disks));
    let said = Said {
        overload: overload.as_ref().map(overload_text),
        recommendation: recommendation(&ranking, &worse_for, goal, carried, several),
        tables,
    };
    output::write_report(args.out.report.as_deref(), || said.page(&made))?;
    let open_loop = asked.ready.load.open_loop;
    let advice = Advice {
        recommend: ranking[0].policy.clone(),
        goal: goal_name(goal),
        figure: GoalFigure::of(goal).name,
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
        policies: compare::policies("all", &runs::NOBODY)?,
        caches: caches(&args.prefetch)?,
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
    let gain = if GoalFigure::of(goal).smaller_is_better { -change } else { change };
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

// Sentences and tables of `advise`.

/// A disk that is busy less than this has time for all requests, had they come evenly.
const BURSTS_BELOW: f64 = 0.8;

/// VMs that are named as losers.
const LOSERS_SHOWN: usize = 5;

/// As `--for` takes it.
fn goal_name(goal: Goal) -> String {
    goal.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
}

fn time(ms: f64) -> String {
    let (value, unit) = if ms < 1000.0 { (ms, "ms") } else { (ms / 1e3, "s") };
    let mut text = significant(value, 3);
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    format!("{text} {unit}")
}

fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0, 2))
}

/// Two lines: that the disk cannot carry the load, and how much of it it could.
fn overload_text(overload: &Overload) -> String {
    let carries = match (overload.share, &overload.at_share) {
        (Some(share), Some(service)) => format!(
            "It carries about {} of the rate (under {}, with a p99 of {}).",
            percent(share),
            service.label,
            time(service.p99_ms)
        ),
        _ => "It does not carry even 1 % of the rate.".to_string(),
    };
    format!("{}\n{carries} {}", why(overload), busy(&overload.best))
}

fn why(overload: &Overload) -> String {
    let Service { label, vm, p99_ms, within_limit, forced, queue_full, .. } = &overload.best;
    let limit = time(overload.p99_limit_ms);
    let mut reasons = vec![format!(
        "{} of {vm}'s requests take at most {limit}, and their p99 is {}",
        percent(*within_limit),
        time(*p99_ms)
    )];
    reasons.extend((*forced > 0).then(|| {
        let requests = if *forced == 1 { "request is" } else { "requests are" };
        let hard_limit = time(overload.hard_limit_ms);
        format!("{} {requests} forced out after {hard_limit}", count(*forced))
    }));
    reasons.extend(queue_full.then(|| "requests wait to enter a full queue".to_string()));
    let reasons = reasons.join("; ");
    format!("This disk cannot carry this load: under {label}, which comes nearest, {reasons}.")
}

/// Is it the rate, or how it comes?
fn busy(service: &Service) -> String {
    let busy = percent(service.busy);
    if service.busy < BURSTS_BELOW {
        format!(
            "At the full rate it is busy {busy} of the time: it is the bursts that are too much."
        )
    } else {
        format!("At the full rate it is busy {busy} of the time.")
    }
}

/// Which policy to use, what that gives, and who loses by it.
fn recommendation(
    ranking: &[Judged],
    losers: &[Loser],
    goal: Goal,
    overload: Carried,
    several: bool,
) -> String {
    let (best, goal_name) = (&ranking[0], goal_name(goal));
    let one = kind(ranking).0;
    let mut text = match overload {
        Carried::No => {
            format!("No {one} mends that. The least bad for {goal_name} is {}: ", best.label)
        }
        Carried::WithCache => format!(
            "Without a cache this disk cannot carry this load. Use {} for {goal_name}: ",
            best.label
        ),
        Carried::Yes => format!("Use {} for {goal_name}: ", best.label),
    };
    text += &gives(best, several);
    text += &equals(ranking, goal);
    text += &gain_sentence(ranking, goal);
    if several {
        text += &who_loses(losers, one);
    }
    text.trim_end().to_string()
}

/// Name of what is ranked, one and several: policies, or stacks where some have a cache.
fn kind(ranking: &[Judged]) -> (&'static str, &'static str) {
    match ranking.iter().any(|judged| judged.cache.cache_mib.is_some()) {
        true => ("stack", "stacks"),
        false => ("policy", "policies"),
    }
}

fn gives(best: &Judged, several: bool) -> String {
    let mean = time(best.mean_ms);
    let mib_s = significant(best.mib_s, 3);
    if !several {
        return format!("mean response {mean}, p99 {}, {mib_s} MiB/s. ", time(best.p99_ms));
    }
    let p99 = time(best.worst_vm_p99_ms);
    format!(
        "mean response {mean}, worst p99 {p99} ({}, {} × of what it has alone), {mib_s} MiB/s, and \
         every VM has at least {} of its speed alone. ",
        best.worst_vm,
        significant(best.worst_vm_p99_over_alone, 3),
        percent(best.worst_vm_speed)
    )
}

/// Names the policies that are as good as the first, of those that keep the hard limit as it does.
fn equals(ranking: &[Judged], goal: Goal) -> String {
    let first = &ranking[0];
    let rivals = ranking.iter().filter(|j| (j.forced > 0) == (first.forced > 0));
    let rivals: Vec<Judged> = rivals.cloned().collect();
    let best = best(&rivals, goal).unwrap_or_default();
    let equal = rivals[1..].iter().filter(|j| are_equal(goal, j.value, best));
    let names: Vec<&str> = equal.map(|j| j.label.as_str()).collect();
    let within = EQUAL_WITHIN * 100.0;
    match names.len() {
        0 => String::new(),
        n if n + 1 == ranking.len() => {
            format!("All {} lie within {within} %: for this goal take any. ", kind(ranking).1)
        }
        _ => format!("Within {within} % of the best: {}. ", names.join(", ")),
    }
}

fn who_loses(losers: &[Loser], kind: &str) -> String {
    if losers.is_empty() {
        return format!("No VM would be served 2 % better by another {kind}.");
    }
    let one =
        |l: &Loser| format!("{} ({} slower than under {})", l.vm, percent(l.slower), l.better);
    let mut list: Vec<String> = losers.iter().take(LOSERS_SHOWN).map(one).collect();
    let more = losers.len().saturating_sub(LOSERS_SHOWN);
    list.extend((more > 0).then(|| format!("{more} more")));
    format!("Who loses by it: {}.", list.join(", "))
}

/// Every stack with its figures, in the order of the ranking.
fn ranked(ranking: &[Judged], goal: Goal, compared: &CompareReport, several: bool) -> Table {
    let any_forced = ranking.iter().any(|j| j.forced > 0);
    let (kind, device) = (output::capital(kind(ranking).1), &compared.device);
    let title = format!("{kind} on {device} for {}, best first", goal_name(goal));
    Table::of(title, ranking)
        .text(compared.names.heading(), |j| &j.label)
        .number("mean", "ms", |j| j.mean_ms)
        .number("p99", "ms", |j| j.p99_ms)
        .when(several, |table| {
            table.text("worst VM", |j| &j.worst_vm).number("its p99", "ms", |j| j.worst_vm_p99_ms)
        })
        .number("over alone", "", |j| Cell::Ratio(j.worst_vm_p99_over_alone))
        .number("bandwidth", "MiB/s", |j| j.mib_s)
        .number("worst speed", "", |j| Cell::Share(j.worst_vm_speed))
        .number("regret", "", |j| j.regret)
        .when(any_forced, |table| table.number("forced", "", |j| j.forced))
        .note(note(several))
        .notes(any_forced.then_some(
            "forced: requests that waited past the hard limit; policies with any come last.",
        ))
        .note(&compared.same)
        .done()
}

fn note(several: bool) -> &'static str {
    if several {
        "worst VM: its p99 is the largest multiple (over alone) of what it has without the others \
         under the policy that is best for it then. worst speed: mean response alone over mean \
         response here, of the VM for which that is least. regret: mean distance from the best \
         policy in over alone, bandwidth and worst speed; 0 is the best in all three. Policies \
         within 2 % count as equal and stand in the order of `seekway list policies`."
    } else {
        "over alone: p99 over that of the best policy. worst speed: mean response under the best \
         policy over that here. regret: mean distance from the best policy in these two and in \
         bandwidth; 0 is the best in all three. Policies within 2 % count as equal and stand in \
         the order of `seekway list policies`."
    }
}

/// The modelled disks with the whole load.
fn disks(overload: &Overload) -> Table {
    let verdict = |disk: &Disk| match (&disk.service, disk.carries) {
        (None, _) => "too small",
        (Some(_), true) => "yes",
        (Some(_), false) => "no",
    };
    Table::of("Other modelled disks with the whole load", &overload.disks)
        .text("disk", |disk| &disk.disk)
        .text("carries the load", verdict)
        .number("worst p99", "ms", |disk| disk.service.as_ref().map(|s| s.p99_ms))
        .text("under", |disk| disk.service.as_ref().map(|s| &s.label))
        .done()
}

// Which stacks `advise` ranks when a cache is asked for, and what of the gain is the cache's.

/// The policy that gains are measured from: what many hosts ran.
const BASE: &str = "cfq";

/// The caches to rank, from the least to the largest: none first, then each size without a
/// prefetcher and with each. So each part of a gain has a run that lacks only that part.
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

/// The goal's figure on the way to the recommended stack, part by part. Scripts read these keys.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CacheGain {
    /// Under cfq without a cache.
    pub cfq: f64,
    /// Under the recommended policy without a cache.
    pub policy: f64,
    /// With the recommended cache, without a prefetcher.
    pub cache: f64,
    /// With its prefetcher: all of the recommended stack.
    pub prefetch: f64,
    /// Share of the gain over cfq that the cache and its prefetcher bring. Above 1 if the
    /// policy alone is worse than cfq; null if there is no gain.
    pub cache_share: Option<f64>,
    /// Share of the gain over cfq that the prefetcher brings.
    pub prefetch_share: Option<f64>,
}

impl CacheGain {
    /// `None` if the recommended stack, the first, has no cache.
    pub fn of(ranking: &[Judged], goal: Goal) -> Option<CacheGain> {
        let best = ranking.first()?;
        best.cache.cache_mib?;
        let value = |policy: &str, cache: CacheChoice| {
            let found = ranking.iter().find(|j| j.policy == policy && j.cache == cache);
            found.map(|judged| judged.value)
        };
        let plain = CacheChoice { prefetch: Some(NO_PREFETCH.into()), ..best.cache };
        let (cfq, policy) = (value(BASE, NO_CACHE)?, value(&best.policy, NO_CACHE)?);
        let cache = value(&best.policy, plain)?;
        let sign = if GoalFigure::of(goal).smaller_is_better { -1.0 } else { 1.0 };
        let total = sign * (best.value - cfq);
        let share = |from: f64| (total > 0.0).then(|| sign * (best.value - from) / total);
        Some(CacheGain {
            cfq,
            policy,
            cache,
            prefetch: best.value,
            cache_share: share(policy),
            prefetch_share: share(cache),
        })
    }
}

const NO_CACHE: CacheChoice = CacheChoice { cache_mib: None, prefetch: None };

/// Describes the cache's gain in a sentence; empty where no cache was tried.
fn gain_sentence(ranking: &[Judged], goal: Goal) -> String {
    let three = |value: f64| significant(value, 3);
    let percent =
        |share: Option<f64>| share.map_or("–".into(), |share| format!("{:.0} %", share * 100.0));
    match CacheGain::of(ranking, goal) {
        Some(gain) => format!(
            "By this figure ({}): {BASE} without a cache {}, this policy without one {}, with the \
             cache {}, with its prefetcher {}. Of the gain over {BASE} {} is the cache's, {} by its \
             prefetcher. ",
            GoalFigure::of(goal).name,
            three(gain.cfq),
            three(gain.policy),
            three(gain.cache),
            three(gain.prefetch),
            percent(gain.cache_share),
            percent(gain.prefetch_share)
        ),
        None if ranking.iter().any(|judged| judged.cache != NO_CACHE) => {
            "A cache does not help. ".into()
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod gain_tests {
    use super::*;

    fn judged(policy: &str, cache: Option<(f64, &str)>, value: f64) -> Judged {
        let cache = CacheChoice {
            cache_mib: cache.map(|(mib, _)| mib),
            prefetch: cache.map(|(_, prefetch)| prefetch.to_string()),
        };
        let label = format!("{policy} {cache:?}");
        Judged { label, cache, ..super::judged::tests::judged(policy, value) }
    }

    #[test]
    fn a_gain_is_divided_among_policy_cache_and_prefetcher() {
        let ranking = [
            judged("fairway", Some((64.0, "vio")), 2.0),
            judged("fairway", Some((64.0, "none")), 4.0),
            judged("fairway", None, 7.0),
            judged("cfq", None, 12.0),
        ];
        let gain = CacheGain::of(&ranking, Goal::Latency).expect("a cache");
        assert_eq!((gain.cfq, gain.policy, gain.cache, gain.prefetch), (12.0, 7.0, 4.0, 2.0));
        assert_eq!((gain.cache_share, gain.prefetch_share), (Some(0.5), Some(0.2)));
        let text = gain_sentence(&ranking, Goal::Latency);
        assert!(text.contains("50 % is the cache's, 20 % by its prefetcher."), "{text}");
        // With more being better there is no gain in this.
        assert_eq!(CacheGain::of(&ranking, Goal::Throughput).expect("a cache").cache_share, None);
    }

    #[test]
    fn a_cache_that_does_not_help_is_said_to() {
        let ranking = [judged("cfq", None, 3.0), judged("cfq", Some((64.0, "none")), 3.01)];
        assert!(CacheGain::of(&ranking, Goal::Latency).is_none());
        assert!(gain_sentence(&ranking, Goal::Latency).starts_with("A cache does not help."));
        assert_eq!(gain_sentence(&ranking[..1], Goal::Latency), "");
    }

    #[test]
    fn each_part_has_a_run_without_it() {
        let args = |cache: Option<&str>, prefetch: &str| PrefetchArgs {
            prefetch: vec![prefetch.into()],
            cache: cache.map(str::to_string),
        };
        let made = caches(&args(Some("2MiB,1MiB"), "vio")).unwrap();
        let shown: Vec<(u64, &str)> =
            made.iter().flatten().map(|c| (c.size >> 20, c.prefetch.as_str())).collect();
        assert_eq!(made[0], None);
        assert_eq!(shown, [(1, "none"), (1, "vio"), (2, "none"), (2, "vio")]);
    }
}
