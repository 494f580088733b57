//! pregather-write and pregather-hadoop: figures 1(b), 6, 7 and 8.

use super::super::judge::{app_time, bandwidth, mean};
use super::super::{Cell, Figure, Judged, Options, Results, Row};
use super::{mean_of, random, read_vms, scenario, sequential, three_vms, under};
use crate::metrics::{RunResult, VmResult};
use std::collections::BTreeMap;

const GUEST: &str = "max_request_kib=128";

pub(super) fn write_cells(options: &Options) -> Vec<Cell> {
    let (s, r) = (sequential("SW", options), random("RW", options));
    let vms = three_vms(GUEST, [[s.clone(), s.clone()], [s, r.clone()], [r.clone(), r]]);
    let mut cells = under(scenario("writes", vms), &WRITE_POLICIES);
    cells.extend(under(scenario("reads", read_vms(GUEST, options)), &["cfq"]));
    cells
}

const WRITE_POLICIES: [&str; 5] =
    ["pregather", "pregather:literal=true", "cfq", "anticipatory", "deadline"];

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

/// Share of a VM's requests in the first 64 MB of its image: journal and inodes.
fn at_the_start(r: &RunResult, vm: usize) -> f64 {
    let points = &r.vms[vm].scatter.points;
    let lowest = super::PLACE.get() + vm as u64 * (12 << 21);
    let near = points.iter().filter(|(_, lba, _)| lba.get() < lowest + 131_072).count();
    100.0 * near as f64 / points.len().max(1) as f64
}

pub(super) fn write_judge(_options: &Options, results: &Results) -> Judged {
    let mut judged = Judged::default();
    for vm in 0..3 {
        let writes = results.each("writes", "cfq", |r| 100.0 * overlap(&r.vms[vm]));
        let label =
            format!("VM{}: places of the second half that were places of the first", vm + 1);
        let why = "figure 1(b) shows VM2's sub-regions move after 30 s; it gives no figure";
        judged.rows.push(Row::measured(label, &writes, "%", why));
    }
    let start = |scenario: &'static str| {
        results.each(scenario, "cfq", |r| (0..3).map(|vm| at_the_start(r, vm)).sum::<f64>() / 3.0)
    };
    let (writes, reads) = (start("writes"), start("reads"));
    let ratio: Vec<f64> = writes.iter().zip(&reads).map(|(w, r)| w / r.max(0.01)).collect();
    let why = format!(
        "{:.1} % of the requests under writes, {:.2} % under reads: journal and inode traffic, as \
         the paper observes (section III)",
        mean(&writes),
        mean(&reads)
    );
    judged.rows.push(Row::measured(
        "requests at the image's start, writes over reads",
        &ratio,
        "×",
        why,
    ));
    for base in ["cfq", "anticipatory", "deadline"] {
        let ratios = results.ratio("writes", ("pregather", base), bandwidth);
        let why = makespan(results, base);
        judged.rows.push(Row::measured(
            format!("total bandwidth against {base}"),
            &ratios,
            "×",
            why,
        ));
    }
    let key = ("writes".to_string(), "cfq".to_string());
    judged.figures.push(Figure::Places(key, "LBA over time, writers (figure 1(b)).".into()));
    judged
}

/// Is it the disk that does more, or only another VM that comes first?
fn makespan(results: &Results, base: &str) -> String {
    let of = |p: &str, f: &dyn Fn(&RunResult) -> f64| mean_of(results, "writes", p, f);
    let all = |r: &RunResult| r.simulated.as_secs_f64();
    let vm1 = |r: &RunResult| app_time(r, 0).max(app_time(r, 1));
    let service = |r: &RunResult| r.service.mean() / 1e6;
    format!(
        "no figure in the paper; all work took {:.0} s against {:.0} s and a command {:.2} ms \
         against {:.2} ms, VM1's streams were done after {:.0} s against {:.0} s: the sum of the \
         VMs' means tells who was served first, not what the disk did",
        of("pregather", &all),
        of(base, &all),
        of("pregather", &service),
        of(base, &service),
        of("pregather", &vm1),
        of(base, &vm1)
    )
}

