//! cats-direct and cats-buffered: tables 2 and 3, the columns of the real drive.

use super::super::figure::bars as bars_of;
use super::super::judge::{count, mean};
use super::super::metric::{self, response_ms, response_variance, worst_response_s};
use super::super::results::over;
use super::super::{BarSeries, Cell, Figure, Findings, Options, Results, Row};
use super::measures::{MEASURES, Measure, think_ms};
use super::{BUFFERED, CATS_0, CATS_7, CFQ, CUT_SHORT, DIRECT, DISK, HITS_PERCENT, LINEAR, Load};
use super::{scenario, under};
use crate::metrics::RunResult;

/// One workload on one disk.
struct Setting {
    name: &'static str,
    load: Load,
    device: String,
    policies: &'static [&'static str],
}

/// Only its first setting, which is the paper's as near as we have it, stands beside the
/// paper's figures; the others vary what may decide it.
pub(super) struct Table {
    settings: Vec<Setting>,
    /// Which column of [`MEASURES`].
    paper: fn(&Measure) -> [f64; 3],
}

/// The paper's forms, then ours, then what else is known.
const ALL: &[&str] =
    &[CATS_7, "deadline", CFQ, "cats", CATS_0, NO_SHADOW, "cfq", "sstf", "cscan", "noop"];
const FOUR: &[&str] = &[CATS_7, "deadline", CFQ, "cats", NO_SHADOW];
/// CATS that knows nothing of the drive's cache: the table alone.
const NO_SHADOW: &str = "cats:segments=0";
const PAPER: &str = "as in the paper";
const TWO: &str = "two commands outstanding";
/// The member of cats-caches whose hits are nearest to the paper's; it gives both ratios too.
const EIGHT: &str = "8 drive segments, 221 ahead, cut short";
const EIGHT_DISK: &str = "cheetah-15k4:segments=8,read_ahead_max=221";
/// The drive reorders what it has, by least access time: name, the setting with one command at a
/// time, and commands.
const REORDERED: [(&str, &str, u32); 4] = [
    ("queue of 4 in the drive", PAPER, 4),
    ("queue of 32 in the drive", PAPER, 32),
    ("queue of 4 in the drive of 8 segments", EIGHT, 4),
    ("queue of 32 in the drive of 8 segments", EIGHT, 32),
];
/// Requests of the settings beside the paper's.
const FEWER: u64 = 20_000;

pub(super) fn direct() -> Table {
    let fewer = Load { requests: FEWER, ..DIRECT };
    let on = |name, device: String| Setting { name, load: fewer, device, policies: FOUR };
    let mut settings = vec![
        Setting { name: PAPER, load: DIRECT, device: DISK.into(), policies: ALL },
        on("linear disk", LINEAR.into()),
        on(TWO, format!("{DISK},queue_depth=2")),
        on("read-ahead cut short at once", CUT_SHORT.into()),
        on("32 drive segments", format!("{DISK},segments=32")),
        on("no drive cache", format!("{DISK},segments=0")),
        on("drive cache as the shadow", format!("{DISK},on_hit=consume")),
        on("LRU drive cache", format!("{DISK},replacement=lru")),
        Setting {
            load: Load { guest: "image=64GiB,atime=false", surge: "", ..fewer },
            ..on("half of the disk", DISK.into())
        },
        Setting { load: DIRECT, ..on(EIGHT, EIGHT_DISK.into()) },
    ];
    settings.extend(REORDERED.map(|(name, base, depth)| {
        let disk = if base == PAPER { DISK } else { EIGHT_DISK };
        let device = format!("{disk},queue_depth={depth},queue_order=sptf");
        Setting { load: DIRECT, ..on(name, device) }
    }));
    Table { settings, paper: |m| m.direct }
}

pub(super) fn buffered() -> Table {
    let fewer = Load { requests: 3 * FEWER, ..BUFFERED };
    let on = |name, device: String| Setting { name, load: fewer, device, policies: FOUR };
    let with = |name, guest| Setting { load: Load { guest, ..fewer }, ..on(name, DISK.into()) };
    let settings = vec![
        Setting { name: PAPER, load: BUFFERED, device: DISK.into(), policies: ALL },
        on("linear disk", LINEAR.into()),
        on(TWO, format!("{DISK},queue_depth=2")),
        on("read-ahead cut short at once", CUT_SHORT.into()),
        on("32 drive segments", format!("{DISK},segments=32")),
        on("no drive cache", format!("{DISK},segments=0")),
        on(EIGHT, EIGHT_DISK.into()),
        with("no guest read-ahead", "image=134GiB,atime=false,ram=162MiB,read_ahead_kb=0"),
        with(
            "guest read-ahead of 512 KiB",
            "image=134GiB,atime=false,ram=162MiB,read_ahead_kb=512",
        ),
        with("reading changes inodes (relatime)", "image=134GiB,ram=162MiB"),
    ];
    Table { settings, paper: |m| m.buffered }
}

