//! The power of the disk below an image fails, at any point of a load; disks that fail flushes
//! and disks that hang.
//!
//! The image is on a disk that logs its requests ([`layer`]), and the client adds its own marks to
//! that log. A crash point is a position in the log and a seed that chooses the surviving unflushed
//! writes: it is checked against the client's guarantees at that point. So one run of the daemon
//! has thousands of crash points.
//!
//! A few crash points run in `make test`; `make powercuts` runs 1,000 for each kind of client.
//! `SEEKWAY_CUTS` is their number, `SEEKWAY_SEED` the first seed. Both are printed.

mod common {
    use std::time::Duration;

    /// For single messages of the raw client: a failing test says so after this long.
    pub const PATIENCE: Duration = Duration::from_secs(600);
}
#[path = "../storage/client.rs"]
#[allow(dead_code)] // of which this uses a part
mod client;
#[path = "../daemon.rs"]
mod daemon;
mod filesystem;
mod fua;
mod layer;
#[path = "../../crates/hostd/tests/it/common/mounted.rs"]
mod mounted;
#[path = "../../crates/hostd/tests/it/nbd/client.rs"]
mod nbd;
mod promises;
#[path = "../../crates/hostd/tests/it/vhost/raw.rs"]
#[allow(dead_code)] // of which this uses a part
mod raw;
mod sick;

use client::Client;
use daemon::Daemon;
use layer::{Event, Layer, Log};
use promises::{Mark, Marker, Promises};
use seekway_testing::disk::SECTOR_BYTES;
use seekway_testing::setting;
use seekway_workload::rng::{Rng, split};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

const SECTORS: usize = 2048;
/// Requests of one run of the daemon.
const REQUESTS: u64 = 1500;
/// Crash points of one run of the daemon.
const CUTS_PER_ROUND: u64 = 50;

/// The program under test.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_seekway"))
}

/// A folder with a mounted disk, a daemon's sockets and its log.
struct Bench<M> {
    layer: Layer<M>,
    folder: tempfile::TempDir,
}

impl<M: Send + 'static> Bench<M> {
    /// `None`, with a message, where there is no FUSE or no right to mount.
    fn new(bytes: usize, page_cache: bool, seed: u64) -> Option<Bench<M>> {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().join("disk");
        std::fs::create_dir(&below).expect("a folder");
        let layer = Layer::mount(&below, bytes, Vec::new(), page_cache, seed);
        let missing = |e: &io::Error| format!("a FUSE file system and the right to mount it: {e}");
        let layer = layer.inspect_err(|e| seekway_testing::skip(missing(e))).ok()?;
        Some(Bench { layer, folder })
    }

    fn image(&self) -> PathBuf {
        self.layer.image.clone()
    }

    fn serve(&self, more: &[&str], disks: &[String]) -> Result<Daemon, String> {
        let mut args: Vec<String> = more.iter().map(ToString::to_string).collect();
        args.extend(disks.iter().flat_map(|disk| ["--disk".into(), disk.clone()]));
        Daemon::start(program(), self.folder.path(), &args).map_err(|e| e.to_string())
    }
}

impl Bench<Mark> {
    fn serve_image(&self, image: &Path, cache: bool, buffered: bool) -> Result<Daemon, String> {
        let option = if buffered { ",buffered" } else { "" };
        let disk = format!("disk={}{option}", image.display());
        self.serve(&["--cache", if cache { "16MiB" } else { "off" }], &[disk])
    }

    /// Runs until the client's requests are done, while the daemon is killed, the client's write
    /// cache is switched, and the disk fails writes.
    fn ordeal(
        &self,
        mut client: Client,
        mut write_cache: bool,
        cache: bool,
        buffered: bool,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let failed = |e: anyhow::Error| format!("{e:#}");
        let disk = self.layer.disk.clone();
        let mut daemon = self.serve_image(&self.image(), cache, buffered)?;
        let socket = daemon.socket("disk");
        let connect = |client: &mut Client, daemon: &Daemon| {
            let connected = client.connect(&socket, u64::MAX);
            connected.map(drop).map_err(|e| format!("{e}: {}", daemon.said()))
        };
        connect(&mut client, &daemon)?;
        client.set_write_cache(write_cache);
        if rng.percent(30) {
            disk.writes_fail_in.store(100 + rng.below(400), Ordering::Relaxed);
            client.may_fail = true;
        }
        let mut marker = Marker { disk, write_cache, has_lost: false };
        let mut left = REQUESTS;
        while left > 0 {
            let count = left.min(1 + rng.below(200));
            client.load(count, &mut marker)?;
            left -= count;
            match rng.below(3) {
                0 if !marker.has_lost => {
                    daemon.kill();
                    match daemon.restart().map_err(failed) {
                        // The image is marked before the failure is told: the kill came between.
                        Err(told)
                            if told.contains("accept-lost-writes")
                                && may_lose(&client, &marker) =>
                        {
                            return Ok(());
                        }
                        restarted => restarted?,
                    }
                    connect(&mut client, &daemon)?;
                }
                1 => {
                    // Which writes it holds for is known then.
                    client.drain(&mut marker)?;
                    write_cache = !write_cache;
                    client.set_write_cache(write_cache);
                    marker.write_cache = write_cache;
                }
                _ => {}
            }
        }
        client.drain(&mut marker)?;
        drop(client);
        daemon.stop().map_err(failed)?;
        match (self.serve_image(&self.image(), cache, buffered), marker.has_lost) {
            (Err(told), true) if told.contains("accept-lost-writes") => Ok(()),
            (Ok(daemon), false) => daemon.stop().map_err(failed),
            (served, has_lost) => Err(format!("has lost {has_lost}, and then {served:?}")),
        }
    }

