//! The work of a drive for one command, and between commands.

use super::cache::{Cache, OnHit};
use super::geometry::{Place, Track};
use super::mechanics::Mechanics;
use super::{CacheRules, DiskSpec, Overheads, QueueOrder};
use seekway_core::request::{Op, Request};
use std::collections::VecDeque;

/// Reading on past the last request, into a segment.
#[derive(Clone, Copy)]
struct ReadAhead {
    segment: usize,
    /// The sector that is read next, and the one before which it stops.
    next: u64,
    target: u64,
    /// No new command cuts in before this sector.
    keep: u64,
}

/// Written data that has not reached the medium.
#[derive(Clone, Copy)]
struct Dirty {
    start: u64,
    end: u64,
    /// Where `start` lies.
    place: Place,
    /// When the data was in the cache.
    since_ns: u64,
}

#[derive(Default)]
struct Counts {
    reads: u64,
    writes: u64,
    cache_hits: u64,
    stream_hits: u64,
    write_hits: u64,
    destages: u64,
    same_track: u64,
    same_cylinder: u64,
    mechanical: u64,
    seek_ns: u64,
    rotation_ns: u64,
    read_ahead_sectors: u64,
}

/// The drive without its queue.
pub(super) struct Drive {
    pub(super) mechanics: Mechanics,
    pub(super) overheads: Overheads,
    rules: CacheRules,
    bus_sector_ns: u64,
    cache: Cache,
    head: Track,
    /// Up to here the head's doings are worked out: it is free from then on.
    head_ns: u64,
    ahead: Option<ReadAhead>,
    dirty: VecDeque<Dirty>,
    /// When the last command was done: read-ahead that does not run in idle time ends here.
    last_done_ns: u64,
    last_was_write: bool,
    counts: Counts,
}

impl Drive {
    pub(super) fn new(spec: DiskSpec) -> Drive {
        Drive {
            cache: Cache::new(spec.cache.shape),
            mechanics: spec.mechanics,
            overheads: spec.overheads,
            rules: spec.cache,
            bus_sector_ns: spec.bus_sector_ns,
            head: Track::default(),
            head_ns: 0,
            ahead: None,
            dirty: VecDeque::with_capacity(spec.cache.write_segments as usize + 1),
            last_done_ns: 0,
            last_was_write: false,
            counts: Counts::default(),
        }
    }

    /// Serves a command on sectors [start, end) that the drive turns to at `at_ns`; says when it is
    /// done.
    pub(super) fn serve(&mut self, at_ns: u64, op: Op, start: u64, end: u64) -> u64 {
        self.catch_up(at_ns);
        let done_ns = match op {
            Op::Read => self.read(at_ns, start, end),
            Op::Write | Op::WriteZeroes => self.write(at_ns, start, end),
            Op::Flush => self.flush(at_ns),
            Op::Discard => {
                self.forget(start, end);
                at_ns + self.overhead(self.overheads.write_hit_ns)
            }
        };
        match op {
            Op::Read => self.last_was_write = false,
            Op::Write | Op::WriteZeroes => self.last_was_write = true,
            Op::Flush | Op::Discard => {}
        }
        self.last_done_ns = done_ns;
        done_ns
    }

    /// Time from `at_ns` until the arm could begin with the command, for choosing among several.
    /// Zero for data in the cache. Call [`Drive::catch_up`] first.
    pub(super) fn positioning_ns(&self, at_ns: u64, command: &Request) -> u64 {
        let (start, end) = (command.extent.start().get(), command.extent.end().get());
        let write = command.op != Op::Read;
        if !command.op.is_data() || (write && self.rules.write_cache) {
            return 0;
        }
        if !write && self.cache.find(start).is_some_and(|s| self.cache.span(s).end >= end) {
            return 0;
        }
        if !write && self.ahead.is_some_and(|a| a.next <= start && start < a.target) {
            return 0;
        }
        let free = self.head_ns.max(at_ns);
        self.mechanics.reach_ns(free, self.head, &self.mechanics.geometry.locate(start), write)
            - at_ns
    }

    /// Computes the drive's own work until `now_ns`: read-ahead first, then written data
    /// ([`Drive::destage`]). A write to the medium is never interrupted: `head_ns` may end up later
    /// than `now_ns`.
    pub(super) fn catch_up(&mut self, now_ns: u64) {
        if let Some(ahead) = self.ahead {
            let idle = now_ns > self.last_done_ns;
            if idle && !self.rules.read_ahead_idle {
                self.read_ahead_to(ahead.keep, u64::MAX);
                self.read_ahead_to(ahead.target, self.last_done_ns);
                self.ahead = None;
            } else if self.read_ahead_to(ahead.target, now_ns) {
                self.ahead = None;
            } else {
                return;
            }
        }
        while let Some(&dirty) = self.dirty.front() {
            let begin = self.head_ns.max(dirty.since_ns);
            if begin >= now_ns {
                break;
            }
            self.destage(begin);
        }
    }

