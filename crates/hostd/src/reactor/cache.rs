//! The engine's part of the host cache: its memory, and what the device reads a second. What
//! is in the cache, and what is fetched when, the stack decides
//! ([`seekway_stack::stack`]).
//!
//! The device writes into frames and never into a guest's memory on the way
//! there: a guest that scribbles over its buffer spoils nobody's copy.

use super::bandwidth::Bandwidth;
use super::frames::Frames;
use super::jobs::slice_buffers;
use super::message::{CacheStatus, DiskCache};
use crate::port::DiskId;
use seekway_core::request::{Completion, Extent, Op};
use seekway_core::units::{Instant, SECTOR_BYTES};
use seekway_stack::cache::{BLOCK_BYTES, BLOCK_SECTORS, Config, FetchId, Frame};
use seekway_stack::stack::{CacheSpec, Stack, frames_of};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

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
