//! together: real guests of one ordinary host, with everything of Seekway on and with
//! everything off, and each guest alone on a private disk, which is as many times slower as
//! there are guests. Each guest has its own application; their vCPUs share the processors in
//! turns, and a compute task on each vCPU keeps every turn in use. A guest that is alone on
//! its disk has the same turns: the others' compute tasks run in theirs.
//!
//! Each guest has three disks: `/dev/vda` is served by a daemon with everything off,
//! `/dev/vdb` by one with everything on, `/dev/vdc` by that of the private disks. The images
//! have the same content at the same places of the same emulated device. Only one daemon has
//! work at a time, so none disturbs another, and no setting or cached block of one is left in
//! another. A window with everything off, one with everything on and one for each guest alone
//! make a round, in the same guests, several times.

mod host;
mod inside;
mod load;

pub use host::HostShares;
pub use inside::{LoadFigures as TogetherLoadFigures, Progress};
pub use load::Load as TogetherLoad;

use super::AgentReport;
use super::figures::device;
use super::procs::{emulated, tags_between, usage};
use super::wait::{sleep_until, until_all_work};
use crate::daemon::Daemon;
use crate::error::{At, LiveError, Result};
use crate::guest::{Accelerator, Guest, GuestSpec};
use crate::image::GuestImage;
use crate::shipped::Shipped;
use crate::turns::{Slices, Turns};
use crate::vcpus;
use host::Look;
use inside::Inside;
use load::Work;
use seekway_hostd::control::{HostReport, UsageReport};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// vCPUs of each guest: one on each of two processors.
const VCPUS: u32 = 2;
/// The tools, two agents, and a page cache that is small beside what is read.
const MEMORY_MB: u32 = 384;
/// As in migrate-live, after the vMigrater paper.
const SLICE: Duration = Duration::from_millis(11);
const JITTER: Duration = Duration::from_micros(300);
/// From the time at which every application does I/O to the window: compute tasks and turns
/// begin, and agents and prefetchers learn. fio counts from about then on.
const SETTLE: Duration = Duration::from_secs(3);
/// Where images lie: a write to a real disk would end after the emulated one's.
pub(super) const MEMORY: &str = "/dev/shm";
/// Guests that may be lost in a run.
const LOST_MAX: usize = 4;
/// I/Os after which an application is at work.
const AT_WORK: u64 = 10;

/// What is on, or off, for a window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TogetherSide {
    pub policy: String,
    /// Bytes of the host's cache and the prefetcher in front of it.
    pub cache: Option<(u64, String)>,
    /// `seekway-guest tag` runs in each guest, with these arguments.
    pub tags: Option<String>,
    /// `seekway-guest migrate` runs in each guest, with these arguments.
    pub agent: Option<String>,
    /// The emulated device, as `serve --emulate` takes it.
    pub device: String,
}

/// Whose applications run in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    All,
    /// Of the guest with this index only.
    Alone(usize),
}

impl Who {
    fn has(self, guest: usize) -> bool {
        matches!(self, Who::All) || self == Who::Alone(guest)
    }
}

/// The sides by index.
const OFF: usize = 0;
const ON: usize = 1;
const PRIVATE: usize = 2;

/// How to run it.
#[derive(Clone, Debug)]
pub struct TogetherOptions {
    /// The `seekway` program, whose `serve` is run.
    pub program: PathBuf,
    /// Path of the `seekway-guest` program, which runs in the guests.
    pub agent: PathBuf,
    /// A guest for each.
    pub loads: Vec<TogetherLoad>,
    /// Everything off, everything on, and the private disks.
    pub sides: [TogetherSide; 3],
    /// Rounds of windows, at least one.
    pub rounds: u32,
    /// Length of each window.
    pub window: Duration,
    /// What runs the guests.
    pub accelerator: Accelerator,
    /// Decides slices, who begins, where files lie and what is read.
    pub seed: u64,
    /// The run ends soon after this is set.
    pub interrupted: Arc<AtomicBool>,
}

/// What the run came to.
#[derive(Clone, Debug)]
pub struct TogetherFigures {
    pub rounds: Vec<TogetherRound>,
    /// For each time that a guest was lost and the round made again: why.
    pub lost: Vec<String>,
}

