//! The reactor on real images: what is written is what is read, under every
//! policy and whatever goes wrong below.

mod changes;
use crate::common;
mod edges;

use common::loops::mount;
use common::{Ask, PATIENCE, Rig, RigSetup, dir, image, pattern};
use seekway_core::request::Op;
use seekway_core::units::{Lba, Nanos, Sectors};
use seekway_hostd::images::{Image, OpenOptions};
use seekway_hostd::port::{DiskId, Errno, Job, Port, PortContext, PortId};
use seekway_hostd::reactor::{Disk, Message, OpKind, Poll, Status, Submitter};
use seekway_policy::schedulers;
use seekway_stack::stack::{Map, OUTSTANDING_DEFAULT};
use std::any::Any;
use std::fs::{self, File};
use std::num::NonZeroU32;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

#[test]
fn an_image_in_memory_is_read_and_written_in_short_and_long_pieces() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        seekway_testing::skip("a writable /dev/shm");
        return;
    };
    let path = image(&dir, "a.img", 16 * MIB);
    let rig = Rig::start(RigSetup::default());
    let client = rig.open(rig.attach(&path, None).unwrap());
    // A short one is copied by the reactor, a long one by a worker thread.
    let lens = [512, 4096, 32 << 10, 36 << 10, 128 << 10, 1 << 20];
    let places = || lens.iter().enumerate().map(|(i, &len)| (i as u64, i as u64 * 2 * MIB, len));
    let writes = places().map(|(i, at, len)| Ask::write(at, pattern(i, len as usize)));
    assert!(client.do_all(writes.collect()).iter().all(|a| a.result.is_ok()));
    let reads = client.do_all(places().map(|(_, at, len)| Ask::read(at, len)).collect());
    for ((i, _, len), answer) in places().zip(&reads) {
        assert!(answer.buffer == pattern(i, len as usize), "{len} bytes");
    }
}

#[test]
fn what_is_written_is_read_under_every_policy() {
    for entry in schedulers::REGISTRY.iter() {
        let dir = dir();
        let path = image(&dir, "a.img", 16 * MIB);
        let rig = Rig::start(RigSetup { policy: entry.name, ..RigSetup::default() });
        let disk = rig.attach(&path, None).unwrap();
        let client = rig.open(disk);
        let writes = (0..256).map(|i| {
            let mut ask = Ask::write(i * 4096, pattern(i, 4096));
            // Every third is misaligned in memory and bounces.
            if i % 3 == 0 {
                ask.buffer.splice(0..0, std::iter::repeat_n(0, 7));
                ask.skip = 7;
            }
            ask
        });
        let answers = client.do_all(writes.collect());
        assert!(answers.iter().all(|a| a.result.is_ok()), "{}", entry.name);
        assert!(client.do_one(Ask::flush()).result.is_ok());
        let file = File::open(&path).unwrap();
        let mut on_disk = vec![0; 4096];
        for (i, answer) in
            client.do_all((0..256).map(|i| Ask::read(i * 4096, 4096)).collect()).iter().enumerate()
        {
            assert!(answer.buffer == pattern(i as u64, 4096), "{}: block {i}", entry.name);
            file.read_exact_at(&mut on_disk, i as u64 * 4096).unwrap();
            assert!(on_disk == answer.buffer, "{}: block {i} on the disk", entry.name);
        }
        let status = rig.status();
        let [reads, writes] =
            [OpKind::Read, OpKind::Write].map(|k| status.disks[0].ops[k as usize].requests);
        assert_eq!((reads, writes, status.outstanding), (256, 256, 0), "{}", entry.name);
    }
}

#[test]
fn requests_out_of_range_are_refused_at_once() {
    let dir = dir();
    let rig = Rig::start(RigSetup::default());
    let client = rig.open(rig.attach(&image(&dir, "a.img", MIB), None).unwrap());
    for (offset, len) in
        [(MIB, 512), (MIB - 512, 1024), (u64::MAX - 511, 512), (MIB - 1, 2), (0, 0)]
    {
        let answer = client.do_one(Ask::read(offset, len));
        assert_eq!(answer.result, Err(Errno(libc::EINVAL)), "{offset}+{len}");
    }
    assert!(client.do_one(Ask::read(MIB - 512, 512)).result.is_ok());
}

