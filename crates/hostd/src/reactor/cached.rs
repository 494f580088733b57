//! The engine's part of the host cache, in the steps that
//! [`seekway_policy::cache`] states: guests' reads go there first, what it has
//! not is read into frames by jobs of no port, and prefetches wait in the
//! dispatcher's background.
//!
//! The device writes into frames and never into a guest's memory on the way
//! there: a guest that scribbles over its buffer spoils nobody's copy.

mod bandwidth;
mod fetches;
mod load;

pub use load::Load;

use super::core::{CUT_BELOW, Core, PIECES_MAX, disk_of};
use super::frames::Frames;
use super::jobs::slice_buffers;
use super::message::{CacheStatus, DiskCache};
use crate::port::{DiskId, Job};
use bandwidth::Bandwidth;
use seekway_policy::cache::{
    BLOCK_BYTES, BLOCK_SECTORS, Config, FetchId, HostCache, Piece, Waiter,
};
use seekway_policy::prefetcher::Prefetcher;
use seekway_policy::request::{Completion, Extent, Op, RequestId, VmId};
use seekway_policy::units::{Instant, Lba, SECTOR_BYTES, Sectors};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU32;

/// Blocks of the longest read that is looked up (4 MiB). Longer ones go past the
/// cache: the reactor stands still while it copies.
pub const FETCHED_BLOCKS_MAX: usize = 1 << 10;
/// Parts of all disks' reads that wait for fetches; with more, reads go past the
/// cache. Each disk has a bound of its own ([`Load`]), which comes first.
pub const WAITING_MAX: usize = 1 << 18;

/// What a reactor's cache is made with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheSetup {
    /// Bytes of data at most; what is less than a block is not used.
    pub bytes: u64,
    /// The prefetcher's specification.
    pub prefetcher: String,
    /// Keep it out of swap.
    pub lock: bool,
    /// What the device reads a second, if that is known: nothing that is measured
    /// or seen counts then.
    pub bandwidth_bytes_per_s: Option<u64>,
}

/// The cache of a reactor.
pub struct Cached {
    books: HostCache,
    frames: Frames,
    prefetcher: String,
    bandwidth: Bandwidth,
    /// By number of the fetch.
    under_way: Vec<UnderWay>,
    /// Prefetches of which something is in the dispatcher's background: no more
    /// than it has room for.
    prefetches: Vec<FetchId>,
    /// Fetches whose jobs are done.
    ended: Vec<FetchId>,
    /// Parts of guests' reads that wait for fetches.
    waiting: usize,
    /// Reused from read to read.
    pieces: Vec<Piece>,
    waiters: Vec<Waiter>,
    buffers: Vec<libc::iovec>,
}

// SAFETY: `buffers` is empty between two calls.
unsafe impl Send for Cached {}

/// How a fetch is carried out.
#[derive(Clone, Default)]
struct UnderWay {
    job: Option<u32>,
    /// Those of its requests that arrived in the background and are not done.
    requests: Vec<RequestId>,
    /// One of its requests is done.
    begun: bool,
}

impl Cached {
    /// An empty cache.
    ///
    /// # Errors
    /// For the operator: a specification that is none, memory that is not to be had.
    pub(super) fn new(setup: &CacheSetup) -> Result<Cached, String> {
        if setup.bytes < BLOCK_BYTES {
            return Err(format!("a cache of {} bytes; at least {BLOCK_BYTES}", setup.bytes));
        }
        // Keys of its own for each process: no guest can foresee it.
        let seed = RandomState::new().build_hasher().finish();
        let config = Config { seed, ..Config::new(setup.bytes) };
        let books = HostCache::new(config, &setup.prefetcher).map_err(|e| e.to_string())?;
        let frames = Frames::new(books.capacity_bytes(), setup.lock)?;
        let mut cached = Cached {
            books,
            frames,
            prefetcher: setup.prefetcher.clone(),
            bandwidth: Bandwidth::default(),
            under_way: Vec::new(),
            prefetches: Vec::new(),
            ended: Vec::new(),
            waiting: 0,
            pieces: Vec::new(),
            waiters: Vec::new(),
            buffers: Vec::new(),
        };
        if let Some(bytes_per_s) = setup.bandwidth_bytes_per_s {
            cached.bandwidth = Bandwidth::given(bytes_per_s);
            cached.books.set_bandwidth(bytes_per_s);
        }
        Ok(cached)
    }

