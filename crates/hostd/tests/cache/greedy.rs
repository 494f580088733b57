//! Guests that want more of the cache than their turn: one whose reads are all
//! hits and who always has another, one that asks for more at once than is copied.

use crate::common::Ask;
use crate::guesses::{MIB, device_read, rig};
use crate::reads::{at, dir, full_image};
use seekway_hostd::port::{DiskId, Errno, Job, Port, PortId};
use seekway_hostd::reactor::{Core, Message};
use seekway_policy::request::Op;
use std::any::Any;

/// Reads its first block again and again.
struct Greedy {
    disk: DiskId,
    id: Option<PortId>,
    memory: Vec<u8>,
}

impl Greedy {
    fn read(&mut self, core: &mut Core) {
        let Some(port) = self.id else { return };
        let (disk, len) = (self.disk, self.memory.len() as u64);
        let (token, offset, tag, fua, unmap) = (0, 0, None, false, false);
        let job = Job { disk, port, token, op: Op::Read, offset, len, tag, fua, unmap };
        let buffer =
            libc::iovec { iov_base: self.memory.as_mut_ptr().cast(), iov_len: self.memory.len() };
        core.submit(&job, &[buffer]).unwrap();
    }
}

impl Port for Greedy {
    fn disk(&self) -> DiskId {
        self.disk
    }
    fn open(&mut self, id: PortId, core: &mut Core) {
        self.id = Some(id);
        self.read(core);
    }
    fn event(&mut self, _: u32, _: i32, _: bool, _: &mut Core) {}
    fn done(&mut self, _: u64, result: Result<(), Errno>, core: &mut Core) {
        assert_eq!(result, Ok(()));
        self.read(core);
    }
    fn flush(&mut self, _: &mut Core) {}
    fn message(&mut self, _: Box<dyn Any + Send>, _: &mut Core) {}
    fn closing(&mut self, _: &mut Core) {
        self.id = None;
    }
    fn closed(self: Box<Self>) {}
}

#[test]
fn a_guest_whose_reads_are_all_hits_leaves_the_others_their_turn() {
    let dir = dir();
    let (path, data) = full_image(&dir, "a.img", 1, MIB);
    let rig = rig(MIB);
    let disk = rig.attach(&path, None).unwrap();
    let client = rig.open(disk);
    let greedy = Box::new(Greedy { disk, id: None, memory: vec![0; 4096] });
    let port = rig.handle.ask(|r| Message::OpenPort(greedy, r)).unwrap();
    for n in 0..100 {
        let answer = client.do_one(Ask::read(n * 8192, 4096));
        assert!(answer.buffer == *at(&data, n * 8192, 4096), "{n}");
    }
    let usage = rig.status().disks[0].cache.as_ref().unwrap().usage;
    assert!(usage.cached > 100 * 8, "the other was idle: {usage:?}");
    rig.handle.send(Message::ClosePort(port));
    client.close();
    rig.stop();
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
    client.close();
    rig.stop();
}
