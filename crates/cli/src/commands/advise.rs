//! `seekway advise`: which policy for these traces on this disk?

use super::compare::{self, Comparison, Contest};
use crate::Verdict;
use crate::args::{AdviseArgs, Format, Goal, LoadArgs};
use crate::json::Run;
use crate::load::Load;
use crate::{output, runs};
use anyhow::Result;
use seekway_report::html::Block;
use seekway_report::table::{Cell, Column, Table};
use serde::Serialize;

/// A gain smaller than this is not worth a change of policy.
const WORTH: f64 = 0.02;

/// `advise --format json`.
#[derive(Serialize)]
struct Advice {
    recommend: String,
    goal: String,
    /// What the goal's figure is called, with its unit.
    figure: &'static str,
    /// The recommended policy's figure and everyone's, best first.
    ranking: Vec<RankedPolicy>,
    /// How much better than cfq, as a share of cfq's figure.
    gain_over_cfq: Option<f64>,
    /// VMs that another policy would serve at least 2 % better.
    worse_for: Vec<Loser>,
    advice: String,
    #[serde(flatten)]
    compared: crate::json::CompareReport,
}

#[derive(Serialize)]
struct RankedPolicy {
    policy: String,
    value: f64,
}

#[derive(Serialize)]
struct Loser {
    vm: String,
    /// The policy that serves this VM best.
    better: String,
    /// How much longer its mean response is under the recommended one.
    slower: f64,
}

pub fn run(args: &AdviseArgs) -> Result<Verdict> {
    let load = Load::new(&LoadArgs {
        traces: args.traces.clone(),
        vms: Vec::new(),
        groups: Vec::new(),
        reading: args.reading.clone(),
        time_scale: args.time_scale,
        outstanding: args.outstanding,
        map: args.map.clone(),
        weights: Vec::new(),
        capacity: None,
    })?;
    let contest = Contest::new(compare::policies("all")?);
    let jobs = runs::jobs(args.out.jobs);
    let made = compare::compare(&load, &args.disk, &contest, &[1], None, false, jobs)?;
    for warning in &made.warnings {
        eprintln!("warning: {warning}");
    }
    let ranking = ranking(&made, args.goal);
    let losers = losers(&made, &ranking[0].policy);
    let gain = gain(&ranking, args.goal);
    let advice = sentence(&ranking, &losers, args.goal, &made);
    let table = table(&made, &ranking, args.goal);
    if let Some(path) = &args.out.report {
        let mut report = compare::report(&made, "Seekway: which policy?");
        report.subtitle.clone_from(&advice);
        report.sections[0].blocks.insert(0, Block::Table(table.clone()));
        output::write_file(path, |out| report.write_html(out))?;
    }
    let json = Advice {
        recommend: ranking[0].policy.clone(),
        goal: format!("{:?}", args.goal).to_lowercase(),
        figure: figure_name(args.goal),
        ranking,
        gain_over_cfq: gain,
        worse_for: losers,
        advice,
        compared: made.compared,
    };
    output::print_as(args.out.format, &[table], &json)?;
    if matches!(args.out.format, Format::Table | Format::Markdown) {
        output::print(&format!("\n{}\n", json.advice))?;
    }
    Ok(Verdict::Done)
}

/// The goal's figure of a run. Smaller is better for all but throughput and fairness.
fn figure(run: &Run, goal: Goal) -> f64 {
    match goal {
        Goal::Response => run.response_ms.mean,
        Goal::Tail => run.response_ms.p99,
        Goal::Throughput => run.mib_s,
        Goal::Fairness => slowdown_fairness(run),
    }
}

/// Jain's index over the VMs' mean response times, inverted: all wait alike is 1.
fn slowdown_fairness(run: &Run) -> f64 {
    let speeds: Vec<f64> =
        run.vms.iter().map(|v| 1.0 / v.response_ms.mean.max(f64::MIN_POSITIVE)).collect();
    seekway_policy::fairness::jain(&speeds).unwrap_or(1.0)
}

fn smaller_is_better(goal: Goal) -> bool {
    matches!(goal, Goal::Response | Goal::Tail)
}

fn figure_name(goal: Goal) -> &'static str {
    match goal {
        Goal::Response => "mean response (ms)",
        Goal::Tail => "p99 response (ms)",
        Goal::Throughput => "bandwidth (MiB/s)",
        Goal::Fairness => "Jain's index of the VMs' speeds",
    }
}

