//! Guest: its applications, open files, page cache, disks, vCPUs and timers; its event loop, as a
//! source and as tasks for modelled vCPUs; and its state at the start.

use crate::guest::app::{App, AppSpec};
use crate::guest::block::{Io, Purpose};
use crate::guest::cache::{Cache, DIRTY, File, NONE, UPTODATE};
use crate::guest::disk::{self, Formatted, GuestDisk, JOURNAL};
use crate::guest::layout::{LaidFiles, Run, pages_of};
use crate::guest::params::GuestParams;
use crate::guest::{DISKS_MAX, PAGE_BYTES};
use crate::rng::{Rng, split};
use crate::tasks::{Need, TaskSource};
use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_core::readahead::ReadAhead;
use seekway_core::request::{Extent, Op, ProcessTag};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// The first tag that a process gets (1–7 mean something else, see algorithms.md section 6).
const TAG_FIRST: u16 = 8;
/// The tags of one application start this far from the next one's.
const TAG_STEP: u16 = 64;

#[derive(Debug)]
pub(super) struct Handle {
    pub file: u32,
    pub direct: bool,
    pub sync: bool,
    pub tag: Option<ProcessTag>,
    pub read_ahead: ReadAhead,
}

/// An application while it runs.
pub(super) struct Running {
    pub app: Box<dyn App>,
    pub name: String,
    /// The disk that its files are on.
    pub disk: usize,
    pub threads_left: u32,
    pub finished: Option<Instant>,
    pub bytes: u64,
    pub parked: Vec<u32>,
    pub first_handle: u32,
    first_file: u32,
    brought: Option<Brought>,
}

/// Owner of the model of vCPUs: the guest itself, or somebody else.
pub(super) enum Cpus {
    /// Nobody ever takes them away: when each is free.
    Own(Vec<Instant>),
    /// Somebody else models them, and is told what the thread that runs needs.
    Modelled { need: Option<Need> },
}

/// Files that an application brought along.
struct Brought {
    files: Arc<LaidFiles>,
    /// Where their area lies on the image.
    area: Vec<Run>,
    /// The guest's number of each file, [`NONE`] until it is opened.
    numbers: Vec<u32>,
}

/// Number of the random stream of the jitter, among those of a guest's seed.
const JITTER_STREAM: u64 = u64::MAX - 1;

/// One guest VM with its applications.
pub struct GuestVm {
    pub(super) vm_disks: Vec<VmDisk>,
    pub(super) disks: Vec<GuestDisk>,
    pub(super) params: GuestParams,
    pub(super) apps: Vec<Running>,
    pub(super) threads: Vec<Thread>,
    pub(super) threads_left: u32,
    pub(super) handles: Vec<Handle>,
    /// The inode areas of the disks, then the applications' files.
    pub(super) files: Vec<File>,
    pub(super) cache: Cache,
    /// The latest time that it was told of.
    pub(super) now: Instant,
    /// Threads that can go on now.
    pub(super) ready: VecDeque<u32>,
    pub(super) memory_waiters: Vec<u32>,
    pub(super) throttled: Vec<u32>,
    pub(super) timers: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    timer_number: u64,
    pub(super) cpus: Cpus,
    /// Completions on their way through the virtualisation path.
    pub(super) arriving: VecDeque<(Instant, u64)>,
    /// Of the jitter on that path.
    pub(super) jitter: Rng,
}

impl GuestVm {
    /// A guest called `name` with one disk that runs `apps`. Placement on the image follows
    /// from `seed`. Fails when the files do not fit on the image.
    pub fn new(
        name: &str,
        params: GuestParams,
        apps: Vec<Box<dyn App>>,
        seed: u64,
    ) -> Result<GuestVm, SourceError> {
        let capacity = Sectors::new(params.image_sectors);
        let disks = vec![VmDisk { name: name.into(), capacity }];
        let apps = apps.into_iter().map(|app| (0, app)).collect();
        GuestVm::with_disks(disks, params, apps, seed)
    }

