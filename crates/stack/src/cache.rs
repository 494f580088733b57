//! The host's cache of what guests read, with the prefetcher that fills it
//! ahead of them: what lies between guests' requests and the dispatcher. The
//! [stack](crate::stack) drives it; it keeps the books, the engine the data.
//!
//! # The stack's part
//!
//! 1. [`HostCache::attach`] with a VM's disk, before its first request.
//! 2. A guest's read goes to [`HostCache::read`] first, with a token of the
//!    stack's. It comes back in pieces, in order of address:
//!    - [`Piece::Cached`]: note its [frames](HostCache::frames) before anything else
//!      is asked of the cache, and copy from them before a later fetch is read into
//!      frames.
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
//! What lies behind the first EiB of a disk is not cached.
//!
//! # Bounds
//!
//! A call costs as much as its read has blocks, at most; a write, discard, resize
//! or detach as much as it has blocks or as the VM has frames, whichever is
//! less. Which blocks stay, and what each VM may have: [`Blocks`].

mod accounts;
mod ahead;
mod blocks;
mod fetches;
mod pieces;
mod reads;
mod size;
pub mod sizing;
mod warm;
mod writes;

pub use accounts::Usage;
pub use blocks::{Account, BLOCK_BYTES, BLOCK_SECTORS, Block, Blocks, FirstUse, Frame, Gone};
pub use fetches::{Fetch, FetchId, Waiter};
pub use pieces::Piece;
pub(crate) use pieces::blocks_of;

use accounts::Accounts;
use fetches::Fetches;
use pieces::cut;
use seekway_core::params::ParamError;
use seekway_core::prefetcher::{Prefetcher, Proposal, Stream};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Lba, Sectors};
use seekway_policy::prefetchers;
use std::num::NonZeroU32;
use std::ops::Range;
use writes::Writes;

/// Sectors of one prefetch: what a demand read that joins it waits for at most.
pub const UNIT_DEFAULT: Sectors = Sectors::new(256);

/// Entries of a list that are kept allocated from call to call.
const KEPT_MAX: usize = 4096;

/// Size of the cache, and how reads are fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bytes of data that it keeps at most, whatever [`HostCache::resize`] says.
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

/// The cache's record of a VM.
#[derive(Default)]
struct Vm {
    attached: bool,
    capacity: Sectors,
    /// They outlive its leaving: one may still change what it reads when it is back.
    writes: Writes,
}

impl Vm {
    /// Its last block's end, as a block.
    fn end(&self) -> u64 {
        self.capacity.get().div_ceil(BLOCK_SECTORS)
    }

    /// The extent of neighbouring blocks that lies on its disk.
    fn part(&self, blocks: &Range<u64>) -> Option<Extent> {
        let len = Sectors::new((blocks.end - blocks.start) * BLOCK_SECTORS);
        let whole = Extent::new(Lba::new(blocks.start * BLOCK_SECTORS), len)?;
        cut(whole, len, self.capacity)
    }
}

/// The books of one device's cache.
pub struct HostCache {
    config: Config,
    blocks: Blocks,
    prefetcher: Box<dyn Prefetcher>,
    vms: Vec<Vm>,
    fetches: Fetches,
    accounts: Accounts,
    bandwidth: Option<u64>,
    /// Rest of a proposal that was longer than a fetch.
    rest: Option<Proposal>,
    /// When to ask for proposals again, after too many that were cached already.
    resume: Option<Instant>,
    /// Reused from call to call.
    gone: Vec<Gone>,
    first_uses: Vec<FirstUse>,
    frames: Vec<Frame>,
}

impl HostCache {
    /// An empty cache with the prefetcher of this specification
    /// ([`prefetchers::build`]). Fails for a specification that is none.
    pub fn new(config: Config, prefetcher: &str) -> Result<Self, ParamError> {
        Ok(HostCache::with(config, prefetchers::build(prefetcher)?))
    }

