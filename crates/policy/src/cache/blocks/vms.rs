//! What is known of each VM's part of the cache.

use super::nodes::List;
use super::runs::Fifo;

/// What a VM read lately: as many blocks as its share, and at least so many.
const LATELY_MIN: u64 = 1024;
/// A VM reads blocks again if one of so many is.
const REUSE_PART: u64 = 16;

/// A VM's part of the cache. It stays when the VM leaves: frames may still be
/// read into for it.
#[derive(Clone)]
pub(super) struct Vm {
    pub weight: u64,
    /// Frames that are its own when all are wanted.
    pub share: u64,
    /// By [`Place`](super::nodes::Place), without the last.
    pub lists: [List; 2],
    /// What was read not long ago and once.
    pub small: Fifo,
    /// What was read again since.
    pub main: Fifo,
    /// Frames that hold or await its blocks, orphans included.
    pub held: u64,
    /// Frames that are being read into, orphans included.
    pub filling: u64,
    /// Frames that are being read into for blocks that were forgotten meanwhile.
    pub orphans: u64,
    /// Frames that hold or await a prefetched block that nobody has read.
    pub unused: u64,
    /// Blocks that it has read.
    pub clock: u64,
    /// Blocks that its small queue has let go.
    pub let_go: u64,
    /// Blocks that it read lately, and of them those that it had read before: see [`Vm::reuses`].
    read: u64,
    reused: u64,
}

impl Vm {
    pub(super) const NEW: Vm = Vm {
        weight: 0,
        share: 0,
        lists: [List::EMPTY; 2],
        small: Fifo::EMPTY,
        main: Fifo::EMPTY,
        held: 0,
        filling: 0,
        orphans: 0,
        unused: 0,
        clock: 0,
        let_go: 0,
        read: 0,
        reused: 0,
    };

    pub(super) fn queue(&mut self, is_main: bool) -> &mut Fifo {
        if is_main { &mut self.main } else { &mut self.small }
    }
    /// Frames that hold or await its blocks.
    pub(super) fn resident(&self) -> u64 {
        self.held - self.orphans
    }
    /// The granule of its clock that it is in: they come round.
    pub(super) fn granule(&self, bits: u32) -> u16 {
        (self.clock >> bits) as u16
    }
    /// The VM has read so many blocks; `reused` of them it had used before since they came, or they
    /// would have been in a larger cache, as its ghosts say.
    pub(super) fn note(&mut self, read: u32, reused: u32) {
        if self.read > self.share.max(LATELY_MIN) {
            (self.read, self.reused) = (self.read / 2, self.reused / 2);
        }
        (self.read, self.reused) = (self.read + u64::from(read), self.reused + u64::from(reused));
    }
    /// Does it read blocks again? Frames beyond its share are of use to it then.
    pub(super) fn reuses(&self) -> bool {
        self.reused * REUSE_PART >= self.read
    }
    pub(super) fn excess(&self) -> u64 {
        self.held.saturating_sub(self.share)
    }
    /// Its frames that may be for blocks not read yet.
    pub(super) fn ahead_max(&self) -> u64 {
        (self.held.max(self.share) / 2).max(1)
    }
}
