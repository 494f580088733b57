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

mod blocks;
mod fetches;
pub mod sizing;
#[cfg(test)]
mod tests;

pub use blocks::{Account, BLOCK_BYTES, BLOCK_SECTORS, Block, Blocks, FirstUse, Frame, Gone};
pub(crate) use fetches::blocks_of;
pub use fetches::{Fetch, FetchId, Piece, Waiter};
use fetches::{Fetches, Writes, clip, cut};
use seekway_core::params::ParamError;
use seekway_core::prefetcher::{Access, Prefetcher, Proposal, Stream};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::prefetchers;
use std::num::NonZeroU32;
use std::ops::Range;

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

// Usage of the cache and of the prefetcher by each process of each VM.

/// Processes of one VM that are told apart; those beyond are counted with what
/// is untagged, so that a guest cannot make the table grow.
const PROCESSES_MAX: usize = 256;

/// Processes of all VMs that are told apart: each VM has its untagged account too.
const TAGGED_MAX: usize = Account::MAX as usize - crate::dispatcher::VMS_MAX;

/// Sectors (of 512 bytes) and counts since the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Guests' reads for which the cache was asked.
    pub reads: u64,
    /// Sectors that they asked for.
    pub read: u64,
    /// Of them, found in the cache.
    pub cached: u64,
    /// Of them, found being prefetched.
    pub late: u64,
    /// Of them, read from the device for them.
    pub missed: u64,
    /// Sectors whose prefetch began.
    pub prefetched: u64,
    /// Of them, read by a guest since, once or more.
    pub used: u64,
    /// Of them, gone from the cache without, or not to be read.
    pub wasted: u64,
    /// Of them, neither: never fetched, since demand wanted the device. They cost nothing.
    pub dropped: u64,
    /// Prefetches that a guest's read took over while they waited.
    pub promoted: u64,
}

impl Usage {
    /// The paper's accuracy: prefetched and used, of all that was used. 0 to 1.
    pub fn accuracy(&self) -> f64 {
        ratio(self.used.min(self.read), self.read)
    }
    /// The paper's cost: prefetched and unused, of all that was used or
    /// prefetched. 0 to 1. What is still in the cache and unused counts.
    pub fn cost(&self) -> f64 {
        let unused = self.prefetched.saturating_sub(self.used + self.dropped);
        ratio(unused, self.read + unused)
    }
    /// Counts after `earlier`, an older copy of the same counts. Blocks that were prefetched before
    /// and used after are used: there may be more of them than are prefetched.
    pub fn since(&self, earlier: &Usage) -> Usage {
        let mut since = *self;
        since.change(earlier, |now, earlier| now - earlier);
        since
    }

