//! A connection without a reactor: its events come when the test says so.

use super::*;
use crate::frontends::nbd::Export;
use crate::frontends::nbd::buffers::DiskMemory;
use crate::frontends::nbd::request::HEADER_LEN;
use crate::frontends::nbd::wire::{
    CMD_BLOCK_STATUS, CMD_READ, CMD_WRITE, REQUEST_LEN_MAX, REQUEST_MAGIC,
};
use crate::limits_table::{number, says};
use crate::reactor::Handle;
use crate::reactor::tests::LIMITS;
use io_uring::squeue;
use seekway_core::units::Instant;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Calls of a connection to its reactor.
struct Asked {
    jobs: Vec<Job>,
    pushed: Vec<u32>,
    cancelled: Vec<u32>,
    statuses: Vec<(u64, Range<u64>)>,
    closed: bool,
    /// Result of the socket's next send: bytes, or an errno.
    socket: Result<usize, i32>,
    /// Messages sent at once, the number of them that were measured, and the time that each took.
    sends: u32,
    measured: u32,
    send_takes: Duration,
    /// The connection waits for its turn.
    waits: bool,
    /// The disk has no room.
    is_full: bool,
}

impl Default for Asked {
    /// The client does not read.
    fn default() -> Asked {
        Asked {
            jobs: Vec::new(),
            pushed: Vec::new(),
            cancelled: Vec::new(),
            statuses: Vec::new(),
            closed: false,
            socket: Ok(0),
            sends: 0,
            measured: 0,
            send_takes: Duration::ZERO,
            waits: false,
            is_full: false,
        }
    }
}

impl PortContext for Asked {
    fn now(&self) -> Instant {
        Instant::ZERO
    }
    fn limits(&self, _disk: DiskId) -> &Limits {
        &LIMITS
    }
    fn submit(&mut self, job: &Job, _buffers: &[libc::iovec]) -> Result<(), Errno> {
        self.jobs.push(*job);
        Ok(())
    }
    fn copies_reads(&self, _disk: DiskId) -> bool {
        false
    }
    fn has_room(&self, _disk: DiskId) -> bool {
        !self.is_full
    }
    fn wait_turn(&mut self, _port: PortId) {
        self.waits = true;
    }
    unsafe fn push(&mut self, _port: PortId, tag: u32, _entry: squeue::Entry) {
        self.pushed.push(tag);
    }
    unsafe fn send(
        &mut self,
        _socket: RawFd,
        message: *const libc::msghdr,
        is_measured: bool,
    ) -> (i32, Duration) {
        self.sends += 1;
        self.measured += u32::from(is_measured);
        // SAFETY: a message and its pieces.
        let pieces =
            unsafe { std::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen) };
        let len: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let sent = match &mut self.socket {
            Err(errno) => -*errno,
            Ok(0) => -libc::EAGAIN,
            Ok(room) => {
                let taken = len.min(*room);
                *room -= taken;
                taken as i32
            }
        };
        (sent, self.send_takes)
    }
    fn cancel(&mut self, _port: PortId, tag: u32) {
        self.cancelled.push(tag);
    }
    fn close(&mut self, _port: PortId) {
        self.closed = true;
    }
    fn block_status(&mut self, _port: PortId, token: u64, range: Range<u64>, _max: usize) {
        self.statuses.push((token, range));
    }
}

struct Rig {
    connection: Connection,
    asked: Asked,
    _client: UnixStream,
}

impl Rig {
    fn new(memory: &Arc<DiskMemory>) -> Rig {
        let (client, server) = UnixStream::pair().unwrap();
        let export = Export {
            name: "disk".into(),
            disk: DiskId(0),
            handle: Handle::new().unwrap().0,
            limits: Arc::new(|| LIMITS),
            memory: memory.clone(),
        };
        let session = Session { export, structured: true, allocation: true };
        let mut rig = Rig {
            connection: Connection::new(server.into(), &session),
            asked: Asked::default(),
            _client: client,
        };
        rig.connection.open(PortId { index: 0, generation: 0 }, &mut rig.asked);
        rig.turns();
        rig
    }

    /// An event, as the reactor tells of it.
    fn event(&mut self, tag: u32, result: i32) {
        let at = self.asked.pushed.iter().position(|pushed| *pushed == tag);
        self.asked.pushed.remove(at.expect("an event has been asked for"));
        self.connection.event(tag, result, false, &mut self.asked);
        self.turns();
        self.connection.flush(&mut self.asked);
    }

