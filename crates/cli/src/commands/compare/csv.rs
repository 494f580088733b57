//! A comparison as CSV.

use super::prefetching;
use super::tables::{has_private, number};
use crate::caching::NO_PREFETCH;
use crate::json::{CompareReport, Response, Stack, Usage};
use seekway_report::table::{Cell, Column, Table};

/// One line for each run and VM.
pub fn flat(compared: &CompareReport) -> Table {
    let text = ["policy", "vm"].map(Column::text);
    let numbers = [
        "seed",
        "requests",
        "iops",
        "mib_s",
        "mean_ms",
        "p50_ms",
        "p99_ms",
        "p999_ms",
        "max_ms",
        "service_mean_ms",
        "zero_seek_share",
        "waits_tried",
        "waits_paid",
        "phi",
        "jain",
        "max_min_share",
        "ended_s",
    ];
    let mut columns: Vec<Column> = text.into();
    columns.extend(numbers.map(|n| Column::number(n, "")));
    let ended = columns.len() - 1;
    columns.push(Column::text("prefetch"));
    columns.extend(prefetching::flat_columns(compared));
    let chosen = columns.len();
    columns.push(Column::number("cache_mib", ""));
    columns.extend(["limits", "shared_cpus", "vcpu"].map(Column::text));
    let private = has_private(compared);
    if private {
        let names = ["progress", "p99_over_private", "least_progress", "mean_progress"];
        columns.extend(names.map(|name| Column::number(name, "")));
        columns.push(Column::text("least_progress_vm"));
    }
    let mut table = Table::new("", columns);
    for run in &compared.runs {
        let figures = |requests: u64, iops, mib_s, r: &Response| {
            [Cell::Count(run.seed), Cell::Count(requests)]
                .into_iter()
                .chain([iops, mib_s, r.mean, r.p50, r.p99, r.p999, r.max].map(Cell::Number))
                .collect::<Vec<_>>()
        };
        let row_of =
            |name: &str| vec![Cell::Text(run.stack.policy.clone()), Cell::Text(name.to_string())];
        let end = |mut row: Vec<Cell>, ended_s: Option<f64>, usage: Option<&Usage>| {
            row.resize(ended, Cell::Absent);
            row.push(number(ended_s));
            let prefetch = run.stack.cache.prefetch.clone();
            row.push(Cell::Text(prefetch.unwrap_or_else(|| NO_PREFETCH.into())));
            row.extend(usage.map(prefetching::flat).unwrap_or_default());
            row.resize(chosen, Cell::Absent);
            row.extend(stack(&run.stack));
            row
        };
        let mut row = row_of("all");
        row.extend(figures(run.requests, run.iops, run.mib_s, &run.response_ms));
        row.extend([Cell::Number(run.service_ms.mean), Cell::Number(run.zero_seek_share)]);
        row.extend([Cell::Count(run.waits.tried), Cell::Count(run.waits.paid)]);
        row.extend([run.phi, run.jain, run.max_min_share].map(number));
        let mut row = end(row, None, run.host.as_ref().map(|host| &host.usage));
        if let Some(p) = &run.private {
            row.extend([Cell::Absent, Cell::Absent]);
            row.extend([p.least_progress, p.mean_progress].map(number));
            row.push(p.least_progress_vm.clone().map_or(Cell::Absent, Cell::Text));
        }
        table.push(row);
        for vm in &run.vms {
            let mut row = row_of(&vm.name);
            row.extend(figures(vm.requests, vm.iops, vm.mib_s, &vm.response_ms));
            let mut row = end(row, vm.ended_s, vm.cache.as_ref().map(|cache| &cache.usage));
            if let Some(p) = &vm.private {
                row.extend([p.progress, p.p99_over_private].map(number));
                row.extend([Cell::Absent, Cell::Absent, Cell::Absent]);
            }
            table.push(row);
        }
    }
    table
}

/// What a run chose besides its policy and prefetcher, what it did not choose too.
fn stack(stack: &Stack) -> [Cell; 4] {
    [
        Cell::Number(stack.cache.cache_mib.unwrap_or(0.0)),
        Cell::Text(stack.limits.into()),
        Cell::Text(stack.shared_cpus.clone().unwrap_or_else(|| "none".into())),
        Cell::Text(stack.vcpu.clone()),
    ]
}