    /// A daemon that serves this image, until the client's requests are done.
    fn load(
        &self,
        image: &Path,
        mut client: Client,
        write_cache: bool,
        cache: bool,
        buffered: bool,
    ) -> Result<(), String> {
        let daemon = self.serve_image(image, cache, buffered)?;
        client.connect(&daemon.socket("disk"), u64::MAX).map_err(|e| e.to_string())?;
        client.set_write_cache(write_cache);
        let mut marker = Marker { disk: self.layer.disk.clone(), write_cache, has_lost: false };
        client.load(REQUESTS, &mut marker)?;
        client.drain(&mut marker)?;
        drop(client);
        daemon.stop().map_err(|e| e.to_string())
    }
}

/// Whether the failure of a request in flight would mean that writes which were told are lost.
fn may_lose(client: &Client, marker: &Marker) -> bool {
    client.may_fail && client.in_flight().any(|request| marker.loses(request))
}

/// One run of the daemon, and `cuts` crash points of it. `None`: skipped.
fn block_device(seed: u64, cuts: u64) -> Result<Option<[usize; 1]>, String> {
    let mut rng = Rng::new(split(seed, 2));
    let (queues, event_index) = (1 + rng.below(8) as usize, rng.percent(50));
    let (write_cache, cache, buffered) = (rng.percent(50), rng.percent(50), rng.percent(30));
    eprintln!(
        "seed {seed}: {queues} queues, write cache {write_cache}, host cache {cache}, page cache {buffered}"
    );
    let Some(bench) = Bench::<Mark>::new(SECTORS * SECTOR_BYTES, buffered, seed) else {
        return Ok(None);
    };
    let mut client = Client::new(split(seed, 3), queues, event_index, SECTORS);
    client.model.tears = buffered;
    bench.ordeal(client, write_cache, cache, buffered, &mut rng)?;
    check_cuts(&bench.layer.disk.log(), seed, cuts)
}

/// Check `cuts` crash points of a log. How many events it has.
fn check_cuts(log: &Log<Mark>, seed: u64, cuts: u64) -> Result<Option<[usize; 1]>, String> {
    for cut in 0..cuts {
        let mut rng = Rng::new(split(seed, 100 + cut));
        let count = rng.below(log.events.len() as u64 + 1) as usize;
        let image = log.cut(count, SECTOR_BYTES, &mut rng);
        let at = |e| format!("cut {cut}, after {count} of {} events: {e}", log.events.len());
        Promises::by(&log.events[..count])
            .and_then(|promises| promises.model.check_survivors(&image))
            .map_err(at)?;
    }
    Ok(Some([log.events.len()]))
}

/// Checks this number of crash points under a client, in runs of the daemon with at most
/// `per_round`. A run tells its counts of what `counted` names; `None`: skipped.
fn survives<const N: usize>(
    client: &str,
    cuts: u64,
    per_round: u64,
    counted: [&str; N],
    round: impl Fn(u64, u64) -> Result<Option<[usize; N]>, String>,
) {
    let (started, first, mut counts) = (Instant::now(), setting("SEEKWAY_SEED", 1), [0; N]);
    let rounds = cuts.div_ceil(per_round);
    for n in 0..rounds {
        let seed = first + n;
        let had = round(seed, per_round.min(cuts - n * per_round));
        match had.unwrap_or_else(|e| panic!("{client}, SEEKWAY_SEED={seed}: {e}")) {
            Some(more) => counts.iter_mut().zip(more).for_each(|(count, more)| *count += more),
            None => return,
        }
    }
    let (last, seconds) = (first + rounds - 1, started.elapsed().as_secs());
    let counts: Vec<_> =
        counts.iter().zip(counted).map(|(n, name)| format!("{n} {name}")).collect();
    eprintln!(
        "{client}: {cuts} crash points, seeds {first} to {last}, {}, {seconds} s: 0 lost",
        counts.join(", ")
    );
}

#[test]
fn what_was_flushed_survives_a_power_failure() {
    let cuts = setting("SEEKWAY_CUTS", 100);
    survives("block device", cuts, CUTS_PER_ROUND, ["events"], block_device);
}

/// A log without a daemon: flushes make data durable, and cuts lose the rest.
#[test]
fn a_cut_keeps_what_was_flushed_and_may_lose_the_rest() {
    let Some(bench) = Bench::<()>::new(4 * SECTOR_BYTES, true, 1) else { return };
    let write = |id, sector: usize, byte| Event::Write {
        id,
        offset: sector * SECTOR_BYTES,
        data: vec![byte; SECTOR_BYTES],
    };
    let mut log = bench.layer.disk.log();
    log.events = vec![
        write(1, 0, 1),
        Event::Written(1),
        write(2, 1, 2),
        Event::FlushBegun(3),
        Event::Written(2),
        Event::Flushed(3),
        write(4, 0, 4),
        Event::Zeroes { id: 5, range: 0..SECTOR_BYTES },
        Event::Written(4),
    ];
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let image = log.cut(log.events.len(), SECTOR_BYTES, &mut Rng::new(seed));
        seen.insert((image[0], image[SECTOR_BYTES]));
        // Before the flush is answered, nothing is sure.
        let image = log.cut(5, SECTOR_BYTES, &mut Rng::new(seed));
        seen.insert((10 + image[0], image[SECTOR_BYTES]));
    }
    let all = [1, 4, 0].into_iter().chain([10, 11]);
    let expected: BTreeSet<(u8, u8)> = all.flat_map(|a| [(a, 0), (a, 2)]).collect();
    assert_eq!(seen, expected);
}
