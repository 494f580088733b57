//! Ports and other threads that always have more leave the others their turn.

use super::swarm::kernel::{Faults, Kernel, Ring};
use super::swarm::random::Random;
use crate::frontends::nbd::{Connection, Export, Session, wire};
use crate::images::{Image, OpenOptions};
use crate::port::{Budget, DiskId, Errno, Port, PortContext, PortId};
use crate::reactor::Reactor;
use crate::reactor::admin::MESSAGES_MAX;
use crate::reactor::cache::CacheSetup;
use crate::reactor::io::{Io, Kind};
use crate::reactor::message::{Disk, Handle, Message};
use crate::reactor::ring::{Backend, Cqe, Source};
use io_uring::squeue;
use seekway_core::units::Instant;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

/// A ring whose I/O ends when the test says so.
#[derive(Clone, Default)]
pub(in crate::reactor) struct Played {
    pub(in crate::reactor) under_way: Rc<RefCell<Vec<(u32, Kind)>>>,
    done: Rc<RefCell<Vec<Cqe>>>,
    pub(in crate::reactor) now: Rc<Cell<Instant>>,
    /// A completion was dropped.
    pub(in crate::reactor) has_lost: Rc<Cell<bool>>,
}

impl Played {
    /// The first I/O of this kind ends.
    #[track_caller]
    pub(in crate::reactor) fn end(&self, kind: Kind, result: i32) {
        let mut under_way = self.under_way.borrow_mut();
        let at = under_way.iter().position(|(_, other)| *other == kind).expect("it is under way");
        let source = Source::Io(under_way.remove(at).0);
        self.done.borrow_mut().push(Cqe { source, result, more: false });
    }
}

impl Backend for Played {
    fn now(&mut self) -> Instant {
        self.now.get()
    }
    fn has_lost_completions(&self) -> bool {
        self.has_lost.get()
    }
    fn register_file(&mut self, _: u16, _: Option<RawFd>) -> std::io::Result<()> {
        Ok(())
    }
    unsafe fn start(&mut self, index: u32, io: &mut Io, _: Option<u32>) {
        self.under_way.borrow_mut().push((index, io.kind));
    }
    unsafe fn push(&mut self, _: Source, _: squeue::Entry) {}
    fn completions(&mut self, out: &mut Vec<Cqe>) {
        out.append(&mut self.done.borrow_mut());
    }
    fn peek(&mut self) -> bool {
        false
    }
    fn submit_and_wait(&mut self, _: Option<u64>) {}
}

/// The ports that took requests, one entry for each request.
type Log = Arc<Mutex<Vec<PortId>>>;

/// A port that always has one more request, each of this much work.
struct Endless {
    disk: DiskId,
    id: Option<PortId>,
    work: u32,
    log: Log,
}

impl Port for Endless {
    fn disk(&self) -> DiskId {
        self.disk
    }
    fn open(&mut self, id: PortId, context: &mut dyn PortContext) {
        self.id = Some(id);
        context.wait_turn(id);
    }
    fn take(&mut self, budget: &mut Budget, _: &mut dyn PortContext) -> bool {
        while !budget.is_spent() {
            self.log.lock().unwrap().push(self.id.unwrap());
            budget.spend(self.work);
        }
        true
    }
    fn done(&mut self, _: u64, _: Result<(), Errno>, _: &mut dyn PortContext) {}
}

fn reactor() -> Reactor {
    reactor_on(Box::<Played>::default())
}

pub(in crate::reactor) fn reactor_on(ring: Box<dyn Backend>) -> Reactor {
    let (handle, mailbox) = Handle::new().unwrap();
    Reactor::new(super::setup("test"), mailbox, handle, ring).unwrap()
}

pub(super) fn attach(reactor: &mut Reactor, dir: &Path, name: &str) -> DiskId {
    let path = dir.join(name);
    File::create(&path).and_then(|file| file.set_len(1 << 20)).unwrap();
    let image = Image::open(&path, &OpenOptions::writing()).unwrap();
    reactor.core.attach_disk(Disk::new(name, image)).unwrap()
}

