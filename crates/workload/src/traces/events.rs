//! The block layer's events as text: what `blkparse` prints (in its own form, or in that of its
//! option `-f`) and ftrace's tracer `blk`, and `perf script`, `trace-cmd report` and ftrace's
//! `trace` of the events `block:block_bio_queue`, `block_rq_issue` and `block_rq_complete`.
//!
//! As in the binary form one kind of event is taken as the requests, the first of these that the
//! trace has: queued (`Q`), issued (`D`), completed (`C`). All others tell of the same requests.

use super::blktrace::{BlktraceEvent, Odd};
use super::cursor::Fault;
use super::error::Reason;
use super::raw::Named;
use super::raw::{Kind, Once, Traced};
use super::raw::{Raw, Span, Volumes, plain_name};
use super::text::{Head, ParseLine};
use super::{TraceOptions, raw};
use crate::traces::cursor::Cursor;
use memchr::memmem::find;
use seekway_core::request::Op;
use std::collections::{HashMap, HashSet};

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
        let (read, odd): (Read, _) = (blkparse_event, Odd::default());
        let (pattern, chosen, asked, seen) = (None, None, false, [0; 3]);
        let (once, remaps) = (Once::default(), Remaps::default());
        let (nameless, also) = (0, None);
        Events { read, pattern, chosen, asked, seen, once, remaps, odd, nameless, also }
    }

    /// Parser of the output of perf, trace-cmd and ftrace.
    pub(super) fn perf() -> Events {
        Events { read: perf_event, ..Events::blkparse() }
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
        let mut named = raw::rwbs(word).ok_or_else(fault)?;
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
        let raw = |op, sync, span| Raw { time_ns, took_ns: 0, volume, process, op, sync, span };
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
    super::cursor::Field { column, bytes: word }.whole(expected)
}

