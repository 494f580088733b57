//! Which blocks the cache has, and in which frames; whom it takes them from
//! when it needs room.
//!
//! # Nodes
//!
//! Books are kept by *nodes* of 16 neighbouring blocks: 64 KiB of one VM's disk. A
//! node may have any of its blocks. What is the same for many of them is kept once: their name,
//! their age and their place in the queues. Uses are counted, frames are given up, and what was
//! prefetched is accounted for by blocks.
//!
//! # Replacement
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for
//! cache eviction", SOSP 2023, section 4), for each VM by itself. What is read for
//! the first time enters a *small* queue, a tenth of what the VM has; at its end
//! it goes, unless it was used more than once again: then it moves to the
//! *main* queue, where each use that was counted (3 at most) gives it another
//! round. What the small queue let go is remembered by a fingerprint
//! ([ghosts](index)), and enters the main queue when it is read again. So a scan
//! passes through a tenth of the cache.
//!
//! A node stands once in a queue for all of its blocks there: those that come later join the
//! others. At the old end, those that were not used enough go one by one, the lowest first, as
//! frames are needed; when only those are left that were, they move on.
//!
//! Where we differ:
//! - Uses count once in a granule of the VM's reads (a 64th of the cache, at most
//!   256 blocks): a guest that reads a block by its eight sectors uses it once
//!   (the correlated references of 2Q: Johnson and Shasha, VLDB 1994).
//! - Prefetched blocks wait *ahead*, until a guest reads them: that is their first
//!   reading, and they enter the small queue. So what a stream has read goes
//!   before what it will read. They wait by nodes, from when the first of a node
//!   came or one of it was last used.
//! - A node that waited ahead while its VM read as many blocks as it has frames is
//!   what goes first: its stream has moved on. So does one at once whose reader is
//!   known to have [left](Blocks::leave) it.
//! - A prefetch never takes the room of a block that waits ahead in its VM: it is refused.
//!   Streams whose leads do not fit would else throw each other's blocks out before they are read,
//!   and all the reading would be for nothing.
//! - One eviction passes over at most [`STEPS_MAX`] nodes.
//!
//! # Shares
//!
//! A VM's share of the frames is its weight's share of all weights. Its *part* is what
//! it has when all are wanted: frames are [divided](curve::divide) by what each VM would
//! find in how many. So it has fewer than its share where these are of no use to it, as
//! to a stream that is read once, and more where it reads a set round and round. Nobody
//! takes what makes it as fast as its share would. For what is prefetched, and for reads under
//! way, it has frames beside that, up to its share. Frames of use to nobody stay.
//!
//! Free frames go to whoever wants one. When there are none, one is taken of the VM that
//! is most above its part if the VM that wants it is below its own, and else of that VM.
//! Frames being read into cannot be taken; a VM may have as many of them as its share or
//! its part, and more only of what is free.

mod curve;
mod evict;
mod index;
mod moves;
mod nodes;
mod size;
mod vms;

use curve::Sample;
use evict::Room;
use index::Index;
use nodes::{Mask, NODE_BLOCKS, NONE, Name, Nodes, Place, mask, runs, slots};
use seekway_core::request::VmId;
use std::ops::Range;
use vms::Vm;

/// Sectors of a block, the unit in which the cache keeps data: 4 KiB.
pub const BLOCK_SECTORS: u64 = 8;
/// Size of a block in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Blocks from here on (at 1 EiB) are not cached.
const BLOCKS_END: u64 = 1 << 48;
/// Nodes that one eviction passes over because they were used: bounds its
/// time. The next goes, used or not.
const STEPS_MAX: u32 = 128;
/// Nodes of a read that are kept allocated from call to call.
const FOUND_KEPT: usize = 256;
/// The small queue is this part of what a VM has read (the paper's tenth).
const SMALL_PART: u64 = 10;
/// Most blocks in a granule, in a cache of 16 GiB or less.
const GRANULE_MAX: u32 = 256;
/// Granules in a cache at most: those that pass are counted in 16 bits.
const GRANULES_MAX: u32 = 1 << 14;
/// Steps along a queue that cost as much as a look-up of a node.
const LOOKUP_STEPS: u64 = 8;

/// A place for one block in the engine's memory: frame `n` lies at byte
/// `n * BLOCK_BYTES`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frame(pub u32);

/// State of a block in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Block {
    /// Neither its data nor a read under way.
    Absent,
    /// A read into this frame is under way.
    Filling(Frame),
    /// All of its data, in this frame.
    Valid(Frame),
}

/// An index into the cache's accounts: the one that has a block fetched.
pub type Account = u16;

