//! Rate limits of disks and of groups of disks: I/O operations and bytes per
//! second, for reads, writes or both, with bursts. Their meaning is that of
//! QEMU's throttle groups (`util/throttle.c`, `block/throttle-groups.c`).
//!
//! A request passes when neither its disk's limits nor its group's are used
//! up. One that may not pass waits here, and no policy sees it.
//!
//! # How to drive it
//!
//! 1. [`Limiter::submit`] each request: it may go at once, or it waits inside.
//!    A flush is not submitted: it is never limited.
//! 2. After every input, and when the time of [`Limiter::next_wake`] has come,
//!    call [`Limiter::next`] until it is `None`: each item that it hands out may
//!    go now. (A request that was just told to wait may be among them: `submit`
//!    looks no further than the disk's and the group's queues.)
//!
//! Times never run backwards.
//!
//! # Order
//!
//! - Requests of one disk in one direction go in the order of their arrival.
//! - Of a disk's oldest read and oldest write, the older goes first, unless it
//!   waits for a limit that counts its own direction alone: then the other
//!   passes it. So a read waits behind a write for a total limit, and not for a
//!   limit of writes.
//! - The disks of a group take turns, a request each. Nobody who could go is
//!   passed over twice by the same disk.
//!
//! # Exactness
//!
//! Over any time T at most `rate · T`, a tenth of a second's worth (which may
//! pass at once after a quiet time, as in QEMU) and one request pass; under
//! load that never lets up, exactly `rate · T` to within one request. With a
//! burst, the rate is the burst's until the burst has lasted for its length;
//! QEMU's lasts longer by the factor `max / (max - avg)`, because its bucket
//! leaks meanwhile.

mod text;

use crate::dispatcher::VMS_MAX;
use seekway_core::params::ParamError;
use seekway_core::queues::{ExpiryQueue, KeyedHeap, Links};
use seekway_core::request::{Op, RequestId, VmId};
use seekway_core::scheduler::{Promise, Reserve};
use seekway_core::units::{Instant, Nanos};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
pub use text::{KEYS_SHOWN, LimitsDraft, is_limit, new_group, parse_group};

/// The rate limits of all disks of one device.
#[derive(Default, Debug)]
pub struct Limiter {
    /// By the VM's number.
    disks: Vec<Disk>,
    groups: Vec<Group>,
    /// Places in `groups` that no name has.
    free: Vec<u32>,
    names: BTreeMap<GroupName, u32>,
    /// When a disk or a group that has something waiting can go on.
    alarms: Alarms,
    rings: Rings,
    /// Requests that had to wait until now: a request's count is its place in the order.
    arrivals: u64,
    /// Turns in groups until now.
    turns: u64,
}

/// A disk with what waits of it.
#[derive(Default, Debug)]
struct Disk {
    meter: Meter,
    group: Option<u32>,
    /// Does it or its group have limits, or does something wait?
    limited: bool,
    /// Reads and writes that wait.
    lanes: [VecDeque<WaitingRequest>; 2],
    waiting_since: Option<Instant>,
    /// Time in which something waited, up to `waiting_since`.
    waited: Nanos,
}

#[derive(Debug)]
struct WaitingRequest {
    arrival: u64,
    bytes: u64,
    item: u32,
}

/// A group of disks.
#[derive(Default, Debug)]
struct Group {
    meter: Meter,
    members: u32,
    /// Lanes that wait for the group alone: reads and writes.
    rings: [Ring; 2],
}

/// Owner of an alarm. Disks come before groups, so that at one instant all that want a turn are in
/// the ring before one has it.
enum Alarm {
    Disk(usize),
    Group(u32),
}

impl Alarm {
    fn number(self) -> u32 {
        match self {
            Alarm::Disk(disk) => disk as u32,
            Alarm::Group(group) => VMS_MAX as u32 + group,
        }
    }
    fn of(number: u32) -> Alarm {
        match number.checked_sub(VMS_MAX as u32) {
            None => Alarm::Disk(number as usize),
            Some(group) => Alarm::Group(group),
        }
    }
}

/// The number of a lane: the disk's, with the direction in the lowest bit.
fn lane_of(disk: usize, direction: Direction) -> u32 {
    (disk as u32) << 1 | direction.index() as u32
}

impl Disk {
    fn has_waiting(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.is_empty())
    }
    fn oldest(&self, direction: Direction) -> Option<u64> {
        self.lanes[direction.index()].front().map(|w| w.arrival)
    }
}

impl Limiter {
    /// A limiter without limits.
    pub fn new() -> Limiter {
        Limiter::default()
    }