    /// A guest with these disks, at least one and at most [`DISKS_MAX`]: each application comes
    /// with the number of the disk that its files are on. The disks' sizes are theirs, and not
    /// the parameters'.
    ///
    /// # Errors
    /// As [`GuestVm::new`].
    pub fn with_disks(
        vm_disks: Vec<VmDisk>,
        params: GuestParams,
        mut apps: Vec<(usize, Box<dyn App>)>,
        seed: u64,
    ) -> Result<GuestVm, SourceError> {
        assert!((1..=DISKS_MAX).contains(&vm_disks.len()), "a guest has 1 to {DISKS_MAX} disks");
        let brought: Vec<_> = apps.iter_mut().map(|(_, app)| app.laid_files()).collect();
        let (mut disks, mut files, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        for (number, spec) in vm_disks.iter().enumerate() {
            let here = apps.iter().zip(&brought).filter(|((disk, _), _)| *disk == number);
            let sizes: Vec<Vec<u64>> = here.map(|((_, app), b)| sizes(&**app, b)).collect();
            let formatted = GuestDisk::format(spec, number, &sizes, &params, seed)?;
            let Formatted { disk, inodes, files: of_apps } = formatted;
            disks.push(disk);
            files.push(inodes);
            runs.push(of_apps.into_iter());
        }
        let mut vm = GuestVm {
            vm_disks,
            disks,
            apps: Vec::new(),
            threads: Vec::new(),
            threads_left: 0,
            handles: Vec::new(),
            files,
            cache: Cache::new(params.cache_pages),
            ready: VecDeque::new(),
            memory_waiters: Vec::new(),
            throttled: Vec::new(),
            timers: BinaryHeap::new(),
            timer_number: 0,
            cpus: Cpus::Own(vec![Instant::ZERO; params.vcpus as usize]),
            now: Instant::ZERO,
            arriving: VecDeque::new(),
            jitter: Rng::new(split(seed, JITTER_STREAM)),
            params,
        };
        for ((disk, app), brought) in apps.into_iter().zip(brought) {
            let runs = runs[disk].next().expect("the files of each application were laid out");
            vm.add_app(disk, app, runs, brought);
        }
        if vm.params.warm {
            vm.warm(seed);
        }
        Ok(vm)
    }

    /// The block of its disk's inode area with the inode of an application's file:
    /// 16 inodes of 256 bytes to a block; each directory in a group of its own.
    fn inode_block(&self, disk: usize, app: u32, file: u32) -> u32 {
        (app * 64 + file / 16) % (self.files[disk].size_pages / 2)
    }

    fn add_app(
        &mut self,
        disk: usize,
        app: Box<dyn App>,
        mut runs: Vec<Vec<Run>>,
        brought: Option<Arc<LaidFiles>>,
    ) {
        let number = self.apps.len() as u32;
        let first_file = self.files.len() as u32;
        let brought = brought.map(|files| {
            let numbers = vec![NONE; files.count() as usize];
            Brought { files, area: runs.pop().unwrap_or_default(), numbers }
        });
        let AppSpec { name, threads, files, handles } = app.spec();
        for (at, (spec, runs)) in (0..).zip(files.iter().zip(runs)) {
            let pages = pages_of(spec.present) as u32;
            let inode_block = self.inode_block(disk, number, at);
            self.files.push(File::new(disk, runs, pages, inode_block));
        }
        let first_handle = self.handles.len() as u32;
        for handle in handles {
            let process = TAG_FIRST + number as u16 * TAG_STEP + handle.process % TAG_STEP;
            let tag = if self.params.tags { ProcessTag::new(process.min(1023)) } else { None };
            self.handles.push(Handle {
                file: if brought.is_some() { NONE } else { first_file + handle.file },
                direct: handle.direct,
                sync: handle.sync,
                tag,
                read_ahead: ReadAhead::new(),
            });
        }
        for local in 0..*threads {
            self.ready.push_back(self.threads.len() as u32);
            self.threads.push(Thread::new(number, local));
        }
        self.threads_left += threads;
        let same = self.apps.iter().filter(|a| a.app.spec().name == *name).count();
        let name = match same {
            0 => name.clone(),
            n => format!("{name}.{}", n + 1),
        };
        self.apps.push(Running {
            name,
            disk,
            threads_left: *threads,
            finished: None,
            bytes: 0,
            parked: Vec::new(),
            first_handle,
            first_file,
            brought,
            app,
        });
    }

    /// The guest's number of an application's file.
    pub(super) fn file_number(&mut self, app: u32, file: u32) -> u32 {
        let running = &self.apps[app as usize];
        let Some(brought) = &running.brought else { return running.first_file + file };
        if brought.numbers[file as usize] != NONE {
            return brought.numbers[file as usize];
        }
        let (disk, runs) = (running.disk, brought.files.runs(file, &brought.area));
        let inode_block = self.inode_block(disk, app, file);
        let new = File::new(disk, runs, brought.files.pages(file), inode_block);
        let number = self.files.len() as u32;
        self.files.push(new);
        if let Some(brought) = &mut self.apps[app as usize].brought {
            brought.numbers[file as usize] = number;
        }
        number
    }

    /// Lead `handle` to a file of its application `app`.
    pub(super) fn open(&mut self, app: u32, handle: u32, file: u32) {
        let file = self.file_number(app, file);
        let h = &mut self.handles[handle as usize];
        h.file = file;
        h.read_ahead = ReadAhead::new();
    }

    /// Wake `thread` at `at`.
    pub(super) fn wake_at(&mut self, at: Instant, thread: u32) {
        if let Cpus::Modelled { need } = &mut self.cpus {
            *need = Some(Need::Wait { until: Some(at), io: false });
            return;
        }
        self.timer_number += 1;
        self.timers.push(Reverse((at, self.timer_number, thread)));
    }

    /// `thread` computes for `cost`, then goes on: on the vCPU that is free first if none is
    /// ever away.
    pub(super) fn compute(&mut self, now: Instant, thread: u32, cost: Nanos) {
        match &mut self.cpus {
            Cpus::Own(free) => {
                let free = free.iter_mut().min().expect("a guest has a vCPU");
                *free = (*free).max(now) + cost;
                let at = *free;
                self.wake_at(at, thread);
            }
            Cpus::Modelled { need } => *need = Some(Need::Compute(cost)),
        }
    }

    /// `thread`, which runs, stops for something that is not the disk.
    pub(super) fn stop_for(&mut self, what: Need) {
        if let Cpus::Modelled { need } = &mut self.cpus {
            *need = Some(what);
        }
    }

    /// Pages that the page cache holds, and the most that it may.
    pub fn cache_pages(&self) -> (u32, u32) {
        (self.cache.used(), self.cache.limit())
    }
    /// Where `page` of file `file` of application `app` lies: its first sector.
    /// Panics when there is no such page, or when the application brought its
    /// files along.
    pub fn sector_of(&self, app: usize, file: u32, page: u32) -> Lba {
        let file = self.apps[app].first_file + file;
        Lba::new(self.files[file as usize].locate(page).0)
    }
    /// Pages that are dirty.
    pub fn dirty_pages(&self) -> u32 {
        self.disks.iter().map(|disk| disk.flusher.dirty).sum()
    }
    /// Pages that are dirty or under write-back.
    pub(super) fn unwritten_pages(&self) -> u32 {
        self.disks.iter().map(|disk| disk.flusher.unwritten()).sum()
    }
    /// The disk that `file` is on.
    pub(super) fn disk_of(&mut self, file: u32) -> &mut GuestDisk {
        &mut self.disks[self.files[file as usize].disk]
    }
}

/// The sizes in bytes of what an application needs on its disk. The area of files brought along
/// is laid out like one file.
fn sizes(app: &dyn App, brought: &Option<Arc<LaidFiles>>) -> Vec<u64> {
    match brought {
        Some(files) => vec![u64::from(files.area_pages()) * PAGE_BYTES],
        None => app.spec().files.iter().map(|file| file.bytes).collect(),
    }
}

// The event loop of a guest, as a `Source`.

impl GuestVm {
    /// Let everything happen that can at `now`.
    fn settle(&mut self, now: Instant) {
        self.now = now;
        loop {
            while let Some(thread) = self.ready.pop_front() {
                self.run_thread(now, thread);
            }
            self.maybe_commit(now);
            self.flush(now);
            match self.timers.peek() {
                Some(Reverse((at, _, _))) if *at <= now => {
                    let Some(Reverse((_, _, thread))) = self.timers.pop() else { return };
                    self.ready.push_back(thread);
                }
                _ if self.ready.is_empty() => return,
                _ => {}
            }
        }
    }

