//! The threads of the applications: one system call after the other, each a
//! small state machine that stops where the kernel would sleep and goes on
//! from there.

use crate::guest::block::{Io, Purpose};
use crate::guest::cache::{MARKER, NONE, UPTODATE};
use crate::guest::vm::{Call, GuestVm, Handle, SyncStage, Thread, Work};
use crate::guest::writeback::Cleaner;
use crate::guest::{PAGE_BYTES, PAGE_SECTORS, app};
use crate::tasks::Need;
use seekway_core::readahead::Window;
use seekway_core::request::Op;
use seekway_core::units::{Instant, Nanos};

/// Can the thread go on at once?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Go,
    Sleep,
}

impl GuestVm {
    /// Run `thread` until it has to wait.
    pub(super) fn run_thread(&mut self, now: Instant, thread: u32) {
        loop {
            let step = match self.threads[thread as usize].work {
                Work::Next => self.next_call(now, thread),
                Work::Read(call) => self.step_read(now, thread, call),
                Work::Write(call) => self.step_write(now, thread, call),
                Work::DirectBegin(call, op, passes) => self.begin_direct(thread, call, op, passes),
                Work::Direct(call, op) => self.step_direct(now, thread, call, op),
                Work::DirectDone(call, op) => self.direct_done(thread, call, op),
                Work::Fsync(handle, stage) => self.step_fsync(thread, handle, stage),
                Work::Delete(file) => self.step_delete(now, thread, file),
            };
            if step == Step::Sleep {
                return;
            }
        }
    }

    fn set(&mut self, thread: u32, work: Work, step: Step) -> Step {
        self.threads[thread as usize].work = work;
        step
    }

    /// Ask the application what the thread does next.
    fn next_call(&mut self, now: Instant, thread: u32) -> Step {
        let Thread { app, local, .. } = self.threads[thread as usize];
        let running = &mut self.apps[app as usize];
        let first = running.first_handle;
        match running.app.next(now, local) {
            app::Op::Read { handle, offset, len } => {
                self.start_call(now, thread, first + handle, offset, len, Op::Read)
            }
            app::Op::Write { handle, offset, len } => {
                self.start_call(now, thread, first + handle, offset, len, Op::Write)
            }
            app::Op::Fsync { handle } => {
                self.compute(now, thread, self.params.cpu_op);
                self.set(thread, Work::Fsync(first + handle, SyncStage::Data), Step::Sleep)
            }
            app::Op::Open { handle, file } => {
                let handle = first + handle;
                self.open(app, handle, file);
                self.compute(now, thread, self.params.cpu_op);
                Step::Sleep
            }
            app::Op::Delete { file } => {
                let file = self.file_number(app, file);
                self.compute(now, thread, self.params.cpu_op);
                self.set(thread, Work::Delete(file), Step::Sleep)
            }
            app::Op::Sleep(span) => {
                self.wake_at(now + span, thread);
                Step::Sleep
            }
            app::Op::Compute(span) => {
                self.compute(now, thread, span);
                Step::Sleep
            }
            app::Op::Park => {
                running.parked.push(thread);
                self.stop_for(Need::Wait { until: None, io: false });
                Step::Sleep
            }
            app::Op::Wake => {
                self.ready.extend(running.parked.drain(..));
                Step::Go
            }
            app::Op::Done => {
                running.threads_left -= 1;
                if running.threads_left == 0 {
                    running.finished = Some(now);
                }
                self.ready.extend(running.parked.drain(..));
                self.threads_left -= 1;
                self.stop_for(Need::Nothing);
                Step::Sleep
            }
        }
    }

