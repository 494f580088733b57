//! The transmission phase of one connection, inside its disk's reactor.
//!
//! One receive is armed as long as there is room for more requests: it brings
//! in as many as have come. They are handed in when it is the connection's turn,
//! as many as its budget allows. One message is
//! under way to the client at most; what is done meanwhile leaves with the next.
//! A request takes a slot from its header to the end of its reply, and data
//! take a buffer: both are bounded, and a client that goes beyond waits. From a client that does
//! not read its replies no more requests are taken, and after some time it is hung up on, as is one
//! that does not send a payload that it has announced.

use super::buffers::{Buffer, Inbox, Pool};
use super::options::Session;
use super::outbox::Outbox;
use super::request::{self, Action, Refusal, Reply, Request, Verdict, judge};
use super::wire::{CMD_BLOCK_STATUS, CMD_FLAG_REQ_ONE, CMD_READ, NbdError};
use crate::images::Limits;
use crate::port::{Budget, COPIED_BYTES, DiskId, Errno, Job, Port, PortContext, PortId};
use io_uring::{opcode, squeue, types};
use seekway_core::request::Op;
use slab::Slab;
use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

/// Requests between header and reply.
const REQUESTS_MAX: usize = 1024;
/// Memory for their data.
const BUFFERS_MAX_BYTES: usize = 64 << 20;
/// Most bytes that one receive brings in.
const INBOX_BYTES: usize = 128 << 10;
/// Extents in one reply to block status.
const EXTENTS_MAX: usize = 128;

/// Tags of our SQEs.
const RECEIVE: u32 = 0;
const SEND: u32 = 1;
const TIMER: u32 = 2;
const REST: u32 = 3;

/// Meaning of the next received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expect {
    Header,
    /// The payload of a write, of which `filled` bytes are in the slot's buffer.
    Payload {
        slot: usize,
        filled: usize,
    },
    /// The rest of the payload of a request that is refused.
    Swallow {
        slot: usize,
        left_bytes: u64,
    },
}

/// Progress of the end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Serving,
    /// No more requests; what is done is still replied to.
    Ending,
    /// Nobody is there to reply to.
    Broken,
}

pub struct Connection {
    socket: OwnedFd,
    disk: DiskId,
    /// By this the export's owner counts its connections: there is one more as
    /// long as it is held.
    _held: Arc<dyn Fn() -> Limits + Send + Sync>,
    structured: bool,
    allocation: bool,
    /// Known from `open` on, before anything else is called.
    id: PortId,
    phase: Phase,
    closing: bool,
    inbox: Inbox,
    expect: Expect,
    /// Pieces of a receive into a payload and the inbox.
    scatter: Box<Scatter>,
    receiving: bool,
    /// The last receive emptied the socket: the next one had better wait first.
    drained: bool,
    pool: Pool,
    slots: Slab<Slot>,
    /// Done, to be replied to.
    ready: Vec<usize>,
    /// Slots whose replies are in the outbox.
    leaving: Vec<usize>,
    outbox: Outbox,
    sending: bool,
    /// Messages sent after the last measured one.
    unmeasured: u32,
    /// When the message under way was handed to a worker of the kernel's.
    sent_at: Option<Instant>,
    /// Replies wait, because sending to clients of the disk takes long; and how long they do.
    rests: bool,
    rest: Box<types::Timespec>,
    timer: Timer,
    /// Has a request come since the timer began?
    busy: bool,
    /// Has the client done its part since the timer began: read of its replies, sent of a payload
    /// for which it has a buffer, or had it nothing to do?
    moves: bool,
    /// Number of times in a row that the timer ended and the client had not.
    stalls: u32,
    /// A request waits for memory that other clients of the disk have.
    starved: bool,
    /// Receiver of its remains, who frees them.
    taken_down_by: Option<SyncSender<Remains>>,
}

/// Remains of a closed connection without its socket. Freeing them takes time: memory is unmapped,
/// and the export's owner may ask the file system.
pub struct Remains {
    _held: Arc<dyn Fn() -> Limits + Send + Sync>,
    _pool: Pool,
    _slots: Slab<Slot>,
}

