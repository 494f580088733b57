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
mod nodes;
#[cfg(test)]
mod tests;

use curve::{Sample, Vm};
use nodes::{
    Home, Mask, NODE_BLOCKS, NONE, Name, Node, Nodes, Place, Was, lowest, mask, runs, slots,
};
use seekway_core::request::VmId;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

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

// Where a node is found by its name, and which were let go not long ago.
//
// A hash table with chains through the nodes. Eight neighbouring nodes (512 KiB
// of a disk) have one line of the table, and each of them a chain of its
// own there, so that streams seldom have to wait for another line. `mix` spreads
// the nodes over the chains: whichever a guest chooses, only those with the number
// modulo 8 that it likes among them, a chain has one node on average, at most.
//
// Guests choose the numbers, so the hash is a keyed one, once for eight nodes. `std`'s map would
// take 34 bytes for each of a million nodes where this takes 4.
//
// # Ghosts
//
// A block that comes back soon is worth more than its first reading told. The
// ghost queue of S3-FIFO is kept as its paper advises (section 4.2): a table of
// fingerprints with the time at which each was entered, that is never swept.
// A ghost has blocks of one node that went at nearly the same time; each line has
// the last eight of those whose home it is. It only ever guesses: a wrong answer
// costs a little hit rate and nothing else.

/// Nodes with one line.
const LANES: usize = 8;

/// Ghosts in a line.
const GHOSTS: usize = 8;

/// Blocks of a node that were let go, or none.
#[derive(Clone, Copy)]
struct Ghost {
    blocks: Mask,
    /// Of the node's print the low bits, and the time in the rest.
    print_time: u16,
}

const NO_GHOST: Ghost = Ghost { blocks: 0, print_time: 0 };

/// Bits of a ghost's print.
const PRINT_BITS: u32 = 10;

/// Blocks of a node that go within this number of units of time, at most a quarter of a cache, have
/// one ghost: that of the first.
const GATHERED: u16 = 4;

impl Ghost {
    /// Units of time since it was made, if it is of the node that has this mark now.
    fn age(&self, now: u16) -> Option<u16> {
        let age = now.wrapping_sub(self.print_time);
        age.is_multiple_of(1 << PRINT_BITS).then_some(age >> PRINT_BITS)
    }
}

impl Home {
    fn lane(self) -> usize {
        usize::from(self.print) % LANES
    }
}

