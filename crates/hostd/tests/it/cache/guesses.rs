//! Prefetchers for tests: one that guesses wildly, one that reads on.

use crate::common::{Client, Rig, RigSetup, cache};
use seekway_core::params::ParamError;
use seekway_core::prefetcher::{Access, Prefetcher, Proposal};
use seekway_core::request::{Extent, VmId};
use seekway_core::units::{Instant, Lba, Sectors};
use seekway_hostd::reactor::{DiskCache, Message, Status};
use seekway_policy::prefetchers;
use seekway_workload::rng::Rng;
use std::collections::{BTreeMap, VecDeque};

pub const MIB: u64 = 1 << 20;

/// After each read it guesses a few places of any disk.
pub struct Wild {
    random: Rng,
    disks: BTreeMap<VmId, u64>,
    left: u64,
}

impl Wild {
    pub fn new(seed: u64) -> Box<Wild> {
        Box::new(Wild { random: Rng::new(seed), disks: BTreeMap::new(), left: 0 })
    }
}

impl Prefetcher for Wild {
    fn attach(&mut self, _: Instant, vm: VmId, capacity: Sectors) {
        self.disks.insert(vm, capacity.get());
    }
    fn detach(&mut self, vm: VmId) {
        self.disks.remove(&vm);
    }
    fn accessed(&mut self, _: Instant, _: &Access) {
        self.left = (self.left + self.random.below(4)).min(64);
    }
    fn propose(&mut self, _: Instant, _: Sectors) -> Option<Proposal> {
        let (&vm, &capacity) =
            self.disks.iter().nth(self.random.below(self.disks.len().max(1) as u64) as usize)?;
        self.left = self.left.checked_sub(1)?;
        let start = self.random.below(capacity);
        let len = 1 + self.random.below(300.min(capacity - start));
        let extent = Extent::new(Lba::new(start), Sectors::new(len))?;
        Some(Proposal { vm, tag: None, extent })
    }
}

/// A prefetcher that wants this number of sectors after each read.
pub struct ReadOn {
    sectors: u64,
    disks: BTreeMap<VmId, u64>,
    next: VecDeque<Proposal>,
}

impl ReadOn {
    pub fn new(bytes: u64) -> Box<ReadOn> {
        Box::new(ReadOn { sectors: bytes / 512, disks: BTreeMap::new(), next: VecDeque::new() })
    }
}

impl Prefetcher for ReadOn {
    fn attach(&mut self, _: Instant, vm: VmId, capacity: Sectors) {
        self.disks.insert(vm, capacity.get());
    }
    fn detach(&mut self, vm: VmId) {
        self.disks.remove(&vm);
        self.next.retain(|p| p.vm != vm);
    }
    fn accessed(&mut self, _: Instant, access: &Access) {
        let (start, capacity) = (access.extent.end(), self.disks[&access.vm]);
        let len = self.sectors.min(capacity.saturating_sub(start.get()));
        if let Some(extent) = Extent::new(start, Sectors::new(len)) {
            self.next.push_back(Proposal { vm: access.vm, tag: access.tag, extent });
        }
    }
    fn propose(&mut self, _: Instant, _: Sectors) -> Option<Proposal> {
        self.next.pop_front()
    }
}

/// After the first read it wants these extents, in bytes, and nothing else ever.
pub struct Wants(pub Vec<(u64, u64)>, Option<VmId>);

impl Wants {
    pub fn new(extents: &[(u64, u64)]) -> Box<Wants> {
        Box::new(Wants(extents.iter().rev().copied().collect(), None))
    }
}

impl Prefetcher for Wants {
    fn attach(&mut self, _: Instant, _: VmId, _: Sectors) {}
    fn detach(&mut self, _: VmId) {}
    fn accessed(&mut self, _: Instant, access: &Access) {
        self.1 = Some(access.vm);
    }
    fn propose(&mut self, _: Instant, _: Sectors) -> Option<Proposal> {
        let vm = self.1?;
        let (start, len) = self.0.pop()?;
        let extent = Extent::new(Lba::new(start / 512), Sectors::new(len / 512))?;
        Some(Proposal { vm, tag: None, extent })
    }
}

/// A reactor with a cache of `bytes`.
pub fn rig(bytes: u64) -> Rig {
    Rig::start(RigSetup { cache: cache(bytes), ..RigSetup::default() })
}

/// Read ahead by this from now on.
pub fn prefetch(rig: &Rig, by: Box<dyn Prefetcher>) {
    prefetch_as(rig, "test", by);
}

/// As [`prefetch`], with a specification that [`build`] knows, for journals.
pub fn prefetch_named(rig: &Rig, spec: &str) {
    prefetch_as(rig, spec, build(spec).unwrap());
}

/// `wild:SEED` or `ahead:BYTES`, and what is registered.
pub fn build(spec: &str) -> Result<Box<dyn Prefetcher>, ParamError> {
    let number = |text: &str| text.parse().expect("a number");
    match spec.split_once(':') {
        Some(("wild", seed)) => Ok(Wild::new(number(seed))),
        Some(("ahead", bytes)) => Ok(ReadOn::new(number(bytes))),
        _ => prefetchers::build(spec),
    }
}

fn prefetch_as(rig: &Rig, spec: &str, by: Box<dyn Prefetcher>) {
    let message = |reply| Message::SetPrefetcher(spec.into(), by, reply);
    rig.handle.ask(message).expect("the reactor lives").expect("it has a cache");
}

/// Bytes that the device has read.
pub fn device_read(status: &Status) -> u64 {
    status.cache.as_ref().expect("there is a cache").device_read_bytes
}

/// The only disk's use of the cache.
pub fn of_disk(status: &Status) -> &DiskCache {
    status.disks[0].cache.as_ref().expect("the disk is cached")
}

/// Wait until nothing is under way any more, prefetches included.
pub fn quiet(rig: &Rig, client: &Client) -> Status {
    loop {
        // A request's way through the reactor is a turn of its loop.
        client.do_one(crate::common::Ask::flush());
        let status = rig.status();
        if status.outstanding == 0 && status.cache.as_ref().is_none_or(|c| c.fetching == 0) {
            return status;
        }
    }
}
