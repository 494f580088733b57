//! The guest's memory as its VMM hands it over: files, mapped here, found by the
//! guest's addresses (descriptors) or by the VMM's (rings).

use super::ring::Parts;
use crate::sandbox;
use crate::shortage::told;
use crate::sigbus::{self, Watch};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MmapRegion,
};

/// Most regions of memory: as many DIMMs as QEMU's machines take.
pub const REGIONS_MAX: usize = 256;

const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
/// File systems on which memory is refused: a page that is not there comes from a program or over
/// a network, and the reactor, with all of a device's guests, would wait for it in the middle of an
/// access. The numbers are those of linux/magic.h.
const SLOW_FILE_SYSTEMS: [(u32, &str); 7] = [
    (0x6573_5546, "FUSE"),
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
];

/// Why memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The system says no.
    #[error("guest memory at {guest:#x}: {}", told(.error))]
    Map {
        /// The region's address in the guest.
        guest: u64,
        error: io::Error,
    },
    /// The file is too short.
    #[error("guest memory at {guest:#x}: the file has {have} bytes, and {need} are needed")]
    Short {
        /// The region's address in the guest.
        guest: u64,
        /// Bytes of the file.
        have: u64,
        /// Bytes up to the region's end.
        need: u64,
    },
    /// A page of it could keep everybody waiting.
    #[error(
        "guest memory at {guest:#x}: its file is on {kind}, which could stop the device for all \
         guests: use memory-backend-memfd, or a file on tmpfs or hugetlbfs (/dev/shm, /dev/hugepages)"
    )]
    Slow {
        /// The region's address in the guest.
        guest: u64,
        /// The file system.
        kind: &'static str,
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
    /// Before the mapping: fields are dropped in this order.
    watch: Arc<Watch>,
    mapped: Arc<GuestRegionMmap>,
}

/// What descriptors point into.
#[derive(Default)]
pub struct GuestMemory {
    /// Of each region. Before the mappings: fields are dropped in this order.
    watches: Vec<Arc<Watch>>,
    map: GuestMemoryMmap,
}

impl GuestMemory {
    /// Has its VMM, or the system, taken some of it away? It then reads as zeroes there.
    pub fn is_lost(&self) -> bool {
        sigbus::any_lost() && self.watches.iter().any(|watch| watch.is_lost())
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
        GuestMemory { watches: Vec::new(), map }
    }
}

#[derive(Clone, Default)]
pub struct Memory {
    regions: Vec<Region>,
    map: Arc<GuestMemory>,
}

impl Memory {
    /// What descriptors point into.
    pub fn map(&self) -> Arc<GuestMemory> {
        self.map.clone()
    }

    fn new(regions: Vec<Region>, map: GuestMemoryMmap) -> Memory {
        let watches = regions.iter().map(|region| region.watch.clone()).collect();
        Memory { regions, map: Arc::new(GuestMemory { watches, map }) }
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
        refuse_slow(&file, guest)?;
        let page_bytes = page_bytes(&file).map_err(io)?;
        let mapped = MmapRegion::from_file(FileOffset::new(file, region.mmap_offset), len as usize)
            .map_err(|e| match e {
                MmapRegionError::Mmap(e) => io(e),
                e => io(io::Error::other(e)),
            })?;
        let start = mapped.as_ptr();
        sandbox::leave_out(start, mapped.size());
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(guest))
            .map(Arc::new)
            .filter(|_| self.regions.len() < REGIONS_MAX)
            .ok_or(MemoryError::Regions { guest })?;
        let map = self.map.insert_region(mapped.clone());
        let map = map.map_err(|_| MemoryError::Regions { guest })?;
        // SAFETY: mapped in whole pages, and unmapped after the watch is dropped: all that keep
        // the one keep the other, and drop it first.
        let watch = Arc::new(unsafe { Watch::new(start, len as usize, page_bytes) });
        let mut regions = self.regions.clone();
        regions.push(Region { user_address: region.user_addr, watch, mapped });
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
        let map = self.map.remove_region(GuestAddress(guest), len);
        let (map, _) = map.map_err(|_| MemoryError::Missing { guest })?;
        Ok(Memory::new(regions, map))
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

fn file_system(file: &File) -> io::Result<libc::statfs> {
    // SAFETY: the struct is plain, and filled by the call.
    unsafe {
        let mut stat = std::mem::zeroed();
        match libc::fstatfs(file.as_raw_fd(), &mut stat) {
            0 => Ok(stat),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A page of the file, memory of the guest at this address, comes at once.
///
/// # Errors
/// [`MemoryError::Slow`]; or what the system says.
pub fn refuse_slow(file: &File, guest: u64) -> Result<(), MemoryError> {
    let kind = file_system(file).map_err(|error| MemoryError::Map { guest, error })?.f_type;
    match slow_kind(kind as u32) {
        Some(kind) => Err(MemoryError::Slow { guest, kind }),
        None => Ok(()),
    }
}

/// The name of a file system on which memory is refused.
fn slow_kind(magic: u32) -> Option<&'static str> {
    SLOW_FILE_SYSTEMS.iter().find(|(slow, _)| *slow == magic).map(|&(_, kind)| kind)
}

/// Bytes of a page of a mapping of this file.
pub fn page_bytes(file: &File) -> io::Result<usize> {
    let stat = file_system(file)?;
    match stat.f_type as u32 {
        // A huge page is there, or missing, as a whole.
        HUGETLBFS_MAGIC => Ok(stat.f_bsize as usize),
        // SAFETY: takes a number.
        _ => Ok(unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::Bytes;

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
    fn memory_that_was_cut_short_is_lost_and_other_memory_is_not() {
        let (one, two) = (file(MIB), file(MIB));
        let both = Memory::default().with(&region(0, MIB, 0, 0), one.try_clone().unwrap()).unwrap();
        let only = Memory::default().with(&region(0, MIB, 0, 0), two.try_clone().unwrap()).unwrap();
        let both = both.with(&region(MIB, MIB, MIB, 0), two).unwrap();
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
            Memory::default().with(&region(0, MIB, 0, 0), ours.try_clone().unwrap()).unwrap();
        let at = memory.regions[0].mapped.as_ptr();
        assert!(sandbox::is_left_out(at));
        // What takes the place of memory that is gone is left out too.
        ours.set_len(0).unwrap();
        let _: u8 = memory.map().read_obj(GuestAddress(0)).unwrap();
        assert!(memory.map().is_lost() && sandbox::is_left_out(at));
    }

    #[test]
    fn memory_on_file_systems_that_wait_for_others_is_refused() {
        let kind = |file: &File| file_system(file).unwrap().f_type as u32;
        let ours = file(MIB);
        assert_eq!(slow_kind(kind(&ours)), None);
        assert!(page_bytes(&ours).unwrap().is_power_of_two());
        let proc = File::open("/proc/self/status").unwrap();
        assert_eq!(kind(&proc), libc::PROC_SUPER_MAGIC as u32);
        assert_eq!(slow_kind(libc::FUSE_SUPER_MAGIC as u32), Some("FUSE"));
        assert_eq!(slow_kind(libc::NFS_SUPER_MAGIC as u32), Some("NFS"));
        assert_eq!(slow_kind(libc::TMPFS_MAGIC as u32), None);
        let error = MemoryError::Slow { guest: 0, kind: "FUSE" }.to_string();
        assert!(error.contains("FUSE") && error.contains("memory-backend-memfd"), "{error}");
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
