//! Pages between frames and disk, commits of the journal, choice of the pages that the flusher
//! writes, and the limits of dirty pages (`fs/fs-writeback.c`,
//! `mm/page-writeback.c`).

use crate::guest::PAGE_SECTORS;
use crate::guest::block::{Io, Purpose, Waiters};
use crate::guest::cache::{DIRTY, File, MARKER, NONE, UPTODATE, WRITEBACK};
use crate::guest::disk::{CommitStep, JOURNAL, Reason};
use crate::guest::params::JournalMode;
use crate::guest::vm::GuestVm;
use seekway_core::readahead::Window;
use seekway_core::request::Op;
use seekway_core::units::Instant;

impl GuestVm {
    /// Are there more dirty pages than writers may make? They wait if so.
    pub(super) fn over_dirty_limit(&self) -> bool {
        self.unwritten_pages() > self.params.dirty_pages
    }

    fn over_background(&self) -> bool {
        // Memory that waits for clean pages is as good a reason as the limit.
        self.dirty_pages() > self.params.background_pages || !self.memory_waiters.is_empty()
    }

    /// On each disk, choose work if there is none, and do as much as the queue takes.
    pub(super) fn flush(&mut self, now: Instant) {
        (0..self.disks.len()).for_each(|disk| self.flush_disk(now, disk));
    }

    fn flush_disk(&mut self, now: Instant, disk: usize) {
        if self.disks[disk].flusher.due().is_some_and(|at| at <= now) {
            self.tick(now, disk);
        }
        // What is dirty may all be under write-back already: look once, then wait.
        let mut progress = true;
        while self.disks[disk].flusher.outstanding < self.params.nr_requests {
            let has_work = self.disks[disk].flusher.has_work();
            if !has_work && (!std::mem::take(&mut progress) || !self.choose_work(disk)) {
                return;
            }
            let is_background = self.disks[disk].flusher.reason() == Reason::Background;
            if is_background && !self.over_background() {
                return self.disks[disk].flusher.end();
            }
            progress |= self.flush_front(disk);
        }
    }

    /// The periodic wake-up: files that have been dirty for too long become work.
    fn tick(&mut self, now: Instant, disk: usize) {
        let (files, expire) = (&self.files, self.params.expire);
        let expired = |file: &u32| {
            let at = files[*file as usize].dirtied_at;
            at.is_some_and(|at| now.since(at) >= expire)
        };
        self.disks[disk].flusher.tick(now, self.params.flush_interval, expired);
    }

    fn choose_work(&mut self, disk: usize) -> bool {
        let reason = if self.threads_left == 0 && self.params.sync_at_end {
            Reason::Sync
        } else {
            Reason::Background
        };
        let has_listed = self.disks[disk].flusher.has_listed();
        if !has_listed || (reason != Reason::Sync && !self.over_background()) {
            return false;
        }
        self.disks[disk].flusher.begin(reason);
        true
    }

    /// One request from the file in front; false when it had none to write.
    fn flush_front(&mut self, disk: usize) -> bool {
        let Some(file) = self.disks[disk].flusher.front() else { return false };
        let cursor = self.files[file as usize].cursor;
        match self.clean_run(file, cursor, u32::MAX, Cleaner::Flusher) {
            Some((_, next)) => {
                self.files[file as usize].cursor = next;
                self.disks[disk].flusher.spend(self.params.request_pages);
                true
            }
            None if cursor > 0 => {
                self.files[file as usize].cursor = 0;
                false
            }
            None => {
                // Clean, or what is dirty is under write-back already.
                let f = &mut self.files[file as usize];
                f.listed = f.dirty_pages() > 0;
                self.disks[disk].flusher.front_done(f.listed);
                false
            }
        }
    }

    /// Write all dirty pages of `file` and count for `waiter` the requests to
    /// wait for, including those under way. True in the second place when some
    /// page is both under write-back and dirty again, so that one more pass is
    /// needed.
    pub(super) fn sync_file(&mut self, file: u32, cleaner: Cleaner, waiter: u32) -> (u32, bool) {
        let mut from = 0;
        while let Some((_, next)) = self.clean_run(file, from, u32::MAX, cleaner) {
            from = next;
        }
        let f = &self.files[file as usize];
        for number in &f.cleaning {
            self.disks[f.disk].block.add_waiter(*number, waiter);
        }
        (f.cleaning.len() as u32, f.dirty_pages() > 0)
    }

