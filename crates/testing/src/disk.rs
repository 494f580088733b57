//! A flat model of a disk: the possible contents of each sector, from what its users were told and
//! when. Queues, caches, retries and restarts are unknown here.
//!
//! A sector has versions, one for each write to it. A version is gone when a write that began
//! after the version had ended is over: done, or, after a power failure, durable. All versions
//! that are not gone are allowed, those in flight among them.

use std::ops::Range;

/// Bytes of a sector, which a device writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// Which write the contents of a sector are of; 0 for zeroes.
pub type Stamp = u64;

/// Contents of a sector after a write of this stamp: both numbers, and bytes that follow from them.
pub fn sector_of(stamp: Stamp, sector: usize) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    if stamp == 0 {
        return bytes;
    }
    let mixed = (stamp << 24 ^ sector as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (n, word) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
        let value = match n {
            0 => stamp,
            1 => sector as u64,
            n => mixed ^ n as u64,
        };
        *word = value.to_le_bytes();
    }
    bytes
}

/// Contents of these sectors after a write of this stamp, one after another.
pub fn sectors_of(stamp: Stamp, sectors: Range<usize>) -> Vec<u8> {
    sectors.flat_map(|sector| sector_of(stamp, sector)).collect()
}

/// Reads the stamp of a sector's contents.
///
/// # Errors
/// They are of no write to this sector, or not whole.
fn stamp_of(bytes: &[u8], sector: usize) -> Result<Stamp, String> {
    let stamp = u64::from_le_bytes(*bytes.first_chunk().expect("a sector"));
    match bytes == sector_of(stamp, sector) {
        true => Ok(stamp),
        false => Err(format!("sector {sector} is of no one write: {:02x?}…", &bytes[..24])),
    }
}

/// Something that was written to a sector, or may have been.
#[derive(Clone, Debug)]
struct Version {
    /// The request's own number.
    id: u64,
    stamp: Stamp,
    begun: u64,
    /// When its user knew that nothing more would happen.
    ended: Option<u64>,
    /// The write certainly reached the disk.
    ok: bool,
    /// When it ended, it was certain to outlast a power failure.
    durable: bool,
}

impl Version {
    /// Had this one ended before another was asked for?
    fn is_before(&self, other: &Version) -> bool {
        self.ended.is_some_and(|ended| ended < other.begun)
    }
}

/// A model of a disk. All times are of one clock of the test's, which advances with each event.
#[derive(Clone)]
pub struct Model {
    /// Lets a read see a part of a write that is under way. The kernel's page cache allows that:
    /// buffered reads of ext4 and of block devices take no lock that a write holds (`filemap_read`
    /// in Linux's `mm/filemap.c`; those of XFS do, `xfs_file_buffered_read`).
    pub tears: bool,
    sectors: Vec<Vec<Version>>,
    /// Writes that had ended before this time are durable.
    flushed: u64,
}

impl Model {
    /// A disk of zeroes.
    pub fn new(sectors: usize) -> Model {
        let mut model = Model { tears: false, sectors: Vec::new(), flushed: 0 };
        model.grow(sectors);
        model
    }

    /// Enlarges the disk, with zeroes at its end.
    pub fn grow(&mut self, sectors: usize) {
        self.sectors.resize_with(sectors, || vec![Model::fact(0, 0)]);
    }

    fn fact(stamp: Stamp, at: u64) -> Version {
        Version { id: 0, stamp, begun: at, ended: Some(at), ok: true, durable: true }
    }

    /// Sectors that it has.
    pub fn len(&self) -> usize {
        self.sectors.len()
    }

    /// True of a disk that has no sectors.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// A write of this stamp is asked for. No other request has its number `id`.
    pub fn begin(&mut self, sectors: Range<usize>, id: u64, stamp: Stamp, now: u64) {
        for sector in &mut self.sectors[sectors] {
            let (begun, ended) = (now, None);
            sector.push(Version { id, stamp, begun, ended, ok: false, durable: false });
        }
    }

