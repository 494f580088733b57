//! Quality of a prediction: rank agreement and error, measure by measure.

use super::figures::{Measure, Side};
use seekway_sim::rank::{discordant, kendall_tau, relative_error, same_order};
use serde::Serialize;
use std::collections::BTreeMap;

/// One measure of prediction and measurement.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Agreement {
    /// Its key in the runs.
    pub measure: &'static str,
    #[serde(skip)]
    pub of: Measure,
    /// Kendall's τ-b over the policies' means; absent for a single policy.
    pub tau: Option<f64>,
    /// Are all pairs of policies ordered alike? Absent for a single policy.
    pub same_order: Option<bool>,
    /// Of the seeds that both sides ran, those in which they are.
    pub seeds_same_order: Option<usize>,
    /// Seeds that both sides ran.
    pub seeds: usize,
    /// Pairs of policies that are not, the better one by the prediction first.
    pub swapped: Vec<SwappedPair>,
    /// The prediction over the measurement, less 1, by policy.
    pub errors: BTreeMap<String, Option<f64>>,
    /// Mean of their absolute values.
    pub error_mean: Option<f64>,
    /// The largest of their absolute values.
    pub error_max: Option<f64>,
}

/// A pair of policies in another order.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SwappedPair {
    pub policies: [String; 2],
    /// By how much the measurement says that they differ, as a share of the
    /// smaller: how much the wrong order would cost.
    pub differ: Option<f64>,
}

/// Stacks that both sides have, in the prediction's order.
pub fn common(predicted: &Side, against: &Side) -> Vec<String> {
    let theirs = against.stacks();
    predicted.stacks().into_iter().filter(|stack| theirs.contains(stack)).collect()
}

/// All measures that both sides have.
pub fn agreement(predicted: &Side, against: &Side) -> Vec<Agreement> {
    let policies = common(predicted, against);
    let both = |m: &Measure| predicted.has(*m) && against.has(*m);
    // Without queueing in the device it is the same figure twice.
    let told_apart =
        |m: &Measure| *m != Measure::ServiceFromDispatch || predicted.queues() || against.queues();
    let measures = Measure::ALL.into_iter().filter(both).filter(told_apart);
    measures.map(|m| of_measure(predicted, against, &policies, m)).collect()
}

fn of_measure(
    predicted: &Side,
    against: &Side,
    policies: &[String],
    measure: Measure,
) -> Agreement {
    let (p, a) = (predicted.means(policies, measure), against.means(policies, measure));
    let errors = |(p, a): (&f64, &f64)| relative_error(*p, *a);
    let errors: Vec<Option<f64>> = p.iter().zip(&a).map(errors).collect();
    let sizes: Vec<f64> = errors.iter().flatten().map(|e| e.abs()).collect();
    let several = policies.len() > 1 && p.iter().chain(&a).all(|v| v.is_finite());
    let theirs = against.seeds();
    let seeds: Vec<u64> = predicted.seeds().into_iter().filter(|s| theirs.contains(s)).collect();
    let alike = |seed: &&u64| {
        let of = |side: &Side| side.of_seed(policies, measure, **seed);
        same_order(&of(predicted), &of(against))
    };
    let swapped = |(i, j): (usize, usize)| {
        let first = measure.better() == seekway_sim::rank::Better::Less;
        let (better, worse) = if (p[i] <= p[j]) == first { (i, j) } else { (j, i) };
        let (low, high) = (a[i].min(a[j]), a[i].max(a[j]));
        SwappedPair {
            policies: [policies[better].clone(), policies[worse].clone()],
            differ: relative_error(high, low),
        }
    };
    let pairs = if several { discordant(&p, &a) } else { Vec::new() };
    Agreement {
        measure: measure.key(),
        of: measure,
        tau: if several { kendall_tau(&p, &a) } else { None },
        same_order: several.then(|| same_order(&p, &a)),
        seeds_same_order: (several && !seeds.is_empty())
            .then(|| seeds.iter().filter(alike).count()),
        seeds: seeds.len(),
        swapped: pairs.into_iter().map(swapped).collect(),
        errors: policies.iter().cloned().zip(errors).collect(),
        error_mean: (!sizes.is_empty()).then(|| sizes.iter().sum::<f64>() / sizes.len() as f64),
        error_max: sizes.iter().copied().reduce(f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figures;
    use super::*;

    fn side(figures: &[(&str, u64, f64)]) -> Side {
        let run = |(policy, seed, ms): &(&str, u64, f64)| Figures {
            policy: (*policy).into(),
            seed: Some(*seed),
            response_ms: Some(*ms),
            ..Figures::default()
        };
        Side {
            what: String::new(),
            runs: figures.iter().map(run).collect(),
            warnings: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn means_decide_and_seeds_are_counted() {
        // In the mean alike; in seed 2 the prediction has them the other way round.
        let predicted = side(&[("a", 1, 1.0), ("a", 2, 4.0), ("b", 1, 5.0), ("b", 2, 3.0)]);
        let against = side(&[("a", 1, 2.0), ("a", 2, 2.0), ("b", 1, 4.0), ("b", 2, 4.0)]);
        let made = agreement(&predicted, &against);
        let [response] = &made[..] else { panic!("one measure, not {}", made.len()) };
        assert_eq!((response.tau, response.same_order), (Some(1.0), Some(true)));
        assert_eq!((response.seeds_same_order, response.seeds), (Some(1), 2));
        assert_eq!(response.errors["a"], Some(0.25));
        assert_eq!((response.error_mean, response.error_max), (Some(0.125), Some(0.25)));
    }

    #[test]
    fn swapped_pairs_are_named_with_what_is_at_stake() {
        let predicted = side(&[("a", 1, 1.0), ("b", 1, 2.0), ("c", 1, 9.0)]);
        let against = side(&[("c", 7, 30.0), ("b", 7, 10.0), ("a", 7, 11.0), ("d", 7, 1.0)]);
        let made = agreement(&predicted, &against);
        let response = &made[0];
        assert_eq!((response.same_order, response.seeds), (Some(false), 0));
        let [pair] = &response.swapped[..] else { panic!("one pair") };
        assert_eq!(pair.policies, ["a", "b"], "a is better by the prediction");
        assert!((pair.differ.expect("defined") - 0.1).abs() < 1e-12);
        assert!(!response.errors.contains_key("d"), "only what both have");
    }

    #[test]
    fn one_policy_has_an_error_and_no_rank() {
        let made = agreement(&side(&[("a", 1, 3.0)]), &side(&[("a", 1, 2.0)]));
        assert_eq!((made[0].tau, made[0].same_order), (None, None));
        assert_eq!(made[0].error_max, Some(0.5));
    }
}
