//! What the cache costs the reactor for each disk, and how much of it a disk may
//! have: the thread that copies for one guest serves no other meanwhile. Reads
//! that would cost more go past the cache, which is always coherent.

use seekway_policy::units::Instant;

/// Bytes that are copied for one disk in one turn of the reactor, but for the
/// last read; and bytes of its reads that wait for fetches, since one fetch may
/// end the waiting of all of them.
const COPIED_BYTES_MAX: u64 = 16 << 20;
/// Bytes of one disk's discards and write-zeroes that the cache is told of in one
/// turn, but for the last: up to a millisecond or two of looking for blocks.
const FORGOTTEN_BYTES_MAX: u64 = 1 << 30;

/// Parts of one disk's reads that wait for fetches, but for the last read's.
const WAITING_DISK_MAX: usize = 1 << 13;
/// With so many requests of one disk in the dispatcher its jobs go whole, and
/// its reads past the cache: it leaves the others their part of what the
/// dispatcher takes.
const CUT_DISK_BELOW: usize = 1 << 15;

/// What a disk has of it now.
#[derive(Clone, Copy, Default)]
pub struct Load {
    /// The turn that these two are of.
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
    /// So much was copied in the turn of this time.
    pub fn copied(&mut self, now: Instant, bytes: u64) {
        self.begin(now);
        self.copied_bytes += bytes;
    }

    /// So much was taken out of the cache in the turn of this time.
    pub fn forgot(&mut self, now: Instant, bytes: u64) {
        self.begin(now);
        self.forgotten_bytes += bytes;
    }

    fn begin(&mut self, now: Instant) {
        if self.turn != now {
            (self.turn, self.copied_bytes, self.forgotten_bytes) = (now, 0, 0);
        }
    }

    /// May more be taken out in the turn of this time?
    pub fn may_forget(&self, now: Instant) -> bool {
        self.turn != now || self.forgotten_bytes < FORGOTTEN_BYTES_MAX
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_has_its_own_bounds() {
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
