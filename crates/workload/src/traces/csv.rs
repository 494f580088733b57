//! The comma-separated formats: MSR Cambridge, SYSTOR '17, Tencent CBS,
//! Alibaba and SPC (UMass). None says whether somebody waits for a write:
//! `sync` is true for reads and false for writes.

use super::cursor::{Cursor, Fault};
use super::error::Reason;
use super::raw::{Raw, Span, Volumes, plain_name};
use super::text::ParseLine;
use seekway_policy::request::Op;

/// Put a [`Span`]'s or a volume's fault at `column`.
pub(super) fn here<T>(
    cursor: &Cursor<'_>,
    column: usize,
    expected: &'static str,
    result: Result<T, Reason>,
) -> Result<T, Fault> {
    result.map_err(|reason| cursor.fault_at(column, reason, expected))
}

/// Assemble a request of a format that has neither processes nor `sync`.
pub(super) fn data(time_ns: u64, volume: u32, op: Op, span: Span) -> Raw {
    Raw { time_ns, volume, process: 0, op, sync: op == Op::Read, span }
}

/// A line whose first byte is a letter or `#`: a header.
fn is_header(line: &[u8]) -> bool {
    line.iter()
        .find(|b| !b.is_ascii_whitespace())
        .is_some_and(|b| b.is_ascii_alphabetic() || *b == b'#')
}

/// `R`, `W`, `Read`, `Write` in any case.
fn read_or_write(cursor: &mut Cursor<'_>) -> Result<Op, Fault> {
    const EXPECTED: &str = "an operation: R, W, Read or Write";
    let column = cursor.pos();
    let word = cursor.word(b',', EXPECTED)?;
    match word {
        b"R" | b"r" => Ok(Op::Read),
        b"W" | b"w" => Ok(Op::Write),
        _ if word.eq_ignore_ascii_case(b"read") => Ok(Op::Read),
        _ if word.eq_ignore_ascii_case(b"write") => Ok(Op::Write),
        _ => Err(cursor.fault_at(column, Reason::UnknownOp, EXPECTED)),
    }
}

const OFFSET: &str = "an offset in bytes";
const LENGTH: &str = "a length in bytes, not zero";
const COMMA: &str = "a comma";
const VOLUMES: &str = "at most 65,536 volumes";

/// MSR Cambridge (SNIA): `Timestamp,Hostname,Disk,Type,Offset,Size,ResponseTime`;
/// time in units of 100 ns since 1601, offset and size in bytes.
pub(super) struct Msr;

impl ParseLine for Msr {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        if is_header(line) {
            return Ok(None);
        }
        let mut c = Cursor::new(line);
        let ticks = c.u64("a time in units of 100 ns")?;
        let time =
            here(&c, 0, "a time below 584 years", ticks.checked_mul(100).ok_or(Reason::Overflow))?;
        c.sep(b',', COMMA)?;
        let from = c.pos();
        c.word(b',', "a host name")?;
        c.sep(b',', COMMA)?;
        c.u64("a disk number")?;
        let key = c.since(from);
        c.sep(b',', COMMA)?;
        let op = read_or_write(&mut c)?;
        c.sep(b',', COMMA)?;
        let column = c.pos();
        let offset = c.u64(OFFSET)?;
        c.sep(b',', COMMA)?;
        let len = c.u64(LENGTH)?;
        if !c.at_end() {
            c.sep(b',', COMMA)?;
            c.u64("a response time")?;
            c.end()?;
        }
        let span = here(&c, column, LENGTH, Span::bytes(offset, len))?;
        let name = |key: &[u8]| plain_name(key).replace(',', "_");
        let volume = here(&c, from, VOLUMES, volumes.intern(key, name))?;
        Ok(Some(data(time, volume, op, span)))
    }
}

/// SYSTOR '17 (SNIA): `Timestamp,Response,IOType,LUN,Offset,Size`; seconds and
/// bytes. Written in the order of completion: not sorted by time.
pub(super) struct Systor;

