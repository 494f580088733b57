//! migrate-live: `seekway-guest migrate` in real guests that share the host's processors,
//! after the vMigrater paper. Guests have more vCPUs than the host has processors, and a
//! compute task on each; one task reads from the guest's disk, one block at a time. A window
//! without the agent and one with it make a pair, in the same guests, several times in turn.
//!
//! The kernel's tracer records the host's schedule of the vCPUs in each window. From it come
//! the share of time in which a guest has any vCPU running, which is the most that moving
//! tasks can reach, and that in which the reader's vCPU runs ([`bound`]).

mod bound;
mod inside;

pub use bound::{GuestSchedule, Stripe, WindowSchedule};
pub use inside::{Counts, Response};

use super::AgentReport;
use super::figures::reads;
use super::inside::Computing;
use super::wait::{sleep_until, until_all_work};
use crate::daemon::Daemon;
use crate::error::{At, LiveError, Result};
use crate::guest::{Accelerator, Guest, GuestSpec};
use crate::image::GuestImage;
use crate::schedule::Recorder;
use crate::shipped::Shipped;
use crate::turns::{Slices, Turns};
use crate::vcpus;
use bound::Threads;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// vCPUs of each guest.
pub const VCPUS: u32 = 4;
const MEMORY_MB: u32 = 384;
/// Sparse: what is read are zeros, in the emulated drive's time.
const DISK_BYTES: u64 = 1 << 30;
/// The slices of the paper, as far apart as its simulator's.
pub const SLICE: Duration = Duration::from_millis(11);
const JITTER: Duration = Duration::from_micros(300);
/// From when the readers read to the window: compute tasks and turns begin, and the agent
/// learns what slices there are.
const SETTLE: Duration = Duration::from_millis(2500);
/// Reads after which a guest is at work.
const AT_WORK: u64 = 50;

/// Who decides which vCPU runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Host {
    /// [`Turns`] of 11 ± 0.3 ms.
    Turns,
    /// The kernel, which is asked for slices of 11 ms.
    Kernel,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MigrateRun {
    /// Guests that run; at least one.
    pub guests: usize,
    /// Tasks that read, in each.
    pub readers: u32,
    pub host: Host,
}

/// How to run them.
#[derive(Clone, Debug)]
pub struct MigrateOptions {
    /// The `seekway` program, whose `serve` is run.
    pub program: PathBuf,
    /// Path of the `seekway-guest` program, which runs in the guests.
    pub agent: PathBuf,
    /// What it is told, after `migrate`.
    pub agent_args: String,
    /// The rows of the experiment, in the order in which they are measured.
    pub runs: Vec<MigrateRun>,
    /// Pairs of windows in each; at least one.
    pub pairs: u32,
    /// Length of each window.
    pub window: Duration,
    /// The emulated device, as `serve --emulate` takes it.
    pub device: String,
    /// What runs the guests.
    pub accelerator: Accelerator,
    /// Decides how long slices are, except where the kernel makes them.
    pub seed: u64,
    /// Once true, it ends with an error.
    pub interrupted: Arc<AtomicBool>,
}

/// What a row gave.
#[derive(Clone, Debug)]
pub struct MigrateFigures {
    pub run: MigrateRun,
    /// Without and with the agent, in their order.
    pub pairs: Vec<[MigrateWindow; 2]>,
    /// The slice that the kernel has taken for the vCPUs; zero when it takes none.
    pub kernel_slice: Duration,
    /// The middle of the last two windows.
    pub stripes: [Stripe; 2],
}

#[derive(Clone, Debug)]
pub struct MigrateWindow {
    /// One for each guest that runs, in their order.
    pub guests: Vec<MigrateGuest>,
    pub schedule: WindowSchedule,
}

