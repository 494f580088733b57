//! The moving parts: the arm's position, the angle under the head at each time, and the time to
//! reach a run of sectors.

use super::Turn;
use super::divisor::Divisor;
use super::geometry::{Geometry, Place, Track};
use super::seek::SeekCurve;

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
