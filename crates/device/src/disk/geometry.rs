//! Where a sector lies: zones, tracks in the order in which the drive fills
//! them, spares, slipped sectors, and the angle at which each sector passes
//! under the head (zones, skews and slips as in the layout descriptions of
//! DiskSim 4.0, generation 1, and of DIXtrac).

use super::Turn;

/// In which order the tracks of a zone are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// All heads of a cylinder in the same order, then the next cylinder.
    Cylinder,
    /// As [`Mapping::Cylinder`], but every other cylinder of a zone runs from the last head to the
    /// first.
    Serpentine,
    /// A band of cylinders on one surface, back over the same band on the next
    /// surface, and so on; then the next band (drives since about 2004).
    Surface {
        /// Cylinders in a band, at least 1; a zone's last band may be narrower.
        band_cylinders: u32,
    },
}

/// One zone of a layout, as a profile states it.
#[derive(Clone, PartialEq, Debug)]
pub struct ZoneSpec {
    /// First cylinder of the zone.
    pub first_cylinder: u32,
    /// Cylinders in the zone, at least 1.
    pub cylinders: u32,
    /// Physical sectors on a track, at least 1.
    pub sectors_per_track: u32,
    /// Turn between the end of a track and the start of the next on another
    /// head, in sectors of this zone, from 0 to `sectors_per_track`.
    pub track_skew: f64,
    /// As `track_skew`, for a step to another cylinder.
    pub cylinder_skew: f64,
    /// Angle of the zone's first sector, as a fraction of a turn in [0, 1).
    pub first_angle: f64,
    /// Physical sectors at the zone's end that hold no data.
    pub spares: u64,
    /// Physical positions (from the zone's first sector) that are skipped
    /// because the medium is bad there; strictly ascending.
    pub slips: Vec<u64>,
}

/// Position of a track: the arm's and the head selector's target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Track {
    /// Cylinder, from 0 at the outer edge.
    pub cylinder: u32,
    /// Surface of a platter, from 0: which head reads it.
    pub head: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of the zone.
    pub zone: usize,
    pub track: Track,
    /// Physical sector on the track, from 0.
    pub sector: u32,
    /// Angle at which the sector begins.
    pub angle: Turn,
    /// Logical sectors from here to the track's end, at least 1.
    pub left_on_track: u64,
}

struct Zone {
    first_lba: u64,
    sectors: u64,
    first_cylinder: u32,
    cylinders: u32,
    sectors_per_track: u32,
    /// `sectors_per_track`, to divide by.
    track_length: Divisor,
    /// The physical position after the last data sector.
    physical_end: u64,
    first_angle: Turn,
    /// Turn that one sector takes.
    sector_turn: u64,
    /// Skew of an ordinary step to the next track, and of the rarer one (to the
    /// next cylinder where heads change fastest, to the next head otherwise).
    step_turn: u64,
    switch_turn: u64,
    /// `slips[i] - i`: how many logical sectors precede the i-th slip.
    slip_keys: Vec<u64>,
}

/// Tracks of a cylinder and of a band, to divide by.
struct Steps {
    heads: Divisor,
    /// Cylinders in a band, and its tracks; both 1 for mappings without bands.
    band: Divisor,
    band_tracks: Divisor,
}

impl Steps {
    fn new(surfaces: u32, mapping: Mapping) -> Steps {
        let heads = u64::from(surfaces);
        let (band, band_tracks) = match mapping {
            Mapping::Surface { band_cylinders } => {
                (u64::from(band_cylinders), heads * u64::from(band_cylinders))
            }
            Mapping::Cylinder | Mapping::Serpentine => (1, 1),
        };
        Steps {
            heads: Divisor::new(heads),
            band: Divisor::new(band),
            band_tracks: Divisor::new(band_tracks),
        }
    }
}

