//! pregather-b and pregather-mix: one VM, figure 4 and table III.

use super::super::judge::{app_time, mean};
use super::super::{Cell, Figure, Judged, Options, Results, Row, Verdict};
use super::{mean_of, random, scenario, sequential, under};
use crate::metrics::RunResult;

/// Zone sizes of figure 4, in sectors.
const SIZES: [u64; 9] = [1, 10, 100, 500, 1_000, 2_000, 100_000, 1_000_000, 10_000_000];

fn with_zone(form: &str, zone: u64) -> String {
    format!("pregather:zone={zone}{form}")
}
const FORMS: [&str; 2] = ["", ",literal=true"];

pub(super) fn b_cells(options: &Options) -> Vec<Cell> {
    let sr = sequential("SR", options);
    let vms = vec![format!("name=vm1,max_request_kib=128,{sr},{sr}")];
    let forms = FORMS.iter().flat_map(|form| SIZES.map(|zone| with_zone(form, zone)));
    let policies: Vec<String> = forms.chain(["cfq".to_string()]).collect();
    let policies: Vec<&str> = policies.iter().map(String::as_str).collect();
    under(scenario("SRSR", vms), &policies)
}

/// When both applications were done.
fn both(r: &RunResult) -> f64 {
    app_time(r, 0).max(app_time(r, 1))
}
fn zero(r: &RunResult) -> f64 {
    100.0 * r.seeks_per_command.zero_share()
}

pub(super) fn b_judge(_options: &Options, results: &Results) -> Judged {
    let (best, whole) = (with_zone("", 2_000), with_zone("", 10_000_000));
    let time = results.each("SRSR", &best, both);
    let slower = results.ratio("SRSR", (&whole, &best), both);
    let like_cfq = results.ratio("SRSR", (&whole, "cfq"), both);
    let mut judged = Judged::default();
    judged.rows = vec![
        Row::value("time at B = 2000", 46.0, &time, "s", 0.25),
        Row::factor("time at B = 10^7 over B = 2000", 85.0 / 46.0, &slower)
            .because(one_zone(results, &best, &whole)),
        Row::value("time at B = 10^7 over CFQ", 1.0, &like_cfq, "×", 0.1),
        Row::value("seeks at zero, B = 2000", 91.6, &results.each("SRSR", &best, zero), "%", 0.1),
        Row::value("seeks at zero, B = 10^7", 71.2, &results.each("SRSR", &whole, zero), "%", 0.1),
    ];
    for form in FORMS {
        let small = results.ratio("SRSR", (&with_zone(form, 10), &with_zone(form, 1_000)), both);
        let label = if form.is_empty() { "" } else { ", literal form" };
        judged.rows.push(Row::measured(
            format!("time at B = 10 over B = 1000{label}"),
            &small,
            "×",
            "figure 4 falls from 10 to 1000, without figures in the text",
        ));
    }
    judged.figures = b_figures(results);
    judged
}

fn one_zone(results: &Results, best: &str, whole: &str) -> String {
    let waits = |p: &str| mean_of(results, "SRSR", p, |r| r.holds.tried as f64);
    let paid = |p: &str| {
        mean_of(results, "SRSR", p, |r| r.holds.paid as f64 / (r.holds.tried as f64).max(1.0))
    };
    format!(
        "{:.0} waits at B = 2000 ({:.0} % paid), {:.0} at 10^7 ({:.0} % paid): with one zone over \
         both streams every place is near, and the other stream's request goes at once",
        waits(best),
        100.0 * paid(best),
        waits(whole),
        100.0 * paid(whole)
    )
}

fn b_figures(results: &Results) -> Vec<Figure> {
    let curve = |form: &str, figure: &dyn Fn(&RunResult) -> f64| {
        let point =
            |zone: u64| (zone as f64, mean_of(results, "SRSR", &with_zone(form, zone), figure));
        SIZES.map(point).to_vec()
    };
    let series = |figure: &dyn Fn(&RunResult) -> f64| {
        let cfq = mean_of(results, "SRSR", "cfq", figure);
        vec![
            ("pregather".to_string(), curve("", figure)),
            ("literal form".to_string(), curve(",literal=true", figure)),
            ("cfq".to_string(), SIZES.map(|zone| (zone as f64, cfq)).to_vec()),
        ]
    };
    let lines = |y: (&str, &str), series, caption: &str| Figure::Lines {
        x: ("B".into(), "sectors".into()),
        log_x: true,
        y: (y.0.into(), y.1.into()),
        series,
        caption: caption.into(),
    };
    vec![
        lines(("time", "s"), series(&both), "Time of both readers (figure 4 of the paper)."),
        lines(("seeks at zero", "%"), series(&zero), "Share of commands where the head stood."),
    ]
}

