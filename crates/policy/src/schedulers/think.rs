//! Think times and seek distances, averaged as Linux's schedulers do.

/// A mean of fewer samples (of 256) does not count (`sample_valid`).
const SAMPLES_VALID: u64 = 80;

/// A moving mean with weight 7/8 on the past, in fixed point (1.0 = 256 samples), as
/// `as_update_thinktime`, `cfq_update_io_thinktime` and `bfq_update_io_thinktime` keep it.
#[derive(Clone, Copy, Default, Debug)]
pub struct FadingMean {
    /// The weight of all samples, 256 for one that has just come.
    pub samples: u64,
    /// Their weighted sum.
    pub total: u64,
}

impl FadingMean {
    pub fn add(&mut self, value: u64) {
        // Bounded so that 7 · 256 values stay below 2^64.
        let value = value.min(1 << 52);
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * value) / 8;
    }
    /// The mean, rounded to the nearest.
    pub fn get(&self) -> u64 {
        (self.total + self.samples / 2) / self.samples.max(1)
    }
    /// Are there enough samples?
    pub fn is_known(&self) -> bool {
        self.samples > SAMPLES_VALID
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_forgets_by_an_eighth() {
        let mut mean = FadingMean::default();
        mean.add(800);
        assert_eq!((mean.samples, mean.get()), (32, 800));
        mean.add(0);
        // 7/8 of the old total over 7/8 of the old weight and 1/8 of the new.
        assert_eq!((mean.samples, mean.get()), (60, 373));
        (0..100).for_each(|_| mean.add(1_000));
        // Rounding down settles the weight at 249 of 256.
        assert!((970..=1_030).contains(&mean.get()), "{}", mean.get());
        mean.add(u64::MAX);
    }
}
