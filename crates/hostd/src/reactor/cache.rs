//! The engine's part of the host cache: its memory, and what the device reads a second. What
//! is in the cache, and what is fetched when, the stack decides
//! ([`seekway_stack::stack`]).
//!
//! The device writes into frames and never into a guest's memory on the way
//! there: a guest that scribbles over its buffer spoils nobody's copy.

use super::jobs::slice_buffers;
use super::message::{CacheStatus, DiskCache};
use crate::port::DiskId;
use crate::sandbox;
use rustix::process::{Resource, getrlimit};
use seekway_core::request::{Completion, Extent, Op};
use seekway_core::units::{Instant, Nanos, SECTOR_BYTES};
use seekway_stack::cache::{BLOCK_BYTES, BLOCK_SECTORS, Config, FetchId, Frame};
use seekway_stack::stack::{CacheSpec, Stack, frames_of};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::ptr::NonNull;

/// Frames that are given back in one turn of the reactor (4 MiB).
const TRIM_FRAMES: usize = 1 << 10;

/// Settings of a reactor's cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheSetup {
    /// Bytes of data at most; what is less than a block is not used.
    pub bytes: u64,
    /// Bytes of data at most if it is made larger while it runs; at least `bytes`.
    pub room_bytes: u64,
    pub prefetcher: String,
    /// Keep it out of swap.
    pub lock: bool,
    /// Bandwidth of the device's reads, if that is known: measured and observed bandwidths are then
    /// ignored.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// For the cache's hashes; `None` for a number of this process's own, which no guest can
    /// foresee.
    pub seed: Option<u64>,
}

impl CacheSetup {
    /// As the stack wants it.
    ///
    /// # Errors
    /// For the operator: a cache that holds nothing, a prefetcher that is none.
    pub(super) fn spec(&self) -> Result<CacheSpec, String> {
        let room_bytes = self.room_bytes.max(self.bytes);
        if room_bytes < BLOCK_BYTES {
            return Err(format!("a cache of {room_bytes} bytes; at least {BLOCK_BYTES}"));
        }
        // The tables are made with the cache, and who makes them cannot be refused any more.
        let tables_bytes = room_bytes / ROOM_OF_TABLES;
        if Vec::<u8>::new().try_reserve_exact(tables_bytes as usize).is_err() {
            return Err(format!(
                "a cache of {room_bytes} bytes: its tables take up to {tables_bytes} bytes, and \
                 there is not enough memory (os error {}): choose a smaller --cache, or give the \
                 daemon more memory",
                libc::ENOMEM
            ));
        }
        let seed = self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let cache = Config { seed, ..Config::new(room_bytes) };
        CacheSpec::new(cache, &self.prefetcher).map_err(|e| e.to_string())
    }
}

/// Bytes of data for each byte of tables, at least (3 %, `Cache::overhead_bytes`).
const ROOM_OF_TABLES: u64 = 28;

/// The cache's memory, and what is known of the device's bandwidth.
pub struct CacheMemory {
    frames: Frames,
    /// Frames that the stack takes back; reused.
    bare: Vec<Frame>,
    bandwidth: Bandwidth,
    /// Reused from copy to copy.
    buffers: Vec<libc::iovec>,
}

// SAFETY: `buffers` is empty between two calls.
unsafe impl Send for CacheMemory {}

impl CacheMemory {
    /// Memory for all frames of the stack's cache.
    ///
    /// # Errors
    /// For the operator: memory that is not to be had.
    pub(super) fn new(setup: &CacheSetup, stack: &mut Stack) -> Result<CacheMemory, String> {
        let frames = Frames::new(stack.cache_room_bytes(), setup.lock)?;
        if setup.bytes < stack.cache_room_bytes() {
            stack.resize_cache(Instant::ZERO, setup.bytes);
        }
        let mut bandwidth = Bandwidth::default();
        if let Some(bytes_per_s) = setup.bandwidth_bytes_per_s {
            bandwidth = Bandwidth::given(bytes_per_s);
            stack.set_bandwidth(Instant::ZERO, bytes_per_s);
        }
        Ok(CacheMemory { frames, bare: Vec::new(), bandwidth, buffers: Vec::new() })
    }

    /// The memory that a part of a fetch is read into.
    pub(super) fn iovecs(
        &mut self,
        stack: &Stack,
        id: FetchId,
        part: Extent,
        out: &mut Vec<libc::iovec>,
    ) {
        let (frames, skip) = frames_of(stack.fetch(id), part);
        let len = part.len().bytes();
        if skip == 0 {
            return self.frames.iovecs(frames, len, out);
        }
        self.buffers.clear();
        self.frames.iovecs(frames, skip as u64 + len, &mut self.buffers);
        slice_buffers(&self.buffers, skip as u64, len, out);
        self.buffers.clear();
    }

