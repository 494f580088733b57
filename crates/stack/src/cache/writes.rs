//! Writes of one VM under way: what overlaps them is not cached.
//!
//! Whether any of them overlaps a range is counted, not searched: all whose
//! first block lies before the range's end, less all that end at or before its
//! beginning (which began before it too). Two counts in sorted numbers, so
//! neither thousands of writes nor one over the whole disk make it slow.

use std::collections::BTreeMap;

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
mod tests {
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
