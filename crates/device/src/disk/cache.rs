//! A drive's segmented buffer: a fixed number of segments, each a run of
//! sectors. Which sectors it holds, and which segment gives way; when they are
//! filled is the drive's business.

/// Which segment gives way to new data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// The one that was allocated first.
    Fifo,
    /// The one that was used (allocated or hit) least recently.
    Lru,
}

/// What a read that is served from a segment does to the segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnHit {
    /// It uses up a segment: the data from the hit on moves to a newly
    /// allocated one (the shadow cache of CATS, algorithms.md 3.1).
    Consume,
    /// It moves its own segment's read-ahead along.
    Extend,
    /// Nothing: read-ahead ends where the miss set its end.
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
    /// First sector.
    pub start: u64,
    /// Sector after the last.
    pub end: u64,
}

impl Span {
    fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// The segments' contents.
pub struct Cache {
    shape: CacheShape,
    spans: Vec<Span>,
    stamps: Vec<u64>,
    clock: u64,
}

impl Cache {
    /// An empty buffer.
    pub fn new(shape: CacheShape) -> Cache {
        let n = shape.segments as usize;
        Cache { shape, spans: vec![Span::default(); n], stamps: vec![0; n], clock: 0 }
    }

    /// What segment `index` holds.
    pub fn span(&self, index: usize) -> Span {
        self.spans[index]
    }

    /// Is there any segment at all?
    pub fn is_none(&self) -> bool {
        self.spans.is_empty()
    }

    /// The segment that holds sector `lba` and most of what follows.
    pub fn find(&self, lba: u64) -> Option<usize> {
        let mut best = None;
        let mut best_end = lba;
        for (index, span) in self.spans.iter().enumerate() {
            if span.start <= lba && span.end > best_end {
                best_end = span.end;
                best = Some(index);
            }
        }
        best
    }

    /// The segment that ends just before `lba`, so that data read from there on can join it.
    pub fn ending_at(&self, lba: u64) -> Option<usize> {
        self.spans.iter().position(|s| s.end == lba && !s.is_empty())
    }

    /// A use of segment `index`, for [`Replacement::Lru`].
    pub fn touch(&mut self, index: usize) {
        if self.shape.replacement == Replacement::Lru {
            self.clock += 1;
            self.stamps[index] = self.clock;
        }
    }

    /// Gives the next victim over to [start, end), of which it keeps the last
    /// `segment_sectors`. `None` when there are no segments.
    pub fn allocate(&mut self, start: u64, end: u64) -> Option<usize> {
        // Both rules evict the smallest stamp: only when stamps are set differs.
        let index = (0..self.stamps.len()).min_by_key(|&i| self.stamps[i])?;
        self.clock += 1;
        self.stamps[index] = self.clock;
        self.spans[index] = Span { start, end: start };
        self.grow(index, end);
        Some(index)
    }

    /// Segment `index` now also holds what follows up to `end`; a ring, so what
    /// no longer fits falls out in front.
    pub fn grow(&mut self, index: usize, end: u64) {
        let span = &mut self.spans[index];
        span.end = span.end.max(end);
        span.start = span.start.max(span.end.saturating_sub(self.shape.segment_sectors));
    }

    /// The sectors [start, end) are no longer what the medium holds: segments
    /// keep what precedes them, or what follows where nothing precedes.
    pub fn invalidate(&mut self, start: u64, end: u64) {
        for span in &mut self.spans {
            if span.start < end && start < span.end {
                if span.start < start {
                    span.end = start;
                } else {
                    span.start = end.min(span.end);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_long_span_keeps_its_end() {
        let mut c = cache(Replacement::Fifo);
        let i = c.allocate(0, 25).unwrap();
        assert_eq!(c.span(i), Span { start: 15, end: 25 });
        c.grow(i, 27);
        assert_eq!((c.find(17), c.find(16), c.find(27)), (Some(i), None, None));
        assert_eq!(c.ending_at(27), Some(i));
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
}
