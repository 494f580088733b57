//! A comparison as tables.

use crate::json::{CompareReport, Response, Run};
use seekway_report::table::{Cell, Column, Table};
use std::collections::BTreeSet;

/// Below totals, with `--fair-to private`.
const PRIVATE_NOTE: &str = "progress: what a VM has over what it has alone on a private disk: n times \
                        slower for n VMs (W/w times for a weight w of W), with an n-th of the \
                        processors' time and of the host cache, under noop. At least 1 if the VM \
                        has 0.98 of what it asks for. mean progress: geometric.";

/// The run's name, and the seed where there are several.
pub fn label(runs: &[Run], run: &Run) -> String {
    let several = runs.iter().any(|r| r.seed != runs[0].seed);
    if several { format!("{} #{}", run.label, run.seed) } else { run.label.clone() }
}

pub fn number(value: Option<f64>) -> Cell {
    value.map_or(Cell::Absent, Cell::Number)
}

/// What a VM, or all of them, got: the columns that both tables have.
fn served_columns() -> [Column; 7] {
    [
        Column::number("bandwidth", "MiB/s"),
        Column::number("IOPS", ""),
        Column::number("response", "ms"),
        Column::number("p50", "ms"),
        Column::number("p99", "ms"),
        Column::number("p99.9", "ms"),
        Column::number("worst", "ms"),
    ]
}

fn served(mib_s: f64, iops: f64, r: &Response) -> [Cell; 7] {
    [mib_s, iops, r.mean, r.p50, r.p99, r.p999, r.max].map(Cell::Number)
}

pub fn totals(compared: &CompareReport) -> Table {
    let mut columns = vec![Column::text(compared.names.heading())];
    columns.extend(served_columns());
    columns.extend([
        Column::number("service", "ms"),
        Column::number("seeks at 0", ""),
        Column::number("φ", ""),
        Column::number("Jain", ""),
        Column::number("max-min", ""),
    ]);
    let private = has_private(compared);
    if private {
        columns.extend([Column::text("least progress"), Column::number("mean progress", "")]);
    }
    let mut table = Table::new(format!("All VMs together on {}", compared.device), columns);
    for run in &compared.runs {
        let mut row = vec![Cell::Text(label(&compared.runs, run))];
        row.extend(served(run.mib_s, run.iops, &run.response_ms));
        row.extend([
            Cell::Number(run.service_ms.mean),
            Cell::Share(run.zero_seek_share),
            number(run.phi),
            number(run.jain),
            number(run.max_min_share),
        ]);
        if let Some(p) = run.private.as_ref().filter(|_| private) {
            let worst = p.least_progress.zip(p.least_progress_vm.as_ref());
            row.push(worst.map_or(Cell::Absent, |(x, vm)| Cell::Text(format!("{x:.2} ({vm})"))));
            row.push(number(p.mean_progress));
        }
        table.push(row);
    }
    table.notes.push(
        "response: mean from submission to completion, with the wait at a limit. service: mean \
         time of a command on the disk. φ (VMCD): smaller is fairer; Jain: 1 is fair; max-min: \
         what the worst VM got of its max-min share, 1 is fair."
            .into(),
    );
    table
        .notes
        .extend(compared.no_fairness.iter().map(|why| format!("No φ, Jain, max-min: {why}.")));
    table.notes.extend(compared.demand_note.map(str::to_string));
    table.notes.extend(private.then(|| PRIVATE_NOTE.to_string()));
    table.notes.push(compared.same.clone());
    table
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
    let mut columns = vec![Column::text("VM"), Column::text(compared.names.heading())];
    columns.extend(served_columns());
    columns.push(Column::number("disk time", ""));
    if has_private(compared) {
        columns.extend(["progress", "p99 over private"].map(|name| Column::number(name, "")));
    }
    let ended_early = ended_early(compared);
    columns.extend(ended_early.then(|| Column::number("ended", "s")));
    let mut table = Table::new("Each VM", columns);
    let vms = compared.runs.first().map_or(0, |r| r.vms.len());
    for vm in 0..vms {
        for run in &compared.runs {
            let v = &run.vms[vm];
            let names = [v.name.clone(), label(&compared.runs, run)];
            let mut row: Vec<Cell> = names.map(Cell::Text).into();
            row.extend(served(v.mib_s, v.iops, &v.response_ms));
            row.push(Cell::Share(v.device_time_share));
            let private = v.private.iter().flat_map(|p| [p.progress, p.p99_over_private]);
            row.extend(private.map(number));
            row.extend(ended_early.then(|| number(v.ended_s)));
            table.push(row);
        }
    }
    table.notes.push(
        "bandwidth and IOPS: up to the VM's own last completion, or over the whole run where its \
         requests were left waiting. disk time: its share of the time \
         that the disk worked."
            .into(),
    );
    if ended_early {
        table.notes.push(
            "ended: the VM's load was over at this time, before the run was; its bandwidth and \
             IOPS are over the time until then."
                .into(),
        );
    }
    table
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
    let mut columns = vec![Column::text(compared.names.heading())];
    columns.extend(causes.iter().map(|why| Column::number(*why, "ms")));
    columns.extend([
        Column::number("of the run", ""),
        Column::number("waits", ""),
        Column::number("paid", ""),
    ]);
    let mut table = Table::new("Disk time withheld on purpose, by cause", columns);
    for run in compared.runs.iter().filter(|r| r.waits.tried > 0) {
        let total: f64 = run.held_ms.values().sum();
        let mut row = vec![Cell::Text(label(&compared.runs, run))];
        row.extend(causes.iter().map(|why| Cell::Number(held(run, why))));
        row.push(Cell::Share(total / 1e3 / run.simulated_s.max(f64::MIN_POSITIVE)));
        row.push(Cell::Count(run.waits.tried));
        row.push(Cell::Share(run.waits.paid as f64 / run.waits.tried.max(1) as f64));
        table.push(row);
    }
    table.notes.push("paid: the wait ended early, with a request that came during it.".into());
    Some(table)
}
