//! The moving parts: the arm's position, the angle under the head at each time, and the time to
//! reach a run of sectors.

use super::Turn;
use super::geometry::{Divisor, Geometry, Place, Track};

/// A wait this close to a whole turn is none: the head is at the sector, and
/// only the rounding of angles to nanoseconds says otherwise.
const ROUNDING_NS: u64 = 64;

/// Times of the mechanics in a profile, in ns.
pub struct Mechanics {
    pub geometry: Geometry,
    /// Time to move the arm, by distance in cylinders.
    pub seek: SeekCurve,
    pub rotation_ns: u64,
    /// The revolution, to divide by.
    rotation: Divisor,
    /// Choosing another head; hidden behind a longer seek.
    pub head_switch_ns: u64,
    /// Extra settling before a write after any movement.
    pub write_settle_ns: u64,
}

/// When the parts of a transfer were done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The first sector had passed under the head.
    pub first_ns: u64,
    /// The last sector had.
    pub done_ns: u64,
}

impl Mechanics {
    /// A spindle that turns once in `rotation_ns`, at least 1, over `geometry`;
    /// head switch and write settle as stated at the fields.
    pub fn new(
        geometry: Geometry,
        seek: SeekCurve,
        rotation_ns: u64,
        head_switch_ns: u64,
        write_settle_ns: u64,
    ) -> Mechanics {
        let rotation = Divisor::new(rotation_ns);
        Mechanics { geometry, seek, rotation_ns, rotation, head_switch_ns, write_settle_ns }
    }

    /// Time in ns to move from one track to another: seek and head switch
    /// happen at once, writes settle after either (DiskSim 4.0, mech_g1).
    #[inline]
    pub fn movement_ns(&self, from: Track, to: Track, write: bool) -> u64 {
        if from == to {
            return 0;
        }
        let seek = self.seek.time_ns(from.cylinder.abs_diff(to.cylinder));
        let switch = if from.head == to.head { 0 } else { self.head_switch_ns };
        seek.max(switch) + if write { self.write_settle_ns } else { 0 }
    }

    /// Time from `now_ns` until the angle comes under the head: below a turn. The spindle turns
    /// from time 0 at angle 0 and never stops.
    #[inline]
    pub fn rotation_wait_ns(&self, now_ns: u64, angle: Turn) -> u64 {
        let phase = self.rotation.rem(now_ns);
        let target = angle.as_ns(self.rotation_ns);
        let wait = if target >= phase { target - phase } else { target + self.rotation_ns - phase };
        if wait + ROUNDING_NS >= self.rotation_ns { 0 } else { wait }
    }

    /// When the head, on `from` at `now_ns`, could begin with the sector at `place`.
    #[inline]
    pub fn reach_ns(&self, now_ns: u64, from: Track, place: &Place, write: bool) -> u64 {
        let there = now_ns + self.movement_ns(from, place.track, write);
        there + self.rotation_wait_ns(there, place.angle)
    }

    /// Time in ns for `sectors` physical sectors of a zone to pass.
    #[inline]
    fn pass_ns(&self, zone: usize, sectors: u64) -> u64 {
        self.geometry.track_length(zone).div(sectors * self.rotation_ns)
    }

    /// Reads or writes `count` sectors (at least 1) from `lba` on, which lies at
    /// `place` and comes under the head at `ready_ns` (see
    /// [`Mechanics::reach_ns`]); leaves the head on the last track.
    #[inline]
    pub fn transfer(
        &self,
        ready_ns: u64,
        head: &mut Track,
        (lba, place): (u64, Place),
        count: u64,
        write: bool,
    ) -> Transfer {
        let (mut lba, mut place, mut left) = (lba, place, count);
        let mut at = ready_ns;
        let first_ns = at + self.pass_ns(place.zone, 1);
        loop {
            let run = left.min(place.left_on_track);
            at += self.pass_ns(place.zone, self.geometry.passing(place.zone, lba, run));
            *head = place.track;
            left -= run;
            if left == 0 {
                return Transfer { first_ns, done_ns: at };
            }
            lba += run;
            place = self.geometry.locate(lba);
            at = self.reach_ns(at, *head, &place, write);
        }
    }

    /// Can a sector, of the longest track, have passed from `at_ns` to `until_ns`?
    #[inline]
    pub fn may_pass(&self, at_ns: u64, until_ns: u64) -> bool {
        let longest = u64::from(self.geometry.sectors_per_track_max());
        let span_ns = until_ns.saturating_sub(at_ns).saturating_add(1);
        at_ns <= until_ns && span_ns.saturating_mul(longest) > self.rotation_ns
    }

