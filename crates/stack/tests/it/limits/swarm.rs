//! Random inputs to the limiter and to the naive model of it: requests of all
//! sizes, limits and groups that change, disks that come and go. Both let the
//! same requests go at the same nanosecond and in the same order, and nothing
//! may go a nanosecond earlier.

use super::vm;
use proptest::prelude::*;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::limit::{Direction, GroupName, Limiter, Limits, Rate, Scope, Unit};
use std::collections::BTreeMap;

const DISKS: usize = 4;

const LIMITS: [&str; 10] = [
    "none",
    "none",
    "iops=1000",
    "iops=7",
    "bandwidth=1MiB",
    "read_iops=50,write_iops=3",
    "write_bandwidth=64KiB",
    "iops=100,iops_burst=1000,burst_length=500ms,iops_size=16KiB",
    "iops=333,write_bandwidth=100KiB,write_bandwidth_burst=1MiB,burst_length=20ms",
    "read_iops=20,read_iops_burst=20,bandwidth=3MiB",
];

/// One event: kind, disk, time after the one before, and a number to derive the rest from.
type Step = (u8, usize, u64, u32);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gap_us = prop::sample::select(vec![0, 0, 0, 10, 1_000, 20_000, 1_000_000]);
    prop::collection::vec((0u8..40, 0..DISKS, gap_us, any::<u32>()), 0..200)
}

struct Swarm {
    limiter: Limiter,
    naive: Naive,
    now: Instant,
    groups: Vec<Option<GroupName>>,
    items: u32,
    waited: [Nanos; DISKS],
}

impl Swarm {
    fn new() -> Swarm {
        Swarm {
            limiter: Limiter::new(),
            naive: Naive::new(DISKS),
            now: Instant::ZERO,
            groups: vec![None; DISKS],
            items: 0,
            waited: [Nanos::ZERO; DISKS],
        }
    }

    /// Time passes without inputs.
    fn pass_time(&mut self, until: Instant) {
        while let Some(wake) = self.limiter.next_wake().filter(|at| *at <= until) {
            assert!(wake > self.now, "{wake}: something could have gone before");
            let mut before = self.naive.clone();
            before.pass_time(Instant::from_nanos(wake.as_nanos() - 1));
            assert_eq!(before.poll(), BTreeMap::new(), "waits longer than it has to");
            self.go_to(wake);
            self.poll(None);
        }
        self.go_to(until);
        assert_eq!((self.naive.clone().poll(), self.limiter.next(until)), (BTreeMap::new(), None));
    }

    fn go_to(&mut self, now: Instant) {
        for at in 0..DISKS {
            if !self.naive.waiting(at).is_empty() {
                self.waited[at] += now.since(self.now);
            }
        }
        self.now = now;
        self.naive.pass_time(now);
    }

    /// Let go what may go; `passed` went already, on this disk.
    fn poll(&mut self, passed: Option<(usize, u32)>) {
        let owner: BTreeMap<u32, usize> = (0..DISKS)
            .flat_map(|at| self.naive.waiting(at).into_iter().map(move |item| (item, at)))
            .collect();
        let mut out: BTreeMap<Way, Vec<u32>> = BTreeMap::new();
        let later =
            std::iter::from_fn(|| self.limiter.next(self.now)).map(|item| (owner[&item], item));
        for (at, item) in passed.into_iter().chain(later) {
            let way = self.groups[at].clone().map_or(Way::Disk(at), Way::Group);
            out.entry(way).or_default().push(item);
        }
        assert_eq!(out, self.naive.poll(), "at {}", self.now);
        for at in 0..DISKS {
            assert_eq!(self.limiter.waiting(vm(at as u16)), self.naive.waiting(at).len());
            assert_eq!(self.limiter.waited(self.now, vm(at as u16)), self.waited[at]);
        }
    }

    fn step(&mut self, (what, at, gap_us, number): Step) {
        self.pass_time(self.now + Nanos::from_micros(gap_us));
        let names = ["a", "b"].map(|name| GroupName::new(name).unwrap());
        let limits = Limits::parse(LIMITS[number as usize % LIMITS.len()]).unwrap();
        let id = vm(at as u16);
        match what {
            0..=2 => {
                let group = names.get(number as usize / LIMITS.len() % 4).cloned();
                self.limiter.set_disk(self.now, id, &limits, group.as_ref());
                self.naive.set_disk(at, &limits, group.as_ref());
                self.groups[at] = group;
            }
            3 => {
                let name = &names[number as usize / LIMITS.len() % 2];
                self.limiter.set_group(self.now, name, &limits);
                self.naive.set_group(name, &limits);
            }
            4 if number % 4 == 0 => {
                let mut items = Vec::new();
                self.limiter.remove(self.now, id, &mut items);
                assert_eq!(items, self.naive.remove(at));
                (self.groups[at], self.waited[at]) = (None, Nanos::ZERO);
            }
            5 => {
                let waiting = self.naive.waiting(at);
                let item = waiting.get(number as usize % waiting.len().max(1));
                let item = item.copied().unwrap_or(u32::MAX);
                let taken = self.limiter.withdraw(self.now, id, item);
                assert_eq!(taken, self.naive.withdraw(at, item));
            }
            _ => {
                let direction = Direction::ALL[number as usize % 2];
                let bytes = [512, 4096, 65_536, 1 << 20, 100 << 20][number as usize / 2 % 5];
                self.items += 1;
                self.naive.submit(at, direction, bytes, self.items);
                let passed = self.limiter.submit(self.now, id, direction, bytes, self.items);
                return self.poll(passed.then_some((at, self.items)));
            }
        }
        self.poll(None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_limiter_does_what_the_model_does(steps in steps()) {
        let mut swarm = Swarm::new();
        steps.into_iter().for_each(|step| swarm.step(step));
        swarm.pass_time(swarm.now + Nanos::from_secs(2_000));
    }
}

// A limiter that looks at everything at every step: no alarms, no rings, no
// way past the queues. What goes when is written down as the module's
// documentation states it.

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