impl Table {
    pub fn cells(self, options: &Options) -> Vec<Cell> {
        let of = |s: Setting| under(scenario(s.name, &s.load, &s.device, options), s.policies);
        self.settings.into_iter().flat_map(of).collect()
    }

    pub fn judge(&self, results: &Results) -> Findings {
        let mut findings = Findings::default();
        for (n, setting) in self.settings.iter().enumerate() {
            if n == 0 {
                findings.rows.extend(orders_of_the_paper(self, setting, results));
                findings.rows.extend(figures_of_the_paper(self, setting, results));
                findings.rows.extend(distribution(setting, results));
            } else {
                findings.rows.extend(orders(setting, results, &LITERAL));
            }
            findings.rows.extend(orders(setting, results, &OURS));
            if setting.name == TWO {
                findings.rows.extend(service_of_two(self, results));
            }
            if let Some((_, base, _)) = REORDERED.iter().find(|(name, ..)| *name == setting.name) {
                findings.rows.extend(reordered(setting, base, results));
            }
            findings.rows.extend(consistency(setting, results));
        }
        findings.notes.push(notes(self));
        findings.figures = bars(self, results);
        findings
    }
}

/// The paper's three policies, each over one of the others.
const LITERAL: [(&str, &str); 3] = [(CATS_7, "deadline"), (CATS_7, CFQ), ("deadline", CFQ)];
/// CATS with our busdriver delay.
const OURS: [(&str, &str); 2] = [("cats", "deadline"), ("cats", CFQ)];
/// A ratio of the paper's that is this near to 1 says that there is no difference.
const TIE: f64 = 0.02;
/// How far from the paper's a figure may be that is no ordering, as a share.
const WITHIN: f64 = 0.25;
/// The same of a tie.
const TIE_WITHIN: f64 = 0.1;
/// The same of the drive's hits: 5 percentage points.
const HITS_WITHIN: f64 = 5.0 / HITS_PERCENT;

/// The orders of the three policies in the paper's three measures and in the variance of
/// response, beside the paper's.
fn orders_of_the_paper(table: &Table, setting: &Setting, results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    let measures = ["mean response", "mean service", "throughput", "variance of response"];
    for measure in measures.iter().filter_map(|name| MEASURES.iter().find(|m| m.name == *name)) {
        let [cats, deadline, cfq] = (table.paper)(measure);
        let papers = [cats / deadline, cats / cfq, deadline / cfq];
        for ((ours, base), paper) in LITERAL.into_iter().zip(papers) {
            let ratios = results.ratio(setting.name, (ours, base), measure.of);
            let name = format!("{}: {}, {ours} over {base}", setting.name, measure.name);
            let row = match (paper - 1.0).abs() < TIE {
                true => Row::value(name, paper, &ratios, "×", TIE_WITHIN),
                false => Row::factor(name, paper, &ratios),
            };
            rows.push(match measure.name {
                "mean response" => row
                    .because(what_decides(setting, results, ours, base))
                    .ask(mean(&ratios) < 1.0, "the paper's order in the mean over the seeds"),
                _ => row,
            });
        }
    }
    rows
}

/// Mean response and its variance where no figure of the paper stands beside them.
fn orders(setting: &Setting, results: &Results, pairs: &[(&str, &str)]) -> Vec<Row> {
    let s = setting.name;
    let row = |(ours, base): &(&str, &str)| {
        let ratios = results.ratio(s, (ours, base), response_ms);
        let why = what_decides(setting, results, ours, base);
        Row::measured(format!("{s}: mean response, {ours} over {base}"), &ratios, "×", why)
    };
    let mut rows: Vec<Row> = pairs.iter().map(row).collect();
    let ours = pairs[0].0;
    let ratios = results.ratio(s, (ours, "deadline"), response_variance);
    let name = format!("{s}: variance of response, {ours} over deadline");
    let of = |policy: &str| results.mean(s, policy, response_variance);
    let why = format!("{:.0} ms² against {:.0}", of(ours), of("deadline"));
    rows.push(Row::measured(name, &ratios, "×", why));
    rows
}

