//! Operations by their names: words, SCSI commands, and the kernel's RWBS letters.

use super::raw::{Raw, Span};
use seekway_core::request::Op;

/// Meaning of an operation's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Named {
    /// The device's cache is flushed first.
    pub(super) flush: bool,
    /// Operation on the sectors, if there is one.
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

/// The kernel's RWBS field (`blk_fill_rwbs`) of all versions: `F` for a flush in front, then one of
/// `R`, `W`, `WZ` (write-zeroes), `D` (discard), `DE` (secure erase), `ZA` (zone append), `N`
/// (another) or a zone operation (`Z` and another letter), then `F` (FUA), `A` (read-ahead), `B`
/// (barrier, of old kernels), `S` (sync), `M` (metadata), `U` (atomic), `E` (secure, of old kernels).
pub(super) fn rwbs(word: &[u8]) -> Option<Named> {
    let upper = word.to_ascii_uppercase();
    let (preflush, rest) = match upper.as_slice() {
        [b'F', rest @ ..] => (true, rest),
        all => (false, all),
    };
    let (op, flags) = match rest {
        [b'R', flags @ ..] => (Some(Op::Read), flags),
        [b'W', b'Z', flags @ ..] => (Some(Op::WriteZeroes), flags),
        [b'W', flags @ ..] | [b'Z', b'A', flags @ ..] => (Some(Op::Write), flags),
        [b'D', b'E', flags @ ..] | [b'D' | b'E', flags @ ..] => (Some(Op::Discard), flags),
        [b'N', flags @ ..] | [b'Z', b'R' | b'O' | b'C' | b'F', flags @ ..] => (None, flags),
        [b'F', flags @ ..] | flags if preflush => (None, flags),
        _ => return None,
    };
    // In this order: words such as `web` are none.
    let mut order = b"FABSMUE".iter();
    let is_flag = |flag: &u8| order.any(|other| other == flag);
    let flush = preflush || flags.contains(&b'B');
    let sync = op == Some(Op::Read) || flags.contains(&b'S') || (flush && op.is_none());
    flags.iter().all(is_flag).then_some(Named { flush, op, sync: sync && (flush || op.is_some()) })
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
        all("WS WFS WSM WSU WFSMU ZAS", of(false, Some(Op::Write), true));
        all("FWS FWFS WBS", of(true, Some(Op::Write), true));
        all("F FF FFFS FN FS flush fsync 35", of(true, None, true));
        all("WZ z write_zeroes 93", of(false, Some(Op::WriteZeroes), false));
        all("D DE discard TRIM 42", of(false, Some(Op::Discard), false));
        all("W ZA WU", of(false, Some(Op::Write), false));
        all("DSE", of(false, Some(Op::Discard), true));
        all("N NS ZR ZRA ZRAS ZO ZCS", Named::NONE);
        assert_eq!(named("0 1 x Rx W! 12 web WSF "), [None; 9]);
    }
}
