//! The tables of `seekway inspect`.

use super::found::{self, Inspected, InspectedTrace, OpPart, VolumePart, windows_s};
use seekway_report::number::{count, significant, time_ms};
use seekway_report::table::{Cell, Rows, Table};
use std::iter::successors;

/// Sizes of a cache in the table: from this one on, each four times as large.
const CACHE_MIB_LEAST: f64 = 1.0;

pub fn all(inspected: &Inspected) -> Vec<Table> {
    let traces = &inspected.traces[..];
    let parts: Vec<OpRow<'_>> = traces.iter().flat_map(OpRow::all).collect();
    let several = traces.len() > 1;
    let mut tables = vec![reading(traces, several), requests(&parts, several)];
    tables.push(sizes(&parts, several));
    tables.extend(rates(&parts, several));
    tables.extend(depth(traces, several));
    tables.extend(reuse(traces, several));
    tables.extend(volumes(traces, several));
    tables
}

/// The reads, the writes or both of a trace.
struct OpRow<'a> {
    trace: &'a str,
    op: &'static str,
    part: &'a OpPart,
    /// Of all reads and writes.
    share: Option<f64>,
}

impl<'a> OpRow<'a> {
    fn all(t: &'a InspectedTrace) -> [OpRow<'a>; 3] {
        let row = |op, part, share| OpRow { trace: &t.trace, op, part, share };
        let (all, read) = (t.read_share.map(|_| 1.0), t.read_share);
        [
            row("all", &t.all, all),
            row("reads", &t.reads, read),
            row("writes", &t.writes, read.map(|read| 1.0 - read)),
        ]
    }
}

fn share(value: Option<f64>) -> Cell {
    value.map_or(Cell::Absent, Cell::Share)
}

/// A table with the trace's name in front if there are several traces.
fn begun<'a, T>(
    title: &str,
    rows: impl IntoIterator<Item = &'a T>,
    several: bool,
    name: impl FnMut(&'a T) -> &'a str,
) -> Rows<'a, T> {
    Table::of(title, rows).when(several, |rows| rows.text("trace", name))
}

/// Facts about how a trace was read, and doubts.
fn reading(traces: &[InspectedTrace], several: bool) -> Table {
    let mut rows: Vec<(&str, &str, String)> = Vec::new();
    for t in traces {
        let mut row = |what: &'static str, value: String| rows.push((&t.trace, what, value));
        row("format", t.format.clone());
        row("units (time, start, length)", t.units.clone());
        row("span", format!("{} s", significant(t.span_s, 4)));
        if let Some(step) = t.clock_step_ns {
            row("all times are multiples of", time_ms(step as f64 / 1e6));
        }
        if let Some(bytes) = t.aligned_bytes {
            row("all starts and lengths, of", format!("{} bytes", count(bytes)));
        }
        row("volumes", count(t.volumes as u64));
        for (what, number) in [
            ("flushes", t.flushes),
            ("discards", t.discards),
            ("write-zeroes", t.write_zeroes),
            ("rounded to sectors", t.rounded),
            ("moved in time", t.moved),
            ("records skipped", t.skipped),
        ] {
            if number > 0 {
                row(what, count(number));
            }
        }
        t.notes.iter().for_each(|note| row("note", note.clone()));
        t.warnings.iter().for_each(|warning| row("doubt", warning.clone()));
    }
    begun("How it was read", &rows, several, |row| row.0)
        .text("what", |row| row.1)
        .text("value", |row| &row.2)
        .done()
}

