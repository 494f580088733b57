//! A node: 16 neighbouring blocks of one VM's disk (64 KiB).
//!
//! A node has its name, the frames of its blocks, masks with a bit for each of them, and its
//! neighbours in its VM's lists. It takes 128 bytes: 128 for each block when guests read one block
//! here and one there, 8 when they read whole nodes.

use super::{BLOCKS_END, Frame};
use seekway_core::request::VmId;

/// Blocks of a node.
pub(super) const NODE_BLOCKS: u64 = 16;
/// No node, or no frame.
pub(super) const NONE: u32 = u32::MAX;

/// Granules: twice as many as any cache has ([`GRANULES_MAX`](super::GRANULES_MAX)).
const AGE_MAX: u16 = 1 << 15;

/// A bit for each block of a node, the lowest for the first.
pub(super) type Mask = u16;

/// A list of its VM in which a node stands: in each for whose blocks it has some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Blocks that were prefetched and not read yet.
    Ahead = 0,
    /// Blocks that are being read into, where that is all.
    Coming = 1,
    /// Read recently and once.
    Small = 2,
    /// Read again.
    Main = 3,
}

impl Place {
    pub(super) const ALL: [Place; 4] = [Place::Ahead, Place::Coming, Place::Small, Place::Main];

    /// Which of a node's links it uses: no node is ahead and coming.
    fn link(self) -> usize {
        (self as usize).saturating_sub(1)
    }
}

/// A node's neighbours in a list.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub newer: u32,
    pub older: u32,
}

/// State of a node before it changed.
#[derive(Clone, Copy)]
pub(super) struct Was {
    /// By [`Place`].
    pub blocks: [Mask; 4],
    pub stamp: u16,
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

/// Which home in the index a node has.
#[derive(Clone, Copy)]
pub(super) struct Home {
    pub line: u32,
    /// Tells nodes with one line from each other, most of the time.
    pub print: u16,
}

#[derive(Clone, Copy)]
pub(super) struct Node {
    pub name: Name,
    /// By block; of those that are absent it says nothing.
    frames: [u32; NODE_BLOCKS as usize],
    line: u32,
    /// The node behind it in the chain of its home.
    pub after: u32,
    links: [Link; 3],
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

const _: () = assert!(size_of::<Node>() == 128);

impl Node {
    const EMPTY: Node = Node {
        name: Name(0),
        frames: [NONE; NODE_BLOCKS as usize],
        line: 0,
        after: NONE,
        links: [Link { newer: NONE, older: NONE }; 3],
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
    /// Its blocks for which it stands in a list.
    pub(super) fn blocks(&self, place: Place) -> Mask {
        match place {
            Place::Ahead => self.valid & self.unused,
            Place::Coming if self.valid == 0 => self.filling,
            Place::Coming => 0,
            Place::Small => self.read() & !self.main,
            Place::Main => self.read() & self.main,
        }
    }
    /// State that [`Blocks::settle`](super::Blocks::settle) compares with.
    pub(super) fn was(&self) -> Was {
        Was { blocks: Place::ALL.map(|place| self.blocks(place)), stamp: self.stamp }
    }
    /// The one before it and the one behind it in a list.
    pub(super) fn link(&self, place: Place) -> Link {
        self.links[place.link()]
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

    /// The frame of a block that is present.
    #[inline]
    pub(super) fn frame(&self, slot: usize) -> Frame {
        Frame(self.frames[slot % NODE_BLOCKS as usize])
    }

    /// Blocks that are absent are to be read into these frames.
    pub(super) fn begin(&mut self, granule: u16, blocks: Mask, frames: &[Frame], prefetched: bool) {
        slots(blocks).zip(frames).for_each(|(slot, frame)| self.frames[slot] = frame.0);
        self.filling |= blocks;
        if prefetched {
            (self.unused, self.prefetched) = (self.unused | blocks, self.prefetched | blocks);
        }
        self.mark(granule, blocks);
    }

    /// Nothing is known of these blocks any more.
    pub(super) fn clear(&mut self, blocks: Mask) {
        let Node { valid, filling, unused, prefetched, counted, uses: [low, high], main, .. } =
            self;
        for mask in [valid, filling, unused, prefetched, counted, low, high, main] {
            *mask &= !blocks;
        }
    }
}

/// All nodes.
pub(super) struct Nodes {
    all: Vec<Node>,
    /// The first free node; the others follow by `after`.
    free: u32,
}

impl Nodes {
    /// Nodes for blocks in `frames`. The memory is the system's until it is used.
    pub(super) fn new(frames: u32) -> Nodes {
        Nodes { all: Vec::with_capacity(frames as usize), free: NONE }
    }

    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Node>()
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
    /// The blocks for which they stand in it.
    pub blocks: u64,
}

impl Default for List {
    fn default() -> List {
        List { newest: NONE, oldest: NONE, blocks: 0 }
    }
}

impl List {
    pub(super) fn push(&mut self, nodes: &mut Nodes, place: Place, n: u32) {
        let link = place.link();
        nodes[n].links[link] = Link { newer: NONE, older: self.newest };
        match std::mem::replace(&mut self.newest, n) {
            NONE => self.oldest = n,
            newest => nodes[newest].links[link].newer = n,
        }
    }

    pub(super) fn push_oldest(&mut self, nodes: &mut Nodes, place: Place, n: u32) {
        let link = place.link();
        nodes[n].links[link] = Link { newer: self.oldest, older: NONE };
        match std::mem::replace(&mut self.oldest, n) {
            NONE => self.newest = n,
            oldest => nodes[oldest].links[link].older = n,
        }
    }

    pub(super) fn remove(&mut self, nodes: &mut Nodes, place: Place, n: u32) {
        let link = place.link();
        let Link { newer, older } = nodes[n].links[link];
        match older {
            NONE => self.oldest = newer,
            older => nodes[older].links[link].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => nodes[newer].links[link].older = older,
        }
    }
}
