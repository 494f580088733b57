//! The tables of runs with a host cache: what it and its prefetcher gave, all
//! together and by process.

use super::tables::each_vm;
use crate::json::{CompareReport, Process, Run, Usage, VmCache};
use seekway_report::table::{Cell, Table};

/// A figure of a cache: its heading, its unit, its name in CSV, and what it is.
type UsageFigure = (&'static str, &'static str, &'static str, fn(&Usage) -> Cell);

/// Columns of a cache's tables.
pub const FIGURES: [UsageFigure; 8] = [
    ("hits", "", "hit_share", |u| Cell::Share(u.hit_share)),
    ("late", "", "late_share", |u| Cell::Share(u.late_share)),
    ("accuracy", "", "accuracy", |u| Cell::Share(u.accuracy)),
    ("cost", "", "cost", |u| Cell::Share(u.cost)),
    ("prefetched", "MiB", "prefetched_mib", |u| u.prefetched_mib.into()),
    ("wasted", "MiB", "wasted_mib", |u| u.wasted_mib.into()),
    ("dropped", "MiB", "dropped_mib", |u| u.dropped_mib.into()),
    ("promoted", "", "promoted", |u| u.promoted.into()),
];

/// One line a run with a host cache; none without any.
pub fn totals(compared: &CompareReport) -> Option<Table> {
    let rows: Vec<_> =
        compared.runs.iter().filter_map(|run| Some((run, run.host.as_ref()?))).collect();
    let (_, first) = rows.first()?;
    let title = match rows.iter().all(|(_, host)| host.cache_mib == first.cache_mib) {
        true => format!("Prefetching into a host cache of {:.0} MiB", first.cache_mib),
        false => "Prefetching into host caches".into(),
    };
    let table = Table::of(title, &rows)
        .text(compared.names.heading(), |(run, _)| &run.label)
        .each(FIGURES, |table, (name, unit, _, figure)| {
            table.number(name, unit, |(_, host)| figure(&host.usage))
        })
        .number("host busy", "", |(run, host)| {
            Cell::Share(host.host_busy_s / run.simulated_s.max(f64::MIN_POSITIVE))
        })
        .note(format!(
            "hits, late: shares of what guests read that were in the cache, or on the way to it by \
             a prefetch. accuracy: prefetched and used, of all that was read. cost: prefetched and \
             unused, of all that was read or prefetched. wasted: gone from the cache unused. \
             dropped: taken back because demand wanted the device. promoted: taken over by a \
             guest's read. host busy: the host's thread, with cache and prefetcher. The device \
             reads {:.0} MiB/s at best, measured before the run.",
            first.device_mib_s
        ));
    Some(table.done())
}

/// One line a run, VM and process; none where no process is told apart and no
/// stream is followed.
pub fn by_process(compared: &CompareReport) -> Option<Table> {
    let told_apart = |r: &Run| {
        let mut caches = r.vms.iter().filter_map(|v| v.cache.as_ref());
        caches.any(|c| c.processes.len() > 1 || !c.streams.is_empty())
    };
    if !compared.runs.iter().any(told_apart) {
        return None;
    }
    let mut rows: Vec<(&Run, &str, &VmCache, &Process)> = Vec::new();
    for (run, vm) in each_vm(compared) {
        let Some(cache) = &vm.cache else { continue };
        rows.extend(cache.processes.iter().map(|process| (run, &*vm.name, cache, process)));
    }
    let table = Table::of("Prefetching for each process", &rows)
        .text("VM", |(_, vm, ..)| *vm)
        .text("process", |(.., process)| {
            process.tag.map_or("untagged".into(), |tag| tag.to_string())
        })
        .text(compared.names.heading(), |(run, ..)| &run.label)
        .each(FIGURES, |table, (name, unit, _, figure)| {
            table.number(name, unit, |(.., process)| figure(&process.usage))
        })
        .number("streams", "", |(.., cache, process)| {
            cache.streams.iter().filter(|s| s.tag == process.tag).count()
        })
        .number("S", "", |(.., cache, process)| mean_scale(cache, process))
        .note(
            "streams: followed when the run ended. S: aggressiveness of those among them that are \
             prefetched for, in the mean.",
        );
    Some(table.done())
}

/// Of the process's streams that are prefetched for.
fn mean_scale(cache: &VmCache, process: &Process) -> Option<f64> {
    let armed = cache.streams.iter().filter(|s| s.tag == process.tag && s.armed);
    let scales: Vec<f64> = armed.map(|s| s.scale).collect();
    (!scales.is_empty()).then(|| scales.iter().sum::<f64>() / scales.len() as f64)
}
