//! vmcd-bandwidth: table 4 and figure 10.

use super::super::figure::{bars_by, paper_bars};
use super::super::judge::{count, range};
use super::super::results::{by_seed, over};
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{Access, BASES, FAR, FORMS, Load, POLICIES, RING, Vm, cells};
use super::measure::{bandwidth_row, form_rows, got, our_rows, rate_claim, shares, total, vm_bars};

/// Table 4, by policy, for 1 to 4 VMs.
type Table4 = [(&'static str, [f64; 4]); 4];
const RANDOM_WRITES: Table4 = [
    ("vmcd", [5.470, 12.733, 14.327, 14.975]),
    ("cfq", [5.645, 10.993, 11.907, 12.262]),
    ("deadline", [4.832, 10.917, 11.195, 12.085]),
    ("anticipatory", [5.272, 10.960, 11.748, 12.136]),
];
const SEQUENTIAL_READS: Table4 = [
    ("vmcd", [11.690, 17.583, 28.870, 29.174]),
    ("cfq", [11.848, 15.255, 25.824, 25.406]),
    ("deadline", [10.121, 14.624, 25.362, 25.117]),
    ("anticipatory", [12.084, 15.982, 26.241, 26.279]),
];

/// What all VMs do.
struct Pattern {
    name: &'static str,
    access: Access,
    /// The guests' keys.
    keys: &'static str,
    is_papers_host: bool,
    seconds: u64,
    paper: Table4,
}

const WRITE: Access = Access::direct("randwrite", "512B");
const READ: Access = Access::direct("read", "128KiB");

const fn writes(name: &'static str, access: Access) -> Pattern {
    let (keys, is_papers_host) = ("latency=0", false);
    Pattern { name, access, keys, is_papers_host, seconds: 60, paper: RANDOM_WRITES }
}
const fn reads(name: &'static str, access: Access, keys: &'static str) -> Pattern {
    let is_papers_host = false;
    Pattern { name, access, keys, is_papers_host, seconds: 20, paper: SEQUENTIAL_READS }
}

/// The first two are judged: one worker's one request at a time, Iometer's default.
const PATTERNS: [Pattern; 8] = [
    Pattern { keys: RING, is_papers_host: true, ..writes("512 B random writes", WRITE) },
    Pattern { is_papers_host: true, ..reads("128 KiB sequential reads", READ, FAR) },
    writes("512 B random writes, one at a time", WRITE),
    writes("512 B random writes, 16 outstanding", WRITE.depth(16)),
    reads("128 KiB sequential reads, one at a time", READ, "latency=0"),
    reads("128 KiB sequential reads, 4 outstanding", READ.depth(4), "latency=0"),
    reads("128 KiB sequential reads, read-ahead", READ.buffered(), "latency=0"),
    reads("128 KiB sequential reads, 8 ms away", READ, "latency=8ms"),
];

impl Pattern {
    fn load(&self, vms: usize, options: &Options) -> Load {
        let name = format!("{vms} VMs, {}", self.name);
        let load = Load::new(name, vec![self.access.vm(); vms], self.seconds, options);
        if self.is_papers_host {
            return load.on_papers_host(self.keys);
        }
        Load { vms: load.vms.into_iter().map(|vm| vm.with(self.keys)).collect(), ..load }
    }

    /// Table 4: more with each number of VMs above one.
    fn claims(&self, options: &Options, results: &Results) -> Vec<Row> {
        let loads = [2, 3, 4].map(|vms| self.load(vms, options));
        let all: Vec<&Load> = loads.iter().collect();
        let of = |policy: &str| self.paper.iter().find(|(p, _)| *p == policy).expect("listed").1;
        let claim = |base: &str| {
            let gains = of("vmcd").into_iter().zip(of(base)).skip(1).map(|(v, b)| v / b);
            let more = gains.product::<f64>().cbrt();
            let name = format!("{}, 2 to 4 VMs", self.name);
            rate_claim(results, (&name, "bandwidth"), &all, (base, more), total)
        };
        BASES.map(claim).into()
    }
}

/// Figure 10: readers, or writers, of 512 B, 4 KiB and 128 KiB. The paper does not say which.
fn figure10(options: &Options) -> [Load; 2] {
    let blocks = ["512B", "4KiB", "128KiB"];
    let load = |name: &str, vms: [Vm; 3], keys| {
        Load::new(name, vms.into(), 30, options).on_papers_host(keys)
    };
    let read = |block| Access::direct("read", block).buffered().vm();
    let write = |block| Access::direct("randwrite", block).vm();
    [
        load("reads of 512 B, 4 KiB and 128 KiB", blocks.map(read), FAR),
        load("random writes of 512 B, 4 KiB and 128 KiB", blocks.map(write), RING),
    ]
}

pub(super) fn bandwidth_cells(options: &Options) -> Vec<Cell> {
    let mut all = cells(&figure10(options));
    for pattern in &PATTERNS {
        all.extend(cells(&[1, 2, 3, 4].map(|vms| pattern.load(vms, options))));
        all.extend(pattern.load(3, options).under(&FORMS));
    }
    all
}

pub(super) fn bandwidth_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for pattern in &PATTERNS {
        if pattern.is_papers_host {
            findings.rows.extend(pattern.claims(options, results));
        }
        for load in [1, 2, 3, 4].map(|vms| pattern.load(vms, options)) {
            findings.rows.push(bandwidth_row(results, &load));
            if !pattern.is_papers_host {
                findings.rows.extend(our_rows(results, &load));
            }
        }
        let three = pattern.load(3, options);
        findings.rows.extend(form_rows(results, &three, "bandwidth", total));
        findings.figures.push(table4_figure(pattern, options, results));
    }
    for load in figure10(options) {
        findings.rows.push(least_gain(results, &load));
        let groups = ["512 B", "4 KiB", "128 KiB"];
        let caption = "bandwidth of each VM (figure 10 of the paper).";
        findings.figures.push(vm_bars(results, &load, &groups, &[], caption));
    }
    findings
}

/// The claim that each VM gets more than under any baseline, of which there are no figures:
/// the gain of the VM that gains least.
fn least_gain(results: &Results, load: &Load) -> Row {
    let of = |policy: &str, vm: usize| results.each(load, policy, |r| got(r, &r.vms[vm]));
    let gains = |vm: usize| {
        let best = by_seed(&BASES.map(|base| of(base, vm)), |bases| range(bases).1);
        over(&of("vmcd", vm), &best)
    };
    let all: Vec<Vec<f64>> = (0..load.vms.len()).map(gains).collect();
    let values = by_seed(&all, |gains| range(gains).0);
    let right = count(&values, |v| v > 1.0);
    let name = format!("{}: least gain of a VM over its best baseline", load.name);
    let why = format!("{}; {}", shares(results, load, "vmcd"), shares(results, load, "cfq"));
    Row::measured(name, &values, "×", why).ordered(right, values.len())
}

fn table4_figure(pattern: &Pattern, options: &Options, results: &Results) -> Figure {
    let loads = [1, 2, 3, 4].map(|vms| pattern.load(vms, options));
    let mut series = bars_by(&POLICIES, &loads, |load, policy| results.each(load, policy, total));
    series.extend(pattern.paper.iter().map(|(name, figures)| paper_bars(name, figures)));
    let groups = loads.iter().map(|load| format!("{} VMs", load.vms.len()));
    let caption = format!("{}: aggregate (table 4 of the paper).", pattern.name);
    Figure::bars(("bandwidth of all VMs", "MiB/s"), groups, series, caption)
}
