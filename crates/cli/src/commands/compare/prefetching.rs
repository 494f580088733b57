//! The tables of runs with a host cache: what it and its prefetcher gave, all
//! together and by process.

use super::tables::label;
use crate::json::{CompareReport, Run, Usage};
use seekway_report::table::{Cell, Column, Table};

fn columns() -> [Column; 8] {
    [
        Column::number("hits", ""),
        Column::number("late", ""),
        Column::number("accuracy", ""),
        Column::number("cost", ""),
        Column::number("prefetched", "MiB"),
        Column::number("wasted", "MiB"),
        Column::number("dropped", "MiB"),
        Column::number("promoted", ""),
    ]
}

fn cells(usage: &Usage) -> [Cell; 8] {
    [
        Cell::Share(usage.hit_share),
        Cell::Share(usage.late_share),
        Cell::Share(usage.accuracy),
        Cell::Share(usage.cost),
        Cell::Number(usage.prefetched_mib),
        Cell::Number(usage.wasted_mib),
        Cell::Number(usage.dropped_mib),
        Cell::Count(usage.promoted),
    ]
}

/// One line a run with a host cache; none without any.
pub fn totals(compared: &CompareReport) -> Option<Table> {
    let first = compared.runs.iter().find_map(|r| r.host.as_ref())?;
    let mut all = vec![Column::text(compared.names.heading())];
    all.extend(columns());
    all.push(Column::number("host busy", ""));
    let mut sizes = compared.runs.iter().filter_map(|r| r.host.as_ref()).map(|h| h.cache_mib);
    let title = match sizes.all(|mib| mib == first.cache_mib) {
        true => format!("Prefetching into a host cache of {:.0} MiB", first.cache_mib),
        false => "Prefetching into host caches".into(),
    };
    let mut table = Table::new(title, all);
    for run in &compared.runs {
        let Some(host) = &run.host else { continue };
        let mut row = vec![Cell::Text(label(&compared.runs, run))];
        row.extend(cells(&host.usage));
        row.push(Cell::Share(host.host_busy_s / run.simulated_s.max(f64::MIN_POSITIVE)));
        table.push(row);
    }
    table.notes.push(format!(
        "hits, late: shares of what guests read that were in the cache, or on the way to it by a \
         prefetch. accuracy: prefetched and used, of all that was read. cost: prefetched and \
         unused, of all that was read or prefetched. wasted: gone from the cache unused. dropped: \
         taken back because demand wanted the device. promoted: taken over by a guest's read. \
         host busy: the host's thread, with cache and prefetcher. The device reads {:.0} MiB/s at \
         best, measured before the run.",
        first.device_mib_s
    ));
    Some(table)
}

/// The columns of [`flat`], where any run has a host cache.
pub fn flat_columns(compared: &CompareReport) -> Vec<Column> {
    if compared.runs.iter().all(|r| r.host.is_none()) {
        return Vec::new();
    }
    let numbers = [
        "hit_share",
        "late_share",
        "accuracy",
        "cost",
        "prefetched_mib",
        "wasted_mib",
        "dropped_mib",
        "promoted",
    ];
    numbers.map(|n| Column::number(n, "")).into()
}

/// What a run, or a VM of it, had of the cache, as the columns of [`flat_columns`].
pub fn flat(usage: &Usage) -> Vec<Cell> {
    let plain = |cell| match cell {
        Cell::Share(share) => Cell::Number(share),
        cell => cell,
    };
    cells(usage).map(plain).into()
}

/// One line a run, VM and process; none where no process is told apart and no
/// stream is followed.
pub fn by_process(compared: &CompareReport) -> Option<Table> {
    let mut all = ["VM", "process", compared.names.heading()].map(Column::text).to_vec();
    all.extend(columns());
    all.extend([Column::number("streams", ""), Column::number("S", "")]);
    let mut table = Table::new("Prefetching for each process", all);
    let vms = compared.runs.first().map_or(0, |r| r.vms.len());
    for n in 0..vms {
        for run in &compared.runs {
            let Some(cache) = &run.vms[n].cache else { continue };
            for process in &cache.processes {
                let name = process.tag.map_or("untagged".into(), |t| t.to_string());
                let names = [run.vms[n].name.clone(), name, label(&compared.runs, run)];
                let mut row: Vec<Cell> = names.map(Cell::Text).into();
                row.extend(cells(&process.usage));
                let streams = || cache.streams.iter().filter(|s| s.tag == process.tag);
                let armed: Vec<f64> = streams().filter(|s| s.armed).map(|s| s.scale).collect();
                row.push(Cell::Count(streams().count() as u64));
                let mean = armed.iter().sum::<f64>() / armed.len().max(1) as f64;
                row.push(if armed.is_empty() { Cell::Absent } else { Cell::Number(mean) });
                table.push(row);
            }
        }
    }
    let note = "streams: followed when the run ended. S: aggressiveness of those among them that \
                are prefetched for, in the mean.";
    table.notes.push(note.into());
    let told_apart = |r: &Run| {
        let mut caches = r.vms.iter().filter_map(|v| v.cache.as_ref());
        caches.any(|c| c.processes.len() > 1 || !c.streams.is_empty())
    };
    compared.runs.iter().any(told_apart).then_some(table)
}
