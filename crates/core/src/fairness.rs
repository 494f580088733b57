//! Measures of fairness: VMCD's φ, Jain's index and the max-min share.
//!
//! Pure functions over one number per VM. Bandwidths are in MiB/s, which the VMCD paper calls
//! "Mbps"; only the equal-demand class of φ depends on the unit.

/// Demands within this share of each other count as equal, so that a measured stand-alone
/// bandwidth that differs in the fourth digit does not change the class of the formula.
const EQUAL_WITHIN: f64 = 1e-3;

/// VMCD's fairness index φ = Σ λᵢ, smaller is fairer (Tan et al., section 3.1, equations 1 and 2).
///
/// `demands` is Bᵢ: the offered load of a rate-limited VM, for others the bandwidth that it has
/// when it is alone. `got` is B'ᵢ. `weights` are the VMs' weights, all 1 in the paper.
///
/// - Equal demands: λᵢ = |B'ᵢ − fair share|, in MiB/s; the fair share is the mean when all
///   weights are equal.
/// - Unequal demands, VM below the mean demand: λᵢ = |B'ᵢ − Bᵢ| / Bᵢ, a plain number.
/// - Unequal demands, VM at or above it: λᵢ = |B'ᵢ − βᵢ·Bₐ| / (βᵢ·Bₐ), with Bₐ the sum of what
///   all got and βᵢ = wᵢ·Bᵢ / Σ wⱼ·Bⱼ. This reading reproduces the paper's own values.
///
/// The two classes have different units, so compare φ only between runs of the same demands.
/// Returns `None` where it is not defined: no VM, a VM that demands nothing yet got something,
/// nothing got by anyone while the demands differ, or a number that is negative or not finite.
///
/// # Panics
/// When the three slices differ in length.
pub fn phi(demands: &[f64], got: &[f64], weights: &[f64]) -> Option<f64> {
    assert_eq!(demands.len(), got.len(), "one demand for each VM");
    assert_eq!(weights.len(), got.len(), "one weight for each VM");
    if got.is_empty() || ![demands, got, weights].into_iter().all(usable) {
        return None;
    }
    let index =
        if equal(demands) { phi_equal(got, weights) } else { phi_unequal(demands, got, weights) };
    index.filter(|phi| phi.is_finite())
}

fn phi_equal(got: &[f64], weights: &[f64]) -> Option<f64> {
    let total = sum(got);
    let weight_total = sum(weights);
    if weight_total <= 0.0 {
        return None;
    }
    Some(got.iter().zip(weights).map(|(b, w)| (b - total * w / weight_total).abs()).sum())
}

fn phi_unequal(demands: &[f64], got: &[f64], weights: &[f64]) -> Option<f64> {
    let mean = sum(demands) / demands.len() as f64;
    let total = sum(got);
    let weighted: f64 = demands.iter().zip(weights).map(|(d, w)| d * w).sum();
    let mut phi = 0.0;
    for ((&demand, &b), &weight) in demands.iter().zip(got).zip(weights) {
        if demand == 0.0 && b == 0.0 {
            continue; // Asked for nothing and got nothing.
        }
        let expected = if demand < mean { demand } else { weight * demand / weighted * total };
        if expected <= 0.0 || expected.is_nan() {
            return None;
        }
        phi += (b - expected).abs() / expected;
    }
    Some(phi)
}

/// Jain's index (Σx)² / (n·Σx²): 1 when all are equal, 1/n when one has everything.
///
/// Source: Jain, Chiu, Hawe, "A quantitative measure of fairness", DEC TR-301, 1984.
/// Divide by weight or demand first when the VMs are not entitled to the same.
/// `None` when no VM got anything, or a number is negative or not finite.
pub fn jain(got: &[f64]) -> Option<f64> {
    if !usable(got) {
        return None;
    }
    // Scaled by the largest, so that squares neither overflow nor vanish.
    let max = got.iter().copied().fold(0.0, f64::max);
    if max <= 0.0 {
        return None;
    }
    let total: f64 = got.iter().map(|x| x / max).sum();
    let squares: f64 = got.iter().map(|x| (x / max).powi(2)).sum();
    Some(total * total / (got.len() as f64 * squares))
}

/// Computes each VM's share of `capacity` under weighted max-min fairness (progressive filling).
///
/// No VM gets more than it demands; the remainder is divided among the others by weight. Source:
/// Bertsekas, Gallager, "Data Networks", section 6.5.2.
///
/// # Panics
/// When the slices differ in length.
pub fn max_min_shares(capacity: f64, demands: &[f64], weights: &[f64]) -> Vec<f64> {
    assert_eq!(demands.len(), weights.len(), "one weight for each VM");
    let mut shares = vec![0.0; demands.len()];
    if !usable(demands) || !usable(weights) || !usable(&[capacity]) {
        return shares;
    }
    let mut open: Vec<usize> = (0..demands.len()).filter(|&i| weights[i] > 0.0).collect();
    // The VM with the lowest water level per weight is satisfied first.
    open.sort_by(|&a, &b| (demands[a] / weights[a]).total_cmp(&(demands[b] / weights[b])));
    let mut left = capacity;
    // Subtracting may round the last weights away: no part exceeds one.
    let mut weight_left: f64 = open.iter().map(|&i| weights[i]).sum();
    for i in open {
        shares[i] = demands[i].min(left * (weights[i] / weight_left).min(1.0));
        left = (left - shares[i]).max(0.0);
        weight_left -= weights[i];
    }
    shares
}