    /// Give a disk these limits, and a group or none; both hold. What waits
    /// goes on waiting in its order, for the new limits. A group that was not
    /// named before has no limits until [`Limiter::set_group`]. Panics when the
    /// VM's number is not below [`VMS_MAX`].
    pub fn set_disk(&mut self, now: Instant, vm: VmId, limits: &Limits, group: Option<&GroupName>) {
        let at = vm.index();
        assert!(at < VMS_MAX, "{vm:?}: at most {VMS_MAX} VMs");
        if at >= self.disks.len() {
            if limits.is_unlimited() && group.is_none() {
                return;
            }
            self.disks.resize_with(at + 1, Disk::default);
        }
        let group = group.map(|name| self.group(name));
        let before = self.disks[at].group;
        if before != group {
            self.leave_rings(at);
            if let Some(group) = group {
                self.groups[group as usize].members += 1;
            }
            self.disks[at].group = group;
        }
        self.disks[at].meter.set(now, limits);
        self.settle(now, at);
        if let (Some(left), true) = (before, before != group) {
            self.groups[left as usize].members -= 1;
            self.settle_group(now, left);
            self.forget_unused(left);
        }
    }

    /// Give a group these limits. What waits goes on waiting for the new ones.
    pub fn set_group(&mut self, now: Instant, name: &GroupName, limits: &Limits) {
        let group = self.group(name);
        self.groups[group as usize].meter.set(now, limits);
        for at in 0..self.disks.len() {
            if self.disks[at].group == Some(group) {
                self.settle(now, at);
            }
        }
        self.forget_unused(group);
    }

    /// Forget a disk. What waited of it is appended to `items` in the order of
    /// arrival; it was not counted.
    pub fn remove(&mut self, now: Instant, vm: VmId, items: &mut Vec<u32>) {
        let at = vm.index();
        if at >= self.disks.len() {
            return;
        }
        let [reads, writes] = std::mem::take(&mut self.disks[at].lanes);
        let mut all: Vec<WaitingRequest> = reads.into_iter().chain(writes).collect();
        all.sort_unstable_by_key(|w| w.arrival);
        items.extend(all.iter().map(|w| w.item));
        self.set_disk(now, vm, &Limits::default(), None);
        self.disks[at] = Disk::default();
    }

    /// Take back a request that waits; `false` when it does not wait here.
    /// Takes time in proportion to what waits of this disk.
    pub fn withdraw(&mut self, now: Instant, vm: VmId, item: u32) -> bool {
        let Some(disk) = self.disks.get_mut(vm.index()) else { return false };
        let found = disk.lanes.iter_mut().find_map(|lane| {
            let place = lane.iter().position(|w| w.item == item)?;
            lane.remove(place)
        });
        if found.is_some() {
            self.settle(now, vm.index());
        }
        found.is_some()
    }

    /// Does anything limit this disk? Where not, `submit` need not be asked.
    pub fn is_limited(&self, vm: VmId) -> bool {
        self.disks.get(vm.index()).is_some_and(|disk| disk.limited)
    }

    /// A request arrives: `true` when it may go at once and is counted; else it
    /// waits, and [`Limiter::next`] will hand out `item`.
    pub fn submit(
        &mut self,
        now: Instant,
        vm: VmId,
        direction: Direction,
        bytes: u64,
        item: u32,
    ) -> bool {
        let at = vm.index();
        if !self.is_limited(vm) || self.passes(now, at, direction, bytes) {
            return true;
        }
        let disk = &mut self.disks[at];
        let waiting = WaitingRequest { arrival: self.arrivals, bytes, item };
        disk.lanes[direction.index()].push_back(waiting);
        self.arrivals += 1;
        self.settle(now, at);
        false
    }

    /// An item that may go now, if there is one; it is counted.
    #[inline]
    pub fn next(&mut self, now: Instant) -> Option<u32> {
        self.next_wake().filter(|&at| at <= now).and_then(|_| self.next_due(now))
    }

    fn next_due(&mut self, now: Instant) -> Option<u32> {
        loop {
            let (at, number) = self.alarms.first()?;
            if at > now {
                return None;
            }
            let (disk, direction) = match Alarm::of(number) {
                Alarm::Disk(disk) if self.disks[disk].group.is_some() => {
                    self.settle(now, disk); // it joins the group's rings
                    continue;
                }
                Alarm::Disk(disk) => (
                    disk,
                    self.older(disk, |this, direction| {
                        this.disks[disk].meter.is_ready(now, direction)
                    }),
                ),
                Alarm::Group(group) => self.turn(now, group),
            };
            return self.release(now, disk, direction?);
        }
    }

