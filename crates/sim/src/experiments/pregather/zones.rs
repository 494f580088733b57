//! pregather-b: the zone size in one VM, figure 4.

use super::super::judge::mean;
use super::super::metric::{app_time, kib_per_command, waits, zero_seeks_percent};
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::{CFQ, XEN, XEN_NAME, above, scenario, sequential, under};
use crate::metrics::RunResult;
use seekway_policy::units::Sectors;

/// Zone sizes of figure 4, in sectors.
const SIZES: [u64; 9] = [1, 10, 100, 500, 1_000, 2_000, 100_000, 1_000_000, 10_000_000];

/// What decides whether zones matter: the guest's ring, how soon it comes back, and how much of
/// what it has queued is coalesced. Scenario, guest's keys, limit (KiB). The first is the paper's.
const SETTINGS: [(&str, &str, u64); 4] = [
    (XEN_NAME, XEN, 512),
    ("requests of 128 KiB", "max_request_kib=128,latency=500us", 512),
    ("no latency", "max_request_kib=44,ring=32", 512),
    ("coalesced up to 128 KiB", XEN, 128),
];

/// One zone over the whole disk.
const WHOLE: u64 = 4_000_000_000;
const LITERAL: &str = ",literal=true";
const OURS: &str = "";
const FORMS: [(&str, &str); 2] = [(LITERAL, "literal form"), (OURS, "corrected form")];

fn with_zone(form: &str, zone: u64) -> String {
    format!("pregather:zone={zone}s{form}")
}

pub(super) fn cells(options: &Options) -> Vec<Cell> {
    let sr = sequential("SR", options);
    let mut cells = Vec::new();
    for (name, guest, kib) in SETTINGS {
        let vms = vec![format!("name=vm1,{guest},{sr},{sr}")];
        let mut varied = scenario(name, vms);
        varied.coalesce = Sectors::from_bytes(kib << 10);
        // The whole curve in the paper's setting, its two ends in the others.
        let all = [&SIZES[..], &[WHOLE]].concat();
        let sizes: &[u64] = if name == XEN_NAME { &all } else { &[2_000, 10_000_000] };
        let forms = [LITERAL, OURS].into_iter();
        let forms = forms.flat_map(|form| sizes.iter().map(move |&zone| with_zone(form, zone)));
        let policies: Vec<String> = [CFQ.to_string()].into_iter().chain(forms).collect();
        cells.extend(under(varied, &policies));
    }
    cells
}

/// When both applications were done.
fn both(r: &RunResult) -> f64 {
    app_time(r, 0).max(app_time(r, 1))
}

pub(super) fn judge(_options: &Options, results: &Results) -> Findings {
    let mut findings = Findings { rows: paper_rows(results), ..Findings::default() };
    for (s, ..) in SETTINGS {
        for (form, label) in FORMS {
            if (s, form) == (XEN_NAME, LITERAL) {
                continue;
            }
            let (best, whole) = (with_zone(form, 2_000), with_zone(form, 10_000_000));
            let name = format!("{s}, {label}: time at B = 10^7 over B = 2000");
            let why = one_zone(results, s, &best, &whole);
            let slower = results.ratio(s, (&whole, &best), both);
            findings.rows.push(Row::measured(name, &slower, "×", why));
        }
    }
    for (form, label) in FORMS {
        let (best, whole) = (with_zone(form, 2_000), with_zone(form, WHOLE));
        let slower = results.ratio(XEN_NAME, (&whole, &best), both);
        let waited = results.mean(XEN_NAME, &whole, waits);
        let name = format!("{label}: time with one zone over the disk over B = 2000");
        findings.rows.push(Row::measured(name, &slower, "×", format!("{waited:.0} waits")));
    }
    let sizes = (with_zone(OURS, 10), with_zone(OURS, 1_000));
    let small = results.ratio(XEN_NAME, (&sizes.0, &sizes.1), both);
    let name = "corrected form: time at B = 10 over B = 1000";
    findings.rows.push(Row::measured(name, &small, "×", "not the paper's form"));
    let forms = (with_zone(OURS, 2_000), with_zone(LITERAL, 2_000));
    let ours = results.ratio(XEN_NAME, (&forms.0, &forms.1), both);
    let row = Row::measured("corrected over literal form, time at B = 2000", &ours, "×", "ours");
    findings.rows.push(row.ask(mean(&ours) <= 1.02, "at most 1.02 in the mean"));
    findings.figures = figures(results);
    findings
}

