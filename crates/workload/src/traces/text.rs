//! From a stream of bytes to parsed lines, and from a line to a request: for all text formats.

use super::buffer::Buffer;
use super::cursor::{Cursor, Fault, quote};
use super::error::{Place, Reason};
use super::raw::{Decode, Raw, Span, Step, Stop, Volumes};
use super::{LINE_BYTES_MAX, TraceOptions};
use seekway_core::request::Op;
use std::collections::VecDeque;
use std::io;

/// The parser of one text format. It may remember what came before (a clock
/// that the lines advance, a header that has been seen).
pub(super) trait ParseLine: Send {
    /// Looks at the beginning before the first line, where the lines alone do not say all: columns,
    /// units, which events are requests. The error says what is not clear and what to do.
    fn begin(&mut self, _head: &Head<'_>, _options: &TraceOptions) -> Result<(), String> {
        Ok(())
    }

    /// Looks at one of the first lines before the first is parsed, for what [`ParseLine::begin`]
    /// could not find. True if it has to see the next one, too.
    fn look(&mut self, _line: &[u8]) -> bool {
        false
    }

    /// The request that `line` (neither blank nor with its line end) holds,
    /// or `None` for a header or another line that is none.
    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault>;

    /// Is the last line, which holds no request, a header?
    fn is_header(&self, _line: &[u8]) -> bool {
        false
    }

    /// A second request of the last line: the data behind a flush.
    fn also(&mut self) -> Option<Raw> {
        None
    }

    /// The units of this file, where they are not those of the format.
    fn units(&self) -> Option<String> {
        None
    }

    /// Remarks for the user on how the trace was read.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Advice for a trace in which no requests were found.
    fn advice(&self) -> Option<String> {
        None
    }
}

/// The beginning of a file.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) bytes: &'a [u8],
    /// There is no more.
    pub(super) whole: bool,
}

/// Bytes of the lines that a parser sees before the first is parsed, at most; `events` says it.
const AHEAD_BYTES_MAX: usize = 4 << 20;
/// Why a file that begins so cannot be read by lines, and what makes lines of it.
pub(super) fn other_text(head: &[u8]) -> Option<&'static str> {
    match head {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            Some("text in UTF-16, which is not read: make it UTF-8, `iconv -f UTF-16 -t UTF-8`")
        }
        [b'{', ..] | [b'[', b'{' | b'[' | b'\n' | b'\r' | b' ', ..] => {
            Some("JSON, which is not read: write a CSV with a header")
        }
        _ if head.contains(&b'\r') && !head.contains(&b'\n') => {
            Some("its lines end with CR alone, which is not read: `tr '\\r' '\\n'` mends that")
        }
        _ => None,
    }
}

/// Lines of a stream through the parser of its format.
pub(super) struct TextDecoder {
    buffer: Buffer,
    parser: Box<dyn ParseLine>,
    line: u64,
    /// Lines that were read ahead; `None` for one that is too long.
    ahead: VecDeque<Option<Vec<u8>>>,
}

impl TextDecoder {
    /// Decode `buffer` with `parser`.
    pub(super) fn new(buffer: Buffer, parser: Box<dyn ParseLine>) -> Self {
        TextDecoder { buffer, parser, line: 0, ahead: VecDeque::new() }
    }

    fn read_ahead(&mut self) -> io::Result<()> {
        let mut bytes = 0;
        while bytes < AHEAD_BYTES_MAX {
            let Some(line) = self.buffer.line(LINE_BYTES_MAX)? else { break };
            bytes += line.map_or(0, <[u8]>::len) + size_of_val(&line);
            // The rest of a line that is too long may have no end.
            let go_on = line.is_some_and(|line| self.parser.look(line));
            self.ahead.push_back(line.map(<[u8]>::to_vec));
            if !go_on {
                break;
            }
        }
        Ok(())
    }
}

