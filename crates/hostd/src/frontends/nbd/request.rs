//! Requests and replies of the transmission phase: the bytes of their headers, and whether a request
//! can be done. Pure: nothing is carried out here.

use super::wire::*;
use crate::images::Limits;
use seekway_core::request::Op;
use std::io::Write;

/// Length of a request's header.
pub const HEADER_LEN: usize = 28;

/// A request as the client wrote it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Bits `CMD_FLAG_…`; those that the command does not take are refused.
    pub flags: u16,
    /// Number `CMD_…`; one that is not known is refused.
    pub command: u16,
    /// The client's name for it, repeated in the reply.
    pub cookie: u64,
    pub offset_bytes: u64,
    /// Length of its range; a write's payload is as long.
    pub len_bytes: u32,
}

impl Request {
    /// `None` when the magic number is wrong: the stream is out of step and
    /// nothing that follows can be trusted.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Option<Request> {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) << 16 | u32::from(u16_at(at + 2));
        let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
        (u32_at(0) == REQUEST_MAGIC).then(|| Request {
            flags: u16_at(4),
            command: u16_at(6),
            cookie: u64_at(8),
            offset_bytes: u64_at(16),
            len_bytes: u32_at(24),
        })
    }

    /// Bytes that follow the header.
    pub fn payload_bytes(&self) -> u32 {
        if self.command == CMD_WRITE { self.len_bytes } else { 0 }
    }
}

/// Answer to a client whose request is refused or fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub error: NbdError,
    /// For humans; only structured replies carry it.
    pub text: &'static str,
}

impl Refusal {
    pub const fn new(error: NbdError, text: &'static str) -> Refusal {
        Refusal { error, text }
    }
}

/// Decision about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Hand it to the reactor.
    Carry(Action),
    /// Report at most one extent, or several.
    BlockStatus {
        /// One, and not past the request's end.
        one: bool,
    },
    /// Swallow the payload and reply.
    Refuse(Refusal),
    /// The client is done.
    Disconnect,
    /// The bytes that follow could be payload or a request: close.
    HangUp,
}

/// A request that the reactor can carry out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    pub op: Op,
    /// Durable before the reply.
    pub fua: bool,
    /// Write-zeroes may deallocate: `CMD_FLAG_NO_HOLE` is not set.
    pub unmap: bool,
}

/// Judge a request by the disk's limits as they are now and by what was
/// negotiated ("Request types", "Error values", "Block size constraints").
pub fn judge(request: &Request, limits: &Limits, structured: bool, allocation: bool) -> Verdict {
    let allowed = match request.command {
        CMD_READ if structured => CMD_FLAG_FUA | CMD_FLAG_DF,
        CMD_WRITE_ZEROES => CMD_FLAG_FUA | CMD_FLAG_NO_HOLE,
        CMD_BLOCK_STATUS => CMD_FLAG_FUA | CMD_FLAG_REQ_ONE,
        CMD_DISC => return Verdict::Disconnect,
        _ => CMD_FLAG_FUA,
    };
    if request.payload_bytes() > REQUEST_LEN_MAX {
        return Verdict::HangUp;
    }
    let refuse = |error, text| Verdict::Refuse(Refusal::new(error, text));
    if request.flags & !allowed != 0 {
        return refuse(NbdError::Inval, "the command does not take these flags");
    }
    let fua = request.flags & CMD_FLAG_FUA != 0;
    let unmap = request.flags & CMD_FLAG_NO_HOLE == 0;
    let (op, writes) = match request.command {
        CMD_READ => (Some(Op::Read), false),
        CMD_WRITE => (Some(Op::Write), true),
        CMD_TRIM => (Some(Op::Discard), true),
        CMD_WRITE_ZEROES => (Some(Op::WriteZeroes), true),
        CMD_BLOCK_STATUS if allocation => (None, false),
        CMD_FLUSH if request.offset_bytes == 0 && request.len_bytes == 0 => {
            return Verdict::Carry(Action { op: Op::Flush, fua: false, unmap: false });
        }
        CMD_FLUSH => return refuse(NbdError::Inval, "a flush takes no range"),
        CMD_BLOCK_STATUS => return refuse(NbdError::Inval, "no metadata context was negotiated"),
        _ => return refuse(NbdError::Inval, "the command is not known"),
    };
    if writes && limits.read_only {
        return refuse(NbdError::Perm, "the disk is read-only");
    }
    if let Some(refusal) = range(request, limits) {
        return Verdict::Refuse(refusal);
    }
    match op {
        Some(op) => Verdict::Carry(Action { op, fua: fua && writes, unmap }),
        None => Verdict::BlockStatus { one: request.flags & CMD_FLAG_REQ_ONE != 0 },
    }
}

