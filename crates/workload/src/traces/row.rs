//! A line of a text format, read field by field, and how it becomes a request.

use super::cursor::{Cursor, Fault};
use super::error::Reason;
use super::raw::{Raw, Span, Volumes};
use seekway_core::request::Op;

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
        Ok(Raw { time_ns, volume, process: 0, op, sync: op == Op::Read, span })
    }
}
