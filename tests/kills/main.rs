//! SIGKILLs of the real daemon (`seekway serve`) under load that is verified.
//!
//! They hit a client that speaks in Cloud Hypervisor's order and compares each sector with a flat
//! model (those that hit QEMU guests: tests/system/vm/test_kills.py). Nothing may hang,
//! acknowledged data has to be there, and no acknowledged request is done again over newer data.
//!
//! Daemons of a block device are also told to end, and the next one serves it at once.
//!
//! A few kills run in `make test`; `make kills` runs 1,000, and 100 restarts on a block device.
//! `SEEKWAY_KILLS` is their number, `SEEKWAY_SEED` the first seed. Both are printed.

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
#[path = "../../crates/hostd/tests/it/common/mounted.rs"]
#[allow(dead_code)] // of which this uses a part
mod mounted;
#[path = "../../crates/hostd/tests/it/vhost/raw.rs"]
#[allow(dead_code)] // of which this uses a part
mod raw;
mod restarts;

use client::Client;
use daemon::Daemon;
use seekway_testing::disk::SECTOR_BYTES;
use seekway_testing::setting;
use seekway_workload::rng::{Rng, split};
use std::fs::File;
use std::path::Path;
use std::time::Instant;

/// Kills of one daemon's image, before a new one with other settings.
const KILLS_PER_ROUND: u64 = 20;
/// Sectors of the client's disk.
const SECTORS: usize = 2048;

/// The program under test.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_seekway"))
}

/// Settings of a daemon, chosen by the seed.
#[derive(Debug)]
struct Setup {
    policy: &'static str,
    cache: bool,
}

impl Setup {
    fn of(seed: u64) -> Setup {
        let mut rng = Rng::new(split(seed, 1));
        let policies = ["noop", "fairway", "cfq", "deadline"];
        let policy = policies[rng.below(policies.len() as u64) as usize];
        Setup { policy, cache: rng.percent(50) }
    }

    fn arguments(&self) -> Vec<String> {
        let cache = if self.cache { "16MiB" } else { "off" };
        ["--policy", self.policy, "--cache", cache, "--nbd", "off"].map(String::from).to_vec()
    }
}

/// One image under one client: `kills` kills, then all of it is read and compared.
fn round(seed: u64, kills: u64) -> Result<u64, String> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let image = folder.path().join("disk.img");
    let bytes = (SECTORS * SECTOR_BYTES) as u64;
    File::create(&image).and_then(|file| file.set_len(bytes)).expect("an image");
    let mut rng = Rng::new(split(seed, 2));
    let (queues, event_index) = (1 + rng.below(8) as usize, rng.percent(50));
    let setup = Setup::of(seed);
    eprintln!("seed {seed}: {queues} queues, event index {event_index}, {setup:?}");
    let mut args = setup.arguments();
    args.extend(["--disk".into(), format!("disk={}", image.display())]);
    let failed = |e: anyhow::Error| format!("{e:#}");
    let mut daemon = Daemon::start(program(), folder.path(), &args).map_err(failed)?;
    let socket = daemon.socket("disk");
    let mut client = Client::new(split(seed, 3), queues, event_index, SECTORS);
    let connect = |client: &mut Client, steps| {
        client.connect(&socket, steps).map_err(|e| format!("setting the device up: {e}"))
    };
    connect(&mut client, u64::MAX)?;
    let mut left = kills;
    while left > 0 {
        client.load(rng.below(300), &mut ()).map_err(|e| format!("{left} kills left: {e}"))?;
        // The kill's moment is the daemon's and the kernel's; this spreads it.
        (0..rng.below(200_000)).for_each(|_| std::hint::spin_loop());
        daemon.kill();
        daemon.restart().map_err(failed)?;
        left -= 1;
        // Some daemons die again before all queues are set up.
        while left > 0 && rng.percent(25) {
            let steps = rng.below(2 * queues as u64);
            connect(&mut client, steps)?;
            daemon.kill();
            daemon.restart().map_err(failed)?;
            left -= 1;
        }
        connect(&mut client, u64::MAX)?;
    }
    client.load(200, &mut ()).map_err(|e| format!("after the last kill: {e}"))?;
    client.drain(&mut ())?;
    client.read_all()?;
    let answers = client.answers;
    daemon.stop().map_err(failed)?;
    client.check(&std::fs::read(&image).expect("the image"))?;
    Ok(answers)
}

#[test]
fn nothing_is_lost_or_done_twice_in_cloud_hypervisors_order() {
    let (kills, first) = (setting("SEEKWAY_KILLS", 24) / 2, setting("SEEKWAY_SEED", 1));
    let (started, mut answers) = (Instant::now(), 0);
    let rounds = kills.div_ceil(KILLS_PER_ROUND);
    for n in 0..rounds {
        let seed = first + n;
        let kills = KILLS_PER_ROUND.min(kills - n * KILLS_PER_ROUND);
        answers += round(seed, kills).unwrap_or_else(|e| panic!("SEEKWAY_SEED={seed}: {e}"));
    }
    let (last, seconds) = (first + rounds - 1, started.elapsed().as_secs());
    eprintln!(
        "client: {kills} kills, seeds {first} to {last}, {answers} requests checked, {seconds} s: \
         0 hangs, 0 lost, 0 done wrongly twice"
    );
}

#[test]
fn a_block_device_is_served_at_once_after_each_restart() {
    let (restarts, seed) = (setting("SEEKWAY_KILLS", 100) / 10, setting("SEEKWAY_SEED", 1));
    let started = Instant::now();
    let answers =
        restarts::run(seed, restarts).unwrap_or_else(|e| panic!("SEEKWAY_SEED={seed}: {e}"));
    let (Some(answers), seconds) = (answers, started.elapsed().as_secs()) else { return };
    eprintln!(
        "block device: {restarts} restarts, seed {seed}, {answers} requests checked, {seconds} s: \
         all served"
    );
}