fn range(request: &Request, limits: &Limits) -> Option<Refusal> {
    let Request { command, offset_bytes, len_bytes, .. } = *request;
    let refuse = |error, text| Some(Refusal::new(error, text));
    let data = matches!(command, CMD_READ | CMD_WRITE);
    if len_bytes == 0 {
        return refuse(NbdError::Inval, "the range is empty");
    }
    if data && len_bytes > REQUEST_LEN_MAX {
        return refuse(NbdError::Overflow, "longer than 64 MiB");
    }
    let end = offset_bytes.checked_add(u64::from(len_bytes));
    if end.is_none_or(|end| end > limits.served_bytes()) {
        let error = match command {
            CMD_WRITE | CMD_WRITE_ZEROES => NbdError::NoSpc,
            _ => NbdError::Inval,
        };
        return refuse(error, "behind the end of the disk");
    }
    None
}

// Replies of the transmission phase: their headers' bytes ("Simple reply
// message", "Structured reply chunk message"). Each reply is one chunk.

/// Longest header that is written here: an error chunk with its text.
pub const HEADER_LEN_MAX: usize = 20 + 6 + TEXT_LEN_MAX;

/// Longest text of an error; the rest is cut off.
const TEXT_LEN_MAX: usize = 100;

/// Reply to a request, apart from its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Done, with no data.
    Done,
    /// The data of a read follow.
    Data {
        /// Where they lie on the disk.
        offset_bytes: u64,
        len_bytes: u32,
    },
    /// Extents of `base:allocation` follow.
    Extents {
        /// Bytes of their descriptors.
        len_bytes: u32,
    },
    /// Failed. Reads and block status are answered in chunks when those were
    /// negotiated, all else simply.
    Failed(Refusal),
}

/// Append the header of a reply to the request `cookie`. `chunked`: structured
/// replies were negotiated, and the command is one that must use them.
pub fn header(out: &mut Vec<u8>, cookie: u64, reply: Reply, chunked: bool) {
    match reply {
        Reply::Done => simple(out, cookie, 0),
        Reply::Data { offset_bytes, len_bytes } if chunked => {
            chunk(out, cookie, REPLY_TYPE_OFFSET_DATA, 8 + len_bytes);
            put(out, &offset_bytes.to_be_bytes());
        }
        Reply::Data { .. } => simple(out, cookie, 0),
        Reply::Extents { len_bytes } => {
            chunk(out, cookie, REPLY_TYPE_BLOCK_STATUS, 4 + len_bytes);
            put(out, &BASE_ALLOCATION_ID.to_be_bytes());
        }
        Reply::Failed(refusal) if chunked => {
            let text = refusal.text.as_bytes();
            let text = &text[..text.len().min(TEXT_LEN_MAX)];
            chunk(out, cookie, REPLY_TYPE_ERROR, 6 + text.len() as u32);
            put(out, &(refusal.error as u32).to_be_bytes());
            put(out, &(text.len() as u16).to_be_bytes());
            put(out, text);
        }
        Reply::Failed(refusal) => simple(out, cookie, refusal.error as u32),
    }
}

fn simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    put(out, &bytes);
}

fn chunk(out: &mut Vec<u8>, cookie: u64, kind: u16, len_bytes: u32) {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&REPLY_FLAG_DONE.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&len_bytes.to_be_bytes());
    put(out, &bytes);
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.write_all(bytes).expect("a vector takes all bytes");
}

/// The descriptors of a block status chunk from `runs` of (length, is a hole)
/// that cover a prefix of a request of `len_bytes`, all of them multiples of
/// `align_bytes`. A block that is a hole in part is data: saying "zero" of
/// what is not is the one mistake that costs data. With `one`, a single extent.
pub fn extents(
    runs: &[(u64, bool)],
    len_bytes: u32,
    align_bytes: u32,
    one: bool,
) -> Vec<(u32, u32)> {
    let (len, align) = (u64::from(len_bytes), u64::from(align_bytes.max(1)));
    let mut extents: Vec<(u32, u32)> = Vec::with_capacity(runs.len().min(1024));
    // `at` is where the run begins, `told` what the extents cover.
    let (mut at, mut told) = (0u64, 0u64);
    for &(run, hole) in runs {
        let end = at.saturating_add(run).min(len);
        // A hole's end goes back to a block's border, that of data forward.
        let border = if hole { end - end % align } else { end.next_multiple_of(align).min(len) };
        let begin = if hole { at.next_multiple_of(align).max(told) } else { told };
        at = end;
        if hole && border > begin {
            push_extent(&mut extents, begin - told, 0);
            push_extent(&mut extents, border - begin, STATE_HOLE | STATE_ZERO);
            told = border;
        } else if !hole && border > told {
            push_extent(&mut extents, border - told, 0);
            told = border;
        }
    }
    if extents.is_empty() {
        push_extent(&mut extents, len, 0);
    }
    if one {
        extents.truncate(1);
    }
    extents
}

/// Join with the last one when it is of the same kind. `len` is at most that of
/// the request, so that the sum fits.
fn push_extent(extents: &mut Vec<(u32, u32)>, len: u64, state: u32) {
    let len = len as u32;
    match extents.last_mut() {
        _ if len == 0 => {}
        Some(last) if last.1 == state => last.0 += len,
        _ => extents.push((len, state)),
    }
}
