//! The kernel's own traces: what `blktrace` writes (one file per CPU, or one stream with `-o -`),
//! in the byte order of the machine that traced (`include/uapi/linux/blktrace_api.h`).
//!
//! One kind of event is taken as the requests: queued (`Q`, what the guest's file systems asked
//! for), issued (`D`, what the kernel's own scheduler and merging made of it) or completed (`C`).
//! Unless one is asked for, the first of these that the trace has. A request with `REQ_PREFLUSH`
//! and data becomes a flush and then a write, as the block layer does it. Writes are `sync` when
//! the trace says `REQ_SYNC`. Only version 8 tells write-zeroes from writes.

mod events;

use super::buffer::Buffer;
use super::cursor::Fault;
use super::once::{Kind, Once, Traced};
use super::raw::{Decode, Raw, Span, Step, Stop, Volumes};
use events::{Event, Events, Next};
pub(super) use events::{RECORD_BYTES_MAX, cpu};
use seekway_core::request::Op;
use seekway_core::units::Sectors;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;

/// Events that are held until it is clear which of them are the requests (3 MiB). A trace has
/// queue events from its start on, behind those of requests that were under way.
const EARLY_MAX: usize = 1 << 15;

/// Categories (`BLK_TC_…`), shifted down to the lowest bits; those from 16 on are of version 8.
mod category {
    pub(super) const WRITE: u64 = 1 << 1;
    pub(super) const FLUSH: u64 = 1 << 2;
    pub(super) const SYNC: u64 = 1 << 3;
    const PASS_THROUGH: u64 = 1 << 9;
    pub(super) const NOTIFY: u64 = 1 << 10;
    pub(super) const DISCARD: u64 = 1 << 13;
    const DRIVER_DATA: u64 = 1 << 14;
    pub(super) const ZONE_APPEND: u64 = 1 << 16;
    /// Reset, reset all, finish, open, close.
    pub(super) const ZONE_MANAGEMENT: u64 = 0b1_1111 << 17;
    pub(super) const WRITE_ZEROES: u64 = 1 << 22;
    /// Records with one of these are no requests for blocks.
    pub(super) const ASIDE: u64 = PASS_THROUGH | NOTIFY | DRIVER_DATA;
}

/// Which of the block layer's events count as requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum BlktraceEvent {
    /// `Q`: a bio was handed to the block layer.
    Queued,
    /// `D`: a request was sent to the driver.
    Issued,
    /// `C`: the driver was done with a request.
    Completed,
}

impl BlktraceEvent {
    /// In the order in which they are preferred.
    pub const ALL: [BlktraceEvent; 3] =
        [BlktraceEvent::Queued, BlktraceEvent::Issued, BlktraceEvent::Completed];

    /// Names as blktrace's `-a` has them, letters as `blkparse` prints them, and kinds.
    const ABOUT: [(&str, char, Kind); 3] = [
        ("queue", 'Q', Kind::Queue),
        ("issue", 'D', Kind::Issue),
        ("complete", 'C', Kind::Complete),
    ];

    /// The event's name: `queue`, `issue` or `complete`.
    pub const fn name(self) -> &'static str {
        Self::ABOUT[self as usize].0
    }

    const fn letter(self) -> char {
        Self::ABOUT[self as usize].1
    }

    const fn kind(self) -> Kind {
        Self::ABOUT[self as usize].2
    }

    pub(super) fn of(kind: Kind) -> Option<BlktraceEvent> {
        BlktraceEvent::ALL.into_iter().find(|event| event.kind() == kind)
    }

    /// Says how to read a trace that has none of the chosen events; `seen` counts those of each
    /// kind.
    pub(super) fn advice(seen: impl Fn(BlktraceEvent) -> u64) -> Option<String> {
        let there: Vec<_> = BlktraceEvent::ALL.into_iter().filter(|e| seen(*e) > 0).collect();
        let join = |text: &dyn Fn(&BlktraceEvent) -> String, between| -> String {
            there.iter().map(text).collect::<Vec<_>>().join(between)
        };
        let counts = join(&|e| format!("{} {} ({})", seen(*e), e.name(), e.letter()), ", ");
        let names = join(&|e| e.name().into(), " or ");
        (!there.is_empty())
            .then(|| format!("its events are {counts}: take them by --event {names}"))
    }

    /// The events that have to be seen so that each request is taken once.
    pub(super) const fn wanted(self) -> u32 {
        match self {
            BlktraceEvent::Queued => Kind::Queue.bit() | Kind::Split.bit() | Kind::Remap.bit(),
            BlktraceEvent::Issued => Kind::Issue.bit() | Kind::Requeue.bit(),
            BlktraceEvent::Completed => Kind::Complete.bit(),
        }
    }
}

/// Does `head` begin with a record of a known version?
pub(super) fn is_blktrace(head: &[u8]) -> bool {
    cpu(head).is_some()
}

