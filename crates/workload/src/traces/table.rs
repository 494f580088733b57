//! Tables whose header names the columns and their units, or whose columns the user lists: a CSV
//! of one's own, libCacheSim's, and what biosnoop (bcc, bpftrace) and iosnoop print.

use super::cursor::{Fault, Field, Separator, split_to};
use super::error::Reason;
use super::layout::{Fixed, Header, Layout};
use super::layout::{OpKind, is_comment};
use super::raw::{Named, Raw, Span, Volumes, plain_name};
use super::text::{Head, ParseLine};
use super::{TraceError, TraceOptions, TraceReader, layout, raw};
use flate2::Compression;
use flate2::write::GzEncoder;
use seekway_core::request::Op;
use seekway_core::units::SECTOR_BYTES;
use std::borrow::Cow;
use std::io;
use std::io::{BufWriter, Write};

/// The parser of all tables. Its columns are known after [`ParseLine::begin`].
pub(super) struct Table {
    fixed: Fixed,
    layout: Option<Layout>,
    /// Lines that have been seen, up to the header.
    seen: usize,
    /// Where a line is put together from several fields.
    key: Vec<u8>,
    also: Option<Raw>,
    /// The last line was a header.
    was_header: bool,
}

impl Table {
    /// Units as the header has them.
    pub(super) fn named() -> Table {
        Table {
            fixed: Fixed::default(),
            layout: None,
            seen: 0,
            key: Vec::new(),
            also: None,
            was_header: false,
        }
    }

    /// libCacheSim's `version,time,op,size,lbn`: seconds, bytes and sectors (its FAQ).
    pub(super) fn cachesim() -> Table {
        let fixed = Fixed { time: Some(9), start: Some(512), length: Some(1) };
        Table { fixed, ..Table::named() }
    }

    /// Table of biosnoop or iosnoop: sectors of 512 bytes, whatever the column is called.
    pub(super) fn snoop() -> Table {
        let fixed = Fixed { time: None, start: Some(512), length: Some(1) };
        Table { fixed, ..Table::named() }
    }
}

const OTHER_TIME: &str = "a time in the unit that the first rows tell; say by --columns, in place \
                          of this column, time_s, time_ms, time_us or time_ns";
const OTHER_UNIT: &str = "whole sectors in bytes, as in the first rows; say by --columns, in place \
                          of this column, offset_bytes or sector, size_bytes or sectors";
const TRUTH: &str = "0, 1, true or false";
const EXPECTED_OP: &str = "an operation such as R, write, WS or 2a";

impl ParseLine for Table {
    fn begin(&mut self, head: &Head<'_>, options: &TraceOptions) -> Result<(), String> {
        let lines = layout::lines(head.bytes, head.whole);
        self.layout = Some(match &options.columns {
            Some(list) => layout::given(list, &lines)?,
            None => {
                let header = Header::find(&lines).ok_or(
                    "no header names a time, an offset and a size; list the columns with \
                     --columns, such as time_us,op,offset_bytes,size_bytes,volume",
                )?;
                header.layout(&lines, &self.fixed)?
            }
        });
        Ok(())
    }

    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let Some(layout) = &self.layout else { return Ok(None) };
        self.was_header = false;
        if self.seen < layout.lines_before {
            self.seen += 1;
            // Where the user has named the columns, the last line before the rows may be a comment.
            self.was_header =
                self.seen == layout.lines_before && (layout.exact || !is_comment(line));
            return Ok(None);
        }
        if is_comment(line) {
            return Ok(None);
        }
        let mut fields = Vec::with_capacity(layout.names.len() + 1);
        split_to(line, layout.separator, layout.names.len(), &mut fields)?;
        layout.unglue(&mut fields)?;
        let fields = match layout.aligned(fields, line.len())? {
            Some(fields) => fields,
            None => return Ok(None),
        };
        // Files that were put one behind the other have their header again.
        if fields[layout.time].bytes == layout.names[layout.time].as_bytes() {
            self.was_header = true;
            return Ok(None);
        }
        let (raw, also) = layout.request(&fields, line, &mut self.key, volumes)?;
        self.also = also;
        Ok(raw)
    }

    fn is_header(&self, _line: &[u8]) -> bool {
        self.was_header
    }

    fn also(&mut self) -> Option<Raw> {
        self.also.take()
    }

    fn units(&self) -> Option<String> {
        self.layout.as_ref().map(Layout::units)
    }
}

impl Layout {
    /// Parts bytes from the milliseconds behind them: bcc's biosnoop prints `%-7s%7.2f`, which
    /// leaves no blank in `10485761234.56`.
    fn unglue(&self, fields: &mut Vec<Field<'_>>) -> Result<(), Fault> {
        /// Of bytes, and of milliseconds with their point and fraction.
        const DIGITS: usize = 7;
        const EXPECTED: &str = "bytes, a blank and milliseconds";
        let behind = self.names.len() - self.length - 1;
        let (Some(_), true, Some(at)) =
            (self.command, behind > 0, fields.len().checked_sub(behind))
        else {
            return Ok(());
        };
        let Field { column, bytes } = fields[at];
        let point = bytes.iter().position(|b| *b == b'.').unwrap_or(0);
        // Nothing takes 115 days.
        if point < 2 * DIGITS - 3 || !bytes[..point].iter().all(u8::is_ascii_digit) {
            return Ok(());
        }
        let is_end = |end: &usize| {
            let size = Field { column, bytes: &bytes[..*end] }.whole("");
            size.is_ok_and(|size| size.is_multiple_of(512)) && bytes[*end] != b'0'
        };
        let mut ends = (DIGITS..=point + 3 - DIGITS).filter(is_end);
        match (ends.next(), ends.next()) {
            (Some(end), None) => {
                let (size, time) = bytes.split_at(end);
                fields[at] = Field { column: column + end, bytes: time };
                fields.insert(at, Field { column, bytes: size });
                Ok(())
            }
            _ => Err(fields[at].fault(EXPECTED)),
        }
    }

