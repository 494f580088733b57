use super::super::io::Kind;
use super::super::tests::taking::{Played, reactor_on};
use super::super::tests::{Answers, guest};
use super::*;
use crate::images::{Image, OpenOptions};
use crate::port::{Errno, Job, PortContext};
use crate::reactor::{Disk, Reactor};
use seekway_core::request::Op;
use std::fs::File;

fn with(under_way: &[u32]) -> Syncs {
    let mut syncs = Syncs::default();
    under_way.iter().for_each(|&io| syncs.begin(io));
    syncs
}

#[test]
fn one_alone_is_not_held() {
    let mut syncs = with(&[4]);
    assert!(!syncs.hold(4));
    assert_eq!(syncs.release(false), None);
}

#[test]
fn one_that_went_well_waits_for_those_under_way_and_for_none_that_comes_later() {
    let mut syncs = with(&[4, 5, 6]);
    assert!(syncs.hold(5));
    syncs.begin(7);
    // Its rest: it is under way as before.
    syncs.begin(4);
    syncs.end(6);
    assert_eq!(syncs.release(false), None);
    assert!(syncs.hold(4), "7 is under way");
    assert_eq!(syncs.release(false), Some(5));
    assert_eq!(syncs.release(false), None);
    assert!(!syncs.hold(7));
    assert_eq!([syncs.release(false), syncs.release(false)], [Some(4), None]);
}

#[test]
fn none_is_held_when_one_has_failed() {
    let mut syncs = with(&[4, 5, 6]);
    assert!(syncs.hold(4) && syncs.hold(5));
    assert_eq!([(); 3].map(|()| syncs.release(true)), [Some(4), Some(5), None]);
}

const FLUSH: u64 = 1;
const WRITE: u64 = 2;
const WRITTEN: Kind = Kind::Write { dsync: false };
const DURABLE: Kind = Kind::Write { dsync: true };
static DATA: [u8; 512] = [1; 512];

/// A disk with a flush and a durable write under way.
struct World {
    kernel: Played,
    reactor: Reactor,
    answers: Answers,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(is_direct: bool) -> World {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        File::create(&path).and_then(|file| file.set_len(1 << 20)).unwrap();
        let image = Image::open(&path, &OpenOptions::writing()).unwrap();
        let image = image.as_on_disk(is_direct, true, if is_direct { 512 } else { 1 });
        let kernel = Played::default();
        let mut reactor = reactor_on(Box::new(kernel.clone()));
        let disk = reactor.core.attach_disk(Disk::new("disk", image)).unwrap();
        let (port, answers) = guest(&mut reactor, disk);
        let flush = Job {
            disk,
            port,
            token: FLUSH,
            op: Op::Flush,
            offset: 0,
            len: 0,
            priority: 0,
            fua: false,
            unmap: false,
        };
        let write = Job { token: WRITE, op: Op::Write, len: 512, fua: true, ..flush };
        let data = libc::iovec { iov_base: DATA.as_ptr().cast_mut().cast(), iov_len: DATA.len() };
        reactor.core.submit(&flush, &[]).unwrap();
        reactor.core.submit(&write, &[data]).unwrap();
        let mut world = World { kernel, reactor, answers, _folder: folder };
        assert_eq!(world.turn(), []);
        assert_eq!(world.kernel.under_way.borrow().len(), 2, "together");
        world
    }

    /// Answers that have come by then.
    fn turn(&mut self) -> Vec<(u64, Result<(), Errno>)> {
        for _ in 0..2 {
            self.reactor.begin_turn();
            self.reactor.end_turn();
        }
        std::mem::take(&mut self.answers.lock().unwrap())
    }
}

/// A flush and the sync behind the write, one of which has the error of both.
#[test]
fn of_two_syncs_the_one_that_went_well_fails_with_the_other() {
    for errno in [libc::EIO, libc::ENOSPC] {
        let mut world = World::new(false);
        world.kernel.end(WRITTEN, 512);
        assert_eq!(world.turn(), []);
        world.kernel.end(Kind::Sync, 0);
        assert_eq!(world.turn(), [], "nobody is told yet");
        world.kernel.end(Kind::Sync, -errno);
        let mut answers = world.turn();
        answers.sort_unstable_by_key(|answer| answer.0);
        assert_eq!(answers, [(FLUSH, Err(Errno(errno))), (WRITE, Err(Errno(errno)))]);
    }
}

#[test]
fn both_are_told_that_all_went_well() {
    let mut world = World::new(false);
    world.kernel.end(WRITTEN, 256);
    assert_eq!(world.turn(), []);
    world.kernel.end(WRITTEN, 256);
    assert_eq!(world.turn(), []);
    world.kernel.end(Kind::Sync, 0);
    assert_eq!(world.turn(), [], "the write's sync is under way");
    world.kernel.end(Kind::Sync, 0);
    let mut answers = world.turn();
    answers.sort_unstable_by_key(|answer| answer.0);
    assert_eq!(answers, [(FLUSH, Ok(())), (WRITE, Ok(()))]);
}

/// One for which there is no room has lost nothing, with a sync in the same call or behind it.
#[test]
fn a_durable_write_that_is_refused_fails_alone() {
    for (is_direct, kind) in [(true, DURABLE), (false, WRITTEN)] {
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
            let mut world = World::new(is_direct);
            world.kernel.end(kind, -errno);
            assert_eq!(world.turn(), [(WRITE, Err(Errno(errno)))]);
            world.kernel.end(Kind::Sync, 0);
            assert_eq!(world.turn(), [(FLUSH, Ok(()))]);
        }
    }
}

/// Past the page cache an error of a write is of this write alone.
#[test]
fn a_flush_of_a_direct_image_waits_for_no_write() {
    let mut world = World::new(true);
    world.kernel.end(Kind::Sync, 0);
    assert_eq!(world.turn(), [(FLUSH, Ok(()))]);
    world.kernel.end(DURABLE, 512);
    assert_eq!(world.turn(), [(WRITE, Ok(()))]);
}