    /// Time that a completion takes to the guest.
    fn way_back(&mut self) -> Nanos {
        let GuestParams { latency, jitter, .. } = self.params;
        if jitter == Nanos::ZERO {
            return latency;
        }
        Nanos::new(latency.get() - jitter.get() + self.jitter.below(2 * jitter.get() + 1))
    }

    /// When the kernel does something of its own accord: the first commit, flusher or elevator
    /// that is due.
    pub(super) fn kernel_timer(&self) -> Option<Instant> {
        let due = |disk: &GuestDisk| {
            let GuestDisk { block, journal, flusher } = disk;
            Instant::earliest([journal.due(self.params.commit), flusher.due(), block.next_wake()])
        };
        self.disks.iter().filter_map(due).min()
    }

    /// Append the requests that may go to the disks now.
    pub(super) fn issue(&mut self, out: &mut Vec<Issue>) {
        for (disk, GuestDisk { block, .. }) in self.disks.iter_mut().enumerate() {
            while let Some(number) = block.issue(self.now) {
                let io = block.io(number);
                out.push(Issue {
                    token: disk::token(disk, number),
                    vm: disk as u16,
                    tag: io.tag,
                    op: io.op,
                    sync: io.sync || self.params.host_direct,
                    start: Lba::new(io.sector),
                    len: Sectors::new(u64::from(io.sectors)),
                });
            }
        }
    }

