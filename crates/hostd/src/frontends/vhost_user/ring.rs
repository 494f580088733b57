//! A split virtqueue in host memory (VIRTIO 1.2, 2.7): indices, rings, and who
//! wants to be notified. The rings are shared with a guest that may write
//! anything at any time: each field is loaded once, atomically, and checked.
//!
//! Not `virtio_queue::Queue`: that one publishes each used element by itself,
//! where the inflight protocol publishes batches, cannot tell the end of a
//! chain from a broken one, and looks up guest addresses at each access.

use crate::death;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};
use virtio_bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};

/// Most entries of a ring.
pub const SIZE_MAX: u16 = 1024;

/// Where the parts of a ring are in host memory.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    pub descriptors: *const u8,
    pub available: *mut u8,
    pub used: *mut u8,
}

// SAFETY: the pointers are into memory that is mapped for the process.
unsafe impl Send for Parts {}

impl Parts {
    /// Bytes of each part of a ring of `size` entries, and their alignments
    /// (VIRTIO 1.2, 2.7): descriptors, available, used.
    pub const fn layout(size: u16) -> [(u64, u64); 3] {
        let size = size as u64;
        [(16 * size, 16), (6 + 2 * size, 2), (6 + 8 * size, 4)]
    }

    /// Has a ring of `size` entries gone round at least once? Its indices may be 0 all the same:
    /// they have 16 bits. Says so of no ring whose memory was cleared before it was used.
    pub fn have_been_used(&self, size: u16) -> bool {
        // The length in the last entry of the used ring: a chain has a status at least.
        let at = 4 + 8 * usize::from(size) - 4;
        // SAFETY: inside the used ring, which is mapped and aligned to 4.
        unsafe { AtomicU32::from_ptr(self.used.add(at).cast()) }.load(Ordering::Relaxed) != 0
    }
}

/// Why a ring cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BrokenRing {
    /// VIRTIO 1.2, 2.7.13.3.1: more entries are made available than the ring has.
    #[error("the available index {index} is more than {size} ahead of {seen}")]
    Index {
        /// The index that the guest wrote.
        index: u16,
        /// Index up to which the ring has been read.
        seen: u16,
        /// Entries of the ring.
        size: u16,
    },
    /// The available ring names a descriptor that is not there.
    #[error("the available ring names descriptor {0}, which does not exist")]
    Head(u16),
}

pub struct Ring {
    parts: Parts,
    size: u16,
    event_idx: bool,
    /// The next entry of the available ring to take.
    next_available: u16,
    /// The available index as it was last loaded.
    available: u16,
    /// The next entry of the used ring to fill.
    next_used: u16,
    /// The used index that the guest sees.
    published: u16,
    /// The used index when it was last asked whether to notify.
    notified: u16,
}

impl Ring {
    /// A ring of `size` entries, of which `next_available` have been taken and
    /// as many used as the used ring's index says.
    ///
    /// # Safety
    /// The parts have the sizes and alignments of [`Parts::layout`] and stay
    /// mapped, for writing, while the ring is used. `size` is a power of two.
    pub unsafe fn new(parts: Parts, size: u16, event_idx: bool, next_available: u16) -> Ring {
        let mut ring = Ring {
            parts,
            size,
            event_idx,
            next_available,
            available: next_available,
            next_used: 0,
            published: 0,
            notified: 0,
        };
        ring.next_used = u16::from_le(ring.used_u16(2).load(Ordering::Acquire));
        ring.published = ring.next_used;
        ring.notified = ring.next_used;
        ring
    }

    /// Moves the ring to another mapping.
    ///
    /// # Safety
    /// As for [`Ring::new`].
    pub unsafe fn relocate(&mut self, parts: Parts) {
        self.parts = parts;
    }