fn open(reactor: &mut Reactor, disk: DiskId, work: u32, log: &Log) -> PortId {
    let (reply, port) = sync_channel(1);
    let log = log.clone();
    reactor.open_port(Box::new(Endless { disk, id: None, work, log }), &reply);
    port.recv().unwrap()
}

#[test]
fn each_disk_has_its_turn_however_much_others_have_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut reactor = reactor();
    let (greedy, modest) =
        (attach(&mut reactor, dir.path(), "greedy"), attach(&mut reactor, dir.path(), "modest"));
    let log = Log::default();
    // A refused chain of a thousand descriptors, on many queues; a short request on one.
    let (long, short) = (Budget::REQUEST_WORK + 1000, Budget::REQUEST_WORK + 3);
    let many: Vec<PortId> = (0..64).map(|_| open(&mut reactor, greedy, long, &log)).collect();
    let one = open(&mut reactor, modest, short, &log);
    let mut seen = Vec::new();
    for turn in 0..many.len() {
        reactor.begin_turn();
        reactor.end_turn();
        let mut taken = std::mem::take(&mut *log.lock().unwrap());
        let of_one = taken.iter().filter(|&&id| id == one).count() as u32;
        let least = (Budget::WORK - Budget::REQUEST_WORK).div_ceil(short);
        assert_eq!(of_one, least, "turn {turn}");
        taken.retain(|&id| id != one);
        assert!(taken.len() as u32 * long <= Budget::WORK + long, "turn {turn}: {}", taken.len());
        assert!(reactor.core.has_ready(), "it goes on without an event");
        taken.dedup();
        seen.extend(taken);
    }
    assert_eq!(seen, many, "the queues of one disk go round");
}

/// A client of NBD that has sent `reads` reads, and waits for its answers.
pub(super) fn client(reactor: &mut Reactor, disk: DiskId, reads: usize) -> UnixStream {
    client_of(reactor, disk, reads, 512)
}

/// As [`client`], with reads of `bytes`.
fn client_of(reactor: &mut Reactor, disk: DiskId, reads: usize, bytes: u32) -> UnixStream {
    let (mut client, served) = UnixStream::pair().unwrap();
    let limits = *reactor.core.limits(disk);
    let export = Export {
        name: "disk".into(),
        disk,
        handle: reactor.core.handle.clone(),
        limits: Arc::new(move || limits),
        memory: Arc::default(),
    };
    let session = Session { export, structured: false, allocation: false };
    let (reply, port) = sync_channel(1);
    reactor.open_port(Box::new(Connection::new(served.into(), &session)), &reply);
    port.recv().unwrap();
    let mut read = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
    read.extend([0; 20]);
    read.extend(bytes.to_be_bytes());
    client.write_all(&read.repeat(reads)).unwrap();
    client
}

#[test]
fn clients_of_nbd_that_send_without_end_take_their_turns() {
    const CLIENTS: usize = 8;
    const READS: usize = 600;
    let dir = tempfile::tempdir().unwrap();
    let kernel = Rc::new(RefCell::new(Kernel::new(Random::new(1, 0), Faults::default())));
    let mut reactor = reactor_on(Box::new(Ring(kernel.clone())));
    let [greedy, modest] = ["greedy", "modest"].map(|name| {
        let inode = File::create(dir.path().join(name)).unwrap().metadata().unwrap().ino();
        kernel.borrow_mut().add_file(inode, 1 << 20, false, true, 512);
        attach(&mut reactor, dir.path(), name)
    });
    let many: Vec<_> = (0..CLIENTS).map(|_| client(&mut reactor, greedy, READS)).collect();
    let one = client(&mut reactor, modest, 1);
    let taken = |reactor: &Reactor, disk| reactor.core.disks.get(disk).unwrap().outstanding;
    let (mut turns, mut before) = (0, 0);
    while before < (CLIENTS * READS) as u32 {
        reactor.begin_turn();
        reactor.end_turn();
        let now = taken(&reactor, greedy);
        assert!(
            now - before <= Budget::WORK / Budget::REQUEST_WORK,
            "turn {turns}: {before}, {now}"
        );
        (turns, before) = (turns + 1, now);
        // In the first turn they are listened to.
        assert!(turns < 2 || taken(&reactor, modest) == 1, "turn {turns}");
        // The turns are short: the other disk had little to do.
        assert!(turns < 2 * CLIENTS * READS / 8, "{now} of the requests are taken");
    }
    drop((many, one));
}

