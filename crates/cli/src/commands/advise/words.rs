//! Sentences and tables of `advise`.

use super::gain;
use super::judged::{EQUAL_WITHIN, Judged, are_equal, best};
use super::overload::{Disk, Overload, Service};
use super::{Carried, Loser};
use crate::args::Goal;
use crate::json::CompareReport;
use crate::output;
use clap::ValueEnum;
use seekway_report::number::{count, significant};
use seekway_report::table::{Cell, Table};

/// A disk that is busy less than this has time for all requests, had they come evenly.
const BURSTS_BELOW: f64 = 0.8;

/// VMs that are named as losers.
const LOSERS_SHOWN: usize = 5;

/// As `--for` takes it.
pub fn goal_name(goal: Goal) -> String {
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
pub fn overload(overload: &Overload) -> String {
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
pub fn recommendation(
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
    text += &gain::sentence(ranking, goal);
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
pub fn ranked(ranking: &[Judged], goal: Goal, compared: &CompareReport, several: bool) -> Table {
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
pub fn disks(overload: &Overload) -> Table {
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
