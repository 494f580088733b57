//! Value of each stack for a load: the figures that `advise` ranks by.

use crate::args::Goal;
use crate::json::CacheChoice;
use crate::runs::Outcome;
use seekway_sim::VmResult;
use seekway_sim::metrics::ms;
use serde::Serialize;

/// Policies that are closer than this count as equal, and no VM loses by less.
pub const EQUAL_WITHIN: f64 = 0.02;

/// A stack with its figures. Scripts read these keys.
#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Judged {
    /// As sentences and tables call the stack.
    #[serde(skip)]
    pub label: String,
    pub policy: String,
    #[serde(flatten)]
    pub cache: CacheChoice,
    /// The figure of the goal.
    pub value: f64,
    pub mean_ms: f64,
    pub p99_ms: f64,
    /// The VM whose p99 is the largest multiple of what it has alone.
    pub worst_vm: String,
    pub worst_vm_p99_ms: f64,
    pub worst_vm_p99_over_alone: f64,
    pub mib_s: f64,
    /// Mean response alone over mean response here, at most 1, of the VM for which that is
    /// least: by Little's law its share of the rate that it has alone.
    pub worst_vm_speed: f64,
    /// Requests that were forced out at the hard limit.
    pub forced: u64,
    /// Mean over p99, throughput and speed of the distance from the best policy.
    pub regret: f64,
}

/// Figure by which a goal judges stacks.
pub struct GoalFigure {
    /// Its name, with its unit.
    pub name: &'static str,
    pub smaller_is_better: bool,
    of: fn(&Judged) -> f64,
}

impl GoalFigure {
    pub fn of(goal: Goal) -> GoalFigure {
        let (smaller_is_better, name, of): (_, _, fn(&Judged) -> f64) = match goal {
            Goal::Latency => {
                (true, "worst VM's p99 over its p99 alone", |j| j.worst_vm_p99_over_alone)
            }
            Goal::Throughput => (false, "bandwidth (MiB/s)", |j| j.mib_s),
            Goal::Fairness => {
                (false, "worst VM's speed as a share of its speed alone", |j| j.worst_vm_speed)
            }
            Goal::Balance => {
                (true, "mean regret in latency, throughput and fairness", |j| j.regret)
            }
        };
        GoalFigure { name, smaller_is_better, of }
    }
}

/// Figures of a VM that has the disk for itself.
#[derive(Clone, Copy)]
struct Reference {
    mean_ns: f64,
    p99_ms: f64,
}

impl Reference {
    /// The best that any of the runs gives to a VM. A VM without a request has zeros.
    fn best<'a>(runs: impl Iterator<Item = &'a VmResult>) -> Reference {
        let best = |a: Reference, b: Reference| Reference {
            mean_ns: a.mean_ns.min(b.mean_ns),
            p99_ms: a.p99_ms.min(b.p99_ms),
        };
        let of = |vm: &VmResult| Reference { mean_ns: vm.response.mean(), p99_ms: p99_ms(vm) };
        runs.map(of).reduce(best).unwrap_or(Reference { mean_ns: 0.0, p99_ms: 0.0 })
    }
}

/// 99 % of the VM's requests take no longer.
pub fn p99_ms(vm: &VmResult) -> f64 {
    ms(vm.response.value_at_quantile(0.99))
}

/// Judges each outcome. `alone` has, by VM, its runs alone; without it (one VM, or VMs that
/// cannot be run alone) the best that a policy gives a VM among the others stands for that.
pub fn judge(outcomes: &[Outcome], alone: Option<&[Vec<Outcome>]>, goal: Goal) -> Vec<Judged> {
    let vms = outcomes.first().map_or(0, |outcome| outcome.result.vms.len());
    let references: Vec<Reference> = (0..vms)
        .map(|vm| match alone {
            Some(alone) => Reference::best(alone[vm].iter().map(|o| &o.result.vms[0])),
            None => Reference::best(outcomes.iter().map(|o| &o.result.vms[vm])),
        })
        .collect();
    let mut judged: Vec<Judged> = outcomes.iter().map(|o| one(o, &references)).collect();
    let (regrets, figure) = (regrets(&judged), GoalFigure::of(goal));
    for (judged, regret) in judged.iter_mut().zip(regrets) {
        judged.regret = regret;
        judged.value = (figure.of)(judged);
    }
    judged
}

fn one(outcome: &Outcome, references: &[Reference]) -> Judged {
    let result = &outcome.result;
    let served = || result.vms.iter().zip(references).filter(|(vm, _)| vm.requests > 0);
    let slower = |(vm, alone): &(&VmResult, &Reference)| over(p99_ms(vm), alone.p99_ms);
    let worst = served().max_by(|a, b| slower(a).total_cmp(&slower(b)));
    let speed = |(vm, alone): (&VmResult, &Reference)| {
        (1.0 / over(vm.response.mean(), alone.mean_ns)).min(1.0)
    };
    Judged {
        label: outcome.label.clone(),
        policy: outcome.scenario.policy.clone(),
        cache: CacheChoice::new(&outcome.scenario),
        value: 0.0,
        mean_ms: result.response.mean() / 1e6,
        p99_ms: ms(result.response.value_at_quantile(0.99)),
        worst_vm: worst.map(|(vm, _)| vm.name.clone()).unwrap_or_default(),
        worst_vm_p99_ms: worst.map_or(0.0, |(vm, _)| p99_ms(vm)),
        worst_vm_p99_over_alone: worst.as_ref().map_or(1.0, slower),
        mib_s: result.mib_s(),
        worst_vm_speed: served().map(speed).fold(1.0, f64::min),
        forced: result.stats.forced,
        regret: 0.0,
    }
}

