//! Failures to inject, for tests: `eio`, `enospc`, `short`, `again`, by
//! operation and range.
//!
//! ```text
//! eio:op=read,from=1MiB,len=64k       every read that touches that range fails
//! enospc:op=write,after=100,count=3   so do the 101st to the 103rd write
//! short                               every transfer stops half-way
//! ```

use crate::op_kind::OpKind;
use seekway_core::params::{self, Kind, ParamError, ParamSpec, Params, param};
use seekway_core::request::Op;

/// Transfers are cut at multiples of this, which suits every image's
/// alignment; those that are no longer are left whole.
const CUT_BYTES: u64 = 4096;

const EVERYTHING: &str = "18446744073709551615";
const BYTES: Kind = Kind::Bytes(u64::MAX);

#[rustfmt::skip]
const SPECS: &[ParamSpec] = &[
    param("op", Kind::Choice(&["any", "read", "write", "flush", "discard"]), "any",
        "operations that fail; discard is write-zeroes too"),
    param("from", BYTES, "0", "where the range begins, in bytes"),
    param("len", BYTES, EVERYTHING, "how long it is, in bytes"),
    param("after", Kind::Count(0, u64::MAX), "0",
        "I/Os that match and pass before the first that fails"),
    param("count", Kind::Count(1, u64::MAX), "18446744073709551615", "how many fail"),
];

/// Which requests fail, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    what: FaultKind,
    /// `None` for any operation.
    op: Option<OpKind>,
    /// The range that fails begins at this byte, and ends before `to`.
    from: u64,
    to: u64,
    /// I/Os still to pass.
    after: u64,
    /// Failures left; at 0 nothing fails any more.
    count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FaultKind {
    Errno(i32),
    Short,
}

/// Effect on one I/O, instead of the real one or on top of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Injected {
    /// Complete with this errno without touching the image.
    Errno(i32),
    /// Do only this many bytes of it: a multiple of 4096, less than its length.
    Short(u32),
}

impl Fault {
    /// Parse `KIND[:key=value,…]`. Kinds: `eio`, `enospc`, `again` (EAGAIN,
    /// which the engine should try again unless it is of a sync) and `short` (reads and writes of
    /// more than 4096 bytes stop half-way). Keys: `op` (any, read, write,
    /// flush, discard), `from` and `len` (bytes, or with a unit), `after` (how
    /// many that match pass first), `count` (how many fail).
    ///
    /// # Errors
    /// Says what was expected; for the operator.
    pub fn parse(text: &str) -> Result<Fault, String> {
        Fault::parse_spec(text).map_err(|e| e.to_string())
    }

    fn parse_spec(text: &str) -> Result<Fault, ParamError> {
        let spec = params::parse_spec(text)?;
        let what = match spec.name {
            "eio" => FaultKind::Errno(libc::EIO),
            "enospc" => FaultKind::Errno(libc::ENOSPC),
            "again" => FaultKind::Errno(libc::EAGAIN),
            "short" => FaultKind::Short,
            name => {
                let known = "eio, enospc, again, short";
                return Err(ParamError::new(format!(
                    "no fault is called '{name}'; known: {known}"
                )));
            }
        };
        let values = Params::with(SPECS, spec.name, &spec.given)?;
        let word = values.choice("op");
        let op = OpKind::ALL.into_iter().find(|kind| kind.name() == word);
        let from = values.bytes("from");
        let to = from.saturating_add(values.bytes("len"));
        Ok(Fault { what, op, from, to, after: values.count("after"), count: values.count("count") })
    }

    /// Effect of the fault on this I/O (bytes in the image; a flush has none and matches unless the
    /// fault has a range and is for any operation). `None`: no effect.
    pub fn inject(&mut self, op: Op, offset: u64, len: u64) -> Option<Injected> {
        if self.count == 0 || !self.matches(op, offset, len) {
            return None;
        }
        let injected = match self.what {
            FaultKind::Errno(errno) => Injected::Errno(errno),
            FaultKind::Short if !op.is_data() || len <= CUT_BYTES => return None,
            FaultKind::Short => {
                let half = (len / 2 / CUT_BYTES * CUT_BYTES).max(CUT_BYTES);
                Injected::Short(u32::try_from(half).unwrap_or(CUT_BYTES as u32))
            }
        };
        if self.after > 0 {
            self.after -= 1;
            return None;
        }
        self.count -= 1;
        Some(injected)
    }

