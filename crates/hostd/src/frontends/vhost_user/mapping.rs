//! A part of a file of the VMM's, mapped: its guest's memory, the log of a migration, the record of
//! requests in flight.
//!
//! Only files on tmpfs and hugetlbfs are mapped. A page of any other file may come from a disk, from
//! a program or over a network, and the reactor, with all of a device's guests, would wait for it in
//! the middle of an access. The file's descriptor is not kept.

use super::account::{Account, Exceeded, Hold, MemoryHold, Resource};
use crate::sandbox;
use crate::shortage::told;
use crate::sigbus::Watch;
#[cfg(test)]
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

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
    use super::*;

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