/// Does reordering by the drive cost, as the paper says of all its schedulers? The order is
/// judged on the paper's drive.
fn reordered(setting: &Setting, base: &str, results: &Results) -> Vec<Row> {
    let row = |policy: &str| {
        let queued = results.each(setting.name, policy, response_ms);
        let ratios = over(&queued, &results.each(base, policy, response_ms));
        let name = format!("{}: mean response over one command at a time, {policy}", setting.name);
        let right = count(&ratios, |r| r > 1.0);
        let of = |s: &str, f: fn(&RunResult) -> f64| results.mean(s, policy, f);
        let why = format!(
            "more on {right} of {} seeds; {:.2} ms against {:.2}, {:.2} sectors/ms against {:.2}, \
             {:.0} % drive hits against {:.0} %",
            ratios.len(),
            mean(&queued),
            of(base, response_ms),
            of(setting.name, metric::throughput),
            of(base, metric::throughput),
            of(setting.name, metric::hits_percent),
            of(base, metric::hits_percent),
        );
        let row = Row::measured(name, &ratios, "×", why);
        if base == PAPER { row.ordered(right, ratios.len()) } else { row }
    };
    [CATS_7, "deadline", CFQ].map(row).into()
}

/// The paper's three figures of a measure.
fn figure(table: &Table, name: &str) -> [f64; 3] {
    let found = MEASURES.iter().find(|m| m.name == name);
    found.map_or([f64::NAN; 3], table.paper)
}

/// Service, hits and holds of both sides.
fn what_decides(setting: &Setting, results: &Results, ours: &str, base: &str) -> String {
    let of = |policy: &str, f: fn(&RunResult) -> f64| results.mean(setting.name, policy, f);
    let shadow = mean(&results.ratio(setting.name, (NO_SHADOW, base), response_ms));
    let table_alone = match ours.starts_with("cats") {
        true => format!("; the table without the shadow cache {shadow:.2} ×"),
        false => String::new(),
    };
    format!(
        "service {:.2} ms against {:.2}, {:.0} % drive hits against {:.0} %, worst response {:.1} \
         s against {:.1} s{table_alone}",
        of(ours, metric::service_ms),
        of(base, metric::service_ms),
        of(ours, metric::hits_percent),
        of(base, metric::hits_percent),
        of(ours, worst_response_s),
        of(base, worst_response_s),
    )
}

const AS_TWO: &str = "the paper's service looks as if two commands had been outstanding (below)";

/// The absolute figures beside the paper's: another disk, another file system.
fn figures_of_the_paper(table: &Table, setting: &Setting, results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for measure in &MEASURES {
        let paper = (table.paper)(measure);
        for (policy, paper) in [CATS_7, "deadline", CFQ].into_iter().zip(paper) {
            let values = results.each(setting.name, policy, measure.of);
            let name = format!("{}: {} under {policy}", setting.name, measure.name);
            let row = Row::value(name, paper, &values, measure.unit, WITHIN);
            let service = measure.name.ends_with("service");
            rows.push(if service { row.because(AS_TWO) } else { row });
        }
    }
    if setting.load.direct {
        let hits = results.each(setting.name, CATS_7, metric::hits_percent);
        let name = format!("{}: drive hits under {CATS_7}", setting.name);
        rows.push(Row::value(name, HITS_PERCENT, &hits, "%", HITS_WITHIN));
    }
    rows
}

/// Service as a host measures it that has two commands at the drive.
fn service_of_two(table: &Table, results: &Results) -> Vec<Row> {
    let row = |(policy, paper): (&str, f64)| {
        let values = results.each(TWO, policy, metric::service_from_dispatch_ms);
        let name = format!("{TWO}: mean service from dispatch under {policy}");
        let why = format!(
            "counts the wait for the command before, as the paper's {paper} ms seem to, with one \
             command at a time"
        );
        Row::measured(name, &values, "ms", why)
    };
    let policies = [CATS_7, "deadline", CFQ].into_iter();
    policies.zip(figure(table, "mean service")).map(row).collect()
}