    /// Gives it a turn, if it waits for one.
    fn turn(&mut self) {
        if std::mem::take(&mut self.asked.waits) {
            self.asked.waits = self.connection.take(&mut Budget::default(), &mut self.asked);
        }
    }

    /// Gives it turns until it waits for none, or its disk is full.
    fn turns(&mut self) {
        while self.asked.waits && !self.asked.is_full {
            self.turn();
        }
    }

    /// The header of a request for the disk's first `len` bytes comes.
    fn request(&mut self, command: u16, len: u32) {
        self.put(0, command, len);
        self.event(RECEIVE, HEADER_LEN as i32);
    }

    /// The kernel writes a request, the one of this number, to where it was told to.
    fn put(&mut self, number: usize, command: u16, len: u32) {
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[6..8].copy_from_slice(&command.to_be_bytes());
        header[24..].copy_from_slice(&len.to_be_bytes());
        let space = &mut self.connection.inbox.space()[number * HEADER_LEN..];
        space[..HEADER_LEN].copy_from_slice(&header);
    }

    fn done(&mut self, job: usize) {
        let token = self.asked.jobs[job].token;
        self.connection.done(token, Ok(()), &mut self.asked);
        self.connection.flush(&mut self.asked);
    }

    fn is_armed(&self, tag: u32) -> bool {
        self.asked.pushed.contains(&tag)
    }
}

#[test]
fn a_client_that_does_not_read_is_not_listened_to_and_then_hung_up_on() {
    let mut rig = Rig::new(&Arc::default());
    rig.request(CMD_READ, 4096);
    rig.done(0);
    assert!(rig.is_armed(SEND) && rig.is_armed(TIMER));
    // It may still ask, until a whole interval has passed in which it reads nothing.
    rig.request(CMD_READ, 4096);
    assert_eq!(rig.asked.jobs.len(), 2);
    rig.event(TIMER, -libc::ETIME);
    rig.event(TIMER, -libc::ETIME);
    assert!(!rig.asked.closed);
    rig.request(CMD_READ, 4096);
    assert_eq!(rig.asked.jobs.len(), 2, "it is not listened to");
    assert!(!rig.is_armed(RECEIVE));
    // It reads on, and is served again.
    rig.event(SEND, 4096 + 28);
    assert_eq!(rig.asked.jobs.len(), 3);
    rig.done(1);
    assert!(rig.is_armed(SEND));
    let mut intervals = 0;
    while !rig.asked.closed {
        rig.event(TIMER, -libc::ETIME);
        intervals += 1;
    }
    // One has begun before there was anything to read.
    assert!((15..=16).contains(&intervals), "{intervals}");
    rig.connection.closing(&mut rig.asked);
    assert!(rig.asked.cancelled.contains(&SEND));
}

#[test]
fn a_client_that_announces_a_payload_and_does_not_send_it_is_hung_up_on() {
    let mut rig = Rig::new(&Arc::default());
    rig.request(CMD_WRITE, REQUEST_LEN_MAX);
    for _ in 0..20 {
        rig.event(TIMER, -libc::ETIME);
        assert!(!rig.asked.closed);
        rig.event(RECEIVE, 1 << 20); // slow, but it comes
    }
    let mut intervals = 0;
    while !rig.asked.closed {
        rig.event(TIMER, -libc::ETIME);
        intervals += 1;
    }
    assert!((15..=16).contains(&intervals), "{intervals}");
    assert!(rig.asked.jobs.is_empty());
}

#[test]
fn a_client_that_reads_slowly_stays() {
    let mut rig = Rig::new(&Arc::default());
    rig.request(CMD_READ, REQUEST_LEN_MAX);
    rig.done(0);
    for _ in 0..20 {
        rig.event(TIMER, -libc::ETIME);
        assert!(!rig.asked.closed);
        rig.event(SEND, 1 << 20);
    }
}

#[test]
fn memory_that_other_clients_of_the_disk_have_is_waited_for() {
    let memory = Arc::default();
    let mut greedy: Vec<Pool> =
        (0..4).map(|_| Pool::new(BUFFERS_MAX_BYTES, Arc::clone(&memory))).collect();
    let held: Vec<_> = greedy
        .iter_mut()
        .map(|pool| pool.take(REQUEST_LEN_MAX))
        .map(|buffer| buffer.expect("as many as the disk may have"))
        .collect();
    let mut rig = Rig::new(&memory);
    rig.request(CMD_WRITE, 4096);
    assert!(rig.connection.ready.is_empty(), "it does not fail");
    rig.event(TIMER, -libc::ETIME);
    assert!(rig.is_armed(TIMER) && !rig.is_armed(RECEIVE));
    drop(held);
    rig.event(TIMER, -libc::ETIME);
    assert!(rig.is_armed(RECEIVE), "it waits for the payload");
}

