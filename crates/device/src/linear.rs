//! The linear device of "virtual performance throttle" (algorithms.md,
//! section 5): service time X = R/2 + S·(d/D), where d is the distance from
//! the head to the request's start and D the size of the device; one server,
//! no angle, no transfer time. Two steps beside the line, where they were measured: places near
//! the head, and writes that the drive's write cache answers. A segment cache in front answers hits in a
//! constant time: the shadow cache of section 3.1 (a ring of spans, FIFO).

use crate::DeviceModel;
use crate::disk::cache::{Cache, CacheShape, OnHit};
use crate::in_flight::{InFlight, assert_inside};
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Nanos, Sectors};

/// Everything that a profile states of a linear device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinearSpec {
    /// Sectors, at least 1: the D of the formula.
    pub capacity: u64,
    /// R/2, the part that does not depend on the distance.
    pub base_ns: u64,
    /// S: the time that a distance of D adds.
    pub stroke_ns: u64,
    /// Distance in sectors up to which a seek takes a fixed time, and that time in ns: seek curves
    /// are steep there, and the line is not. None: the line holds there too.
    pub near: Option<(u64, u64)>,
    /// A real revolution, for policies; at most twice `base_ns`.
    pub rotation_ns: u64,
    /// A read that the cache holds.
    pub hit_ns: u64,
    pub shape: CacheShape,
    /// Time of a write that the drive's write cache answers: then no write moves the head, and the
    /// cost of writing it out later is left out. None: writes are served like reads.
    pub write_ns: Option<u64>,
    /// Sectors that the cache takes in after a request's end.
    pub prefetch_sectors: u64,
    /// Effect of a hit: [`OnHit::Consume`] enters the request anew, as section 3.1 has it;
    /// [`OnHit::Extend`] prefetches on in the same segment.
    pub on_hit: OnHit,
    /// Tells whether after a hit the head goes back to the segment's end and reads on, if no other
    /// command comes before it could be there. Drives that read nothing on after a hit under load
    /// do so ([`OnHit::Keep`]).
    pub idle_ahead: bool,
    /// Commands that the device takes at once, at least 1; served as they came.
    pub queue_depth: u32,
}

/// The device: a server, a head position and a cache.
pub struct Linear {
    spec: LinearSpec,
    cache: Cache,
    /// Read-ahead of an idle drive: segment, end, and time of its start.
    idle: Option<(usize, u64, u64)>,
    head: u64,
    /// Time when the last accepted command will be done.
    free_ns: u64,
    in_flight: InFlight,
    reads: u64,
    writes: u64,
    cache_hits: u64,
    zero_distance: u64,
    distance_sectors: u64,
}

impl Linear {
    /// A device at rest, head on the first sector, cache empty.
    pub fn new(spec: LinearSpec) -> Linear {
        Linear {
            cache: Cache::new(spec.shape),
            in_flight: InFlight::new(spec.queue_depth),
            spec,
            idle: None,
            head: 0,
            free_ns: 0,
            reads: 0,
            writes: 0,
            cache_hits: 0,
            zero_distance: 0,
            distance_sectors: 0,
        }
    }

    /// Service time of a command that begins at `begin_ns`; updates head and cache. Writes fill the
    /// cache but are never served by it.
    fn serve_ns(&mut self, begin_ns: u64, command: &Request) -> u64 {
        self.read_on(begin_ns);
        let (start, end) = (command.extent.start().get(), command.extent.end().get());
        match command.op {
            Op::Read => self.reads += 1,
            Op::Write | Op::WriteZeroes => self.writes += 1,
            Op::Flush | Op::Discard => return self.spec.hit_ns,
        }
        let held = self.cache.find(start).filter(|&s| self.cache.span(s).end >= end);
        let ahead = (end + self.spec.prefetch_sectors).min(self.spec.capacity);
        if let (Op::Read, Some(segment)) = (command.op, held) {
            self.cache_hits += 1;
            self.cache.touch(segment);
            match self.spec.on_hit {
                OnHit::Consume => _ = self.cache.allocate(start, ahead),
                OnHit::Extend => self.cache.grow(segment, ahead),
                OnHit::Keep => {}
            }
            if self.spec.idle_ahead {
                self.idle = Some((segment, ahead, begin_ns + self.spec.hit_ns));
            }
            // A hit does not move the head.
            return self.spec.hit_ns;
        }
        if let (Op::Write | Op::WriteZeroes, Some(write_ns)) = (command.op, self.spec.write_ns) {
            self.cache.allocate(start, end);
            return write_ns;
        }
        self.cache.allocate(start, ahead);
        let distance = self.head.abs_diff(start);
        self.head = end;
        self.zero_distance += u64::from(distance == 0);
        self.distance_sectors += distance;
        self.move_ns(distance)
    }

