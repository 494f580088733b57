//! What is known of each VM's part of the cache.

use super::nodes::List;
use super::runs::Fifo;

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
    pub(super) fn excess(&self) -> u64 {
        self.held.saturating_sub(self.share)
    }
    /// Its frames that may be for blocks not read yet.
    pub(super) fn ahead_max(&self) -> u64 {
        (self.held.max(self.share) / 2).max(1)
    }
}