/// A time in seconds, with a fraction.
fn seconds((column, word): (usize, &[u8])) -> Result<u64, Fault> {
    super::cursor::Field { column, bytes: word }.scaled((1, 9), true, "a time in seconds")
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

// Where remapped requests come from in forms of `blkparse -f`, which cannot say it: from the
// device where a request as long was queued last, if that device is no disk.

/// CPUs and devices that are remembered at most.
const REMEMBERED_MAX: usize = 1 << 16;

#[derive(Default)]
struct Remaps {
    /// Device and length of the last request on a CPU.
    last: HashMap<u32, (u32, u64)>,
    /// Devices whose requests are issued, or come from their partitions.
    disks: HashSet<u32>,
}

impl Remaps {
    /// The device that a remapped request comes from; its own if that is not another traced one.
    fn source(&self, event: &Traced) -> u32 {
        let last = self.last.get(&event.cpu).copied();
        let source = last.filter(|(device, len)| *len == event.len && !self.disks.contains(device));
        source.map_or(event.device, |(device, _)| device)
    }

    /// All events have to pass, in order. A request is repeated once.
    fn see(&mut self, event: &Traced, is_repeat: bool) {
        let is_disk = event.kind == Kind::Issue
            || (event.kind == Kind::Remap && event.from == u64::from(event.device));
        if is_disk && self.disks.len() < REMEMBERED_MAX {
            self.disks.insert(event.device);
        }
        if is_repeat {
            self.last.remove(&event.cpu);
        } else if event.kind == Kind::Queue {
            if self.last.len() >= REMEMBERED_MAX {
                self.last.clear();
            }
            self.last.insert(event.cpu, (event.device, event.len));
        }
    }
}

// Traces in forms that are not read, and what to do with each.

/// Test of a file's beginning, and advice for such a file; `{path}` stands for the file.
type Form = (fn(&[u8]) -> bool, &'static str);

const FORMS: [Form; 6] = [
    (
        |head| head.starts_with(b"PAR1"),
        "Parquet, which the Python package makes a CSV of: python3 -c \"import seekway; \
         seekway.write_trace('{path}', '{path}.csv.gz')\"",
    ),
    (
        |head| head.starts_with(b"PERFILE2"),
        "the binary file of perf record: give what `perf script` prints of it",
    ),
    (
        |head| head.starts_with(b"\x17\x08\x44tracing"),
        "the binary file of trace-cmd: give what `trace-cmd report` prints of it",
    ),
    (
        |head| has(head, b"block:block_") && has(head, b"(dev: "),
        "the text of perf trace, which is not read: trace by `perf record -e block:block_rq_issue \
         -a`, and give what `perf script` prints",
    ),
    (
        |head| has(head, b"block_io_start: ") || has(head, b"block_io_done: "),
        "events block_io_start and block_io_done are not read, for they are no requests as they \
         were queued or issued: trace block:block_rq_issue",
    ),
    (
        |head| has(head, b"COMM") && has(head, b"LAT(ms)") && !has(head, b"SECTOR"),
        "a table of bpftrace's biosnoop, which has no sectors and sizes: use that of bcc",
    ),
];

fn has(head: &[u8], text: &[u8]) -> bool {
    find(head, text).is_some()
}

/// Advice for the text of `blkparse -f`.
const BLKPARSE_F: &str = "the text of blkparse -f, in another order than blkparse's own or without \
    the +: give its format by --columns, such as --columns '%T.%t %a %d %S %n'";

/// Advice for a file that no format takes, if it has one of these forms. `rows` are the first lines
/// of a file without a header.
pub(super) fn unread(head: &[u8], rows: &[&[u8]]) -> Option<&'static str> {
    let found = FORMS.iter().find(|(is_it, _)| is_it(head)).map(|(_, what)| *what);
    let expected = |row: &[u8]| blkparse_event(row).err().map(|fault| fault.expected);
    let is_f = || rows.iter().any(|row| expected(row) == Some(EXTENT));
    found.or_else(|| is_f().then_some(BLKPARSE_F))
}

// Lines in a form of `blkparse -f`, which the user gives as it was given to blkparse:
// `%T.%t %d %S %n`.

/// The form, field by field.
struct Pattern {
    /// Text in front of the first field.
    first: Vec<u8>,
    fields: Vec<Part>,
}

/// A field of the form.
struct Part {
    letter: u8,
    /// The text behind it without blanks.
    behind: Vec<u8>,
    /// Number of words after it.
    words: usize,
}

/// Letters of blkparse's fields.
const LETTERS: &[u8] = b"acCdDegMmNnpPsStTuUz";

impl Pattern {
    /// The form, or what it lacks.
    fn new(format: &str) -> Result<Pattern, String> {
        let mut pattern = Pattern { first: Vec::new(), fields: Vec::new() };
        let format = format.replace("\\n", "").replace("\\t", " ");
        let mut rest = format.as_bytes();
        while let [byte, tail @ ..] = rest {
            let is_field = *byte == b'%' && tail.first() != Some(&b'%');
            if !is_field {
                rest = if *byte == b'%' { &tail[1..] } else { tail };
                let text = pattern.fields.last_mut();
                let text = text.map_or(&mut pattern.first, |part| &mut part.behind);
                if !byte.is_ascii_whitespace() {
                    text.push(*byte);
                }
                continue;
            }
            let width = tail.iter().take_while(|b| b.is_ascii_digit() || **b == b'-').count();
            let letter = tail.get(width).copied().filter(|letter| LETTERS.contains(letter));
            let Some(letter) = letter else {
                return Err(format!("--columns {format}: % without one of blkparse's letters"));
            };
            rest = &tail[width + 1..];
            let words = words(rest).count();
            pattern.fields.push(Part { letter, behind: Vec::new(), words });
        }
        let has = |letter| pattern.has(letter);
        for (there, lacks) in [
            (has(b'T'), "%T, the time in seconds"),
            (has(b'd'), "%d, the operation"),
            (has(b'S'), "%S, the sector"),
            (has(b'n') || has(b'N'), "%n or %N, the length"),
        ] {
            if !there {
                return Err(format!("--columns {format}: without {lacks}, there are no requests"));
            }
        }
        Ok(pattern)
    }

    fn has(&self, letter: u8) -> bool {
        self.fields.iter().any(|part| part.letter == letter)
    }

    /// Do the lines say which events they are?
    fn says(&self) -> bool {
        self.has(b'a')
    }

    /// The event of a line. `None` for one of another kind, a message, and the summary.
    fn event<'a>(&self, line: &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        match self.read(line) {
            Ok(event) => Ok(Some(event).filter(|event| event.kind.is_some() || !self.says())),
            Err(_) if is_aside(line) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn read<'a>(&self, line: &'a [u8]) -> Result<Event<'a>, Fault> {
        let mut c = Cursor::new(line);
        text(&mut c, &self.first)?;
        let mut event = Event {
            time_ns: 0,
            kind: None,
            rwbs: (0, b""),
            extent: (0, 0, 0),
            device: b"",
            process: 0,
            cpu: None,
            from: None,
        };
        // From the major number to the minor one.
        let mut device = None;
        for part in &self.fields {
            c.at_end();
            let column = c.pos();
            put(&mut event, part.letter, (column, field(&mut c, part, line)))?;
            if matches!(part.letter, b'D' | b'M' | b'm') {
                let (from, _) = device.unwrap_or((column, 0));
                device = Some((from, c.pos()));
            }
            text(&mut c, &part.behind)?;
        }
        event.device = device.map_or(b"", |(from, to)| &line[from..to]);
        Ok(event)
    }
}

