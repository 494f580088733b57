//! vmcd-fair-demand and vmcd-ssd: figures 9 and 15. Three VMs that ask for 10,
//! 100 and 300 requests a second of 64 KiB.

use super::super::{Cell, Findings, Options, Results, Row};
use super::load::{Access, Demand, Load, Vm, cells};
use super::measure::{enough, our_rows, phi_claim, phi_row, total, vm_bars};

/// What the VMs ask for a second.
const IOPS: [u32; 3] = [10, 100, 300];
const GROUPS: [&str; 3] = ["10", "100", "300"];

/// φ of the paper: 4.404 against 13.687 on the disk, 4.293 against 11.592 on the SSD.
const DISK_BETTER: f64 = 1.0 - 4.404 / 13.687;
const SSD_BETTER: f64 = 1.0 - 4.293 / 11.592;
const SSD_MORE: f64 = 1.205;

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
        demand: Demand::Rate(f64::from(depth) * 64.0 / 1024.0),
        ..Access::direct(pattern, "64KiB").depth(depth).vm()
    };
    IOPS.map(vm).into()
}

fn disk_loads(options: &Options) -> Vec<Load> {
    let load = |name: &str, vms| Load::new(name, vms, 60, options);
    vec![
        load("at a rate, 16 outstanding at most", rates("randread", 16)),
        load("at a rate, 256 outstanding at most", rates("randread", 256)),
        load(OUTSTANDING, outstanding("randread")),
        load("at a rate, 256 outstanding at most, weights 1:10:30", rates("randread", 256))
            .weighted(&WEIGHTS),
        load("10, 100 and 300 outstanding, weights 1:10:30", outstanding("randread"))
            .weighted(&WEIGHTS),
    ]
}

/// The load that the paper's bandwidths fit: with a rate of 10 no VM can get
/// 8.63 MiB/s, which are 138 requests a second.
const OUTSTANDING: &str = "10, 100 and 300 outstanding";
/// The paper says that it deployed such weights; its CFQ shows nothing of them.
const WEIGHTS: [u32; 3] = [1, 10, 30];

pub(super) fn cells_disk(options: &Options) -> Vec<Cell> {
    cells(&disk_loads(options))
}

pub(super) fn judge_disk(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for load in disk_loads(options) {
        findings.rows.push(phi_row(results, &load));
        let claim = phi_claim(results, &load, "cfq", DISK_BETTER);
        let asked = load.name == OUTSTANDING;
        let claim = if asked { claim } else { claim.because(AT_A_RATE) };
        findings.rows.push(claim.accept_if(!asked || enough(results, &load, "cfq", DISK_BETTER)));
        findings.rows.extend(ours_by_weight(our_rows(results, &load), &load));
        let caption = "bandwidth of each VM (figure 9 of the paper).";
        findings.figures.push(vm_bars(results, &load, &GROUPS, &DISK_PAPER, caption));
    }
    findings
}

const AT_A_RATE: &str = "at a rate the first VM gets all it asks for under either, and the other \
                         two are as far as the disk goes; weights are given to cfq too";

/// Device time by weight and φ by demand cannot both be. With even weights
/// vmcd-time gives a third to each, however much is outstanding, which is what
/// it is for; with weights of 1:10:30 the first VM is due a 41st of the time,
/// which is less than it asks for at its rate.
fn ours_by_weight(rows: Vec<Row>, load: &Load) -> Vec<Row> {
    let at_a_rate = load.vms.iter().all(|vm| vm.spec.contains("rate_iops"));
    let why = match (load.weights.is_empty(), at_a_rate) {
        (true, false) => "not asked with even weights: it shares device time, not what is queued",
        (false, true) => "not asked: a 41st of the time, its weight, is less than VM1's rate",
        _ => return rows,
    };
    let waive = |row: Row| match row.name.contains("φ of vmcd-time") {
        true => row.accept_if(true).because(why),
        false => row,
    };
    rows.into_iter().map(waive).collect()
}

/// The paper's SSD: 40 GB, Intel 320.
const SSD: &str = "intel-320";

/// Random writes, as the paper has them on the SSD. On one that serves
/// thousands a second 410 are nothing: the outstanding requests decide.
fn ssd_loads(options: &Options) -> Vec<Load> {
    let load = |name: &str, vms, seconds| Load::new(name, vms, seconds, options).on(SSD);
    vec![
        load("at a rate, 16 outstanding at most", small(rates("randwrite", 16)), 10),
        load(OUTSTANDING, small(outstanding("randwrite")), 4),
    ]
}

/// Three images on 40 GB.
fn small(vms: Vec<Vm>) -> Vec<Vm> {
    vms.into_iter().map(|vm| Vm { spec: format!("image=8GiB,{}", vm.spec), ..vm }).collect()
}

pub(super) fn cells_ssd(options: &Options) -> Vec<Cell> {
    cells(&ssd_loads(options))
}

pub(super) fn judge_ssd(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for load in ssd_loads(options) {
        findings.rows.push(phi_row(results, &load));
        let cause = match load.name == OUTSTANDING {
            true => "credits follow what is queued, slices of time do not",
            false => "the SSD serves all that is asked under every policy: nothing to share out",
        };
        findings.rows.push(phi_claim(results, &load, "cfq", SSD_BETTER).because(cause));
        let more = results.ratio(&load, ("vmcd", "cfq"), total);
        let name = format!("{}: bandwidth against cfq", load.name);
        findings.rows.push(Row::factor(name, SSD_MORE, &more).because(
            "cfq does not idle on a device that does not rotate, and so wastes nothing that \
             another policy could gain",
        ));
        findings.rows.extend(ours_by_weight(our_rows(results, &load), &load));
        let caption = "bandwidth of each VM (figure 15 of the paper).";
        findings.figures.push(vm_bars(results, &load, &GROUPS, &SSD_PAPER, caption));
    }
    findings
}