    /// Begin a read or write: its CPU time first, then its pages. Bytes past
    /// the room that the file has on the image are cut off.
    fn start_call(
        &mut self,
        now: Instant,
        thread: u32,
        handle: u32,
        offset: u64,
        len: u32,
        op: Op,
    ) -> Step {
        let h = &self.handles[handle as usize];
        let file = &self.files[h.file as usize];
        let pages = if op == Op::Read { file.size_pages } else { file.pages_max() };
        let len = u64::from(len).min((u64::from(pages) * PAGE_BYTES).saturating_sub(offset)) as u32;
        let (page, end) = pages_touched(offset, len);
        let call = Call { handle, offset, len, page };
        let copied = if h.direct { 0 } else { u64::from(end.saturating_sub(page)) };
        let cost = self.params.cpu_op + self.params.cpu_page.scaled(copied, 1);
        let work = match (len, h.direct, op) {
            (0, ..) => Work::Next,
            (_, true, op) => Work::DirectBegin(call, op, 2),
            (_, false, Op::Read) => Work::Read(call),
            (_, false, _) => Work::Write(call),
        };
        // A call that moves nothing takes its time all the same: no application
        // can stop the clock by reading past the end of a file.
        let cost = if len == 0 { cost.max(Nanos::from_micros(1)) } else { cost };
        if cost == Nanos::ZERO {
            return self.set(thread, work, Step::Go);
        }
        self.compute(now, thread, cost);
        self.set(thread, work, Step::Sleep)
    }

    fn count(&mut self, thread: u32, bytes: u32) {
        let app = self.threads[thread as usize].app;
        self.apps[app as usize].bytes += u64::from(bytes);
    }

    /// Page after page of a buffered read (`do_generic_file_read`).
    fn step_read(&mut self, now: Instant, thread: u32, mut call: Call) -> Step {
        let file = self.handles[call.handle as usize].file;
        let end = pages_touched(call.offset, call.len).1;
        while call.page < end {
            let Some(at) = self.read_page(thread, call.handle, call.page, end - call.page) else {
                return self.set(thread, Work::Read(call), Step::Sleep);
            };
            if self.handles[call.handle as usize].read_ahead.previous() != Some(call.page.into()) {
                self.cache.accessed(at);
            }
            call.page += 1;
        }
        self.handles[call.handle as usize].read_ahead.read_until(u64::from(end - 1));
        let first_read = !std::mem::replace(&mut self.files[file as usize].read_once, true);
        if first_read && self.params.atime {
            self.change_inode(now, file);
        }
        self.count(thread, call.len);
        self.set(thread, Work::Next, Step::Go)
    }

    /// The frame of `page`, valid; or `None`, and the thread will be woken to
    /// try again. `wanted` pages from here on belong to the same call.
    fn read_page(&mut self, thread: u32, handle: u32, page: u32, wanted: u32) -> Option<u32> {
        let file = self.handles[handle as usize].file;
        loop {
            let mut at = self.files[file as usize].frames[page as usize];
            if at == NONE {
                self.read_ahead(handle, page, wanted, false);
                at = self.files[file as usize].frames[page as usize];
            }
            if at == NONE {
                self.fill(handle, Window { start: page.into(), pages: 1, marked: None });
                at = self.files[file as usize].frames[page as usize];
            }
            if at == NONE {
                self.memory_waiters.push(thread);
                return None;
            }
            if self.cache.frame(at).flags & MARKER != 0 {
                *self.cache.flags_mut(at) &= !MARKER;
                if !self.disk_of(file).block.reads_congested() {
                    self.read_ahead(handle, page, wanted, true);
                    continue; // in a tiny cache, this page may have gone
                }
            }
            return self.valid_or_wait(thread, file, at);
        }
    }

    /// The frame `at` of `file` if it is valid; else `thread` waits for what reads it.
    fn valid_or_wait(&mut self, thread: u32, file: u32, at: u32) -> Option<u32> {
        let frame = *self.cache.frame(at);
        if frame.flags & UPTODATE != 0 {
            return Some(at);
        }
        self.disk_of(file).block.add_waiter(frame.io, thread);
        self.threads[thread as usize].pending = 1;
        None
    }

