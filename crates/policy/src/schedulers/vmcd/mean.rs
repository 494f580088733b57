//! A moving mean of spans of time in integers.

use seekway_core::units::Nanos;

/// Mean of the samples until now, each counting 1/8 less than the next.
#[derive(Clone, Copy, Default)]
pub struct Mean {
    /// The mean, eight times: so that no fraction is lost.
    eightfold: Option<u64>,
}

impl Mean {
    /// Count a sample. Spans above ten hours count as ten hours.
    pub fn learn(&mut self, sample: Nanos) {
        let sample = sample.get().min(36_000_000_000_000);
        self.eightfold = Some(match self.eightfold {
            None => sample * 8,
            Some(sum) => sum - sum / 8 + sample,
        });
    }

    /// `None` before the first sample.
    pub fn get(&self) -> Option<Nanos> {
        self.eightfold.map(|sum| Nanos::new(sum / 8))
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
}