/// Policies by the goal's figure, the best first; equal ones in the registry's
/// order, so that the simpler wins.
fn ranking(made: &Comparison, goal: Goal) -> Vec<RankedPolicy> {
    let ranked = |run: &Run| RankedPolicy { policy: run.policy.clone(), value: figure(run, goal) };
    let mut ranking: Vec<RankedPolicy> = made.compared.runs.iter().map(ranked).collect();
    let sign = if smaller_is_better(goal) { 1.0 } else { -1.0 };
    ranking.sort_by(|a, b| (sign * a.value).total_cmp(&(sign * b.value)));
    ranking
}

fn gain(ranking: &[RankedPolicy], goal: Goal) -> Option<f64> {
    let cfq = ranking.iter().find(|r| r.policy == "cfq")?.value;
    let change = ranking[0].value / cfq - 1.0;
    Some(if smaller_is_better(goal) { -change } else { change })
}

/// VMs for whom another policy is clearly better.
fn losers(made: &Comparison, chosen: &str) -> Vec<Loser> {
    let runs = &made.compared.runs;
    let Some(ours) = runs.iter().find(|r| r.policy == chosen) else { return Vec::new() };
    let loser = |(n, vm): (usize, &crate::json::Vm)| {
        let mean = |run: &Run| run.vms[n].response_ms.mean;
        let better = runs.iter().min_by(|a, b| mean(a).total_cmp(&mean(b)))?;
        let slower = vm.response_ms.mean / mean(better) - 1.0;
        let (vm, better) = (vm.name.clone(), better.policy.clone());
        (slower >= WORTH).then_some(Loser { vm, better, slower })
    };
    ours.vms.iter().enumerate().filter_map(loser).collect()
}

fn sentence(ranking: &[RankedPolicy], losers: &[Loser], goal: Goal, made: &Comparison) -> String {
    let best = &ranking[0];
    let what = figure_name(goal);
    let mut text = format!("Use {}: {what} {:.3}", best.policy, best.value);
    if let Some(second) = ranking.get(1) {
        text += &format!(", next {} with {:.3}", second.policy, second.value);
    }
    if best.policy != "cfq"
        && let Some(cfq) = ranking.iter().find(|r| r.policy == "cfq")
    {
        let gain = gain(ranking, goal).unwrap_or(0.0) * 100.0;
        let than = if smaller_is_better(goal) { "less" } else { "more" };
        text += &format!("; {gain:.1} % {than} than cfq's {:.3}", cfq.value);
    }
    text += ". ";
    let (first, last) = (ranking[0].value, ranking[ranking.len() - 1].value);
    if (first / last - 1.0).abs() < WORTH {
        text += "All policies lie within 2 %: the disk is hardly shared, take the simplest. ";
    }
    if made.compared.runs[0].vms.len() > 1 {
        if losers.is_empty() {
            text += "No VM would be served 2 % better by another policy.";
        } else {
            let one = |l: &Loser| {
                format!("{} ({:.0} % slower than under {})", l.vm, l.slower * 100.0, l.better)
            };
            let list: Vec<String> = losers.iter().map(one).collect();
            text += &format!("It is worse for {}.", list.join(", "));
        }
    }
    text.trim_end().to_string()
}

fn table(made: &Comparison, ranking: &[RankedPolicy], goal: Goal) -> Table {
    let mut columns = vec![
        Column::text("policy"),
        Column::number(figure_name(goal), ""),
        Column::number("against the best", ""),
    ];
    let vms = &made.compared.runs[0].vms;
    columns.extend(vms.iter().map(|v| Column::number(format!("{} mean", v.name), "ms")));
    let mut table =
        Table::new(format!("Policies on {}, best first", made.compared.device), columns);
    for r in ranking {
        let Some(run) = made.compared.runs.iter().find(|run| run.policy == r.policy) else {
            continue;
        };
        let mut row = vec![
            Cell::Text(r.policy.clone()),
            Cell::Number(r.value),
            Cell::Change(r.value / ranking[0].value - 1.0),
        ];
        row.extend(run.vms.iter().map(|v| Cell::Number(v.response_ms.mean)));
        table.push(row);
    }
    table
}