    /// The guest sees the completion of the request with this token.
    pub(super) fn arrived(&mut self, now: Instant, token: u64) {
        let (disk, number) = disk::of_token(token);
        let block = &mut self.disks[disk].block;
        block.complete(now, number);
        let &Io { purpose, file, page, pages, .. } = block.io(number);
        match purpose {
            Purpose::Fill => self.filled(file, page, pages),
            Purpose::Clean { background } => self.cleaned(disk, number, background),
            Purpose::Direct | Purpose::Journal | Purpose::Barrier => {}
        }
        let waiters = self.disks[disk].block.take_waiters(number);
        for waiter in &waiters {
            if *waiter == JOURNAL {
                self.journal_io_done(now, disk);
            } else {
                let thread = &mut self.threads[*waiter as usize];
                thread.pending -= 1;
                if thread.pending == 0 {
                    self.ready.push_back(*waiter);
                }
            }
        }
        self.disks[disk].block.release(number);
    }
}

impl Source for GuestVm {
    fn vms(&self) -> &[VmDisk] {
        &self.vm_disks
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        while let Some((at, token)) = self.arriving.front().copied() {
            if at > now {
                break;
            }
            self.arriving.pop_front();
            self.arrived(now, token);
        }
        self.settle(now);
        self.issue(out);
        Ok(())
    }

