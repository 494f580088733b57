//! Operations by their names: words, SCSI commands, and the kernel's RWBS letters.

use super::raw::{Raw, Span};
use seekway_policy::request::Op;

/// What a name of an operation means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Named {
    /// The device's cache is flushed first.
    pub(super) flush: bool,
    /// What is done with the sectors, if anything.
    pub(super) op: Option<Op>,
    /// Somebody waits for it.
    pub(super) sync: bool,
}

impl Named {
    /// Neither a flush nor an operation that moves or frees data.
    pub(super) const NONE: Named = Named { flush: false, op: None, sync: false };

    /// Its requests: a flush in front of data comes first, then the data.
    pub(super) fn requests(
        self,
        span: Span,
        raw: impl Fn(Op, bool, Span) -> Raw,
    ) -> (Option<Raw>, Option<Raw>) {
        let flush = self.flush.then(|| raw(Op::Flush, true, Span::NONE));
        let data = self.op.map(|op| raw(op, self.sync, span));
        match flush {
            Some(_) => (flush, data),
            None => (data, None),
        }
    }

    const fn of(op: Op) -> Named {
        let flush = matches!(op, Op::Flush);
        let sync = matches!(op, Op::Read | Op::Flush);
        Named { flush, op: if flush { None } else { Some(op) }, sync }
    }
}

/// A word, a SCSI command in hexadecimal (`2a`, `0x28`) or RWBS letters. `None` for any other.
pub(super) fn named(word: &[u8]) -> Option<Named> {
    let small = word.to_ascii_lowercase();
    let op = match small.strip_prefix(b"0x").unwrap_or(&small) {
        b"read" | b"rd" | b"get" | b"load" | b"08" | b"28" | b"88" | b"a8" => Op::Read,
        b"write" | b"wr" | b"set" | b"put" | b"store" | b"0a" | b"2a" | b"8a" | b"aa" => Op::Write,
        b"flush" | b"sync" | b"fsync" | b"datasync" | b"fdatasync" | b"35" | b"91" => Op::Flush,
        b"discard" | b"trim" | b"unmap" | b"delete" | b"42" => Op::Discard,
        b"write-zeroes" | b"write_zeroes" | b"writezeroes" | b"z" | b"93" | b"41" => {
            Op::WriteZeroes
        }
        _ => return rwbs(word),
    };
    Some(Named::of(op))
}

/// The kernel's RWBS field (`blk_fill_rwbs`): `F` for a flush in front, then one of `R`, `W`,
/// `D` (discard), `DE` (secure erase), `E`, `N` (none) or a zone operation (`Z` and another
/// letter), then `F` (FUA), `A` (read-ahead), `S` (sync), `M` (metadata).
pub(super) fn rwbs(word: &[u8]) -> Option<Named> {
    let upper = word.to_ascii_uppercase();
    let (op, flags) = match upper.as_slice() {
        [b'F', b'W', rest @ ..] => (Some(Op::Write), rest),
        [b'F', b'N', rest @ ..] | [b'F', rest @ ..] => (None, rest),
        [b'R', rest @ ..] => (Some(Op::Read), rest),
        [b'W', rest @ ..] => (Some(Op::Write), rest),
        [b'D', b'E', rest @ ..] | [b'D' | b'E', rest @ ..] => (Some(Op::Discard), rest),
        [b'N', rest @ ..] => (None, rest),
        [b'Z', b'R' | b'A' | b'O' | b'C' | b'F', rest @ ..] => {
            return is_flags(rest).then_some(Named::NONE);
        }
        _ => return None,
    };
    let flush = upper.first() == Some(&b'F');
    let sync = op == Some(Op::Read) || (flush && op.is_none()) || flags.contains(&b'S');
    is_flags(flags).then_some(Named { flush, op, sync })
}

fn is_flags(flags: &[u8]) -> bool {
    flags.iter().all(|b| matches!(b, b'A' | b'S' | b'M' | b'F'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_commands_and_letters() {
        let named = |words: &str| -> Vec<Option<Named>> {
            words.split(' ').map(|word| named(word.as_bytes())).collect()
        };
        let all = |words: &str, expected: Named| {
            assert!(
                named(words).iter().all(|n| *n == Some(expected)),
                "{words}: {:?}",
                named(words)
            );
        };
        let of = |flush, op, sync| Named { flush, op, sync };
        all("r R read READ Read 28 0x28 88 RA RSM get", of(false, Some(Op::Read), true));
        all("w W write 2a 2A WM set WFA", of(false, Some(Op::Write), false));
        all("WS WFS WSM", of(false, Some(Op::Write), true));
        all("FWS FWFS", of(true, Some(Op::Write), true));
        all("F FF FN FS flush fsync 35", of(true, None, true));
        all("D DE discard TRIM 42", of(false, Some(Op::Discard), false));
        all("N ZR ZO", Named::NONE);
        assert_eq!(named("0 1 x Rx W! 12 "), [None; 7]);
    }
}