    /// Reads on from `*lba` towards `target` and stops at `until_ns` with whole sectors only.
    /// `*at_ns` is the time when the head was done with the sector before `*lba`; both advance
    /// together, so that a later call continues.
    pub fn read_on(
        &self,
        at_ns: &mut u64,
        head: &mut Track,
        lba: &mut u64,
        target: u64,
        until_ns: u64,
    ) {
        while *lba < target && self.may_pass(*at_ns, until_ns) {
            let place = self.geometry.locate(*lba);
            let begin = self.reach_ns(*at_ns, *head, &place, false);
            if begin >= until_ns {
                return;
            }
            let run = place.left_on_track.min(target - *lba);
            // At most as many sectors as can have passed; slips only reduce it.
            // Two turns pass any track, and keep the product in 64 bits.
            let span = (until_ns - begin).min(2 * self.rotation_ns);
            let spt = self.geometry.track_length(place.zone).get();
            let count = run.min(self.rotation.div(span * spt));
            if count == 0 {
                return;
            }
            *at_ns =
                begin + self.pass_ns(place.zone, self.geometry.passing(place.zone, *lba, count));
            *lba += count;
            *head = place.track;
            if count < run {
                return;
            }
        }
    }
}

// Seek time against distance in cylinders: one representation, a piecewise
// linear curve, whether it was measured or comes from a formula.

/// Time to move the arm, as knots over the distance. Distance 0 takes no time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeekCurve {
    /// (cylinders, ns), strictly ascending in cylinders, which start at 1 or above.
    knots: Vec<(u32, u64)>,
    /// For each knot, cylinders since the one before (1 for the first).
    widths: Vec<Divisor>,
    /// Knots below `bucket << shift`: the start of the search.
    below: Vec<u16>,
    shift: u32,
}

/// Longest distance of a curve, in cylinders.
pub const DISTANCE_MAX: u32 = 1 << 24;

/// Most points of a curve.
pub const POINTS_MAX: usize = 10_000;

/// Pieces of equal width into which distances are divided to find their knots.
const BUCKETS: u32 = 1_024;

impl SeekCurve {
    /// From measured points (cylinders, ms), strictly ascending in cylinders,
    /// 1 to [`POINTS_MAX`] of them, the first at 1 or above; times at 0 or above. A measured curve need not
    /// rise everywhere. Beyond the ends the nearest point counts.
    ///
    /// # Errors
    /// The index of the first point that breaks these rules (0 for none at all).
    pub fn from_table(points_ms: &[(u32, f64)]) -> Result<SeekCurve, usize> {
        let mut previous = 0;
        for (index, &(cylinders, ms)) in points_ms.iter().enumerate() {
            if cylinders <= previous || cylinders > DISTANCE_MAX || !(0.0..=1e4).contains(&ms) {
                return Err(index);
            }
            previous = cylinders;
        }
        if points_ms.is_empty() || points_ms.len() > POINTS_MAX {
            return Err(points_ms.len().min(POINTS_MAX));
        }
        let knots: Vec<(u32, u64)> =
            points_ms.iter().map(|&(d, ms)| (d, (ms * 1e6).round() as u64)).collect();
        // The last knot falls into the last bucket at most.
        let shift = (previous / BUCKETS + 1).next_power_of_two().trailing_zeros();
        let below =
            |bucket: u32| knots.partition_point(|&(d, _): &(u32, u64)| d < bucket << shift) as u16;
        let below = (0..=BUCKETS).map(below).collect();
        let width = |pair: &[(u32, u64)]| Divisor::new(u64::from(pair[1].0 - pair[0].0));
        let widths = [Divisor::new(1)].into_iter().chain(knots.windows(2).map(width)).collect();
        Ok(SeekCurve { knots, widths, below, shift })
    }

    /// From `a + b·√d` up to `split` cylinders and `c + e·d` above, all in ms
    /// (Ruemmler and Wilkes, "An introduction to disk drive modeling", 1994).
    /// The knots lie so close that interpolation differs by less than 0.1 µs
    /// from a square root of a few ms. `cylinders` bounds the distance.
    ///
    /// # Errors
    /// As [`SeekCurve::from_table`], where the formula leaves its range.
    pub fn from_formula(
        (a, b): (f64, f64),
        split: u32,
        (c, e): (f64, f64),
        cylinders: u32,
    ) -> Result<SeekCurve, usize> {
        let last = cylinders.max(2) - 1;
        let mut points = Vec::new();
        let mut distance = 1;
        while distance <= last {
            let d = f64::from(distance);
            points.push((distance, if distance <= split { a + b * d.sqrt() } else { c + e * d }));
            if distance == last {
                break;
            }
            let next = distance + (distance / 32).max(1);
            // The two branches need not meet: a knot on either side of the split.
            let next = if distance < split { next.min(split) } else { next };
            let next = if distance == split { split + 1 } else { next };
            distance = next.min(last);
        }
        SeekCurve::from_table(&points)
    }

    /// Time in ns to move the arm `distance` cylinders.
    #[inline]
    pub fn time_ns(&self, distance: u32) -> u64 {
        if distance == 0 {
            return 0;
        }
        let bucket = (distance >> self.shift).min(BUCKETS - 1) as usize;
        let (low, high) = (self.below[bucket] as usize, self.below[bucket + 1] as usize);
        let right = low + self.knots[low..high].partition_point(|&(d, _)| d < distance);
        if right == 0 {
            return self.knots[0].1;
        }
        let Some(&(d1, t1)) = self.knots.get(right) else {
            return self.knots[right - 1].1;
        };
        let (d0, t0) = self.knots[right - 1];
        debug_assert!(d0 < distance && distance <= d1);
        // Measured curves fall here and there; rounded towards the left knot.
        let part = self.widths[right].div(t0.abs_diff(t1) * u64::from(distance - d0));
        if t1 >= t0 { t0 + part } else { t0 - part }
    }

