//! libCacheSim's `oracleGeneral`: little-endian records of 24 bytes without padding,
//!
//! ```text
//! u32 time_s; u64 obj_id; u32 obj_size; i64 next_access_vtime
//! ```
//!
//! `obj_id` of a block trace is its first sector (libCacheSim's readers of block traces take the
//! LBA); of other traces it is a hash, which is no place on a disk and is refused. The format
//! does not say what is read and what is written: all are reads.

use super::buffer::Buffer;
use super::cursor::Fault;
use super::error::Reason;
use super::raw::{Decode, Raw, Span, Volumes, plain_name, read_u32, read_u64};
use super::records::Records;
use super::{SECTORS_MAX, text::Head};
use seekway_core::request::Op;
use seekway_core::units::Sectors;
use std::collections::HashMap;

const RECORD: usize = 24;
/// More requests, or larger ones, no such trace has.
const REQUESTS_MAX: u64 = 1 << 40;
const SIZE_MAX: u32 = 1 << 30;
/// All is little-endian.
const IS_BIG: bool = false;

/// Is `head` such a trace? Nothing marks one, so its records have to agree: times do not go back,
/// and the record that another says will access its object next does so.
pub(super) fn is_oracle(head: Head<'_>) -> bool {
    if head.whole && !head.bytes.len().is_multiple_of(RECORD) {
        return false;
    }
    let mut time = 0;
    // Objects that are due, by the number of the record. Numbers count from zero or from one.
    let mut due = HashMap::new();
    let mut agrees = [true; 2];
    for (number, record) in (0_u64..).zip(head.bytes.chunks_exact(RECORD)) {
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
    head.bytes.len() >= RECORD && agrees.contains(&true)
}

pub(super) fn decoder(buffer: Buffer) -> Box<dyn Decode> {
    Box::new(Records::new(buffer, RECORD, "a whole record of 24 bytes", parse))
}

fn parse(record: &[u8], volumes: &mut Volumes) -> Result<Option<Raw>, Fault> {
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
    Ok(Some(Raw { time_ns, volume, process: 0, op: Op::Read, sync: true, span }))
}