/// Blocks that a guest uses for the first time since they were prefetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirstUse {
    /// Neighbouring blocks of the VM's disk.
    pub blocks: Range<u64>,
    /// The account that had them prefetched.
    pub account: Account,
}

/// Blocks that the cache no longer has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gone {
    /// The VM to whose disk they belong.
    pub vm: VmId,
    /// Neighbouring blocks of the VM's disk.
    pub blocks: Range<u64>,
    /// They were prefetched (and not read for a guest that waited).
    pub prefetched: bool,
    /// The account that had them prefetched, if no guest has read them since.
    pub unused: Option<Account>,
}

/// The blocks of all VMs of a device. Bounded: it never names more than
/// `frames` frames, nor has more of them [backed](Blocks::backed) than its
/// [limit](Blocks::set_limit) but while it is trimmed.
pub struct Blocks {
    index: Index,
    nodes: Nodes,
    /// The account that had the block in a frame prefetched; only of those that are unused.
    accounts: Vec<Account>,
    /// By frame: the fetch that fills it; of one that holds nothing, the next such.
    links: Vec<u32>,
    /// The first frame that is [backed](size) and holds nothing.
    free: u32,
    /// The first frame that was taken back.
    bare: u32,
    /// The first frame that was never used: they are used in order, so that
    /// neighbouring blocks are neighbours in memory.
    fresh: u32,
    /// Frames that may be backed, and those that are.
    limit: u32,
    backed: u32,
    vms: Vec<Vm>,
    /// Of what is read, for the VMs' curves; and how many blocks are read until frames are
    /// divided by them anew.
    sample: Sample,
    until_divided: u64,
    /// Bits of the VM's clock that make a granule.
    granule_bits: u32,
    /// The VM most above its share, and for how many evictions it stays that. None
    /// and 1: none is, until one gets a free frame.
    donor: (Option<usize>, u32),
    /// Reused from call to call.
    found: Vec<(u32, Mask)>,
    going: Vec<Frame>,
}

impl Blocks {
    /// An empty cache of `frames`. `seed` makes hashes that guests cannot foresee; the same seed
    /// makes the same decisions.
    pub fn new(frames: u32, seed: u64) -> Self {
        Blocks {
            index: Index::new(frames, seed),
            nodes: Nodes::new(frames),
            accounts: vec![0; frames as usize],
            // Zeroes take no memory until they are written; none is looked at before.
            links: vec![0; frames as usize],
            free: NONE,
            bare: NONE,
            fresh: 0,
            limit: frames,
            backed: 0,
            vms: Vec::new(),
            sample: Sample::new(u64::from(frames), seed),
            until_divided: u64::from(frames),
            granule_bits: (frames / 64).clamp(1, GRANULE_MAX.max(frames / GRANULES_MAX)).ilog2(),
            donor: (None, 0),
            found: Vec::new(),
            going: Vec::new(),
        }
    }

    /// Bytes of memory that the books take at most: when each node has one block.
    pub fn bytes(&self) -> u64 {
        let per_frame = self.links.len() * (size_of::<Account>() + size_of::<u32>());
        (self.index.bytes() + self.nodes.bytes() + per_frame) as u64
    }

    /// State of a block. Changes nothing.
    pub fn lookup(&self, vm: VmId, block: u64) -> Block {
        let node = Name::of(vm, block).and_then(|name| self.index.peek(&self.nodes, name));
        self.block(node, block)
    }