impl Connection {
    /// A connection that has been negotiated. The socket must block, so that
    /// the ring waits instead of returning.
    pub fn new(socket: OwnedFd, session: &Session) -> Connection {
        Connection {
            socket,
            disk: session.export.disk,
            _held: session.export.limits.clone(),
            structured: session.structured,
            allocation: session.allocation,
            id: PortId { index: 0, generation: 0 },
            phase: Phase::Serving,
            closing: false,
            inbox: Inbox::new(INBOX_BYTES),
            expect: Expect::Header,
            scatter: Box::new(Scatter::new()),
            receiving: false,
            drained: true,
            pool: Pool::new(BUFFERS_MAX_BYTES, session.export.memory.clone()),
            slots: Slab::new(),
            ready: Vec::new(),
            leaving: Vec::new(),
            outbox: Outbox::new(),
            sending: false,
            // The first is.
            unmeasured: MEASURED_SENDS - 1,
            sent_at: None,
            rests: false,
            rest: Box::default(),
            timer: Timer::Off,
            busy: false,
            moves: true,
            stalls: 0,
            starved: false,
            taken_down_by: None,
        }
    }

    /// Returns this connection, and the channel on which its remains come when it has closed.
    pub fn taken_down(mut self) -> (Connection, Receiver<Remains>) {
        let (closed, taken) = mpsc::sync_channel(1);
        self.taken_down_by = Some(closed);
        (self, taken)
    }

    fn fd(&self) -> types::Fd {
        types::Fd(self.socket.as_raw_fd())
    }

    /// Understand what has been received when it is this connection's turn.
    fn wait_turn(&self, context: &mut dyn PortContext) {
        context.wait_turn(self.id);
    }

    /// Understand what has been received, as far as there is room and the budget lasts, and arm the
    /// next receive. True when there is more in the inbox that another turn can take.
    fn take_requests(&mut self, budget: &mut Budget, context: &mut dyn PortContext) -> bool {
        self.starved = false;
        while self.phase == Phase::Serving {
            // The next receive would bring bytes past those in the inbox: it waits for them.
            if budget.is_spent() || !context.has_room(self.disk) {
                return true;
            }
            if !self.advance(budget, context) {
                break;
            }
        }
        if self.phase == Phase::Serving && !self.receiving && self.wants_bytes() {
            self.receive(context);
        }
        false
    }

    /// One step through the inbox. False when it has too little, or a request
    /// must wait for room.
    fn advance(&mut self, budget: &mut Budget, context: &mut dyn PortContext) -> bool {
        match self.expect {
            Expect::Header => self.begin_request(budget, context),
            Expect::Payload { slot, filled } => {
                let state = &mut self.slots[slot];
                let Data::Buffer(buffer) = &mut state.data else {
                    unreachable!("a payload is received into a buffer")
                };
                let len = state.request.len_bytes as usize;
                let piece = self.inbox.take(len - filled);
                let end = filled + piece.len();
                budget.spend((piece.len() as u64 / COPIED_BYTES) as u32);
                buffer.bytes()[filled..end].copy_from_slice(piece);
                if end < len {
                    self.expect = Expect::Payload { slot, filled: end };
                    return false;
                }
                self.expect = Expect::Header;
                self.submit(slot, context);
                true
            }
            Expect::Swallow { slot, left_bytes } => {
                let left_bytes = left_bytes - self.inbox.skip(left_bytes) as u64;
                if left_bytes > 0 {
                    self.expect = Expect::Swallow { slot, left_bytes };
                    return false;
                }
                self.expect = Expect::Header;
                self.ready.push(slot);
                true
            }
        }
    }