    /// Copy to a guest's `buffers`, from their byte `start` on, `len` bytes that are cached in
    /// `frames`; `offset` is the first one's place on the disk.
    pub(super) fn copy(
        &mut self,
        frames: impl Iterator<Item = Frame>,
        offset: u64,
        buffers: &[libc::iovec],
        start: u64,
        len: u64,
    ) {
        self.buffers.clear();
        slice_buffers(buffers, start, len, &mut self.buffers);
        let skip = offset % (BLOCK_SECTORS * SECTOR_BYTES);
        self.frames.copy_to(frames, skip as usize, &self.buffers);
        self.buffers.clear();
    }

    /// Give memory back that the cache may not have any more: some of it, so that guests do not
    /// wait for all. True when there is more to give.
    pub(super) fn trim(&mut self, now: Instant, stack: &mut Stack) -> bool {
        let more = stack.trim_cache(now, TRIM_FRAMES, &mut self.bare);
        if !self.bare.is_empty() {
            self.bare.sort_unstable();
            self.frames.give_back(&self.bare);
            self.bare.clear();
        }
        more
    }

    /// Takes the measured bandwidth of the device's reads.
    pub(super) fn measured(&mut self, now: Instant, stack: &mut Stack, bytes_per_s: u64) {
        if self.bandwidth.measured(bytes_per_s) {
            stack.set_bandwidth(now, bytes_per_s);
        }
    }

    /// A read is done; `from_device` when its time was the device's, and no page cache's. What the
    /// device reads a second, when that is more than was known.
    pub(super) fn left_device(
        &mut self,
        now: Instant,
        completion: &Completion,
        from_device: bool,
    ) -> Option<u64> {
        let request = &completion.request;
        if request.op != Op::Read || !completion.ok {
            return None;
        }
        self.bandwidth.read(now, request.extent.len().bytes(), from_device)
    }

    /// State of the cache.
    pub(super) fn status(&self, stack: &Stack) -> CacheStatus {
        let mut prefetcher_metrics = Vec::new();
        stack.prefetcher_metrics(&mut |name, value| prefetcher_metrics.push((name, value)));
        CacheStatus {
            capacity_bytes: stack.cache_bytes(),
            room_bytes: stack.cache_room_bytes(),
            memory_bytes: stack.cache_backed_bytes(),
            prefetcher: stack.prefetcher().to_string(),
            bandwidth_bytes_per_s: self.bandwidth.bytes_per_s(),
            fetching: stack.fetching(),
            device_read_bytes: self.bandwidth.total_bytes(),
            prefetcher_metrics,
        }
    }
}

/// Each disk's use of the cache.
pub(super) fn disk_caches(stack: &Stack) -> BTreeMap<DiskId, DiskCache> {
    let mut disks: BTreeMap<DiskId, DiskCache> = BTreeMap::new();
    stack.cache_usage(&mut |vm, tag, usage| {
        let disk = disks.entry(DiskId::of(vm)).or_default();
        disk.usage += usage;
        disk.process(tag).usage = *usage;
    });
    stack.streams(&mut |stream| {
        let process = disks.entry(DiskId::of(stream.vm)).or_default().process(stream.tag);
        process.streams += 1;
        process.armed += u32::from(stream.armed);
        process.scale_max = Some(process.scale_max.unwrap_or(stream.scale).max(stream.scale));
    });
    for (id, disk) in &mut disks {
        disk.resident_bytes = stack.resident_bytes(id.vm());
    }
    disks
}

// Bandwidth of the device's reads at best (BW_T in the VIO paper), which prefetchers share out:
// the operator's figure, or else the measured one until more is seen.

/// Interval over which the device's reads are counted, to see whether it can do more than was
/// measured.
const WINDOW: Nanos = Nanos::from_millis(500);

/// Best known bandwidth.
#[derive(Default)]
pub struct Bandwidth {
    bytes_per_s: Option<u64>,
    /// The operator has said so: nothing else counts.
    given: bool,
    /// Start of the count of `bytes`.
    begin: Instant,
    bytes: u64,
    total_bytes: u64,
}

impl Bandwidth {
    /// As the operator says.
    pub fn given(bytes_per_s: u64) -> Bandwidth {
        Bandwidth { bytes_per_s: Some(bytes_per_s), given: true, ..Bandwidth::default() }
    }

    /// Takes a measured bandwidth. True when nothing was known before.
    pub fn measured(&mut self, bytes_per_s: u64) -> bool {
        let new = self.bytes_per_s.is_none();
        self.bytes_per_s.get_or_insert(bytes_per_s);
        new
    }