#[test]
fn block_status_is_answered_later() {
    let mut rig = Rig::new(&Arc::default());
    rig.request(CMD_BLOCK_STATUS, 8192);
    let (token, range) = rig.asked.statuses[0].clone();
    assert_eq!(range, 0..8192);
    assert!(!rig.is_armed(SEND) && rig.is_armed(RECEIVE));
    // Others are served meanwhile.
    rig.request(CMD_READ, 4096);
    rig.done(0);
    rig.event(SEND, 4096 + 28);
    rig.connection.runs(token, vec![(4096, true), (4096, false)], &mut rig.asked);
    rig.connection.flush(&mut rig.asked);
    assert!(rig.is_armed(SEND));
}

#[test]
fn many_requests_at_once_are_taken_in_turns() {
    const SENT: usize = 700;
    const IN_A_TURN: usize = (Budget::WORK / Budget::REQUEST_WORK) as usize;
    let mut rig = Rig::new(&Arc::default());
    (0..SENT).for_each(|number| rig.put(number, CMD_READ, 512));
    rig.asked.is_full = true;
    rig.event(RECEIVE, (SENT * HEADER_LEN) as i32);
    rig.turn();
    assert!(rig.asked.waits && rig.asked.jobs.is_empty(), "they stay where they are");
    rig.asked.is_full = false;
    for turn in 1..=SENT.div_ceil(IN_A_TURN) {
        assert!(rig.asked.waits, "turn {turn}");
        // The next receive would bring bytes past those that are there.
        assert!(!rig.is_armed(RECEIVE), "turn {turn}");
        rig.turn();
        assert_eq!(rig.asked.jobs.len(), SENT.min(turn * IN_A_TURN));
    }
    assert!(!rig.asked.waits && rig.is_armed(RECEIVE));
}

#[test]
fn a_client_that_makes_sending_slow_is_sent_to_by_others_than_the_reactor() {
    let send = |rig: &mut Rig, count: u32| -> (u32, u32) {
        let before = (rig.asked.sends, rig.asked.measured);
        for _ in 0..count {
            rig.connection.outbox.clear();
            rig.connection.send_message(&mut rig.asked);
        }
        (rig.asked.sends - before.0, rig.asked.measured - before.1)
    };
    let mut quick = Rig::new(&Arc::default());
    assert_eq!(send(&mut quick, 1), (1, 1), "the first is measured");
    assert_eq!(send(&mut quick, MEASURED_SENDS - 1), (MEASURED_SENDS - 1, 0));
    assert_eq!(send(&mut quick, 1), (1, 1));
    let memory = Arc::default();
    let mut slow = Rig::new(&memory);
    slow.asked.send_takes = Duration::from_secs(10);
    assert_eq!(send(&mut slow, 1), (1, 1));
    assert!(memory.toll.is_high(std::time::Instant::now()));
    let pushed = slow.asked.pushed.len();
    assert_eq!(send(&mut slow, 100), (0, 0), "not by the reactor");
    assert_eq!(slow.asked.pushed.len() - pushed, 100);
    assert_eq!(send(&mut Rig::new(&memory), 2), (0, 0), "to a new client of the disk neither");
}

#[test]
fn a_client_that_makes_sending_slow_is_sent_to_seldom() {
    let memory = Arc::default();
    let mut rig = Rig::new(&memory);
    let second = Duration::from_secs(1);
    let now = std::time::Instant::now;
    rig.request(CMD_READ, 4096);
    rig.request(CMD_READ, 4096);
    memory.toll.charge(now(), 10 * second, 1000);
    // As the last one took.
    memory.toll.called(now(), 1000 * second);
    rig.done(0);
    assert!(rig.is_armed(REST) && !rig.is_armed(SEND));
    rig.done(1);
    assert_eq!(rig.asked.pushed.iter().filter(|tag| **tag == REST).count(), 1);
    rig.event(REST, -libc::ETIME);
    assert!(rig.is_armed(REST) && !rig.is_armed(SEND), "it was not long enough");
    rig.connection.closing(&mut rig.asked);
    rig.event(TIMER, -libc::ECANCELED);
    let is_given_up = rig.asked.cancelled.contains(&REST);
    assert!(rig.is_armed(TIMER) && !is_given_up, "its replies have some seconds");
    rig.event(TIMER, -libc::ETIME);
    assert!(rig.asked.cancelled.contains(&REST));
    rig.event(REST, -libc::ECANCELED);
    assert!(!rig.is_armed(REST) && !rig.is_armed(SEND));
}

