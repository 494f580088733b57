//! What is known of a node: 16 neighbouring blocks of one VM's disk (64 KiB).
//!
//! A node has one cache line: its name, masks with a bit for each of its
//! blocks, its place in a queue, and where the frames of its blocks are found.
//! These are kept by quarters of four blocks: a quarter with one block has its
//! frame in the node itself, a larger one has a [`Quad`]. So 64 bytes and a
//! quad's share of half a frame (8 bytes) are what a block costs at most, when
//! guests read one block here and one there.

use super::{BLOCKS_END, Frame};
use seekway_core::request::VmId;
use std::hint::black_box;

/// Blocks of a node.
pub(super) const NODE_BLOCKS: u64 = 16;
/// Blocks of a quarter of it.
const QUARTER: usize = 4;
/// No node, or no quad.
pub(super) const NONE: u32 = u32::MAX;

/// Granules: twice as many as any cache has ([`GRANULES_MAX`](super::GRANULES_MAX)).
const AGE_MAX: u16 = 1 << 15;

/// A bit for each block of a node, the lowest for the first.
pub(super) type Mask = u16;

/// The frames of a quarter, by block.
type Quad = [u32; QUARTER];

/// The list of its VM in which a node stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// It has blocks that were prefetched and not read yet.
    Ahead = 0,
    /// Its blocks are being read into, all of them.
    Coming = 1,
    /// None: all that it has was read, and stands in [runs](super::runs).
    None = 2,
}

/// A VM's node, by number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Name(pub(super) u64);

impl Name {
    /// The node of a block; `None` for a block that is not cached.
    pub(super) fn of(vm: VmId, block: u64) -> Option<Name> {
        (block < BLOCKS_END).then(|| Name(((vm.index() as u64) << 48) | (block / NODE_BLOCKS)))
    }
    pub(super) fn vm(self) -> VmId {
        VmId::new((self.0 >> 48) as u16)
    }
    pub(super) fn first_block(self) -> u64 {
        (self.0 & (BLOCKS_END - 1)) * NODE_BLOCKS
    }
}

/// `len` blocks from `first` on, all in one node.
pub(super) fn mask(first: u64, len: u64) -> Mask {
    (((1u32 << len) - 1) << (first % NODE_BLOCKS)) as Mask
}

/// The blocks of a mask, as numbers from 0 to 15.
pub(super) fn slots(mut mask: Mask) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = mask.trailing_zeros() as usize;
        mask &= mask.checked_sub(1)?;
        Some(slot)
    })
}

/// The blocks of a mask as runs, each from its first to before its end.
pub(super) fn runs(mut mask: Mask) -> impl Iterator<Item = (u64, u64)> {
    std::iter::from_fn(move || {
        let first = mask.trailing_zeros();
        let len = mask.checked_shr(first)?.trailing_ones();
        mask &= !self::mask(first.into(), len.into());
        Some((first.into(), (first + len).into()))
    })
}

/// The lowest blocks of a mask, `most` of them.
pub(super) fn lowest(mask: Mask, most: usize) -> Mask {
    let mut left = mask;
    for _ in 0..most {
        left &= left.saturating_sub(1);
    }
    mask & !left
}

/// Which home in the [index](super::index) a node has.
#[derive(Clone, Copy)]
pub(super) struct Home {
    pub line: u32,
    /// Tells nodes with one line from each other, most of the time.
    pub print: u16,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Node {
    pub name: Name,
    /// By quarter: the frame of its only block, or a quad.
    frames: [u32; QUARTER],
    line: u32,
    /// The nodes behind it and before it in the chain of its home.
    pub after: u32,
    pub before: u32,
    pub newer: u32,
    pub older: u32,
    print: u16,
    /// Granule of its VM's clock in which a block of it was last filled or used.
    stamp: u16,
    pub valid: Mask,
    pub filling: Mask,
    /// Those that nobody has read yet: prefetched.
    pub unused: Mask,
    pub prefetched: Mask,
    /// Filled, used for the first time, or counted as used in granule `stamp`.
    counted: Mask,
    /// Uses of each block since it was read for the first time, 0 to 3: the
    /// low bits and the high bits.
    uses: [Mask; 2],
    /// Those that stand in the main queue, or are to enter it.
    pub main: Mask,
}

const _: () = assert!(size_of::<Node>() == 64);

impl Node {
    const EMPTY: Node = Node {
        name: Name(0),
        frames: [NONE; QUARTER],
        line: 0,
        after: NONE,
        before: NONE,
        newer: NONE,
        older: NONE,
        print: 0,
        stamp: 0,
        valid: 0,
        filling: 0,
        unused: 0,
        prefetched: 0,
        counted: 0,
        uses: [0; 2],
        main: 0,
    };

