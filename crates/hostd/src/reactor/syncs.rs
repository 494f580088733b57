//! Syncs of one image that are under way together: flushes, and those behind durable writes. The
//! kernel tells one of them, any one, that something was not written back
//! (`Documentation/core-api/errseq.rst`), and it may be told later than another that it went well. So
//! one that went well is held until all that were under way with it have ended: if one of them fails,
//! it fails too.

use std::collections::VecDeque;

/// I/Os by their index. Few are under way at a time.
#[derive(Default)]
pub struct Syncs {
    /// With their numbers, which ascend.
    under_way: Vec<(u32, u64)>,
    next: u64,
    /// Those that went well, each with the number of the first that it does not wait for.
    held: VecDeque<(u32, u64)>,
}

impl Syncs {
    /// An I/O goes to the kernel, for the first time or with its rest.
    pub fn begin(&mut self, io: u32) {
        if !self.under_way.iter().any(|&(other, _)| other == io) {
            self.under_way.push((io, self.next));
            self.next += 1;
        }
    }

    /// Is one with the kernel?
    pub fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// The kernel is done with an I/O.
    pub fn end(&mut self, io: u32) {
        self.under_way.retain(|&(other, _)| other != io);
    }

    /// An I/O went well, and has ended. True if it is held, until [`Syncs::release`] has it.
    pub fn hold(&mut self, io: u32) -> bool {
        self.end(io);
        let is_held = !self.under_way.is_empty();
        if is_held {
            self.held.push_back((io, self.next));
        }
        is_held
    }

    /// One that waits for none any more, or any if one has failed.
    pub fn release(&mut self, has_failed: bool) -> Option<u32> {
        let &(io, until) = self.held.front()?;
        let waits = self.under_way.iter().any(|&(_, number)| number < until);
        if waits && !has_failed {
            return None;
        }
        self.held.pop_front();
        Some(io)
    }
}

#[cfg(test)]
mod tests;