    /// As `sync_file`, for some of its pages (`filemap_write_and_wait_range`): returns the number
    /// of requests that `waiter` has to wait for.
    pub(super) fn sync_pages(
        &mut self,
        file: u32,
        pages: std::ops::Range<u32>,
        cleaner: Cleaner,
        waiter: u32,
    ) -> u32 {
        let mut from = pages.start;
        while let Some((_, next)) = self.clean_run(file, from, pages.end, cleaner) {
            from = next;
        }
        let mut requests = 0;
        let f = &self.files[file as usize];
        let block = &mut self.disks[f.disk].block;
        for number in &f.cleaning {
            let io = block.io(*number);
            if io.page < pages.end && pages.start < io.page + io.pages {
                block.add_waiter(*number, waiter);
                requests += 1;
            }
        }
        requests
    }
}

// Pages on their way between frames and disk: filling, cleaning, and what
// happens when either is done (`mm/filemap.c`, `mm/readahead.c`, `fs/mpage.c`).

/// On whose behalf pages are cleaned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cleaner {
    /// The flusher: nobody waits.
    Flusher,
    /// An fsync by way of a handle.
    Fsync(u32),
    /// A commit in ordered mode.
    Commit,
}

impl GuestVm {
    /// A frame for `page` of `file`, off the lists, contents invalid. `None`
    /// when there is none to be had now.
    pub(super) fn allocate(&mut self, file: u32, page: u32) -> Option<u32> {
        let (at, evicted) = self.cache.allocate(file, page, NONE)?;
        if let Some((file, page)) = evicted.filter(|(file, _)| *file != NONE) {
            self.files[file as usize].frames[page as usize] = NONE;
        }
        self.files[file as usize].frames[page as usize] = at;
        Some(at)
    }

    /// Read what is missing of `window` by way of `handle`. Stops early when
    /// memory is short.
    pub(super) fn fill(&mut self, handle: u32, window: Window) {
        let (file, tag) = {
            let h = &self.handles[handle as usize];
            (h.file, h.tag)
        };
        let size = u64::from(self.files[file as usize].size_pages);
        let end = (window.start + window.pages).min(size) as u32;
        let mut page = window.start.min(size) as u32;
        while page < end {
            if self.files[file as usize].is_cached(page) {
                page += 1;
                continue;
            }
            let (sector, contiguous) = self.files[file as usize].locate(page);
            let most = contiguous.min(self.params.request_pages).min(end - page);
            let n = self.allocate_run(file, page, most, window.marked);
            if n == 0 {
                return;
            }
            let io = Io {
                purpose: Purpose::Fill,
                op: Op::Read,
                sync: true,
                tag,
                sector,
                sectors: n * PAGE_SECTORS as u32,
                file,
                page,
                pages: n,
                waiters: Waiters::new(),
            };
            let (number, _) = self.disk_of(file).block.submit(io);
            for p in page..page + n {
                let at = self.files[file as usize].frames[p as usize];
                self.cache.set_io(at, number);
            }
            page += n;
        }
    }

    /// Frames for the pages from `page` on that are missing, at most `most`.
    fn allocate_run(&mut self, file: u32, page: u32, most: u32, marked: Option<u64>) -> u32 {
        let mut n = 0;
        while n < most && !self.files[file as usize].is_cached(page + n) {
            let Some(at) = self.allocate(file, page + n) else { break };
            if marked == Some(u64::from(page + n)) {
                *self.cache.flags_mut(at) |= MARKER;
            }
            n += 1;
        }
        n
    }

    /// The pages have arrived.
    pub(super) fn filled(&mut self, file: u32, page: u32, pages: u32) {
        for p in page..page + pages {
            let at = self.files[file as usize].frames[p as usize];
            *self.cache.flags_mut(at) |= UPTODATE;
            self.cache.unpin(at);
        }
        self.wake_memory_waiters();
    }

    /// `page`, whose frame is `at` and valid, was written to.
    pub(super) fn dirty_page(&mut self, now: Instant, file: u32, page: u32, at: u32) {
        let flags = self.cache.flags_mut(at);
        if *flags & DIRTY != 0 {
            return;
        }
        *flags |= DIRTY;
        self.cache.pin(at);
        self.files[file as usize].set_dirty(now, page);
        let f = &mut self.files[file as usize];
        let flusher = &mut self.disks[f.disk].flusher;
        flusher.dirty += 1;
        if !std::mem::replace(&mut f.listed, true) {
            flusher.list(file);
        }
        flusher.schedule(now, self.params.flush_interval);
    }

