//! Value of each stack for a load: the figures that `advise` ranks by.

use crate::args::Goal;
use crate::json::CacheChoice;
use crate::runs::Outcome;
use seekway_report::rank::{Better, EQUAL_WITHIN, ranks};
use seekway_sim::RunResult;
use seekway_sim::metrics::{Times, ms};
use serde::Serialize;

/// A stack with its figures. Response times are those of requests that somebody waits for; of all
/// requests if there are none of these. Scripts read these keys.
#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Judged {
    /// As sentences and tables call the stack.
    #[serde(skip)]
    pub label: String,
    /// Mean response of each VM.
    #[serde(skip)]
    pub means_ms: Vec<f64>,
    pub policy: String,
    #[serde(flatten)]
    pub cache: CacheChoice,
    /// Does the disk carry the load under it? Always, if the load is closed.
    pub carries: bool,
    /// Place by the goal's figure, behind those under which the disk carries the load if it does not;
    /// stacks within 2 % share it. Null without a figure.
    pub rank: Option<usize>,
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

/// Name of the figure by which a goal judges stacks, with its unit. `is_alone_measured`: as
/// [`judge`] got the VMs' runs alone.
pub fn figure_name(goal: Goal, is_alone_measured: bool) -> &'static str {
    match (goal, is_alone_measured) {
        (Goal::Latency, true) => "worst VM's p99 over its p99 alone",
        (Goal::Latency, false) => {
            "worst VM's p99 over its p99 under the policy that is best for it"
        }
        (Goal::Throughput, _) => "bandwidth (MiB/s)",
        (Goal::Fairness, true) => "worst VM's speed as a share of its speed alone",
        (Goal::Fairness, false) => {
            "worst VM's speed as a share of its speed under the policy that is best for it"
        }
        (Goal::Balance, _) => "mean regret in latency, throughput and fairness",
    }
}

impl Judged {
    fn figure(&self, goal: Goal) -> f64 {
        match goal {
            Goal::Latency => self.worst_vm_p99_over_alone,
            Goal::Throughput => self.mib_s,
            Goal::Fairness => self.worst_vm_speed,
            Goal::Balance => self.regret,
        }
    }
}

/// Response of a VM's requests that somebody waits for.
#[derive(Clone, Copy)]
pub struct Wait {
    mean_ms: f64,
    p99_ms: f64,
}

impl Wait {
    fn of(times: &Times) -> Wait {
        Wait { mean_ms: times.mean() / 1e6, p99_ms: ms(times.value_at_quantile(0.99)) }
    }

    /// Of a VM in a run.
    pub fn of_vm(outcome: &Outcome, vm: usize) -> Wait {
        Wait::of(&outcome.result.waited_for(vm))
    }

    /// The best that any of the runs gives to a VM. A VM without a request has zeros.
    fn best(waits: impl Iterator<Item = Wait>) -> Wait {
        let best = |a: Wait, b: Wait| Wait {
            mean_ms: a.mean_ms.min(b.mean_ms),
            p99_ms: a.p99_ms.min(b.p99_ms),
        };
        waits.reduce(best).unwrap_or(Wait { mean_ms: 0.0, p99_ms: 0.0 })
    }
}

/// Judges each outcome; `carries` has its verdicts. `alone` has, by VM, its runs alone; without it
/// (one VM, or VMs that cannot be run alone) the best that a policy gives a VM among the others
/// stands for that.
pub fn judge(
    outcomes: &[Outcome],
    carries: &[bool],
    alone: Option<&[Vec<Wait>]>,
    goal: Goal,
) -> Vec<Judged> {
    let vms = outcomes.first().map_or(0, |outcome| outcome.result.vms.len());
    let references: Vec<Wait> = (0..vms)
        .map(|vm| match alone {
            Some(alone) => Wait::best(alone[vm].iter().copied()),
            None => Wait::best(outcomes.iter().map(|outcome| Wait::of_vm(outcome, vm))),
        })
        .collect();
    let mut judged: Vec<Judged> =
        outcomes.iter().zip(carries).map(|(o, carries)| one(o, *carries, &references)).collect();
    let regrets = regrets(&judged);
    for (judged, regret) in judged.iter_mut().zip(regrets) {
        judged.regret = regret;
        judged.value = judged.figure(goal);
    }
    judged
}