    pub(super) fn home(&self) -> Home {
        Home { line: self.line, print: self.print }
    }
    /// Tells nodes with one line from each other, most of the time.
    pub(super) fn print(&self) -> u16 {
        self.print
    }
    pub(super) fn place(&self) -> Place {
        match self {
            _ if self.valid & self.unused != 0 => Place::Ahead,
            _ if self.valid == 0 => Place::Coming,
            _ => Place::None,
        }
    }
    /// What [`Blocks::settle`](super::Blocks::settle) wants to know of before.
    pub(super) fn was(&self) -> (Place, u16) {
        (self.place(), self.stamp)
    }
    /// Granules since a block of it was filled or used.
    pub(super) fn age(&self, granule: u16) -> u16 {
        granule.wrapping_sub(self.stamp)
    }
    /// As old as can be: older than whatever a cache holds.
    pub(super) fn grow_old(&mut self, granule: u16) {
        self.stamp = granule.wrapping_sub(AGE_MAX);
    }
    /// Blocks that have a frame.
    pub(super) fn present(&self) -> Mask {
        self.valid | self.filling
    }
    /// Blocks that are valid and were read.
    pub(super) fn read(&self) -> Mask {
        self.valid & !self.unused
    }
    /// Blocks used more than once again.
    pub(super) fn used_twice(&self) -> Mask {
        self.uses[1]
    }
    /// Blocks that were used at least once since their first reading.
    pub(super) fn used_once(&self) -> Mask {
        self.uses[0] | self.uses[1]
    }
    pub(super) fn clear_uses(&mut self, blocks: Mask) {
        self.uses = self.uses.map(|uses| uses & !blocks);
    }
    /// Each of these blocks that was used has one use less.
    pub(super) fn less_uses(&mut self, blocks: Mask) {
        let [low, high] = self.uses;
        let less = blocks & (low | high);
        self.uses = [low ^ less, high & !(less & !low)];
    }

    /// Uses of these blocks count from the next granule on.
    pub(super) fn mark(&mut self, granule: u16, blocks: Mask) {
        self.turn(granule);
        self.counted |= blocks;
    }

    /// A use of these blocks in this granule counts, if none did in the same.
    pub(super) fn count(&mut self, granule: u16, blocks: Mask) {
        self.turn(granule);
        let [low, high] = self.uses;
        let more = blocks & !self.counted & !(low & high);
        self.uses = [low ^ more, high ^ (low & more)];
        self.counted |= blocks;
    }

    fn turn(&mut self, granule: u16) {
        if self.stamp != granule {
            (self.stamp, self.counted) = (granule, 0);
        }
    }

    /// Blocks that are absent are to be read into frames.
    pub(super) fn begin(&mut self, granule: u16, blocks: Mask, prefetched: bool) {
        self.filling |= blocks;
        if prefetched {
            (self.unused, self.prefetched) = (self.unused | blocks, self.prefetched | blocks);
        }
        self.mark(granule, blocks);
    }

    /// Nothing is known of these blocks any more.
    fn clear(&mut self, blocks: Mask) {
        let Node { valid, filling, unused, prefetched, counted, uses: [low, high], main, .. } =
            self;
        for mask in [valid, filling, unused, prefetched, counted, low, high, main] {
            *mask &= !blocks;
        }
    }
}

/// All nodes, and the quads of their frames.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Nodes {
    all: Vec<Node>,
    /// The first free node; the others follow by `after`.
    free: u32,
    quads: Vec<Quad>,
    /// Linked by their first entry.
    free_quad: u32,
}

