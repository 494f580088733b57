//! The guest's memory as its VMM hands it over: files, mapped here, found by the
//! guest's addresses (descriptors) or by the VMM's (rings).

use super::ring::Parts;
use std::fs::File;
use std::io;
use std::sync::Arc;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MmapRegion,
};

/// Most regions of memory: as many DIMMs as QEMU's machines take.
pub const REGIONS_MAX: usize = 256;

/// Why memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The system says no.
    #[error("guest memory at {guest:#x}: {error}")]
    Map {
        /// The region's address in the guest.
        guest: u64,
        error: io::Error,
    },
    /// The file is too short, and touching what is missing would end the daemon.
    #[error("guest memory at {guest:#x}: the file has {have} bytes, and {need} are needed")]
    Short {
        /// The region's address in the guest.
        guest: u64,
        /// Bytes of the file.
        have: u64,
        /// Bytes up to the region's end.
        need: u64,
    },
    /// Regions overlap, or there are too many.
    #[error("guest memory at {guest:#x}: it overlaps another region, or there are more than {max}", max = REGIONS_MAX)]
    Regions {
        /// The region's address in the guest.
        guest: u64,
    },
    /// Nothing there to remove.
    #[error("guest memory at {guest:#x}: no such region")]
    Missing {
        /// The region's address in the guest.
        guest: u64,
    },
}

/// A ring does not lie inside one region, or is not aligned.
#[derive(Debug, thiserror::Error)]
#[error(
    "{bytes} bytes of a ring at {address:#x} are not aligned to {align} inside one region of memory"
)]
pub struct MisplacedRing {
    address: u64,
    bytes: u64,
    align: u64,
}

/// A region and where the VMM has it in its own address space.
#[derive(Clone)]
struct Region {
    user_address: u64,
    mapped: Arc<GuestRegionMmap>,
}

#[derive(Clone, Default)]
pub struct Memory {
    regions: Vec<Region>,
    map: Arc<GuestMemoryMmap>,
}

impl Memory {
    /// What descriptors point into.
    pub fn map(&self) -> Arc<GuestMemoryMmap> {
        self.map.clone()
    }

    /// The memory with one more region.
    pub fn with(&self, region: &VhostUserMemoryRegion, file: File) -> Result<Memory, MemoryError> {
        let (guest, len) = (region.guest_phys_addr, region.memory_size);
        let io = |error| MemoryError::Map { guest, error };
        // The protocol's reader has checked that this does not overflow.
        let need = region.mmap_offset + len;
        let have = file.metadata().map_err(io)?.len();
        if have < need {
            return Err(MemoryError::Short { guest, have, need });
        }
        let mapped = MmapRegion::from_file(FileOffset::new(file, region.mmap_offset), len as usize)
            .map_err(|e| io(io::Error::other(e)))?;
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(guest))
            .map(Arc::new)
            .filter(|_| self.regions.len() < REGIONS_MAX)
            .ok_or(MemoryError::Regions { guest })?;
        let map = self.map.insert_region(mapped.clone());
        let map = map.map_err(|_| MemoryError::Regions { guest })?;
        let mut regions = self.regions.clone();
        regions.push(Region { user_address: region.user_addr, mapped });
        Ok(Memory { regions, map: Arc::new(map) })
    }

    /// The memory without this region.
    pub fn without(&self, region: &VhostUserMemoryRegion) -> Result<Memory, MemoryError> {
        let (guest, len) = (region.guest_phys_addr, region.memory_size);
        let mut regions = self.regions.clone();
        let at = regions.iter().position(|r| {
            r.mapped.start_addr().0 == guest
                && r.mapped.len() == len
                && r.user_address == region.user_addr
        });
        regions.remove(at.ok_or(MemoryError::Missing { guest })?);
        let map = self.map.remove_region(GuestAddress(guest), len);
        let (map, _) = map.map_err(|_| MemoryError::Missing { guest })?;
        Ok(Memory { regions, map: Arc::new(map) })
    }

    /// Is there any?
    pub fn is_empty(&self) -> bool {
        self.map.num_regions() == 0
    }

    /// Where a ring of `size` entries is in host memory, whose descriptors,
    /// available and used rings are at these addresses of the VMM's.
    pub fn parts(&self, addresses: [u64; 3], size: u16) -> Result<Parts, MisplacedRing> {
        let layout = Parts::layout(size);
        let find = |i: usize| self.find(addresses[i], layout[i].0, layout[i].1);
        Ok(Parts { descriptors: find(0)?, available: find(1)?, used: find(2)? })
    }

    fn find(&self, address: u64, bytes: u64, align: u64) -> Result<*mut u8, MisplacedRing> {
        self.regions
            .iter()
            .find_map(|region| {
                let offset = address.checked_sub(region.user_address)?;
                let end = offset.checked_add(bytes)?;
                if end > region.mapped.len() {
                    return None;
                }
                // SAFETY: inside the region.
                let at = unsafe { region.mapped.as_ptr().add(offset as usize) };
                (at as u64).is_multiple_of(align).then_some(at)
            })
            .ok_or(MisplacedRing { address, bytes, align })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn file(bytes: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    fn region(guest: u64, bytes: u64, user: u64, offset: u64) -> VhostUserMemoryRegion {
        VhostUserMemoryRegion::new(guest, bytes, user, offset)
    }

    #[test]
    fn rings_are_found_inside_one_region() {
        let memory = Memory::default();
        assert!(memory.is_empty());
        let memory = memory.with(&region(0, MIB, 0x7000_0000, 0), file(MIB)).unwrap();
        let memory = memory.with(&region(MIB, MIB, 0x7010_0000, MIB), file(2 * MIB)).unwrap();
        let at = |address| memory.parts([address, 0x7000_1000, 0x7000_2000], 16);
        assert!(at(0x7000_0000).is_ok());
        assert!(at(0x7010_0000).is_ok());
        for wrong in [0, 0x6fff_fff0, 0x7000_0008, 0x700f_ff10, 0x701f_ff10, u64::MAX - 15] {
            assert!(at(wrong).is_err(), "{wrong:#x}");
        }
    }

    #[test]
    fn files_that_are_too_short_are_refused() {
        let error = Memory::default().with(&region(0, 2 * MIB, 0, 0), file(MIB)).err().unwrap();
        assert!(matches!(error, MemoryError::Short { .. }), "{error}");
        let error = Memory::default().with(&region(0, MIB, 0, 4096), file(MIB)).err().unwrap();
        assert!(matches!(error, MemoryError::Short { .. }), "{error}");
    }

    #[test]
    fn regions_do_not_overlap_and_are_removed_by_all_they_are() {
        let one = region(0, MIB, 0x7000_0000, 0);
        let memory = Memory::default().with(&one, file(MIB)).unwrap();
        let error = memory.with(&region(4096, MIB, 0, 0), file(MIB)).err().unwrap();
        assert!(matches!(error, MemoryError::Regions { .. }), "{error}");
        let other = region(0, MIB, 0x8000_0000, 0);
        assert!(matches!(memory.without(&other), Err(MemoryError::Missing { .. })));
        assert!(memory.without(&one).unwrap().is_empty());
    }
}
