//! Any scenario of the simulator whose guests only read, on real guests: each
//! runs `seekway workload run` with the simulator's own description of its load
//! on its virtio-blk disk, served by `seekway serve` as the emulated disk.
//!
//! Guests boot once. For each policy all loads start at the same time, and each measures
//! itself over the same window.

use super::figures::HostCpu;
use super::together::MEMORY;
use crate::daemon::Daemon;
use crate::error::{At, LiveError, Result};
use crate::guest::{Accelerator, Guest, GuestSpec};
use crate::image::GuestImage;
use crate::shipped::Shipped;
use seekway_hostd::control::EmulationReport;
use serde::Deserialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// For what is not measured: to lay out files, to start and to end.
const PATIENCE: Duration = Duration::from_secs(180);
/// The tools, the program (once in memory, once unpacked), the load's own state.
const MEMORY_MB: u32 = 768;

/// One guest of a scene.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SceneVm {
    pub name: String,
    /// Size of its disk.
    pub image_bytes: u64,
    /// Its load, as `workload::generators::parse_vm` reads it.
    pub load: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scene {
    /// In this order on the disk.
    pub vms: Vec<SceneVm>,
    /// The emulated disk as scenarios have it: a profile's name with its changes, or its text.
    /// `None`: the images, in memory, are as fast as they are.
    pub device: Option<String>,
    /// So many times slower than the profile says.
    pub k: u32,
    /// Where the first image lies on it, in sectors; the others follow.
    pub place: u64,
    /// The policies, and which of the guests run under each: a run alone gives
    /// what a guest has by itself.
    pub runs: Vec<SceneRun>,
}

/// One window of a scene.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SceneRun {
    /// The policy with its parameters.
    pub policy: String,
    /// Only this guest, by its position.
    pub only: Option<usize>,
    /// Seed of the loads.
    pub seed: u64,
}

/// How to run a scene.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SceneOptions {
    /// The `seekway` program: served by, and run in the guests.
    pub program: PathBuf,
    /// From the loads' start to the beginning of the window.
    pub settle: Duration,
    /// Length of the window, at least a second.
    pub window: Duration,
    /// What runs the guests.
    pub accelerator: Accelerator,
}

/// What one window gave.
#[derive(Clone, Debug)]
pub struct SceneFigures {
    pub run: SceneRun,
    /// One for each guest that ran, in their order.
    pub loads: Vec<LoadFigures>,
    /// What the emulated disk did while the loads ran, settling included; `None` without one, or
    /// when it did nothing.
    pub emulated: Option<Emulated>,
    /// How busy the host's processors were, 0 to 1.
    pub host_busy: f64,
}

/// What an emulated disk did in a window.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Emulated {
    pub commands: u64,
    /// Commands whose real completion came after the emulated disk's.
    pub late: u64,
    /// Mean service time of a command as the guests had it, in milliseconds.
    pub service_ms: f64,
    /// Of it, what the daemon adds to the model's time (times k): images and timers that are late,
    /// and other work of its thread. A mean over all commands, in milliseconds.
    pub added_ms: f64,
}

impl Emulated {
    fn between(before: &EmulationReport, after: &EmulationReport) -> Option<Emulated> {
        let commands = after.commands - before.commands;
        let served =
            |e: &EmulationReport| e.service_mean_ms.unwrap_or_default() * e.commands as f64;
        let mean =
            |of: &dyn Fn(&EmulationReport) -> f64| (of(after) - of(before)) / commands as f64;
        (commands > 0).then(|| Emulated {
            commands,
            late: after.late - before.late,
            service_ms: mean(&served),
            added_ms: mean(&|e| e.late_by_ms + e.overslept_ms),
        })
    }
}

