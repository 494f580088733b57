//! The comma-separated formats: MSR Cambridge, SYSTOR '17, Tencent CBS,
//! Alibaba and SPC (UMass). None says whether somebody waits for a write:
//! `sync` is true for reads and false for writes. A program may have rewritten a file: quotes,
//! tabs or semicolons, `4096.0`, and a comma at the end are read, too.

use super::cursor::Fault;
use super::cursor::{Field, Separator, split};
use super::error::Reason;
use super::layout::is_comment;
use super::raw::{Raw, Span, Volumes, plain_name};
use super::text::ParseLine;
use super::text::{COMMA, Row};
use seekway_core::request::Op;
use seekway_core::units::SECTOR_BYTES;

const OFFSET: &str = "an offset in bytes";
const LENGTH: &str = "a length in bytes, not zero";

/// A format, by what reads a line of it that is no header.
pub(super) struct Csv<F> {
    read: F,
    /// A line that is no comment has been seen.
    begun: bool,
    /// Files that were put one behind the other have it again.
    header: Option<Vec<u8>>,
}

impl<F> Csv<F> {
    pub(super) const fn new(read: F) -> Csv<F> {
        Csv { read, begun: false, header: None }
    }
}

impl<F> ParseLine for Csv<F>
where
    F: Fn(&mut Row<'_>, &mut Volumes) -> Result<Raw, Fault> + Send,
{
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        if is_comment(line) || self.header.as_deref() == Some(line) {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.begun, true) && is_header(line) {
            self.header = Some(line.into());
            return Ok(None);
        }
        let parsed = (self.read)(&mut Row::new(line, COMMA), volumes);
        let parsed = parsed.or_else(|fault| match plain(line) {
            // Places of faults are those of the line as it stands in the file.
            Some(line) => (self.read)(&mut Row::new(&line, COMMA), volumes).map_err(|_| fault),
            None => Err(fault),
        });
        parsed.map(Some)
    }

    fn is_header(&self, line: &[u8]) -> bool {
        self.header.as_deref() == Some(line)
    }
}

/// A line that begins with a letter, but for a quote, and has no number: a header.
fn is_header(line: &[u8]) -> bool {
    let first = line.iter().find(|b| !b.is_ascii_whitespace() && **b != b'"');
    let mut fields = line.split(|b| matches!(b, b',' | b'\t' | b';' | b'|' | b'"'));
    let is_number = |field: &[u8]| Field { column: 0, bytes: field.trim_ascii() }.whole("").is_ok();
    first.is_some_and(u8::is_ascii_alphabetic) && !fields.any(is_number)
}

/// A header of as many columns as any of the formats has.
pub(super) fn is_table(line: &[u8]) -> bool {
    is_header(line) && line.iter().filter(|b| matches!(b, b',' | b'\t' | b';' | b'|')).count() > 3
}

/// The line as its format has it, if a program has rewritten it.
#[cold]
fn plain(line: &[u8]) -> Option<Vec<u8>> {
    let of_line = Separator::ALL.into_iter().find(|separator| match separator {
        Separator::Byte(byte) => line.contains(byte),
        Separator::Blanks => false,
    })?;
    let mut fields = Vec::new();
    split(line, of_line, &mut fields).ok()?;
    let mut plain = Vec::with_capacity(line.len());
    for (n, field) in fields.iter().enumerate() {
        plain.extend_from_slice(if n > 0 { b"," } else { b"" });
        // A whole number of a data frame; blkreplay's seconds, between semicolons, are none.
        let zeros = field.bytes.iter().rev().take_while(|b| **b == b'0').count();
        let (whole, fraction) = field.bytes.split_at(field.bytes.len() - zeros);
        plain.extend_from_slice(match whole.strip_suffix(b".") {
            Some(whole) if !fraction.is_empty() && of_line == Separator::Byte(b',') => whole,
            _ => field.bytes,
        });
    }
    (plain != line).then_some(plain)
}

/// `R`, `W`, `Read`, `Write` in any case.
fn read_or_write(row: &mut Row<'_>) -> Result<Op, Fault> {
    const EXPECTED: &str = "an operation: R, W, Read or Write";
    let (column, word) = row.word(EXPECTED)?;
    match word {
        b"R" | b"r" => Ok(Op::Read),
        b"W" | b"w" => Ok(Op::Write),
        _ if word.eq_ignore_ascii_case(b"read") => Ok(Op::Read),
        _ if word.eq_ignore_ascii_case(b"write") => Ok(Op::Write),
        _ => Err(row.c.fault_at(column, Reason::UnknownOp, EXPECTED)),
    }
}