    fn read_ahead(&mut self, handle: u32, page: u32, wanted: u32, marker: bool) {
        if self.params.read_ahead_pages == 0 {
            return;
        }
        let h = &mut self.handles[handle as usize];
        let file = &self.files[h.file as usize];
        let max = u64::from(self.params.read_ahead_pages);
        let cached = |page: u64| file.is_cached(page as u32); // a file has fewer than 2^32
        let window = h.read_ahead.demand(max, marker, page.into(), wanted.into(), cached);
        if let Some(window) = window {
            self.fill(handle, window);
        }
    }

    /// Page after page of a buffered write (`generic_perform_write`).
    fn step_write(&mut self, now: Instant, thread: u32, mut call: Call) -> Step {
        let file = self.handles[call.handle as usize].file;
        let end = pages_touched(call.offset, call.len).1;
        while call.page < end {
            let Some(at) = self.page_for_write(thread, file, &call) else {
                return self.set(thread, Work::Write(call), Step::Sleep);
            };
            self.dirty_page(now, file, call.page, at);
            self.cache.accessed(at);
            self.extend_file(now, file, call.page);
            call.page += 1;
        }
        self.modified(now, file);
        self.count(thread, call.len);
        let sync = self.handles[call.handle as usize].sync;
        let after = if sync { Work::Fsync(call.handle, SyncStage::Data) } else { Work::Next };
        if self.over_dirty_limit() {
            self.throttled.push(thread);
            return self.set(thread, after, Step::Sleep);
        }
        self.set(thread, after, Step::Go)
    }

    /// The frame to write into, or `None` when the thread has to wait: for
    /// memory, for the page being read, or for the rest of a partial page.
    fn page_for_write(&mut self, thread: u32, file: u32, call: &Call) -> Option<u32> {
        let start = u64::from(call.page) * PAGE_BYTES;
        let covered =
            call.offset <= start && start + PAGE_BYTES <= call.offset + u64::from(call.len);
        let beyond = call.page >= self.files[file as usize].size_pages;
        let mut at = self.files[file as usize].frames[call.page as usize];
        if at == NONE && (covered || beyond) {
            if let Some(at) = self.allocate(file, call.page) {
                *self.cache.flags_mut(at) |= UPTODATE;
                return Some(at);
            }
        } else if at == NONE {
            self.fill(call.handle, Window { start: call.page.into(), pages: 1, marked: None });
            at = self.files[file as usize].frames[call.page as usize];
        }
        if at == NONE {
            self.memory_waiters.push(thread);
            return None;
        }
        self.valid_or_wait(thread, file, at)
    }

    /// `page` has a block from now on.
    fn extend_file(&mut self, now: Instant, file: u32, page: u32) {
        let f = &mut self.files[file as usize];
        if page >= f.size_pages {
            f.size_pages = page + 1;
            let (sector, _) = f.locate(page);
            self.change_bitmap(now, file, sector);
            self.change_inode(now, file);
        }
    }

    /// The file's mtime changes, if its clock has ticked since.
    fn modified(&mut self, now: Instant, file: u32) {
        let tick = now.as_nanos() / self.params.mtime.get() + 1;
        let f = &mut self.files[file as usize];
        f.read_once = false;
        if std::mem::replace(&mut f.mtime_tick, tick) != tick {
            self.change_inode(now, file);
        }
    }

    /// Begins a direct request. Pages that are dirty in the cache go to the disk first; twice, for
    /// a page may be under write-back and dirty again (`generic_file_direct_write`,
    /// `generic_file_read_iter`).
    fn begin_direct(&mut self, thread: u32, call: Call, op: Op, passes: u8) -> Step {
        let file = self.handles[call.handle as usize].file;
        let pages = call.page..pages_touched(call.offset, call.len).1;
        if passes > 0 {
            let cleaner = Cleaner::Fsync(call.handle);
            let requests = self.sync_pages(file, pages.clone(), cleaner, thread);
            if requests > 0 {
                self.threads[thread as usize].pending = requests;
                return self.set(thread, Work::DirectBegin(call, op, passes - 1), Step::Sleep);
            }
        }
        if op == Op::Write {
            self.invalidate(file, pages);
        }
        self.set(thread, Work::Direct(call, op), Step::Go)
    }

