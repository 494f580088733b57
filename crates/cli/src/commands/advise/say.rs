//! Sentences and tables of `advise`.

use super::judged::{Judged, Loser, equal_to_first};
use super::search::{Disk, Headroom};
use super::verdict::{Burst, Excess, Limit, Operation, Service};
use super::{Advice, goal_name};
use crate::args::Goal;
use crate::output;
use seekway_report::number::{count, rate_mib_s, significant, size_mib, time_ms};
use seekway_report::rank::EQUAL_WITHIN;
use seekway_report::table::{Cell, Table};

/// VMs that a sentence names, and limits that are named as exceeded.
const NAMED: usize = 5;

fn percent(share: f64) -> String {
    if share > 0.0 && share < 1e-4 {
        return "less than 0.01 %".into();
    }
    format!("{} %", significant(share * 100.0, if share < 1.0 { 2 } else { 3 }))
}

fn requests(number: u64) -> String {
    format!("{} request{}", count(number), if number == 1 { "" } else { "s" })
}

// Can the disk carry the load?

/// The verdict and its reasons, a line each.
pub fn verdict(advice: &Advice<'_>) -> Vec<String> {
    let mut lines = vec![first_line(advice)];
    lines.extend(advice.excesses.iter().take(NAMED).map(excess));
    if !advice.excesses.is_empty() && !advice.excesses.iter().any(|e| e.of == Limit::Rate) {
        let why = match worst(&advice.service) {
            Some(_) => "The rate is not too much, the bursts are.",
            None => {
                "The rate is not too much, and there is no burst: single requests take that time."
            }
        };
        lines.push(why.into());
    }
    lines.extend(advice.nearer.as_ref().map(|nearer| {
        format!("Nearest to carrying it is {}: {}", nearer.label, excess(&nearer.excess))
    }));
    if let (Some(true), Some(busy)) = (advice.carried, advice.service.busy)
        && advice.service.is_over_its_rate()
    {
        lines.push(format!(
            "The trace ends too soon to tell: in the long run the disk does {} of this rate.",
            percent(1.0 / busy)
        ));
    }
    lines.extend(advice.credit_lasts_s.filter(|_| advice.carried == Some(true)).map(|lasts_s| {
        format!(
            "It pays for the load with credit, which at this rate lasts {}; then it has its base \
             rate alone. The headroom counts the credit.",
            time_ms(lasts_s * 1e3)
        )
    }));
    if let Some(off) = &advice.without_write_cache
        && advice.carried.is_some_and(|carried| carried != off.excesses.is_empty())
    {
        let off_too = match off.excesses.first() {
            None => "it carries the load".into(),
            Some(first) => format!("it does not carry the load. {}", excess(first)),
        };
        lines.push(format!("With the drive's write cache off {}.", off_too.trim_end_matches('.')));
    }
    let recommended = &advice.ranking[0].label;
    lines.extend(advice.headroom.as_ref().map(|found| headroom(found, recommended)));
    if !advice.unmarked.is_empty() {
        lines.push(format!(
            "No write of {} is marked as synchronous: all are judged as writes that nobody waits \
             for.",
            named(advice.unmarked.iter().cloned())
        ));
    }
    lines
}

/// The disk, yes or no, how busy it is, the worst burst.
fn first_line(advice: &Advice<'_>) -> String {
    let (disk, service) = (&advice.disk, &advice.service);
    let verdict = match (advice.carried, advice.carried_without_cache) {
        (None, _) => format!(
            "{disk} has no verdict: a load without a clock (--outstanding) asks for as much as the \
             disk gives"
        ),
        (Some(true), Some(false)) => {
            format!("Yes, {disk} carries this load, but only behind a host cache")
        }
        (Some(true), _) => format!("Yes, {disk} carries this load"),
        (Some(false), _) => format!("No, {disk} does not carry this load"),
    };
    let busy = match service.busy {
        Some(busy) if service.is_over_its_rate() => {
            format!(": it would be busy {} of the time", percent(busy))
        }
        Some(busy) => format!(": it is busy {} of the time", percent(busy)),
        None => String::new(),
    };
    let burst = worst(service).map(worst_burst);
    format!("{verdict}{busy}{}.", burst.unwrap_or_default())
}

/// The worst burst.
fn worst(service: &Service) -> Option<&Burst> {
    service.bursts.first()
}

fn worst_burst(burst: &Burst) -> String {
    let (from, length) = (time_ms(burst.from_s * 1e3), time_ms(burst.length_s * 1e3));
    let waits = match &burst.waiter {
        Some(waiter) => {
            let (vm, what) = (&waiter.vm, waiter.operation.plural());
            format!("{vm}'s {what} take up to {}", time_ms(waiter.longest_ms))
        }
        None => "nobody waits for them".into(),
    };
    let (depth, mib) = (requests(burst.requests), size_mib(burst.mib));
    format!("; worst burst: {length} from {from} on, {depth} ({mib}) deep, {waits}")
}

