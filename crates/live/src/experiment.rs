//! pregather-read on real guests: the laboratory's scenario of this name (figure 5 of the
//! Pregather paper) with the same places on the same emulated disk, the same files, and the
//! paper's own program, sysbench, through the page cache of a real Linux.
//!
//! Guests boot once. For each policy: caches are dropped, all applications
//! start, and the daemon's counters are read at the beginning and at the end of
//! a window in which all of them run.

mod figures;
mod inside;
mod look;
mod migrate;
mod noisy;
mod procs;
mod scene;
mod together;
mod wait;

pub use figures::{AppFigures, PolicyFigures, VmFigures};
pub use inside::{AgentReport, VcpuReport};
pub use migrate::{
    Counts, GuestSchedule, Host, MigrateFigures, MigrateGuest, MigrateOptions, MigrateRun,
    MigrateWindow, Response, SLICE, Stripe, VCPUS, WindowSchedule, run_migrate,
};
pub use noisy::{
    BASE as NOISY_BASE, NoisyDisk, NoisyFigures, NoisyOptions, NoisyRound, NoisyScene, NoisyServer,
    NoisyWindow, VmSample, run_noisy,
};
pub use procs::{PROCS_SETTLE, ProcsFigures, ProcsOptions, ProcsRun, run_procs};
pub use scene::{
    Emulated, LoadFigures, ResponseFigures, Scene, SceneFigures, SceneOptions, SceneRun, SceneVm,
    run_scene,
};
pub use together::{
    HostShares, Progress, TogetherFigures, TogetherGuest, TogetherLoad, TogetherLoadFigures,
    TogetherOptions, TogetherRound, TogetherSide, TogetherWindow, run_together,
};

use crate::daemon::Daemon;
use crate::error::{At, LiveError, Result};
use crate::filesystem::{self, FileSet};
use crate::guest::{Accelerator, Guest, GuestSpec};
use crate::image::GuestImage;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wait::until_all_work;

/// The disk that is emulated. Without scaling: its times are absolute, and a
/// real completion that comes late is counted.
const DEVICE: &str = "seagate-1tb-7200:k=1";
/// Where the first image lies on it, in sectors (figure 1 of the paper).
const PLACE: u64 = 1_283_200_000;
const IMAGE_BYTES: u64 = 12 << 30;
const FILES: u32 = 128;
const SET_BYTES: u64 = 1 << 30;
/// Page cache and all: less than what the applications read.
const MEMORY_MB: u32 = 384;
/// From the first reads of all guests to the beginning of the window.
const SETTLE: Duration = Duration::from_secs(3);
/// Reads after which a guest is at work.
const AT_WORK: u64 = 50;
/// For a command in a guest.
const PATIENCE: Duration = Duration::from_secs(600);

/// The guests and sysbench's mode in each of their two applications.
const VMS: [(&str, [Mode; 2]); 3] = [
    ("vm1", [Mode::Sequential, Mode::Sequential]),
    ("vm2", [Mode::Sequential, Mode::Random]),
    ("vm3", [Mode::Random, Mode::Random]),
];

/// How an application reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// One file after the other.
    Sequential,
    /// Any block of any file.
    Random,
}

impl Mode {
    /// As the papers abbreviate it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Sequential => "SR",
            Mode::Random => "RR",
        }
    }

    fn sysbench(self) -> &'static str {
        match self {
            Mode::Sequential => "seqrd",
            Mode::Random => "rndrd",
        }
    }
}

/// How to run it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The `seekway` program, whose `serve` is run.
    pub program: PathBuf,
    /// Policies, each with its parameters, in the order of the runs.
    pub policies: Vec<String>,
    /// Length of the window, at least a second.
    pub window: Duration,
    /// What runs the guests.
    pub accelerator: Accelerator,
    /// Decides where files lie and what random readers read.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct LiveResults {
    /// One for each policy, in their order.
    pub runs: Vec<PolicyFigures>,
    /// Length of the windows that was asked for.
    pub window: Duration,
    /// The VMs' descriptions for the simulator (`workload::generators::parse_vm`):
    /// the same guests and loads.
    pub vms: Vec<String>,
    pub device: &'static str,
    /// Where the first image lies on it, in sectors; the others follow.
    pub place: u64,
}