/// The pairs of table III, with what the paper says of their applications:
/// the share of CFQ's and of anticipatory's time.
struct Pair {
    name: &'static str,
    modes: [&'static str; 2],
    /// (application, baseline, share of its time).
    claims: &'static [(usize, &'static str, f64)],
}

const PAIRS: [Pair; 7] = [
    Pair {
        name: "SWSW",
        modes: ["SW", "SW"],
        claims: &[(0, "cfq", 0.67), (0, "anticipatory", 0.69)],
    },
    Pair { name: "SRRR", modes: ["SR", "RR"], claims: &[(0, "cfq", 0.62), (1, "cfq", 0.78)] },
    Pair { name: "SWRW", modes: ["SW", "RW"], claims: &[] },
    Pair { name: "SWRR", modes: ["SW", "RR"], claims: &[(0, "cfq", 0.73), (1, "cfq", 0.91)] },
    Pair { name: "SRRW", modes: ["SR", "RW"], claims: &[] },
    Pair { name: "RWRW", modes: ["RW", "RW"], claims: &[(0, "cfq", 0.88)] },
    Pair { name: "RRRR", modes: ["RR", "RR"], claims: &[(0, "cfq", 0.90)] },
];

const MIX_POLICIES: [&str; 4] = ["pregather", "pregather:literal=true", "cfq", "anticipatory"];

pub(super) fn mix_cells(options: &Options) -> Vec<Cell> {
    let work = |mode: &str| {
        if mode.starts_with('S') { sequential(mode, options) } else { random(mode, options) }
    };
    let cells = |pair: &Pair| {
        let [a, b] = pair.modes.map(work);
        let vms = vec![format!("name=vm1,max_request_kib=128,{a},{b}")];
        under(scenario(pair.name, vms), &MIX_POLICIES)
    };
    PAIRS.iter().flat_map(cells).collect()
}

pub(super) fn mix_judge(_options: &Options, results: &Results) -> Judged {
    let mut judged = Judged::default();
    for pair in &PAIRS {
        for &(app, base, paper) in pair.claims {
            let time = |r: &RunResult| app_time(r, app);
            let ratios = results.ratio(pair.name, ("pregather", base), time);
            let mode = pair.modes[app];
            let label = format!("{}: time of {mode} against {base}", pair.name);
            judged.rows.push(Row::factor(label, paper, &ratios).because(cause(results, pair)));
        }
        if pair.claims.is_empty() {
            let ratios = results.ratio(pair.name, ("pregather", "cfq"), both);
            let label = format!("{}: time of both against cfq", pair.name);
            judged.rows.push(Row::measured(
                label,
                &ratios,
                "×",
                "better, says the paper, without figures",
            ));
        }
    }
    let sequential = success(results, &["SWSW"]);
    let random = success(results, &["RWRW", "RRRR"]);
    judged.rows.push(wait_row("successful waits, SW", 90.6, sequential));
    judged.rows.push(wait_row("successful waits, random", 80.4, random));
    judged
}

fn wait_row(name: &str, paper: f64, (values, tried): (Vec<f64>, f64)) -> Row {
    if tried < 1.0 {
        let mut row = Row::value(name, paper, &[0.0], "%", 0.1);
        row.verdict = Verdict::Refuted;
        row.why = "no wait was made: several threads keep a continuation queued".into();
        return row;
    }
    let row = Row::value(name, paper, &values, "%", 0.1);
    row.because(format!("of {tried:.0} waits a run"))
}

/// Share of the waits that paid over some scenarios, seed by seed, and how many
/// there were a run.
fn success(results: &Results, scenarios: &[&str]) -> (Vec<f64>, f64) {
    let seeds = results.of(scenarios[0], "pregather").len();
    let mut shares = Vec::new();
    let mut tried_all = Vec::new();
    for seed in 0..seeds {
        let holds = |s: &&str| results.of(s, "pregather")[seed].holds;
        let tried: u64 = scenarios.iter().map(|s| holds(s).tried).sum();
        let paid: u64 = scenarios.iter().map(|s| holds(s).paid).sum();
        tried_all.push(tried as f64);
        shares.push(100.0 * paid as f64 / tried.max(1) as f64);
    }
    (shares, mean(&tried_all))
}

/// What the two schedulers did differently.
fn cause(results: &Results, pair: &Pair) -> String {
    let of = |p: &str, f: &dyn Fn(&RunResult) -> f64| mean_of(results, pair.name, p, f);
    let kib = |r: &RunResult| r.bytes() as f64 / 1024.0 / r.stats.commands as f64;
    let service = |r: &RunResult| r.service.mean() / 1e6;
    format!(
        "{:.0} KiB and {:.2} ms a command against cfq's {:.0} KiB and {:.2} ms",
        of("pregather", &kib),
        of("pregather", &service),
        of("cfq", &kib),
        of("cfq", &service)
    )
}