    /// Ends a write; `ok` when it was certainly done.
    ///
    /// # Panics
    /// It has not begun.
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

    /// Is this version of a sector gone for a read that was asked for at `begun`?
    fn is_gone(versions: &[Version], old: &Version, begun: u64) -> bool {
        let is_over = |v: &Version| v.ok && v.ended.is_some_and(|ended| ended < begun);
        versions.iter().any(|v| is_over(v) && old.is_before(v))
    }

    /// Are these bytes parts of versions that a read may find, and was a write under way?
    fn is_torn(all: &[Version], sector: usize, bytes: &[u8], begun: u64) -> bool {
        let found = all.iter().filter(|v| !Model::is_gone(all, v, begun));
        let found: Vec<_> = found.map(|v| sector_of(v.stamp, sector)).collect();
        all.iter().any(|v| v.ended.is_none_or(|ended| ended >= begun))
            && bytes.iter().enumerate().all(|(n, byte)| found.iter().any(|v| v[n] == *byte))
    }

    /// A read of sectors from `first` on that was asked for at `begun` has found these bytes.
    ///
    /// # Errors
    /// It may not find them: a sentence with the sector and its versions.
    pub fn check(&self, first: usize, bytes: &[u8], begun: u64) -> Result<(), String> {
        for (sector, bytes) in (first..).zip(bytes.chunks(SECTOR_BYTES)) {
            let all = &self.sectors[sector];
            let stamp = match stamp_of(bytes, sector) {
                Err(_) if self.tears && Model::is_torn(all, sector, bytes, begun) => continue,
                found => found?,
            };
            if !all.iter().any(|v| v.stamp == stamp && !Model::is_gone(all, v, begun)) {
                return Err(format!(
                    "sector {sector} reads as {stamp:#x} (asked for at {begun}), of {all:x?}"
                ));
            }
        }
        Ok(())
    }

    /// Forgets contents that no read from `begun` on can find.
    pub fn forget(&mut self, sectors: Range<usize>, begun: u64) {
        for sector in &mut self.sectors[sectors] {
            let gone: Vec<bool> = sector.iter().map(|v| Model::is_gone(sector, v, begun)).collect();
            let mut gone = gone.into_iter();
            sector.retain(|_| !gone.next().unwrap_or(false));
        }
    }

    /// After a power failure a sector has these bytes: of which write?
    fn survivor(&self, sector: usize, bytes: &[u8]) -> Result<Stamp, String> {
        let (stamp, all, flushed) = (stamp_of(bytes, sector)?, &self.sectors[sector], self.flushed);
        let keeps = |v: &Version| v.durable || v.ended.is_some_and(|ended| ended < flushed);
        let is_gone = |old: &Version| all.iter().any(|v| v.ok && keeps(v) && old.is_before(v));
        match all.iter().any(|v| v.stamp == stamp && !is_gone(v)) {
            true => Ok(stamp),
            false => Err(format!(
                "after a power failure sector {sector} is {stamp:#x} (flushed up to {flushed}), \
                 of {all:x?}"
            )),
        }
    }

    /// After a power failure the disk has these bytes.
    ///
    /// # Errors
    /// It may not have them: a sentence.
    pub fn check_survivors(&self, image: &[u8]) -> Result<(), String> {
        assert_eq!(image.len(), self.len() * SECTOR_BYTES);
        let mut sectors = image.chunks(SECTOR_BYTES).enumerate();
        sectors.try_for_each(|(sector, bytes)| self.survivor(sector, bytes).map(drop))
    }