/// One window of each kind. As JSON its keys stay.
#[derive(Clone, Debug, Serialize)]
pub struct TogetherRound {
    pub off: TogetherWindow,
    pub on: TogetherWindow,
    /// For each guest the window in which only its application ran, on its private disk.
    pub alone: Vec<TogetherWindow>,
}

/// One window. As JSON its keys stay.
#[derive(Clone, Debug, Serialize)]
pub struct TogetherWindow {
    /// One for each of the loads, in their order.
    pub guests: Vec<TogetherGuest>,
    /// Who had the host's processors.
    pub host: HostShares,
    /// Commands of the emulated device.
    pub commands: u64,
    /// Those of them whose real completion came after the device's.
    pub late: u64,
    /// Slices that the vCPUs of each guest had together while agents counted moves.
    pub slices: f64,
}

/// A guest in a window.
#[derive(Clone, Debug, Serialize)]
pub struct TogetherGuest {
    /// What its application did; nothing where only the compute tasks count.
    pub load: Option<TogetherLoadFigures>,
    /// What its compute tasks and agents did.
    pub compute: Progress,
    /// What the cache did for it.
    pub usage: Option<UsageReport>,
    /// Tags under which its requests came; zero without a cache, which counts them.
    pub tags: usize,
    /// The agent that moves tasks, where there was one.
    pub agent: Option<AgentReport>,
}

