//! What `advise` says: sentences and tables.

use super::Loser;
use super::judged::{EQUAL_WITHIN, Judged, are_equal, better};
use super::overload::{Disk, Overload, Service};
use crate::args::Goal;
use clap::ValueEnum;
use seekway_report::number::{count, significant};
use seekway_report::table::{Cell, Column, Table};

/// VMs that are named as losers.
const LOSERS_SHOWN: usize = 5;

/// As `--for` takes it.
pub fn goal_name(goal: Goal) -> String {
    goal.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
}

/// What the goal's figure is called, with its unit.
pub fn figure_name(goal: Goal) -> &'static str {
    match goal {
        Goal::Latency => "worst VM's p99 over its p99 alone",
        Goal::Throughput => "bandwidth (MiB/s)",
        Goal::Fairness => "worst VM's speed as a share of its speed alone",
        Goal::Balance => "mean regret in latency, throughput and fairness",
    }
}

fn time(ms: f64) -> String {
    if ms < 1000.0 {
        format!("{} ms", significant(ms, 3))
    } else {
        format!("{} s", significant(ms / 1e3, 3))
    }
}

fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0, 2))
}

/// That the disk cannot carry the load, how much of it it could, and which disks would.
pub fn overload(overload: &Overload, hard_limit: &str) -> String {
    let Service { policy, vm, p99_ms, forced, queue_full } = &overload.best;
    let limit = time(overload.p99_limit_ms);
    let mut why = vec![format!("the p99 of {vm} is {}, and the limit is {limit}", time(*p99_ms))];
    why.extend((*forced > 0).then(|| {
        let (count, are) =
            (count(*forced), if *forced == 1 { "request is" } else { "requests are" });
        format!("{count} {are} forced out after {hard_limit}")
    }));
    why.extend(queue_full.then(|| "the queue fills up and requests wait to enter it".to_string()));
    let mut text = format!(
        "This disk cannot carry this load: under the best policy for it ({policy}) {}. ",
        why.join("; ")
    );
    text += &match (overload.share, &overload.at_share) {
        (Some(share), Some(service)) => format!(
            "It carries about {} of the rate (under {}, with a p99 of {}). ",
            percent(share),
            service.policy,
            time(service.p99_ms)
        ),
        _ => "It does not carry even 1 % of the rate. ".to_string(),
    };
    text += &disks_that_carry(&overload.disks);
    text
}

fn disks_that_carry(disks: &[Disk]) -> String {
    let carrying: Vec<String> = disks
        .iter()
        .filter(|disk| disk.carries)
        .filter_map(|disk| {
            let p99 = time(disk.service.as_ref()?.p99_ms);
            Some(format!("{} (p99 {p99})", disk.disk))
        })
        .collect();
    let too_small: Vec<&str> =
        disks.iter().filter(|d| d.service.is_none()).map(|d| d.disk.as_str()).collect();
    let mut text = if carrying.is_empty() {
        "No other modelled disk carries all of it.".to_string()
    } else {
        format!("Modelled disks that carry all of it, the slowest first: {}.", carrying.join(", "))
    };
    if !too_small.is_empty() {
        text += &format!(" Too small for it: {}.", too_small.join(", "));
    }
    text
}

/// Which policy to use, what that gives, and who loses by it.
pub fn recommendation(
    ranking: &[Judged],
    losers: &[Loser],
    goal: Goal,
    overloaded: bool,
    several: bool,
) -> String {
    let (best, goal_name) = (&ranking[0], goal_name(goal));
    let mut text = if overloaded {
        format!("No policy mends that. The least bad for {goal_name} is {}: ", best.policy)
    } else {
        format!("Use {} for {goal_name}: ", best.policy)
    };
    text += &gives(best, several);
    text += &beside_others(ranking, goal);
    if several {
        text += &who_loses(losers);
    }
    text.trim_end().to_string()
}

fn gives(best: &Judged, several: bool) -> String {
    let mean = time(best.mean_ms);
    let mib_s = significant(best.mib_s, 3);
    let p99 = time(best.worst_vm_p99_ms);
    if !several {
        return format!("mean response {mean}, p99 {p99}, {mib_s} MiB/s. ");
    }
    format!(
        "mean response {mean}, worst p99 {p99} ({}, {} × of what it has alone), {mib_s} MiB/s, and \
         every VM has at least {} of its speed alone. ",
        best.worst_vm,
        significant(best.worst_vm_p99_over_alone, 3),
        percent(best.worst_vm_speed)
    )
}

