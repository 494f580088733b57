//! Kills under QEMU guests that verify what they write.

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
const PATIENCE: Duration = Duration::from_secs(180);
/// Longest time without progress after a restart: then the guest hangs.
const HANG: Duration = Duration::from_secs(90);

/// A guest: its name, vCPUs (each has a queue), and whether it negotiates event indices.
pub struct Shape {
    pub name: &'static str,
    pub cpus: u32,
    pub event_index: bool,
}

/// fio writes with flushes, reads back and checks each block, with new data in each
/// round; beside it, blocks are written, discarded, and have to read as zeroes.
const LOAD: &str = r#"
rm -f /tmp/stop /tmp/failed /tmp/rounds
(
while [ ! -e /tmp/stop ]; do
    fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8 \
        --rw=randwrite --bsrange=4k-32k --blockalign=4k --size=2M --offset_increment=4M \
        --numjobs=$(nproc) --randrepeat=0 --fdatasync=16 --verify=crc32c --verify_fatal=1 \
        --group_reporting --output=/tmp/fio.log || { cp /tmp/fio.log /tmp/failed; exit 1; }
    echo >>/tmp/rounds
done
) >/dev/null 2>&1 &
echo $! >/tmp/load
(
while [ ! -e /tmp/stop ]; do
    dd if=/dev/urandom of=/dev/vda bs=64k count=8 seek=2048 oflag=direct 2>/dev/null &&
    blkdiscard -o 134217728 -l 524288 /dev/vda &&
    dd if=/dev/vda bs=64k count=8 skip=2048 iflag=direct of=/tmp/discarded 2>/dev/null &&
    [ "$(tr -d '\0' </tmp/discarded | wc -c)" = 0 ] ||
    { echo 'a discarded block is not zero, or a command failed' >/tmp/failed; exit 1; }
done
) >/dev/null 2>&1 &
echo $! >/tmp/discards
"#;

/// Lets both loops end, and says what failed.
const END: &str = r#"
touch /tmp/stop
for pid in $(cat /tmp/load) $(cat /tmp/discards); do
    while [ -d /proc/$pid ]; do sleep 0.1; done
done
[ -e /tmp/failed ] && { tail -n 40 /tmp/failed; dmesg | tail -n 20; exit 1; }
dmesg | grep 'I/O error' && exit 1
wc -l </tmp/rounds
"#;

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
