//! pregather-hadoop: a MapReduce sort, figures 6, 7 and 8.

use super::super::metric::{
    app_time, bandwidth, kib_per_command, policy_metric, service_ms, zero_seeks_percent,
};
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::seeks::more_at_zero;
use super::{
    AS, CFQ, CFQ_MENDED, GUESTS, LITERAL, ON_PARTS, ONE_ZONE, ONE_ZONE_LITERAL, OURS, PATIENT,
    PATIENT_AS, PATIENT_CFQ, PATIENT_LITERAL, XEN_NAME, label, on_parts, scenario, under,
};
use crate::metrics::RunResult;

const POLICIES: [&str; 12] = [
    CFQ,
    LITERAL,
    OURS,
    AS,
    "deadline",
    PATIENT_LITERAL,
    PATIENT,
    PATIENT_CFQ,
    PATIENT_AS,
    ONE_ZONE_LITERAL,
    ONE_ZONE,
    CFQ_MENDED,
];

/// What is measured beside the paper's pair: a form, and what it is compared with.
const VARIANTS: [(&str, &str); 12] = [
    (LITERAL, CFQ),
    (OURS, CFQ),
    (PATIENT, PATIENT_CFQ),
    (PATIENT_LITERAL, PATIENT_CFQ),
    (PATIENT, PATIENT_AS),
    (PATIENT_LITERAL, PATIENT_AS),
    (PATIENT, CFQ),
    (PATIENT_LITERAL, CFQ),
    (PATIENT_CFQ, CFQ),
    (ONE_ZONE_LITERAL, LITERAL),
    (ONE_ZONE, OURS),
    (LITERAL, CFQ_MENDED),
];

/// The variants in a guest: in the paper's all but its own pair, in the others the first three.
fn variants(guest: &str) -> &'static [(&'static str, &'static str)] {
    match guest {
        XEN_NAME => &VARIANTS[1..],
        ON_PARTS => &VARIANTS[..1],
        _ => &VARIANTS[..3],
    }
}

fn sort_name(guest: &str) -> String {
    format!("sort, {guest}")
}
fn beside_name(guest: &str) -> String {
    format!("sort + TPC-H, {guest}")
}

pub(super) fn cells(options: &Options) -> Vec<Cell> {
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
        let in_variants =
            |p: &&str| variants(guest).iter().any(|pair| pair.0 == *p || pair.1 == *p);
        let is_paper = guest == XEN_NAME;
        let policies: Vec<&str> =
            POLICIES.into_iter().filter(|p| is_paper || in_variants(p)).collect();
        if is_paper {
            let parts = [(sort_name(ON_PARTS), &alone), (beside_name(ON_PARTS), &beside)];
            let parts =
                parts.map(|(name, vms)| under(on_parts(name, vms.clone()), &[CFQ, LITERAL]));
            cells.extend(parts.into_iter().flatten());
        }
        cells.extend(under(scenario(sort_name(guest), alone), &policies));
        cells.extend(under(scenario(beside_name(guest), beside), &policies));
    }
    cells
}

/// When the last node's sort was done.
fn sort_time(r: &RunResult) -> f64 {
    (0..4).map(|n| app_time(r, n)).fold(0.0, f64::max)
}

