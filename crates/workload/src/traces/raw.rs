//! Output of decoders: a request with its own clock, the table of volumes that they name,
//! names of operations, and the filter of requests that are traced twice.

use super::cursor::Fault;
use super::error::Reason;
use super::{REQUEST_SECTORS_MAX, SECTORS_MAX, VOLUME_NAME_BYTES_MAX, VOLUMES_MAX};
use seekway_core::request::Op;
use seekway_core::units::{Lba, SECTOR_BYTES, Sectors};
use std::collections::{HashMap, HashSet};
use std::io;

/// One request as the trace has it: time by the trace's own clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Raw {
    /// Nanoseconds from the trace's own origin.
    pub(super) time_ns: u64,
    /// Time until it was done, zero where the trace does not tell.
    pub(super) took_ns: u64,
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
    /// A table's header.
    Header,
    /// A line or an event that is no request and needs none: a comment, a
    /// completion.
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

// Each request once: the kernel traces some of them again.
//
// - Linux before 4.12 queues the rest of a split request (`X`) as if it were a new one.
// - A request to a device made of others (dm, md) is queued there, and once more on the device
//   below (`A`, then `Q`). If both are traced, the upper one is the request.
// - A request that the driver did not take (`R`) is issued again.

/// CPUs, devices and requests that are remembered at most. Beyond that, a request may be counted
/// twice.
const REMEMBERED_MAX: usize = 1 << 16;

/// The events that matter, by their numbers in the lowest byte of an action of blktrace's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Queue = 1,
    Requeue = 6,
    Issue = 7,
    Complete = 8,
    Split = 13,
    Remap = 15,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Queue, Kind::Requeue, Kind::Issue, Kind::Complete, Kind::Split, Kind::Remap];

    /// As a set with one member.
    pub(super) const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The event of blkparse's action.
    pub(super) fn of_letter(action: &[u8]) -> Option<Kind> {
        let [letter] = action else { return None };
        let at = b"QRDCXA".iter().position(|known| known == letter);
        at.map(|at| Kind::ALL[at])
    }
}

/// The parts of an event that tell a repeat.
pub(super) struct Traced {
    pub(super) kind: Kind,
    pub(super) cpu: u32,
    pub(super) device: u32,
    pub(super) sector: u64,
    /// Bytes, or sectors.
    pub(super) len: u64,
    /// Of a split: where its rest begins. Of a remap: the device that it comes from.
    pub(super) from: u64,
}

/// Remembers which of the next events are known requests.
#[derive(Default)]
pub(super) struct Once {
    /// Device and sector of the next queue event on a CPU, if it is a known request.
    announced: HashMap<u32, (u32, u64)>,
    /// Devices with requests.
    queued: HashSet<u32>,
    /// Device, sector and length of requests that the driver gave back, and how often it did.
    given_back: HashMap<(u32, u64, u64), u32>,
    /// Events that were a known request.
    repeated: u64,
}

impl Once {
    /// True if the event is a request that was there before. All events have to pass, in order.
    pub(super) fn is_repeat(&mut self, event: &Traced) -> bool {
        let repeat = match event.kind {
            Kind::Split => {
                self.announce(event.cpu, (event.device, event.from));
                false
            }
            Kind::Remap => {
                let from = event.from as u32;
                if from != event.device && self.queued.contains(&from) {
                    self.announce(event.cpu, (event.device, event.sector));
                }
                false
            }
            Kind::Requeue => {
                let request = (event.device, event.sector, event.len);
                if self.given_back.len() < REMEMBERED_MAX {
                    *self.given_back.entry(request).or_default() += 1;
                }
                false
            }
            Kind::Queue => {
                let announced = self.announced.remove(&event.cpu);
                let repeat = announced == Some((event.device, event.sector));
                if !repeat && self.queued.len() < REMEMBERED_MAX {
                    self.queued.insert(event.device);
                }
                repeat
            }
            Kind::Issue => self.was_given_back((event.device, event.sector, event.len)),
            Kind::Complete => false,
        };
        self.repeated += u64::from(repeat);
        repeat
    }

    /// A line for the user about the repeats, if there were any.
    pub(super) fn note(&self) -> Option<String> {
        (self.repeated > 0).then(|| {
            format!(
                "{} events left out that repeat a request (rest of a split, remapped from another \
                 device of the trace, or requeued)",
                self.repeated
            )
        })
    }

    fn announce(&mut self, cpu: u32, request: (u32, u64)) {
        if self.announced.len() < REMEMBERED_MAX {
            self.announced.insert(cpu, request);
        }
    }

    fn was_given_back(&mut self, request: (u32, u64, u64)) -> bool {
        if self.given_back.is_empty() {
            return false;
        }
        let Some(times) = self.given_back.get_mut(&request) else { return false };
        *times -= 1;
        if *times == 0 {
            self.given_back.remove(&request);
        }
        true
    }
}

// Operations by their names: words, SCSI commands, and the kernel's RWBS letters.

/// Meaning of an operation's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Named {
    /// The device's cache is flushed first.
    pub(super) flush: bool,
    /// Operation on the sectors, if there is one.
    pub(super) op: Option<Op>,
    /// Somebody waits for it.
    pub(super) sync: bool,
}