    /// The knots: (cylinders, ns).
    pub fn knots(&self) -> &[(u32, u64)] {
        &self.knots
    }

    /// Mean over all pairs of `cylinders` equally likely cylinders, in ns, for reports.
    pub fn mean_ns(&self, cylinders: u32) -> f64 {
        let n = f64::from(cylinders);
        (1..cylinders).map(|d| 2.0 * (n - f64::from(d)) / (n * n) * self.time_ns(d) as f64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::{Mapping, ZoneSpec};
    use super::*;

    fn mechanics() -> Mechanics {
        let zone = ZoneSpec {
            first_cylinder: 0,
            cylinders: 100,
            sectors_per_track: 100,
            track_skew: 20.0,
            cylinder_skew: 30.0,
            first_angle: 0.0,
            spares: 0,
            slips: Vec::new(),
        };
        Mechanics::new(
            Geometry::new(2, Mapping::Cylinder, &[zone], 20_000).unwrap(),
            SeekCurve::from_table(&[(1, 1.0), (99, 5.0)]).unwrap(),
            4_000_000,
            500_000,
            100_000,
        )
    }

    #[test]
    fn the_phase_runs_on_while_nothing_happens() {
        let m = mechanics();
        let wait = |now| m.rotation_wait_ns(now, Turn::of_fraction(0.5));
        assert_eq!((wait(0), wait(2_000_000), wait(2_500_000)), (2_000_000, 0, 3_500_000));
        assert_eq!(wait(4_000_000 * 1_000_003), 2_000_000);
        // Just past, by rounding only, is not a whole turn.
        assert_eq!(wait(2_000_001), 0);
    }

    #[test]
    fn a_run_over_tracks_pays_its_skews_and_no_more() {
        let m = mechanics();
        let mut head = Track::default();
        let t = m.transfer(0, &mut head, (0, m.geometry.locate(0)), 300, false);
        // Three tracks, a track skew of 20 and a cylinder skew of 30 sectors, 40 µs each.
        assert_eq!(t.done_ns, 350 * 40_000);
        assert_eq!(t.first_ns, 40_000);
        assert_eq!(head, Track { cylinder: 1, head: 0 });
    }

    #[test]
    fn writes_settle_after_movement_only() {
        let m = mechanics();
        let (a, b) = (Track::default(), Track { cylinder: 1, head: 1 });
        assert_eq!(m.movement_ns(a, b, false), 1_000_000);
        assert_eq!(m.movement_ns(a, b, true), 1_100_000);
        assert_eq!(m.movement_ns(a, a, true), 0);
        assert_eq!(m.movement_ns(a, Track { cylinder: 0, head: 1 }, false), 500_000);
    }

    #[test]
    fn reading_on_in_pieces_equals_reading_on_at_once() {
        let m = mechanics();
        let run = |steps: &[u64]| {
            let (mut at, mut head, mut lba) = (1_234_567, Track::default(), 30);
            for &until in steps {
                m.read_on(&mut at, &mut head, &mut lba, 10_000, until);
            }
            (at, head, lba)
        };
        let pieces: Vec<u64> = (1..500).map(|i| i * 77_777).collect();
        assert_eq!(run(&pieces), run(&[499 * 77_777]));
    }
}

#[cfg(test)]
mod seek_tests {
    use super::*;

    #[test]
    fn a_table_is_interpolated_and_clamped() {
        let c = SeekCurve::from_table(&[(1, 1.0), (11, 2.0), (21, 1.5)]).unwrap();
        let at = |d| c.time_ns(d);
        assert_eq!(
            (at(0), at(1), at(6), at(11), at(16)),
            (0, 1_000_000, 1_500_000, 2_000_000, 1_750_000)
        );
        assert_eq!(at(999), 1_500_000);
        assert_eq!(SeekCurve::from_table(&[(5, 1.0), (5, 2.0)]), Err(1));
        assert_eq!(SeekCurve::from_table(&[(0, 1.0)]), Err(0));
        assert_eq!(SeekCurve::from_table(&[(u32::MAX, 1.0)]), Err(0));
        assert_eq!(SeekCurve::from_table(&[(1, f64::NAN)]), Err(0));
    }

    #[test]
    fn a_formula_is_followed_closely() {
        let c = SeekCurve::from_formula((0.5, 0.03), 20_000, (3.5, 0.000_06), 100_000).unwrap();
        for d in [1u32, 7, 100, 5_000, 19_999, 20_000, 20_001, 60_000, 99_999] {
            let x = f64::from(d);
            let exact = if d <= 20_000 { 0.5 + 0.03 * x.sqrt() } else { 3.5 + 0.000_06 * x };
            let error = (c.time_ns(d) as f64 / 1e6 - exact).abs();
            assert!(error < 1e-3, "{d}: off by {error} ms");
        }
    }
}