    fn begin_request(&mut self, budget: &mut Budget, context: &mut dyn PortContext) -> bool {
        let Some(header) = self.inbox.header() else { return false };
        let Some(request) = Request::parse(header) else {
            self.end(Phase::Broken, context);
            return false;
        };
        if !self.has_room() || self.stalls > 0 {
            return false;
        }
        budget.spend(Budget::REQUEST_WORK);
        match judge(&request, context.limits(self.disk), self.structured, self.allocation) {
            Verdict::Disconnect => self.end(Phase::Ending, context),
            Verdict::HangUp => self.end(Phase::Broken, context),
            Verdict::Refuse(refusal) => {
                let slot = self.insert(request, Reply::Failed(refusal));
                let left_bytes = u64::from(request.payload_bytes());
                self.expect = Expect::Swallow { slot, left_bytes };
                self.inbox.take_header();
            }
            Verdict::BlockStatus { one } => {
                self.block_status(request, one, context);
                self.inbox.take_header();
            }
            Verdict::Carry(action) => {
                let align = context.limits(self.disk).align_bytes;
                let len = request.len_bytes.into();
                budget.spend_on_order(action.op, request.offset_bytes, len, align);
                if action.op == Op::Read && context.copies_reads(self.disk) {
                    budget.spend_on_copy(len);
                }
                if !self.begin_action(request, action, context) {
                    return false;
                }
                self.inbox.take_header();
            }
        }
        self.busy = true;
        self.phase == Phase::Serving
    }

    /// False when there is no memory now: the request stays in the inbox.
    fn begin_action(
        &mut self,
        request: Request,
        action: Action,
        context: &mut dyn PortContext,
    ) -> bool {
        let data = match action.op.is_data() {
            false => Data::None,
            true => match self.pool.take(request.len_bytes) {
                Some(buffer) => Data::Buffer(buffer),
                // What is in use comes back, and then we try again; of others, after a while.
                None => {
                    self.starved = self.pool.used_bytes() == 0;
                    return false;
                }
            },
        };
        let reply = match action.op {
            Op::Read => {
                Reply::Data { offset_bytes: request.offset_bytes, len_bytes: request.len_bytes }
            }
            _ => Reply::Done,
        };
        let slot = self.insert(request, reply);
        self.slots[slot].data = data;
        self.slots[slot].action = action;
        match action.op {
            Op::Write => self.expect = Expect::Payload { slot, filled: 0 },
            _ => self.submit(slot, context),
        }
        true
    }

    /// Hand a request to the reactor, or reply that it will not have it.
    fn submit(&mut self, slot: usize, context: &mut dyn PortContext) {
        let (request, action) = (self.slots[slot].request, self.slots[slot].action);
        let flush = action.op == Op::Flush;
        let job = Job {
            disk: self.disk,
            port: self.id,
            token: slot as u64,
            op: action.op,
            offset: if flush { 0 } else { request.offset_bytes },
            len: if flush { 0 } else { u64::from(request.len_bytes) },
            priority: 0,
            fua: action.fua,
            unmap: action.unmap,
        };
        let iov_len = request.len_bytes as usize;
        let result = match &self.slots[slot].data {
            Data::Buffer(buffer) => {
                let iov_base = buffer.start().cast();
                context.submit(&job, &[libc::iovec { iov_base, iov_len }])
            }
            _ => context.submit(&job, &[]),
        };
        if let Err(Errno(errno)) = result {
            self.fail(slot, errno);
            self.ready.push(slot);
        }
    }

    fn fail(&mut self, slot: usize, errno: i32) {
        let error = NbdError::from_errno(errno);
        self.slots[slot].reply = Reply::Failed(Refusal::new(error, "the disk failed the request"));
    }

    fn block_status(&mut self, request: Request, one: bool, context: &mut dyn PortContext) {
        let max = if one { 2 } else { EXTENTS_MAX };
        let end = request.offset_bytes + u64::from(request.len_bytes);
        let slot = self.insert(request, Reply::Extents { len_bytes: 0 });
        context.block_status(self.id, slot as u64, request.offset_bytes..end, max);
    }

    /// Take no more requests, and close.
    fn end(&mut self, phase: Phase, context: &mut dyn PortContext) {
        self.phase = self.phase.max(phase);
        context.close(self.id);
    }

    /// The slot and its buffer are free again.
    fn release(&mut self, slot: usize) {
        if let Data::Buffer(buffer) = self.slots.remove(slot).data {
            self.pool.give(buffer);
        }
    }

    fn can_send(&self) -> bool {
        let is_free = !self.sending && !self.rests && self.phase < Phase::Broken;
        is_free && !self.ready.is_empty()
    }

    /// Is there something that the client is still to get?
    fn has_replies(&self) -> bool {
        self.phase < Phase::Broken && (self.sending || self.has_begun_requests())
    }

