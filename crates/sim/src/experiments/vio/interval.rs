//! vio-interval: latency of 1 MiB reads by polling interval (the paper's figure
//! 3), with what polls and events cost on the host.

use super::super::judge::{count, listed, mean};
use super::super::results::{across, by_seed, over};
use super::super::{Figure, Findings, HostSetup, Options, Results, Row};
use super::load::{BASE, Column, Guest, Load, OURS_ON, PAPER_ON, ROOM, VIO_ON, Vm};
use super::measure::{accuracy, array_percent, cost, least, short, speedup, throughput};
use super::rows::asks;
use crate::engine::HostCosts;
use crate::metrics::RunResult;

/// Two polls at the longest interval, and before them the two of every interval
/// in which it settles.
const MILLIS: u64 = 4_000;
const SETTLE_TIMES: u64 = 4;
/// Of the paper's 2, 4, 8 and 16: with 8 the array is as full as with 16.
const COUNTS: [usize; 3] = [2, 4, 16];

const fn every(name: &'static str, prefetch: &'static str) -> Column {
    Column { name, guest: Guest::Window(128), prefetch: Some(prefetch) }
}

/// The paper's rules at the intervals of its figure 3.
const INTERVALS: [(f64, Column); 4] = [
    (0.25, every("0.25 s", "vio:literal=true,interval=250ms")),
    (0.5, PAPER_ON),
    (1.0, every("1 s", "vio:literal=true,interval=1s")),
    (2.0, every("2 s", "vio:literal=true,interval=2s")),
];

pub(super) fn columns() -> Vec<Column> {
    let mut columns = vec![BASE, VIO_ON, OURS_ON];
    columns.extend(INTERVALS.map(|(_, column)| column));
    columns
}

/// Readers of 10 GB files, 1 MiB a call.
pub(super) fn loads(options: &Options) -> Vec<Load> {
    let load = |count: usize| {
        let vm = Vm {
            keys: "image=12GiB,ram=1GiB,vcpus=1,tags=true".into(),
            apps: vec!["fio:rw=read,bs=1MiB,size=10GiB,io_size=1TiB".into()],
        };
        let load = Load::new(format!("{count} VMs"), vec![vm; count], MILLIS, options);
        // The paper's polls pass over all reads since the last one.
        let host = HostSetup { costs: HostCosts::default(), ..load.host };
        let settle = load.settle.scaled(SETTLE_TIMES, 1);
        Load { host, settle, sequential: false, ..load.readers(1).with(ROOM) }
    };
    COUNTS.map(load).into()
}

/// Mean time of a read of 1 MiB, ms: each VM has one under way at any time.
fn latency_ms(results: &Results, load: &Load, column: Column) -> Vec<f64> {
    let vms = load.vms.len() as f64;
    results.each(load, column, |r| 1000.0 * vms / throughput(r, load))
}

pub(super) fn interval_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let loads = loads(options);
    for load in &loads {
        for (seconds, column) in INTERVALS {
            findings.rows.push(interval_row(results, load, seconds, column));
        }
        findings.rows.push(best_row(results, load));
    }
    findings.rows.extend(asks(results, &loads));
    findings.rows.push(accuracy_row(results, &loads));
    findings.figures.push(lines(results, &loads));
    findings
}

fn interval_row(results: &Results, load: &Load, seconds: f64, column: Column) -> Row {
    let values = latency_ms(results, load, column);
    let of = |figure: fn(&RunResult) -> f64| short(results.mean(load, column, figure));
    let host = |r: &RunResult| {
        let busy = r.host.as_ref().map_or(0.0, |host| host.busy.as_secs_f64());
        100.0 * busy / r.simulated.as_secs_f64()
    };
    let why = format!(
        "{}; {}× the baseline's throughput; accuracy {} %, cost {} %, {} % of the array, host thread \
         busy {} %",
        column.form(),
        short(mean(&speedup(results, load, column))),
        of(accuracy),
        of(cost),
        of(array_percent),
        of(host),
    );
    let name = format!("{}, every {seconds} s: mean time of 1 MiB", load.name);
    Row::measured(name, &values, "ms", why)
}

/// Is half a second the best of the intervals?
fn best_row(results: &Results, load: &Load) -> Row {
    let all = INTERVALS.map(|(seconds, column)| (seconds, latency_ms(results, load, column)));
    let half = latency_ms(results, load, PAPER_ON);
    let others = all.iter().filter(|(seconds, _)| *seconds != 0.5).map(|(_, v)| v.clone());
    let values = over(&half, &by_seed(&others.collect::<Vec<_>>(), least));
    let right = count(&values, |v| v <= 1.0);
    let why = format!(
        "least at 0.5 s on {right} of {} seeds: {}; {}",
        values.len(),
        listed(&all, |(s, v)| format!("{s} s {} ms", short(mean(v)))),
        PAPER_ON.form()
    );
    let name = format!("{}: time at 0.5 s over the best other's", load.name);
    let row = Row::measured(name, &values, "×", why).ordered(right, values.len());
    Row { paper: Some(1.0), ..row }
}

/// The paper: an interval of a second and more costs accuracy.
fn accuracy_row(results: &Results, loads: &[Load]) -> Row {
    let of = |column: Column| across(loads, |load| results.each(load, column, accuracy));
    let values = over(&of(INTERVALS[3].1), &of(PAPER_ON));
    let right = count(&values, |v| v < 1.0);
    let why = format!(
        "less on {right} of {} seeds: {}; the paper's rules and no others",
        values.len(),
        listed(INTERVALS, |(seconds, column)| {
            format!("{seconds} s {} %", short(mean(&of(column))))
        })
    );
    let name = "accuracy at 2 s over that at 0.5 s";
    Row::measured(name, &values, "×", why).ordered(right, values.len())
}

fn lines(results: &Results, loads: &[Load]) -> Figure {
    let of = |load: &Load| {
        let at = |(seconds, column)| (seconds, mean(&latency_ms(results, load, column)));
        (load.name.clone(), INTERVALS.map(at).into())
    };
    let y = ("mean time of a read of 1 MiB", "ms");
    let caption = "Latency by polling interval (figure 3 of the paper).";
    Figure::lines(("polling interval", "s"), y, loads.iter().map(of), caption)
}