/// Run it. `progress` is told what happens next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<LiveResults> {
    progress("kernel and initramfs");
    let image = GuestImage::prepare()?;
    let stage = Stage::new(options)?;
    progress("three guests boot");
    let mut guests = stage.boot(&image, options)?;
    let mut runs = Vec::new();
    for policy in &options.policies {
        progress(&format!("{policy}: {} s", (SETTLE + options.window).as_secs()));
        runs.push(stage.measure(&mut guests, policy, options)?);
    }
    drop(guests);
    let journal = stage.finish()?;
    figures::add_seeks(&journal, &mut runs)?;
    Ok(LiveResults {
        runs,
        window: options.window,
        vms: VMS.iter().map(|(name, modes)| simulated(name, modes)).collect(),
        device: DEVICE.split(':').next().unwrap_or(DEVICE),
        place: PLACE,
    })
}

/// A guest as the simulator is told of it.
fn simulated(name: &str, modes: &[Mode; 2]) -> String {
    // The initramfs and the kernel's own memory are not the page cache's.
    let mut text =
        format!("name={name},ram={MEMORY_MB}MiB,reserved=200MiB,vcpus=1,max_request_kib=128");
    for mode in modes {
        // More than can be read in a window: applications do not end.
        let work = match mode {
            Mode::Sequential => "size=1GiB",
            Mode::Random => "requests=1000000",
        };
        text.push_str(&format!(",app=sysbench:mode={},{work}", mode.name()));
    }
    text
}

/// The daemon with the guests' disks.
struct Stage {
    daemon: Daemon,
    dir: TempDir,
}

impl Stage {
    fn new(options: &Options) -> Result<Stage> {
        let dir = tempfile::Builder::new().prefix("seekway-live-").tempdir();
        let dir = dir.at("create a directory in", &std::env::temp_dir())?;
        let journal = dir.path().join("journal");
        let mut args = vec!["--emulate".into(), DEVICE.into()];
        args.extend(["--journal".into(), journal.display().to_string()]);
        for (n, (name, modes)) in VMS.iter().enumerate() {
            let path = dir.path().join(format!("{name}.img"));
            let set = |n| FileSet {
                directory: format!("app{n}"),
                count: FILES,
                file_bytes: SET_BYTES / u64::from(FILES),
            };
            let sets: Vec<FileSet> = (0..modes.len()).map(set).collect();
            filesystem::make(&path, IMAGE_BYTES, &sets, options.seed + n as u64)?;
            let lba = PLACE + n as u64 * IMAGE_BYTES / 512;
            args.extend(["--disk".into(), format!("{name}={},lba={lba}", path.display())]);
        }
        let daemon = Daemon::start(&options.program, dir.path(), &args)?;
        Ok(Stage { daemon, dir })
    }

    fn boot(&self, image: &GuestImage, options: &Options) -> Result<Vec<Guest>> {
        let spec = |(name, _): &(&str, [Mode; 2])| {
            // One vCPU: three guests share two cores or so with the daemon.
            let spec = GuestSpec { cpus: 1, memory_mb: MEMORY_MB, ..GuestSpec::new(*name) };
            GuestSpec { accelerator: options.accelerator, ..spec.disk(self.daemon.socket(name)) }
        };
        let specs: Vec<GuestSpec> = VMS.iter().map(spec).collect();
        let mut guests = Guest::boot_all(image, &specs)?;
        // The files' inodes stay in memory: reading data reads data only, as
        // in the simulator.
        let prepare = "mount -t ext4 -o noatime,noinit_itable /dev/vda /mnt && \
             echo 128 >/sys/block/vda/queue/max_sectors_kb && \
             find /mnt -type f | xargs stat >/dev/null";
        guests.iter_mut().try_for_each(|g| g.check(prepare, PATIENCE).map(drop))?;
        Ok(guests)
    }

