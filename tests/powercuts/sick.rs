//! Disks that fail flushes, and disks that hang.

use crate::client::{Client, Kind};
use crate::daemon::Daemon;
use crate::{Bench, SECTORS, setting};
use seekway_hostd::config::DiskConfig;
use seekway_hostd::control::{Client as Control, ClientError, Request};
use seekway_testing::disk::SECTOR_BYTES;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn connect(daemon: &Daemon, disk: &str, seed: u64) -> Client {
    let mut client = Client::new(seed, 2, true, SECTORS);
    let done = client.connect(&daemon.socket(disk), u64::MAX);
    assert!(done.unwrap_or_else(|e| panic!("disk {disk}: {e}")));
    client
}

#[test]
fn a_failed_flush_stays_failed() {
    let bytes = SECTORS * SECTOR_BYTES;
    let Some(bench) = Bench::<()>::new(bytes, true, 1) else { return };
    // Through the page cache, where the kernel tells of a lost write only once.
    let disk = format!("disk={},buffered", bench.image().display());
    let daemon = bench.serve(&["--nbd", "off"], &[disk]).unwrap();
    let mut client = connect(&daemon, "disk", 1);
    assert_eq!(client.one(Kind::Write, 0..8), 0);
    assert_eq!(client.one(Kind::Flush, 0..0), 0);
    let fail = |fails| bench.layer.disk.flushes_fail.store(fails, Ordering::Relaxed);
    assert_eq!(client.one(Kind::Write, 8..16), 0);
    fail(true);
    assert_eq!(client.one(Kind::Flush, 0..0), 1);
    fail(false);
    for _ in 0..3 {
        assert_eq!(client.one(Kind::Flush, 0..0), 1, "the disk is well again, the data is lost");
    }
    drop(client);
    daemon.stop().unwrap();
}

/// A file as large as the sick disk, on another device.
fn image(bench: &Bench<()>, name: &str) -> PathBuf {
    let path = bench.folder.path().join(name);
    let sized = File::create(&path).and_then(|file| file.set_len((SECTORS * SECTOR_BYTES) as u64));
    sized.expect("an image");
    path
}

/// A daemon with the sick disk under this name, and a disk `well` on another device.
fn beside_a_well_one(bench: &Bench<()>, sick: &str) -> Daemon {
    let disks = [(sick, bench.image()), ("well", image(bench, "well.img"))]
        .map(|(name, path)| format!("{name}={}", path.display()));
    bench.serve(&["--nbd", "off"], &disks).unwrap()
}

#[test]
fn a_disk_that_is_late_loses_nothing_and_another_goes_on() {
    let (seed, bytes) = (setting("SEEKWAY_SEED", 1), SECTORS * SECTOR_BYTES);
    let Some(bench) = Bench::<()>::new(bytes, false, seed) else { return };
    let daemon = beside_a_well_one(&bench, "late");
    let (mut late, mut well) = (connect(&daemon, "late", seed), connect(&daemon, "well", seed + 1));
    bench.layer.disk.slowest_ms.store(50, Ordering::Relaxed);
    late.submit(&mut ());
    well.load(500, &mut ()).unwrap();
    // Reads are compared with writes.
    late.load(60, &mut ()).unwrap();
    late.drain(&mut ()).unwrap();
    well.drain(&mut ()).unwrap();
    drop((late, well));
    daemon.stop().unwrap();
}

#[test]
fn a_disk_that_hangs_stops_no_other() {
    let (seconds, bytes) = (setting("SEEKWAY_HANG_SECONDS", 0), SECTORS * SECTOR_BYTES);
    let Some(bench) = Bench::<()>::new(bytes, false, 1) else { return };
    let daemon = beside_a_well_one(&bench, "hangs");
    assert_eq!(daemon.status().unwrap().devices.len(), 2, "disks of two devices");
    let (mut sick, mut well) = (connect(&daemon, "hangs", 1), connect(&daemon, "well", 2));
    sick.load(100, &mut ()).unwrap();
    sick.drain(&mut ()).unwrap();
    bench.layer.disk.hang(true);
    // Writes and flushes that the disk does not answer.
    sick.submit(&mut ());
    let started = Instant::now();
    let (mut rounds, mut slowest) = (0, Duration::ZERO);
    while rounds < 5 || started.elapsed().as_secs() < seconds {
        let before = Instant::now();
        well.load(200, &mut ()).unwrap();
        let status = daemon.status().expect("the control socket answers");
        // Not each kernel keeps the reactor itself waiting.
        assert_eq!(status.devices.len() + status.silent.len(), 2, "one is neither told nor named");
        slowest = slowest.max(before.elapsed());
        rounds += 1;
    }
    eprintln!(
        "hang: {} s, meanwhile {} requests of another disk and {rounds} answers of the control \
         socket; slowest round of 200 requests and a status {slowest:.1?}",
        started.elapsed().as_secs(),
        well.answers
    );
    bench.layer.disk.hang(false);
    sick.drain(&mut ()).unwrap();
    sick.load(100, &mut ()).unwrap();
    for client in [&mut sick, &mut well] {
        client.drain(&mut ()).unwrap();
        client.read_all().unwrap();
    }
    drop((sick, well));
    daemon.stop().unwrap();
}

/// Ask for a change on a connection of its own.
fn ask(socket: &Path, request: &Request) -> Result<(), ClientError> {
    Control::connect(socket)?.ask(request).map(drop)
}

#[test]
fn a_detach_that_hangs_stops_no_other_command() {
    let bytes = SECTORS * SECTOR_BYTES;
    let Some(bench) = Bench::<()>::new(bytes, false, 1) else { return };
    let daemon = beside_a_well_one(&bench, "hangs");
    let other = image(&bench, "other.img");
    let control = daemon.control();
    let mut sick = connect(&daemon, "hangs", 1);
    sick.load(100, &mut ()).unwrap();
    sick.drain(&mut ()).unwrap();
    bench.layer.disk.hang(true);
    sick.submit(&mut ());
    let detach = Request::Detach { disk: "hangs".into() };
    std::thread::scope(|scope| {
        let detached = scope.spawn(|| ask(&control, &detach));
        for _ in 0..3 {
            let other = DiskConfig::new("other", &other);
            ask(&control, &Request::Attach(Box::new(other))).unwrap();
            ask(&control, &Request::Detach { disk: "other".into() }).unwrap();
        }
        bench.layer.disk.hang(false);
        // Not each kernel keeps the reactor waiting, and the disk may go on in time.
        match detached.join().unwrap() {
            Ok(()) => {}
            Err(e) => assert!(e.to_string().contains("is finished when it goes on"), "{e}"),
        }
    });
    let until = Instant::now() + Duration::from_secs(600);
    while !daemon.status().expect("the control socket answers").pending.is_empty() {
        assert!(Instant::now() < until, "the detach never ends");
    }
    drop(sick);
    ask(&control, &Request::Attach(Box::new(DiskConfig::new("hangs", bench.image())))).unwrap();
    let mut again = connect(&daemon, "hangs", 2);
    assert_eq!(again.one(Kind::Write, 0..8), 0, "it is served again");
    drop(again);
    daemon.stop().unwrap();
}