/// What `seekway workload run` said in a guest.
#[derive(Clone, Debug, Deserialize)]
pub struct LoadFigures {
    #[serde(skip)]
    pub vm: String,
    /// Length of the window, in seconds.
    pub seconds: f64,
    /// Requests done in it.
    pub requests: u64,
    pub iops: f64,
    /// Bytes read and written, in MiB a second.
    pub mib_s: f64,
    /// From the guest's issue to completion.
    pub response_ms: ResponseFigures,
    /// Its requests carried process tags.
    pub tagged: bool,
}

/// Response times of the requests, in milliseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ResponseFigures {
    /// Arithmetic mean, in milliseconds.
    pub mean: f64,
    /// Standard deviation, in milliseconds.
    pub stdev: f64,
    /// Median: half of the requests take no longer.
    pub p50: f64,
    /// 99 % are below.
    pub p99: f64,
    pub max: f64,
}

/// Run a scene. `progress` is told what happens next.
///
/// # Errors
/// Whatever goes wrong with daemon, guests or loads.
pub fn run_scene(
    scene: &Scene,
    options: &SceneOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<SceneFigures>> {
    progress("kernel and initramfs");
    let image = GuestImage::prepare()?;
    let stage = Stage::new(scene, options)?;
    progress(&format!("{} guests boot", scene.vms.len()));
    let mut guests = stage.boot(&image, options)?;
    let mut figures = Vec::new();
    for run in &scene.runs {
        let alone = run.only.map(|n| format!(", {} alone", scene.vms[n].name));
        progress(&format!("{}{}", run.policy, alone.unwrap_or_default()));
        figures.push(stage.measure(&mut guests, run, options)?);
    }
    drop(guests);
    stage.daemon.stop()?;
    Ok(figures)
}

struct Stage<'a> {
    scene: &'a Scene,
    daemon: Daemon,
    /// What the guests run.
    program: Shipped,
    /// Folder of the images; fields are dropped in order, so it goes last.
    _dir: TempDir,
}

