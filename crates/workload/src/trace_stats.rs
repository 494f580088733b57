//! Figures of a trace: one pass over its requests, in bounded memory.
//!
//! All are exact but these: sizes above 1 MiB ([`counts`]), the start of the busiest windows
//! ([`rates`]), blocks touched and their reuse ([`reuse`]). Each says its error.

pub mod counts;
pub mod depth;
pub mod rates;
pub mod reuse;

use crate::traces::Record;
use counts::Counts;
use depth::Depth;
use rates::{Busiest, Clock, Timeline};
use reuse::Reuse;
use seekway_core::request::Op;
use seekway_core::units::{Lba, Nanos, SECTOR_BYTES, Sectors};

/// Lengths of the windows of which the busiest are found, ascending.
pub const WINDOWS: [Nanos; 3] = [Nanos::from_secs(1), Nanos::from_secs(10), Nanos::from_secs(60)];
/// Streams that are followed for each volume and operation.
pub const STREAMS: usize = 16;

/// Figures of all requests of a trace.
#[derive(Clone, Debug, Default)]
pub struct TraceFigures {
    pub reads: OpFigures,
    pub writes: OpFigures,
    /// Of reads and writes together.
    pub busiest: Windows,
    pub timeline: Timeline,
    pub reuse: Reuse,
    /// Of the requests whose time the trace tells.
    pub depth: Depth,
    /// By number.
    pub volumes: Vec<VolumeFigures>,
    pub clock: Clock,
    /// All starts and lengths of reads and writes in sectors, or-ed.
    bits: u64,
}

/// Figures of reads or of writes.
#[derive(Clone, Debug, Default)]
pub struct OpFigures {
    /// Sizes in sectors.
    pub sizes: Counts,
    /// Requests that begin where one of the [`STREAMS`] latest streams of their volume ended.
    pub sequential: u64,
    pub busiest: Windows,
}

/// The busiest windows of each of the [`WINDOWS`].
#[derive(Clone, Debug)]
pub struct Windows(pub [Busiest; WINDOWS.len()]);

impl Default for Windows {
    fn default() -> Windows {
        Windows(WINDOWS.map(Busiest::new))
    }
}

/// Figures of a volume that [`crate::traces::VolumeStats`] has not.
#[derive(Clone, Debug)]
pub struct VolumeFigures {
    /// Reads and writes that are sequential.
    pub sequential: u64,
    /// Of reads and writes: the busiest second.
    pub second: Busiest,
    reads: Streams,
    writes: Streams,
}

impl Default for VolumeFigures {
    fn default() -> VolumeFigures {
        let second = Busiest::new(WINDOWS[0]);
        VolumeFigures {
            sequential: 0,
            second,
            reads: Streams::default(),
            writes: Streams::default(),
        }
    }
}

impl TraceFigures {
    /// Counts a request. They come in the order of time.
    pub fn add(&mut self, record: &Record) {
        self.clock.add(record.at);
        if record.took > Nanos::ZERO {
            self.depth.add(record.at, record.took);
        }
        let Record { at, start, len, .. } = *record;
        let is_read = match record.op {
            Op::Read => true,
            Op::Write => false,
            _ => return,
        };
        let number = record.volume as usize;
        if number >= self.volumes.len() {
            self.volumes.resize_with(number + 1, VolumeFigures::default);
        }
        let volume = &mut self.volumes[number];
        let (figures, streams) = match is_read {
            true => (&mut self.reads, &mut volume.reads),
            false => (&mut self.writes, &mut volume.writes),
        };
        let sequential = u64::from(streams.follow(start, len));
        figures.sequential += sequential;
        volume.sequential += sequential;
        figures.sizes.add(len.get());
        volume.second.add(at, len);
        for window in self.busiest.0.iter_mut().chain(&mut figures.busiest.0) {
            window.add(at, len);
        }
        self.timeline.add(at, is_read, len);
        self.reuse.add(record.volume, start, len, is_read);
        self.bits |= start.get() | len.get();
    }

