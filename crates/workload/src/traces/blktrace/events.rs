//! One stream of records, in either byte order and both versions of the protocol: 48 bytes
//! (`struct blk_io_trace`, version 7) or 64 (`struct blk_io_trace2`, version 8), and a payload.

use super::super::buffer::Buffer;
use super::super::cursor::Fault;
use super::super::error::{Place, Reason};
use super::super::once::Kind;
use super::super::raw::{Stop, read_u16, read_u32, read_u64};
use super::category;
use std::collections::HashMap;

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
pub(in super::super) const RECORD_BYTES_MAX: usize = 64;

/// A record that may be a request, or says that another one is the same request again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) kind: Kind,
    /// See [`category`].
    pub(super) bits: u64,
    pub(super) time_ns: u64,
    pub(super) sector: u64,
    pub(super) bytes: u32,
    pub(super) process: u32,
    pub(super) device: u32,
    pub(super) cpu: u32,
    /// Of a split: where its rest begins. Of a remap: the device that it comes from.
    pub(super) from: u64,
    pub(super) place: Place,
}

/// The next record of a stream.
pub(super) enum Next<E> {
    Event(E),
    Ignored,
    End,
}

/// The events of one stream.
pub(super) struct Events {
    buffer: Buffer,
    big_endian: bool,
    number: u64,
    /// The last record had no magic number: the next one has to be looked for.
    lost: bool,
    sequence: Sequence,
    /// Number of events of [`Kind::Queue`], [`Kind::Issue`] and [`Kind::Complete`].
    pub(super) seen: [u64; 3],
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
pub(in super::super) fn cpu(head: &[u8]) -> Option<u32> {
    layout(head).map(|(layout, big)| read_u32(head, layout.cpu, big))
}

/// The version, if the magic number is right and no layout is known for it.
fn unknown_version(record: &[u8]) -> Option<u32> {
    let magics = [false, true].map(|big| read_u32(record, 0, big));
    magics.into_iter().find(|magic| magic & !0xff == MAGIC).map(|magic| magic & 0xff)
}

impl Events {
    pub(super) fn new(buffer: Buffer) -> Self {
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
    pub(super) fn missing(&self) -> u64 {
        self.sequence.missing
    }

    /// The next record; one that is not in the set `wanted` is ignored.
    pub(super) fn next(&mut self, wanted: u32) -> Result<Next<Event>, Stop> {
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
