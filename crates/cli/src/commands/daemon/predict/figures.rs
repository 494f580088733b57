//! Predicted and measured figures of a stack, as they are written as JSON and read back, and how
//! well they agree.

use crate::json::{CacheChoice, Operations};
use crate::load::distinct;
use crate::runs::Outcome;
use seekway_report::rank::{Better, discordant, kendall_tau, ranks, relative_error, same_order};
use seekway_sim::metrics::ms;
use serde::Serialize;
use std::collections::BTreeMap;

/// Sectors of 512 bytes a millisecond, the papers' unit, in a MiB a second.
pub const SECTORS_PER_MS: f64 = 2.048;

/// A measure by which stacks are ranked.
pub struct Measure {
    /// Its key in JSON, with its unit.
    pub key: &'static str,
    /// Its heading in tables.
    pub name: &'static str,
    pub unit: &'static str,
    pub better: Better,
    pub of: fn(&Figures) -> Option<f64>,
}

/// All measures, as tables have them.
pub static MEASURES: [Measure; 7] = [
    Measure::time("service_ms", "service", |f| f.service_ms),
    Measure::time(FROM_DISPATCH, "service from dispatch", |f| f.service_from_dispatch_ms),
    Measure::time("response_ms", "response", |f| f.response_ms),
    Measure::time("response_p99_ms", "p99 response", |f| f.response_p99_ms),
    Measure::time(READ_P99, "read p99", |f| Some(f.operations.reads.as_ref()?.response_ms.p99)),
    Measure::time(WRITE_P99, "write p99", |f| Some(f.operations.writes.as_ref()?.response_ms.p99)),
    Measure {
        key: "sectors_per_ms",
        name: "throughput",
        unit: "sectors/ms",
        better: Better::More,
        of: |f| f.sectors_per_ms,
    },
];

const FROM_DISPATCH: &str = "service_from_dispatch_ms";
const READ_P99: &str = "read_p99_ms";
const WRITE_P99: &str = "write_p99_ms";

impl Measure {
    /// Is it of reads alone, or of writes alone?
    pub fn is_of_operation(&self) -> bool {
        [READ_P99, WRITE_P99].contains(&self.key)
    }

    const fn time(
        key: &'static str,
        name: &'static str,
        of: fn(&Figures) -> Option<f64>,
    ) -> Measure {
        Measure { key, name, unit: "ms", better: Better::Less, of }
    }
}

/// Figures of one policy in one run, one round of windows, or in the mean. Those that were not
/// measured are absent.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Figures {
    /// As tables call its stack; the policy if nothing else differs.
    #[serde(skip)]
    pub name: Option<String>,
    pub policy: String,
    /// The host cache in front of the disk. Absent if nobody says whether there is one.
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    pub cache: Option<CacheChoice>,
    /// The seed of a simulated run: runs of the same seed have the same load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Mean device time of a command, from the later of its dispatch and the
    /// completion before it.
    pub service_ms: Option<f64>,
    /// Mean service time from dispatch: with several commands on the device, waiting there counts.
    pub service_from_dispatch_ms: Option<f64>,
    /// Mean time of a request from arrival to completion.
    pub response_ms: Option<f64>,
    /// 99 % of them are below.
    pub response_p99_ms: Option<f64>,
    /// Read and written, all together, in the papers' unit.
    pub sectors_per_ms: Option<f64>,
    pub mib_s: Option<f64>,
    #[serde(flatten)]
    pub operations: Operations,
    /// Each VM of a simulated run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<VmOperations>,
    /// Figures by which a live window is judged.
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    pub window: Option<Window>,
}

/// Reads and writes of a VM.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VmOperations {
    pub name: String,
    #[serde(flatten)]
    pub operations: Operations,
}

