//! vmcd-fair-demand and vmcd-ssd: figures 9 and 15. Three VMs that ask for 10,
//! 100 and 300 requests a second of 64 KiB.

use super::super::{Cell, Findings, Options, Results, Row};
use super::load::{Access, Load, RING, Vm, cells};
use super::measure::{
    bandwidth_row, our_rows, our_rows_but, phi_claim, phi_row, rate_claim, total, vm_bars,
};

/// What the VMs ask for a second.
const IOPS: [u32; 3] = [10, 100, 300];
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

/// Requests at a rate, at most `depth` outstanding in each VM.
fn rates(pattern: &'static str, depth: u32) -> Vec<Vm> {
    let access = Access::direct(pattern, "64KiB").depth(depth);
    IOPS.map(|iops| access.vm_at(iops, 64)).into()
}

/// No rate, but so many outstanding: what the paper's bandwidths look like.
/// The demands in φ are the paper's all the same.
fn outstanding(pattern: &'static str) -> Vec<Vm> {
    let vm = |depth: u32| Vm {
        demand: Some(f64::from(depth) * 64.0 / 1024.0),
        ..Access::direct(pattern, "64KiB").depth(depth).vm()
    };
    IOPS.map(vm).into()
}

/// The two readings of the paper's demands on its host. Equation 5 has no weights.
fn papers_loads(options: &Options) -> [Load; 2] {
    let load = |name: &str, vms| Load::new(name, vms, 60, options).on_papers_host(RING);
    [load(AT_A_RATE, rates("randread", 256)), load(OUTSTANDING, outstanding("randread"))]
}

fn disk_loads(options: &Options) -> Vec<Load> {
    let load = |name: &str, vms| Load::new(name, vms, 60, options);
    vec![
        load("at a rate, 16 outstanding at most", rates("randread", 16)),
        load(AT_A_RATE, rates("randread", 256)),
        load(OUTSTANDING, outstanding("randread")),
        load("at a rate, 256 outstanding at most, weights 1:10:30", rates("randread", 256))
            .weighted(&WEIGHTS),
        load("10, 100 and 300 outstanding, weights 1:10:30", outstanding("randread"))
            .weighted(&WEIGHTS),
    ]
}

const AT_A_RATE: &str = "at a rate, 256 outstanding at most";
/// The load that the paper's bandwidths fit: with a rate of 10 no VM can get
/// 8.63 MiB/s, which are 138 requests a second.
const OUTSTANDING: &str = "10, 100 and 300 outstanding";
/// The paper says that it deployed such weights; its CFQ shows nothing of them.
const WEIGHTS: [u32; 3] = [1, 10, 30];

pub(super) fn cells_disk(options: &Options) -> Vec<Cell> {
    [cells(&papers_loads(options)), cells(&disk_loads(options))].concat()
}

pub(super) fn judge_disk(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let papers = papers_loads(options);
    for load in &papers {
        findings.rows.extend(claims(results, load, DISK_BETTER, DISK_MORE));
    }
    let others = disk_loads(options);
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

/// The paper's SSD: 40 GB, Intel 320.
const SSD: &str = "intel-320";

/// Random writes, as the paper has them on the SSD. On one that serves
/// thousands a second 410 are nothing: the outstanding requests decide.
fn ssd_loads(options: &Options) -> [Load; 2] {
    let load = |name: &str, vms, seconds| Load::new(name, small(vms), seconds, options).on(SSD);
    [
        load("at a rate, 16 outstanding at most", rates("randwrite", 16), 10),
        load(OUTSTANDING, outstanding("randwrite"), 4),
    ]
}

/// The one whose bandwidth is near the paper's 139 to 167 MiB/s, in the paper's guests: at their
/// rates the VMs get 25.6.
fn papers_ssd_load(options: &Options) -> Load {
    let [_, load] = ssd_loads(options);
    load.on_papers_host(RING).on(SSD)
}

/// Three images on 40 GB.
fn small(vms: Vec<Vm>) -> Vec<Vm> {
    vms.into_iter().map(|vm| vm.with("image=8GiB")).collect()
}

pub(super) fn cells_ssd(options: &Options) -> Vec<Cell> {
    [papers_ssd_load(options).cells(), cells(&ssd_loads(options))].concat()
}

pub(super) fn judge_ssd(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let (papers, others) = (papers_ssd_load(options), ssd_loads(options));
    findings.rows.extend(claims(results, &papers, SSD_BETTER, SSD_MORE));
    for load in &others {
        findings.rows.extend([phi_row(results, load), bandwidth_row(results, load)]);
        findings.rows.extend(asked(results, load));
    }
    for load in others.iter().chain([&papers]) {
        let caption = "bandwidth of each VM (figure 15 of the paper).";
        findings.figures.push(vm_bars(results, load, &GROUPS, &SSD_PAPER, caption));
    }
    findings
}
