//! The model's time against the real one.

use seekway_core::units::{Instant, Nanos};

/// Largest factor: a model of milliseconds over a device that takes seconds.
pub const FACTOR_MAX: f64 = 1000.0;

/// A factor on times in thousandths, 1 to [`FACTOR_MAX`]: whole numbers, so
/// that a factor of 1 changes nothing and all others round the same way
/// everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Factor(u64);

impl Factor {
    const UNIT: u64 = 1000;
    /// k = 1: the model's time goes as fast as real time.
    pub const ONE: Factor = Factor(Factor::UNIT);

    /// The nearest that there is.
    pub fn nearest(k: f64) -> Factor {
        // Out of its range, the conversion saturates; a NaN becomes 0, and then 1.
        Factor::from_thousandths((k * Factor::UNIT as f64).round() as u64)
    }

    /// A factor of this number of thousandths, clamped to the range.
    pub fn from_thousandths(thousandths: u64) -> Factor {
        Factor(thousandths.clamp(Factor::UNIT, FACTOR_MAX as u64 * Factor::UNIT))
    }

    /// As it is kept.
    pub fn thousandths(self) -> u64 {
        self.0
    }

    /// A span of the model in real time, rounded up.
    pub fn stretch(self, span: Nanos) -> Nanos {
        let wide = u128::from(span.get()) * u128::from(self.0);
        let wide = wide.div_ceil(u128::from(Factor::UNIT));
        Nanos::new(u64::try_from(wide).unwrap_or(u64::MAX))
    }

    /// A real span in the model's time, rounded down.
    fn shrink(self, span: Nanos) -> Nanos {
        span.scaled(Factor::UNIT, self.0)
    }

    /// k as a floating-point number, for reports.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / Factor::UNIT as f64
    }
}

/// `model = model0 + (real - real0) / k`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    real: Instant,
    model: Instant,
    factor: Factor,
}

impl Clock {
    /// Both start at 0.
    pub fn new(factor: Factor) -> Clock {
        Clock { real: Instant::ZERO, model: Instant::ZERO, factor }
    }

    /// The k that holds since the last change.
    pub fn factor(&self) -> Factor {
        self.factor
    }

    /// The model's time at a moment since the last change of k.
    pub fn model(&self, now: Instant) -> Instant {
        self.model + self.factor.shrink(now.since(self.real))
    }

    /// The first moment at which the model's time is this, or later.
    pub fn real(&self, model: Instant) -> Instant {
        self.real + self.factor.stretch(model.since(self.model))
    }

    /// From `now` on, another k.
    pub fn rescale(&mut self, now: Instant, factor: Factor) {
        *self = Clock { real: now, model: self.model(now), factor };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn factors_stay_in_their_range() {
        for (k, expected) in [(0.0, 1.0), (-3.0, 1.0), (f64::NAN, 1.0), (2.5, 2.5), (1e9, 1000.0)] {
            assert_eq!(Factor::nearest(k).as_f64(), expected);
        }
        let thousandths = [0, 1, 2500, u64::MAX].map(|n| Factor::from_thousandths(n).as_f64());
        assert_eq!(thousandths, [1.0, 1.0, 2.5, 1000.0]);
    }

    proptest! {
        /// At its real moment the model's time has come; a nanosecond before,
        /// it has not. Neither runs backwards over changes of k.
        #[test]
        fn the_two_times_agree(steps in proptest::collection::vec(
            (1.0f64..50.0, 0u64..1 << 40, 0u64..1 << 40), 1..20)) {
            let mut clock = Clock::new(Factor::ONE);
            let mut now = Instant::ZERO;
            for (k, wait, ahead) in steps {
                let before = clock.model(now);
                clock.rescale(now, Factor::nearest(k));
                prop_assert_eq!(clock.model(now), before);
                let due = clock.real(before + Nanos::new(ahead));
                prop_assert!(clock.model(due) >= before + Nanos::new(ahead));
                if ahead > 0 {
                    let early = Instant::from_nanos(due.as_nanos() - 1);
                    prop_assert!(clock.model(early) < before + Nanos::new(ahead));
                }
                now = now + Nanos::new(wait);
                prop_assert!(clock.model(now) >= before);
            }
        }
    }
}