    /// When to call [`Limiter::next`] again, if nothing happens before: `None`
    /// while nothing waits. Not later than `now` when something may go already.
    pub fn next_wake(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| at)
    }

    /// Requests of a disk that wait here.
    pub fn waiting(&self, vm: VmId) -> usize {
        self.disks.get(vm.index()).map_or(0, |d| d.lanes.iter().map(VecDeque::len).sum())
    }

    /// Time in which a disk had something waiting for its limits or its
    /// group's, since it was first given some.
    pub fn waited(&self, now: Instant, vm: VmId) -> Nanos {
        self.disks.get(vm.index()).map_or(Nanos::ZERO, |disk| {
            disk.waited + disk.waiting_since.map_or(Nanos::ZERO, |since| now.since(since))
        })
    }

    /// Count a request that comes while nothing else waits, if it may pass.
    fn passes(&mut self, now: Instant, at: usize, direction: Direction, bytes: u64) -> bool {
        let disk = &mut self.disks[at];
        if disk.has_waiting() || !disk.meter.is_ready(now, direction) {
            return false;
        }
        if let Some(group) = disk.group {
            let group = &mut self.groups[group as usize];
            let others_wait = group.rings.iter().any(|ring| !ring.is_empty());
            if others_wait || !group.meter.is_ready(now, direction) {
                return false;
            }
            group.meter.charge(now, direction, bytes);
        }
        disk.meter.charge(now, direction, bytes);
        true
    }

    /// The direction in which a disk's older request waits, of those that `may` go.
    fn older(
        &mut self,
        at: usize,
        mut may: impl FnMut(&mut Self, Direction) -> bool,
    ) -> Option<Direction> {
        let mut oldest: Option<(u64, Direction)> = None;
        for direction in Direction::ALL {
            let Some(arrival) = self.disks[at].oldest(direction) else { continue };
            if oldest.is_none_or(|(before, _)| arrival < before) && may(self, direction) {
                oldest = Some((arrival, direction));
            }
        }
        oldest.map(|(_, direction)| direction)
    }

    /// The disk of a group whose turn it is, and its direction.
    fn turn(&mut self, now: Instant, group: u32) -> (usize, Option<Direction>) {
        let mut first: Option<(u64, u32)> = None;
        for direction in Direction::ALL {
            let Group { meter, rings, .. } = &mut self.groups[group as usize];
            let front = self.rings.front(&rings[direction.index()]);
            let Some(front) = front.filter(|_| meter.is_ready(now, direction)) else { continue };
            first = Some(first.map_or(front, |before| before.min(front)));
        }
        let Some((_, lane)) = first else { return (0, None) };
        let disk = (lane >> 1) as usize;
        let direction = self.older(disk, |this, direction| {
            let meter = &mut this.groups[group as usize].meter;
            this.rings.holds(lane_of(disk, direction)) && meter.is_ready(now, direction)
        });
        (disk, direction)
    }

    /// Let a disk's oldest request in this direction go, and count it.
    fn release(&mut self, now: Instant, at: usize, direction: Direction) -> Option<u32> {
        let disk = &mut self.disks[at];
        let WaitingRequest { bytes, item, .. } = disk.lanes[direction.index()].pop_front()?;
        disk.meter.charge(now, direction, bytes);
        if let Some(group) = disk.group {
            self.groups[group as usize].meter.charge(now, direction, bytes);
            self.leave_rings(at); // and go to the back
        }
        self.settle(now, at);
        Some(item)
    }

    /// After anything that concerns a disk: its alarm, its places in the rings
    /// of its group, and the group's alarm.
    fn settle(&mut self, now: Instant, at: usize) {
        let disk = &mut self.disks[at];
        let mut wake: Option<Instant> = None;
        for direction in Direction::ALL {
            let (index, lane) = (direction.index(), lane_of(at, direction));
            let ring = disk.group.map(|group| &mut self.groups[group as usize].rings[index]);
            let some = !disk.lanes[index].is_empty();
            let ready_at = if some { disk.meter.ready_at(now, direction) } else { now };
            match ring {
                Some(ring) if some && ready_at <= now => {
                    if !self.rings.holds(lane) {
                        self.rings.push(ring, lane, self.turns);
                        self.turns += 1;
                    }
                    continue; // it waits for the group alone
                }
                Some(ring) => self.rings.remove(ring, lane),
                None => {}
            }
            if some {
                wake = Some(wake.map_or(ready_at, |before| before.min(ready_at)));
            }
        }
        self.alarms.set(Alarm::Disk(at).number(), wake);
        let waits = disk.has_waiting();
        match (disk.waiting_since, waits) {
            (None, true) => disk.waiting_since = Some(now),
            (Some(since), false) => {
                disk.waited += now.since(since);
                disk.waiting_since = None;
            }
            _ => {}
        }
        let groups = &self.groups;
        let group_limits = |group: u32| !groups[group as usize].meter.is_none();
        disk.limited = waits || !disk.meter.is_none() || disk.group.is_some_and(group_limits);
        if let Some(group) = disk.group {
            self.settle_group(now, group);
        }
    }

    /// The alarm of a group: when the first of its rings may go on.
    fn settle_group(&mut self, now: Instant, group: u32) {
        let Group { meter, rings, .. } = &mut self.groups[group as usize];
        let waiting = Direction::ALL.into_iter().filter(|d| !rings[d.index()].is_empty());
        let wake = waiting.map(|direction| meter.ready_at(now, direction)).min();
        self.alarms.set(Alarm::Group(group).number(), wake);
    }

    fn leave_rings(&mut self, at: usize) {
        let Some(group) = self.disks[at].group else { return };
        for direction in Direction::ALL {
            let ring = &mut self.groups[group as usize].rings[direction.index()];
            self.rings.remove(ring, lane_of(at, direction));
        }
    }

    /// The number of a group, which begins to be if it is not there.
    fn group(&mut self, name: &GroupName) -> u32 {
        if let Some(group) = self.names.get(name) {
            return *group;
        }
        let group = self.free.pop().unwrap_or_else(|| {
            self.groups.push(Group::default());
            self.groups.len() as u32 - 1
        });
        self.names.insert(name.clone(), group);
        group
    }

    /// Forget a group that has neither limits nor members.
    fn forget_unused(&mut self, group: u32) {
        let Group { meter, members, .. } = &self.groups[group as usize];
        if meter.is_none() && *members == 0 {
            self.names.retain(|_, number| *number != group);
            self.free.push(group);
        }
    }
}

