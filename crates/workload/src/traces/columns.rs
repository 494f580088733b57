//! The formats with columns: blkreplay (`;`), and by blanks FIU, MQSim, DiskSim's
//! own and the DiskSim validation traces.

use super::cursor::Fault;
use super::error::Reason;
use super::raw::{Raw, Span, Volumes, plain_name};
use super::text::ParseLine;
use super::text::{BLANK, Extent, Key, Row, SEMICOLON};
use seekway_core::request::Op;

const SECTOR: &str = "a sector number";
const LENGTH: &str = "a length in sectors, not zero";

/// blkreplay `.load`: prose and a header line, then
/// `start ; sector ; sectors ; op ; replay_delay ; replay_duration`; seconds
/// and sectors of 512 bytes. The op can be blkparse's RWBS field: `R`, `W` or
/// `D` (discard), then `A` (read-ahead), `S` (sync), `M` (metadata), `F` (FUA).
#[derive(Default)]
pub(super) struct Blkreplay {
    /// A request has been seen: from there on everything must be one.
    begun: bool,
}

impl ParseLine for Blkreplay {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let mut row = Row::new(line, SEMICOLON);
        let time = row.decimal(9, "a time in seconds");
        let (time, column) = match time.and_then(|time| Ok((time, row.next()?))) {
            // Prose may begin with a number, but not with "number ;".
            Err(_) if !self.begun => return Ok(None),
            time => time?,
        };
        let start = row.c.u64(SECTOR)?;
        let extent = Extent { column, start, len: row.u64(LENGTH)?, expected: LENGTH };
        let (at, word) = row.word(RWBS)?;
        let (op, sync) = match word.split_first() {
            Some((b'R' | b'r', flags)) if is_rwbs(flags) => (Op::Read, true),
            Some((b'W' | b'w', flags)) if is_rwbs(flags) => (Op::Write, flags.contains(&b'S')),
            Some((b'D' | b'd', flags)) if is_rwbs(flags) => (Op::Discard, flags.contains(&b'S')),
            _ => return Err(row.c.fault_at(at, Reason::UnknownOp, RWBS)),
        };
        if !row.c.at_end() {
            row.next()?;
        }
        let volume = (Key::NONE, plain_name);
        let raw = row.request((time, op), (extent, Span::sectors), volume, volumes)?;
        self.begun = true;
        Ok(Some(Raw { sync, ..raw }))
    }
}

const RWBS: &str = "R, W or D";

fn is_rwbs(flags: &[u8]) -> bool {
    flags.iter().all(|b| matches!(b, b'A' | b'S' | b'M' | b'F'))
}

/// FIU (SNIA IODedup): `ts_ns pid process lba sectors W|R major minor md5`.
/// The process id is kept; its name may contain blanks. The volume is `major,minor`.
pub(super) struct Fiu;

impl ParseLine for Fiu {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let mut row = Row::new(line, BLANK);
        let time = row.u64("a time in nanoseconds")?;
        let at = row.next()?;
        let pid = u32::try_from(row.c.u64("a process id")?).map_err(|_| Reason::Overflow);
        let process = row.check(at, "a process id of 32 bits", pid)?;
        row.word("a process name")?;
        let name_end = row;
        let (extent, op) = match fiu_request(&mut row) {
            Ok(request) => request,
            Err(fault) => {
                // A name may have blanks: it ends where a request follows.
                let request;
                (row, request) = after_longer_name(name_end).ok_or(fault)?;
                request
            }
        };
        let from = row.next()?;
        row.c.u64("a major device number")?;
        row.u64("a minor device number")?;
        let key = row.key_from(from);
        if !row.c.at_end() {
            row.c.word(b' ', "an MD5 digest")?;
            row.c.end()?;
        }
        let name = |key: &[u8]| plain_name(key).split_whitespace().collect::<Vec<_>>().join(",");
        let raw = row.request((time, op), (extent, Span::sectors), (key, name), volumes)?;
        Ok(Some(Raw { process, ..raw }))
    }
}

