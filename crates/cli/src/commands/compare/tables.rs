//! A comparison as tables.

use crate::json::{
    CompareReport, Operation, Operations, PrivateRun, PrivateVm, Process, Response, Run, Usage,
    Vcpus, Vm, VmCache,
};
use crate::stacks::NO_PREFETCH;
use seekway_report::number::rate_mib_s;
use seekway_report::table::{Cell, Rows, Table};
use seekway_sim::scenario::tables::Values;
use std::collections::BTreeSet;

/// Below totals, with `--fair-to private`.
const PRIVATE_NOTE: &str = "progress: what a VM has over what it has alone on a private disk: n times \
                        slower for n VMs (W/w times for a weight w of W), with an n-th of the \
                        processors' time and of the host cache, under noop. At least 1 if the VM \
                        has 0.98 of what it asks for. mean progress: geometric.";

/// Each VM of each run, the runs of a VM together.
pub fn each_vm(compared: &CompareReport) -> Vec<(&Run, &Vm)> {
    let vms = compared.runs.first().map_or(0, |run| run.vms.len());
    (0..vms).flat_map(|vm| compared.runs.iter().map(move |run| (run, &run.vms[vm]))).collect()
}

/// Adds what a VM, or all of them, got: MiB/s, IOPS and response times; those of reads and writes
/// apart if there are `both`.
fn served<'a, T>(
    table: Rows<'a, T>,
    both: bool,
    of: impl Fn(&'a T) -> (f64, f64, &'a Response, &'a Operations),
) -> Rows<'a, T> {
    // Nothing was answered: only the oldest request that waits is known.
    let some = |row: &'a T, value: f64| (of(row).1 > 0.0).then_some(value);
    table
        .number("bandwidth", "MiB/s", |row| of(row).0)
        .number("IOPS", "", |row| of(row).1)
        .number("response", "ms", |row| some(row, of(row).2.mean))
        .number("p50", "ms", |row| some(row, of(row).2.p50))
        .number("p99", "ms", |row| some(row, of(row).2.p99))
        .number("p99.9", "ms", |row| some(row, of(row).2.p999))
        .number("worst", "ms", |row| of(row).2.max)
        .when(both, |table| {
            let p99 = |op: &Option<Operation>| {
                op.as_ref().filter(|op| op.requests > 0).map(|op| op.response_ms.p99)
            };
            table.number("read p99", "ms", |row| p99(&of(row).3.reads)).number(
                "write p99",
                "ms",
                |row| p99(&of(row).3.writes),
            )
        })
}

/// True if any run has reads and writes.
fn has_both(compared: &CompareReport) -> bool {
    compared.runs.iter().any(|run| run.operations.has_both())
}

/// A figure of reads or writes: its heading, its unit, its name in CSV, and what it is.
type OperationFigure = (&'static str, &'static str, &'static str, fn(&Operation) -> f64);

const OPERATION_FIGURES: [OperationFigure; 7] = [
    ("IOPS", "", "iops", |op| op.iops),
    ("bandwidth", "MiB/s", "mib_s", |op| op.mib_s),
    ("response", "ms", "mean_ms", |op| op.response_ms.mean),
    ("p50", "ms", "p50_ms", |op| op.response_ms.p50),
    ("p99", "ms", "p99_ms", |op| op.response_ms.p99),
    ("p99.9", "ms", "p999_ms", |op| op.response_ms.p999),
    ("worst", "ms", "max_ms", |op| op.response_ms.max),
];

/// Adds the figures of reads and of writes as columns of CSV.
pub fn flat_operations<'a, T>(
    table: Rows<'a, T>,
    of: impl Fn(&'a T) -> &'a Operations,
) -> Rows<'a, T> {
    type OfKind = fn(&Operations) -> Option<&Operation>;
    let kinds: [(&str, OfKind); 2] =
        [("read", |of| of.reads.as_ref()), ("write", |of| of.writes.as_ref())];
    table.each(kinds, |table, (kind, of_kind)| {
        table.number(format!("{kind}s"), "", |row| Some(of_kind(of(row))?.requests)).each(
            OPERATION_FIGURES,
            |table, (.., name, figure)| {
                table.number(format!("{kind}_{name}"), "", |row| of_kind(of(row)).map(figure))
            },
        )
    })
}

