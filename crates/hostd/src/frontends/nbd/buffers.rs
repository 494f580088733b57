//! Memory of one connection: what has been received and not yet understood,
//! and the buffers that data is read to and written from.

use super::request::HEADER_LEN;
use super::wire::REQUEST_LEN_MAX;
use crate::sandbox;
use crate::threads::lock;
use crate::toll::Toll;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Received bytes, in order.
pub struct Inbox {
    bytes: Box<[u8]>,
    /// Bytes at `head..tail` are not yet taken.
    head: usize,
    tail: usize,
}

impl Inbox {
    /// An empty inbox for `capacity_bytes`, at least one header.
    pub fn new(capacity_bytes: usize) -> Inbox {
        let bytes = vec![0; capacity_bytes.max(HEADER_LEN)].into_boxed_slice();
        Inbox { bytes, head: 0, tail: 0 }
    }

    /// The next request's header, when all of it is here. It stays until
    /// [`Inbox::take_header`].
    pub fn header(&self) -> Option<&[u8; HEADER_LEN]> {
        self.bytes[self.head..self.tail].first_chunk()
    }

    /// Go behind the header.
    pub fn take_header(&mut self) {
        self.skip(HEADER_LEN as u64);
    }

    /// Go behind up to `len_bytes`; how many were there.
    pub fn skip(&mut self, len_bytes: u64) -> usize {
        let len = len_bytes.min((self.tail - self.head) as u64) as usize;
        self.head += len;
        len
    }

    /// Up to `len_bytes` of what is here.
    pub fn take(&mut self, len_bytes: usize) -> &[u8] {
        let start = self.head;
        self.skip(len_bytes as u64);
        &self.bytes[start..self.head]
    }

    /// Where the next bytes go; empty when the inbox is full. What is there moves to the front.
    pub fn space(&mut self) -> &mut [u8] {
        if self.head > 0 {
            self.bytes.copy_within(self.head..self.tail, 0);
            self.tail -= self.head;
            self.head = 0;
        }
        &mut self.bytes[self.tail..]
    }

    /// `len_bytes` have come to [`Inbox::space`].
    pub fn received(&mut self, len_bytes: usize) {
        self.tail = (self.tail + len_bytes).min(self.bytes.len());
    }

    /// Did what came last fill all of it?
    pub fn is_full(&self) -> bool {
        self.tail == self.bytes.len()
    }
}

/// Least buffer, also the alignment of all of them: a page.
const CLASS_MIN_SHIFT: u32 = 12;
const CLASSES: usize = (REQUEST_LEN_MAX.trailing_zeros() - CLASS_MIN_SHIFT + 1) as usize;

/// Bytes that the buffers of one disk's clients have in any case: no other disk's clients can
/// take them away.
const RESERVED_BYTES: usize = 64 << 20;
/// The most that they have.
const DISK_BYTES_MAX: usize = 256 << 20;
/// Bytes that all disks have together beyond what is reserved.
const SHARED_BYTES_MAX: usize = 1 << 30;

/// Bytes in use, of [`SHARED_BYTES_MAX`].
static SHARED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Counts the memory of one disk's clients, however many: those that do not read their replies
/// can exhaust neither the host nor what other disks' clients need.
#[derive(Debug)]
pub struct DiskMemory {
    held_bytes: Mutex<usize>,
    shared_bytes: &'static AtomicUsize,
    /// Wake-up cost of its clients.
    pub(super) toll: Toll,
}

impl Default for DiskMemory {
    fn default() -> DiskMemory {
        DiskMemory::sharing(&SHARED_BYTES)
    }
}

impl DiskMemory {
    /// The memory of a disk that shares with all of the same counter.
    pub(super) fn sharing(shared_bytes: &'static AtomicUsize) -> DiskMemory {
        DiskMemory { held_bytes: Mutex::new(0), shared_bytes, toll: Toll::default() }
    }

