//! The flat model of a disk: what each sector may be, from what guests were told and when.
//! Nothing is known here of queues, caches, retries or restarts.

use super::content::SECTOR_BYTES;
use std::ops::Range;

/// Which write a sector's contents are of; 0 for zeroes.
pub type Stamp = u64;

/// A sector with the contents of a write.
pub fn sector_of(stamp: Stamp) -> [u8; SECTOR_BYTES] {
    let mut sector = [0; SECTOR_BYTES];
    sector.as_chunks_mut().0.fill(stamp.to_le_bytes());
    sector
}

/// Whose contents a sector has.
pub fn stamp_of(sector: &[u8]) -> Result<Stamp, String> {
    let words = sector.as_chunks().0;
    let stamps = words.iter().map(|word| u64::from_le_bytes(*word));
    let first = stamps.clone().next().unwrap_or(0);
    match stamps.clone().find(|&stamp| stamp != first) {
        None => Ok(first),
        Some(other) => Err(format!("is a mixture of {first:#x} and {other:#x}")),
    }
}

/// Something that was written to a sector, or may have been.
#[derive(Debug)]
struct Version {
    /// The request's own number.
    id: u64,
    stamp: Stamp,
    /// When it was asked for.
    begun: u64,
    /// When its guest knew that nothing more would happen.
    ended: Option<u64>,
    /// It is certain that it was written.
    ok: bool,
    /// It was certain, when it ended, that it would outlast a power failure.
    durable: bool,
}

impl Version {
    /// Had this one ended before another was asked for?
    fn is_before(&self, other: &Version) -> bool {
        self.ended.is_some_and(|ended| ended < other.begun)
    }
}

/// A disk. All times are of one clock that goes on with each event.
pub struct Truth {
    sectors: Vec<Vec<Version>>,
    /// What had ended before then is durable.
    flushed: u64,
}

impl Truth {
    /// A disk of zeroes.
    pub fn new(sectors: usize) -> Truth {
        let mut truth = Truth { sectors: Vec::new(), flushed: 0 };
        truth.grow(sectors);
        truth
    }

    /// It is larger now, with zeroes at its end.
    pub fn grow(&mut self, sectors: usize) {
        self.sectors.resize_with(sectors, || vec![Truth::fact(0, 0)]);
    }

    fn fact(stamp: Stamp, at: u64) -> Version {
        Version { id: 0, stamp, begun: at, ended: Some(at), ok: true, durable: true }
    }

    /// A write of this stamp is asked for.
    pub fn begin(&mut self, sectors: Range<usize>, id: u64, stamp: Stamp, now: u64) {
        for sector in &mut self.sectors[sectors] {
            let (begun, ended) = (now, None);
            sector.push(Version { id, stamp, begun, ended, ok: false, durable: false });
        }
    }

    /// It is over: `ok` when it was certainly done.
    pub fn end(&mut self, sectors: Range<usize>, id: u64, now: u64, ok: bool, durable: bool) {
        for sector in &mut self.sectors[sectors] {
            let version = sector.iter_mut().rfind(|v| v.id == id).expect("it has begun");
            (version.ended, version.ok, version.durable) = (Some(now), ok, durable);
        }
    }

    /// A flush that was asked for then went well.
    pub fn flushed(&mut self, begun: u64) {
        self.flushed = self.flushed.max(begun);
    }

    /// A read that was asked for at `begun` has found this in a sector.
    pub fn check(&self, sector: usize, stamp: Stamp, begun: u64) -> Result<(), String> {
        let all = &self.sectors[sector];
        let is_gone = |old: &Version| {
            let over = |v: &Version| v.ok && v.ended.is_some_and(|ended| ended < begun);
            all.iter().any(|v| over(v) && old.is_before(v))
        };
        match all.iter().any(|v| v.stamp == stamp && !is_gone(v)) {
            true => Ok(()),
            false => Err(format!(
                "sector {sector} reads as {stamp:#x} (asked for at {begun}), of {all:x?}"
            )),
        }
    }

    /// After a power failure a sector has this: it may, and from now on it is known.
    pub fn settle(&mut self, sector: usize, stamp: Stamp, now: u64) -> Result<(), String> {
        let flushed = self.flushed;
        let all = &mut self.sectors[sector];
        let is_gone = |old: &Version| {
            let keeps = |v: &Version| v.durable || v.ended.is_some_and(|ended| ended < flushed);
            all.iter().any(|v| v.ok && keeps(v) && old.is_before(v))
        };
        if !all.iter().any(|v| v.stamp == stamp && !is_gone(v)) {
            return Err(format!(
                "after a power failure sector {sector} is {stamp:#x} (flushed up to {flushed}), \
                 of {all:x?}"
            ));
        }
        *all = vec![Truth::fact(stamp, now)];
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_is_gone_and_what_overlaps_is_not() {
        let mut truth = Truth::new(1);
        truth.begin(0..1, 1, 11, 1);
        for stamp in [0, 11] {
            truth.check(0, stamp, 2).unwrap();
        }
        truth.end(0..1, 1, 3, true, false);
        truth.check(0, 0, 2).unwrap();
        truth.check(0, 0, 4).unwrap_err();
        // Two at once: either may be the last.
        truth.begin(0..1, 2, 22, 5);
        truth.begin(0..1, 3, 33, 6);
        truth.end(0..1, 2, 7, true, false);
        truth.end(0..1, 3, 8, true, false);
        truth.check(0, 11, 9).unwrap_err();
        for stamp in [22, 33] {
            truth.check(0, stamp, 9).unwrap();
        }
        truth.check(0, 44, 9).unwrap_err();
    }

    #[test]
    fn what_failed_may_be_there_and_takes_nothing_away() {
        let mut truth = Truth::new(1);
        truth.begin(0..1, 1, 11, 1);
        truth.end(0..1, 1, 2, false, false);
        for stamp in [0, 11] {
            truth.check(0, stamp, 3).unwrap();
        }
    }

    #[test]
    fn power_failures_take_what_was_not_flushed() {
        let written = |durable| {
            let mut truth = Truth::new(1);
            for (id, at) in [(1, 1), (2, 5)] {
                truth.begin(0..1, id, 10 + id, at);
                truth.end(0..1, id, at + 2, true, durable);
            }
            truth
        };
        assert!([0, 11, 12].into_iter().all(|stamp| written(false).settle(0, stamp, 9).is_ok()));
        assert!([0, 11].into_iter().all(|stamp| written(true).settle(0, stamp, 9).is_err()));
        let flushed = |at, stamp| {
            let mut truth = written(false);
            truth.flushed(at);
            truth.settle(0, stamp, 99).is_ok()
        };
        // The first was done before this flush was asked for, the second was not.
        assert_eq!([0, 11, 12].map(|stamp| flushed(6, stamp)), [false, true, true]);
        assert_eq!([0, 11, 12].map(|stamp| flushed(8, stamp)), [false, false, true]);
        // What is found once stays.
        let mut truth = written(false);
        truth.settle(0, 11, 9).unwrap();
        truth.check(0, 12, 10).unwrap_err();
    }
}
