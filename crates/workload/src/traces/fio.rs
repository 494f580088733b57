//! fio iologs, versions 2 and 3. Version 3 stamps every line in microseconds
//! since the log's start (so fio 3.33 writes it). Version 2 has no times but
//! `wait` lines, which fio takes as milliseconds since the start
//! (`read_iolog_get` in its `iolog.c` and its issue 756; its manual says
//! otherwise). `sync` and `datasync` are flushes, `trim` is a discard; nothing
//! says whether a write is waited for.

use super::cursor::{Cursor, Fault};
use super::error::Reason;
use super::raw::{Raw, Span, Volumes, plain_name};
use super::row::{COMMA, Extent, Key, Row};
use super::text::ParseLine;
use seekway_policy::request::Op;

/// One file of either version; which one is known after its first line.
#[derive(Default)]
pub(super) struct Fio {
    version: Option<Version>,
    clock_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Two,
    Three,
}

impl ParseLine for Fio {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let mut c = Cursor::new(line);
        if line.starts_with(b"fio version") {
            self.version = Some(match line.trim_ascii_end() {
                b"fio version 2 iolog" => Version::Two,
                b"fio version 3 iolog" => Version::Three,
                _ => {
                    return Err(c.fault_at(
                        0,
                        Reason::BadVersion,
                        "fio version 2 iolog or version 3",
                    ));
                }
            });
            return Ok(None);
        }
        let Some(version) = self.version else {
            return Err(c.fault_at(
                0,
                Reason::BadVersion,
                "the line `fio version 2 iolog` or version 3",
            ));
        };
        if version == Version::Three {
            self.clock_ns = c.decimal(3, "a time in microseconds")?;
            c.space("a blank")?;
        }
        let from = c.pos();
        c.word(b' ', "a file name")?;
        let file = c.since(from);
        c.space("an action")?;
        let at = c.pos();
        let op = match c.word(b' ', "an action")? {
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"trim" => Op::Discard,
            b"sync" | b"datasync" => Op::Flush,
            b"add" | b"open" | b"close" | b"unlink" | b"sync_file_range" => return Ok(None),
            b"wait" if version == Version::Two => return self.wait(&mut c),
            _ => {
                let expected = "read, write, trim, sync, datasync, wait, add, open or close";
                return Err(c.fault_at(at, Reason::UnknownOp, expected));
            }
        };
        let span = if op == Op::Flush { Span::NONE } else { extent(&mut c)? };
        let volume = volumes.intern(file, plain_name);
        let volume = volume.map_err(|reason| c.fault_at(from, reason, "at most 65,536 files"))?;
        let sync = op == Op::Read;
        Ok(Some(Raw { time_ns: self.clock_ns, volume, process: 0, op, sync, span }))
    }

    fn units(&self) -> Option<String> {
        let units = match self.version? {
            Version::Two => "ms of its wait lines, bytes",
            Version::Three => "µs, bytes",
        };
        Some(units.into())
    }
}

impl Fio {
    fn wait(&mut self, c: &mut Cursor<'_>) -> Result<Option<Raw>, Fault> {
        c.space("a time in milliseconds")?;
        let until_ns = c.decimal(6, "a time in milliseconds")?;
        self.clock_ns = self.clock_ns.max(until_ns);
        Ok(None)
    }
}

fn extent(c: &mut Cursor<'_>) -> Result<Span, Fault> {
    c.space("an offset in bytes")?;
    let column = c.pos();
    let offset = c.u64("an offset in bytes")?;
    c.space("a length in bytes")?;
    let len = c.u64("a length in bytes")?;
    c.end()?;
    let span = Span::bytes(offset, len);
    span.map_err(|reason| c.fault_at(column, reason, "a length in bytes, not zero"))
}

/// fio's logs of latencies (`write_lat_log`) with offsets (`log_offset=1`), a line for each request
/// when it was done: `time_ms, latency, direction, size, offset, priority[, issue_ns]`. fio 2 has
/// no priority, and latencies in microseconds. The request came a latency earlier.
pub(super) struct Latencies;

impl ParseLine for Latencies {
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        const DIRECTION: &str = "0 for a read, 1 for a write, 2 for a trim or 3 for a sync";
        const SIZE: &str = "a size in bytes, not zero";
        let mut row = Row::new(line, COMMA);
        let done_ns = row.decimal(6, "a time in milliseconds")?;
        let latency = row.u64("a latency")?;
        let at = row.next()?;
        let op = match row.c.u64(DIRECTION)? {
            0 => Op::Read,
            1 => Op::Write,
            2 => Op::Discard,
            3 => Op::Flush,
            _ => return Err(row.c.fault_at(at, Reason::UnknownOp, DIRECTION)),
        };
        let column = row.next()?;
        let len = row.c.u64(SIZE)?;
        if !len.is_multiple_of(512) {
            return Err(row.c.fault_at(column, Reason::Malformed, "a size of whole sectors"));
        }
        let at = row.next()?;
        let start = row.c.u64("an offset: fio writes it with log_offset=1")?;
        let mut latency_ns = Some(latency);
        let mut issue_ns = None;
        if row.c.at_end() {
            if start <= 1 {
                let expected = "an offset before the priority: fio writes it with log_offset=1";
                return Err(row.c.fault_at(at, Reason::Missing, expected));
            }
            latency_ns = latency.checked_mul(1000);
        } else {
            row.word("a priority")?;
            if !row.c.at_end() {
                issue_ns = Some(row.u64("a time of issue in nanoseconds")?);
                row.c.end()?;
            }
        }
        let came_ns = || done_ns.saturating_sub(latency_ns.unwrap_or(done_ns));
        let time = issue_ns.unwrap_or_else(came_ns);
        let extent = Extent { column, start, len, expected: SIZE };
        let span = |start, len| match op {
            Op::Flush => Ok(Span::NONE),
            _ => Span::bytes(start, len),
        };
        row.request((time, op), (extent, span), (Key::NONE, plain_name), volumes).map(Some)
    }
}

/// Is this fio's log of something without the offsets, of which no request can be made?
pub(super) fn lacks_offsets(lines: &[&[u8]]) -> bool {
    let lacks = |line: &&&[u8]| {
        let fields: Vec<&[u8]> = line.split(|b| *b == b',').map(<[u8]>::trim_ascii).collect();
        let digits = |field: &&[u8]| !field.is_empty() && field.iter().all(u8::is_ascii_digit);
        fields.first().is_some_and(digits)
            && fields.get(1).is_some_and(digits)
            && matches!(fields.get(2), Some([b'0'..=b'3']))
            && fields.get(3).is_some_and(digits)
            && matches!(fields[4..], [] | [b"0" | b"1"])
    };
    !lines.is_empty() && lines.iter().filter(lacks).count() * 10 >= lines.len() * 9
}
