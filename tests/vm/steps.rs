//! What guests, and the tests around them, do.

use crate::raw;
use crate::world::{BLOCKS_4096, DISK_BYTES, DISKS, PATIENCE, World, expect, ops, program};
use seekway_hostd::control::Request;
use seekway_live::{Daemon, LiveError, Result};
use seekway_policy::schedulers::REGISTRY;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Where fio works, from the start of a disk.
const FIO_BYTES: u64 = 32 * MIB;
/// Where single records are written.
const RECORDS_AT: u64 = 64 * MIB;
/// Where blocks are discarded.
const DISCARD_AT: u64 = 128 * MIB;

fn byte_of(disk: &str) -> u8 {
    DISKS.iter().find(|(name, _)| *name == disk).expect("a disk").1
}

/// fio writes and reads at random, checks every block that it reads, and fills
/// blocks with the guest's byte.
fn fio(guest: &str, more: &str) -> String {
    format!(
        "fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=16 \
         --rw=randrw --bs=16k --size={FIO_BYTES} --verify=crc32c --verify_fatal=1 \
         --verify_pattern={:#04x} --output=/tmp/fio.log {more} || {{ tail -n 40 /tmp/fio.log; \
         dmesg | tail -n 20; exit 1; }}",
        byte_of(guest)
    )
}

/// Every block of the region that fio works in is empty or the guest's own.
fn check_owner(w: &World, disk: &str) -> Result<()> {
    let own = byte_of(disk);
    let image = w.read_image(disk, 0, FIO_BYTES as usize);
    let mut written = 0;
    for (n, block) in image.chunks(4096).enumerate() {
        let last = block[4095];
        expect(last == 0 || last == own, || {
            format!("disk {disk}, block {n}: holds {last:#04x}, its guest writes {own:#04x}")
        })?;
        written += usize::from(last == own);
    }
    expect(written > 512, || format!("disk {disk}: {written} blocks written, expected 2 MiB"))
}

/// Each guest's kernel has the block size of its disk, and writes what is smaller as whole blocks.
pub fn block_sizes(w: &mut World) -> Result<()> {
    let of = |name| if name == BLOCKS_4096 { "4096" } else { "512" };
    for name in ["c", "d"] {
        let seen = w.run(name, "cat /sys/block/vda/queue/logical_block_size")?;
        expect(seen.trim() == of(name), || format!("guest {name}: blocks of {seen} bytes"))?;
        let small = "dd if=/dev/urandom of=/dev/vda bs=512 count=1 seek=131073 conv=notrunc,fsync";
        w.run(name, small)?;
        expect(w.ops(name, "write")?.errors == 0, || format!("guest {name}: a write failed"))?;
    }
    Ok(())
}

pub fn verify(w: &mut World) -> Result<()> {
    w.run("a", &fio("a", ""))?;
    for op in ["read", "write"] {
        let done = w.ops("a", op)?;
        expect(done.bytes >= 8 * MIB && done.errors == 0, || format!("{op}: {done:?}"))?;
    }
    check_owner(w, "a")
}

pub fn verify_together(w: &mut World, names: &[&str]) -> Result<()> {
    w.run_all(names, |name| fio(name, ""))?;
    names.iter().try_for_each(|name| check_owner(w, name))
}

pub fn flush(w: &mut World) -> Result<()> {
    let before = w.ops("a", "flush")?.requests;
    let dd = "dd if=/dev/zero of=/dev/vda bs=4k count=1 seek=16384 conv=notrunc,fsync";
    for _ in 0..3 {
        w.run("a", dd)?;
    }
    let after = w.ops("a", "flush")?.requests;
    expect(after >= before + 3, || format!("3 fsyncs made {} flushes", after - before))
}

