//! The guest's memory as its VMM hands it over: files, mapped here, found by the
//! guest's addresses (descriptors) or by the VMM's (rings).

use super::account::Account;
use super::mapping::{FLAGS, MapError, Mapping, PROTECTION};
use super::ring::Parts;
use crate::reactor;
use crate::sigbus;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
    MmapRegion,
};

/// Most regions of memory: as many DIMMs as QEMU's machines take.
pub const REGIONS_MAX: usize = 256;

/// Why memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The region cannot be mapped.
    #[error("guest memory at {guest:#x}: {error}")]
    Map {
        /// The region's address in the guest.
        guest: u64,
        error: MapError,
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
    mapping: Arc<Mapping>,
    /// The mapping for crate `vm-memory`, which does not own it.
    mapped: Arc<GuestRegionMmap>,
}

/// Memory that descriptors point into.
#[derive(Default)]
pub struct GuestMemory {
    /// The mapping of each region, which knows whether memory was taken away.
    mappings: Vec<Arc<Mapping>>,
    map: GuestMemoryMmap,
    /// Dropped with it, which its [`Memory`] sees.
    _held: Option<Sender<()>>,
}

impl GuestMemory {
    /// Has its VMM, or the system, taken some of it away? It then reads as zeroes there.
    pub fn is_lost(&self) -> bool {
        sigbus::any_lost() && self.mappings.iter().any(|mapping| mapping.is_lost())
    }
}

impl Deref for GuestMemory {
    type Target = GuestMemoryMmap;
    fn deref(&self) -> &GuestMemoryMmap {
        &self.map
    }
}

impl From<GuestMemoryMmap> for GuestMemory {
    /// Memory of the process's own.
    fn from(map: GuestMemoryMmap) -> GuestMemory {
        GuestMemory { map, ..GuestMemory::default() }
    }
}

pub struct Memory {
    regions: Vec<Region>,
    map: Arc<GuestMemory>,
    released: Receiver<()>,
}

/// Memory that is not a guest's any more, and that queues may still use. It is unmapped when this is
/// dropped, by the thread that does: that takes time.
pub struct Retired {
    _regions: Vec<Region>,
    released: Receiver<()>,
}

impl Retired {
    /// Does no queue use it any more?
    pub fn is_released(&self) -> bool {
        self.released.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Wait until no queue uses it.
    pub fn wait(self) {
        reactor::wait(&self.released);
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new(Vec::new(), GuestMemoryMmap::default())
    }
}

impl Memory {
    /// The memory that descriptors point into.
    pub fn map(&self) -> Arc<GuestMemory> {
        self.map.clone()
    }

    fn new(regions: Vec<Region>, map: GuestMemoryMmap) -> Memory {
        let mappings = regions.iter().map(|region| region.mapping.clone()).collect();
        let (held, released) = mpsc::channel();
        let map = Arc::new(GuestMemory { mappings, map, _held: Some(held) });
        Memory { regions, map, released }
    }

    /// The guest has other memory now.
    pub fn retire(self) -> Retired {
        Retired { _regions: self.regions, released: self.released }
    }

    /// The memory with one more region, on its VMM's account.
    pub fn with(
        &self,
        region: &VhostUserMemoryRegion,
        file: File,
        account: &Arc<Account>,
    ) -> Result<Memory, MemoryError> {
        let (guest, len) = (region.guest_phys_addr, region.memory_size);
        if self.regions.len() >= REGIONS_MAX {
            return Err(MemoryError::Regions { guest });
        }
        let mapping = Mapping::of_guest(file, region.mmap_offset, len, account)
            .map_err(|error| MemoryError::Map { guest, error })?;
        // SAFETY: mapped so; who has the region has the mapping too.
        let mapped =
            unsafe { MmapRegion::build_raw(mapping.as_ptr(), mapping.len(), PROTECTION, FLAGS) };
        let mapped = mapped.map_err(|e| {
            let error = io::Error::other(e).into();
            MemoryError::Map { guest, error }
        })?;
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(guest))
            .map(Arc::new)
            .ok_or(MemoryError::Regions { guest })?;
        let map = self.map.map.insert_region(mapped.clone());
        let map = map.map_err(|_| MemoryError::Regions { guest })?;
        let mut regions = self.regions.clone();
        let (user_address, mapping) = (region.user_addr, Arc::new(mapping));
        regions.push(Region { user_address, mapping, mapped });
        Ok(Memory::new(regions, map))
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
        let map = self.map.map.remove_region(GuestAddress(guest), len);
        let (map, _) = map.map_err(|_| MemoryError::Missing { guest })?;
        Ok(Memory::new(regions, map))
    }

    /// True when the VMM shares no region of memory.
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
    use super::super::account::{Exceeded, Resource};
    use super::super::mapping::memory_file as file;
    use super::*;
    use crate::sandbox;
    use vm_memory::Bytes;

    const MIB: u64 = 1 << 20;

    /// On an account of its own.
    fn with(
        memory: &Memory,
        region: &VhostUserMemoryRegion,
        file: File,
    ) -> Result<Memory, MemoryError> {
        memory.with(region, file, &Arc::default())
    }

    fn region(guest: u64, bytes: u64, user: u64, offset: u64) -> VhostUserMemoryRegion {
        VhostUserMemoryRegion::new(guest, bytes, user, offset)
    }