    fn measure(
        &self,
        guests: &mut [Guest],
        policy: &str,
        options: &Options,
    ) -> Result<PolicyFigures> {
        self.daemon.set_policy(policy)?;
        for guest in guests.iter_mut() {
            guest.check("sync; echo 1 >/proc/sys/vm/drop_caches", PATIENCE)?;
        }
        let idle = self.daemon.status()?;
        for (guest, (_, modes)) in guests.iter_mut().zip(VMS) {
            guest.check(&start_applications(modes, options.seed), PATIENCE)?;
        }
        until_all_work(&self.daemon, &VMS.map(|(name, _)| name), &idle, AT_WORK)?;
        std::thread::sleep(SETTLE);
        let cpu = figures::HostCpu::now();
        let (before, started) = (self.daemon.status()?, Instant::now());
        std::thread::sleep(options.window);
        let (after, took) = (self.daemon.status()?, started.elapsed());
        let busy = cpu.busy_since();
        let mut run = PolicyFigures::new(policy, &before, &after, took, busy)?;
        // The daemon lists disks in the order in which it was given them.
        for ((guest, vm), (_, modes)) in guests.iter_mut().zip(&mut run.vms).zip(VMS) {
            vm.apps = stop_applications(guest, modes, options.window)?;
        }
        Ok(run)
    }

    /// End the daemon; the text of its journal.
    fn finish(self) -> Result<String> {
        self.daemon.stop()?;
        let folder = self.dir.path().join("journal");
        let mut text = String::new();
        for entry in std::fs::read_dir(&folder).at("list", &folder)? {
            let path = entry.at("list", &folder)?.path();
            text.push_str(&std::fs::read_to_string(&path).at("read", &path)?);
        }
        Ok(text)
    }
}

/// A command that starts sysbench once for each mode and returns. They end when
/// they are told to.
fn start_applications(modes: [Mode; 2], seed: u64) -> String {
    let start = |(n, mode): (usize, &Mode)| {
        format!(
            "cd /mnt/app{n}; (exec sysbench fileio --file-num={FILES} --file-total-size={SET_BYTES} \
             --file-block-size=16384 --file-test-mode={} --file-fsync-freq=0 --threads=16 \
             --time=3600 --report-interval=1 --rand-seed={} run) >/tmp/app{n} 2>&1 & ",
            mode.sysbench(),
            seed + n as u64 + 1
        )
    };
    modes.iter().enumerate().map(start).collect()
}

/// End a guest's applications; what each read a second in the window, which
/// ends now.
fn stop_applications(
    guest: &mut Guest,
    modes: [Mode; 2],
    window: Duration,
) -> Result<Vec<AppFigures>> {
    guest.check(
        "killall -9 sysbench; while pidof sysbench >/dev/null; do sleep 0.1; done",
        PATIENCE,
    )?;
    let mut apps = Vec::new();
    for (n, mode) in modes.into_iter().enumerate() {
        let said = guest.check(&format!("cat /tmp/app{n}"), PATIENCE)?;
        let rates = figures::sysbench_rates(&said);
        if rates.is_empty() {
            let name = guest.name();
            let what = format!("{name}: sysbench ({}) reports nothing: {said}", mode.name());
            return Err(LiveError::Measured(what));
        }
        let last = rates.len().saturating_sub(window.as_secs() as usize);
        let rates = &rates[last..];
        let mib_s = rates.iter().sum::<f64>() / rates.len() as f64;
        apps.push(AppFigures { mode, mib_s });
    }
    Ok(apps)
}