/// The whole layout. Built once; a lookup takes O(log slips) and a step or two
/// from a table to the zone.
pub struct Geometry {
    zones: Vec<Zone>,
    surfaces: u32,
    steps: Steps,
    mapping: Mapping,
    capacity: u64,
    cylinders: u32,
    sectors_per_track_max: u32,
    /// The zone of sector `bucket << zone_shift`: where the search begins.
    zone_of_bucket: Vec<u16>,
    zone_shift: u32,
}

impl Geometry {
    /// Lays `capacity` sectors out over the zones, which ascend and do not overlap (the profile's
    /// validation guarantees it). The zones' space beyond `capacity` stays unused at the end.
    ///
    /// # Errors
    /// With the number of sectors that the zones can hold when that is less than `capacity`.
    pub fn new(
        surfaces: u32,
        mapping: Mapping,
        specs: &[ZoneSpec],
        capacity: u64,
    ) -> Result<Geometry, u64> {
        let mut first_lba = 0;
        let mut zones = Vec::with_capacity(specs.len());
        for spec in specs {
            let zone = Zone::new(spec, surfaces, mapping, first_lba);
            first_lba += zone.sectors;
            zones.push(zone);
        }
        if first_lba < capacity {
            return Err(first_lba);
        }
        let cylinders = specs.iter().map(|s| s.first_cylinder + s.cylinders).max().unwrap_or(0);
        let sectors_per_track_max = specs.iter().map(|s| s.sectors_per_track).max().unwrap_or(1);
        // Some 1,000 buckets: nearly all lie inside one zone.
        let zone_shift = (capacity >> 10).max(1).ilog2();
        let zone_of = |bucket: u64| {
            zones.partition_point(|z: &Zone| z.first_lba <= bucket << zone_shift) as u16 - 1
        };
        let zone_of_bucket = (0..=capacity >> zone_shift).map(zone_of).collect();
        Ok(Geometry {
            zones,
            surfaces,
            steps: Steps::new(surfaces, mapping),
            mapping,
            capacity,
            cylinders,
            sectors_per_track_max,
            zone_of_bucket,
            zone_shift,
        })
    }

    /// Sectors that hold data.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Cylinders, counting from 0 to the last zone's last.
    pub fn cylinders(&self) -> u32 {
        self.cylinders
    }

    /// Physical sectors on a track of zone `zone`.
    pub fn sectors_per_track(&self, zone: usize) -> u32 {
        self.zones[zone].sectors_per_track
    }

    /// `sectors_per_track`, to divide by.
    #[inline]
    pub(super) fn track_length(&self, zone: usize) -> Divisor {
        self.zones[zone].track_length
    }

    /// Sectors of the longest track.
    pub fn sectors_per_track_max(&self) -> u32 {
        self.sectors_per_track_max
    }

    /// Where sector `lba` lies. Panics when it is past the capacity.
    #[inline]
    pub fn locate(&self, lba: u64) -> Place {
        assert!(lba < self.capacity, "sector {lba} is past the end ({} sectors)", self.capacity);
        let mut index = usize::from(self.zone_of_bucket[(lba >> self.zone_shift) as usize]);
        while self.zones.get(index + 1).is_some_and(|next| next.first_lba <= lba) {
            index += 1;
        }
        let zone = &self.zones[index];
        let logical = lba - zone.first_lba;
        let physical = zone.physical(logical);
        let (track_number, sector) = zone.track_length.div_rem(physical);
        let sector = sector as u32;
        let spt = u64::from(zone.sectors_per_track);
        let track_end = ((track_number + 1) * spt).min(zone.physical_end);
        let left_on_track = (zone.logical(track_end) - logical).min(self.capacity - lba);
        let (track, switches) = zone.track(track_number, &self.steps, self.mapping);
        let angle = zone.angle(track_number, switches, sector);
        Place { zone: index, track, sector, angle, left_on_track }
    }

