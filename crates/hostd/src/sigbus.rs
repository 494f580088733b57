//! Memory that others can take away: a VMM may cut its guest's memory short while we use it, a
//! huge page or a page of a full tmpfs may not be there, a page may have gone bad. The kernel then
//! sends SIGBUS, which would end the daemon for all guests.
//!
//! Whoever maps such memory holds a [`Watch`] on it. A SIGBUS inside a watched range puts a page of
//! zeroes in place of the missing one and marks the range as lost; the access goes on, and the
//! range's owner stops using it. A SIGBUS anywhere else ends the process as before. Accesses by the
//! kernel (io_uring) do not come here: they fail with EFAULT.
//!
//! The handler may interrupt any thread at any point, so it takes no lock and allocates nothing:
//! it walks a list that only grows. The range that it looks for does not change meanwhile, because
//! the interrupted thread uses it. Other ranges may change; their version tells.

use crate::sandbox;
use crate::threads::lock;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, Once, OnceLock};

/// Entries that are allocated at a time.
const CHUNK_ENTRIES: usize = 64;
/// Pages of one range that are replaced one by one, so that the others keep their data. After
/// that the whole range is replaced: each page takes two of the process's mappings, of which the
/// kernel allows some 65,000.
const PAGES_MAX: usize = 64;
/// Pages of all ranges together that are replaced one by one.
const ALL_PAGES_MAX: usize = 1024;
/// Mappings that are kept for the handler: where the process has no more, it gives up some of these.
const SPARE_MAPPINGS: usize = 32;
/// Bytes of each: a page of the largest size that the system may have.
const SPARE_BYTES: usize = 64 << 10;

/// A watched range, or none when `start` is 0.
struct Entry {
    /// Odd while the entry changes.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    page_bytes: AtomicUsize,
    /// Number of times that a page was missing.
    faults: AtomicUsize,
    /// Pages that were replaced one by one.
    pages: AtomicUsize,
}

/// A part of the list of entries.
struct Chunk {
    entries: [Entry; CHUNK_ENTRIES],
    next: AtomicPtr<Chunk>,
}

static FIRST: AtomicPtr<Chunk> = AtomicPtr::new(null_mut());
/// Entries that are free, for whoever adds or removes a watch.
static FREE: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());
/// Watched ranges that are lost.
static LOST: AtomicUsize = AtomicUsize::new(0);
/// Pages that were replaced one by one, in ranges that are watched.
static PAGES: AtomicUsize = AtomicUsize::new(0);
/// Where the spare mappings are, of a page each, and how many were given up.
static SPARE: AtomicUsize = AtomicUsize::new(0);
static SPARE_USED: AtomicUsize = AtomicUsize::new(0);
/// The earlier action of SIGBUS.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

impl Entry {
    const fn new() -> Entry {
        Entry {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page_bytes: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
        }
    }

    /// Watch another range, or none. Only by the entry's owner.
    fn set(&self, start: usize, end: usize, page_bytes: usize) {
        self.version.fetch_add(1, SeqCst);
        self.start.store(start, SeqCst);
        self.end.store(end, SeqCst);
        self.page_bytes.store(page_bytes, SeqCst);
        self.faults.store(0, SeqCst);
        PAGES.fetch_sub(self.pages.swap(0, SeqCst), SeqCst);
        self.version.fetch_add(1, SeqCst);
    }

    fn contains(&self, address: usize) -> bool {
        let version = self.version.load(SeqCst);
        let inside = (self.start.load(SeqCst)..self.end.load(SeqCst)).contains(&address);
        inside && version.is_multiple_of(2) && self.version.load(SeqCst) == version
    }

    /// Put zeroes in place of the page at `address`, or of the whole range: that takes none of the
    /// process's mappings. False when the kernel does neither.
    fn replace(&self, address: usize) -> bool {
        let faults = self.faults.fetch_add(1, SeqCst);
        if faults == 0 {
            LOST.fetch_add(1, SeqCst);
        }
        let (start, end) = (self.start.load(SeqCst), self.end.load(SeqCst));
        let page_bytes = self.page_bytes.load(SeqCst);
        if faults < PAGES_MAX && PAGES.fetch_add(1, SeqCst) < ALL_PAGES_MAX {
            self.pages.fetch_add(1, SeqCst);
            if map_zeroes(address - (address - start) % page_bytes, page_bytes) {
                return true;
            }
        } else if faults < PAGES_MAX {
            PAGES.fetch_sub(1, SeqCst);
        }
        // Beyond its limit the process maps nothing, not even in place of something else.
        map_zeroes(start, end - start)
            || std::iter::from_fn(|| give_up_spare().then_some(()))
                .any(|()| map_zeroes(start, end - start))
    }
}

/// Map zeroes at a place that is mapped. False when the kernel does not.
fn map_zeroes(from: usize, bytes: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: inside a range that is mapped, and whose owner holds a watch on it.
    let at = unsafe { libc::mmap(from as *mut _, bytes, protection, flags, -1, 0) };
    // A new mapping is in core dumps again.
    sandbox::leave_out(from as *mut u8, bytes);
    at != libc::MAP_FAILED
}