    /// Is a request under way whose payload has come?
    fn has_begun_requests(&self) -> bool {
        self.slots.len() > usize::from(self.expect != Expect::Header)
    }

    /// Is there room for one more request?
    fn has_room(&self) -> bool {
        self.slots.len() < REQUESTS_MAX
    }

    /// The slot of a request without data and action. Only while there is room.
    fn insert(&mut self, request: Request, reply: Reply) -> usize {
        let action = Action { op: Op::Flush, fua: false, unmap: false };
        self.slots.insert(Slot { request, action, reply, data: Data::None })
    }
}

impl Port for Connection {
    fn disk(&self) -> DiskId {
        self.disk
    }

    fn open(&mut self, id: PortId, context: &mut dyn PortContext) {
        self.id = id;
        self.wait_turn(context);
    }

    fn event(&mut self, tag: u32, result: i32, _more: bool, context: &mut dyn PortContext) {
        match tag {
            RECEIVE => self.received(result, context),
            SEND => self.sent(result, context),
            REST => self.rests = false,
            _ => self.timer_ended(context),
        }
    }

    fn take(&mut self, budget: &mut Budget, context: &mut dyn PortContext) -> bool {
        self.take_requests(budget, context)
    }

    fn done(&mut self, token: u64, result: Result<(), Errno>, context: &mut dyn PortContext) {
        let slot = token as usize;
        let action = self.slots[slot].action;
        match result {
            Err(Errno(errno)) => self.fail(slot, errno),
            // A job of discard knows no durability; a flush behind it does.
            Ok(()) if action.op == Op::Discard && action.fua => {
                self.slots[slot].action = Action { op: Op::Flush, fua: false, unmap: false };
                return self.submit(slot, context);
            }
            Ok(()) => {}
        }
        self.ready.push(slot);
    }

    fn runs(&mut self, token: u64, runs: Vec<(u64, bool)>, context: &mut dyn PortContext) {
        let slot = token as usize;
        let request = self.slots[slot].request;
        let one = request.flags & CMD_FLAG_REQ_ONE != 0;
        let limits = context.limits(self.disk);
        let block = limits.least_bytes().max(limits.align_bytes);
        let is_whole = |n: u64| n.is_multiple_of(block.into());
        let whole = is_whole(request.offset_bytes) && is_whole(request.len_bytes.into());
        let align = if whole { block } else { 1 };
        let mut bytes = Vec::new();
        for (len, state) in request::extents(&runs, request.len_bytes, align, one) {
            bytes.extend(len.to_be_bytes());
            bytes.extend(state.to_be_bytes());
        }
        self.slots[slot].reply = Reply::Extents { len_bytes: bytes.len() as u32 };
        self.slots[slot].data = Data::Bytes(bytes);
        self.ready.push(slot);
    }

    fn flush(&mut self, context: &mut dyn PortContext) {
        while self.can_send() {
            self.send(context);
        }
        if self.phase == Phase::Broken {
            let ready = std::mem::take(&mut self.ready);
            ready.into_iter().for_each(|slot| self.release(slot));
        }
        match self.timer {
            Timer::Off if self.closing => {}
            Timer::Off if self.sending || self.pool.held_bytes() + self.outbox.held_bytes() > 0 => {
                self.arm_timer(Timer::Idle, context);
            }
            Timer::Off if self.starved => self.arm_timer(Timer::Retry, context),
            Timer::Linger if !self.has_replies() => context.cancel(self.id, TIMER),
            _ => {}
        }
    }

    fn message(&mut self, _message: Box<dyn Any + Send>, _context: &mut dyn PortContext) {}

    fn closing(&mut self, context: &mut dyn PortContext) {
        self.closing = true;
        self.phase = self.phase.max(Phase::Ending);
        if self.receiving {
            context.cancel(self.id, RECEIVE);
        }
        if self.phase == Phase::Broken {
            self.cancel_sending(context);
        }
        match self.timer {
            // Its end begins the lingering.
            Timer::Idle | Timer::Retry | Timer::Linger => context.cancel(self.id, TIMER),
            Timer::Off if self.has_replies() => self.arm_timer(Timer::Linger, context),
            Timer::Off => {}
        }
    }