    /// The fields of a row in their columns. `None` for a row that names no disk: a flush of
    /// biosnoop's.
    fn aligned<'a>(
        &self,
        mut fields: Vec<Field<'a>>,
        line_len: usize,
    ) -> Result<Option<Vec<Field<'a>>>, Fault> {
        let (has, needs) = (fields.len(), self.names.len());
        if has == needs || (has > needs && !self.exact) {
            return Ok(Some(fields));
        }
        match self.command {
            // The name of a process has blanks.
            Some(at) if self.separator == Separator::Blanks && has > needs => {
                fields.drain(at + 1..=at + has - needs);
                Ok(Some(fields))
            }
            Some(_) if self.separator == Separator::Blanks && has + 1 == needs => Ok(None),
            _ => {
                let column = fields.get(needs).map_or(line_len, |field| field.column);
                let found = Some(format!("{has} fields where the header has {needs}"));
                let reason = if has < needs { Reason::Missing } else { Reason::Malformed };
                Err(Fault { reason, column, expected: "as many fields as the header", found })
            }
        }
    }

    /// The request of a row, and the one that comes with it: the data behind a flush.
    fn request(
        &self,
        fields: &[Field<'_>],
        line: &[u8],
        key: &mut Vec<u8>,
        volumes: &mut Volumes,
    ) -> Result<(Option<Raw>, Option<Raw>), Fault> {
        let time = &fields[self.time];
        let time_ns = time.scaled((1, self.time_scale), true, "a time as a number")?;
        if !(self.time_within.0..=self.time_within.1).contains(&time_ns) {
            return Err(time.fault_of(Reason::Malformed, OTHER_TIME));
        }
        let mut named = self.operation(fields)?;
        let length = match fields[self.length].bytes {
            [] if named.op.is_none() => 0,
            _ => fields[self.length].scaled((self.length_unit, 0), false, "a size, not zero")?,
        };
        // biosnoop has flushes as requests of no bytes.
        if length == 0 && named.op.is_some() && self.separator == Separator::Blanks {
            named = Named { flush: true, op: None, sync: true };
        }
        if named == Named::NONE {
            return Ok((None, None));
        }
        let in_parts = |at: &&usize| {
            fields[**at].whole("").is_ok_and(|bytes| !bytes.is_multiple_of(SECTOR_BYTES))
        };
        if named.op.is_some()
            && let Some(at) = self.taken_as_bytes.iter().find(in_parts)
        {
            return Err(fields[*at].fault_of(Reason::Malformed, OTHER_UNIT));
        }
        let span = match named.op {
            None => Span::NONE,
            Some(_) => {
                let start = &fields[self.start];
                let offset = start.scaled((self.start_unit, 0), false, "an offset")?;
                let span = Span::bytes(offset, length);
                span.map_err(|reason| {
                    let at = if length == 0 { &fields[self.length] } else { start };
                    at.fault_of(reason, "an extent with a size that is not zero")
                })?
            }
        };
        let process = match self.process.map(|at| &fields[at]) {
            Some(field) => field.whole("").ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            None => 0,
        };
        key.clear();
        for (n, at) in self.volumes.iter().enumerate() {
            key.extend_from_slice(if n > 0 { b"_" } else { b"" });
            key.extend_from_slice(fields[*at].bytes);
        }
        let name = |key: &[u8]| plain_name(key).replace("\"\"", "\"");
        let number = volumes.intern(key, name).map_err(|reason| {
            let column = self.volumes.first().map_or(0, |at| fields[*at].column).min(line.len());
            Fault { reason, column, expected: "at most 65,536 volumes", found: None }
        })?;
        let waits = self.waits(fields)?;
        let raw = |op, sync, span| {
            let sync = op == Op::Read || waits.unwrap_or(sync);
            Raw { time_ns, took_ns: 0, volume: number, process, op, sync, span }
        };
        Ok(named.requests(span, raw))
    }

    fn operation(&self, fields: &[Field<'_>]) -> Result<Named, Fault> {
        let Some((at, kind)) = self.op else {
            return Ok(Named { flush: false, op: Some(Op::Read), sync: true });
        };
        let field = &fields[at];
        let unknown = |expected| match field.bytes {
            [] => field.fault(expected),
            _ => field.fault_of(Reason::UnknownOp, expected),
        };
        let OpKind::Bool { write } = kind else {
            return raw::named(field.bytes).ok_or_else(|| unknown(EXPECTED_OP));
        };
        let yes = truth(field.bytes).ok_or_else(|| unknown(TRUTH))?;
        let op = if yes == write { Op::Write } else { Op::Read };
        Ok(Named { flush: false, op: Some(op), sync: op == Op::Read })
    }

    /// Does somebody wait for the request? `None` if its row does not say.
    fn waits(&self, fields: &[Field<'_>]) -> Result<Option<bool>, Fault> {
        let Some(field) = self.sync.map(|at| &fields[at]).filter(|f| !f.bytes.is_empty()) else {
            return Ok(None);
        };
        truth(field.bytes).map(Some).ok_or_else(|| field.fault(TRUTH))
    }
}

/// A field that says yes or no.
fn truth(bytes: &[u8]) -> Option<bool> {
    match bytes.to_ascii_lowercase().as_slice() {
        b"1" | b"1.0" | b"true" | b"t" | b"yes" | b"y" => Some(true),
        b"0" | b"0.0" | b"false" | b"f" | b"no" | b"n" => Some(false),
        _ => None,
    }
}

// Traces written as CSV, in columns that a table reads again without a loss.

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
