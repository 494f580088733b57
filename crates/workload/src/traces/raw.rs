//! Output of decoders: a request with its own clock, and the table of volumes that they name.

use super::cursor::Fault;
use super::error::Reason;
use super::{REQUEST_SECTORS_MAX, SECTORS_MAX, VOLUME_NAME_BYTES_MAX, VOLUMES_MAX};
use seekway_core::request::Op;
use seekway_core::units::{Lba, SECTOR_BYTES, Sectors};
use std::collections::HashMap;
use std::io;

/// One request as the trace has it: time by the trace's own clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Raw {
    /// Nanoseconds from the trace's own origin.
    pub(super) time_ns: u64,
    pub(super) volume: u32,
    /// Process id, zero where the format has none.
    pub(super) process: u32,
    pub(super) op: Op,
    pub(super) sync: bool,
    pub(super) span: Span,
}

/// Sectors, checked: the end is at most [`SECTORS_MAX`], the length at most
/// [`REQUEST_SECTORS_MAX`] and not zero (except for a flush).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) start: Lba,
    pub(super) len: Sectors,
    /// The trace's bytes were no whole sectors and were rounded outwards.
    pub(super) rounded: bool,
}

impl Span {
    /// Of a flush: it has no place.
    pub(super) const NONE: Span = Span { start: Lba::ZERO, len: Sectors::ZERO, rounded: false };

    /// From sectors of 512 bytes.
    #[inline]
    pub(super) fn sectors(start: u64, len: u64) -> Result<Span, Reason> {
        Span::checked(start, len, false)
    }

    /// From bytes, rounded outwards to whole sectors.
    #[inline]
    pub(super) fn bytes(offset: u64, len: u64) -> Result<Span, Reason> {
        if len == 0 {
            return Err(Reason::ZeroLength);
        }
        let end = offset.checked_add(len).ok_or(Reason::Overflow)?;
        let start = offset / SECTOR_BYTES;
        let rounded = !(offset | len).is_multiple_of(SECTOR_BYTES);
        Span::checked(start, end.div_ceil(SECTOR_BYTES) - start, rounded)
    }

    #[inline]
    fn checked(start: u64, len: u64, rounded: bool) -> Result<Span, Reason> {
        if len == 0 {
            return Err(Reason::ZeroLength);
        }
        let end = start.checked_add(len).ok_or(Reason::Overflow)?;
        if len > REQUEST_SECTORS_MAX || end > SECTORS_MAX {
            return Err(Reason::Overflow);
        }
        Ok(Span { start: Lba::new(start), len: Sectors::new(len), rounded })
    }
}

/// Next finding of a decoder.
#[derive(Debug)]
pub(super) enum Step {
    Request(Raw),
    /// A line or an event that is no request and needs none: a header, a
    /// comment, a completion.
    Ignored,
    /// The trace is over.
    End,
}

/// Why a decoder cannot give the next step.
#[derive(Debug)]
pub(super) enum Stop {
    /// This record is unusable; the next call goes on behind it.
    Record { fault: Fault, place: super::Place },
    /// The stream is broken.
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        Stop::Io(e)
    }
}

/// Turns a stream of bytes into requests.
pub(super) trait Decode: Send {
    /// One step onwards. After [`Step::End`] or [`Stop::Io`] not called again.
    fn step(&mut self, volumes: &mut Volumes) -> Result<Step, Stop>;

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

/// No volume has this number.
const NOBODY: u32 = u32::MAX;
/// Places for short keys.
const SHORT_KEYS: usize = 4096;

/// A key of at most seven bytes, and its length, as one number.
#[inline]
fn pack(key: &[u8]) -> Option<u64> {
    if key.len() > 7 {
        return None;
    }
    Some(key.iter().fold(key.len() as u64, |packed, byte| packed << 8 | u64::from(*byte)))
}

/// The volumes of a trace, numbered in the order of their first request.
pub(super) struct Volumes {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<[u8]>, u32>,
    /// The volume of the previous request with a long key: often the same.
    last: (Vec<u8>, u32),
    /// Short keys, each in the one place that its hash gives it: only what
    /// does not stand there costs a look into the map.
    short: Vec<(u64, u32)>,
    /// Name of the only volume of a format without volumes.
    anonymous: Box<str>,
}

impl Volumes {
    /// No volumes yet; a nameless one will be called `anonymous`.
    pub(super) fn new(anonymous: &str) -> Self {
        Volumes {
            names: Vec::new(),
            numbers: HashMap::new(),
            last: (Vec::new(), NOBODY),
            short: vec![(0, NOBODY); SHORT_KEYS],
            anonymous: anonymous.into(),
        }
    }

    /// The names, by volume number.
    pub(super) fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// The number of the volume with key `key`; an empty key is the one
    /// volume of a format that has no volumes. `name` makes the shown name
    /// when the volume is new.
    #[inline]
    pub(super) fn intern(
        &mut self,
        key: &[u8],
        name: impl FnOnce(&[u8]) -> String,
    ) -> Result<u32, Reason> {
        if let Some(packed) = pack(key) {
            let place = (packed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % SHORT_KEYS;
            let (found, number) = self.short[place];
            if found == packed && number != NOBODY {
                return Ok(number);
            }
            let number = self.number(key, name)?;
            self.short[place] = (packed, number);
            return Ok(number);
        }
        if self.last.1 == NOBODY || self.last.0 != key {
            self.last.1 = self.number(key, name)?;
            self.last.0.clear();
            self.last.0.extend_from_slice(key);
        }
        Ok(self.last.1)
    }

    fn number(&mut self, key: &[u8], name: impl FnOnce(&[u8]) -> String) -> Result<u32, Reason> {
        match self.numbers.get(key) {
            Some(number) => Ok(*number),
            None => self.add(key, name),
        }
    }

    #[cold]
    fn add(&mut self, key: &[u8], name: impl FnOnce(&[u8]) -> String) -> Result<u32, Reason> {
        if self.names.len() >= VOLUMES_MAX {
            return Err(Reason::TooManyVolumes);
        }
        if key.len() > VOLUME_NAME_BYTES_MAX {
            return Err(Reason::LongName);
        }
        let number = self.names.len() as u32;
        let name = if key.is_empty() { self.anonymous.to_string() } else { name(key) };
        // A byte that is no text is shown as three.
        if name.len() > VOLUME_NAME_BYTES_MAX {
            return Err(Reason::LongName);
        }
        self.names.push(name.into());
        self.numbers.insert(key.into(), number);
        Ok(number)
    }
}

/// Fields of a binary record in either byte order; zero beyond the record's end.
fn field<const N: usize>(record: &[u8], at: usize, big: bool) -> [u8; N] {
    let mut bytes: [u8; N] =
        record.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N]);
    if big {
        bytes.reverse();
    }
    bytes
}
pub(super) fn read_u16(record: &[u8], at: usize, big: bool) -> u16 {
    u16::from_le_bytes(field(record, at, big))
}
pub(super) fn read_u32(record: &[u8], at: usize, big: bool) -> u32 {
    u32::from_le_bytes(field(record, at, big))
}
pub(super) fn read_u64(record: &[u8], at: usize, big: bool) -> u64 {
    u64::from_le_bytes(field(record, at, big))
}

/// A volume's key shown as it is.
pub(super) fn plain_name(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
