//! pregather-write: figure 1(b).

use super::super::judge::{count, mean};
use super::super::metric::{app_time, bandwidth, service_ms};
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::{
    CFQ, DISK, LITERAL, OURS, XEN, above, label, random, read_vms, scenario, sequential, three_vms,
    under,
};
use crate::layout::{Layout, Placement};
use crate::metrics::{RunResult, VmResult};
use seekway_device::profile;
use seekway_policy::units::Sectors;
use seekway_workload::VmDisk;
use std::collections::BTreeMap;

const POLICIES: [&str; 5] = [CFQ, LITERAL, OURS, "anticipatory", "deadline"];

pub(super) fn cells(options: &Options) -> Vec<Cell> {
    let vms = three_vms(XEN, &sequential("SW", options), &random("RW", options));
    let mut cells = under(scenario("writes", vms), &POLICIES);
    cells.extend(under(scenario("reads", read_vms(XEN, options)), &[CFQ]));
    cells
}

/// How alike the places are that a VM went to in the first and the second half
/// of its time: the overlap of the two distributions over parts of 100 MB, 1
/// where they are the same, 0 where they share nothing.
fn overlap(vm: &VmResult) -> f64 {
    const PART: u64 = 200_000;
    let half = vm.last_arrival.as_nanos() / 2;
    let mut counts: BTreeMap<u64, [f64; 2]> = BTreeMap::new();
    for &(at, lba, _) in &vm.scatter.points {
        let side = usize::from(at.as_nanos() > half);
        counts.entry(lba.get() / PART).or_default()[side] += 1.0;
    }
    let total = |side: usize| counts.values().map(|c| c[side]).sum::<f64>().max(1.0);
    let (first, second) = (total(0), total(1));
    counts.values().map(|c| (c[0] / first).min(c[1] / second)).sum()
}

/// Where the three images of 12 GiB lie.
fn images() -> Layout {
    let capacity = profile::load(DISK).expect("a disk of ours").build().profile().capacity;
    let image = |n| VmDisk { name: format!("vm{n}"), capacity: Sectors::from_bytes(12 << 30) };
    let placement = Placement::Ext3(super::PLACE);
    Layout::place(&[1, 2, 3].map(image), capacity, &placement).expect("they fit")
}

/// Share of a VM's requests in the first 64 MB of its image: journal and inodes.
fn at_the_start(r: &RunResult, vm: usize) -> f64 {
    let points = &r.vms[vm].scatter.points;
    let lowest = images().region(vm).start().get();
    let near = points.iter().filter(|(_, lba, _)| lba.get() < lowest + 131_072).count();
    100.0 * near as f64 / points.len().max(1) as f64
}

pub(super) fn judge(_options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for vm in 0..3 {
        let places = results.each("writes", CFQ, |r| 100.0 * overlap(&r.vms[vm]));
        let name = format!("VM{}: places of the second half that were places of the first", vm + 1);
        let why = "figure 1(b) shows VM2's sub-regions move after 30 s, without a figure: less than \
                   half of the places are to be the same";
        let moved = count(&places, |share| share < 50.0);
        let row = Row::measured(name, &places, "%", why);
        findings.rows.push(if vm == 1 { row.ordered(moved, places.len()) } else { row });
    }
    let start = |scenario: &'static str| {
        results.each(scenario, CFQ, |r| (0..3).map(|vm| at_the_start(r, vm)).sum::<f64>() / 3.0)
    };
    let (writes, reads) = (start("writes"), start("reads"));
    let ratio: Vec<f64> = writes.iter().zip(&reads).map(|(w, r)| w / r.max(0.01)).collect();
    let why = format!(
        "journal and inode traffic: {:.1} % of the requests under writes, {:.2} % under reads",
        mean(&writes),
        mean(&reads)
    );
    findings.rows.push(above("requests at the image's start, writes over reads", &ratio, &why));
    for policy in [LITERAL, OURS] {
        for base in [CFQ, "anticipatory", "deadline"] {
            let ratios = results.ratio("writes", (policy, base), bandwidth);
            let name = format!("{}: total bandwidth against {}", label(policy), label(base));
            let why = makespan(results, policy, base);
            findings.rows.push(Row::measured(name, &ratios, "×", why));
        }
    }
    let key = ("writes".to_string(), CFQ.to_string());
    findings.figures.push(Figure::Places(key, "LBA over time, writers (figure 1(b)).".into()));
    findings
}

/// Is it the disk that does more, or only another VM that comes first?
fn makespan(results: &Results, policy: &str, base: &str) -> String {
    let of = |p: &str, f: &dyn Fn(&RunResult) -> f64| results.mean("writes", p, f);
    let all = |r: &RunResult| r.simulated.as_secs_f64();
    let vm1 = |r: &RunResult| app_time(r, 0).max(app_time(r, 1));
    format!(
        "no figure in the paper; all work took {:.0} s against {:.0} s and a command {:.2} ms \
         against {:.2} ms, VM1's streams were done after {:.0} s against {:.0} s: the sum of the \
         VMs' means tells who was served first, not what the disk did",
        of(policy, &all),
        of(base, &all),
        of(policy, &service_ms),
        of(base, &service_ms),
        of(policy, &vm1),
        of(base, &vm1)
    )
}