/// Figure 4, in the literal form.
fn paper_rows(results: &Results) -> Vec<Row> {
    let of = |zone| with_zone(LITERAL, zone);
    let time = |zones: (u64, u64)| results.ratio(XEN_NAME, (&of(zones.0), &of(zones.1)), both);
    let zero = |zone: u64, paper: f64, name: &str| {
        let values = results.each(XEN_NAME, &of(zone), zero_seeks_percent);
        Row::value(format!("literal form: seeks at zero, B = {name}"), paper, &values, "%", 0.1)
    };
    let (best, whole) = (of(2_000), of(10_000_000));
    let at_best = results.each(XEN_NAME, &best, both);
    vec![
        Row::value("literal form: time at B = 2000", 46.0, &at_best, "s", 0.25)
            .because("for 1 GiB a reader; the time is the disk's and the amount's"),
        above(
            "literal form: time at B = 10 over B = 1000",
            &time((10, 1_000)),
            "figure 4 falls from 10 to 1000; the text gives no figures",
        ),
        Row::factor("literal form: time at B = 2000 over B = 1000", 0.98, &time((2_000, 1_000))),
        zero(1_000, 91.6, "1000"),
        zero(2_000, 91.6, "2000"),
        zero(10_000_000, 71.2, "10^7"),
        Row::factor(
            "literal form: time at B = 10^7 over B = 2000",
            85.0 / 46.0,
            &time((10_000_000, 2_000)),
        )
        .because(one_zone(results, XEN_NAME, &best, &whole)),
        Row::value(
            "literal form: time at B = 10^7 over cfq",
            1.0,
            &results.ratio(XEN_NAME, (&whole, CFQ), both),
            "×",
            0.1,
        ),
    ]
}

fn one_zone(results: &Results, s: &str, best: &str, whole: &str) -> String {
    let cfq = results.mean(s, CFQ, both);
    format!(
        "{:.0} waits at B = 2000 and {:.0} at 10^7, {:.0} and {:.0} KiB a command; {:.1} s at \
         B = 2000, cfq takes {cfq:.1} s",
        results.mean(s, best, waits),
        results.mean(s, whole, waits),
        results.mean(s, best, kib_per_command),
        results.mean(s, whole, kib_per_command),
        results.mean(s, best, both)
    )
}

fn figures(results: &Results) -> Vec<Figure> {
    let curve = |form: &str, figure: &dyn Fn(&RunResult) -> f64| {
        let point =
            |zone: u64| (zone as f64, results.mean(XEN_NAME, &with_zone(form, zone), figure));
        SIZES.map(point).to_vec()
    };
    let series = |figure: &dyn Fn(&RunResult) -> f64| {
        let cfq = results.mean(XEN_NAME, CFQ, figure);
        vec![
            ("corrected form".to_string(), curve(OURS, figure)),
            ("literal form".to_string(), curve(LITERAL, figure)),
            ("cfq".to_string(), SIZES.map(|zone| (zone as f64, cfq)).to_vec()),
        ]
    };
    let lines =
        |y, series, caption| Figure::lines(("B", "sectors"), y, series, caption).logarithmic();
    vec![
        lines(("time", "s"), series(&both), "Time of both readers (figure 4 of the paper)."),
        lines(
            ("seeks at zero", "%"),
            series(&zero_seeks_percent),
            "Share of commands where the head stood.",
        ),
    ]
}
