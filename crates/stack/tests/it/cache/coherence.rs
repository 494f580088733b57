//! Random guests over a device whose every sector says which write made it.

use super::{Script, extent, proposal, scripted};
use proptest::prelude::*;
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_stack::cache::{BLOCK_BYTES, FetchId, HostCache, Piece, Usage};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

const VMS: u16 = 3;

const BLOCK: usize = 8;

/// Content of a sector: of which disk, by which write.
type Sector = Option<(usize, u64)>;

struct Disk {
    sectors: Vec<Sector>,
    /// The last write of each sector that is done.
    done: Vec<u64>,
    resizes: u32,
}

struct Read {
    disk: usize,
    resizes: u32,
    extent: Extent,
    /// The writes that were done when it began.
    floor: Vec<u64>,
    got: Vec<bool>,
}

/// An operation under way, with what the device has read of it until now.
enum Op {
    Fetch { id: FetchId, disk: usize, waiting: bool, data: Option<Vec<Sector>> },
    Direct { token: u64, disk: usize, extent: Extent, data: Option<Vec<Sector>> },
    Write { vm: VmId, disk: usize, extent: Extent, made: Option<u64> },
}

/// One event: what, which VM, and numbers to derive the rest from.
type Step = (u8, u16, u32, u32);

struct Engine {
    cache: HostCache,
    script: Arc<Mutex<Script>>,
    now: Instant,
    memory: Vec<[Sector; BLOCK]>,
    disks: Vec<Disk>,
    /// The disk of each VM that is attached.
    vms: [Option<usize>; VMS as usize],
    /// Reads of each since it was attached.
    asked: [u64; VMS as usize],
    /// The disk of each that has left.
    last: [Option<usize>; VMS as usize],
    ops: Vec<Op>,
    reads: BTreeMap<u64, Read>,
    writes: u64,
    tokens: u64,
}

impl Engine {
    fn new(blocks: u64, unit: u64) -> Engine {
        let (cache, script) = scripted(blocks, unit);
        Engine {
            cache,
            script,
            now: Instant::ZERO,
            memory: vec![[None; BLOCK]; blocks as usize],
            disks: Vec::new(),
            vms: [None; VMS as usize],
            asked: [0; VMS as usize],
            last: [None; VMS as usize],
            ops: Vec::new(),
            reads: BTreeMap::new(),
            writes: 0,
            tokens: 0,
        }
    }

    fn new_disk(&mut self, sectors: usize) -> usize {
        let disk = self.disks.len();
        self.disks.push(Disk { sectors: Vec::new(), done: Vec::new(), resizes: 0 });
        self.resize(disk, sectors);
        disk
    }

    fn resize(&mut self, disk: usize, sectors: usize) {
        self.writes += 1;
        let this = &mut self.disks[disk];
        this.sectors.resize(sectors, Some((disk, self.writes)));
        this.done.resize(sectors, self.writes);
        this.resizes += 1;
    }

    /// Content that the device reads there now; nothing past the end.
    fn look(&self, disk: usize, extent: Extent) -> Vec<Sector> {
        let sectors = extent.start().get()..extent.end().get();
        let sectors = sectors.map(|n| self.disks[disk].sectors.get(n as usize).copied().flatten());
        sectors.collect()
    }

    /// A read gets a part of its data.
    fn deliver(&mut self, token: u64, part: Extent, data: &[Sector]) {
        // Of a VM that left meanwhile.
        let Some(read) = self.reads.get_mut(&token) else { return };
        assert_eq!(data.len() as u64, part.len().get());
        for (sector, &data) in (part.start().get()..).zip(data) {
            let at = (sector - read.extent.start().get()) as usize;
            assert!(!std::mem::replace(&mut read.got[at], true), "sector {sector} came twice");
            match data {
                Some((disk, made)) => {
                    assert_eq!(disk, read.disk, "sector {sector} is another VM's");
                    assert!(made >= read.floor[at], "sector {sector} is of write {made}, stale");
                }
                None => assert!(
                    read.resizes != self.disks[read.disk].resizes,
                    "sector {sector} was never read from the device"
                ),
            }
        }
        if read.got.iter().all(|&got| got) {
            self.reads.remove(&token);
        }
    }

