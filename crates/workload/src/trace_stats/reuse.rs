//! Blocks that a trace touches, and the reads that a cache of each size would answer, in bounded
//! memory.
//!
//! A block that is read again is a hit in an LRU cache that holds as many blocks as were touched
//! from its last use on (Mattson et al., IBM Systems Journal 1970). Of all blocks a sample is
//! followed, chosen by a hash of their addresses, at a rate that falls as blocks are added so that
//! their number keeps its bound; distances are scaled by the rate (SHARDS, fixed size: Waldspurger
//! et al., FAST 2015). What the sample has of the reads too many or too few counts as hits of the
//! smallest cache, as the paper's adjustment has it. Number of blocks touched: the sample's over
//! its rate (Bar-Yossef et al., RANDOM 2002). Until the bound is reached, all is exact.

use super::counts::round_up;
use seekway_core::mix::mix64;
use seekway_core::units::{Lba, Sectors};
use std::collections::{BTreeMap, HashMap};

/// A block in sectors: 4 KiB, a page of a cache.
pub const BLOCK_SECTORS: u64 = 8;
/// Blocks that are followed: 6 MiB of memory, and 0.4 % of error in the number of blocks.
pub const SAMPLE_MAX: usize = 1 << 16;
/// Most blocks of a request that are looked at, 64 MiB.
const REQUEST_BLOCKS_MAX: u64 = 1 << 14;
/// Significant bits of a cache's size: four sizes for each doubling.
const BITS: u32 = 3;

/// Reuse of the blocks of a trace.
#[derive(Clone, Debug)]
pub struct Reuse {
    /// By the hash of their addresses, all below `below`.
    sample: BTreeMap<u64, Block>,
    /// 2^64 when all blocks are followed.
    below: u128,
    order: Order,
    /// Most blocks in `sample`.
    most: usize,
    /// By size of the cache in blocks: reads of blocks that this one finds and a smaller one does
    /// not.
    hits: BTreeMap<u64, f64>,
    /// Blocks that were read, again or not; and their number by the sample.
    reads: u64,
    reads_sampled: f64,
    /// Requests of which a part was left out.
    cut: u64,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    volume: u32,
    /// Time of its last use, in [`Order`].
    slot: u32,
    is_read: bool,
    is_written: bool,
}

/// Blocks that were touched.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Touched {
    pub blocks: f64,
    pub read: f64,
    pub written: f64,
}

impl Default for Reuse {
    fn default() -> Reuse {
        Reuse::new(SAMPLE_MAX)
    }
}

impl Reuse {
    /// Follows at most `most` blocks.
    fn new(most: usize) -> Reuse {
        Reuse {
            sample: BTreeMap::new(),
            below: 1 << 64,
            order: Order::new(most),
            most,
            hits: BTreeMap::new(),
            reads: 0,
            reads_sampled: 0.0,
            cut: 0,
        }
    }

    /// A read or a write of an extent.
    pub fn add(&mut self, volume: u32, start: Lba, len: Sectors, is_read: bool) {
        let first = start.get() / BLOCK_SECTORS;
        let end = (start.get() + len.get()).div_ceil(BLOCK_SECTORS);
        let seen = end.min(first + REQUEST_BLOCKS_MAX);
        self.cut += u64::from(seen < end);
        if is_read {
            self.reads += seen - first;
        }
        let of_volume = mix64(u64::from(volume) + 1);
        for block in first..seen {
            let hash = mix64(block ^ of_volume);
            if u128::from(hash) < self.below {
                self.touch(hash, volume, is_read);
            }
        }
    }

    /// Share of the blocks that are followed: 1 if all are.
    pub fn rate(&self) -> f64 {
        self.below as f64 / 2_f64.powi(64)
    }

    fn touch(&mut self, hash: u64, volume: u32, is_read: bool) {
        let weight = 1.0 / self.rate();
        if is_read {
            self.reads_sampled += weight;
        }
        if !self.order.has_room() {
            self.renumber();
        }
        let slot = self.order.push();
        let Some(block) = self.sample.get_mut(&hash) else {
            self.sample.insert(hash, Block { volume, slot, is_read, is_written: !is_read });
            if self.sample.len() > self.most {
                self.thin();
            }
            return;
        };
        // Later ones, and the block itself: its new use, its old one being still there.
        let newer = self.order.after(block.slot);
        self.order.remove(block.slot);
        block.slot = slot;
        (block.is_read, block.is_written) =
            (block.is_read || is_read, block.is_written || !is_read);
        if is_read {
            let others = (newer - 1) as f64 * weight;
            *self.hits.entry(round_up(others as u64 + 1, BITS)).or_default() += weight;
        }
    }