/// Events that are left out, by what they are, and zone appends.
#[derive(Default)]
pub(super) struct Odd {
    pub(super) zone_operations: u64,
    pub(super) without_data: u64,
    pub(super) zone_appends: u64,
}

impl Odd {
    /// Lines for the user about these records. `chosen` are the requests.
    pub(super) fn notes(&self, chosen: Option<BlktraceEvent>) -> Vec<String> {
        let mut notes = Vec::new();
        for (count, what) in [
            (self.zone_operations, "zone operations left out"),
            (self.without_data, "requests without data left out"),
        ] {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        }
        if self.zone_appends > 0 && chosen != Some(BlktraceEvent::Completed) {
            notes.push(format!(
                "{} zone appends stand at the start of their zone; --event complete has their \
                 sectors",
                self.zone_appends
            ));
        }
        notes
    }
}

/// One stream of events, or several merged by time.
pub(super) struct BlktraceDecoder {
    streams: Vec<Stream>,
    /// Time and number of each stream whose next event is known.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    /// Streams whose next event is not known.
    unread: Vec<usize>,
    /// Which events are the requests, once that is known; and was it asked for?
    chosen: Option<BlktraceEvent>,
    asked: bool,
    /// Events that were read before the kind of event was known.
    early: VecDeque<(usize, Event)>,
    once: Once,
    /// The data of a request whose preceding flush has been handed on.
    after_flush: Option<Raw>,
    odd: Odd,
}

struct Stream {
    name: String,
    events: Events,
    head: Option<Event>,
}

impl BlktraceDecoder {
    /// Decode the streams, each with its file's name.
    pub(super) fn new(streams: Vec<(String, Buffer)>, asked: Option<BlktraceEvent>) -> Self {
        let stream = |(name, buffer)| Stream { name, events: Events::new(buffer), head: None };
        BlktraceDecoder {
            heads: BinaryHeap::new(),
            unread: (0..streams.len()).rev().collect(),
            streams: streams.into_iter().map(stream).collect(),
            chosen: asked,
            asked: asked.is_some(),
            early: VecDeque::new(),
            once: Once::default(),
            after_flush: None,
            odd: Odd::default(),
        }
    }

    /// The next event of all streams by time.
    fn merged(&mut self) -> Result<Next<(usize, Event)>, Stop> {
        let wanted = match self.chosen {
            Some(event) if self.asked => event.wanted(),
            Some(event) => {
                let better = BlktraceEvent::ALL.into_iter().filter(|other| *other < event);
                better.fold(event.wanted(), |wanted, other| wanted | other.kind().bit())
            }
            None => u32::MAX,
        };
        while let Some(&number) = self.unread.last() {
            let stream = &mut self.streams[number];
            match stream.events.next(wanted) {
                Ok(Next::Ignored) => return Ok(Next::Ignored),
                Ok(Next::Event(event)) => {
                    self.heads.push(Reverse((event.time_ns, number)));
                    stream.head = Some(event);
                }
                Ok(Next::End) => {}
                Err(stop) => return Err(self.in_file(number, stop)),
            }
            self.unread.pop();
        }
        let Some(Reverse((_, number))) = self.heads.pop() else { return Ok(Next::End) };
        self.unread.push(number);
        let head = self.streams[number].head.take();
        Ok(head.map_or(Next::End, |event| Next::Event((number, event))))
    }

    /// Names the file of a fault where there are several.
    #[cold]
    fn in_file(&self, number: usize, mut stop: Stop) -> Stop {
        if let Stop::Record { fault, .. } = &mut stop
            && self.streams.len() > 1
        {
            let found = fault.found.take().unwrap_or_default();
            fault.found = Some(format!("{found} (in {})", self.streams[number].name));
        }
        stop
    }

    /// Counts the events of a kind in all streams.
    fn seen(&self, event: BlktraceEvent) -> u64 {
        self.streams.iter().map(|stream| stream.events.seen[event as usize]).sum()
    }

    /// Decides which events are the requests, if that is clear now or has to be.
    fn choose(&mut self, over: bool) {
        let there = |event: &BlktraceEvent| self.seen(*event) > 0;
        if over || there(&BlktraceEvent::Queued) || self.early.len() >= EARLY_MAX {
            let found = BlktraceEvent::ALL.into_iter().find(there);
            self.chosen = Some(found.unwrap_or(BlktraceEvent::Queued));
        }
    }

