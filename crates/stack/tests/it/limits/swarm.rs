//! Random inputs to the limiter and to the naive model of it: requests of all
//! sizes, limits and groups that change, disks that come and go. Both let the
//! same requests go at the same nanosecond and in the same order, and nothing
//! may go a nanosecond earlier.

use super::load::vm;
use super::naive::{Naive, Way};
use proptest::prelude::*;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::limit::{Direction, GroupName, Limiter, Limits};
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