/// A response time as a multiple of another; 1 if either is zero, as with a load that took
/// no time.
fn over(time: f64, reference: f64) -> f64 {
    if time > 0.0 && reference > 0.0 { time / reference } else { 1.0 }
}

/// The mean over throughput, the worst VM's speed and p99 of the distance from the best, 0 to 1,
/// as the arena has it (docs/arena.md).
fn regrets(judged: &[Judged]) -> Vec<f64> {
    type Of = fn(&Judged) -> f64;
    // The more, the better.
    let measures: [Of; 3] =
        [|j| j.mib_s, |j| j.worst_vm_speed, |j| 1.0 / j.worst_vm_p99_over_alone];
    let best = measures.map(|of| judged.iter().map(of).reduce(f64::max).unwrap_or(0.0));
    let regret = |own: f64, best: f64| {
        let part = own / best;
        // Where nobody got anything, nobody did worse.
        if part.is_finite() { (1.0 - part).clamp(0.0, 1.0) } else { 0.0 }
    };
    let mean = |j: &Judged| {
        let all = measures.iter().zip(best).map(|(of, best)| regret(of(j), best));
        all.sum::<f64>() / measures.len() as f64
    };
    judged.iter().map(mean).collect()
}

/// By `value`, the best first. Policies within [`EQUAL_WITHIN`] of the best that is left
/// stay in their order: without a cache before small and large ones, and in it that of the
/// registry, fairway first, then the simpler. Those that made a
/// request wait past the hard limit come last: a guest takes such a disk for a broken one.
pub fn sort(judged: Vec<Judged>, goal: Goal) -> Vec<Judged> {
    let (forced, kept): (Vec<Judged>, _) = judged.into_iter().partition(|j| j.forced > 0);
    let mut sorted = sort_by_value(kept, goal);
    sorted.extend(sort_by_value(forced, goal));
    sorted
}

fn sort_by_value(mut left: Vec<Judged>, goal: Goal) -> Vec<Judged> {
    let mut sorted = Vec::new();
    while let Some(best) = best(&left, goal) {
        let (equal, rest): (Vec<Judged>, _) =
            left.into_iter().partition(|j| are_equal(goal, j.value, best));
        sorted.extend(equal);
        left = rest;
    }
    sorted
}

/// The best figure of the goal, if there is any policy.
pub fn best(judged: &[Judged], goal: Goal) -> Option<f64> {
    let better = if GoalFigure::of(goal).smaller_is_better { f64::min } else { f64::max };
    judged.iter().map(|j| j.value).reduce(better)
}

/// Is `value` as good as `best`, the best there is? Regret is a distance already.
pub fn are_equal(goal: Goal, value: f64, best: f64) -> bool {
    match goal {
        Goal::Balance => value - best <= EQUAL_WITHIN,
        Goal::Latency => value <= best * (1.0 + EQUAL_WITHIN),
        Goal::Throughput | Goal::Fairness => value >= best * (1.0 - EQUAL_WITHIN),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn judged(policy: &str, value: f64) -> Judged {
        Judged {
            label: policy.into(),
            policy: policy.into(),
            cache: CacheChoice { cache_mib: None, prefetch: None },
            value,
            mean_ms: 1.0,
            p99_ms: 1.0,
            worst_vm: "a".into(),
            worst_vm_p99_ms: 1.0,
            worst_vm_p99_over_alone: value,
            mib_s: 10.0,
            worst_vm_speed: 0.5,
            forced: 0,
            regret: 0.0,
        }
    }

    fn order(values: &[(&str, f64)], goal: Goal) -> Vec<String> {
        let all = values.iter().map(|&(policy, value)| judged(policy, value)).collect();
        sort(all, goal).into_iter().map(|j| j.policy).collect()
    }

    #[test]
    fn equal_policies_keep_their_order_and_others_stand_by_their_figure() {
        let values = [("fairway", 1.015), ("noop", 1.5), ("cscan", 1.0), ("cfq", 1.49)];
        assert_eq!(order(&values, Goal::Latency), ["fairway", "cscan", "noop", "cfq"]);
        let values = [("fairway", 0.5), ("noop", 1.0), ("cscan", 0.99)];
        assert_eq!(order(&values, Goal::Throughput), ["noop", "cscan", "fairway"]);
        let values = [("fairway", 0.02), ("noop", 0.021), ("cscan", 0.0)];
        assert_eq!(order(&values, Goal::Balance), ["fairway", "cscan", "noop"]);
        let mut forced = judged("fairway", 1.0);
        forced.forced = 1;
        let all = vec![forced.clone(), judged("noop", 9.0)];
        assert_eq!(sort(all, Goal::Latency)[0].policy, "noop", "nobody waits 30 s there");
        assert_eq!(sort(vec![forced], Goal::Latency).len(), 1);
        let zeros = [("fairway", 0.0), ("noop", 0.0)];
        assert_eq!(order(&zeros, Goal::Fairness), ["fairway", "noop"]);
    }

    #[test]
    fn regret_is_the_mean_over_three_measures() {
        let all = [judged("fairway", 1.0), judged("noop", 4.0)];
        let regrets = regrets(&all);
        assert_eq!(regrets[0], 0.0);
        // Three quarters of the p99, nothing of the other two.
        assert!((regrets[1] - 0.25).abs() < 1e-12);
    }

    #[test]
    fn a_load_that_took_no_time_divides_by_nothing() {
        assert_eq!([over(0.0, 0.0), over(1.0, 0.0), over(0.0, 1.0)], [1.0; 3]);
        assert_eq!(over(3.0, 2.0), 1.5);
    }
}