/// Who is as good, and who comes next.
fn beside_others(ranking: &[Judged], goal: Goal) -> String {
    let values = ranking.iter().map(|j| j.value);
    let best = values.fold(ranking[0].value, |a, b| better(goal, a, b));
    let equal = ranking.iter().take_while(|j| are_equal(goal, j.value, best)).count();
    let within = EQUAL_WITHIN * 100.0;
    if equal == ranking.len() && equal > 1 {
        return format!("All policies lie within {within} %: for this goal take any. ");
    }
    let mut text = String::new();
    if equal > 1 {
        let names: Vec<&str> = ranking[1..equal].iter().map(|j| j.policy.as_str()).collect();
        text += &format!("Within {within} % of the best: {}. ", names.join(", "));
    }
    if let Some(next) = ranking.get(equal) {
        let (best, value) = (significant(ranking[0].value, 3), significant(next.value, 3));
        text +=
            &format!("{}: {best}, next {} with {value}. ", capital(figure_name(goal)), next.policy);
    }
    text
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

fn who_loses(losers: &[Loser]) -> String {
    if losers.is_empty() {
        return "No VM would be served 2 % better by another policy.".into();
    }
    let one =
        |l: &Loser| format!("{} ({} slower than under {})", l.vm, percent(l.slower), l.better);
    let mut list: Vec<String> = losers.iter().take(LOSERS_SHOWN).map(one).collect();
    let more = losers.len().saturating_sub(LOSERS_SHOWN);
    list.extend((more > 0).then(|| format!("{more} more")));
    format!("Who loses by it: {}.", list.join(", "))
}

/// Every policy with its figures, in the order of the ranking.
pub fn policies(ranking: &[Judged], goal: Goal, device: &str, several: bool) -> Table {
    let mut columns =
        vec![Column::text("policy"), Column::number("mean", "ms"), Column::number("p99", "ms")];
    if several {
        columns.push(Column::text("worst VM"));
        columns.push(Column::number("its p99", "ms"));
    }
    columns.extend([
        Column::number("over alone", ""),
        Column::number("bandwidth", "MiB/s"),
        Column::number("worst speed", ""),
        Column::number("regret", ""),
    ]);
    let title = format!("Policies on {device} for {}, best first", goal_name(goal));
    let mut table = Table::new(title, columns);
    for j in ranking {
        let mut row = vec![Cell::Text(j.policy.clone()), Cell::Number(j.mean_ms)];
        row.push(Cell::Number(j.p99_ms));
        if several {
            row.extend([Cell::Text(j.worst_vm.clone()), Cell::Number(j.worst_vm_p99_ms)]);
        }
        row.extend([
            Cell::Ratio(j.worst_vm_p99_over_alone),
            Cell::Number(j.mib_s),
            Cell::Share(j.worst_vm_speed),
            Cell::Number(j.regret),
        ]);
        table.push(row);
    }
    table.notes.push(note(several).into());
    table
}

fn note(several: bool) -> &'static str {
    if several {
        "worst VM: its p99 is the largest multiple (over alone) of what it has without the others \
         under the policy that is best for it then. worst speed: mean response alone over mean \
         response here, of the VM for which that is least. regret: mean distance from the best \
         policy in over alone, bandwidth and worst speed; 0 is the best in all three."
    } else {
        "over alone: p99 over that of the best policy. worst speed: mean response under the best \
         policy over that here. regret: mean distance from the best policy in these two and in \
         bandwidth; 0 is the best in all three."
    }
}

/// The modelled disks with the whole load.
pub fn disks(overload: &Overload) -> Table {
    let columns = vec![
        Column::text("disk"),
        Column::text("carries the load"),
        Column::number("worst p99", "ms"),
        Column::text("under"),
    ];
    let mut table = Table::new("Other modelled disks with the whole load", columns);
    for disk in &overload.disks {
        let verdict = match (&disk.service, disk.carries) {
            (None, _) => "too small",
            (Some(_), true) => "yes",
            (Some(_), false) => "no",
        };
        let mut row = vec![Cell::Text(disk.disk.clone()), Cell::Text(verdict.into())];
        row.extend(match &disk.service {
            Some(s) => [Cell::Number(s.p99_ms), Cell::Text(s.policy.clone())],
            None => [Cell::Absent, Cell::Absent],
        });
        table.push(row);
    }
    table
}