    /// Moves read-ahead on to `target` at most, until `until_ns`; true when it got there.
    fn read_ahead_to(&mut self, target: u64, until_ns: u64) -> bool {
        let Some(mut ahead) = self.ahead else { return true };
        // Most calls come right after a command, when not one sector has passed.
        if !self.mechanics.may_pass(self.head_ns, until_ns) {
            return ahead.next >= target;
        }
        let before = ahead.next;
        let (at, head) = (&mut self.head_ns, &mut self.head);
        self.mechanics.read_on(at, head, &mut ahead.next, target, until_ns);
        self.counts.read_ahead_sectors += ahead.next - before;
        self.cache.grow(ahead.segment, ahead.next);
        self.ahead = Some(ahead);
        ahead.next >= target
    }

    /// Stops read-ahead for a command that needs the medium or the segment.
    fn stop_read_ahead(&mut self) {
        if let Some(ahead) = self.ahead {
            let end = if self.rules.cut_short { ahead.keep } else { ahead.target };
            self.read_ahead_to(end, u64::MAX);
            self.ahead = None;
        }
    }

    fn overhead(&self, pair_ns: [u64; 2]) -> u64 {
        pair_ns[usize::from(self.last_was_write)]
    }

    fn read(&mut self, at_ns: u64, start: u64, end: u64) -> u64 {
        self.counts.reads += 1;
        let bus_ns = (end - start) * self.bus_sector_ns;
        let hit_ns = at_ns + self.overhead(self.overheads.read_hit_ns) + bus_ns;
        let touching = self.cache.touching(start);
        let held = touching.filter(|&s| self.cache.span(s).end > start);
        if let Some(segment) = held.filter(|&s| self.cache.span(s).end >= end) {
            self.counts.cache_hits += 1;
            self.after_hit(at_ns, segment, start, end);
            return hit_ns;
        }
        // No segment has it, but it may wait to be written.
        let waits = |d: &Dirty| d.start <= start && end <= d.end;
        if self.rules.read_hits_on_writes && self.dirty.iter().any(waits) {
            self.counts.cache_hits += 1;
            return hit_ns;
        }
        if let Some(done_ns) = self.read_from_stream(start, end) {
            self.counts.stream_hits += 1;
            return hit_ns.max(done_ns + self.bus_sector_ns);
        }
        self.stop_read_ahead();
        // The front needs no medium for the segment's sectors.
        let missing = held.map_or(start, |s| self.cache.span(s).end.clamp(start, end));
        self.write_out_overlaps(at_ns, missing, end);
        let begin = (at_ns + self.overhead(self.overheads.read_miss_ns)).max(self.head_ns);
        let (first_ns, done_ns) = self.access(begin, missing, end, false);
        let segment = match touching.filter(|_| self.rules.on_hit != OnHit::Consume) {
            Some(segment) => {
                self.cache.touch(segment);
                self.cache.grow(segment, end);
                Some(segment)
            }
            None => self.cache.allocate(start, end),
        };
        self.start_read_ahead(segment, end);
        (done_ns + self.bus_sector_ns).max(first_ns + bus_ns)
    }

    /// Serves a read that read-ahead is about to reach: the head just goes on.
    fn read_from_stream(&mut self, start: u64, end: u64) -> Option<u64> {
        let ahead = self.ahead?;
        let span = self.cache.span(ahead.segment);
        if start < span.start
            || start > ahead.target
            || start > ahead.next + self.rules.read_ahead_max
        {
            return None;
        }
        self.read_ahead_to(end, u64::MAX);
        let done_ns = self.head_ns;
        self.cache.touch(ahead.segment);
        let mut segment = ahead.segment;
        if self.rules.on_hit == OnHit::Consume {
            segment = self.cache.allocate(start, end).unwrap_or(segment);
        }
        let limit = match self.rules.on_hit {
            OnHit::Keep => ahead.target,
            OnHit::Extend | OnHit::Consume => end + self.rules.read_ahead_max,
        };
        self.ahead = Some(ReadAhead {
            segment,
            next: end,
            target: limit.max(end).min(self.mechanics.geometry.capacity()),
            keep: (end + self.rules.read_ahead_min).min(limit.max(end)),
        });
        Some(done_ns)
    }

