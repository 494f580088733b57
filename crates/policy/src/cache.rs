//! The host's cache of what guests read, with the prefetcher that fills it
//! ahead of them: what lies between guests' requests and the dispatcher. Both
//! engines drive it; it keeps the books, the engine the data.
//!
//! # The engine's part
//!
//! 1. [`HostCache::attach`] with a VM's disk, before its first request.
//! 2. A guest's read goes to [`HostCache::read`] first, with a token of the
//!    engine's. It comes back in pieces, in order of address:
//!    - [`Piece::Cached`]: copy it from its [frames](HostCache::frames), before
//!      anything else is asked of the cache.
//!    - [`Piece::Wait`]: a fetch under way brings it. When the fetch is a
//!      prefetch that still waits in the dispatcher's background class, take it
//!      back from there, let it arrive as demand, and say
//!      [`HostCache::promoted`].
//!    - [`Piece::Fetch`]: let this new fetch's extent (blocks, so it may be
//!      larger than the piece) arrive as demand, to be read into its frames.
//!    - [`Piece::Direct`]: read it as if there were no cache.
//!
//!    The read is done when its direct pieces are read and the fetches that it
//!    waits for have ended.
//! 3. When a fetch's data is in its frames: copy what its
//!    [waiters](Fetch::waiters) want of it (nothing on failure: let their
//!    extents arrive as direct reads, so that each gets its own answer), then say
//!    [`HostCache::fetched`].
//! 4. A write, discard or write-zeroes: [`HostCache::write`] when it comes,
//!    before it arrives at the dispatcher, and [`HostCache::written`] when it is
//!    done, well or not. Between the two nothing that overlaps it is cached or
//!    joined, so that no stale block outlives it.
//! 5. After every input, and when [`HostCache::next_wake`] has come, ask
//!    [`HostCache::propose`] until `None` while the dispatcher has
//!    [room](crate::dispatcher::Dispatcher::background_room); let what it names
//!    arrive in the background. While the dispatcher is
//!    [crowded](crate::dispatcher::Dispatcher::is_crowded), take waiting
//!    prefetches back and say [`HostCache::dropped`].
//!
//! Data is kept by blocks of 4 KiB, whole; a write takes its blocks out
//! (write-around): what guests have written they have in their own caches.

mod accounts;
mod blocks;
mod fetches;
mod writes;

pub use accounts::Usage;
pub use blocks::{Account, BLOCK_BYTES, BLOCK_SECTORS, Block, Blocks, Frame, Gone};
pub use fetches::{Fetch, FetchId, Waiter};

use crate::params::ParamError;
use crate::prefetcher::{Access, Prefetcher, Proposal, Stream};
use crate::prefetchers;
use crate::request::{Extent, ProcessTag, VmId};
use crate::units::{Instant, Lba, Sectors};
use accounts::Accounts;
use fetches::Fetches;
use std::num::NonZeroU32;
use writes::Writes;

/// Sectors of one prefetch: what a demand read that joins it waits for at most.
pub const UNIT_DEFAULT: Sectors = Sectors::new(256);

/// How large, and how reads are fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bytes of data that it keeps at most.
    pub bytes: u64,
    /// Longest single prefetch, at least a block.
    pub unit: Sectors,
    /// Hashes are made with it: a number that guests cannot foresee in a daemon,
    /// a constant in a simulation.
    pub seed: u64,
}

impl Config {
    /// A cache of `bytes` with the defaults of the rest.
    pub fn new(bytes: u64) -> Self {
        Config { bytes, unit: UNIT_DEFAULT, seed: 0 }
    }
}

/// A part of a guest's read, and how to come by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// In the cache.
    Cached(Extent),
    /// Brought by a fetch under way.
    Wait(FetchId, Extent),
    /// Brought by a fetch that begins with this piece.
    Fetch(FetchId, Extent),
    /// To be read past the cache.
    Direct(Extent),
}

