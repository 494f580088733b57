//! A trace's requests in memory, for runs that need them again and again.

use super::Record;
use seekway_core::request::Op;
use seekway_core::units::{Lba, Nanos, Sectors};

/// The requests of a trace.
pub struct Kept(Vec<Packed>);

/// A request in 29 bytes.
#[derive(Clone, Copy)]
#[repr(Rust, packed)]
struct Packed {
    at_ns: u64,
    start: u64,
    /// Length, at most [`super::REQUEST_SECTORS_MAX`], which fits in 32 bits.
    sectors: u32,
    volume: u32,
    process: u32,
    /// The operation's place in [`OPS`], and [`SYNC`].
    op: u8,
}

const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
const SYNC: u8 = 0x80;

/// Memory of one request.
pub const KEPT_BYTES_EACH: usize = size_of::<Packed>();

impl Kept {
    /// Makes an empty list with room for `count` requests.
    pub(super) fn for_requests(count: usize) -> Kept {
        Kept(Vec::with_capacity(count))
    }

    /// Adds a request after all others.
    pub(super) fn push(&mut self, record: &Record) {
        let op = OPS.iter().position(|op| *op == record.op).expect("all operations are listed");
        self.0.push(Packed {
            at_ns: record.at.get(),
            start: record.start.get(),
            sectors: record.len.get() as u32,
            volume: record.volume,
            process: record.process,
            op: op as u8 | if record.sync { SYNC } else { 0 },
        });
    }

    /// Request number `n` in the order of time, if there is one.
    pub fn get(&self, n: usize) -> Option<Record> {
        let Packed { at_ns, start, sectors, volume, process, op } = *self.0.get(n)?;
        Some(Record {
            at: Nanos::new(at_ns),
            took: Nanos::ZERO,
            volume,
            process,
            op: OPS[usize::from(op & !SYNC)],
            sync: op & SYNC != 0,
            start: Lba::new(start),
            len: Sectors::new(sectors.into()),
        })
    }

    /// Number of the first request at `at` or later.
    pub(crate) fn first_at(&self, at: Nanos) -> usize {
        self.0.partition_point(|packed| packed.at_ns < at.get())
    }

    /// Number of requests.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Memory of the requests.
    pub fn bytes(&self) -> usize {
        self.0.len() * KEPT_BYTES_EACH
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::REQUEST_SECTORS_MAX;

    #[test]
    fn requests_come_back_as_they_were() {
        let mut kept = Kept::for_requests(10);
        let record = |n: u64| Record {
            at: Nanos::new(n << 60),
            took: Nanos::ZERO,
            volume: n as u32,
            process: u32::MAX - n as u32,
            op: OPS[n as usize % 5],
            sync: n.is_multiple_of(2),
            start: Lba::new(n << 50),
            len: Sectors::new(REQUEST_SECTORS_MAX >> n),
        };
        (0..10).for_each(|n| kept.push(&record(n)));
        assert_eq!(kept.bytes(), 290);
        (0..10).for_each(|n| assert_eq!(kept.get(n as usize), Some(record(n))));
        assert_eq!(kept.get(10), None);
    }
}
