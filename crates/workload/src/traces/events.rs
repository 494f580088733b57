//! The block layer's events as text: what `blkparse` prints (in its own form, or in that of its
//! option `-f`), and `perf script`, `trace-cmd report` and ftrace's `trace` of the events
//! `block:block_bio_queue`, `block_rq_issue` and `block_rq_complete`.
//!
//! As in the binary form one kind of event is taken as the requests, the first of these that the
//! trace has: queued (`Q`), issued (`D`), completed (`C`). All others tell of the same requests.

mod blkparse;
mod pattern;
mod perf;

use super::cursor::Fault;
use super::error::Reason;
use super::layout;
use super::ops;
use super::raw::{Raw, Span, Volumes, plain_name};
use super::text::{Head, ParseLine};
use super::{BlktraceEvent, TraceOptions};
use pattern::Pattern;

/// One event of a line.
struct Event<'a> {
    /// From the trace's own origin.
    time_ns: u64,
    /// `Q`, `D`, `C` or another of blkparse's; `None` where the lines do not say.
    action: Option<u8>,
    /// Column and text.
    rwbs: (usize, &'a [u8]),
    /// Column, first sector and sectors; zero sectors for a flush.
    extent: (usize, u64, u64),
    /// `major,minor`; empty where the lines do not say.
    device: &'a [u8],
    process: u32,
}

/// What is expected of an operation.
const RWBS: &str = "RWBS letters of the kernel, such as R, WS or D";

/// How a line of one of the forms is read. `None` for a line that is no event with an extent.
type Read = for<'a> fn(&'a [u8]) -> Result<Option<Event<'a>>, Fault>;

/// The parser of both forms.
pub(super) struct Events {
    read: Read,
    pattern: Option<Pattern>,
    /// The requests among the events; `None` where the lines do not say which they are.
    chosen: Option<u8>,
    /// It was asked for.
    asked: bool,
    also: Option<Raw>,
}

impl Events {
    /// What blkparse prints.
    pub(super) fn blkparse() -> Events {
        Events { read: blkparse::event, pattern: None, chosen: None, asked: false, also: None }
    }

    /// What perf, trace-cmd and ftrace print.
    pub(super) fn perf() -> Events {
        Events { read: perf::event, ..Events::blkparse() }
    }

    fn event<'a>(&self, line: &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        match &self.pattern {
            Some(pattern) => pattern.event(line),
            None => (self.read)(line),
        }
    }

    fn raw(&self, event: &Event<'_>, volumes: &mut Volumes) -> Result<[Option<Raw>; 2], Fault> {
        let fault = |(column, reason), expected| Fault { reason, column, expected, found: None };
        let (at, word) = event.rwbs;
        let mut named = ops::rwbs(word).ok_or_else(|| fault((at, Reason::UnknownOp), RWBS))?;
        let (column, start, len) = event.extent;
        if len == 0 {
            named.op = None;
        }
        if !named.flush && named.op.is_none() {
            return Ok([None, None]);
        }
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

/// Events that can be the requests, those before others that tell of the same ones earlier.
const PREFERRED: [u8; 3] = [b'Q', b'D', b'C'];

/// The beginning had none of the events that begin here.
#[cold]
fn too_late(column: usize) -> Fault {
    Fault {
        reason: Reason::UnknownOp,
        column,
        expected: "events of the kinds that the beginning has: say by --event which are the requests",
        found: None,
    }
}

/// Which events are the requests, if that is asked for.
fn asked(options: &TraceOptions) -> Option<u8> {
    // The default is none in particular.
    let event = options.blktrace_event.filter(|e| *e != BlktraceEvent::Queued);
    event.map(|event: BlktraceEvent| if event == BlktraceEvent::Issued { b'D' } else { b'C' })
}

impl ParseLine for Events {
    fn begin(&mut self, head: &Head<'_>, options: &TraceOptions) -> Result<(), String> {
        if let Some(format) = &options.columns {
            self.pattern = Some(Pattern::new(format)?);
        }
        let lines = layout::lines(head.bytes, head.whole);
        let events: Vec<_> = lines.iter().filter_map(|line| self.event(line).ok()?).collect();
        let has = |action: &u8| events.iter().any(|event| event.action == Some(*action));
        let says = events.iter().any(|event| event.action.is_some());
        self.asked = asked(options).is_some();
        let found = asked(options).or_else(|| PREFERRED.into_iter().find(has));
        self.chosen = found.filter(|_| says);
        Ok(())
    }

    fn parse(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let Some(event) = self.event(line)? else { return Ok(None) };
        if event.action.is_some() && event.action != self.chosen {
            let rank = |action| PREFERRED.iter().position(|other| Some(*other) == action);
            let is_better =
                rank(event.action).is_some_and(|rank_of| Some(rank_of) < rank(self.chosen));
            return if is_better && !self.asked { Err(too_late(event.rwbs.0)) } else { Ok(None) };
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
            Some(b'D') => "requests are its issue events (D), as the kernel merged them",
            Some(b'C') => "requests are its completions (C): times are when they were done",
            _ => return Vec::new(),
        };
        vec![note.into()]
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
