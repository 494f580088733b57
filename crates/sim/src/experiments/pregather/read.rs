//! pregather-read and pregather-memory: figure 5, table IV and figure 9.

use super::super::figure::bars_by;
use super::super::judge::mean;
use super::super::metric::{
    app_time, bandwidth, kib_per_command, policy_metric, worst_response_s, zero_seeks_percent,
};
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::{read_vms, scenario, under};
use crate::metrics::RunResult;

const POLICIES: [&str; 5] =
    ["pregather", "pregather:literal=true", "cfq", "anticipatory", "deadline"];
const SIZES_KIB: [u32; 3] = [48, 64, 128];

fn name(kib: u32) -> String {
    format!("{kib} KiB")
}

pub(super) fn cells(options: &Options) -> Vec<Cell> {
    let of = |kib: u32| {
        let vms = read_vms(&format!("max_request_kib={kib}"), options);
        under(scenario(name(kib), vms), &POLICIES)
    };
    SIZES_KIB.into_iter().flat_map(of).collect()
}

/// Mean time of VM1's two sequential applications.
fn vm1_time(r: &RunResult) -> f64 {
    (app_time(r, 0) + app_time(r, 1)) / 2.0
}

/// MiB that all VMs moved in the first 30 s, while all applications run.
fn first_half_minute(r: &RunResult) -> f64 {
    let of = |vm: &crate::metrics::VmResult| {
        let bins = 30_000_000_000 / vm.bandwidth.bin.get();
        vm.bandwidth.bytes.iter().take(bins as usize).sum::<u64>()
    };
    r.vms.iter().map(of).sum::<u64>() as f64 / f64::from(1 << 20)
}

pub(super) fn judge(_options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for kib in SIZES_KIB {
        findings.rows.extend(rows(results, kib));
    }
    findings.notes.push(notes(results));
    findings.figures = figures(results);
    findings
}

fn rows(results: &Results, kib: u32) -> Vec<Row> {
    let s = name(kib);
    let mut rows = Vec::new();
    for (base, paper) in [("cfq", 1.6), ("anticipatory", 2.6), ("deadline", 2.6)] {
        let ratios = results.ratio(&s, ("pregather", base), bandwidth);
        let enough = mean(&ratios) - 1.0 >= (paper - 1.0) / 2.0;
        let ahead = ratios.iter().all(|&r| r > 1.0);
        let row = Row::factor(format!("{s}: total bandwidth against {base}"), paper, &ratios);
        rows.push(row.accept_if(enough && ahead).because(ingredients(results, &s, base)));
    }
    let literal = results.ratio(&s, ("pregather:literal=true", "cfq"), bandwidth);
    let row = Row::factor(format!("{s}: the literal form against cfq"), 1.6, &literal);
    rows.push(row.because(
        "the letter of the paper leaves out half a rotation in SeekTime and counts waits in its \
         intervals; pregather-sensitivity turns each correction off by itself",
    ));
    let window = results.ratio(&s, ("pregather", "cfq"), first_half_minute);
    let why = "all six applications still run; the paper's measure gives each VM its own time";
    rows.push(Row::measured(
        format!("{s}: bytes of the first 30 s against cfq"),
        &window,
        "×",
        why,
    ));
    let whole = results.ratio(&s, ("pregather", "cfq"), RunResult::mib_s);
    let why = "the random readers take most of the time, and no order of theirs is fast";
    rows.push(Row::measured(
        format!("{s}: all bytes over the whole run against cfq"),
        &whole,
        "×",
        why,
    ));
    for (base, paper) in [("cfq", 0.64), ("anticipatory", 0.32), ("deadline", 0.32)] {
        let ratios = results.ratio(&s, ("pregather", base), vm1_time);
        rows.push(Row::factor(format!("{s}: time of VM1 against {base}"), paper, &ratios));
    }
    rows.extend(zero_rows(results, &s));
    rows
}