/// A limit that is exceeded.
fn excess(excess: &Excess) -> String {
    let vm = excess.vm.as_deref().unwrap_or_default();
    let what = excess.operation.map_or("requests", Operation::plural);
    let (value, limit) = (time_ms(excess.value), time_ms(excess.limit));
    match excess.of {
        Limit::Rate => format!(
            "The rate is too much: it needs {} of the disk's time, so in the long run the disk \
             does {} of it.",
            percent(excess.value),
            percent(1.0 / excess.value)
        ),
        Limit::P99 => format!("{vm}'s {what} have a p99 of {value}, above {limit}."),
        Limit::Longest => format!("{vm}'s {what} wait for up to {value}, above {limit}."),
    }
}

/// Says how often the load fits beside itself under the recommended stack, and under which one more
/// often.
fn headroom(headroom: &Headroom, recommended: &str) -> String {
    let (times, breaks) = (headroom.times, headroom.breaks.as_ref().map(excess));
    let mut text = match (times, breaks) {
        (1, Some(breaks)) => {
            format!("Headroom under {recommended}: none for a second such load beside it. {breaks}")
        }
        (_, Some(breaks)) => format!(
            "Headroom under {recommended}: {times} such loads side by side, shifted in time and \
             place. {} are too much. {breaks}",
            times + 1
        ),
        (_, None) => format!(
            "Headroom under {recommended}: at least {times} such loads side by side, shifted in \
             time and place."
        ),
    };
    if let Some(more) = &headroom.more {
        text += &format!(" Under {} the disk carries {}.", more.label, more.times);
    }
    text
}

/// Service of each VM, by kind of request.
pub fn served(service: &Service) -> Table {
    Table::of(format!("Service under {}", service.label), &service.served)
        .text("VM", |served| &served.vm)
        .text("requests", |served| served.operation.plural())
        .number("number", "", |served| served.requests)
        .number("size", "MiB", |served| served.mib)
        .number("mean", "ms", |served| Cell::Time(served.mean_ms))
        .number("p99", "ms", |served| Cell::Time(served.p99_ms))
        .number("longest", "ms", |served| Cell::Time(served.longest_ms))
        .number("backlog", "MiB", |served| served.backlog_mib)
        .note(
            "Times count from when the trace has the request. backlog: the largest amount that was \
             not yet on the disk; longest is the time to drain.",
        )
        .done()
}

/// The worst bursts.
pub fn bursts(service: &Service) -> Option<Table> {
    let bursts = &service.bursts;
    let waiter = |burst: &Burst| {
        burst.waiter.as_ref().map(|waiter| format!("{}'s {}", waiter.vm, waiter.operation.plural()))
    };
    let table = Table::of("Worst bursts", bursts)
        .number("from", "s", |burst: &Burst| burst.from_s)
        .number("length", "s", |burst| burst.length_s)
        .number("depth", "requests", |burst| burst.requests)
        .number("depth", "MiB", |burst| burst.mib)
        .number("longest", "ms", |burst| Cell::Time(burst.longest_ms))
        .text("who waits", waiter)
        .number("for up to", "ms", |burst| {
            burst.waiter.as_ref().map(|waiter| Cell::Time(waiter.longest_ms))
        })
        .note(
            "A burst is a time in which requests are always under way. The worst are those whose \
             longest wait is nearest to its limit or furthest above it.",
        );
    (!bursts.is_empty()).then(|| table.done())
}

/// The modelled disks with the whole load.
pub fn disks(disks: &[Disk]) -> Option<Table> {
    let verdict = |disk: &Disk| match (&disk.service, disk.carries) {
        (None, _) => "too small",
        (Some(_), true) => "yes",
        (Some(_), false) => "no",
    };
    let of = |disk: &Disk, of: fn(&Service) -> Option<f64>| disk.service.as_ref().and_then(of);
    let table = Table::of("Other modelled disks with the whole load", disks)
        .text("disk", |disk| &disk.disk)
        .text("carries the load", verdict)
        .number("busy", "", |disk| of(disk, |service| service.busy).map(Cell::Share))
        .number("worst p99", "ms", |disk| of(disk, Service::worst_p99_ms).map(Cell::Time))
        .number("longest", "ms", |disk| {
            of(disk, |service| Some(service.longest_ms())).map(Cell::Time)
        })
        .note(
            "Under fairway without a host cache; drives that have a write cache have it on. worst \
             p99: of requests that somebody waits for.",
        );
    (!disks.is_empty()).then(|| table.done())
}

// Which policy?

