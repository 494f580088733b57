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

mod receive;
mod send;
mod slots;
#[cfg(test)]
mod tests;
mod timer;

use super::buffers::{Inbox, Pool};
use super::options::Session;
use super::outbox::Outbox;
use super::reply::{self, Reply};
use super::request::{Action, Refusal, Request, Verdict, judge};
use super::wire::{CMD_FLAG_REQ_ONE, NbdError};
use crate::images::Limits;
use crate::port::{Budget, DiskId, Errno, Job, Port, PortContext, PortId};
use io_uring::types;
use receive::Scatter;
use seekway_core::request::Op;
use send::MEASURED_SENDS;
use slots::{Data, Slots};
use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Instant;
use timer::Timer;

/// Requests between header and reply.
const REQUESTS_MAX: usize = 1024;
/// Memory for their data.
const BUFFERS_MAX_BYTES: usize = 64 << 20;
/// Most bytes that one receive brings in.
const INBOX_BYTES: usize = 128 << 10;
/// Bytes of a payload that are copied for one unit of a turn's [`Budget`].
const COPIED_BYTES: usize = 128;
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
        slot: u32,
        filled: usize,
    },
    /// The rest of the payload of a request that is refused.
    Swallow {
        slot: u32,
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
    slots: Slots,
    /// Done, to be replied to.
    ready: Vec<u32>,
    /// Slots whose replies are in the outbox.
    leaving: Vec<u32>,
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
    _slots: Slots,
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
            slots: Slots::new(REQUESTS_MAX),
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
                budget.spend((piece.len() / COPIED_BYTES) as u32);
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
        if !self.slots.has_room() || self.stalls > 0 {
            return false;
        }
        budget.spend(Budget::REQUEST_WORK);
        match judge(&request, context.limits(self.disk), self.structured, self.allocation) {
            Verdict::Disconnect => self.end(Phase::Ending, context),
            Verdict::HangUp => self.end(Phase::Broken, context),
            Verdict::Refuse(refusal) => {
                let slot = self.slots.insert(request, Reply::Failed(refusal));
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
        let slot = self.slots.insert(request, reply);
        self.slots[slot].data = data;
        self.slots[slot].action = action;
        match action.op {
            Op::Write => self.expect = Expect::Payload { slot, filled: 0 },
            _ => self.submit(slot, context),
        }
        true
    }

    /// Hand a request to the reactor, or reply that it will not have it.
    fn submit(&mut self, slot: u32, context: &mut dyn PortContext) {
        let (request, action) = (self.slots[slot].request, self.slots[slot].action);
        let flush = action.op == Op::Flush;
        let job = Job {
            disk: self.disk,
            port: self.id,
            token: u64::from(slot),
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

    fn fail(&mut self, slot: u32, errno: i32) {
        let error = NbdError::from_errno(errno);
        self.slots[slot].reply = Reply::Failed(Refusal::new(error, "the disk failed the request"));
    }

    fn block_status(&mut self, request: Request, one: bool, context: &mut dyn PortContext) {
        let max = if one { 2 } else { EXTENTS_MAX };
        let end = request.offset_bytes + u64::from(request.len_bytes);
        let slot = self.slots.insert(request, Reply::Extents { len_bytes: 0 });
        context.block_status(self.id, slot.into(), request.offset_bytes..end, max);
    }

    /// Take no more requests, and close.
    fn end(&mut self, phase: Phase, context: &mut dyn PortContext) {
        self.phase = self.phase.max(phase);
        context.close(self.id);
    }

    /// The slot and its buffer are free again.
    fn release(&mut self, slot: u32) {
        if let Data::Buffer(buffer) = self.slots.remove(slot) {
            self.pool.give(buffer);
        }
    }

    fn can_send(&self) -> bool {
        let is_free = !self.sending && !self.rests && self.phase < Phase::Broken;
        is_free && !self.ready.is_empty()
    }

    /// Is there something that the client is still to get?
    fn has_replies(&self) -> bool {
        self.phase < Phase::Broken && (self.sending || self.slots.is_busy(self.expect_slot()))
    }

    /// The slot of a request whose payload has not come.
    fn expect_slot(&self) -> Option<u32> {
        match self.expect {
            Expect::Header => None,
            Expect::Payload { slot, .. } | Expect::Swallow { slot, .. } => Some(slot),
        }
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
        let slot = token as u32;
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
        let slot = token as u32;
        let request = self.slots[slot].request;
        let one = request.flags & CMD_FLAG_REQ_ONE != 0;
        let limits = context.limits(self.disk);
        let block = limits.least_bytes().max(limits.align_bytes);
        let is_whole = |n: u64| n.is_multiple_of(block.into());
        let whole = is_whole(request.offset_bytes) && is_whole(request.len_bytes.into());
        let align = if whole { block } else { 1 };
        let mut bytes = Vec::new();
        for (len, state) in reply::extents(&runs, request.len_bytes, align, one) {
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
