//! Guests that want more of the cache than their turn: one whose reads are all
//! hits and who always has another, one that asks for more at once than is copied.

use super::guesses::{MIB, device_read, quiet, rig};
use super::reads::{at, full_image};
use crate::common::{Ask, Rig, RigSetup, cache, dir, image, open_image};
use seekway_core::request::Op;
use seekway_core::units::Lba;
use seekway_hostd::images::OpenOptions;
use seekway_hostd::port::{DiskId, Errno, Job, Port, PortContext, PortId};
use seekway_hostd::reactor::{Disk, Message};

const GIB: u64 = 1024 * MIB;

/// Reads its first block again and again.
struct Greedy {
    disk: DiskId,
    id: Option<PortId>,
    memory: Vec<u8>,
    outstanding: u32,
}

impl Greedy {
    fn read(&mut self, context: &mut dyn PortContext) {
        let Some(port) = self.id else { return };
        let (disk, len) = (self.disk, self.memory.len() as u64);
        let (token, offset, priority, fua, unmap) = (0, 0, 0, false, false);
        let job = Job { disk, port, token, op: Op::Read, offset, len, priority, fua, unmap };
        let buffer =
            libc::iovec { iov_base: self.memory.as_mut_ptr().cast(), iov_len: self.memory.len() };
        context.submit(&job, &[buffer]).unwrap();
        self.outstanding += 1;
    }
}

impl Port for Greedy {
    fn disk(&self) -> DiskId {
        self.disk
    }
    fn open(&mut self, id: PortId, context: &mut dyn PortContext) {
        self.id = Some(id);
        self.read(context);
    }
    fn done(&mut self, _: u64, result: Result<(), Errno>, context: &mut dyn PortContext) {
        assert_eq!(result, Ok(()));
        self.outstanding -= 1;
        self.read(context);
    }
    fn closing(&mut self, _: &mut dyn PortContext) {
        self.id = None;
    }
    fn closed(self: Box<Self>) {
        assert_eq!(self.outstanding, 0, "closed before it was told that a job is done");
    }
}

#[test]
fn a_guest_whose_reads_are_all_hits_leaves_the_others_their_turn() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 1, MIB);
    let rig = rig(MIB);
    let disk = rig.attach(&path, None).unwrap();
    let client = rig.open(disk);
    let greedy = Box::new(Greedy { disk, id: None, memory: vec![0; 4096], outstanding: 0 });
    let port = rig.handle.ask(|r| Message::OpenPort(greedy, r)).unwrap();
    for n in 0..100 {
        let answer = client.do_one(Ask::read(n * 8192, 4096));
        assert!(answer.buffer == *at(&data, n * 8192, 4096), "{n}");
    }
    let usage = rig.status().disks[0].cache.as_ref().unwrap().usage;
    assert!(usage.cached > 100 * 8, "the other was idle: {usage:?}");
    rig.handle.send(Message::ClosePort(port));
}

/// Bytes that one disk may have copied at once.
const AT_ONCE: u64 = 16 * MIB;

#[test]
fn what_is_copied_at_once_is_bounded() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 2, MIB);
    let rig = rig(32 * MIB);
    let client = rig.open(rig.attach(&path, None).unwrap());
    let ask = |count| (0..count).map(|_| Ask::read(0, MIB)).collect::<Vec<_>>();
    let past = 64 * MIB - AT_ONCE;
    // First they wait for one fetch, all that may; then it is there.
    for expected in [MIB + past, MIB + 2 * past] {
        for answer in client.do_all(ask(64)) {
            assert_eq!(answer.result, Ok(()));
            assert!(answer.buffer == data);
        }
        assert_eq!(device_read(&rig.status()), expected);
    }
    client.do_all(ask(16));
    assert_eq!(device_read(&rig.status()), MIB + 2 * past, "the next turn has its own");
}

#[test]
fn discards_beyond_what_a_turn_takes_go_in_the_next() {
    let dir = dir();
    let path = image(&dir, "a.img", 64 * GIB);
    let rig = rig(32 * MIB);
    let client = rig.open(rig.attach(&path, None).unwrap());
    client.do_one(Ask::read(0, 4096));
    let ask = |n| Ask::new(Op::Discard, n * GIB, GIB, Vec::new());
    for answer in client.do_all((0..64).map(ask).collect()) {
        assert_eq!(answer.result, Ok(()));
    }
    client.do_one(Ask::read(0, 4096));
    assert_eq!(device_read(&rig.status()), 8192, "the first discard took the block out");
}

