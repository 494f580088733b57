//! Reads into the cache that are under way, and who waits for them.

use super::KEPT_MAX;
use super::blocks::{Account, BLOCK_SECTORS, Frame};
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Lba, Sectors};
use std::collections::BTreeMap;

/// Names a fetch from its beginning to its end. Dense and used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FetchId(pub u32);

/// A guest's read that waits for a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The engine's own name for the read.
    pub token: u64,
    /// The extent that the waiter wants of the fetch.
    pub extent: Extent,
}

/// A read into the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// The VM whose disk is read.
    pub vm: VmId,
    /// For which of its processes, if known.
    pub tag: Option<ProcessTag>,
    /// The extent to read, from the beginning of a block.
    pub extent: Extent,
    /// Where to: one frame for each block.
    pub frames: Vec<Frame>,
    /// Reads that wait for it.
    pub waiters: Vec<Waiter>,
    /// Nobody asked for it when it began.
    pub prefetch: bool,
    /// The account in whose figures it counts; none once the VM has left.
    pub(super) account: Option<Account>,
    /// The reader that it is made for has gone elsewhere.
    pub(super) is_left: bool,
    /// The round of fetches that it began in.
    round: u64,
}

/// The fetches that have begun and not ended, by number.
#[derive(Default)]
pub(super) struct Fetches {
    slots: Vec<Fetch>,
    free: Vec<u32>,
    /// The fetch that is being put together, and the block that continues it.
    open: Option<(u32, u64)>,
    /// Counts the reads and proposals that began fetches.
    round: u64,
}

impl Fetch {
    /// The first block that is read.
    pub(super) fn first_block(&self) -> u64 {
        self.extent.start().get() / BLOCK_SECTORS
    }
}

impl Fetches {
    /// A new round begins: the next block begins a fetch.
    pub(super) fn open(&mut self) {
        self.open = None;
        self.round += 1;
    }

    /// Did this fetch begin in the last round?
    pub(super) fn is_new(&self, id: FetchId) -> bool {
        self.get(id).round == self.round
    }

    /// Blocks from `first` on are read into `frames`, by the fetch that is being put
    /// together if they continue it, else by a new one. How long it is its frames tell.
    pub(super) fn extend(&mut self, frames: &[Frame], first: u64) -> FetchId {
        let index = match self.open {
            Some((index, next)) if next == first => index,
            _ => self.begin(Lba::new(first * BLOCK_SECTORS)),
        };
        self.slots[index as usize].frames.extend_from_slice(frames);
        self.open = Some((index, first + frames.len() as u64));
        FetchId(index)
    }

    fn begin(&mut self, start: Lba) -> u32 {
        let extent = Extent::new(start, Sectors::new(1)).expect("the disk ends behind");
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Fetch {
                vm: VmId::new(0),
                tag: None,
                extent,
                frames: Vec::new(),
                waiters: Vec::new(),
                prefetch: false,
                account: None,
                is_left: false,
                round: 0,
            });
            self.slots.len() as u32 - 1
        });
        let fetch = &mut self.slots[index as usize];
        (fetch.extent, fetch.is_left, fetch.round) = (extent, false, self.round);
        index
    }

    pub(super) fn get(&self, id: FetchId) -> &Fetch {
        &self.slots[id.0 as usize]
    }
    pub(super) fn get_mut(&mut self, id: FetchId) -> &mut Fetch {
        &mut self.slots[id.0 as usize]
    }

    /// The VM has left: its fetches count for nobody.
    pub(super) fn disown(&mut self, vm: VmId) {
        for fetch in self.slots.iter_mut().filter(|fetch| fetch.vm == vm) {
            fetch.account = None;
        }
    }

    pub(super) fn remove(&mut self, id: FetchId) {
        let fetch = &mut self.slots[id.0 as usize];
        assert!(!fetch.frames.is_empty(), "{id:?} ends twice");
        fetch.frames.clear();
        fetch.waiters.clear();
        // What one huge read needed is not kept for all.
        fetch.frames.shrink_to(KEPT_MAX);
        fetch.waiters.shrink_to(KEPT_MAX);
        self.free.push(id.0);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

// A guest's read, cut by how each part of it is come by.

/// A part of a guest's read, and how to come by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// The cache has the data already.
    Cached(Extent),
    /// Brought by a fetch under way.
    Wait(FetchId, Extent),
    /// Brought by a fetch that begins with this piece.
    Fetch(FetchId, Extent),
    /// To be read past the cache.
    Direct(Extent),
}

