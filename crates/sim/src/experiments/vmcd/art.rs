//! vmcd-art: mean response of VMs with different demands, figure 11.

use super::super::figure::bars;
use super::super::metric::response_ms;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{FORMS, Load, POLICIES, cells, loads};
use super::measure::{form_rows, our_rows, short};
use crate::metrics::RunResult;

/// How much shorter the mean response is in the paper.
const SHORTER: [(&str, f64); 3] = [("cfq", 0.218), ("deadline", 0.13), ("anticipatory", 0.14)];

pub(super) fn art_cells(options: &Options) -> Vec<Cell> {
    let [bare, papers] = ["art", "art-papers"].map(|set| loads(set, options));
    let forms: Vec<Cell> = bare.iter().flat_map(|load| load.under(&FORMS)).collect();
    [forms, cells(&bare), cells(&papers)].concat()
}

/// Mean response of each VM, ms, mean over the seeds.
fn by_vm(results: &Results, load: &Load, policy: &str) -> String {
    let of = |vm: usize| short(results.mean(load, policy, |r| r.vms[vm].response.mean() / 1e6));
    (0..load.vms.len()).map(of).collect::<Vec<_>>().join("/")
}

pub(super) fn art_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for load in loads("art-papers", options) {
        for (base, shorter) in SHORTER {
            let ratios = results.ratio(&load, ("vmcd", base), response_ms);
            let name = format!("{}: mean response of vmcd against {base}", load.name);
            let row = Row::factor(name, 1.0 - shorter, &ratios);
            findings.rows.push(row.because(cause(results, &load, "vmcd", base)));
        }
        findings.figures.push(figure(results, &load));
    }
    for load in loads("art", options) {
        for policy in ["vmcd", "vmcd-time"] {
            let ratios = results.ratio(&load, (policy, "cfq"), response_ms);
            let name = format!("{}: mean response of {policy} against cfq", load.name);
            let why = cause(results, &load, policy, "cfq");
            findings.rows.push(Row::measured(name, &ratios, "×", why));
        }
        findings.rows.extend(form_rows(results, &load, "mean response", response_ms));
        findings.rows.extend(our_rows(results, &load));
        findings.figures.push(figure(results, &load));
    }
    findings
}

/// Responses of the VMs, and how many requests were served a second: in a
/// closed loop the mean response is what is outstanding over that (Little).
fn cause(results: &Results, load: &Load, policy: &str, base: &str) -> String {
    let one = |p: &str| {
        let rate = results.mean(load, p, RunResult::iops);
        format!("{p} {} ms at {rate:.0} requests/s", by_vm(results, load, p))
    };
    format!("{}; {}", one(policy), one(base))
}

fn figure(results: &Results, load: &Load) -> Figure {
    let of = |policy: &&str| {
        let each = |vm: usize| results.each(load, policy, |r| r.vms[vm].response.mean() / 1e6);
        let mut groups: Vec<Vec<f64>> = (0..load.vms.len()).map(each).collect();
        groups.push(results.each(load, policy, response_ms));
        bars(policy, &groups)
    };
    let series = POLICIES.iter().map(of).collect();
    let caption = format!("{}: mean response (figure 11 of the paper).", load.name);
    Figure::bars(("mean response", "ms"), ["VM1", "VM2", "VM3", "all"], series, caption)
}
