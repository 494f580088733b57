//! vio-vms, vio-procs: sequential readers, one in each of several VMs or
//! several in one (figures 5(a) and 5(b) of the paper).

use super::super::judge::mean;
use super::super::results::by_seed;
use super::super::{Findings, Options, Results, Row};
use super::load::{Load, PROTOCOL_FLASHY, PROTOCOL_VIO, SEQUENTIAL};
use super::load::{large_vm, sequential, small_vm};
use super::measure::{across, least, speedup};
use super::rows::{Paper, asks, figure, means, row};

/// Readers in the paper's cases.
pub(super) const COUNTS: [usize; 5] = [1, 3, 6, 9, 12];
/// What is measured of a run: two of the paper's intervals.
pub(super) const MILLIS: u64 = 1_000;
/// The paper gives the speed-ups at six readers.
const AT: usize = 6;

pub(super) fn vms(options: &Options) -> Vec<Load> {
    let load = |count: usize| {
        let vms = vec![small_vm(sequential(1)); count];
        Load::new(format!("{count} VMs"), vms, MILLIS, options).readers(1)
    };
    COUNTS.map(load).into()
}

pub(super) fn procs(options: &Options) -> Vec<Load> {
    let load = |count: usize| {
        let vm = large_vm(vec![sequential(count)]);
        Load::new(format!("{count} processes"), vec![vm], MILLIS, options).readers(12)
    };
    COUNTS.map(load).into()
}

pub(super) fn vms_judge(options: &Options, results: &Results) -> Findings {
    let loads = vms(options);
    let at = Paper { vio: Some(1.30), flashy: Some(1.35) };
    let of_mean = Paper { vio: Some(1.20), flashy: Some(1.19) };
    let caption = "Sequential readers, one in each VM (figure 5(a) of the paper).";
    judge(results, &loads, |n| if n == AT { at } else { Paper::default() }, of_mean, caption)
}

pub(super) fn procs_judge(options: &Options, results: &Results) -> Findings {
    let loads = procs(options);
    let one = Paper { vio: Some(1.18), flashy: Some(1.19) };
    let caption = "Sequential readers in one VM (figure 5(b) of the paper).";
    let paper = |n| if n == 1 { one } else { Paper::default() };
    let mut findings = judge(results, &loads, paper, Paper::default(), caption);
    findings.rows.extend(above_flashy(results, &loads, 0.15, Some(0.2)));
    findings
}

/// The rows of figure 5: the paper's figures with so many readers, and of the mean.
pub(super) fn judge(
    results: &Results,
    loads: &[Load],
    paper: impl Fn(usize) -> Paper,
    of_mean: Paper,
    caption: &str,
) -> Findings {
    let mut findings = Findings::default();
    for (load, count) in loads.iter().zip(COUNTS) {
        let form = |form| row(results, load, form, &SEQUENTIAL, paper(count));
        findings.rows.extend([PROTOCOL_FLASHY, PROTOCOL_VIO].map(form));
    }
    findings.rows.extend(means(results, "mean of all", loads, &SEQUENTIAL, of_mean));
    findings.rows.extend(asks(results, loads));
    let groups = COUNTS.map(|n| n.to_string()).into();
    findings.figures.push(figure(results, loads, groups, &SEQUENTIAL, caption));
    findings
}

/// By how much the paper's vio is above its flashy, whose region is the whole disk:
/// in the mean and with six readers, where the paper says so.
pub(super) fn above_flashy(
    results: &Results,
    loads: &[Load],
    paper: f64,
    paper_at: Option<f64>,
) -> Vec<Row> {
    let above = |load: &Load| -> Vec<f64> {
        let of = |column| speedup(results, load, column);
        of(PROTOCOL_VIO).iter().zip(of(PROTOCOL_FLASHY)).map(|(v, f)| v - f).collect()
    };
    let row = |what: &str, paper: f64, values: &[f64]| {
        let name = format!("{what}: vio above flashy, both as in the paper");
        let forms = format!("{}; {}", PROTOCOL_VIO.form(), PROTOCOL_FLASHY.form());
        Row::difference(name, paper, values).because(forms)
    };
    let all = across(loads, above);
    let region = "flashy's region is the disk: it tells no processes apart; more than nothing";
    let mut out = vec![row("mean of all", paper, &all).ask(mean(&all) > 0.0, region)];
    let at = COUNTS.iter().position(|&n| n == AT).map(|at| &loads[at]);
    out.extend(paper_at.zip(at).map(|(paper, load)| row(&load.name, paper, &above(load))));
    if paper_at.is_none() {
        out.push(least_above(loads, above));
    }
    out
}

/// With the number of readers that has least: above flashy, as the paper says of all.
fn least_above(loads: &[Load], above: impl Fn(&Load) -> Vec<f64>) -> Row {
    let values = by_seed(&loads.iter().map(above).collect::<Vec<_>>(), least);
    let name = "least of all: vio above flashy, both as in the paper";
    Row::ordering(name, &values, 0.0, "").because(PROTOCOL_VIO.form())
}
