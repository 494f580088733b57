//! What is known of each frame, and the queues in which frames stand.

use super::Account;
use crate::request::VmId;

/// No frame.
pub(super) const NONE: u32 = u32::MAX;

/// In which of its VM's queues a frame stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Read once, not long ago.
    Small = 0,
    /// Read again since.
    Main = 1,
    /// Prefetched and not read yet.
    Ahead = 2,
    /// Being read into.
    Filling = 3,
    /// In no queue: being read into for a block that was forgotten meanwhile.
    Orphan,
    /// In the queue of those that hold nothing.
    Free,
}

/// A frame: 32 bytes, two to a cache line.
#[derive(Clone, Copy)]
pub(super) struct Info {
    pub block: u64,
    pub newer: u32,
    pub older: u32,
    /// When a use of it last counted, or when it was filled: granules of its VM's clock.
    pub stamp: u32,
    pub vm: VmId,
    pub account: Account,
    pub place: Place,
    /// Uses since it was read for the first time, 0 to 3.
    pub uses: u8,
    pub prefetched: bool,
    pub used: bool,
    /// It was let go not long ago and is wanted again.
    pub again: bool,
}

const _: () = assert!(size_of::<Info>() == 32);

impl Info {
    /// A frame that holds nothing.
    pub(super) const FREE: Info = Info {
        block: 0,
        newer: NONE,
        older: NONE,
        stamp: 0,
        vm: VmId::new(0),
        account: 0,
        place: Place::Free,
        uses: 0,
        prefetched: false,
        used: false,
        again: false,
    };

    /// Prefetched, and no guest has read it yet.
    pub(super) fn is_unused(&self) -> bool {
        self.prefetched && !self.used
    }
}

/// A queue of frames, linked through them.
#[derive(Clone, Copy)]
pub(super) struct Queue {
    newest: u32,
    oldest: u32,
    pub len: u32,
}

impl Queue {
    pub(super) const EMPTY: Queue = Queue { newest: NONE, oldest: NONE, len: 0 };

    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(super) fn push(&mut self, frames: &mut [Info], frame: u32) {
        let info = &mut frames[frame as usize];
        (info.older, info.newer) = (self.newest, NONE);
        match self.newest {
            NONE => self.oldest = frame,
            newest => frames[newest as usize].newer = frame,
        }
        self.newest = frame;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, frames: &mut [Info], frame: u32) {
        let Info { older, newer, .. } = frames[frame as usize];
        match older {
            NONE => self.oldest = newer,
            older => frames[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => frames[newer as usize].older = older,
        }
        self.len -= 1;
    }

    /// From the oldest on; a frame may be removed once it was named.
    pub(super) fn after(&self, frames: &[Info], frame: Option<u32>) -> Option<u32> {
        let next = frame.map_or(self.oldest, |frame| frames[frame as usize].newer);
        (next != NONE).then_some(next)
    }
}