/// What the cache knows of a VM.
struct Vm {
    capacity: Sectors,
    writes: Writes,
}

/// The books of one device's cache.
pub struct HostCache {
    config: Config,
    blocks: Blocks,
    prefetcher: Box<dyn Prefetcher>,
    vms: Vec<Option<Vm>>,
    fetches: Fetches,
    accounts: Accounts,
    bandwidth: Option<u64>,
    /// What is left of a proposal that was longer than a fetch.
    rest: Option<Proposal>,
    /// Reused from call to call.
    gone: Vec<Gone>,
}

impl HostCache {
    /// An empty cache with the prefetcher of this specification
    /// ([`prefetchers::build`]). Fails for a specification that is none.
    pub fn new(config: Config, prefetcher: &str) -> Result<Self, ParamError> {
        let frames = (config.bytes / BLOCK_BYTES).min(u64::from(u32::MAX - 1)) as u32;
        let config = Config { unit: config.unit.max(Sectors::new(BLOCK_SECTORS)), ..config };
        Ok(HostCache {
            config,
            blocks: Blocks::new(frames, config.seed),
            prefetcher: prefetchers::build(prefetcher)?,
            vms: Vec::new(),
            fetches: Fetches::new(frames),
            accounts: Accounts::default(),
            bandwidth: None,
            rest: None,
            gone: Vec::new(),
        })
    }