    /// A disk joins, or its share has changed.
    pub(super) fn attach(&mut self, now: Instant, id: DiskId, weight: NonZeroU32, bytes: u64) {
        self.books.attach(now, VmId::new(id.0), weight, Sectors::from_bytes(bytes));
    }

    /// A disk has another size. What was cached of it is forgotten: nobody knows
    /// what its image's file had in between.
    pub(super) fn resized(
        &mut self,
        now: Instant,
        id: DiskId,
        weight: NonZeroU32,
        (before, after): (u64, u64),
    ) {
        let vm = VmId::new(id.0);
        if let Some(all) = Extent::new(Lba::ZERO, Sectors::from_bytes(before)) {
            self.books.write(now, vm, all);
            self.books.written(vm, all);
        }
        self.attach(now, id, weight, after);
    }

    /// What the device reads a second, as it was measured.
    pub(super) fn measured(&mut self, bytes_per_s: u64) {
        if self.bandwidth.measured(bytes_per_s) {
            self.books.set_bandwidth(bytes_per_s);
        }
    }

    /// Reads into the cache under way.
    pub(super) fn fetching(&self) -> usize {
        self.books.fetching()
    }

    /// A request is done, part of this fetch if of any; `from_device` when its
    /// time was the device's, and no page cache's.
    pub(super) fn left_device(
        &mut self,
        now: Instant,
        completion: &Completion,
        fetch: Option<FetchId>,
        from_device: bool,
    ) {
        let request = &completion.request;
        if let Some(id) = fetch {
            let fetch = &mut self.under_way[id.0 as usize];
            fetch.requests.retain(|&r| r != request.id);
            fetch.begun = true;
        }
        if request.op == Op::Read
            && completion.ok
            && let Some(seen) = self.bandwidth.read(now, request.extent.len().bytes(), from_device)
        {
            self.books.set_bandwidth(seen);
        }
    }

    /// All of a fetch's requests are done.
    pub(super) fn has_ended(&mut self, id: FetchId) {
        self.ended.push(id);
    }

    fn under_way(&mut self, id: FetchId) -> &mut UnderWay {
        let at = id.0 as usize;
        if at >= self.under_way.len() {
            self.under_way.resize_with(at + 1, UnderWay::default);
        }
        &mut self.under_way[at]
    }

    /// The part of a job's buffers that `wanted` of the disk goes to.
    fn slice(&mut self, job: &Job, buffers: &[libc::iovec], wanted: Extent) {
        let (start, len) = place_in(job, wanted);
        self.buffers.clear();
        slice_buffers(buffers, start, len, &mut self.buffers);
    }

    /// Copy what is cached to a guest.
    fn serve_cached(&mut self, job: &Job, buffers: &[libc::iovec], part: Extent) {
        self.slice(job, buffers, part);
        let skip = (part.start().get() % BLOCK_SECTORS * SECTOR_BYTES) as usize;
        let frames = self.books.frames(VmId::new(job.disk.0), part);
        self.frames.copy_to(frames, skip, &self.buffers);
        self.buffers.clear();
    }

