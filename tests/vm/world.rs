//! The daemon, its images and the guests on it.

use seekway_hostd::control::OpReport;
use seekway_live::{Daemon, Guest, GuestImage, GuestSpec, LiveError, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Size of each image at the start.
pub const DISK_BYTES: u64 = 512 << 20;
/// Each disk with the byte that its guest fills its blocks with. The last is
/// the hostile client's.
pub const DISKS: [(&str, u8); 5] =
    [("a", 0xa1), ("b", 0xb2), ("c", 0xc3), ("d", 0xd4), ("e", 0xe5)];
/// The disk whose guest sees blocks of 4096 bytes; the others see 512.
pub const BLOCKS_4096: &str = "c";
/// For any command in a guest: a busy machine is slow.
pub const PATIENCE: Duration = Duration::from_secs(900);

pub struct World {
    // Guests go before their disks' server, which goes before the images.
    pub guests: BTreeMap<&'static str, Guest>,
    pub daemon: Option<Daemon>,
    image: GuestImage,
    pub dir: TempDir,
}

impl World {
    /// A daemon with all disks, no guests.
    pub fn new() -> Result<World> {
        let started = Instant::now();
        let image = GuestImage::prepare()?;
        eprintln!("{:6.1} s  kernel and initramfs", started.elapsed().as_secs_f64());
        let dir = tempfile::tempdir().expect("a directory");
        for (name, _) in DISKS {
            let file = File::create(dir.path().join(format!("{name}.img"))).expect("created");
            file.set_len(DISK_BYTES).expect("sized");
        }
        let mut world = World { guests: BTreeMap::new(), daemon: None, image, dir };
        world.serve(&["--journal", &world.path("journal").display().to_string()])?;
        Ok(world)
    }

    /// Start the daemon.
    pub fn serve(&mut self, args: &[&str]) -> Result<()> {
        let mut all: Vec<String> = args.iter().map(ToString::to_string).collect();
        for (name, _) in DISKS {
            all.push("--disk".into());
            let blocks = if name == BLOCKS_4096 { ",block_size=4096" } else { "" };
            all.push(format!("{name}={}{blocks}", self.image_of(name).display()));
        }
        self.daemon = Some(Daemon::start(program(), self.dir.path(), &all)?);
        Ok(())
    }

    /// One step: its time on standard error, or a panic with its name, the
    /// error and what the daemon has said.
    pub fn step(&mut self, name: &str, run: impl FnOnce(&mut World) -> Result<()>) {
        let started = Instant::now();
        let result = run(self);
        let seconds = started.elapsed().as_secs_f64();
        if let Err(e) = result {
            let said = self.daemon.as_ref().map(Daemon::said).unwrap_or_default();
            panic!("{name}: {e}\nafter {seconds:.1} s; the daemon said:\n{said}");
        }
        eprintln!("{seconds:6.1} s  {name}");
    }

    /// Boot guests, each on the disk of its name.
    pub fn boot(&mut self, names: &[&'static str]) -> Result<()> {
        let spec = |name: &&str| {
            let mut spec = GuestSpec::new(*name).disk(self.daemon().socket(name));
            spec.disks.iter_mut().for_each(|d| d.reconnect = true);
            GuestSpec { reboots: true, ..spec }
        };
        let specs: Vec<GuestSpec> = names.iter().map(spec).collect();
        let booted = Guest::boot_all(&self.image, &specs)?;
        self.guests.extend(names.iter().copied().zip(booted));
        Ok(())
    }

    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("the daemon runs")
    }

    pub fn guest(&mut self, name: &str) -> &mut Guest {
        self.guests.get_mut(name).expect("the guest runs")
    }

    /// Run a shell command that has to succeed in a guest.
    pub fn run(&mut self, guest: &str, command: &str) -> Result<String> {
        self.guest(guest).check(command, PATIENCE)
    }

    /// Run `command` of each of these guests at once; all have to succeed.
    pub fn run_all(
        &mut self,
        names: &[&str],
        command: impl Fn(&str) -> String + Sync,
    ) -> Result<()> {
        let chosen = self.guests.iter_mut().filter(|(name, _)| names.contains(name));
        std::thread::scope(|scope| {
            let running: Vec<_> = chosen
                .map(|(name, guest)| {
                    let command = command(name);
                    scope.spawn(move || guest.check(&command, PATIENCE))
                })
                .collect();
            running.into_iter().try_for_each(|r| r.join().expect("no panic").map(drop))
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn image_of(&self, disk: &str) -> PathBuf {
        self.path(&format!("{disk}.img"))
    }

    /// What has been done on a disk by one operation.
    pub fn ops(&self, disk: &str, op: &str) -> Result<OpReport> {
        ops(self.daemon(), disk, op)
    }

    /// Wait until the daemon has closed all connections of a disk.
    pub fn until_closed(&self, disk: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let devices = self.daemon().status()?.devices;
            let ports = devices.iter().flat_map(|d| &d.disks).find(|d| d.name == disk);
            match ports.map(|d| d.ports) {
                Some(0) => return Ok(()),
                ports => expect(Instant::now() < deadline, || {
                    format!("disk {disk} has {ports:?} connections left")
                })?,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// 512-byte blocks that the host stores for an image.
    pub fn stored_blocks(&self, disk: &str) -> u64 {
        std::fs::metadata(self.image_of(disk)).expect("the image is there").blocks()
    }

    pub fn read_image(&self, disk: &str, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let file = File::open(self.image_of(disk)).expect("the image opens");
        file.read_exact_at(&mut bytes, at).expect("the image is long enough");
        bytes
    }

    /// Nobody's guests are needed any more.
    pub fn stop(&mut self) -> Result<()> {
        self.guests.clear();
        self.daemon.take().expect("the daemon runs").stop()
    }
}

/// The program under test.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_seekway"))
}

/// What has been done on a disk by one operation.
pub fn ops(daemon: &Daemon, disk: &str, op: &str) -> Result<OpReport> {
    let status = daemon.status()?;
    let found = status.devices.into_iter().flat_map(|d| d.disks).find(|d| d.name == disk);
    let report = found.and_then(|mut d| d.ops.remove(op));
    report.ok_or_else(|| LiveError::Daemon(format!("status: no {op} of a disk {disk}")))
}

/// Fail with what was expected and what came.
pub fn expect(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(LiveError::Measured(what())) }
}
