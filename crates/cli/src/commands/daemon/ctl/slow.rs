//! `seekway ctl slow`: the last slow requests, and where their time went.

use crate::args::Format;
use crate::{control, output};
use anyhow::Result;
use seekway_hostd::control::{SlowReport, SlowRequestReport};
use seekway_report::table::Table;
use serde_json::Value;

/// Print them, oldest first.
pub fn print(format: Format, over: &str, answer: &Value) -> Result<()> {
    let report: SlowReport = control::read(answer.clone())?;
    let note = match report.requests.len() {
        0 => "none lately",
        _ => {
            "limited: held by rate limits; queued: in the policy's queue, until the device got \
              the first of it; device: from then until it was done. The last hundred of each device \
              are kept."
        }
    };
    let operation = |request: &SlowRequestReport| match request.ok {
        true => request.op.clone(),
        false => format!("{} (failed)", request.op),
    };
    let table = Table::of(format!("Requests that took {over} or longer"), &report.requests)
        .number("ago", "s", |r| r.ago_s)
        .text("disk", |r| &r.disk)
        .text("operation", operation)
        .number("offset", "KiB", |r| r.offset_bytes as f64 / 1024.0)
        .number("size", "KiB", |r| r.len_bytes as f64 / 1024.0)
        .number("took", "ms", |r| r.response_ms)
        .number("limited", "ms", |r| r.limited_ms)
        .number("queued", "ms", |r| r.queued_ms)
        .number("device", "ms", |r| r.device_ms)
        .note(note)
        .done();
    output::print_as(format, &[table], answer)
}
