//! The image is a file in a file system (ext4, xfs) on the disk that logs its requests. At a crash
//! point the disk is one that the log allows, the file system is mounted again, which replays its
//! journal, and the image in it is checked.
//!
//! The file system of the load is on a loop device on the FUSE file, past the page cache. The
//! file system of a crash point is on a loop device on a file in a tmpfs of its own.

use crate::client::Client;
use crate::layer::{Event, Log};
use crate::mounted::{Loop, Mount, run};
use crate::promises::{Mark, Promises};
use crate::{Bench, CUTS_PER_ROUND, SECTORS, setting, survives};
use seekway_testing::disk::SECTOR_BYTES;
use seekway_workload::rng::{Rng, split};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Enough for each file system's journal and the image.
const DISK_BYTES: usize = 32 << 20;
/// Bytes that the disk writes as a whole. ext4 counts on that: its superblock is two sectors with
/// one checksum, which mounting checks before it replays the journal.
const UNIT_BYTES: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum System {
    Ext4,
    Xfs,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Ext4 => "ext4",
            System::Xfs => "xfs",
        }
    }

    fn make(self, device: &str, rng: &mut Rng) -> Result<(), String> {
        match self {
            System::Ext4 => {
                let block = ["1024", "4096"][rng.below(2) as usize];
                let extended = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                run("mkfs.ext4", &["-q", "-F", "-b", block, "-E", extended, device])
            }
            System::Xfs => run("mkfs.xfs", &["-q", "-f", "-K", device]),
        }
        .map(drop)
    }

    fn mount(self, device: &str, folder: &Path) -> Result<Mount, String> {
        // A copy of the file system, with its UUID, may be mounted on another device.
        let options = if self == System::Xfs { "nouuid" } else { "errors=remount-ro" };
        Mount::new(&["-t", self.name(), "-o", options, device], folder.to_owned())
    }
}

/// State of the image at the start.
#[derive(Clone, Copy, Debug)]
enum Space {
    Sparse,
    /// Reserved, and not written.
    Allocated,
    /// Zeroes were written.
    Written,
}

