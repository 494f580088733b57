//! A drive's segmented buffer: a fixed number of segments, each a run of
//! sectors. The cache knows its sectors and the segment that gives way; the drive fills them.

use serde::Deserialize;

// The segment that gives way to new data, as profiles name it. No doc comments here: the profiles'
// schema would show them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ReplacementFile"))]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    // The segment that was allocated first.
    Fifo,
    // The segment that was used (allocated or hit) least recently.
    Lru,
}

// Effect of a hit on the segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "OnHitFile"))]
#[serde(rename_all = "kebab-case")]
pub enum OnHit {
    // It uses up a segment: the data from the hit on moves to a newly
    // allocated one (the shadow cache of CATS, algorithms.md 3.1).
    Consume,
    // It moves its own segment's read-ahead along.
    Extend,
    // Nothing: read-ahead ends where the miss set its end.
    Keep,
}

/// Shape of the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheShape {
    /// Number of segments; 0 for no cache.
    pub segments: u32,
    /// Sectors that a segment holds, at least 1.
    pub segment_sectors: u64,
    /// Which segment gives way.
    pub replacement: Replacement,
}

/// A run of sectors [start, end); empty when never filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The first sector of the run.
    pub start: u64,
    /// Sector after the last.
    pub end: u64,
}

impl Span {
    fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// The segments' contents. Lookups scan all segments, of which real drives have
/// 64 at most; replacement is O(1).
pub struct Cache {
    shape: CacheShape,
    spans: Vec<Span>,
    /// The low halves of each span's start and length, which a search compares first, several at
    /// once. They agree wherever the spans do, and 2 TiB further on.
    starts: Vec<u32>,
    lengths: Vec<u32>,
    /// The order of eviction, as a ring of neighbours: `links[i]` are the
    /// segments that go before and after `i`.
    links: Vec<(u32, u32)>,
    /// The next to go.
    victim: u32,
}

impl Cache {
    pub fn new(shape: CacheShape) -> Cache {
        let n = shape.segments;
        let links = (0..n).map(|i| ((i + n - 1) % n, (i + 1) % n)).collect();
        Cache {
            shape,
            spans: vec![Span::default(); n as usize],
            starts: vec![0; n as usize],
            lengths: vec![0; n as usize],
            links,
            victim: 0,
        }
    }

    /// Contents of segment `index`.
    pub fn span(&self, index: usize) -> Span {
        self.spans[index]
    }

    /// The segment with sector `lba` that has the most sectors behind it.
    pub fn find(&self, lba: u64) -> Option<usize> {
        self.touching(lba).filter(|&index| self.spans[index].end > lba)
    }

    /// As [`Cache::find`], or else a segment that ends just before `lba`, so that data read from
    /// there on can join it.
    #[inline]
    pub fn touching(&self, lba: u64) -> Option<usize> {
        let near = self.starts.iter().zip(&self.lengths);
        let any = near.fold(0, |any, (&start, &length)| {
            any | u32::from((lba as u32).wrapping_sub(start) <= length)
        });
        if any == 0 { None } else { self.touching_near(lba) }
    }

    fn touching_near(&self, lba: u64) -> Option<usize> {
        let mut best = None;
        let mut best_end = lba;
        for (index, span) in self.spans.iter().enumerate() {
            // One comparison for both ends, since nearly all segments fail it.
            let near = lba.wrapping_sub(span.start) <= span.end - span.start;
            if near && span.end >= best_end && !span.is_empty() {
                best_end = span.end;
                best = Some(index);
            }
        }
        best
    }

    /// A use of segment `index`, for [`Replacement::Lru`].
    pub fn touch(&mut self, index: usize) {
        if self.shape.replacement == Replacement::Lru {
            self.make_last(index as u32);
        }
    }

    /// Moves a segment to the end of the order of eviction.
    fn make_last(&mut self, index: u32) {
        if index == self.victim {
            // The ring turns by one: the first becomes the last.
            self.victim = self.links[index as usize].1;
            return;
        }
        let (before, after) = self.links[index as usize];
        self.links[before as usize].1 = after;
        self.links[after as usize].0 = before;
        let first = self.victim;
        let last = self.links[first as usize].0;
        self.links[last as usize].1 = index;
        self.links[first as usize].0 = index;
        self.links[index as usize] = (last, first);
    }

    /// Gives the next victim over to [start, end), of which it keeps the last
    /// `segment_sectors`. `None` when there are no segments.
    pub fn allocate(&mut self, start: u64, end: u64) -> Option<usize> {
        if self.spans.is_empty() {
            return None;
        }
        let index = self.victim as usize;
        self.make_last(self.victim);
        self.spans[index] = Span { start, end: start };
        self.grow(index, end);
        Some(index)
    }