/// Seeks of distance zero: the paper does not say whether it counts commands
/// or guests' requests, nor how many random requests its run had.
fn zero_rows(results: &Results, s: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let per_request = |r: &RunResult| 100.0 * r.seeks_per_request.zero_share();
    let of_streams = |r: &RunResult| {
        // VM3 has two random readers and VM2 one like them; hardly any of their
        // requests continues another.
        let random = r.vms[2].requests * 3 / 2;
        100.0 * r.seeks_per_command.zero as f64 / r.stats.commands.saturating_sub(random) as f64
    };
    let over = results.ratio(s, ("pregather", "cfq"), zero_seeks_percent);
    rows.push(Row::factor(format!("{s}: seeks at zero, pregather over cfq"), 77.0 / 46.0, &over));
    for (policy, paper) in [("pregather", 77.0), ("cfq", 46.0)] {
        let random =
            results.mean(s, policy, |r| 150.0 * r.vms[2].requests as f64 / r.stats.commands as f64);
        let label = |what: &str| format!("{s}: seeks at zero under {policy}, {what}");
        let values = results.each(s, policy, zero_seeks_percent);
        let row = Row::value(label("per command"), paper, &values, "%", 0.25);
        rows.push(row.because(format!(
            "{random:.0} % of the commands are the random readers' and cannot be at zero: the \
             share tells how long they ran (to their end, here)"
        )));
        let values = results.each(s, policy, of_streams);
        rows.push(Row::value(label("of the streams' commands"), paper, &values, "%", 0.25));
        let values = results.each(s, policy, per_request);
        let row = Row::value(label("per guest request"), paper, &values, "%", 0.25);
        rows.push(row.because("a coalesced request counts as at zero, so small requests raise it"));
    }
    rows
}

/// Where a difference of bandwidth comes from: how much a command carries, and
/// how often the head stays.
fn ingredients(results: &Results, s: &str, base: &str) -> String {
    let of = |policy, figure: fn(&RunResult) -> f64| results.mean(s, policy, figure);
    format!(
        "{:.0} KiB a command against {:.0}, {:.0} % of the commands where the head stands against \
         {:.0} %, worst response {:.1} s against {:.1} s",
        of("pregather", kib_per_command),
        of(base, kib_per_command),
        of("pregather", zero_seeks_percent),
        of(base, zero_seeks_percent),
        of("pregather", worst_response_s),
        of(base, worst_response_s)
    )
}

fn notes(results: &Results) -> String {
    let s = name(128);
    let rule = |name: &str| results.mean(&s, "pregather", |r| policy_metric(r, name));
    let rules = ["merged", "expired", "next", "borrowed", "arrival"];
    let counts = rules.map(|r| rule(&format!("dispatch_{r}")));
    let total: f64 = counts.iter().sum();
    let shares: Vec<String> = rules
        .iter()
        .zip(counts)
        .map(|(name, n)| format!("{name} {:.1} %", 100.0 * n / total))
        .collect();
    let waits = |f: fn(&RunResult) -> u64| results.mean(&s, "pregather", |r| f(r) as f64);
    let (tried, paid) = (waits(|r| r.holds.tried), waits(|r| r.holds.paid));
    format!(
        "pregather at 128 KiB dispatches by rule: {}; {tried:.0} waits, {:.0} % of them paid.",
        shares.join(", "),
        100.0 * paid / tried.max(1.0)
    )
}

fn figures(results: &Results) -> Vec<Figure> {
    let s = name(128);
    let key = |policy: &str| (s.clone(), policy.to_string());
    let places = Figure::Places(
        key("pregather"),
        "LBA of the requests over time, one panel a VM (figure 1(a) of the paper).".into(),
    );
    let seeks = Figure::Seeks(
        POLICIES.iter().map(|p| key(p)).collect(),
        "Seek distances from command to command (table IV of the paper).".into(),
    );
    let of = |&vm: &usize, policy: &str| results.each(&s, policy, |r| r.vms[vm].mib_s());
    let bandwidths = Figure::bars(
        ("mean bandwidth", "MiB/s"),
        ["VM1: SR+SR", "VM2: SR+RR", "VM3: RR+RR"],
        bars_by(&POLICIES, &[0, 1, 2], of),
        "Bandwidth of each VM at 128 KiB (figure 5(b) of the paper).",
    );
    vec![places, seeks, bandwidths]
}

pub(super) fn memory_cells(options: &Options) -> Vec<Cell> {
    let vms = read_vms("max_request_kib=128", options);
    under(scenario(name(128), vms), &["pregather"])
}

pub(super) fn memory_judge(_options: &Options, results: &Results) -> Findings {
    let state = |r: &RunResult| policy_metric(r, "state_bytes") / 1024.0;
    let values = results.each(&name(128), "pregather", state);
    let below = values.iter().all(|&v| v < 916.0);
    let mut row = Row::value("state of the policy, at most", 916.0, &values, "KiB", 1.0);
    row.verdict = if below { super::super::Verdict::Holds } else { super::super::Verdict::Refuted };
    row.why = "the scheduler's own count of its bytes: queues, models of three VMs, learnt seeks; \
               the paper's figure is the fall of free memory, 916 KB more than under CFQ"
        .into();
    Findings { rows: vec![row.accept_if(below)], ..Findings::default() }
}