    /// Of a read's pieces that need the device, those behind the first
    /// [`PIECES_MAX`] become one that goes past the cache.
    fn join_rest(&mut self, now: Instant, read: Extent, pieces: &mut Vec<Piece>) {
        let start = |piece: &Piece| match *piece {
            Piece::Fetch(_, part) | Piece::Direct(part) => Some(part.start()),
            Piece::Cached(_) | Piece::Wait(..) => None,
        };
        let Some(rest) = pieces.iter().filter_map(start).nth(PIECES_MAX as usize) else { return };
        pieces.retain(|piece| {
            let goes = start(piece).is_some_and(|start| start >= rest);
            if let (true, Piece::Fetch(id, _)) = (goes, *piece) {
                // Not begun: nobody but this read waits for it.
                self.books.fetched(now, id, false);
            }
            !goes
        });
        let len = Sectors::new(read.end().get() - rest.get());
        pieces.extend(Extent::new(rest, len).map(Piece::Direct));
    }

    /// Copy what a fetch has brought to a guest that waited for it.
    fn serve_fetched(&mut self, id: FetchId, job: &Job, buffers: &[libc::iovec], part: Extent) {
        self.slice(job, buffers, part);
        let fetch = self.books.fetch(id);
        let skip = (part.start().get() - fetch.extent.start().get()) * SECTOR_BYTES;
        self.frames.copy_to(fetch.frames.iter().copied(), skip as usize, &self.buffers);
        self.buffers.clear();
    }

    /// How it stands.
    pub(super) fn status(&self) -> CacheStatus {
        let mut prefetcher_metrics = Vec::new();
        self.books.prefetcher_metrics(&mut |name, value| prefetcher_metrics.push((name, value)));
        CacheStatus {
            capacity_bytes: self.books.capacity_bytes(),
            prefetcher: self.prefetcher.clone(),
            bandwidth_bytes_per_s: self.bandwidth.bytes_per_s(),
            fetching: self.books.fetching(),
            device_read_bytes: self.bandwidth.total_bytes(),
            prefetcher_metrics,
        }
    }

    /// What the disks have of it.
    pub(super) fn disk_statuses(&self) -> BTreeMap<DiskId, DiskCache> {
        let mut disks: BTreeMap<DiskId, DiskCache> = BTreeMap::new();
        let id = |vm: VmId| DiskId(vm.index() as u16);
        self.books.usage(&mut |vm, tag, usage| {
            let disk = disks.entry(id(vm)).or_default();
            disk.usage += usage;
            disk.process(tag).usage = *usage;
        });
        self.books.streams(&mut |stream| {
            let process = disks.entry(id(stream.vm)).or_default().process(stream.tag);
            process.streams += 1;
            process.armed += u32::from(stream.armed);
            process.scale_max = Some(process.scale_max.unwrap_or(stream.scale).max(stream.scale));
        });
        for (id, disk) in &mut disks {
            disk.resident_bytes = self.books.resident_bytes(VmId::new(id.0));
        }
        disks
    }
}

impl Core {
    /// A guest's read goes to the cache first. False, and nothing has happened,
    /// when it shall go past it.
    pub(super) fn read_cached(&mut self, index: u32) -> bool {
        let job = self.jobs[index].job;
        let Some(cached) = &mut self.cached else { return false };
        let load = &mut disk_of(&mut self.disks, job.disk).load;
        let long = job.len > FETCHED_BLOCKS_MAX as u64 * BLOCK_BYTES;
        if long || !load.may_copy(self.now) {
            return false;
        }
        let (vm, extent) = (VmId::new(job.disk.0), extent_of(&job));
        let full = cached.waiting >= WAITING_MAX || self.dispatcher.outstanding() >= CUT_BELOW;
        // What is all there waits for nothing.
        if (full || !load.may_wait()) && !cached.books.holds(vm, extent) {
            return false;
        }
        let mut pieces = std::mem::take(&mut cached.pieces);
        cached.books.read(self.now, vm, job.tag, extent, index.into(), &mut pieces);
        cached.join_rest(self.now, extent, &mut pieces);
        let mut waiting = 0;
        for piece in &pieces {
            match *piece {
                Piece::Cached(part) => {
                    cached.serve_cached(&job, &self.jobs[index].buffers, part);
                    load.copied(self.now, part.len().bytes());
                }
                Piece::Wait(_, part) | Piece::Fetch(_, part) => {
                    load.waits(part.len().bytes());
                    waiting += 1;
                }
                Piece::Direct(_) => {}
            }
        }
        cached.waiting += waiting;
        // One more, so that nothing ends it before all is said.
        self.jobs[index].parts_left += waiting as u32 + 1;
        for piece in pieces.drain(..) {
            match piece {
                Piece::Cached(_) => {}
                Piece::Wait(id, _) => self.promote(id),
                Piece::Fetch(id, _) => self.fetch(id, false),
                Piece::Direct(part) => {
                    let (start, len) = place_in(&job, part);
                    self.arrive_part(index, start, len);
                }
            }
        }
        if let Some(cached) = &mut self.cached {
            cached.pieces = pieces;
        }
        if self.jobs.one_less(index) {
            self.job_done(index);
        }
        true
    }

