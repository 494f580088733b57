//! The record of requests in flight, in memory that outlives the daemon: the
//! VMM keeps it and hands it to the next daemon, which carries out what the last
//! one left undone (vhost-user specification, "Inflight I/O tracking", split
//! virtqueue). What is read from it is checked: the VMM may have written it.
//!
//! Behind the queues' records, where the protocol says nothing, is a line of our
//! own with what else the next daemon has to know and no VMM tells it: whether
//! the guest has switched the disk's write cache off. Records of other back ends,
//! and of older versions, end without it.

use super::account::Account;
use super::memory::{MapError, Mapping};
use crate::{death, sigbus};
use rustix::fs::{self, MemfdFlags, SealFlags};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes before the entries: features, version, number of entries, head of the
/// last batch, used index.
const HEADER_BYTES: u64 = 16;
/// Bytes of an entry: inflight, padding, next, counter.
const ENTRY_BYTES: u64 = 16;
/// Each queue begins at a multiple of this: a cache line.
const ALIGN_BYTES: u64 = 64;
/// The version that is written here.
const VERSION: u16 = 1;
/// Bytes of our own behind the queues' records.
const OWN_BYTES: u64 = ALIGN_BYTES;
/// State of the write cache in the first four of them; other values say nothing.
const CACHE_ON: u32 = u32::from_le_bytes(*b"skw1");
const CACHE_OFF: u32 = u32::from_le_bytes(*b"skw0");

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InflightError {
    /// The system says no.
    #[error("the inflight record: {0}")]
    Io(#[from] io::Error),
    /// The record cannot be mapped.
    #[error("the inflight record: {0}")]
    Map(#[from] MapError),
    /// The record is too small for its queues.
    #[error("an inflight record of {have} bytes for {queues} queues of {size}, which take {need}")]
    Size {
        /// Bytes that the VMM names, at most those that the file has.
        have: u64,
        /// Bytes that the records of these queues take.
        need: u64,
        /// Queues it is said to hold.
        queues: u16,
        /// Entries that each queue is said to have.
        size: u16,
    },
    /// Someone could take the memory away under us.
    #[error("an inflight record that is not sealed against shrinking")]
    Unsealed,
    /// A queue's record is of another version or another size.
    #[error("the inflight record of queue {queue}: version {version}, {entries} entries")]
    Queue {
        queue: u16,
        /// Version in the record.
        version: u16,
        /// Number of entries in the record.
        entries: u16,
    },
}

/// The records of all queues of a device.
pub struct Inflight {
    map: Arc<Mapping>,
    queues: u16,
    size: u16,
}

impl Inflight {
    /// Bytes of the records of `queues` queues of `size` entries, with our own.
    pub fn bytes(queues: u16, size: u16) -> u64 {
        Self::records_bytes(queues, size) + OWN_BYTES
    }

    /// Bytes of the records alone.
    fn records_bytes(queues: u16, size: u16) -> u64 {
        u64::from(queues) * Self::stride(size)
    }

    fn stride(size: u16) -> u64 {
        (HEADER_BYTES + ENTRY_BYTES * u64::from(size)).next_multiple_of(ALIGN_BYTES)
    }

    /// New, empty records in a memory file that nobody can resize.
    pub fn create(queues: u16, size: u16) -> Result<File, InflightError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file =
            File::from(fs::memfd_create(c"seekway-inflight", flags).map_err(io::Error::from)?);
        file.set_len(Self::bytes(queues, size))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fs::fcntl_add_seals(&file, seals).map_err(io::Error::from)?;
        Ok(file)
    }

    /// Map the records in `file` from `offset` on, of which `have` bytes are
    /// said to be theirs, on the account of their VMM. They may lack the bytes of our own.
    pub fn map(
        file: File,
        offset: u64,
        have: u64,
        queues: u16,
        size: u16,
        account: &Arc<Account>,
    ) -> Result<Inflight, InflightError> {
        let need = Self::records_bytes(queues, size);
        let room = file.metadata()?.len().saturating_sub(offset);
        let have = have.min(room);
        if have < need {
            return Err(InflightError::Size { have, need, queues, size });
        }
        if !fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(InflightError::Unsealed);
        }
        // A sealed file cannot shrink, but its pages may be huge and not there.
        let map =
            Arc::new(Mapping::new(file, offset, have.min(Self::bytes(queues, size)), account)?);
        Ok(Inflight { map, queues, size })
    }

    /// Was the disk's write cache on when this was last noted? `None` when it
    /// never was.
    pub fn write_cache(&self) -> Option<bool> {
        match self.own()?.load(Ordering::Acquire) {
            CACHE_ON => Some(true),
            CACHE_OFF => Some(false),
            _ => None,
        }
    }

    /// Note whether the disk's write cache is on, for the next connection.
    pub fn note_write_cache(&self, on: bool) {
        if let Some(own) = self.own() {
            own.store(if on { CACHE_ON } else { CACHE_OFF }, Ordering::Release);
        }
    }

    /// The first four of our own bytes, where there are some.
    fn own(&self) -> Option<&AtomicU32> {
        let offset = Self::records_bytes(self.queues, self.size) as usize;
        if self.map.len() < offset + OWN_BYTES as usize {
            return None;
        }
        // SAFETY: mapped, for the size was compared; aligned to a cache line.
        Some(unsafe { AtomicU32::from_ptr(self.map.as_ptr().add(offset).cast()) })
    }

    /// The record of one queue, for a ring of `size` entries; `None` when there
    /// is none for it.
    pub fn queue(&self, queue: u16, size: u16) -> Result<Option<Record>, InflightError> {
        if queue >= self.queues || size > self.size {
            return Ok(None);
        }
        let offset = u64::from(queue) * Self::stride(self.size);
        let record = Record { map: self.map.clone(), offset: offset as usize, size };
        let (version, entries) = (record.version(), record.entries());
        match version.load(Ordering::Acquire) {
            0 => {
                entries.store(size, Ordering::Relaxed);
                version.store(VERSION, Ordering::Release);
            }
            VERSION if entries.load(Ordering::Relaxed) == size => {}
            version => {
                let entries = entries.load(Ordering::Relaxed);
                return Err(InflightError::Queue { queue, version, entries });
            }
        }
        Ok(Some(record))
    }
}