    fn completed(&mut self, now: Instant, token: u64) {
        if self.params.latency == Nanos::ZERO {
            self.arrived(now, token);
        } else {
            let at = now + self.way_back();
            // The ring keeps its order.
            let at = self.arriving.back().map_or(at, |&(last, _)| last.max(at));
            self.arriving.push_back((at, token));
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, _, _))| *at);
        let arrival = self.arriving.front().map(|(at, _)| *at);
        Instant::earliest([timer, arrival, self.kernel_timer()])
    }

    fn finished(&self) -> bool {
        self.threads_left == 0
            && self.ready.is_empty()
            && self.arriving.is_empty()
            && self.disks.iter().all(|disk| disk.is_finished(self.params.sync_at_end))
    }

    fn lacks(&self, vm: usize) -> Vec<Extent> {
        self.lacks_on(vm)
    }

    fn apps(&self) -> Vec<AppReport> {
        let report = |a: &Running| AppReport {
            vm: a.disk as u16,
            name: a.name.clone(),
            finished: a.finished,
            bytes: a.bytes,
        };
        self.apps.iter().map(report).collect()
    }
}

// A guest whose vCPUs somebody else models: its threads are tasks of theirs.

impl GuestVm {
    /// The guest on vCPUs that somebody else models. Nothing has run yet.
    pub fn on_modelled_vcpus(mut self: Box<Self>) -> Box<dyn TaskSource> {
        self.cpus = Cpus::Modelled { need: None };
        // They begin when they are executed for the first time.
        self.ready.clear();
        self
    }

    /// Runs the kernel's own work, on the vCPU that notices it.
    fn work_of_kernel(&mut self, now: Instant) {
        self.now = now;
        self.maybe_commit(now);
        self.flush(now);
    }
}

impl TaskSource for GuestVm {
    fn disks(&self) -> &[VmDisk] {
        &self.vm_disks
    }

    fn tasks(&self) -> Vec<String> {
        let name = |thread: &Thread| {
            let running = &self.apps[thread.app as usize];
            match running.app.spec().threads {
                1 => running.name.clone(),
                _ => format!("{}/{}", running.name, thread.local + 1),
            }
        };
        self.threads.iter().map(name).collect()
    }

    fn run(&mut self, now: Instant, task: u32) -> Result<Need, SourceError> {
        self.run_thread(now, task);
        let Cpus::Modelled { need } = &mut self.cpus else {
            unreachable!("a guest on its own vCPUs is no task source")
        };
        // Whoever stops without a word waits for pages, requests, room or a commit.
        let need = need.take().unwrap_or(Need::Wait { until: None, io: true });
        self.work_of_kernel(now);
        Ok(need)
    }

    fn heard(&mut self, now: Instant, token: u64) {
        self.arrived(now, token);
        self.work_of_kernel(now);
    }

    fn waiting_for(&self, token: u64) -> Vec<u32> {
        let (disk, number) = disk::of_token(token);
        let waiters = self.disks[disk].block.io(number).waiters.iter().copied();
        let last = |&thread: &u32| thread != JOURNAL && self.threads[thread as usize].pending <= 1;
        waiters.filter(last).collect()
    }

    fn timer(&self) -> Option<Instant> {
        self.kernel_timer()
    }

    fn timer_due(&mut self, now: Instant) {
        self.work_of_kernel(now);
    }

    fn take(&mut self, woken: &mut Vec<u32>, issues: &mut Vec<Issue>) {
        woken.extend(self.ready.drain(..));
        self.issue(issues);
    }

    fn latency(&self) -> Nanos {
        self.params.latency
    }

    fn finished(&self) -> bool {
        Source::finished(self)
    }

    fn apps(&self) -> Vec<AppReport> {
        Source::apps(self)
    }

    fn lacks(&self, disk: usize) -> Vec<Extent> {
        Source::lacks(self, disk)
    }
}

// A guest that has been up for long: its page cache is full of its applications' files.
//
// Under a load that reads its files evenly, the page cache holds a random part of them once it
// is full. So a random part is put there before anything runs, and a run need not wait for
// hours of simulated time until it is. What a load prefers comes to stay by its own reads.

/// Pages that are cached together: 256 KiB, twice the usual read-ahead.
const CHUNK_PAGES: u32 = 64;
/// Share of the page cache that stays free, one page of this number: dirty pages need some at once.
const FREE_PART: u32 = 16;