#[test]
fn one_bad_sector_fails_one_request_of_a_coalesced_command() {
    let dir = dir();
    let rig = Rig::start(RigSetup { policy: "deadline", depth: Some(1), ..RigSetup::default() });
    let path = image(&dir, "a.img", MIB);
    // Allocated, so that neighbours in the file are neighbours on the device.
    fs::write(&path, pattern(9, MIB as usize)).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let disk = rig.attach(&path, Some("eio:op=read,from=40960,len=512")).unwrap();
    let client = rig.open(disk);
    let answers = client.do_all((0..32).map(|i| Ask::read(i * 4096, 4096)).collect());
    for (i, answer) in answers.iter().enumerate() {
        let expected = if i == 10 { Err(Errno(libc::EIO)) } else { Ok(()) };
        assert_eq!(answer.result, expected, "request {i}");
    }
    let status = rig.status();
    assert!(status.stats.commands < 32, "nothing was coalesced: {:?}", status.stats);
    assert_eq!(status.disks[0].ops[OpKind::Read as usize].errors, 1);
}

#[test]
fn an_image_that_shrinks_is_an_error_and_not_zeroes() {
    let dir = dir();
    let path = image(&dir, "a.img", MIB);
    let other = image(&dir, "b.img", MIB);
    let rig = Rig::start(RigSetup::default());
    let client = rig.open(rig.attach(&path, None).unwrap());
    let unharmed = rig.open(rig.attach(&other, None).unwrap());
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB / 2).unwrap();
    assert_eq!(client.do_one(Ask::read(MIB / 2, 4096)).result, Err(Errno(libc::EIO)));
    assert_eq!(client.do_one(Ask::read(MIB / 2 - 4096, 8192)).result, Err(Errno(libc::EIO)));
    assert!(client.do_one(Ask::read(0, 4096)).result.is_ok());
    assert!(unharmed.do_one(Ask::read(MIB / 2, 4096)).result.is_ok());
}

