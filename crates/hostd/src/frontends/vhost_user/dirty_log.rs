//! The log of a live migration: which pages of its memory a guest's device has written. One bit
//! stands for 4 KiB of guest-physical memory, the lowest bit of a byte for the lowest page
//! (vhost-user specification, "Migration"). The VMM reads and clears the bits meanwhile, so they
//! are set atomically.

use super::memory::{self, MemoryError};
use crate::shortage::told;
use crate::sigbus::Watch;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use vm_memory::{FileOffset, MmapRegion};

/// Bytes of guest memory that one bit stands for.
const PAGE_BYTES: u64 = 4096;

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the log of a migration: {}", told(.0))]
    Io(#[from] io::Error),
    #[error("the log of a migration: {need} bytes are needed, and its file has {have}")]
    Short {
        /// Bytes up to the log's end.
        need: u64,
        /// Bytes of the file.
        have: u64,
    },
    #[error("the log of a migration: {0}")]
    Slow(MemoryError),
}

/// A log in memory of the VMM's.
pub struct DirtyLog {
    /// The VMM may take pages away. Before the mapping: fields are dropped in this order.
    _watch: Watch,
    map: MmapRegion,
}

impl DirtyLog {
    /// Map the `bytes` of a log that begin at `offset` of a file.
    ///
    /// # Errors
    /// A file that is too short, or that could keep a reactor waiting; what the system says.
    pub fn map(file: File, offset: u64, bytes: u64) -> Result<DirtyLog, LogError> {
        let need = offset.saturating_add(bytes);
        let have = file.metadata()?.len();
        if have < need {
            return Err(LogError::Short { need, have });
        }
        memory::refuse_slow(&file, 0).map_err(LogError::Slow)?;
        let page_bytes = memory::page_bytes(&file)?;
        let map = MmapRegion::from_file(FileOffset::new(file, offset), bytes as usize);
        let map = map.map_err(io::Error::other)?;
        // SAFETY: mapped in whole pages, and unmapped after the watch is dropped.
        let _watch = unsafe { Watch::new(map.as_ptr(), bytes as usize, page_bytes) };
        Ok(DirtyLog { _watch, map })
    }

    /// `len` bytes from a guest-physical address on were written. What lies beyond the log's end
    /// is ignored.
    pub fn mark(&self, start: u64, len: u64) {
        mark(self.bits(), start, len);
    }

    /// All of the guest's memory may have been written.
    pub fn mark_all(&self) {
        for byte in self.bits() {
            byte.store(u8::MAX, Ordering::Release);
        }
    }

    fn bits(&self) -> &[AtomicU8] {
        // SAFETY: mapped for reading and writing while `self` lives; bytes need no alignment.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.map.size()) }
    }
}

/// What a virtqueue logs.
#[derive(Clone)]
pub struct Logging {
    pub log: Arc<DirtyLog>,
    /// Where its used ring is in the guest's memory, if that is to be logged.
    pub used: Option<u64>,
}

fn mark(bits: &[AtomicU8], start: u64, len: u64) {
    let Some(beyond_first) = len.checked_sub(1) else { return };
    let first = start / PAGE_BYTES;
    let end = (start.saturating_add(beyond_first) / PAGE_BYTES + 1).min(bits.len() as u64 * 8);
    let mut page = first;
    while page < end {
        let byte = &bits[(page / 8) as usize];
        let (bit, pages) = (page % 8, (8 - page % 8).min(end - page));
        // Release: whoever sees the bit also sees what was written before it.
        match pages {
            8 => byte.store(u8::MAX, Ordering::Release),
            _ => {
                byte.fetch_or((((1u16 << pages) - 1) << bit) as u8, Ordering::Release);
            }
        }
        page += pages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    fn marked(bytes: usize, start: u64, len: u64) -> Vec<u64> {
        let log: Vec<AtomicU8> = (0..bytes).map(|_| AtomicU8::new(0)).collect();
        mark(&log, start, len);
        let is_set =
            |page: &u64| log[*page as usize / 8].load(Ordering::Relaxed) >> (page % 8) & 1 == 1;
        (0..bytes as u64 * 8).filter(is_set).collect()
    }

    #[test]
    fn every_page_that_a_range_touches_is_marked_and_no_other() {
        assert!(marked(2, 0, 0).is_empty());
        assert_eq!(marked(2, 4095, 1), [0]);
        assert_eq!(marked(2, 4095, 2), [0, 1]);
        assert_eq!(marked(2, 7 * 4096, 2 * 4096), [7, 8]);
    }

    #[test]
    fn pages_beyond_the_log_are_ignored() {
        assert_eq!(marked(1, 7 * 4096, 1 << 20), [7]);
        assert!(marked(1, u64::MAX, u64::MAX).is_empty());
        assert!(marked(0, 0, 1).is_empty());
    }

    proptest! {
        #[test]
        fn marking_by_bytes_is_marking_by_pages(start in 0u64..200_000, len in 0u64..300_000) {
            let pages = |page: &u64| page * 4096 < start + len && (page + 1) * 4096 > start;
            let expected: Vec<u64> = (0..64).filter(pages).filter(|_| len > 0).collect();
            prop_assert_eq!(marked(8, start, len), expected);
        }
    }

    #[test]
    fn a_log_is_a_part_of_its_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096 + 16).unwrap();
        let log = DirtyLog::map(file.try_clone().unwrap(), 4096, 16).unwrap();
        log.mark(9 * 4096, 1);
        let mut bytes = [0; 16];
        file.read_exact_at(&mut bytes, 4096).unwrap();
        assert_eq!(bytes[..3], [0, 2, 0]);
        log.mark_all();
        file.read_exact_at(&mut bytes, 4096).unwrap();
        assert_eq!(bytes, [u8::MAX; 16]);
        // Its VMM takes it away: that harms nobody but its guest.
        file.set_len(0).unwrap();
        log.mark(0, 1);
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        for (offset, bytes) in [(0, 4097), (4096, 1), (u64::MAX, 2)] {
            let refused = DirtyLog::map(file.try_clone().unwrap(), offset, bytes).err().unwrap();
            assert!(matches!(refused, LogError::Short { .. }), "{refused}");
        }
    }
}
