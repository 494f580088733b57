//! The servers: our daemon under a policy, and QEMU's storage daemon.

use super::figures::Emulation;
use super::{NoisyDisk, VM_FLOOD};
use crate::daemon::Daemon;
use crate::error::{At, LiveError, Result};
use crate::process::Process;
use seekway_client::{listening, qemu_file, wait_until_unlocked};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long QEMU's daemon may take to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who serves both VMs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoisyServer {
    /// `seekway serve` under a policy.
    Policy(String),
    /// QEMU's storage daemon. It emulates no device.
    StorageDaemon,
    /// The same with the flood behind a throttle group: this share, in percent, of
    /// what the flood gets alone.
    Throttled(u32),
}

impl NoisyServer {
    /// As rows name it.
    pub fn name(&self) -> String {
        match self {
            NoisyServer::Policy(policy) => policy.clone(),
            NoisyServer::StorageDaemon => "qemu-storage-daemon".into(),
            NoisyServer::Throttled(percent) => format!("qemu-storage-daemon, flood at {percent} %"),
        }
    }
}

/// A server that runs, ended when dropped.
pub(super) struct Running {
    server: Server,
    /// Of its sockets and its log; removed last.
    dir: TempDir,
}

enum Server {
    Seekway(Daemon),
    Qemu(Process),
}

impl Running {
    /// Starts it with an image for each VM, and waits until it listens. A throttle is
    /// relative to `flood_bytes_s`.
    pub(super) fn start(
        server: &NoisyServer,
        program: &Path,
        disk: &NoisyDisk,
        images: &[(&str, PathBuf)],
        flood_bytes_s: Option<f64>,
    ) -> Result<Running> {
        for (_, image) in images {
            wait_until_unlocked(image).map_err(LiveError::Measured)?;
        }
        let dir = tempfile::Builder::new().prefix("seekway-live-").tempdir();
        let dir = dir.at("create a directory in", &std::env::temp_dir())?;
        let server = match server {
            NoisyServer::Policy(policy) => {
                let args = serve_args(policy, disk, images);
                Server::Seekway(Daemon::start(program, dir.path(), &args)?)
            }
            NoisyServer::StorageDaemon => Server::Qemu(start_qemu(dir.path(), images, None)?),
            NoisyServer::Throttled(percent) => {
                let none = || LiveError::Measured("the flood alone was not measured".into());
                let bytes_s = flood_bytes_s.ok_or_else(none)? * f64::from(*percent) / 100.0;
                Server::Qemu(start_qemu(dir.path(), images, Some(bytes_s as u64))?)
            }
        };
        Ok(Running { server, dir })
    }

    /// The vhost-user socket of a VM.
    pub(super) fn socket(&self, vm: &str) -> PathBuf {
        match &self.server {
            Server::Seekway(daemon) => daemon.socket(vm),
            Server::Qemu(_) => qemu_socket(self.dir.path(), vm),
        }
    }

    /// How the emulated device did since the start, and the policy's own figures now.
    pub(super) fn inside(&self) -> Result<(Option<Emulation>, BTreeMap<String, f64>)> {
        let Server::Seekway(daemon) = &self.server else { return Ok((None, BTreeMap::new())) };
        let report = daemon.status()?;
        let emulated = report.devices.iter().find_map(|d| d.emulated.as_ref());
        let emulation = emulated.map(|e| Emulation {
            k: e.k,
            commands: e.commands,
            late: e.late,
            late_by_ms: e.late_by_ms,
        });
        let metrics = report.devices.into_iter().flat_map(|device| device.policy_metrics);
        Ok((emulation, metrics.collect()))
    }

    /// The end of what it has printed.
    pub(super) fn said(&self) -> String {
        match &self.server {
            Server::Seekway(daemon) => daemon.said(),
            Server::Qemu(process) => process.said(),
        }
    }

    pub(super) fn stop(self) -> Result<()> {
        match self.server {
            Server::Seekway(daemon) => daemon.stop(),
            Server::Qemu(mut process) => {
                process.terminate();
                // If not, it is killed.
                process.wait(PATIENCE);
                Ok(())
            }
        }
    }
}

fn serve_args(policy: &str, disk: &NoisyDisk, images: &[(&str, PathBuf)]) -> Vec<String> {
    // It is the policies that are compared, and the other server has no cache.
    let mut args = ["--policy", policy, "--cache", "off"].map(String::from).to_vec();
    args.extend(disk.emulate.iter().flat_map(|device| ["--emulate".into(), device.clone()]));
    for (n, (vm, image)) in images.iter().enumerate() {
        let lba = n as u64 * disk.image_bytes / 512;
        let place = disk.emulate.as_ref().map(|_| format!(",lba={lba}")).unwrap_or_default();
        args.extend(["--disk".into(), format!("{vm}={}{place}", image.display())]);
    }
    args
}

fn qemu_socket(dir: &Path, vm: &str) -> PathBuf {
    dir.join(format!("{vm}.qemu"))
}

/// QEMU's storage daemon with an export for each image; the flood's is limited to
/// `flood_bytes_s`, if given.
fn start_qemu(
    dir: &Path,
    images: &[(&str, PathBuf)],
    flood_bytes_s: Option<u64>,
) -> Result<Process> {
    let mut command = Command::new("qemu-storage-daemon");
    if let Some(bytes_s) = flood_bytes_s {
        command.args(["--object", &format!("throttle-group,id=limit,limits.bps-total={bytes_s}")]);
    }
    for (vm, image) in images {
        command.args(["--blockdev", &qemu_file(vm, image)]);
        let mut node = vm.to_string();
        if flood_bytes_s.is_some() && *vm == VM_FLOOD {
            node = format!("{vm}-limited");
            let throttle =
                format!("driver=throttle,node-name={node},throttle-group=limit,file={vm}");
            command.args(["--blockdev", &throttle]);
        }
        let socket = qemu_socket(dir, vm);
        command.arg("--export").arg(format!(
            "vhost-user-blk,id=export-{vm},node-name={node},addr.type=unix,addr.path={},writable=on",
            socket.display()
        ));
    }
    let process = Process::start(&mut command, &dir.join("qemu.log"));
    let mut process = process.map_err(|error| match error {
        LiveError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            LiveError::Missing { program: "qemu-storage-daemon", package: "qemu-system-common" }
        }
        error => error,
    })?;
    let deadline = Instant::now() + PATIENCE;
    for (vm, _) in images {
        while !listening(&qemu_socket(dir, vm)).map_err(LiveError::Measured)? {
            if process.ended().is_some() || Instant::now() > deadline {
                let what = format!("qemu-storage-daemon does not listen: {}", process.said());
                return Err(LiveError::Measured(what));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(process)
}