/// The blocks that an extent touches: the first, and the one after the last.
pub(crate) fn blocks_of(extent: Extent) -> (u64, u64) {
    (extent.start().get() / BLOCK_SECTORS, extent.end().get().div_ceil(BLOCK_SECTORS))
}

/// Clips a block to the extent that overlaps it.
pub(super) fn clip(block: u64, extent: Extent) -> Extent {
    let start = extent.start().get().max(block * BLOCK_SECTORS);
    let end = extent.end().get().min((block + 1).saturating_mul(BLOCK_SECTORS));
    Extent::new(Lba::new(start), Sectors::new(end - start)).expect("the extent touches the block")
}

/// Cuts an extent to at most `most`, and to before `capacity`.
pub(super) fn cut(extent: Extent, most: Sectors, capacity: Sectors) -> Option<Extent> {
    let inside = capacity.get().saturating_sub(extent.start().get());
    Extent::new(extent.start(), extent.len().min(most).min(Sectors::new(inside)))
}

/// Append a piece, or make the last one since `before` longer by it when both
/// are to be had in the same way.
pub(super) fn push(pieces: &mut Vec<Piece>, before: usize, next: Piece) {
    let longer =
        |a: Extent, b: Extent| Extent::new(a.start(), a.len() + b.len()).expect("two neighbours");
    if let Some(last) = pieces[before..].last_mut() {
        let joined = match (*last, next) {
            (Piece::Cached(a), Piece::Cached(b)) => Some(Piece::Cached(longer(a, b))),
            (Piece::Direct(a), Piece::Direct(b)) => Some(Piece::Direct(longer(a, b))),
            (Piece::Wait(id, a), Piece::Wait(other, b)) if id == other => {
                Some(Piece::Wait(id, longer(a, b)))
            }
            (Piece::Fetch(id, a), Piece::Fetch(other, b)) if id == other => {
                Some(Piece::Fetch(id, longer(a, b)))
            }
            _ => None,
        };
        if let Some(joined) = joined {
            *last = joined;
            return;
        }
    }
    pieces.push(next);
}

// Writes of one VM under way: what overlaps them is not cached.
//
// Whether any of them overlaps a range is counted, not searched: all whose
// first block lies before the range's end, less all that end at or before its
// beginning (which began before it too). Two counts in sorted numbers, so
// neither thousands of writes nor one over the whole disk make it slow.

/// Numbers in a chunk at most.
const CHUNK_MAX: usize = 512;

/// Numbers in order, in chunks: adding one moves a chunk's worth.
#[derive(Default)]
struct Sorted {
    /// No chunk is empty, and none has more than [`CHUNK_MAX`] numbers.
    chunks: Vec<Vec<u64>>,
}

impl Sorted {
    /// The chunk in which a number stands or would.
    fn chunk(&self, number: u64) -> usize {
        self.chunks.partition_point(|c| c[0] <= number).saturating_sub(1)
    }

    fn insert(&mut self, number: u64) {
        let n = self.chunk(number);
        let Some(chunk) = self.chunks.get_mut(n) else {
            self.chunks.push(vec![number]);
            return;
        };
        chunk.insert(chunk.partition_point(|&x| x <= number), number);
        if chunk.len() > CHUNK_MAX {
            let rest = chunk.split_off(CHUNK_MAX / 2);
            self.chunks.insert(n + 1, rest);
        }
    }

