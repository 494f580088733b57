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
    /// When it was filled: granules of its VM's clock.
    pub stamp: u32,
    pub vm: VmId,
    pub account: Account,
    pub place: Place,
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
        prefetched: false,
        used: false,
        again: false,
    };

    /// The queue that its block enters when it is valid.
    pub(super) fn entrance(&self) -> Place {
        match self {
            _ if self.is_unused() => Place::Ahead,
            _ if self.again => Place::Main,
            _ => Place::Small,
        }
    }

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

    /// Append frames that are linked from `first` to `last`, `len` of them.
    #[inline]
    pub(super) fn push(&mut self, frames: &mut [Info], first: u32, last: u32, len: u32) {
        frames[first as usize].older = self.newest;
        frames[last as usize].newer = NONE;
        match self.newest {
            NONE => self.oldest = first,
            newest => frames[newest as usize].newer = first,
        }
        self.newest = last;
        self.len += len;
    }

    /// Take out the frames from `first` to `last`, `len` of them, which stay linked.
    #[inline]
    pub(super) fn remove(&mut self, frames: &mut [Info], first: u32, last: u32, len: u32) {
        let (older, newer) = (frames[first as usize].older, frames[last as usize].newer);
        match older {
            NONE => self.oldest = newer,
            older => frames[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => frames[newer as usize].older = older,
        }
        self.len -= len;
    }

    /// From the oldest on; a frame may be removed once it was named.
    pub(super) fn after(&self, frames: &[Info], frame: Option<u32>) -> Option<u32> {
        let next = frame.map_or(self.oldest, |frame| frames[frame as usize].newer);
        (next != NONE).then_some(next)
    }
}
