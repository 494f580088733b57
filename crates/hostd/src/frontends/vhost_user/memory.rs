//! The guest's memory as its VMM hands it over: files, mapped here, found by the
//! guest's addresses (descriptors) or by the VMM's (rings).

use super::account::{Account, Exceeded, Hold, MemoryHold, Resource};
use super::ring::Parts;
use crate::descriptors::told;
use crate::sigbus::{self, Watch};
use crate::{reactor, sandbox};
#[cfg(test)]
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
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

// A part of a file of the VMM's, mapped: its guest's memory, the log of a migration, the record of
// requests in flight.
//
// Only files on tmpfs and hugetlbfs are mapped. A page of any other file may come from a disk, from
// a program or over a network, and the reactor, with all of a device's guests, would wait for it in
// the middle of an access. The file's descriptor is not kept.

/// File systems whose files are mapped, by `f_type` (`linux/magic.h`).
const TMPFS_MAGIC: u32 = 0x0102_1994;
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

pub const PROTECTION: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
pub const FLAGS: libc::c_int = libc::MAP_SHARED | libc::MAP_NORESERVE;

/// Why a part of a file is not mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The system says no.
    #[error("{}", told(.0))]
    Io(#[from] io::Error),
    /// The file is too short.
    #[error("the file has {have} bytes, and {need} are needed")]
    Short {
        have: u64,
        /// Bytes up to the part's end.
        need: u64,
    },
    /// A page of it could keep everybody waiting.
    #[error(
        "its file is neither on tmpfs nor on hugetlbfs (type {0:#x}), and could stop the device for \
         all guests: use memory-backend-memfd, or a file in /dev/shm or /dev/hugepages"
    )]
    FileSystem(u32),
    /// The mapping would include more than was asked for.
    #[error("{bytes} bytes from offset {offset} on are no whole pages of {page_bytes} bytes")]
    Pages { offset: u64, bytes: u64, page_bytes: u64 },
    #[error(transparent)]
    Limit(#[from] Exceeded),
}

/// Mapped pages. Its VMM may take some away: they then read as zeroes.
pub struct Mapping {
    /// Before the pages: fields are dropped in this order.
    watch: Watch,
    pages: Pages,
    len: usize,
}

/// Whole pages, unmapped when this is dropped.
struct Pages {
    start: *mut u8,
    bytes: usize,
    hold: Option<Hold>,
    memory: Option<MemoryHold>,
}

// SAFETY: the pages are mapped for the process; nothing here reads or writes them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map the `bytes` of a file that begin at `offset`, on the account of the file's VMM.
    ///
    /// # Errors
    /// [`MapError`]
    pub fn new(
        file: File,
        offset: u64,
        bytes: u64,
        account: &Arc<Account>,
    ) -> Result<Mapping, MapError> {
        let page_bytes = page_bytes(&file)?;
        let (need, have) = (offset.saturating_add(bytes), file.metadata()?.len());
        if have < need {
            return Err(MapError::Short { have, need });
        }
        // Of small pages the kernel maps and unmaps whole ones by itself; of huge ones it unmaps
        // nothing unless it is told their whole length.
        let is_huge = page_bytes > system_page_bytes();
        if !offset.is_multiple_of(page_bytes) || is_huge && !bytes.is_multiple_of(page_bytes) {
            return Err(MapError::Pages { offset, bytes, page_bytes });
        }
        let hold = Some(account.hold(Resource::Mappings, 1)?);
        let (len, fd) = (bytes as usize, file.as_raw_fd());
        let whole = bytes.next_multiple_of(page_bytes) as usize;
        // SAFETY: a new mapping, anywhere.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, PROTECTION, FLAGS, fd, offset as libc::off_t)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let start = start.cast::<u8>();
        let pages = Pages { start, bytes: whole, hold, memory: None };
        sandbox::leave_out(start, whole);
        // SAFETY: mapped in whole pages, and unmapped after the watch is dropped.
        let watch = unsafe { Watch::new(start, len, page_bytes as usize) };
        Ok(Mapping { watch, pages, len })
    }

    /// Map memory of a guest, which counts for the disk's limit of that.
    ///
    /// # Errors
    /// [`MapError`]
    pub fn of_guest(
        file: File,
        offset: u64,
        bytes: u64,
        account: &Arc<Account>,
    ) -> Result<Mapping, MapError> {
        let (about, page_bytes) = (file.metadata()?, page_bytes(&file)?);
        let mut mapping = Mapping::new(file, offset, bytes, account)?;
        let range = offset..offset + mapping.pages.bytes as u64;
        let is_huge = page_bytes > system_page_bytes();
        mapping.pages.memory = account.hold_memory((about.dev(), about.ino()), range, is_huge)?;
        Ok(mapping)
    }

    /// Has its VMM, or the system, taken some of it away?
    pub fn is_lost(&self) -> bool {
        self.watch.is_lost()
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.pages.start
    }

    /// Bytes that were asked for.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped here, and used by nobody any more.
        if unsafe { libc::munmap(self.start.cast(), self.bytes) } != 0 {
            // It is held still: the kernel had to split a mapping and could not.
            std::mem::forget((self.hold.take(), self.memory.take()));
        }
    }
}