    /// Change each count by the same count of another.
    fn change(&mut self, other: &Usage, to: fn(u64, u64) -> u64) {
        for (count, other) in [
            (&mut self.reads, other.reads),
            (&mut self.read, other.read),
            (&mut self.cached, other.cached),
            (&mut self.late, other.late),
            (&mut self.missed, other.missed),
            (&mut self.prefetched, other.prefetched),
            (&mut self.used, other.used),
            (&mut self.wasted, other.wasted),
            (&mut self.dropped, other.dropped),
            (&mut self.promoted, other.promoted),
        ] {
            *count = to(*count, other);
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl std::ops::AddAssign<&Usage> for Usage {
    fn add_assign(&mut self, other: &Usage) {
        self.change(other, |count, other| count + other);
    }
}

/// The accounts of all VMs.
#[derive(Default)]
struct Accounts {
    usages: Vec<Usage>,
    free: Vec<Account>,
    /// By VM: the account without a tag first, then those with, by tag.
    by_vm: Vec<Vec<(Option<ProcessTag>, Account)>>,
    /// Accounts with a tag.
    tagged: usize,
}

impl Accounts {
    /// The account of a process; that of the VM's untagged reads when it has too many.
    fn of(&mut self, vm: VmId, tag: Option<ProcessTag>) -> Account {
        if self.by_vm.len() <= vm.index() {
            self.by_vm.resize_with(vm.index() + 1, Vec::new);
        }
        let known = &self.by_vm[vm.index()];
        let at = match known.binary_search_by_key(&tag, |&(tag, _)| tag) {
            Ok(at) => return known[at].1,
            Err(at) => at,
        };
        if tag.is_some() {
            if known.len() >= PROCESSES_MAX || self.tagged >= TAGGED_MAX {
                return self.of(vm, None);
            }
            self.tagged += 1;
        }
        let account = self.free.pop().unwrap_or_else(|| {
            self.usages.push(Usage::default());
            (self.usages.len() - 1) as Account
        });
        *self.usage(account) = Usage::default();
        self.by_vm[vm.index()].insert(at, (tag, account));
        account
    }

    /// The VM has left: its figures go with it.
    fn detach(&mut self, vm: VmId) {
        let Some(known) = self.by_vm.get_mut(vm.index()) else { return };
        for (tag, account) in known.drain(..) {
            self.tagged -= usize::from(tag.is_some());
            self.free.push(account);
        }
    }

    /// Counts of an account, to add to.
    fn usage(&mut self, account: Account) -> &mut Usage {
        &mut self.usages[usize::from(account)]
    }

    fn each(&self, sink: &mut dyn FnMut(VmId, Option<ProcessTag>, &Usage)) {
        for (vm, known) in self.by_vm.iter().enumerate() {
            for &(tag, account) in known {
                sink(VmId::new(vm as u16), tag, &self.usages[usize::from(account)]);
            }
        }
    }
}

// Prefetches: from what the prefetcher proposes to fetches that begin, are
// taken over by guests, or are dropped.

/// Proposals that one call of [`HostCache::propose`] looks at.
const PROPOSALS_MAX: usize = 64;

/// Blocks that one call looks up.
const LOOKS_MAX: u64 = KEPT_MAX as u64;

/// The end of every disk.
const END: Sectors = Sectors::new(u64::MAX);

/// When one that stopped for that goes on: after whatever else is due.
const RESUME: Nanos = Nanos::new(1);

impl HostCache {
    /// The next prefetch to be made, with room for `room` of them. Ask until
    /// `None`. It looks at a bounded number of blocks: where all of them are in
    /// the cache it says `None` and [`HostCache::next_wake`] says to ask again.
    pub fn propose(&mut self, now: Instant, room: usize) -> Option<FetchId> {
        self.resume = None;
        if room == 0 {
            return None;
        }
        let most = Sectors::new(self.config.unit.get().saturating_mul(room as u64));
        let mut looks = LOOKS_MAX;
        for _ in 0..PROPOSALS_MAX {
            let proposal = match self.rest.take() {
                Some(rest) => rest,
                None => {
                    let new = self.prefetcher.propose(now, most)?;
                    Proposal { extent: cut(new.extent, most, END).unwrap_or(new.extent), ..new }
                }
            };
            if let Some(id) = self.begin(now, proposal, &mut looks) {
                return Some(id);
            }
            if looks == 0 {
                break;
            }
        }
        self.resume = Some(now + RESUME);
        None
    }

    /// Prefetches that go to a head along with the read that was looked up last, at most
    /// `most` sectors right behind it: those that begin are appended to `begun`.
    pub fn along(&mut self, now: Instant, most: Sectors, begun: &mut Vec<FetchId>) {
        let kept = self.rest.take();
        let mut looks = LOOKS_MAX;
        let mut next = self.prefetcher.along(now, most);
        while let Some(proposal) = next {
            begun.extend(self.begin(now, proposal, &mut looks));
            next = self.rest.take().filter(|_| looks > 0);
        }
        self.rest = kept;
    }

    /// Begin a fetch of what the cache has not of a proposal; what is longer than
    /// one fetch is kept for the next, what finds no frame is given up.
    fn begin(&mut self, now: Instant, proposal: Proposal, looks: &mut u64) -> Option<FetchId> {
        let Proposal { vm, tag, extent } = proposal;
        let known = self.vms.get(vm.index()).filter(|vm| vm.attached)?;
        let capacity = known.capacity;
        let extent = cut(extent, extent.len(), capacity)?;
        let (first, end) = blocks_of(extent);
        let is_writing = known.writes.overlaps(first, end);
        let account = self.accounts.of(vm, tag);
        let unit = self.config.unit.get() / BLOCK_SECTORS;
        let (mut block, mut from, mut id, mut full) = (first, first, None, false);
        self.fetches.open();
        while block < end && *looks > 0 && block - from < unit {
            let most = (block + *looks).min(from + unit).min(end);
            let absent = self.absent(vm, block, most, is_writing);
            if id.is_some() && absent.start > block {
                break;
            }
            *looks -= absent.end - block;
            block = absent.end;
            if id.is_none() {
                from = absent.start;
            }
            if absent.is_empty() {
                continue;
            }
            let (begun, blocks) = self.reserve(vm, absent.clone(), account, true);
            id = begun.or(id);
            full = blocks < absent.end - absent.start;
            if full {
                block = absent.start + blocks;
                break;
            }
        }
        let left = (end - block) * BLOCK_SECTORS;
        let left = Extent::new(Lba::new(block * BLOCK_SECTORS), Sectors::new(left));
        let left = left.and_then(|left| cut(left, left.len(), capacity));
        if let Some(id) = id {
            self.close(id, vm, tag, account, true);
            let len = self.fetch(id).extent.len().get();
            self.accounts.usage(account).prefetched += len;
        }
        self.bury(now);
        match left {
            Some(extent) if full => self.prefetcher.evicted(now, vm, extent, false),
            left => self.rest = left.map(|extent| Proposal { vm, tag, extent }),
        }
        id
    }

    /// Whether prefetches go as ordinary reads.
    pub fn fetches_as_demand(&self) -> bool {
        self.prefetcher.fetches_as_demand()
    }

    /// Nobody will read what was prefetched of `extent`, it seems: what is there of it goes
    /// first from now on, and what is on its way as soon as it has come.
    fn leave(&mut self, vm: VmId, extent: Extent) {
        let (first, end) = blocks_of(extent);
        let end = end.min(first + LOOKS_MAX);
        self.blocks.leave(vm, first, end);
        for block in self.blocks.lookup_all(vm, first, end) {
            if let Block::Filling(frame) = block {
                self.fetches.get_mut(FetchId(self.blocks.fetch(frame))).is_left = true;
            }
        }
    }

    /// Hears of sectors that a guest wants to read and that wait at a limit of its VM.
    pub(crate) fn held(&mut self, vm: VmId, len: Sectors) {
        self.prefetcher.held(vm, len);
    }

    /// A prefetch that still waited has become demand.
    pub fn promoted(&mut self, id: FetchId) {
        if let Some(account) = self.fetch(id).account {
            self.accounts.usage(account).promoted += 1;
        }
    }

    /// A prefetch that still waited, and which nobody waits for, is not made.
    /// Panics when somebody does.
    pub fn dropped(&mut self, now: Instant, id: FetchId) {
        let fetch = self.fetches.get(id);
        assert!(fetch.waiters.is_empty(), "a guest waits for {}", fetch.extent);
        self.blocks.filled(fetch.vm, fetch.first_block(), &fetch.frames, false, &mut self.gone);
        self.fetches.remove(id);
        // What a write has taken out before has been counted as wasted, and stays so.
        self.bury_as(now, true);
    }

    /// When [`HostCache::propose`] wants to be asked again if nothing else
    /// happens; at once, when it stopped because it had looked for long enough.
    pub fn next_wake(&self) -> Option<Instant> {
        self.resume.into_iter().chain(self.prefetcher.next_wake()).min()
    }
}

// A guest's read: which parts of it are cached, waited for, fetched or read past the cache.

impl HostCache {
    /// A guest reads `extent` of its disk, inside its capacity: the pieces are
    /// appended to `pieces`. `token` comes back with the fetches that it waits for.
    /// Panics for a VM that is not attached.
    pub fn read(
        &mut self,
        now: Instant,
        vm: VmId,
        tag: Option<ProcessTag>,
        extent: Extent,
        token: u64,
        pieces: &mut Vec<Piece>,
    ) {
        assert!(self.is_attached(vm), "read of {vm:?}, which is not attached");
        let account = self.accounts.of(vm, tag);
        let before = pieces.len();
        if self.is_cached(vm, extent) {
            pieces.push(Piece::Cached(extent));
        } else if let Some(id) = self.fetch_absent(vm, extent, account) {
            pieces.push(Piece::Fetch(id, extent));
        } else {
            self.cut(vm, extent, before, pieces);
        }
        let (mut missed, mut late, mut cached) = (0, 0, 0);
        for &piece in &pieces[before..] {
            let (Piece::Cached(extent)
            | Piece::Direct(extent)
            | Piece::Wait(_, extent)
            | Piece::Fetch(_, extent)) = piece;
            let sectors = extent.len().get();
            if let Piece::Wait(id, _) | Piece::Fetch(id, _) = piece {
                self.fetches.get_mut(id).waiters.push(Waiter { token, extent });
            }
            match piece {
                Piece::Cached(_) => cached += sectors,
                Piece::Wait(id, _) if self.fetch(id).prefetch => late += sectors,
                Piece::Wait(..) => {}
                Piece::Direct(_) => missed += sectors,
                Piece::Fetch(id, _) => {
                    missed += sectors;
                    self.close(id, vm, tag, account, false);
                }
            }
        }
        self.bury(now);
        let usage = self.accounts.usage(account);
        usage.reads += 1;
        usage.read += extent.len().get();
        usage.cached += cached;
        usage.late += late;
        usage.missed += missed;
        let (missed, late) = (Sectors::new(missed), Sectors::new(late));
        self.prefetcher.accessed(now, &Access { vm, tag, extent, missed, late });
        while let Some(left) = self.prefetcher.left(now) {
            self.leave(vm, left);
        }
    }

    /// Is all of it in the cache? Then it is used.
    fn is_cached(&mut self, vm: VmId, extent: Extent) -> bool {
        let (first, end) = blocks_of(extent);
        if !self.blocks.hit(vm, first, end, &mut self.first_uses) {
            return false;
        }
        self.account_uses(vm);
        true
    }

    /// The first use of a prefetched block is what it was for.
    fn account_uses(&mut self, vm: VmId) {
        for FirstUse { blocks, account } in self.first_uses.drain(..) {
            let part = self.vms[vm.index()].part(&blocks);
            self.accounts.usage(account).used += part.map_or(0, |part| part.len().get());
        }
        self.first_uses.shrink_to(KEPT_MAX);
    }

    /// Begin fetches of those of a read's blocks that are absent and to be had.
    /// The fetch, if it is one that brings all of them.
    fn fetch_absent(&mut self, vm: VmId, extent: Extent, account: Account) -> Option<FetchId> {
        let (first, end) = blocks_of(extent);
        let known = &self.vms[vm.index()];
        let (is_writing, inside) = (known.writes.overlaps(first, end), end.min(known.end()));
        self.fetches.open();
        let (mut block, mut begun, mut only) = (first, 0, None);
        while block < inside {
            let absent = self.absent(vm, block, inside, is_writing);
            block = absent.end;
            if absent.is_empty() {
                continue;
            }
            let (id, blocks) = self.reserve(vm, absent.clone(), account, false);
            only = id.or(only);
            begun += blocks;
            if blocks < absent.end - absent.start {
                break;
            }
        }
        only.filter(|_| begun == end - first)
    }

    /// Cut a read into pieces, after fetches of it began: room may have been made at
    /// the cost of other blocks of the same read, which are then read past the cache.
    fn cut(&mut self, vm: VmId, extent: Extent, before: usize, pieces: &mut Vec<Piece>) {
        let (first, end) = blocks_of(extent);
        for block in first..end {
            let part = clip(block, extent);
            let piece = match self.blocks.lookup(vm, block) {
                Block::Absent => Piece::Direct(part),
                Block::Valid(_) => {
                    self.used(vm, block);
                    Piece::Cached(part)
                }
                Block::Filling(frame) => match FetchId(self.blocks.fetch(frame)) {
                    id if self.fetches.is_new(id) => Piece::Fetch(id, part),
                    id => {
                        self.used(vm, block);
                        Piece::Wait(id, part)
                    }
                },
            };
            fetches::push(pieces, before, piece);
        }
    }

    /// A guest uses a block.
    fn used(&mut self, vm: VmId, block: u64) {
        self.blocks.touch(vm, block, &mut self.first_uses);
        self.account_uses(vm);
    }
}

// The cache becomes smaller and larger while it runs.

impl HostCache {
    /// Keeps at most `bytes` from now on, as far as there is [room](HostCache::room_bytes).
    /// [`HostCache::trim`] drops what is above that.
    pub fn resize(&mut self, bytes: u64) {
        self.blocks.set_limit((bytes / BLOCK_BYTES).min(u64::from(u32::MAX)) as u32);
    }

    /// Take back frames above the size, `most` of them at most: they are appended to
    /// `bare`. Those that are being read into stay until [`HostCache::fetched`].
    pub fn trim(&mut self, now: Instant, most: usize, bare: &mut Vec<Frame>) {
        self.blocks.trim(most, bare, &mut self.gone);
        self.bury(now);
    }

    /// Has it more memory than it may?
    pub fn is_above_size(&self) -> bool {
        self.blocks.backed() > self.blocks.limit()
    }

    /// Bytes of data that it keeps at most.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.blocks.limit()) * BLOCK_BYTES
    }
    /// Bytes that [`HostCache::resize`] can allow at most.
    pub fn room_bytes(&self) -> u64 {
        self.config.bytes / BLOCK_BYTES * BLOCK_BYTES
    }
    /// Bytes of the engine's memory that it has: what was read into and not taken back.
    pub fn backed_bytes(&self) -> u64 {
        u64::from(self.blocks.backed()) * BLOCK_BYTES
    }
}

// A cache that begins full, as after a long run: for simulations, which would else have to
// simulate hours until it is.

/// Number of times that each block was read before the run begins: enough that it stays
/// ([`Blocks`]).
const READS: usize = 3;

impl HostCache {
    /// Puts parts of VMs' disks into the cache as if they had been read again and again, as far as
    /// there is room: each VM has as much as another, unless it wants less. Nothing is counted,
    /// and the prefetcher hears of nothing. `wanted` is by VM; the VMs are attached, and the cache
    /// is empty.
    pub fn warm(&mut self, now: Instant, wanted: &[(VmId, Vec<Extent>)]) {
        let mut left: Vec<_> = wanted.iter().map(|(vm, parts)| (0, *vm, parts.iter())).collect();
        let mut kept = Vec::new();
        while let Some((had, vm, parts)) = left.iter_mut().min_by_key(|(had, vm, _)| (*had, *vm)) {
            let Some(&extent) = parts.next() else {
                let done = *vm;
                left.retain(|(_, vm, _)| *vm != done);
                continue;
            };
            *had += extent.len().get();
            let vm = *vm;
            let account = self.accounts.of(vm, None);
            if !self.put(vm, extent, account) {
                break;
            }
            kept.push((vm, extent));
        }
        for (vm, extent) in (1..READS).flat_map(|_| kept.iter().copied()) {
            let (first, end) = blocks_of(extent);
            self.blocks.hit(vm, first, end, &mut self.first_uses);
        }
        self.bury(now);
    }

    /// False when there is no room for all of it.
    fn put(&mut self, vm: VmId, extent: Extent, account: Account) -> bool {
        let (first, end) = blocks_of(extent);
        let mut block = first;
        while block < end {
            let absent = self.blocks.absent(vm, block, end);
            block = absent.end;
            let len = absent.end - absent.start;
            if len == 0 {
                continue;
            }
            if u64::from(self.blocks.backed()) + len > u64::from(self.blocks.limit()) {
                return false;
            }
            let start = absent.start;
            self.frames.clear();
            self.blocks.reserve(vm, absent, account, false, &mut self.frames, &mut self.gone);
            self.blocks.filled(vm, start, &self.frames, true, &mut self.gone);
        }
        true
    }
}

#[cfg(test)]
mod accounts_tests {
    use super::*;

    #[test]
    fn every_vm_has_an_account_of_its_own_whatever_others_did() {
        let (mut accounts, tags) = (Accounts::default(), 1..=PROCESSES_MAX as u16);
        let vms = crate::dispatcher::VMS_MAX as u16;
        for round in 0..40 {
            // Untagged ones leave places that tagged ones take.
            (0..vms).for_each(|vm| _ = accounts.of(VmId::new(vm), None));
            let tagging = (0..vms).filter(|vm| (vm + round) % 16 == 0);
            for vm in tagging {
                accounts.detach(VmId::new(vm));
                tags.clone().for_each(|tag| _ = accounts.of(VmId::new(vm), ProcessTag::new(tag)));
            }
        }
        (0..vms).for_each(|vm| _ = accounts.of(VmId::new(vm), None));
        assert!(accounts.usages.len() <= usize::from(Account::MAX));
        assert!(
            accounts.by_vm.iter().all(|known| known[0].0.is_none()),
            "untagged ones come first"
        );
        let all: Vec<Account> = accounts.by_vm.iter().flatten().map(|known| known.1).collect();
        let apart: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(apart.len(), all.len(), "two are counted together");
    }
}

#[cfg(test)]
mod warm_tests {
    use super::*;
    use crate::cache::{BLOCK_BYTES, BLOCK_SECTORS, Config};
    use seekway_core::units::{Lba, Sectors};
    use std::num::NonZeroU32;

    #[test]
    fn each_vm_has_what_it_wants_as_far_as_there_is_room() {
        let mut cache = HostCache::new(Config::new(100 * BLOCK_BYTES), "none").expect("a cache");
        let vms = [0, 1].map(VmId::new);
        let size = Sectors::new(1 << 20);
        vms.iter().for_each(|&vm| cache.attach(Instant::ZERO, vm, NonZeroU32::MIN, size));
        let part = |n: u64| {
            let start = Lba::new(n * 10 * BLOCK_SECTORS);
            Extent::new(start, Sectors::new(10 * BLOCK_SECTORS)).expect("a part")
        };
        let wanted = [(vms[0], vec![part(0), part(7)]), (vms[1], (0..20).map(part).collect())];
        cache.warm(Instant::ZERO, &wanted);
        let bytes = |vm| cache.resident_bytes(vm) / BLOCK_BYTES;
        assert_eq!((bytes(vms[0]), bytes(vms[1])), (20, 80));
        // What was read again and again stays beside one that reads once.
        let (mut pieces, mut at) = (Vec::new(), 100);
        for _ in 0..40 {
            pieces.clear();
            cache.read(Instant::ZERO, vms[1], None, part(at), 0, &mut pieces);
            for piece in &pieces {
                if let crate::cache::Piece::Fetch(id, _) = *piece {
                    cache.fetched(Instant::ZERO, id, true);
                }
            }
            at += 1;
        }
        assert!(cache.holds(vms[0], part(0)) && cache.holds(vms[0], part(7)));
        let kept = (0..8).filter(|&n| cache.holds(vms[1], part(n))).count();
        assert!(kept >= 6, "{kept} of 8 parts");
    }
}