impl GuestVm {
    /// Fills the page cache with pages of the files that are read through it, in an order that
    /// follows from `seed`. Files that an application brought along stay outside.
    pub(super) fn warm(&mut self, seed: u64) {
        let inodes = self.disks.len() as u32;
        let chunks = |(number, pages): (u32, u32)| {
            (0..pages.div_ceil(CHUNK_PAGES)).map(move |chunk| (number, chunk * CHUNK_PAGES))
        };
        let size = |n: u32| (n, self.files[n as usize].size_pages);
        let direct = self.direct();
        let cached = (inodes..self.files.len() as u32).filter(|&n| !direct[n as usize]);
        let mut order: Vec<(u32, u32)> = cached.map(size).flat_map(chunks).collect();
        Rng::new(seed).shuffle(&mut order);
        let most = self.cache.limit() - self.cache.limit() / FREE_PART;
        for (file, start) in order {
            let end = self.files[file as usize].size_pages.min(start + CHUNK_PAGES);
            for page in start..end {
                if self.cache.used() >= most {
                    return;
                }
                let Some(at) = self.allocate(file, page) else { return };
                *self.cache.flags_mut(at) |= UPTODATE;
                self.cache.unpin(at);
            }
        }
    }

    /// Extents that the page cache of a prefilled guest lacks of the files on `disk` that are read
    /// through it, in random order.
    pub(super) fn lacks_on(&self, disk: usize) -> Vec<Extent> {
        let inodes = self.disks.len() as u32;
        let direct = self.direct();
        let files = (inodes..self.files.len() as u32).filter(|&n| {
            self.params.warm && self.files[n as usize].disk == disk && !direct[n as usize]
        });
        let mut lacks: Vec<Extent> = files.flat_map(|n| self.files[n as usize].lacks()).collect();
        Rng::new(lacks.len() as u64).shuffle(&mut lacks);
        lacks
    }

    /// By file: is it read past the page cache, by every handle that was opened on it?
    fn direct(&self) -> Vec<bool> {
        let mut direct = vec![false; self.files.len()];
        // What one handle reads through the cache is in it.
        for is_direct in [true, false] {
            for handle in self.handles.iter().filter(|h| h.direct == is_direct) {
                direct.get_mut(handle.file as usize).into_iter().for_each(|d| *d = is_direct);
            }
        }
        direct
    }
}

// Removing a file (`truncate_inode_pages`, `ext3_truncate`).

impl GuestVm {
    /// Remove `file` for `thread`; false when that has to wait for pages under
    /// way, and will be woken to try again.
    pub(super) fn delete(&mut self, now: Instant, thread: u32, file: u32) -> bool {
        let pending = self.wait_for_pages(file, thread);
        if pending > 0 {
            self.threads[thread as usize].pending = pending;
            return false;
        }
        self.drop_pages(file);
        self.free_blocks(now, file);
        self.wake_throttled();
        self.wake_memory_waiters();
        true
    }

    /// Make `thread` wait for the requests that carry pages of `file`: how many.
    fn wait_for_pages(&mut self, file: u32, thread: u32) -> u32 {
        let f = &self.files[file as usize];
        let mut numbers = f.cleaning.clone();
        for at in f.frames.iter().filter(|at| **at != NONE) {
            let frame = self.cache.frame(*at);
            if frame.flags & UPTODATE == 0 && numbers.last() != Some(&frame.io) {
                numbers.push(frame.io); // a request's pages are neighbours
            }
        }
        for number in &numbers {
            self.disk_of(file).block.add_waiter(*number, thread);
        }
        numbers.len() as u32
    }

    fn drop_pages(&mut self, file: u32) {
        let f = &mut self.files[file as usize];
        for page in 0..f.frames.len() {
            let at = std::mem::replace(&mut f.frames[page], NONE);
            if at == NONE {
                continue;
            }
            if self.cache.frame(at).flags & DIRTY != 0 {
                *self.cache.flags_mut(at) &= !DIRTY;
                f.clear_dirty(page as u32);
                self.disks[f.disk].flusher.dirty -= 1;
                self.cache.unpin(at);
            }
            let dropped = self.cache.discard(at);
            assert!(dropped, "a page of a removed file is under way");
        }
        f.cursor = 0;
    }

