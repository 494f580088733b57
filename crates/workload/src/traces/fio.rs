//! fio iologs, versions 2 and 3. Version 3 stamps every line in microseconds
//! since the log's start (so fio 3.33 writes it). Version 2 has no times but
//! `wait` lines, which fio takes as milliseconds since the start
//! (`read_iolog_get` in its `iolog.c` and its issue 756; its manual says
//! otherwise). `sync` and `datasync` are flushes, `trim` is a discard; nothing
//! says whether a write is waited for.

use super::cursor::{Cursor, Fault};
use super::error::Reason;
use super::raw::{Raw, Span, Volumes, plain_name};
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