    /// States of blocks one after another. Changes nothing.
    pub fn lookup_all(&self, vm: VmId, first: u64, end: u64) -> impl Iterator<Item = Block> + '_ {
        let (mut name, mut node) = (None, None);
        (first..end).map(move |block| {
            let wanted = Name::of(vm, block);
            if name != wanted {
                name = wanted;
                node = name.and_then(|name| self.index.peek(&self.nodes, name));
            }
            self.block(node, block)
        })
    }

    #[inline]
    fn block(&self, node: Option<u32>, block: u64) -> Block {
        let Some(n) = node else { return Block::Absent };
        let bit = mask(block, 1);
        match &self.nodes[n] {
            node if node.present() & bit == 0 => Block::Absent,
            node => {
                let frame = node.frame((block % NODE_BLOCKS) as usize);
                if node.valid & bit == 0 { Block::Filling(frame) } else { Block::Valid(frame) }
            }
        }
    }

    /// The node that has blocks near this one, and looks near it next time.
    #[inline]
    fn find(&mut self, vm: VmId, block: u64) -> Option<u32> {
        self.index.find(&self.nodes, Name::of(vm, block)?)
    }

    /// The first blocks that are absent of those from `first` to before `end`
    /// in one node. An empty range where none of them is, with the next node's
    /// first block or `end`.
    pub fn absent(&mut self, vm: VmId, first: u64, end: u64) -> Range<u64> {
        let end = end.min(first - first % NODE_BLOCKS + NODE_BLOCKS);
        let Some(n) = self.find(vm, first) else { return first..end };
        let absent = mask(first, end - first) & !self.nodes[n].present();
        runs(absent).next().map_or(end..end, |(from, to)| {
            let start = first - first % NODE_BLOCKS;
            start + from..start + to
        })
    }

    /// A guest reads blocks one after another. False, and nothing happens, unless
    /// all are valid. Those that were prefetched, and are used for the first
    /// time, are appended to `first_uses`.
    pub fn hit(&mut self, vm: VmId, first: u64, end: u64, first_uses: &mut Vec<FirstUse>) -> bool {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        found.shrink_to(FOUND_KEPT);
        let is_hit = parts(first, end).all(|(block, mask)| {
            let node = self.find(vm, block).filter(|&n| self.nodes[n].valid & mask == mask);
            found.extend(node.map(|n| (n, mask)));
            node.is_some()
        });
        if is_hit {
            found.iter().for_each(|&(n, blocks)| self.touch_all(n, blocks, first_uses));
        }
        self.found = found;
        is_hit
    }

    /// A guest reads a block that is there, or waits for it; as [`Blocks::hit`].
    pub fn touch(&mut self, vm: VmId, block: u64, first_uses: &mut Vec<FirstUse>) {
        if let Some(n) = self.find(vm, block) {
            let present = self.nodes[n].present();
            self.touch_all(n, mask(block, 1) & present, first_uses);
        }
    }

    /// Blocks of a node are read that are present.
    fn touch_all(&mut self, n: u32, blocks: Mask, first_uses: &mut Vec<FirstUse>) {
        let name = self.nodes[n].name;
        self.read(name.vm().index(), name, blocks);
        let node = &mut self.nodes[n];
        let was = node.was();
        let vm = &mut self.vms[name.vm().index()];
        vm.clock += u64::from(blocks.count_ones());
        let granule = vm.granule(self.granule_bits);
        let first = node.unused & blocks;
        node.count(granule, blocks & !first);
        if first == 0 {
            if was.blocks[Place::Ahead as usize] != 0 {
                self.settle(n, was);
            }
            return;
        }
        vm.unused -= u64::from(first.count_ones());
        node.mark(granule, first);
        node.main |= first & self.index.remembered(node.home(), vm.let_go, vm.held);
        self.each_account(n, first, |blocks, account| {
            first_uses.push(FirstUse { blocks, account })
        });
        let node = &mut self.nodes[n];
        node.unused &= !first;
        self.settle(n, was);
    }

    /// Frames for blocks of one node that are absent, to be read into: one each from
    /// the first on, as many as there is room for. They are appended to `frames`.
    /// Room is made if need be, and what had to go is appended to `gone`. There is
    /// none when every frame of the VM's is being read into, or where a prefetch
    /// would take the place of another.
    pub fn reserve(
        &mut self,
        vm: VmId,
        blocks: Range<u64>,
        account: Account,
        prefetched: bool,
        frames: &mut Vec<Frame>,
        gone: &mut Vec<Gone>,
    ) {
        debug_assert!(self.absent(vm, blocks.start, blocks.end) == blocks, "blocks are there");
        let Some(name) = Name::of(vm, blocks.start) else { return };
        let old = frames.len();
        let count = (blocks.end - blocks.start) as usize;
        self.room(vm.index(), count, prefetched, &mut Room { frames, gone });
        let frames = &frames[old..];
        if frames.is_empty() {
            return;
        }
        let home = self.index.home(name);
        let known = &mut self.vms[vm.index()];
        let n = self.index.find(&self.nodes, name).unwrap_or_else(|| {
            let n = self.nodes.add(name, home);
            self.index.insert(&mut self.nodes, n);
            known.lists[Place::Coming as usize].push(&mut self.nodes, Place::Coming, n);
            n
        });
        let blocks = mask(blocks.start, frames.len() as u64);
        if prefetched {
            frames.iter().for_each(|frame| self.accounts[frame.0 as usize] = account);
        } else {
            known.clock += frames.len() as u64;
            let again = self.index.remembered(home, known.let_go, known.held) & blocks;
            self.nodes[n].main |= again;
        }
        self.nodes[n].begin(known.granule(self.granule_bits), blocks, frames, prefetched);
        if !prefetched {
            self.read(vm.index(), name, blocks);
        }
    }

    /// The read of blocks from `first` on into these frames has ended. They are valid
    /// now, unless the read failed or they were forgotten meanwhile.
    pub fn filled(
        &mut self,
        vm: VmId,
        first: u64,
        mut frames: &[Frame],
        ok: bool,
        gone: &mut Vec<Gone>,
    ) {
        for (block, blocks) in parts(first, first + frames.len() as u64) {
            let (here, rest) = frames.split_at(blocks.count_ones() as usize);
            frames = rest;
            self.filled_in(vm, block, blocks, here, ok, gone);
        }
    }

    /// As [`Blocks::filled`], for blocks of one node.
    fn filled_in(
        &mut self,
        vm: VmId,
        block: u64,
        blocks: Mask,
        frames: &[Frame],
        ok: bool,
        gone: &mut Vec<Gone>,
    ) {
        let node = self.find(vm, block);
        let mut arrived = 0;
        for (slot, &frame) in slots(blocks).zip(frames) {
            let is_here = |n: u32| {
                self.nodes[n].filling >> slot & 1 == 1 && self.nodes[n].frame(slot) == frame
            };
            match node.is_some_and(is_here) {
                true => arrived |= 1 << slot,
                false => self.set_free(frame),
            }
        }
        let orphans = u64::from((blocks & !arrived).count_ones());
        let known = &mut self.vms[vm.index()];
        known.filling -= frames.len() as u64;
        (known.orphans, known.held) = (known.orphans - orphans, known.held - orphans);
        let Some(n) = node.filter(|_| arrived != 0) else { return };
        if ok {
            let node = &mut self.nodes[n];
            let was = node.was();
            (node.valid, node.filling) = (node.valid | arrived, node.filling & !arrived);
            node.mark(known.granule(self.granule_bits), arrived);
            self.settle(n, was);
            return;
        }
        self.release(n, arrived, gone);
    }

    /// Marks a VM's prefetched blocks from `first` to before `end` as abandoned by their reader:
    /// they go before all else that the VM has, unless they are read after all.
    pub fn leave(&mut self, vm: VmId, first: u64, end: u64) {
        for (block, _) in parts(first, end) {
            let Some(n) = self.find(vm, block) else { continue };
            let known = &mut self.vms[vm.index()];
            let node = &mut self.nodes[n];
            if node.blocks(Place::Ahead) != 0 {
                node.grow_old(known.granule(self.granule_bits));
                let list = &mut known.lists[Place::Ahead as usize];
                list.remove(&mut self.nodes, Place::Ahead, n);
                list.push_oldest(&mut self.nodes, Place::Ahead, n);
            }
        }
    }

    /// Forget a VM's blocks from `first` to before `end`. Frames being filled stay
    /// their reader's until [`Blocks::filled`], and nobody finds them. Costs no
    /// more than the VM has frames, however long the range is.
    pub fn forget(&mut self, vm: VmId, first: u64, end: u64, gone: &mut Vec<Gone>) {
        let resident = self.resident(vm);
        if self.vms.len() <= vm.index() {
            return;
        }
        if end.saturating_sub(first) / NODE_BLOCKS <= resident / LOOKUP_STEPS {
            for (block, blocks) in parts(first, end) {
                if let Some(n) = self.find(vm, block) {
                    self.forget_in(n, blocks, gone);
                }
            }
            return;
        }
        for place in Place::ALL {
            let mut next = self.vms[vm.index()].lists[place as usize].oldest;
            while next != NONE {
                let n = next;
                next = self.nodes[n].link(place).newer;
                self.forget_from_to(n, first, end, gone);
            }
        }
    }

    /// These frames, which were reserved, are filled by this fetch.
    pub fn set_fetch(&mut self, frames: &[Frame], fetch: u32) {
        frames.iter().for_each(|frame| self.links[frame.0 as usize] = fetch);
    }

    /// The fetch that fills a frame.
    pub fn fetch(&self, frame: Frame) -> u32 {
        self.links[frame.0 as usize]
    }
}

/// Blocks from `first` to before `end` by their nodes: of each the first block
/// and all of them.
fn parts(first: u64, end: u64) -> impl Iterator<Item = (u64, Mask)> {
    let mut next = first;
    std::iter::from_fn(move || {
        let len = end.checked_sub(next)?.min(NODE_BLOCKS - next % NODE_BLOCKS);
        let part = (next, mask(next, len));
        next += len;
        (len > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests;
