//! Whether somebody in the guest waits for a request, from what the wire tells: the same
//! answer for both engines. Policies that serve synchronous requests first (CFQ, Pregather,
//! deadline) go by it.

use seekway_core::ioprio;
use seekway_core::request::Op;

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