/// Puts a field into the event.
fn put<'a>(event: &mut Event<'a>, letter: u8, at: (usize, &'a [u8])) -> Result<(), Fault> {
    let (column, word) = at;
    let fault = |reason, expected| Fault { reason, column, expected, found: None };
    match letter {
        b'T' => {
            let ns = seconds(at)?.checked_add(event.time_ns);
            event.time_ns = ns.ok_or_else(|| fault(Reason::Overflow, "a time"))?;
        }
        b't' => {
            let ns = number(at, "nanoseconds")?.checked_add(event.time_ns);
            event.time_ns = ns.ok_or_else(|| fault(Reason::Overflow, "a time"))?;
        }
        b'S' => (event.extent.0, event.extent.1) = (column, number(at, "a sector number")?),
        b'n' => event.extent.2 = number(at, "a length in sectors")?,
        b'N' => event.extent.2 = number(at, "a length in bytes")?.div_ceil(512),
        b'p' => event.process = u32::try_from(number(at, "a process id")?).unwrap_or(0),
        b'c' => event.cpu = u32::try_from(number(at, "a CPU")?).ok(),
        b'M' | b'm' | b's' => drop(number(at, "a number")?),
        b'D' if !is_device(word) => return Err(fault(Reason::Malformed, "a device such as 8,0")),
        b'a' if !ACTIONS.contains(&word) => {
            return Err(fault(Reason::UnknownOp, ACTION));
        }
        b'a' => event.kind = Kind::of_letter(word),
        b'd' if raw::rwbs(word).is_none() => return Err(fault(Reason::UnknownOp, RWBS)),
        b'd' => event.rwbs = at,
        _ => {}
    }
    Ok(())
}

/// The bytes of a field: up to a blank, or the text behind it. The name of a process has blanks: it
/// goes up to the text, or leaves as many words as stand behind it.
fn field<'a>(c: &mut Cursor<'a>, part: &Part, line: &[u8]) -> &'a [u8] {
    let from = c.pos();
    let end = part.behind.first().copied();
    if part.letter == b'C' && end.is_none() {
        let words: Vec<_> = words(&line[from..]).collect();
        let last = words.len().checked_sub(part.words + 1).map(|last| words[last]);
        let end = last.map_or(from, |(at, word)| from + at + word.len());
        while c.pos() < end {
            c.skip();
        }
        return c.since(from);
    }
    let mut comma = part.letter == b'D';
    while let Some(byte) = c.peek() {
        let is_blank = byte == b' ' || byte == b'\t';
        let ends = Some(byte) == end && !(comma && byte == b',');
        if ends || (is_blank && part.letter != b'C') {
            break;
        }
        comma &= byte != b',';
        c.skip();
    }
    c.since(from)
}

/// The text behind a field, with blanks anywhere.
fn text(c: &mut Cursor<'_>, text: &[u8]) -> Result<(), Fault> {
    for byte in text {
        c.sep(*byte, "the text that --columns has there")?;
    }
    Ok(())
}

// Lines of the block layer's tracepoints, as perf, trace-cmd and ftrace print them:
//
// ```text
//  fio  1234 [002]  5512.345678: block:block_rq_issue: 8,0 WS 4096 () 2048 + 8 none,0,0 [fio]
//  fio-1234  [002] d..1. 5512.345678: block_bio_queue: 8,0 WS 2048 + 8 [fio]
// ```
//
// Newer kernels print the priority behind the length. A flush has no sectors.

/// Tracepoints that are requests, or say that another one is the same request again.
const TRACEPOINTS: [(&[u8], Kind); 6] = [
    (b"block_bio_queue:", Kind::Queue),
    (b"block_rq_issue:", Kind::Issue),
    (b"block_rq_complete:", Kind::Complete),
    (b"block_bio_remap:", Kind::Remap),
    (b"block_split:", Kind::Split),
    (b"block_rq_requeue:", Kind::Requeue),
];