/// The client reads. Nobody is woken for a reply that has left: what follows from it is done at once.
#[test]
fn a_reply_that_the_socket_takes_has_left() {
    let mut rig = Rig::new(&Arc::default());
    rig.asked.socket = Ok(usize::MAX);
    rig.request(CMD_READ, 4096);
    rig.done(0);
    assert_eq!(rig.asked.sends, 1);
    assert!(!rig.is_armed(SEND) && rig.connection.slots.is_empty());
    assert!(!rig.asked.waits && rig.is_armed(RECEIVE), "it has nothing to do");
    // More replies than one message has room for.
    (0..700).for_each(|number| rig.put(number, CMD_READ, 512));
    rig.event(RECEIVE, (700 * HEADER_LEN) as i32);
    for job in 1..=700 {
        let token = rig.asked.jobs[job].token;
        rig.connection.done(token, Ok(()), &mut rig.asked);
    }
    rig.connection.flush(&mut rig.asked);
    assert!(rig.asked.sends > 2 && rig.connection.slots.is_empty());
    assert!(!rig.is_armed(SEND));
}

#[test]
fn what_a_socket_does_not_take_at_once_leaves_when_it_has_room() {
    let all = 4096 + 28;
    for room in [0, 1, 28, 29, all - 1] {
        let mut rig = Rig::new(&Arc::default());
        rig.asked.socket = Ok(room);
        rig.request(CMD_READ, 4096);
        rig.done(0);
        assert!(rig.is_armed(SEND) && !rig.connection.slots.is_empty(), "{room}");
        // A reply that is done meanwhile waits for it.
        rig.request(CMD_READ, 4096);
        rig.done(1);
        assert_eq!(rig.asked.sends, 1);
        rig.asked.socket = Ok(usize::MAX);
        rig.event(SEND, (all - room) as i32);
        assert_eq!(rig.asked.sends, 2);
        assert!(!rig.is_armed(SEND) && rig.connection.slots.is_empty(), "{room}");
    }
}

#[test]
fn requests_that_wait_for_room_have_their_turn_when_a_reply_has_left() {
    let mut rig = Rig::new(&Arc::default());
    rig.asked.socket = Ok(usize::MAX);
    // The second waits for memory.
    (0..2).for_each(|number| rig.put(number, CMD_READ, REQUEST_LEN_MAX));
    rig.event(RECEIVE, 2 * HEADER_LEN as i32);
    assert_eq!(rig.asked.jobs.len(), 1);
    assert!(!rig.is_armed(RECEIVE));
    rig.done(0);
    while rig.is_armed(SEND) {
        rig.event(SEND, 1 << 20);
    }
    assert_eq!(rig.asked.jobs.len(), 2);
    // One that leaves at once.
    let mut rig = Rig::new(&Arc::default());
    rig.asked.socket = Ok(usize::MAX);
    (0..REQUESTS_MAX).for_each(|number| rig.put(number, CMD_READ, 512));
    rig.event(RECEIVE, (REQUESTS_MAX * HEADER_LEN) as i32);
    rig.put(0, CMD_READ, 512);
    assert!(!rig.is_armed(RECEIVE), "all slots are taken");
    rig.done(0);
    assert!(rig.asked.waits && !rig.is_armed(SEND));
    rig.turns();
    assert!(rig.is_armed(RECEIVE));
}

#[test]
fn a_client_that_is_gone_when_it_is_replied_to_is_hung_up_on_at_once() {
    for errno in [libc::ECONNRESET, libc::EPIPE] {
        let mut rig = Rig::new(&Arc::default());
        rig.asked.socket = Err(errno);
        rig.request(CMD_READ, 4096);
        rig.request(CMD_READ, 4096);
        rig.done(0);
        assert!(rig.asked.closed && !rig.is_armed(SEND));
        rig.done(1);
        assert!(rig.connection.slots.is_empty());
        assert_eq!(rig.asked.sends, 1, "nobody is there to reply to");
    }
}

#[test]
fn the_table_of_limits_is_that_of_the_code() {
    says("requests of an NBD connection", &number(REQUESTS_MAX));
    says("memory of an NBD connection", &format!("{} MiB", BUFFERS_MAX_BYTES >> 20));
}
