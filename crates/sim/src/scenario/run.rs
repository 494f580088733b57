//! Makes the run that a scenario describes.

use super::{Load, Scenario};
use crate::engine::{self, Host, Limits, Progress, Setup};
use crate::metrics::RunResult;
use crate::vcpu::Machine;
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::scheduler::Scheduler;
use seekway_core::units::{Instant, Nanos};
use seekway_device::DeviceModel;
use seekway_device::profile::Profile;
use seekway_device::slowed::{SLOW_MAX, Slowed};
use seekway_policy::schedulers;
use seekway_stack::cache;
use seekway_workload::traces::{
    KEPT_BYTES_EACH, Kept, Scan, TraceError, TraceFiles, TraceOptions, keep, scan,
};
use seekway_workload::{Recorded, Recording, Source};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Policies and progress of a caller.
pub struct With<'a> {
    /// Makes the policy of a specification.
    pub policy: &'a (dyn Fn(&str) -> Result<Box<dyn Scheduler>> + Sync),
    /// Callback with the progress of the run; its answer may stop the run, which is then an error.
    pub progress: Progress<'a>,
}

/// Result of a run.
pub struct Outcome {
    pub scenario: Scenario,
    pub result: RunResult,
    /// Its journal, if requested; otherwise empty.
    pub journal: String,
    /// First and last sector of each disk's image on the device.
    pub places: Vec<(u64, u64)>,
    /// All its requests in the order of their completion, where asked for.
    pub requests: Vec<Recorded>,
}

/// Load and device that several runs share, read and checked.
#[derive(Clone)]
pub struct Ready {
    pub load: Load,
    pub profile: Profile,
}

/// Makes a run with the policies of the registry.
///
/// # Errors
/// A value of the scenario that cannot be, or a run that cannot be made.
pub fn run(scenario: &Scenario) -> Result<Outcome> {
    let policy = |spec: &str| Ok(schedulers::build(spec)?);
    let with = With { policy: &policy, progress: &mut |_, _| true };
    Ready::new(scenario)?.run(scenario, with)
}

impl Ready {
    /// Reads and checks the load and the device of a scenario.
    ///
    /// # Errors
    /// A trace or a profile cannot be read, or VMs contradict each other.
    pub fn new(scenario: &Scenario) -> Result<Ready> {
        let load = Load::new(scenario, &mut |_, _| {})?;
        Ok(Ready { load, profile: scenario.device.load()? })
    }

