//! Where a node is found by its name, and which were let go not long ago.
//!
//! A hash table with chains through the nodes. Eight neighbouring nodes (512 KiB
//! of a disk) have one line of the table, and each of them a chain of its
//! own there, so that streams seldom have to wait for another line. `mix` spreads
//! the nodes over the chains: whichever a guest chooses, only those with the number
//! modulo 8 that it likes among them, a chain has one node on average, at most.
//!
//! Guests choose the numbers, so the hash is a keyed one, once for eight nodes. `std`'s map would
//! take 34 bytes for each of a million nodes where this takes 4.
//!
//! # Ghosts
//!
//! A block that comes back soon is worth more than its first reading told. The
//! ghost queue of S3-FIFO is kept as its paper advises (section 4.2): a table of
//! fingerprints with the time at which each was entered, that is never swept.
//! A ghost has blocks of one node that went at nearly the same time; each line has
//! the last eight of those whose home it is. It only ever guesses: a wrong answer
//! costs a little hit rate and nothing else.

use super::nodes::{Home, Mask, NONE, Name, Nodes};
use std::hash::{DefaultHasher, Hasher};

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
pub(super) struct Index {
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
    pub(super) fn new(frames: u32, seed: u64) -> Self {
        let lines = (frames as usize).div_ceil(LANES).max(1);
        let shift = (frames >> 5).checked_ilog2().map_or(0, |bits| bits + 1);
        let line = Line { heads: [NONE; LANES], ghosts: [NO_GHOST; GHOSTS] };
        Index { lines: vec![line; lines], seed, shift, near: (0, hash(seed, 0)) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// The home of a node. Looked for first among the last ones' neighbours.
    pub(super) fn home(&mut self, name: Name) -> Home {
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
    pub(super) fn find(&mut self, nodes: &Nodes, name: Name) -> Option<u32> {
        let home = self.home(name);
        self.find_at(nodes, home, name)
    }

    /// As [`Index::find`], and changes nothing.
    pub(super) fn peek(&self, nodes: &Nodes, name: Name) -> Option<u32> {
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
    pub(super) fn insert(&mut self, nodes: &mut Nodes, n: u32) {
        let home = nodes[n].home();
        let line = &mut self.lines[home.line as usize];
        let after = std::mem::replace(&mut line.heads[home.lane()], n);
        nodes[n].after = after;
    }

    /// Take a node out.
    pub(super) fn remove(&mut self, nodes: &mut Nodes, n: u32) {
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
    pub(super) fn remember(&mut self, home: Home, blocks: Mask, let_go: u64) {
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
    pub(super) fn remembered(&self, home: Home, let_go: u64, recent: u64) -> Mask {
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

    pub(super) fn len(&self, nodes: &Nodes) -> usize {
        self.chains(nodes).sum()
    }
}

#[cfg(test)]
mod tests {
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
