//! The kernel's own traces: what `blktrace` writes (one file per CPU, or one
//! stream with `-o -`). Records of 48 bytes and a payload, in the byte order
//! of the machine that traced (`include/uapi/linux/blktrace_api.h`).
//!
//! One kind of event is taken as the requests: queued (`Q`, what the guest's
//! file systems asked for) or issued (`D`, what the kernel's own scheduler and
//! merging made of it). A request with `REQ_PREFLUSH` and data becomes a flush
//! and then a write, as the block layer does it. Writes are `sync` when the
//! trace says `REQ_SYNC`. Write-zeroes cannot be told from writes.

use super::buffer::Buffer;
use super::cursor::Fault;
use super::error::{Place, Reason};
use super::raw::{Decode, Raw, Span, Step, Stop, Volumes, read_u16, read_u32, read_u64};
use seekway_policy::request::Op;
use seekway_policy::units::Sectors;

/// Bytes of `struct blk_io_trace` without payload.
const HEADER: usize = 48;
/// `BLK_IO_TRACE_MAGIC`, the version in the lowest byte.
const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;

/// Categories, shifted down from the upper half of `action`.
mod category {
    pub(super) const WRITE: u32 = 1 << 1;
    pub(super) const FLUSH: u32 = 1 << 2;
    pub(super) const SYNC: u32 = 1 << 3;
    pub(super) const PASS_THROUGH: u32 = 1 << 9;
    pub(super) const NOTIFY: u32 = 1 << 10;
    pub(super) const DISCARD: u32 = 1 << 13;
    pub(super) const DRIVER_DATA: u32 = 1 << 14;
}

/// Which of the block layer's events count as requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BlktraceEvent {
    /// `Q`: a bio was handed to the block layer.
    #[default]
    Queued,
    /// `D`: a request was sent to the driver.
    Issued,
}

impl BlktraceEvent {
    const fn action(self) -> u32 {
        match self {
            BlktraceEvent::Queued => 1,
            BlktraceEvent::Issued => 7,
        }
    }
}

/// The byte order, if `head` begins with a record of the known version.
pub(super) fn is_blktrace(head: &[u8]) -> bool {
    byte_order(head).is_some_and(|big| read_u32(head, 0, big) == MAGIC | VERSION)
}

/// True for big-endian; `None` without the magic number.
fn byte_order(record: &[u8]) -> Option<bool> {
    [false, true].into_iter().find(|big| read_u32(record, 0, *big) & !0xff == MAGIC)
}

/// One stream of events, or several merged by time.
pub(super) struct BlktraceDecoder {
    streams: Vec<Stream>,
}

struct Stream {
    name: String,
    events: Events,
    /// The next request, when it has been read and not handed on.
    head: Option<Raw>,
    ended: bool,
}

impl BlktraceDecoder {
    /// Decode the streams, each with its file's name.
    pub(super) fn new(streams: Vec<(String, Buffer)>, event: BlktraceEvent) -> Self {
        let stream = |(name, buffer)| Stream {
            name,
            events: Events::new(buffer, event),
            head: None,
            ended: false,
        };
        BlktraceDecoder { streams: streams.into_iter().map(stream).collect() }
    }
}

impl Decode for BlktraceDecoder {
    fn step(&mut self, volumes: &mut Volumes) -> Result<Step, Stop> {
        if let [only] = self.streams.as_mut_slice() {
            return only.events.step(volumes);
        }
        for stream in &mut self.streams {
            if stream.head.is_some() || stream.ended {
                continue;
            }
            match stream.events.step(volumes) {
                Ok(Step::Request(raw)) => stream.head = Some(raw),
                Ok(Step::Ignored) => return Ok(Step::Ignored),
                Ok(Step::End) => stream.ended = true,
                Err(Stop::Record { mut fault, place }) => {
                    let found = fault.found.take().unwrap_or_default();
                    fault.found = Some(format!("{found} (in {})", stream.name));
                    return Err(Stop::Record { fault, place });
                }
                Err(io) => return Err(io),
            }
        }
        let heads = self.streams.iter().enumerate();
        let first = heads.filter_map(|(i, s)| s.head.map(|raw| (raw.time_ns, i))).min();
        match first.and_then(|(_, i)| self.streams[i].head.take()) {
            Some(raw) => Ok(Step::Request(raw)),
            None => Ok(Step::End),
        }
    }
}

/// The events of one stream.
struct Events {
    buffer: Buffer,
    event: BlktraceEvent,
    big_endian: bool,
    number: u64,
    /// The last record had no magic number: the next one has to be looked for.
    lost: bool,
    /// The data of a request whose preceding flush has been handed on.
    after_flush: Option<Raw>,
}

