//! Requests of the transmission phase: the header's bytes, and whether what it
//! asks for can be done. Pure: nothing is carried out here.

use super::wire::*;
use crate::images::Limits;
use seekway_core::request::Op;

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