    fn closed(self: Box<Self>) {
        // The socket closes here. A thread that carries bytes to it then ends, too.
        let Connection { _held, pool, slots, taken_down_by, .. } = *self;
        if let Some(thread) = taken_down_by {
            let _ = thread.send(Remains { _held, _pool: pool, _slots: slots });
        }
    }
}

// Requests between header and reply, by small numbers that are reused.

/// Data of a request besides its header.
enum Data {
    /// No data: the operation has none, or the request is refused.
    None,
    /// Data that are read or written.
    Buffer(Buffer),
    /// A reply that is made here.
    Bytes(Vec<u8>),
}

/// A request under way.
struct Slot {
    /// The header as the client sent it.
    pub request: Request,
    /// Action to ask of the reactor, if any.
    pub action: Action,
    /// Reply to the client when the request is done.
    pub reply: Reply,
    pub data: Data,
}

// The one timer of a connection: when memory is given back, when it is asked for again, and when
// a client has stood still for too long.

/// After this long without a request the connection gives its memory back.
const IDLE: types::Timespec = types::Timespec::new().sec(2);
/// When there was no memory because other clients of the disk had it: how soon to look again.
const RETRY: types::Timespec = types::Timespec::new().nsec(100_000_000);
/// Number of [`IDLE`] periods in which a client may read nothing of its replies, or send nothing of
/// a payload: 30 s.
const STALLS_MAX: u32 = 15;
/// Longest delay of the closing by a client that does not read its replies.
const LINGER: types::Timespec = types::Timespec::new().sec(1);

/// Purpose of the timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timer {
    Off,
    /// Memory, when it ends with no request since it began; and clients that stand still.
    Idle,
    /// Memory that other clients have.
    Retry,
    Linger,
}

impl Connection {
    fn arm_timer(&mut self, timer: Timer, context: &mut dyn PortContext) {
        let time = match timer {
            Timer::Off => return,
            Timer::Idle => &IDLE,
            Timer::Retry => &RETRY,
            Timer::Linger => &LINGER,
        };
        (self.timer, self.busy) = (timer, false);
        self.moves = !self.sending && !self.wants_payload();
        // SAFETY: the time is a constant.
        unsafe { context.push(self.id, TIMER, opcode::Timeout::new(time).build()) };
    }

    fn timer_ended(&mut self, context: &mut dyn PortContext) {
        let ended = std::mem::replace(&mut self.timer, Timer::Off);
        match ended {
            Timer::Retry if !self.closing => self.wait_turn(context),
            Timer::Idle if !self.closing => {
                if !self.moves {
                    self.stalls += 1;
                    if self.stalls >= STALLS_MAX {
                        return self.end(Phase::Broken, context);
                    }
                }
                if self.starved {
                    self.wait_turn(context);
                }
                if self.busy || !self.slots.is_empty() {
                    return self.arm_timer(Timer::Idle, context);
                }
                self.pool.clear();
                self.outbox.shrink();
            }
            Timer::Linger if self.sending || self.rests => {
                self.phase = Phase::Broken;
                self.cancel_sending(context);
            }
            // Cancelled because the port closes: replies still have their time.
            _ if self.closing && self.has_replies() => self.arm_timer(Timer::Linger, context),
            _ => {}
        }
    }
}

// Bytes from the client: where they go, and what was brought in.

/// A payload of which more than this is missing is received for itself; less,
/// together with what follows it.
const PAYLOAD_ALONE_BYTES: usize = 64 << 10;
/// Most bytes of one receive for a payload alone: a client has to send them in the time that it has
/// for it.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// `IORING_RECVSEND_POLL_FIRST`: wait for data before the first attempt to receive.
const POLL_FIRST: u16 = 1;

/// A message header with room for a payload and the inbox.
struct Scatter {
    message: libc::msghdr,
    pieces: [libc::iovec; 2],
}

// SAFETY: it points to the connection's own memory, and only while a receive
// is armed.
unsafe impl Send for Scatter {}

impl Scatter {
    pub fn new() -> Scatter {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: zeroes are a message header without address, pieces and control data.
        let message = unsafe { std::mem::zeroed() };
        Scatter { message, pieces: [nothing; 2] }
    }
}