    /// A VM joins with a disk of `capacity`. For one that is known: its weight or
    /// its disk's size changes.
    pub fn attach(&mut self, now: Instant, vm: VmId, weight: NonZeroU32, capacity: Sectors) {
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, || None);
        }
        self.blocks.attach(vm, weight);
        match &mut self.vms[vm.index()] {
            Some(known) => {
                let kept = known.capacity.min(capacity).get() / BLOCK_SECTORS;
                known.capacity = capacity;
                self.blocks.forget(vm, kept, u64::MAX, &mut self.gone);
                self.bury(now);
            }
            slot => *slot = Some(Vm { capacity, writes: Writes::default() }),
        }
        self.prefetcher.attach(now, vm, capacity);
    }

    /// A VM leaves: what is cached of it is forgotten. Fetches of it that are
    /// under way still end by [`HostCache::fetched`].
    pub fn detach(&mut self, now: Instant, vm: VmId) {
        self.blocks.detach(vm, &mut self.gone);
        self.bury(now);
        self.vms[vm.index()] = None;
        self.rest.take_if(|rest| rest.vm == vm);
        self.prefetcher.detach(vm);
        self.accounts.detach(vm);
    }

    /// What the device reads a second at best (the paper's BW_T).
    pub fn set_bandwidth(&mut self, bytes_per_s: u64) {
        self.bandwidth = Some(bytes_per_s);
        self.prefetcher.bandwidth(bytes_per_s);
    }

    /// Change the prefetcher while it runs; what is cached stays.
    pub fn switch(&mut self, now: Instant, prefetcher: &str) -> Result<(), ParamError> {
        self.prefetcher = prefetchers::build(prefetcher)?;
        self.rest = None;
        for (n, vm) in self.vms.iter().enumerate() {
            if let Some(vm) = vm {
                self.prefetcher.attach(now, VmId::new(n as u16), vm.capacity);
            }
        }
        if let Some(bytes_per_s) = self.bandwidth {
            self.prefetcher.bandwidth(bytes_per_s);
        }
        Ok(())
    }

    /// A guest reads `extent` of its disk, inside its capacity: the pieces are
    /// appended to `pieces`. `token` comes back with the fetches that it waits for.
    pub fn read(
        &mut self,
        now: Instant,
        vm: VmId,
        tag: Option<ProcessTag>,
        extent: Extent,
        token: u64,
        pieces: &mut Vec<Piece>,
    ) {
        let account = self.accounts.of(vm, tag);
        let before = pieces.len();
        let (first, end) = blocks_of(extent);
        let new = self.reserve(vm, first, end, account);
        for block in first..end {
            let piece = self.piece(vm, block, clip(block, extent), &new);
            let joined = pieces[before..].last_mut().is_some_and(|last| join(last, &piece));
            if !joined {
                pieces.push(piece);
            }
        }
        let (mut missed, mut late, mut cached) = (0, 0, 0);
        for &piece in &pieces[before..] {
            match piece {
                Piece::Cached(part) => cached += part.len().get(),
                Piece::Wait(id, extent) | Piece::Fetch(id, extent) => {
                    let fetch = self.fetches.get_mut(id);
                    fetch.waiters.push(Waiter { token, extent });
                    match (piece, fetch.prefetch) {
                        (Piece::Wait(..), true) => late += extent.len().get(),
                        (Piece::Wait(..), false) => {}
                        _ => {
                            missed += extent.len().get();
                            (fetch.vm, fetch.tag) = (vm, tag);
                            self.trim(id);
                        }
                    }
                }
                Piece::Direct(part) => missed += part.len().get(),
            }
        }
        self.accounts.read(account, extent.len().get(), cached, late, missed);
        self.bury(now);
        let (missed, late) = (Sectors::new(missed), Sectors::new(late));
        self.prefetcher.accessed(now, &Access { vm, tag, extent, missed, late });
    }

    /// Frames for those of a read's blocks that are absent and to be had: the
    /// fetches that fill them. Before anything is promised: the room for them may
    /// be that of other blocks of the same read.
    fn reserve(&mut self, vm: VmId, first: u64, end: u64, account: Account) -> Vec<FetchId> {
        let mut new = Vec::new();
        for block in first..end {
            if self.blocks.lookup(vm, block) != Block::Absent || self.is_written(vm, block) {
                continue;
            }
            match self.blocks.reserve(vm, block, account, false, &mut self.gone) {
                Some(frame) => {
                    let id = self.fetches.extend(frame, block);
                    if new.last() != Some(&id) {
                        new.push(id);
                    }
                }
                None => break,
            }
        }
        new
    }

    /// How to come by one block of a read, for which `new` fetches were begun.
    fn piece(&mut self, vm: VmId, block: u64, part: Extent, new: &[FetchId]) -> Piece {
        match self.blocks.lookup(vm, block) {
            Block::Valid(frame) => {
                self.used(frame);
                Piece::Cached(part)
            }
            Block::Filling(frame) => {
                self.used(frame);
                let id = self.fetches.of(frame);
                match new.contains(&id) {
                    true => Piece::Fetch(id, part),
                    false => Piece::Wait(id, part),
                }
            }
            Block::Absent => Piece::Direct(part),
        }
    }

    /// A guest uses a block: the first use of a prefetched one is what it was for.
    fn used(&mut self, frame: Frame) {
        if let Some(account) = self.blocks.touch(frame) {
            self.accounts.used(account, BLOCK_SECTORS);
        }
    }

    fn is_written(&self, vm: VmId, block: u64) -> bool {
        let vm = self.vms[vm.index()].as_ref();
        vm.is_some_and(|vm| vm.writes.overlaps(block, block + 1))
    }

    /// The new fetch is complete: the next block begins another, and what lies
    /// past the disk's end is not read.
    fn trim(&mut self, id: FetchId) {
        self.fetches.close();
        let fetch = self.fetches.get_mut(id);
        let capacity = self.vms[fetch.vm.index()].as_ref().map_or(Sectors::ZERO, |vm| vm.capacity);
        let past = fetch.extent.end().get().saturating_sub(capacity.get());
        let len = Sectors::new(fetch.extent.len().get().saturating_sub(past));
        fetch.extent = Extent::new(fetch.extent.start(), len).unwrap_or(fetch.extent);
    }

    /// The frames that hold `extent` of a VM's disk, block by block from the one
    /// that its first sector lies in. Panics for blocks that are not valid:
    /// only what was [`Piece::Cached`] just now may be asked for.
    pub fn frames(&self, vm: VmId, extent: Extent) -> impl Iterator<Item = Frame> + '_ {
        let (first, end) = blocks_of(extent);
        (first..end).map(move |block| match self.blocks.lookup(vm, block) {
            Block::Valid(frame) => frame,
            other => panic!("block {block} of {vm:?} is {other:?}"),
        })
    }

    /// A fetch under way.
    pub fn fetch(&self, id: FetchId) -> &Fetch {
        self.fetches.get(id)
    }

    /// A fetch has ended; its waiters have been served or sent elsewhere.
    pub fn fetched(&mut self, now: Instant, id: FetchId, ok: bool) {
        let fetch = self.fetches.get(id);
        for &frame in &fetch.frames {
            self.blocks.filled(frame, ok, &mut self.gone);
        }
        self.fetches.remove(id);
        self.bury(now);
    }

    /// A prefetch that still waited has become demand.
    pub fn promoted(&mut self, id: FetchId) {
        let (vm, tag) = (self.fetch(id).vm, self.fetch(id).tag);
        let account = self.accounts.of(vm, tag);
        self.accounts.promoted(account);
    }

    /// A prefetch that still waited, and which nobody waits for, is not made.
    pub fn dropped(&mut self, now: Instant, id: FetchId) {
        let Fetch { vm, tag, extent, .. } = *self.fetch(id);
        debug_assert!(self.fetch(id).waiters.is_empty(), "a guest waits for {extent}");
        let account = self.accounts.of(vm, tag);
        self.accounts.dropped(account, extent.len().get());
        self.fetched(now, id, false);
    }

    /// A write, discard or write-zeroes of `extent` begins.
    pub fn write(&mut self, now: Instant, vm: VmId, extent: Extent) {
        let (first, end) = blocks_of(extent);
        if let Some(vm) = &mut self.vms[vm.index()] {
            vm.writes.begin(first, end);
        }
        self.blocks.forget(vm, first, end, &mut self.gone);
        self.bury(now);
    }

    /// It is done, well or not.
    pub fn written(&mut self, vm: VmId, extent: Extent) {
        let (first, end) = blocks_of(extent);
        if let Some(Some(vm)) = self.vms.get_mut(vm.index()) {
            vm.writes.end(first, end);
        }
    }

    /// The next prefetch to be made, with room for `room` of them. Ask until `None`.
    pub fn propose(&mut self, now: Instant, room: usize) -> Option<FetchId> {
        if room == 0 {
            return None;
        }
        let sectors = Sectors::new(self.config.unit.get().saturating_mul(room as u64));
        loop {
            let proposal = match self.rest.take() {
                Some(rest) => rest,
                None => self.prefetcher.propose(now, sectors)?,
            };
            if let Some(id) = self.begin(now, proposal) {
                return Some(id);
            }
        }
    }

    /// Begin a fetch of what the cache has not of a proposal; what is longer
    /// than one fetch is kept for the next.
    fn begin(&mut self, now: Instant, proposal: Proposal) -> Option<FetchId> {
        let Proposal { vm, tag, extent } = proposal;
        let known = self.vms.get(vm.index())?.as_ref()?;
        let (mut block, end) = blocks_of(extent);
        let end = end.min(known.capacity.get().div_ceil(BLOCK_SECTORS));
        let absent = |cache: &Self, block| {
            cache.blocks.lookup(vm, block) == Block::Absent && !cache.is_written(vm, block)
        };
        while block < end && !absent(self, block) {
            block += 1;
        }
        let account = self.accounts.of(vm, tag);
        let (from, mut id, mut full) = (block, None, false);
        while block < end
            && (block - from + 1) * BLOCK_SECTORS <= self.config.unit.get()
            && absent(self, block)
        {
            let Some(frame) = self.blocks.reserve(vm, block, account, true, &mut self.gone) else {
                full = true;
                break;
            };
            id = Some(self.fetches.extend(frame, block));
            block += 1;
        }
        if block < end && !full {
            let start = Lba::new(block * BLOCK_SECTORS);
            let len = Sectors::new((end - block) * BLOCK_SECTORS);
            self.rest = Extent::new(start, len).map(|extent| Proposal { vm, tag, extent });
        }
        if let Some(id) = id {
            let fetch = self.fetches.get_mut(id);
            (fetch.vm, fetch.tag, fetch.prefetch) = (vm, tag, true);
            self.trim(id);
            let len = self.fetch(id).extent.len().get();
            self.accounts.prefetched(account, len);
        }
        self.bury(now);
        id
    }

    /// Account for what has left the cache, and tell the prefetcher.
    fn bury(&mut self, now: Instant) {
        for gone in self.gone.drain(..) {
            if !gone.prefetched {
                continue;
            }
            if !gone.used {
                self.accounts.wasted(gone.account, BLOCK_SECTORS);
            }
            let start = Lba::new(gone.block * BLOCK_SECTORS);
            let extent = Extent::new(start, Sectors::new(BLOCK_SECTORS)).expect("a block");
            self.prefetcher.evicted(now, gone.vm, extent, gone.used);
        }
    }

    /// When the prefetcher wants to be asked again.
    pub fn next_wake(&self) -> Option<Instant> {
        self.prefetcher.next_wake()
    }
    /// Reads under way.
    pub fn fetching(&self) -> usize {
        self.fetches.len()
    }
    /// Bytes of data that it keeps at most.
    pub fn capacity_bytes(&self) -> u64 {
        self.config.bytes / BLOCK_BYTES * BLOCK_BYTES
    }
    /// Bytes that it has of a VM.
    pub fn resident_bytes(&self, vm: VmId) -> u64 {
        self.blocks.resident(vm) * BLOCK_BYTES
    }
    /// What each process of each VM has had of it, in a fixed order.
    pub fn usage(&self, sink: &mut dyn FnMut(VmId, Option<ProcessTag>, &Usage)) {
        self.accounts.each(sink);
    }
    /// The prefetcher's streams.
    pub fn streams(&self, sink: &mut dyn FnMut(&Stream)) {
        self.prefetcher.streams(sink);
    }
    /// The prefetcher's own metrics.
    pub fn prefetcher_metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        self.prefetcher.metrics(sink);
    }
}