/// A live window: how the throttle did in it.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Window {
    /// Which time round all policies.
    pub round: u64,
    /// Length in real time.
    pub window_s: f64,
    /// Requests done in it.
    pub requests: u64,
    /// The throttle's factor, in the mean over time; 1 where nothing is emulated.
    pub k: f64,
    /// Number of changes of k in it.
    pub k_changes: usize,
    /// Share of commands that the real device brought too late.
    pub late_share: f64,
    /// Mean delay of a command by timers and the daemon's other work, in real time: a sign of a
    /// busy host.
    pub overslept_ms: f64,
}

impl Figures {
    /// Of a simulated run.
    pub fn of_run(outcome: &Outcome) -> Figures {
        let r = &outcome.result;
        let some = |n: u64, value: f64| (n > 0).then_some(value);
        let (requests, commands) = (r.response.len(), r.service.len());
        let vm = |vm: &seekway_sim::VmResult| VmOperations {
            name: vm.name.clone(),
            operations: Operations::new(&vm.reads, &vm.writes, vm.span),
        };
        Figures {
            policy: outcome.scenario.policy.clone(),
            cache: Some(CacheChoice::new(&outcome.scenario)),
            seed: Some(outcome.scenario.seed),
            service_ms: some(commands, r.service.mean() / 1e6),
            service_from_dispatch_ms: some(commands, r.service_from_dispatch.mean() / 1e6),
            response_ms: some(requests, r.response.mean() / 1e6),
            response_p99_ms: some(requests, ms(r.response.value_at_quantile(0.99))),
            sectors_per_ms: some(requests, r.mib_s() * SECTORS_PER_MS),
            mib_s: some(requests, r.mib_s()),
            operations: Operations::new(&r.reads, &r.writes, r.simulated),
            vms: r.vms.iter().map(vm).collect(),
            ..Figures::default()
        }
    }

    /// As tables call its stack.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.policy)
    }
}

/// One side of a comparison: what was predicted, or what that is held against.
pub struct Side {
    /// The profile, the file, the daemon's device.
    pub what: String,
    /// Stack by stack, in it seed by seed.
    pub runs: Vec<Figures>,
    /// Warnings for the reader, before a figure is trusted.
    pub warnings: Vec<String>,
    /// Other remarks.
    pub notes: Vec<String>,
}

impl Side {
    /// Name: a live one may be compared with its own profile.
    pub fn name(&self) -> String {
        let live = self.runs.iter().any(|r| r.window.is_some());
        format!("{}{}", self.what, if live { " (live)" } else { "" })
    }

    /// The policies, in their order.
    pub fn policies(&self) -> Vec<String> {
        distinct(self.runs.iter().map(|run| run.policy.clone()))
    }

    /// The names of the stacks, in their order.
    pub fn stacks(&self) -> Vec<String> {
        distinct(self.runs.iter().map(|run| run.name().to_string()))
    }

    /// Runs of a stack.
    pub fn of<'a>(&'a self, stack: &'a str) -> impl Iterator<Item = &'a Figures> + Clone {
        self.runs.iter().filter(move |run| run.name() == stack)
    }

    /// Mean of a figure over the runs of a stack; `None` where any lacks it.
    pub fn mean(&self, stack: &str, figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        let values = self.of(stack).map(figure).collect::<Option<Vec<f64>>>()?;
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Means of a measure for these stacks, NaN where there is none.
    pub fn means(&self, stacks: &[String], measure: &Measure) -> Vec<f64> {
        stacks.iter().map(|stack| self.mean(stack, measure.of).unwrap_or(f64::NAN)).collect()
    }

    /// Rank of each of these stacks by its mean.
    pub fn ranks(&self, stacks: &[String], measure: &Measure) -> Vec<Option<usize>> {
        ranks(&self.means(stacks, measure), measure.better)
    }

    /// Measures that any run has. Service from dispatch counts if it differs from service: the
    /// device queues. Reads and writes count apart if a run has both.
    pub fn measures(&self) -> impl Iterator<Item = &'static Measure> {
        let differs = |run: &Figures| match (run.service_ms, run.service_from_dispatch_ms) {
            (Some(a), Some(b)) => (a - b).abs() > 1e-9 * a,
            _ => false,
        };
        MEASURES.iter().filter(move |measure| match measure.key {
            FROM_DISPATCH => self.runs.iter().any(differs),
            READ_P99 | WRITE_P99 => self.runs.iter().any(|run| run.operations.has_both()),
            _ => self.has(measure),
        })
    }

