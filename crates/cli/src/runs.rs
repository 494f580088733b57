//! Many runs of the simulator on the cores there are, their progress and their caller.

use crate::stacks::StackNames;
use anyhow::{Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use seekway_core::scheduler::Scheduler;
use seekway_core::units::{Instant, Nanos};
use seekway_policy::schedulers;
use seekway_sim::RunResult;
use seekway_sim::scenario::{self, Ready, Scenario, Wanted, With};
use seekway_workload::Recorded;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// More VMs than this are not run alone: each is a run under every stack.
const ALONE_MAX: usize = 256;

/// Each stack with each seed, the stacks outermost.
pub fn with_seeds(stacks: &[Scenario], seeds: &[u64]) -> Vec<Scenario> {
    let of_stack = |stack: &Scenario| {
        seeds.iter().map(|&seed| Scenario { seed, ..stack.clone() }).collect::<Vec<_>>()
    };
    stacks.iter().flat_map(of_stack).collect()
}

/// One run that was made.
pub struct Outcome {
    pub scenario: Scenario,
    /// As tables and figures call it.
    pub label: String,
    pub result: RunResult,
    /// Real time that it took.
    pub wall: Duration,
    /// Its journal, where asked for.
    pub journal: String,
}

/// Execution of runs, and its progress for others.
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

/// Context that all runs of a command share.
pub struct Stage<'a> {
    pub ready: &'a Ready,
    /// Parts of the stack that the names of runs tell.
    pub names: StackNames,
    pub running: &'a Running<'a>,
}

/// Number of concurrent runs: `given`, or the machine's cores.
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