// Leaky buckets in whole numbers: what a disk or a group has used of its
// rates, and when it may go on.
//
// A request may pass while no bucket that counts it is fuller than its size,
// and then adds all that it counts as (QEMU's rule). So whether a bucket is
// ready does not depend on the request, and one that is larger than the
// bucket passes too: those behind it wait the longer.
//
// Levels are billionths of an I/O or of a byte, so that a rate per second
// times nanoseconds is exact: nothing is rounded, and nothing adds up.

const NANOS_PER_S: u128 = 1_000_000_000;

/// Burst that passes at once after a quiet time, as time at the rate: a tenth of a second, as in
/// QEMU. A guest that sends its requests in batches, and a device whose speed varies, reach the
/// limit only with some room.
const ROOM_NS: u128 = 100_000_000;

/// A bucket that leaks at one rate.
#[derive(Clone, Debug)]
struct Leak {
    /// Units per second; billionths per nanosecond.
    per_s: u64,
    /// A request passes up to this level, in billionths.
    size: u128,
    /// Level at `leaked`.
    level: u128,
    leaked: Instant,
}

impl Leak {
    fn new(now: Instant, per_s: u64, size: u128) -> Leak {
        Leak { per_s, size, level: 0, leaked: now }
    }
    #[inline]
    fn leak(&mut self, now: Instant) {
        if now > self.leaked {
            let leaked = u128::from(self.per_s) * u128::from((now - self.leaked).get());
            self.level = self.level.saturating_sub(leaked);
            self.leaked = now;
        }
    }
    fn add(&mut self, billionths: u128) {
        self.level = self.level.saturating_add(billionths);
    }
    fn is_ready(&self) -> bool {
        self.level <= self.size
    }
    /// Time until it is ready, rounded up to a nanosecond.
    fn wait(&self) -> Nanos {
        let over = self.level.saturating_sub(self.size);
        // A division of 64 bits is several times faster than one of 128.
        Nanos::new(match u64::try_from(over) {
            Ok(over) => over.div_ceil(self.per_s),
            Err(_) => {
                let ns = over.div_ceil(u128::from(self.per_s));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        })
    }
    /// Be as full, in proportion, as `old` is, but in no debt.
    fn resume(&mut self, old: &Leak) {
        let used = old.level.min(old.size);
        // Sizes are below 2^80 (RATE_MAX billionths): a product with 2^20 fits.
        let share = (used << 20) / old.size.max(1);
        self.level = (self.size * share) >> 20;
    }
}

/// The state of one rate: a cache line where it has no burst.
#[derive(Clone, Debug)]
struct Bucket {
    /// The rate in the long run. Its size is what a burst adds to it.
    base: Leak,
    /// The rate of the burst.
    peak: Option<Box<Leak>>,
    unit: Unit,
    scope: Scope,
}

impl Bucket {
    fn new(now: Instant, unit: Unit, scope: Scope, rate: Rate) -> Bucket {
        let room = |per_s: u64| u128::from(per_s) * ROOM_NS;
        let mut size = room(rate.per_s);
        let mut peak = None;
        if let Some(burst) = rate.burst {
            // While requests come at the burst's rate, the bucket leaks too: with
            // this size it is full when the burst has lasted for its length.
            let above = u128::from(burst.per_s.saturating_sub(rate.per_s));
            size = size.max(above * u128::from(burst.length.get()));
            peak = Some(Box::new(Leak::new(now, burst.per_s, room(burst.per_s))));
        }
        Bucket { base: Leak::new(now, rate.per_s, size), peak, unit, scope }
    }

