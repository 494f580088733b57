//! Moving means in integers.

use crate::units::Nanos;

/// Mean of the samples until now, each counting 1/8 less than the next.
#[derive(Clone, Copy, Default)]
pub struct Mean {
    /// The mean, eight times: so that no fraction is lost.
    eightfold: Option<u64>,
}

impl Mean {
    /// Counts a sample. Spans above ten hours count as ten hours.
    #[inline]
    pub fn learn(&mut self, sample: Nanos) {
        let sample = sample.get().min(36_000_000_000_000);
        self.eightfold = Some(match self.eightfold {
            None => sample * 8,
            Some(sum) => sum - sum / 8 + sample,
        });
    }

    /// The mean; `None` before the first sample.
    #[inline]
    pub fn get(&self) -> Option<Nanos> {
        self.eightfold.map(|sum| Nanos::new(sum / 8))
    }
}

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
    /// Counts a sample.
    #[inline]
    pub fn add(&mut self, value: u64) {
        // Bounded so that 7 · 256 values stay below 2^64.
        let value = value.min(1 << 52);
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * value) / 8;
    }
    /// The mean, rounded to the nearest.
    #[inline]
    pub fn get(&self) -> u64 {
        (self.total + self.samples / 2) / self.samples.max(1)
    }
    /// Are there enough samples?
    #[inline]
    pub fn is_known(&self) -> bool {
        self.samples > SAMPLES_VALID
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_the_samples() {
        let mut mean = Mean::default();
        assert_eq!(mean.get(), None);
        mean.learn(Nanos::new(800));
        assert_eq!(mean.get(), Some(Nanos::new(800)));
        mean.learn(Nanos::ZERO);
        assert_eq!(mean.get(), Some(Nanos::new(700)));
        (0..200).for_each(|_| mean.learn(Nanos::new(3)));
        assert_eq!(mean.get(), Some(Nanos::new(3)));
        mean.learn(Nanos::new(u64::MAX));
    }

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
