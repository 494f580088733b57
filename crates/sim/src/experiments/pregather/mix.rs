//! pregather-mix: pairs of applications in one VM, table III.

use super::super::judge::mean;
use super::super::metric::{app_time, kib_per_command, service_ms, waits};
use super::super::results::over;
use super::super::{Cell, Findings, Options, Results, Row};
use super::{
    AS, CFQ, CFQ_MENDED, GUESTS, LITERAL, ON_PARTS, OURS, PATIENT, PATIENT_AS, PATIENT_CFQ,
    PATIENT_LITERAL, XEN_NAME, below, label, on_parts, random, scenario, sequential, under,
};
use crate::metrics::RunResult;
use std::sync::Arc;

/// The pairs of table III, with what the text says of their applications: its number (none:
/// their mean) and the shares of the time under CFQ and under anticipatory, where given.
struct Pair {
    name: &'static str,
    modes: [&'static str; 2],
    claims: &'static [(Option<usize>, &'static str, f64)],
}

const PAIRS: [Pair; 7] = [
    Pair { name: "SWSW", modes: ["SW", "SW"], claims: &[(None, CFQ, 0.67), (None, AS, 0.69)] },
    Pair {
        name: "SRRR",
        modes: ["SR", "RR"],
        claims: &[
            (Some(0), CFQ, 0.62),
            (Some(1), CFQ, 0.78),
            (Some(0), AS, 0.62),
            (Some(1), AS, 0.78),
        ],
    },
    Pair { name: "SWRW", modes: ["SW", "RW"], claims: &[] },
    Pair {
        name: "SWRR",
        modes: ["SW", "RR"],
        claims: &[(Some(0), CFQ, 0.73), (Some(1), CFQ, 0.91)],
    },
    Pair { name: "SRRW", modes: ["SR", "RW"], claims: &[] },
    Pair { name: "RWRW", modes: ["RW", "RW"], claims: &[(None, CFQ, 0.88)] },
    Pair { name: "RRRR", modes: ["RR", "RR"], claims: &[(None, CFQ, 0.90)] },
];

const POLICIES: [&str; 4] = [CFQ, LITERAL, OURS, AS];

/// The pair whose random threads keep every request waiting longer than CFQ's deadlines.
const LATE: &str = "SRRR";
/// What runs there besides.
const PATIENT_POLICIES: [&str; 4] = [PATIENT, PATIENT_LITERAL, PATIENT_CFQ, PATIENT_AS];

fn pair_name(pair: &Pair, guest: &str) -> String {
    format!("{}, {guest}", pair.name)
}

pub(super) fn cells(options: &Options) -> Vec<Cell> {
    let work = |mode: &str| {
        if mode.starts_with('S') { sequential(mode, options) } else { random(mode, options) }
    };
    let mut cells = Vec::new();
    for (guest, keys) in GUESTS {
        for pair in &PAIRS {
            let [a, b] = pair.modes.map(work);
            let vms = vec![format!("name=vm1,{keys},{a},{b}")];
            let one = Arc::new(scenario(pair_name(pair, guest), vms));
            cells.extend(under(one.clone(), &POLICIES));
            if guest == XEN_NAME {
                cells.extend(under(one.clone(), &[CFQ_MENDED]));
                let parts = on_parts(pair_name(pair, ON_PARTS), one.vms.clone());
                cells.extend(under(parts, &[CFQ, LITERAL]));
            }
            if pair.name == LATE {
                cells.extend(under(one, &PATIENT_POLICIES));
            }
        }
    }
    cells
}

pub(super) fn judge(_options: &Options, results: &Results) -> Findings {
    let mut rows: Vec<Row> = PAIRS.iter().flat_map(|pair| paper_rows(results, pair)).collect();
    for policy in [LITERAL, OURS] {
        rows.extend(GUESTS.iter().flat_map(|(guest, _)| wait_rows(results, guest, policy)));
    }
    rows.extend(PAIRS.iter().flat_map(|pair| variant_rows(results, pair)));
    Findings { rows, ..Findings::default() }
}

/// The time of one application, or the mean of both.
fn time(app: Option<usize>) -> impl Fn(&RunResult) -> f64 {
    move |r| match app {
        Some(app) => app_time(r, app),
        None => (app_time(r, 0) + app_time(r, 1)) / 2.0,
    }
}

/// Table III: the literal form in the paper's guest.
fn paper_rows(results: &Results, pair: &Pair) -> Vec<Row> {
    let s = pair_name(pair, XEN_NAME);
    let name = |app: usize, base| {
        format!("{}: literal form: time of {} against {}", pair.name, pair.modes[app], label(base))
    };
    let mut rows = Vec::new();
    for &(app, base, paper) in pair.claims {
        let ratios = results.ratio(&s, (LITERAL, base), time(app));
        let row = Row::factor(name(app.unwrap_or(0), base), paper, &ratios);
        rows.push(row.because(cause(results, &s, (LITERAL, base))));
    }
    if pair.claims.is_empty() {
        for (app, base) in [(0, CFQ), (1, CFQ), (0, AS), (1, AS)] {
            let ratios = results.ratio(&s, (LITERAL, base), time(Some(app)));
            rows.push(below(name(app, base), &ratios, "better, says the text, without figures"));
        }
    }
    rows
}