/// The nodes with one home, and the ghosts of nodes there: 64 bytes, a processor's cache line.
#[derive(Clone)]
#[repr(align(64))]
struct Line {
    /// The first node of each chain.
    heads: [u32; LANES],
    /// Blocks that were evicted, the latest first.
    ghosts: [Ghost; GHOSTS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// Nodes by their names.
struct Index {
    lines: Vec<Line>,
    seed: u64,
    /// Ghosts' time has 6 bits and must not come round while one is young: it
    /// counts units of `2^shift` blocks, 16 to 31 of them in a cache.
    shift: u32,
    /// The eight nodes that were looked for last, and the hash of them.
    near: (u64, u64),
}

impl Index {
    /// With a chain for each frame.
    fn new(frames: u32, seed: u64) -> Self {
        let lines = (frames as usize).div_ceil(LANES).max(1);
        let shift = (frames >> 5).checked_ilog2().map_or(0, |bits| bits + 1);
        let line = Line { heads: [NONE; LANES], ghosts: [NO_GHOST; GHOSTS] };
        Index { lines: vec![line; lines], seed, shift, near: (0, hash(seed, 0)) }
    }

    fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// The home of a node. Looked for first among the last ones' neighbours.
    fn home(&mut self, name: Name) -> Home {
        let neighbours = name.0 / LANES as u64;
        if self.near.0 != neighbours {
            self.near = (neighbours, hash(self.seed, neighbours));
        }
        self.home_near(name)
    }

    /// As [`Index::home`], and changes nothing.
    fn home_near(&self, name: Name) -> Home {
        let neighbours = name.0 / LANES as u64;
        let hash = match self.near {
            (near, hash) if near == neighbours => hash,
            _ => hash(self.seed, neighbours),
        };
        let line = (u64::from(hash as u32) * self.lines.len() as u64) >> 32;
        let print = (hash >> 48) as u16 ^ (name.0 % LANES as u64) as u16;
        Home { line: line as u32, print }
    }

    /// The node of this name.
    #[inline]
    fn find(&mut self, nodes: &Nodes, name: Name) -> Option<u32> {
        let home = self.home(name);
        self.find_at(nodes, home, name)
    }

    /// As [`Index::find`], and changes nothing.
    fn peek(&self, nodes: &Nodes, name: Name) -> Option<u32> {
        self.find_at(nodes, self.home_near(name), name)
    }

    #[inline]
    fn find_at(&self, nodes: &Nodes, home: Home, name: Name) -> Option<u32> {
        let line = &self.lines[home.line as usize];
        let mut n = line.heads[home.lane()];
        while n != NONE && nodes[n].name != name {
            n = nodes[n].after;
        }
        (n != NONE).then_some(n)
    }

    /// Enter a node that is not there.
    fn insert(&mut self, nodes: &mut Nodes, n: u32) {
        let home = nodes[n].home();
        let line = &mut self.lines[home.line as usize];
        let after = std::mem::replace(&mut line.heads[home.lane()], n);
        nodes[n].after = after;
    }

    /// Take a node out.
    fn remove(&mut self, nodes: &mut Nodes, n: u32) {
        let (home, after) = (nodes[n].home(), nodes[n].after);
        let head = &mut self.lines[home.line as usize].heads[home.lane()];
        if *head == n {
            *head = after;
            return;
        }
        let mut before = *head;
        while nodes[before].after != n {
            before = nodes[before].after;
        }
        nodes[before].after = after;
    }

    /// The mark of a ghost that is made now.
    fn print_time(&self, home: Home, let_go: u64) -> u16 {
        ((let_go >> self.shift) << PRINT_BITS) as u16 | (home.print % (1 << PRINT_BITS))
    }

    /// Remember blocks of a node that go, when its VM has let `let_go` blocks go.
    fn remember(&mut self, home: Home, blocks: Mask, let_go: u64) {
        let print_time = self.print_time(home, let_go);
        let ghosts = &mut self.lines[home.line as usize].ghosts;
        for ghost in ghosts.iter_mut() {
            if ghost.age(print_time).is_some_and(|age| age <= GATHERED) {
                ghost.blocks |= blocks;
                return;
            }
        }
        ghosts.copy_within(..GHOSTS - 1, 1);
        ghosts[0] = Ghost { blocks, print_time };
    }

    /// Which of a node's blocks were let go among the VM's last `recent` blocks of
    /// `let_go` in all?
    fn remembered(&self, home: Home, let_go: u64, recent: u64) -> Mask {
        let now = self.print_time(home, let_go);
        let is_young = |age| u64::from(age) <= recent >> self.shift;
        let ghosts = self.lines[home.line as usize].ghosts.iter();
        ghosts
            .filter(|ghost| ghost.age(now).is_some_and(is_young))
            .fold(0, |blocks, ghost| blocks | ghost.blocks)
    }
}

/// Guests choose `word`, and do not know the seed.
fn hash(seed: u64, word: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(seed);
    hasher.write_u64(word);
    hasher.finish()
}

#[cfg(test)]
impl Index {
    /// Number of nodes of each chain.
    fn chains(&self, nodes: &Nodes) -> impl Iterator<Item = usize> {
        let some = |n: u32| (n != NONE).then_some(n);
        let heads = self.lines.iter().flat_map(|line| line.heads);
        heads.map(move |head| std::iter::successors(some(head), |&n| some(nodes[n].after)).count())
    }

    fn len(&self, nodes: &Nodes) -> usize {
        self.chains(nodes).sum()
    }
}

// Where a node stands in its VM's lists, and how blocks leave it.

impl Blocks {
    /// Runs of unused blocks of a node that have one account.
    fn each_account(&self, n: u32, blocks: Mask, mut f: impl FnMut(Range<u64>, Account)) {
        let first = self.nodes[n].name.first_block();
        let mut last: Option<(Range<u64>, Account)> = None;
        for slot in slots(blocks) {
            let account = self.accounts[self.nodes[n].frame(slot).0 as usize];
            let block = first + slot as u64;
            match &mut last {
                Some((run, same)) if run.end == block && *same == account => run.end += 1,
                last => {
                    if let Some((run, account)) = last.replace((block..block + 1, account)) {
                        f(run, account);
                    }
                }
            }
        }
        if let Some((run, account)) = last {
            f(run, account);
        }
    }

    /// A node's blocks have changed from what it [was](Node::was): it goes
    /// to the lists where it belongs now. One that has nothing is no more.
    fn settle(&mut self, n: u32, was: Was) {
        let node = &mut self.nodes[n];
        let vm = &mut self.vms[node.name.vm().index()];
        if node.blocks(Place::Ahead) != 0 && was.blocks[Place::Ahead as usize] == 0 {
            // Here it tells since when it waits.
            node.mark(vm.granule(self.granule_bits), 0);
        }
        let is = node.was();
        let stays = |place: Place| {
            let both = was.blocks[place as usize] != 0 && is.blocks[place as usize] != 0;
            both && (place != Place::Ahead || is.stamp == was.stamp)
        };
        let moves = || Place::ALL.into_iter().filter(|&place| !stays(place));
        for place in moves().filter(|&place| was.blocks[place as usize] != 0) {
            vm.lists[place as usize].remove(&mut self.nodes, place, n);
        }
        for place in moves().filter(|&place| is.blocks[place as usize] != 0) {
            vm.lists[place as usize].push(&mut self.nodes, place, n);
        }
        for place in [Place::Small, Place::Main] {
            let count = |was: &Was| u64::from(was.blocks[place as usize].count_ones());
            let blocks = &mut vm.lists[place as usize].blocks;
            *blocks = *blocks + count(&is) - count(&was);
        }
        if self.nodes[n].present() == 0 {
            self.index.remove(&mut self.nodes, n);
            self.nodes.remove(n);
        }
    }

    /// Blocks of a node go, and make room.
    fn take(&mut self, n: u32, blocks: Mask, room: &mut Room<'_>) {
        room.frames.extend(slots(blocks).map(|slot| self.nodes[n].frame(slot)));
        self.vms[self.nodes[n].name.vm().index()].held -= u64::from(blocks.count_ones());
        self.unname(n, blocks, room.gone);
    }

    /// Nobody finds these blocks of a node any more.
    fn unname(&mut self, n: u32, blocks: Mask, gone: &mut Vec<Gone>) {
        let node = &self.nodes[n];
        let (vm, first, was) = (node.name.vm(), node.name.first_block(), node.was());
        let (unused, prefetched) = (node.unused & blocks, node.prefetched & blocks);
        let (demanded, used) = (blocks & !prefetched, prefetched & !unused);
        for (blocks, prefetched) in [(demanded, false), (used, true)] {
            gone.extend(runs(blocks).map(|(from, to)| {
                let blocks = first + from..first + to;
                Gone { vm, blocks, prefetched, unused: None }
            }));
        }
        self.each_account(n, unused, |blocks, account| {
            gone.push(Gone { vm, blocks, prefetched: true, unused: Some(account) });
        });
        let known = &mut self.vms[vm.index()];
        known.unused -= u64::from(unused.count_ones());
        self.nodes[n].clear(blocks);
        self.settle(n, was);
    }

    /// Forget those of a node's blocks that are in a range.
    fn forget_from_to(&mut self, n: u32, first: u64, end: u64, gone: &mut Vec<Gone>) {
        let here = self.nodes[n].name.first_block();
        let (from, to) = (first.max(here), end.min(here + NODE_BLOCKS));
        if from < to {
            self.forget_in(n, mask(from, to - from), gone);
        }
    }

    /// Forget blocks of a node.
    fn forget_in(&mut self, n: u32, blocks: Mask, gone: &mut Vec<Gone>) {
        let Node { valid, filling, name, .. } = self.nodes[n];
        if valid & blocks != 0 {
            self.release(n, valid & blocks, gone);
        }
        if filling & blocks != 0 {
            self.unname(n, filling & blocks, gone);
            self.vms[name.vm().index()].orphans += u64::from((filling & blocks).count_ones());
        }
    }

    /// Blocks of a node go, and their frames hold nothing.
    fn release(&mut self, n: u32, blocks: Mask, gone: &mut Vec<Gone>) {
        let mut going = std::mem::take(&mut self.going);
        self.take(n, blocks, &mut Room { frames: &mut going, gone });
        going.drain(..).for_each(|frame| self.set_free(frame));
        self.going = going;
    }

    fn set_free(&mut self, frame: Frame) {
        self.links[frame.0 as usize] = std::mem::replace(&mut self.free, frame.0);
    }
}

// Number of frames that may have memory. The cache becomes smaller and larger while it runs; its
// tables have room for the largest size from the beginning.
//
// A frame is *backed* once it was used: the engine has memory for it. Frames that are
// taken back are *bare*: the engine gives their memory to the system, and uses it
// again only when they come back by `Blocks::reserve`.

impl Blocks {
    /// Lets `frames` be backed from now on, at most all that there are. [`Blocks::trim`] drops what
    /// is above that.
    pub fn set_limit(&mut self, frames: u32) {
        self.limit = frames.min(self.links.len() as u32);
        self.divide();
    }

    /// Frames that may be backed.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Frames that are backed.
    pub fn backed(&self) -> u32 {
        self.backed
    }

    /// Take back frames above the limit, `most` of them at most: they are appended to
    /// `bare`, and what they held to `gone`. Those that are being read into stay until
    /// they are filled.
    pub fn trim(&mut self, most: usize, bare: &mut Vec<Frame>, gone: &mut Vec<Gone>) {
        let mut left = most.min(self.backed.saturating_sub(self.limit) as usize);
        let mut room = Room { frames: bare, gone };
        while left > 0 {
            let before = room.frames.len();
            if !self.pop_free(left, room.frames) && !self.evict_for_trim(left, &mut room) {
                return;
            }
            left -= room.frames.len() - before;
            for frame in &room.frames[before..] {
                self.links[frame.0 as usize] = std::mem::replace(&mut self.bare, frame.0);
                self.backed -= 1;
            }
        }
    }

    /// Let blocks go of the VM that is most above its share, or else of any.
    fn evict_for_trim(&mut self, most: usize, room: &mut Room<'_>) -> bool {
        if let Some(donor) = self.donor()
            && self.evict(donor, most, true, room)
        {
            return true;
        }
        (0..self.vms.len()).any(|vm| self.evict(vm, most, true, room))
    }

    /// Takes up to `wanted` backed frames that hold nothing. False when there are none.
    fn pop_free(&mut self, wanted: usize, frames: &mut Vec<Frame>) -> bool {
        let before = frames.len();
        while self.free != NONE && frames.len() < before + wanted {
            frames.push(Frame(self.free));
            self.free = self.links[self.free as usize];
        }
        frames.len() > before
    }

    /// Backs up to `wanted` frames that are not backed yet, as far as the limit allows: bare ones
    /// first, then those that were never used.
    fn back_more(&mut self, wanted: usize, frames: &mut Vec<Frame>) -> bool {
        let before = frames.len();
        let wanted = wanted.min(self.limit.saturating_sub(self.backed) as usize);
        while self.bare != NONE && frames.len() < before + wanted {
            frames.push(Frame(self.bare));
            self.bare = self.links[self.bare as usize];
        }
        let fresh = (before + wanted - frames.len()).min(self.links.len() - self.fresh as usize);
        let end = self.fresh + fresh as u32;
        frames.extend((self.fresh..end).map(Frame));
        self.fresh = end;
        self.backed += (frames.len() - before) as u32;
        frames.len() > before
    }
}

// Eviction: which VM gives up frames, and which of its blocks go.

/// Room that is made: frames are appended, and the blocks that had to go for them.
struct Room<'a> {
    pub frames: &'a mut Vec<Frame>,
    pub gone: &'a mut Vec<Gone>,
}

impl Blocks {
    /// Frames for a VM to read into, `most` of them at most.
    fn room(&mut self, vm: usize, most: usize, prefetched: bool, room: &mut Room<'_>) {
        let end = room.frames.len() + most;
        while room.frames.len() < end {
            let before = room.frames.len();
            if !self.free_frames(end - before, room.frames) {
                self.evict_any(vm, end - before, prefetched, room);
            }
            let more = (room.frames.len() - before) as u64;
            if more == 0 {
                return;
            }
            let known = &mut self.vms[vm];
            (known.held, known.filling) = (known.held + more, known.filling + more);
            known.unused += if prefetched { more } else { 0 };
        }
    }

