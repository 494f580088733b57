//! What the cache costs the reactor for each disk, and how much of it a disk may
//! have: the thread that copies for one guest serves no other meanwhile. Reads
//! that would cost more go past the cache, which is always coherent.

use seekway_policy::units::Instant;

/// Bytes that are copied for one disk in one turn of the reactor, but for the
/// last read; and bytes of its reads that wait for fetches, since one fetch may
/// end the waiting of all of them.
const COPIED_BYTES_MAX: u64 = 16 << 20;

/// Parts of one disk's reads that wait for fetches, but for the last read's.
const WAITING_DISK_MAX: usize = 1 << 13;
/// With so many requests of one disk in the dispatcher its jobs go whole, and
/// its reads past the cache: it leaves the others their part of what the
/// dispatcher takes.
const CUT_DISK_BELOW: usize = 1 << 15;

/// What a disk has of it now.
#[derive(Clone, Copy, Default)]
pub struct Load {
    /// The turn that `copied_bytes` is of.
    turn: Instant,
    copied_bytes: u64,
    /// Parts of reads that wait for fetches, and their bytes.
    waiting: usize,
    waiting_bytes: u64,
    /// Requests in the dispatcher.
    pub requests: usize,
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
        let waits = self.waiting < WAITING_DISK_MAX && self.waiting_bytes < COPIED_BYTES_MAX;
        waits && self.may_cut()
    }

    /// May jobs be cut into several requests?
    pub fn may_cut(&self) -> bool {
        self.requests < CUT_DISK_BELOW
    }

    /// So many bytes, a part of a read, wait for a fetch.
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
