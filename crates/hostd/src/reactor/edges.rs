//! Order among the writes of one disk of which some change parts of blocks: such a block is read,
//! changed and written back whole, so that nothing else may write to it meanwhile. An I/O of this
//! kind claims the blocks that it touches: it begins when the writes that were there before have
//! ended, and later ones wait. Reads need not wait: what a block holds beside the change is written
//! as it was.

use std::collections::VecDeque;
use std::ops::Range;

/// Claims of one disk at a time: each write is compared with all of them.
const CLAIMS_MAX: usize = 64;

/// An I/O that reads blocks, changes them and writes them back.
struct Claim {
    io: u32,
    /// Bytes of the image, whole blocks.
    span: Range<u64>,
    /// Earlier writes to these blocks that have not ended.
    before: u32,
}

/// I/Os by their index.
#[derive(Default)]
pub struct Edges {
    claims: Vec<Claim>,
    /// They have not begun, because of a claim or for want of one.
    waiting: VecDeque<u32>,
    /// The operator knows.
    pub is_told: bool,
}

pub fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Edges {
    /// No write needs to ask: the usual case.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// May a write to these bytes begin, or claim them if it `claims`? If not, it waits for
    /// [`Edges::next`].
    pub fn admits(&mut self, io: u32, span: &Range<u64>, claims: bool) -> bool {
        let admits = self.has_room(span, claims);
        if !admits {
            self.waiting.push_back(io);
        }
        admits
    }

    fn has_room(&self, span: &Range<u64>, claims: bool) -> bool {
        let is_full = claims && self.claims.len() >= CLAIMS_MAX;
        !is_full && !self.claims.iter().any(|claim| overlap(&claim.span, span))
    }

    /// These blocks are claimed; `before` writes to them are under way. True if it may begin.
    pub fn claim(&mut self, io: u32, span: Range<u64>, before: u32) -> bool {
        self.claims.push(Claim { io, span, before });
        before == 0
    }

    /// A write that had begun has ended. Calls `begin` with the claims that have waited for it.
    pub fn end(&mut self, io: u32, span: &Range<u64>, mut begin: impl FnMut(u32)) {
        self.claims.retain(|claim| claim.io != io);
        for claim in self.claims.iter_mut().filter(|claim| overlap(&claim.span, span)) {
            // Later ones have not begun: this one was counted.
            claim.before -= 1;
            if claim.before == 0 {
                begin(claim.io);
            }
        }
    }

    /// The one that has waited longest, to be tried again; `about` tells its bytes and whether it
    /// claims them.
    pub fn next(&mut self, about: impl FnOnce(u32) -> (Range<u64>, bool)) -> Option<u32> {
        let io = *self.waiting.front()?;
        let (span, claims) = about(io);
        if !self.has_room(&span, claims) {
            return None;
        }
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u32; 0] = [];

    /// The I/Os that begin when one has ended.
    fn ended(edges: &mut Edges, io: u32, span: Range<u64>) -> Vec<u32> {
        let mut begun = Vec::new();
        edges.end(io, &span, |io| begun.push(io));
        begun
    }

    #[test]
    fn a_claim_waits_for_the_writes_before_it_and_holds_up_the_later_ones() {
        let mut edges = Edges::default();
        assert!(edges.is_empty());
        // Two writes to the block are under way already.
        assert!(edges.admits(7, &(0..4096), true));
        assert!(!edges.claim(7, 0..4096, 2));
        assert!(!edges.admits(8, &(4000..4100), false), "it overlaps the claim");
        assert!(edges.admits(9, &(4096..8192), false), "it is beside the claim");
        assert_eq!(ended(&mut edges, 1, 0..512), NONE);
        assert_eq!(ended(&mut edges, 9, 4096..8192), NONE);
        assert_eq!(ended(&mut edges, 2, 512..1024), [7]);
        assert_eq!(edges.next(|_| (4000..4100, false)), None);
        assert_eq!(ended(&mut edges, 7, 0..4096), NONE);
        assert_eq!(edges.next(|_| (4000..4100, false)), Some(8));
        assert_eq!(edges.next(|_| unreachable!()), None);
    }

    #[test]
    fn claims_are_bounded() {
        let mut edges = Edges::default();
        let span = |n: u32| u64::from(n) * 512..u64::from(n + 1) * 512;
        for n in 0..CLAIMS_MAX as u32 {
            assert!(edges.admits(n, &span(n), true) && edges.claim(n, span(n), 0));
        }
        let other = 1000..1001;
        assert!(!edges.admits(1000, &span(1000), true));
        assert!(edges.admits(1001, &span(1001), false), "a whole block claims nothing");
        assert_eq!(edges.next(|_| (span(other.start), true)), None);
        ended(&mut edges, 3, span(3));
        assert_eq!(edges.next(|_| (span(other.start), true)), Some(1000));
    }
}