    #[inline]
    fn leak(&mut self, now: Instant) {
        self.base.leak(now);
        if let Some(peak) = &mut self.peak {
            peak.leak(now);
        }
    }

    fn is_ready(&self) -> bool {
        self.base.is_ready() && self.peak.as_ref().is_none_or(|peak| peak.is_ready())
    }

    fn wait(&self) -> Nanos {
        self.base.wait().max(self.peak.as_ref().map_or(Nanos::ZERO, |peak| peak.wait()))
    }

    fn resume(&mut self, old: &Bucket) {
        self.base.resume(&old.base);
        if let (Some(peak), Some(old)) = (&mut self.peak, &old.peak) {
            peak.resume(old);
        }
    }
}

/// The buckets of one disk or of one group.
#[derive(Clone, Default, Debug)]
struct Meter {
    /// For each rate that there is.
    buckets: Vec<Bucket>,
    io_size_bytes: Option<NonZeroU64>,
    /// The limits from which the buckets were made. Apart, because no request looks at them.
    limits: Box<Limits>,
}

impl Meter {
    /// Is no rate limited, so that there is no bucket?
    fn is_none(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Take other limits. A rate that was there before goes on as full as it
    /// was, so that a change gives nobody a new burst; one that was in debt is
    /// in none, so that a new rate holds from now on.
    fn set(&mut self, now: Instant, limits: &Limits) {
        if *self.limits == *limits {
            return;
        }
        let mut old = std::mem::take(&mut self.buckets);
        old.iter_mut().for_each(|b| b.leak(now));
        for unit in Unit::ALL {
            for scope in Scope::ALL {
                let Some(rate) = limits.rate(unit, scope) else { continue };
                let mut bucket = Bucket::new(now, unit, scope, rate);
                if let Some(old) = old.iter().find(|b| (b.unit, b.scope) == (unit, scope)) {
                    bucket.resume(old);
                }
                self.buckets.push(bucket);
            }
        }
        self.io_size_bytes = limits.io_size_bytes;
        *self.limits = *limits;
    }

    /// May a request in this direction pass now?
    #[inline]
    fn is_ready(&mut self, now: Instant, direction: Direction) -> bool {
        self.buckets.iter_mut().filter(|b| b.scope.counts(direction)).all(|bucket| {
            bucket.leak(now);
            bucket.is_ready()
        })
    }

    /// When a request in this direction may pass, if nothing passes before.
    fn ready_at(&mut self, now: Instant, direction: Direction) -> Instant {
        let counting = self.buckets.iter_mut().filter(|b| b.scope.counts(direction));
        let wait = counting.map(|bucket| {
            bucket.leak(now);
            bucket.wait()
        });
        now + wait.max().unwrap_or(Nanos::ZERO)
    }

    /// Count a request that passes.
    #[inline]
    fn charge(&mut self, now: Instant, direction: Direction, bytes: u64) {
        let ios = ios(self.io_size_bytes, bytes);
        for bucket in self.buckets.iter_mut().filter(|b| b.scope.counts(direction)) {
            bucket.leak(now);
            let units = match bucket.unit {
                Unit::Iops => ios,
                Unit::Bytes => bytes,
            };
            let billionths = u128::from(units) * NANOS_PER_S;
            bucket.base.add(billionths);
            if let Some(peak) = &mut bucket.peak {
                peak.add(billionths);
            }
        }
    }
}

// In which order what waits goes on: alarms by time, and rings in which the
// disks of a group take turns. Both are plain tables by number, which grow
// with the highest number and allocate nothing after that.

/// Times by number, the earliest first; the lower number first among equal times.
type Alarms = KeyedHeap<Instant>;

/// A ring of lanes, the one whose turn is next in front. A lane has the place in it that a
/// request of its number would have.
type Ring = ExpiryQueue;

/// State that all rings share; a lane is in one ring at most.
#[derive(Default, Debug)]
struct Rings {
    links: Links,
    /// By lane: when it joined its ring, among all; `None` while it is in none.
    turns: Vec<Option<u64>>,
}

impl Rings {
    /// Is the lane in a ring?
    fn holds(&self, lane: u32) -> bool {
        self.turns.get(lane as usize).is_some_and(Option::is_some)
    }

