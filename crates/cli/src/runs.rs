//! Many runs of the simulator on the cores there are.

use crate::caller::{Caller, NOBODY};
use crate::load::Load;
use crate::progress;
use crate::stacks::{ChosenCache, LimitsChoice, StackNames, StackSpec};
use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;
use seekway_device::profile::Profile;
use seekway_device::slowed::Slowed;
use seekway_policy::cache;
use seekway_policy::dispatcher::Config;
use seekway_policy::units::{Instant, Nanos};
use seekway_sim::experiments::{self, Cell};
use seekway_sim::vcpu::Machine;
use seekway_sim::{Host, HostCosts, Layout, Limits, RunResult, Setup, run};
use seekway_workload::{Recorded, Recording, Source};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// More VMs than this are not run alone.
const ALONE_MAX: usize = 16;

/// One run to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub stack: StackSpec,
    /// Seed of generated loads.
    pub seed: u64,
    /// Only this source of the load, by number; all of them if none. Each source must
    /// then be one VM (see [`Load::can_split`]).
    pub only: Option<usize>,
    /// On a private disk: so many times slower, and one of so many parts of the processors' time.
    pub private: Option<PrivateDisk>,
}

/// What one VM of several may expect to have for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrivateDisk {
    pub slow: NonZeroU32,
    /// How many VMs there are.
    pub parts: u32,
}

impl Plan {
    /// All of a load through a stack.
    pub fn new(stack: StackSpec, seed: u64) -> Plan {
        Plan { stack, seed, only: None, private: None }
    }

    /// All of a load through each stack with each seed, the stacks outermost.
    pub fn all(stacks: &[StackSpec], seeds: &[u64]) -> Vec<Plan> {
        let of_stack = |stack: &StackSpec| {
            seeds.iter().map(|&seed| Plan::new(stack.clone(), seed)).collect::<Vec<_>>()
        };
        stacks.iter().flat_map(of_stack).collect()
    }
}

/// One run that was made.
pub struct Outcome {
    pub plan: Plan,
    /// As tables and figures call it.
    pub label: String,
    pub result: RunResult,
    /// Real time that it took.
    pub wall: Duration,
    /// Its journal, where asked for.
    pub journal: String,
}

/// How runs are made, and how others see how far they are.
pub struct Running<'a> {
    /// Runs at a time.
    pub jobs: usize,
    /// Counts completed requests; one on the terminal if none.
    pub bar: Option<ProgressBar>,
    pub caller: &'a Caller,
}

impl Running<'_> {
    /// For the command line, `given` runs at a time.
    pub fn shown(given: Option<NonZeroUsize>) -> Running<'static> {
        Running { jobs: jobs(given), bar: None, caller: &NOBODY }
    }
}

/// What all runs of a command share.
pub struct Stage<'a> {
    pub load: &'a Load,
    pub profile: &'a Profile,
    pub config: Config,
    /// When runs stop before their sources do.
    pub until: Option<Instant>,
    /// Whether each run of the whole load keeps its journal, for `compare --journal`.
    pub journal: bool,
    /// How runs are named.
    pub names: StackNames,
    pub running: &'a Running<'a>,
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

/// Runs a cell of an experiment, which `bar` counts: its result, or what could not be built or run.
///
/// # Errors
/// Whoever called asks to stop.
pub fn run_cell(cell: &Cell, seed: u64, bar: &ProgressBar) -> Result<Result<RunResult, String>> {
    let made = experiments::run_cell(cell, seed, &mut |_, _| !NOBODY.stops());
    bar.inc(1);
    if NOBODY.stops() {
        bail!("stopped");
    }
    Ok(made)
}

/// Sources that note in `done` what becomes of their requests.
fn recording<'a>(
    sources: Vec<Box<dyn Source + 'a>>,
    done: &'a Mutex<Vec<Recorded>>,
) -> Vec<Box<dyn Source + 'a>> {
    let mut next_vm = 0;
    let noted = sources.into_iter().map(|source| {
        let first_vm = next_vm;
        next_vm += source.vms().len() as u16;
        Box::new(Recording::new(source, first_vm, done)) as Box<dyn Source>
    });
    noted.collect()
}