fn perf_event(line: &[u8]) -> Result<Option<Event<'_>>, Fault> {
    let words: Vec<(usize, &[u8])> = words(line).take(64).collect();
    let tracepoint = |word: &[u8]| {
        let word = word.strip_prefix(b"block:").unwrap_or(word);
        TRACEPOINTS.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind)
    };
    let found = words.iter().enumerate().find_map(|(at, (_, word))| Some((at, tracepoint(word)?)));
    let Some((at, kind)) = found else { return Ok(None) };
    let missing =
        |column, expected| Fault { reason: Reason::Missing, column, expected, found: None };
    let time = at.checked_sub(1).map(|before| words[before]);
    let time = time.and_then(|(column, word)| Some((column, word.strip_suffix(b":")?)));
    let Some(time) = time.filter(|(_, word)| is_time(word)) else {
        return Err(missing(words[at].0, "a time in seconds and a colon in front of the event"));
    };
    let (Some(device), Some(rwbs)) = (words.get(at + 1), words.get(at + 2)) else {
        return Err(missing(line.len(), "a device and RWBS letters"));
    };
    if !is_device(device.1) {
        return Err(Fault {
            reason: Reason::Malformed,
            ..missing(device.0, "a device such as 8,0")
        });
    }
    let rest = &words[at + 3..];
    let (extent, from) = match kind {
        Kind::Queue | Kind::Issue | Kind::Complete => match extent(rest)? {
            Some(extent) => (extent, None),
            None => return Err(missing(line.len(), "a sector, + and a length in sectors")),
        },
        _ => match extent_and_from(kind, rest) {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    Ok(Some(Event {
        time_ns: seconds(time)?,
        kind: Some(kind),
        rwbs: *rwbs,
        extent,
        device: device.1,
        process: process(&words[..at]),
        cpu: cpu(&words[..at]),
        from,
    }))
}

/// The process of `fio 1234 [002]`, `fio 1234/1240 [002]`, `kworker/0:1H-1234 [002]` or
/// `fio-1234 (1230) [002]`; zero where there is none.
fn process(before: &[(usize, &[u8])]) -> u32 {
    let end = before.iter().rposition(|(_, word)| in_brackets(word).is_some());
    let end = end.unwrap_or(before.len());
    let number = |word: &[u8]| {
        let pid = match word.rsplitn(2, |b| *b == b'-').next() {
            Some(pid) if pid.len() < word.len() => pid,
            _ => word.split(|b| *b == b'/').next()?,
        };
        std::str::from_utf8(pid).ok()?.parse().ok()
    };
    before[..end].iter().rev().find_map(|(_, word)| number(word)).unwrap_or(0)
}

/// The CPU: `[002]`.
fn cpu(before: &[(usize, &[u8])]) -> Option<u32> {
    before.iter().rev().find_map(|(_, word)| in_brackets(word))
}

fn in_brackets(word: &[u8]) -> Option<u32> {
    let [b'[', digits @ .., b']'] = word else { return None };
    let digits = Some(digits).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

// Lines of `blkparse`:
//
// ```text
//   8,16   0        1     0.000000000   100  Q  WS 1000 + 8 [fio]
// ```
//
// that is device, CPU, sequence number, seconds, process, action, RWBS, sector + sectors, and in
// brackets the process's name or the error. Formats of `-f` that leave out some of the fields and
// keep the order of the others are read, too. The summary at the end is no event. Without data
// there is no sector, or one alone, or the bytes of a command.
//
// ftrace's tracer `blk` prints the same behind its own columns:
//
// ```text
//  fio-1234  [002] ..... 5512.345678:   8,0    Q  WS 2048 + 8 [fio]
// ```

/// Actions of blkparse's first column of letters.
const ACTIONS: [&[u8]; 18] = [
    b"Q", b"G", b"S", b"R", b"D", b"C", b"I", b"P", b"U", b"UT", b"M", b"F", b"X", b"A", b"B",
    b"m", b"DR", b"AB",
];

/// Expected action, and expected text after the RWBS letters, for messages.
const ACTION: &str = "an action such as Q, D or C";
const EXTENT: &str = "a sector, + and a length in sectors, as blkparse prints them; give \
    the format of its -f by --columns, such as --columns '%T.%t %a %d %S %n'";

fn blkparse_event(line: &[u8]) -> Result<Option<Event<'_>>, Fault> {
    let words: Vec<(usize, &[u8])> = words(line).take(32).collect();
    let fault =
        |expected| Fault { reason: Reason::Missing, column: line.len(), expected, found: None };
    let bare = |word: &'_ [u8]| word.len() - usize::from(word.ends_with(b":"));
    let Some(time) = words.iter().position(|(_, word)| is_time(&word[..bare(word)])) else {
        let is_event = words.first().is_some_and(|(_, word)| is_device(word));
        return if is_event { Err(fault("a time in seconds")) } else { Ok(None) };
    };
    let (column, word) = words[time];
    let (before, behind) = (&words[..time], &words[time + 1..]);
    let is_ftrace = word.ends_with(b":");
    let Some(action) = behind.iter().position(|(_, word)| ACTIONS.contains(word)) else {
        return if is_ftrace { Ok(None) } else { Err(fault(ACTION)) };
    };
    let mut devices = if is_ftrace { &behind[..action] } else { before }.iter();
    let device = devices.find(|(_, word)| is_device(word)).map(|(_, word)| *word);
    let kind = Kind::of_letter(behind[action].1);
    let Some(kind) = kind.filter(|_| !is_ftrace || device.is_some()) else { return Ok(None) };
    let rwbs = *behind.get(action + 1).ok_or_else(|| fault(RWBS))?;
    let pid = (action > 0).then(|| number(behind[0], "a process id").ok()).flatten();
    let pid = pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    let rest = &behind[action + 2..];
    let (extent, from) = match kind {
        Kind::Queue | Kind::Issue | Kind::Complete => (place(kind, rwbs, rest, line.len())?, None),
        _ => match extent_and_from(kind, rest) {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    let cpu = match before {
        _ if is_ftrace => cpu(before),
        [_, cpu, _] => number(*cpu, "a CPU").ok().and_then(|cpu| u32::try_from(cpu).ok()),
        _ => None,
    };
    Ok(Some(Event {
        time_ns: seconds((column, &word[..bare(word)]))?,
        kind: Some(kind),
        rwbs,
        extent,
        device: device.unwrap_or(b""),
        process: if is_ftrace { process(before) } else { pid },
        cpu,
        from,
    }))
}

/// The extent among the words behind the RWBS letters; one of zero sectors at `end` if there is
/// none.
fn place(
    kind: Kind,
    rwbs: (usize, &[u8]),
    rest: &[(usize, &[u8])],
    end: usize,
) -> Result<(usize, u64, u64), Fault> {
    if rest.get(1).is_some_and(|(_, word)| *word == b"+")
        && let Some(extent) = extent(rest)?
    {
        return Ok(extent);
    }
    let opens = |at: usize| rest.get(at).is_some_and(|(_, word)| matches!(word[0], b'[' | b'('));
    // Queued is only what has a place, or a flush.
    let is_number = || kind != Kind::Queue && number(rest[0], "").is_ok();
    if opens(0) || (opens(1) && is_number()) {
        return Ok((end, 0, 0));
    }
    let (reason, column, expected) = match raw::rwbs(rwbs.1) {
        None => (Reason::UnknownOp, rwbs.0, RWBS),
        Some(_) => (Reason::Missing, rest.first().map_or(end, |(column, _)| *column), EXTENT),
    };
    Err(Fault { reason, column, expected, found: None })
}

/// A message (`m`), which blkparse prints in its own form whatever `-f` says, or a line of the
/// summaries.
fn is_aside(line: &[u8]) -> bool {
    let words: Vec<&[u8]> = words(line).take(6).map(|(_, word)| word).collect();
    if let [device, _, _, time, _, action] = words[..]
        && is_device(device)
        && is_time(time)
    {
        return action == b"m";
    }
    let line = line.trim_ascii();
    // Of a process: its name and its number.
    let pid = line.rsplit(|b| *b == b'(').next().and_then(|pid| pid.strip_suffix(b")"));
    let pid = pid.map(|pid| pid.strip_suffix(b", ...").unwrap_or(pid));
    pid.is_some_and(|pid| !pid.is_empty() && pid.iter().all(u8::is_ascii_digit))
        || SUMMARY.split('|').any(|begin| line.starts_with(begin.as_bytes()))
}

/// Beginnings of the lines of summaries.
const SUMMARY: &str = "Input file |CPU|Total (|Read|PC Read|IO unplugs:|Allocation wait:|\
    Dispatch wait:|Completion wait:|Throughput (|Events (|Skips:";