    /// Physical sectors that pass under the head while the `count` logical
    /// sectors from `lba` on are read: more than `count` where sectors are slipped.
    /// All of them must lie on one track.
    #[inline]
    pub fn passing(&self, zone: usize, lba: u64, count: u64) -> u64 {
        let zone = &self.zones[zone];
        if zone.slip_keys.is_empty() {
            return count;
        }
        let first = lba - zone.first_lba;
        zone.physical(first + count - 1) - zone.physical(first) + 1
    }

    /// The inverse of [`Geometry::locate`]; `None` for a position without data (a spare, a slipped
    /// sector, past the capacity).
    pub fn lba_at(&self, track: Track, sector: u32) -> Option<u64> {
        let zone = self.zones.iter().find(|z| {
            (z.first_cylinder..z.first_cylinder + z.cylinders).contains(&track.cylinder)
        })?;
        if track.head >= self.surfaces || sector >= zone.sectors_per_track {
            return None;
        }
        let number = zone.track_number(track, self.surfaces, self.mapping);
        let physical = number * u64::from(zone.sectors_per_track) + u64::from(sector);
        let logical = zone.logical(physical);
        let lba = zone.first_lba + logical;
        let here = logical < zone.sectors && zone.physical(logical) == physical;
        (here && lba < self.capacity).then_some(lba)
    }
}

impl Zone {
    fn new(spec: &ZoneSpec, surfaces: u32, mapping: Mapping, first_lba: u64) -> Zone {
        let spt = u64::from(spec.sectors_per_track);
        let physical = u64::from(spec.cylinders) * u64::from(surfaces) * spt;
        let turn = |sectors: f64| Turn::of_fraction(sectors / spt as f64).0;
        let (track_skew, cylinder_skew) = (turn(spec.track_skew), turn(spec.cylinder_skew));
        let (step_turn, switch_turn) = match mapping {
            Mapping::Cylinder | Mapping::Serpentine => (track_skew, cylinder_skew),
            Mapping::Surface { .. } => (cylinder_skew, track_skew),
        };
        // Slipped sectors use spares up: the data ends where the spares begin,
        // pushed back by as many sectors as were slipped, as far as spares go.
        let slipped = spec.slips.len() as u64;
        let unused = spec.spares.max(slipped);
        let sectors = physical.saturating_sub(unused);
        let mut zone = Zone {
            first_lba,
            sectors,
            first_cylinder: spec.first_cylinder,
            cylinders: spec.cylinders,
            sectors_per_track: spec.sectors_per_track,
            track_length: Divisor::new(spt),
            physical_end: 0,
            first_angle: Turn::of_fraction(spec.first_angle),
            sector_turn: (u128::from(u64::MAX) / u128::from(spt)) as u64 + 1,
            step_turn,
            switch_turn,
            slip_keys: spec.slips.iter().enumerate().map(|(i, &s)| s - i as u64).collect(),
        };
        zone.physical_end = zone.physical(sectors.saturating_sub(1)) + 1;
        zone
    }

    /// Physical position of the zone's logical sector `logical`.
    #[inline]
    fn physical(&self, logical: u64) -> u64 {
        if self.slip_keys.is_empty() {
            return logical;
        }
        logical + self.slip_keys.partition_point(|&key| key <= logical) as u64
    }