    /// An empty cache with this prefetcher.
    pub fn with(config: Config, prefetcher: Box<dyn Prefetcher>) -> Self {
        let frames = (config.bytes / BLOCK_BYTES).min(u64::from(u32::MAX - 1)) as u32;
        let config = Config { unit: config.unit.max(Sectors::new(BLOCK_SECTORS)), ..config };
        HostCache {
            config,
            blocks: Blocks::new(frames, config.seed),
            prefetcher,
            vms: Vec::new(),
            fetches: Fetches::default(),
            accounts: Accounts::default(),
            bandwidth: None,
            rest: None,
            resume: None,
            gone: Vec::new(),
            first_uses: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// A VM joins with a disk of `capacity`. For one that is known: its weight or
    /// its disk's size changes.
    pub fn attach(&mut self, now: Instant, vm: VmId, weight: NonZeroU32, capacity: Sectors) {
        // Blocks are whole: the last one that 64 bits can name is not.
        let capacity = capacity.min(Sectors::new(u64::MAX / BLOCK_SECTORS * BLOCK_SECTORS));
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, Vm::default);
        }
        self.blocks.attach(vm, weight);
        let known = &self.vms[vm.index()];
        if known.attached && known.capacity != capacity {
            // The old last block too: the cache has not what lies past the old end.
            let kept = known.capacity.min(capacity).get() / BLOCK_SECTORS;
            self.blocks.forget(vm, kept, u64::MAX, &mut self.gone);
            self.bury(now);
        }
        let known = &mut self.vms[vm.index()];
        (known.attached, known.capacity) = (true, capacity);
        self.prefetcher.attach(now, vm, capacity);
    }

    /// A VM leaves: what is cached of it is forgotten. Fetches and writes of it
    /// that are under way still end by [`HostCache::fetched`] and
    /// [`HostCache::written`].
    pub fn detach(&mut self, now: Instant, vm: VmId) {
        if !self.is_attached(vm) {
            return;
        }
        self.blocks.detach(vm, &mut self.gone);
        self.bury(now);
        self.vms[vm.index()].attached = false;
        self.rest.take_if(|rest| rest.vm == vm);
        self.prefetcher.detach(vm);
        self.fetches.disown(vm);
        self.accounts.detach(vm);
    }

    fn is_attached(&self, vm: VmId) -> bool {
        self.vms.get(vm.index()).is_some_and(|vm| vm.attached)
    }

    /// Sets the device's best rate of reads, in bytes a second (the paper's BW_T).
    pub fn set_bandwidth(&mut self, bytes_per_s: u64) {
        self.bandwidth = Some(bytes_per_s);
        self.prefetcher.bandwidth(bytes_per_s);
    }

    /// The device's best rate of reads, if it is known.
    pub fn bandwidth(&self) -> Option<u64> {
        self.bandwidth
    }

    /// Change the prefetcher while it runs; what is cached stays.
    pub fn replace(&mut self, now: Instant, prefetcher: Box<dyn Prefetcher>) {
        self.prefetcher = prefetcher;
        (self.rest, self.resume) = (None, None);
        for (n, vm) in self.vms.iter().enumerate().filter(|(_, vm)| vm.attached) {
            self.prefetcher.attach(now, VmId::new(n as u16), vm.capacity);
        }
        if let Some(bytes_per_s) = self.bandwidth {
            self.prefetcher.bandwidth(bytes_per_s);
        }
    }

    /// The first blocks of a range that are neither there nor being written: of one
    /// node, and maybe none ([`Blocks::absent`]).
    fn absent(&mut self, vm: VmId, first: u64, end: u64, is_writing: bool) -> Range<u64> {
        let mut absent = self.blocks.absent(vm, first, end);
        if is_writing {
            let start = absent.clone().find(|&block| !self.is_written(vm, block));
            absent.start = start.unwrap_or(absent.end);
            let end = absent.clone().find(|&block| self.is_written(vm, block));
            absent.end = end.unwrap_or(absent.end);
        }
        absent
    }

    /// Fetch blocks of one node that are absent: those from the first on that there is
    /// room for. By which fetch, and how many.
    fn reserve(
        &mut self,
        vm: VmId,
        blocks: Range<u64>,
        account: Account,
        prefetched: bool,
    ) -> (Option<FetchId>, u64) {
        let (first, frames) = (blocks.start, &mut self.frames);
        frames.clear();
        self.blocks.reserve(vm, blocks, account, prefetched, frames, &mut self.gone);
        if frames.is_empty() {
            return (None, 0);
        }
        let id = self.fetches.extend(frames, first);
        self.blocks.set_fetch(frames, id.0);
        (Some(id), frames.len() as u64)
    }

    fn is_written(&self, vm: VmId, block: u64) -> bool {
        self.vms[vm.index()].writes.overlaps(block, block + 1)
    }

    /// A new fetch is complete. What lies past the disk's end is not read.
    fn close(
        &mut self,
        id: FetchId,
        vm: VmId,
        tag: Option<ProcessTag>,
        account: Account,
        prefetch: bool,
    ) {
        let capacity = self.vms[vm.index()].capacity;
        let fetch = self.fetches.get_mut(id);
        (fetch.vm, fetch.tag, fetch.account, fetch.prefetch) = (vm, tag, Some(account), prefetch);
        let len = Sectors::new(fetch.frames.len() as u64 * BLOCK_SECTORS);
        let inside = Sectors::new(capacity.get() - fetch.extent.start().get());
        fetch.extent =
            Extent::new(fetch.extent.start(), len.min(inside)).expect("it begins inside");
    }