    /// Tell the cache of a job that changes data, before anything comes of it.
    pub(super) fn write_begins(&mut self, job: &Job) {
        let known = changes(job) && disk_of(&mut self.disks, job.disk).cached;
        if let Some(cached) = self.cached.as_mut().filter(|_| known) {
            cached.books.write(self.now, VmId::new(job.disk.0), extent_of(job));
        }
    }

    /// It is done, well or not. The cache is told also when the disk has left it
    /// meanwhile: what it believes to be under way it believes of the next disk
    /// of that number too.
    pub(super) fn write_ends(&mut self, job: &Job) {
        if let Some(cached) = self.cached.as_mut().filter(|_| changes(job)) {
            cached.books.written(VmId::new(job.disk.0), extent_of(job));
        }
    }

    /// Let prefetches wait for the device, as many as there is room for. When
    /// the prefetcher wants to be asked again if nothing happens.
    pub(super) fn read_ahead(&mut self) -> Option<Instant> {
        self.cached.as_ref()?;
        if self.dispatcher.is_crowded() {
            self.drop_prefetches();
        }
        loop {
            let room = self.dispatcher.background_room();
            if room == 0 {
                // It is asked again when some of them are done.
                return None;
            }
            let now = self.now;
            let cached = self.cached.as_mut()?;
            let Some(id) = cached.books.propose(now, room) else {
                return cached.books.next_wake().filter(|&at| at > now);
            };
            self.fetch(id, true);
        }
    }

    /// Another prefetcher. What the old one has waiting is not made.
    pub(super) fn set_prefetcher(
        &mut self,
        spec: String,
        prefetcher: Box<dyn Prefetcher>,
    ) -> Result<(), String> {
        self.drop_prefetches();
        let cached = self.cached.as_mut().ok_or("it has no cache to read ahead into")?;
        cached.books.replace(self.now, prefetcher);
        cached.prefetcher = spec;
        Ok(())
    }

    /// A disk leaves: nothing is read ahead for it, and nothing of it stays. The
    /// reads that it has under way go on.
    pub(super) fn leave_cache(&mut self, id: DiskId) {
        if !std::mem::take(&mut disk_of(&mut self.disks, id).cached) {
            return;
        }
        self.end_prefetches(id);
        if let Some(cached) = &mut self.cached {
            cached.books.detach(self.now, VmId::new(id.0));
        }
    }
}

/// Does a job change data?
fn changes(job: &Job) -> bool {
    !matches!(job.op, Op::Read | Op::Flush)
}

/// Where a job lies on its disk.
fn extent_of(job: &Job) -> Extent {
    let (start, len) = (Lba::new(job.offset / SECTOR_BYTES), Sectors::from_bytes(job.len));
    Extent::new(start, len).expect("jobs are checked when they come")
}

/// Where in a job this part of its disk is: begin and length in bytes.
fn place_in(job: &Job, part: Extent) -> (u64, u64) {
    (part.start().get() * SECTOR_BYTES - job.offset, part.len().bytes())
}
