//! A daemon whose only disk is a block device is killed, or asked to end, and the next one starts
//! at once: each one serves the disk, without a command, while the kernel may still be busy with
//! the one before. The client's load is verified all the time.

use crate::client::Client;
use crate::daemon::Daemon;
use crate::mounted::Loop;
use crate::{SECTORS, Setup, program};
use seekway_testing::disk::SECTOR_BYTES;
use seekway_workload::rng::{Rng, split};
use std::fs::File;
use std::io::Read;

/// Restarts one daemon `restarts` times; returns the number of checked requests. `None` where there
/// are no loop devices.
pub fn run(seed: u64, restarts: u64) -> Result<Option<u64>, String> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let image = folder.path().join("disk.img");
    let bytes = (SECTORS * SECTOR_BYTES) as u64;
    File::create(&image).and_then(|file| file.set_len(bytes)).expect("an image");
    let device = match Loop::new(&image, &[]) {
        Ok(device) => device,
        Err(e) => {
            seekway_testing::skip(format!("a free loop device and the right to use it: {e}"));
            return Ok(None);
        }
    };
    let mut rng = Rng::new(split(seed, 2));
    let (queues, event_index) = (1 + rng.below(8) as usize, rng.percent(50));
    let setup = Setup::of(seed);
    eprintln!("seed {seed}: {queues} queues, event index {event_index}, {setup:?}, a block device");
    let mut args = setup.arguments();
    args.extend(["--disk".into(), format!("disk={}", device.0)]);
    let mut client = Client::new(split(seed, 3), queues, event_index, SECTORS);
    // Not `Daemon::restart`, which tries again.
    let start = |n| {
        let started = Daemon::start(program(), folder.path(), &args);
        started.map_err(|e| format!("start {n}: {e}"))
    };
    let mut daemon = start(0)?;
    for n in 1..=restarts {
        let connected = client.connect(&daemon.socket("disk"), u64::MAX);
        connected.map_err(|e| format!("connecting before restart {n}: {e}"))?;
        client.load(rng.below(200), &mut ()).map_err(|e| format!("before restart {n}: {e}"))?;
        match rng.percent(50) {
            true => daemon.kill(),
            false => daemon.stop().map_err(|e| format!("stop {n}: {e}"))?,
        }
        daemon = start(n)?;
        let failed = daemon.status().map_err(|e| e.to_string())?.failed;
        if let [failed, ..] = &failed[..] {
            return Err(format!("start {n}: NOT SERVED: {}", failed.error));
        }
    }
    let connected = client.connect(&daemon.socket("disk"), u64::MAX);
    connected.map_err(|e| format!("connecting at the end: {e}"))?;
    client.drain(&mut ())?;
    client.read_all()?;
    let answers = client.answers;
    daemon.stop().map_err(|e| e.to_string())?;
    let mut bytes = Vec::new();
    let mut read = File::open(&device.0).map_err(|e| e.to_string())?;
    read.read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    client.check(&bytes)?;
    Ok(Some(answers))
}
