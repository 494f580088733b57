//! Replies of the transmission phase: their headers' bytes ("Simple reply
//! message", "Structured reply chunk message"). Each reply is one chunk.

use super::request::Refusal;
use super::wire::*;
use std::io::Write;

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