    /// Makes the run of a scenario that has this load on this device.
    ///
    /// # Errors
    /// The run cannot be made, or the caller stops it.
    pub fn run(&self, scenario: &Scenario, with: With<'_>) -> Result<Outcome> {
        if let Some(source) = scenario.only.filter(|only| *only >= self.load.source_count()) {
            let count = self.load.source_count();
            bail!("only = {source}: the load has {count} sources, counted from 0");
        }
        let done = Mutex::new(Vec::new());
        let mut machine = self.machine(scenario)?;
        let mut sources: Vec<Box<dyn Source + '_>> = match (scenario.only, &machine) {
            (None, None) => self.load.sources(scenario.seed)?,
            // The VMs that have guests are the machine's.
            (None, Some(_)) => self.load.traced(scenario.seed)?,
            (Some(_), Some(_)) => Vec::new(),
            (Some(source), _) => vec![self.load.source(source, scenario.seed)?],
        };
        if let Some(machine) = &mut machine {
            sources.push(Box::new(machine));
        }
        if scenario.outcome.requests {
            sources = recording(sources, &done);
        }
        let mut setup = self.setup(scenario, with.policy)?;
        let disks: usize = sources.iter().map(|source| source.vms().len()).sum();
        // VMs that only compute, beside one that has a share of the processors, have no image.
        let idle = disks.saturating_sub(setup.layout.len());
        setup.layout = setup.layout.with_idle(idle);
        let place = |disk| {
            let region = setup.layout.region(disk);
            (region.start().get(), region.end().get() - 1)
        };
        let places = (0..setup.layout.len()).map(place).collect();
        let mut stopped = false;
        let mut progress = |now: Instant, completed: u64| {
            let goes_on = (with.progress)(now, completed);
            stopped = !goes_on;
            goes_on
        };
        let made = engine::run(sources, setup, self.limits(scenario), &mut progress);
        let (mut result, journal) = made
            .map_err(|e| self.load.error(e))
            .with_context(|| format!("policy {}, seed {}", scenario.policy, scenario.seed))?;
        if stopped {
            bail!("stopped");
        }
        let settle = scenario.measure.settle().unwrap_or(Nanos::ZERO);
        if settle > Nanos::ZERO && result.began == Instant::ZERO {
            let end = result.simulated;
            bail!("measure.settle = {settle}: the run ended after {end}, so nothing was measured");
        }
        let end = result.began + result.simulated;
        result.machine = machine.map(|mut machine| machine.result(end));
        if scenario.only.is_none() {
            for (vm, disk) in result.vms.iter_mut().zip(&self.load.disks) {
                vm.name.clone_from(&disk.name);
            }
        }
        let requests = done.into_inner().expect("the run is over, without a panic");
        Ok(Outcome { scenario: scenario.clone(), result, journal, places, requests })
    }

    /// From when it is measured, and when it stops.
    fn limits(&self, scenario: &Scenario) -> Limits {
        let (measure, settle) = (&scenario.measure, scenario.measure.settle());
        let until = measure.until.map(|time| time.0);
        Limits {
            settle: settle.map(|settle| Instant::ZERO + settle),
            until: self.load.until(until, settle.unwrap_or(Nanos::ZERO)),
            requests: measure.requests,
        }
    }

    /// The machine whose processors the VMs share, if they share any.
    fn machine(&self, scenario: &Scenario) -> Result<Option<Machine>> {
        let Some(cpu) = &scenario.cpu else { return Ok(None) };
        let mut plans: Vec<_> = self.load.guests().collect();
        if let Some(source) = scenario.only {
            let Some(guest) = self.load.guest_number(source) else { return Ok(None) };
            plans = vec![plans[guest]];
        }
        if plans.is_empty() {
            bail!(
                "--host {cpu}: a trace says when requests were made, and not what for, so there \
                 is nothing to share processors: give --vm SPEC"
            );
        }
        let from = Instant::ZERO + scenario.measure.settle().unwrap_or(Nanos::ZERO);
        let made = Machine::of_vms(&cpu.processors, &plans, &cpu.agent, scenario.seed, from);
        made.map(Some).map_err(|e| anyhow!("--host {cpu}: {e}"))
    }

    /// A new device, as slow as the scenario wants it.
    fn device(&self, scenario: &Scenario) -> Result<Box<dyn DeviceModel>> {
        let (device, slow) = (self.profile.build(), scenario.device.slow);
        match NonZeroU32::new(slow).filter(|slow| slow.get() <= SLOW_MAX) {
            Some(NonZeroU32::MIN) => Ok(device),
            Some(slow) => Ok(Box::new(Slowed::new(device, slow))),
            None => bail!("device.slow = {slow}: 1 to {SLOW_MAX}"),
        }
    }

    /// Makes the run's device, and everything between it and the VMs.
    fn setup(
        &self,
        scenario: &Scenario,
        policy: &dyn Fn(&str) -> Result<Box<dyn Scheduler>>,
    ) -> Result<Setup> {
        let (load, device) = (&self.load, self.device(scenario)?);
        let capacity = device.profile().capacity;
        let mut layout = load.layout(capacity)?;
        let mut weights = load.weights.clone();
        let (mut limits, groups) = match scenario.limits {
            super::LimitsChoice::Given => (load.limits.clone(), load.groups.clone()),
            super::LimitsChoice::Dropped => (Vec::new(), Vec::new()),
        };
        if let Some(source) = scenario.only {
            let disks = load.disks_of(source);
            layout = layout.slice(disks.clone());
            weights.clear();
            // Alone, a VM still has its limits: its demand is not above them.
            limits = limits.get(disks).unwrap_or_default().to_vec();
        }
        let host = match &scenario.cache {
            None => None,
            Some(cache) => {
                let (config, costs) = (cache::Config::new(cache.size), cache.costs.costs());
                let like = self.device(scenario)?;
                Some(Host::new(config, &cache.prefetch, costs, like).context("cache.prefetch")?)
            }
        };
        let journal = scenario.outcome.journal.then(|| scenario.policy.clone());
        Ok(Setup {
            scheduler: policy(&scenario.policy)?,
            device,
            config: scenario.stack.config(),
            layout,
            weights,
            limits,
            groups,
            journal,
            host,
            guest_queue: scenario.guest_queue,
            path: scenario.path.map(super::Path::path),
        })
    }
}

/// Wraps sources so that `done` records the ends of their requests.
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

// Traces that this process has read: a comparison needs each once for each run, and a program
// that calls comparisons needs it for each of them.

/// Memory of all requests that are kept, in bytes: 37 million requests.
const BYTES_MAX: usize = 1 << 30;
/// Most traces that are known.
const TRACES_MAX: usize = 4096;

/// Findings of a pass over a trace.
pub struct ScannedTrace {
    pub scan: Scan,
    /// Its requests, unless they are too many.
    pub kept: Option<Arc<Kept>>,
}

/// A file as it was.
#[derive(Clone, PartialEq)]
struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_ns: i128,
}

