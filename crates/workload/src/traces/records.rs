//! Binary formats of records that all have the same size: vSCSI and `oracleGeneral`.

use super::buffer::Buffer;
use super::cursor::Fault;
use super::error::Reason;
use super::raw::{
    Decode, Raw, Span, Step, Stop, Volumes, plain_name, read_u16, read_u32, read_u64,
};
use super::text::Head;
use super::{Place, SECTORS_MAX};
use seekway_core::request::Op;
use seekway_core::units::Sectors;
use std::collections::HashMap;

/// Decodes such records.
pub(super) struct Records<P> {
    buffer: Buffer,
    size: usize,
    /// Expected text of a message about a record that the file's end cuts off.
    whole: &'static str,
    /// The request of a record; `None` for one of another kind.
    parse: P,
    number: u64,
}

impl<P> Records<P>
where
    P: Fn(&[u8], &mut Volumes) -> Result<Option<Raw>, Fault> + Send,
{
    pub(super) fn new(buffer: Buffer, size: usize, whole: &'static str, parse: P) -> Self {
        Records { buffer, size, whole, parse, number: 0 }
    }
}

impl<P> Decode for Records<P>
where
    P: Fn(&[u8], &mut Volumes) -> Result<Option<Raw>, Fault> + Send,
{
    fn step(&mut self, volumes: &mut Volumes) -> Result<Step, Stop> {
        let offset = self.buffer.offset();
        let held = self.buffer.ensure(self.size)?;
        if held.is_empty() {
            return Ok(Step::End);
        }
        self.number += 1;
        let place = Place::Record { number: self.number, offset };
        let result = match held.get(..self.size) {
            Some(record) => (self.parse)(record, volumes),
            None => {
                let found = format!("{} bytes", held.len());
                Err(Fault::binary(Reason::Truncated, self.whole, found))
            }
        };
        self.buffer.consume(self.size);
        match result {
            Ok(Some(raw)) => Ok(Step::Request(raw)),
            Ok(None) => Ok(Step::Ignored),
            Err(fault) => Err(Stop::Record { fault, place }),
        }
    }
}

// VMware vSCSI traces as CloudPhysics published them: little-endian records
// of 32 bytes (version 1) or 40 (version 2), times in microseconds, `lbn` in
// sectors of 512 bytes, `len` in bytes. The layouts are those of libCacheSim's
// reader (`vscsi.h`):
//
// ```text
// v1: u32 sn, len, nSG; u16 cmd, ver; u64 lbn, ts
// v2: u16 cmd, ver; u32 sn, len, nSG; u64 lbn, ts, rt
// ```

/// Where the fields of one version are, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    size: usize,
    cmd: usize,
    len: usize,
    lbn: usize,
    ts: usize,
    version: u16,
}

/// Both versions are little-endian.
const IS_BIG: bool = false;
const V1: Layout = Layout { size: 32, len: 4, cmd: 12, lbn: 16, ts: 24, version: 1 };
const V2: Layout = Layout { size: 40, cmd: 0, len: 8, lbn: 16, ts: 24, version: 2 };

/// The version whose mark nine of the first ten records of `head` bear: a
/// damaged record shall be reported as such, not as an unknown format.
pub(super) fn layout(head: &[u8]) -> Option<Layout> {
    [V1, V2].into_iter().find(|layout| {
        let records = head.chunks_exact(layout.size).take(100);
        let whole = records.len();
        let marked =
            records.filter(|r| version(*layout, r) == layout.version && is_scsi(*layout, r));
        whole > 0 && marked.count() * 10 >= whole * 9
    })
}

fn version(layout: Layout, record: &[u8]) -> u16 {
    read_u16(record, layout.cmd + 2, IS_BIG) >> 8
}

/// Beyond the version byte: an operation code of one byte.
fn is_scsi(layout: Layout, record: &[u8]) -> bool {
    read_u16(record, layout.cmd, IS_BIG) <= 0xff
}

/// Decodes `buffer`, of which `head` is the beginning. Without a version's mark in it: as version 1,
/// which then reports the first bad record.
pub(super) fn vscsi(buffer: Buffer, head: &[u8]) -> Box<dyn Decode> {
    let layout = layout(head).unwrap_or(V1);
    let parse = move |record: &[u8], volumes: &mut Volumes| parse(layout, record, volumes);
    Box::new(Records::new(buffer, layout.size, "a whole record of 32 or 40 bytes", parse))
}