/// One line for reads and one for writes of each run, and of each VM of several; none where no run
/// has both.
pub fn by_operation(compared: &CompareReport) -> Option<Table> {
    if !has_both(compared) {
        return None;
    }
    let whole = compared.runs.iter().map(|run| (run, "all", &run.operations));
    let vms = each_vm(compared).into_iter().map(|(run, vm)| (run, &*vm.name, &vm.operations));
    let vms = vms.filter(|(run, ..)| run.vms.len() > 1);
    let rows = whole.chain(vms).flat_map(|(run, vm, both)| {
        let both = [("reads", &both.reads), ("writes", &both.writes)];
        both.into_iter().filter_map(move |(name, op)| Some((run, vm, name, op.as_ref()?)))
    });
    let rows: Vec<(&Run, &str, &str, &Operation)> = rows.collect();
    let table = Table::of("Reads and writes", &rows)
        .text("VM", |(_, vm, ..)| *vm)
        .text(compared.names.heading(), |(run, ..)| &run.label)
        .text("operation", |(.., name, _)| *name)
        .each(OPERATION_FIGURES, |table, (name, unit, _, figure)| {
            table.number(name, unit, |(.., op)| figure(op))
        });
    Some(table.done())
}

pub fn totals(compared: &CompareReport) -> Table {
    let table = Table::of(format!("All VMs together on {}", compared.device), &compared.runs)
        .text(compared.names.heading(), |run| &run.label);
    let private = has_private(compared);
    served(table, has_both(compared), |run| {
        (run.mib_s, run.iops, &run.response_ms, &run.operations)
    })
    .number("service", "ms", |run| run.service_ms.mean)
    .number("seeks at 0", "", |run| Cell::Share(run.zero_seek_share))
    .number("φ", "", |run| run.phi)
    .number("Jain", "", |run| run.jain)
    .number("max-min", "", |run| run.max_min_share)
    .when(private, |table| {
        table
            .text("least progress", |run| {
                let private = run.private.as_ref()?;
                let (least, vm) = private.least_progress.zip(private.least_progress_vm.as_ref())?;
                Some(format!("{least:.2} ({vm})"))
            })
            .number("mean progress", "", |run| run.private.as_ref()?.mean_progress)
    })
    .note(
        "response: mean from submission to completion, with the wait at a limit. service: mean \
             time of a command on the disk. φ (VMCD): smaller is fairer; Jain: 1 is fair; max-min: \
             what the worst VM got of its max-min share, 1 is fair.",
    )
    .notes(compared.no_fairness.iter().map(|why| format!("No φ, Jain, max-min: {why}.")))
    .notes(compared.demand_note)
    .notes(private.then_some(PRIVATE_NOTE))
    .note(&compared.same)
    .done()
}

/// Was every VM also run on its private disk?
pub fn has_private(compared: &CompareReport) -> bool {
    compared.runs.iter().any(|run| run.private.is_some())
}

/// True if any VM's load was over before its run was.
pub fn ended_early(compared: &CompareReport) -> bool {
    compared.runs.iter().flat_map(|run| &run.vms).any(|vm| vm.ended_s.is_some())
}

