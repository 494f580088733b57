//! Kills under QEMU guests that verify what they write.

use crate::load::{END, LOAD};
use crate::{Setup, program};
use seekway_hostd::control::DiskReport;
use seekway_live::{Daemon, Guest, GuestImage, GuestSpec, Result};
use seekway_workload::generators::rng::Rng;
use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 256 << 20;
/// For any one thing that a guest does: a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(900);
/// Longest time without progress after a restart: then the guest hangs.
const HANG: Duration = Duration::from_secs(600);

/// A guest: its name, vCPUs (each has a queue), and whether it negotiates event indices.
pub struct Shape {
    pub name: &'static str,
    pub cpus: u32,
    pub event_index: bool,
}

/// Kill the daemon `kills` times under these guests. Returns how often each guest has
/// written and verified its part of the disk.
pub fn run(folder: &Path, shapes: &[Shape], kills: u32, seed: u64) -> Result<Vec<u64>> {
    let setup = Setup::of(seed);
    let mut args = setup.arguments();
    for shape in shapes {
        let path = folder.join(format!("{}.img", shape.name));
        File::create(&path).and_then(|file| file.set_len(DISK_BYTES)).expect("an image");
        args.extend(["--disk".into(), format!("{}={}", shape.name, path.display())]);
    }
    let mut daemon = Daemon::start(program(), folder, &args)?;
    let image = GuestImage::prepare()?;
    let specs: Vec<GuestSpec> = shapes.iter().map(|shape| spec(&daemon, shape)).collect();
    let mut guests = Guest::boot_all(&image, &specs)?;
    for guest in &mut guests {
        guest.check(LOAD, PATIENCE)?;
    }
    let mut rng = Rng::new(seed);
    for kill in 0..kills {
        wait_progress(&daemon, shapes, 1 + rng.below(300), kill);
        daemon.kill();
        daemon.restart()?;
    }
    wait_progress(&daemon, shapes, 100, kills);
    let mut rounds = Vec::new();
    for guest in &mut guests {
        let said = guest.check(END, PATIENCE)?;
        rounds.push(said.trim().parse().unwrap_or(0));
    }
    drop(guests);
    daemon.stop()?;
    Ok(rounds)
}

fn spec(daemon: &Daemon, shape: &Shape) -> GuestSpec {
    let base = GuestSpec { cpus: shape.cpus, ..GuestSpec::new(shape.name) };
    let mut spec = base.disk(daemon.socket(shape.name));
    spec.disks.iter_mut().for_each(|disk| disk.reconnect = true);
    if !shape.event_index {
        spec.extra = vec!["-global".into(), "vhost-user-blk.event_idx=off".into()];
    }
    spec
}

/// Wait until this daemon has served `count` writes of every guest: none hangs.
fn wait_progress(daemon: &Daemon, shapes: &[Shape], count: u64, kill: u32) {
    let deadline = Instant::now() + HANG;
    loop {
        let status = daemon.status().unwrap_or_else(|e| panic!("after kill {kill}: {e}"));
        let disks: Vec<DiskReport> = status.devices.into_iter().flat_map(|d| d.disks).collect();
        let done = |name: &str| {
            let disk = disks.iter().find(|disk| disk.name == name).expect("the disk is served");
            assert!(disk.ops.values().all(|op| op.errors == 0), "guest {name}: {:?}", disk.ops);
            disk.ops.get("write").map_or(0, |op| op.requests)
        };
        if shapes.iter().all(|shape| done(shape.name) >= count) {
            return;
        }
        for shape in shapes {
            let (name, done) = (shape.name, done(shape.name));
            let hangs = Instant::now() >= deadline && done < count;
            assert!(!hangs, "guest {name} hangs after kill {kill}: {done} of {count} writes");
        }
        thread::sleep(Duration::from_millis(5));
    }
}
