//! Predicted and measured figures of a stack, as they are written as JSON and read back.

use crate::json::CacheChoice;
use crate::lists::distinct;
use crate::runs::Outcome;
use seekway_sim::metrics::ms;
use seekway_sim::rank::{Better, ranks};
use serde::Serialize;
use std::collections::BTreeMap;

/// Sectors of 512 bytes a millisecond, the papers' unit, in a MiB a second.
pub const SECTORS_PER_MS: f64 = 2.048;

/// A measure by which policies are ranked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Measure {
    Service,
    ServiceFromDispatch,
    Response,
    ResponseP99,
    Throughput,
}

impl Measure {
    /// All, as tables have them.
    pub const ALL: [Measure; 5] = [
        Measure::Service,
        Measure::ServiceFromDispatch,
        Measure::Response,
        Measure::ResponseP99,
        Measure::Throughput,
    ];

    /// Its key in JSON, with its unit.
    pub fn key(self) -> &'static str {
        match self {
            Measure::Service => "service_ms",
            Measure::ServiceFromDispatch => "service_from_dispatch_ms",
            Measure::Response => "response_ms",
            Measure::ResponseP99 => "response_p99_ms",
            Measure::Throughput => "sectors_per_ms",
        }
    }

    /// Its heading and unit in tables.
    pub fn name(self) -> (&'static str, &'static str) {
        match self {
            Measure::Service => ("service", "ms"),
            Measure::ServiceFromDispatch => ("service from dispatch", "ms"),
            Measure::Response => ("response", "ms"),
            Measure::ResponseP99 => ("p99 response", "ms"),
            Measure::Throughput => ("throughput", "sectors/ms"),
        }
    }

    /// Which end is the good one.
    pub fn better(self) -> Better {
        match self {
            Measure::Throughput => Better::More,
            _ => Better::Less,
        }
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
    /// Figures by which a live window is judged.
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    pub window: Option<Window>,
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
            ..Figures::default()
        }
    }

    /// As tables call its stack.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.policy)
    }

    /// One of the measures.
    pub fn get(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Service => self.service_ms,
            Measure::ServiceFromDispatch => self.service_from_dispatch_ms,
            Measure::Response => self.response_ms,
            Measure::ResponseP99 => self.response_p99_ms,
            Measure::Throughput => self.sectors_per_ms,
        }
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

    /// A measure of a stack, run by run; empty where a run has none.
    pub fn values(&self, stack: &str, measure: Measure) -> Vec<f64> {
        let runs = self.runs.iter().filter(|r| r.name() == stack);
        runs.map(|r| r.get(measure)).collect::<Option<Vec<f64>>>().unwrap_or_default()
    }

    /// The mean over the runs; `None` where any lacks it.
    pub fn mean(&self, stack: &str, measure: Measure) -> Option<f64> {
        let values = self.values(stack, measure);
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// A measure of these stacks, NaN where there is none.
    pub fn means(&self, stacks: &[String], measure: Measure) -> Vec<f64> {
        stacks.iter().map(|stack| self.mean(stack, measure).unwrap_or(f64::NAN)).collect()
    }

    /// The place of each of these stacks by its mean.
    pub fn ranks(&self, stacks: &[String], measure: Measure) -> Vec<Option<usize>> {
        ranks(&self.means(stacks, measure), measure.better())
    }

    /// The mean of a figure over a stack's live windows.
    pub fn of_windows(&self, stack: &str, figure: impl Fn(&Window) -> f64) -> Option<f64> {
        let runs = self.runs.iter().filter(|r| r.name() == stack);
        let values: Vec<f64> = runs.filter_map(|r| r.window.as_ref()).map(figure).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Has any run this measure?
    pub fn has(&self, measure: Measure) -> bool {
        self.runs.iter().any(|r| r.get(measure).is_some())
    }

    /// Does it tell service from dispatch apart from service?
    pub fn queues(&self) -> bool {
        self.runs.iter().any(|r| match (r.service_ms, r.service_from_dispatch_ms) {
            (Some(a), Some(b)) => (a - b).abs() > 1e-9 * a,
            _ => false,
        })
    }

    /// Runs of each stack, of the one that has most.
    pub fn runs_each(&self) -> usize {
        let count = |stack: &String| self.runs.iter().filter(|r| r.name() == stack).count();
        self.stacks().iter().map(count).max().unwrap_or(0)
    }

    /// The seeds, of all stacks.
    pub fn seeds(&self) -> Vec<u64> {
        let mut seeds: Vec<u64> = self.runs.iter().filter_map(|r| r.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        seeds
    }

    /// One seed's figures of these stacks, NaN where there is none.
    pub fn of_seed(&self, stacks: &[String], measure: Measure, seed: u64) -> Vec<f64> {
        let of = |stack: &String| {
            let run = self.runs.iter().find(|r| r.name() == stack && r.seed == Some(seed));
            run.and_then(|r| r.get(measure)).unwrap_or(f64::NAN)
        };
        stacks.iter().map(of).collect()
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
    let row = |stack: &String| {
        let run = side.runs.iter().find(|run| run.name() == stack)?;
        let (policy, cache) = (run.policy.clone(), run.cache.clone());
        Some(RankedStack { policy, cache, measures: BTreeMap::new() })
    };
    let mut ranked: Vec<RankedStack> = stacks.iter().filter_map(row).collect();
    for measure in Measure::ALL {
        let places = side.ranks(&stacks, measure);
        for ((row, stack), rank) in ranked.iter_mut().zip(&stacks).zip(places) {
            let mean = side.mean(stack, measure);
            row.measures.insert(measure.key(), MeanRank { mean, rank });
        }
    }
    ranked
}
