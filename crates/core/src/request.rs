//! Requests and their completions, as engines, dispatcher and policies exchange them. Nothing here
//! belongs to one policy: a policy keeps its own notes on a request in its own table, indexed by
//! [`RequestId`].

use crate::units::{Instant, Lba, Nanos, Sectors};
use std::fmt;
use std::num::NonZeroU16;

/// Names a request from its arrival to its completion. Dense: the dispatcher
/// reuses small numbers, so a policy may index a vector by [`RequestId::slot`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(u32);

impl RequestId {
    /// The id of slot `slot`.
    pub const fn new(slot: u32) -> Self {
        RequestId(slot)
    }
    /// The slot, below `dispatcher::OUTSTANDING_MAX`.
    pub const fn slot(self) -> usize {
        self.0 as usize
    }
}

/// A virtual machine. Dense: engines number VMs from zero, below
/// `dispatcher::VMS_MAX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VmId(u16);

impl VmId {
    /// The VM with number `n`, counted from zero.
    pub const fn new(n: u16) -> Self {
        VmId(n)
    }
    /// The number, for indexing.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The process inside the guest, as its agent tagged it (algorithms.md,
/// section 6). A hint of that guest and nothing else: never compared across VMs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessTag(NonZeroU16);

impl ProcessTag {
    /// `None` for zero, which means "untagged".
    pub const fn new(tag: u16) -> Option<Self> {
        match NonZeroU16::new(tag) {
            Some(t) => Some(ProcessTag(t)),
            None => None,
        }
    }
    /// The number that the agent gave the process, never zero.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

/// The operation of a request. Policies see [`Op::Read`] and [`Op::Write`] only; the dispatcher's
/// barriers order the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// Data from the device.
    Read,
    /// Data to the device.
    Write,
    /// Make completed writes durable. Its extent says nothing.
    Flush,
    /// The extent's contents are no longer needed.
    Discard,
    /// The extent will read as zeroes.
    WriteZeroes,
}

impl Op {
    /// The letter that traces and journals use.
    pub const fn letter(self) -> char {
        match self {
            Op::Read => 'R',
            Op::Write => 'W',
            Op::Flush => 'F',
            Op::Discard => 'D',
            Op::WriteZeroes => 'Z',
        }
    }
    /// The word that tables use.
    pub const fn word(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write-zeroes",
        }
    }
    /// The inverse of [`Op::letter`].
    pub fn from_letter(c: char) -> Option<Op> {
        let all = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
        all.into_iter().find(|op| op.letter() == c)
    }
    /// Tells whether it is a read or a write, which policies may see.
    pub const fn is_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

/// A run of sectors on the device: never empty, never past the last sector
/// that 64 bits can name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    start: Lba,
    len: Sectors,
}

impl Extent {
    /// `None` when `len` is zero or the end would overflow.
    pub const fn new(start: Lba, len: Sectors) -> Option<Extent> {
        if len.get() == 0 || start.get().checked_add(len.get()).is_none() {
            return None;
        }
        Some(Extent { start, len })
    }
    /// The first sector of the run.
    pub const fn start(self) -> Lba {
        self.start
    }
    /// The number of sectors, at least one.
    pub const fn len(self) -> Sectors {
        self.len
    }
    /// An extent is never empty; here because `len` is.
    pub const fn is_empty(self) -> bool {
        false
    }
    /// The sector after the last.
    pub const fn end(self) -> Lba {
        Lba::new(self.start.get() + self.len.get())
    }
    /// The first `len` sectors, at least one and at most all, and the rest if there is one.
    pub const fn split(self, len: Sectors) -> (Extent, Option<Extent>) {
        if len.get() >= self.len.get() {
            return (self, None);
        }
        let len = if len.get() == 0 { 1 } else { len.get() };
        let first = Extent { start: self.start, len: Sectors::new(len) };
        (first, Extent::new(first.end(), Sectors::new(self.len.get() - len)))
    }
    /// Do the two share a sector?
    pub const fn overlaps(self, other: Extent) -> bool {
        self.start.get() < other.end().get() && other.start.get() < self.end().get()
    }
    /// Does the sector lie inside?
    pub const fn contains(self, lba: Lba) -> bool {
        self.start.get() <= lba.get() && lba.get() < self.end().get()
    }
}

impl fmt::Display for Extent {
    /// `start+len`, as blkparse prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.start, self.len)
    }
}

/// One request of one guest, its extent already mapped to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Unique among the requests that have arrived and not completed.
    pub id: RequestId,
    /// The VM that sent it.
    pub vm: VmId,
    /// Which process inside the guest, if its agent says so.
    pub tag: Option<ProcessTag>,
    /// Its operation.
    pub op: Op,
    /// Tells whether a process waits for it: always for a read, for a write with O_SYNC or O_DIRECT
    /// (`REQ_SYNC` of the Linux block layer). Never set for background write-back.
    pub sync: bool,
    /// Where on the device.
    pub extent: Extent,
    /// When it reached the dispatcher.
    pub arrived: Instant,
}

/// The device is done with a request, or, as policies see it, with a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request, as it was dispatched. Of a part: the extent is the part's.
    pub request: Request,
    /// The command that it went with, by the id of `Output::Dispatch`. Requests
    /// of one command complete together and name the same.
    pub command: RequestId,
    /// False while other parts of the request are queued or in flight in the policy; true of a
    /// request that went as one.
    pub last: bool,
    /// When it was dispatched; of a request that went in parts, the first of them.
    pub dispatched: Instant,
    /// Time the device spent on it: from the later of its dispatch and the device's previous
    /// completion. Of a request that went in parts, the sum.
    pub service: Nanos,
    /// Did the device do it? A failed request counts as served all the same. A
    /// request that went in parts failed if one of them did.
    pub ok: bool,
}

impl Completion {
    /// The completion of a request that was a command of its own.
    pub fn alone(request: Request, dispatched: Instant, service: Nanos) -> Self {
        Completion { request, command: request.id, last: true, dispatched, service, ok: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_refuse_what_cannot_be() {
        assert!(Extent::new(Lba::new(5), Sectors::ZERO).is_none());
        assert!(Extent::new(Lba::new(u64::MAX), Sectors::new(1)).is_none());
        let e = Extent::new(Lba::new(5), Sectors::new(3)).unwrap();
        assert_eq!(e.end(), Lba::new(8));
        assert!(e.overlaps(Extent::new(Lba::new(7), Sectors::new(9)).unwrap()));
        assert!(!e.overlaps(Extent::new(Lba::new(8), Sectors::new(9)).unwrap()));
        assert!(!e.contains(Lba::new(8)));
        let (first, rest) = e.split(Sectors::new(1));
        assert_eq!((first.to_string(), rest.unwrap().to_string()), ("5+1".into(), "6+2".into()));
        assert_eq!(e.split(Sectors::new(3)), (e, None));
        assert_eq!(e.split(Sectors::ZERO), e.split(Sectors::new(1)));
    }
}