/// Bytes of a page of a mapping of this file. Fails for a file whose pages may keep the daemon
/// waiting.
pub(super) fn page_bytes(file: &File) -> Result<u64, MapError> {
    let stat = rustix::fs::fstatfs(file).map_err(io::Error::from)?;
    match stat.f_type as u32 {
        // A huge page is there, or missing, as a whole.
        HUGETLBFS_MAGIC => Ok(stat.f_bsize as u64),
        TMPFS_MAGIC => Ok(system_page_bytes()),
        other => Err(MapError::FileSystem(other)),
    }
}

fn system_page_bytes() -> u64 {
    // SAFETY: takes a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// A memory file of this length, for tests.
#[cfg(test)]
pub fn memory_file(bytes: u64) -> File {
    memory_file_of(bytes, MemfdFlags::empty()).unwrap()
}

#[cfg(test)]
fn memory_file_of(bytes: u64, flags: MemfdFlags) -> io::Result<File> {
    let file = File::from(rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | flags)?);
    file.set_len(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::super::account::{Exceeded, Resource};
    use super::super::memory::memory_file as file;
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

    const HUGE_BYTES: u64 = 2 << 20;

    fn map(file: File, offset: u64, bytes: u64) -> Result<Mapping, MapError> {
        Mapping::new(file, offset, bytes, &Arc::default())
    }

    #[test]
    fn other_file_systems_are_refused() {
        // The tests' own folder for temporary files may be a tmpfs.
        let proc = File::open("/proc/self/status").unwrap();
        let refused = map(proc, 0, 4096).err().unwrap();
        let magic = libc::PROC_SUPER_MAGIC as u32;
        assert!(matches!(refused, MapError::FileSystem(kind) if kind == magic), "{refused}");
        assert!(refused.to_string().contains("memory-backend-memfd"), "{refused}");
        assert!(map(memory_file(4096), 0, 4096).is_ok());
    }

    /// No huge page has to exist: none is touched.
    #[test]
    fn a_part_of_a_huge_page_is_refused() {
        let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let Ok(file) = memory_file_of(2 * HUGE_BYTES, huge) else {
            return seekway_testing::skip("memory files of huge pages of 2 MiB");
        };
        for (offset, bytes) in [(0, 4096), (0, HUGE_BYTES + 4096), (4096, HUGE_BYTES)] {
            let refused = map(file.try_clone().unwrap(), offset, bytes).err().unwrap();
            assert!(matches!(refused, MapError::Pages { .. }), "{refused}");
        }
        let account = Arc::new(Account::default());
        let mapping = Mapping::new(file, HUGE_BYTES, HUGE_BYTES, &account).unwrap();
        assert_eq!(account.held(Resource::Mappings), 1);
        drop(mapping);
        assert_eq!(account.held(Resource::Mappings), 0, "it was unmapped");
    }

    #[test]
    fn mappings_are_counted() {
        let (file, account) = (memory_file(4096), Arc::new(Account::default()));
        let copy = || file.try_clone().unwrap();
        let most = (0..).map_while(|_| Mapping::new(copy(), 0, 4096, &account).ok());
        let most: Vec<Mapping> = most.collect();
        assert_eq!(most.len(), super::super::account::PEER_MAX[Resource::Mappings as usize]);
        let refused = Mapping::new(copy(), 0, 4096, &account).err().unwrap();
        assert!(matches!(refused, MapError::Limit(_)), "{refused}");
        assert!(Mapping::new(copy(), 0, 4096, &Arc::default()).is_ok(), "of another VMM");
    }
}
