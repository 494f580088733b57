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

mod bucket;
mod order;
mod spec;
mod text;

pub use spec::{
    BURST_LENGTH_DEFAULT, BURST_LENGTH_MAX, BURST_LENGTH_MIN, Burst, Direction, DiskLimits,
    GROUP_NAME_BYTES_MAX, GroupName, Limits, RATE_MAX, Rate, Scope, Unit,
};
pub use text::{KEYS_SHOWN, LimitsDraft, is_limit, new_group, parse_group};

use crate::dispatcher::VMS_MAX;
use bucket::Meter;
use order::{Alarms, Ring, Rings};
use seekway_core::request::VmId;
use seekway_core::units::{Instant, Nanos};
use std::collections::{BTreeMap, VecDeque};

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
    pub fn next(&mut self, now: Instant) -> Option<u32> {
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