    /// The lane whose turn it is, with when it joined.
    fn front(&self, ring: &Ring) -> Option<(u64, u32)> {
        let lane = ring.head()?.slot();
        Some((self.turns[lane]?, lane as u32))
    }

    /// Let a lane join at the back; it is in no ring.
    fn push(&mut self, ring: &mut Ring, lane: u32, turn: u64) {
        let index = lane as usize;
        if index >= self.turns.len() {
            self.turns.resize(index + 1, None);
        }
        debug_assert!(self.turns[index].is_none(), "lane {lane} is in a ring");
        self.turns[index] = Some(turn);
        ring.push(&mut self.links, RequestId::new(lane));
    }

    /// Take a lane out of its ring, if it is in one.
    fn remove(&mut self, ring: &mut Ring, lane: u32) {
        if self.turns.get_mut(lane as usize).is_some_and(|turn| turn.take().is_some()) {
            ring.remove(&mut self.links, RequestId::new(lane));
        }
    }
}

// A limit: rates, bursts and the size of one I/O, checked when they are made.
// `LimitsDraft` is the way to make them.

/// Highest rate or burst, per second, and highest product of a burst and its
/// length in seconds (QEMU's `THROTTLE_VALUE_MAX`).
pub const RATE_MAX: u64 = 1_000_000_000_000_000;

/// Shortest and longest burst.
pub const BURST_LENGTH_MIN: Nanos = Nanos::from_millis(1);

/// Longest burst: as long as any parameter that is a duration.
pub const BURST_LENGTH_MAX: Nanos = seekway_core::params::DURATION_MAX;

/// Length of a burst where none is given (as in QEMU and libvirt).
pub const BURST_LENGTH_DEFAULT: Nanos = Nanos::from_secs(1);

/// Least and highest target of latency.
pub const LATENCY_MIN: Nanos = Nanos::from_micros(1);

/// Highest target of latency: a minute.
pub const LATENCY_MAX: Nanos = Nanos::from_secs(60);

/// Longest name of a group, in bytes.
pub const GROUP_NAME_BYTES_MAX: usize = 64;

/// Which requests a rate counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// Reads and writes together.
    Total,
    /// Reads alone; flushes are counted nowhere.
    Read,
    /// Writes, discards and write-zeroes alone.
    Write,
}

/// Unit in which a rate counts a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unit {
    /// I/O operations; see [`Limits::ios`].
    Iops,
    /// Bytes of its extent, also for discards and write-zeroes.
    Bytes,
}

/// The direction of a request, as limits see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// From the disk to the guest.
    Read,
    /// To the disk: writes, discards and write-zeroes.
    Write,
}

impl Direction {
    /// Both, in the order of [`Direction::index`].
    pub const ALL: [Direction; 2] = [Direction::Read, Direction::Write];

    /// The direction of an operation; `None` for a flush, which is never limited.
    /// Discards and write-zeroes are writes, as for QEMU's throttle filter.
    pub const fn of(op: Op) -> Option<Direction> {
        match op {
            Op::Read => Some(Direction::Read),
            Op::Write | Op::Discard | Op::WriteZeroes => Some(Direction::Write),
            Op::Flush => None,
        }
    }
    /// 0 for reads, 1 for writes.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl Scope {
    /// All, in the order of output.
    pub const ALL: [Scope; 3] = [Scope::Total, Scope::Read, Scope::Write];

    /// Does a request in this direction count?
    pub const fn counts(self, direction: Direction) -> bool {
        match self {
            Scope::Total => true,
            Scope::Read => matches!(direction, Direction::Read),
            Scope::Write => matches!(direction, Direction::Write),
        }
    }
}

impl Unit {
    /// All, in the order of output.
    pub const ALL: [Unit; 2] = [Unit::Iops, Unit::Bytes];
}

/// A rate, and the higher one that holds for a while after a quiet time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Units per second in the long run, 1 to [`RATE_MAX`].
    pub per_s: u64,
    /// The burst, if there is one.
    pub burst: Option<Burst>,
}