#[test]
fn discard_punches_and_write_zeroes_zeroes() {
    let dir = dir();
    let path = dir.path().join("a.img");
    fs::write(&path, vec![0x5a; 4 * MIB as usize]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let rig = Rig::start(RigSetup::default());
    let client = rig.open(rig.attach(&path, None).unwrap());
    let blocks = || fs::metadata(&path).unwrap().blocks();
    let full = blocks();
    assert!(client.do_one(Ask::new(Op::Discard, 0, MIB, Vec::new())).result.is_ok());
    assert!(blocks() <= full - MIB / 512, "{} of {full} blocks are left", blocks());
    let zero =
        |at, unmap| Ask { fua: true, unmap, ..Ask::new(Op::WriteZeroes, at, MIB, Vec::new()) };
    assert!(
        client.do_all(vec![zero(MIB, true), zero(2 * MIB, false)]).iter().all(|a| a.result.is_ok())
    );
    for (at, byte) in [(0, 0), (MIB, 0), (2 * MIB, 0), (3 * MIB, 0x5a)] {
        let answer = client.do_one(Ask::read(at, MIB));
        assert!(answer.buffer.iter().all(|&b| b == byte), "MiB {}", at / MIB);
    }
}

#[test]
fn a_full_file_system_says_so_and_the_rest_goes_on() {
    let dir = dir();
    let args = ["-t", "tmpfs", "-o", "size=256k", "none"];
    let Some(mount) = mount(&args, dir.path().join("full")) else { return };
    let path = image(&mount.0, "a.img", MIB);
    let rig = Rig::start(RigSetup::default());
    let client = rig.open(rig.attach(&path, None).unwrap());
    let answers = client.do_all((0..256).map(|i| Ask::write(i * 4096, pattern(i, 4096))).collect());
    let failed = answers.iter().filter(|a| a.result == Err(Errno(libc::ENOSPC))).count();
    let fine = answers.iter().filter(|a| a.result.is_ok()).count();
    assert!(failed > 0 && fine > 0 && failed + fine == 256, "{failed} failed, {fine} did not");
    for answer in answers.iter().filter(|a| a.result.is_ok()) {
        let read = client.do_one(Ask::read(answer.token * 4096, 4096));
        assert!(read.buffer == pattern(answer.token, 4096), "block {}", answer.token);
    }
}

#[test]
fn polling_and_the_kernels_thread_serve_too() {
    let dir = dir();
    let fixed = Poll::fixed(Nanos::from_micros(50));
    for (poll, submitter) in [
        (fixed, Submitter::Own),
        (Poll::AUTO, Submitter::Own),
        (Poll::OFF, Submitter::Kernel),
        (fixed, Submitter::Kernel),
    ] {
        let rig = Rig::start(RigSetup { poll, submitter, ..RigSetup::default() });
        let client = rig.open(rig.attach(&image(&dir, "a.img", MIB), None).unwrap());
        for i in 0..100 {
            assert!(client.do_one(Ask::write(i * 512, pattern(i, 512))).result.is_ok());
        }
    }
}

#[test]
fn an_emulated_disk_is_never_faster_than_its_model() {
    let dir = dir();
    let path = image(&dir, "a.img", 256 * MIB);
    let emulate = Some("seagate-1tb-7200:k=1");
    let rig = Rig::start(RigSetup { emulate, ..RigSetup::default() });
    let client = rig.open(rig.attach(&path, None).unwrap());
    let begin = std::time::Instant::now();
    for i in 0..50 {
        assert!(client.do_one(Ask::read(i * 7919 % 65_536 * 4096, 4096)).result.is_ok());
    }
    let took = begin.elapsed().as_nanos() as u64;
    let report = rig.status().throttle.expect("the device is emulated");
    assert_eq!((report.commands, report.k), (50, 1.0));
    let (model, seen) = (report.model_service.get(), report.service.get());
    assert!(model > 50 * 1_000_000, "random reads of a 7200 rpm disk in {model} ns");
    assert!(model <= seen && seen <= took, "model {model}, service {seen}, all {took} ns");
}

/// A guest that always has flushes outstanding.
struct Flusher(DiskId, Option<PortId>);

impl Flusher {
    fn flush_once(&self, context: &mut dyn PortContext) {
        let (disk, port) = (self.0, self.1.expect("open"));
        let (offset, len, priority, fua, unmap) = (0, 0, 0, false, false);
        let job = Job { disk, port, token: 0, op: Op::Flush, offset, len, priority, fua, unmap };
        context.submit(&job, &[]).unwrap();
    }
}

impl Port for Flusher {
    fn disk(&self) -> DiskId {
        self.0
    }
    fn open(&mut self, id: PortId, context: &mut dyn PortContext) {
        self.1 = Some(id);
        (0..4).for_each(|_| self.flush_once(context));
    }
    fn done(&mut self, _: u64, _: Result<(), Errno>, context: &mut dyn PortContext) {
        if self.1.is_some() {
            self.flush_once(context);
        }
    }
    fn closing(&mut self, _: &mut dyn PortContext) {
        self.1 = None;
    }
}

#[test]
fn one_guests_flushes_do_not_keep_others_from_the_device() {
    let dir = dir();
    let rig = Rig::start(RigSetup { depth: Some(1), ..RigSetup::default() });
    let busy = rig.attach(&image(&dir, "a.img", MIB), None).unwrap();
    let client = rig.open(rig.attach(&image(&dir, "b.img", MIB), None).unwrap());
    let flusher = Flusher(busy, None);
    rig.handle.ask(|r| Message::OpenPort(Box::new(flusher), r)).unwrap();
    assert!(client.do_one(Ask::read(0, 4096)).result.is_ok());
}

/// Twenty thousand discards of the same sectors would be two hundred million
/// pairs to order; whoever shares the device would wait for that.
#[test]
fn one_guests_overlapping_discards_do_not_keep_others_from_the_device() {
    let dir = dir();
    let rig = Rig::start(RigSetup::default());
    let hostile = rig.open(rig.attach(&image(&dir, "a.img", MIB), None).unwrap());
    let client = rig.open(rig.attach(&image(&dir, "b.img", MIB), None).unwrap());
    hostile.ask((0..20_000).map(|_| Ask::new(Op::Discard, 0, MIB, Vec::new())).collect());
    hostile.ask(vec![Ask::new(Op::WriteZeroes, 0, MIB, Vec::new()), Ask::read(0, 4096)]);
    assert!(client.do_one(Ask::read(0, 4096)).result.is_ok());
    assert!((0..20_002).all(|_| hostile.answer().result.is_ok()));
}

#[test]
fn an_idle_reactor_turns_when_it_is_asked_to() {
    let rig = Rig::start(RigSetup::default());
    rig.status();
    let turns = rig.handle.turns();
    rig.handle.nudge();
    let end = std::time::Instant::now() + PATIENCE;
    while rig.handle.turns() == turns {
        assert!(std::time::Instant::now() < end, "no turn");
        std::thread::yield_now();
    }
}

/// Panics when it is told to. Says so when it is dropped, as it would be if the thread were unwound.
struct Panics(DiskId);

impl Port for Panics {
    fn disk(&self) -> DiskId {
        self.0
    }
    fn open(&mut self, _: PortId, _: &mut dyn PortContext) {}
    fn done(&mut self, _: u64, _: Result<(), Errno>, _: &mut dyn PortContext) {}
    fn message(&mut self, _: Box<dyn Any + Send>, _: &mut dyn PortContext) {
        panic!("as the test wants it");
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        std::process::exit(77);
    }
}

/// With this variable, an image's path, the test below is the process that it starts.
const CHILD: &str = "SEEKWAY_TEST_PANIC";

#[test]
fn a_panic_of_a_reactor_ends_the_process_and_frees_nothing() {
    let Some(path) = std::env::var_os(CHILD) else {
        let dir = dir();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "reactor::a_panic_of_a_reactor_ends_the_process_and_frees_nothing"]);
        let output = child.env(CHILD, image(&dir, "a.img", MIB)).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        return;
    };
    let rig = Rig::start(RigSetup::default());
    let disk = rig.attach(path.as_ref(), None).unwrap();
    let port = rig.handle.ask(|r| Message::OpenPort(Box::new(Panics(disk)), r)).unwrap();
    rig.handle.send(Message::ToPort(port, Box::new(())));
    // The end comes before the answer.
    rig.handle.ask(Message::Status);
}