fn requests(parts: &[OpRow<'_>], several: bool) -> Table {
    let worst = parts.iter().map(|row| row.part.touched_error).fold(0.0, f64::max);
    let sampled = (worst > 0.0).then(|| {
        format!(
            "touched: by a sample, with a standard error of at most {} %",
            significant(worst * 100.0, 2)
        )
    });
    begun("Requests", parts, several, |row| row.trace)
        .text("operation", |row| row.op)
        .number("requests", "", |row| row.part.requests)
        .number("share", "", |row| share(row.share))
        .number("moved", "MiB", |row| row.part.mib)
        .number("touched", "MiB", |row| row.part.touched_mib)
        .number("sequential", "", |row| share(row.part.sequential_share))
        .notes(sampled)
        .done()
}

fn sizes(parts: &[OpRow<'_>], several: bool) -> Table {
    begun("Sizes", parts, several, |row| row.trace)
        .text("operation", |row| row.op)
        .number("mean", "KiB", |row| row.part.mean_kib)
        .number("p50", "KiB", |row| row.part.p50_kib)
        .number("p99", "KiB", |row| row.part.p99_kib)
        .number("most common", "KiB", |row| row.part.common_sizes.first().map(|size| size.kib))
        .number("its share", "", |row| share(row.part.common_sizes.first().map(|s| s.share)))
        .done()
}

/// Requests and MiB a second.
fn rates(parts: &[OpRow<'_>], several: bool) -> [Table; 2] {
    let windows: Vec<_> = windows_s().enumerate().collect();
    let requests = begun("Requests a second", parts, several, |row| row.trace)
        .text("operation", |row| row.op)
        .number("mean", "", |row| row.part.iops)
        .each(&windows, |rows, (n, seconds)| {
            rows.number(format!("busiest {seconds} s"), "", |row| row.part.busiest[*n].iops)
        })
        .number("busiest second at", "s", |row| row.part.busiest[0].iops_at_s)
        .done();
    let moved = begun("MiB a second", parts, several, |row| row.trace)
        .text("operation", |row| row.op)
        .number("mean", "", |row| row.part.mib_s)
        .each(&windows, |rows, (n, seconds)| {
            rows.number(format!("busiest {seconds} s"), "", |row| row.part.busiest[*n].mib_s)
        })
        .number("busiest second at", "s", |row| row.part.busiest[0].mib_s_at_s)
        .done();
    [requests, moved]
}

fn depth(traces: &[InspectedTrace], several: bool) -> Option<Table> {
    let known: Vec<_> =
        traces.iter().filter_map(|t| Some((t.trace.as_str(), t.depth.as_ref()?))).collect();
    let table = begun("Under way at once, and response times", &known, several, |row| row.0)
        .number("requests", "", |row| row.1.requests)
        .number("mean depth", "", |row| row.1.mean)
        .number("p50", "", |row| row.1.p50)
        .number("p99", "", |row| row.1.p99)
        .number("most", "", |row| row.1.max)
        .number("response p50", "ms", |row| row.1.response_p50_ms)
        .number("p99", "ms", |row| row.1.response_p99_ms)
        .note("p50, p99 and most: found by a request that comes, itself included")
        .done();
    (!known.is_empty()).then_some(table)
}

fn reuse(traces: &[InspectedTrace], several: bool) -> Option<Table> {
    let mut rows: Vec<(&str, f64, Option<f64>)> = Vec::new();
    for t in traces {
        let Some(last) = t.reuse.curve.last() else { continue };
        let sizes = successors(Some(CACHE_MIB_LEAST), |size| Some(size * 4.0));
        for size in sizes {
            rows.push((&t.trace, size, t.reuse.miss_share(size)));
            if size >= last.cache_mib {
                break;
            }
        }
    }
    let sampled = traces.iter().map(|t| t.reuse.sampled_share).fold(1.0, f64::min);
    let table =
        begun("Reads that a cache leaves to the disk", &rows, several, |row| row.0)
            .number("cache", "MiB", |row| row.1)
            .number("misses", "", |row| share(row.2))
            .note("an LRU cache of what is read and written, in blocks of 4 KiB")
            .notes((sampled < 1.0).then(|| {
                format!("by a sample of {} % of the blocks", significant(sampled * 100.0, 2))
            }))
            .done();
    (!rows.is_empty()).then_some(table)
}

fn volumes(traces: &[InspectedTrace], several: bool) -> Option<Table> {
    let mut rows: Vec<(&str, String, &VolumePart)> = Vec::new();
    for t in traces.iter().filter(|t| t.volumes > 1) {
        let named = t.by_volume.iter().map(|v| (v.volume.clone().unwrap_or_default(), v));
        let others = format!("{} others", count((t.volumes - t.by_volume.len()) as u64));
        let others = t.other_volumes.iter().map(|v| (others.clone(), v));
        rows.extend(named.chain(others).map(|(name, v)| (t.trace.as_str(), name, v)));
    }
    let table = begun("Volumes", &rows, several, |row| row.0)
        .text("volume", |row| &row.1)
        .number("requests", "", |row| row.2.requests)
        .number("reads", "", |row| share(found::share(row.2.reads, row.2.reads + row.2.writes)))
        .number("read", "MiB", |row| row.2.read_mib)
        .number("written", "MiB", |row| row.2.written_mib)
        .number("touched", "MiB", |row| row.2.touched_mib)
        .number("sequential", "", |row| share(row.2.sequential_share))
        .number("busiest second", "IOPS", |row| row.2.busiest_iops)
        .done();
    (!rows.is_empty()).then_some(table)
}