    /// Idle time until `until_ns`, after a hit.
    fn read_on(&mut self, until_ns: u64) {
        let Some((segment, ahead, since_ns)) = self.idle.take() else { return };
        let from = self.cache.span(segment).end;
        let arrives_ns = since_ns + self.move_ns(self.head.abs_diff(from));
        if from < ahead && arrives_ns <= until_ns {
            self.cache.grow(segment, ahead);
            self.head = ahead;
        }
    }

    fn move_ns(&self, distance: u64) -> u64 {
        if let Some((sectors, near_ns)) = self.spec.near
            && distance <= sectors
        {
            return near_ns;
        }
        let part =
            u128::from(self.spec.stroke_ns) * u128::from(distance) / u128::from(self.spec.capacity);
        self.spec.base_ns + part as u64
    }
}

impl DeviceModel for Linear {
    /// Reports R/2 as half a turn of `rotation` plus a constant in the seek curve, so that
    /// positioning comes to exactly X.
    fn profile(&self) -> DeviceProfile {
        let capacity = self.spec.capacity;
        let beyond = self.spec.near.map_or(0, |(sectors, _)| (sectors + 1).min(capacity));
        let near = (beyond > 0).then(|| [0, beyond - 1]);
        let distances = near.into_iter().flatten().chain([beyond, capacity]);
        let seek = |distance: u64| {
            let seek_ns = self.move_ns(distance).saturating_sub(self.spec.rotation_ns / 2);
            (Sectors::new(distance), Nanos::new(seek_ns))
        };
        DeviceProfile {
            capacity: Sectors::new(capacity),
            rotation: Some(Nanos::new(self.spec.rotation_ns)),
            seek: distances.map(seek).collect(),
            stripe: None,
        }
    }

    fn queue_depth(&self) -> u32 {
        self.spec.queue_depth
    }

    fn submit(&mut self, now: Instant, command: &Request) {
        assert_inside(command, self.spec.capacity);
        let begin = self.free_ns.max(now.as_nanos());
        self.free_ns = begin + self.serve_ns(begin, command);
        self.in_flight.enter(self.free_ns, command.id);
    }

    fn next_completion(&self) -> Option<Instant> {
        self.in_flight.next()
    }

    fn pop_completed(&mut self, now: Instant) -> Option<RequestId> {
        self.in_flight.pop(now)
    }