    /// Lets the block with the greatest hash go, and takes none with this or a greater one any
    /// more.
    fn thin(&mut self) {
        if let Some((hash, block)) = self.sample.pop_last() {
            self.order.remove(block.slot);
            self.below = hash.into();
        }
    }

    /// Gives the blocks the first slots, in the order of their last uses.
    #[cold]
    fn renumber(&mut self) {
        let mut blocks: Vec<&mut Block> = self.sample.values_mut().collect();
        blocks.sort_unstable_by_key(|block| block.slot);
        self.order = Order::new(self.most);
        for block in blocks {
            block.slot = self.order.push();
        }
    }

    /// The blocks that were touched.
    pub fn touched(&self) -> Touched {
        self.sum(self.sample.values())
    }

    /// The blocks that were touched, by volume, and the number of them that are followed.
    pub fn touched_by_volume(&self) -> HashMap<u32, (Touched, usize)> {
        let mut blocks: HashMap<u32, Vec<&Block>> = HashMap::new();
        for block in self.sample.values() {
            blocks.entry(block.volume).or_default().push(block);
        }
        let of = |blocks: Vec<&Block>| (self.sum(blocks.iter().copied()), blocks.len());
        blocks.into_iter().map(|(volume, blocks)| (volume, of(blocks))).collect()
    }

    fn sum<'a>(&self, blocks: impl Iterator<Item = &'a Block>) -> Touched {
        let one = 1.0 / self.rate();
        blocks.fold(Touched::default(), |sum, block| Touched {
            blocks: sum.blocks + one,
            read: sum.read + one * f64::from(u8::from(block.is_read)),
            written: sum.written + one * f64::from(u8::from(block.is_written)),
        })
    }

    /// Relative standard error of a number of blocks of which this many are followed.
    pub fn error(&self, followed: usize) -> f64 {
        if self.rate() == 1.0 { 0.0 } else { 1.0 / (followed.max(1) as f64).sqrt() }
    }

    /// Number of blocks that are followed.
    pub fn followed(&self) -> usize {
        self.sample.len()
    }

    /// Number of requests longer than 64 MiB, whose rest was left out.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Sizes of a cache in blocks, ascending, each with the share of the blocks read that it does
    /// not find. The last finds all that is read again; empty if nothing is read.
    pub fn misses(&self) -> Vec<(u64, f64)> {
        if self.reads == 0 {
            return Vec::new();
        }
        let reads = self.reads as f64;
        let mut hits = reads - self.reads_sampled;
        let miss = |hits: f64| ((reads - hits) / reads).clamp(0.0, 1.0);
        let again = self.hits.iter().map(|(size, more)| {
            hits += more;
            (*size, miss(hits))
        });
        again.collect()
    }
}

/// Order of the last uses: a Fenwick tree over slots, in the order of time.
#[derive(Clone, Debug)]
struct Order {
    /// Node `n` has the number of used slots in those below `n` that its lowest bit spans.
    tree: Vec<u32>,
    /// The next slot.
    next: u32,
    used: u32,
}

impl Order {
    /// Room for twice as many uses as blocks.
    fn new(blocks: usize) -> Order {
        Order { tree: vec![0; 2 * blocks + 3], next: 0, used: 0 }
    }

    fn has_room(&self) -> bool {
        (self.next as usize) + 1 < self.tree.len()
    }

    fn push(&mut self) -> u32 {
        let slot = self.next;
        self.next += 1;
        self.used += 1;
        self.change(slot, 1);
        slot
    }

    fn remove(&mut self, slot: u32) {
        self.used -= 1;
        self.change(slot, -1);
    }

    fn change(&mut self, slot: u32, by: i32) {
        let mut node = slot as usize + 1;
        while let Some(count) = self.tree.get_mut(node) {
            *count = count.wrapping_add_signed(by);
            node += node & node.wrapping_neg();
        }
    }

