//! A reactor, or a disk, ends soon whatever is queued, and says what was not carried out.

use super::taking::{Played, reactor_on};
use super::{Answers, guest};
use crate::images::{Image, LostImage, Marker, OpenOptions};
use crate::port::{DiskId, Errno, Job, PortContext, PortId};
use crate::reactor::io::{Kind, PUNCH, ZERO};
use crate::reactor::message::{Handle, Message};
use crate::reactor::{Disk, Reactor};
use seekway_core::request::Op;
use seekway_core::units::{Instant, Nanos};
use std::fs::File;
use std::sync::mpsc::Receiver;

const DISCARD: Kind = Kind::Allocate { mode: PUNCH };
const ZEROES: Kind = Kind::Allocate { mode: ZERO };
const ABANDONED: Result<(), Errno> = Err(Errno(libc::ESHUTDOWN));
const GIB: u64 = 1 << 30;
static DATA: [u8; 4096] = [0; 4096];

/// A disk of several GiB and its guest.
struct World {
    kernel: Played,
    reactor: Reactor,
    disk: DiskId,
    port: PortId,
    answers: Answers,
    lost: Receiver<LostImage>,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        File::create(&path).and_then(|file| file.set_len(4 * GIB)).unwrap();
        let mut image =
            Image::open(&path, &OpenOptions::writing()).unwrap().as_on_disk(true, true, 512);
        let (marker, lost, _) = Marker::new();
        image.mark_by(marker).unwrap();
        let kernel = Played::default();
        let mut reactor = reactor_on(Box::new(kernel.clone()));
        let disk = reactor.core.attach_disk(Disk::new("disk", image)).unwrap();
        let (port, answers) = guest(&mut reactor, disk);
        World { kernel, reactor, disk, port, answers, lost, _folder: folder }
    }

    fn ask(&mut self, token: u64, op: Op, len: u64) {
        let offset = if op == Op::Flush { 0 } else { token % 3 * GIB };
        let (disk, port) = (self.disk, self.port);
        let job = Job { disk, port, token, op, offset, len, priority: 0, fua: false, unmap: false };
        let data = libc::iovec { iov_base: DATA.as_ptr().cast_mut().cast(), iov_len: DATA.len() };
        let buffers = if op.is_data() { &[data][..] } else { &[] };
        self.reactor.core.submit(&job, buffers).unwrap();
    }

    fn send(&mut self, message: Message) {
        self.reactor.core.handle.send(message);
        self.reactor.mail = true;
    }

    /// Turns until nothing moves: what is answered by then, in order of the requests.
    fn settle(&mut self) -> Vec<(u64, Result<(), Errno>)> {
        for _ in 0..3 {
            self.reactor.begin_turn();
            self.reactor.end_turn();
        }
        while self.reactor.core.has_ready() {
            self.reactor.begin_turn();
            self.reactor.end_turn();
        }
        let mut answers = std::mem::take(&mut *self.answers.lock().unwrap());
        answers.sort_unstable_by_key(|(token, _)| *token);
        answers
    }

    fn under_way(&self) -> usize {
        self.kernel.under_way.borrow().len()
    }
}

#[test]
fn discards_and_zeroes_end_with_the_piece_under_way() {
    const EACH: u64 = 1000;
    for op in [Op::Discard, Op::WriteZeroes] {
        for is_shutdown in [true, false] {
            let mut world = World::new();
            let kind = if op == Op::Discard { DISCARD } else { ZEROES };
            (0..EACH).for_each(|token| world.ask(token, op, GIB));
            assert_eq!(world.settle(), []);
            let begun = world.under_way();
            assert!(begun > 0);
            // It goes on, piece by piece.
            world.kernel.end(kind, 0);
            assert_eq!((world.settle(), world.under_way()), (vec![], begun));
            let leave = Message::LeaveDisk(world.disk);
            world.send(if is_shutdown { Message::Shutdown } else { leave });
            // Those that have not begun need not wait for those that have.
            let early = world.settle();
            (0..begun).for_each(|_| world.kernel.end(kind, 0));
            let late = world.settle();
            assert_eq!(world.under_way(), 0, "{op:?}: none begins");
            let all = [early, late].concat();
            assert_eq!(all.len() as u64, EACH, "{op:?}");
            assert!(all.iter().all(|(_, result)| *result == ABANDONED), "{op:?}: {all:?}");
            assert!(world.reactor.core.is_drained());
        }
    }
}

#[test]
fn zeroes_that_are_written_end_with_the_write_under_way() {
    let mut world = World::new();
    world.ask(0, Op::WriteZeroes, GIB);
    world.settle();
    let written = Kind::Zeroes;
    world.kernel.end(ZEROES, -libc::EOPNOTSUPP);
    world.settle();
    world.kernel.end(written, 1 << 16);
    assert_eq!((world.settle(), world.under_way()), (vec![], 1));
    world.send(Message::Shutdown);
    assert_eq!((world.settle(), world.under_way()), (vec![], 1));
    world.kernel.end(written, 1 << 16);
    assert_eq!((world.settle(), world.under_way()), (vec![(0, ABANDONED)], 0));
}

#[test]
fn reads_and_writes_have_a_second() {
    const EACH: u64 = 1000;
    let mut world = World::new();
    (0..EACH).for_each(|token| world.ask(token, Op::Write, 4096));
    world.ask(EACH, Op::Flush, 0);
    assert_eq!(world.settle(), []);
    let write = Kind::Write { dsync: false };
    let begun = world.under_way();
    world.send(Message::Shutdown);
    assert_eq!((world.settle(), world.under_way()), (vec![], begun));
    // What waits goes, as long as there is time.
    world.kernel.end(write, 4096);
    assert_eq!((world.settle().len(), world.under_way()), (1, begun));
    world.kernel.now.set(Instant::ZERO + Nanos::from_secs(1));
    world.kernel.end(write, 4096);
    let rest = world.settle();
    assert_eq!(world.under_way(), begun - 1);
    assert_eq!(rest.iter().filter(|(_, result)| result.is_ok()).count(), 1);
    assert_eq!(rest.iter().filter(|(_, result)| *result == ABANDONED).count(), rest.len() - 1);
    while world.under_way() > 0 {
        let kind = world.kernel.under_way.borrow()[0].1;
        world.kernel.end(kind, if kind == Kind::Sync { 0 } else { 4096 });
        world.settle();
    }
    assert!(world.reactor.core.is_drained());
    assert!(world.lost.try_recv().is_err(), "no flush has failed: none was begun");
}

/// Nobody knows what never ends: the reactor does, and a sync may have failed.
#[test]
fn a_dropped_completion_ends_the_reactor() {
    for syncs in [false, true] {
        let mut world = World::new();
        world.ask(0, if syncs { Op::Flush } else { Op::Write }, if syncs { 0 } else { 4096 });
        assert_eq!(world.settle(), []);
        world.kernel.has_lost.set(true);
        let handle: Handle = world.reactor.core.handle.clone();
        world.reactor.run();
        assert_eq!(handle.ask(Message::CacheMemory), None);
        assert_eq!(*world.answers.lock().unwrap(), []);
        assert_eq!(world.lost.try_recv().is_ok(), syncs);
    }
}
