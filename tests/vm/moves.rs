//! A guest moves between two daemons on this host (live migration) while it writes and verifies
//! what it has written. `SEEKWAY_MOVES` says how often.

use crate::load::{END, LOAD};
use seekway_hostd::control::DiskReport;
use seekway_live::{Daemon, Guest, GuestImage, GuestSpec};
use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 256 << 20;
/// For any one thing that a guest does: a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(180);
/// Writes between two moves.
const WRITES: u64 = 200;

/// The one disk of a daemon.
fn disk(daemon: &Daemon) -> DiskReport {
    let status = daemon.status().expect("the daemon answers");
    let disk = status.devices.into_iter().flat_map(|device| device.disks).next();
    disk.expect("the disk is served")
}

fn writes(daemon: &Daemon) -> u64 {
    let disk = disk(daemon);
    assert!(disk.ops.values().all(|op| op.errors == 0), "{:?}", disk.ops);
    disk.ops.get("write").map_or(0, |op| op.requests)
}

/// Wait until a daemon has served so many writes more.
fn wait_writes(daemon: &Daemon, guest: &Guest) {
    let (deadline, before) = (Instant::now() + PATIENCE, writes(daemon));
    while writes(daemon) < before + WRITES {
        assert!(Instant::now() < deadline, "the guest stands still:\n{}", guest.console());
        thread::sleep(Duration::from_millis(5));
    }
}

fn daemon(folder: &Path, name: &str, disk: &str) -> Daemon {
    let folder = folder.join(name);
    std::fs::create_dir(&folder).expect("a folder");
    let args = ["--disk", disk, "--nbd", "off", "--cache", "16MiB"].map(String::from);
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_seekway")), &folder, &args).expect("a daemon")
}

#[test]
fn a_guest_moves_between_daemons_and_loses_nothing() {
    let moves = std::env::var("SEEKWAY_MOVES").map_or(2, |n| n.parse().expect("a number"));
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("web.img");
    File::create(&path).and_then(|file| file.set_len(DISK_BYTES)).expect("an image");
    let disk_at = format!("web={}", path.display());
    let daemons = [
        daemon(folder.path(), "a", &disk_at),
        daemon(folder.path(), "b", &format!("{disk_at},incoming")),
    ];
    let image = GuestImage::prepare().expect("an image for guests");
    let spec = GuestSpec::new("mover").disk(daemons[0].socket("web"));
    let mut guest = Guest::boot_all(&image, &[spec]).expect("it boots").remove(0);
    guest.check(LOAD, PATIENCE).expect("the load begins");
    for number in 0..moves {
        let (old, new) = (&daemons[number % 2], &daemons[(number + 1) % 2]);
        wait_writes(old, &guest);
        assert_eq!([old, new].map(|daemon| disk(daemon).elsewhere), [false, true]);
        let began = Instant::now();
        guest.migrate(&[new.socket("web")]).unwrap_or_else(|e| {
            panic!("move {number}: {e}\nold: {}\nnew: {}", old.said(), new.said())
        });
        eprintln!("move {number}: {:.1} s", began.elapsed().as_secs_f64());
        assert_eq!([old, new].map(|daemon| disk(daemon).elsewhere), [true, false]);
    }
    wait_writes(&daemons[moves % 2], &guest);
    let rounds = guest.check(END, PATIENCE).expect("all that was written is there");
    eprintln!("{} rounds of fio written and verified in {moves} moves", rounds.trim());
    drop(guest);
    for daemon in daemons {
        daemon.stop().expect("it ends");
    }
}
