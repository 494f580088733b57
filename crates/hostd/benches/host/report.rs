//! Rows of the table, as text and as JSON.

use crate::load::Sample;
use serde_json::{Value, json};

/// Expected range of a figure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    /// No target: the figure is shown for information.
    None,
    /// Ours over the peer's is at least this; and then, better still, this.
    RatioAtLeast(f64, Option<f64>),
    /// Ours over the peer's is at most this.
    RatioAtMost(f64),
    /// Ours is the peer's, up to this share.
    Within(f64),
    /// Ours is at most this, whatever a peer does.
    AtMost(f64),
}

impl Target {
    fn text(self) -> String {
        match self {
            Target::None => String::new(),
            Target::RatioAtLeast(least, None) => format!(">= {least}x"),
            Target::RatioAtLeast(least, Some(then)) => format!(">= {least}x, then {then}x"),
            Target::RatioAtMost(most) => format!("<= {most}x"),
            Target::Within(share) => format!("within {:.0} %", share * 100.0),
            Target::AtMost(most) => format!("<= {most}"),
        }
    }
}

/// One figure: ours beside a peer's, pair by pair.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which part of the bench.
    pub part: &'static str,
    /// Name of the measurement, mostly a load and a figure of it, such as `p99`.
    pub name: String,
    /// Unit of the figures: `IOPS`, `MiB/s`, `MB`, `ms` or `us`.
    pub unit: &'static str,
    /// Name of the contender whose figures come first.
    pub ours_name: String,
    /// Name of the contender whose figures come second.
    pub peer_name: String,
    /// One for each round.
    pub ours: Vec<f64>,
    /// One for each round, or none.
    pub peer: Vec<f64>,
    /// Expected range of our figure.
    pub target: Target,
}

impl Row {
    /// The median of the ratios of the pairs: what slows the machine for a
    /// while slows both of a pair.
    pub fn ratio(&self) -> Option<f64> {
        let ratios = self.ours.iter().zip(&self.peer).map(|(ours, peer)| ours / peer);
        median(&ratios.collect::<Vec<_>>()).filter(|ratio| ratio.is_finite())
    }

    /// Has it a target, or is it a throughput?
    pub fn matters(&self) -> bool {
        self.target != Target::None || matches!(self.unit, "IOPS" | "MiB/s")
    }

    /// Is the target met? And the one after it?
    pub fn met(&self) -> (Option<bool>, Option<bool>) {
        match self.target {
            Target::None => (None, None),
            Target::RatioAtLeast(least, then) => {
                let ratio = self.ratio();
                let reached = |target| ratio.map(|ratio| ratio >= target);
                (reached(least), then.and_then(reached))
            }
            Target::RatioAtMost(most) => (self.ratio().map(|ratio| ratio <= most), None),
            Target::Within(share) => (self.ratio().map(|ratio| (ratio - 1.0).abs() <= share), None),
            Target::AtMost(most) => (median(&self.ours).map(|ours| ours <= most), None),
        }
    }

    fn json(&self) -> Value {
        let (met, then_met) = self.met();
        json!({
            "part": self.part, "name": self.name, "unit": self.unit,
            "ours_name": self.ours_name, "peer_name": self.peer_name,
            "ours": median(&self.ours), "peer": median(&self.peer), "ratio": self.ratio(),
            "target": self.target.text(), "met": met, "then_met": then_met,
            "rounds": {"ours": self.ours, "peer": self.peer},
        })
    }
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The rows of one comparison under one load: throughput, latencies, CPU time.
pub struct Samples<'a> {
    /// Which part of the bench.
    pub part: &'static str,
    /// The load that was measured; [`Samples::rows`] adds the figure, such as `p99`.
    pub name: String,
    /// In MiB/s rather than IOPS.
    pub bytes: bool,
    /// Name, and a sample for each round.
    pub ours: (&'a str, &'a [Sample]),
    /// Name, and a sample for each round.
    pub peer: (&'a str, &'a [Sample]),
    /// Expected range of the ratio of the throughputs.
    pub target: Target,
    /// For the 99th percentile.
    pub p99_target: Target,
}

impl Samples<'_> {
    /// Rows of throughput, median and 99th percentile of latency, and CPU time per read.
    pub fn rows(&self) -> Vec<Row> {
        let row = |figure: &str, unit, of: fn(&Sample) -> f64, target| Row {
            part: self.part,
            name: format!("{} {figure}", self.name).trim_end().to_owned(),
            unit,
            ours_name: self.ours.0.to_owned(),
            peer_name: self.peer.0.to_owned(),
            ours: self.ours.1.iter().map(of).collect(),
            peer: self.peer.1.iter().map(of).collect(),
            target,
        };
        let throughput = if self.bytes {
            row("", "MiB/s", |sample| sample.mib_per_s, self.target)
        } else {
            row("", "IOPS", |sample| sample.iops, self.target)
        };
        vec![
            throughput,
            row("p50", "us", |sample| sample.p50_us, Target::None),
            row("p99", "us", |sample| sample.p99_us, self.p99_target),
            row("server's CPU per read", "us", |sample| sample.server_cpu_us, Target::None),
        ]
    }
}

/// The first line of the table: the names of its columns.
pub fn head() -> String {
    line(&["figure", "unit", "ours", "peer's", "ratio", "target", "met", "peer"])
}

/// One row of the table.
pub fn text(row: &Row) -> String {
    let show = |value: Option<f64>| value.map_or(String::new(), number);
    let met = match row.met() {
        (None, _) => String::new(),
        (Some(false), _) => "NO".to_owned(),
        (Some(true), Some(then)) => format!("yes, {}", if then { "yes" } else { "no" }),
        (Some(true), None) => "yes".to_owned(),
    };
    line(&[
        &format!("{} {}", row.part, row.name),
        row.unit,
        &show(median(&row.ours)),
        &show(median(&row.peer)),
        &row.ratio().map_or(String::new(), |ratio| format!("{ratio:.2}")),
        &row.target.text(),
        &met,
        &row.peer_name,
    ])
}

fn line(cells: &[&str; 8]) -> String {
    let [figure, unit, ours, peer, ratio, target, met, name] = cells;
    format!("{figure:<56} {unit:<6} {ours:>9} {peer:>9} {ratio:>6}  {target:<19} {met:<8} {name}")
        .trim_end()
        .to_owned()
}

/// Three figures or so.
fn number(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// All rows, for programs.
pub fn json(rows: &[Row], rounds: usize, counted_s: f64) -> Value {
    let rows: Vec<Value> = rows.iter().map(Row::json).collect();
    json!({"rounds": rounds, "counted_s": counted_s, "rows": rows})
}

/// Number of targets that are met.
pub fn summary(rows: &[Row]) -> String {
    let met: Vec<bool> = rows.iter().filter_map(|row| row.met().0).collect();
    let then: Vec<bool> = rows.iter().filter_map(|row| row.met().1).collect();
    let count = |all: &[bool]| all.iter().filter(|met| **met).count();
    format!(
        "{} of {} targets met on this machine as busy as it is now; {} of {} of what comes then",
        count(&met),
        met.len(),
        count(&then),
        then.len()
    )
}
