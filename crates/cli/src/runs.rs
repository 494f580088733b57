//! Many runs of the simulator on the cores there are.

use crate::load::Load;
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use seekway_device::profile::Profile;
use seekway_policy::cache;
use seekway_policy::dispatcher::Config;
use seekway_policy::schedulers;
use seekway_policy::units::Instant;
use seekway_sim::{Host, HostCosts, Layout, Limits, RunResult, Setup, run};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// More VMs than this are not run alone.
const ALONE_MAX: usize = 16;

/// One run to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub policy: String,
    /// The prefetcher of the host cache; without a cache if none.
    pub prefetch: Option<String>,
    /// Seed of generated loads.
    pub seed: u64,
    /// Only this source of the load, by number; all of them if none. Each source must
    /// then be one VM.
    pub only: Option<usize>,
}

impl Plan {
    /// All of a load under a policy, without a host cache.
    pub fn new(policy: &str, seed: u64) -> Plan {
        Plan { policy: policy.into(), prefetch: None, seed, only: None }
    }

    /// As tables and figures call it: the policy, and the prefetcher if there is one.
    pub fn label(&self) -> String {
        label(&self.policy, self.prefetch.as_deref())
    }
}

/// A policy, and the prefetcher if there is one.
pub fn label(policy: &str, prefetch: Option<&str>) -> String {
    match prefetch {
        Some(prefetch) => format!("{policy} + {prefetch}"),
        None => policy.to_string(),
    }
}

/// One run that was made.
pub struct Outcome {
    pub plan: Plan,
    pub result: RunResult,
    /// Real time that it took.
    pub wall: Duration,
    /// Its journal, where asked for.
    pub journal: String,
}

/// What all runs of a command share.
pub struct Stage<'a> {
    pub load: &'a Load,
    pub profile: &'a Profile,
    pub config: Config,
    /// When runs stop before their sources do.
    pub until: Option<Instant>,
    /// Keep journals?
    pub journal: bool,
    /// Size of the host cache of the plans that have a prefetcher.
    pub cache_bytes: u64,
}

/// How many runs at a time: `jobs`, or the machine's cores.
pub fn jobs(given: Option<NonZeroUsize>) -> usize {
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    given.unwrap_or_else(cores).get()
}

/// Do `work` for each of `items` on `jobs` threads; results in the items'
/// order. After an error no new item is begun, and the first error by order is
/// the result.
pub fn parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let results: Vec<Mutex<Option<Result<R>>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let worker = || {
        while !failed.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(n) else { return };
            let result = work(item);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            *results[n].lock().expect("no thread panics while it holds this") = Some(result);
        }
    };
    std::thread::scope(|scope| {
        (0..jobs.min(items.len())).for_each(|_| drop(scope.spawn(worker)));
    });
    results.into_iter().filter_map(|r| r.into_inner().expect("as above")).collect()
}

impl Stage<'_> {
    /// Make all runs. `bar` counts completed requests.
    pub fn run_all(&self, plans: &[Plan], jobs: usize, bar: &ProgressBar) -> Result<Vec<Outcome>> {
        parallel(plans, jobs, |plan| self.run_one(plan, bar))
    }

    /// Runs each VM alone under each of `policies`: by VM, then by policy. `None` with a single
    /// VM, with more than [`ALONE_MAX`], and where a source is several VMs.
    pub fn run_each_alone(
        &self,
        policies: &[&str],
        seed: u64,
        jobs: usize,
        bar: &ProgressBar,
    ) -> Result<Option<Vec<Vec<Outcome>>>> {
        let vms = self.load.disks.len();
        if !(2..=ALONE_MAX).contains(&vms) || self.load.source_count() != vms {
            return Ok(None);
        }
        let plan = |vm| move |policy| Plan { only: Some(vm), ..Plan::new(policy, seed) };
        let plans: Vec<Plan> =
            (0..vms).flat_map(|vm| policies.iter().copied().map(plan(vm))).collect();
        let mut outcomes = self.run_all(&plans, jobs, bar)?.into_iter();
        Ok(Some((0..vms).map(|_| outcomes.by_ref().take(policies.len()).collect()).collect()))
    }

    /// Makes one run. `bar` counts completed requests.
    pub fn run_one(&self, plan: &Plan, bar: &ProgressBar) -> Result<Outcome> {
        let scheduler = schedulers::build(&plan.policy)?;
        let device = self.profile.build();
        let capacity = device.profile().capacity;
        let mut layout = Layout::place(&self.load.disks, capacity, &self.load.placement)?;
        let mut weights = self.load.weights.clone();
        let mut limits = self.load.limits.clone();
        let sources = match plan.only {
            None => self.load.sources(plan.seed)?,
            Some(vm) => {
                layout = layout.slice(vm..vm + 1);
                weights.clear();
                // What it asks for is no more than it may have.
                limits = limits.get(vm..vm + 1).unwrap_or_default().to_vec();
                vec![self.load.source(vm, plan.seed)?]
            }
        };
        let host = |spec: &String| {
            let cache = cache::Config::new(self.cache_bytes);
            Host::new(cache, spec, HostCosts::default(), self.profile.build())
        };
        let setup = Setup {
            scheduler,
            device,
            config: self.config,
            layout,
            weights,
            limits,
            groups: self.load.groups.clone(),
            journal: self.journal.then(|| plan.policy.clone()),
            host: plan.prefetch.as_ref().map(host).transpose()?,
        };
        let started = std::time::Instant::now();
        let mut seen = 0;
        let mut progress = |_: Instant, completed: u64| {
            bar.inc(completed - seen);
            seen = completed;
            true
        };
        let limits = Limits { until: self.until, ..Limits::default() };
        let made = run(sources, setup, limits, &mut progress);
        let (mut result, journal) = made
            .map_err(|e| self.load.error(e))
            .with_context(|| format!("policy {}, seed {}", plan.label(), plan.seed))?;
        bar.inc(result.requests().saturating_sub(seen));
        if plan.only.is_none() {
            for (vm, disk) in result.vms.iter_mut().zip(&self.load.disks) {
                vm.name.clone_from(&disk.name);
            }
        }
        Ok(Outcome { plan: plan.clone(), result, wall: started.elapsed(), journal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_keeps_order_and_stops_at_errors() {
        let items: Vec<u32> = (0..100).collect();
        let doubled = parallel(&items, 3, |n| Ok(n * 2)).unwrap();
        assert_eq!(doubled, items.iter().map(|n| n * 2).collect::<Vec<_>>());
        let failed =
            parallel(&items, 3, |n| if *n >= 10 { anyhow::bail!("item {n}") } else { Ok(()) });
        assert!(failed.unwrap_err().to_string().starts_with("item 1"));
    }
}