/// The record of one queue.
pub struct Record {
    map: Arc<Mapping>,
    offset: usize,
    /// Entries, at most what is mapped.
    size: u16,
}

impl Record {
    /// Was some of its memory taken away?
    pub fn is_lost(&self) -> bool {
        sigbus::any_lost() && self.map.is_lost()
    }

    /// A chain has been taken: it is in flight, the `counter`th.
    pub fn begin(&self, head: u16, counter: u64) {
        death::point();
        self.counter(head).store(counter, Ordering::Relaxed);
        death::point();
        self.in_flight(head).store(1, Ordering::Release);
    }

    /// A chain is done; it joins the batch that will be published next.
    pub fn link(&self, head: u16) {
        death::point();
        let last = self.last_batch_head();
        self.next(head).store(last.load(Ordering::Relaxed), Ordering::Relaxed);
        death::point();
        last.store(head, Ordering::Release);
    }

    /// A chain of the batch that was published is no longer in flight.
    pub fn end(&self, head: u16) {
        death::point();
        self.in_flight(head).store(0, Ordering::Release);
    }

    /// All chains up to this used index have been ended.
    pub fn settle(&self, used_index: u16) {
        death::point();
        self.used_index().store(used_index, Ordering::Release);
    }

    /// A ring is taken over whose used index is this: finish what was under way
    /// when the last daemon ended, and say what is in flight, oldest first, and
    /// with which counter to go on.
    pub fn recover(&self, used_index: u16) -> (Vec<u16>, u64) {
        // The used index went up, but perhaps not all of that batch was ended.
        let batch = used_index.wrapping_sub(self.used_index().load(Ordering::Acquire));
        let mut head = self.last_batch_head().load(Ordering::Relaxed);
        for _ in 0..batch.min(self.size) {
            if head >= self.size {
                break;
            }
            self.end(head);
            head = self.next(head).load(Ordering::Relaxed);
        }
        self.settle(used_index);
        let mut left: Vec<(u64, u16)> = (0..self.size)
            .filter(|&head| self.in_flight(head).load(Ordering::Acquire) == 1)
            .map(|head| (self.counter(head).load(Ordering::Relaxed), head))
            .collect();
        left.sort_unstable();
        let counter = left.last().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        (left.into_iter().map(|(_, head)| head).collect(), counter)
    }

    /// Address of a field. All fields are naturally aligned: the mapping is to
    /// pages, queues to cache lines, entries to 16 bytes.
    fn at<T>(&self, offset: usize) -> *mut T {
        debug_assert!(self.offset + offset + size_of::<T>() <= self.map.len());
        // SAFETY: callers name fields of the header or of an entry below `size`,
        // and those are mapped.
        unsafe { self.map.as_ptr().add(self.offset + offset).cast() }
    }

    fn entry<T>(&self, head: u16, offset: usize) -> *mut T {
        assert!(head < self.size, "a head beyond the record");
        self.at((HEADER_BYTES + ENTRY_BYTES * u64::from(head)) as usize + offset)
    }

