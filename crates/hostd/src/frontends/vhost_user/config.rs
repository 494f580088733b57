//! Features of the device, and its configuration space (VIRTIO 1.2, 5.2.4).

use super::request::{DISCARD_SECTORS_MAX, SECTOR_BYTES, WRITE_ZEROES_SECTORS_MAX};
use crate::images::Limits;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_blk as blk;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Most pieces of data in one request: what a ring of 128 entries, QEMU's,
/// takes beside header and status.
const SEGMENTS_MAX: u32 = 126;
/// Longest piece of data.
const SEGMENT_BYTES_MAX: u32 = 1 << 20;
/// Where the configuration space says whether there is a write cache.
pub const WRITEBACK_OFFSET: u32 = 32;
/// Bytes of the configuration space that say something; zeroes follow.
const CONFIG_BYTES: usize = 60;

const fn bit(feature: u32) -> u64 {
    1 << feature
}

/// The feature bits of a device with these limits.
pub fn features(limits: &Limits, queues: u16) -> u64 {
    let mut features = bit(VIRTIO_F_VERSION_1)
        | bit(VIRTIO_RING_F_EVENT_IDX)
        | bit(VIRTIO_RING_F_INDIRECT_DESC)
        | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
        | VhostUserVirtioFeatures::LOG_ALL.bits()
        | bit(blk::VIRTIO_BLK_F_SIZE_MAX)
        | bit(blk::VIRTIO_BLK_F_SEG_MAX)
        | bit(blk::VIRTIO_BLK_F_BLK_SIZE)
        | bit(blk::VIRTIO_BLK_F_TOPOLOGY)
        | bit(blk::VIRTIO_BLK_F_FLUSH)
        | bit(blk::VIRTIO_BLK_F_CONFIG_WCE);
    if limits.read_only {
        features |= bit(blk::VIRTIO_BLK_F_RO);
    } else {
        features |= bit(blk::VIRTIO_BLK_F_DISCARD) | bit(blk::VIRTIO_BLK_F_WRITE_ZEROES);
    }
    if queues > 1 {
        features |= bit(blk::VIRTIO_BLK_F_MQ);
    }
    features
}

/// Features of the protocol's back end.
pub fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::RESET_DEVICE
}

/// Must writes be durable before they are done (VIRTIO 1.2, 5.2.5.1)? A driver
/// that cannot flush has no other way.
pub fn writes_through(features: u64, writeback: bool) -> bool {
    features & bit(blk::VIRTIO_BLK_F_FLUSH) == 0 || !writeback
}

/// Was this feature negotiated: may the driver write the write cache's switch?
pub fn may_set_writeback(features: u64) -> bool {
    features & bit(blk::VIRTIO_BLK_F_CONFIG_WCE) != 0
}

/// Does the VMM want to know which of the guest's memory is written?
pub fn logs(features: u64) -> bool {
    features & VhostUserVirtioFeatures::LOG_ALL.bits() != 0
}

/// Were event indices negotiated?
pub fn has_event_idx(features: u64) -> bool {
    features & bit(VIRTIO_RING_F_EVENT_IDX) != 0
}

/// `len` bytes of the configuration space from `offset` on; zeroes beyond its end.
pub fn read(limits: &Limits, queues: u16, writeback: bool, offset: u32, len: u32) -> Vec<u8> {
    let space = space(limits, queues, writeback);
    let from = (offset as usize).min(space.len());
    let to = (offset.saturating_add(len) as usize).min(space.len());
    let mut bytes = space[from..to].to_vec();
    bytes.resize(len as usize, 0);
    bytes
}

fn space(limits: &Limits, queues: u16, writeback: bool) -> [u8; CONFIG_BYTES] {
    let logical = limits.logical_block_bytes;
    let per_physical = (limits.physical_block_bytes / logical).max(1);
    let discard_alignment = limits.physical_block_bytes / SECTOR_BYTES as u32;
    let mut space = [0; CONFIG_BYTES];
    let mut put = |offset: usize, bytes: &[u8]| {
        space[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &(limits.served_bytes() / SECTOR_BYTES).to_le_bytes());
    put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    // Cylinders, heads and sectors, at 16, are not offered.
    put(20, &logical.to_le_bytes());
    put(24, &[per_physical.ilog2() as u8, 0]);
    put(26, &u16::try_from(per_physical).unwrap_or(u16::MAX).to_le_bytes());
    // No optimal size, at 28.
    put(WRITEBACK_OFFSET as usize, &[u8::from(writeback)]);
    put(34, &queues.to_le_bytes());
    if !limits.read_only {
        put(36, &DISCARD_SECTORS_MAX.to_le_bytes());
        put(40, &1u32.to_le_bytes());
        put(44, &discard_alignment.to_le_bytes());
        put(48, &WRITE_ZEROES_SECTORS_MAX.to_le_bytes());
        put(52, &1u32.to_le_bytes());
        put(56, &[1]);
    }
    space
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::tests::LIMITS;

    #[test]
    fn the_space_says_what_the_limits_say() {
        let space = read(&LIMITS, 4, true, 0, 60);
        assert_eq!(space[0..8], (1u64 << 21).to_le_bytes());
        assert_eq!(space[20..24], 512u32.to_le_bytes());
        assert_eq!(space[24..28], [3, 0, 8, 0]);
        assert_eq!(space[32], 1);
        assert_eq!(space[34..36], [4, 0]);
        assert_eq!(space[44..48], 8u32.to_le_bytes());
    }

    #[test]
    fn a_guest_sees_blocks_of_4096() {
        let limits = Limits { logical_block_bytes: 4096, align_bytes: 4096, ..LIMITS };
        let space = read(&limits, 1, true, 0, 60);
        // The capacity stays in sectors of 512.
        assert_eq!(space[0..8], (1u64 << 21).to_le_bytes());
        assert_eq!(space[20..24], 4096u32.to_le_bytes());
        assert_eq!(space[24..28], [0, 0, 1, 0], "a physical block is a logical one");
        assert_ne!(features(&limits, 1) & bit(blk::VIRTIO_BLK_F_BLK_SIZE), 0);
    }

    #[test]
    fn any_part_of_the_space_can_be_read() {
        assert_eq!(read(&LIMITS, 4, true, 32, 4), [1, 0, 4, 0]);
        assert_eq!(read(&LIMITS, 4, false, 32, 1), [0]);
        assert_eq!(read(&LIMITS, 1, true, 56, 8), [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read(&LIMITS, 1, true, u32::MAX, 3), [0; 3]);
        assert_eq!(read(&LIMITS, 1, true, 0, 256).len(), 256);
    }

    #[test]
    fn a_read_only_disk_discards_nothing() {
        let limits = Limits { read_only: true, ..LIMITS };
        let changed = features(&LIMITS, 1) ^ features(&limits, 1);
        assert_eq!(changed, bit(5) | bit(13) | bit(14));
        assert_eq!(read(&limits, 1, true, 36, 24), [0; 24]);
        assert_eq!(features(&LIMITS, 1) ^ features(&LIMITS, 2), bit(12));
    }

    #[test]
    fn a_driver_that_cannot_flush_writes_through() {
        assert!(writes_through(0, true));
        assert!(writes_through(bit(9), false));
        assert!(!writes_through(bit(9), true));
    }
}