/// Run all pairs. `progress` is told what happens next.
///
/// # Errors
/// What is missing on this host, and whatever goes wrong with daemons and guests.
pub fn run_together(
    options: &TogetherOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<TogetherFigures> {
    let processors = check_host()?;
    progress("kernel and initramfs");
    let image = GuestImage::prepare()?;
    let boots = format!("{} guests boot", options.loads.len());
    progress(&boots);
    let mut stage = Stage::new(&image, options, &processors)?;
    let mut figures = TogetherFigures { rounds: Vec::new(), lost: Vec::new() };
    for round in 0..options.rounds {
        loop {
            match stage.round(round, options, progress) {
                Ok(windows) => break figures.rounds.push(windows),
                Err(error) if is_lost(&error) && figures.lost.len() < LOST_MAX => {
                    let why = error.to_string();
                    figures.lost.push(why.lines().next().unwrap_or_default().to_string());
                    drop(stage);
                    progress(&format!("a guest is lost: {boots}"));
                    stage = Stage::new(&image, options, &processors)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
    stage.stop()?;
    Ok(figures)
}

/// Has QEMU's emulation lost a guest? When an agent loads its BPF programs, the kernel changes
/// its own code, and with several threads QEMU 7.2 now and then stops a vCPU for ever over it,
/// or runs the old code.
fn is_lost(error: &LiveError) -> bool {
    match error {
        LiveError::Timeout { .. } | LiveError::Gone { .. } | LiveError::Protocol { .. } => true,
        // Killed after its time.
        LiveError::InGuest { status, .. } => *status == 137,
        _ => false,
    }
}

/// What this needs of the host, before anything is begun.
fn check_host() -> Result<Vec<usize>> {
    let processors = vcpus::processors()?;
    let needed = VCPUS as usize;
    if processors.len() < needed {
        let what = format!(
            "together --live needs {needed} processors: on one, a guest has no vCPU that runs \
             while another waits"
        );
        return Err(LiveError::Measured(what));
    }
    Ok(processors[..needed].to_vec())
}

/// The daemons and the guests, which boot once for all windows.
struct Stage {
    guests: Vec<Inside>,
    /// Of each guest's vCPUs.
    threads: Vec<Vec<i32>>,
    /// One for each side.
    daemons: [Daemon; 3],
    /// Folder of the images; fields are dropped in order, so it goes last.
    _dir: TempDir,
}

impl Stage {
    fn new(image: &GuestImage, options: &TogetherOptions, processors: &[usize]) -> Result<Stage> {
        let memory = Path::new(MEMORY);
        // Whoever finds the folder later knows whether its owner still runs.
        let prefix = format!("seekway-live-{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in(memory);
        let dir = dir.at("create a directory in", memory)?;
        let serve = |side: usize| serve(&dir.path().join(side.to_string()), side, options);
        let daemons = [serve(OFF)?, serve(ON)?, serve(PRIVATE)?];
        let agent = Shipped::new(&options.agent, "seekway-guest", dir.path())?;
        let spec = |load: &TogetherLoad| {
            let name = load.name();
            let spec = GuestSpec { cpus: VCPUS, memory_mb: MEMORY_MB, ..GuestSpec::new(name) };
            let (accelerator, extra) = (options.accelerator, agent.args().into());
            let spec = GuestSpec { accelerator, extra, ..spec };
            daemons.iter().fold(spec, |spec, daemon| spec.disk(daemon.socket(name)))
        };
        let specs: Vec<GuestSpec> = options.loads.iter().map(spec).collect();
        let mut guests = Guest::boot_all(image, &specs)?;
        guests.iter_mut().try_for_each(|guest| agent.install(guest))?;
        let threads = guests.iter().map(|guest| vcpus::place(guest, processors));
        let threads = threads.collect::<Result<_>>()?;
        let inside = |(guest, load): (Guest, &TogetherLoad)| Inside::new(guest, *load, VCPUS);
        let guests: Result<Vec<Inside>> =
            guests.into_iter().zip(&options.loads).map(inside).collect();
        Ok(Stage { guests: guests?, threads, daemons, _dir: dir })
    }

    fn stop(self) -> Result<()> {
        drop(self.guests);
        self.daemons.into_iter().try_for_each(Daemon::stop)
    }

    fn round(
        &mut self,
        round: u32,
        options: &TogetherOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<TogetherRound> {
        let of = options.rounds;
        let mut window = |side: usize, who: Who| {
            let what = match who {
                Who::All => ["everything off", "everything on"][side].to_string(),
                Who::Alone(guest) => format!("{} alone", options.loads[guest].name()),
            };
            progress(&format!("round {} of {of}: {what}", round + 1));
            self.window(side, who, round, options)
        };
        let guests = 0..options.loads.len();
        // What drifts while the run lasts hits all sides alike.
        if round.is_multiple_of(2) {
            let (off, on) = (window(OFF, Who::All)?, window(ON, Who::All)?);
            let alone = guests.map(|guest| window(PRIVATE, Who::Alone(guest)));
            return Ok(TogetherRound { off, on, alone: alone.collect::<Result<_>>()? });
        }
        let alone = guests.map(|guest| window(PRIVATE, Who::Alone(guest)));
        let alone = alone.collect::<Result<_>>()?;
        let on = window(ON, Who::All)?;
        Ok(TogetherRound { off: window(OFF, Who::All)?, on, alone })
    }

    fn window(
        &mut self,
        side: usize,
        who: Who,
        round: u32,
        options: &TogetherOptions,
    ) -> Result<TogetherWindow> {
        let turns = self.begin(side, who, round, options)?;
        let begun = Instant::now();
        sleep_until(begun + SETTLE, &options.interrupted)?;
        let compute = self.progress()?;
        let (before, host) = (self.daemons[side].status()?, self.look()?);
        sleep_until(Instant::now() + options.window, &options.interrupted)?;
        let host = host.until(&self.look()?);
        let after = self.daemons[side].status()?;
        let compute = compute.iter().zip(self.progress()?).map(|(then, now)| then.until(&now));
        let compute: Vec<Progress> = compute.collect::<Result<_>>()?;
        self.interrupt_loads(who)?;
        drop(turns);
        let slices = begun.elapsed().as_secs_f64() * f64::from(VCPUS)
            / (SLICE.as_secs_f64() * self.guests.len() as f64);
        let ended = self.end(who)?;
        let mut guests = Vec::new();
        for ((inside, compute), (load, agent)) in self.guests.iter().zip(compute).zip(ended) {
            let (before, after) = (only(&before, inside.name())?, only(&after, inside.name())?);
            let with_cache = options.sides[side].cache.is_some();
            let usage = with_cache.then(|| usage(&before).and_then(|u| Ok((u, usage(&after)?))));
            guests.push(TogetherGuest {
                load,
                compute,
                usage: usage.transpose()?.map(|(then, now)| super::procs::difference(&then, &now)),
                tags: tags_between(&before, &after),
                agent,
            });
        }
        Ok(TogetherWindow {
            guests,
            host,
            commands: emulated(&after, |e| e.commands) - emulated(&before, |e| e.commands),
            late: emulated(&after, |e| e.late) - emulated(&before, |e| e.late),
            slices,
        })
    }

    /// Agents and applications start while compute tasks stand still: a program takes long
    /// to start with an eighth of a processor. Then these go on, and turns begin.
    fn begin(
        &mut self,
        side: usize,
        who: Who,
        round: u32,
        options: &TogetherOptions,
    ) -> Result<Turns> {
        let TogetherSide { tags, agent, .. } = &options.sides[side];
        // All windows of a round have the same slices, and read the same.
        let seed = options.seed.wrapping_mul(1000).wrapping_add(u64::from(round));
        let work = Work { side, round, seed, settle: SETTLE };
        for guest in &mut self.guests {
            guest.forget_cached()?;
            if let Some(args) = tags {
                guest.start_tags(args)?;
            }
            if let Some(args) = agent {
                guest.start_agent(args)?;
            }
        }
        let idle = self.daemons[side].status()?;
        self.working(who).try_for_each(|guest| guest.start_load(&work))?;
        let names: Vec<&str> = self.working(who).map(|guest| guest.name()).collect();
        until_all_work(&self.daemons[side], &names, &idle, AT_WORK)?;
        self.guests.iter_mut().try_for_each(|guest| guest.computing.go_on())?;
        self.take_turns(seed)
    }

    /// The guests whose applications run.
    fn working(&mut self, who: Who) -> impl Iterator<Item = &mut Inside> {
        let guests = self.guests.iter_mut().enumerate();
        guests.filter(move |(at, guest)| who.has(*at) && guest.has_load()).map(|(_, guest)| guest)
    }

    /// Applications end before turns do, so that what they measure is as in the window.
    fn interrupt_loads(&mut self, who: Who) -> Result<()> {
        self.working(who).try_for_each(Inside::interrupt_load)
    }

    fn end(&mut self, who: Who) -> Result<Vec<(Option<TogetherLoadFigures>, Option<AgentReport>)>> {
        self.guests.iter_mut().try_for_each(|guest| guest.computing.pause())?;
        let end = |(at, guest): (usize, &mut Inside)| {
            let works = who.has(at) && guest.has_load();
            let load = works.then(|| guest.end_load()).transpose()?;
            Ok((load, guest.end_agents()?))
        };
        self.guests.iter_mut().enumerate().map(end).collect()
    }

    fn progress(&mut self) -> Result<Vec<Progress>> {
        self.guests.iter_mut().map(Inside::progress).collect()
    }

    fn look(&self) -> Result<Look> {
        let qemus: Vec<u32> = self.guests.iter().map(|guest| guest.computing.guest.pid()).collect();
        Look::now(&qemus, &self.threads, &self.daemons.each_ref().map(Daemon::pid))
    }

    /// On each processor the guests' vCPUs in turn. Who begins is another on each, as it is
    /// on processors that know nothing of each other.
    fn take_turns(&self, seed: u64) -> Result<Turns> {
        let on = |vcpu: usize| -> Vec<i32> {
            let mut queue: Vec<i32> = self.threads.iter().map(|t| t[vcpu]).collect();
            let guests = queue.len();
            queue.rotate_left(vcpu * guests / VCPUS as usize % guests);
            queue
        };
        let queues = (0..VCPUS as usize).map(on).collect();
        Turns::hold(queues, Slices { mean: SLICE, jitter: JITTER, seed })
    }
}

/// The daemon of a side, with its own images.
fn serve(dir: &Path, side: usize, options: &TogetherOptions) -> Result<Daemon> {
    std::fs::create_dir(dir).at("create", dir)?;
    let TogetherSide { policy, cache, device, .. } = &options.sides[side];
    let mut args: Vec<String> = ["--emulate", device, "--policy", policy].map(String::from).into();
    if let Some((bytes, prefetcher)) = cache {
        args.extend(["--cache".into(), format!("{}KiB", bytes >> 10)]);
        args.extend(["--prefetch".into(), prefetcher.clone()]);
    }
    let mut lba = 0;
    for load in &options.loads {
        let image = dir.join(format!("{}.img", load.name()));
        load.make_image(&image, options.rounds, options.seed)?;
        args.extend(["--disk".into(), format!("{}={},lba={lba}", load.name(), image.display())]);
        lba += load::IMAGE_BYTES / 512;
    }
    let daemon = Daemon::start(&options.program, dir, &args)?;
    daemon.prefer()?;
    Ok(daemon)
}

/// The report of one disk alone.
fn only(report: &HostReport, disk: &str) -> Result<HostReport> {
    let mut report = report.clone();
    for device in &mut report.devices {
        device.disks.retain(|d| d.name == disk);
    }
    device(&report)?;
    Ok(report)
}
