//! vmcd-fair-same and vmcd-fair-sizes: figures 5, 7 and 8.

use super::super::figure::bars_by;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{Access, DISK, Load, POLICIES, Vm, cells};
use super::measure::{
    enough, our_rows, phi, phi_claim, phi_of_equals, phi_row, shares, short, total, vm_bars,
};

/// φ that is better by so much, against each baseline, on identical loads.
const SAME: [(&str, f64); 3] = [("cfq", 0.70), ("anticipatory", 0.70), ("deadline", 0.26)];
/// The same with different sizes of requests.
const SIZES: [(&str, f64); 3] = [("cfq", 0.67), ("anticipatory", 0.67), ("deadline", 0.58)];

const COUNTS: [usize; 3] = [2, 3, 4];

/// Where there is something to order, and so something to be unfair with: the
/// row of which half of the paper's share is asked.
const QUEUED_WRITES: &str = "128 KiB random writes, 16 outstanding";

/// What is the same in all VMs: name, access, simulated seconds.
fn patterns() -> [(&'static str, Access, u64); 5] {
    let read = Access::direct("read", "512B");
    let write = Access::direct("randwrite", "128KiB");
    [
        ("512 B sequential reads, one at a time", read, 20),
        ("512 B sequential reads, 4 outstanding", read.depth(4), 12),
        ("512 B sequential reads, guest read-ahead", read.buffered(), 12),
        ("128 KiB random writes, one at a time", write, 60),
        (QUEUED_WRITES, write.depth(16), 60),
    ]
}

fn same_load(pattern: &str, access: Access, seconds: u64, vms: usize, options: &Options) -> Load {
    Load::new(format!("{vms} VMs, {pattern}"), vec![access.vm(); vms], seconds, options)
}

fn same_loads(options: &Options) -> Vec<Load> {
    let of = |(name, access, seconds): (&str, Access, u64)| {
        COUNTS.map(|vms| same_load(name, access, seconds, vms, options))
    };
    patterns().into_iter().flat_map(of).collect()
}

/// The drive without its read-ahead, and CFQ as Linux 2.6.30 had it.
fn same_ablations(options: &Options) -> Vec<(Load, &'static [&'static str])> {
    let [one, .., write, _] = patterns();
    let blind = same_load("512 B, no read-ahead in the drive", one.1, one.2, 3, options)
        .on(&format!("{DISK}:read_ahead=false"));
    let writes = same_load(write.0, write.1, write.2, 3, options);
    vec![(blind, &["vmcd", "vmcd-time", "cfq"]), (writes, &[CFQ_OLD])]
}

/// CFQ with one service tree, whose every queue is idled for.
const CFQ_OLD: &str = "cfq:generation=2.6.30";

pub(super) fn same_cells(options: &Options) -> Vec<Cell> {
    let mut all = cells(&same_loads(options));
    for (load, policies) in same_ablations(options) {
        all.extend(load.under(policies));
    }
    all
}

pub(super) fn same_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for load in same_loads(options) {
        findings.rows.push(phi_row(results, &load));
        for (base, better) in SAME {
            findings.rows.push(same_claim(results, &load, base, better));
        }
        findings.rows.extend(our_rows(results, &load));
    }
    findings.rows.extend(same_ablation_rows(options, results));
    findings.figures = patterns().map(|p| same_figure(p, options, results)).into();
    findings
}

fn same_claim(results: &Results, load: &Load, base: &str, better: f64) -> Row {
    let row = phi_claim(results, load, base, better);
    let cause = match (base, load.name.ends_with("one at a time")) {
        ("deadline", true) => {
            "with one request a VM, the order of arrival is a round of all VMs, and nobody can \
             be fairer"
        }
        ("cfq", true) if load.name.contains("writes") => {
            "cfq 4.x lets a queue whose request comes preempt one that does not idle: of three \
             random writers on a disk that takes one command, one starves"
        }
        _ => return row.accept_if(same_accepted(results, load, base, better)),
    };
    row.because(cause)
}

fn same_accepted(results: &Results, load: &Load, base: &str, better: f64) -> bool {
    let asked = base != "cfq" && load.name.ends_with(QUEUED_WRITES);
    !asked || enough(results, load, base, better)
}

fn same_ablation_rows(options: &Options, results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (load, policies) in same_ablations(options) {
        for policy in policies {
            let bandwidth = short(results.mean(&load, policy, total));
            let why = format!("{}; {bandwidth} MiB/s in all", shares(results, &load, policy));
            let values = phi_of_equals(results, &load, policy);
            rows.push(Row::measured(
                format!("{}: φ of {policy}", load.name),
                &values,
                "MiB/s",
                why,
            ));
        }
    }
    rows
}

fn same_figure(
    (name, access, seconds): (&str, Access, u64),
    options: &Options,
    results: &Results,
) -> Figure {
    let of = |&vms: &usize, policy: &str| {
        phi(results, &same_load(name, access, seconds, vms, options), policy)
    };
    Figure::bars(
        ("φ", "MiB/s"),
        COUNTS.map(|vms| format!("{vms} VMs")),
        bars_by(&POLICIES, &COUNTS, of),
        format!("{name}: φ, smaller is fairer (figure 5 of the paper)."),
    )
}

/// Sequential readers of different sizes: name, VMs, simulated seconds.
fn sizes_loads(options: &Options) -> Vec<Load> {
    let vms = |change: fn(Access) -> Vm, blocks: &[&'static str]| {
        blocks.iter().map(|block| change(Access::direct("read", block))).collect::<Vec<Vm>>()
    };
    let three = ["512B", "64KiB", "512KiB"];
    let load = |name: &str, vms, seconds| Load::new(name, vms, seconds, options);
    vec![
        load(SIZES_MAIN, vms(Access::vm, &three), 20),
        load("4 outstanding", vms(|a| a.depth(4).vm(), &three), 12),
        load("guest read-ahead", vms(|a| a.buffered().vm(), &three), 12),
        load(
            "guest read-ahead, 8 ms from the disk",
            vms(|a| a.buffered().vm_with("latency=8ms"), &three),
            20,
        ),
        load("4 VMs, one at a time", vms(Access::vm, &["512B", "64KiB", "512KiB", "1MiB"]), 20),
    ]
}

/// The one that runs live too.
const SIZES_MAIN: &str = "sizes";

/// Figure 7: 512 B, 64 KiB, 512 KiB.
const SIZES_PAPER: [(&str, &[f64]); 4] = [
    ("vmcd", &[4.64, 9.29, 9.25]),
    ("cfq", &[3.08, 8.63, 9.18]),
    ("deadline", &[2.57, 8.60, 8.38]),
    ("anticipatory", &[3.01, 8.28, 9.36]),
];

pub(super) fn sizes_cells(options: &Options) -> Vec<Cell> {
    cells(&sizes_loads(options))
}

pub(super) fn sizes_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for load in sizes_loads(options) {
        findings.rows.push(phi_row(results, &load));
        for (base, better) in SIZES {
            findings.rows.push(phi_claim(results, &load, base, better));
        }
        findings.rows.extend(our_rows(results, &load));
        if load.vms.len() == 3 {
            let groups = ["512 B", "64 KiB", "512 KiB"];
            let caption = "bandwidth of each VM (figure 7 of the paper).";
            findings.figures.push(vm_bars(results, &load, &groups, &SIZES_PAPER, caption));
        }
    }
    findings
}