pub fn by_vm(compared: &CompareReport) -> Table {
    let rows = each_vm(compared);
    let ended_early = ended_early(compared);
    let knows_alone = rows.iter().any(|(_, vm)| vm.demand_mib_s.is_some());
    let (of_demand, note) = match compared.is_open_loop {
        true => ("of offered", "of offered: bandwidth over that with which its requests come."),
        false => ("of alone", "of alone: bandwidth over that alone on the disk."),
    };
    let table = Table::of("Each VM", &rows)
        .text("VM", |(_, vm)| &vm.name)
        .text(compared.names.heading(), |(run, _)| &run.label);
    served(table, has_both(compared), |(_, vm)| {
        (vm.mib_s, vm.iops, &vm.response_ms, &vm.operations)
    })
    .when(knows_alone, |table| {
        table.number(of_demand, "", |(_, vm)| Some(vm.mib_s / vm.demand_mib_s?))
    })
    .number("disk time", "", |(_, vm)| Cell::Share(vm.device_time_share))
    .when(has_private(compared), |table| {
        table.number("progress", "", |(_, vm)| vm.private.as_ref()?.progress).number(
            "p99 over private",
            "",
            |(_, vm)| vm.private.as_ref()?.p99_over_private,
        )
    })
    .when(ended_early, |table| table.number("ended", "s", |(_, vm)| vm.ended_s))
    .note(
        "bandwidth and IOPS: up to the VM's own last completion, or over the whole run where \
             its requests were left waiting. response, p50, p99: of answered requests; worst: also \
             of those that wait at the end. disk time: its share of the time that the disk worked.",
    )
    .notes(knows_alone.then_some(note))
    .notes(ended_early.then_some(
        "ended: the VM's load was over at this time, before the run was; its bandwidth and \
             IOPS are over the time until then.",
    ))
    .done()
}

/// Time withheld by cause, where any run withheld any.
pub fn withheld(compared: &CompareReport) -> Option<Table> {
    let held = |run: &Run, why: &str| run.held_ms.get(why).copied().unwrap_or(0.0);
    let some = |run: &Run| run.held_ms.clone().into_iter().filter(|&(_, held)| held > 0.0);
    let causes: BTreeSet<&str> =
        compared.runs.iter().flat_map(|run| some(run).map(|(why, _)| why)).collect();
    if causes.is_empty() {
        return None;
    }
    let waiting = compared.runs.iter().filter(|run| run.waits.tried > 0);
    let table = Table::of("Disk time withheld on purpose, by cause", waiting)
        .text(compared.names.heading(), |run| &run.label)
        .each(causes, |table, why| table.number(why, "ms", |run| held(run, why)))
        .number("of the run", "", |run| {
            let total: f64 = run.held_ms.values().sum();
            Cell::Share(total / 1e3 / run.simulated_s.max(f64::MIN_POSITIVE))
        })
        .number("waits", "", |run| run.waits.tried)
        .number("paid", "", |run| {
            Cell::Share(run.waits.paid as f64 / run.waits.tried.max(1) as f64)
        })
        .note("paid: the wait ended early, with a request that came during it.");
    Some(table.done())
}

// A table as typed columns.

/// The table's columns under their headings: text, whole numbers, or numbers; `None` where a cell
/// is absent. Shares are parts of one.
pub fn of(table: Table) -> Vec<(String, Values)> {
    let Table { columns, rows, .. } = table;
    let cells = |n: usize| rows.iter().map(|row| row.get(n).unwrap_or(&Cell::Absent)).collect();
    columns.into_iter().enumerate().map(|(n, column)| (column.name, values(cells(n)))).collect()
}

fn values(cells: Vec<&Cell>) -> Values {
    let whole = |cell: &&Cell| matches!(cell, Cell::Count(_) | Cell::Absent);
    if cells.iter().any(|cell| text(cell).is_some()) {
        return Values::Text(cells.into_iter().map(text).collect());
    }
    if cells.iter().all(whole) && cells.iter().any(|cell| matches!(cell, Cell::Count(_))) {
        let count = |cell: &Cell| if let Cell::Count(n) = cell { Some(*n) } else { None };
        return Values::Count(cells.into_iter().map(count).collect());
    }
    Values::Number(cells.into_iter().map(Cell::number).collect())
}

fn text(cell: &Cell) -> Option<&str> {
    match cell {
        Cell::Text(text) | Cell::Badge { text, .. } => Some(text),
        _ => None,
    }
}