    /// Takes up to `wanted` frames that hold nothing. False when there are none.
    fn free_frames(&mut self, wanted: usize, frames: &mut Vec<Frame>) -> bool {
        let found = self.pop_free(wanted, frames) || self.back_more(wanted, frames);
        if found && self.donor.0.is_none() {
            self.donor.1 = 0;
        }
        found
    }

    /// Take frames of the VM that is most above its part, or of this one.
    fn evict_any(&mut self, vm: usize, wanted: usize, prefetched: bool, room: &mut Room<'_>) {
        let known = &self.vms[vm];
        let most = known.share.max(known.own()).max(1).saturating_sub(known.filling);
        let wanted = wanted.min(most as usize);
        if wanted == 0 {
            return;
        }
        let owed = known.own().max(1).saturating_sub(known.held);
        // One frame everybody gets, though there be fewer than VMs.
        let has_none = known.held == 0;
        let donor = self.donor().or_else(|| has_none.then(|| self.largest()).flatten());
        if owed > 0
            && let Some(donor) = donor.filter(|&donor| donor != vm)
        {
            let most = self.vms[donor].excess().min(owed).max(1);
            if self.evict(donor, wanted.min(most as usize), true, room) {
                return;
            }
        }
        self.evict(vm, wanted, !prefetched, room);
    }