    /// Updates segments and read-ahead after a hit on `segment`.
    fn after_hit(&mut self, at_ns: u64, segment: usize, start: u64, end: u64) {
        self.cache.touch(segment);
        let mut target_segment = segment;
        match self.rules.on_hit {
            OnHit::Keep => return,
            OnHit::Extend => {}
            OnHit::Consume => {
                let held_end = self.cache.span(segment).end;
                // The victim may be the segment itself: then it just loses its front.
                target_segment = self.cache.allocate(start, held_end).unwrap_or(segment);
            }
        }
        let limit = end + self.rules.read_ahead_max;
        let capacity = self.mechanics.geometry.capacity();
        match &mut self.ahead {
            Some(ahead) if ahead.segment == segment => {
                ahead.segment = target_segment;
                ahead.target = limit.min(capacity).max(ahead.target.min(capacity));
            }
            // The victim's read-ahead has lost its segment.
            Some(ahead) if ahead.segment == target_segment => self.ahead = None,
            Some(_) => {}
            None => {
                let held_end = self.cache.span(target_segment).end;
                if held_end < end + self.rules.resume_below {
                    self.head_ns = self.head_ns.max(at_ns);
                    self.resume_read_ahead(target_segment, held_end, limit);
                }
            }
        }
    }

    fn start_read_ahead(&mut self, segment: Option<usize>, end: u64) {
        self.ahead = None;
        if let Some(segment) = segment.filter(|_| self.rules.read_ahead) {
            self.resume_read_ahead(segment, end, end + self.rules.read_ahead_max);
            if let Some(ahead) = &mut self.ahead {
                ahead.keep = (end + self.rules.read_ahead_min).min(ahead.target);
            }
        }
    }

    fn resume_read_ahead(&mut self, segment: usize, next: u64, limit: u64) {
        let target = limit.min(self.mechanics.geometry.capacity());
        if self.rules.read_ahead && next < target {
            self.ahead = Some(ReadAhead { segment, next, target, keep: next });
        }
    }

    fn write(&mut self, at_ns: u64, start: u64, end: u64) -> u64 {
        self.counts.writes += 1;
        let bus_ns = (end - start) * self.bus_sector_ns;
        let appends = self.dirty.iter().position(|d| d.start <= start && start <= d.end);
        let pair = match appends {
            Some(_) => self.overheads.write_hit_ns,
            None => self.overheads.write_miss_ns,
        };
        let begin = at_ns + self.overhead(pair);
        self.stop_read_ahead();
        self.cache.invalidate(start, end);
        let fits = end - start <= self.rules.shape.segment_sectors;
        let done_ns = if self.rules.write_cache && fits {
            begin.max(self.make_room(at_ns, appends, start, end)) + bus_ns
        } else {
            self.write_out_overlaps(at_ns, start, end);
            let (_, done_ns) = self.access(begin.max(self.head_ns), start, end, true);
            done_ns.max(begin + bus_ns)
        };
        if self.rules.write_cache && fits {
            self.enter_dirty(done_ns, start, end);
        }
        if self.rules.read_hits_on_writes {
            match self.cache.touching(start) {
                Some(segment) => {
                    self.cache.touch(segment);
                    self.cache.grow(segment, end);
                }
                None => {
                    self.cache.allocate(start, end);
                }
            }
        }
        done_ns
    }

    /// Returns the time when there is room for the run: at once where it joins another or a segment
    /// is free, else when enough has been written.
    fn make_room(&mut self, at_ns: u64, joins: Option<usize>, start: u64, end: u64) -> u64 {
        let joined = joins.map(|index| &self.dirty[index]).is_some_and(|run| {
            end.max(run.end) - run.start.min(start) <= self.rules.shape.segment_sectors
        });
        self.counts.write_hits += u64::from(joined);
        let mut is_full = !joined && self.dirty.len() >= self.rules.write_segments as usize;
        is_full |= self.is_over(end - start);
        if !is_full {
            return at_ns;
        }
        while is_full {
            self.destage(self.head_ns.max(at_ns));
            is_full = self.is_over(end - start);
        }
        self.head_ns
    }

    /// Would cached writes with `more` sectors take more than the whole buffer? That needs more
    /// runs than the buffer has segments.
    fn is_over(&self, more: u64) -> bool {
        let shape = self.rules.shape;
        self.rules.write_segments > shape.segments && !self.dirty.is_empty() && {
            let held: u64 = self.dirty.iter().map(|run| run.end - run.start).sum();
            held + more > u64::from(shape.segments) * shape.segment_sectors
        }
    }

    fn enter_dirty(&mut self, since_ns: u64, start: u64, end: u64) {
        let limit = self.rules.shape.segment_sectors;
        let joined = self
            .dirty
            .iter_mut()
            .find(|d| d.start <= start && start <= d.end && end.max(d.end) - d.start <= limit);
        match joined {
            Some(run) => run.end = run.end.max(end),
            None => {
                let place = self.mechanics.geometry.locate(start);
                self.dirty.push_back(Dirty { start, end, place, since_ns });
            }
        }
    }