// A comparison as CSV.

/// A run, or a VM of it.
struct Line<'a> {
    /// The scenario that it is of.
    scenario: Option<&'a str>,
    run: &'a Run,
    vm: Option<&'a Vm>,
}

impl<'a> Line<'a> {
    /// A figure that both have.
    fn of<T>(&self, run: fn(&'a Run) -> T, vm: fn(&'a Vm) -> T) -> T {
        self.vm.map_or_else(|| run(self.run), vm)
    }

    /// A figure of the whole run.
    fn whole<T>(&self, figure: fn(&'a Run) -> T) -> Option<T> {
        self.vm.is_none().then(|| figure(self.run))
    }

    fn response(&self) -> &'a Response {
        self.of(|run| &run.response_ms, |vm| &vm.response_ms)
    }

    fn usage(&self) -> Option<&'a Usage> {
        self.of(|run| Some(&run.host.as_ref()?.usage), |vm| Some(&vm.cache.as_ref()?.usage))
    }

    fn private_vm(&self) -> Option<&'a PrivateVm> {
        self.vm?.private.as_ref()
    }

    fn private_run(&self) -> Option<&'a PrivateRun> {
        self.whole(|run| run.private.as_ref()).flatten()
    }
}

/// One line for each run and VM.
pub fn flat(all: &[&CompareReport]) -> Table {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for compared in all {
        let scenario = compared.scenario.as_deref();
        for run in &compared.runs {
            lines.push(Line { scenario, run, vm: None });
            lines.extend(run.vms.iter().map(|vm| Line { scenario, run, vm: Some(vm) }));
        }
    }
    let has_cache = lines.iter().any(|line| line.run.host.is_some());
    let has_private = all.iter().any(|compared| has_private(compared));
    let table = Table::of("", &lines)
        .text("policy", |line| &line.run.stack.policy)
        .text("vm", |line| line.of(|_| "all", |vm| &vm.name))
        .number("seed", "", |line| line.run.seed)
        .number("requests", "", |line| line.of(|run| run.requests, |vm| vm.requests))
        .number("iops", "", |line| line.of(|run| run.iops, |vm| vm.iops))
        .number("mib_s", "", |line| line.of(|run| run.mib_s, |vm| vm.mib_s))
        .number("mean_ms", "", |line| line.response().mean)
        .number("p50_ms", "", |line| line.response().p50)
        .number("p99_ms", "", |line| line.response().p99)
        .number("p999_ms", "", |line| line.response().p999)
        .number("max_ms", "", |line| line.response().max)
        .number("service_mean_ms", "", |line| line.whole(|run| run.service_ms.mean))
        .number("zero_seek_share", "", |line| line.whole(|run| run.zero_seek_share))
        .number("waits_tried", "", |line| line.whole(|run| run.waits.tried))
        .number("waits_paid", "", |line| line.whole(|run| run.waits.paid))
        .number("phi", "", |line| line.whole(|run| run.phi))
        .number("jain", "", |line| line.whole(|run| run.jain))
        .number("max_min_share", "", |line| line.whole(|run| run.max_min_share))
        .number("ended_s", "", |line| line.of(|_| None, |vm| vm.ended_s))
        .text("prefetch", |line| line.run.stack.cache.prefetch.as_deref().unwrap_or(NO_PREFETCH))
        .each(FIGURES.into_iter().filter(|_| has_cache), |table, figure| {
            let (_, _, name, figure) = figure;
            table.number(name, "", |line| line.usage().map(figure))
        })
        // The other choices of a run, with those left at their defaults.
        .number("cache_mib", "", |line| line.run.stack.cache.cache_mib.unwrap_or(0.0))
        .text("limits", |line| line.run.stack.limits)
        .text("shared_cpus", |line| line.run.stack.shared_cpus.as_deref().unwrap_or("none"))
        .text("vcpu", |line| &line.run.stack.vcpu);
    flat_operations(table, |line| line.of(|run| &run.operations, |vm| &vm.operations))
        .when(has_private, |table| {
            table
                .number("progress", "", |line| line.private_vm()?.progress)
                .number("p99_over_private", "", |line| line.private_vm()?.p99_over_private)
                .number("least_progress", "", |line| line.private_run()?.least_progress)
                .number("mean_progress", "", |line| line.private_run()?.mean_progress)
                .text("least_progress_vm", |line| line.private_run()?.least_progress_vm.as_ref())
        })
        .when(all.iter().any(|compared| compared.scenario.is_some()), |table| {
            table.text("scenario", |line| line.scenario)
        })
        .done()
}

