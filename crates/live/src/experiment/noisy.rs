//! A quiet VM beside a flood on one disk, under our daemon with several policies and
//! under QEMU's storage daemon. No guests: the VMs are vhost-user clients in this
//! process, one thread each.
//!
//! A round of a scene measures the quiet VM alone, the flood alone, both under each
//! server, and the quiet VM alone once more. Each measurement has a server of its own,
//! so that none learns from another, and rounds go forwards and backwards in turn, so
//! that a slow phase of the machine hits all servers alike.

mod figures;
mod servers;

pub use figures::{NoisyFigures, NoisyRound, NoisyWindow, VmSample};
pub use servers::NoisyServer;

use super::figures::HostCpu;
use crate::error::{At, LiveError, Result};
use seekway_client::{Client, Load, Span, Wait, in_memory, write_image};
use servers::Running;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use tempfile::TempDir;

/// One random read of 4 KiB at a time.
const QUIET: Load = Load::random(1);
/// What both are alone under, and what the flood's rate is set against.
pub const BASE: &str = "noop";

/// A disk with an image for each VM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoisyDisk {
    /// As rows name it.
    pub name: String,
    /// The device to emulate, as `serve --emulate` takes it; else the disk below is measured.
    pub emulate: Option<String>,
    /// Where the images go: in memory if a device is emulated, else on the disk.
    pub folder: PathBuf,
    /// Of each image, in whole MiB.
    pub image_bytes: u64,
    /// In the order of the rows.
    pub servers: Vec<NoisyServer>,
}

/// A disk and what floods it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoisyScene {
    pub disk: NoisyDisk,
    /// As rows name it.
    pub flood_name: String,
    pub flood: Load,
}

/// How to run the scenes.
#[derive(Clone, Debug)]
pub struct NoisyOptions {
    /// The `seekway` program, whose `serve` is run.
    pub program: PathBuf,
    /// Those of one disk follow each other.
    pub scenes: Vec<NoisyScene>,
    /// Rounds of each scene, at least one.
    pub rounds: u32,
    /// Warm-up and counted time of each measurement.
    pub span: Span,
    /// The run ends soon after this is set.
    pub interrupted: Arc<AtomicBool>,
}