    /// Is all of `extent` of a VM's disk in the cache? Nothing is used by that.
    pub fn holds(&self, vm: VmId, extent: Extent) -> bool {
        let (first, end) = blocks_of(extent);
        self.blocks.lookup_all(vm, first, end).all(|block| matches!(block, Block::Valid(_)))
    }

    /// The frames that hold `extent` of a VM's disk, block by block from the one
    /// that its first sector lies in. Panics for blocks that are not valid:
    /// only what was [`Piece::Cached`] just now may be asked for.
    pub fn frames(&self, vm: VmId, extent: Extent) -> impl Iterator<Item = Frame> + '_ {
        let (first, end) = blocks_of(extent);
        self.blocks.lookup_all(vm, first, end).map(move |block| match block {
            Block::Valid(frame) => frame,
            other => panic!("a block of {extent} of {vm:?} is {other:?}"),
        })
    }

    /// A fetch under way.
    pub fn fetch(&self, id: FetchId) -> &Fetch {
        self.fetches.get(id)
    }

    /// A fetch has ended; its waiters have been served or sent elsewhere.
    pub fn fetched(&mut self, now: Instant, id: FetchId, ok: bool) {
        let fetch = self.fetches.get(id);
        let (vm, first, blocks) = (fetch.vm, fetch.first_block(), fetch.frames.len() as u64);
        self.blocks.filled(vm, first, &fetch.frames, ok, &mut self.gone);
        if fetch.is_left {
            self.blocks.leave(vm, first, first + blocks);
        }
        self.fetches.remove(id);
        self.bury(now);
    }

    /// A write, discard or write-zeroes of `extent` begins.
    pub fn write(&mut self, now: Instant, vm: VmId, extent: Extent) {
        assert!(self.is_attached(vm), "write of {vm:?}, which is not attached");
        let (first, end) = blocks_of(extent);
        self.vms[vm.index()].writes.begin(first, end);
        self.blocks.forget(vm, first, end, &mut self.gone);
        self.bury(now);
    }

    /// Hears that a write is done, well or not.
    pub fn written(&mut self, vm: VmId, extent: Extent) {
        let (first, end) = blocks_of(extent);
        if let Some(vm) = self.vms.get_mut(vm.index()) {
            vm.writes.end(first, end);
        }
    }

    /// Account for what has left the cache, and tell the prefetcher.
    fn bury(&mut self, now: Instant) {
        self.bury_as(now, false);
    }

    /// As [`HostCache::bury`]; `dropped`: what nobody has read was not fetched either.
    fn bury_as(&mut self, now: Instant, dropped: bool) {
        for Gone { vm, blocks, unused, .. } in self.gone.drain(..).filter(|gone| gone.prefetched) {
            let Some(part) = self.vms[vm.index()].part(&blocks) else { continue };
            if let Some(account) = unused {
                let usage = self.accounts.usage(account);
                let count = if dropped { &mut usage.dropped } else { &mut usage.wasted };
                *count += part.len().get();
            }
            self.prefetcher.evicted(now, vm, part, unused.is_none());
        }
        self.gone.shrink_to(KEPT_MAX);
    }

    /// Fetches that have begun and not ended; prefetches that wait are counted.
    pub fn fetching(&self) -> usize {
        self.fetches.len()
    }
    /// Bytes of memory that its books take for that, besides the data: at most 3.5 %
    /// of it in a cache of 16 MiB or more.
    pub fn overhead_bytes(&self) -> u64 {
        self.blocks.bytes()
    }
    /// Bytes that it has of a VM.
    pub fn resident_bytes(&self, vm: VmId) -> u64 {
        self.blocks.resident(vm) * BLOCK_BYTES
    }
    /// Gives the usage of each process of each VM, in a fixed order.
    pub fn usage(&self, sink: &mut dyn FnMut(VmId, Option<ProcessTag>, &Usage)) {
        self.accounts.each(sink);
    }
    /// The streams that the prefetcher follows, in a fixed order.
    pub fn streams(&self, sink: &mut dyn FnMut(&Stream)) {
        self.prefetcher.streams(sink);
    }
    /// The prefetcher's own metrics.
    pub fn prefetcher_metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        self.prefetcher.metrics(sink);
    }
}

#[cfg(test)]
mod tests;