    /// Counts bytes read; `from_device` when no page cache can have had them. Returns the bandwidth
    /// if it is more than was known.
    pub fn read(&mut self, now: Instant, bytes: u64, from_device: bool) -> Option<u64> {
        self.total_bytes += bytes;
        self.bytes += if from_device { bytes } else { 0 };
        let span = now.since(self.begin);
        if span < WINDOW {
            return None;
        }
        let seen = (self.bytes as f64 / span.as_secs_f64()) as u64;
        (self.begin, self.bytes) = (now, 0);
        // A guest that reads little says nothing of a device that nobody knows.
        let more = !self.given && self.bytes_per_s.is_some_and(|known| seen > known);
        more.then(|| *self.bytes_per_s.insert(seen))
    }

    /// Bytes a second, if known.
    pub fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s
    }
    /// Bytes read in all, wherever they came from.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }
}

// The memory of a device's cache: one mapping, in which frame `n` lies at byte
// `n * 4096`. Pages are there once they are used. No core dump has them: they
// hold the data of all guests.

pub struct Frames {
    at: NonNull<u8>,
    bytes: usize,
    is_locked: bool,
    /// The `madvise` word that gives memory back: locked memory has its own (Linux 5.18).
    advice: libc::c_int,
}

// SAFETY: the mapping is owned, and the reactor's thread alone uses it.
unsafe impl Send for Frames {}