impl Nodes {
    /// For blocks in so many frames. The memory is the system's until it is used.
    pub(super) fn new(frames: u32) -> Nodes {
        let all = Vec::with_capacity(frames as usize);
        let quads = Vec::with_capacity(frames as usize / 2);
        Nodes { all, free: NONE, quads, free_quad: NONE }
    }

    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Node>() + self.quads.capacity() * size_of::<Quad>()
    }

    /// A node without blocks.
    pub(super) fn add(&mut self, name: Name, home: Home) -> u32 {
        let n = match self.all.get(self.free as usize) {
            Some(free) => std::mem::replace(&mut self.free, free.after),
            None => {
                self.all.push(Node::EMPTY);
                self.all.len() as u32 - 1
            }
        };
        // In place, not built elsewhere and copied.
        let node = &mut self[n];
        *node = Node::EMPTY;
        (node.name, node.line, node.print) = (name, home.line, home.print);
        n
    }

    /// A node without blocks is no more.
    pub(super) fn remove(&mut self, n: u32) {
        self.all[n as usize].after = self.free;
        self.free = n;
    }

    /// The frame of a block that is present.
    #[inline]
    pub(super) fn frame(&self, n: u32, slot: usize) -> Frame {
        let (node, quarter) = (&self[n], slot / QUARTER % QUARTER);
        let at = node.frames[quarter];
        Frame(match part(node.present(), quarter).is_power_of_two() {
            true => at,
            false => self.quads[at as usize][slot % QUARTER],
        })
    }

    /// Blocks that have no frame get one each, from the lowest on; they are
    /// present when this was done.
    pub(super) fn set_frames(&mut self, n: u32, blocks: Mask, mut frames: &[Frame]) {
        let present = self[n].present();
        for quarter in 0..QUARTER {
            let (old, new) = (part(present, quarter), part(blocks, quarter));
            if new == 0 {
                continue;
            }
            let (here, rest) = frames.split_at(new.count_ones() as usize);
            frames = rest;
            if old == 0 && here.len() == 1 {
                self[n].frames[quarter] = here[0].0;
                continue;
            }
            let mut at = self[n].frames[quarter];
            if old & old.wrapping_sub(1) == 0 {
                let only = std::mem::replace(&mut at, self.add_quad());
                self.quads[at as usize][old.trailing_zeros() as usize % QUARTER] = only;
                self[n].frames[quarter] = at;
            }
            let quad = &mut self.quads[at as usize];
            slots(new).zip(here).for_each(|(slot, frame)| quad[slot % QUARTER] = frame.0);
        }
    }

    /// Blocks that are present are so no more.
    pub(super) fn take(&mut self, n: u32, blocks: Mask) {
        let present = self[n].present();
        self[n].clear(blocks);
        for quarter in 0..QUARTER {
            let (old, gone) = (part(present, quarter), part(blocks, quarter));
            let left = old & !gone;
            if gone == 0 || old.is_power_of_two() || left.count_ones() > 1 {
                continue;
            }
            let at = self[n].frames[quarter];
            let quad = &mut self.quads[at as usize];
            self.all[n as usize].frames[quarter] = quad[left.trailing_zeros() as usize % QUARTER];
            quad[0] = std::mem::replace(&mut self.free_quad, at);
        }
    }

    /// Have the processor fetch the quads of a node.
    #[inline]
    pub(super) fn warm(&self, n: u32) {
        let (node, present) = (&self[n], self[n].present());
        for (quarter, &at) in node.frames.iter().enumerate() {
            if part(present, quarter).count_ones() > 1 {
                black_box(self.quads[at as usize][0]);
            }
        }
    }

    fn add_quad(&mut self) -> u32 {
        match self.quads.get(self.free_quad as usize) {
            Some(free) => std::mem::replace(&mut self.free_quad, free[0]),
            None => {
                self.quads.push([NONE; QUARTER]);
                self.quads.len() as u32 - 1
            }
        }
    }
}

/// Of a mask, the bits of one quarter.
fn part(mask: Mask, quarter: usize) -> Mask {
    mask >> (quarter * QUARTER) & 0xf
}

impl std::ops::Index<u32> for Nodes {
    type Output = Node;
    fn index(&self, n: u32) -> &Node {
        &self.all[n as usize]
    }
}

impl std::ops::IndexMut<u32> for Nodes {
    fn index_mut(&mut self, n: u32) -> &mut Node {
        &mut self.all[n as usize]
    }
}

/// A list of nodes, linked through them.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub newest: u32,
    pub oldest: u32,
}

impl Default for List {
    fn default() -> List {
        List { newest: NONE, oldest: NONE }
    }
}

impl List {
    pub(super) fn push(&mut self, nodes: &mut Nodes, n: u32) {
        let node = &mut nodes[n];
        (node.older, node.newer) = (self.newest, NONE);
        match std::mem::replace(&mut self.newest, n) {
            NONE => self.oldest = n,
            newest => nodes[newest].newer = n,
        }
    }

    pub(super) fn push_oldest(&mut self, nodes: &mut Nodes, n: u32) {
        let node = &mut nodes[n];
        (node.older, node.newer) = (NONE, self.oldest);
        match std::mem::replace(&mut self.oldest, n) {
            NONE => self.newest = n,
            oldest => nodes[oldest].older = n,
        }
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, n: u32) {
        let &Node { older, newer, .. } = &nodes[n];
        match older {
            NONE => self.oldest = newer,
            older => nodes[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => nodes[newer].older = older,
        }
    }
}
