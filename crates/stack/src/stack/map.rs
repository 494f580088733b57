//! Where the sectors of a VM's disk lie on the device: built when the disk is
//! attached or mapped anew, asked for each request. The daemon builds it from
//! the extents of the image's file (FIEMAP), the simulator from its layout.

use seekway_core::request::Extent;
use seekway_core::units::{Lba, SECTOR_BYTES, Sectors};
use std::fmt;
use std::str::FromStr;

/// Marks the place of a segment that is a hole.
const HOLE: u64 = 1 << 63;
/// Extents of a region.
const REGION_MAX: usize = 1024;
/// Sectors of a device of which no size is known: what bytes in 63 bits can name.
const SECTORS_MAX: u64 = i64::MAX as u64 / SECTOR_BYTES;

/// A run of an image's file that lies in one piece, all in sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileExtent {
    /// Where it begins in the file.
    pub at: u64,
    /// Where it begins on the file system's device.
    pub place: u64,
    /// Its length, at least 1.
    pub len: u64,
}

/// Where the sectors of a VM's disk lie on the device.
///
/// The file is cut into segments, each of which lies in one piece or is a hole;
/// 16 bytes each. A hole has a place too, where the file system would most
/// likely put it: behind the segment before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// First sector of each segment in the file, ascending from 0. Never empty.
    starts: Vec<u64>,
    /// First sector on the device, with [`HOLE`].
    places: Vec<u64>,
    /// Sectors that were mapped; what lies behind is a hole.
    end: u64,
    /// Size of the device: no piece ends behind it.
    limit: u64,
    /// Result of [`Map::region`], made when the map is: for a million extents sorting them takes
    /// longer than the reactor can stand still.
    region: Vec<Extent>,
}

impl Map {
    /// The image lies in one piece.
    pub fn linear(start: Lba, len: Sectors) -> Map {
        let end = len.get().min(SECTORS_MAX);
        let place = start.get().min(SECTORS_MAX - end);
        let region = Vec::from_iter(Extent::new(Lba::new(place), Sectors::new(end)));
        Map { starts: vec![0], places: vec![place], end, limit: SECTORS_MAX, region }
    }

    /// From the extents of a file (ascending, disjoint), whose places count
    /// from `partition`. `None` when there are none: nobody knows where the
    /// first will go.
    pub fn of_extents(
        extents: &[FileExtent],
        partition: Lba,
        len: Sectors,
        device: Sectors,
    ) -> Option<Map> {
        let limit = device.get().min(SECTORS_MAX);
        let end = len.get().min(SECTORS_MAX);
        let first = extents.first()?;
        let (starts, places, region) = (Vec::new(), Vec::new(), Vec::new());
        let mut map = Map { starts, places, end, limit, region };
        // A hole in front would end where the first extent begins.
        let mut behind = partition.get().saturating_add(first.place).saturating_sub(first.at);
        let mut at = 0;
        for extent in extents {
            map.push_hole(at, extent.at, behind);
            let place = partition.get().saturating_add(extent.place);
            map.push(extent.at, place.min(limit.saturating_sub(extent.len)));
            at = extent.at + extent.len;
            behind = place.saturating_add(extent.len);
        }
        map.push_hole(at, end, behind);
        map.starts.shrink_to_fit();
        map.places.shrink_to_fit();
        map.region = map.merged_pieces();
        Some(map)
    }

    fn push_hole(&mut self, from: u64, to: u64, place: u64) {
        if from < to {
            self.push(from, place.min(self.limit.saturating_sub(to - from)) | HOLE);
        }
    }

    /// A segment, unless it continues the one before.
    fn push(&mut self, start: u64, place: u64) {
        if let (Some(&last_start), Some(&last_place)) = (self.starts.last(), self.places.last())
            && last_place + (start - last_start) == place
        {
            return;
        }
        self.starts.push(start);
        self.places.push(place);
    }

    /// The segment in which a sector of the file lies.
    fn segment(&self, sector: u64) -> usize {
        if self.starts.len() == 1 {
            return 0;
        }
        // The first begins at 0, so that there is always one.
        self.starts.partition_point(|&s| s <= sector) - 1
    }

    /// The first piece of `len` sectors from sector `at` of the disk: its place on
    /// the device. Never longer than asked, at least one sector; a hole is
    /// placed where the file system would most likely put it. Two pieces that
    /// touch may be data and hole.
    pub fn piece(&self, at: Lba, len: Sectors) -> Extent {
        let from = at.get();
        let segment = self.segment(from);
        let end = self.starts.get(segment + 1).copied().unwrap_or(u64::MAX);
        let len = len.get().clamp(1, end - from);
        let place = (self.places[segment] & !HOLE) + (from - self.starts[segment]);
        let place = place.min(self.limit.saturating_sub(len));
        // Both are below 2^56.
        Extent::new(Lba::new(place), Sectors::new(len)).expect("a piece is an extent")
    }