    fn read(&mut self, vm: VmId, disk: usize, extent: Extent, tag: Option<ProcessTag>) {
        let range = extent.start().get() as usize..extent.end().get() as usize;
        let (token, resizes) = (self.tokens, self.disks[disk].resizes);
        let (floor, got) =
            (self.disks[disk].done[range.clone()].to_vec(), vec![false; range.len()]);
        self.tokens += 1;
        self.asked[vm.index()] += 1;
        self.reads.insert(token, Read { disk, resizes, extent, floor, got });
        let mut pieces = Vec::new();
        self.cache.read(self.now, vm, tag, extent, token, &mut pieces);
        let mut next = extent.start();
        // First what is cached: nothing else is asked of the cache before.
        for &piece in &pieces {
            let (Piece::Cached(part)
            | Piece::Direct(part)
            | Piece::Wait(_, part)
            | Piece::Fetch(_, part)) = piece;
            assert_eq!(part.start(), next, "{pieces:?}");
            next = part.end();
            if let Piece::Cached(part) = piece {
                let frames = self.cache.frames(vm, part);
                let sectors = frames.flat_map(|frame| self.memory[frame.0 as usize]);
                let skip = part.start().get() as usize % BLOCK;
                let data: Vec<_> = sectors.skip(skip).take(part.len().get() as usize).collect();
                assert!(data.iter().all(|sector| sector.is_some()), "cached and never read");
                self.deliver(token, part, &data);
            }
        }
        assert_eq!(next, extent.end(), "{pieces:?}");
        for piece in pieces {
            match piece {
                Piece::Cached(_) => {}
                Piece::Direct(extent) => {
                    self.ops.push(Op::Direct { token, disk, extent, data: None });
                }
                Piece::Fetch(id, _) => self.fetch(id, disk, false),
                Piece::Wait(wanted, _) => self.want(wanted),
            }
        }
    }

    /// A fetch begins: from now on its frames are the device's.
    fn fetch(&mut self, id: FetchId, disk: usize, waiting: bool) {
        for &frame in &self.cache.fetch(id).frames {
            self.memory[frame.0 as usize] = [None; BLOCK];
        }
        assert!(self.cache.fetch(id).extent.end().get() as usize <= self.disks[disk].sectors.len());
        self.ops.push(Op::Fetch { id, disk, waiting, data: None });
    }

    /// A guest waits for a fetch that may still be in the background.
    fn want(&mut self, wanted: FetchId) {
        for op in &mut self.ops {
            if let Op::Fetch { id, waiting, .. } = op
                && *id == wanted
                && std::mem::replace(waiting, false)
            {
                self.cache.promoted(wanted);
            }
        }
    }

    /// The device does its part of an operation, which is not reported yet.
    fn serve(&mut self, at: usize) {
        let data = match &self.ops[at] {
            Op::Fetch { id, disk, waiting: false, data: None } => {
                Some(self.look(*disk, self.cache.fetch(*id).extent))
            }
            Op::Direct { disk, extent, data: None, .. } => Some(self.look(*disk, *extent)),
            _ => None,
        };
        self.writes += 1;
        match &mut self.ops[at] {
            Op::Fetch { data: old @ None, .. } | Op::Direct { data: old @ None, .. } => *old = data,
            Op::Write { disk, extent, made: made @ None, .. } => {
                *made = Some(self.writes);
                for n in extent.start().get()..extent.end().get() {
                    if let Some(sector) = self.disks[*disk].sectors.get_mut(n as usize) {
                        *sector = Some((*disk, self.writes));
                    }
                }
            }
            _ => {}
        }
    }

    /// Operation `at` ends; a prefetch that still waits begins or is dropped.
    fn end(&mut self, at: usize, ok: bool) {
        if let Op::Fetch { id, waiting: waiting @ true, .. } = &mut self.ops[at] {
            let id = *id;
            match ok {
                true => *waiting = false,
                false => {
                    self.ops.swap_remove(at);
                    self.cache.dropped(self.now, id);
                }
            }
            return;
        }
        self.serve(at);
        match self.ops.swap_remove(at) {
            Op::Fetch { id, disk, data, .. } => {
                self.end_fetch(id, disk, ok.then_some(data).flatten())
            }
            Op::Direct { token, extent, data, .. } => self.deliver(token, extent, &data.unwrap()),
            Op::Write { vm, disk, extent, made } => {
                for n in extent.start().get()..extent.end().get() {
                    if let Some(done) = self.disks[disk].done.get_mut(n as usize) {
                        *done = made.unwrap().max(*done);
                    }
                }
                self.cache.written(vm, extent);
            }
        }
    }

    fn end_fetch(&mut self, id: FetchId, disk: usize, data: Option<Vec<Sector>>) {
        let fetch = self.cache.fetch(id).clone();
        let ok = data.is_some();
        match data {
            Some(data) => {
                assert_eq!(data.len() as u64, fetch.extent.len().get());
                for (frame, data) in fetch.frames.iter().zip(data.chunks(BLOCK)) {
                    self.memory[frame.0 as usize][..data.len()].copy_from_slice(data);
                }
                for waiter in &fetch.waiters {
                    let from = waiter.extent.start().get() - fetch.extent.start().get();
                    let range = from as usize..(from + waiter.extent.len().get()) as usize;
                    self.deliver(waiter.token, waiter.extent, &data[range]);
                }
            }
            None => {
                for waiter in &fetch.waiters {
                    let (token, extent) = (waiter.token, waiter.extent);
                    self.ops.push(Op::Direct { token, disk, extent, data: None });
                }
            }
        }
        self.cache.fetched(self.now, id, ok);
    }