    /// The greatest power of two in bytes that divides all starts and lengths of reads and writes;
    /// none without any.
    pub fn aligned_bytes(&self) -> Option<u64> {
        (self.bits > 0).then(|| (1 << self.bits.trailing_zeros()) * SECTOR_BYTES)
    }
}

/// Ends of the latest streams, the newest first.
#[derive(Clone, Debug)]
struct Streams([u64; STREAMS]);

impl Default for Streams {
    fn default() -> Streams {
        Streams([u64::MAX; STREAMS])
    }
}

impl Streams {
    /// Does the extent continue a stream? If not, it begins one, in place of the oldest.
    fn follow(&mut self, start: Lba, len: Sectors) -> bool {
        let found = self.0.iter().position(|end| *end == start.get());
        self.0[..=found.unwrap_or(STREAMS - 1)].rotate_right(1);
        self.0[0] = (start + len).get();
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(requests: impl IntoIterator<Item = (u64, u32, Op, u64, u64)>) -> TraceFigures {
        let mut figures = TraceFigures::default();
        for (at, volume, op, start, len) in requests {
            let (at, took) = (Nanos::from_millis(at), Nanos::ZERO);
            let (start, len) = (Lba::new(start), Sectors::new(len));
            let (process, sync) = (0, false);
            figures.add(&Record { at, took, volume, process, op, sync, start, len });
        }
        figures
    }

    #[test]
    fn sums_are_those_of_arithmetic() {
        // Two volumes by turns, each read in sequence by 4 KiB; every fourth request is a write of
        // 16 KiB to the same place.
        let made = figures((0..1000).flat_map(|n| {
            let volume = (n % 2) as u32;
            let read = (n * 10, volume, Op::Read, n / 2 * 8, 8);
            let write = (n * 10, volume, Op::Write, 1 << 20, 32);
            let flush = (n * 10, volume, Op::Flush, 0, 0);
            [read, write, flush].into_iter().filter(move |r| n % 4 == 0 || r.2 == Op::Read)
        }));
        assert_eq!((made.reads.sizes.total(), made.writes.sizes.total()), (1000, 250));
        assert_eq!((made.reads.sizes.sum(), made.writes.sizes.sum()), (8000, 8000));
        // All but the first of each volume.
        assert_eq!((made.reads.sequential, made.writes.sequential), (998, 0));
        assert_eq!((made.volumes[0].sequential, made.volumes[1].sequential), (499, 499));
        // 100 reads and 25 writes a second.
        let requests = made.busiest.0.each_ref().map(|window| window.requests().count);
        assert_eq!(requests, [125, 1250, 1250]);
        let written = made.writes.busiest.0.each_ref().map(|window| window.sectors().count);
        assert_eq!(written, [25 * 32, 8000, 8000]);
        assert_eq!(made.volumes[1].second.requests().count, 50, "it has reads only");
        // 500 blocks of each volume, and four that are written.
        let touched = made.reuse.touched();
        assert_eq!((touched.read, touched.written), (1000.0, 4.0));
        assert_eq!(made.reuse.misses(), [], "nothing is read again");
        assert_eq!(made.clock.step(), Some(Nanos::from_millis(10)));
        assert_eq!(made.aligned_bytes(), Some(4096));
    }

    #[test]
    fn a_stream_is_followed_among_fifteen_others() {
        let streams = |count: u64| {
            let read = |n: u64| (n, 0, Op::Read, n % count * 1_000_000 + n / count * 8, 8);
            figures((0..10 * count).map(read)).reads.sequential
        };
        assert_eq!(streams(STREAMS as u64), 9 * STREAMS as u64);
        assert_eq!(streams(STREAMS as u64 + 1), 0);
    }

    #[test]
    fn nothing_gives_no_figures() {
        let none = figures([]);
        assert_eq!((none.aligned_bytes(), none.clock.step()), (None, None));
        assert_eq!((none.reads.sizes.quantile(0.5), none.reuse.misses()), (None, Vec::new()));
        assert_eq!(none.depth.mean(Nanos::ZERO), None);
    }
}