impl<'a> Stage<'a> {
    /// Runs of a load through these stacks on a disk, without journals. They stop at `until`, else
    /// as [`Load::until`] says.
    pub fn new(
        load: &'a Load,
        (profile, config): &'a (Profile, Config),
        stacks: &[StackSpec],
        until: Option<Nanos>,
        running: &'a Running<'a>,
    ) -> Stage<'a> {
        let (until, names) = (load.until(until), StackNames::of(stacks));
        Stage { load, profile, config: *config, until, journal: false, names, running }
    }
}

impl Stage<'_> {
    /// A bar over the requests of so many runs of the whole load.
    pub fn bar(&self, runs: usize, what: &str) -> ProgressBar {
        let total = self.load.requests().map(|n| n * runs as u64);
        let bar = self.running.bar.clone().unwrap_or_else(|| progress::requests(total, what));
        total.inspect(|&total| bar.set_length(total));
        bar
    }

    /// Makes all runs, with a bar.
    pub fn run_shown(&self, plans: &[Plan], what: &str) -> Result<Vec<Outcome>> {
        let bar = self.bar(plans.len(), what);
        let outcomes = self.run_all(plans, &bar)?;
        bar.finish_and_clear();
        Ok(outcomes)
    }

    /// Make all runs. `bar` counts completed requests.
    pub fn run_all(&self, plans: &[Plan], bar: &ProgressBar) -> Result<Vec<Outcome>> {
        parallel(plans, self.running.jobs, |plan| self.run_one(plan, bar))
    }

    /// Runs each VM alone through each of `stacks`: by VM, then by stack. `None` with a single
    /// VM, with more than [`ALONE_MAX`], and where a source is several VMs or has several disks.
    pub fn run_each_alone(
        &self,
        stacks: &[StackSpec],
        seed: u64,
        bar: &ProgressBar,
    ) -> Result<Option<Vec<Vec<Outcome>>>> {
        let vms = self.load.disks.len();
        if !(2..=ALONE_MAX).contains(&vms) || self.load.source_count() != vms {
            return Ok(None);
        }
        let plan =
            |vm| move |stack: &StackSpec| Plan { only: Some(vm), ..Plan::new(stack.clone(), seed) };
        let plans: Vec<Plan> = (0..vms).flat_map(|vm| stacks.iter().map(plan(vm))).collect();
        let mut outcomes = self.run_all(&plans, bar)?.into_iter();
        Ok(Some((0..vms).map(|_| outcomes.by_ref().take(stacks.len()).collect()).collect()))
    }

    /// Makes one run. `bar` counts completed requests.
    pub fn run_one(&self, plan: &Plan, bar: &ProgressBar) -> Result<Outcome> {
        self.run_noting(plan, bar, None)
    }

    /// Makes one run; all its requests, in the order of their completion.
    pub fn recorded(&self, plan: &Plan, bar: &ProgressBar) -> Result<Vec<Recorded>> {
        let done = Mutex::new(Vec::new());
        self.run_noting(plan, bar, Some(&done))?;
        Ok(done.into_inner().expect("the run is over, without a panic"))
    }

    fn run_noting(
        &self,
        plan: &Plan,
        bar: &ProgressBar,
        done: Option<&Mutex<Vec<Recorded>>>,
    ) -> Result<Outcome> {
        let label = self.names.label(&plan.stack);
        let mut machine = self.machine(plan)?;
        let mut sources: Vec<Box<dyn Source + '_>> = match (plan.only, &machine) {
            (None, None) => self.load.sources(plan.seed)?,
            // The VMs that have guests are the machine's.
            (None, Some(_)) => self.load.traced(plan.seed)?,
            (Some(_), Some(_)) => Vec::new(),
            (Some(source), _) => vec![self.load.source(source, plan.seed)?],
        };
        if let Some(machine) = &mut machine {
            sources.push(Box::new(machine));
        }
        if let Some(done) = done {
            sources = recording(sources, done);
        }
        let mut setup = self.setup(plan)?;
        let disks: usize = sources.iter().map(|source| source.vms().len()).sum();
        // Who computes beside a VM that has a part of the processors.
        let idle = disks.saturating_sub(setup.layout.len());
        setup.layout = setup.layout.with_idle(idle);
        let started = std::time::Instant::now();
        let mut seen = 0;
        let mut progress = |_: Instant, completed: u64| {
            bar.inc(completed - seen);
            seen = completed;
            !self.running.caller.stops()
        };
        let limits = Limits { until: self.until, ..Limits::default() };
        let made = run(sources, setup, limits, &mut progress);
        let (mut result, journal) = made.map_err(|e| self.load.error(e)).with_context(|| {
            let whole = self.names.for_files().label(&plan.stack);
            format!("policy {whole}, seed {}", plan.seed)
        })?;
        if self.running.caller.stops() {
            bail!("stopped");
        }
        bar.inc(result.requests().saturating_sub(seen));
        let end = Instant::ZERO + result.simulated;
        result.machine = machine.map(|mut machine| machine.result(end));
        if plan.only.is_none() {
            for (vm, disk) in result.vms.iter_mut().zip(&self.load.disks) {
                vm.name.clone_from(&disk.name);
            }
        }
        Ok(Outcome { plan: plan.clone(), label, result, wall: started.elapsed(), journal })
    }

    /// The machine whose processors the VMs share, if they share any. One alone shares none,
    /// unless it is to have a part of them.
    fn machine(&self, plan: &Plan) -> Result<Option<Machine>> {
        let StackSpec { host, vcpu, .. } = &plan.stack;
        let Some(host) = host.as_ref() else { return Ok(None) };
        let mut plans: Vec<_> = self.load.guests().collect();
        let mut processors = host.processors.clone();
        match (plan.only, plan.private) {
            (None, _) => {}
            (Some(_), None) => return Ok(None),
            (Some(source), Some(private)) => {
                // A trace has nothing to share processors with.
                let Some(guest) = self.load.guest_number(source) else { return Ok(None) };
                plans = vec![plans[guest]];
                processors.part = private.parts;
            }
        }
        if plans.is_empty() {
            bail!(
                "--host {host}: a trace says when requests were made, and not what for, so there \
                 is nothing to share processors: give --vm SPEC"
            );
        }
        let made = Machine::of_plans(&processors, &plans, vcpu, plan.seed, Instant::ZERO);
        made.map(Some).map_err(|e| anyhow!("--host {host}: {e}"))
    }

    /// The run's device, and what lies between it and the VMs.
    fn setup(&self, plan: &Plan) -> Result<Setup> {
        let StackSpec { policy, cache, limits: choice, host: _, vcpu: _ } = &plan.stack;
        let scheduler = self.running.caller.build(policy)?;
        let build = || {
            let device = self.profile.build();
            match plan.private {
                Some(private) => Box::new(Slowed::new(device, private.slow)),
                None => device,
            }
        };
        let device = build();
        let capacity = device.profile().capacity;
        let mut layout = Layout::place(&self.load.disks, capacity, &self.load.placement)?;
        let mut weights = self.load.weights.clone();
        let (mut limits, groups) = match choice {
            LimitsChoice::Given => (self.load.limits.clone(), self.load.groups.clone()),
            LimitsChoice::Dropped => (Vec::new(), Vec::new()),
        };
        if let Some(source) = plan.only {
            let disks = self.load.disks_of(source);
            layout = layout.slice(disks.clone());
            weights.clear();
            // What it asks for is no more than it may have.
            limits = limits.get(disks).unwrap_or_default().to_vec();
        }
        let cached = |cache: &ChosenCache| {
            let (config, costs) = (cache::Config::new(cache.bytes), HostCosts::default());
            Host::new(config, &cache.prefetch, costs, build())
        };
        Ok(Setup {
            scheduler,
            device,
            config: self.config,
            layout,
            weights,
            limits,
            groups,
            journal: (self.journal && plan.only.is_none()).then(|| policy.clone()),
            host: cache.as_ref().map(cached).transpose()?,
        })
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
