//! The cache becomes smaller and larger while it runs.

use super::{BLOCK_BYTES, Frame, HostCache};
use seekway_core::units::Instant;

impl HostCache {
    /// Keeps at most `bytes` from now on, as far as there is [room](HostCache::room_bytes).
    /// [`HostCache::trim`] drops what is above that.
    pub fn resize(&mut self, bytes: u64) {
        self.blocks.set_limit((bytes / BLOCK_BYTES).min(u64::from(u32::MAX)) as u32);
    }

    /// Take back frames above the size, `most` of them at most: they are appended to
    /// `bare`. Those that are being read into stay until [`HostCache::fetched`].
    pub fn trim(&mut self, now: Instant, most: usize, bare: &mut Vec<Frame>) {
        self.blocks.trim(most, bare, &mut self.gone);
        self.bury(now);
    }

    /// Has it more memory than it may?
    pub fn is_above_size(&self) -> bool {
        self.blocks.backed() > self.blocks.limit()
    }

    /// Bytes of data that it keeps at most.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.blocks.limit()) * BLOCK_BYTES
    }
    /// Bytes that [`HostCache::resize`] can allow at most.
    pub fn room_bytes(&self) -> u64 {
        self.config.bytes / BLOCK_BYTES * BLOCK_BYTES
    }
    /// Bytes of the engine's memory that it has: what was read into and not taken back.
    pub fn backed_bytes(&self) -> u64 {
        u64::from(self.blocks.backed()) * BLOCK_BYTES
    }
}