/// The policy to use, what that gives, and who loses by it.
pub fn recommendation(advice: &Advice<'_>, goal: Goal, several: bool) -> String {
    let (ranking, goal_name) = (&advice.ranking, goal_name(goal));
    let (best, one) = (&ranking[0], kind(ranking).0);
    let mut text = match advice.carried {
        Some(false) => {
            format!("No {one} mends that. The least bad for {goal_name} is {}: ", best.label)
        }
        _ => format!("Use {} for {goal_name}: ", best.label),
    };
    text += &gives(best, several, advice.is_alone_measured);
    text += &equals(ranking);
    if kind(ranking).0 == "stack" && best.cache.cache_mib.is_none() {
        text += "A cache does not help. ";
    }
    if several {
        text += &who_loses(&advice.worse_for, one);
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

fn gives(best: &Judged, several: bool, is_alone_measured: bool) -> String {
    let mean = time_ms(best.mean_ms);
    let mib_s = rate_mib_s(best.mib_s);
    if !several {
        return format!("mean response {mean}, p99 {}, {mib_s}. ", time_ms(best.p99_ms));
    }
    let p99 = time_ms(best.worst_vm_p99_ms);
    let of = match is_alone_measured {
        true => ["what it has alone", "its speed alone"],
        false => ["its least under any policy", "its best speed under any policy"],
    };
    let [least_p99, speed] = of;
    format!(
        "mean response {mean}, worst p99 {p99} ({}, {} × of {least_p99}), {mib_s}, and every \
         VM has at least {} of {speed}. ",
        best.worst_vm,
        significant(best.worst_vm_p99_over_alone, 3),
        percent(best.worst_vm_speed)
    )
}

/// Names the policies that are as good as the first.
fn equals(ranking: &[Judged]) -> String {
    let equal = &equal_to_first(ranking)[1..];
    let names: Vec<&str> = equal.iter().map(|j| j.label.as_str()).collect();
    let within = EQUAL_WITHIN * 100.0;
    match names.len() {
        0 => String::new(),
        n if n + 1 == ranking.len() => {
            format!("All {} lie within {within} %: for this goal take any. ", kind(ranking).1)
        }
        _ => format!("Within {within} % of it: {}. ", names.join(", ")),
    }
}

fn who_loses(losers: &[Loser], kind: &str) -> String {
    if losers.is_empty() {
        return format!("No VM would be served 2 % better by another {kind}.");
    }
    let one =
        |l: &Loser| format!("{} ({} slower than under {})", l.vm, percent(l.slower), l.better);
    format!("Who loses by it: {}.", named(losers.iter().map(one)))
}

/// The first of these, and the number of the others.
fn named(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(NAMED);
    let mut list: Vec<String> = all.take(NAMED).collect();
    list.extend((more > 0).then(|| format!("{more} more")));
    list.join(", ")
}

/// Every stack with its figures, in the order of the ranking.
pub fn ranked(advice: &Advice<'_>, goal: Goal, several: bool) -> Table {
    let (ranking, compared) = (&advice.ranking, &advice.compared);
    let differ = ranking.iter().any(|j| j.carries != ranking[0].carries);
    let (kind, device) = (output::capital(kind(ranking).1), &compared.device);
    let title = format!("{kind} on {device} for {}, best first", goal_name(goal));
    let over = if advice.is_alone_measured { "over alone" } else { "over best" };
    Table::of(title, ranking)
        .text(compared.names.heading(), |j| &j.label)
        .when(differ, |table| {
            table.text("carries the load", |j| if j.carries { "yes" } else { "no" })
        })
        .number("rank", "", |j| j.rank)
        .number("mean", "ms", |j| Cell::Time(j.mean_ms))
        .number("p99", "ms", |j| Cell::Time(j.p99_ms))
        .when(several, |table| {
            table
                .text("worst VM", |j| &j.worst_vm)
                .number("its p99", "ms", |j| Cell::Time(j.worst_vm_p99_ms))
        })
        .number(over, "", |j| Cell::Ratio(j.worst_vm_p99_over_alone))
        .number("bandwidth", "MiB/s", |j| j.mib_s)
        .number("worst speed", "", |j| Cell::Share(j.worst_vm_speed))
        .number("regret", "", |j| j.regret)
        .note(note(several, advice.is_alone_measured))
        .note(&compared.same)
        .done()
}

fn note(several: bool, is_alone_measured: bool) -> String {
    let worst = match (several, is_alone_measured) {
        (true, true) => {
            "worst VM: its p99 is the largest multiple (over alone) of what it has without the \
             others under the policy that is best for it then. worst speed: mean response alone \
             over mean response here, of the VM for which that is least. "
        }
        (true, false) => {
            "worst VM: its p99 is the largest multiple (over best) of its p99 under the policy that \
             is best for it, among the others: no VM ran alone. worst speed: mean response under \
             that policy over mean response here, of the VM for which that is least. "
        }
        (false, _) => {
            "over best: p99 over that of the best policy. worst speed: mean response under the best \
             policy over that here. "
        }
    };
    format!(
        "Times are of requests that somebody waits for. {worst}regret: mean distance from the best \
         policy in these two and in bandwidth; 0 is the best in all three. Policies within 2 % share \
         a rank and stand in the order of `seekway list policies`."
    )
}