    /// Writes a run to the medium, beginning at `begin_ns`: the oldest, or with
    /// [`QueueOrder::Sptf`] the one that the head reaches first.
    fn destage(&mut self, begin_ns: u64) {
        let index = match self.rules.write_order {
            QueueOrder::Fcfs => 0,
            QueueOrder::Sptf => self.nearest_run(begin_ns),
        };
        self.write_out(index, begin_ns);
    }

    /// Finds the run that the head reaches first from `begin_ns` on; 0 if none was there by then.
    fn nearest_run(&self, begin_ns: u64) -> usize {
        let (mut nearest, mut least_ns) = (0, u64::MAX);
        for (index, run) in self.dirty.iter().enumerate() {
            let movement = self.mechanics.movement_ns(self.head, run.place.track, true);
            // The wait for the sector only adds to it.
            if movement >= least_ns || run.since_ns > begin_ns {
                continue;
            }
            let wait = self.mechanics.rotation_wait_ns(begin_ns + movement, run.place.angle);
            if movement + wait < least_ns {
                (nearest, least_ns) = (index, movement + wait);
            }
        }
        nearest
    }

    /// Writes run `index` to the medium, beginning at `begin_ns`.
    fn write_out(&mut self, index: usize, begin_ns: u64) {
        if let Some(run) = self.dirty.remove(index) {
            self.counts.destages += 1;
            self.access_at(begin_ns, run.place, run.start, run.end, true);
        }
    }

    /// Writes out older data in the cache, which must not overwrite data that go to the medium
    /// directly, and must be on the medium before a read of it there.
    fn write_out_overlaps(&mut self, at_ns: u64, start: u64, end: u64) {
        while let Some(index) = self.dirty.iter().position(|d| d.start < end && start < d.end) {
            let begin = self.head_ns.max(at_ns);
            match self.rules.write_order {
                QueueOrder::Fcfs => self.destage(begin),
                QueueOrder::Sptf => self.write_out(index, begin),
            }
        }
    }

    fn flush(&mut self, at_ns: u64) -> u64 {
        self.stop_read_ahead();
        self.head_ns = if self.dirty.is_empty() { self.head_ns } else { self.head_ns.max(at_ns) };
        while !self.dirty.is_empty() {
            let begin = self.head_ns;
            self.destage(begin);
        }
        let ready = at_ns + self.overhead(self.overheads.write_hit_ns);
        // A write that is on its way to the medium has to get there too.
        ready.max(self.head_ns)
    }

    /// Discarded sectors are neither read from the cache nor written any more.
    fn forget(&mut self, start: u64, end: u64) {
        self.ahead = None;
        self.cache.invalidate(start, end);
        self.dirty.retain(|d| !(start <= d.start && d.end <= end));
    }

    /// Moves the head over [start, end) from `begin_ns` on; when the first
    /// sector and when the last had passed.
    fn access(&mut self, begin_ns: u64, start: u64, end: u64, write: bool) -> (u64, u64) {
        let place = self.mechanics.geometry.locate(start);
        self.access_at(begin_ns, place, start, end, write)
    }

    /// As [`Drive::access`], with the place of `start`.
    fn access_at(
        &mut self,
        begin_ns: u64,
        place: Place,
        start: u64,
        end: u64,
        write: bool,
    ) -> (u64, u64) {
        let movement = self.mechanics.movement_ns(self.head, place.track, write);
        self.counts.mechanical += 1;
        self.counts.same_track += u64::from(place.track == self.head);
        self.counts.same_cylinder += u64::from(place.track.cylinder == self.head.cylinder);
        self.counts.seek_ns += movement;
        let wait = self.mechanics.rotation_wait_ns(begin_ns + movement, place.angle);
        self.counts.rotation_ns += wait;
        let ready_ns = begin_ns + movement + wait;
        let run =
            self.mechanics.transfer(ready_ns, &mut self.head, (start, place), end - start, write);
        self.head_ns = run.done_ns;
        (run.first_ns, run.done_ns)
    }

    pub(super) fn report(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        let c = &self.counts;
        sink("reads", c.reads as f64);
        sink("writes", c.writes as f64);
        sink("cache_hits", c.cache_hits as f64);
        sink("stream_hits", c.stream_hits as f64);
        sink("write_hits", c.write_hits as f64);
        sink("destages", c.destages as f64);
        sink("mechanical", c.mechanical as f64);
        sink("same_track", c.same_track as f64);
        sink("same_cylinder", c.same_cylinder as f64);
        sink("seek_ms", c.seek_ns as f64 / 1e6);
        sink("rotation_ms", c.rotation_ns as f64 / 1e6);
        sink("read_ahead_sectors", c.read_ahead_sectors as f64);
    }
}
