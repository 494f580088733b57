//! Division by a number that stays the same: a multiplication instead, which
//! takes a tenth of the time of dividing 64-bit numbers.

/// A divisor, at least 1, and its reciprocal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Divisor {
    by: u64,
    /// ⌊(2^64 - 1) / by⌋
    inverse: u64,
}

impl Divisor {
    /// Panics when `by` is 0, which no checked profile holds.
    pub(super) const fn new(by: u64) -> Divisor {
        Divisor { by, inverse: u64::MAX / by }
    }

    #[inline]
    pub(super) const fn get(self) -> u64 {
        self.by
    }

    /// Quotient and remainder, exact for every `n`.
    #[inline]
    pub(super) const fn div_rem(self, n: u64) -> (u64, u64) {
        // With i the inverse, n/by - n·i/2^64 = n·(2^64 - i·by) / (by·2^64), and
        // 2^64 - i·by is from 1 to by: the estimate falls short by 1 at most.
        let estimate = ((n as u128 * self.inverse as u128) >> 64) as u64;
        let rest = n - estimate * self.by;
        if rest >= self.by { (estimate + 1, rest - self.by) } else { (estimate, rest) }
    }

    #[inline]
    pub(super) const fn div(self, n: u64) -> u64 {
        self.div_rem(n).0
    }

    #[inline]
    pub(super) const fn rem(self, n: u64) -> u64 {
        self.div_rem(n).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(n: u64, by: u64) {
        assert_eq!(Divisor::new(by).div_rem(n), (n / by, n % by), "{n} / {by}");
    }

    #[test]
    fn corners_divide_as_the_processor_does() {
        let corners =
            [1, 2, 3, 7, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];
        for by in corners {
            for n in corners {
                for n in [0, n, n.wrapping_mul(by), n.wrapping_mul(by).wrapping_sub(1)] {
                    check(n, by);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn anything_divides_as_the_processor_does(
            n in any::<u64>(),
            by in 1..u64::MAX,
            (a, b) in (0..64_u32, 0..63_u32),
        ) {
            check(n, by);
            check(n >> a, (by >> b).max(1));
        }
    }
}