    /// The VM that has most.
    fn largest(&self) -> Option<usize> {
        (0..self.vms.len()).max_by_key(|&vm| self.vms[vm].held)
    }

    /// The VM that is most over its share. Looked for anew after enough evictions that the search
    /// costs little beside them, or when it is within it.
    fn donor(&mut self) -> Option<usize> {
        match self.donor {
            // Nobody comes to have more by what is taken within one VM.
            (None, 1..) => return None,
            (Some(vm), left @ 1..) if self.vms[vm].excess() > 0 => {
                self.donor.1 = left - 1;
                return Some(vm);
            }
            _ => {}
        }
        let order = |(n, vm): &(usize, &Vm)| (vm.excess(), usize::MAX - n);
        let (vm, known) = self.vms.iter().enumerate().max_by_key(order)?;
        let excess = known.excess();
        let often = (self.links.len() >> 10).min(64) as u32;
        self.donor = if excess > 0 { (Some(vm), often) } else { (None, 1) };
        self.donor.0
    }

    /// Let blocks of one of a VM's nodes go, `most` of them at most. False when none
    /// may; one that waits ahead may only when `ahead_too`.
    fn evict(&mut self, vm: usize, most: usize, ahead_too: bool, room: &mut Room<'_>) -> bool {
        if self.evict_stale(vm, most, room) || self.evict_read(vm, most, room) {
            return true;
        }
        let oldest = self.vms[vm].lists[Place::Ahead as usize].oldest;
        if !ahead_too || oldest == NONE {
            return false;
        }
        self.take_ahead(oldest, most, room)
    }