/// Make mappings that can be given up. Neighbours differ, or the kernel would make them one.
fn keep_spare() {
    let (bytes, none) = (SPARE_MAPPINGS * SPARE_BYTES, libc::PROT_NONE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, and parts of it, which nobody uses.
    unsafe {
        let start = libc::mmap(null_mut(), bytes, none, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return;
        }
        for page in (1..SPARE_MAPPINGS).step_by(2) {
            let page = start.cast::<u8>().add(page * SPARE_BYTES);
            libc::mprotect(page.cast(), SPARE_BYTES, libc::PROT_READ);
        }
        SPARE.store(start as usize, SeqCst);
    }
}

/// Give one of the spare mappings up. False when none is left.
fn give_up_spare() -> bool {
    let (start, used) = (SPARE.load(SeqCst), SPARE_USED.fetch_add(1, SeqCst));
    if start == 0 || used >= SPARE_MAPPINGS {
        return false;
    }
    // SAFETY: a mapping of its own that nobody uses.
    unsafe { libc::munmap((start + used * SPARE_BYTES) as *mut _, SPARE_BYTES) == 0 }
}

/// All entries, the free ones included.
fn entries() -> impl Iterator<Item = &'static Entry> {
    let mut next = &FIRST;
    let chunks = std::iter::from_fn(move || {
        // SAFETY: null, or a chunk that is never freed.
        let chunk = unsafe { next.load(SeqCst).as_ref() }?;
        next = &chunk.next;
        Some(chunk)
    });
    chunks.flat_map(|chunk| chunk.entries.iter())
}

/// A range of mapped memory in which SIGBUS does no harm, as long as this lives.
pub struct Watch(&'static Entry);

impl Watch {
    /// Watch `bytes` of memory in pages of `page_bytes` from `start` on, which begins a page.
    ///
    /// # Safety
    /// The range is mapped, holds nothing but bytes that others may change at any time, and stays
    /// mapped until the watch has been dropped.
    pub unsafe fn new(start: *mut u8, bytes: usize, page_bytes: usize) -> Watch {
        install();
        let start = start as usize;
        let end = start + bytes.next_multiple_of(page_bytes);
        let mut free = lock(&FREE);
        if free.is_empty() {
            free.extend(&add_chunk().entries);
        }
        let entry = free.pop().expect("a chunk has entries");
        drop(free);
        entry.set(start, end, page_bytes);
        Watch(entry)
    }

    /// Was a page of the range missing?
    pub fn is_lost(&self) -> bool {
        self.0.faults.load(SeqCst) > 0
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.is_lost() {
            LOST.fetch_sub(1, SeqCst);
        }
        self.0.set(0, 0, 0);
        lock(&FREE).push(self.0);
    }
}

/// Is some watched range lost? One load, for the data path.
pub fn any_lost() -> bool {
    LOST.load(SeqCst) > 0
}

/// Does one of these buffers begin in a range that is lost?
pub fn is_lost(buffers: &[libc::iovec]) -> bool {
    any_lost()
        && buffers.iter().any(|buffer| {
            let at = buffer.iov_base as usize;
            entries().any(|entry| entry.faults.load(SeqCst) > 0 && entry.contains(at))
        })
}

/// Is memory of these buffers missing, of which the kernel says that it did not find all (EFAULT)?
/// Touches each page up to the first that is missing: for errors only.
///
/// # Safety
/// The buffers are mapped, and watched where their memory can be taken away ([`Watch::new`]).
pub unsafe fn are_missing(buffers: &[libc::iovec]) -> bool {
    let is_missing = |buffer: &libc::iovec, offset| {
        // SAFETY: inside of the buffer.
        unsafe { buffer.iov_base.cast::<u8>().add(offset).read_volatile() };
        is_lost(std::slice::from_ref(buffer))
    };
    buffers.iter().any(|buffer| {
        let last = buffer.iov_len.checked_sub(1);
        (0..buffer.iov_len).step_by(4096).chain(last).any(|offset| is_missing(buffer, offset))
    })
}

/// Put a chunk before the others in the list. Only with [`FREE`] held.
fn add_chunk() -> &'static Chunk {
    let next = AtomicPtr::new(FIRST.load(SeqCst));
    let entries = [const { Entry::new() }; CHUNK_ENTRIES];
    let chunk = Box::leak(Box::new(Chunk { entries, next }));
    FIRST.store(chunk, SeqCst);
    chunk
}

/// Handle SIGBUS from now on.
fn install() {
    static INSTALL: Once = Once::new();
    // SAFETY: the structs are plain; the handler does only what a handler may.
    INSTALL.call_once(|| unsafe {
        let mut previous = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut previous), 0);
        // Before the handler, which looks at it.
        let _ = PREVIOUS.set(previous);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as extern "C" fn(_, _, _) as usize;
        // On the stack that Rust gives each thread for its own handler of stack overflows.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, null_mut()), 0);
        keep_spare();
    });
}

extern "C" fn on_sigbus(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel fills it; plain system calls follow. The interrupted thread must find
    // errno as it was.
    unsafe {
        let (address, code) = ((*info).si_addr() as usize, (*info).si_code);
        let errno = *libc::__errno_location();
        // A code that is not positive is a signal that somebody sent.
        let found = entries().find(|entry| code > 0 && entry.contains(address));
        if !found.is_some_and(|entry| entry.replace(address)) {
            match PREVIOUS.get() {
                // The access is made again, and the signal comes again.
                Some(previous) if code > 0 => {
                    libc::sigaction(libc::SIGBUS, previous, null_mut());
                }
                // The signal itself comes again, when this returns.
                _ => {
                    libc::signal(libc::SIGBUS, libc::SIG_DFL);
                    libc::raise(libc::SIGBUS);
                }
            }
        }
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests;
