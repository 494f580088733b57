//! Whether somebody in the guest waits for a request, from what the wire tells: the same
//! answer for both engines. Policies that serve synchronous requests first (CFQ, Pregather,
//! deadline) go by it.

use seekway_core::ioprio;
use seekway_core::request::Op;
use seekway_core::units::Instant;

/// A front end's knowledge of how urgent a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Urgency {
    /// The data must be durable when the request is done (FUA).
    pub fua: bool,
    /// The guest has switched the disk's write cache off.
    pub write_through: bool,
    /// The I/O priority in the request's header (virtio-blk); 0 where there is none.
    pub priority: u32,
}

/// Does somebody in the guest wait for this request? A read, a flush and a discard: always. A
/// write: when it has to be durable, or when the guest gave it a real-time priority.
/// Any other write may be write-back of the guest's page cache, which nobody waits
/// for (`REQ_SYNC` of the Linux block layer does not travel over virtio-blk or NBD), and a
/// guest that waits for it says so by the flush that follows.
pub fn is_sync(op: Op, urgency: Urgency) -> bool {
    let Urgency { fua, write_through, priority } = urgency;
    let real_time =
        u16::try_from(priority).is_ok_and(|p| ioprio::class(p) == ioprio::CLASS_REAL_TIME);
    !matches!(op, Op::Write | Op::WriteZeroes) || fua || write_through || real_time
}

// Bounds of one VM's use of the host path's work and memory at once. A request that would exceed a
// bound takes a cheaper way: past the cache, or as one piece.

/// Bytes copied for one VM at one time, but for the last read; and bytes of its
/// reads that wait for fetches, since one fetch may end the waiting of all of them.
const COPIED_BYTES_MAX: u64 = 16 << 20;

/// Bytes of one VM's discards and write-zeroes that the cache is told of at one
/// time, but for the last: up to a millisecond or two of looking for blocks.
const FORGOTTEN_BYTES_MAX: u64 = 1 << 30;

/// Parts of one VM's reads that wait for fetches, but for the last read's.
const WAITING_MAX: usize = 1 << 13;

/// With this number of requests of one VM in the dispatcher its requests go whole, and its reads
/// past the cache: it leaves the others their share of what the dispatcher takes.
const CUT_BELOW: usize = 1 << 15;

/// A VM's use of it now.
#[derive(Clone, Copy, Default)]
pub(super) struct Load {
    /// The time that the next two are of.
    turn: Instant,
    copied_bytes: u64,
    forgotten_bytes: u64,
    /// Parts of reads that wait for fetches, and their bytes.
    waiting: usize,
    waiting_bytes: u64,
    /// Requests in the dispatcher.
    pub requests: usize,
}

impl Load {
    /// Counts bytes copied at this time.
    pub fn copied(&mut self, now: Instant, bytes: u64) {
        self.begin(now);
        self.copied_bytes += bytes;
    }

    /// Counts bytes taken out of the cache at this time.
    pub fn forgot(&mut self, now: Instant, bytes: u64) {
        self.begin(now);
        self.forgotten_bytes += bytes;
    }

    fn begin(&mut self, now: Instant) {
        if self.turn != now {
            (self.turn, self.copied_bytes, self.forgotten_bytes) = (now, 0, 0);
        }
    }

    /// May more be taken out of the cache at this time?
    pub fn may_forget(&self, now: Instant) -> bool {
        self.turn != now || self.forgotten_bytes < FORGOTTEN_BYTES_MAX
    }

    /// May more be copied at this time?
    pub fn may_copy(&self, now: Instant) -> bool {
        self.turn != now || self.copied_bytes < COPIED_BYTES_MAX
    }

    /// May another read wait for fetches?
    pub fn may_wait(&self) -> bool {
        let waits = self.waiting < WAITING_MAX && self.waiting_bytes < COPIED_BYTES_MAX;
        waits && self.may_cut()
    }

    /// May requests be cut into several pieces?
    pub fn may_cut(&self) -> bool {
        self.requests < CUT_BELOW
    }

    /// Counts bytes, a part of a read, that wait for a fetch.
    pub fn waits(&mut self, bytes: u64) {
        self.waiting += 1;
        self.waiting_bytes += bytes;
    }

    /// They do no longer.
    pub fn waited(&mut self, bytes: u64) {
        self.waiting -= 1;
        self.waiting_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_waited_for_when_the_wire_says_so() {
        let plain = Urgency::default();
        for op in [Op::Read, Op::Flush, Op::Discard] {
            assert!(is_sync(op, plain), "{op:?}");
        }
        assert!(!is_sync(Op::Write, plain));
        let real_time = u32::from(ioprio::CLASS_REAL_TIME) << 13;
        for urgent in [
            Urgency { fua: true, ..plain },
            Urgency { write_through: true, ..plain },
            Urgency { priority: real_time, ..plain },
        ] {
            assert!(is_sync(Op::Write, urgent), "{urgent:?}");
        }
        // Best effort with a tag, and what is no priority at all.
        for priority in [2 << 13 | 100 << 3 | 4, 3 << 13, 1 << 16] {
            assert!(!is_sync(Op::Write, Urgency { priority, ..plain }), "{priority:#x}");
        }
    }
}

#[cfg(test)]
mod load_tests {
    use super::*;

    #[test]
    fn each_time_has_its_own_bounds() {
        let (first, second) = (Instant::from_nanos(1), Instant::from_nanos(2));
        let mut load = Load::default();
        load.copied(first, COPIED_BYTES_MAX);
        assert!(!load.may_copy(first) && load.may_forget(first));
        load.forgot(first, FORGOTTEN_BYTES_MAX);
        assert!(!load.may_copy(first) && !load.may_forget(first));
        assert!(load.may_copy(second) && load.may_forget(second));
        load.forgot(second, 1);
        assert!(load.may_copy(second) && load.may_forget(second));
    }
}