/// A trace's files as they were, and how they were read.
#[derive(Clone, PartialEq)]
struct Key {
    files: Vec<FileState>,
    /// Messages and the names of volumes have it.
    path: Box<Path>,
    options: TraceOptions,
}

impl Key {
    /// `None` for an input that is no file: it is read each time.
    fn of(path: &Path, options: &TraceOptions) -> Option<Key> {
        let found = TraceFiles::find(path, options.format).ok()?;
        let files = found.files.iter().map(|file| {
            let about = file.metadata().ok().filter(|about| about.is_file())?;
            let modified_ns =
                i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec());
            let (device, inode, bytes) = (about.dev(), about.ino(), about.len());
            Some(FileState { device, inode, bytes, modified_ns })
        });
        Some(Key {
            files: files.collect::<Option<_>>()?,
            path: path.into(),
            options: options.clone(),
        })
    }
}

impl Drop for ScannedTrace {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.kept.as_ref().map_or(0, |kept| kept.bytes()), Ordering::Relaxed);
    }
}

/// Memory of all [`ScannedTrace`]s, known here or only to those who use them.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Known traces in the order of their last use, the latest in front.
type Traces = VecDeque<(Key, Arc<ScannedTrace>)>;

static TRACES: Mutex<Traces> = Mutex::new(VecDeque::new());

/// The trace at `path`, and whether it was read now: an unchanged file is read once.
pub fn scanned(
    path: &Path,
    options: &TraceOptions,
) -> Result<(Arc<ScannedTrace>, bool), TraceError> {
    let key = Key::of(path, options);
    let lock = || TRACES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = key.as_ref().and_then(|key| find(&mut lock(), key)) {
        return Ok((found, false));
    }
    let scan = scan(path, options)?;
    let bytes = (scan.stats.requests() as usize).saturating_mul(KEPT_BYTES_EACH);
    let kept = match key.is_some() && make_room(&mut lock(), bytes, BYTES_MAX) {
        true => keep(path, options, &scan)?.map(Arc::new),
        false => None,
    };
    BYTES.fetch_add(kept.as_ref().map_or(0, |kept| kept.bytes()), Ordering::Relaxed);
    let made = Arc::new(ScannedTrace { scan, kept });
    // A file that changes while it is read is of no use to others.
    if let Some(key) = key.filter(|key| Key::of(path, options).as_ref() == Some(key)) {
        let mut known = lock();
        known.push_front((key, made.clone()));
        known.truncate(TRACES_MAX);
    }
    Ok((made, true))
}

fn find(known: &mut Traces, key: &Key) -> Option<Arc<ScannedTrace>> {
    let at = known.iter().position(|(known, _)| known == key)?;
    let found = known.remove(at)?;
    let trace = found.1.clone();
    known.push_front(found);
    Some(trace)
}

/// Forgets the least recently used traces until there is room for `bytes` more. False if there is
/// none: those in use stay.
fn make_room(known: &mut Traces, bytes: usize, bytes_max: usize) -> bool {
    let full = || BYTES.load(Ordering::Relaxed).saturating_add(bytes) > bytes_max;
    while full() && known.pop_back().is_some() {}
    !full()
}

#[cfg(test)]
mod kept_tests {
    use super::*;
    use std::fs;

    fn write(path: &Path, requests: u64) {
        let row = |n: u64| format!("{n} 0 {} 8 1\n", n * 8);
        fs::write(path, (0..requests).map(row).collect::<String>()).unwrap();
    }

    /// One test, because the kept traces belong to the whole process.
    #[test]
    fn traces_are_read_once_and_leave_when_there_is_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let (path, options) = (dir.path().join("t.trace"), TraceOptions::default());
        write(&path, 10);
        let (first, is_new) = scanned(&path, &options).unwrap();
        assert!(is_new);
        assert_eq!(first.kept.as_ref().unwrap().bytes(), 290);
        let (again, is_new) = scanned(&path, &options).unwrap();
        assert!(Arc::ptr_eq(&first, &again) && !is_new);
        drop(again);
        let fewer = TraceOptions { limit: Some(3), ..TraceOptions::default() };
        assert_eq!(scanned(&path, &fewer).unwrap().0.scan.stats.requests(), 3);
        write(&path, 11);
        assert_eq!(scanned(&path, &options).unwrap().0.scan.stats.requests(), 11);

        let mut traces = TRACES.lock().unwrap();
        assert_eq!(BYTES.load(Ordering::Relaxed), 29 * (10 + 3 + 11));
        assert!(!make_room(&mut traces, 29, 29 * 10), "what is in use has all the room");
        assert_eq!(BYTES.load(Ordering::Relaxed), 29 * 10, "all others have left");
        drop(first);
        assert!(make_room(&mut traces, 29, 29));
    }
}