pub fn discard(w: &mut World) -> Result<()> {
    let (at, mib) = (DISCARD_AT / MIB, 16);
    let random = format!("dd if=/dev/urandom of=/dev/vda bs=1M count={mib} seek={at} conv=fsync");
    w.run("a", &random)?;
    let full = w.stored_blocks("a");
    let discard = format!("blkdiscard -o {DISCARD_AT} -l {} /dev/vda", mib * MIB);
    w.run("a", &discard)?;
    let freed = full.saturating_sub(w.stored_blocks("a")) * 512;
    expect(freed >= (mib - 1) * MIB, || format!("{freed} bytes freed of {mib} MiB"))?;
    let read = w.read_image("a", DISCARD_AT, (mib * MIB) as usize);
    expect(read.iter().all(|&b| b == 0), || "discarded blocks of the image hold data".into())?;
    // The guest's page cache is asked for nothing: the disk itself.
    let read = format!("dd if=/dev/vda bs=1M skip={at} count={mib} iflag=direct 2>/dev/null");
    let left = w.run("a", &format!("{read} | tr -d '\\0' | wc -c"))?;
    expect(left.trim() == "0", || format!("the guest reads {} bytes that are not 0", left.trim()))
}

pub fn resize(w: &mut World) -> Result<()> {
    let bytes = 2 * DISK_BYTES;
    let request = Request::Resize { disk: "a".into(), size_bytes: Some(bytes), shrink: false };
    w.daemon().ask(&request)?;
    let sectors = bytes / 512;
    w.run(
        "a",
        &format!(
            "for n in $(seq 300); do [ \"$(cat /sys/block/vda/size)\" = {sectors} ] && exit 0; \
             sleep 0.1; done; cat /sys/block/vda/size; exit 1"
        ),
    )?;
    // What is behind the old end is there to be written.
    let last = bytes / 4096 - 1;
    w.run("a", &format!("dd if=/dev/urandom of=/dev/vda bs=4k count=1 seek={last} oflag=direct"))?;
    let written = w.read_image("a", bytes - 4096, 4096);
    expect(written.iter().any(|&b| b != 0), || "the new end was not written".into())
}

/// While `meanwhile` goes on, over and over and at least once, fio verifies in
/// guest a; both have to succeed.
fn during_fio(
    w: &mut World,
    more: &str,
    mut meanwhile: impl FnMut(&World) -> Result<()>,
) -> Result<()> {
    let mut guest = w.guests.remove("a").expect("guest a runs");
    let done = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        let running = scope.spawn(|| {
            let result = guest.check(&fio("a", more), PATIENCE);
            done.store(true, Ordering::Release);
            result
        });
        let mut other = meanwhile(w);
        while other.is_ok() && !done.load(Ordering::Acquire) {
            other = meanwhile(w);
        }
        let verified = running.join().expect("no panic");
        other.and(verified.map(drop))
    });
    w.guests.insert("a", guest);
    result
}

pub fn policies(w: &mut World) -> Result<()> {
    let mut changes = 0;
    during_fio(w, "--loops=3", |w| {
        for policy in REGISTRY.iter() {
            w.daemon().set_policy(policy.name)?;
            changes += 1;
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    })?;
    check_owner(w, "a")?;
    let errors = w.ops("a", "read")?.errors + w.ops("a", "write")?.errors;
    expect(errors == 0, || format!("{errors} errors in {changes} changes of policy"))?;
    w.daemon().set_policy("pregather")
}

pub fn hostile_neighbour(w: &mut World) -> Result<()> {
    let mut rounds = 0;
    during_fio(w, "", |w| {
        let socket = w.daemon().socket("e");
        for malice in 0..6 {
            let mut guest = raw::Guest::new(64);
            let vmm = raw::Vmm::serve(&socket, &guest);
            misbehave(&mut guest, &vmm, malice, rounds);
            guest.kick.write(1).expect("kicked");
            // What comes of it is the daemon's own tests' matter.
            let _ = vmm.stop(0);
            drop(vmm);
            // Its requests may wait behind a's. A disk takes 64 connections, and connections
            // that are being closed count.
            w.until_closed("e")?;
        }
        rounds += 1;
        Ok(())
    })?;
    check_owner(w, "a")?;
    // The disk itself serves on.
    let mut guest = raw::Guest::new(64);
    let _vmm = raw::Vmm::serve(&w.daemon().socket("e"), &guest);
    guest.write(0, 7, &[byte_of("e"); 512]);
    guest.kick.write(1).expect("kicked");
    guest.wait_used(1);
    expect(guest.status(0) == 0, || format!("a good write after the bad: {}", guest.status(0)))?;
    let written = w.read_image("e", 7 * 512, 512);
    expect(written == [byte_of("e"); 512], || "the good write is not in the image".into())
}

/// One kind of garbage.
fn misbehave(guest: &mut raw::Guest, vmm: &raw::Vmm, malice: u32, seed: u64) {
    match malice {
        // A chain that bites its tail.
        0 => {
            guest.request(0, 1, 0);
            guest.descriptor(2, 0x1_0000, 16, 1, 0);
        }
        // Data outside of memory, and at its very end.
        1 => {
            guest.request(0, 0, 0);
            guest.descriptor(1, raw::MEMORY_BYTES - 16, 512, 3, 2);
            guest.request(3, 0, 0);
            guest.descriptor(4, u64::MAX - 16, 512, 3, 5);
        }
        // More entries than the ring has.
        2 => guest.set_available_index(0x7fff),
        // A head that is no descriptor.
        3 => guest.offer(0xffff),
        // Noise in descriptors and rings.
        4 => {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let noise = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            });
            guest.put(0, &noise.take(0x8004).collect::<Vec<u8>>());
            for head in 0..32 {
                guest.offer(head);
            }
        }
        // A message that is none, with a file that nobody asked for.
        _ => {
            let _ = vmm.send(0xdead, 0xffff_ffff, &[0xff; 64], &[guest.kick.as_raw_fd()]);
        }
    }
}

