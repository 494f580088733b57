//! A virtqueue as the reactor sees it: kicks come in, jobs go out, the guest is
//! called.

use super::dirty_log::Logging;
use super::doorbell::{BROKEN, Bell, CALL, Doorbell, Notes};
use super::listeners::ConfigListeners;
use super::memory::GuestMemory;
use super::request::{Ask, Request, STATUS_IOERR, STATUS_OK, STATUS_UNSUPP};
use super::ring::Parts;
use super::vring::{Broken, Taken, Vring};
use crate::port::{Budget, DiskId, Errno, Job, Port, PortContext, PortId};
use io_uring::{opcode, types};
use libc::iovec;
use seekway_core::request::Op;
use std::any::Any;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Instant;

/// The tag of the SQE that watches the kick eventfd.
const KICK: u32 = 0;

/// Message of the connection's thread to an open port.
pub enum PortMessage {
    /// The guest's memory is another; the virtqueue's parts are now here in it.
    /// The reply comes when nothing new will use the old one.
    Memory(Parts, Arc<GuestMemory>, SyncSender<()>),
    /// Call the guest here. The reply is what was used before: taking it down takes time.
    Call(Option<Bell>, SyncSender<Option<Bell>>),
    /// Log what is written to the guest's memory, or log no more. The reply comes when all that is
    /// written from then on is logged, and is what was used before.
    Log(Option<Logging>, SyncSender<Option<Logging>>),
}

/// A port that has closed.
pub struct Closed {
    /// Where the available ring goes on.
    pub base: u16,
    /// The port: taking it down takes time.
    pub _port: Box<dyn Any + Send>,
}

/// Parts of a port besides the virtqueue.
pub struct Wiring {
    /// For messages: the disk and the number of the queue.
    pub name: String,
    /// The disk whose requests come by the virtqueue.
    pub disk: DiskId,
    /// The guest kicks here.
    pub kick: Doorbell,
    /// Call the guest here; `None` for a guest that polls.
    pub call: Option<Bell>,
    /// The number of the virtqueue.
    pub queue: u16,
    /// Where to leave what the connection's thread is to do.
    pub notes: Arc<Notes>,
    /// Writes must be durable before they are done: there is no cache that
    /// the guest could flush. Shared by all queues of a device.
    pub write_through: Arc<AtomicBool>,
    /// The VMM, to hang up on it.
    pub peer: Arc<ConfigListeners>,
    /// Hears when the port has closed.
    pub closed: SyncSender<Closed>,
}

#[derive(PartialEq, Eq)]
enum State {
    Open,
    /// Jobs end, nothing new is taken.
    Stopped,
}

/// A virtqueue in a reactor.
pub struct VringPort {
    vring: Vring,
    wiring: Wiring,
    id: Option<PortId>,
    state: State,
}

/// Why a port stops.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Ring(#[from] Broken),
    #[error("its kick eventfd cannot be watched: {0}")]
    Kick(io::Error),
}

impl VringPort {
    /// A port, to be opened.
    pub fn new(vring: Vring, wiring: Wiring) -> VringPort {
        VringPort { vring, wiring, id: None, state: State::Open }
    }

    fn arm(&self, context: &mut dyn PortContext) {
        let Some(id) = self.id else { return };
        let fd = types::Fd(self.wiring.kick.as_raw_fd());
        // Multishot, and edge-triggered as io_uring has it: each write to the
        // eventfd is an event, and nobody has to read it.
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
        // SAFETY: points to nothing.
        unsafe { context.push(id, KICK, entry) }
    }

    /// Take what is available, as far as the budget and the disk's room go. True when that is
    /// where it ended.
    fn take_chains(
        &mut self,
        id: PortId,
        budget: &mut Budget,
        context: &mut dyn PortContext,
    ) -> Result<bool, Broken> {
        let disk = self.wiring.disk;
        let write_through = self.wiring.write_through.load(Ordering::Relaxed);
        let align = context.limits(disk).align_bytes;
        let copies = context.copies_reads(disk);
        while !budget.is_spent() && context.has_room(disk) {
            let taken = self.vring.take(|head, request, pieces| {
                if let Ask::Carry { op, offset, len, .. } = request.ask {
                    budget.spend_on_order(op, offset, len, align);
                    if op == Op::Read && copies {
                        budget.spend_on_copy(len);
                    }
                }
                submit(context, disk, id, head, request, write_through, pieces)
            })?;
            let Some(descriptors) = taken else { return Ok(false) };
            budget.spend(Budget::REQUEST_WORK + descriptors);
        }
        Ok(true)
    }

    fn wait_turn(&self, context: &mut dyn PortContext) {
        if let Some(id) = self.id {
            context.wait_turn(id);
        }
    }

    /// Stop when memory of the guest was taken away.
    fn check_memory(&mut self, context: &mut dyn PortContext) {
        if self.state == State::Open
            && let Err(lost) = self.vring.check_memory()
        {
            self.fail(lost.into(), context);
        }
    }

