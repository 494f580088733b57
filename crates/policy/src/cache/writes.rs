//! Writes of one VM under way: what overlaps them is not cached.

/// Ranges of blocks being written.
#[derive(Default)]
pub(super) struct Writes {
    ranges: Vec<(u64, u64)>,
}

impl Writes {
    pub(super) fn begin(&mut self, first: u64, end: u64) {
        self.ranges.push((first, end));
    }

    pub(super) fn end(&mut self, first: u64, end: u64) {
        if let Some(at) = self.ranges.iter().position(|&r| r == (first, end)) {
            self.ranges.swap_remove(at);
        }
    }

    pub(super) fn overlaps(&self, first: u64, end: u64) -> bool {
        self.ranges.iter().any(|&(f, e)| f < end && first < e)
    }
}
