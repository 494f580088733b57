//! fio iologs, versions 2 and 3. Version 3 stamps every line in microseconds
//! since the log's start (so fio 3.33 writes it). Version 2 has no times but
//! `wait` lines, which fio takes as milliseconds since the start
//! (`read_iolog_get` in its `iolog.c` and its issue 756; its manual says
//! otherwise). `sync` and `datasync` are flushes, `trim` is a discard; nothing
//! says whether a write is waited for.

use super::TraceOptions;
use super::cursor::{Cursor, Fault};
use super::error::Reason;
use super::layout::lines;
use super::raw::{Raw, Span, Volumes, plain_name};
use super::text::{COMMA, Extent, Key, Row};
use super::text::{Head, ParseLine};
use seekway_core::request::Op;

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
        Ok(Some(Raw { time_ns: self.clock_ns, took_ns: 0, volume, process: 0, op, sync, span }))
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
/// when it was done: `time_ms, latency, direction, size, offset[, priority[, issue_ns]]`. fio 2 has
/// latencies in microseconds; fio has no priority before 3.18. The request came a latency earlier.
pub(super) struct Latencies {
    /// Fields of a line, if there are lines.
    fields: usize,
    /// Nanoseconds in one of a latency.
    unit_ns: u64,
}

impl Latencies {
    pub(super) const fn new() -> Latencies {
        Latencies { fields: 0, unit_ns: 1 }
    }

    /// Parser for the lines; `None` if they are none of fio's. The error says why no requests can
    /// be made of them.
    pub(super) fn of(lines: &[&[u8]]) -> Option<Result<Latencies, String>> {
        let logged: Vec<Logged> = lines.iter().filter_map(|line| Logged::of(line)).collect();
        if logged.is_empty() || logged.len() * 10 < lines.len() * 9 {
            return None;
        }
        let all = |is: fn(&Logged) -> bool| logged.iter().all(is);
        // A priority in place of the offset; with options it is in hexadecimal.
        let lacks_offset =
            |line: &Logged| line.fields <= OFFSET_LAST && line.fifth.is_none_or(|n| n <= 1);
        let fields = logged[0].fields;
        Some(if all(|line| line.size == 0) {
            Err("a log of fio's means: run fio without log_avg_msec, with log_offset=1".into())
        } else if all(lacks_offset) {
            let reason = "a log of fio's without offsets: run fio with log_offset=1, or with \
                          write_iolog";
            Err(reason.into())
        } else if all(|line| line.fields > OFFSET_LAST && line.value < REQUEST_NS_MIN) {
            Err(NOT_LATENCIES.into())
        } else if fields == OFFSET_LAST {
            unit_ns(&logged).map(|unit_ns| Latencies { fields, unit_ns })
        } else {
            Ok(Latencies { fields, unit_ns: 1 })
        })
    }
}

impl ParseLine for Latencies {
    fn begin(&mut self, head: &Head<'_>, _: &TraceOptions) -> Result<(), String> {
        if let Some(latencies) = Latencies::of(&lines(head.bytes, head.whole)) {
            *self = latencies?;
        }
        Ok(())
    }

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
        row.next()?;
        let start = row.c.u64("an offset: fio writes it with log_offset=1")?;
        let mut issue_ns = None;
        if self.fields != OFFSET_LAST {
            row.word("a priority")?;
            if !row.c.at_end() {
                issue_ns = Some(row.u64("a time of issue in nanoseconds")?);
                // So it is in all lines of a `_lat` log: only `_clat` and `_slat` logs have it.
                issue_ns = issue_ns.filter(|ns| *ns != 0);
            }
        }
        row.c.end()?;
        let took_ns = latency.saturating_mul(self.unit_ns);
        let time = issue_ns.unwrap_or_else(|| done_ns.saturating_sub(took_ns));
        let extent = Extent { column, start, len, expected: SIZE };
        let span = |start, len| match op {
            Op::Flush => Ok(Span::NONE),
            _ => Span::bytes(start, len),
        };
        let raw = row.request((time, op), (extent, span), (Key::NONE, plain_name), volumes)?;
        Ok(Some(Raw { took_ns, ..raw }))
    }

    fn units(&self) -> Option<String> {
        (self.unit_ns != 1).then(|| "ms (when done) and µs, bytes".into())
    }
}

/// Fields of a line that ends with the offset.
const OFFSET_LAST: usize = 5;

/// A line of any of fio's logs, as numbers.
struct Logged {
    fields: usize,
    time_ms: u64,
    value: u64,
    size: u64,
    /// An offset or a priority.
    fifth: Option<u64>,
}

impl Logged {
    fn of(line: &[u8]) -> Option<Logged> {
        let fields: Vec<&[u8]> = line.split(|b| *b == b',').map(<[u8]>::trim_ascii).collect();
        let number = |at: usize| std::str::from_utf8(fields.get(at)?).ok()?.parse().ok();
        let direction: u64 = number(2)?;
        let (time_ms, value, size) = (number(0)?, number(1)?, number(3)?);
        let is_one = direction <= 3 && (4..=7).contains(&fields.len());
        is_one.then_some(Logged { fields: fields.len(), time_ms, value, size, fifth: number(4) })
    }
}

/// No request is done in less.
const REQUEST_NS_MIN: u64 = 1000;
pub(super) const NOT_LATENCIES: &str = "a log of fio's bandwidth or rate, not of latencies: run \
                                        fio with write_lat_log and log_offset=1";

/// Nanoseconds in one of a latency where there is no priority: 1000 in fio 2; fio 3.0 to 3.17 logs
/// nanoseconds.
fn unit_ns(logged: &[Logged]) -> Result<u64, String> {
    /// More requests than most jobs have in flight.
    const IN_FLIGHT_MAX: u64 = 32;
    let is_ns = logged.iter().all(|line| line.value >= REQUEST_NS_MIN);
    let sum: u64 = logged.iter().map(|line| line.value).fold(0, u64::saturating_add);
    let times = || logged.iter().map(|line| line.time_ms);
    let span_us = (times().max().unwrap_or(0) - times().min().unwrap_or(0)).saturating_mul(1000);
    // Nothing is issued before the start; times are whole milliseconds.
    let is_us = logged.iter().all(|line| line.value / 1000 <= line.time_ms.saturating_add(1))
        && sum <= span_us.saturating_add(1000).saturating_mul(IN_FLIGHT_MAX);
    match (is_ns, is_us) {
        (true, true) => Err(format!(
            "latencies can be in ns (fio 3.0 to 3.17), then {} µs in the mean, or in µs (fio 2): \
             run fio 3.18 or later, or take the times when requests were done by --columns \
             time_ms,-,is_write,size_bytes,offset_bytes",
            sum / logged.len() as u64 / 1000
        )),
        (true, false) => Ok(1),
        _ => Ok(1000),
    }
}
