//! Counts of response times by class, and of commands by region: what reports and the history share.

use std::ops::{Add, Sub};

/// Parts of a doubling of time into which response times are counted: 19 % each.
const PARTS: f64 = 4.0;
/// Number of the last class: from 2^32 µs, more than an hour.
const CLASS_MAX: u32 = 128;

/// Response times or regions: number of a class, and how many fell in it, ascending.
pub type Counts = Vec<(u32, u64)>;

/// The class of a response time: class `c` is from 2^(c/4) to 2^((c+1)/4) µs, class 0 also all
/// below.
pub fn class_of_ns(ns: u64) -> u32 {
    let class = (PARTS * (ns.max(1) as f64 / 1e3).log2()).floor().max(0.0);
    (class as u32).min(CLASS_MAX)
}

/// A response time in milliseconds below which `share` of the requests lie: the middle of the
/// class, within a tenth. `None` without requests.
pub fn quantile_ms(responses: &Counts, share: f64) -> Option<f64> {
    let all: u64 = responses.iter().map(|(_, count)| count).sum();
    let rank = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
    let mut seen = 0;
    let class = responses.iter().find(|(_, count)| {
        seen += count;
        seen >= rank
    });
    class.map(|(class, _)| ((f64::from(*class) + 0.5) / PARTS).exp2() / 1e3)
}

/// A figure that grows: a number of something, or a time.
pub(super) trait Counter:
    Copy + Default + PartialOrd + Add<Output = Self> + Sub<Output = Self>
{
}
impl Counter for u64 {}
impl Counter for f64 {}

/// The increase of a figure. A disk that was attached anew counts from zero.
pub(super) fn since<T: Counter>(before: Option<T>, now: T) -> T {
    let before = before.unwrap_or_default();
    if now < before { now } else { now - before }
}

/// Difference of two counts; the counts of a disk that was attached anew begin at zero.
pub(super) fn counts_since(before: Option<&Counts>, now: &Counts) -> Counts {
    let then = |class| {
        let counts = before?;
        counts.binary_search_by_key(&class, |(c, _)| *c).ok().map(|at| counts[at].1)
    };
    let since = now.iter().map(|(class, count)| (*class, since(then(*class), *count)));
    since.filter(|(_, count)| *count > 0).collect()
}

/// Adds `more` to the counts.
pub(super) fn add_counts(counts: &mut Counts, more: &Counts) {
    for (class, count) in more {
        match counts.binary_search_by_key(class, |(c, _)| *c) {
            Ok(at) => counts[at].1 += count,
            Err(at) => counts.insert(at, (*class, *count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_times() {
        for ns in [1, 999, 1_000, 1_190, 50_000, 123_456_789, 3_600_000_000_000] {
            let class = class_of_ns(ns);
            let (from, to) = (f64::from(class) / 4.0, f64::from(class + 1) / 4.0);
            let us = ns as f64 / 1e3;
            assert!(class == 0 || from.exp2() <= us * 1.000_001, "{ns}");
            assert!(us < to.exp2() * 1.000_001, "{ns}");
        }
        assert_eq!(class_of_ns(0), 0);
        assert_eq!(class_of_ns(u64::MAX), CLASS_MAX);
    }

    #[test]
    fn quantiles_are_within_a_tenth() {
        let mut counts = Counts::new();
        for ms in 1..=1000 {
            add_counts(&mut counts, &vec![(class_of_ns(ms * 1_000_000), 1)]);
        }
        for (share, exact) in [(0.5, 500.0), (0.99, 990.0), (0.0, 1.0), (1.0, 1000.0)] {
            let ms = quantile_ms(&counts, share).unwrap();
            assert!((ms / exact - 1.0).abs() < 0.1, "{share}: {ms}");
        }
        assert_eq!(quantile_ms(&Counts::new(), 0.5), None);
    }
}
