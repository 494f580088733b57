//! Bytes from the client: where they go, and what was brought in.

use super::slots::Data;
use super::{Connection, Expect, Phase, RECEIVE};
use crate::port::PortContext;
use io_uring::opcode;

/// A payload of which more than this is missing is received for itself; less,
/// together with what follows it.
const PAYLOAD_ALONE_BYTES: usize = 64 << 10;
/// Most bytes of one receive for a payload alone: a client has to send them in the time that it has
/// for it.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// `IORING_RECVSEND_POLL_FIRST`: wait for data before the first attempt to receive.
const POLL_FIRST: u16 = 1;

/// A message header with room for a payload and the inbox.
pub struct Scatter {
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
    pub(super) fn wants_bytes(&self) -> bool {
        match self.expect {
            Expect::Header => {
                self.inbox.header().is_none() && self.slots.has_room() && self.stalls == 0
            }
            Expect::Payload { .. } | Expect::Swallow { .. } => true,
        }
    }

    /// Has a request its buffer, and not its payload?
    pub(super) fn wants_payload(&self) -> bool {
        matches!(self.expect, Expect::Payload { .. })
    }

    /// Arm a receive for what comes next: into the payload, the inbox, or both.
    pub(super) fn receive(&mut self, context: &mut dyn PortContext) {
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

    pub(super) fn received(&mut self, result: i32, context: &mut dyn PortContext) {
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
