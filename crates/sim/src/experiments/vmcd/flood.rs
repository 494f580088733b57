//! vmcd-flood (ours): two quiet VMs and one that keeps 64 requests outstanding.

use super::super::figure::bars_by;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{Load, POLICIES, cells, loads};
use super::measure::{our_rows, phi_row, shares, time_shares};

/// A third of the device time each, to within so many points of a per cent.
const WITHIN: f64 = 3.0;

pub(super) fn flood_cells(options: &Options) -> Vec<Cell> {
    cells(&loads("flood", options))
}

pub(super) fn flood_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for load in loads("flood", options) {
        findings.rows.extend(POLICIES.map(|policy| share_row(results, &load, policy)));
        findings.rows.push(phi_row(results, &load));
        findings.rows.extend(our_rows(results, &load));
        findings.figures.push(figure(results, &load));
    }
    findings
}

/// The share of device time that is furthest from a third.
fn share_row(results: &Results, load: &Load, policy: &str) -> Row {
    let third = 100.0 / load.vms.len() as f64;
    let far = |seed: &Vec<f64>| {
        let off = |share: &f64| (share - third).abs();
        seed.iter().map(off).fold(0.0, f64::max)
    };
    let off: Vec<f64> = time_shares(results, load, policy).iter().map(far).collect();
    let even = off.iter().all(|&o| o <= WITHIN);
    let name = format!("{}: device time under {policy}, furthest from a third", load.name);
    let row = Row::measured(name, &off, "points", shares(results, load, policy));
    // The paper's credits follow the queue length, and CFQ does not idle for random readers.
    if policy == "vmcd-time" { row.ask(even, "a third each, to within 3 points,") } else { row }
}

fn figure(results: &Results, load: &Load) -> Figure {
    let of = |&vm: &usize, policy: &str| {
        time_shares(results, load, policy).iter().map(|seed| seed[vm]).collect()
    };
    let series = bars_by(&POLICIES, &[0, 1, 2], of);
    let caption = format!("{}: who has the device.", load.name);
    Figure::bars(("share of device time", "%"), ["quiet 1", "quiet 2", "flood"], series, caption)
}
