//! vmcd-fair-same and vmcd-fair-sizes: figures 5, 7 and 8.

use super::super::figure::bars_by;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{Access, DISK, FAR, Load, POLICIES, RING, Vm, cells};
use super::measure::{
    our_rows, phi, phi_claim, phi_of_equals, phi_row, shares, short, total, vm_bars,
};

/// φ that is better by so much, against each baseline, on identical loads.
const SAME: [(&str, f64); 3] = [("cfq", 0.70), ("anticipatory", 0.70), ("deadline", 0.26)];
/// The same with different sizes of requests.
const SIZES: [(&str, f64); 3] = [("cfq", 0.67), ("anticipatory", 0.67), ("deadline", 0.58)];

const COUNTS: [usize; 3] = [2, 3, 4];

/// What is the same in all VMs.
struct Pattern {
    name: &'static str,
    access: Access,
    seconds: u64,
    /// On the paper's host, with these keys of the guests; else on the bare disk.
    host: Option<&'static str>,
}

const READ: Access = Access::direct("read", "512B");
const WRITE: Access = Access::direct("randwrite", "128KiB");

const fn pattern(
    name: &'static str,
    access: Access,
    seconds: u64,
    host: Option<&'static str>,
) -> Pattern {
    Pattern { name, access, seconds, host }
}

/// The first two are judged. 31,700 reads of 512 B a second (figure 6(a)) go through the
/// guests' page caches, or nothing could serve them.
const PATTERNS: [Pattern; 7] = [
    pattern("512 B sequential reads", READ.buffered(), 20, Some(FAR)),
    pattern("128 KiB random writes", WRITE, 60, Some(RING)),
    pattern("512 B sequential reads, one at a time", READ, 20, None),
    pattern("512 B sequential reads, 4 outstanding", READ.depth(4), 12, None),
    pattern("512 B sequential reads, guest read-ahead", READ.buffered(), 12, None),
    ONE_WRITE,
    pattern("128 KiB random writes, 16 outstanding", WRITE.depth(16), 60, None),
];
const ONE_WRITE: Pattern = pattern("128 KiB random writes, one at a time", WRITE, 60, None);

impl Pattern {
    fn load(&self, vms: usize, options: &Options) -> Load {
        let all = vec![self.access.vm(); vms];
        let load = Load::new(format!("{vms} VMs, {}", self.name), all, self.seconds, options);
        match self.host {
            Some(keys) => load.on_papers_host(keys),
            None => load,
        }
    }

    fn loads(&self, options: &Options) -> [Load; 3] {
        COUNTS.map(|vms| self.load(vms, options))
    }

    fn figure(&self, options: &Options, results: &Results) -> Figure {
        let of = |&vms: &usize, policy: &str| phi(results, &self.load(vms, options), policy);
        let host = if self.host.is_some() { "paper's host, " } else { "" };
        Figure::bars(
            ("φ", "MiB/s"),
            COUNTS.map(|vms| format!("{vms} VMs")),
            bars_by(&POLICIES, &COUNTS, of),
            format!("{host}{}: φ, smaller is fairer (figure 5 of the paper).", self.name),
        )
    }
}

/// The drive without its read-ahead, and CFQ as Linux 2.6.30 had it.
fn same_ablations(options: &Options) -> Vec<(Load, &'static [&'static str])> {
    let blind = Load::new("512 B, no read-ahead in the drive", vec![READ.vm(); 3], 20, options)
        .on(&format!("{DISK}:read_ahead=false"));
    vec![(blind, &["vmcd", "vmcd-time", "cfq"]), (ONE_WRITE.load(3, options), &[CFQ_OLD])]
}

/// CFQ with one service tree, whose every queue is idled for.
const CFQ_OLD: &str = "cfq:generation=2.6.30";

pub(super) fn same_cells(options: &Options) -> Vec<Cell> {
    let patterns = PATTERNS.iter().flat_map(|p| cells(&p.loads(options)));
    let ablations = same_ablations(options).into_iter();
    patterns.chain(ablations.flat_map(|(load, policies)| load.under(policies))).collect()
}