    fn matches(&self, op: Op, offset: u64, len: u64) -> bool {
        if self.op.is_some_and(|wanted| wanted != OpKind::of(op)) {
            return false;
        }
        if op == Op::Flush {
            return self.op.is_some() || (self.from, self.to) == (0, u64::MAX);
        }
        offset < self.to && self.from < offset.saturating_add(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The effects of a fault on I/Os, a letter for each: `.` nothing, `!` an error, `s` cut short.
    fn check(text: &str, ios: &[(Op, u64, u64)]) -> String {
        let mut fault = Fault::parse(text).unwrap();
        let letter = |&(op, offset, len): &(Op, u64, u64)| match fault.inject(op, offset, len) {
            None => '.',
            Some(Injected::Errno(_)) => '!',
            Some(Injected::Short(n)) => {
                assert!(u64::from(n) < len && n > 0 && n.is_multiple_of(4096));
                's'
            }
        };
        ios.iter().map(letter).collect()
    }

    const EACH: [(Op, u64, u64); 5] = [
        (Op::Read, 0, 8192),
        (Op::Write, 8192, 8192),
        (Op::Flush, 0, 0),
        (Op::Discard, 8192, 4096),
        (Op::WriteZeroes, 0, 4096),
    ];

    #[test]
    fn operations_and_ranges_select() {
        for (text, expected) in [
            ("eio", "!!!!!"),
            ("eio:op=read", "!...."),
            ("enospc:op=write", ".!..."),
            ("eio:op=flush", "..!.."),
            ("eio:op=flush,from=1G", "..!.."),
            ("eio:op=discard", "...!!"),
            ("eio:from=8192", ".!.!."),
            ("eio:len=8k", "!...!"),
            ("eio:from=8191,len=1", "!...."),
            ("eio:from=8k,len=1", ".!.!."),
            ("short", "ss..."),
        ] {
            assert_eq!(check(text, &EACH), expected, "{text}");
        }
    }

    #[test]
    fn counts_limit() {
        let reads = [(Op::Read, 0, 512); 6];
        assert_eq!(check("again:count=2", &reads), "!!....");
        assert_eq!(check("again:after=2,count=3", &reads), "..!!!.");
        assert_eq!(check("again:after=9", &reads), "......");
        // What does not match does not count.
        let mixed = [(Op::Write, 0, 512), (Op::Read, 0, 512), (Op::Write, 0, 512)];
        assert_eq!(check("eio:op=write,after=1", &mixed), "..!");
    }

    #[test]
    fn each_kind_has_its_errno() {
        for (text, errno) in [("eio", libc::EIO), ("enospc", libc::ENOSPC), ("again", libc::EAGAIN)]
        {
            let injected = Fault::parse(text).unwrap().inject(Op::Read, 0, 512);
            assert_eq!(injected, Some(Injected::Errno(errno)));
        }
    }

    #[test]
    fn a_transfer_cut_again_and_again_comes_to_an_end() {
        let mut fault = Fault::parse("short").unwrap();
        let (mut offset, end, mut pieces) = (0, 1 << 20, 0);
        while offset < end {
            offset += match fault.inject(Op::Read, offset, end - offset) {
                Some(Injected::Short(n)) => u64::from(n),
                other => {
                    assert_eq!(other, None);
                    end - offset
                }
            };
            pieces += 1;
        }
        assert!((8..=10).contains(&pieces), "{pieces}");
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, part) in [
            ("eoi", "no fault is called 'eoi'; known: eio, enospc, again, short"),
            ("eio:op=trim", "one of any, read, write, flush, discard"),
            ("eio:offset=1", "has no parameter 'offset'; it has op, from, len, after, count"),
            ("eio:from=8s", "from=8s: expected bytes"),
            ("eio:count=0", "from 1 to"),
            ("eio:from", "not key=value"),
        ] {
            let error = Fault::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