    /// Stop for good: the guest or its VMM has to set the queue up anew.
    fn fail(&mut self, fault: Fault, context: &mut dyn PortContext) {
        let Wiring { peer, name, .. } = &self.wiring;
        peer.say(|| format!("{name}: stopped, because of the guest: {fault}"));
        self.stop(context);
        if self.vring.check_memory().is_err() {
            // No other queue can go on with this memory: hang up.
            self.wiring.peer.disconnect();
        }
        self.wiring.notes.leave(self.wiring.queue, BROKEN);
    }

    fn stop(&mut self, context: &mut dyn PortContext) {
        if self.state == State::Open
            && let Some(id) = self.id
        {
            self.state = State::Stopped;
            context.cancel(id, KICK);
        }
    }

    /// Show the guest what is done, and call it when it wants that.
    fn publish(&mut self) {
        if self.vring.publish() {
            self.call();
        }
    }

    /// Call the guest whether it wants that or not, which VIRTIO allows.
    fn call(&mut self) {
        let Wiring { call: Some(call), peer, notes, queue, .. } = &mut self.wiring else { return };
        let now = Instant::now();
        if peer.toll.is_high(now) && notes.has_reader() {
            return notes.leave(*queue, CALL);
        }
        let began = peer.toll.begin(now);
        call.ring();
        peer.toll.end(&began, Instant::now());
    }
}

/// Hand a request on to the reactor.
fn submit(
    context: &mut dyn PortContext,
    disk: DiskId,
    port: PortId,
    head: u16,
    request: &Request,
    write_through: bool,
    pieces: &[iovec],
) -> Taken {
    let Ask::Carry { op, offset, len, unmap } = request.ask else {
        return Taken::Refused(STATUS_UNSUPP);
    };
    let job = Job {
        disk,
        port,
        token: u64::from(head),
        op,
        offset,
        len,
        priority: request.priority,
        fua: write_through && matches!(op, Op::Write | Op::WriteZeroes),
        unmap,
    };
    match context.submit(&job, pieces) {
        Ok(()) => Taken::Submitted,
        Err(errno) => Taken::Refused(status(Err(errno))),
    }
}

/// Status byte for the guest.
fn status(result: Result<(), Errno>) -> u8 {
    match result {
        Ok(()) => STATUS_OK,
        Err(Errno(libc::ENOTSUP)) => STATUS_UNSUPP,
        Err(_) => STATUS_IOERR,
    }
}

impl Port for VringPort {
    fn disk(&self) -> DiskId {
        self.wiring.disk
    }

    fn open(&mut self, id: PortId, context: &mut dyn PortContext) {
        self.id = Some(id);
        self.arm(context);
        // A kick from before the queue was ours, or before a restart, comes
        // no second time.
        context.wait_turn(id);
        // A daemon that was killed may have published requests and not called the
        // guest, which then waits for ever: nothing in the ring tells.
        self.call();
    }

    fn event(&mut self, _tag: u32, result: i32, more: bool, context: &mut dyn PortContext) {
        if self.state != State::Open {
            return;
        }
        if result < 0 {
            return self.fail(Fault::Kick(io::Error::from_raw_os_error(-result)), context);
        }
        if !more {
            self.arm(context);
        }
        self.wait_turn(context);
    }

    fn take(&mut self, budget: &mut Budget, context: &mut dyn PortContext) -> bool {
        let (State::Open, Some(id)) = (&self.state, self.id) else { return false };
        self.take_chains(id, budget, context).unwrap_or_else(|broken| {
            self.fail(broken.into(), context);
            false
        })
    }

    fn done(&mut self, token: u64, result: Result<(), Errno>, _context: &mut dyn PortContext) {
        let head = token as u16; // of which it was made
        let is_abandoned = self.state == State::Stopped && result == Err(Errno(libc::ESHUTDOWN));
        if !(is_abandoned && self.vring.leave_in_flight(head)) {
            self.vring.done(head, status(result));
        }
    }

    fn flush(&mut self, context: &mut dyn PortContext) {
        self.publish();
        self.check_memory(context);
    }

    fn message(&mut self, message: Box<dyn Any + Send>, _context: &mut dyn PortContext) {
        let Ok(message) = message.downcast::<PortMessage>() else { return };
        match *message {
            PortMessage::Memory(parts, memory, reply) => {
                // SAFETY: the connection's thread has found the parts in this memory.
                unsafe { self.vring.relocate(parts, memory) };
                // Nobody waits any more when the connection is ending.
                let _ = reply.send(());
            }
            PortMessage::Call(call, reply) => {
                let _ = reply.send(std::mem::replace(&mut self.wiring.call, call));
                // What was published while the guest listened elsewhere, or nowhere.
                self.call();
            }
            PortMessage::Log(logging, reply) => {
                let _ = reply.send(self.vring.set_logging(logging));
            }
        }
    }

    fn closing(&mut self, context: &mut dyn PortContext) {
        self.stop(context);
    }

    fn closed(mut self: Box<Self>) {
        self.publish();
        self.vring.leave();
        // Nobody waits when the connection has given up on the reactor.
        let (base, closed) = (self.vring.base(), self.wiring.closed.clone());
        let _ = closed.send(Closed { base, _port: self });
    }

    fn poll(&mut self, context: &mut dyn PortContext) -> bool {
        let has_work = self.state == State::Open && self.vring.has_work();
        if has_work {
            self.wait_turn(context);
        }
        has_work
    }
}