impl<'a> Stage<'a> {
    fn new(scene: &'a Scene, options: &SceneOptions) -> Result<Stage<'a>> {
        let dir = tempfile::Builder::new().prefix("seekway-live-").tempdir_in(MEMORY);
        let dir = dir.at("create a directory in", Path::new(MEMORY))?;
        // A cache would hide the images, as it would hide a device.
        let mut args = vec!["--cache".to_string(), "off".into()];
        if let Some(device) = &scene.device {
            args.extend(["--emulate".into(), emulated(device, scene.k, dir.path())?]);
        }
        let mut lba = scene.place;
        for vm in &scene.vms {
            let path = dir.path().join(format!("{}.img", vm.name));
            // Sparse: what is read are zeros, in the emulated disk's time.
            let file = File::create(&path).at("create", &path)?;
            file.set_len(vm.image_bytes).at("size", &path)?;
            args.push("--disk".into());
            args.push(format!("{}={},lba={lba}", vm.name, path.display()));
            lba += vm.image_bytes / 512;
        }
        let program = Shipped::new(&options.program, "seekway", dir.path())?;
        let daemon = Daemon::start(&options.program, dir.path(), &args)?;
        Ok(Stage { scene, daemon, program, _dir: dir })
    }

    fn boot(&self, image: &GuestImage, options: &SceneOptions) -> Result<Vec<Guest>> {
        let spec = |vm: &SceneVm| {
            // One vCPU: all guests share the host's processors with the daemon.
            let spec = GuestSpec { cpus: 1, memory_mb: MEMORY_MB, ..GuestSpec::new(&vm.name) };
            let extra = self.program.args().to_vec();
            GuestSpec { accelerator: options.accelerator, extra, ..spec }
                .disk(self.daemon.socket(&vm.name))
        };
        let specs: Vec<GuestSpec> = self.scene.vms.iter().map(spec).collect();
        let mut guests = Guest::boot_all(image, &specs)?;
        for guest in &mut guests {
            self.program.install(guest)?;
            guest.check("echo none >/sys/block/vda/queue/scheduler", PATIENCE)?;
        }
        Ok(guests)
    }

    fn measure(
        &self,
        guests: &mut [Guest],
        run: &SceneRun,
        options: &SceneOptions,
    ) -> Result<SceneFigures> {
        self.daemon.set_policy(&run.policy)?;
        let runs = |n: usize| run.only.is_none_or(|only| only == n);
        let cpu = HostCpu::now();
        let before = self.emulation()?;
        for (n, (guest, vm)) in guests.iter_mut().zip(&self.scene.vms).enumerate() {
            if runs(n) {
                // As the simulator, which gives each VM a stream of its own.
                let command = start_load(vm, run.seed + n as u64, options);
                guest.check(&command, PATIENCE)?;
            }
        }
        let mut loads = Vec::new();
        for (n, (guest, vm)) in guests.iter_mut().zip(&self.scene.vms).enumerate() {
            if runs(n) {
                loads.push(end_load(guest, vm, options)?);
            }
        }
        let after = self.emulation()?;
        let emulated = before.zip(after).and_then(|(from, to)| Emulated::between(&from, &to));
        Ok(SceneFigures { run: run.clone(), loads, emulated, host_busy: cpu.busy_since() })
    }

    /// `None` when the daemon emulates nothing.
    fn emulation(&self) -> Result<Option<EmulationReport>> {
        let report = self.daemon.status()?;
        Ok(report.devices.into_iter().find_map(|d| d.emulated))
    }
}

/// What `serve --emulate` takes. A profile's text becomes a file in `dir`. With a k that is fixed,
/// a real completion that comes late is counted.
fn emulated(device: &str, k: u32, dir: &Path) -> Result<String> {
    if device.contains('\n') {
        let path = dir.join("device.toml");
        std::fs::write(&path, device).at("write", &path)?;
        return Ok(format!("{}:k={k}", path.display()));
    }
    let separator = if device.contains(':') { ',' } else { ':' };
    Ok(format!("{device}{separator}k={k}"))
}

/// Starts a load that measures itself, and returns.
fn start_load(vm: &SceneVm, seed: u64, options: &SceneOptions) -> String {
    let (settle, window) = (options.settle.as_millis(), options.window.as_millis());
    format!(
        "rm -f /tmp/said; (seekway workload run --vm '{}' --on /dev/vda --seed {seed} \
         --settle {settle}ms --for {window}ms --format json >/tmp/out 2>/tmp/err; \
         echo $? >/tmp/status; mv /tmp/status /tmp/said) >/dev/null 2>&1 &",
        vm.load
    )
}

/// Waits for a load's end and reads what it said.
fn end_load(guest: &mut Guest, vm: &SceneVm, options: &SceneOptions) -> Result<LoadFigures> {
    let patience = PATIENCE + options.settle + options.window;
    let said = guest.check(
        "while [ ! -f /tmp/said ]; do sleep 0.1; done; cat /tmp/said /tmp/err /tmp/out",
        patience,
    )?;
    let wrong = || LiveError::Measured(format!("{}: seekway said {said}", vm.name));
    let json = said.strip_prefix("0\n").ok_or_else(wrong)?;
    let figures: LoadFigures = serde_json::from_str(json).map_err(|_| wrong())?;
    Ok(LoadFigures { vm: vm.name.clone(), ..figures })
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_hostd::throttle::Throttle;

    #[test]
    fn a_profile_is_emulated_by_name_and_by_text() {
        let dir = tempfile::tempdir().expect("a directory");
        let profile = |device: &str| {
            let text = emulated(device, 8, dir.path()).expect("a file");
            let report = Throttle::parse(&text).expect(&text).report();
            (report.profile, report.k)
        };
        assert_eq!(profile("linear-15k4"), ("linear-15k4".into(), 8.0));
        assert_eq!(profile("linear-15k4:segments=8"), ("linear-15k4:segments=8".into(), 8.0));
        let text = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../device/profiles/linear-15k4.toml"
        ));
        assert_eq!(profile(&text.expect("a profile")).1, 8.0);
    }
}