/// Make the image, durable with all that it needs.
fn make_image(path: &Path, space: Space) -> io::Result<()> {
    let bytes = SECTORS * SECTOR_BYTES;
    let mut file = File::create(path)?;
    match space {
        Space::Sparse => file.set_len(bytes as u64)?,
        Space::Written => file.write_all(&vec![0; bytes])?,
        Space::Allocated => {
            // SAFETY: an open descriptor and numbers.
            let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
        }
    }
    // SAFETY: an open descriptor.
    match unsafe { libc::syncfs(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One run of the daemon: the disk's log, and the first event that a crash point may follow.
fn load(system: System, seed: u64, bench: &Bench<Mark>) -> Result<usize, String> {
    let mut rng = Rng::new(split(seed, 2));
    let (queues, event_index) = (1 + rng.below(4) as usize, rng.percent(50));
    // Half of all seeds each, and each way of the image with both.
    let write_cache = seed.is_multiple_of(2);
    let space = [Space::Sparse, Space::Allocated, Space::Written][(seed / 2 % 3) as usize];
    let (cache, buffered) = (rng.percent(50), rng.percent(25));
    eprintln!(
        "{} seed {seed}: {queues} queues, write cache {write_cache}, image {space:?}, \
         host cache {cache}, page cache {buffered}",
        system.name()
    );
    // Past the page cache: the device flushes its file when it is flushed itself, and its pages
    // need no writing back through the file system below.
    let device = Loop::new(&bench.image(), &["--direct-io=on"])?;
    system.make(&device.0, &mut rng)?;
    let mount = system.mount(&device.0, &bench.folder.path().join("mounted"))?;
    let image = mount.0.join("image");
    make_image(&image, space).map_err(|e| format!("{}: {e}", image.display()))?;
    let start = bench.layer.disk.log().events.len();
    let mut client = Client::new(split(seed, 3), queues, event_index, SECTORS);
    client.model.tears = buffered && system == System::Ext4;
    bench.load(&image, client, write_cache, cache, buffered)?;
    Ok(start)
}

/// Where the file systems of crash points are mounted.
struct Crashed {
    // Dropped first, with the files in it.
    memory: Mount,
    folder: tempfile::TempDir,
}

impl Crashed {
    fn new() -> Result<Crashed, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let args = ["-t", "tmpfs", "-o", "size=128M", "tmpfs"];
        let memory = Mount::new(&args, folder.path().join("memory"))?;
        Ok(Crashed { memory, folder })
    }

    /// The image's bytes, after the file system has recovered.
    fn image(&self, system: System, disk: &[u8]) -> Result<Vec<u8>, String> {
        let path = self.memory.0.join("disk");
        write_sparse(&path, disk).map_err(|e| format!("{}: {e}", path.display()))?;
        let device = Loop::new(&path, &[])?;
        let mount = system.mount(&device.0, &self.folder.path().join("mounted"))?;
        let image = mount.0.join("image");
        fs::read(&image).map_err(|e| format!("{}: {e}", image.display()))
    }
}

/// Writes a new file in place of the one at this path. The crash point before may still be mounted
/// from that: its file system is unmounted lazily, and writes to its disk when that happens.
fn write_sparse(path: &Path, disk: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = OpenOptions::new().create_new(true).write(true).open(path)?;
    file.set_len(disk.len() as u64)?;
    for (n, block) in disk.chunks(UNIT_BYTES).enumerate() {
        if block.iter().any(|&byte| byte != 0) {
            file.write_all_at(block, (n * UNIT_BYTES) as u64)?;
        }
    }
    Ok(())
}

fn check(
    system: System,
    seed: u64,
    cut: u64,
    start: usize,
    log: &Log<Mark>,
    crashed: &Crashed,
) -> Result<(), String> {
    let mut rng = Rng::new(split(seed, 100 + cut));
    let count = start + rng.below((log.events.len() - start) as u64 + 1) as usize;
    let at = |e| format!("cut {cut}, after {count} of {} events: {e}", log.events.len());
    let disk = log.cut(count, UNIT_BYTES, &mut rng);
    let image = crashed.image(system, &disk).map_err(at)?;
    if image.len() != SECTORS * SECTOR_BYTES {
        return Err(at(format!("the image has {} bytes", image.len())));
    }
    Promises::by(&log.events[..count])
        .and_then(|promises| promises.model.check_survivors(&image))
        .map_err(at)
}

/// One run of the daemon, and `cuts` crash points of it: the number of events, flushes among
/// them. `None`: skipped.
fn round(system: System, seed: u64, cuts: u64) -> Result<Option<[usize; 2]>, String> {
    let Some(bench) = Bench::<Mark>::new(DISK_BYTES, false, seed) else { return Ok(None) };
    let start = load(system, seed, &bench).inspect_err(|_| bench.layer.abort())?;
    let log = bench.layer.disk.take_log();
    let crashed = Crashed::new()?;
    for cut in 0..cuts {
        check(system, seed, cut, start, &log, &crashed)?;
    }
    let flushes = log.events[start..].iter().filter(|e| matches!(e, Event::Flushed(_))).count();
    Ok(Some([log.events.len() - start, flushes]))
}

/// Tells whether this computer can run the file system; prints what is missing.
fn possible(system: System) -> bool {
    let tried = Crashed::new().and_then(|crashed| {
        let path = crashed.memory.0.join("disk");
        write_sparse(&path, &vec![0; DISK_BYTES]).map_err(|e| e.to_string())?;
        let device = Loop::new(&path, &[])?;
        system.make(&device.0, &mut Rng::new(0))?;
        system.mount(&device.0, &crashed.folder.path().join("mounted")).map(drop)
    });
    let missing = |e: &String| {
        seekway_testing::skip(format!("a loop device with {} and its mount: {e}", system.name()));
    };
    tried.inspect_err(missing).is_ok()
}

fn survives_on(system: System) {
    if !possible(system) {
        return;
    }
    let cuts = setting("SEEKWAY_FS_CUTS", 20);
    // Two rounds at least: one with the write cache on, one with it off.
    let per_round = CUTS_PER_ROUND.min(cuts.div_ceil(2)).max(1);
    let round = |seed, cuts| round(system, seed, cuts);
    survives(system.name(), cuts, per_round, ["events", "flushes"], round);
}

#[test]
fn what_was_flushed_survives_on_ext4() {
    survives_on(System::Ext4);
}

#[test]
fn what_was_flushed_survives_on_xfs() {
    survives_on(System::Xfs);
}

/// A crash point's disk changed under the test when the file system of the one before was unmounted
/// late: a child of another test's thread held a file in it open for a moment.
#[test]
fn a_crash_point_that_is_still_mounted_does_not_change_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    write_sparse(&path, &[1; UNIT_BYTES]).unwrap();
    let before = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    write_sparse(&path, &[2; UNIT_BYTES]).unwrap();
    before.write_all_at(&[3; UNIT_BYTES], 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [2; UNIT_BYTES]);
}
