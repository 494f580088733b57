//! migrate-cost (tables 2 and 3, figures 11 and 12 of the paper): how often tasks are
//! moved, how long they still stand on a vCPU that is away, what that does to their
//! response, and what it takes from the compute tasks.

use super::super::figure::{bars_by, paper_bars};
use super::super::judge::{listed, mean};
use super::super::results::over;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::competitors::{competitor_cells, competitor_rows};
use super::completions::papers;
use super::load::{
    APPLICATIONS, Disk, OURS, PAPER, Scene, VANILLA, VSLICER, XBALLOON, cells, scenes,
};
use super::measure::{
    across, agent, blocked, computed, gain, inactive_a_block, moves, moves_over_least, ratio,
    response, short, worked,
};
use crate::metrics::RunResult;

const POLICIES: [&str; 5] = [VANILLA, VSLICER, XBALLOON, PAPER, OURS];
/// Table 3: moves over the least number, with two VMs.
const PAPER_MOVES: [f64; 7] = [1.05, 1.07, 1.34, 1.08, 1.07, 1.02, 1.13];
/// The same table: throughput over vanilla's.
const PAPER_SPEEDUP: [f64; 7] = [1.86, 1.75, 1.41, 1.76, 1.82, 1.73, 1.70];
/// Table 2: inactivity under vanilla over that under vmigrater, with four VMs.
const PAPER_INACTIVE: [f64; 7] = [18.39, 7.25, 3.11, 5.19, 17.44, 7.37, 11.31];
/// The same under vslicer and under xballoon, the means of the seven ratios of the table.
const PAPER_INACTIVE_OTHERS: [(&str, f64); 2] = [(VSLICER, 7.90), (XBALLOON, 6.98)];
/// Figure 11 has "almost the same" response for vmigrater and xballoon: within this.
const ALIKE: f64 = 0.15;
/// Compute tasks keep at least this much of what they have under vanilla.
const COMPUTE: f64 = 0.95;

/// Tables 3 and 2: how many VMs they have, on the paper's host.
fn two(options: &Options) -> Vec<Scene> {
    scenes(&APPLICATIONS, Disk::Ssd, 2, options).iter().map(papers).collect()
}

fn four(options: &Options) -> Vec<Scene> {
    scenes(&APPLICATIONS, Disk::Ssd, 4, options).iter().map(papers).collect()
}

pub(super) fn cost_cells(options: &Options) -> Vec<Cell> {
    let two = two(options).into_iter().flat_map(|scene| cells(&scene, &POLICIES));
    let four = four(options).into_iter();
    let four = four.flat_map(|scene| POLICIES.map(|policy| scene.cell(policy)));
    two.chain(four).chain(competitor_cells(options)).collect()
}

pub(super) fn cost_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let (two, four) = (two(options), four(options));
    for (scene, (paper, speedup)) in two.iter().zip(PAPER_MOVES.into_iter().zip(PAPER_SPEEDUP)) {
        findings.rows.extend(move_rows(results, scene, paper));
        let name = format!("{}: {PAPER} over vanilla", scene.name);
        findings.rows.push(Row::factor(name, speedup, &gain(results, scene, PAPER)));
    }
    for (scene, paper) in four.iter().zip(PAPER_INACTIVE) {
        findings.rows.extend(inactive_rows(results, scene, paper));
    }
    for (policy, paper) in PAPER_INACTIVE_OTHERS {
        let of = |s: &Scene| ratio(results, (s, policy), (s, PAPER), inactive_a_block);
        let name = format!("4 VMs, applications: inactivity for each block, {policy} over {PAPER}");
        findings.rows.push(Row::factor(name, paper, &across(&four, of)));
    }
    for policy in POLICIES.into_iter().filter(|&policy| policy != VANILLA) {
        findings.rows.push(compute_row(results, &two, policy));
    }
    findings.rows.extend(competitor_rows(options, results));
    findings.rows.extend(POLICIES.map(|policy| response_row(results, &two, policy)));
    findings.rows.extend(figure_11(results, &two));
    findings.figures.push(inactive_figure(results, &four));
    findings.figures.push(figure(&two, "response over that without sharing", "11", |s, p| {
        ratio(results, (s, p), (&s.unshared(), VANILLA), response)
    }));
    let axis = "CPU time of compute tasks over vanilla's";
    let kept = |s: &Scene, p: &str| ratio(results, (s, p), (s, VANILLA), computed);
    findings.figures.push(figure(&two, axis, "12", kept));
    findings
}

