//! What is known of each VM's part of the cache.

use super::frames::{Place, Queue};

/// A VM's part of the cache. It stays when the VM leaves: frames may still be
/// read into for it.
pub(super) struct Vm {
    pub weight: u64,
    /// Frames that are its own when all are wanted.
    pub share: u64,
    /// By [`Place`]; what is beyond the fourth is in no queue.
    pub queues: [Queue; 4],
    /// Frames in them, and those that are [orphans](Place::Orphan).
    pub held: u64,
    pub orphans: u32,
    /// Frames that hold or await a prefetched block that nobody has read.
    pub unused: u32,
    /// Blocks that it has read.
    pub clock: u64,
    /// Blocks that its small queue has let go.
    pub let_go: u64,
}

impl Vm {
    pub(super) const NEW: Vm = Vm {
        weight: 0,
        share: 0,
        queues: [Queue::EMPTY; 4],
        held: 0,
        orphans: 0,
        unused: 0,
        clock: 0,
        let_go: 0,
    };

    pub(super) fn queue(&self, place: Place) -> &Queue {
        &self.queues[place as usize]
    }
    /// Frames that hold or await its blocks.
    pub(super) fn resident(&self) -> u64 {
        self.held - u64::from(self.orphans)
    }
    pub(super) fn filling(&self) -> u64 {
        u64::from(self.queue(Place::Filling).len + self.orphans)
    }
    pub(super) fn excess(&self) -> u64 {
        self.held.saturating_sub(self.share)
    }
    /// Its frames that may be for blocks not read yet.
    pub(super) fn ahead_max(&self) -> u64 {
        (self.held.max(self.share) / 2).max(1)
    }
}