// The table of runs in which VMs shared the host's processors.

/// One line for each VM and run; none where no processors were shared.
pub fn table(compared: &CompareReport) -> Option<Table> {
    let vms = compared.runs.iter().map(|run| run.vcpus.len()).max().filter(|&vms| vms > 0)?;
    let sharing = || compared.runs.iter().filter(|run| !run.vcpus.is_empty());
    let rows: Vec<(&Run, &Vcpus)> =
        (0..vms).flat_map(|vm| sharing().map(move |run| (run, &run.vcpus[vm]))).collect();
    let seconds = |run: &Run| run.simulated_s.max(f64::MIN_POSITIVE);
    let of_vcpus = |time: f64, (run, vm): &(&Run, &Vcpus)| {
        Cell::Share(time / (seconds(run) * f64::from(vm.vcpus)))
    };
    let table = Table::of("VMs that share processors", &rows)
        .text("VM", |(_, vm)| &vm.vm)
        .text(compared.names.heading(), |(run, _)| &run.label)
        .number("applications", "MiB/s", |(_, vm)| vm.app_mib_s)
        .number("wait", "ms", |(_, vm)| vm.wait_ms.mean)
        .number("p99 of waits", "ms", |(_, vm)| vm.wait_ms.p99)
        .number("CPU", "", |row| of_vcpus(row.1.ran_s, row))
        .number("CPU lost", "", |row| of_vcpus(row.1.stolen_s, row))
        .number("moves", "1/s", |(run, vm)| vm.moves as f64 / seconds(run))
        .number("agent", "", |row| of_vcpus(row.1.agent_s, row))
        .note(
            "applications: what they read and wrote, from the guest's page cache or its disk. \
             wait: of a task for the disk, until it ran again. CPU, CPU lost, agent: of its vCPUs' \
             time, what they ran, what they had something to run in and no processor, and what the \
             agent ran.",
        );
    Some(table.done())
}

// The tables of runs with a host cache: what it and its prefetcher gave, all
// together and by process.

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
pub fn cache_totals(compared: &CompareReport) -> Option<Table> {
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
             reads {} at best, measured before the run.",
            rate_mib_s(first.device_mib_s)
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

#[cfg(test)]
mod columns_tests {
    use super::*;
    use seekway_report::table::Column;

    #[test]
    fn columns_have_the_types_of_their_cells() {
        let names = ["what", "n", "x", "none"].map(|name| Column::number(name, ""));
        let mut table = Table::new("", names.into());
        table.push([Cell::Text("a".into()), Cell::Count(3), Cell::Number(0.5), Cell::Absent]);
        table.push([Cell::Absent, Cell::Absent, Cell::Count(2), Cell::Absent]);
        let columns = of(table);
        let [
            (what, Values::Text(texts)),
            (_, Values::Count(counts)),
            (_, Values::Number(numbers)),
            (_, Values::Number(none)),
        ] = &columns[..]
        else {
            panic!("of other types");
        };
        assert_eq!(what, "what");
        assert_eq!(texts.iter().collect::<Vec<_>>(), [Some("a"), None]);
        assert_eq!(counts, &[Some(3), None]);
        assert_eq!(numbers, &[Some(0.5), Some(2.0)]);
        assert_eq!(none, &[None, None]);
    }
}
