//! A reply leaves in the turn in which its request is done, and so does what follows from it: no
//! completion wakes the reactor for it. No time passes here, so no timer ends.

use super::swarm::kernel::{Faults, Kernel, Ring};
use super::swarm::random::Random;
use super::taking::{attach, client, reactor_on};
use crate::reactor::Reactor;
use crate::reactor::ring::Backend;
use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

const READ_BYTES: u32 = 512;
const REPLY_BYTES: usize = 16 + READ_BYTES as usize;

/// A reactor and a client that has sent reads.
struct World {
    kernel: Rc<RefCell<Kernel>>,
    reactor: Reactor,
    client: UnixStream,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(seed: u64, sends_fail: u64, reads: usize) -> World {
        let folder = tempfile::tempdir().unwrap();
        let faults = Faults { sends: sends_fail, ..Faults::default() };
        let kernel = Rc::new(RefCell::new(Kernel::new(Random::new(seed, 0), faults)));
        let mut reactor = reactor_on(Box::new(Ring(kernel.clone())));
        let inode = File::create(folder.path().join("disk")).unwrap().metadata().unwrap().ino();
        kernel.borrow_mut().add_file(inode, 1 << 20, false, true, 512);
        let disk = attach(&mut reactor, folder.path(), "disk");
        let client = client(&mut reactor, disk, reads);
        client.set_nonblocking(true).unwrap();
        World { kernel, reactor, client, _folder: folder }
    }

    /// Turns as long as the reactor does not sleep, or is woken.
    fn run(&mut self) {
        let mut kernel = Ring(self.kernel.clone());
        while self.reactor.mail
            || self.reactor.core.has_ready()
            || kernel.peek()
            || self.kernel.borrow_mut().finish_one()
        {
            self.reactor.turn();
        }
    }

    /// Read what is there. `None` at the end.
    fn hear(&mut self) -> Option<usize> {
        let mut heard = 0;
        let mut buffer = [0; 1 << 14];
        loop {
            match self.client.read(&mut buffer) {
                Ok(0) if heard == 0 => return None,
                Ok(0) => return Some(heard),
                Ok(len) => heard += len,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Some(heard),
                Err(_) => return None,
            }
        }
    }

    fn has_ports(&self) -> bool {
        self.reactor.core.ports.all().next().is_some()
    }
}

#[test]
fn a_client_that_ends_with_its_request_has_its_reply_and_then_the_end() {
    let mut world = World::new(1, 0, 1);
    world.client.shutdown(Shutdown::Write).unwrap();
    world.run();
    assert_eq!(world.hear(), Some(REPLY_BYTES));
    assert!(!world.has_ports());
    assert_eq!(world.hear(), None);
}

#[test]
fn a_client_that_goes_before_its_reply_leaves_nothing_behind() {
    let mut world = World::new(1, 0, 8);
    world.client.shutdown(Shutdown::Both).unwrap();
    world.run();
    assert!(!world.has_ports());
}

/// Each message is cut, put off, or the connection breaks.
#[test]
fn a_socket_that_takes_less_keeps_no_reply() {
    const READS: usize = 8;
    let mut whole = 0;
    for seed in 0..100 {
        let mut world = World::new(seed, 1, READS);
        world.run();
        let mut heard = 0;
        while let Some(more @ 1..) = world.hear() {
            heard += more;
            world.run();
        }
        whole += usize::from(heard == READS * REPLY_BYTES);
        let is_broken = !world.has_ports();
        assert!(is_broken || heard == READS * REPLY_BYTES, "seed {seed}: {heard} bytes");
    }
    assert!((20..100).contains(&whole), "{whole}");
}

#[test]
fn a_client_that_reads_slowly_has_all_replies() {
    // More than a socket holds, where nobody has made that more than it is by default.
    const READS: usize = 900;
    let mut world = World::new(1, 0, READS);
    let mut heard = 0;
    while heard < READS * REPLY_BYTES {
        world.run();
        let more = world.hear().expect("it stays connected");
        assert!(more > 0, "the reactor sleeps, and the rest after {heard} bytes is not sent");
        heard += more;
    }
    assert!(world.has_ports());
}
