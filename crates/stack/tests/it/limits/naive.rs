//! A limiter that looks at everything at every step: no alarms, no rings, no
//! way past the queues. What goes when is written down as the module's
//! documentation states it.

use seekway_core::units::Instant;
use seekway_stack::stack::limit::{Direction, GroupName, Limits, Rate, Scope, Unit};
use std::collections::BTreeMap;

#[derive(Clone)]
struct Leak {
    per_s: u128,
    size: u128,
    level: u128,
}

impl Leak {
    fn resume(&mut self, old: &Leak) {
        self.level = (self.size * ((old.level.min(old.size) << 20) / old.size)) >> 20;
    }
}

#[derive(Clone, Default)]
struct Meter {
    limits: Limits,
    /// The rate in the long run and the burst's.
    leaks: BTreeMap<(Unit, Scope), Vec<Leak>>,
}

impl Meter {
    fn set(&mut self, limits: &Limits) {
        if *limits == self.limits {
            return;
        }
        let old = std::mem::take(&mut self.leaks);
        self.limits = *limits;
        for unit in Unit::ALL {
            for scope in Scope::ALL {
                let Some(Rate { per_s, burst }) = limits.rate(unit, scope) else { continue };
                let tenth = |per_s: u64| u128::from(per_s) * 100_000_000;
                let leak = |per_s: u64, size| Leak { per_s: per_s.into(), size, level: 0 };
                let mut leaks = vec![leak(per_s, tenth(per_s))];
                if let Some(b) = burst {
                    let whole = u128::from(b.per_s - per_s) * u128::from(b.length.get());
                    leaks[0].size = leaks[0].size.max(whole);
                    leaks.push(leak(b.per_s, tenth(b.per_s)));
                }
                for (new, old) in
                    leaks.iter_mut().zip(old.get(&(unit, scope)).into_iter().flatten())
                {
                    new.resume(old);
                }
                self.leaks.insert((unit, scope), leaks);
            }
        }
    }
    fn pass_time(&mut self, ns: u64) {
        for leak in self.leaks.values_mut().flatten() {
            leak.level = leak.level.saturating_sub(leak.per_s * u128::from(ns));
        }
    }
    fn ready(&self, direction: Direction) -> bool {
        let mut counting = self.leaks.iter().filter(|((_, scope), _)| scope.counts(direction));
        counting.all(|(_, leaks)| leaks.iter().all(|l| l.level <= l.size))
    }
    fn charge(&mut self, direction: Direction, bytes: u64) {
        for ((unit, scope), leaks) in &mut self.leaks {
            let units = if *unit == Unit::Bytes { bytes } else { self.limits.ios(bytes) };
            if scope.counts(direction) {
                leaks.iter_mut().for_each(|l| l.level += u128::from(units) * 1_000_000_000);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Waiting {
    direction: Direction,
    bytes: u64,
    item: u32,
}

#[derive(Clone, Default)]
struct Disk {
    meter: Meter,
    group: Option<GroupName>,
    /// In the order of arrival.
    queue: Vec<Waiting>,
    /// Since which turn each direction waits for the group alone.
    joined: [Option<u64>; 2],
}

impl Disk {
    fn oldest(&self, direction: Direction) -> Option<usize> {
        self.queue.iter().position(|w| w.direction == direction)
    }
}

/// The queue that an item went through: a group's, or a disk's own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Way {
    Disk(usize),
    Group(GroupName),
}

#[derive(Clone)]
pub struct Naive {
    now: Instant,
    disks: Vec<Disk>,
    groups: BTreeMap<GroupName, Meter>,
    turns: u64,
}

impl Naive {
    pub fn new(disks: usize) -> Naive {
        Naive {
            now: Instant::ZERO,
            disks: vec![Disk::default(); disks],
            groups: BTreeMap::new(),
            turns: 0,
        }
    }

    pub fn pass_time(&mut self, now: Instant) {
        let ns = now.since(self.now).get();
        self.now = now;
        self.disks.iter_mut().for_each(|d| d.meter.pass_time(ns));
        self.groups.values_mut().for_each(|g| g.pass_time(ns));
    }

    pub fn set_disk(&mut self, at: usize, limits: &Limits, group: Option<&GroupName>) {
        let disk = &mut self.disks[at];
        if disk.group.as_ref() != group {
            (disk.joined, disk.group) = ([None; 2], group.cloned());
        }
        disk.meter.set(limits);
        self.settle(at);
    }

    pub fn set_group(&mut self, name: &GroupName, limits: &Limits) {
        self.groups.entry(name.clone()).or_default().set(limits);
    }

    pub fn submit(&mut self, at: usize, direction: Direction, bytes: u64, item: u32) {
        self.disks[at].queue.push(Waiting { direction, bytes, item });
        self.settle(at);
    }

    pub fn remove(&mut self, at: usize) -> Vec<u32> {
        std::mem::take(&mut self.disks[at]).queue.iter().map(|w| w.item).collect()
    }

    pub fn withdraw(&mut self, at: usize, item: u32) -> bool {
        let before = self.disks[at].queue.len();
        self.disks[at].queue.retain(|w| w.item != item);
        self.settle(at);
        self.disks[at].queue.len() < before
    }

    pub fn waiting(&self, at: usize) -> Vec<u32> {
        self.disks[at].queue.iter().map(|w| w.item).collect()
    }

    /// All that may go now, by the way that it goes.
    pub fn poll(&mut self) -> BTreeMap<Way, Vec<u32>> {
        let mut out: BTreeMap<Way, Vec<u32>> = BTreeMap::new();
        for at in 0..self.disks.len() {
            self.settle(at);
            while self.disks[at].group.is_none() {
                let ready = |d: &Direction| self.disks[at].meter.ready(*d);
                let Some(place) = self.oldest(at, ready) else { break };
                let item = self.release(at, place);
                out.entry(Way::Disk(at)).or_default().push(item);
            }
        }
        let names: Vec<GroupName> = self.groups.keys().cloned().collect();
        for name in names {
            while let Some(at) = self.turn(&name) {
                let may = |d: &Direction| {
                    self.disks[at].joined[d.index()].is_some() && self.groups[&name].ready(*d)
                };
                let place = self.oldest(at, may).unwrap();
                let item = self.release(at, place);
                out.entry(Way::Group(name.clone())).or_default().push(item);
            }
        }
        out
    }

    /// The place of the older of a disk's oldest read and write, of those that may go.
    fn oldest(&self, at: usize, may: impl Fn(&Direction) -> bool) -> Option<usize> {
        let directions = Direction::ALL.into_iter().filter(may);
        directions.filter_map(|d| self.disks[at].oldest(d)).min()
    }

    /// The member of a group that has waited for its turn the longest.
    fn turn(&self, name: &GroupName) -> Option<usize> {
        let members = self.disks.iter().enumerate().filter(|(_, d)| d.group.as_ref() == Some(name));
        let turns = members.flat_map(|(at, disk)| {
            let ready = Direction::ALL.into_iter().filter(|d| self.groups[name].ready(*d));
            ready.filter_map(move |d| Some((disk.joined[d.index()]?, at)))
        });
        turns.min().map(|(_, at)| at)
    }

    fn release(&mut self, at: usize, place: usize) -> u32 {
        let disk = &mut self.disks[at];
        let Waiting { direction, bytes, item } = disk.queue.remove(place);
        disk.meter.charge(direction, bytes);
        disk.joined = [None; 2];
        if let Some(name) = disk.group.clone() {
            self.groups.entry(name).or_default().charge(direction, bytes);
        }
        self.settle(at);
        item
    }

    fn settle(&mut self, at: usize) {
        let disk = &mut self.disks[at];
        if let Some(name) = &disk.group {
            self.groups.entry(name.clone()).or_default();
        }
        for direction in Direction::ALL {
            let waits = disk.group.is_some()
                && disk.oldest(direction).is_some()
                && disk.meter.ready(direction);
            let joined = &mut disk.joined[direction.index()];
            if !waits {
                *joined = None;
            } else if joined.is_none() {
                *joined = Some(self.turns);
                self.turns += 1;
            }
        }
    }
}