    /// Entries of the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    pub fn descriptors(&self) -> *const u8 {
        self.parts.descriptors
    }

    /// The next entry of the available ring to take.
    pub fn next_available(&self) -> u16 {
        self.next_available
    }

    /// The used index that the guest sees.
    pub fn used_index(&self) -> u16 {
        self.published
    }

    /// Continue at this entry of the available ring.
    pub fn seek(&mut self, next_available: u16) {
        self.next_available = next_available;
        self.available = next_available;
    }

    /// Take the head of the next available chain.
    pub fn pop(&mut self) -> Result<Option<u16>, BrokenRing> {
        if self.next_available == self.available && !self.has_available()? {
            return Ok(None);
        }
        let slot = usize::from(self.next_available & (self.size - 1));
        // The load of the index was an acquire: the entry is there.
        let head = u16::from_le(self.available_u16(4 + 2 * slot).load(Ordering::Relaxed));
        if head >= self.size {
            return Err(BrokenRing::Head(head));
        }
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// Is there something to take?
    pub fn peek(&self) -> bool {
        let index = u16::from_le(self.available_u16(2).load(Ordering::Acquire));
        index != self.next_available
    }

    /// Load the available index. True when there is something to take.
    fn has_available(&mut self) -> Result<bool, BrokenRing> {
        let index = u16::from_le(self.available_u16(2).load(Ordering::Acquire));
        if index.wrapping_sub(self.next_available) > self.size {
            let (seen, size) = (self.next_available, self.size);
            return Err(BrokenRing::Index { index, seen, size });
        }
        self.available = index;
        Ok(index != self.next_available)
    }

    /// Ask the guest not to kick: the ring is being looked at.
    pub fn disable_kicks(&mut self) {
        if !self.event_idx {
            self.used_u16(0).store((VRING_USED_F_NO_NOTIFY as u16).to_le(), Ordering::Relaxed);
        }
        // With event indices the guest kicks only when it passes the one that
        // `enable_kicks` stored.
    }

    /// Ask the guest to kick for the next chain. True when one came meanwhile,
    /// for which it may not have kicked.
    pub fn enable_kicks(&mut self) -> Result<bool, BrokenRing> {
        if self.event_idx {
            let event = self.next_available.to_le();
            self.used_u16(4 + 8 * usize::from(self.size)).store(event, Ordering::Relaxed);
        } else {
            self.used_u16(0).store(0, Ordering::Relaxed);
        }
        // The guest stores its index and then looks at what was stored above;
        // here it is the other way round, and one of the two must see the other.
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// Fill the next entry of the used ring; the guest sees it after [`Ring::publish`].
    pub fn push_used(&mut self, head: u16, len: u32) {
        death::point();
        let slot = usize::from(self.next_used & (self.size - 1));
        self.used_u32(4 + 8 * slot).store(u32::from(head).to_le(), Ordering::Relaxed);
        self.used_u32(8 + 8 * slot).store(len.to_le(), Ordering::Relaxed);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Show the guest the used entries that have been filled.
    pub fn publish(&mut self) {
        death::point();
        self.published = self.next_used;
        self.used_u16(2).store(self.published.to_le(), Ordering::Release);
    }

    /// Does the guest want to be told of what was published since the last call?
    pub fn needs_call(&mut self) -> bool {
        death::point();
        let (old, new) = (self.notified, self.published);
        if old == new {
            return false;
        }
        self.notified = new;
        // The guest stores its wish and then looks at the used index.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let offset = 4 + 2 * usize::from(self.size);
            let event = u16::from_le(self.available_u16(offset).load(Ordering::Relaxed));
            // VIRTIO 1.2, 2.7.10: has the index passed the event?
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            let flags = u16::from_le(self.available_u16(0).load(Ordering::Relaxed));
            flags & VRING_AVAIL_F_NO_INTERRUPT as u16 == 0
        }
    }

    fn available_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: inside the available ring, which is mapped and aligned to 2;
        // all offsets are even.
        unsafe { AtomicU16::from_ptr(self.parts.available.add(offset).cast()) }
    }

    fn used_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: inside the used ring, which is mapped and aligned to 4.
        unsafe { AtomicU16::from_ptr(self.parts.used.add(offset).cast()) }
    }

    fn used_u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the used ring, which is mapped and aligned to 4; all
        // offsets of elements are multiples of 4.
        unsafe { AtomicU32::from_ptr(self.parts.used.add(offset).cast()) }
    }
}

#[cfg(test)]
mod tests;
