//! A comparison as tables.

use crate::json::{CompareReport, Response, Run, Vm};
use seekway_report::table::{Cell, Rows, Table};
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

/// Adds what a VM, or all of them, got: MiB/s, IOPS and response times.
fn served<'a, T>(
    table: Rows<'a, T>,
    of: impl Fn(&'a T) -> (f64, f64, &'a Response),
) -> Rows<'a, T> {
    table
        .number("bandwidth", "MiB/s", |row| of(row).0)
        .number("IOPS", "", |row| of(row).1)
        .number("response", "ms", |row| of(row).2.mean)
        .number("p50", "ms", |row| of(row).2.p50)
        .number("p99", "ms", |row| of(row).2.p99)
        .number("p99.9", "ms", |row| of(row).2.p999)
        .number("worst", "ms", |row| of(row).2.max)
}

pub fn totals(compared: &CompareReport) -> Table {
    let table = Table::of(format!("All VMs together on {}", compared.device), &compared.runs)
        .text(compared.names.heading(), |run| &run.label);
    let private = has_private(compared);
    served(table, |run| (run.mib_s, run.iops, &run.response_ms))
        .number("service", "ms", |run| run.service_ms.mean)
        .number("seeks at 0", "", |run| Cell::Share(run.zero_seek_share))
        .number("φ", "", |run| run.phi)
        .number("Jain", "", |run| run.jain)
        .number("max-min", "", |run| run.max_min_share)
        .when(private, |table| {
            table
                .text("least progress", |run| {
                    let private = run.private.as_ref()?;
                    let (least, vm) =
                        private.least_progress.zip(private.least_progress_vm.as_ref())?;
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
    let table = Table::of("Each VM", &rows)
        .text("VM", |(_, vm)| &vm.name)
        .text(compared.names.heading(), |(run, _)| &run.label);
    served(table, |(_, vm)| (vm.mib_s, vm.iops, &vm.response_ms))
        .number("disk time", "", |(_, vm)| Cell::Share(vm.device_time_share))
        .when(has_private(compared), |table| {
            table
                .number("progress", "", |(_, vm)| vm.private.as_ref()?.progress)
                .number("p99 over private", "", |(_, vm)| vm.private.as_ref()?.p99_over_private)
        })
        .when(ended_early, |table| table.number("ended", "s", |(_, vm)| vm.ended_s))
        .note(
            "bandwidth and IOPS: up to the VM's own last completion, or over the whole run where \
             its requests were left waiting. disk time: its share of the time that the disk worked.",
        )
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