impl ParseLine for Systor {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        if is_header(line) {
            return Ok(None);
        }
        let mut c = Cursor::new(line);
        let time = c.decimal(9, "a time in seconds")?;
        c.sep(b',', COMMA)?;
        // Some rows of the published traces have no response time.
        if c.peek() != Some(b',') {
            c.decimal(9, "a response time in seconds")?;
        }
        c.sep(b',', COMMA)?;
        let op = read_or_write(&mut c)?;
        c.sep(b',', COMMA)?;
        let from = c.pos();
        c.u64("a LUN")?;
        let lun = c.since(from);
        c.sep(b',', COMMA)?;
        let column = c.pos();
        let offset = c.u64(OFFSET)?;
        c.sep(b',', COMMA)?;
        let len = c.u64(LENGTH)?;
        c.end()?;
        let span = here(&c, column, LENGTH, Span::bytes(offset, len))?;
        let name = |key: &[u8]| format!("lun{}", plain_name(key));
        let volume = here(&c, from, VOLUMES, volumes.intern(lun, name))?;
        Ok(Some(data(time, volume, op, span)))
    }
}

/// Tencent CBS: `Timestamp,Offset,Size,IOType,VolumeID`; whole seconds, sectors
/// of 512 bytes, 0 is a read and 1 a write.
pub(super) struct Tencent;

impl ParseLine for Tencent {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        if is_header(line) {
            return Ok(None);
        }
        let mut c = Cursor::new(line);
        let time = c.decimal(9, "a time in seconds")?;
        c.sep(b',', COMMA)?;
        let column = c.pos();
        let start = c.u64("an offset in sectors")?;
        c.sep(b',', COMMA)?;
        let len = c.u64("a length in sectors, not zero")?;
        c.sep(b',', COMMA)?;
        let op = match c.u64("0 for a read or 1 for a write")? {
            0 => Op::Read,
            1 => Op::Write,
            _ => {
                return Err(c.fault_at(
                    c.pos() - 1,
                    Reason::UnknownOp,
                    "0 for a read or 1 for a write",
                ));
            }
        };
        c.sep(b',', COMMA)?;
        let from = c.pos();
        c.u64("a volume number")?;
        let key = c.since(from);
        c.end()?;
        let span = here(&c, column, "a length in sectors, not zero", Span::sectors(start, len))?;
        let volume = here(&c, from, VOLUMES, volumes.intern(key, plain_name))?;
        Ok(Some(data(time, volume, op, span)))
    }
}

/// Alibaba block traces: `device_id,opcode,offset,length,timestamp`; bytes and
/// microseconds.
pub(super) struct Alibaba;

impl ParseLine for Alibaba {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        if is_header(line) {
            return Ok(None);
        }
        let mut c = Cursor::new(line);
        let from = c.pos();
        c.u64("a device number")?;
        let key = c.since(from);
        c.sep(b',', COMMA)?;
        let op = read_or_write(&mut c)?;
        c.sep(b',', COMMA)?;
        let column = c.pos();
        let offset = c.u64(OFFSET)?;
        c.sep(b',', COMMA)?;
        let len = c.u64(LENGTH)?;
        c.sep(b',', COMMA)?;
        let time = c.decimal(3, "a time in microseconds")?;
        c.end()?;
        let span = here(&c, column, LENGTH, Span::bytes(offset, len))?;
        let volume = here(&c, from, VOLUMES, volumes.intern(key, plain_name))?;
        Ok(Some(data(time, volume, op, span)))
    }
}

/// SPC (UMass Financial, WebSearch): `ASU,LBA,Size,Opcode,Timestamp` and then
/// fields of no interest; LBA in sectors of 512 bytes, size in bytes, seconds.
pub(super) struct Spc;

impl ParseLine for Spc {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        if is_header(line) {
            return Ok(None);
        }
        let mut c = Cursor::new(line);
        let from = c.pos();
        c.u64("an application storage unit")?;
        let key = c.since(from);
        c.sep(b',', COMMA)?;
        let column = c.pos();
        let start = c.u64("an LBA")?;
        c.sep(b',', COMMA)?;
        let len = c.u64(LENGTH)?;
        c.sep(b',', COMMA)?;
        let op = read_or_write(&mut c)?;
        c.sep(b',', COMMA)?;
        let time = c.decimal(9, "a time in seconds")?;
        if !c.at_end() {
            c.sep(b',', COMMA)?;
        }
        let offset = start.checked_mul(512).ok_or(Reason::Overflow);
        let span = here(&c, column, LENGTH, offset.and_then(|o| Span::bytes(o, len)))?;
        let name = |key: &[u8]| format!("asu{}", plain_name(key));
        let volume = here(&c, from, VOLUMES, volumes.intern(key, name))?;
        Ok(Some(data(time, volume, op, span)))
    }
}
