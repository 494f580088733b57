//! The kinds of requests that are counted apart.

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
    /// How many there are.
    pub const COUNT: usize = 4;
    /// All of them, in the order of [`DiskStatus::ops`](super::DiskStatus::ops).
    pub const ALL: [OpKind; Self::COUNT] =
        [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Discard];
    /// The word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Discard => "discard",
        }
    }
}