    #[test]
    fn rings_are_found_inside_one_region() {
        let memory = Memory::default();
        assert!(memory.is_empty());
        let memory = with(&memory, &region(0, MIB, 0x7000_0000, 0), file(MIB)).unwrap();
        let memory = with(&memory, &region(MIB, MIB, 0x7010_0000, MIB), file(2 * MIB)).unwrap();
        let at = |address| memory.parts([address, 0x7000_1000, 0x7000_2000], 16);
        assert!(at(0x7000_0000).is_ok());
        assert!(at(0x7010_0000).is_ok());
        for wrong in [0, 0x6fff_fff0, 0x7000_0008, 0x700f_ff10, 0x701f_ff10, u64::MAX - 15] {
            assert!(at(wrong).is_err(), "{wrong:#x}");
        }
    }

    #[test]
    fn files_that_are_too_short_are_refused() {
        let error = with(&Memory::default(), &region(0, 2 * MIB, 0, 0), file(MIB)).err().unwrap();
        assert!(matches!(error, MemoryError::Map { error: MapError::Short { .. }, .. }), "{error}");
        let error = with(&Memory::default(), &region(0, MIB, 0, 4096), file(MIB)).err().unwrap();
        assert!(matches!(error, MemoryError::Map { error: MapError::Short { .. }, .. }), "{error}");
    }

    /// Memory that is mapped twice, or was exchanged and is still mapped, counts once.
    #[test]
    fn a_vmm_has_no_more_memory_mapped_than_its_disk_allows() {
        let account = Arc::new(Account::new(Some(2 * MIB)));
        let (one, two) = (file(2 * MIB), file(MIB));
        let with = |memory: &Memory, guest, bytes, offset, file: &File| {
            let file = file.try_clone().unwrap();
            memory.with(&region(guest, bytes, guest, offset), file, &account)
        };
        let memory = with(&Memory::default(), 0, MIB, 0, &one).unwrap();
        let again = with(&memory, 8 * MIB, MIB, 0, &one).unwrap();
        let both = with(&again, MIB, MIB, 0, &two).unwrap();
        drop(again);
        let error = with(&both, 2 * MIB, 1, MIB, &one).err().unwrap();
        let limit = Exceeded::Memory { bytes: 2 * MIB + 4096, max: 2 * MIB };
        let MemoryError::Map { error: MapError::Limit(error), .. } = error else {
            panic!("{error}");
        };
        assert_eq!(error, limit);
        // Earlier memory that requests use is mapped still.
        let retired = both.retire();
        assert!(with(&memory, MIB, MIB, MIB, &one).is_err());
        drop(retired);
        assert!(with(&memory, MIB, MIB, MIB, &one).is_ok());
    }

    #[test]
    fn memory_that_was_cut_short_is_lost_and_other_memory_is_not() {
        let (one, two) = (file(MIB), file(MIB));
        let both =
            with(&Memory::default(), &region(0, MIB, 0, 0), one.try_clone().unwrap()).unwrap();
        let only =
            with(&Memory::default(), &region(0, MIB, 0, 0), two.try_clone().unwrap()).unwrap();
        let both = with(&both, &region(MIB, MIB, MIB, 0), two).unwrap();
        let read = |memory: &Memory, at| -> u8 { memory.map().read_obj(GuestAddress(at)).unwrap() };
        one.set_len(0).unwrap();
        assert_eq!((read(&both, MIB), both.map().is_lost()), (0, false));
        assert_eq!((read(&both, 0), both.map().is_lost()), (0, true));
        assert_eq!((read(&only, 0), only.map().is_lost()), (0, false));
        let rest = both.without(&region(0, MIB, 0, 0)).unwrap();
        assert!(!rest.map().is_lost());
    }

    #[test]
    fn guests_memory_is_left_out_of_core_dumps() {
        let ours = file(MIB);
        let memory =
            with(&Memory::default(), &region(0, MIB, 0, 0), ours.try_clone().unwrap()).unwrap();
        let at = memory.regions[0].mapped.as_ptr();
        assert!(sandbox::is_left_out(at));
        // What takes the place of memory that is gone is left out too.
        ours.set_len(0).unwrap();
        let _: u8 = memory.map().read_obj(GuestAddress(0)).unwrap();
        assert!(memory.map().is_lost() && sandbox::is_left_out(at));
    }

    #[test]
    fn memory_is_unmapped_by_who_retired_it_and_not_by_its_last_user() {
        let account = Arc::new(Account::default());
        let one = Memory::default().with(&region(0, MIB, 0, 0), file(MIB), &account).unwrap();
        let two = one.with(&region(MIB, MIB, MIB, 0), file(MIB), &account).unwrap();
        let (user, other) = (two.map(), one.map());
        let (one, two) = (one.retire(), two.retire());
        assert!(!one.is_released() && !two.is_released());
        drop(user);
        assert!(two.is_released() && !one.is_released());
        assert_eq!(account.held(Resource::Mappings), 2, "mapped still");
        drop(two);
        assert_eq!(account.held(Resource::Mappings), 1);
        drop(other);
        one.wait();
        assert_eq!(account.held(Resource::Mappings), 0);
    }

    #[test]
    fn regions_do_not_overlap_and_are_removed_by_all_they_are() {
        let one = region(0, MIB, 0x7000_0000, 0);
        let memory = with(&Memory::default(), &one, file(MIB)).unwrap();
        let error = with(&memory, &region(4096, MIB, 0, 0), file(MIB)).err().unwrap();
        assert!(matches!(error, MemoryError::Regions { .. }), "{error}");
        let other = region(0, MIB, 0x8000_0000, 0);
        assert!(matches!(memory.without(&other), Err(MemoryError::Missing { .. })));
        assert!(memory.without(&one).unwrap().is_empty());
    }
}
