//! The block layer's events as text: what `blkparse` prints (in its own form, or in that of its
//! option `-f`) and ftrace's tracer `blk`, and `perf script`, `trace-cmd report` and ftrace's
//! `trace` of the events `block:block_bio_queue`, `block_rq_issue` and `block_rq_complete`.
//!
//! As in the binary form one kind of event is taken as the requests, the first of these that the
//! trace has: queued (`Q`), issued (`D`), completed (`C`). All others tell of the same requests.

mod blkparse;
mod pattern;
mod perf;
mod remaps;
mod unread;

use super::TraceOptions;
use super::blktrace::{BlktraceEvent, Odd};
use super::cursor::Fault;
use super::error::Reason;
use super::once::{Kind, Once, Traced};
use super::ops::{self, Named};
use super::raw::{Raw, Span, Volumes, plain_name};
use super::text::{Head, ParseLine};
use pattern::Pattern;
use remaps::Remaps;
use seekway_core::request::Op;
pub(super) use unread::unread;

/// One event of a line.
struct Event<'a> {
    /// From the trace's own origin.
    time_ns: u64,
    /// `None` where the lines do not say.
    kind: Option<Kind>,
    /// Column and text.
    rwbs: (usize, &'a [u8]),
    /// Column, first sector and sectors; zero sectors for a flush and for what moves no data.
    extent: (usize, u64, u64),
    /// `major,minor`; empty where the lines do not say.
    device: &'a [u8],
    process: u32,
    /// `None` where the lines do not say.
    cpu: Option<u32>,
    /// Of a split: where its rest begins. Of a remap: the device that it comes from, if the line
    /// says it.
    from: Option<u64>,
}

/// Expected value of an operation, for messages.
const RWBS: &str = "RWBS letters of the kernel, such as R, WS or D";

/// Parser of a line. `None` for a line without an event, or with one of another kind; an error for
/// a queued, issued or completed request that cannot be read.
type Read = for<'a> fn(&'a [u8]) -> Result<Option<Event<'a>>, Fault>;

/// The parser of both forms.
pub(super) struct Events {
    read: Read,
    pattern: Option<Pattern>,
    /// The requests among the events; `None` until it is known.
    chosen: Option<BlktraceEvent>,
    /// The user chose the event.
    asked: bool,
    /// Number of events of each kind.
    seen: [u64; 3],
    once: Once,
    remaps: Remaps,
    odd: Odd,
    /// Events `N` with sectors.
    nameless: u64,
    also: Option<Raw>,
}

impl Events {
    /// Parser of the output of blkparse.
    pub(super) fn blkparse() -> Events {
        let (read, odd): (Read, _) = (blkparse::event, Odd::default());
        let (pattern, chosen, asked, seen) = (None, None, false, [0; 3]);
        let (once, remaps) = (Once::default(), Remaps::default());
        let (nameless, also) = (0, None);
        Events { read, pattern, chosen, asked, seen, once, remaps, odd, nameless, also }
    }

    /// Parser of the output of perf, trace-cmd and ftrace.
    pub(super) fn perf() -> Events {
        Events { read: perf::event, ..Events::blkparse() }
    }