/// Other forms in the paper's guest, and the literal form in other guests.
fn variant_rows(results: &Results, pair: &Pair) -> Vec<Row> {
    let apps: &[Option<usize>] =
        if pair.modes[0] == pair.modes[1] { &[None] } else { &[Some(0), Some(1)] };
    let mut rows = Vec::new();
    for &app in apps {
        let what = pair.modes[app.unwrap_or(0)];
        let mut push = |guest: &str, policy: &str, base: &str| {
            let s = pair_name(pair, guest);
            let ratios = results.ratio(&s, (policy, base), time(app));
            let (ours, theirs) = (label(policy), label(base));
            let name = format!("{s}: {ours}: time of {what} against {theirs}");
            let why = cause(results, &s, (policy, base));
            rows.push(Row::measured(name, &ratios, "×", why));
        };
        push(XEN_NAME, OURS, CFQ);
        push(XEN_NAME, LITERAL, CFQ_MENDED);
        push(ON_PARTS, LITERAL, CFQ);
        for (guest, _) in &GUESTS[1..] {
            push(guest, LITERAL, CFQ);
            push(guest, OURS, CFQ);
        }
        if pair.name == LATE {
            for policy in [PATIENT_LITERAL, PATIENT] {
                for base in [CFQ, PATIENT_CFQ, PATIENT_AS] {
                    push(XEN_NAME, policy, base);
                }
            }
            push(GUESTS[1].0, PATIENT, PATIENT_CFQ);
        }
    }
    rows.push(host_row(results, pair));
    rows
}

/// What images as files cost: the time of both applications under CFQ, over that on parts of the
/// disk.
fn host_row(results: &Results, pair: &Pair) -> Row {
    let (files, parts) = (pair_name(pair, XEN_NAME), pair_name(pair, ON_PARTS));
    let time_on = |s: &str| results.each(s, CFQ, time(None));
    let ratios = over(&time_on(&files), &time_on(&parts));
    let writes = |r: &RunResult| r.host_fs.as_ref().map_or(0.0, |host| host.requests as f64);
    let why = format!("{:.0} writes of the host's ext3", results.mean(&files, CFQ, writes));
    Row::measured(format!("{files}: cfq: time over that with {ON_PARTS}"), &ratios, "×", why)
}

/// Successful waits: beside the paper's figures in the literal form and the paper's guest.
fn wait_rows(results: &Results, guest: &str, policy: &str) -> Vec<Row> {
    let row = |what: &str, paper: f64, scenarios: &[String]| {
        let (values, tried) = success(results, scenarios, policy);
        let name = format!("{}: successful waits, {what}", label(policy));
        let why = format!(
            "of {tried:.0} waits a run; counted as successful: the dispatch that ended the wait \
             was of a request that came during it"
        );
        if (guest, policy) == (XEN_NAME, LITERAL) {
            return Row::value(name, paper, &values, "%", 0.1).because(why);
        }
        Row::measured(format!("{guest}: {name}"), &values, "%", why)
    };
    let random = [&PAIRS[5], &PAIRS[6]].map(|p| pair_name(p, guest));
    vec![row("SWSW", 90.6, &[pair_name(&PAIRS[0], guest)]), row("RWRW and RRRR", 80.4, &random)]
}

/// Share of the waits that paid over some scenarios, seed by seed, and how many there were a run.
fn success(results: &Results, scenarios: &[String], policy: &str) -> (Vec<f64>, f64) {
    let seeds = results.of(&scenarios[0], policy).len();
    let mut shares = Vec::new();
    let mut tried_all = Vec::new();
    for seed in 0..seeds {
        let holds = |s: &String| &results.of(s, policy)[seed].holds;
        let tried: u64 = scenarios.iter().map(|s| holds(s).tried).sum();
        let paid: u64 = scenarios.iter().map(|s| holds(s).paid).sum();
        tried_all.push(tried as f64);
        shares.push(100.0 * paid as f64 / tried.max(1) as f64);
    }
    (shares, mean(&tried_all))
}

/// What two schedulers did differently.
fn cause(results: &Results, s: &str, (policy, base): (&str, &str)) -> String {
    let of = |p: &str, f: fn(&RunResult) -> f64| results.mean(s, p, f);
    format!(
        "{:.0} KiB and {:.2} ms a command against {:.0} KiB and {:.2} ms, {:.0} waits",
        of(policy, kib_per_command),
        of(policy, service_ms),
        of(base, kib_per_command),
        of(base, service_ms),
        of(policy, waits)
    )
}
