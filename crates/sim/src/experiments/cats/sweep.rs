//! cats-sweep: what the busdriver delay, READDELAY and the drive's cache are
//! worth, at 8 and at 50 processes, and which rule served what.

use super::super::judge::{mean, range};
use super::super::metric::{self, policy_metric, response_ms, worst_response_s};
use super::super::results::{by_seed, over};
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::{CATS_0, CATS_7, CFQ, DIRECT, DISK, Load};
use super::{scenario, under};
use crate::metrics::RunResult;

const PROCESSES: [u32; 2] = [8, 50];
/// Enough for a mean response that differs by a few percent from seed to seed.
const REQUESTS: u64 = 10_000;
const BUSDRIVERS_MS: [u32; 6] = [0, 1, 3, 5, 7, 10];
/// Zero stands for none.
const READ_DELAYS: [(&str, &str); 5] =
    [("50 ms", "50ms"), ("100 ms", "100ms"), ("200 ms", "200ms"), ("1 s", "1s"), ("∞", "0")];
/// The default of READDELAY.
const READ_DELAY: &str = "100ms";
/// How much slower than the better of two fixed delays `auto` may be.
const TOLERANCE: f64 = 1.05;
const BASES: [&str; 2] = ["deadline", CFQ];
/// CATS that is told that the drive has no cache.
const NO_SHADOW: &str = "cats:segments=0";

/// Drive caches: name and profile. The first is swept whole.
fn caches() -> [(&'static str, String); 3] {
    [
        ("FIFO", DISK.to_string()),
        ("LRU", format!("{DISK},replacement=lru")),
        ("no", format!("{DISK},segments=0")),
    ]
}

fn name(cache: &str, processes: u32) -> String {
    format!("{cache} cache, {processes} processes")
}

fn policy(busdriver: &str, read_delay: &str) -> String {
    format!("cats:busdriver={busdriver},read_delay={read_delay}")
}

fn fixed(ms: u32, read_delay: &str) -> String {
    policy(&if ms == 0 { "0".to_string() } else { format!("{ms}ms") }, read_delay)
}

/// All that a cache is swept with.
fn policies(whole: bool) -> Vec<String> {
    let mut all: Vec<String> =
        [CATS_0, CATS_7, "cats", NO_SHADOW].into_iter().chain(BASES).map(Into::into).collect();
    for (_, delay) in READ_DELAYS {
        if whole || delay == READ_DELAY {
            all.extend(BUSDRIVERS_MS.map(|ms| fixed(ms, delay)));
        }
        all.push(policy("auto", delay));
    }
    all
}

pub(super) fn cells(options: &Options) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (n, (cache, device)) in caches().into_iter().enumerate() {
        for processes in PROCESSES {
            let load = Load { processes, requests: REQUESTS, ..DIRECT };
            let scenario = scenario(name(cache, processes), &load, &device, options);
            cells.extend(under(scenario, &policies(n == 0)));
        }
    }
    cells
}

pub(super) fn judge(_options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for (cache, _) in caches() {
        for processes in PROCESSES {
            let s = name(cache, processes);
            findings.rows.extend(auto_rows(results, &s));
            findings.rows.extend(against_others(results, &s));
        }
    }
    for processes in PROCESSES {
        let s = name(caches()[0].0, processes);
        findings.rows.extend(auto_over_grid(results, &s));
        findings.rows.extend(grid_rows(results, &s));
        findings.figures.push(lines(results, &s));
    }
    findings.notes.push(lost(results));
    findings
}

/// `auto` beside the paper's delay and none.
fn auto_rows(results: &Results, s: &str) -> Vec<Row> {
    let row = |base: &str| {
        let ratios = results.ratio(s, ("cats", base), response_ms);
        let name = format!("{s}: mean response, cats over {base}");
        let row = Row::measured(name, &ratios, "×", rules(results, s, "cats"));
        row.ask(ratios.iter().all(|&r| r <= TOLERANCE), "at most 5 % more on every seed")
    };
    [CATS_0, CATS_7].map(row).into()
}

/// Where it wins and where it loses.
fn against_others(results: &Results, s: &str) -> Vec<Row> {
    let row = |(ours, base): (&str, &str)| {
        let ratios = results.ratio(s, (ours, base), response_ms);
        let of = |p: &str| results.mean(s, p, response_ms);
        let rules = rules(results, s, ours);
        let why = format!("{:.2} ms against {:.2}; {rules}", of(ours), of(base));
        Row::measured(format!("{s}: mean response, {ours} over {base}"), &ratios, "×", why)
    };
    pairs().map(row).collect()
}