/// Computes the worst VM's fraction of its max-min share: min over VMs of got / share, 1 or more
/// when everyone has at least what is due. The capacity to divide is the sum of `got`.
///
/// `None` when no VM is due anything, or a number is negative or not finite.
///
/// # Panics
/// When the slices differ in length.
pub fn max_min_share(demands: &[f64], got: &[f64], weights: &[f64]) -> Option<f64> {
    assert_eq!(demands.len(), got.len(), "one demand for each VM");
    if !usable(demands) || !usable(got) || !usable(weights) {
        return None;
    }
    max_min_shares(sum(got), demands, weights)
        .iter()
        .zip(got)
        .filter(|(share, _)| **share > 0.0)
        .map(|(share, b)| b / share)
        .min_by(f64::total_cmp)
}

fn sum(values: &[f64]) -> f64 {
    values.iter().sum()
}

fn usable(values: &[f64]) -> bool {
    !values.is_empty() && values.iter().all(|v| v.is_finite() && *v >= 0.0)
}

fn equal(demands: &[f64]) -> bool {
    let max = demands.iter().copied().fold(0.0, f64::max);
    let min = demands.iter().copied().fold(f64::INFINITY, f64::min);
    max - min <= EQUAL_WITHIN * max
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10, 100 and 300 requests a second of 64 KiB, in MiB/s.
    const DEMANDS: [f64; 3] = [0.625, 6.25, 18.75];
    const EVEN: [f64; 3] = [1.0; 3];

    fn close(got: Option<f64>, want: f64, within: f64) {
        let got = got.expect("defined");
        assert!((got - want).abs() <= within, "{got} is not {want} ± {within}");
    }

    #[test]
    fn phi_is_what_the_vmcd_paper_prints() {
        // Section 4.4, figure 15: to the fourth decimal.
        close(phi(&DEMANDS, &[3.16, 8.41, 16.75], &EVEN), 4.5932, 2e-4);
        // Section 4.2.2, figure 9: bandwidths are rounded to 0.01, which is 0.016 of φ each way.
        close(phi(&DEMANDS, &[3.04, 8.48, 16.83], &EVEN), 4.404, 0.016);
        // CFQ of the same figure: printed as 13.687, half a per cent off its own bandwidths.
        close(phi(&DEMANDS, &[8.63, 8.83, 9.04], &EVEN), 13.687, 0.07);
    }

    #[test]
    fn phi_of_equal_demands_is_the_distance_from_the_mean() {
        close(phi(&[5.0; 3], &[4.0, 5.0, 6.0], &EVEN), 2.0, 1e-12);
        close(phi(&[5.0, 5.001, 5.0], &[5.0; 3], &EVEN), 0.0, 1e-12);
        close(phi(&[5.0; 2], &[2.0, 4.0], &[1.0, 2.0]), 0.0, 1e-12);
    }

    #[test]
    fn phi_is_zero_when_each_gets_its_demand() {
        close(phi(&DEMANDS, &DEMANDS, &EVEN), 0.0, 1e-12);
    }

    #[test]
    fn undefined_cases_are_none() {
        assert_eq!(phi(&[], &[], &[]), None);
        assert_eq!(phi(&[0.0, 1.0], &[1.0, 1.0], &[1.0; 2]), None);
        assert_eq!(phi(&[1.0, 2.0], &[0.0, 0.0], &[1.0; 2]), None);
        assert_eq!(phi(&[f64::NAN, 2.0], &[1.0, 1.0], &[1.0; 2]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
        assert_eq!(jain(&[]), None);
        assert_eq!(max_min_share(&[0.0], &[0.0], &[1.0]), None);
        // An idle VM beside a busy one is no unfairness.
        close(phi(&[0.0, 1.0], &[0.0, 1.0], &[1.0; 2]), 0.0, 1e-12);
    }

    #[test]
    fn jain_spans_one_nth_to_one() {
        close(jain(&[3.0; 4]), 1.0, 1e-12);
        close(jain(&[7.0, 0.0, 0.0, 0.0]), 0.25, 1e-12);
        close(jain(&[1.0, 2.0, 3.0]), 36.0 / 42.0, 1e-12);
        close(jain(&[1e300, 1e300]), 1.0, 1e-12);
    }

    #[test]
    fn max_min_fills_small_demands_first() {
        assert_eq!(max_min_shares(10.0, &[2.0, 8.0, 8.0], &EVEN), [2.0, 4.0, 4.0]);
        assert_eq!(max_min_shares(100.0, &[2.0, 8.0, 8.0], &EVEN), [2.0, 8.0, 8.0]);
        assert_eq!(max_min_shares(9.0, &[8.0, 8.0], &[1.0, 2.0]), [3.0, 6.0]);
        close(max_min_share(&[2.0, 8.0, 8.0], &[2.0, 6.0, 2.0], &EVEN), 0.5, 1e-12);
    }
}