const HADOOP_POLICIES: [&str; 5] =
    ["pregather", "pregather:literal=true", "cfq", "anticipatory", "deadline"];

pub(super) fn hadoop_cells(options: &Options) -> Vec<Cell> {
    let mib = (512 / options.shrink).max(64);
    let node =
        |maps: u32, n: usize| format!("name=node{n},{GUEST},app=hadoop:maps={maps},bytes={mib}MiB");
    let alone: Vec<String> = (1..=4).map(|n| node(8, n)).collect();
    let mut beside: Vec<String> = (1..=4).map(|n| node(2, n)).collect();
    let size = (1024 / options.shrink).max(64);
    let lookups = (8000 / options.shrink).max(100);
    beside.push(format!(
        "name=tpch,{GUEST},app=tpch:query=q2,size={size}MiB,lookups={lookups},app=tpch:query=q19,size={size}MiB"
    ));
    let mut cells = under(scenario("sort", alone), &HADOOP_POLICIES);
    cells.extend(under(scenario("sort + TPC-H", beside), &HADOOP_POLICIES));
    cells
}

/// When the last node's sort was done.
fn sort_time(r: &RunResult) -> f64 {
    (0..4).map(|n| app_time(r, n)).fold(0.0, f64::max)
}

pub(super) fn hadoop_judge(_options: &Options, results: &Results) -> Judged {
    let mut judged = Judged::default();
    for (base, paper) in [("cfq", 1.26), ("anticipatory", 1.28), ("deadline", 1.38)] {
        let ratios = results.ratio("sort", ("pregather", base), bandwidth);
        let row = Row::factor(format!("sort: bandwidth against {base}"), paper, &ratios);
        judged.rows.push(row.because(traffic(results, "sort", base)));
    }
    for (base, paper) in [("cfq", 0.82), ("anticipatory", 0.80)] {
        let ratios = results.ratio("sort", ("pregather", base), sort_time);
        judged.rows.push(Row::factor(format!("sort: time against {base}"), paper, &ratios));
    }
    let apps: [(&str, f64, &dyn Fn(&RunResult) -> f64); 3] = [
        ("q2", 0.90, &|r| app_time(r, 4)),
        ("q19", 0.92, &|r| app_time(r, 5)),
        ("sort", 0.88, &sort_time),
    ];
    for (app, paper, time) in apps {
        let ratios = results.ratio("sort + TPC-H", ("pregather", "cfq"), time);
        let row = Row::factor(format!("sort + TPC-H: time of {app} against cfq"), paper, &ratios);
        judged.rows.push(row.because(traffic(results, "sort + TPC-H", "cfq")));
    }
    let zero = |r: &RunResult| 100.0 * r.seeks_per_command.zero_share();
    let values = results.each("sort + TPC-H", "pregather", zero);
    judged.rows.push(Row::value("sort + TPC-H: seeks at zero", 63.0, &values, "%", 0.25));
    let cells = |s: &str| HADOOP_POLICIES.map(|p| (s.to_string(), p.to_string())).to_vec();
    judged.figures = vec![
        Figure::Seeks(cells("sort"), "Seek distances during the sort (figure 7).".into()),
        Figure::Seeks(cells("sort + TPC-H"), "The same beside TPC-H (figure 8).".into()),
    ];
    judged
}

fn traffic(results: &Results, s: &str, base: &str) -> String {
    let of = |p: &str, f: &dyn Fn(&RunResult) -> f64| mean_of(results, s, p, f);
    let kib = |r: &RunResult| r.bytes() as f64 / 1024.0 / r.stats.commands as f64;
    let zero = |r: &RunResult| 100.0 * r.seeks_per_command.zero_share();
    let busy = |r: &RunResult| 100.0 * crate::engine::utilisation(r);
    format!(
        "disk busy {:.0} % (against {:.0} %), {:.0} KiB a command ({:.0}), head stays for {:.0} % ({:.0} %)",
        of("pregather", &busy),
        of(base, &busy),
        of("pregather", &kib),
        of(base, &kib),
        of("pregather", &zero),
        of(base, &zero)
    )
}
