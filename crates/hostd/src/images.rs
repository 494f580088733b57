//! Images: raw files and block devices, their limits, locks, and where on the
//! device they lie.

/// What an image can do and how large it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Size in bytes, a multiple of 512.
    pub capacity_bytes: u64,
    /// Logical block size for guests, 512 or 4096.
    pub logical_block_bytes: u32,
    /// Physical block size for guests, at least the logical one.
    pub physical_block_bytes: u32,
    /// Offsets and lengths of requests must be multiples of this, at least 512.
    pub align_bytes: u32,
    /// Addresses of buffers must be multiples of this for direct I/O; others bounce.
    pub memory_align_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Does the device turn?
    pub rotational: bool,
}
