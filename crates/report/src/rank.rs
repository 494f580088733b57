//! Does a prediction order policies as the measurement does, and how far are its
//! figures off? Pure functions over one number for each policy.
//!
//! Ranks take figures within [`EQUAL_WITHIN`] for equal. Elsewhere two figures are equal only when
//! they are the same number: whether a small difference means anything is for the caller to say, who
//! knows how much the figures vary from seed to seed ([`discordant`] names the pairs).

use std::cmp::Ordering;

/// Policies whose figures differ by less than this share of the better one are equal.
pub const EQUAL_WITHIN: f64 = 0.02;

/// Which end of a measure is the good one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Better {
    /// The smaller figure is better, as of response times.
    Less,
    /// The larger figure is better, as of throughput.
    More,
}

impl Better {
    /// `Less` where `a` is better than `b`.
    fn order(self, a: f64, b: f64) -> Ordering {
        let order = a.partial_cmp(&b).unwrap_or(Ordering::Equal);
        match self {
            Better::Less => order,
            Better::More => order.reverse(),
        }
    }

    /// Is `value` within [`EQUAL_WITHIN`] of `best`, or better?
    pub fn is_equal(self, value: f64, best: f64) -> bool {
        match self {
            Better::Less => value <= best + best.abs() * EQUAL_WITHIN,
            Better::More => value >= best - best.abs() * EQUAL_WITHIN,
        }
    }
}

/// Positions of the best of `values`, and of all that are equal to it. Values that are absent or not
/// finite are never the best.
pub fn best(values: &[Option<f64>], better: Better) -> Vec<usize> {
    let known = |n: usize| values[n].filter(|value| value.is_finite());
    let all = (0..values.len()).filter_map(known);
    let Some(best) = all.min_by(|a, b| better.order(*a, *b)) else { return Vec::new() };
    (0..values.len()).filter(|n| known(*n).is_some_and(|v| better.is_equal(v, best))).collect()
}

/// The rank of each value, 1 for the best. Values that equal the best of those left share its rank
/// (1, 2, 2, 4). `None` for a value that is not finite, which does not count for the others.
pub fn ranks(values: &[f64], better: Better) -> Vec<Option<usize>> {
    let mut order: Vec<usize> = (0..values.len()).filter(|n| values[*n].is_finite()).collect();
    order.sort_by(|a, b| better.order(values[*a], values[*b]));
    let mut ranks = vec![None; values.len()];
    let mut first = 0;
    for (place, &n) in order.iter().enumerate() {
        if !better.is_equal(values[n], values[order[first]]) {
            first = place;
        }
        ranks[n] = Some(first + 1);
    }
    ranks
}

/// The pairs `(i, j)`, i < j, that `predicted` and `actual` order differently:
/// one says i and the other j, or one says that they are equal.
///
/// # Panics
/// When the slices differ in length.
pub fn discordant(predicted: &[f64], actual: &[f64]) -> Vec<(usize, usize)> {
    pairs(predicted, actual).filter(|&(_, _, p, a)| p != a).map(|(i, j, ..)| (i, j)).collect()
}

/// Is every pair ordered alike, and are all values finite? True of a single one.
///
/// # Panics
/// When the slices differ in length.
pub fn same_order(predicted: &[f64], actual: &[f64]) -> bool {
    predicted.iter().chain(actual).all(|v| v.is_finite())
        && discordant(predicted, actual).is_empty()
}

/// Kendall's τ-b: 1 when both order all pairs alike, -1 when they do the
/// opposite, about 0 when they have nothing to do with each other. Pairs that are
/// equal in one of them count for neither (Kendall, "The treatment of ties in
/// ranking problems", Biometrika 33, 1945).
///
/// `None` where it is not defined: fewer than two values, all of one side equal,
/// or a value that is not finite.
///
/// # Panics
/// When the slices differ in length.
pub fn kendall_tau(predicted: &[f64], actual: &[f64]) -> Option<f64> {
    if !predicted.iter().chain(actual).all(|v| v.is_finite()) {
        return None;
    }
    let (mut score, mut apart_p, mut apart_a) = (0_i64, 0_u64, 0_u64);
    for (_, _, p, a) in pairs(predicted, actual) {
        score += p as i64 * a as i64;
        apart_p += u64::from(p != Ordering::Equal);
        apart_a += u64::from(a != Ordering::Equal);
    }
    let norm = (apart_p as f64 * apart_a as f64).sqrt();
    (norm > 0.0).then(|| score as f64 / norm)
}