/// CATS in each of its forms, and each of the others.
fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    [CATS_7, "cats", NO_SHADOW].into_iter().flat_map(|ours| BASES.map(|base| (ours, base)))
}

/// Every point of the sweep.
fn grid_rows(results: &Results, s: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for (label, delay) in READ_DELAYS {
        let auto = ("auto".to_string(), policy("auto", delay));
        let fixed = BUSDRIVERS_MS.map(|ms| (format!("{ms} ms"), fixed(ms, delay)));
        for (busdriver, policy) in fixed.into_iter().chain([auto]) {
            let values = results.each(s, &policy, response_ms);
            let name = format!("{s}: mean response, busdriver {busdriver}, READDELAY {label}");
            rows.push(Row::measured(name, &values, "ms", rules(results, s, &policy)));
        }
    }
    rows
}

/// `auto` beside the better of the two fixed delays, at every READDELAY.
fn auto_over_grid(results: &Results, s: &str) -> Vec<Row> {
    let row = |(label, delay): (&str, &str)| {
        let auto = results.each(s, &policy("auto", delay), response_ms);
        let both = [0, 7].map(|ms| results.each(s, &fixed(ms, delay), response_ms));
        let ratios = over(&auto, &by_seed(&both, |both| range(both).0));
        let name = format!("{s}: auto over the better of 0 and 7 ms, READDELAY {label}");
        let held = results.mean(s, &policy("auto", delay), |r| 100.0 * held(r));
        Row::measured(name, &ratios, "×", format!("{held:.1} % of the time held"))
    };
    READ_DELAYS.map(row).into()
}

/// Which rule served what share, and how long was held.
fn rules(results: &Results, s: &str, policy: &str) -> String {
    let of = |f: &dyn Fn(&RunResult) -> f64| mean(&results.each(s, policy, f));
    let share = |rule: &'static str| of(&|r| 100.0 * policy_metric(r, rule) / r.requests() as f64);
    format!(
        "{:.0} % hits, {:.0} % by the table, {:.0} % C-SCAN; {:.0} % of the time held, {:.0} % of \
         the holds paid; 99 % within {:.0} ms, worst {:.1} s",
        share("by_hit"),
        share("by_table"),
        share("by_cscan"),
        of(&|r| 100.0 * held(r)),
        of(&|r| 100.0 * r.holds.paid as f64 / r.holds.tried.max(1) as f64),
        of(&|r| metric::percentile_ms(r, 99.0)),
        of(&worst_response_s),
    )
}

/// Share of the run in which the idle disk was held.
fn held(r: &RunResult) -> f64 {
    // A sum of nothing is -0.
    let held = r.holds.held.iter().fold(0.0, |sum, (_, cause)| sum + cause.time.as_secs_f64());
    held / r.simulated.as_secs_f64()
}

/// Where CATS as it is by default loses to another policy.
fn lost(results: &Results) -> String {
    let mut places = Vec::new();
    for (cache, _) in caches() {
        for processes in PROCESSES {
            let s = name(cache, processes);
            for (ours, base) in pairs() {
                let ratio = mean(&results.ratio(&s, (ours, base), response_ms));
                if ratio > 1.0 {
                    places.push(format!("{s}: {ours} takes {ratio:.2} × {base}"));
                }
            }
        }
    }
    match places.is_empty() {
        true => "CATS loses nowhere in this sweep.".into(),
        false => format!("Where CATS loses: {}.", places.join("; ")),
    }
}

fn lines(results: &Results, s: &str) -> Figure {
    let of = |policy: &str| results.mean(s, policy, response_ms);
    let over = |policy: &dyn Fn(u32) -> String| {
        BUSDRIVERS_MS.iter().map(|&ms| (f64::from(ms), of(&policy(ms)))).collect()
    };
    let mut series: Vec<(String, Vec<(f64, f64)>)> = READ_DELAYS
        .iter()
        .map(|(label, delay)| (format!("READDELAY {label}"), over(&|ms| fixed(ms, delay))))
        .collect();
    series.push(("busdriver=auto".into(), over(&|_| "cats".into())));
    for base in BASES {
        series.push((base.to_string(), over(&|_| base.to_string())));
    }
    let caption = format!("Mean response over the busdriver delay: {s}.");
    Figure::lines(("busdriver delay", "ms"), ("mean response", "ms"), series, caption)
}
