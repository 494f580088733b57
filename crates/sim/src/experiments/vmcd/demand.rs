//! vmcd-fair-demand and vmcd-ssd: figures 9 and 15. Three VMs that ask for 10,
//! 100 and 300 requests a second of 64 KiB.

use super::super::{Cell, Findings, Options, Results, Row};
use super::load::{Load, cells, loads};
use super::measure::{
    bandwidth_row, our_rows, our_rows_but, phi_claim, phi_row, rate_claim, total, vm_bars,
};

/// What the VMs ask for a second.
const GROUPS: [&str; 3] = ["10", "100", "300"];

/// φ of the paper: 4.404 against 13.687 on the disk, 4.293 against 11.592 on the SSD.
const DISK_BETTER: f64 = 1.0 - 4.404 / 13.687;
const SSD_BETTER: f64 = 1.0 - 4.293 / 11.592;
const SSD_MORE: f64 = 1.205;
/// MiB/s in all, in figure 9.
const DISK_MORE: f64 = 28.35 / 26.5;

const DISK_PAPER: [(&str, &[f64]); 2] =
    [("vmcd", &[3.04, 8.48, 16.83]), ("cfq", &[8.63, 8.83, 9.04])];
const SSD_PAPER: [(&str, &[f64]); 1] = [("vmcd", &[18.58, 41.74, 106.9])];

pub(super) fn cells_disk(options: &Options) -> Vec<Cell> {
    [cells(&loads("demand-papers", options)), cells(&loads("demand", options))].concat()
}

pub(super) fn judge_disk(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let papers = loads("demand-papers", options);
    for load in &papers {
        findings.rows.extend(claims(results, load, DISK_BETTER, DISK_MORE));
    }
    let others = loads("demand", options);
    for load in &others {
        findings.rows.extend([phi_row(results, load), bandwidth_row(results, load)]);
        findings.rows.extend(asked(results, load));
    }
    for load in papers.iter().chain(&others) {
        let caption = "bandwidth of each VM (figure 9 of the paper).";
        findings.figures.push(vm_bars(results, load, &GROUPS, &DISK_PAPER, caption));
    }
    findings
}

/// φ better by a share and bandwidth more by a factor than CFQ's.
fn claims(results: &Results, load: &Load, better: f64, more: f64) -> Vec<Row> {
    let name = (load.name.as_str(), "bandwidth");
    vec![
        phi_claim(results, &load.name, &[load], "cfq", better),
        rate_claim(results, name, &[load], ("cfq", more), total),
        phi_row(results, load),
    ]
}

/// Device time by weight and φ by demand cannot both be. With even weights
/// vmcd-time gives a third to each, however much is outstanding, which is what
/// it is for; with weights of 1:10:30 the first VM is due a 41st of the time,
/// which is less than it asks for at its rate.
fn asked(results: &Results, load: &Load) -> Vec<Row> {
    let at_a_rate = load.vms.iter().all(|vm| vm.spec.contains("rate_iops"));
    let not_phi = match (load.weights.is_empty(), at_a_rate) {
        (true, false) => {
            "nothing is asked with even weights: it shares device time, not what is queued"
        }
        (false, true) => {
            "nothing is asked: a 41st of the time, its weight, is less than VM1's rate"
        }
        _ => return our_rows(results, load),
    };
    our_rows_but(results, load, Some(not_phi))
}

pub(super) fn cells_ssd(options: &Options) -> Vec<Cell> {
    [cells(&loads("ssd-papers", options)), cells(&loads("ssd", options))].concat()
}

pub(super) fn judge_ssd(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let (papers, others) = (loads("ssd-papers", options), loads("ssd", options));
    for load in &papers {
        findings.rows.extend(claims(results, load, SSD_BETTER, SSD_MORE));
    }
    for load in &others {
        findings.rows.extend([phi_row(results, load), bandwidth_row(results, load)]);
        findings.rows.extend(asked(results, load));
    }
    for load in others.iter().chain(&papers) {
        let caption = "bandwidth of each VM (figure 15 of the paper).";
        findings.figures.push(vm_bars(results, load, &GROUPS, &SSD_PAPER, caption));
    }
    findings
}
