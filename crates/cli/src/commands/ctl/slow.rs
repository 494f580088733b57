//! `seekway ctl slow`: the last slow requests, and where their time went.

use crate::args::Format;
use crate::output;
use anyhow::{Context, Result};
use seekway_hostd::control::{SlowReport, SlowRequestReport};
use seekway_report::table::{Cell, Column, Table};
use serde_json::Value;

/// Print them, oldest first.
pub fn print(format: Format, over: &str, answer: &Value) -> Result<()> {
    let report: SlowReport = serde_json::from_value(answer.clone())
        .context("the daemon's answer is of another version of seekway")?;
    let columns = vec![
        Column::number("ago", "s"),
        Column::text("disk"),
        Column::text("operation"),
        Column::number("offset", "KiB"),
        Column::number("size", "KiB"),
        Column::number("took", "ms"),
        Column::number("limited", "ms"),
        Column::number("queued", "ms"),
        Column::number("device", "ms"),
    ];
    let mut table = Table::new(format!("Requests that took {over} or longer"), columns);
    report.requests.iter().for_each(|request| table.push(row(request)));
    table.notes.push(match report.requests.len() {
        0 => "none lately".into(),
        _ => "limited: held by rate limits; queued: in the policy's queue, until the device got \
              the first of it; device: from then until it was done. The last hundred of each device \
              are kept."
            .into(),
    });
    output::print_as(format, &[table], answer)
}

fn row(request: &SlowRequestReport) -> [Cell; 9] {
    let operation = match request.ok {
        true => request.op.clone(),
        false => format!("{} (failed)", request.op),
    };
    [
        Cell::Number(request.ago_s),
        Cell::Text(request.disk.clone()),
        Cell::Text(operation),
        Cell::Number(request.offset_bytes as f64 / 1024.0),
        Cell::Number(request.len_bytes as f64 / 1024.0),
        Cell::Number(request.response_ms),
        Cell::Number(request.limited_ms),
        Cell::Number(request.queued_ms),
        Cell::Number(request.device_ms),
    ]
}