    /// Is any part of this extent of the disk a hole (or beyond what was mapped)?
    pub fn has_hole(&self, extent: Extent) -> bool {
        let (from, to) = (extent.start().get(), extent.end().get());
        if to > self.end {
            return true;
        }
        let first = self.segment(from);
        let starts = self.starts[first..].iter().enumerate();
        let inside = starts.take_while(|&(n, &start)| n == 0 || start < to);
        inside.into_iter().any(|(n, _)| self.places[first + n] & HOLE != 0)
    }

    /// All pieces that are no holes, ascending on the device and disjoint,
    /// neighbours merged, at most 1024 (the narrowest gaps are counted in
    /// where there are more): the VM's region for policies.
    pub fn region(&self) -> Vec<Extent> {
        self.region.clone()
    }

    fn merged_pieces(&self) -> Vec<Extent> {
        let mut pieces: Vec<(u64, u64)> = Vec::with_capacity(self.starts.len());
        for (n, &start) in self.starts.iter().enumerate() {
            let end = self.starts.get(n + 1).copied().unwrap_or(self.end);
            let place = self.places[n];
            if place & HOLE == 0 && start < end {
                pieces.push((place, place + (end - start)));
            }
        }
        pieces.sort_unstable();
        // Where a gap is at most this wide, its neighbours become one.
        let mut merged = merge(&pieces, 0);
        if merged.len() > REGION_MAX {
            let mut gaps: Vec<u64> = merged.windows(2).map(|w| w[1].0 - w[0].1).collect();
            let nth = gaps.len() - REGION_MAX;
            let (_, widest, _) = gaps.select_nth_unstable(nth);
            merged = merge(&merged, *widest);
        }
        let extent = |(from, to): (u64, u64)| Extent::new(Lba::new(from), Sectors::new(to - from));
        merged.into_iter().filter_map(extent).collect()
    }
}

impl fmt::Display for Map {
    /// As journals have it: `END/LIMIT:START@PLACE,…`, a hole with `h` in front of its place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.end, self.limit)?;
        for (n, (start, place)) in self.starts.iter().zip(&self.places).enumerate() {
            let hole = if place & HOLE != 0 { "h" } else { "" };
            let before = if n == 0 { ":" } else { "," };
            write!(f, "{before}{start}@{hole}{}", place & !HOLE)?;
        }
        Ok(())
    }
}

impl FromStr for Map {
    type Err = ();
    /// The inverse of the text form. Fails for a map that [`Map::of_extents`] could not give.
    fn from_str(text: &str) -> Result<Map, ()> {
        let (sizes, segments) = text.split_once(':').ok_or(())?;
        let (end, limit) = sizes.split_once('/').ok_or(())?;
        let number = |text: &str| text.parse::<u64>().ok().filter(|&n| n <= SECTORS_MAX).ok_or(());
        let (end, limit) = (number(end)?, number(limit)?);
        let (mut starts, mut places) = (Vec::new(), Vec::new());
        for segment in segments.split(',') {
            let (start, place) = segment.split_once('@').ok_or(())?;
            let (start, hole) = (number(start)?, place.starts_with('h'));
            let place = number(place.strip_prefix('h').unwrap_or(place))?;
            let follows = starts.last().map_or(start == 0, |&last| last < start);
            if !follows || place > limit {
                return Err(());
            }
            starts.push(start);
            places.push(if hole { place | HOLE } else { place });
        }
        let mut map = Map { starts, places, end, limit, region: Vec::new() };
        map.region = map.merged_pieces();
        Ok(map)
    }
}