    /// Number of used slots after this one.
    fn after(&self, slot: u32) -> u32 {
        let (mut node, mut until) = (slot as usize + 1, 0);
        while node > 0 {
            until += self.tree[node];
            node -= node & node.wrapping_neg();
        }
        self.used - until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn read(reuse: &mut Reuse, block: u64) {
        reuse.add(0, Lba::new(block * BLOCK_SECTORS), Sectors::new(BLOCK_SECTORS), true);
    }

    /// Blocks read that a cache of this size misses.
    fn missed(reuse: &Reuse, blocks: u64) -> f64 {
        let misses = reuse.misses();
        misses.iter().rev().find(|(size, _)| *size <= blocks).map_or(1.0, |(_, share)| *share)
    }

    #[test]
    fn a_loop_is_found_by_a_cache_that_holds_it() {
        let mut reuse = Reuse::default();
        for _ in 0..4 {
            (0..40).for_each(|block| read(&mut reuse, block));
        }
        assert_eq!(reuse.misses(), [(40, 0.25)]);
        assert_eq!(reuse.touched(), Touched { blocks: 40.0, read: 40.0, written: 0.0 });
        assert_eq!(reuse.error(reuse.followed()), 0.0);
    }

    #[test]
    fn writes_keep_a_block_and_are_no_hits() {
        let mut reuse = Reuse::default();
        let sectors = |n: u64| (Lba::new(n), Sectors::new(1));
        // Block 0, then 1 and 2 by one request across both, then 0 of another volume.
        let ((first, one), (last, _)) = (sectors(0), sectors(15));
        reuse.add(0, first, one, false);
        reuse.add(0, last, Sectors::new(2), false);
        reuse.add(1, first, one, true);
        reuse.add(0, last, one, true);
        // 0 is the fourth from the newest: 1, 0 of the other volume, 2, 0.
        reuse.add(0, first, one, true);
        assert_eq!(reuse.misses(), [(3, 2.0 / 3.0), (4, 1.0 / 3.0)]);
        assert_eq!(reuse.touched(), Touched { blocks: 4.0, read: 3.0, written: 3.0 });
        let by_volume = reuse.touched_by_volume();
        assert_eq!(by_volume[&1], (Touched { blocks: 1.0, read: 1.0, written: 0.0 }, 1));
        assert_eq!(by_volume[&0].0.blocks, 3.0);
    }

    #[test]
    fn what_is_too_long_is_cut_and_counted() {
        let mut reuse = Reuse::default();
        reuse.add(0, Lba::ZERO, Sectors::new(1 << 31), true);
        assert_eq!((reuse.cut(), reuse.reads), (1, REQUEST_BLOCKS_MAX));
    }

    /// The sample has a 16th of the blocks; both hot and cold ones are read at random.
    #[test]
    fn a_sample_is_near_all() {
        let (mut all, mut some) = (Reuse::new(1 << 20), Reuse::new(1 << 11));
        let mut rng = Rng::new(7);
        for _ in 0..400_000 {
            let range = if rng.below(2) == 0 { 2_000 } else { 32_768 };
            let block = rng.below(range);
            read(&mut all, block);
            read(&mut some, block);
        }
        assert_eq!((all.rate(), some.followed()), (1.0, 1 << 11));
        assert!((0.05..0.08).contains(&some.rate()), "{}", some.rate());
        // Four standard errors of the number of blocks.
        let far = some.touched().blocks / all.touched().blocks - 1.0;
        assert!(far.abs() < 4.0 * some.error(1 << 11), "{far}");
        for blocks in (9..16).map(|n| 1 << n) {
            let (exact, estimate) = (missed(&all, blocks), missed(&some, blocks));
            assert!((exact - estimate).abs() < 0.02, "{blocks}: {exact} and {estimate}");
        }
    }

    #[test]
    fn uses_are_renumbered_in_their_order() {
        let mut reuse = Reuse::new(3);
        // Three blocks in a ring, far more often than there are slots.
        (0..100).for_each(|n| read(&mut reuse, n % 3));
        assert_eq!(reuse.misses(), [(3, 3.0 / 100.0)]);
        assert!(reuse.order.tree.len() < 12);
    }
}