    /// The request that an event is, if it is one.
    fn take(&mut self, event: &Event, volumes: &mut Volumes) -> Result<Step, Stop> {
        let chosen = self.chosen.unwrap_or(BlktraceEvent::Queued);
        let Event { kind, cpu, device, sector, from, .. } = *event;
        let len = event.bytes.into();
        if self.once.is_repeat(&Traced { kind, cpu, device, sector, len, from }) {
            return Ok(Step::Ignored);
        }
        if event.kind != chosen.kind() {
            let other = BlktraceEvent::of(event.kind).filter(|other| *other < chosen);
            return match other {
                Some(other) if !self.asked => Err(too_late(other, chosen).into()),
                _ => Ok(Step::Ignored),
            };
        }
        match self.request(event, volumes) {
            Ok(Some(raw)) => Ok(Step::Request(raw)),
            Ok(None) => Ok(Step::Ignored),
            Err(fault) => Err(Stop::Record { fault, place: event.place }),
        }
    }

    fn request(&mut self, event: &Event, volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
        let Event { bits, sector, device, .. } = *event;
        let bytes = u64::from(event.bytes);
        let is_flush = bits & category::FLUSH != 0;
        if bits & category::ZONE_MANAGEMENT != 0 {
            self.odd.zone_operations += 1;
            return Ok(None);
        }
        if bytes == 0 && !is_flush {
            self.odd.without_data += 1;
            return Ok(None);
        }
        let volume = volumes
            .intern(&device.to_le_bytes(), |_| format!("{}:{}", device >> 20, device & 0xf_ffff))
            .map_err(|reason| {
                Fault::binary(reason, "at most 65,536 devices", device.to_string())
            })?;
        let mut raw = Raw {
            time_ns: event.time_ns,
            volume,
            process: event.process,
            op: Op::Flush,
            sync: true,
            span: Span::NONE,
        };
        if bytes == 0 {
            return Ok(Some(raw));
        }
        let flush = raw;
        raw.op = match bits {
            b if b & category::DISCARD != 0 => Op::Discard,
            b if b & category::WRITE_ZEROES != 0 => Op::WriteZeroes,
            b if b & (category::WRITE | category::ZONE_APPEND) != 0 => Op::Write,
            _ => Op::Read,
        };
        raw.sync = raw.op == Op::Read || bits & category::SYNC != 0;
        let sectors = Sectors::from_bytes(bytes);
        raw.span = Span::sectors(sector, sectors.get()).map_err(|reason| {
            Fault::binary(reason, "an extent", format!("{bytes} bytes at sector {sector}"))
        })?;
        raw.span.rounded = sectors.bytes() != bytes;
        self.odd.zone_appends += u64::from(bits & category::ZONE_APPEND != 0);
        if is_flush {
            self.after_flush = Some(raw);
            return Ok(Some(flush));
        }
        Ok(Some(raw))
    }
}

#[cold]
fn too_late(other: BlktraceEvent, chosen: BlktraceEvent) -> io::Error {
    let (first, late) = (chosen.name(), other.name());
    io::Error::other(format!(
        "the first {EARLY_MAX} events have {first} and no {late}, and then {late} comes: say which \
         are the requests by --event {first} or --event {late}"
    ))
}

impl Decode for BlktraceDecoder {
    fn step(&mut self, volumes: &mut Volumes) -> Result<Step, Stop> {
        if let Some(raw) = self.after_flush.take() {
            return Ok(Step::Request(raw));
        }
        loop {
            let early = self.chosen.and_then(|_| self.early.pop_front());
            let next = match early {
                Some(early) => Next::Event(early),
                None => self.merged()?,
            };
            match (next, self.chosen) {
                (Next::Ignored, _) => return Ok(Step::Ignored),
                (Next::Event((number, event)), Some(_)) => {
                    return self.take(&event, volumes).map_err(|stop| self.in_file(number, stop));
                }
                (Next::Event(event), None) => {
                    self.early.push_back(event);
                    self.choose(false);
                }
                (Next::End, Some(_)) => return Ok(Step::End),
                (Next::End, None) => self.choose(true),
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        match self.chosen {
            Some(BlktraceEvent::Issued) if !self.asked => notes.push(
                "no queue events (Q); read by its issue events (D): requests as the kernel sent \
                 them to the driver, merged"
                    .into(),
            ),
            Some(BlktraceEvent::Completed)
                if !self.asked && self.seen(BlktraceEvent::Completed) > 0 =>
            {
                notes.push(
                    "no queue or issue events (Q, D); read by its completions (C): times are when \
                 requests were done"
                        .into(),
                )
            }
            _ => {}
        }
        let missing: u64 = self.streams.iter().map(|stream| stream.events.missing()).sum();
        if missing > 0 {
            notes.push(format!(
                "{missing} events are missing by the numbers of the others: blktrace lost them \
                 (give it more buffers with -b and -n), or they were cut out"
            ));
        }
        notes.extend(self.once.note());
        notes.extend(self.odd.notes(self.chosen));
        notes
    }

    fn advice(&self) -> Option<String> {
        BlktraceEvent::advice(|event| self.seen(event))
    }
}