    /// Logical sectors before the physical position `physical`.
    fn logical(&self, physical: u64) -> u64 {
        if self.slip_keys.is_empty() {
            return physical;
        }
        // Slip i lies at keys[i] + i; those below `physical` hold no data.
        let (mut low, mut high) = (0, self.slip_keys.len());
        while low < high {
            let mid = (low + high) / 2;
            if self.slip_keys[mid] + (mid as u64) < physical {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        physical - low as u64
    }

    /// Position of the zone's `number`-th track, and number of the rarer steps (see `switch_turn`)
    /// before it.
    #[inline]
    fn track(&self, number: u64, steps: &Steps, mapping: Mapping) -> (Track, u64) {
        let heads = steps.heads.get();
        match mapping {
            Mapping::Cylinder | Mapping::Serpentine => {
                let (cylinder, mut head) = steps.heads.div_rem(number);
                if mapping == Mapping::Serpentine && cylinder % 2 == 1 {
                    head = heads - 1 - head;
                }
                let cylinder_at = self.first_cylinder + cylinder as u32;
                (Track { cylinder: cylinder_at, head: head as u32 }, cylinder)
            }
            Mapping::Surface { band_cylinders } => {
                let (band, within) = steps.band_tracks.div_rem(number);
                let band_first = band * u64::from(band_cylinders);
                let left = u64::from(self.cylinders) - band_first;
                let (width, (head, along)) = if left >= u64::from(band_cylinders) {
                    (u64::from(band_cylinders), steps.band.div_rem(within))
                } else {
                    (left, (within / left, within % left))
                };
                let along = if head % 2 == 1 { width - 1 - along } else { along };
                let cylinder = self.first_cylinder + (band_first + along) as u32;
                (Track { cylinder, head: head as u32 }, band * heads + head)
            }
        }
    }

    /// The inverse of [`Zone::track`].
    fn track_number(&self, track: Track, surfaces: u32, mapping: Mapping) -> u64 {
        let heads = u64::from(surfaces);
        let cylinder = u64::from(track.cylinder - self.first_cylinder);
        let head = u64::from(track.head);
        match mapping {
            Mapping::Cylinder => cylinder * heads + head,
            Mapping::Serpentine if cylinder % 2 == 1 => cylinder * heads + heads - 1 - head,
            Mapping::Serpentine => cylinder * heads + head,
            Mapping::Surface { band_cylinders } => {
                let band_first = cylinder - cylinder % u64::from(band_cylinders);
                let width = u64::from(band_cylinders).min(u64::from(self.cylinders) - band_first);
                let along = cylinder - band_first;
                let along = if head % 2 == 1 { width - 1 - along } else { along };
                band_first * heads + head * width + along
            }
        }
    }

    fn angle(&self, track_number: u64, switches: u64, sector: u32) -> Turn {
        let steps = track_number - switches;
        Turn(
            self.first_angle
                .0
                .wrapping_add(steps.wrapping_mul(self.step_turn))
                .wrapping_add(switches.wrapping_mul(self.switch_turn))
                .wrapping_add(u64::from(sector).wrapping_mul(self.sector_turn)),
        )
    }
}

// Division by a number that stays the same: a multiplication instead, which
// takes a tenth of the time of dividing 64-bit numbers.

/// A divisor, at least 1, and its reciprocal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Divisor {
    by: u64,
    /// ⌊(2^64 - 1) / by⌋
    inverse: u64,
}

impl Divisor {
    /// Panics when `by` is 0, which no checked profile holds.
    pub(super) const fn new(by: u64) -> Divisor {
        Divisor { by, inverse: u64::MAX / by }
    }

    #[inline]
    pub(super) const fn get(self) -> u64 {
        self.by
    }

    /// Quotient and remainder, exact for every `n`.
    #[inline]
    pub(super) const fn div_rem(self, n: u64) -> (u64, u64) {
        // With i the inverse, n/by - n·i/2^64 = n·(2^64 - i·by) / (by·2^64), and
        // 2^64 - i·by is from 1 to by: the estimate falls short by 1 at most.
        let estimate = ((n as u128 * self.inverse as u128) >> 64) as u64;
        let rest = n - estimate * self.by;
        if rest >= self.by { (estimate + 1, rest - self.by) } else { (estimate, rest) }
    }

    #[inline]
    pub(super) const fn div(self, n: u64) -> u64 {
        self.div_rem(n).0
    }