/// By how much the prediction is too large, as a share of the actual value: 0.15
/// is 15 % too much. `None` when that is zero, or a value is not finite.
pub fn relative_error(predicted: f64, actual: f64) -> Option<f64> {
    let error = predicted / actual - 1.0;
    (actual != 0.0 && actual.is_finite() && error.is_finite()).then_some(error)
}

/// Each pair of positions, and how the two values compare on either side.
fn pairs<'a>(
    predicted: &'a [f64],
    actual: &'a [f64],
) -> impl Iterator<Item = (usize, usize, Ordering, Ordering)> + 'a {
    assert_eq!(predicted.len(), actual.len(), "one value of each kind for each policy");
    let all = (0..actual.len()).flat_map(|i| (i + 1..actual.len()).map(move |j| (i, j)));
    let order = |v: &[f64], i: usize, j: usize| Better::Less.order(v[i], v[j]);
    all.map(move |(i, j)| (i, j, order(predicted, i, j), order(actual, i, j)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean response in ms under cats, deadline and cfq on the real drive (Geist,
    /// Jones and Westall, table 2).
    const RESPONSE_REAL: [f64; 3] = [37.35, 59.87, 124.70];

    #[test]
    fn the_best_is_first_and_equals_share() {
        let some = |places: &[usize]| places.iter().map(|p| Some(*p)).collect::<Vec<_>>();
        assert_eq!(ranks(&RESPONSE_REAL, Better::Less), some(&[1, 2, 3]));
        assert_eq!(ranks(&[8.19, 6.08, 2.19], Better::More), some(&[1, 2, 3]));
        assert_eq!(ranks(&[2.0, 1.0, 2.0, 3.0], Better::Less), some(&[2, 1, 2, 4]));
        assert_eq!(ranks(&[f64::NAN, 5.0, 4.0], Better::Less), [None, Some(2), Some(1)]);
        // 1.02 equals the first; 1.03 does not, and 1.04 equals that.
        assert_eq!(ranks(&[1.04, 1.0, 1.03, 1.02], Better::Less), some(&[3, 1, 3, 1]));
        assert_eq!(ranks(&[98.0, 97.9, 100.0], Better::More), some(&[1, 3, 1]));
        assert!(ranks(&[], Better::More).is_empty());
    }

    #[test]
    fn tau_spans_minus_one_to_one() {
        let rising = [1.0, 2.0, 3.0, 4.0];
        let tau = |other: [f64; 4]| kendall_tau(&rising, &other);
        assert_eq!(tau([10.0, 20.0, 30.0, 40.0]), Some(1.0));
        assert_eq!(tau([4.0, 3.0, 2.0, 1.0]), Some(-1.0));
        // One of six pairs swapped: (5 - 1) / 6.
        assert_eq!(tau([1.0, 2.0, 4.0, 3.0]), Some(4.0 / 6.0));
        // One pair equal: 5 / sqrt(6 · 5).
        let tied = tau([1.0, 2.0, 3.0, 3.0]).expect("defined");
        assert!((tied - 5.0 / 30f64.sqrt()).abs() < 1e-12, "{tied}");
        assert_eq!(tau([7.0; 4]), None);
        assert_eq!(tau([1.0, 2.0, 3.0, f64::NAN]), None);
        assert_eq!(kendall_tau(&[1.0], &[2.0]), None);
    }

    #[test]
    fn pairs_that_differ_are_named() {
        let predicted = [9.0, 8.0, 30.0];
        assert_eq!(discordant(&predicted, &RESPONSE_REAL), [(0, 1)]);
        assert!(!same_order(&predicted, &RESPONSE_REAL));
        assert!(same_order(&[1.0, 2.0, 3.0], &RESPONSE_REAL));
        assert_eq!(discordant(&[1.0, 1.0], &[1.0, 2.0]), [(0, 1)], "equal is not less");
        assert!(same_order(&[5.0, 5.0], &[1.0, 1.0]));
        assert!(!same_order(&[f64::NAN], &[1.0]), "what was not measured agrees with nothing");
    }

    #[test]
    fn errors_are_relative_to_what_was_measured() {
        assert_eq!(relative_error(3.0, 2.0), Some(0.5));
        assert_eq!(relative_error(1.0, 2.0), Some(-0.5));
        assert_eq!(relative_error(1.0, 0.0), None);
        assert_eq!(relative_error(f64::NAN, 1.0), None);
        assert_eq!(relative_error(1.0, f64::INFINITY), None);
    }
}