fn one(outcome: &Outcome, carries: bool, references: &[Wait]) -> Judged {
    let result = &outcome.result;
    let vms = 0..result.vms.len();
    // A VM whose requests nobody waits for counts only if all are such.
    let any = vms.clone().any(|vm| result.is_waited_for(vm));
    let counts = |vm: &usize| !any || result.is_waited_for(*vm);
    let times: Vec<Times> = vms.clone().map(|vm| result.waited_for(vm)).collect();
    let waits: Vec<Wait> = times.iter().map(Wait::of).collect();
    let named = result.vms.iter().zip(waits.iter().zip(references)).zip(vms.clone());
    let served = named.filter(|((vm, _), n)| vm.requests > 0 && counts(n));
    let served: Vec<_> = served.map(|(named, _)| named).collect();
    let all = together(times.iter().zip(vms).filter(|(_, n)| counts(n)).map(|(t, _)| t.clone()));
    let slower = |(wait, alone): (&Wait, &Wait)| over(wait.p99_ms, alone.p99_ms);
    let worst = served.iter().max_by(|a, b| slower(a.1).total_cmp(&slower(b.1)));
    let speed = |(wait, alone): (&Wait, &Wait)| (1.0 / over(wait.mean_ms, alone.mean_ms)).min(1.0);
    Judged {
        label: outcome.label.clone(),
        means_ms: waits
            .iter()
            .enumerate()
            .map(|(n, wait)| if counts(&n) { wait.mean_ms } else { 0.0 })
            .collect(),
        policy: outcome.scenario.policy.clone(),
        cache: CacheChoice::new(&outcome.scenario),
        carries,
        rank: None,
        value: 0.0,
        mean_ms: all.mean_ms,
        p99_ms: all.p99_ms,
        worst_vm: worst.map(|(vm, _)| vm.name.clone()).unwrap_or_default(),
        worst_vm_p99_ms: worst.map_or(0.0, |(_, (wait, _))| wait.p99_ms),
        worst_vm_p99_over_alone: worst.map_or(1.0, |(_, waits)| slower(*waits)),
        mib_s: result.mib_s(),
        worst_vm_speed: served.iter().map(|(_, waits)| speed(*waits)).fold(1.0, f64::min),
        forced: result.stats.forced,
        regret: 0.0,
    }
}

/// The waits of all VMs.
fn together(times: impl Iterator<Item = Times>) -> Wait {
    let add = |mut all: Times, times: Times| {
        all.add(&times);
        all
    };
    times.reduce(add).map_or(Wait { mean_ms: 0.0, p99_ms: 0.0 }, |all| Wait::of(&all))
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

/// By `value`, the best first. Equal policies stay in their order: without a cache before small and
/// large ones, and in it that of the registry, fairway first, then the simpler. Those under which the
/// disk does not carry the load come last.
pub fn sort(judged: Vec<Judged>, goal: Goal) -> Vec<Judged> {
    let (carrying, failing): (Vec<Judged>, Vec<Judged>) =
        judged.into_iter().partition(|j| j.carries);
    let mut sorted = Vec::new();
    for group in [carrying, failing] {
        let (ranks, before) = (places(&group, goal), sorted.len());
        let ranked = group.into_iter().zip(ranks);
        sorted.extend(
            ranked.map(|(judged, rank)| Judged { rank: rank.map(|rank| before + rank), ..judged }),
        );
        sorted[before..].sort_by_key(|judged| judged.rank.unwrap_or(usize::MAX));
    }
    sorted
}

/// The rank of each by the goal's figure; equal ones share it. Regret is a distance already.
fn places(judged: &[Judged], goal: Goal) -> Vec<Option<usize>> {
    let (better, of): (_, fn(f64) -> f64) = match goal {
        Goal::Latency => (Better::Less, |value| value),
        Goal::Throughput | Goal::Fairness => (Better::More, |value| value),
        Goal::Balance => (Better::More, |regret| 1.0 - regret),
    };
    ranks(&judged.iter().map(|j| of(j.value)).collect::<Vec<_>>(), better)
}

/// Those that equal the first, the first among them.
pub fn equal_to_first(ranking: &[Judged]) -> Vec<&Judged> {
    ranking.iter().filter(|judged| judged.rank == ranking[0].rank).collect()
}

/// A VM that another stack would serve better than the first.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Loser {
    pub vm: String,
    /// The stack that serves this VM best.
    pub better: String,
    /// Factor by which its mean response is longer under the recommended one.
    pub slower: f64,
}

/// VMs for whom another stack than the first is clearly better, the one that loses most first.
pub fn losers(ranking: &[Judged], result: &RunResult) -> Vec<Loser> {
    let loser = |(n, mean): (usize, &f64)| {
        let better = ranking.iter().min_by(|a, b| a.means_ms[n].total_cmp(&b.means_ms[n]))?;
        let slower = mean / better.means_ms[n] - 1.0;
        let (vm, better) = (result.vms[n].name.clone(), better.label.clone());
        (slower >= EQUAL_WITHIN).then_some(Loser { vm, better, slower })
    };
    let first = ranking.iter().take(1).flat_map(|first| first.means_ms.iter().enumerate());
    let mut losers: Vec<Loser> = first.filter_map(loser).collect();
    losers.sort_by(|a, b| b.slower.total_cmp(&a.slower));
    losers
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn judged(policy: &str, value: f64) -> Judged {
        Judged {
            label: policy.into(),
            means_ms: vec![value],
            policy: policy.into(),
            carries: true,
            rank: None,
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
        let failing = Judged { carries: false, ..judged("fairway", 1.0) };
        let all = sort(vec![failing.clone(), judged("noop", 9.0)], Goal::Latency);
        assert_eq!(all[0].policy, "noop", "the disk carries the load there");
        assert_eq!(all.iter().map(|j| j.rank).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert_eq!(equal_to_first(&all).len(), 1);
        assert_eq!(sort(vec![failing], Goal::Latency).len(), 1);
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
