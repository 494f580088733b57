//! Credits of each channel at a replenishment: in proportion to claims, in whole numbers, with a
//! sum that is exact.

use std::cmp::Reverse;

/// A channel's claim, and the credits that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Number of the VM.
    pub vm: u16,
    /// Its requests times its weight, at least 1.
    pub demand: u64,
    /// Set by [`allot`]; the value before does not count.
    pub credits: u64,
}

/// Divide `total` credits by the claims: C_i = round(demand_i / Σ demand × total),
/// rounded by largest remainders so that Σ C_i = `total`, and no claim below 1.
///
/// A claim worth less than one credit gets one; the others share the rest. When
/// there are more claims than credits, "at least 1" wins over the sum. Of equal
/// remainders the larger claim's goes first, of equal claims the earlier one:
/// the caller's order decides between equals and nothing else.
pub fn allot(claims: &mut [Claim], total: u64) {
    let sum: u128 = claims.iter().map(|c| u128::from(c.demand)).sum();
    if sum == u128::from(total) {
        // Each gets what it claims: the device is under-used and weights are 1.
        claims.iter_mut().for_each(|c| c.credits = c.demand);
        return;
    }
    if total <= claims.len() as u64 || claims.is_empty() {
        claims.iter_mut().for_each(|c| c.credits = 1);
        return;
    }
    let (shared, sum) = give_the_least(claims, total, sum);
    give_the_rest(claims, shared, sum);
}

/// One credit for each claim that is worth less; zero marks the others. What
/// is left to share, and the sum of the claims that share it.
fn give_the_least(claims: &mut [Claim], total: u64, sum: u128) -> (u64, u128) {
    let (mut shared, mut sum) = (total, sum);
    claims.iter_mut().for_each(|c| c.credits = 0);
    // Each round takes away less than its claims got, so that others may come to be worth
    // less than one: until none does.
    loop {
        let (before, before_sum) = (shared, sum);
        for claim in claims.iter_mut().filter(|c| c.credits == 0) {
            if u128::from(claim.demand) * u128::from(before) < before_sum {
                claim.credits = 1;
                shared -= 1;
                sum -= u128::from(claim.demand);
            }
        }
        if shared == before {
            return (shared, sum);
        }
    }
}

/// Share `shared` credits among the claims that have none, by largest remainders.
fn give_the_rest(claims: &mut [Claim], shared: u64, sum: u128) {
    // Claims without credits: remainder, demand and place, largest remainder first.
    let mut remainders = Vec::with_capacity(claims.len());
    let mut left = shared;
    for (at, claim) in claims.iter_mut().enumerate().filter(|(_, c)| c.credits == 0) {
        let (whole, remainder) = divide(claim.demand, shared, sum);
        claim.credits = whole;
        left -= whole;
        remainders.push((Reverse(remainder), Reverse(claim.demand), at));
    }
    let left = left as usize;
    if left > 0 && left < remainders.len() {
        remainders.select_nth_unstable(left - 1);
    }
    for &(.., at) in &remainders[..left] {
        claims[at].credits += 1;
    }
}

/// `demand · total / sum` and its remainder; in 64 bits where they suffice.
fn divide(demand: u64, total: u64, sum: u128) -> (u64, u128) {
    if let (Some(product), Ok(sum)) = (demand.checked_mul(total), u64::try_from(sum)) {
        return (product / sum, u128::from(product % sum));
    }
    let product = u128::from(demand) * u128::from(total);
    // Below `total`, for no claim exceeds the sum.
    ((product / sum) as u64, product % sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::mix::Draws;

    fn allotted(demands: &[u64], total: u64) -> Vec<u64> {
        let claim = |(vm, &demand): (usize, &u64)| Claim { vm: vm as u16, demand, credits: 9 };
        let mut claims: Vec<Claim> = demands.iter().enumerate().map(claim).collect();
        allot(&mut claims, total);
        claims.iter().map(|c| c.credits).collect()
    }

    #[test]
    fn rounds_by_largest_remainders() {
        assert_eq!(allotted(&[1, 1, 1], 10), [4, 3, 3], "a tie goes to the earlier");
        assert_eq!(allotted(&[5, 3, 2], 7), [4, 2, 1], "3.5, 2.1, 1.4");
        assert_eq!(allotted(&[5, 3, 2], 9), [4, 3, 2], "4.5, 2.7, 1.8");
        assert_eq!(allotted(&[6, 1, 1], 8), [6, 1, 1]);
    }

    #[test]
    fn a_claim_worth_less_than_one_gets_one() {
        assert_eq!(allotted(&[1_000, 1, 1], 10), [8, 1, 1]);
        // 8 credits for 1,000 and 130: 7.08 and 0.92, though 130 of 1,130 is 1.03 of 9.
        assert_eq!(allotted(&[1_000, 130, 1], 9), [7, 1, 1]);
    }

    #[test]
    fn at_least_one_wins_over_the_sum() {
        assert_eq!(allotted(&[90, 5, 5], 2), [1, 1, 1]);
        assert_eq!(allotted(&[90, 5, 5], 0), [1, 1, 1]);
        assert_eq!(allotted(&[90, 5, 5], 3), [1, 1, 1]);
        assert_eq!(allotted(&[], 3), []);
    }

    #[test]
    fn the_sum_is_exact_and_the_order_is_of_no_account() {
        let mut random = Draws::new(1);
        for case in 0..20_000 {
            let n = 1 + random.below(12) as usize;
            // From a few to as large as 64 bits hold: 2^22 requests of weight 2^32 - 1.
            let bits = 1 + random.below(54);
            let demands: Vec<u64> = (0..n).map(|_| 1 + random.below(1 << bits)).collect();
            let spare_bits = 1 + random.below(30);
            let total = n as u64 + random.below(1 << spare_bits);
            let given = allotted(&demands, total);
            let seen = format!("case {case}: {demands:?} share {total}: {given:?}");
            assert_eq!(given.iter().sum::<u64>(), total, "{seen}");
            assert!(given.iter().all(|&c| c >= 1), "{seen}");
            let sum: u128 = demands.iter().map(|&d| u128::from(d)).sum();
            for (&d, &c) in demands.iter().zip(&given) {
                // Never above its share by one or more, unless that is the least of one.
                let above = u128::from(c.saturating_sub(1)) * sum;
                assert!(above < u128::from(d) * u128::from(total) || c == 1, "{seen}");
                for (&e, &f) in demands.iter().zip(&given) {
                    assert!(d < e || c + u64::from(d == e) >= f, "{seen}: less for more");
                }
            }
            let mut order: Vec<usize> = (0..n).collect();
            (1..n).for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
            let moved: Vec<u64> = order.iter().map(|&i| demands[i]).collect();
            let sorted = |demands: &[u64], given: &[u64]| {
                let mut pairs: Vec<_> = demands.iter().copied().zip(given.to_vec()).collect();
                pairs.sort_unstable();
                pairs
            };
            let again = allotted(&moved, total);
            assert_eq!(sorted(&demands, &given), sorted(&moved, &again), "{seen}: {order:?}");
        }
    }
}
