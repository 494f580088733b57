//! The log of a live migration: which pages of its memory a guest's device has written. One bit
//! stands for 4 KiB of guest-physical memory, the lowest bit of a byte for the lowest page
//! (vhost-user specification, "Migration"). The VMM reads and clears the bits meanwhile, so they
//! are set atomically.

use super::account::Account;
use super::memory::{MapError, Mapping};
use std::fs::File;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of guest memory that one bit stands for.
const PAGE_BYTES: u64 = 4096;
/// Bytes of guest memory that are marked in one step.
pub const WORD_BYTES: u64 = 64 * PAGE_BYTES;

/// Longest log: for guests of 16 TiB. Its pages are charged to whoever touches them first, and that
/// may be the daemon.
pub const BYTES_MAX: u64 = 512 << 20;

/// A log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the log of a migration: {0}")]
    Map(#[from] MapError),
    #[error("the log of a migration has {0} bytes, and {max} are the most", max = BYTES_MAX)]
    Long(u64),
}

/// A log in memory of the VMM's.
pub struct DirtyLog(Mapping);

impl DirtyLog {
    /// Map the `bytes` of a log that begin at `offset` of a file, on its VMM's account.
    ///
    /// # Errors
    /// A log that is too long; a file that is too short, or that could keep a reactor waiting; what
    /// the system says.
    pub fn map(
        file: File,
        offset: u64,
        bytes: u64,
        account: &Arc<Account>,
    ) -> Result<DirtyLog, LogError> {
        if bytes > BYTES_MAX {
            return Err(LogError::Long(bytes));
        }
        Ok(DirtyLog(Mapping::new(file, offset, bytes, account)?))
    }

    /// `len` bytes from a guest-physical address on were written. What lies beyond the log's end
    /// is ignored. One step sets the bits of [`WORD_BYTES`].
    pub fn mark(&self, start: u64, len: u64) {
        // SAFETY: mapped in pages, for reading and writing, while `self` lives.
        let (words, bytes) = unsafe {
            let (at, whole) = (self.0.as_ptr(), self.0.len() / 8);
            let rest = at.add(8 * whole).cast();
            (slice::from_raw_parts(at.cast(), whole), slice::from_raw_parts(rest, self.0.len() % 8))
        };
        mark(words, bytes, start, len);
    }
}

/// The log of a virtqueue.
#[derive(Clone)]
pub struct Logging {
    pub log: Arc<DirtyLog>,
    /// Where its used ring is in the guest's memory, if that is to be logged.
    pub used: Option<u64>,
}

/// Set the bits of what was written. The log is `words`, and `rest` behind them.
fn mark(words: &[AtomicU64], rest: &[AtomicU8], start: u64, len: u64) {
    let Some(beyond_first) = len.checked_sub(1) else { return };
    let (first, in_words) = (start / PAGE_BYTES, words.len() as u64 * 64);
    let end = start.saturating_add(beyond_first) / PAGE_BYTES + 1;
    for (index, bits) in pieces::<64>(first, end.min(in_words)) {
        // Release: whoever sees the bit also sees what was written before it.
        match bits {
            u64::MAX => words[index].store(bits, Ordering::Release),
            _ => _ = words[index].fetch_or(bits.to_le(), Ordering::Release),
        }
    }
    let (first, end) = (first.max(in_words) - in_words, end.max(in_words) - in_words);
    for (index, bits) in pieces::<8>(first, end.min(rest.len() as u64 * 8)) {
        rest[index].fetch_or(bits as u8, Ordering::Release);
    }
}

/// Words of `BITS` bits that a range of bits touches, and which bits of each.
fn pieces<const BITS: u64>(first: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut next = first;
    std::iter::from_fn(move || {
        let (word, bit) = (next / BITS, next % BITS);
        let bits = (BITS - bit).min(end.checked_sub(next).filter(|left| *left > 0)?);
        next += bits;
        Some((word as usize, (u64::MAX >> (64 - bits)) << bit))
    })
}

#[cfg(test)]
mod tests {
    use super::super::memory::memory_file;
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    fn marked(bytes: usize, start: u64, len: u64) -> Vec<u64> {
        let words: Vec<AtomicU64> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        let rest: Vec<AtomicU8> = (0..bytes % 8).map(|_| AtomicU8::new(0)).collect();
        mark(&words, &rest, start, len);
        let words = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let log: Vec<u8> =
            words.chain(rest.iter().map(|byte| byte.load(Ordering::Relaxed))).collect();
        let is_set = |page: &u64| log[*page as usize / 8] >> (page % 8) & 1 == 1;
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
        fn marking_by_words_is_marking_by_pages(
            bytes in 0usize..40,
            start in 0u64..1_400_000,
            len in 0u64..1_400_000,
        ) {
            let pages = |page: &u64| page * 4096 < start + len && (page + 1) * 4096 > start;
            let all = 0..8 * bytes as u64;
            let expected: Vec<u64> = all.filter(pages).filter(|_| len > 0).collect();
            prop_assert_eq!(marked(bytes, start, len), expected);
        }
    }

    #[test]
    fn a_log_is_a_part_of_its_file() {
        let file = memory_file(4096 + 32);
        let log = DirtyLog::map(file.try_clone().unwrap(), 4096, 19, &Arc::default()).unwrap();
        log.mark(9 * 4096, 1);
        let mut bytes = [0; 32];
        file.read_exact_at(&mut bytes, 4096).unwrap();
        assert_eq!(bytes[..3], [0, 2, 0]);
        log.mark(0, 1 << 30);
        file.read_exact_at(&mut bytes, 4096).unwrap();
        assert_eq!((&bytes[..19], &bytes[19..]), (&[u8::MAX; 19][..], &[0; 13][..]));
        // Its VMM takes it away: that harms nobody but its guest.
        file.set_len(0).unwrap();
        log.mark(0, 1);
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let file = memory_file(4096);
        for (offset, bytes) in [(0, 4097), (4096, 1), (u64::MAX, 2)] {
            let file = file.try_clone().unwrap();
            let refused = DirtyLog::map(file, offset, bytes, &Arc::default()).err().unwrap();
            assert!(matches!(refused, LogError::Map(MapError::Short { .. })), "{refused}");
        }
    }

    /// Memory files are sparse: this one has no page.
    #[test]
    fn a_log_that_is_too_long_is_refused() {
        let map = |bytes| DirtyLog::map(memory_file(bytes), 0, bytes, &Arc::default());
        assert!(map(BYTES_MAX).is_ok());
        assert!(matches!(map(BYTES_MAX + 1), Err(LogError::Long(_))));
    }
}