pub fn reboot(w: &mut World) -> Result<()> {
    let sum = "dd if=/dev/vda bs=1M count=32 2>/dev/null | md5sum";
    let before = w.run("b", sum)?;
    w.guest("b").reset()?;
    w.guest("b").wait_ready()?;
    let after = w.run("b", sum)?;
    expect(before == after, || format!("the disk's sum was {before}, is {after}"))?;
    w.run("b", &fio("b", "")).map(drop)
}

/// The guest writes records, each durable before it reports it, until it is
/// told otherwise: a numbered line in a sector of its own.
const RECORDER: &str = "n=0; while true; do \
     printf 'record %08d' $n | dd of=/dev/vda bs=512 seek=$((131072+n)) conv=sync,notrunc,fsync \
     2>/dev/null || break; echo $n >/dev/events; n=$((n+1)); done";

/// All records up to `last` are in the image.
fn check_records(w: &World, disk: &str, last: u64) -> Result<()> {
    for n in 0..=last {
        let sector = w.read_image(disk, RECORDS_AT + n * 512, 512);
        let text = format!("record {n:08}");
        expect(sector.starts_with(text.as_bytes()), || {
            format!("disk {disk}: record {n} of {last} was acknowledged and is not in the image")
        })?;
    }
    Ok(())
}

pub fn killed_guest(w: &mut World) -> Result<()> {
    assert_eq!(RECORDS_AT / 512, 131_072);
    w.run("b", &format!("({RECORDER}) >/dev/null 2>&1 &"))?;
    let mut last = 0;
    while last < 25 {
        last = parse(&w.guest("b").event(PATIENCE)?)?;
    }
    w.guest("b").kill();
    // What it had still reported before it died.
    while let Ok(line) = w.guest("b").event(Duration::from_secs(5)) {
        last = parse(&line)?;
    }
    w.guests.remove("b");
    check_records(w, "b", last)?;
    expect(w.daemon.as_mut().is_some_and(|d| d.ended().is_none()), || "the daemon is gone".into())?;
    w.run("a", "dd if=/dev/vda of=/dev/null bs=1M count=8 iflag=direct")?;
    // A new guest finds the same disk, and it works.
    w.boot(&["b"])?;
    let shown = w.run("b", &format!("dd if=/dev/vda bs=512 skip={} count=1", 131_072 + last))?;
    expect(shown.contains(&format!("record {last:08}")), || {
        format!("the new guest reads {shown}")
    })?;
    w.run("b", &fio("b", "")).map(drop)
}

fn parse(line: &str) -> Result<u64> {
    let wrong = |_| LiveError::Measured(format!("'{line}' is no number of a record"));
    line.trim().parse().map_err(wrong)
}

/// The daemon ends in order, and its journals replay; guests wait meanwhile
/// and go on with its successor, which has a host cache.
pub fn journal(w: &mut World) -> Result<()> {
    w.daemon.take().expect("the daemon runs").stop()?;
    let mut replayed = 0;
    for entry in std::fs::read_dir(w.path("journal")).expect("the folder is there") {
        let path = entry.expect("listed").path();
        let output = Command::new(program()).arg("replay").arg(&path).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        expect(output.status.success(), || {
            format!("{text}{}", String::from_utf8_lossy(&output.stderr))
        })?;
        eprintln!("          {}", text.trim());
        replayed += 1;
    }
    expect(replayed == 1, || format!("{replayed} journals of one device"))?;
    w.serve(&["--cache", "64MiB", "--prefetch", "vio"])?;
    w.run("a", &fio("a", ""))?;
    w.run("b", &fio("b", "")).map(drop)
}

