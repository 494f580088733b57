//! The kernel's own traces: what `blktrace` writes (one file per CPU, or one stream with `-o -`),
//! in the byte order of the machine that traced (`include/uapi/linux/blktrace_api.h`).
//!
//! One kind of event is taken as the requests: queued (`Q`, what the guest's file systems asked
//! for), issued (`D`, what the kernel's own scheduler and merging made of it) or completed (`C`).
//! Unless one is asked for, the first of these that the trace has. A request with `REQ_PREFLUSH`
//! and data becomes a flush and then a write, as the block layer does it. Writes are `sync` when
//! the trace says `REQ_SYNC`. Only version 8 tells write-zeroes from writes.

use super::buffer::Buffer;
use super::cursor::Fault;
use super::error::{Place, Reason};
use super::raw::{Decode, Raw, Span, Step, Stop, Volumes, read_u16, read_u32, read_u64};
use super::raw::{Kind, Once, Traced};
use seekway_core::request::Op;
use seekway_core::units::Sectors;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
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
            took_ns: 0,
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

// One stream of records, in either byte order and both versions of the protocol: 48 bytes
// (`struct blk_io_trace`, version 7) or 64 (`struct blk_io_trace2`, version 8), and a payload.

/// `BLK_IO_TRACE_MAGIC`, the version in the lowest byte.
const MAGIC: u32 = 0x6561_7400;
/// `__BLK_TA_CGROUP`: the payload begins with the number of a cgroup.
const CGROUP: u64 = 1 << 8;
const CGROUP_BYTES: usize = 8;
/// `BLK_TC_SHIFT`.
const CATEGORY_SHIFT: u32 = 16;
/// The longest payload that is looked into: a remap behind a cgroup.
const PAYLOAD_BYTES: usize = CGROUP_BYTES + 16;

/// Where the fields of a record lie. All before the process are at the same place in both.
struct Layout {
    version: u32,
    bytes: usize,
    process: usize,
    action: usize,
    /// Width of the action.
    wide: bool,
    device: usize,
    cpu: usize,
    payload: usize,
}

const LAYOUTS: [Layout; 2] = [
    Layout {
        version: 7,
        bytes: 48,
        action: 28,
        wide: false,
        process: 32,
        device: 36,
        cpu: 40,
        payload: 46,
    },
    Layout {
        version: 8,
        bytes: 64,
        process: 28,
        action: 32,
        wide: true,
        device: 40,
        cpu: 44,
        payload: 50,
    },
];

/// Bytes of the longest record without payload.
pub(super) const RECORD_BYTES_MAX: usize = 64;

/// A record that may be a request, or says that another one is the same request again.
#[derive(Clone, Copy, Debug)]
struct Event {
    kind: Kind,
    /// See [`category`].
    bits: u64,
    time_ns: u64,
    sector: u64,
    bytes: u32,
    process: u32,
    device: u32,
    cpu: u32,
    /// Of a split: where its rest begins. Of a remap: the device that it comes from.
    from: u64,
    place: Place,
}

/// The next record of a stream.
enum Next<E> {
    Event(E),
    Ignored,
    End,
}

/// The events of one stream.
struct Events {
    buffer: Buffer,
    big_endian: bool,
    number: u64,
    /// The last record had no magic number: the next one has to be looked for.
    lost: bool,
    sequence: Sequence,
    /// Number of events of [`Kind::Queue`], [`Kind::Issue`] and [`Kind::Complete`].
    seen: [u64; 3],
}

/// The kernel numbers the records of each device and CPU; with version 8 also those for which it
/// had no room.
#[derive(Default)]
struct Sequence {
    /// Device and CPU of the last record, and its number; zero before the first.
    of: (u32, u32),
    last: u32,
    /// The last numbers of all others.
    others: HashMap<(u32, u32), u32>,
    missing: u64,
}

impl Sequence {
    /// Devices and CPUs that are remembered at most.
    const OTHERS_MAX: usize = 1 << 16;

    fn add(&mut self, device: u32, cpu: u32, number: u32) {
        // The kernel's tracer in ftrace gives none.
        if number == 0 {
            return;
        }
        if self.of != (device, cpu) {
            if self.others.len() < Self::OTHERS_MAX {
                self.others.insert(self.of, self.last);
            }
            self.of = (device, cpu);
            self.last = self.others.get(&self.of).copied().unwrap_or(0);
        }
        if self.last != 0 {
            self.missing += u64::from(number.saturating_sub(self.last).saturating_sub(1));
        }
        self.last = number.max(self.last);
    }
}

fn kind(action: u64) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| *kind as u64 == action & 0xff)
}

/// The layout of the record that begins with `head`, and whether it is big-endian.
fn layout(head: &[u8]) -> Option<(&'static Layout, bool)> {
    [false, true].into_iter().find_map(|big| {
        let version = read_u32(head, 0, big) ^ MAGIC;
        LAYOUTS.iter().find(|l| l.version == version).map(|layout| (layout, big))
    })
}

/// The CPU in the record that `head` begins with; `None` if it is no record.
pub(super) fn cpu(head: &[u8]) -> Option<u32> {
    layout(head).map(|(layout, big)| read_u32(head, layout.cpu, big))
}

/// The version, if the magic number is right and no layout is known for it.
fn unknown_version(record: &[u8]) -> Option<u32> {
    let magics = [false, true].map(|big| read_u32(record, 0, big));
    magics.into_iter().find(|magic| magic & !0xff == MAGIC).map(|magic| magic & 0xff)
}