/// A higher rate for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// Units per second, from the rate's own to [`RATE_MAX`].
    pub per_s: u64,
    /// Time for which it holds when the disk was idle before.
    pub length: Nanos,
}

/// Rates that a disk or a group may have at most, and rates that it is to have at least. Free of
/// contradictions: see [`LimitsDraft::finish`]. The default has
/// neither.
///
/// The limiter keeps the rates; a policy is told the service-level targets.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    rates: [[Option<Rate>; 3]; 2],
    io_size_bytes: Option<NonZeroU64>,
    /// Rate that a disk is to have at least; a group has none.
    pub reserve: Reserve,
    /// The time within which 99 of 100 requests of a disk are to be done.
    pub latency: Option<Nanos>,
    /// A group's share, relative to those of other groups and of disks without a group; its
    /// disks divide it by their own weights. Without it each disk has a share of its own.
    pub weight: Option<NonZeroU32>,
}

impl Limits {
    /// There is neither a limit nor a promise.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }
    /// No rate is limited.
    pub fn is_unlimited(&self) -> bool {
        self.rates.iter().flatten().all(Option::is_none)
    }
    /// Service-level targets given here beside rates, each with the key by which an operator asks
    /// for it.
    pub fn promises(&self) -> impl Iterator<Item = (Promise, &'static str)> {
        let all = [
            (self.reserve.iops > 0, Promise::Iops, "reserve_iops"),
            (self.reserve.bytes_per_s > 0, Promise::Bandwidth, "reserve_bandwidth"),
            (self.latency.is_some(), Promise::Latency, "latency"),
            (self.weight.is_some(), Promise::Group, "weight"),
        ];
        all.into_iter().filter(|(is_given, ..)| *is_given).map(|(_, promise, key)| (promise, key))
    }
    /// The rate for these requests, if they have one.
    pub fn rate(&self, unit: Unit, scope: Scope) -> Option<Rate> {
        self.rates[unit as usize][scope as usize]
    }
    /// Bytes up to which a request counts as one I/O; `None` where each
    /// request counts as one whatever its size.
    pub fn io_size_bytes(&self) -> Option<NonZeroU64> {
        self.io_size_bytes
    }
    /// Number of I/Os that a request of this size counts as, at least one. A part of an I/O counts
    /// whole; QEMU counts it in part.
    pub fn ios(&self, bytes: u64) -> u64 {
        ios(self.io_size_bytes, bytes)
    }
}

/// I/Os that `bytes` count as: see [`Limits::ios`].
fn ios(io_size_bytes: Option<NonZeroU64>, bytes: u64) -> u64 {
    match io_size_bytes {
        Some(size) if bytes > size.get() => bytes.div_ceil(size.get()),
        _ => 1,
    }
}

/// The name of a group of disks that share limits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupName(Box<str>);

impl GroupName {
    /// A group's name: letters, digits, `_`, `-` and `.`, the last two not at the
    /// front, at most [`GROUP_NAME_BYTES_MAX`].
    ///
    /// # Errors
    /// For the operator: the characters that a name may have.
    pub fn new(name: &str) -> Result<GroupName, ParamError> {
        let good = name.len() <= GROUP_NAME_BYTES_MAX
            && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if good {
            return Ok(GroupName(name.into()));
        }
        let shown: String = name.escape_debug().take(2 * GROUP_NAME_BYTES_MAX).collect();
        Err(ParamError::new(format!(
            "'{shown}' cannot be a group's name: letters, digits, '_', '-' and '.' (the last two \
             not at the front), at most {GROUP_NAME_BYTES_MAX}"
        )))
    }
    /// The name as [`GroupName::new`] took it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Limits of a disk: its own, a group's, or both. The default is neither.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct DiskLimits {
    /// The disk's own limits.
    pub limits: Limits,
    /// The group whose limits hold as well.
    pub group: Option<GroupName>,
}

impl DiskLimits {
    /// The disk has neither limits nor a group.
    pub fn is_none(&self) -> bool {
        self.limits.is_none() && self.group.is_none()
    }
}

#[cfg(test)]
mod bucket_tests {
    use super::*;

    const READ: Direction = Direction::Read;

