//! Counts of whole numbers, such as sizes and depths, in bounded memory.

use std::collections::BTreeMap;

/// Numbers up to this one are counted exactly: requests up to 1 MiB, in sectors.
pub const EXACT_MAX: u64 = 2048;
/// Significant bits of a greater number, which is rounded up by less than a 128th.
const BITS: u32 = 8;

/// Number of times that each number came.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    exact: Vec<u64>,
    /// At most 128 for each power of two.
    rounded: BTreeMap<u64, u64>,
    total: u64,
    sum: u128,
}

impl Counts {
    #[inline]
    pub fn add(&mut self, value: u64) {
        self.total += 1;
        self.sum += u128::from(value);
        if value > EXACT_MAX {
            *self.rounded.entry(round_up(value, BITS)).or_default() += 1;
            return;
        }
        if self.exact.is_empty() {
            self.exact = vec![0; EXACT_MAX as usize + 1];
        }
        self.exact[value as usize] += 1;
    }

    /// The counts of both.
    pub fn with(&self, other: &Counts) -> Counts {
        let (mut sum, mut rest) = (self.clone(), other);
        if sum.exact.len() < rest.exact.len() {
            (sum, rest) = (other.clone(), self);
        }
        sum.exact.iter_mut().zip(&rest.exact).for_each(|(count, more)| *count += more);
        for (value, count) in &rest.rounded {
            *sum.rounded.entry(*value).or_default() += count;
        }
        sum.total += rest.total;
        sum.sum += rest.sum;
        sum
    }

    pub const fn total(&self) -> u64 {
        self.total
    }

    /// All numbers added up, which is exact.
    pub const fn sum(&self) -> u128 {
        self.sum
    }

    pub fn mean(&self) -> Option<f64> {
        (self.total > 0).then(|| self.sum as f64 / self.total as f64)
    }

    /// The numbers in their order, each with its count, which is not zero.
    pub fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        let exact = (0..).zip(self.exact.iter().copied()).filter(|(_, count)| *count > 0);
        exact.chain(self.rounded.iter().map(|(value, count)| (*value, *count)))
    }

    /// The least number that this share of all does not exceed (the nearest rank).
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let rank = ((share * self.total as f64).ceil() as u64).max(1);
        let mut until = 0;
        self.all().find_map(|(value, count)| {
            until += count;
            (until >= rank).then_some(value)
        })
    }

    /// The most common number and its count; the smallest of several.
    pub fn most_common(&self) -> Option<(u64, u64)> {
        self.all().min_by_key(|(value, count)| (std::cmp::Reverse(*count), *value))
    }

    pub fn max(&self) -> Option<u64> {
        self.all().last().map(|(value, _)| value)
    }
}

/// The least number of this many significant bits that is not below `value`.
pub(super) const fn round_up(value: u64, bits: u32) -> u64 {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(bits);
    let kept = value >> shift;
    if kept << shift == value {
        return value;
    }
    match (kept + 1).checked_shl(shift) {
        Some(up) if up >= value => up,
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let mut counts = Counts::default();
        assert_eq!((counts.quantile(0.5), counts.most_common(), counts.mean()), (None, None, None));
        // 1, 2, 3, …, 100 and 8 twice more.
        (1..=100).chain([8, 8]).for_each(|n| counts.add(n));
        assert_eq!(counts.total(), 102);
        assert_eq!(counts.sum(), 5050 + 16);
        // Rank 51 of 102: 1 to 8 are ten, so it is the 41st behind these.
        assert_eq!(counts.quantile(0.5), Some(49));
        // Rank 101 of 102.
        assert_eq!(counts.quantile(0.99), Some(99));
        assert_eq!(counts.quantile(0.0), Some(1));
        assert_eq!(counts.quantile(1.0), Some(100));
        assert_eq!(counts.most_common(), Some((8, 3)));
        let mut more = Counts::default();
        [9, 9, 1 << 20].into_iter().for_each(|n| more.add(n));
        let both = Counts::default().with(&counts).with(&more);
        assert_eq!((both.total(), both.sum()), (105, 5066 + 18 + (1 << 20)));
        assert_eq!((both.max(), both.most_common()), (Some(1 << 20), Some((8, 3))));
        counts.add(9);
        counts.add(9);
        assert_eq!(counts.most_common(), Some((8, 3)), "the smallest of equal ones");
    }

    #[test]
    fn great_numbers_are_rounded_up_by_less_than_a_128th() {
        assert_eq!(round_up(2049, BITS), 2064);
        assert_eq!(round_up(2048, BITS), 2048);
        assert_eq!(round_up(u64::MAX, BITS), u64::MAX);
        let mut counts = Counts::default();
        for n in (1..=1_000_000).map(|n| EXACT_MAX + n) {
            let up = round_up(n, BITS);
            assert!(up >= n && (up - n) * 128 < n, "{n}: {up}");
            counts.add(n);
        }
        assert!(counts.all().count() <= 128 * 10, "{}", counts.all().count());
    }
}
