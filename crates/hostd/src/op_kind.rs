//! The kinds of requests that are counted apart.

use seekway_core::request::Op;

/// Operations as they are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    Read,
    Write,
    Flush,
    /// Discards and write-zeroes, counted together.
    Discard,
}

impl OpKind {
    /// Number of kinds.
    pub const COUNT: usize = 4;
    /// All of them, in the order of [`DiskStatus::ops`](crate::reactor::DiskStatus::ops).
    pub const ALL: [OpKind; Self::COUNT] =
        [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Discard];
    /// Kind under which an operation is counted.
    pub const fn of(op: Op) -> OpKind {
        match op {
            Op::Read => OpKind::Read,
            Op::Write => OpKind::Write,
            Op::Flush => OpKind::Flush,
            Op::Discard | Op::WriteZeroes => OpKind::Discard,
        }
    }

    /// The word in metrics, and in faults.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Discard => "discard",
        }
    }
}