impl<'a> Stage<'a> {
    /// Runs of a load through these stacks on a disk.
    pub fn new(ready: &'a Ready, stacks: &[Scenario], running: &'a Running<'a>) -> Stage<'a> {
        Stage { ready, names: StackNames::of(stacks), running }
    }

    /// Makes a progress bar over the requests of `runs` runs of the whole load.
    pub fn bar(&self, runs: usize, what: &str) -> ProgressBar {
        let total = self.ready.load.requests().map(|n| n * runs as u64);
        let bar = self.running.bar.clone().unwrap_or_else(|| requests(total, what));
        total.inspect(|&total| bar.set_length(total));
        bar
    }

    /// Makes the bar of [`Stage::bar`] longer by `runs` runs of the whole load.
    pub fn lengthen(&self, bar: &ProgressBar, runs: usize) {
        bar.inc_length(self.ready.load.requests().unwrap_or(0) * runs as u64);
    }

    /// Makes all runs, with a bar.
    #[cfg(feature = "daemon")]
    pub fn run_shown(&self, runs: &[Scenario], what: &str) -> Result<Vec<Outcome>> {
        let bar = self.bar(runs.len(), what);
        let outcomes = self.run_all(runs, &bar)?;
        bar.finish_and_clear();
        Ok(outcomes)
    }

    /// Make all runs. `bar` counts completed requests.
    pub fn run_all(&self, runs: &[Scenario], bar: &ProgressBar) -> Result<Vec<Outcome>> {
        parallel(runs, self.running.jobs, |scenario| self.run_one(scenario, bar))
    }

    /// Runs each VM alone through each of `stacks`; `of` each run, by VM, then by stack. `None`
    /// with a single VM, with more than [`ALONE_MAX`], and where a source is several VMs or has
    /// several disks.
    pub fn run_each_alone<R: Send>(
        &self,
        stacks: &[Scenario],
        seed: u64,
        bar: &ProgressBar,
        of: impl Fn(&Outcome) -> R + Sync,
    ) -> Result<Option<Vec<Vec<R>>>> {
        let vms = self.ready.load.disks.len();
        if !(2..=ALONE_MAX).contains(&vms) || self.ready.load.source_count() != vms {
            return Ok(None);
        }
        let alone = |vm| move |stack: &Scenario| Scenario { only: Some(vm), seed, ..stack.clone() };
        let runs: Vec<Scenario> = (0..vms).flat_map(|vm| stacks.iter().map(alone(vm))).collect();
        let made = parallel(&runs, self.running.jobs, |run| Ok(of(&self.run_one(run, bar)?)))?;
        let mut made = made.into_iter();
        Ok(Some((0..vms).map(|_| made.by_ref().take(stacks.len()).collect()).collect()))
    }

    /// Makes one run. `bar` counts completed requests.
    pub fn run_one(&self, scenario: &Scenario, bar: &ProgressBar) -> Result<Outcome> {
        let label = self.names.label(scenario);
        let (made, wall) = self.run(scenario, bar)?;
        let scenario::Outcome { scenario, result, journal, .. } = made;
        Ok(Outcome { scenario, label, result, wall, journal })
    }

    /// Makes one run; all its requests, in the order of their completion.
    pub fn recorded(&self, scenario: &Scenario, bar: &ProgressBar) -> Result<Vec<Recorded>> {
        let outcome = Wanted { requests: true, journal: false, ..scenario.outcome.clone() };
        let recorded = Scenario { outcome, ..scenario.clone() };
        Ok(self.run(&recorded, bar)?.0.requests)
    }

    /// Makes one run; what came of it, and the real time that it took.
    pub fn run(
        &self,
        scenario: &Scenario,
        bar: &ProgressBar,
    ) -> Result<(scenario::Outcome, Duration)> {
        let started = std::time::Instant::now();
        let caller = self.running.caller;
        let mut seen = 0;
        let mut progress = |_: Instant, completed: u64| {
            advance(bar, completed - seen);
            seen = completed;
            !caller.stops()
        };
        let policy = |spec: &str| caller.build(spec);
        let made = self.ready.run(scenario, With { policy: &policy, progress: &mut progress })?;
        if caller.stops() {
            bail!("stopped");
        }
        advance(bar, made.result.requests().saturating_sub(seen));
        Ok((made, started.elapsed()))
    }
}

/// Counts completed requests; those that no trace had, such as a host file system's own, lengthen the
/// bar.
fn advance(bar: &ProgressBar, completed: u64) {
    bar.inc(completed);
    if bar.length().is_some_and(|length| bar.position() > length) {
        bar.set_length(bar.position());
    }
}

// A progress bar on a terminal's standard error; nothing elsewhere.

/// A bar over `total` requests (unknown: a spinner).
pub fn requests(total: Option<u64>, what: &str) -> ProgressBar {
    let known = "{human_pos}/{human_len} requests, {eta} left";
    bar(total, what, known, "{human_pos} requests")
}

/// A bar over `total` runs.
#[cfg(feature = "daemon")]
pub fn runs(total: u64, what: &str) -> ProgressBar {
    bar(Some(total), what, "{pos}/{len} runs, {eta} left", "")
}

/// A spinner whose message says what is being done.
#[cfg(feature = "daemon")]
pub fn steps(what: &str) -> ProgressBar {
    bar(None, what, "", "{elapsed}")
}

fn bar(total: Option<u64>, what: &str, known: &str, unknown: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total {
        Some(n) => (ProgressBar::new(n), format!("{{msg}} [{{wide_bar}}] {known}")),
        None => (ProgressBar::new_spinner(), format!("{{msg}} {{spinner}} {unknown}")),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    let style = ProgressStyle::with_template(&template).expect("a constant template");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

// Caller's part of runs: policies of its own, and a request to stop.

/// Makes a policy; called once for each run, on the run's thread.
type Make = Box<dyn Fn() -> Result<Box<dyn Scheduler>> + Send + Sync>;

/// A policy that is not in the registry.
pub struct OwnPolicy {
    pub name: String,
    pub make: Make,
}

/// Caller of the runs.
pub struct Caller {
    policies: Vec<OwnPolicy>,
    stop: AtomicBool,
}

/// The command line: it has no policies of its own. Whoever stops it stops all its commands in
/// this process.
pub static NOBODY: Caller = Caller { policies: Vec::new(), stop: AtomicBool::new(false) };

impl Caller {
    /// Brings these policies.
    ///
    /// # Errors
    /// A name that is taken, or that `--policies` could not say.
    pub fn new(policies: Vec<OwnPolicy>) -> Result<Caller> {
        for (n, policy) in policies.iter().enumerate() {
            let name = &policy.name;
            schedulers::REGISTRY.check_name(name)?;
            if policies[..n].iter().any(|other| other.name == *name) {
                return Err(anyhow!("policy '{name}': there is one of this name; choose another"));
            }
        }
        Ok(Caller { policies, stop: AtomicBool::new(false) })
    }

    /// Builds a policy of the caller's or of the registry.
    ///
    /// # Errors
    /// There is none of that name, or it cannot be built.
    pub fn build(&self, spec: &str) -> Result<Box<dyn Scheduler>> {
        match self.own(spec) {
            Some(own) => (own.make)(),
            None => Ok(schedulers::build(spec)?),
        }
    }

    /// Is this one of the caller's own?
    pub fn has(&self, spec: &str) -> bool {
        self.own(spec).is_some()
    }

    fn own(&self, spec: &str) -> Option<&OwnPolicy> {
        self.policies.iter().find(|own| own.name == spec)
    }

    /// Runs end soon, with an error. For another thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Runs may begin again.
    pub fn resume(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    /// True after [`Caller::stop`] and until [`Caller::resume`].
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

// CPU time of threads, as Linux tells it.

/// CPU time of this thread; `None` where the system does not tell it. Exact to a
/// scheduler's tick: what is measured by it lasts long.
pub fn of_this_thread() -> Option<Nanos> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Nanos::new)
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

#[cfg(test)]
mod caller_tests {
    use super::*;

    fn named(name: &str) -> OwnPolicy {
        OwnPolicy { name: name.into(), make: Box::new(|| Ok(schedulers::build("noop")?)) }
    }

    #[test]
    fn own_policies_are_found_beside_the_registry() {
        let caller = Caller::new(vec![named("mine")]).unwrap();
        assert!(caller.has("mine") && !caller.has("noop"));
        assert!(caller.build("mine").is_ok() && caller.build("cfq:quantum=4").is_ok());
        assert!(caller.build("theirs").is_err_and(|e| e.to_string().contains("noop")));
    }

    #[test]
    fn names_are_plain_and_not_taken() {
        for name in ["", "all", "a,b", "cfq", "a:b"] {
            assert!(Caller::new(vec![named(name)]).is_err(), "{name}");
        }
        assert!(Caller::new(vec![named("a"), named("a")]).is_err());
    }
}