/// Parses the request in a line of FIU: `lba sectors W|R`.
fn fiu_request(row: &mut Row<'_>) -> Result<(Extent, Op), Fault> {
    let extent = row.extent(SECTOR, LENGTH)?;
    let (at, word) = row.word("R or W")?;
    match word {
        b"R" | b"r" => Ok((extent, Op::Read)),
        b"W" | b"w" => Ok((extent, Op::Write)),
        _ => Err(row.c.fault_at(at, Reason::UnknownOp, "R or W")),
    }
}

/// The request behind a name of which `row` has read one word, and the row behind that; `None`
/// when there is none at all.
#[cold]
fn after_longer_name(mut row: Row<'_>) -> Option<(Row<'_>, (Extent, Op))> {
    loop {
        row.word("a process name").ok()?;
        let mut ahead = row;
        if let Ok(request) = fiu_request(&mut ahead) {
            return Some((ahead, request));
        }
    }
}

/// MQSim's ASCII traces: `time_ns device lba sectors type`, 0 is a write and 1
/// a read.
pub(super) struct Mqsim;

impl ParseLine for Mqsim {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        const EXPECTED: &str = "0 for a write or 1 for a read";
        let mut row = Row::new(line, BLANK);
        let time = row.u64("a time in nanoseconds")?;
        let key = row.key("a device number")?;
        let extent = row.extent(SECTOR, LENGTH)?;
        let at = row.next()?;
        let op = match row.c.u64(EXPECTED)? {
            0 => Op::Write,
            1 => Op::Read,
            _ => return Err(row.c.fault_at(at, Reason::UnknownOp, EXPECTED)),
        };
        row.c.end()?;
        row.request((time, op), (extent, Span::sectors), (key, plain_name), volumes).map(Some)
    }
}

/// DiskSim's ASCII traces: `time_ms device block blocks flags`, blocks of 512 bytes. Of the flags,
/// in hexadecimal, the lowest bit is a read's.
pub(super) struct DisksimAscii;

impl ParseLine for DisksimAscii {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        const EXPECTED: &str = "flags in hexadecimal, of which bit 0 is a read's";
        let mut row = Row::new(line, BLANK);
        let time = row.decimal(6, "a time in milliseconds")?;
        let key = row.key("a device number")?;
        let extent = row.extent(SECTOR, LENGTH)?;
        let (at, word) = row.word(EXPECTED)?;
        let digits = word.strip_prefix(b"0x").unwrap_or(word);
        let flags = std::str::from_utf8(digits).ok().filter(|d| !d.starts_with('+'));
        let flags = flags.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let flags = flags.ok_or_else(|| row.c.fault_at(at, Reason::Malformed, EXPECTED))?;
        row.c.end()?;
        let op = if flags & 1 == 1 { Op::Read } else { Op::Write };
        row.request((time, op), (extent, Span::sectors), (key, plain_name), volumes).map(Some)
    }
}

/// DiskSim's validation traces of real drives:
/// `R|W Hit|Miss lbn sectors service_us gap_us`, the gap from this request to
/// the next. The measured service time is not used here.
#[derive(Default)]
pub(super) struct Disksim {
    /// Time at which the next request is due: the sum of the gaps until now.
    clock_ns: u64,
}

impl ParseLine for Disksim {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let mut row = Row::new(line, BLANK);
        let op = match row.word("R or W")?.1 {
            b"R" => Op::Read,
            b"W" => Op::Write,
            _ => return Err(row.c.fault_at(0, Reason::UnknownOp, "R or W")),
        };
        let (at, word) = row.word("Hit or Miss")?;
        if !matches!(word, b"Hit" | b"Miss") {
            return Err(row.c.fault_at(at, Reason::Malformed, "Hit or Miss"));
        }
        let extent = row.extent(SECTOR, LENGTH)?;
        row.decimal(3, "a service time in microseconds")?;
        let at = row.next()?;
        let gap = row.c.decimal(3, "a gap in microseconds")?;
        row.c.end()?;
        let (time, volume) = (self.clock_ns, (Key::NONE, plain_name));
        let raw = row.request((time, op), (extent, Span::sectors), volume, volumes)?;
        let next = time.checked_add(gap).ok_or(Reason::Overflow);
        self.clock_ns = row.check(at, "a time below 584 years", next)?;
        Ok(Some(raw))
    }
}