impl Frames {
    /// Memory for `bytes`, a multiple of a frame and not 0. `lock`: none of it is
    /// ever swapped.
    ///
    /// # Errors
    /// For the operator: the kernel's error, and what to do.
    pub fn new(bytes: u64, lock: bool) -> Result<Frames, String> {
        let len = usize::try_from(bytes).map_err(|_| format!("cache of {bytes} bytes"))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which touches none that is there.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            let e = io::Error::last_os_error();
            return Err(format!("cache: {bytes} bytes of memory: {e}; choose a smaller --cache"));
        }
        let at = NonNull::new(at.cast::<u8>()).ok_or("cache: mmap gave address 0")?;
        let advice = if lock { libc::MADV_DONTNEED_LOCKED } else { libc::MADV_DONTNEED };
        let frames = Frames { at, bytes: len, is_locked: lock, advice };
        sandbox::leave_out(at.as_ptr(), len);
        if lock {
            frames.lock()?;
        }
        Ok(frames)
    }

    /// Keeps present and later pages out of swap.
    fn lock(&self) -> Result<(), String> {
        // On fault: the memory is taken when it is needed, as without the lock.
        // SAFETY: our own mapping.
        let locked =
            unsafe { libc::mlock2(self.at.as_ptr().cast(), self.bytes, libc::MLOCK_ONFAULT) };
        if locked == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        let bytes = self.bytes;
        Err(match e.raw_os_error() {
            Some(libc::EPERM | libc::ENOMEM | libc::EAGAIN) => format!(
                "cache: locking {bytes} bytes in memory: {e}; RLIMIT_MEMLOCK allows {}: raise it \
                 (LimitMEMLOCK=infinity in the service's file, `ulimit -l unlimited` in a shell), \
                 give the daemon CAP_IPC_LOCK, or leave --cache-lock out",
                memlock_limit()
            ),
            _ => format!("cache: locking {bytes} bytes in memory: {e}; leave --cache-lock out"),
        })
    }

    /// Give the memory of these frames, in order, back to the system. When they are used again
    /// they have other memory. If the kernel refuses, they stay as they are, which costs memory
    /// and nothing else.
    pub fn give_back(&self, frames: &[Frame]) {
        for run in frames.chunk_by(|a, b| a.0 + 1 == b.0) {
            let (at, len) = (self.address(run[0]).cast(), run.len() * BLOCK_BYTES as usize);
            // SAFETY: our own mapping, and no I/O reads into these frames or copies from them:
            // the stack takes back only such.
            let is_given = unsafe { libc::madvise(at, len, self.advice) } == 0;
            if !is_given && self.is_locked {
                // A kernel before 5.18 gives back only what is not locked. The lock comes back
                // with no more than it had, so that no limit is in its way.
                // SAFETY: as above.
                unsafe {
                    libc::munlock(at, len);
                    libc::madvise(at, len, libc::MADV_DONTNEED);
                    libc::mlock2(at, len, libc::MLOCK_ONFAULT);
                }
            }
        }
    }

    /// Append the memory of these frames, as far as the first `len` bytes, to
    /// `out`; neighbours become one piece.
    pub fn iovecs(&self, frames: &[Frame], len: u64, out: &mut Vec<libc::iovec>) {
        let mut left = len as usize;
        let mut next = None;
        for &frame in frames {
            let take = left.min(BLOCK_BYTES as usize);
            let iov_base: *mut libc::c_void = self.address(frame).cast();
            match out.last_mut() {
                Some(last) if next == Some(iov_base) => last.iov_len += take,
                _ => out.push(libc::iovec { iov_base, iov_len: take }),
            }
            next = Some(iov_base.wrapping_byte_add(take));
            left -= take;
        }
        assert!(left == 0, "frames for less than {len} bytes");
    }

    /// Copy what lies from byte `skip` on in these frames, one after another,
    /// into guests' buffers until they are full.
    pub fn copy_to(
        &self,
        frames: impl Iterator<Item = Frame>,
        mut skip: usize,
        to: &[libc::iovec],
    ) {
        let mut frames = frames;
        let (mut from, mut there) = (self.at.as_ptr(), 0);
        for buffer in to {
            let (mut memory, mut left) = (buffer.iov_base.cast::<u8>(), buffer.iov_len);
            while left > 0 {
                while there == 0 {
                    let frame = frames.next().expect("frames for all that is wanted");
                    let begin = skip.min(BLOCK_BYTES as usize);
                    skip -= begin;
                    there = BLOCK_BYTES as usize - begin;
                    from = self.address(frame).wrapping_add(begin);
                }
                let take = there.min(left);
                // SAFETY: `take` keeps within the frame and within the buffer, which
                // the port keeps until the job is done. They do not overlap: no
                // guest's memory is a frame.
                unsafe { std::ptr::copy_nonoverlapping(from, memory, take) };
                (from, memory) = (from.wrapping_add(take), memory.wrapping_add(take));
                (there, left) = (there - take, left - take);
            }
        }
    }

    fn address(&self, frame: Frame) -> *mut u8 {
        let at = frame.0 as usize * BLOCK_BYTES as usize;
        assert!(at + BLOCK_BYTES as usize <= self.bytes, "{frame:?} lies behind the cache");
        self.at.as_ptr().wrapping_add(at)
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of which no SQE is under way: the reactor ends
        // when no job is left.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Limit of RLIMIT_MEMLOCK, in words for an error message.
fn memlock_limit() -> String {
    let limit = getrlimit(Resource::Memlock).current;
    limit.map_or("everything".into(), |bytes| format!("{bytes} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_testing::drop_capabilities;

    const MIB: u64 = 1 << 20;

    /// 8 MiB every 100 ms for two seconds.
    fn after(mut bandwidth: Bandwidth, from_device: bool) -> Option<u64> {
        for n in 1..=20 {
            let now = Instant::from_nanos(n * 100_000_000);
            bandwidth.read(now, 8 * MIB, from_device);
        }
        assert_eq!(bandwidth.total_bytes(), 160 * MIB);
        bandwidth.bytes_per_s()
    }

    fn measured(bytes_per_s: u64) -> Bandwidth {
        let mut bandwidth = Bandwidth::default();
        assert!(bandwidth.measured(bytes_per_s) && !bandwidth.measured(2 * bytes_per_s));
        bandwidth
    }

    #[test]
    fn more_than_was_measured_counts_if_the_device_read_it() {
        assert_eq!(after(measured(MIB), true), Some(80 * MIB));
        assert_eq!(after(measured(100 * MIB), true), Some(100 * MIB));
        assert_eq!(after(measured(MIB), false), Some(MIB));
        assert_eq!(after(Bandwidth::default(), true), None);
    }

    #[test]
    fn what_the_operator_says_stands() {
        let mut bandwidth = Bandwidth::given(MIB);
        assert!(!bandwidth.measured(2 * MIB));
        assert_eq!(after(bandwidth, true), Some(MIB));
    }

    #[test]
    fn a_lock_that_is_refused_says_what_to_raise() {
        // SAFETY: plain structs, filled by the call.
        let mut limit = unsafe { std::mem::zeroed::<libc::rlimit>() };
        // SAFETY: as above.
        unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
        if limit.rlim_cur == libc::RLIM_INFINITY {
            // More than other tests of this process lock meanwhile.
            limit.rlim_cur = 64 << 20;
            // SAFETY: as above. It only lowers the soft limit, which everybody may do.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
        }
        let more = (limit.rlim_cur / BLOCK_BYTES + 1) * BLOCK_BYTES;
        let refused = std::thread::spawn(move || {
            drop_capabilities();
            assert!(Frames::new(BLOCK_BYTES, true).is_ok(), "a little may be locked");
            Frames::new(more, true).err().expect("more than the limit")
        });
        let error = refused.join().unwrap();
        let said = format!("RLIMIT_MEMLOCK allows {} bytes: raise it", limit.rlim_cur);
        assert!(error.contains(&said) && error.contains("LimitMEMLOCK=infinity"), "{error}");
    }

    /// Frames whose memory is there.
    fn resident(frames: &Frames) -> Vec<bool> {
        let mut pages = vec![0_u8; frames.bytes / BLOCK_BYTES as usize];
        // SAFETY: our own mapping, and a byte for each of its pages.
        let asked =
            unsafe { libc::mincore(frames.at.as_ptr().cast(), frames.bytes, pages.as_mut_ptr()) };
        assert_eq!(asked, 0, "{}", io::Error::last_os_error());
        pages.iter().map(|page| page & 1 == 1).collect()
    }

    /// Memory in swap's reach and locked memory, the latter also as kernels before 5.18 have it,
    /// which do not know the advice for it.
    #[test]
    fn memory_that_is_given_back_is_gone_and_comes_again_empty() {
        // SAFETY: a system call without arguments.
        if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } != BLOCK_BYTES as i64 {
            return seekway_testing::skip("pages of 4 KiB");
        }
        for (lock, advice) in [(false, None), (true, None), (true, Some(libc::c_int::MAX))] {
            let Ok(mut frames) = Frames::new(8 * BLOCK_BYTES, lock) else {
                return seekway_testing::skip("the right to lock 32 KiB of memory");
            };
            frames.advice = advice.unwrap_or(frames.advice);
            // SAFETY: the whole of our own mapping.
            let fill = |byte| unsafe { frames.at.as_ptr().write_bytes(byte, frames.bytes) };
            fill(7);
            assert_eq!(resident(&frames), [true; 8]);
            frames.give_back(&[Frame(1), Frame(2), Frame(5)]);
            let left = [true, false, false, true, true, false, true, true];
            assert_eq!(resident(&frames), left, "lock: {lock}, advice: {advice:?}");
            // SAFETY: inside of the mapping.
            let first = |frame: u32| unsafe { frames.address(Frame(frame)).read() };
            assert_eq!([first(0), first(1), first(5), first(7)], [7, 0, 0, 7]);
            fill(9);
            assert_eq!(resident(&frames), [true; 8]);
            assert_eq!(is_locked(&frames), lock, "advice: {advice:?}");
        }
    }

    /// Is all of the mapping locked, as the kernel tells (`lo` among its flags)?
    fn is_locked(frames: &Frames) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (from, to) = (frames.at.as_ptr() as usize, frames.at.as_ptr() as usize + frames.bytes);
        let (mut inside, mut locked) = (false, Vec::new());
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((first, last)) = range.and_then(|(a, b)| Some((number(a)?, number(b)?))) {
                inside = first < to && last > from;
            } else if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
                locked.push(flags.split_whitespace().any(|flag| flag == "lo"));
            }
        }
        assert!(!locked.is_empty(), "the mapping is in the list");
        locked.iter().all(|is| *is)
    }

    #[test]
    fn frames_hold_what_is_put_there_and_neighbours_are_one_piece() {
        let frames = Frames::new(8 * BLOCK_BYTES, false).unwrap();
        let order = [Frame(5), Frame(6), Frame(2), Frame(3)];
        let mut pieces = Vec::new();
        frames.iovecs(&order, 3 * BLOCK_BYTES + 512, &mut pieces);
        assert_eq!(pieces.iter().map(|p| p.iov_len).collect::<Vec<_>>(), [8192, 4608]);
        let mut byte = 0_u8;
        for piece in &pieces {
            for at in 0..piece.iov_len {
                byte = byte.wrapping_mul(31).wrapping_add(7);
                // SAFETY: inside the mapping.
                unsafe { piece.iov_base.cast::<u8>().add(at).write(byte) };
            }
        }
        // SAFETY: inside the mapping, and initialised above.
        let all: Vec<u8> = pieces
            .iter()
            .flat_map(|p| unsafe { std::slice::from_raw_parts(p.iov_base.cast::<u8>(), p.iov_len) })
            .copied()
            .collect();
        for (skip, lens) in [(0, vec![12_800]), (512, vec![7, 9000, 3]), (4608, vec![512, 4096])] {
            let mut buffers: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
            let to: Vec<libc::iovec> = buffers
                .iter_mut()
                .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() })
                .collect();
            frames.copy_to(order.into_iter(), skip, &to);
            let got = buffers.concat();
            assert!(got == all[skip..skip + got.len()], "from byte {skip}");
        }
    }
}
