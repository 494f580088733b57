//! Replies on their way to the client: one message at a time. A client can make each send slow, by
//! thousands of waiters at its socket. Then a worker of the kernel sends, and seldom.

use super::{Connection, Data, Phase, REST, SEND};
use crate::frontends::nbd::reply::{self, Reply};
use crate::frontends::nbd::request::Request;
use crate::frontends::nbd::wire::{CMD_BLOCK_STATUS, CMD_READ};
use crate::port::PortContext;
use io_uring::{opcode, squeue};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// One in this number of messages is measured, and stands for all: it tells how long sending takes
/// because of the peer.
pub const MEASURED_SENDS: u32 = 32;

impl Connection {
    /// Gather what is ready into one message, and send it. Where sending takes long, later.
    pub(super) fn send(&mut self, context: &mut dyn PortContext) {
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
            self.outbox.push(|out| reply::header(out, cookie, state.reply, chunked), data);
        }
        self.leaving.extend(self.ready.drain(..taken));
        self.send_message(context);
    }

    /// Send what of the message is left: at once as far as the socket takes it, and what it does not
    /// take when it has room.
    pub(super) fn send_message(&mut self, context: &mut dyn PortContext) {
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

    pub(super) fn sent(&mut self, result: i32, context: &mut dyn PortContext) {
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
    pub(super) fn cancel_sending(&mut self, context: &mut dyn PortContext) {
        for (is_under_way, tag) in [(self.sending, SEND), (self.rests, REST)] {
            if is_under_way {
                context.cancel(self.id, tag);
            }
        }
    }
}