impl Connection {
    /// Is it more bytes that are missing, and not room?
    fn wants_bytes(&self) -> bool {
        match self.expect {
            Expect::Header => self.inbox.header().is_none() && self.has_room() && self.stalls == 0,
            Expect::Payload { .. } | Expect::Swallow { .. } => true,
        }
    }

    /// Has a request its buffer, and not its payload?
    fn wants_payload(&self) -> bool {
        matches!(self.expect, Expect::Payload { .. })
    }

    /// Arm a receive for what comes next: into the payload, the inbox, or both.
    fn receive(&mut self, context: &mut dyn PortContext) {
        let fd = self.fd();
        let poll_first = if self.drained { POLL_FIRST } else { 0 };
        let space = self.inbox.space();
        let (base, len) = (space.as_mut_ptr(), space.len());
        let entry = match self.expect {
            Expect::Payload { slot, filled } => {
                let Data::Buffer(buffer) = &self.slots[slot].data else {
                    unreachable!("a payload is received into a buffer")
                };
                let left = self.slots[slot].request.len_bytes as usize - filled;
                let into = buffer.start().wrapping_add(filled);
                if left > PAYLOAD_ALONE_BYTES {
                    opcode::Recv::new(fd, into, left.min(PIECE_BYTES_MAX) as u32)
                        .flags(libc::MSG_WAITALL)
                        .ioprio(poll_first)
                        .build()
                } else {
                    let Scatter { message, pieces } = &mut *self.scatter;
                    pieces[0] = libc::iovec { iov_base: into.cast(), iov_len: left };
                    pieces[1] = libc::iovec { iov_base: base.cast(), iov_len: len };
                    message.msg_iov = pieces.as_mut_ptr();
                    message.msg_iovlen = pieces.len();
                    opcode::RecvMsg::new(fd, &raw mut *message).ioprio(poll_first).build()
                }
            }
            _ => opcode::Recv::new(fd, base, len as u32).ioprio(poll_first).build(),
        };
        self.receiving = true;
        // SAFETY: inbox, scatter and buffer are not moved, read or freed while
        // `receiving`, and the reactor keeps the port until the CQE has come.
        unsafe { context.push(self.id, RECEIVE, entry) };
    }

    fn received(&mut self, result: i32, context: &mut dyn PortContext) {
        self.receiving = false;
        if matches!(-result, libc::EINTR | libc::EAGAIN) {
            return self.wait_turn(context);
        }
        if result <= 0 {
            // The end, between requests or within one; a client that has only
            // closed its sending half still gets its replies.
            let phase = if result == 0 { Phase::Ending } else { Phase::Broken };
            // A cancelled receive is our own closing.
            return self.end(if self.closing { self.phase } else { phase }, context);
        }
        let mut len = result as usize;
        if self.wants_payload() && !self.sending {
            (self.moves, self.stalls) = (true, 0);
        }
        if let Expect::Payload { slot, filled } = self.expect {
            let left = self.slots[slot].request.len_bytes as usize - filled;
            let direct = len.min(left);
            self.expect = Expect::Payload { slot, filled: filled + direct };
            len -= direct;
            self.drained = direct < left.min(PIECE_BYTES_MAX);
        }
        self.inbox.received(len);
        if len > 0 {
            self.drained = !self.inbox.is_full();
        }
        self.wait_turn(context);
    }
}

// Replies on their way to the client: one message at a time. A client can make each send slow, by
// thousands of waiters at its socket. Then a worker of the kernel sends, and seldom.

/// One in this number of messages is measured, and stands for all: it tells how long sending takes
/// because of the peer.
const MEASURED_SENDS: u32 = 32;