    fn step(&mut self, (what, vm, a, b): Step) {
        self.now = self.now + Nanos::from_micros(u64::from(b % 50));
        let vm = VmId::new(vm % VMS);
        let Some(disk) = self.vms[vm.index()] else {
            // Its old disk, at times while writes to it are under way; or a new one.
            let old = self.last[vm.index()].filter(|_| b % 4 > 0);
            let disk = old.unwrap_or_else(|| self.new_disk(b as usize % 400 + 1));
            let weight = NonZeroU32::new(a % 4 + 1).unwrap();
            self.attach(vm, disk, weight);
            return;
        };
        let capacity = self.disks[disk].sectors.len() as u64;
        let start = u64::from(a) % capacity;
        let most = capacity - start;
        let place = |len: u64| extent(start, len.clamp(1, most));
        let tag = ProcessTag::new(b as u16 % 4);
        match what % 32 {
            0..10 => self.read(vm, disk, place(u64::from(b >> 8) % 70), tag),
            10..13 => self.write(vm, disk, place(u64::from(b) % 40)),
            13 => self.write(vm, disk, place(u64::MAX)),
            14..18 if !self.ops.is_empty() => self.serve(a as usize % self.ops.len()),
            18..25 if !self.ops.is_empty() => self.end(a as usize % self.ops.len(), b % 6 > 0),
            25..28 => {
                let far = if b % 8 == 0 { 1 << 40 } else { u64::from(b) % 200 + 1 };
                let wanted = proposal(VmId::new(b as u16 % (VMS + 1)), b as u16 % 3, start, far);
                self.script.lock().unwrap().proposals.push_back(wanted);
            }
            28..30 => self.propose(a as usize % 5),
            30 if a % 4 == 0 => {
                self.resize(disk, b as usize % 400 + 1);
                self.attach(vm, disk, NonZeroU32::new(a % 3 + 1).unwrap());
            }
            31 if a % 8 == 0 => {
                self.reads.retain(|_, read| read.disk != disk);
                self.cache.detach(self.now, vm);
                (self.vms[vm.index()], self.last[vm.index()]) = (None, Some(disk));
                self.asked[vm.index()] = 0;
                assert_eq!(self.cache.resident_bytes(vm), 0);
            }
            _ => {}
        }
    }

    fn attach(&mut self, vm: VmId, disk: usize, weight: NonZeroU32) {
        let capacity = Sectors::new(self.disks[disk].sectors.len() as u64);
        self.cache.attach(self.now, vm, weight, capacity);
        self.vms[vm.index()] = Some(disk);
    }

    fn write(&mut self, vm: VmId, disk: usize, extent: Extent) {
        self.cache.write(self.now, vm, extent);
        self.ops.push(Op::Write { vm, disk, extent, made: None });
    }

    fn propose(&mut self, room: usize) {
        for room in (1..=room).rev() {
            let Some(id) = self.cache.propose(self.now, room) else { break };
            let vm = self.cache.fetch(id).vm;
            let disk = self.vms[vm.index()].expect("proposed for a VM that is there");
            self.fetch(id, disk, true);
        }
    }

    fn check(&self) {
        let resident: u64 = (0..VMS).map(|vm| self.cache.resident_bytes(VmId::new(vm))).sum();
        assert!(resident <= self.memory.len() as u64 * BLOCK_BYTES);
        let mut reads = [0; VMS as usize];
        self.cache.usage(&mut |vm, _, usage| {
            let &Usage { read, cached, late, missed, prefetched, used, wasted, dropped, .. } =
                usage;
            assert!(cached + late + missed <= read, "{usage:?}");
            assert!(used + wasted + dropped <= prefetched, "{usage:?}");
            reads[vm.index()] += usage.reads;
        });
        assert_eq!(reads, self.asked);
        let fetches = self.ops.iter().filter(|op| matches!(op, Op::Fetch { .. }));
        assert_eq!(self.cache.fetching(), fetches.count());
    }

    /// All that is under way ends, and everything cached is discarded: now
    /// every prefetched sector was used, wasted or dropped, and everything can be cached.
    fn finish(&mut self) {
        while !self.ops.is_empty() {
            self.end(0, true);
        }
        assert!(self.reads.is_empty(), "{} reads never ended", self.reads.len());
        for (n, disk) in self.vms.into_iter().enumerate() {
            let (Some(disk), vm) = (disk, VmId::new(n as u16)) else { continue };
            let whole = extent(0, self.disks[disk].sectors.len() as u64);
            self.write(vm, disk, whole);
            assert_eq!(self.cache.resident_bytes(vm), 0);
            self.end(0, true);
        }
        self.check();
        self.cache.usage(&mut |_, _, usage| {
            let fates = usage.used + usage.wasted + usage.dropped;
            assert_eq!(fates, usage.prefetched, "{usage:?}");
        });
        for (n, disk) in self.vms.into_iter().enumerate() {
            let (Some(disk), vm) = (disk, VmId::new(n as u16)) else { continue };
            self.read(vm, disk, extent(0, 1), None);
            let fetched = matches!(self.ops[..], [Op::Fetch { .. }]);
            assert_eq!(fetched, !self.memory.is_empty(), "a block is never cached again");
            self.end(0, true);
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<Step>(), 0..800)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_read_is_stale(blocks in 0..48u64, unit in 1..80u64, steps in steps()) {
        let mut engine = Engine::new(blocks, unit);
        for step in steps {
            engine.step(step);
            engine.check();
        }
        engine.finish();
    }
}