/// Merge ascending ranges that overlap or are at most `gap` apart.
fn merge(pieces: &[(u64, u64)], gap: u64) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for &(from, to) in pieces {
        match merged.last_mut() {
            Some(last) if from <= last.1.saturating_add(gap) => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(extents: &[(u64, u64, u64)], len: u64, device: u64) -> Map {
        let list: Vec<FileExtent> =
            extents.iter().map(|&(at, place, len)| FileExtent { at, place, len }).collect();
        Map::of_extents(&list, Lba::new(100), Sectors::new(len), Sectors::new(device)).unwrap()
    }

    /// The piece at a sector of the file, in sectors.
    fn piece(map: &Map, at: u64, len: u64) -> String {
        map.piece(Lba::new(at), Sectors::new(len)).to_string()
    }

    fn hole(map: &Map, at: u64, len: u64) -> bool {
        map.has_hole(Extent::new(Lba::new(at), Sectors::new(len)).unwrap())
    }

    fn region(map: &Map) -> Vec<String> {
        map.region().iter().map(|e| e.to_string()).collect()
    }

    #[test]
    fn one_piece() {
        let m = Map::linear(Lba::new(1000), Sectors::new(64));
        assert_eq!(piece(&m, 10, 8), "1010+8");
        assert_eq!(region(&m), ["1000+64"]);
        assert!(!hole(&m, 0, 64));
        assert!(hole(&m, 63, 2), "ends behind it");
        assert_eq!(piece(&m, 64, 8), "1064+8", "behind it: right behind");
        assert_eq!(piece(&m, 5, 0), "1005+1", "at least one");
    }

    #[test]
    fn pieces_and_holes() {
        // 8 of hole, 8 at 5000, 8 at 2000, 16 of hole, 8 at 2008; in a partition at 100.
        let m = map(&[(8, 5000, 8), (16, 2000, 8), (40, 2008, 8)], 64, 10_000);
        assert_eq!(piece(&m, 0, 8), "5092+8", "in front of the first");
        assert_eq!(piece(&m, 4, 40), "5096+4");
        assert_eq!(piece(&m, 8, 64), "5100+8");
        assert_eq!(piece(&m, 20, 64), "2104+4");
        assert_eq!(piece(&m, 30, 4), "2114+4", "behind the one before");
        assert_eq!(piece(&m, 44, 2), "2112+2");
        assert_eq!(piece(&m, 50, 4), "2118+4");
        let holes: Vec<u64> = (0..64).filter(|&s| hole(&m, s, 1)).collect();
        let expected: Vec<u64> = (0..8).chain(24..40).chain(48..64).collect();
        assert_eq!(holes, expected);
        assert!(hole(&m, 8, 17) && !hole(&m, 8, 16));
        assert_eq!(region(&m), ["2100+16", "5100+8"]);
    }

    #[test]
    fn neighbours_are_one_segment() {
        let m = map(&[(0, 50, 8), (8, 58, 8)], 16, 10_000);
        assert_eq!((m.starts.len(), piece(&m, 0, 16)), (1, "150+16".into()));
    }

    #[test]
    fn holes_stay_on_the_device() {
        let m = map(&[(0, 9890, 8)], 1000, 10_000);
        assert_eq!(piece(&m, 8, 8), "9008+8");
        assert_eq!(piece(&m, 999, 8), "9992+8", "beyond the end of the file");
    }

    #[test]
    fn a_region_keeps_its_widest_gaps() {
        // Gaps of 1, 2, 3, … sectors between 2000 extents of one sector.
        let mut place = 0;
        let extents: Vec<_> = (0..2000)
            .map(|n| {
                place += n + 1;
                (n, place - 1, 1)
            })
            .collect();
        let m = map(&extents, 2000, 10_000_000);
        let region = m.region();
        assert_eq!(region.len(), 1024);
        assert!(region.windows(2).all(|w| w[1].start().distance(w[0].end()).get() > 976));
        assert_eq!(region[0].start(), Lba::new(100));
    }

    proptest! {
        /// Pieces put together give every sector its place, once.
        #[test]
        fn pieces_cover_what_was_asked(
            runs in proptest::collection::vec((1u64..20, 0u64..900, any::<bool>()), 1..20),
            at in 0u64..200, len in 1u64..200,
        ) {
            let (mut extents, mut places, mut sector) = (Vec::new(), Vec::new(), 0);
            for (n, &(run, place, hole)) in runs.iter().enumerate() {
                let place = 1000 * n as u64 + place;
                for i in 0..run {
                    places.push((!hole).then_some(100 + place + i));
                }
                if !hole {
                    extents.push((sector, place, run));
                }
                sector += run;
            }
            prop_assume!(!extents.is_empty());
            let m = map(&extents, sector, 100_000);
            let (mut from, end) = (at, at + len);
            while from < end {
                let p = m.piece(Lba::new(from), Sectors::new(end - from));
                prop_assert!(p.len().get() <= end - from && p.end().get() <= 100_000);
                for i in 0..p.len().get() {
                    if let Some(Some(place)) = places.get((from + i) as usize) {
                        prop_assert_eq!(p.start().get() + i, *place);
                        let inside = m.region().iter().any(|e| e.contains(Lba::new(*place)));
                        prop_assert!(inside);
                    }
                }
                from += p.len().get();
            }
            prop_assert_eq!(&m.to_string().parse::<Map>().unwrap(), &m);
            let expected = (at..end).any(|s| places.get(s as usize).is_none_or(|p| p.is_none()));
            prop_assert_eq!(super::tests::hole(&m, at, len), expected);
        }
    }
}