/// Clients without a bound of their own, such as many connections of NBD.
#[test]
fn one_disks_requests_leave_room_for_those_of_others() {
    let dir = dir();
    let rig = Rig::start(RigSetup::default());
    let hostile = rig.open(rig.attach(&image(&dir, "a.img", MIB), None).unwrap());
    let client = rig.open(rig.attach(&image(&dir, "b.img", MIB), None).unwrap());
    let count = OUTSTANDING_DEFAULT + 1000;
    // The first 16 have to be done before the next begins.
    hostile.ask((0..count).map(|_| Ask::new(Op::Discard, 0, 4096, Vec::new())).collect());
    assert!(client.do_one(Ask::read(0, 4096)).result.is_ok());
    let refused = (0..count).filter(|_| hostile.answer().result == Err(Errno(libc::EBUSY))).count();
    assert_eq!(refused, count - OUTSTANDING_DEFAULT / 2);
}

#[test]
fn a_place_past_every_device_is_refused() {
    let dir = dir();
    let rig = Rig::start(RigSetup::default());
    let attach = |name, lba| {
        let path = image(&dir, name, MIB);
        let options = OpenOptions::writing();
        let image = Image::open(&path, &options).unwrap();
        let (weight, fault) = (NonZeroU32::MIN, None);
        let lba = Some(Lba::new(lba));
        let disk = Disk { weight, lba, fault, ..Disk::new(name, image) };
        rig.handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).expect("the reactor lives")
    };
    assert!(attach("a.img", u64::MAX).is_err());
    assert!(attach("b.img", u64::MAX / 512 - 10).is_err());
    assert!(attach("c.img", 1 << 20).is_ok());
}

#[test]
fn a_flush_that_fails_fails_all_that_went_with_it() {
    let dir = dir();
    let rig = Rig::start(RigSetup::default());
    // The kernel reports what was lost once: the first sync fails, and the next would go well.
    let disk = rig.attach(&image(&dir, "a.img", MIB), Some("eio:op=flush")).unwrap();
    let client = rig.open(disk);
    let answers = client.do_all((0..16).map(|_| Ask::flush()).collect());
    assert!(answers.iter().all(|answer| answer.result == Err(Errno(libc::EIO))));
    let status = rig.status();
    assert_eq!(status.disks[0].ops[OpKind::Flush as usize].errors, 16);
    assert_eq!((status.stats.requests, status.stats.commands), (16, 1));
}

#[test]
fn what_is_counted_is_shared_with_who_asks_until_it_changes() {
    let dir = dir();
    let rig = Rig::start(RigSetup::default());
    let client = rig.open(rig.attach(&image(&dir, "a.img", MIB), None).unwrap());
    let reads = |status: &Status| status.disks[0].ops[OpKind::Read as usize].latency_ns.clone();
    client.do_one(Ask::read(0, 4096));
    let (first, second) = (rig.status(), rig.status());
    assert!(Arc::ptr_eq(&reads(&first), &reads(&second)), "nothing is copied to be looked at");
    client.do_one(Ask::read(0, 4096));
    assert_eq!((reads(&first).len(), reads(&rig.status()).len()), (1, 2));
}

/// The answer takes long for an image in many pieces, and other guests would wait meanwhile.
#[test]
fn who_attaches_a_disk_says_where_it_lies() {
    let dir = dir();
    let rig = Rig::start(RigSetup::default());
    let image = Image::open(&image(&dir, "a.img", MIB), &OpenOptions::writing()).unwrap();
    // In the 40th of 64 parts of the rig's device, where no file system has put it.
    let map = Some(Map::linear(Lba::new(40 << 26), Sectors::from_bytes(MIB)));
    let disk = Disk { map, ..Disk::new("a", image) };
    let id = rig.handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).unwrap().unwrap();
    let client = rig.open(id);
    assert!(client.do_one(Ask::read(0, 4096)).result.is_ok());
    assert_eq!(rig.status().regions[40], 1);
}