impl Decode for TextDecoder {
    fn step(&mut self, volumes: &mut Volumes) -> Result<Step, Stop> {
        if let Some(raw) = self.parser.also() {
            return Ok(Step::Request(raw));
        }
        if self.line == 0 {
            self.read_ahead()?;
        }
        let ahead = self.ahead.pop_front();
        let line = match &ahead {
            Some(line) => Some(line.as_deref()),
            None => self.buffer.line(LINE_BYTES_MAX)?,
        };
        let Some(line) = line else { return Ok(Step::End) };
        self.line += 1;
        let Some(mut line) = line else {
            let fault = Fault {
                reason: Reason::LineTooLong,
                column: LINE_BYTES_MAX,
                expected: "a line of at most 4096 bytes",
                found: Some("a longer one".into()),
            };
            return Err(at(self.line, fault, b""));
        };
        if self.line == 1 {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.iter().all(|b| matches!(b, b' ' | b'\t')) {
            return Ok(Step::Ignored);
        }
        match self.parser.parse(line, volumes) {
            Ok(Some(raw)) => Ok(Step::Request(raw)),
            Ok(None) if self.parser.is_header(line) => Ok(Step::Header),
            Ok(None) => Ok(Step::Ignored),
            Err(fault) => Err(at(self.line, fault, line)),
        }
    }

    fn units(&self) -> Option<String> {
        self.parser.units()
    }

    fn notes(&self) -> Vec<String> {
        self.parser.notes()
    }

    fn advice(&self) -> Option<String> {
        self.parser.advice()
    }
}

#[cold]
fn at(number: u64, mut fault: Fault, line: &[u8]) -> Stop {
    let column = fault.column.min(line.len());
    fault.found.get_or_insert_with(|| quote(&line[column..]));
    let place = Place::Line { line: number, column: fault.column as u64 + 1 };
    Stop::Record { fault, place }
}

// A line of a text format, read field by field, and how it becomes a request.

/// Byte between two fields, and its name in messages.
type Separator = (u8, &'static str);

pub(super) const COMMA: Separator = (b',', "a comma");
pub(super) const SEMICOLON: Separator = (b';', "a semicolon");
pub(super) const BLANK: Separator = (b' ', "a blank");

/// A line, and how far it has been read. Each field is preceded by a separator but the first.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) c: Cursor<'a>,
    separator: Separator,
    begun: bool,
}

/// Where a request begins and how long it is, in the format's units.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) column: usize,
    pub(super) start: u64,
    pub(super) len: u64,
    /// Expected length, for messages.
    pub(super) expected: &'static str,
}

/// Name of a volume, with its column.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) column: usize,
    pub(super) bytes: &'a [u8],
}

impl Key<'_> {
    /// Of the one volume of a format without volumes.
    pub(super) const NONE: Key<'static> = Key { column: 0, bytes: b"" };
}

impl<'a> Row<'a> {
    /// At the start of `line`.
    pub(super) fn new(line: &'a [u8], separator: Separator) -> Self {
        Row { c: Cursor::new(line), separator, begun: false }
    }

    /// Go to the next field: its column.
    #[inline]
    pub(super) fn next(&mut self) -> Result<usize, Fault> {
        if std::mem::replace(&mut self.begun, true) {
            match self.separator {
                (b' ', expected) => self.c.space(expected)?,
                (byte, expected) => self.c.sep(byte, expected)?,
            }
        }
        Ok(self.c.pos())
    }

    /// The next field, an unsigned integer.
    #[inline]
    pub(super) fn u64(&mut self, expected: &'static str) -> Result<u64, Fault> {
        self.next()?;
        self.c.u64(expected)
    }

    /// The next field, as [`Cursor::decimal`] reads it.
    #[inline]
    pub(super) fn decimal(&mut self, scale: usize, expected: &'static str) -> Result<u64, Fault> {
        self.next()?;
        self.c.decimal(scale, expected)
    }

    /// The next field, printable bytes without blanks, and its column.
    #[inline]
    pub(super) fn word(&mut self, expected: &'static str) -> Result<(usize, &'a [u8]), Fault> {
        let column = self.next()?;
        Ok((column, self.c.word(self.separator.0, expected)?))
    }

    /// The next field, an integer that names a volume.
    #[inline]
    pub(super) fn key(&mut self, expected: &'static str) -> Result<Key<'a>, Fault> {
        let column = self.next()?;
        self.c.u64(expected)?;
        Ok(self.key_from(column))
    }

    /// The fields from `column` up to here name a volume.
    pub(super) fn key_from(&self, column: usize) -> Key<'a> {
        Key { column, bytes: self.c.since(column) }
    }

    /// The next two fields, what a request touches.
    #[inline]
    pub(super) fn extent(
        &mut self,
        start: &'static str,
        expected: &'static str,
    ) -> Result<Extent, Fault> {
        let column = self.next()?;
        let start = self.c.u64(start)?;
        Ok(Extent { column, start, len: self.u64(expected)?, expected })
    }

    /// Put `reason` at `column`, if that is the result.
    pub(super) fn check<T>(
        &self,
        column: usize,
        expected: &'static str,
        result: Result<T, Reason>,
    ) -> Result<T, Fault> {
        result.map_err(|reason| self.c.fault_at(column, reason, expected))
    }

    /// A request of a format that has neither processes nor `sync`. `span` reads the extent;
    /// `name` makes the volume's shown name when that is new.
    #[inline]
    pub(super) fn request(
        &self,
        (time_ns, op): (u64, Op),
        (extent, span): (Extent, impl Fn(u64, u64) -> Result<Span, Reason>),
        (key, name): (Key<'_>, impl FnOnce(&[u8]) -> String),
        volumes: &mut Volumes,
    ) -> Result<Raw, Fault> {
        let span = self.check(extent.column, extent.expected, span(extent.start, extent.len))?;
        let volume = volumes.intern(key.bytes, name);
        let volume = self.check(key.column, "at most 65,536 volumes", volume)?;
        let (sync, took_ns, process) = (op == Op::Read, 0, 0);
        Ok(Raw { time_ns, took_ns, volume, process, op, sync, span })
    }
}
