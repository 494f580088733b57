//! The rows of a load or a sweep: what the paper claims of it, the other ways beside,
//! and what is asked of Seekway's own forms (experiments.md, VIO, "Accept").

use super::super::judge::{listed, mean, range};
use super::super::{Figure, Findings, Results, Row};
use super::load::{BASE, Column, Load, OURS_ON, VIO_ON};
use super::measure::*;
use crate::metrics::RunResult;

/// With the guest's read-ahead on, no host prefetching may cost more than this. We
/// ask this; no paper claims it.
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
pub(super) fn speed(name: String, column: Column, paper: Paper, values: &[f64]) -> Row {
    match paper.of(column) {
        Some(paper) => Row::factor(name, paper, values).because(column.form()),
        None => Row::measured(name, values, "×", column.form()),
    }
}

/// Every way's speed-up, and what the baseline has.
fn beside(results: &Results, load: &Load, columns: &[Column]) -> String {
    let others = columns.iter().filter(|&&column| column != BASE);
    format!(
        "without {} MiB/s, {} % of the array: {}",
        short(results.mean(load, BASE, |r| throughput(r, load))),
        short(results.mean(load, BASE, array_percent)),
        listed(others, |&column| {
            format!("{} {}", column.name, short(mean(&speedup(results, load, column))))
        })
    )
}

/// The paper's form on one load; every other way, accuracy, cost and S beside.
pub(super) fn row(
    results: &Results,
    load: &Load,
    column: Column,
    columns: &[Column],
    paper: Paper,
) -> Row {
    let of = |f: fn(&RunResult) -> f64| short(results.mean(load, column, f));
    let name = format!("{}: {}", load.name, column.name);
    speed(name, column, paper, &speedup(results, load, column))
        .because(beside(results, load, columns))
        .because(format!("accuracy {} %, cost {} %, S {}", of(accuracy), of(cost), of(scale)))
}

/// What is asked of our own forms over several loads, each by its worst load.
pub(super) fn asks(results: &Results, loads: &[Load]) -> Vec<Row> {
    let mut rows: Vec<Row> = [VIO_ON, OURS_ON].map(|c| floor(results, loads, c)).into();
    rows.extend([VIO_ON, OURS_ON].into_iter().filter_map(|c| gain(results, loads, c)));
    rows.push(continuous(results, loads));
    rows
}

/// Of several loads the one with the least value, and its values.
fn worst_load(loads: &[Load], of: impl Fn(&Load) -> Vec<f64>) -> (&Load, Vec<f64>) {
    let all = loads.iter().map(|load| (load, of(load)));
    all.min_by(|a, b| least(&a.1).total_cmp(&least(&b.1))).expect("a load")
}

/// Never below the floor, on any load with any seed. Of loads of [whole files](Load::whole_files) it
/// says by how much the baseline alone differs from one window to the next.
fn floor(results: &Results, loads: &[Load], column: Column) -> Row {
    let of = |load: &Load| speedup(results, load, column);
    let (worst, values) = worst_load(loads, of);
    let missed = listed(loads.iter().filter(|load| least(&of(load)) < FLOOR), |load| {
        let values = of(load);
        format!("{} {} (least {:.3})", load.name, short(mean(&values)), least(&values))
    });
    let row = Row::measured(format!("worst load: {}", column.name), &values, "×", column.form())
        .because(format!("{}, of {} loads", worst.name, loads.len()))
        .ask(missed.is_empty(), &format!("never below {FLOOR} of the guest's own read-ahead"));
    let whole = listed(loads.iter().filter(|load| load.whole_files), |load| {
        let ((least, most), mean) = (range(&chance(results, load)), mean(&of(load)));
        let name = &load.name;
        format!("{name} {mean:.3} (a baseline's next window {least:.2} to {most:.2})")
    });
    let more = [("in the mean", whole), ("below", missed)].into_iter();
    let more = more.filter(|(_, loads)| !loads.is_empty());
    more.fold(row, |row, (what, loads)| row.because(format!("{what}: {loads}")))
}

/// A gain wherever sequential readers wait and the array has room; none if nowhere.
fn gain(results: &Results, loads: &[Load], column: Column) -> Option<Row> {
    let due = |load: &&Load| {
        load.sequential && has_room(results, load) && is_latency_bound(results, load)
    };
    let due: Vec<Load> = loads.iter().filter(due).cloned().collect();
    let of = |load: &Load| mean(&speedup(results, load, column));
    let least = due.iter().min_by(|a, b| of(a).total_cmp(&of(b)))?;
    let name = format!("least gain where readers wait and the array has room: {}", column.name);
    let row = Row::measured(name, &speedup(results, least, column), "×", column.form())
        .because(format!("{}, of {} such loads", least.name, due.len()))
        .ask(of(least) >= GAIN, &format!("at least {GAIN}"));
    Some(row)
}

/// Continuous against an interval of half a second, both with our corrections.
fn continuous(results: &Results, loads: &[Load]) -> Row {
    let of = |load: &Load| ratio(results, load, OURS_ON, VIO_ON);
    let worst = loads.iter().min_by(|a, b| mean(&of(a)).total_cmp(&mean(&of(b)))).expect("a load");
    as_good("worst load: continuous against 0.5 s".into(), &of(worst)).because(format!(
        "{}, of {} loads",
        worst.name,
        loads.len()
    ))
}

/// "At least as good": the mean of the ratios, each of one seed, may lack as much
/// as any other row may. The spread over the seeds is told and excuses nothing.
pub(super) fn as_good(name: String, ratios: &[f64]) -> Row {
    let why = format!("{} against {}", OURS_ON.form(), VIO_ON.form());
    let spread = short(100.0 * spread(ratios));
    Row::measured(name, ratios, "×", why).ask(
        mean(ratios) >= FLOOR,
        &format!("a mean of at least {FLOOR}, seed by seed, whatever their spread ({spread} %)"),
    )
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
    form: Column,
    columns: &[Column],
    paper: Paper,
    caption: &str,
) -> Findings {
    let mut findings = Findings::default();
    let one = |load| row(results, load, form, columns, Paper::default());
    findings.rows.extend(loads.iter().map(one));
    findings.rows.extend(means(results, "mean", loads, columns, paper));
    findings.rows.extend(asks(results, loads));
    let groups = loads.iter().map(|load| load.name.clone()).collect();
    findings.figures.push(figure(results, loads, groups, columns, caption));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_over_the_seeds_excuses_nothing() {
        let met = |ratios: &[f64]| as_good(String::new(), ratios).asked == Some(true);
        assert!(!met(&[1.0, 0.7, 1.0]));
        assert!(met(&[1.0, 0.95, 1.0]) && met(&[1.4, 1.0]));
    }
}