#[test]
fn one_guest_that_waits_for_all_it_may_leaves_the_others_the_cache() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 3, 4 * MIB);
    let (other, others) = full_image(&dir, "b.img", 4, MIB);
    let slow = "seagate-1tb-7200:k=20";
    let setup = RigSetup { emulate: Some(slow), cache: cache(8 * MIB), ..RigSetup::default() };
    let rig = Rig::start(setup);
    let clients = [&path, &other].map(|path| rig.open(rig.attach(path, None).unwrap()));
    for client in &clients {
        client.do_one(Ask::read(MIB / 2, 4096));
    }
    // One on the device, for a fifth of a second. Behind it two blocks, and reads
    // of both, with as many parts as may wait; then more of them, which go past
    // the cache, and one that is cached.
    let mut asks = vec![Ask::read(3 * MIB, 4096)];
    asks.extend([0, 4096].map(|offset| Ask::read(offset, 4096)));
    let (waits, past) = ((8192 - 3_u64).div_ceil(2), 3);
    asks.extend((0..waits + past).map(|_| Ask::read(3584, 1024)));
    asks.push(Ask::read(MIB / 2, 4096));
    let asked = asks.len() as u64;
    clients[0].ask(asks);
    // The other has a block there, and two wait for another.
    let wanted = [(MIB / 2, 4096), (0, 4096), (512, 512)];
    clients[1].ask(wanted.map(|(offset, len)| Ask::read(offset, len)).into());
    assert_eq!(clients[1].answer().token, 1, "what is cached comes first");
    let outstanding = rig.status().disks[0].outstanding;
    assert!(u64::from(outstanding) > waits, "{outstanding}: the bound was not reached");
    (1..wanted.len()).for_each(|_| {
        let answer = clients[1].answer();
        let (offset, len) = wanted[answer.token as usize - 1];
        assert!(answer.buffer == *at(&others, offset, len), "{offset}+{len}");
    });
    for _ in 0..asked {
        let answer = clients[0].answer();
        let (offset, len) = match answer.token {
            1 => (3 * MIB, 4096),
            n @ (2 | 3) => ((n - 2) * 4096, 4096),
            n if n == asked => (MIB / 2, 4096),
            _ => (3584, 1024),
        };
        assert!(answer.buffer == *at(&data, offset, len), "{}", answer.token);
    }
    // Six blocks, and what went past.
    assert_eq!(device_read(&quiet(&rig, &clients[0])), 6 * 4096 + past * 1024);
}

#[test]
fn a_read_with_many_holes_in_the_cache_goes_past_it_in_the_end() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 5, 4 * MIB);
    let rig = rig(8 * MIB);
    // In one piece, wherever the file system has put it.
    let image = open_image(&path, &OpenOptions::reading()).unwrap();
    let disk = Disk { lba: Some(Lba::ZERO), ..Disk::new("a", image) };
    let disk = rig.handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).unwrap().unwrap();
    let client = rig.open(disk);
    client.do_all((0..512).map(|n| Ask::read(n * 8192, 4096)).collect());
    let before = rig.status();
    assert_eq!(device_read(&before), 512 * 4096);
    assert!(client.do_one(Ask::read(0, 4 * MIB)).buffer == data);
    let after = rig.status();
    // 256 blocks, and all from the next hole on, in two pieces.
    assert_eq!(after.stats.requests - before.stats.requests, 258);
    let rest = 4 * MIB - (256 * 8192 + 4096);
    assert_eq!(device_read(&after) - device_read(&before), 256 * 4096 + rest);
    // What went past is not there, the rest is.
    for (offset, bytes) in [(4096, 0), (4096 + 256 * 8192, 4096)] {
        let before = device_read(&rig.status());
        assert!(client.do_one(Ask::read(offset, 4096)).buffer == *at(&data, offset, 4096));
        assert_eq!(device_read(&rig.status()) - before, bytes, "{offset}");
    }
}
