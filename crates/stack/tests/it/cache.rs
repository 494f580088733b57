//! The host cache, driven as an engine drives it: no read returns what was
//! overwritten before it began or what is another VM's, no frame is used
//! twice, the bound and the shares hold, and the figures add up.
//! `PROPTEST_CASES=20000` looks longer.

#![allow(clippy::disallowed_macros)] // tests print what they measure

mod blocks;
mod coherence;
mod replacement;

use seekway_core::prefetcher::{Access, Prefetcher, Proposal};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Lba, Sectors};
use seekway_stack::cache::{BLOCK_SECTORS, Config, HostCache};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

// Prefetchers for tests.

pub fn extent(start: u64, len: u64) -> Extent {
    Extent::new(Lba::new(start), Sectors::new(len)).unwrap()
}

/// Proposals of a test for its prefetcher, and what that prefetcher was told.
#[derive(Default)]
pub struct Script {
    pub proposals: VecDeque<Proposal>,
    pub evicted: Vec<(VmId, Extent, bool)>,
    pub left: VecDeque<Extent>,
    pub asked: u64,
    /// Propose this for ever.
    pub always: Option<Proposal>,
}

/// Proposes what the test says. Checks what it is told itself.
#[derive(Default)]
pub struct Scripted {
    script: Arc<Mutex<Script>>,
    vms: BTreeMap<VmId, Sectors>,
}

impl Prefetcher for Scripted {
    fn attach(&mut self, _now: Instant, vm: VmId, capacity: Sectors) {
        self.vms.insert(vm, capacity);
    }
    fn detach(&mut self, vm: VmId) {
        assert!(self.vms.remove(&vm).is_some(), "{vm:?} was attached");
    }
    fn accessed(&mut self, _now: Instant, access: &Access) {
        assert!(self.vms.contains_key(&access.vm));
        assert!(access.missed + access.late <= access.extent.len(), "{access:?}");
    }
    fn evicted(&mut self, _now: Instant, vm: VmId, extent: Extent, used: bool) {
        let capacity = *self.vms.get(&vm).expect("told only of VMs that are there");
        assert!(extent.end().get() <= capacity.get(), "{extent} lies past the disk's end");
        self.script.lock().unwrap().evicted.push((vm, extent, used));
    }
    fn propose(&mut self, _now: Instant, _room: Sectors) -> Option<Proposal> {
        let mut script = self.script.lock().unwrap();
        script.asked += 1;
        script.proposals.pop_front().or(script.always)
    }
    fn left(&mut self, _now: Instant) -> Option<Extent> {
        self.script.lock().unwrap().left.pop_front()
    }
}

/// A cache of `blocks`, and what its prefetcher follows.
pub fn scripted(blocks: u64, unit: u64) -> (HostCache, Arc<Mutex<Script>>) {
    let script = Arc::new(Mutex::new(Script::default()));
    let prefetcher = Scripted { script: Arc::clone(&script), ..Scripted::default() };
    let bytes = blocks * BLOCK_SECTORS * 512;
    let config = Config { unit: Sectors::new(unit), seed: 1, ..Config::new(bytes) };
    (HostCache::with(config, Box::new(prefetcher)), script)
}

pub fn proposal(vm: VmId, tag: u16, start: u64, len: u64) -> Proposal {
    Proposal { vm, tag: ProcessTag::new(tag), extent: extent(start, len) }
}
