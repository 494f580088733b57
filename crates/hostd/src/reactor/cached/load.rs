//! What the cache costs the reactor for each disk, and how much of it a disk may
//! have: the thread that copies for one guest serves no other meanwhile. Reads
//! that would cost more go past the cache, which is always coherent.

use seekway_policy::units::Instant;

/// Bytes that are copied for one disk in one turn of the reactor, but for the
/// last read; and bytes of its reads that wait for fetches, since one fetch may
/// end the waiting of all of them.
const COPIED_BYTES_MAX: u64 = 16 << 20;

/// What a disk has of it now.
#[derive(Clone, Copy, Default)]
pub struct Load {
    /// The turn that `copied_bytes` is of.
    turn: Instant,
    copied_bytes: u64,
    /// Bytes of reads that wait for fetches.
    waiting_bytes: u64,
}

impl Load {
    /// So much was copied in the turn of this time.
    pub fn copied(&mut self, now: Instant, bytes: u64) {
        if self.turn != now {
            (self.turn, self.copied_bytes) = (now, 0);
        }
        self.copied_bytes += bytes;
    }

    /// May more be copied in the turn of this time?
    pub fn may_copy(&self, now: Instant) -> bool {
        self.turn != now || self.copied_bytes < COPIED_BYTES_MAX
    }

    /// May another read wait for fetches?
    pub fn may_wait(&self) -> bool {
        self.waiting_bytes < COPIED_BYTES_MAX
    }

    /// So many bytes of a read wait for a fetch.
    pub fn waits(&mut self, bytes: u64) {
        self.waiting_bytes += bytes;
    }

    /// They do no longer.
    pub fn waited(&mut self, bytes: u64) {
        self.waiting_bytes -= bytes;
    }
}
