//! VMware vSCSI traces as CloudPhysics published them: little-endian records
//! of 32 bytes (version 1) or 40 (version 2), times in microseconds, `lbn` in
//! sectors of 512 bytes, `len` in bytes. The layouts are those of libCacheSim's
//! reader (`vscsi.h`):
//!
//! ```text
//! v1: u32 sn, len, nSG; u16 cmd, ver; u64 lbn, ts
//! v2: u16 cmd, ver; u32 sn, len, nSG; u64 lbn, ts, rt
//! ```

use super::buffer::Buffer;
use super::cursor::Fault;
use super::error::Reason;
use super::raw::{Decode, Raw, Span, Volumes, plain_name, read_u16, read_u32, read_u64};
use super::records::Records;
use seekway_core::request::Op;
use seekway_core::units::Sectors;

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
pub(super) fn decoder(buffer: Buffer, head: &[u8]) -> Box<dyn Decode> {
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
    Ok(Some(Raw { time_ns, volume, process: 0, op, sync: op == Op::Read, span }))
}