    fn event<'a>(&self, line: &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        match &self.pattern {
            Some(pattern) => pattern.event(line),
            None => (self.read)(line),
        }
    }

    /// Do the lines say which events they are?
    fn says(&self) -> bool {
        self.pattern.as_ref().is_none_or(Pattern::says)
    }

    /// Finds the operation of an event, and counts events that are no requests.
    fn operation(&mut self, event: &Event<'_>) -> Result<Named, Fault> {
        let ((column, word), (_, _, len)) = (event.rwbs, event.extent);
        let fault = || Fault { reason: Reason::UnknownOp, column, expected: RWBS, found: None };
        let mut named = ops::rwbs(word).ok_or_else(fault)?;
        let first = word.first().map(u8::to_ascii_uppercase);
        let is_zone = first == Some(b'Z');
        if first == Some(b'N') && len > 0 {
            self.nameless += 1;
            // Those of commands from programs have a length, too, when they are done.
            if event.kind != Some(Kind::Complete) {
                named = Named { op: Some(Op::WriteZeroes), sync: word.contains(&b'S'), ..named };
            }
        } else if is_zone && named.op.is_none() {
            self.odd.zone_operations += 1;
        } else if len == 0 {
            named.op = None;
            self.odd.without_data += u64::from(!named.flush);
        } else {
            self.odd.zone_appends += u64::from(is_zone);
        }
        Ok(named)
    }

    /// Is it a request that was there before? All events have to pass, in order.
    fn is_repeat(&mut self, event: &Event<'_>) -> bool {
        let Some(kind) = event.kind else { return false };
        let (_, sector, len) = event.extent;
        // A request is remapped and split by the process that asked for it.
        let cpu = event.cpu.unwrap_or(event.process);
        let device = device_number(event.device).unwrap_or(0);
        let mut traced = Traced { kind, cpu, device, sector, len, from: 0 };
        traced.from = match event.from {
            Some(from) => from,
            None if kind == Kind::Split => sector.saturating_add(len),
            None if kind == Kind::Remap => self.remaps.source(&traced).into(),
            None => 0,
        };
        let matters = self.chosen.is_none_or(|chosen| chosen.wanted() & kind.bit() != 0);
        let repeat = matters && self.once.is_repeat(&traced);
        self.remaps.see(&traced, repeat);
        repeat
    }

    fn raw(&mut self, event: &Event<'_>, volumes: &mut Volumes) -> Result<[Option<Raw>; 2], Fault> {
        let fault = |(column, reason), expected| Fault { reason, column, expected, found: None };
        let named = self.operation(event)?;
        if !named.flush && named.op.is_none() {
            return Ok([None, None]);
        }
        let (column, start, len) = event.extent;
        let span = match named.op {
            None => Span::NONE,
            Some(_) => Span::sectors(start, len)
                .map_err(|reason| fault((column, reason), "a sector and a length in sectors"))?,
        };
        let name = |key: &[u8]| {
            let key = plain_name(key).replace(',', " ");
            key.split_whitespace().collect::<Vec<_>>().join(":")
        };
        let volume = volumes.intern(event.device, name);
        let volume = volume.map_err(|reason| fault((0, reason), "at most 65,536 devices"))?;
        let Event { time_ns, process, .. } = *event;
        let raw = |op, sync, span| Raw { time_ns, volume, process, op, sync, span };
        let (first, second) = named.requests(span, raw);
        Ok([first, second])
    }
}

/// The beginning had none of the events that begin here.
#[cold]
fn too_late(column: usize) -> Fault {
    Fault {
        reason: Reason::UnknownOp,
        column,
        expected: "events of the kinds that the first 4 MiB have: say by --event which are the requests",
        found: None,
    }
}

impl ParseLine for Events {
    fn begin(&mut self, head: &Head<'_>, options: &TraceOptions) -> Result<(), String> {
        if let Some(format) = &options.columns {
            self.pattern = Some(Pattern::new(format)?);
        }
        self.chosen = options.blktrace_event;
        self.asked = self.chosen.is_some();
        if let Some(event) = self.chosen.filter(|_| !self.says()) {
            let event = event.name();
            return Err(format!("--event {event}: --columns has no %a, which says the events"));
        }
        // Of a longer beginning see `look`.
        let mut lines = head.bytes.split(|b| *b == b'\n');
        while lines.next().is_some_and(|line| self.look(line)) {}
        Ok(())
    }

    fn look(&mut self, line: &[u8]) -> bool {
        if self.asked || !self.says() {
            return false;
        }
        let event = self.event(line.strip_suffix(b"\r").unwrap_or(line));
        let kind = event.ok().flatten().and_then(|event| event.kind);
        if let Some(kind) = kind.and_then(BlktraceEvent::of) {
            self.chosen = Some(self.chosen.map_or(kind, |chosen| chosen.min(kind)));
        }
        self.chosen != Some(BlktraceEvent::Queued)
    }

    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let Some(event) = self.event(line)? else { return Ok(None) };
        if self.is_repeat(&event) {
            return Ok(None);
        }
        if let Some(kind) = event.kind {
            let Some(kind) = BlktraceEvent::of(kind) else { return Ok(None) };
            self.seen[kind as usize] += 1;
            let chosen = *self.chosen.get_or_insert(kind);
            if kind < chosen && !self.asked {
                return Err(too_late(event.rwbs.0));
            }
            if kind != chosen {
                return Ok(None);
            }
        }
        let [raw, also] = self.raw(&event, volumes)?;
        self.also = also;
        Ok(raw)
    }

    fn also(&mut self) -> Option<Raw> {
        self.also.take()
    }

    fn notes(&self) -> Vec<String> {
        let note = match self.chosen {
            Some(BlktraceEvent::Queued) => None,
            Some(BlktraceEvent::Issued) => {
                Some("requests are its issue events (D), as the kernel merged them")
            }
            Some(BlktraceEvent::Completed) => {
                Some("requests are its completions (C): times are when they were done")
            }
            None => Some("no %a in --columns: all lines are requests, as of blkparse -a queue"),
        };
        let nameless = match self.chosen {
            _ if self.nameless == 0 => None,
            Some(BlktraceEvent::Completed) => Some("left out: write-zeroes, or commands"),
            _ => Some("taken as write-zeroes; on a zoned disk they can be zone appends"),
        };
        let nameless = nameless.map(|how| format!("{} events N with sectors {how}", self.nameless));
        note.map(String::from)
            .into_iter()
            .chain(self.once.note())
            .chain(self.odd.notes(self.chosen))
            .chain(nameless)
            .collect()
    }

    fn advice(&self) -> Option<String> {
        BlktraceEvent::advice(|event| self.seen[event as usize])
    }
}

