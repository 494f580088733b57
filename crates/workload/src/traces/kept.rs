//! A trace's requests in memory, for runs that need them again and again.

use super::Record;
use seekway_policy::request::Op;
use seekway_policy::units::{Lba, Nanos, Sectors};

/// The requests of a trace, with a vector for each field.
pub struct Kept {
    at_ns: Vec<u64>,
    start: Vec<u64>,
    /// Length, at most [`super::REQUEST_SECTORS_MAX`], which fits in 32 bits.
    sectors: Vec<u32>,
    volume: Vec<u32>,
    process: Vec<u32>,
    /// The operation's place in [`OPS`], and [`SYNC`].
    op: Vec<u8>,
}

const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
const SYNC: u8 = 0x80;

/// Memory of one request.
pub const KEPT_BYTES_EACH: usize = 8 + 8 + 4 + 4 + 4 + 1;

impl Kept {
    /// With room for so many.
    pub(super) fn for_requests(count: usize) -> Kept {
        Kept {
            at_ns: Vec::with_capacity(count),
            start: Vec::with_capacity(count),
            sectors: Vec::with_capacity(count),
            volume: Vec::with_capacity(count),
            process: Vec::with_capacity(count),
            op: Vec::with_capacity(count),
        }
    }

    /// Adds a request after all others.
    pub(super) fn push(&mut self, record: &Record) {
        let op = OPS.iter().position(|op| *op == record.op).expect("all operations are listed");
        self.at_ns.push(record.at.get());
        self.start.push(record.start.get());
        self.sectors.push(record.len.get() as u32);
        self.volume.push(record.volume);
        self.process.push(record.process);
        self.op.push(op as u8 | if record.sync { SYNC } else { 0 });
    }

    /// Request number `n` in the order of time, if there are so many.
    pub fn get(&self, n: usize) -> Option<Record> {
        let op = *self.op.get(n)?;
        Some(Record {
            at: Nanos::new(self.at_ns[n]),
            volume: self.volume[n],
            process: self.process[n],
            op: OPS[usize::from(op & !SYNC)],
            sync: op & SYNC != 0,
            start: Lba::new(self.start[n]),
            len: Sectors::new(self.sectors[n].into()),
        })
    }

    /// Memory of the requests.
    pub fn bytes(&self) -> usize {
        self.op.len() * KEPT_BYTES_EACH
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