/// Moves over the paper's least number, a slice each, with the clairvoyant's beside.
fn move_rows(results: &Results, scene: &Scene, paper: f64) -> [Row; 2] {
    let slice = scene.machine.host.slice.as_secs_f64();
    let vms = scene.machine.vms.len() as f64;
    let over = |r: &RunResult| moves(r) * slice / (r.simulated.as_secs_f64() * vms);
    [PAPER, OURS].map(|policy| {
        let values = results.each(scene, policy, over);
        let name = format!("{}: moves over the least, {policy}", scene.name);
        let told = |figure: fn(&RunResult) -> f64| short(results.mean(scene, policy, figure));
        let why = format!(
            "the least is one a slice; {} of what a clairvoyant needs; {} % had to wait for a \
             vCPU that was away",
            told(moves_over_least),
            told(blocked)
        );
        match policy {
            PAPER => Row::value(name, paper, &values, "×", 0.2).because(why),
            _ => Row::measured(name, &values, "×", why),
        }
    })
}

/// Time on vCPUs that are away for each block read: the paper's runs have a fixed work.
fn inactive_rows(results: &Results, scene: &Scene, paper: f64) -> [Row; 2] {
    [PAPER, OURS].map(|policy| {
        let values = ratio(results, (scene, VANILLA), (scene, policy), inactive_a_block);
        let name = format!("{}: inactivity for each block, vanilla over {policy}", scene.name);
        let of = |policy| short(1e3 * results.mean(scene, policy, inactive_a_block));
        let told = listed(POLICIES, |policy| format!("{policy} {}", of(policy)));
        let why = format!("ms a block: {told}");
        match policy {
            PAPER => Row::factor(name, paper, &values).because(why),
            _ => Row::measured(name, &values, "×", why),
        }
    })
}

/// What compute tasks keep. What I/O tasks compute more because they read more is no cost
/// of the policy's, and told apart.
fn compute_row(results: &Results, scenes: &[Scene], policy: &str) -> Row {
    let values = across(scenes, |s| ratio(results, (s, policy), (s, VANILLA), computed));
    let under = |policy: &str, figure: fn(&RunResult) -> f64| {
        mean(&across(scenes, |scene| results.each(scene, policy, figure)))
    };
    let base = |figure| under(VANILLA, figure);
    let why = format!(
        "I/O tasks compute {} % of that more than under vanilla, the agents take {} % of the CPU \
         time",
        short(100.0 * (under(policy, worked) - base(worked)) / base(computed)),
        short(under(policy, agent))
    );
    let name = format!("2 VMs, applications: CPU time of compute tasks, {policy} over vanilla");
    let row = Row::measured(name, &values, "×", why);
    if policy != OURS {
        return row;
    }
    row.ask(mean(&values) >= COMPUTE, &format!("at least {COMPUTE}"))
}

/// What the text says of figure 11: vmigrater and xballoon are alike, and MediaTomb is worst.
fn figure_11(results: &Results, scenes: &[Scene]) -> Vec<Row> {
    let of = |s: &Scene| ratio(results, (s, PAPER), (s, XBALLOON), response);
    let name = format!("2 VMs, applications: response, {PAPER} over {XBALLOON}");
    let mut rows = vec![Row::value(name, 1.0, &across(scenes, of), "×", ALIKE)];
    let (media, others): (Vec<Scene>, Vec<Scene>) =
        scenes.iter().cloned().partition(|s| s.name.contains("MediaTomb"));
    for policy in [VSLICER, XBALLOON, PAPER] {
        let slower = |s: &Scene| ratio(results, (s, policy), (&s.unshared(), VANILLA), response);
        let values = over(&across(&media, slower), &across(&others, slower));
        let name = format!(
            "2 VMs, MediaTomb: response over that without sharing, over the others', {policy}"
        );
        rows.push(Row::ordering(name, &values, 1.0, "×"));
    }
    rows
}

fn response_row(results: &Results, scenes: &[Scene], policy: &str) -> Row {
    let of = |s: &Scene| ratio(results, (s, policy), (&s.unshared(), VANILLA), response);
    let by = listed(scenes, |s| short(mean(&of(s))));
    let names = APPLICATIONS.map(|work| work.name).join(", ");
    let name = format!("2 VMs, applications: response over that without sharing, {policy}");
    Row::measured(name, &across(scenes, of), "×", format!("{names}: {by}"))
}

fn inactive_figure(results: &Results, scenes: &[Scene]) -> Figure {
    let of = |s: &Scene, p: &str| ratio(results, (s, VANILLA), (s, p), inactive_a_block);
    let mut series = bars_by(&[PAPER, OURS], scenes, of);
    series.push(paper_bars("vmigrater", &PAPER_INACTIVE));
    let axis = ("inactivity for each block, vanilla's over this", "×");
    let caption = "Four VMs: how much less I/O tasks stand on vCPUs that are away (table 2).";
    Figure::bars(axis, APPLICATIONS.map(|work| work.name), series, caption)
}

fn figure(
    scenes: &[Scene],
    axis: &str,
    number: &str,
    of: impl Fn(&Scene, &str) -> Vec<f64>,
) -> Figure {
    let caption = format!("Two VMs: {axis} (figure {number} of the paper).");
    let groups = APPLICATIONS.map(|work| work.name);
    Figure::bars((axis, "×"), groups, bars_by(&POLICIES, scenes, of), caption)
}