    /// Extends segment `index` up to `end`; it is a ring, so the excess drops out in front.
    pub fn grow(&mut self, index: usize, end: u64) {
        let span = &mut self.spans[index];
        span.end = span.end.max(end);
        span.start = span.start.max(span.end.saturating_sub(self.shape.segment_sectors));
        self.note(index);
    }

    /// Updates the search's copy of the span.
    fn note(&mut self, index: usize) {
        let span = self.spans[index];
        self.starts[index] = span.start as u32;
        self.lengths[index] = u32::try_from(span.end - span.start).unwrap_or(u32::MAX);
    }

    /// Invalidates the sectors [start, end): segments keep those before them, or those behind if
    /// there are none before.
    pub fn invalidate(&mut self, start: u64, end: u64) {
        for index in 0..self.spans.len() {
            let span = &mut self.spans[index];
            if span.start < end && start < span.end {
                if span.start < start {
                    span.end = start;
                } else {
                    span.start = end.min(span.end);
                }
                self.note(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cache(replacement: Replacement) -> Cache {
        Cache::new(CacheShape { segments: 2, segment_sectors: 10, replacement })
    }

    #[test]
    fn fifo_forgets_the_oldest_and_lru_the_unused() {
        for (replacement, kept) in [(Replacement::Fifo, 100), (Replacement::Lru, 0)] {
            let mut c = cache(replacement);
            let first = c.allocate(0, 5).unwrap();
            c.allocate(100, 105);
            c.touch(first);
            c.allocate(200, 205);
            assert!(c.find(kept).is_some(), "{replacement:?}");
            assert!(c.find(100 - kept).is_none(), "{replacement:?}");
        }
    }

    #[test]
    fn the_order_of_eviction_is_that_of_use() {
        let shape = CacheShape { segments: 4, segment_sectors: 10, replacement: Replacement::Lru };
        let mut c = Cache::new(shape);
        let mut order: Vec<usize> =
            (0..4).map(|i| c.allocate(100 * i, 100 * i + 1).unwrap()).collect();
        for step in [2, 0, 0, 1, 3, 2, 1, 3, 3, 0] {
            c.touch(step);
            order.retain(|&i| i != step);
            order.push(step);
        }
        let evicted: Vec<usize> = (0..4).map(|_| c.allocate(7, 8).unwrap()).collect();
        assert_eq!(evicted, order);
    }

    #[test]
    fn a_long_span_keeps_its_end() {
        let mut c = cache(Replacement::Fifo);
        let i = c.allocate(0, 25).unwrap();
        assert_eq!(c.span(i), Span { start: 15, end: 25 });
        c.grow(i, 27);
        assert_eq!((c.find(17), c.find(16), c.find(27)), (Some(i), None, None));
        assert_eq!((c.touching(27), c.touching(28)), (Some(i), None));
    }

    #[test]
    fn written_sectors_are_cut_out() {
        let mut c = cache(Replacement::Fifo);
        let i = c.allocate(10, 20).unwrap();
        c.invalidate(15, 17);
        assert_eq!(c.span(i), Span { start: 10, end: 15 });
        c.invalidate(5, 12);
        assert_eq!(c.span(i), Span { start: 12, end: 15 });
        c.invalidate(0, 100);
        assert_eq!(c.find(12), None);
    }

    proptest! {
        /// Offsets at multiples of 4 GiB sectors look alike to the first search.
        #[test]
        fn the_quick_search_finds_what_a_plain_one_finds(
            steps in prop::collection::vec(
                (0..4_u8, 0..40_u64, 0..30_u64, 0..3_u64, 0..4_usize), 1..60,
            ),
        ) {
            let shape =
                CacheShape { segments: 4, segment_sectors: 10, replacement: Replacement::Fifo };
            let mut c = Cache::new(shape);
            for (what, at, length, far, index) in steps {
                let start = at + (far << 32);
                match what {
                    0 => drop(c.allocate(start, start + length)),
                    1 => c.grow(index, start + length),
                    2 => c.invalidate(start, start + length),
                    _ => c.touch(index),
                }
                for lba in (0..80).flat_map(|lba| [lba, lba + (1 << 32), lba + (2 << 32)]) {
                    let holds = |s: &&Span| s.start < s.end && s.start <= lba && lba <= s.end;
                    let naive = c.spans.iter().filter(holds).map(|s| s.end).max();
                    let found = c.touching(lba).map(|index| c.spans[index].end);
                    prop_assert_eq!(found, naive, "sector {}", lba);
                }
            }
        }
    }
}