/// The applications beside TPC-H: name, the paper's share of CFQ's time, its time.
type App = (&'static str, f64, fn(&RunResult) -> f64);
const APPS: [App; 3] = [
    ("q2", 0.90, |r| app_time(r, 4)),
    ("q19", 0.92, |r| app_time(r, 5)),
    ("sort", 0.88, sort_time),
];

pub(super) fn judge(_options: &Options, results: &Results) -> Findings {
    let mut rows = sort_rows(results);
    rows.extend(beside_rows(results));
    for guest in GUESTS.map(|(guest, _)| guest).into_iter().chain([ON_PARTS]) {
        rows.extend(variant_rows(results, guest));
    }
    let cells = |s: &str| POLICIES[..5].iter().map(|p| (s.to_string(), p.to_string())).collect();
    let figures = vec![
        Figure::Seeks(cells(&sort_name(XEN_NAME)), "Seek distances in the sort (figure 7).".into()),
        Figure::Seeks(cells(&beside_name(XEN_NAME)), "The same beside TPC-H (figure 8).".into()),
    ];
    Findings { rows, figures, ..Findings::default() }
}

/// Figures 6 and 7, in the literal form.
fn sort_rows(results: &Results) -> Vec<Row> {
    let s = sort_name(XEN_NAME);
    let mut rows = Vec::new();
    for (base, paper) in [(CFQ, 1.26), (AS, 1.28), ("deadline", 1.38)] {
        let ratios = results.ratio(&s, (LITERAL, base), bandwidth);
        let name = format!("sort: literal form: bandwidth against {}", label(base));
        let row = Row::factor(name, paper, &ratios);
        rows.push(row.because(traffic(results, &s, (LITERAL, base))));
    }
    for (base, paper) in [(CFQ, 0.82), (AS, 0.80)] {
        let ratios = results.ratio(&s, (LITERAL, base), sort_time);
        let name = format!("sort: literal form: time against {}", label(base));
        rows.push(Row::factor(name, paper, &ratios));
    }
    for base in [CFQ, AS] {
        let name = format!("sort: seeks at zero: literal form beyond {}", label(base));
        let why = "much higher in figure 7; the text gives no figure";
        rows.push(more_at_zero(results, (&s, name), (LITERAL, base), why));
    }
    for policy in [LITERAL, CFQ, AS] {
        let name = format!("sort: seeks at zero: {} beyond deadline", label(policy));
        let why = "deadline seeks more than the others; without a figure";
        rows.push(more_at_zero(results, (&s, name), (policy, "deadline"), why));
    }
    rows
}

/// Figure 8, in the literal form.
fn beside_rows(results: &Results) -> Vec<Row> {
    let s = beside_name(XEN_NAME);
    let mut rows = Vec::new();
    for (app, paper, time) in APPS {
        let ratios = results.ratio(&s, (LITERAL, CFQ), time);
        let name = format!("TPC-H: literal form: time of {app} against cfq");
        let why = traffic(results, &s, (LITERAL, CFQ));
        rows.push(Row::factor(name, paper, &ratios).because(why));
    }
    let values = results.each(&s, LITERAL, zero_seeks_percent);
    rows.push(Row::value("TPC-H: literal form: seeks at zero", 63.0, &values, "%", 0.1));
    rows
}

/// Forms, deadlines and guests that are not the paper's, and the form without zones.
fn variant_rows(results: &Results, guest: &str) -> Vec<Row> {
    let (sort, beside) = (sort_name(guest), beside_name(guest));
    let mut rows = Vec::new();
    for &(policy, base) in variants(guest) {
        let mut push = |s: &str, what: &str, figure: &dyn Fn(&RunResult) -> f64| {
            let ratios = results.ratio(s, (policy, base), figure);
            let name = format!("{s}: {}: {what} against {}", label(policy), label(base));
            rows.push(Row::measured(name, &ratios, "×", traffic(results, s, (policy, base))));
        };
        push(&sort, "bandwidth", &bandwidth);
        for (app, _, time) in APPS {
            push(&beside, &format!("time of {app}"), &time);
        }
    }
    rows
}

fn traffic(results: &Results, s: &str, (policy, base): (&str, &str)) -> String {
    let of = |p: &str, f: &dyn Fn(&RunResult) -> f64| results.mean(s, p, f);
    let expired =
        |r: &RunResult| 100.0 * policy_metric(r, "dispatch_expired") / r.stats.requests as f64;
    let late = of(policy, &expired);
    let late = if late.is_nan() {
        String::new()
    } else {
        format!("{late:.0} % of the requests began a command as they were late; ")
    };
    format!(
        "{late}mean response {:.1} s; {:.0} KiB and {:.1} ms a command (against {:.0} and {:.1}), \
         head stays for {:.0} % ({:.0} %)",
        of(policy, &|r| r.response.mean() / 1e9),
        of(policy, &kib_per_command),
        of(policy, &service_ms),
        of(base, &kib_per_command),
        of(base, &service_ms),
        of(policy, &zero_seeks_percent),
        of(base, &zero_seeks_percent)
    )
}