    /// As [`Model::check_survivors`], and from now on the contents are known.
    ///
    /// # Errors
    /// As [`Model::check_survivors`].
    pub fn settle(&mut self, image: &[u8], now: u64) -> Result<(), String> {
        for (sector, bytes) in image.chunks(SECTOR_BYTES).enumerate() {
            let stamp = self.survivor(sector, bytes)?;
            self.sectors[sector] = vec![Model::fact(stamp, now)];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(model: &Model, stamp: Stamp, begun: u64) -> Result<(), String> {
        model.check(0, &sector_of(stamp, 0), begun)
    }

    fn settle(model: &mut Model, stamp: Stamp, now: u64) -> Result<(), String> {
        model.settle(&sector_of(stamp, 0), now)
    }

    #[test]
    fn what_was_overwritten_is_gone_and_what_overlaps_is_not() {
        let mut model = Model::new(1);
        model.begin(0..1, 1, 11, 1);
        for stamp in [0, 11] {
            check(&model, stamp, 2).unwrap();
        }
        model.end(0..1, 1, 3, true, false);
        check(&model, 0, 2).unwrap();
        check(&model, 0, 4).unwrap_err();
        // Two at once: either may be the last.
        model.begin(0..1, 2, 22, 5);
        model.begin(0..1, 3, 33, 6);
        model.end(0..1, 2, 7, true, false);
        model.end(0..1, 3, 8, true, false);
        check(&model, 11, 7).unwrap();
        model.forget(0..1, 9);
        assert_eq!(model.sectors[0].len(), 2);
        check(&model, 11, 9).unwrap_err();
        for stamp in [22, 33] {
            check(&model, stamp, 9).unwrap();
        }
        check(&model, 44, 9).unwrap_err();
    }

    #[test]
    fn contents_are_of_one_write_and_of_their_sector() {
        let mut model = Model::new(2);
        model.begin(0..2, 1, 11, 1);
        model.check(0, &sectors_of(11, 0..2), 2).unwrap();
        model.check(0, &sector_of(11, 1), 2).unwrap_err();
        let mut torn = sector_of(11, 0);
        torn[SECTOR_BYTES / 2..].fill(0);
        model.check(0, &torn, 2).unwrap_err();
    }

    #[test]
    fn a_page_cache_may_show_a_part_of_a_write_while_it_is_under_way() {
        let mut model = Model { tears: true, ..Model::new(1) };
        model.begin(0..1, 1, 11, 1);
        let mut torn = sector_of(11, 0);
        torn[SECTOR_BYTES / 2..].fill(0);
        model.check(0, &torn, 2).unwrap();
        model.end(0..1, 1, 3, true, false);
        model.check(0, &torn, 2).unwrap();
        model.check(0, &torn, 4).unwrap_err();
        torn[0] = 12;
        model.check(0, &torn, 2).unwrap_err();
    }

    #[test]
    fn what_failed_may_be_there_and_takes_nothing_away() {
        let mut model = Model::new(1);
        model.begin(0..1, 1, 11, 1);
        model.end(0..1, 1, 2, false, false);
        for stamp in [0, 11] {
            check(&model, stamp, 3).unwrap();
        }
    }

    #[test]
    fn power_failures_take_what_was_not_flushed() {
        let written = |durable| {
            let mut model = Model::new(1);
            for (id, at) in [(1, 1), (2, 5)] {
                model.begin(0..1, id, 10 + id, at);
                model.end(0..1, id, at + 2, true, durable);
            }
            model
        };
        let survives = |model: Model, stamp| model.check_survivors(&sector_of(stamp, 0)).is_ok();
        assert!([0, 11, 12].into_iter().all(|stamp| survives(written(false), stamp)));
        assert!([0, 11].into_iter().all(|stamp| !survives(written(true), stamp)));
        let flushed = |at, stamp| {
            let mut model = written(false);
            model.flushed(at);
            survives(model, stamp)
        };
        // The first was done before this flush was asked for, the second was not.
        assert_eq!([0, 11, 12].map(|stamp| flushed(6, stamp)), [false, true, true]);
        assert_eq!([0, 11, 12].map(|stamp| flushed(8, stamp)), [false, false, true]);
        // Contents that were found once stay.
        let mut model = written(false);
        settle(&mut model, 11, 9).unwrap();
        check(&model, 12, 10).unwrap_err();
    }
}
