//! The last few spans of time, and the next one that they predict.

use seekway_core::units::Nanos;

/// Slices that are remembered of each vCPU.
const RECENT: usize = 8;

/// The last few of some spans of time.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Recent {
    spans: [Nanos; RECENT],
    pub seen: u64,
    median: Option<Nanos>,
}

impl Recent {
    pub fn push(&mut self, span: Nanos) {
        self.spans[(self.seen % RECENT as u64) as usize] = span;
        self.seen += 1;
        let mut sorted = self.spans;
        let sorted = &mut sorted[..self.all().len()];
        sorted.sort_unstable();
        // Of an even number the lower one in the middle.
        self.median = sorted.get(sorted.len().saturating_sub(1) / 2).copied();
    }

    /// Asked for often: computed with each that comes.
    pub fn median(&self) -> Option<Nanos> {
        self.median
    }

    pub fn all(&self) -> &[Nanos] {
        &self.spans[..self.seen.min(RECENT as u64) as usize]
    }
}

/// Basis of the prediction: computed when a slice is learned, asked for often.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Usual {
    spans: [Nanos; RECENT],
    pub len: usize,
    pub least: Nanos,
    pub longest: Nanos,
}

impl Usual {
    pub fn of(spans: impl Iterator<Item = Nanos>) -> Usual {
        let mut usual = Usual::default();
        for span in spans.take(RECENT) {
            usual.spans[usual.len] = span;
            usual.least = if usual.len == 0 { span } else { usual.least.min(span) };
            usual.longest = usual.longest.max(span);
            usual.len += 1;
        }
        usual
    }

    pub fn all(&self) -> &[Nanos] {
        &self.spans[..self.len]
    }
}