/// Through the host's cache, which holds less than what is read: random writes
/// are verified while another process reads the same blocks in sequence and
/// has them prefetched; a discard, and what is written after it, are seen.
pub fn cached(w: &mut World) -> Result<()> {
    let reader = "(while true; do dd if=/dev/vda of=/dev/null bs=64k count=1536 iflag=direct; done) \
        >/dev/null 2>&1 & echo $! >/tmp/sequence";
    w.run("a", reader)?;
    w.run("a", &fio("a", "--size=96M --io_size=24M --loops=2"))?;
    w.run("a", "kill $(cat /tmp/sequence); killall dd; true")?;
    check_owner(w, "a")?;
    let (mib, at) = (8, DISCARD_AT / MIB);
    let read =
        format!("dd if=/dev/vda bs=1M skip={at} count={mib} iflag=direct 2>/dev/null | md5sum");
    let write = |source: &str| {
        format!(
            "dd if=/dev/{source} of=/tmp/new bs=1M count={mib} && md5sum </tmp/new >/tmp/sum && \
             dd if=/tmp/new of=/dev/vda bs=1M seek={at} oflag=direct"
        )
    };
    let same = format!("[ \"$({read})\" = \"$(cat /tmp/sum)\" ]");
    w.run("a", &format!("({}) 2>/dev/null && {same} && {same}", write("urandom")))?;
    // What was cached is gone, and zeros come in its place.
    let zeros = format!("dd if=/dev/zero bs=1M count={mib} 2>/dev/null | md5sum >/tmp/sum");
    let discard = format!("blkdiscard -o {DISCARD_AT} -l {} /dev/vda", mib * MIB);
    w.run("a", &format!("{discard} && {zeros} && {same} && {same}"))?;
    w.run("a", &format!("({}) 2>/dev/null && {same} && {same}", write("urandom")))?;
    let report = w.daemon().status()?;
    let mut disks = report.devices.iter().flat_map(|d| &d.disks);
    let usage = disks.find(|d| d.name == "a").and_then(|d| d.cache.as_ref()).map(|c| c.usage);
    let worked = usage.is_some_and(|u| u.hit_bytes > MIB && u.prefetched_bytes > MIB);
    expect(worked, || format!("the cache had nothing to do: {usage:?}"))
}

pub fn killed_daemon(w: &mut World) -> Result<()> {
    w.run("b", &format!("({RECORDER}) >/dev/null 2>&1 & echo $! >/tmp/recorder"))?;
    let mut daemon = w.daemon.take().expect("the daemon runs");
    let mut kills = 0;
    let result = during_fio(w, "--loops=3", |_| {
        if kills == 3 {
            thread::sleep(Duration::from_millis(50));
            return Ok(());
        }
        // Let it serve for a while, or there is nothing in flight to lose.
        wait_reads(&daemon, 100)?;
        daemon.kill();
        daemon.restart()?;
        kills += 1;
        Ok(())
    });
    w.daemon = Some(daemon);
    result?;
    expect(kills > 1, || format!("{kills} kills while fio ran"))?;
    eprintln!("          killed {kills} times");
    check_owner(w, "a")?;
    w.run("b", "kill $(cat /tmp/recorder); dmesg | grep 'I/O error' && exit 1; true")?;
    w.run("a", "dmesg | grep 'I/O error' && exit 1; true")?;
    let mut last = 0;
    while let Ok(line) = w.guest("b").event(Duration::from_secs(2)) {
        last = parse(&line)?;
    }
    check_records(w, "b", last)
}

/// Wait until `count` more reads of guest a's have been served, 10 s at most: it
/// may have none left.
fn wait_reads(daemon: &Daemon, count: u64) -> Result<()> {
    let before = ops(daemon, "a", "read")?.requests;
    let deadline = Instant::now() + Duration::from_secs(10);
    while ops(daemon, "a", "read")?.requests < before + count && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
