//! vmcd-fair-same and vmcd-fair-sizes: figures 5, 7 and 8.

use super::super::figure::bars_by;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{Family, Load, POLICIES, cells, families, loads};
use super::measure::{
    our_rows, phi, phi_claim, phi_of_equals, phi_row, shares, short, total, vm_bars,
};

/// φ that is better by so much, against each baseline, on identical loads.
const SAME: [(&str, f64); 3] = [("cfq", 0.70), ("anticipatory", 0.70), ("deadline", 0.26)];
/// The same with different sizes of requests.
const SIZES: [(&str, f64); 3] = [("cfq", 0.67), ("anticipatory", 0.67), ("deadline", 0.58)];

/// CFQ with one service tree, whose every queue is idled for.
const CFQ_OLD: &str = "cfq:generation=2.6.30";
/// The policies of each load of "same-ablation".
const ABLATIONS: [&[&str]; 2] = [&["vmcd", "vmcd-time", "cfq"], &[CFQ_OLD]];

fn same_figure(family: &Family, results: &Results) -> Figure {
    let host = if family.is_papers_host { "paper's host, " } else { "" };
    Figure::bars(
        ("φ", "MiB/s"),
        family.loads.iter().map(|load| format!("{} VMs", load.vms.len())),
        bars_by(&POLICIES, &family.loads, |load, policy| phi(results, load, policy)),
        format!("{host}{}: φ, smaller is fairer (figure 5 of the paper).", family.name),
    )
}

pub(super) fn same_cells(options: &Options) -> Vec<Cell> {
    let ablations = loads("same-ablation", options).into_iter().zip(ABLATIONS);
    let ablations = ablations.flat_map(|(load, policies)| load.under(policies)).collect();
    [cells(&loads("same", options)), ablations].concat()
}

pub(super) fn same_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for family in families("same", options) {
        if family.is_papers_host {
            let name = format!("{}, 2 to 4 VMs", family.name);
            let all: Vec<&Load> = family.loads.iter().collect();
            let claim = |(base, better)| phi_claim(results, &name, &all, base, better);
            findings.rows.extend(SAME.map(claim));
        }
        for load in &family.loads {
            findings.rows.push(phi_row(results, load));
            if !family.is_papers_host {
                findings.rows.extend(our_rows(results, load));
            }
        }
        findings.figures.push(same_figure(&family, results));
    }
    findings.rows.extend(same_ablation_rows(options, results));
    findings
}

fn same_ablation_rows(options: &Options, results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (load, policies) in loads("same-ablation", options).into_iter().zip(ABLATIONS) {
        for policy in policies {
            let bandwidth = short(results.mean(&load, policy, total));
            let why = format!("{}; {bandwidth} MiB/s in all", shares(results, &load, policy));
            let values = phi_of_equals(results, &load, policy);
            let name = format!("{}: φ of {policy}", load.name);
            rows.push(Row::measured(name, &values, "MiB/s", why));
        }
    }
    rows
}

/// The mixes of table 2.
const MIXES: [&str; 2] = ["512 B, 64 KiB, 512 KiB, 1 MiB", "512 B, 128 KiB, 256 KiB, 1 MiB"];

/// Figure 7: 512 B, 64 KiB, 512 KiB.
const SIZES_PAPER: [(&str, &[f64]); 4] = [
    ("vmcd", &[4.64, 9.29, 9.25]),
    ("cfq", &[3.08, 8.63, 9.18]),
    ("deadline", &[2.57, 8.60, 8.38]),
    ("anticipatory", &[3.01, 8.28, 9.36]),
];

pub(super) fn sizes_cells(options: &Options) -> Vec<Cell> {
    [cells(&loads("sizes", options)), cells(&loads("mixes", options))].concat()
}

pub(super) fn sizes_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let (mixes, sizes) = (loads("mixes", options), loads("sizes", options));
    // Each as three and as four VMs.
    for (mix, loads) in MIXES.iter().zip(mixes.chunks(2)) {
        let all: Vec<&Load> = loads.iter().collect();
        let name = format!("3 and 4 VMs of {mix}");
        let claim = |(base, better)| phi_claim(results, &name, &all, base, better);
        findings.rows.extend(SIZES.map(claim));
        findings.rows.extend(loads.iter().map(|load| phi_row(results, load)));
    }
    for load in &sizes {
        findings.rows.push(phi_row(results, load));
        findings.rows.extend(our_rows(results, load));
    }
    for load in sizes.iter().chain(&mixes[..1]).filter(|load| load.vms.len() == 3) {
        let groups = ["512 B", "64 KiB", "512 KiB"];
        let caption = "bandwidth of each VM (figure 7 of the paper).";
        findings.figures.push(vm_bars(results, load, &groups, &SIZES_PAPER, caption));
    }
    findings
}