/// Words of a line, each with its column.
fn words(line: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let is_blank = |b: &u8| *b == b' ' || *b == b'\t';
    let mut at = 0;
    std::iter::from_fn(move || {
        at += line[at..].iter().take_while(|b| is_blank(b)).count();
        let len = line[at..].iter().take_while(|b| !is_blank(b)).count();
        at += len;
        (len > 0).then(|| (at - len, &line[at - len..at]))
    })
}

/// An unsigned number that fills the word.
fn number((column, word): (usize, &[u8]), expected: &'static str) -> Result<u64, Fault> {
    super::fields::Field { column, bytes: word }.whole(expected)
}

/// A time in seconds, with a fraction.
fn seconds((column, word): (usize, &[u8])) -> Result<u64, Fault> {
    super::fields::Field { column, bytes: word }.scaled((1, 9), true, "a time in seconds")
}

/// Is it `SECONDS.FRACTION`?
fn is_time(word: &[u8]) -> bool {
    let point = word.iter().position(|b| *b == b'.');
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    point.is_some_and(|at| digits(&word[..at]) && digits(&word[at + 1..]))
}

/// Is it `MAJOR,MINOR`?
fn is_device(word: &[u8]) -> bool {
    let comma = word.iter().position(|b| *b == b',');
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    comma.is_some_and(|at| digits(&word[..at]) && digits(&word[at + 1..]))
}

/// The number of `MAJOR,MINOR`, with or without brackets around it or blanks in it.
fn device_number(word: &[u8]) -> Option<u32> {
    let mut numbers = word.split(|b| !b.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let mut next = || std::str::from_utf8(numbers.next()?).ok()?.parse::<u32>().ok();
    Some(next()?.checked_shl(20)? | next()?)
}

/// Of an event that is no request, by the words behind the RWBS letters: its extent, and where it
/// is from.
fn extent_and_from(
    kind: Kind,
    rest: &[(usize, &[u8])],
) -> Option<((usize, u64, u64), Option<u64>)> {
    if let (Kind::Split, [sector, (_, b"/"), second, ..]) = (kind, rest) {
        let start = number(*sector, "").ok()?;
        return Some(((sector.0, start, 0), Some(number(*second, "").ok()?)));
    }
    let extent = extent(rest).ok()?.unwrap_or((0, 0, 0));
    let arrow = rest.iter().position(|(_, word)| *word == b"<-");
    let device = arrow.and_then(|at| device_number(rest.get(at + 1)?.1));
    Some((extent, device.map(u64::from)))
}

/// `SECTOR + SECTORS` among the words, the first of which are those behind the RWBS letters.
fn extent(rest: &[(usize, &[u8])]) -> Result<Option<(usize, u64, u64)>, Fault> {
    let Some(plus) = rest.iter().position(|(_, word)| *word == b"+") else { return Ok(None) };
    let (Some(sector), Some(sectors)) =
        (plus.checked_sub(1).map(|at| rest[at]), rest.get(plus + 1))
    else {
        let column = rest[plus].0;
        let expected = "a sector, + and a length in sectors";
        return Err(Fault { reason: Reason::Missing, column, expected, found: None });
    };
    let start = number(sector, "a sector number")?;
    let len = number(*sectors, "a length in sectors")?;
    Ok(Some((sector.0, start, len)))
}