/// What the mean does not show.
fn distribution(setting: &Setting, results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for policy in setting.policies {
        let at =
            |percent| results.each(setting.name, policy, |r| metric::percentile_ms(r, percent));
        let of = |f: fn(&RunResult) -> f64| results.mean(setting.name, policy, f);
        let why = format!(
            "half of the requests within {:.1} ms, all within {:.0} ms; mean response {:.2} ms, \
             mean service {:.2} ms, {:.2} sectors/ms, {:.0} % drive hits",
            mean(&at(50.0)),
            mean(&at(100.0)),
            of(response_ms),
            of(metric::service_ms),
            of(metric::throughput),
            of(metric::hits_percent),
        );
        let name = format!("{}: 99 % of responses within, {policy}", setting.name);
        rows.push(Row::measured(name, &at(99.0), "ms", why));
    }
    rows
}

/// Do throughput, service and response fit together? In the paper they do not.
fn consistency(setting: &Setting, results: &Results) -> Vec<Row> {
    let s = setting.name;
    let product = |r: &RunResult| metric::throughput(r) * metric::service_from_dispatch_ms(r);
    let row = |policy| {
        let why = format!(
            "service from dispatch {:.2} ms, from the previous completion {:.2} ms; a request is \
             {:.1} sectors, a command {:.1}; the closed loop thinks for {:.1} ms a request",
            results.mean(s, policy, metric::service_from_dispatch_ms),
            results.mean(s, policy, metric::service_ms),
            results.mean(s, policy, |r| r.bytes() as f64 / 512.0 / r.requests() as f64),
            results.mean(s, policy, |r| r.bytes() as f64 / 512.0 / r.stats.commands as f64),
            results.mean(s, policy, |r| think_ms(r, setting.load.processes)),
        );
        let name = format!("{s}: throughput × service from dispatch, {policy}");
        Row::measured(name, &results.each(s, policy, product), "sectors", why)
    };
    [CATS_7, "deadline", CFQ].map(row).into()
}

fn notes(table: &Table) -> String {
    let [throughput, service] = ["throughput", "mean service"].map(|name| figure(table, name));
    let response = figure(table, "mean response");
    let product = |n: usize| throughput[n] * service[n];
    // Requests of a page only: what a request of table 3 holds is not told.
    let think = |n: usize| 50.0 * 8.0 / throughput[n] - response[n];
    let direct = table.settings[0].load.direct;
    let thinks = format!(
        " For 50 processes that read a page each its responses and throughputs need a pause of \
         {:.1}, {:.1} and {:.1} ms after each page; Pareto(1.5, 2 ms) has a mean of 6.",
        think(0),
        think(1),
        think(2)
    );
    format!(
        "The paper's own figures do not fit together with one command at a time: its throughput × \
         mean service is {:.1}, {:.1} and {:.1} sectors for cats, deadline and cfq, where a request \
         is {}.{} With two outstanding at the drive, service from dispatch counts each twice, and \
         the products come out; under CFQ, which idles, there is rarely a second.",
        product(0),
        product(1),
        product(2),
        if direct { "8" } else { "some 35 here" },
        if direct { thinks } else { String::new() },
    )
}

fn bars(table: &Table, results: &Results) -> Vec<Figure> {
    let (s, shown) = (table.settings[0].name, [CATS_7, "cats", "deadline", CFQ, "cfq"]);
    let three = figure(table, "mean response");
    let paper = [Some(three[0]), None, Some(three[1]), Some(three[2]), None];
    let paper = BarSeries {
        name: "paper, real drive".into(),
        bars: paper.iter().map(|p| p.map(|v| (v, v, v))).collect(),
        paper: true,
    };
    let ours = bars_of("here", &shown.map(|policy| results.each(s, policy, response_ms)));
    let caption = "Mean response of 50 processes.";
    let response = Figure::bars(("mean response", "ms"), shown, vec![ours, paper], caption);
    let curve = |policy: &&str| {
        let run = results.of(s, policy).first();
        let points = |r: &RunResult| {
            let at = |percent: f64| (metric::percentile_ms(r, percent).max(0.1), percent);
            (0..=100).map(|p| at(f64::from(p))).collect()
        };
        (policy.to_string(), run.map(|r| points(r)).unwrap_or_default())
    };
    let y = ("share of the requests", "%");
    let caption = "Distribution of the responses: CATS serves most at once and a few late.";
    let distribution = Figure::lines(("response", "ms"), y, shown.iter().map(curve), caption);
    vec![response, distribution.logarithmic()]
}
