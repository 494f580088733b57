//! Weighted fairness by virtual runtime, for the host's scheduler and the guests': the common core
//! of CFS and EEVDF (Linux, kernel/sched/fair.c).
//!
//! A running entity ages by the time it ran, divided by its weight; the youngest goes next. One
//! that slept for long wakes no younger than a slice before the youngest of those that did not
//! (`place_entity`).

use seekway_core::units::Nanos;

/// Age by virtual runtime: nanoseconds at weight 1, in 2^-20.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Age(pub i128);

const SCALE: i128 = 1 << 20;

impl Age {
    /// By how much `ran` ages at this weight.
    pub fn of(ran: Nanos, weight: u32) -> Age {
        Age(i128::from(ran.get()) * SCALE / i128::from(weight))
    }

    /// After ageing by `by`.
    pub fn plus(self, by: Age) -> Age {
        Age(self.0 + by.0)
    }

    /// Difference of age; negative if this one is younger.
    pub fn minus(self, other: Age) -> Age {
        Age(self.0 - other.0)
    }

    /// Age at a wake-up: the old one, but no more than `credit` younger than `floor`.
    pub fn waking(self, floor: Age, credit: Age) -> Age {
        self.max(floor.minus(credit))
    }

    /// When it moves to another queue, it is as much before or behind there.
    pub fn moved(self, from: Age, to: Age) -> Age {
        to.plus(self.minus(from))
    }

    /// Time until the mean age of all with `weights` together has grown to this from
    /// `mean`; zero if it has.
    pub fn until(self, mean: Age, weights: u64) -> Nanos {
        let left = (self.0 - mean.0).max(0) * i128::from(weights);
        Nanos::new(u64::try_from((left + SCALE - 1) / SCALE).unwrap_or(u64::MAX))
    }

    /// The mean by weight (EEVDF's virtual time).
    pub fn mean(of: impl Iterator<Item = (Age, u32)>) -> Option<Age> {
        let (mut sum, mut weights) = (0i128, 0i128);
        for (age, weight) in of {
            sum += age.0 * i128::from(weight);
            weights += i128::from(weight);
        }
        (weights > 0).then(|| Age(sum.div_euclid(weights)))
    }
}