impl Connection {
    /// Gather what is ready into one message, and send it. Where sending takes long, later.
    fn send(&mut self, context: &mut dyn PortContext) {
        let (toll, now) = (self.pool.toll(), Instant::now);
        if toll.is_owed(now)
            && toll.is_high(now())
            && let Some(time) = toll.rest(now())
        {
            *self.rest = time.into();
            self.rests = true;
            // SAFETY: the time stays as it is while it `rests`, and the reactor keeps the port
            // until the CQE has come.
            unsafe {
                context.push(self.id, REST, opcode::Timeout::new(&raw const *self.rest).build())
            };
            return;
        }
        self.outbox.clear();
        let mut taken = 0;
        for &slot in &self.ready {
            if !self.outbox.has_room() {
                break;
            }
            taken += 1;
            let state = &self.slots[slot];
            let Request { command, cookie, .. } = state.request;
            let chunked = self.structured && matches!(command, CMD_READ | CMD_BLOCK_STATUS);
            let data = match (&state.data, state.reply) {
                (Data::Buffer(buffer), Reply::Data { len_bytes, .. }) => {
                    Some((buffer.start().cast_const(), len_bytes as usize))
                }
                (Data::Bytes(bytes), Reply::Extents { .. }) => Some((bytes.as_ptr(), bytes.len())),
                _ => None,
            };
            self.outbox.push(|out| request::header(out, cookie, state.reply, chunked), data);
        }
        self.leaving.extend(self.ready.drain(..taken));
        self.send_message(context);
    }

    /// Send what of the message is left: at once as far as the socket takes it, and what it does not
    /// take when it has room.
    fn send_message(&mut self, context: &mut dyn PortContext) {
        let toll = self.pool.toll();
        let is_owed = toll.is_owed(Instant::now);
        if is_owed && toll.is_high(Instant::now()) {
            // A worker of the kernel's sends.
            self.sent_at.get_or_insert_with(Instant::now);
            return self.push_message(squeue::Flags::ASYNC, context);
        }
        self.unmeasured += 1;
        let is_measured = is_owed || self.unmeasured >= MEASURED_SENDS;
        let (socket, message) = (self.socket.as_raw_fd(), self.outbox.message());
        // SAFETY: outbox and the leaving slots' data are there.
        let (result, took) = unsafe { context.send(socket, message, is_measured) };
        if is_measured {
            let copying = Duration::from_nanos(self.outbox.message_bytes() as u64);
            let (waking, sends) = (took.saturating_sub(copying), self.unmeasured);
            toll.charge(Instant::now(), waking, if is_owed { 1 } else { sends });
            self.unmeasured = 0;
        }
        match self.is_more_left(result, context) {
            true => self.push_message(squeue::Flags::empty(), context),
            false => self.all_sent(context),
        }
    }

    fn push_message(&mut self, flags: squeue::Flags, context: &mut dyn PortContext) {
        let message = self.outbox.message();
        let waits = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let entry = opcode::SendMsg::new(self.fd(), message).flags(waits).build();
        self.sending = true;
        // SAFETY: outbox and the leaving slots' data stay as they are while
        // `sending`, and the reactor keeps the port until the CQE has come.
        unsafe { context.push(self.id, SEND, entry.flags(flags)) };
    }

    fn sent(&mut self, result: i32, context: &mut dyn PortContext) {
        self.sending = false;
        match self.is_more_left(result, context) {
            true => self.send_message(context),
            false => self.all_sent(context),
        }
    }

    /// Takes the result of a send: a number of bytes, or an error. Is there more to send?
    fn is_more_left(&mut self, result: i32, context: &mut dyn PortContext) -> bool {
        // A client that does not read leaves no room.
        if result != -libc::EAGAIN {
            (self.moves, self.stalls) = (true, 0);
        }
        match result {
            _ if self.phase == Phase::Broken => false,
            0.. => !self.outbox.advance(result as usize),
            _ if matches!(-result, libc::EINTR | libc::EAGAIN) => true,
            _ => {
                self.end(Phase::Broken, context);
                false
            }
        }
    }

    fn all_sent(&mut self, context: &mut dyn PortContext) {
        if let Some(at) = self.sent_at.take() {
            let now = Instant::now();
            self.pool.toll().called(now, now - at);
        }
        let leaving = std::mem::take(&mut self.leaving);
        leaving.iter().for_each(|&slot| self.release(slot));
        self.leaving = leaving;
        self.leaving.clear();
        // Requests that wait for room keep it from receiving.
        if !self.receiving {
            self.wait_turn(context);
        }
    }

    /// Gives up sending the replies that are ready.
    fn cancel_sending(&mut self, context: &mut dyn PortContext) {
        for (is_under_way, tag) in [(self.sending, SEND), (self.rests, REST)] {
            if is_under_way {
                context.cancel(self.id, tag);
            }
        }
    }
}

#[cfg(test)]
mod tests;
