//! The rows that every load gets: what the paper claims of it, what is asked of
//! it (experiments.md, VIO, "Accept"), and the other ways beside.

use super::super::judge::mean;
use super::super::{Figure, Findings, Results, Row};
use super::load::{BASE, Column, Load, OURS_ON, PAPER_ON, PROTOCOL_VIO, VIO_ON};
use super::measure::*;

/// With the guest's read-ahead on, no host prefetching may cost more than this.
pub(super) const FLOOR: f64 = 0.98;
/// Asked for where readers wait for a device that has bandwidth to spare.
const GAIN: f64 = 1.15;

/// What the paper says of a load or of the mean of several: vio's speed-up
/// and flashy's, where it gives them.
#[derive(Clone, Copy, Default)]
pub(super) struct Paper {
    pub vio: Option<f64>,
    pub flashy: Option<f64>,
}

impl Paper {
    /// Of one of the ways, whatever the guest does: of the paper's own forms only.
    fn of(self, column: Column) -> Option<f64> {
        match column {
            c if c.is_vio_literal() => self.vio,
            c if c.is_literal() => self.flashy,
            _ => None,
        }
    }
}

/// The speed-up of a form, judged by the paper's where it has one.
fn speed(name: String, column: Column, paper: Paper, values: &[f64]) -> Row {
    let row = match paper.of(column) {
        Some(paper) => Row::factor(name, paper, values),
        None => Row::measured(name, values, "×", "the paper gives no figure of this row"),
    };
    row.because(column.form())
}

/// Every way's speed-up, and what the baseline has.
fn beside(results: &Results, load: &Load, columns: &[Column]) -> String {
    let others = columns.iter().filter(|&&column| column != BASE);
    let one = |&column: &Column| {
        format!("{} {}", column.name, short(mean(&speedup(results, load, column))))
    };
    let others: Vec<String> = others.map(one).collect();
    format!(
        "without {} MiB/s, {} % of the array: {}",
        short(results.mean(load, BASE, |r| throughput(r, load))),
        short(results.mean(load, BASE, array_percent)),
        others.join(", ")
    )
}

/// The rows of one load.
pub(super) fn rows(results: &Results, load: &Load, columns: &[Column], paper: Paper) -> Vec<Row> {
    let mut rows = Vec::new();
    for column in [VIO_ON, OURS_ON] {
        rows.push(asked(results, load, column, paper).because(beside(results, load, columns)));
    }
    rows.push(continuous(results, load));
    for column in [PAPER_ON, PROTOCOL_VIO].into_iter().filter(|column| columns.contains(column)) {
        let values = speedup(results, load, column);
        let name = format!("{}: {}", load.name, column.name);
        rows.push(speed(name, column, paper, &values));
    }
    rows.push(accuracy_row(results, load));
    rows
}

/// A speed-up with the guest's read-ahead on, held to what is asked.
fn asked(results: &Results, load: &Load, column: Column, paper: Paper) -> Row {
    let values = speedup(results, load, column);
    let name = format!("{}: {}", load.name, column.name);
    let row = speed(name, column, paper, &values);
    let above_floor = values.iter().all(|&v| v >= FLOOR);
    let gain_due = load.sequential && has_room(results, load) && is_latency_bound(results, load);
    let enough = above_floor && (!gain_due || mean(&values) >= GAIN);
    let verdict = if enough { "met" } else { "NOT MET" };
    row.accept_if(enough).because(match gain_due {
        true => {
            format!("at least {GAIN} is asked, the readers wait and the array has room: {verdict}")
        }
        false => format!("never below {FLOOR} is asked: {verdict}"),
    })
}

/// Continuous against an interval of half a second, both with our corrections.
fn continuous(results: &Results, load: &Load) -> Row {
    let values = ratio(results, load, OURS_ON, VIO_ON);
    as_good(format!("{}: continuous against 0.5 s", load.name), &values)
}

/// "At least as good": the mean of the ratios, each of one seed, may lack as much
/// as any other row may. The spread over the seeds is told and excuses nothing.
pub(super) fn as_good(name: String, ratios: &[f64]) -> Row {
    let enough = mean(ratios) >= FLOOR;
    let why = format!(
        "{} against {}; as good is a mean of at least {FLOOR}, seed by seed, whatever their \
         spread ({} %): {}",
        OURS_ON.form(),
        VIO_ON.form(),
        short(100.0 * spread(ratios)),
        if enough { "met" } else { "NOT MET" }
    );
    Row::measured(name, ratios, "×", why).accept_if(enough)
}

/// Accuracy of the paper's form; cost and S, and the other forms beside.
fn accuracy_row(results: &Results, load: &Load) -> Row {
    let values = results.each(load, PAPER_ON, accuracy);
    let of = |column: Column| {
        let figure = |f: fn(&crate::metrics::RunResult) -> f64| results.mean(load, column, f);
        format!(
            "{}: accuracy {} %, cost {} %, S {}, {} % of the array",
            column.name,
            short(figure(accuracy)),
            short(figure(cost)),
            short(figure(scale)),
            short(figure(array_percent))
        )
    };
    let why = [PAPER_ON, VIO_ON, OURS_ON].map(of).join("; ");
    Row::measured(format!("{}: accuracy of {}", load.name, PAPER_ON.name), &values, "%", why)
}

/// The mean over several loads, which is what the paper gives.
pub(super) fn means(
    results: &Results,
    what: &str,
    loads: &[Load],
    columns: &[Column],
    paper: Paper,
) -> Vec<Row> {
    let judged = columns.iter().filter(|&&column| column != BASE);
    let row = |&column: &Column| {
        let values = across(loads, |load| speedup(results, load, column));
        speed(format!("{what}: {}", column.name), column, paper, &values)
    };
    judged.map(row).collect()
}

/// Speed-ups of all ways, load by load, beside the paper's.
pub(super) fn figure(
    results: &Results,
    loads: &[Load],
    groups: Vec<String>,
    columns: &[Column],
    caption: &str,
) -> Figure {
    let of = |&column: &Column| {
        let values: Vec<Vec<f64>> =
            loads.iter().map(|load| speedup(results, load, column)).collect();
        bars(column.name, &values)
    };
    let series = columns.iter().filter(|&&c| c != BASE).map(of).collect();
    let axis = ("throughput against the guest's own read-ahead", "×");
    Figure::bars(axis, groups, series, caption)
}

/// All rows and the figure of a sweep whose loads the paper gives no figures of,
/// only of their mean.
pub(super) fn sweep(
    results: &Results,
    loads: &[Load],
    columns: &[Column],
    paper: Paper,
    caption: &str,
) -> Findings {
    let mut findings = Findings::default();
    for load in loads {
        findings.rows.extend(rows(results, load, columns, Paper::default()));
    }
    findings.rows.extend(means(results, "mean", loads, columns, paper));
    let groups = loads.iter().map(|load| load.name.clone()).collect();
    findings.figures.push(figure(results, loads, groups, columns, caption));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_over_the_seeds_excuses_nothing() {
        let accepted = |ratios: &[f64]| as_good(String::new(), ratios).asked == Some(true);
        assert!(!accepted(&[1.0, 0.7, 1.0]));
        assert!(accepted(&[1.0, 0.95, 1.0]) && accepted(&[1.4, 1.0]));
    }
}