    /// Let blocks of this node go that nobody has read, `most` of them, the lowest first.
    fn take_ahead(&mut self, node: u32, most: usize, room: &mut Room<'_>) -> bool {
        let Node { valid, unused, .. } = self.nodes[node];
        self.take(node, lowest(valid & unused, most), room);
        true
    }

    /// As [`Blocks::take_ahead`], of those that were read: of the oldest node in the small queue or
    /// in main. What of it was used moves on.
    fn evict_read(&mut self, vm: usize, most: usize, room: &mut Room<'_>) -> bool {
        let mut steps = 0;
        loop {
            let lists = &self.vms[vm].lists;
            let [small, main] = [Place::Small, Place::Main].map(|p| lists[p as usize].blocks);
            let is_main = small * SMALL_PART <= small + main && main > 0;
            let place = if is_main { Place::Main } else { Place::Small };
            let n = lists[place as usize].oldest;
            if n == NONE {
                return false;
            }
            let node = &self.nodes[n];
            let here = node.blocks(place);
            let stay = if is_main { node.used_once() } else { node.used_twice() };
            let goes = here & if steps < STEPS_MAX { !stay } else { !0 };
            if goes == 0 {
                self.go_on(vm, n, place, here);
                steps += 1;
                continue;
            }
            let (goes, home) = (lowest(goes, most), node.home());
            self.take(n, goes, room);
            if !is_main {
                let known = &mut self.vms[vm];
                known.let_go += u64::from(goes.count_ones());
                self.index.remember(home, goes, known.let_go);
            }
            return true;
        }
    }