    fn meter(text: &str) -> Meter {
        let mut meter = Meter::default();
        meter.set(Instant::ZERO, &Limits::parse(text).unwrap());
        meter
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    #[test]
    fn a_tenth_of_a_second_passes_at_once() {
        let mut m = meter("iops=100");
        for _ in 0..11 {
            assert!(m.is_ready(at(0), READ));
            m.charge(at(0), READ, 4096);
        }
        assert!(!m.is_ready(at(0), READ));
        assert_eq!(m.ready_at(at(0), READ), at(10));
        assert!(!m.is_ready(Instant::from_nanos(9_999_999), READ) && m.is_ready(at(10), READ));
    }

    #[test]
    fn what_is_larger_than_the_bucket_passes_and_is_paid_back() {
        let mut m = meter("bandwidth=1000");
        assert!(m.is_ready(at(0), READ));
        m.charge(at(0), READ, 10_100);
        assert_eq!(m.ready_at(at(0), READ), at(10_000));
    }

    #[test]
    fn waits_are_exact_where_rates_do_not_divide_a_second() {
        let mut m = meter("iops=7");
        let (mut now, mut passed) = (at(0), 0);
        while now < at(1_000_000) {
            m.charge(now, READ, 0);
            passed += 1;
            now = m.ready_at(now, READ);
        }
        // A thousand seconds at 7 per second, and the 0.7 that may pass at once.
        assert_eq!(passed, 7_001);
    }

    #[test]
    fn directions_count_apart_and_sizes_in_parts() {
        let mut m = meter("read_iops=1,bandwidth=1TiB,iops_size=4KiB");
        m.charge(at(0), READ, 8193);
        assert!(m.is_ready(at(0), Direction::Write));
        assert_eq!(m.ready_at(at(0), READ), at(2_900));
    }

    #[test]
    fn a_change_keeps_the_share_that_was_used() {
        let mut m = meter("iops=100");
        m.charge(at(0), READ, 0);
        for _ in 0..100 {
            m.charge(at(0), READ, 0); // deep in debt
        }
        m.set(at(0), &Limits::parse("iops=10").unwrap());
        assert!(m.is_ready(at(0), READ)); // full, but in no debt
        m.charge(at(0), READ, 0);
        assert_eq!(m.ready_at(at(0), READ), at(100));
        // A quiet disk has its whole burst at once.
        let mut m = meter("iops=100");
        m.set(at(0), &Limits::parse("iops=100,iops_burst=1000,burst_length=60s").unwrap());
        assert_eq!((m.buckets[0].base.level, m.buckets[0].peak.as_ref().unwrap().level), (0, 0));
        m.set(at(0), &Limits::default());
        assert!(m.is_none());
    }

    #[test]
    fn no_number_is_too_large() {
        let mut m = meter("bandwidth=1000000000000000,iops=1,iops_size=1");
        for _ in 0..1000 {
            m.charge(at(0), READ, u64::MAX);
        }
        assert_eq!(m.ready_at(at(0), READ), Instant::from_nanos(u64::MAX));
        assert!(!m.is_ready(Instant::from_nanos(u64::MAX), READ));
        m.set(at(0), &Limits::parse("bandwidth=1").unwrap());
        assert!(m.is_ready(at(0), READ));
    }
}

#[cfg(test)]
mod order_tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, VecDeque};

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn alarms_are_a_sorted_set(steps in prop::collection::vec((0u32..20, prop::option::of(0u64..50)), 0..200)) {
            let mut alarms = Alarms::default();
            let mut sorted: BTreeSet<(Instant, u32)> = BTreeSet::new();
            for (number, at) in steps {
                let at = at.map(Instant::from_nanos);
                alarms.set(number, at);
                sorted.retain(|(_, n)| *n != number);
                sorted.extend(at.map(|at| (at, number)));
                prop_assert_eq!(alarms.first(), sorted.first().copied());
            }
        }

        #[test]
        fn rings_are_queues(steps in prop::collection::vec((0u32..6, 0usize..2), 0..200)) {
            let (mut rings, mut ring) = (Rings::default(), [Ring::default(); 2]);
            let mut queues = [VecDeque::new(), VecDeque::new()];
            for (turn, (lane, at)) in steps.into_iter().enumerate() {
                match queues.iter().position(|q: &VecDeque<(u64, u32)>| q.iter().any(|(_, l)| *l == lane)) {
                    Some(at) => {
                        rings.remove(&mut ring[at], lane);
                        queues[at].retain(|(_, l)| *l != lane);
                    }
                    None => {
                        rings.push(&mut ring[at], lane, turn as u64);
                        queues[at].push_back((turn as u64, lane));
                    }
                }
                for at in 0..2 {
                    prop_assert_eq!(rings.front(&ring[at]), queues[at].front().copied());
                    prop_assert_eq!(ring[at].is_empty(), queues[at].is_empty());
                }
            }
        }
    }
}