    #[inline]
    pub(super) const fn rem(self, n: u64) -> u64 {
        self.div_rem(n).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(first_cylinder: u32, cylinders: u32, spt: u32) -> ZoneSpec {
        ZoneSpec {
            first_cylinder,
            cylinders,
            sectors_per_track: spt,
            track_skew: 2.0,
            cylinder_skew: 3.0,
            first_angle: 0.0,
            spares: 0,
            slips: Vec::new(),
        }
    }

    #[test]
    fn tracks_follow_the_mapping() {
        let at = |mapping, number: u64| {
            let g = Geometry::new(2, mapping, &[zone(0, 5, 10)], 100).unwrap();
            let p = g.locate(number * 10);
            assert_eq!(p.sector, 0);
            (p.track.cylinder, p.track.head)
        };
        let order = |mapping| (0..6).map(|n| at(mapping, n)).collect::<Vec<_>>();
        assert_eq!(order(Mapping::Cylinder), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
        assert_eq!(order(Mapping::Serpentine), [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]);
        let surface = Mapping::Surface { band_cylinders: 2 };
        assert_eq!(order(surface), [(0, 0), (1, 0), (1, 1), (0, 1), (2, 0), (3, 0)]);
        // The last band has one cylinder only.
        assert_eq!((at(surface, 8), at(surface, 9)), ((4, 0), (4, 1)));
    }

    #[test]
    fn skews_add_up_along_the_tracks() {
        let g = Geometry::new(2, Mapping::Cylinder, &[zone(0, 5, 10)], 100).unwrap();
        let angle = |lba| (g.locate(lba).angle.as_fraction() * 10.0).round() as u64 % 10;
        // Track 1: one head switch. Track 2: and one cylinder switch. Track 4: two of each.
        assert_eq!((angle(0), angle(3), angle(10), angle(20), angle(40)), (0, 3, 2, 5, 0));
    }

    #[test]
    fn slipped_sectors_are_passed_over_and_use_up_spares() {
        let spec = ZoneSpec { slips: vec![3, 4, 12], spares: 5, ..zone(0, 2, 10) };
        let g = Geometry::new(1, Mapping::Cylinder, &[spec], 15).unwrap();
        let place = |lba| {
            let p = g.locate(lba);
            (p.track.cylinder, p.sector, p.left_on_track)
        };
        assert_eq!(place(2), (0, 2, 6));
        assert_eq!(place(3), (0, 5, 5));
        assert_eq!(place(9), (1, 1, 6));
        assert_eq!(place(10), (1, 3, 5));
        assert_eq!(g.passing(0, 1, 3), 5);
        assert_eq!(g.lba_at(Track { cylinder: 0, head: 0 }, 4), None);
        assert_eq!(g.lba_at(Track { cylinder: 1, head: 0 }, 3), Some(10));
        assert_eq!(g.lba_at(Track { cylinder: 1, head: 0 }, 9), None);
    }

    #[test]
    fn zones_that_cannot_hold_the_capacity_are_refused() {
        assert_eq!(Geometry::new(2, Mapping::Cylinder, &[zone(0, 5, 10)], 101).err(), Some(100));
    }
}

#[cfg(test)]
mod divisor_tests {
    use super::*;
    use proptest::prelude::*;

    fn check(n: u64, by: u64) {
        assert_eq!(Divisor::new(by).div_rem(n), (n / by, n % by), "{n} / {by}");
    }

    #[test]
    fn corners_divide_as_the_processor_does() {
        let corners =
            [1, 2, 3, 7, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];
        for by in corners {
            for n in corners {
                for n in [0, n, n.wrapping_mul(by), n.wrapping_mul(by).wrapping_sub(1)] {
                    check(n, by);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn anything_divides_as_the_processor_does(
            n in any::<u64>(),
            by in 1..u64::MAX,
            (a, b) in (0..64_u32, 0..63_u32),
        ) {
            check(n, by);
            check(n >> a, (by >> b).max(1));
        }
    }
}