    /// Blocks at the old end of a queue were used: they go to main, or to its new end.
    fn go_on(&mut self, vm: usize, n: u32, place: Place, blocks: Mask) {
        let node = &mut self.nodes[n];
        if place == Place::Main {
            node.less_uses(blocks);
            let list = &mut self.vms[vm].lists[place as usize];
            list.remove(&mut self.nodes, place, n);
            list.push(&mut self.nodes, place, n);
            return;
        }
        let was = node.was();
        node.clear_uses(blocks);
        node.main |= blocks;
        self.settle(n, was);
    }

    /// Let blocks of the node go that waits ahead longest, if its stream has moved on.
    #[inline]
    fn evict_stale(&mut self, vm: usize, most: usize, room: &mut Room<'_>) -> bool {
        let known = &self.vms[vm];
        let oldest = known.lists[Place::Ahead as usize].oldest;
        if oldest == NONE {
            return false;
        }
        let now = known.granule(self.granule_bits);
        let age = u64::from(self.nodes[oldest].age(now));
        if age <= known.held >> self.granule_bits {
            return false;
        }
        self.take_ahead(oldest, most, room)
    }
}

#[cfg(test)]
mod index_tests {
    use super::*;
    use seekway_core::request::VmId;

    #[test]
    fn lopsided_nodes_make_no_long_chains() {
        const FRAMES: u32 = 1 << 16;
        type Pattern = fn(u64) -> (u16, u64);
        let patterns: [(&str, Pattern); 4] = [
            ("a run", |n| (0, n * 16)),
            ("every eighth", |n| (0, n * 16 * 8)),
            ("every 2^20th", |n| (0, n << 24)),
            ("a node of each VM", |n| (n as u16, 0)),
        ];
        for (pattern_name, pattern) in patterns {
            let (mut index, mut nodes) = (Index::new(FRAMES, 1), Nodes::new(FRAMES));
            let name = |n: u32| {
                let (vm, block) = pattern(n.into());
                Name::of(VmId::new(vm), block).unwrap()
            };
            for n in 0..FRAMES {
                assert_eq!(index.find(&nodes, name(n)), None);
                let home = index.home(name(n));
                assert_eq!(nodes.add(name(n), home), n);
                index.insert(&mut nodes, n);
            }
            let longest = index.chains(&nodes).max().unwrap();
            assert!(longest <= 12, "{pattern_name}: {longest} nodes in a chain");
            // Half of it goes, and the other half is found.
            (1..FRAMES).step_by(2).for_each(|n| index.remove(&mut nodes, n));
            for n in 0..FRAMES {
                let found = index.peek(&nodes, name(n));
                assert_eq!(found, (n % 2 == 0).then_some(n), "{pattern_name}");
            }
        }
    }

    #[test]
    fn what_is_too_old_is_forgotten() {
        let mut index = Index::new(1 << 10, 1);
        let name = |n: u64| Name::of(VmId::new(3), n * 16 * 8).unwrap();
        for n in 0..10_000 {
            let home = index.home(name(n));
            index.remember(home, 1 << (n % 16), n + 1);
        }
        let mut remembers = |n, recent| {
            let home = index.home(name(n));
            index.remembered(home, 10_000, recent) >> (n % 16) & 1 == 1
        };
        let remembered = (0..10_000).filter(|&n| remembers(n, 100)).count();
        // Time is counted in units of 64 blocks here.
        assert!((64..=192).contains(&remembered), "{remembered}");
        // 1024 ghosts are there, in 128 lines: chance lets some go early.
        let remembered = (9_500..10_000).filter(|&n| remembers(n, 1000)).count();
        assert!(remembered >= 440, "{remembered}");
        assert!(!remembers(20_000, 1000));
    }
}