impl Events {
    fn new(buffer: Buffer) -> Self {
        Events {
            buffer,
            big_endian: false,
            number: 0,
            lost: false,
            sequence: Sequence::default(),
            seen: [0; 3],
        }
    }

    /// Records that were made and are not there, by the numbers of the others.
    fn missing(&self) -> u64 {
        self.sequence.missing
    }

    /// The next record; one that is not in the set `wanted` is ignored.
    fn next(&mut self, wanted: u32) -> Result<Next<Event>, Stop> {
        if std::mem::take(&mut self.lost) {
            self.resynchronise()?;
        }
        let offset = self.buffer.offset();
        let held = self.buffer.ensure(RECORD_BYTES_MAX)?;
        if held.is_empty() {
            return Ok(Next::End);
        }
        self.number += 1;
        let place = Place::Record { number: self.number, offset };
        let stop = |fault| Err(Stop::Record { fault, place });
        let known = layout(held).filter(|(_, big)| self.number == 1 || *big == self.big_endian);
        let Some((layout, big)) = known else {
            let fault = if held.len() < LAYOUTS[0].bytes {
                cut_short(held.len())
            } else if let Some(version) = unknown_version(held) {
                let found = format!("version {version}");
                Fault::binary(Reason::BadVersion, "version 7 or 8", found)
            } else {
                let found = format!("{:#010x}", read_u32(held, 0, self.big_endian));
                Fault::binary(
                    Reason::BadMagic,
                    "the magic number 0x65617407 (version 8: 0x65617408)",
                    found,
                )
            };
            // How long a record is that is not understood, nobody knows.
            self.lost = true;
            return stop(fault);
        };
        if held.len() < layout.bytes {
            let fault = cut_short(held.len());
            self.buffer.consume(RECORD_BYTES_MAX);
            return stop(fault);
        }
        let mut record = [0; RECORD_BYTES_MAX];
        record[..layout.bytes].copy_from_slice(&held[..layout.bytes]);
        self.big_endian = big;
        self.buffer.consume(layout.bytes);
        let payload = usize::from(read_u16(&record, layout.payload, big));
        let event = self.event(&record, layout, payload, place, wanted)?;
        let skipped = self.buffer.skip(payload)?;
        if skipped < payload {
            let found = format!("{skipped} of {payload} bytes");
            return stop(Fault::binary(Reason::Truncated, "the record's whole payload", found));
        }
        Ok(event.map_or(Next::Ignored, Next::Event))
    }

    /// A record as an event, if it is one of those that are `wanted`. The payload comes next in
    /// the buffer and stays there.
    fn event(
        &mut self,
        record: &[u8; RECORD_BYTES_MAX],
        layout: &Layout,
        payload: usize,
        place: Place,
        wanted: u32,
    ) -> Result<Option<Event>, Stop> {
        let big = self.big_endian;
        let action = match layout.wide {
            true => read_u64(record, layout.action, big),
            false => u64::from(read_u32(record, layout.action, big)),
        };
        let (device, cpu) =
            (read_u32(record, layout.device, big), read_u32(record, layout.cpu, big));
        let bits = action >> CATEGORY_SHIFT;
        // Notify events have no number: before version 8 the kernel leaves in it what its buffer
        // held before.
        if bits & category::NOTIFY == 0 {
            self.sequence.add(device, cpu, read_u32(record, 4, big));
        }
        let Some(kind) = kind(action) else { return Ok(None) };
        if bits & category::ASIDE != 0 {
            return Ok(None);
        }
        match kind {
            Kind::Queue => self.seen[0] += 1,
            Kind::Issue => self.seen[1] += 1,
            Kind::Complete => self.seen[2] += 1,
            _ => {}
        }
        if kind.bit() & wanted == 0 {
            return Ok(None);
        }
        let from = match kind {
            Kind::Split | Kind::Remap => {
                let held = self.buffer.ensure(payload.min(PAYLOAD_BYTES))?;
                let held = &held[..held.len().min(payload)];
                let skip = if action & CGROUP != 0 { CGROUP_BYTES } else { 0 };
                // Payloads are big-endian on every machine.
                match kind {
                    Kind::Split => read_u64(held, skip, true),
                    _ => u64::from(read_u32(held, skip, true)),
                }
            }
            _ => 0,
        };
        Ok(Some(Event {
            kind,
            bits,
            time_ns: read_u64(record, 8, big),
            sector: read_u64(record, 16, big),
            bytes: read_u32(record, 24, big),
            process: read_u32(record, layout.process, big),
            device,
            cpu,
            from,
            place,
        }))
    }

    /// Go to the next magic number, or to the end.
    fn resynchronise(&mut self) -> Result<(), Stop> {
        self.buffer.consume(1);
        loop {
            let held = self.buffer.ensure(RECORD_BYTES_MAX)?;
            if held.len() < 4 {
                let left = held.len();
                self.buffer.consume(left);
                return Ok(());
            }
            if let Some(at) = held.windows(4).position(|w| layout(w).is_some()) {
                self.buffer.consume(at);
                return Ok(());
            }
            let step = held.len() - 3;
            self.buffer.consume(step);
        }
    }
}

fn cut_short(held: usize) -> Fault {
    let found = format!("{held} bytes");
    Fault::binary(Reason::Truncated, "a whole record of 48 bytes (version 8: 64)", found)
}