/// Run all scenes. `progress` is told what happens next. What cannot be measured (a
/// missing peer, a client's failure) is an error of its own measurement only.
///
/// # Errors
/// The images cannot be written, or the run was interrupted.
pub fn run_noisy(
    options: &NoisyOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<NoisyFigures>> {
    let mut figures = Vec::new();
    for scenes in options.scenes.chunk_by(|a, b| a.disk == b.disk) {
        let disk = &scenes[0].disk;
        let folder = disk.folder.display();
        progress(&format!(
            "{}: two images of {} MiB in {folder}",
            disk.name,
            disk.image_bytes >> 20
        ));
        let images = Images::write(disk)?;
        for scene in scenes {
            let mut stage = Stage { options, scene, images: &images, flood_bytes_s: None };
            let mut rounds = Vec::new();
            for n in 0..options.rounds {
                rounds.push(stage.round(n, progress)?);
            }
            figures.push(NoisyFigures { scene: scene.clone(), rounds });
        }
    }
    Ok(figures)
}

/// The images of a disk, removed in the end.
struct Images {
    dir: TempDir,
}

impl Images {
    fn write(disk: &NoisyDisk) -> Result<Images> {
        // Whoever finds the folder later knows whether its owner still runs.
        let prefix = format!("seekway-live-{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in(&disk.folder);
        let images = Images { dir: dir.at("create a directory in", &disk.folder)? };
        for vm in [VM_QUIET, VM_FLOOD] {
            write_image(&images.path(vm), disk.image_bytes).map_err(LiveError::Measured)?;
        }
        Ok(images)
    }

    fn path(&self, vm: &str) -> PathBuf {
        self.dir.path().join(format!("{vm}.img"))
    }
}

const VM_QUIET: &str = "quiet";
const VM_FLOOD: &str = "flood";

/// A scene while it runs.
struct Stage<'a> {
    options: &'a NoisyOptions,
    scene: &'a NoisyScene,
    images: &'a Images,
    /// What the flood last got alone: throttles are shares of it.
    flood_bytes_s: Option<f64>,
}

impl Stage<'_> {
    fn round(&mut self, n: u32, progress: &mut dyn FnMut(&str)) -> Result<NoisyRound> {
        let base = NoisyServer::Policy(BASE.into());
        let mut measure = |stage: &Self, server: &NoisyServer, vms: &[(&str, Load)]| {
            let NoisyScene { disk, flood_name, .. } = stage.scene;
            let who: Vec<&str> = vms.iter().map(|(name, _)| *name).collect();
            let (server_name, rounds) = (server.name(), stage.options.rounds);
            progress(&format!(
                "{}/{flood_name}, round {} of {rounds}: {} under {server_name}",
                disk.name,
                n + 1,
                who.join(" and ")
            ));
            let window = stage.measure(server, vms);
            match stage.options.interrupted.load(Ordering::Relaxed) {
                true => Err(LiveError::Measured("interrupted".into())),
                false => Ok(window.map_err(|error| error.to_string())),
            }
        };
        let (quiet, flood) = ((VM_QUIET, QUIET), (VM_FLOOD, self.scene.flood));
        let before = measure(self, &base, &[quiet])?;
        let flood_alone = measure(self, &base, &[flood])?;
        if let Ok(NoisyWindow { flood: Some(sample), .. }) = &flood_alone {
            self.flood_bytes_s = Some(sample.bytes_s);
        }
        let servers = &self.scene.disk.servers;
        let mut order: Vec<usize> = (0..servers.len()).collect();
        if n % 2 == 1 {
            order.reverse();
        }
        let mut beside = vec![Err(String::new()); servers.len()];
        for at in order {
            beside[at] = measure(self, &servers[at], &[quiet, flood])?;
        }
        let after = measure(self, &base, &[quiet])?;
        Ok(NoisyRound { quiet_alone: [before, after], flood_alone, beside })
    }

    /// Starts a server, loads it by these VMs at the same time, ends it.
    fn measure(&self, server: &NoisyServer, vms: &[(&str, Load)]) -> Result<NoisyWindow> {
        let disk = &self.scene.disk;
        if disk.emulate.is_none() && in_memory(&disk.folder).map_err(LiveError::Measured)? {
            let what = format!("{} is in memory: name a folder on a disk", disk.folder.display());
            return Err(LiveError::Measured(what));
        }
        let images = [VM_QUIET, VM_FLOOD].map(|vm| (vm, self.images.path(vm)));
        let program = &self.options.program;
        let running = Running::start(server, program, disk, &images, self.flood_bytes_s)?;
        let cpu = HostCpu::now();
        let samples = self.load(&running, vms)?;
        let host_busy = cpu.busy_since();
        let (emulation, policy_metrics) = running.inside()?;
        running.stop()?;
        let of = |vm: &str| samples.iter().find(|(name, _)| *name == vm).map(|(_, s)| s.clone());
        let (quiet, flood) = (of(VM_QUIET), of(VM_FLOOD));
        Ok(NoisyWindow { quiet, flood, host_busy, emulation, policy_metrics })
    }

    fn load<'v>(
        &self,
        running: &Running,
        vms: &[(&'v str, Load)],
    ) -> Result<Vec<(&'v str, VmSample)>> {
        let together = Barrier::new(vms.len());
        let one = |(vm, load): (&'v str, Load)| {
            let client = self.connect(&running.socket(vm), load);
            together.wait();
            let (latencies, wall) = client?.run(load, self.options.span, Wait::Event, || ())?;
            Ok::<_, String>((vm, VmSample::new(load, &latencies, wall)))
        };
        let samples: std::result::Result<Vec<_>, String> = thread::scope(|scope| {
            let threads: Vec<_> = vms.iter().map(|&vm| scope.spawn(move || one(vm))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a client's panic")).collect()
        });
        samples.map_err(|error| LiveError::Measured(format!("{error}\n{}", running.said())))
    }

    fn connect(&self, socket: &Path, load: Load) -> std::result::Result<Client, String> {
        Client::for_load(socket, load, Arc::clone(&self.options.interrupted))
    }
}
