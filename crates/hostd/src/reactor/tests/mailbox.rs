//! The mailbox: a reactor that sleeps wakes for each message, whoever sends it and when. The real
//! reactor runs here on a ring that only knows the mailbox's eventfd, by its edges as io_uring's
//! multishot poll does, so that Miri can play it (`make miri`).

use crate::reactor::Reactor;
use crate::reactor::io::Io;
use crate::reactor::message::{Handle, Message};
use crate::reactor::ring::{Backend, Cqe, Source};
use io_uring::squeue;
use seekway_core::units::Instant;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::channel;
use std::time::Duration;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Threads that send, and messages of each.
const SENDERS: usize = 3;
const MESSAGES: usize = if cfg!(miri) { 3 } else { 20_000 };
/// A failing test says so after this long.
const PATIENCE: Duration = Duration::from_secs(600);

/// A ring without a device.
struct Edges {
    epoll: Epoll,
    has_mail: bool,
}

impl Edges {
    fn wait(&mut self, timeout_ms: i32) -> bool {
        let mut events = [EpollEvent::default()];
        self.has_mail |= self.epoll.wait(timeout_ms, &mut events).expect("epoll") > 0;
        self.has_mail
    }
}

impl Backend for Edges {
    fn now(&mut self) -> Instant {
        Instant::ZERO
    }
    fn register_file(&mut self, _: u16, _: Option<RawFd>) -> std::io::Result<()> {
        Ok(())
    }
    unsafe fn start(&mut self, _: u32, _: &mut Io, _: Option<u32>) {}
    unsafe fn push(&mut self, _: Source, _: squeue::Entry) {}
    fn completions(&mut self, out: &mut Vec<Cqe>) {
        if std::mem::take(&mut self.has_mail) {
            out.push(Cqe { source: Source::Mailbox, result: libc::POLLIN.into(), more: true });
        }
    }
    fn peek(&mut self) -> bool {
        self.wait(0)
    }
    fn submit_and_wait(&mut self, timeout_ns: Option<u64>) {
        assert_eq!(timeout_ns, None, "nothing is due here");
        self.wait(-1);
    }
    fn watch_mailbox(&mut self, wake: &EventFd) {
        let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, 0);
        self.epoll.ctl(ControlOperation::Add, wake.as_raw_fd(), event).expect("epoll");
    }
}

#[test]
fn no_message_is_left_when_the_reactor_goes_to_sleep() {
    let (handle, mailbox) = Handle::new().expect("an eventfd");
    let own = handle.clone();
    let reactor = std::thread::spawn(move || {
        let ring = Edges { epoll: Epoll::new().expect("epoll"), has_mail: false };
        Reactor::new(super::setup("test"), mailbox, own, Box::new(ring)).expect("a reactor").run();
    });
    let (sent, answered) = channel();
    for _ in 0..SENDERS {
        let (handle, sent) = (handle.clone(), sent.clone());
        std::thread::spawn(move || {
            for _ in 0..MESSAGES {
                // Waits: the reactor has gone to sleep before many of the next.
                assert_eq!(handle.ask(Message::CacheMemory), Some(0));
                sent.send(()).expect("the test waits");
            }
        });
    }
    for i in 0..SENDERS * MESSAGES {
        assert_eq!(answered.recv_timeout(PATIENCE), Ok(()), "message {i} is not answered");
    }
    assert!(handle.turns() > 0);
    assert!(handle.send(Message::Shutdown));
    reactor.join().expect("it ends");
    assert_eq!(handle.ask(Message::CacheMemory), None, "it has ended");
}
