//! The formats with columns: blkreplay (`;`), and by blanks FIU, MQSim and the
//! DiskSim validation traces.

use super::csv::{data, here};
use super::cursor::{Cursor, Fault};
use super::error::Reason;
use super::raw::{Raw, Span, Volumes, plain_name};
use super::text::ParseLine;
use seekway_policy::request::Op;

const VOLUMES: &str = "at most 65,536 volumes";
const LENGTH: &str = "a length in sectors, not zero";
const BLANK: &str = "a blank";

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
        let semicolon = "a semicolon";
        let mut c = Cursor::new(line);
        let start = c.decimal(9, "a time in seconds");
        let time = match start.and_then(|time| c.sep(b';', semicolon).map(|()| time)) {
            // Prose may begin with a number, but not with "number ;".
            Err(_) if !self.begun => return Ok(None),
            time => time?,
        };
        let column = c.pos();
        let start = c.u64("a sector number")?;
        c.sep(b';', semicolon)?;
        let len = c.u64(LENGTH)?;
        c.sep(b';', semicolon)?;
        let at = c.pos();
        let (op, sync) = match c.word(b';', RWBS)?.split_first() {
            Some((b'R' | b'r', flags)) if is_rwbs(flags) => (Op::Read, true),
            Some((b'W' | b'w', flags)) if is_rwbs(flags) => (Op::Write, flags.contains(&b'S')),
            Some((b'D' | b'd', flags)) if is_rwbs(flags) => (Op::Discard, flags.contains(&b'S')),
            _ => return Err(c.fault_at(at, Reason::UnknownOp, RWBS)),
        };
        if !c.at_end() {
            c.sep(b';', semicolon)?;
        }
        let span = here(&c, column, LENGTH, Span::sectors(start, len))?;
        let volume = here(&c, 0, VOLUMES, volumes.intern(b"", plain_name))?;
        self.begun = true;
        Ok(Some(Raw { sync, ..data(time, volume, op, span) }))
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
        let mut c = Cursor::new(line);
        let time = c.u64("a time in nanoseconds")?;
        c.space(BLANK)?;
        let at = c.pos();
        let pid = c.u64("a process id")?;
        let process = here(
            &c,
            at,
            "a process id of 32 bits",
            u32::try_from(pid).map_err(|_| Reason::Overflow),
        )?;
        c.space(BLANK)?;
        c.word(b' ', "a process name")?;
        c.space(BLANK)?;
        let mut column = c.pos();
        let mut request = fiu_request(&mut c);
        if let Err(fault) = request {
            // A name may have blanks: it ends where a request follows.
            (c, column, request) = after_longer_name(c, column).ok_or(fault)?;
        }
        let (start, len, op) = request?;
        c.space(BLANK)?;
        let from = c.pos();
        c.u64("a major device number")?;
        c.space(BLANK)?;
        c.u64("a minor device number")?;
        let key = c.since(from);
        if !c.at_end() {
            c.word(b' ', "an MD5 digest")?;
            c.end()?;
        }
        let span = here(&c, column, LENGTH, Span::sectors(start, len))?;
        let name = |key: &[u8]| plain_name(key).split_whitespace().collect::<Vec<_>>().join(",");
        let volume = here(&c, from, VOLUMES, volumes.intern(key, name))?;
        Ok(Some(Raw { process, ..data(time, volume, op, span) }))
    }
}

/// Parses the request in a line of FIU: `lba sectors W|R`.
fn fiu_request(c: &mut Cursor<'_>) -> Result<(u64, u64, Op), Fault> {
    let start = c.u64("a sector number")?;
    c.space(BLANK)?;
    let len = c.u64(LENGTH)?;
    c.space(BLANK)?;
    let at = c.pos();
    let op = match c.word(b' ', "R or W")? {
        b"R" | b"r" => Op::Read,
        b"W" | b"w" => Op::Write,
        _ => return Err(c.fault_at(at, Reason::UnknownOp, "R or W")),
    };
    Ok((start, len, op))
}

type FiuRequest = Result<(u64, u64, Op), Fault>;

/// The request further on in the line, `from` which on there is none, and its
/// first byte; `None` when there is none at all.
#[cold]
fn after_longer_name<'a>(
    mut c: Cursor<'a>,
    from: usize,
) -> Option<(Cursor<'a>, usize, FiuRequest)> {
    c.back_to(from);
    loop {
        c.word(b' ', "a process name").ok()?;
        c.space(BLANK).ok()?;
        let (column, mut ahead) = (c.pos(), c);
        if let Ok(request) = fiu_request(&mut ahead) {
            return Some((ahead, column, Ok(request)));
        }
    }
}

/// MQSim's ASCII traces: `time_ns device lba sectors type`, 0 is a write and 1
/// a read.
pub(super) struct Mqsim;

impl ParseLine for Mqsim {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let mut c = Cursor::new(line);
        let time = c.u64("a time in nanoseconds")?;
        c.space(BLANK)?;
        let from = c.pos();
        c.u64("a device number")?;
        let key = c.since(from);
        c.space(BLANK)?;
        let column = c.pos();
        let start = c.u64("a sector number")?;
        c.space(BLANK)?;
        let len = c.u64(LENGTH)?;
        c.space(BLANK)?;
        let at = c.pos();
        let op = match c.u64("0 for a write or 1 for a read")? {
            0 => Op::Write,
            1 => Op::Read,
            _ => return Err(c.fault_at(at, Reason::UnknownOp, "0 for a write or 1 for a read")),
        };
        c.end()?;
        let span = here(&c, column, LENGTH, Span::sectors(start, len))?;
        let volume = here(&c, from, VOLUMES, volumes.intern(key, plain_name))?;
        Ok(Some(data(time, volume, op, span)))
    }
}

/// DiskSim's validation traces of real drives:
/// `R|W Hit|Miss lbn sectors service_us gap_us`, the gap from this request to
/// the next. The measured service time is not used here.
#[derive(Default)]
pub(super) struct Disksim {
    /// When the next request is due: the sum of the gaps so far.
    clock_ns: u64,
}

impl ParseLine for Disksim {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let mut c = Cursor::new(line);
        let op = match c.word(b' ', "R or W")? {
            b"R" => Op::Read,
            b"W" => Op::Write,
            _ => return Err(c.fault_at(0, Reason::UnknownOp, "R or W")),
        };
        c.space(BLANK)?;
        let at = c.pos();
        if !matches!(c.word(b' ', "Hit or Miss")?, b"Hit" | b"Miss") {
            return Err(c.fault_at(at, Reason::Malformed, "Hit or Miss"));
        }
        c.space(BLANK)?;
        let column = c.pos();
        let start = c.u64("a sector number")?;
        c.space(BLANK)?;
        let len = c.u64(LENGTH)?;
        c.space(BLANK)?;
        c.decimal(3, "a service time in microseconds")?;
        c.space(BLANK)?;
        let at = c.pos();
        let gap = c.decimal(3, "a gap in microseconds")?;
        c.end()?;
        let span = here(&c, column, LENGTH, Span::sectors(start, len))?;
        let next = self.clock_ns.checked_add(gap).ok_or(Reason::Overflow);
        let next = here(&c, at, "a time below 584 years", next)?;
        let volume = here(&c, 0, VOLUMES, volumes.intern(b"", plain_name))?;
        let time = std::mem::replace(&mut self.clock_ns, next);
        Ok(Some(data(time, volume, op, span)))
    }
}