pub(super) fn same_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for pattern in &PATTERNS {
        let loads = pattern.loads(options);
        if pattern.host.is_some() {
            let name = format!("{}, 2 to 4 VMs", pattern.name);
            let all: Vec<&Load> = loads.iter().collect();
            let claim = |(base, better)| phi_claim(results, &name, &all, base, better);
            findings.rows.extend(SAME.map(claim));
        }
        for load in &loads {
            findings.rows.push(phi_row(results, load));
            if pattern.host.is_none() {
                findings.rows.extend(our_rows(results, load));
            }
        }
        findings.figures.push(pattern.figure(options, results));
    }
    findings.rows.extend(same_ablation_rows(options, results));
    findings
}

fn same_ablation_rows(options: &Options, results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (load, policies) in same_ablations(options) {
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

/// A sequential reader of each size.
fn readers(blocks: &[&'static str], change: fn(Access) -> Access) -> Vec<Vm> {
    blocks.iter().map(|block| change(Access::direct("read", block)).vm()).collect()
}

/// The two mixes of table 2, as three and as four VMs.
const MIXES: [(&str, [&str; 4]); 2] = [
    ("512 B, 64 KiB, 512 KiB, 1 MiB", ["512B", "64KiB", "512KiB", "1MiB"]),
    ("512 B, 128 KiB, 256 KiB, 1 MiB", ["512B", "128KiB", "256KiB", "1MiB"]),
];

/// A mix of table 2 on the paper's host, through the guests' page caches: its reader of 512 B
/// gets 9,500 requests a second.
fn mix((name, blocks): &(&str, [&'static str; 4]), options: &Options) -> [Load; 2] {
    [3, 4].map(|vms| {
        let readers = readers(&blocks[..vms], Access::buffered);
        Load::new(format!("{vms} VMs of {name}"), readers, 20, options).on_papers_host(FAR)
    })
}

/// Sequential readers of different sizes on the bare disk.
fn sizes_loads(options: &Options) -> Vec<Load> {
    let three = ["512B", "64KiB", "512KiB"];
    let load = |name: &str, vms, seconds| Load::new(name, vms, seconds, options);
    let far = readers(&three, Access::buffered).into_iter().map(|vm| vm.with("latency=8ms"));
    vec![
        load(SIZES_MAIN, readers(&three, |a| a), 20),
        load("4 outstanding", readers(&three, |a| a.depth(4)), 12),
        load("guest read-ahead", readers(&three, Access::buffered), 12),
        load("guest read-ahead, 8 ms from the disk", far.collect(), 20),
        load("4 VMs, one at a time", readers(&MIXES[0].1, |a| a), 20),
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
    let mixes = MIXES.iter().flat_map(|m| mix(m, options));
    cells(&sizes_loads(options).into_iter().chain(mixes).collect::<Vec<_>>())
}

pub(super) fn sizes_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for described in &MIXES {
        let loads = mix(described, options);
        let all: Vec<&Load> = loads.iter().collect();
        let name = format!("3 and 4 VMs of {}", described.0);
        let claim = |(base, better)| phi_claim(results, &name, &all, base, better);
        findings.rows.extend(SIZES.map(claim));
        findings.rows.extend(loads.iter().map(|load| phi_row(results, load)));
    }
    for load in sizes_loads(options) {
        findings.rows.push(phi_row(results, &load));
        findings.rows.extend(our_rows(results, &load));
    }
    let [three, _] = mix(&MIXES[0], options);
    for load in sizes_loads(options).iter().chain([&three]).filter(|load| load.vms.len() == 3) {
        let groups = ["512 B", "64 KiB", "512 KiB"];
        let caption = "bandwidth of each VM (figure 7 of the paper).";
        findings.figures.push(vm_bars(results, load, &groups, &SIZES_PAPER, caption));
    }
    findings
}
