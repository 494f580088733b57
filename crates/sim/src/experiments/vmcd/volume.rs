//! vmcd-bandwidth, vmcd-stable and vmcd-art: table 4, figures 6 and 11.

use super::super::figure::{bars_by, paper_bars};
use super::super::metric::zero_seeks_percent;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{Access, Load, POLICIES, cells};
use super::measure::{our_rows, short, total};

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

/// What all VMs do: name, access, the VM's own keys, seconds, the paper's figures.
fn patterns() -> [(&'static str, Access, &'static str, u64, Table4); 6] {
    let write = Access::direct("randwrite", "512B");
    let read = Access::direct("read", "128KiB");
    [
        ("512 B random writes, one at a time", write, "latency=0", 60, RANDOM_WRITES),
        ("512 B random writes, 16 outstanding", write.depth(16), "latency=0", 60, RANDOM_WRITES),
        ("128 KiB sequential reads, one at a time", read, "latency=0", 20, SEQUENTIAL_READS),
        (
            "128 KiB sequential reads, 4 outstanding",
            read.depth(4),
            "latency=0",
            20,
            SEQUENTIAL_READS,
        ),
        (
            "128 KiB sequential reads, read-ahead",
            read.buffered(),
            "latency=0",
            20,
            SEQUENTIAL_READS,
        ),
        ("128 KiB sequential reads, 8 ms away", read, "latency=8ms", 20, SEQUENTIAL_READS),
    ]
}

type Pattern = (&'static str, Access, &'static str, u64, Table4);

fn table4_load((name, access, keys, seconds, _): &Pattern, vms: usize, o: &Options) -> Load {
    let all = vec![access.vm_with(keys); vms];
    Load::new(format!("{vms} VMs, {name}"), all, *seconds, o)
}

pub(super) fn bandwidth_cells(options: &Options) -> Vec<Cell> {
    let mut all = Vec::new();
    for pattern in patterns() {
        for vms in 1..=4 {
            all.extend(cells(&[table4_load(&pattern, vms, options)]));
        }
        all.extend(table4_load(&pattern, 3, options).under(&FORMS));
    }
    all
}

/// One at a time, and as much as there is: what four requests a turn do.
const FORMS: [&str; 2] = ["vmcd:batch=1", "vmcd:batch=64"];

pub(super) fn bandwidth_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for pattern in patterns() {
        for vms in 1..=4 {
            findings.rows.extend(table4_rows(&pattern, vms, options, results));
        }
        findings.rows.push(table4_forms(&pattern, options, results));
        findings.figures.push(table4_figure(&pattern, options, results));
    }
    findings
}

fn table4_rows(pattern: &Pattern, vms: usize, options: &Options, results: &Results) -> Vec<Row> {
    let load = table4_load(pattern, vms, options);
    let paper = |policy: &str| {
        let row = pattern.4.iter().find(|(name, _)| *name == policy);
        row.map_or(f64::NAN, |(_, figures)| figures[vms - 1])
    };
    let claim = |base: &str| {
        let ratios = results.ratio(&load, ("vmcd", base), total);
        let name = format!("{}: bandwidth against {base}", load.name);
        let row = Row::factor(name, paper("vmcd") / paper(base), &ratios);
        row.because(format!(
            "{} against {} MiB/s, the paper {} against {}",
            short(results.mean(&load, "vmcd", total)),
            short(results.mean(&load, base, total)),
            short(paper("vmcd")),
            short(paper(base))
        ))
    };
    // With one VM the paper is 1.4 % behind CFQ to 16 % ahead of deadline: no claim.
    let bases: &[&str] = if vms > 1 { &["cfq", "deadline", "anticipatory"] } else { &["cfq"] };
    let mut rows: Vec<Row> = bases.iter().map(|base| claim(base)).collect();
    rows.extend(our_rows(results, &load));
    rows
}

/// What the number of requests a turn does to the bandwidth of three VMs.
fn table4_forms(pattern: &Pattern, options: &Options, results: &Results) -> Row {
    let load = table4_load(pattern, 3, options);
    let ratios = results.ratio(&load, (FORMS[1], "cfq"), total);
    let why = format!(
        "{} MiB/s with 1 request a turn, {} with 4 (the paper), {} with 64; cfq {}; head stands at \
         {:.0}, {:.0} and {:.0} % of the commands, under cfq at {:.0} %",
        short(results.mean(&load, FORMS[0], total)),
        short(results.mean(&load, "vmcd", total)),
        short(results.mean(&load, FORMS[1], total)),
        short(results.mean(&load, "cfq", total)),
        results.mean(&load, FORMS[0], zero_seeks_percent),
        results.mean(&load, "vmcd", zero_seeks_percent),
        results.mean(&load, FORMS[1], zero_seeks_percent),
        results.mean(&load, "cfq", zero_seeks_percent),
    );
    Row::measured(format!("{}: 64 requests a turn against cfq", load.name), &ratios, "×", why)
}

fn table4_figure(pattern: &Pattern, options: &Options, results: &Results) -> Figure {
    let loads = [1, 2, 3, 4].map(|vms| table4_load(pattern, vms, options));
    let mut series = bars_by(&POLICIES, &loads, |load, policy| results.each(load, policy, total));
    series.extend(pattern.4.iter().map(|(name, figures)| paper_bars(name, figures)));
    let groups = loads.iter().map(|load| format!("{} VMs", load.vms.len()));
    let caption = format!("{}: aggregate (table 4 of the paper).", pattern.0);
    Figure::bars(("bandwidth of all VMs", "MiB/s"), groups, series, caption)
}