    fn direct_done(&mut self, thread: u32, call: Call, op: Op) -> Step {
        self.count(thread, call.len);
        let h = &self.handles[call.handle as usize];
        let (file, sync) = (h.file, h.sync && op == Op::Write);
        if op == Op::Write {
            // Somebody may have read the old contents meanwhile.
            self.invalidate(file, call.page..pages_touched(call.offset, call.len).1);
        }
        let fsync = Work::Fsync(call.handle, SyncStage::Data);
        self.set(thread, if sync { fsync } else { Work::Next }, Step::Go)
    }

    /// All requests of an O_DIRECT call at once (`fs/direct-io.c`).
    fn step_direct(&mut self, now: Instant, thread: u32, call: Call, op: Op) -> Step {
        let h = &self.handles[call.handle as usize];
        let (file, tag) = (h.file, h.tag);
        let mut at = call.offset / 512;
        let end = (call.offset + u64::from(call.len)).div_ceil(512);
        while at < end {
            let page = (at / PAGE_SECTORS) as u32;
            let into = at % PAGE_SECTORS;
            let (sector, contiguous) = self.files[file as usize].locate(page);
            let most = u64::from(contiguous) * PAGE_SECTORS - into;
            let limit = u64::from(self.params.request_pages) * PAGE_SECTORS;
            let sectors = most.min(limit).min(end - at) as u32;
            let part = (sector + into, sectors);
            let io = Io::without_pages((Purpose::Direct, op, tag), part, thread);
            self.disk_of(file).block.submit(io);
            self.threads[thread as usize].pending += 1;
            at += u64::from(sectors);
        }
        if op == Op::Write {
            for page in call.page..pages_touched(call.offset, call.len).1 {
                self.extend_file(now, file, page);
            }
            self.modified(now, file);
        }
        self.set(thread, Work::DirectDone(call, op), Step::Sleep)
    }

    /// fsync: the data, then the transaction that holds the inode, else a barrier.
    fn step_fsync(&mut self, thread: u32, handle: u32, stage: SyncStage) -> Step {
        let file = self.handles[handle as usize].file;
        let next = match stage {
            SyncStage::Data | SyncStage::DataAgain => {
                let (requests, again) = self.sync_file(file, Cleaner::Fsync(handle), thread);
                self.threads[thread as usize].pending = requests;
                let twice = again && stage == SyncStage::Data;
                let next = if twice { SyncStage::DataAgain } else { SyncStage::Journal };
                let step = if requests == 0 { Step::Go } else { Step::Sleep };
                return self.set(thread, Work::Fsync(handle, next), step);
            }
            SyncStage::Journal => {
                let transaction = self.files[file as usize].transaction;
                let journal = &mut self.disk_of(file).journal;
                if !journal.has_committed(transaction) {
                    journal.wait(transaction, thread);
                    Step::Sleep
                } else if self.params.barrier {
                    self.submit_barrier(handle, thread);
                    Step::Sleep
                } else {
                    Step::Go
                }
            }
            SyncStage::Done => return self.set(thread, Work::Next, Step::Go),
        };
        self.set(thread, Work::Fsync(handle, SyncStage::Done), next)
    }

    fn step_delete(&mut self, now: Instant, thread: u32, file: u32) -> Step {
        if self.delete(now, thread, file) {
            return self.set(thread, Work::Next, Step::Go);
        }
        Step::Sleep
    }

    fn submit_barrier(&mut self, handle: u32, thread: u32) {
        self.threads[thread as usize].pending = 1;
        let Handle { file, tag, .. } = self.handles[handle as usize];
        let io = Io::without_pages((Purpose::Barrier, Op::Flush, tag), (0, 1), thread);
        self.disk_of(file).block.submit(io);
    }
}

/// The pages that `len` bytes from `offset` on touch: first, and one past the last.
fn pages_touched(offset: u64, len: u32) -> (u32, u32) {
    let end = (offset + u64::from(len)).div_ceil(PAGE_BYTES);
    ((offset / PAGE_BYTES) as u32, end as u32)
}