fn parse(layout: Layout, record: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
    if version(layout, record) != layout.version {
        let found = format!("version {}", version(layout, record));
        return Err(Fault::binary(
            Reason::BadVersion,
            "the version of the first record (1 or 2)",
            found,
        ));
    }
    let op = match read_u16(record, layout.cmd, IS_BIG) {
        0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
        0x0a | 0x2a | 0xaa | 0x8a => Op::Write,
        0x35 | 0x91 => Op::Flush,
        // Other commands of a byte move no data of the disk (INQUIRY, …) or
        // have their extents in a payload that is not traced (UNMAP).
        0..=0xff => return Ok(None),
        cmd => {
            return Err(Fault::binary(
                Reason::UnknownOp,
                "a SCSI command of one byte",
                format!("{cmd:#x}"),
            ));
        }
    };
    let (lbn, len) = (read_u64(record, layout.lbn, IS_BIG), read_u32(record, layout.len, IS_BIG));
    let fault = |reason| Fault::binary(reason, "an extent", format!("{len} bytes at sector {lbn}"));
    let span = match op {
        Op::Flush => Span::NONE,
        _ => {
            let sectors = Sectors::from_bytes(u64::from(len));
            let mut span = Span::sectors(lbn, sectors.get()).map_err(fault)?;
            span.rounded = sectors.bytes() != u64::from(len);
            span
        }
    };
    let ts = read_u64(record, layout.ts, IS_BIG);
    let time_ns = ts.checked_mul(1000).ok_or_else(|| {
        Fault::binary(Reason::Overflow, "a time below 584 years", format!("{ts} microseconds"))
    })?;
    let volume = volumes
        .intern(b"", plain_name)
        .map_err(|reason| Fault::binary(reason, "one volume", String::new()))?;
    Ok(Some(Raw { time_ns, took_ns: 0, volume, process: 0, op, sync: op == Op::Read, span }))
}

// libCacheSim's `oracleGeneral`: little-endian records of 24 bytes without padding,
//
// ```text
// u32 time_s; u64 obj_id; u32 obj_size; i64 next_access_vtime
// ```
//
// `obj_id` of a block trace is its first sector (libCacheSim's readers of block traces take the
// LBA); of other traces it is a hash, which is no place on a disk and is refused. The format
// does not say what is read and what is written: all are reads.

const ORACLE_BYTES: usize = 24;

/// More requests, or larger ones, no such trace has.
const REQUESTS_MAX: u64 = 1 << 40;
const SIZE_MAX: u32 = 1 << 30;

/// Is `head` such a trace? Nothing marks one, so its records have to agree: times do not go back,
/// and the record that another says will access its object next does so.
pub(super) fn is_oracle(head: Head<'_>) -> bool {
    if head.whole && !head.bytes.len().is_multiple_of(ORACLE_BYTES) {
        return false;
    }
    let mut time = 0;
    // Objects that are due, by the number of the record. Numbers count from zero or from one.
    let mut due = HashMap::new();
    let mut agrees = [true; 2];
    for (number, record) in (0_u64..).zip(head.bytes.chunks_exact(ORACLE_BYTES)) {
        let (at, size) = (read_u32(record, 0, IS_BIG), read_u32(record, 12, IS_BIG));
        let (object, next) = (read_u64(record, 4, IS_BIG), read_u64(record, 16, IS_BIG));
        // A last access: -1 or the largest number.
        let is_last = next == u64::MAX || next == i64::MAX as u64;
        let is_later = next > number && next < REQUESTS_MAX;
        if at < time || size == 0 || size > SIZE_MAX || !(is_last || is_later) {
            return false;
        }
        for (first, agrees) in (0..).zip(&mut agrees) {
            *agrees &= due.get(&(number + first)).is_none_or(|other| *other == object);
        }
        time = at;
        if is_later {
            due.insert(next, object);
        }
    }
    head.bytes.len() >= ORACLE_BYTES && agrees.contains(&true)
}

pub(super) fn oracle(buffer: Buffer) -> Box<dyn Decode> {
    Box::new(Records::new(buffer, ORACLE_BYTES, "a whole record of 24 bytes", parse_oracle))
}

fn parse_oracle(record: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
    let (time_s, size) = (read_u32(record, 0, IS_BIG), read_u32(record, 12, IS_BIG));
    let object = read_u64(record, 4, IS_BIG);
    let fault = |reason, expected| {
        Fault::binary(reason, expected, format!("object {object} of {size} bytes"))
    };
    if object >= SECTORS_MAX {
        return Err(fault(
            Reason::Overflow,
            "an object that is a sector number: a hash is no place on a disk",
        ));
    }
    let sectors = Sectors::from_bytes(u64::from(size));
    let span = Span::sectors(object, sectors.get());
    let mut span = span.map_err(|reason| fault(reason, "a size that is not zero"))?;
    span.rounded = sectors.bytes() != u64::from(size);
    let volume = volumes.intern(b"", plain_name).map_err(|reason| fault(reason, "one volume"))?;
    let time_ns = u64::from(time_s) * 1_000_000_000;
    Ok(Some(Raw { time_ns, took_ns: 0, volume, process: 0, op: Op::Read, sync: true, span }))
}