    /// True if any run has this measure.
    pub fn has(&self, measure: &Measure) -> bool {
        self.runs.iter().any(|run| (measure.of)(run).is_some())
    }

    /// Runs of each stack, of the one that has most.
    pub fn runs_each(&self) -> usize {
        self.stacks().iter().map(|stack| self.of(stack).count()).max().unwrap_or(0)
    }

    /// The seeds, of all stacks.
    pub fn seeds(&self) -> Vec<u64> {
        let mut seeds: Vec<u64> = self.runs.iter().filter_map(|r| r.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        seeds
    }

    /// One seed's figures of these stacks, NaN where there is none.
    pub fn of_seed(&self, stacks: &[String], measure: &Measure, seed: u64) -> Vec<f64> {
        let value = |stack: &String| {
            let run = self.of(stack).find(|run| run.seed == Some(seed));
            run.and_then(measure.of).unwrap_or(f64::NAN)
        };
        stacks.iter().map(value).collect()
    }
}

/// A stack's means with their ranks, for JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankedStack {
    pub policy: String,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    pub cache: Option<CacheChoice>,
    #[serde(flatten)]
    pub measures: BTreeMap<&'static str, MeanRank>,
}

/// A mean over the runs, and its place among the stacks.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MeanRank {
    pub mean: Option<f64>,
    pub rank: Option<usize>,
}

/// All stacks of a side, ranked among each other.
pub fn ranked(side: &Side) -> Vec<RankedStack> {
    let stacks = side.stacks();
    let places: Vec<_> = MEASURES.iter().map(|measure| side.ranks(&stacks, measure)).collect();
    let row = |(n, stack): (usize, &String)| {
        let run = side.of(stack).next()?;
        let measures = MEASURES.iter().zip(&places).map(|(measure, ranks)| {
            (measure.key, MeanRank { mean: side.mean(stack, measure.of), rank: ranks[n] })
        });
        let (policy, cache) = (run.policy.clone(), run.cache.clone());
        Some(RankedStack { policy, cache, measures: measures.collect() })
    };
    stacks.iter().enumerate().filter_map(row).collect()
}

// Quality of a prediction: rank agreement and error, measure by measure.

/// One measure of prediction and measurement.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Agreement {
    /// Its key in the runs.
    pub measure: &'static str,
    #[serde(skip)]
    pub of: &'static Measure,
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
    // Without queueing in the device, service from dispatch is service.
    let told =
        |m: &Measure| [predicted, against].iter().any(|s| s.measures().any(|o| o.key == m.key));
    let both = |m: &Measure| predicted.has(m) && against.has(m) && told(m);
    let measures = MEASURES.iter().filter(|measure| both(measure));
    measures.map(|m| of_measure(predicted, against, &policies, m)).collect()
}

fn of_measure(
    predicted: &Side,
    against: &Side,
    policies: &[String],
    measure: &'static Measure,
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
        let first = measure.better == Better::Less;
        let (better, worse) = if (p[i] <= p[j]) == first { (i, j) } else { (j, i) };
        let (low, high) = (a[i].min(a[j]), a[i].max(a[j]));
        SwappedPair {
            policies: [policies[better].clone(), policies[worse].clone()],
            differ: relative_error(high, low),
        }
    };
    let pairs = if several { discordant(&p, &a) } else { Vec::new() };
    Agreement {
        measure: measure.key,
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
mod judge_tests {
    use super::Figures;
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
