//! Traces given as text.

use seekway_workload::traces::{Record, TraceError, TraceOptions, TraceReader};
use std::io::Cursor;

/// Each record as `show` writes it.
pub fn read_with(
    text: &str,
    options: &TraceOptions,
    show: impl Fn(&Record, &str) -> String,
) -> Result<Vec<String>, TraceError> {
    let input = Box::new(Cursor::new(text.as_bytes().to_vec()));
    let mut reader = TraceReader::from_read("t", input, options)?;
    let mut lines = Vec::new();
    while let Some(record) = reader.next_record()? {
        lines.push(show(&record, reader.volume_name(record.volume)));
    }
    Ok(lines)
}

/// Operation and place of a record.
pub fn operation(record: &Record) -> String {
    let sync = if record.sync { " sync" } else { "" };
    format!("{}{sync} {}+{}", record.op.letter(), record.start, record.len)
}