    fn take(&self, len: usize) -> bool {
        let mut held = self.held();
        let all = *held + len;
        if all > DISK_BYTES_MAX {
            return false;
        }
        let shared = all.saturating_sub(RESERVED_BYTES) - held.saturating_sub(RESERVED_BYTES);
        let fits = |now: usize| Some(now + shared).filter(|&now| now <= SHARED_BYTES_MAX);
        if self.shared_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return false;
        }
        *held = all;
        true
    }

    fn give(&self, len: usize) {
        let mut held = self.held();
        let left = *held - len;
        let shared = held.saturating_sub(RESERVED_BYTES) - left.saturating_sub(RESERVED_BYTES);
        self.shared_bytes.fetch_sub(shared, Ordering::Relaxed);
        *held = left;
    }

    fn held(&self) -> MutexGuard<'_, usize> {
        lock(&self.held_bytes)
    }
}

/// A page-aligned piece of memory of its own, a power of two long.
pub struct Buffer {
    start: NonNull<u8>,
    class: u8,
    /// Where it is counted.
    memory: Arc<DiskMemory>,
}

// SAFETY: the memory belongs to the buffer alone.
unsafe impl Send for Buffer {}

impl Buffer {
    fn map(class: u8, memory: &Arc<DiskMemory>) -> Option<Buffer> {
        let len = class_bytes(class);
        if !memory.take(len) {
            return None;
        }
        let (access, any) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
        // SAFETY: an anonymous mapping at an address that the kernel chooses
        // touches no memory that exists.
        let Ok(start) = (unsafe { mmap_anonymous(any, len, access, MapFlags::PRIVATE) }) else {
            memory.give(len);
            return None;
        };
        sandbox::leave_out(start.cast(), len);
        Some(Buffer { start: NonNull::new(start.cast())?, class, memory: memory.clone() })
    }

    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its bytes. Zero at first, later what the connection left in it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped for this length, initialised by the kernel, and `self`
        // is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start(), class_bytes(self.class)) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length and unmapped nowhere else.
        unsafe { libc::munmap(self.start().cast(), class_bytes(self.class)) };
        self.memory.give(class_bytes(self.class));
    }
}

fn class_bytes(class: u8) -> usize {
    1 << (CLASS_MIN_SHIFT + u32::from(class))
}

/// Buffers of one connection, reused, bounded in all.
pub struct Pool {
    free: [Vec<Buffer>; CLASSES],
    /// In use and free, in bytes.
    held_bytes: usize,
    used_bytes: usize,
    limit_bytes: usize,
    memory: Arc<DiskMemory>,
}

impl Pool {
    /// Wake-up cost of the disk's clients.
    pub fn toll(&self) -> &Toll {
        &self.memory.toll
    }

    /// An empty pool that never holds more than `limit_bytes`, which is at
    /// least one longest request. Its memory is counted in `memory`.
    pub fn new(limit_bytes: usize, memory: Arc<DiskMemory>) -> Pool {
        let limit_bytes = limit_bytes.max(REQUEST_LEN_MAX as usize);
        Pool { free: Default::default(), held_bytes: 0, used_bytes: 0, limit_bytes, memory }
    }

    /// A buffer of at least `len_bytes`. `None` when the limit is reached, or that of the disk's
    /// clients, or memory is out: wait for another buffer to come back, of this client or others.
    pub fn take(&mut self, len_bytes: u32) -> Option<Buffer> {
        let class = len_bytes.next_power_of_two().max(1 << CLASS_MIN_SHIFT).trailing_zeros();
        let class = (class - CLASS_MIN_SHIFT) as u8;
        let len = class_bytes(class);
        if self.used_bytes + len > self.limit_bytes {
            return None;
        }
        if let Some(buffer) = self.free[usize::from(class)].pop() {
            self.used_bytes += len;
            return Some(buffer);
        }
        if self.held_bytes + len > self.limit_bytes {
            self.clear();
        }
        let buffer = Buffer::map(class, &self.memory).or_else(|| {
            self.clear();
            Buffer::map(class, &self.memory)
        })?;
        self.held_bytes += len;
        self.used_bytes += len;
        Some(buffer)
    }

    /// Take a buffer back.
    pub fn give(&mut self, buffer: Buffer) {
        self.used_bytes -= class_bytes(buffer.class);
        self.free[usize::from(buffer.class)].push(buffer);
    }

    /// Let go of what is not in use.
    pub fn clear(&mut self) {
        self.free = Default::default();
        self.held_bytes = self.used_bytes;
    }

    /// Bytes in buffers, in use or not.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Bytes in buffers that are in use.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}
