//! cats-caches: a family of drive caches, searched for one that gives both of table 2's
//! headlines with the hits that the paper's drive had.

use super::super::judge::{mean, short};
use super::super::metric::{self, response_ms};
use super::super::{Cell, Findings, Options, Results, Row};
use super::{CATS_7, CFQ, CUT_SHORT, DIRECT, HITS_PERCENT, Load};
use super::{scenario, under};

/// Segments of the drive's cache.
const SEGMENTS: [u32; 4] = [8, 16, 32, 64];
const REPLACEMENTS: [&str; 2] = ["fifo", "lru"];
/// Read-ahead: name, sectors at most, and sectors that no other command cuts short.
const AHEAD: [(&str, u32, u32); 5] = [
    ("no read-ahead", 0, 0),
    ("64 ahead", 64, 64),
    ("64 ahead, cut short", 64, 0),
    ("221 ahead", 221, 221),
    ("221 ahead, cut short", 221, 0),
];
/// A run that is long enough: a ratio differs by a few percent from seed to seed.
const REQUESTS: u64 = 10_000;
/// The paper's mean responses, CATS over deadline and over CFQ (table 2, the real drive).
const PAPER: [f64; 2] = [37.35 / 59.87, 37.35 / 124.70];
/// How far a ratio may be from the paper's, as a share: as for the absolute figures.
const WITHIN: f64 = 0.25;
/// How far the drive's hits may be from the paper's, in percentage points.
const HITS_WITHIN: f64 = 5.0;
const POLICIES: [&str; 3] = [CATS_7, "deadline", CFQ];

/// The drive caches of the family: name and device.
fn members() -> Vec<(String, String)> {
    let mut members = Vec::new();
    for (ahead, most, kept) in AHEAD {
        for (replacement, segments) in REPLACEMENTS.iter().flat_map(|r| SEGMENTS.map(|s| (r, s))) {
            let (upper, resume) = (replacement.to_uppercase(), most.min(32));
            let name = format!("{segments} {upper} segments, {ahead}");
            let device = format!(
                "{CUT_SHORT}:segments={segments},replacement={replacement},\
                 resume_below={resume},read_ahead_max={most},read_ahead_min={kept}"
            );
            members.push((name, device));
        }
    }
    members
}

pub(super) fn cells(options: &Options) -> Vec<Cell> {
    let load = Load { requests: REQUESTS, ..DIRECT };
    let of = |(name, device): (String, String)| {
        under(scenario(name, &load, &device, options), &POLICIES)
    };
    members().into_iter().flat_map(of).collect()
}

/// What a member gives, the means over the seeds.
struct Given {
    /// CATS's mean response over deadline's and over CFQ's.
    ratios: [f64; 2],
    /// Drive hits under CATS.
    hits_percent: f64,
}

impl Given {
    fn both_ratios(&self) -> bool {
        self.ratios.iter().zip(PAPER).all(|(ours, paper)| (ours / paper - 1.0).abs() <= WITHIN)
    }

    fn hits(&self) -> bool {
        (self.hits_percent - HITS_PERCENT).abs() <= HITS_WITHIN
    }
}

pub(super) fn judge(_options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let (mut both, mut with_hits, mut fit) = (0, 0, Vec::new());
    for (name, _) in members() {
        let each = ["deadline", CFQ].map(|base| results.ratio(&name, (CATS_7, base), response_ms));
        let hits = results.each(&name, CATS_7, metric::hits_percent);
        let given = Given { ratios: [mean(&each[0]), mean(&each[1])], hits_percent: mean(&hits) };
        both += usize::from(given.both_ratios());
        with_hits += usize::from(given.hits());
        if given.both_ratios() && given.hits() {
            fit.push(format!(
                "{name} ({} and {} ×, {:.0} % hits)",
                short(given.ratios[0]),
                short(given.ratios[1]),
                given.hits_percent
            ));
        }
        findings.rows.extend(rows(results, &name, each, &hits));
    }
    findings.rows.push(count("members that give both ratios", both));
    findings.rows.push(count("members with the paper's hits", with_hits));
    findings.rows.push(count("members that give both ratios with the paper's hits", fit.len()));
    let list = if fit.is_empty() { "none".into() } else { fit.join("; ") };
    findings.notes.push(format!(
        "The paper's ratios of mean response are {:.2} (CATS over deadline) and {:.2} (CATS over \
         CFQ), and {HITS_PERCENT:.0} % of the requests were hits under CATS. A member gives both \
         ratios when each is within {:.0} % of the paper's, in the mean over the seeds, and has \
         the hits when they are within {HITS_WITHIN} points. Members that do both: {list}.",
        PAPER[0],
        PAPER[1],
        100.0 * WITHIN,
    ));
    findings
}

fn rows(results: &Results, s: &str, each: [Vec<f64>; 2], hits: &[f64]) -> Vec<Row> {
    let three = |f: fn(&crate::metrics::RunResult) -> f64| {
        POLICIES.map(|p| short(results.mean(s, p, f))).join(", ")
    };
    let why = format!(
        "cats, deadline, cfq: mean response {} ms, mean service {} ms, hits {} %",
        three(response_ms),
        three(metric::service_ms),
        three(metric::hits_percent)
    );
    let [deadline, cfq] = each;
    vec![
        Row::measured(format!("{s}: mean response, {CATS_7} over deadline"), &deadline, "×", &why),
        Row::measured(format!("{s}: mean response, {CATS_7} over {CFQ}"), &cfq, "×", &why),
        Row::measured(format!("{s}: drive hits under {CATS_7}"), hits, "%", why),
    ]
}

fn count(what: &str, found: usize) -> Row {
    let all = members().len();
    Row::measured(what, &[found as f64], "", format!("of {all}; a member is judged by its means"))
}
