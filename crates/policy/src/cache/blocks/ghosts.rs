//! What was let go not long ago, by fingerprints: a block that comes back soon
//! is worth more than its first reading told.
//!
//! The ghost queue of S3-FIFO, kept as its paper advises (section 4.2): a hash
//! table of fingerprints with the time at which each was entered, that is
//! never swept. An entry goes when another wants its place or when it is too
//! old. A block's place is in its home line of the [index](super::index), so
//! that it costs no other look at memory. It only ever guesses: a wrong answer
//! costs a little hit rate and nothing else.

/// How time is kept: it has 16 bits, and must not come round while an
/// entry is young.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    /// It counts units of `2^shift` blocks.
    shift: u32,
}

impl Clock {
    /// For a cache of `frames`.
    pub(super) fn new(frames: u32) -> Self {
        Clock { shift: (frames >> 12).checked_ilog2().map_or(0, |bits| bits + 1) }
    }

    fn time(self, entered: u64) -> u16 {
        (entered >> self.shift) as u16
    }
}

/// A block that was let go, or none.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Ghost {
    fingerprint: u16,
    time: u16,
}

impl Ghost {
    pub(super) const NONE: Ghost = Ghost { fingerprint: 0, time: 0 };

    /// A block with this fingerprint, its VM's entry number `entered`.
    pub(super) fn new(clock: Clock, fingerprint: u16, entered: u64) -> Self {
        Ghost { fingerprint, time: clock.time(entered) }
    }

    /// Is it that block, entered among its VM's last `recent` entries, of
    /// `entered` in all?
    pub(super) fn is(self, clock: Clock, fingerprint: u16, entered: u64, recent: u64) -> bool {
        let age = clock.time(entered).wrapping_sub(self.time);
        self.fingerprint == fingerprint
            && self != Ghost::NONE
            && u64::from(age) <= recent >> clock.shift
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::{Index, group};
    use super::*;
    use crate::request::VmId;

    #[test]
    fn what_is_too_old_is_forgotten() {
        let (mut index, clock) = (Index::new(1 << 16, 1), Clock::new(1 << 16));
        let vm = VmId::new(3);
        for block in 0..1000 {
            let home = index.home(vm, group(block));
            *index.ghost(home, block) = Ghost::new(clock, home.fingerprint(), block + 1);
        }
        let mut remembers = |block, recent| {
            let home = index.home(vm, group(block));
            index.ghost(home, block).is(clock, home.fingerprint(), 1000, recent)
        };
        let remembered = (0..1000).filter(|&block| remembers(block, 100)).count();
        assert!((90..=150).contains(&remembered), "{remembered}");
        let remembered = (0..1000).filter(|&block| remembers(block, 1000)).count();
        assert!(remembered >= 980, "{remembered}");
        assert!(!remembers(5000, 1000));
    }
}