    fn version(&self) -> &AtomicU16 {
        // SAFETY: `at` gives mapped, aligned memory, here and below.
        unsafe { AtomicU16::from_ptr(self.at(8)) }
    }

    fn entries(&self) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.at(10)) }
    }

    fn last_batch_head(&self) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.at(12)) }
    }

    fn used_index(&self) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.at(14)) }
    }

    fn in_flight(&self, head: u16) -> &AtomicU8 {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(self.entry(head, 0)) }
    }

    fn next(&self, head: u16) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.entry(head, 6)) }
    }

    fn counter(&self, head: u16) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.entry(head, 8)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(size: u16) -> Record {
        let file = Inflight::create(2, size).unwrap();
        let bytes = Inflight::bytes(2, size);
        let inflight = Inflight::map(file, 0, bytes, 2, size, &Arc::default()).unwrap();
        inflight.queue(1, size).unwrap().unwrap()
    }

    #[test]
    fn a_new_record_is_empty() {
        assert_eq!(record(16).recover(0), (vec![], 0));
    }

    #[test]
    fn what_was_in_flight_is_left_in_order_of_arrival() {
        let record = record(16);
        for (counter, head) in [5, 3, 9, 1].into_iter().enumerate() {
            record.begin(head, counter as u64);
        }
        record.link(3);
        record.end(3);
        record.settle(1);
        assert_eq!(record.recover(1), (vec![5, 9, 1], 4));
    }

    #[test]
    fn a_batch_that_was_published_and_not_ended_is_done() {
        let record = record(16);
        for head in 0..6 {
            record.begin(head, u64::from(head));
        }
        for head in [4, 0, 2] {
            record.link(head);
        }
        // The used index went from 0 to 3, one was ended, and then the daemon died.
        record.end(4);
        assert_eq!(record.recover(3), (vec![1, 3, 5], 6));
        // And before it went up, all of it is in flight still.
        let record = self::record(16);
        for head in 0..3 {
            record.begin(head, u64::from(head));
        }
        record.link(1);
        assert_eq!(record.recover(0), (vec![0, 1, 2], 3));
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let bytes = Inflight::bytes(2, 64);
        let map = |offset, have, queues| {
            let file = Inflight::create(2, 64).unwrap();
            Inflight::map(file, offset, have, queues, 64, &Arc::default())
        };
        assert!(map(0, bytes, 2).is_ok());
        assert!(matches!(map(0, bytes, 3), Err(InflightError::Size { .. })));
        assert!(matches!(map(0, u64::MAX, 3), Err(InflightError::Size { .. })));
        assert!(matches!(map(4096, bytes, 2), Err(InflightError::Size { .. })));
        assert!(matches!(map(u64::MAX, bytes, 2), Err(InflightError::Size { .. })));
        let unsealed = tempfile::tempfile().unwrap();
        unsealed.set_len(bytes).unwrap();
        let mapped = Inflight::map(unsealed, 0, bytes, 2, 64, &Arc::default());
        assert!(matches!(mapped, Err(InflightError::Unsealed)));
    }

    #[test]
    fn the_write_cache_is_noted_where_there_is_room() {
        let (file, bytes) = (Inflight::create(2, 16).unwrap(), Inflight::bytes(2, 16));
        let map = |have| {
            Inflight::map(file.try_clone().unwrap(), 0, have, 2, 16, &Arc::default()).unwrap()
        };
        let first = map(bytes);
        assert_eq!(first.write_cache(), None);
        for on in [false, true, false] {
            first.note_write_cache(on);
            assert_eq!(map(bytes).write_cache(), Some(on));
        }
        // The queues' records are as empty as before.
        for queue in 0..2 {
            assert_eq!(first.queue(queue, 16).unwrap().unwrap().recover(0), (vec![], 0));
        }
        // Garbage says nothing, and a record without the room says and notes nothing.
        first.own().unwrap().store(1, Ordering::Relaxed);
        assert_eq!(first.write_cache(), None);
        let short = map(bytes - OWN_BYTES);
        short.note_write_cache(true);
        assert_eq!((short.write_cache(), first.write_cache()), (None, None));
    }

    #[test]
    fn a_record_of_another_size_is_refused() {
        let file = Inflight::create(1, 64).unwrap();
        let inflight =
            Inflight::map(file, 0, Inflight::bytes(1, 64), 1, 64, &Arc::default()).unwrap();
        inflight.queue(0, 64).unwrap().unwrap();
        assert!(matches!(inflight.queue(0, 32), Err(InflightError::Queue { .. })));
        assert!(inflight.queue(1, 64).unwrap().is_none());
        assert!(inflight.queue(0, 128).unwrap().is_none());
    }
}