impl Named {
    /// Neither a flush nor an operation that moves or frees data.
    pub(super) const NONE: Named = Named { flush: false, op: None, sync: false };

    /// Its requests: a flush in front of data comes first, then the data.
    pub(super) fn requests(
        self,
        span: Span,
        raw: impl Fn(Op, bool, Span) -> Raw,
    ) -> (Option<Raw>, Option<Raw>) {
        let flush = self.flush.then(|| raw(Op::Flush, true, Span::NONE));
        let data = self.op.map(|op| raw(op, self.sync, span));
        match flush {
            Some(_) => (flush, data),
            None => (data, None),
        }
    }

    const fn of(op: Op) -> Named {
        let flush = matches!(op, Op::Flush);
        let sync = matches!(op, Op::Read | Op::Flush);
        Named { flush, op: if flush { None } else { Some(op) }, sync }
    }
}

/// A word, a SCSI command in hexadecimal (`2a`, `0x28`) or RWBS letters. `None` for any other.
pub(super) fn named(word: &[u8]) -> Option<Named> {
    let small = word.to_ascii_lowercase();
    let op = match small.strip_prefix(b"0x").unwrap_or(&small) {
        b"read" | b"rd" | b"get" | b"load" | b"08" | b"28" | b"88" | b"a8" => Op::Read,
        b"write" | b"wr" | b"set" | b"put" | b"store" | b"0a" | b"2a" | b"8a" | b"aa" => Op::Write,
        b"flush" | b"sync" | b"fsync" | b"datasync" | b"fdatasync" | b"35" | b"91" => Op::Flush,
        b"discard" | b"trim" | b"unmap" | b"delete" | b"42" => Op::Discard,
        b"write-zeroes" | b"write_zeroes" | b"writezeroes" | b"z" | b"93" | b"41" => {
            Op::WriteZeroes
        }
        _ => return rwbs(word),
    };
    Some(Named::of(op))
}

/// The kernel's RWBS field (`blk_fill_rwbs`) of all versions: `F` for a flush in front, then one of
/// `R`, `W`, `WZ` (write-zeroes), `D` (discard), `DE` (secure erase), `ZA` (zone append), `N`
/// (another) or a zone operation (`Z` and another letter), then `F` (FUA), `A` (read-ahead), `B`
/// (barrier, of old kernels), `S` (sync), `M` (metadata), `U` (atomic), `E` (secure, of old kernels).
pub(super) fn rwbs(word: &[u8]) -> Option<Named> {
    let upper = word.to_ascii_uppercase();
    let (preflush, rest) = match upper.as_slice() {
        [b'F', rest @ ..] => (true, rest),
        all => (false, all),
    };
    let (op, flags) = match rest {
        [b'R', flags @ ..] => (Some(Op::Read), flags),
        [b'W', b'Z', flags @ ..] => (Some(Op::WriteZeroes), flags),
        [b'W', flags @ ..] | [b'Z', b'A', flags @ ..] => (Some(Op::Write), flags),
        [b'D', b'E', flags @ ..] | [b'D' | b'E', flags @ ..] => (Some(Op::Discard), flags),
        [b'N', flags @ ..] | [b'Z', b'R' | b'O' | b'C' | b'F', flags @ ..] => (None, flags),
        [b'F', flags @ ..] | flags if preflush => (None, flags),
        _ => return None,
    };
    // In this order: words such as `web` are none.
    let mut order = b"FABSMUE".iter();
    let is_flag = |flag: &u8| order.any(|other| other == flag);
    let flush = preflush || flags.contains(&b'B');
    let sync = op == Some(Op::Read) || flags.contains(&b'S') || (flush && op.is_none());
    flags.iter().all(is_flag).then_some(Named { flush, op, sync: sync && (flush || op.is_some()) })
}

#[cfg(test)]
mod ops_tests {
    use super::*;

    #[test]
    fn words_commands_and_letters() {
        let named = |words: &str| -> Vec<Option<Named>> {
            words.split(' ').map(|word| named(word.as_bytes())).collect()
        };
        let all = |words: &str, expected: Named| {
            assert!(
                named(words).iter().all(|n| *n == Some(expected)),
                "{words}: {:?}",
                named(words)
            );
        };
        let of = |flush, op, sync| Named { flush, op, sync };
        all("r R read READ Read 28 0x28 88 RA RSM get", of(false, Some(Op::Read), true));
        all("w W write 2a 2A WM set WFA", of(false, Some(Op::Write), false));
        all("WS WFS WSM WSU WFSMU ZAS", of(false, Some(Op::Write), true));
        all("FWS FWFS WBS", of(true, Some(Op::Write), true));
        all("F FF FFFS FN FS flush fsync 35", of(true, None, true));
        all("WZ z write_zeroes 93", of(false, Some(Op::WriteZeroes), false));
        all("D DE discard TRIM 42", of(false, Some(Op::Discard), false));
        all("W ZA WU", of(false, Some(Op::Write), false));
        all("DSE", of(false, Some(Op::Discard), true));
        all("N NS ZR ZRA ZRAS ZO ZCS", Named::NONE);
        assert_eq!(named("0 1 x Rx W! 12 web WSF "), [None; 9]);
    }
}