impl Events {
    fn new(buffer: Buffer, event: BlktraceEvent) -> Self {
        Events { buffer, event, big_endian: false, number: 0, lost: false, after_flush: None }
    }

    fn step(&mut self, volumes: &mut Volumes) -> Result<Step, Stop> {
        if let Some(raw) = self.after_flush.take() {
            return Ok(Step::Request(raw));
        }
        if std::mem::take(&mut self.lost) {
            self.resynchronise()?;
        }
        let offset = self.buffer.offset();
        let held = self.buffer.ensure(HEADER)?;
        if held.is_empty() {
            return Ok(Step::End);
        }
        self.number += 1;
        let place = Place::Record { number: self.number, offset };
        let stop = |fault| Err(Stop::Record { fault, place });
        let Some(record) = held.first_chunk::<HEADER>().copied() else {
            let found = format!("{} bytes", held.len());
            self.buffer.consume(HEADER);
            return stop(Fault::binary(Reason::Truncated, "a whole record of 48 bytes", found));
        };
        let Some(big) =
            byte_order(&record).filter(|big| self.number == 1 || *big == self.big_endian)
        else {
            let found = format!("{:#010x}", read_u32(&record, 0, self.big_endian));
            self.lost = true;
            return stop(Fault::binary(Reason::BadMagic, "the magic number 0x65617407", found));
        };
        self.big_endian = big;
        let payload = usize::from(read_u16(&record, 46, big));
        self.buffer.consume(HEADER);
        let skipped = self.buffer.skip(payload)?;
        let version = read_u32(&record, 0, big) & 0xff;
        if version != VERSION {
            return stop(Fault::binary(
                Reason::BadVersion,
                "version 7",
                format!("version {version}"),
            ));
        }
        if skipped < payload {
            let found = format!("{skipped} of {payload} bytes");
            return stop(Fault::binary(Reason::Truncated, "the record's whole payload", found));
        }
        match self.parse(&record, volumes) {
            Ok(Some(raw)) => Ok(Step::Request(raw)),
            Ok(None) => Ok(Step::Ignored),
            Err(fault) => stop(fault),
        }
    }

    /// Go to the next magic number, or to the end.
    fn resynchronise(&mut self) -> Result<(), Stop> {
        self.buffer.consume(1);
        loop {
            let held = self.buffer.ensure(HEADER)?;
            if held.len() < 4 {
                let left = held.len();
                self.buffer.consume(left);
                return Ok(());
            }
            let magic =
                |w: &[u8]| byte_order(w).is_some_and(|big| read_u32(w, 0, big) & 0xff == VERSION);
            if let Some(at) = held.windows(4).position(magic) {
                self.buffer.consume(at);
                return Ok(());
            }
            let step = held.len() - 3;
            self.buffer.consume(step);
        }
    }

    fn parse(
        &mut self,
        record: &[u8; HEADER],
        volumes: &mut Volumes,
    ) -> Result<Option<Raw>, Fault> {
        let big = self.big_endian;
        let action = read_u32(record, 28, big);
        let bits = action >> 16;
        let aside = category::NOTIFY | category::DRIVER_DATA | category::PASS_THROUGH;
        // Bit 8 of the action only says that the payload holds a cgroup.
        if action & 0xff != self.event.action() || bits & aside != 0 {
            return Ok(None);
        }
        let (sector, bytes) = (read_u64(record, 16, big), u64::from(read_u32(record, 24, big)));
        let is_flush = bits & category::FLUSH != 0;
        if bytes == 0 && !is_flush {
            let found = format!("{bytes} bytes at sector {sector}");
            return Err(Fault::binary(Reason::ZeroLength, "a length in bytes, not zero", found));
        }
        let device = read_u32(record, 36, big);
        let volume = volumes
            .intern(&device.to_le_bytes(), |_| format!("{}:{}", device >> 20, device & 0xf_ffff))
            .map_err(|reason| {
                Fault::binary(reason, "at most 65,536 devices", device.to_string())
            })?;
        let mut raw = Raw {
            time_ns: read_u64(record, 8, big),
            volume,
            process: read_u32(record, 32, big),
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
            b if b & category::WRITE != 0 => Op::Write,
            _ => Op::Read,
        };
        raw.sync = raw.op == Op::Read || bits & category::SYNC != 0;
        let sectors = Sectors::from_bytes(bytes);
        raw.span = Span::sectors(sector, sectors.get()).map_err(|reason| {
            Fault::binary(reason, "an extent", format!("{bytes} bytes at sector {sector}"))
        })?;
        raw.span.rounded = sectors.bytes() != bytes;
        if is_flush {
            self.after_flush = Some(raw);
            return Ok(Some(flush));
        }
        Ok(Some(raw))
    }
}