    /// Write the first run of dirty pages of `file` in `from..to` that is
    /// not under write-back: its request, and the page after it.
    pub(super) fn clean_run(
        &mut self,
        file: u32,
        mut from: u32,
        to: u32,
        cleaner: Cleaner,
    ) -> Option<(u32, u32)> {
        let f = &self.files[file as usize];
        let page = loop {
            let page = f.next_dirty(from).filter(|page| *page < to)?;
            if self.cache.frame(f.frames[page as usize]).flags & WRITEBACK == 0 {
                break page;
            }
            from = page + 1;
        };
        let (sector, contiguous) = f.locate(page);
        let end = (page + contiguous.min(self.params.request_pages)).min(to);
        let mut next = page;
        while next < end && self.start_writeback(file, next) {
            next += 1;
        }
        let pages = next - page;
        let background = cleaner == Cleaner::Flusher;
        let tag = match cleaner {
            Cleaner::Fsync(handle) => self.handles[handle as usize].tag,
            Cleaner::Flusher | Cleaner::Commit => None,
        };
        let io = Io {
            purpose: Purpose::Clean { background },
            op: Op::Write,
            sync: !background,
            tag,
            sector,
            sectors: pages * PAGE_SECTORS as u32,
            file,
            page,
            pages,
            waiters: Waiters::new(),
        };
        let disk = self.disk_of(file);
        let (number, merged) = disk.block.submit(io);
        if !merged {
            disk.flusher.outstanding += u32::from(background);
            self.files[file as usize].cleaning.push(number);
        }
        Some((number, next))
    }

    /// Move a page from dirty to under write-back; false when it is not dirty
    /// or is under write-back already.
    fn start_writeback(&mut self, file: u32, page: u32) -> bool {
        let at = self.files[file as usize].frames[page as usize];
        if at == NONE {
            return false;
        }
        let flags = self.cache.flags_mut(at);
        if *flags & (DIRTY | WRITEBACK) != DIRTY {
            return false;
        }
        *flags = (*flags & !DIRTY) | WRITEBACK;
        self.files[file as usize].clear_dirty(page);
        let flusher = &mut self.disk_of(file).flusher;
        flusher.dirty -= 1;
        flusher.under_way += 1;
        true
    }

    /// Write-back request `number` of `disk` is done.
    pub(super) fn cleaned(&mut self, disk: usize, number: u32, background: bool) {
        let io = self.disks[disk].block.io(number);
        let (file, page, pages) = (io.file, io.page, io.pages);
        let f = &mut self.files[file as usize];
        f.cleaning.retain(|n| *n != number);
        for p in page..page + pages {
            let at = f.frames[p as usize];
            *self.cache.flags_mut(at) &= !WRITEBACK;
            self.cache.unpin(at);
        }
        let flusher = &mut self.disks[disk].flusher;
        flusher.under_way -= pages;
        flusher.outstanding -= u32::from(background);
        self.wake_memory_waiters();
        self.wake_throttled();
    }

    /// Drop the clean pages of `pages` from the cache (`invalidate_inode_pages2_range`).
    pub(super) fn invalidate(&mut self, file: u32, pages: std::ops::Range<u32>) {
        for page in pages {
            let Some(at) = self.files[file as usize].frames.get_mut(page as usize) else { return };
            if *at != NONE && self.cache.discard(*at) {
                *at = NONE;
            }
        }
    }

    /// Let writers go on that the dirty limit held back, once there is room.
    pub(super) fn wake_throttled(&mut self) {
        let resume = self.params.dirty_pages - self.params.dirty_pages / 32;
        if self.unwritten_pages() <= resume {
            self.ready.extend(self.throttled.drain(..));
        }
    }

    /// Frames have become reclaimable.
    pub(super) fn wake_memory_waiters(&mut self) {
        self.ready.extend(self.memory_waiters.drain(..));
    }
}

// Commits of the journal. A commit writes, in ordered mode, the data whose blocks the
// transaction allocated; then descriptor and metadata blocks in sequence in
// the log; then, when these are done, the commit block. The metadata blocks
// become dirty in the inode area and are written in place by the flusher.

/// Sectors of a block group of ext2 to ext4 (128 MiB), each with a bitmap block.
const GROUP_SECTORS: u64 = 262_144;