/// Bytes that may come from the cache are copied by the reactor: others wait meanwhile.
#[test]
fn long_reads_of_a_cached_disk_take_more_of_a_turn() {
    const READS: u32 = 32;
    let dir = tempfile::tempdir().unwrap();
    let inode = File::create(dir.path().join("disk")).unwrap().metadata().unwrap().ino();
    let cache = CacheSetup {
        bytes: 16 << 20,
        room_bytes: 16 << 20,
        prefetcher: "none".into(),
        lock: false,
        bandwidth_bytes_per_s: Some(1 << 30),
        seed: Some(1),
    };
    for (cache, bytes, most) in [
        (None, 512 << 10, READS),
        (Some(cache.clone()), 4 << 10, READS),
        (Some(cache), 512 << 10, 2),
    ] {
        let kernel = Rc::new(RefCell::new(Kernel::new(Random::new(1, 0), Faults::default())));
        kernel.borrow_mut().add_file(inode, 1 << 20, false, true, 512);
        let (handle, mailbox) = Handle::new().unwrap();
        let setup = crate::reactor::Setup { cache: cache.clone(), ..super::setup("test") };
        let ring = Box::new(Ring(kernel));
        let mut reactor = Reactor::new(setup, mailbox, handle, ring).unwrap();
        let disk = attach(&mut reactor, dir.path(), "disk");
        let client = client_of(&mut reactor, disk, READS as usize, bytes);
        let taken = |reactor: &Reactor| reactor.core.disks.get(disk).unwrap().outstanding;
        let (mut before, mut at_once) = (0, 0);
        while before < READS {
            reactor.begin_turn();
            let now = taken(&reactor);
            (before, at_once) = (now, at_once.max(now - before));
        }
        assert_eq!(at_once, most, "{cache:?}, {bytes} bytes");
        drop(client);
    }
}

#[test]
fn messages_have_their_part_of_a_turn_and_no_more() {
    const SENT: usize = 2 * MESSAGES_MAX + 1;
    let mut reactor = reactor();
    let (reply, answers) = sync_channel(SENT);
    for _ in 0..SENT {
        reactor.core.handle.send(Message::CacheMemory(reply.clone()));
    }
    reactor.mail = true;
    let mut turns = [MESSAGES_MAX, MESSAGES_MAX, 1].into_iter();
    while reactor.mail {
        reactor.begin_turn();
        assert_eq!(answers.try_iter().count(), turns.next().unwrap());
    }
    assert_eq!(turns.next(), None);
}

#[test]
fn a_port_that_is_closed_has_no_turn() {
    let dir = tempfile::tempdir().unwrap();
    let mut reactor = reactor();
    let disk = attach(&mut reactor, dir.path(), "disk");
    let log = Log::default();
    let first = open(&mut reactor, disk, 1, &log);
    reactor.core.close(first);
    reactor.end_ports();
    let second = open(&mut reactor, disk, 1, &log);
    assert_eq!(first.index, second.index);
    reactor.begin_turn();
    assert!(log.lock().unwrap().iter().all(|&id| id == second));
}

/// The second lay right behind the first.
#[test]
fn a_disk_with_another_behind_it_can_grow() {
    // The file system does not tell where data lie.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return seekway_testing::skip("a writable /dev/shm");
    };
    let mut reactor = reactor();
    let [first, second] = ["a", "b"].map(|name| attach(&mut reactor, folder.path(), name));
    for (disk, name) in [(first, "a"), (second, "b")] {
        let file = File::options().write(true).open(folder.path().join(name)).unwrap();
        file.set_len(64 << 20).unwrap();
        let (reply, answer) = sync_channel(1);
        reactor.core.handle.send(Message::Resize(disk, false, reply));
        reactor.mail = true;
        reactor.begin_turn();
        assert_eq!(answer.recv().unwrap(), Ok(64 << 20));
    }
}