/// The blocks that an extent touches: the first, and the one after the last.
fn blocks_of(extent: Extent) -> (u64, u64) {
    (extent.start().get() / BLOCK_SECTORS, extent.end().get().div_ceil(BLOCK_SECTORS))
}

/// What of a block lies inside the extent, which touches it.
fn clip(block: u64, extent: Extent) -> Extent {
    let start = extent.start().get().max(block * BLOCK_SECTORS);
    let end = extent.end().get().min((block + 1).saturating_mul(BLOCK_SECTORS));
    Extent::new(Lba::new(start), Sectors::new(end - start)).expect("the extent touches the block")
}

/// Make `last` longer by `next` when both are to be had in the same way.
fn join(last: &mut Piece, next: &Piece) -> bool {
    let longer =
        |a: Extent, b: Extent| Extent::new(a.start(), a.len() + b.len()).expect("two neighbours");
    *last = match (*last, *next) {
        (Piece::Cached(a), Piece::Cached(b)) => Piece::Cached(longer(a, b)),
        (Piece::Direct(a), Piece::Direct(b)) => Piece::Direct(longer(a, b)),
        (Piece::Wait(id, a), Piece::Wait(other, b)) if id == other => Piece::Wait(id, longer(a, b)),
        (Piece::Fetch(id, a), Piece::Fetch(other, b)) if id == other => {
            Piece::Fetch(id, longer(a, b))
        }
        _ => return false,
    };
    true
}

#[cfg(test)]
mod tests;