    fn free_blocks(&mut self, now: Instant, file: u32) {
        let mut page = 0;
        while page < self.files[file as usize].size_pages {
            let (sector, contiguous) = self.files[file as usize].locate(page);
            self.change_bitmap(now, file, sector);
            page += contiguous;
        }
        self.change_inode(now, file);
        let f = &mut self.files[file as usize];
        f.size_pages = 0;
        f.read_once = false;
    }
}

// A thread of an application: which system call it is in, and how far.

/// A read or write under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub handle: u32,
    pub offset: u64,
    pub len: u32,
    /// The page that comes next.
    pub page: u32,
}

/// Stage of an fsync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SyncStage {
    /// Write what is dirty and wait.
    Data,
    /// Once more for what was under write-back and dirty at once.
    DataAgain,
    Journal,
    Done,
}

/// Work of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Between two system calls.
    Next,
    Read(Call),
    Write(Call),
    /// O_DIRECT: dirty pages in its range are written, with this number of passes left, then its
    /// own requests; bytes count when these are done.
    DirectBegin(Call, Op, u8),
    Direct(Call, Op),
    DirectDone(Call, Op),
    Fsync(u32, SyncStage),
    /// Remove a file, by its number.
    Delete(u32),
}

/// One thread of an application.
#[derive(Debug)]
pub(super) struct Thread {
    /// The application, and the thread's number in it.
    pub app: u32,
    pub local: u32,
    pub work: Work,
    /// I/Os that it waits for.
    pub pending: u32,
}

impl Thread {
    /// Thread number `local` of application `app`.
    pub fn new(app: u32, local: u32) -> Self {
        Thread { app, local, work: Work::Next, pending: 0 }
    }
}

#[cfg(test)]
mod warm_tests {
    use crate::generators::parse_vm;
    use crate::generators::plan::Load;
    use crate::guest::cache::File;
    use crate::guest::vm::GuestVm;

    /// The guest before anything runs.
    fn guest(text: &str) -> Box<GuestVm> {
        let Ok(Load::Guest(guest)) = parse_vm(text).expect("a VM").load(1, 0) else {
            panic!("{text}: no guest")
        };
        guest
    }

    #[test]
    fn a_warm_guest_has_a_random_part_of_its_files() {
        const LOAD: &str = "app=webserver:threads=16,files=50000";
        assert_eq!(guest(&format!("ram=512MiB,{LOAD}")).cache_pages().0, 0);
        let warm = guest(&format!("ram=512MiB,warm=true,{LOAD}"));
        let (used, limit) = warm.cache_pages();
        assert!(used < limit && used > limit / 10 * 9, "{used} of {limit} pages");
        let cached = |file: &File| file.size_pages > 0 && file.is_cached(0);
        let files = |range: std::ops::Range<usize>| {
            let part = &warm.files[range.clone()];
            part.iter().filter(|file| cached(file)).count() as f64 / range.len() as f64
        };
        // 412 MiB of 781: a half everywhere, whatever the order of the files.
        for range in [1..10_000, 20_000..30_000, 40_000..50_000] {
            let part = files(range.clone());
            assert!((0.4..0.6).contains(&part), "{range:?}: {part}");
        }
        let again = guest(&format!("ram=512MiB,warm=true,{LOAD}"));
        let all = |guest: &GuestVm| guest.files.iter().map(cached).collect::<Vec<_>>();
        assert_eq!(all(&warm), all(&again));
    }

    #[test]
    fn what_is_read_past_the_cache_is_not_in_it() {
        let direct = "ram=512MiB,warm=true,app=fio:rw=read,bs=1MiB,size=1GiB,direct=true";
        assert_eq!(guest(direct).cache_pages().0, 0);
    }
}
