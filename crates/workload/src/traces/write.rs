//! Traces written as CSV, in columns that [`super::table`] reads again without a loss.

use super::{TraceError, TraceReader};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::borrow::Cow;
use std::io::{self, BufWriter, Write};

/// Names of the columns.
const HEADER: &str = "time_ns,op,start_sector,sectors,volume,pid,sync";

/// Why a trace was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// Writes all that `reader` has still to read, packed with gzip if so asked: the number of
/// requests.
pub fn write_csv(
    reader: &mut TraceReader,
    out: &mut dyn Write,
    packed: bool,
) -> Result<u64, WriteError> {
    if !packed {
        return lines(reader, out);
    }
    let mut packer = BufWriter::new(GzEncoder::new(out, Compression::default()));
    let count = lines(reader, &mut packer)?;
    packer.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
    Ok(count)
}

fn lines(reader: &mut TraceReader, out: &mut dyn Write) -> Result<u64, WriteError> {
    let mut count = 0;
    writeln!(out, "{HEADER}")?;
    while let Some(record) = reader.next_record()? {
        let (time, start, sectors) = (record.at.get(), record.start.get(), record.len.get());
        let (op, pid, sync) = (record.op.word(), record.process, u8::from(record.sync));
        let volume = quoted(reader.volume_name(record.volume));
        writeln!(out, "{time},{op},{start},{sectors},{volume},{pid},{sync}")?;
        count += 1;
    }
    Ok(count)
}

/// A name as a field: in quotes if it has a comma or a quote.
fn quoted(name: &str) -> Cow<'_, str> {
    if name.contains([',', '"']) {
        return format!("\"{}\"", name.replace('"', "\"\"")).into();
    }
    name.into()
}
