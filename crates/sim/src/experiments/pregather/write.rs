//! pregather-write and pregather-hadoop: figures 1(b), 6, 7 and 8.

use super::super::judge::mean;
use super::super::metric::{
    app_time, bandwidth, kib_per_command, policy_metric, service_ms, zero_seeks_percent,
};
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::{PATIENT, random, read_vms, scenario, sequential, three_vms, under};
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

pub(super) fn write_judge(_options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for vm in 0..3 {
        let writes = results.each("writes", "cfq", |r| 100.0 * overlap(&r.vms[vm]));
        let label =
            format!("VM{}: places of the second half that were places of the first", vm + 1);
        let why = "figure 1(b) shows VM2's sub-regions move after 30 s; it gives no figure";
        findings.rows.push(Row::measured(label, &writes, "%", why));
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
    findings.rows.push(Row::measured(
        "requests at the image's start, writes over reads",
        &ratio,
        "×",
        why,
    ));
    for base in ["cfq", "anticipatory", "deadline"] {
        let ratios = results.ratio("writes", ("pregather", base), bandwidth);
        let why = makespan(results, base);
        findings.rows.push(Row::measured(
            format!("total bandwidth against {base}"),
            &ratios,
            "×",
            why,
        ));
    }
    let key = ("writes".to_string(), "cfq".to_string());
    findings.figures.push(Figure::Places(key, "LBA over time, writers (figure 1(b)).".into()));
    findings
}

/// Is it the disk that does more, or only another VM that comes first?
fn makespan(results: &Results, base: &str) -> String {
    let of = |p: &str, f: &dyn Fn(&RunResult) -> f64| results.mean("writes", p, f);
    let all = |r: &RunResult| r.simulated.as_secs_f64();
    let vm1 = |r: &RunResult| app_time(r, 0).max(app_time(r, 1));
    format!(
        "no figure in the paper; all work took {:.0} s against {:.0} s and a command {:.2} ms \
         against {:.2} ms, VM1's streams were done after {:.0} s against {:.0} s: the sum of the \
         VMs' means tells who was served first, not what the disk did",
        of("pregather", &all),
        of(base, &all),
        of("pregather", &service_ms),
        of(base, &service_ms),
        of("pregather", &vm1),
        of(base, &vm1)
    )
}

const HADOOP_POLICIES: [&str; 6] =
    ["pregather", PATIENT, "pregather:literal=true", "cfq", "anticipatory", "deadline"];

/// As in pregather-mix: how much a guest keeps outstanding.
const GUESTS: [(&str, &str); 2] = [
    ("128 requests of 128 KiB", "max_request_kib=128"),
    ("8 requests of 44 KiB", "max_request_kib=44,ring=8,latency=500us"),
];

fn sort_name(guest: &str) -> String {
    format!("sort, {guest}")
}
fn beside_name(guest: &str) -> String {
    format!("sort + TPC-H, {guest}")
}

pub(super) fn hadoop_cells(options: &Options) -> Vec<Cell> {
    let mib = (512 / options.shrink).max(64);
    let size = (1024 / options.shrink).max(64);
    let lookups = (8000 / options.shrink).max(100);
    let mut cells = Vec::new();
    for (guest, keys) in GUESTS {
        let node = |maps: u32, n: usize| {
            format!("name=node{n},{keys},app=hadoop:maps={maps},bytes={mib}MiB")
        };
        let alone: Vec<String> = (1..=4).map(|n| node(8, n)).collect();
        let mut beside: Vec<String> = (1..=4).map(|n| node(2, n)).collect();
        beside.push(format!(
            "name=tpch,{keys},app=tpch:query=q2,size={size}MiB,lookups={lookups},\
             app=tpch:query=q19,size={size}MiB"
        ));
        cells.extend(under(scenario(sort_name(guest), alone), &HADOOP_POLICIES));
        cells.extend(under(scenario(beside_name(guest), beside), &HADOOP_POLICIES));
    }
    cells
}

/// When the last node's sort was done.
fn sort_time(r: &RunResult) -> f64 {
    (0..4).map(|n| app_time(r, n)).fold(0.0, f64::max)
}

pub(super) fn hadoop_judge(_options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for (guest, _) in GUESTS {
        findings.rows.extend(hadoop_rows(results, &sort_name(guest), &beside_name(guest)));
    }
    findings.notes.push(
        "What decides these rows is the deadline. Four VMs with eight maps each keep a second's \
         work queued, so that under CFQ's deadlines of 125 and 250 ms requests are late before \
         they are looked at, and rule 1 (the expired head first) turns each VM's turn into a \
         FIFO. With deadlines of 1 and 2 s the same algorithm reaches the paper's gains. CFQ \
         looks at its FIFO once a slice and loses less. With 8 requests of 44 KiB in flight \
         nothing expires, and a turn runs dry before it pays: CFQ then moves more with each \
         command."
            .into(),
    );
    let cells = |s: &str| HADOOP_POLICIES.map(|p| (s.to_string(), p.to_string())).to_vec();
    findings.figures = vec![
        Figure::Seeks(
            cells(&sort_name(GUESTS[0].0)),
            "Seek distances in the sort (figure 7).".into(),
        ),
        Figure::Seeks(cells(&beside_name(GUESTS[0].0)), "The same beside TPC-H (figure 8).".into()),
    ];
    findings
}

fn hadoop_rows(results: &Results, sort: &str, beside: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for policy in ["pregather", PATIENT] {
        for (base, paper) in [("cfq", 1.26), ("anticipatory", 1.28), ("deadline", 1.38)] {
            let ratios = results.ratio(sort, (policy, base), bandwidth);
            let name = format!("{sort}: bandwidth of {policy} against {base}");
            let row = Row::factor(name, paper, &ratios);
            rows.push(row.because(traffic(results, sort, policy, base)));
        }
        for (base, paper) in [("cfq", 0.82), ("anticipatory", 0.80)] {
            let ratios = results.ratio(sort, (policy, base), sort_time);
            let row =
                Row::factor(format!("{sort}: time of {policy} against {base}"), paper, &ratios);
            rows.push(row.because(traffic(results, sort, policy, base)));
        }
    }
    type Time = fn(&RunResult) -> f64;
    let apps: [(&str, f64, Time); 3] = [
        ("q2", 0.90, |r| app_time(r, 4)),
        ("q19", 0.92, |r| app_time(r, 5)),
        ("sort", 0.88, sort_time),
    ];
    for (app, paper, time) in apps {
        for policy in ["pregather", PATIENT] {
            let ratios = results.ratio(beside, (policy, "cfq"), time);
            let name = format!("{beside}: time of {app} under {policy} against cfq");
            let row = Row::factor(name, paper, &ratios);
            rows.push(row.because(traffic(results, beside, policy, "cfq")));
        }
    }
    let values = results.each(beside, "pregather", zero_seeks_percent);
    rows.push(Row::value(format!("{beside}: seeks at zero"), 63.0, &values, "%", 0.25));
    rows
}

fn traffic(results: &Results, s: &str, policy: &str, base: &str) -> String {
    let of = |p: &str, f: &dyn Fn(&RunResult) -> f64| results.mean(s, p, f);
    let expired =
        |r: &RunResult| 100.0 * policy_metric(r, "dispatch_expired") / r.stats.requests as f64;
    let response = |r: &RunResult| r.response.mean() / 1e9;
    let literal = results.ratio(s, ("pregather:literal=true", base), bandwidth);
    format!(
        "{:.0} % of the commands began with an expired request (mean response {:.1} s); {:.0} KiB and \
         {:.1} ms a command (against {:.0} and {:.1}), head stays for {:.0} % ({:.0} %); literal \
         form {:.2} × in bandwidth",
        of(policy, &expired),
        of(policy, &response),
        of(policy, &kib_per_command),
        of(policy, &service_ms),
        of(base, &kib_per_command),
        of(base, &service_ms),
        of(policy, &zero_seeks_percent),
        of(base, &zero_seeks_percent),
        mean(&literal)
    )
}