/// A guest in a window.
#[derive(Clone, Debug)]
pub struct MigrateGuest {
    /// Reads of its disk, a second, as the daemon counts them.
    pub iops: f64,
    /// Their response, as the readers see it.
    pub response: Response,
    /// What the guest counts.
    pub counts: Counts,
    /// When its vCPUs ran.
    pub schedule: GuestSchedule,
    /// Wake-ups of all threads of the agent, a second; 0 without one.
    pub wakeups_s: f64,
    /// The agent, where there was one.
    pub agent: Option<AgentReport>,
}

/// Run all rows. `progress` is told what happens next.
///
/// # Errors
/// What is missing on this host, and whatever goes wrong with daemon and guests.
pub fn run_migrate(
    options: &MigrateOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<MigrateFigures>> {
    let processors = check_host()?;
    progress("kernel and initramfs");
    let image = GuestImage::prepare()?;
    let most = options.runs.iter().map(|run| run.guests).max().unwrap_or(0);
    progress(&format!("{most} guests boot"));
    let mut stage = Stage::new(&image, options, most, processors)?;
    let mut figures = Vec::new();
    for run in &options.runs {
        figures.push(stage.row(*run, options, progress)?);
    }
    drop(stage.guests);
    stage.daemon.stop()?;
    Ok(figures)
}

/// What this needs of the host, before anything is begun.
fn check_host() -> Result<Vec<usize>> {
    let processors = vcpus::processors()?;
    if processors.len() < 2 {
        let what = "migrate-live needs two processors: on one, a guest has no vCPU that runs \
                    while another waits";
        return Err(LiveError::Measured(what.into()));
    }
    // Root and tracefs.
    Recorder::new(&[])?;
    Ok(processors)
}

/// The daemon and the guests, which boot once for all rows.
struct Stage {
    guests: Vec<Computing>,
    threads: Vec<Vec<i32>>,
    kernel_slice: Duration,
    processors: Vec<usize>,
    daemon: Daemon,
    /// Folder of the images; fields are dropped in order, so it goes last.
    _dir: TempDir,
}

impl Stage {
    fn new(
        image: &GuestImage,
        options: &MigrateOptions,
        guests: usize,
        processors: Vec<usize>,
    ) -> Result<Stage> {
        let dir = tempfile::Builder::new().prefix("seekway-live-").tempdir();
        let dir = dir.at("create a directory in", &std::env::temp_dir())?;
        let names: Vec<String> = (0..guests).map(disk).collect();
        let mut args = vec!["--emulate".into(), options.device.clone()];
        args.extend(["--policy".into(), "noop".into()]);
        for (n, name) in (0..).zip(&names) {
            let path = dir.path().join(format!("{name}.img"));
            let file = File::create(&path).at("create", &path)?;
            file.set_len(DISK_BYTES).at("size", &path)?;
            let lba = n * DISK_BYTES / 512;
            args.extend(["--disk".into(), format!("{name}={},lba={lba}", path.display())]);
        }
        let daemon = Daemon::start(&options.program, dir.path(), &args)?;
        let agent = Shipped::new(&options.agent, "seekway-guest", dir.path())?;
        let spec = |name: &String| {
            let spec = GuestSpec { cpus: VCPUS, memory_mb: MEMORY_MB, ..GuestSpec::new(name) };
            let (accelerator, extra) = (options.accelerator, agent.args().into());
            GuestSpec { accelerator, extra, ..spec }.disk(daemon.socket(name))
        };
        let specs: Vec<GuestSpec> = names.iter().map(spec).collect();
        let mut guests = Guest::boot_all(image, &specs)?;
        guests.iter_mut().try_for_each(|guest| agent.install(guest))?;
        let (threads, kernel_slice) = place(&guests, &processors)?;
        let guests: Result<Vec<Computing>> =
            guests.into_iter().map(|guest| Computing::new(guest, VCPUS)).collect();
        Ok(Stage { guests: guests?, threads, kernel_slice, processors, daemon, _dir: dir })
    }

    fn row(
        &mut self,
        run: MigrateRun,
        options: &MigrateOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<MigrateFigures> {
        let host = match run.host {
            Host::Turns => "turns of 11 ms",
            Host::Kernel => "the kernel's slices",
        };
        let mut recorder = self.recorder(run.guests)?;
        let mut pairs = Vec::new();
        let mut stripes = [Stripe::default(), Stripe::default()];
        for n in 0..options.pairs {
            progress(&format!(
                "{} guests, {host}: pair {} of {}",
                run.guests,
                n + 1,
                options.pairs
            ));
            // Both of a pair have the same slices.
            let seed = options.seed.wrapping_mul(1000) + u64::from(n);
            let [without, with] = [false, true].map(|agent| {
                let agent = agent.then_some(options.agent_args.as_str());
                self.window(run, agent, seed, options, &mut recorder)
            });
            let ((without, first), (with, second)) = (without?, with?);
            stripes = [first, second];
            pairs.push([without, with]);
        }
        Ok(MigrateFigures { run, pairs, kernel_slice: self.kernel_slice, stripes })
    }

    /// A window, and a piece of it to be drawn.
    fn window(
        &mut self,
        run: MigrateRun,
        agent: Option<&str>,
        seed: u64,
        options: &MigrateOptions,
        recorder: &mut Recorder,
    ) -> Result<(MigrateWindow, Stripe)> {
        let (turns, settled) = self.begin(run, agent, seed)?;
        sleep_until(settled, &options.interrupted)?;
        let sleeps_before = self.agent_sleeps(run.guests)?;
        let before = self.look(run.guests)?;
        let (reads_before, began) = (reads_counted(&self.daemon, run.guests)?, Instant::now());
        recorder.start()?;
        sleep_until(Instant::now() + options.window, &options.interrupted)?;
        let (reads_after, took) = (reads_counted(&self.daemon, run.guests)?, began.elapsed());
        let recording = recorder.stop()?;
        let after = self.look(run.guests)?;
        let sleeps_after = self.agent_sleeps(run.guests)?;
        let ended = self.end(run.guests, turns, agent.is_some())?;
        let threads = self.traced(run.guests)?;
        let mut guests = Vec::new();
        for (n, (response, agent)) in ended.into_iter().enumerate() {
            guests.push(MigrateGuest {
                iops: (reads_after[n] - reads_before[n]) as f64 / took.as_secs_f64(),
                response,
                counts: before[n].until(&after[n])?,
                schedule: bound::guest(&recording, &threads, n),
                wakeups_s: per_second(sleeps_before[n], sleeps_after[n]),
                agent,
            });
        }
        let schedule = bound::window(&recording, &threads);
        Ok((MigrateWindow { guests, schedule }, bound::stripe(&recording, &threads)))
    }

    /// Agents and readers start while compute tasks stand still: a program takes long to
    /// start with an eighth of a vCPU. Then these go on, and turns begin; and when it has
    /// settled.
    fn begin(
        &mut self,
        run: MigrateRun,
        agent: Option<&str>,
        seed: u64,
    ) -> Result<(Option<Turns>, Instant)> {
        let guests = &mut self.guests[..run.guests];
        if let Some(args) = agent {
            guests.iter_mut().try_for_each(|guest| guest.start_agent(args))?;
        }
        let idle = self.daemon.status()?;
        let start = |guest: &mut Computing| inside::start_readers(guest, run.readers, SETTLE);
        guests.iter_mut().try_for_each(start)?;
        let names: Vec<String> = (0..run.guests).map(disk).collect();
        until_all_work(&self.daemon, &names, &idle, AT_WORK)?;
        let settled = Instant::now() + SETTLE;
        guests.iter_mut().try_for_each(Computing::go_on)?;
        let turns = match run.host {
            Host::Turns => Some(self.take_turns(run.guests, seed)?),
            Host::Kernel => None,
        };
        Ok((turns, settled))
    }

    /// How often each guest's agent has slept: [`inside::agent_sleeps`].
    fn agent_sleeps(&mut self, guests: usize) -> Result<Vec<Option<(f64, u64)>>> {
        self.guests[..guests].iter_mut().map(inside::agent_sleeps).collect()
    }

    /// What the guests have counted.
    fn look(&mut self, guests: usize) -> Result<Vec<Counts>> {
        self.guests[..guests].iter_mut().map(inside::look).collect()
    }

    /// The readers end first, so that what they measure is as in the window.
    fn end(
        &mut self,
        guests: usize,
        turns: Option<Turns>,
        agent: bool,
    ) -> Result<Vec<(Response, Option<AgentReport>)>> {
        let guests = &mut self.guests[..guests];
        guests.iter_mut().try_for_each(inside::interrupt_readers)?;
        drop(turns);
        guests.iter_mut().try_for_each(Computing::pause)?;
        let end = |guest: &mut Computing| {
            let response = guest.end_fio(inside::response)?;
            Ok((response, if agent { Some(guest.end_agent()?) } else { None }))
        };
        guests.iter_mut().map(end).collect()
    }

    /// Each processor's vCPUs in turn, one of each guest after the other.
    fn take_turns(&self, guests: usize, seed: u64) -> Result<Turns> {
        let processors = self.processors.len();
        let on = |processor: usize| -> Vec<i32> {
            let vcpus = (processor..VCPUS as usize).step_by(processors);
            vcpus.flat_map(|vcpu| self.threads[..guests].iter().map(move |t| t[vcpu])).collect()
        };
        let queues: Vec<Vec<i32>> = (0..processors).map(on).filter(|q| !q.is_empty()).collect();
        Turns::hold(queues, Slices { mean: SLICE, jitter: JITTER, seed })
    }

    /// Of the vCPUs, and of what wakes and serves them.
    fn recorder(&self, guests: usize) -> Result<Recorder> {
        let threads = self.traced(guests)?;
        let vcpus = threads.vcpus.iter().flatten().copied();
        let tids: Vec<i32> = vcpus.chain(threads.daemon).chain(threads.qemu).collect();
        Recorder::new(&tids)
    }

    fn traced(&self, guests: usize) -> Result<Threads> {
        let daemon = PathBuf::from(format!("/proc/{}/task", self.daemon.pid()));
        Ok(Threads {
            vcpus: self.threads[..guests].to_vec(),
            daemon: numbers(&daemon)?,
            qemu: self.guests[..guests]
                .iter()
                .map(|guest| guest.guest.pid().cast_signed())
                .collect(),
        })
    }
}

/// What was counted from one time to a later one, a second.
fn per_second(before: Option<(f64, u64)>, after: Option<(f64, u64)>) -> f64 {
    let (Some((from, before)), Some((to, after))) = (before, after) else { return 0.0 };
    after.saturating_sub(before) as f64 / (to - from).max(f64::EPSILON)
}

/// Spread each guest's vCPUs evenly over the processors, and ask for slices. Their threads,
/// and the slice that the kernel has taken.
fn place(guests: &[Guest], processors: &[usize]) -> Result<(Vec<Vec<i32>>, Duration)> {
    let mut kernel_slice = Duration::MAX;
    let mut all = Vec::new();
    for guest in guests {
        let threads = vcpus::place(guest, processors)?;
        for &tid in &threads {
            kernel_slice = kernel_slice.min(vcpus::set_slice(tid, SLICE)?);
        }
        all.push(threads);
    }
    Ok((all, kernel_slice))
}

fn numbers(dir: &Path) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).at("list", dir)? {
        let name = entry.at("list", dir)?.file_name();
        found.extend(name.to_string_lossy().parse::<i32>().ok());
    }
    Ok(found)
}

/// The name of a guest and of its disk.
fn disk(guest: usize) -> String {
    format!("vm{guest}")
}

/// Reads of each guest's disk since the daemon's start.
fn reads_counted(daemon: &Daemon, guests: usize) -> Result<Vec<u64>> {
    let report = daemon.status()?;
    (0..guests).map(|n| Ok(reads(&report, &disk(n))?.requests)).collect()
}