impl GuestVm {
    /// The inode of `file` changes.
    pub(super) fn change_inode(&mut self, now: Instant, file: u32) {
        let File { disk, inode_block, .. } = self.files[file as usize];
        self.change_metadata(now, disk, inode_block);
        if self.params.journal != JournalMode::None {
            self.files[file as usize].transaction = self.disks[disk].journal.running_id();
        }
    }

    /// A block at `sector` is allocated for `file`.
    pub(super) fn change_bitmap(&mut self, now: Instant, file: u32, sector: u64) {
        let disk = self.files[file as usize].disk;
        let half = self.files[disk].size_pages / 2;
        self.change_metadata(now, disk, half + (sector / GROUP_SECTORS) as u32 % half);
        if self.params.journal == JournalMode::Ordered && !self.files[file as usize].fresh {
            self.files[file as usize].fresh = true;
            self.disks[disk].journal.add_fresh(file);
        }
    }

    fn change_metadata(&mut self, now: Instant, disk: usize, block: u32) {
        if self.params.journal == JournalMode::None {
            self.dirty_metadata(now, disk, block);
        } else {
            self.disks[disk].journal.change(now, block);
        }
    }

    /// Start a commit on each disk where one is due, wanted, or the last thing to do.
    pub(super) fn maybe_commit(&mut self, now: Instant) {
        for disk in 0..self.disks.len() {
            let journal = &self.disks[disk].journal;
            let Some(due) = journal.due(self.params.commit) else { continue };
            let last = self.threads_left == 0 && self.params.sync_at_end;
            if due <= now || journal.is_wanted() || last {
                self.commit(now, disk);
            }
        }
    }

    fn commit(&mut self, now: Instant, disk: usize) {
        for file in self.disks[disk].journal.begin() {
            self.files[file as usize].fresh = false;
            let (requests, _) = self.sync_file(file, Cleaner::Commit, JOURNAL);
            self.disks[disk].journal.add_pending(requests);
        }
        self.advance_commit(now, disk);
    }

    /// An I/O that the journal of `disk` waits for is done.
    pub(super) fn journal_io_done(&mut self, now: Instant, disk: usize) {
        self.disks[disk].journal.io_done();
        self.advance_commit(now, disk);
    }

    /// Go to the commit's next step while there is nothing to wait for.
    fn advance_commit(&mut self, now: Instant, disk: usize) {
        while let Some(step) = self.disks[disk].journal.next_step() {
            match step {
                CommitStep::Log(blocks) => self.write_log(disk, blocks),
                CommitStep::Barrier => self.barrier(disk),
                CommitStep::Finish => self.finish_commit(now, disk),
            }
        }
    }

    fn finish_commit(&mut self, now: Instant, disk: usize) {
        for block in self.disks[disk].journal.finish() {
            self.dirty_metadata(now, disk, block);
        }
        self.disks[disk].journal.take_waiters(&mut self.ready);
    }

    /// Write the next `blocks` blocks of the log.
    fn write_log(&mut self, disk: usize, mut blocks: u32) {
        while blocks > 0 {
            let most = blocks.min(self.params.request_pages);
            let (sector, n) = self.disks[disk].journal.take_blocks(most);
            self.submit_for_journal(disk, Op::Write, sector, n * PAGE_SECTORS as u32);
            blocks -= n;
        }
    }

    fn barrier(&mut self, disk: usize) {
        if self.params.barrier {
            self.submit_for_journal(disk, Op::Flush, 0, 1);
        }
    }

    fn submit_for_journal(&mut self, disk: usize, op: Op, sector: u64, sectors: u32) {
        let disk = &mut self.disks[disk];
        disk.journal.add_pending(1);
        disk.block.submit(Io::without_pages(
            (Purpose::Journal, op, None),
            (sector, sectors),
            JOURNAL,
        ));
    }

    /// A block of the inode area of `disk` is newer in memory than on the disk.
    fn dirty_metadata(&mut self, now: Instant, disk: usize, block: u32) {
        let inodes = disk as u32;
        let at = match self.files[disk].frames[block as usize] {
            NONE => match self.allocate(inodes, block) {
                Some(at) => at,
                // No memory: the log has it; it will be written by a later change.
                None => return,
            },
            at => at,
        };
        *self.cache.flags_mut(at) |= UPTODATE;
        self.dirty_page(now, inodes, block, at);
    }
}
