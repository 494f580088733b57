//! Choice of the pages that the flusher writes, and the limits of dirty pages (`fs/fs-writeback.c`,
//! `mm/page-writeback.c`).

use crate::guest::flusher::Reason;
use crate::guest::pages::Cleaner;
use crate::guest::vm::GuestVm;
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