    /// Take out one that is there.
    fn remove(&mut self, number: u64) {
        let n = self.chunk(number);
        let at = self.chunks[n].binary_search(&number).expect("it was inserted");
        self.chunks[n].remove(at);
        if self.chunks[n].is_empty() {
            self.chunks.remove(n);
        }
    }

    /// Number of writes below `number`.
    fn below(&self, number: u64) -> usize {
        let n = self.chunks.partition_point(|c| c[0] < number).saturating_sub(1);
        let whole: usize = self.chunks[..n.min(self.chunks.len())].iter().map(Vec::len).sum();
        whole + self.chunks.get(n).map_or(0, |c| c.partition_point(|&x| x < number))
    }
}

/// Ranges of blocks being written, none empty; one may be there several times.
#[derive(Default)]
pub(super) struct Writes {
    ranges: BTreeMap<(u64, u64), u32>,
    firsts: Sorted,
    ends: Sorted,
}

impl Writes {
    /// A write of the blocks from `first` to before `end` begins.
    pub(super) fn begin(&mut self, first: u64, end: u64) {
        *self.ranges.entry((first, end)).or_default() += 1;
        self.firsts.insert(first);
        self.ends.insert(end);
    }

    /// One such is done; nothing happens when there is none.
    pub(super) fn end(&mut self, first: u64, end: u64) {
        let Some(count) = self.ranges.get_mut(&(first, end)) else { return };
        *count -= 1;
        if *count == 0 {
            self.ranges.remove(&(first, end));
        }
        self.firsts.remove(first);
        self.ends.remove(end);
    }

    /// Is any of these blocks, one at least, being written?
    pub(super) fn overlaps(&self, first: u64, end: u64) -> bool {
        !self.ranges.is_empty() && self.firsts.below(end) > self.ends.below(first + 1)
    }
}

#[cfg(test)]
mod writes_tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Against a list of all ranges; numbers close together, so that they repeat.
        #[test]
        fn overlaps_are_those_of_a_list(
            steps in prop::collection::vec((0..3u8, 0..60u64, 1..20u64), 0..200),
        ) {
            let (mut writes, mut list) = (Writes::default(), Vec::new());
            for (what, first, len) in steps {
                let range = (first, first + len);
                match what {
                    0 => {
                        writes.begin(range.0, range.1);
                        list.push(range);
                    }
                    1 if first % 2 == 0 && !list.is_empty() => {
                        let (first, end) = list.swap_remove(len as usize % list.len());
                        writes.end(first, end);
                    }
                    // Often one that never began.
                    1 => {
                        writes.end(range.0, range.1);
                        if let Some(at) = list.iter().position(|&r| r == range) {
                            list.swap_remove(at);
                        }
                    }
                    _ => {}
                }
                let slow = list.iter().any(|&(f, e)| f < range.1 && range.0 < e);
                prop_assert_eq!(writes.overlaps(range.0, range.1), slow);
            }
        }
    }

    #[test]
    fn thousands_stand_in_many_chunks() {
        let mut writes = Writes::default();
        // 7919 is prime: the places come in no order.
        let places = || (0..10_000u64).map(|n| n * 7919 % 10_000 * 4);
        for place in places() {
            writes.begin(place, place + 2);
        }
        assert!(writes.firsts.chunks.len() > 10);
        for place in places() {
            assert!(writes.overlaps(place + 1, place + 2));
            assert!(!writes.overlaps(place + 2, place + 4));
        }
        writes.begin(0, u64::MAX);
        assert!(writes.overlaps(2, 4));
        writes.end(0, u64::MAX);
        for place in places() {
            writes.end(place, place + 2);
        }
        assert!(!writes.overlaps(0, u64::MAX));
        assert!(writes.firsts.chunks.is_empty() && writes.ends.chunks.is_empty());
    }
}
