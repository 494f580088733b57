//! vmcd-bandwidth: table 4 and figure 10.

use super::super::figure::{bars_by, paper_bars};
use super::super::judge::{count, range};
use super::super::results::{by_seed, over};
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{BASES, FORMS, Family, Load, POLICIES, cells, families, loads};
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

/// The part of table 4 that is about what these VMs do.
fn table4(family: &Family) -> Table4 {
    if family.name.contains("writes") { RANDOM_WRITES } else { SEQUENTIAL_READS }
}

/// Table 4: more with each number of VMs above one.
fn claims(family: &Family, results: &Results) -> Vec<Row> {
    let all: Vec<&Load> = family.loads[1..].iter().collect();
    let table = table4(family);
    let of = |policy: &str| table.iter().find(|(p, _)| *p == policy).expect("listed").1;
    let claim = |base: &str| {
        let gains = of("vmcd").into_iter().zip(of(base)).skip(1).map(|(v, b)| v / b);
        let more = gains.product::<f64>().cbrt();
        let name = format!("{}, 2 to 4 VMs", family.name);
        rate_claim(results, (&name, "bandwidth"), &all, (base, more), total)
    };
    BASES.map(claim).into()
}

pub(super) fn bandwidth_cells(options: &Options) -> Vec<Cell> {
    let mut all = cells(&loads("bandwidth-sizes", options));
    for family in families("bandwidth", options) {
        all.extend(cells(&family.loads));
        all.extend(three(&family).under(&FORMS));
    }
    all
}

/// The load with three VMs.
fn three(family: &Family) -> &Load {
    &family.loads[2]
}

pub(super) fn bandwidth_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for family in families("bandwidth", options) {
        if family.is_papers_host {
            findings.rows.extend(claims(&family, results));
        }
        for load in &family.loads {
            findings.rows.push(bandwidth_row(results, load));
            if !family.is_papers_host {
                findings.rows.extend(our_rows(results, load));
            }
        }
        findings.rows.extend(form_rows(results, three(&family), "bandwidth", total));
        findings.figures.push(table4_figure(&family, results));
    }
    for load in loads("bandwidth-sizes", options) {
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

fn table4_figure(family: &Family, results: &Results) -> Figure {
    let each = |load: &Load, policy: &str| results.each(load, policy, total);
    let mut series = bars_by(&POLICIES, &family.loads, each);
    series.extend(table4(family).iter().map(|(name, figures)| paper_bars(name, figures)));
    let groups = family.loads.iter().map(|load| format!("{} VMs", load.vms.len()));
    let caption = format!("{}: aggregate (table 4 of the paper).", family.name);
    Figure::bars(("bandwidth of all VMs", "MiB/s"), groups, series, caption)
}
