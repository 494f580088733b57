//! Sums over the requests of one pass over a trace.

use super::error::Reason;
use super::{Format, Record};
use seekway_core::request::Op;
use seekway_core::units::{Lba, Nanos, Sectors};

/// Requests by operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // The names say it.
pub struct OpCounts {
    pub read: u64,
    pub write: u64,
    pub flush: u64,
    pub discard: u64,
    pub write_zeroes: u64,
}

impl OpCounts {
    fn add(&mut self, op: Op) {
        *match op {
            Op::Read => &mut self.read,
            Op::Write => &mut self.write,
            Op::Flush => &mut self.flush,
            Op::Discard => &mut self.discard,
            Op::WriteZeroes => &mut self.write_zeroes,
        } += 1;
    }

    pub const fn total(&self) -> u64 {
        self.read + self.write + self.flush + self.discard + self.write_zeroes
    }
}

/// Records of one kind of fault that the lenient mode has skipped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    pub reason: Reason,
    /// Number of records that had it.
    pub count: u64,
    /// The message that the first of them would have been in strict mode.
    pub first: String,
}

/// Sums over the requests of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeStats {
    /// Its requests by operation.
    pub ops: OpCounts,
    /// Sectors of all its reads, added up.
    pub read: Sectors,
    /// Sectors of all its writes, added up.
    pub written: Sectors,
    /// The sector after the last that any request touched: the least capacity
    /// that a disk needs to take them.
    pub end: Lba,
}

/// Counts over a trace or the part of it that has been read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TraceStats {
    /// Requests handed on, by operation.
    pub ops: OpCounts,
    /// Comments, lines and events of other kinds.
    pub ignored: u64,
    /// Unusable records (lenient mode only), by reason, in the order of their
    /// first appearance.
    pub skipped: Vec<Skipped>,
    /// Requests that stood behind a later one in the file and were sorted.
    pub reordered: u64,
    /// Requests too late even for the reorder window: moved to the time of the
    /// request before them.
    pub clamped: u64,
    /// Requests whose bytes were rounded outwards to whole sectors.
    pub rounded: u64,
    /// From the first request to the last.
    pub duration: Nanos,
    /// Per volume, by its number.
    pub volumes: Vec<VolumeStats>,
}

impl TraceStats {
    /// Requests handed on, of all operations together.
    pub const fn requests(&self) -> u64 {
        self.ops.total()
    }

    pub(super) fn add(&mut self, record: &Record) {
        self.ops.add(record.op);
        self.duration = record.at;
        let index = record.volume as usize;
        if index >= self.volumes.len() {
            self.volumes.resize(index + 1, VolumeStats::default());
        }
        let volume = &mut self.volumes[index];
        volume.ops.add(record.op);
        match record.op {
            Op::Read => volume.read += record.len,
            Op::Write => volume.written += record.len,
            _ => {}
        }
        volume.end = volume.end.max(record.start + record.len);
    }

    #[cold]
    pub(super) fn skip(&mut self, reason: Reason, first: impl FnOnce() -> String) {
        match self.skipped.iter_mut().find(|s| s.reason == reason) {
            Some(s) => s.count += 1,
            None => self.skipped.push(Skipped { reason, count: 1, first: first() }),
        }
    }
}

/// One volume as a scan has found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScannedVolume {
    /// Its name in the trace, or the file's for formats without volumes.
    pub name: String,
    pub stats: VolumeStats,
}

impl ScannedVolume {
    /// The least capacity that takes all its requests, at least one sector.
    pub fn capacity(&self) -> Sectors {
        Sectors::new(self.stats.end.get().max(1))
    }
}

/// Result of one pass over a whole trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// The format that was given, or else detected.
    pub format: Format,
    /// Of times, offsets and sizes.
    pub units: String,
    /// Remarks for the user on how the trace was read.
    pub notes: Vec<String>,
    /// In the order of their first appearance: the volume numbers of records.
    pub volumes: Vec<ScannedVolume>,
    pub stats: TraceStats,
}
