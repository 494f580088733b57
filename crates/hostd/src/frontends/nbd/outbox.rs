//! Headers and data of many replies, which a connection sends in one message. One value is reused
//! for every batch; while a message is under way, nothing in it moves.

use super::request::HEADER_LEN_MAX;

/// Room for headers: a batch ends when it is used up.
const HEADERS_LEN: usize = 16 << 10;

/// Most pieces that one message may have (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Bytes that are sent at once: what a client has to read in the time that it has for it.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A batch of replies.
pub struct Outbox {
    /// Never grows beyond its first capacity, so that pieces may point into it.
    headers: Vec<u8>,
    pieces: Vec<libc::iovec>,
    /// Pieces before this one have been sent.
    sent: usize,
    /// Parts of the rest that are sent next.
    next: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
}

// SAFETY: the pointers lead to the box's own headers and to buffers that the
// connection owns and keeps beside it.
unsafe impl Send for Outbox {}

impl Outbox {
    pub fn new() -> Outbox {
        // SAFETY: a message header of zeroes is one without address, pieces and control data.
        let message = Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        Outbox { headers: Vec::new(), pieces: Vec::new(), sent: 0, next: Vec::new(), message }
    }

    /// Begin a new batch. Only when none is under way.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.pieces.clear();
        self.headers.reserve(HEADERS_LEN);
        self.sent = 0;
    }

    /// Give back memory. Only when none is under way.
    pub fn shrink(&mut self) {
        self.headers = Vec::new();
        self.pieces = Vec::new();
        self.next = Vec::new();
        self.sent = 0;
    }

    /// Memory for headers.
    pub fn held_bytes(&self) -> usize {
        self.headers.capacity()
    }

    /// Bytes of the message that [`Outbox::message`] gave.
    pub fn message_bytes(&self) -> usize {
        self.next.iter().map(|piece| piece.iov_len).sum()
    }

    /// Is there room for one more reply?
    pub fn has_room(&self) -> bool {
        self.headers.len() + HEADER_LEN_MAX <= HEADERS_LEN && self.pieces.len() + 2 <= PIECES_MAX
    }

    /// Append a reply: `header` writes its header, at most [`HEADER_LEN_MAX`]
    /// bytes; the data lie at `data` and stay there until all is sent. Only
    /// while there is room.
    pub fn push(&mut self, header: impl FnOnce(&mut Vec<u8>), data: Option<(*const u8, usize)>) {
        let start = self.headers.len();
        header(&mut self.headers);
        assert!(self.headers.len() <= HEADERS_LEN, "headers outgrew their room");
        let base = self.headers[start..].as_ptr();
        self.push_piece(base, self.headers.len() - start);
        if let Some((base, len)) = data {
            self.push_piece(base, len);
        }
    }

    /// Pieces that touch are joined: headers without data make one piece.
    fn push_piece(&mut self, base: *const u8, len: usize) {
        let base = base.cast_mut().cast::<libc::c_void>();
        match self.pieces.last_mut() {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == base => {
                last.iov_len += len;
            }
            _ => self.pieces.push(libc::iovec { iov_base: base, iov_len: len }),
        }
    }

    /// The message to send next, a bounded part of what is left; it and all that it points to stay where they
    /// are until [`Outbox::clear`] or [`Outbox::advance`].
    pub fn message(&mut self) -> *const libc::msghdr {
        self.next.clear();
        let mut room = MESSAGE_BYTES_MAX;
        for piece in &self.pieces[self.sent..] {
            let iov_len = piece.iov_len.min(room);
            self.next.push(libc::iovec { iov_len, ..*piece });
            room -= iov_len;
            if room == 0 {
                break;
            }
        }
        self.message.msg_iovlen = self.next.len();
        self.message.msg_iov = self.next.as_mut_ptr();
        &raw const *self.message
    }

    /// `len_bytes` have been sent. True when nothing is left.
    pub fn advance(&mut self, len_bytes: usize) -> bool {
        let mut left = len_bytes;
        while let Some(piece) = self.pieces.get_mut(self.sent) {
            if left < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(left);
                piece.iov_len -= left;
                return false;
            }
            left -= piece.iov_len;
            self.sent += 1;
        }
        true
    }
}
