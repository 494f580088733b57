//! Number of frames that may have memory. The cache becomes smaller and larger while it runs; its
//! tables have room for the largest size from the beginning.
//!
//! A frame is *backed* once it was used: the engine has memory for it. Frames that are
//! taken back are *bare*: the engine gives their memory to the system, and uses it
//! again only when they come back by [`Blocks::reserve`].

use super::evict::Room;
use super::{Blocks, Frame, Gone, NONE};

impl Blocks {
    /// Lets `frames` be backed from now on, at most all that there are. [`Blocks::trim`] drops what
    /// is above that.
    pub fn set_limit(&mut self, frames: u32) {
        self.limit = frames.min(self.links.len() as u32);
        self.divide();
    }

    /// Frames that may be backed.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Frames that are backed.
    pub fn backed(&self) -> u32 {
        self.backed
    }

    /// Take back frames above the limit, `most` of them at most: they are appended to
    /// `bare`, and what they held to `gone`. Those that are being read into stay until
    /// they are filled.
    pub fn trim(&mut self, most: usize, bare: &mut Vec<Frame>, gone: &mut Vec<Gone>) {
        let mut left = most.min(self.backed.saturating_sub(self.limit) as usize);
        let mut room = Room { frames: bare, gone };
        while left > 0 {
            let before = room.frames.len();
            if !self.pop_free(left, room.frames) && !self.evict_for_trim(left, &mut room) {
                return;
            }
            left -= room.frames.len() - before;
            for frame in &room.frames[before..] {
                self.links[frame.0 as usize] = std::mem::replace(&mut self.bare, frame.0);
                self.backed -= 1;
            }
        }
    }

    /// Let blocks go of the VM that is most above its share, or else of any.
    fn evict_for_trim(&mut self, most: usize, room: &mut Room<'_>) -> bool {
        if let Some(donor) = self.donor()
            && self.evict(donor, most, true, room)
        {
            return true;
        }
        (0..self.vms.len()).any(|vm| self.evict(vm, most, true, room))
    }

    /// Takes up to `wanted` backed frames that hold nothing. False when there are none.
    pub(super) fn pop_free(&mut self, wanted: usize, frames: &mut Vec<Frame>) -> bool {
        let before = frames.len();
        while self.free != NONE && frames.len() < before + wanted {
            frames.push(Frame(self.free));
            self.free = self.links[self.free as usize];
        }
        frames.len() > before
    }

    /// Backs up to `wanted` frames that are not backed yet, as far as the limit allows: bare ones
    /// first, then those that were never used.
    pub(super) fn back_more(&mut self, wanted: usize, frames: &mut Vec<Frame>) -> bool {
        let before = frames.len();
        let wanted = wanted.min(self.limit.saturating_sub(self.backed) as usize);
        while self.bare != NONE && frames.len() < before + wanted {
            frames.push(Frame(self.bare));
            self.bare = self.links[self.bare as usize];
        }
        let fresh = (before + wanted - frames.len()).min(self.links.len() - self.fresh as usize);
        let end = self.fresh + fresh as u32;
        frames.extend((self.fresh..end).map(Frame));
        self.fresh = end;
        self.backed += (frames.len() - before) as u32;
        frames.len() > before
    }
}