/// MSR Cambridge (SNIA): `Timestamp,Hostname,Disk,Type,Offset,Size,ResponseTime`;
/// time in units of 100 ns since 1601, offset and size in bytes.
pub(super) fn msr(row: &mut Row<'_>, volumes: &mut Volumes) -> Result<Raw, Fault> {
    let ticks = row.u64("a time in units of 100 ns")?;
    let time = ticks.checked_mul(100).ok_or(Reason::Overflow);
    let time = row.check(0, "a time below 584 years", time)?;
    let (from, _) = row.word("a host name")?;
    row.u64("a disk number")?;
    let key = row.key_from(from);
    let op = read_or_write(row)?;
    let extent = row.extent(OFFSET, LENGTH)?;
    let mut ticks = 0;
    if !row.c.at_end() {
        ticks = row.decimal(0, "a response time")?;
        row.c.end()?;
    }
    let name = |key: &[u8]| plain_name(key).replace(',', "_");
    let raw = row.request((time, op), (extent, Span::bytes), (key, name), volumes)?;
    Ok(Raw { took_ns: ticks.saturating_mul(100), ..raw })
}

/// SYSTOR '17 (SNIA): `Timestamp,Response,IOType,LUN,Offset,Size`; seconds and
/// bytes. Written in the order of completion: not sorted by time.
pub(super) fn systor(row: &mut Row<'_>, volumes: &mut Volumes) -> Result<Raw, Fault> {
    let time = row.decimal(9, "a time in seconds")?;
    row.next()?;
    // Some rows of the published traces have no response time.
    let took_ns = match row.c.peek() {
        Some(b',') => 0,
        _ => row.c.decimal(9, "a response time in seconds")?,
    };
    let op = read_or_write(row)?;
    let key = row.key("a LUN")?;
    let extent = row.extent(OFFSET, LENGTH)?;
    row.c.end()?;
    let name = |key: &[u8]| format!("lun{}", plain_name(key));
    let raw = row.request((time, op), (extent, Span::bytes), (key, name), volumes)?;
    Ok(Raw { took_ns, ..raw })
}

/// Tencent CBS: `Timestamp,Offset,Size,IOType,VolumeID`; whole seconds, sectors
/// of 512 bytes, 0 is a read and 1 a write.
pub(super) fn tencent(row: &mut Row<'_>, volumes: &mut Volumes) -> Result<Raw, Fault> {
    const EXPECTED: &str = "0 for a read or 1 for a write";
    let time = row.decimal(9, "a time in seconds")?;
    let extent = row.extent("an offset in sectors", "a length in sectors, not zero")?;
    let op = match row.u64(EXPECTED)? {
        0 => Op::Read,
        1 => Op::Write,
        _ => return Err(row.c.fault_at(row.c.pos() - 1, Reason::UnknownOp, EXPECTED)),
    };
    let key = row.key("a volume number")?;
    row.c.end()?;
    row.request((time, op), (extent, Span::sectors), (key, plain_name), volumes)
}

/// Alibaba block traces: `device_id,opcode,offset,length,timestamp`; bytes and
/// microseconds.
pub(super) fn alibaba(row: &mut Row<'_>, volumes: &mut Volumes) -> Result<Raw, Fault> {
    let key = row.key("a device number")?;
    let op = read_or_write(row)?;
    let extent = row.extent(OFFSET, LENGTH)?;
    let time = row.decimal(3, "a time in microseconds")?;
    row.c.end()?;
    row.request((time, op), (extent, Span::bytes), (key, plain_name), volumes)
}

/// SPC (UMass Financial, WebSearch): `ASU,LBA,Size,Opcode,Timestamp` and then
/// fields of no interest; LBA in sectors of 512 bytes, size in bytes, seconds.
pub(super) fn spc(row: &mut Row<'_>, volumes: &mut Volumes) -> Result<Raw, Fault> {
    let key = row.key("an application storage unit")?;
    let extent = row.extent("an LBA", LENGTH)?;
    let op = read_or_write(row)?;
    let time = row.decimal(9, "a time in seconds")?;
    if !row.c.at_end() {
        row.next()?;
    }
    let span = |sector: u64, len| {
        Span::bytes(sector.checked_mul(SECTOR_BYTES).ok_or(Reason::Overflow)?, len)
    };
    let name = |key: &[u8]| format!("asu{}", plain_name(key));
    row.request((time, op), (extent, span), (key, name), volumes)
}