    /// `zero_distance` and `distance_sectors` count commands that moved the head.
    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("reads", self.reads as f64);
        sink("writes", self.writes as f64);
        sink("cache_hits", self.cache_hits as f64);
        sink("zero_distance", self.zero_distance as f64);
        sink("distance_sectors", self.distance_sectors as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::cache::Replacement;
    use crate::tests::{read, request, serve_one};

    fn spec() -> LinearSpec {
        LinearSpec {
            capacity: 1_000_000,
            base_ns: 4_250_000,
            stroke_ns: 5_250_000,
            near: None,
            rotation_ns: 4_000_000,
            hit_ns: 250_000,
            write_ns: None,
            shape: CacheShape { segments: 2, segment_sectors: 221, replacement: Replacement::Fifo },
            prefetch_sectors: 64,
            on_hit: OnHit::Consume,
            idle_ahead: false,
            queue_depth: 1,
        }
    }

    #[test]
    fn service_is_base_plus_distance_and_hits_cost_a_constant() {
        let mut d = Linear::new(spec());
        // From 0 to the middle; then right behind, in the prefetched part.
        assert_eq!(serve_one(&mut d, 0, &read(0, 500_000, 8)), 4_250_000 + 2_625_000);
        assert_eq!(serve_one(&mut d, 9_000_000, &read(0, 500_008, 8)), 9_250_000);
        // Past the prefetched part: distance from the end of the *miss*.
        let x = 4_250_000 + 5_250_000 * 992 / 1_000_000;
        assert_eq!(serve_one(&mut d, 10_000_000, &read(0, 501_000, 8)), 10_000_000 + x);
    }

    #[test]
    fn a_write_that_the_cache_answers_leaves_the_head_where_it_is() {
        let mut d = Linear::new(LinearSpec { write_ns: Some(700_000), ..spec() });
        assert_eq!(serve_one(&mut d, 0, &request(0, Op::Write, 500_000, 8)), 700_000);
        assert_eq!(serve_one(&mut d, 700_000, &read(0, 500_000, 8)), 950_000, "from the cache");
        let x = 4_250_000 + 5_250_000 / 10;
        assert_eq!(serve_one(&mut d, 1_000_000, &read(0, 100_000, 8)), 1_000_000 + x);
    }

    #[test]
    fn positioning_of_the_profile_is_the_formula() {
        let p = Linear::new(spec()).profile();
        let at = |d| p.positioning(Sectors::new(d)).unwrap().get();
        assert_eq!((at(500_000), at(1_000_000)), (6_875_000, 9_500_000));
    }

    #[test]
    fn places_near_the_head_have_a_time_of_their_own() {
        let mut d = Linear::new(LinearSpec { near: Some((1_000, 3_000_000)), ..spec() });
        let far = 4_250_000 + 5_250_000 / 2;
        assert_eq!(serve_one(&mut d, 0, &read(0, 500_000, 8)), far);
        let done = serve_one(&mut d, far, &read(0, 501_008, 8));
        assert_eq!(done, far + 3_000_000, "1000 sectors from the head");
        assert_eq!(serve_one(&mut d, done, &read(0, 502_017, 8)), done + 4_250_000 + 5_255);
        let profile = d.profile();
        let at = |d| profile.positioning(Sectors::new(d)).unwrap().get();
        assert_eq!((at(1), at(1_000), at(1_000_000)), (3_000_000, 3_000_000, 9_500_000));
    }

    #[test]
    fn hits_consume_or_extend() {
        // With two segments, three hits that each take one push out another
        // stream; hits that extend their own leave it.
        for (on_hit, survives) in [(OnHit::Consume, false), (OnHit::Extend, true)] {
            let mut d = Linear::new(LinearSpec { on_hit, ..spec() });
            let mut t = serve_one(&mut d, 0, &read(0, 900_000, 8));
            for i in 0..4 {
                t = serve_one(&mut d, t, &read(0, 100 + 8 * i, 8));
            }
            let done = serve_one(&mut d, t, &read(0, 900_008, 8));
            assert_eq!(done - t == 250_000, survives, "{on_hit:?}");
        }
    }

    #[test]
    fn a_hit_reads_on_when_nothing_else_comes() {
        for (idle_ns, idle_ahead, found) in
            [(50_000_000, true, true), (1_000_000, true, false), (50_000_000, false, false)]
        {
            let mut d = Linear::new(LinearSpec { on_hit: OnHit::Keep, idle_ahead, ..spec() });
            let mut t = serve_one(&mut d, 0, &read(0, 500_000, 8));
            // The last of the 64 that the miss read ahead, then sectors that only idle time reads.
            t = serve_one(&mut d, t, &read(0, 500_064, 8)) + idle_ns;
            t = serve_one(&mut d, t, &read(0, 900_000, 8));
            let done = serve_one(&mut d, t, &read(0, 500_072, 8));
            assert_eq!(done - t == 250_000, found, "{idle_ns} {idle_ahead}");
        }
    }

    #[test]
    fn one_server_serves_in_order() {
        let mut d = Linear::new(LinearSpec { queue_depth: 4, ..spec() });
        d.submit(Instant::ZERO, &read(1, 0, 8));
        d.submit(Instant::ZERO, &read(2, 0, 8));
        assert_eq!(d.next_completion(), Some(Instant::from_nanos(4_250_000)));
        let end = Instant::from_nanos(4_500_000);
        assert_eq!(d.pop_completed(Instant::from_nanos(4_249_999)), None);
        assert_eq!(d.pop_completed(end), Some(RequestId::new(1)));
        assert_eq!(d.pop_completed(end), Some(RequestId::new(2)));
        assert_eq!((d.pop_completed(end), d.next_completion()), (None, None));
    }
}
