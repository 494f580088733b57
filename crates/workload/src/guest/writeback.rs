//! The flusher and its limits (`fs/fs-writeback.c`, `mm/page-writeback.c`).

use crate::guest::pages::Cleaner;
use crate::guest::vm::GuestVm;
use seekway_policy::units::{Instant, Nanos};
use std::collections::VecDeque;

/// Pages that the flusher writes of one file before it turns to the next: 4 MiB
/// (`MAX_WRITEBACK_PAGES`).
const TURN_PAGES: u32 = 1024;

/// Why the flusher works on its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    /// More dirty pages than the background limit.
    Background,
    /// These files have been dirty for too long.
    Expired,
    /// Everything must go.
    Sync,
}

/// State of write-back.
#[derive(Debug)]
pub(super) struct Flusher {
    /// Dirty pages in the guest.
    pub dirty: u32,
    /// Pages under write-back.
    pub under_way: u32,
    /// The flusher's own requests, queued or in flight.
    pub outstanding: u32,
    /// Dirty files, the one that was dirtied first in front (`b_dirty`).
    files: VecDeque<u32>,
    /// Files being written (`b_io`).
    work: VecDeque<u32>,
    reason: Reason,
    turn_left: u32,
    phase: Nanos,
    due: Option<Instant>,
}

impl Flusher {
    /// With its period shifted by `phase`, so that VMs do not beat in step.
    pub fn new(phase: Nanos) -> Self {
        Flusher {
            dirty: 0,
            under_way: 0,
            outstanding: 0,
            files: VecDeque::new(),
            work: VecDeque::new(),
            reason: Reason::Background,
            turn_left: TURN_PAGES,
            phase,
            due: None,
        }
    }
}

impl GuestVm {
    /// Put a file that has become dirty on the list.
    pub(super) fn list_dirty(&mut self, now: Instant, file: u32) {
        let f = &mut self.files[file as usize];
        if !f.listed {
            f.listed = true;
            self.flusher.files.push_back(file);
        }
        if self.flusher.due.is_none() {
            self.flusher.due = Some(self.next_tick(now));
        }
    }

    /// The flusher's next periodic wake-up after `now`.
    fn next_tick(&self, now: Instant) -> Instant {
        let (period, phase) = (self.params.flush_interval.get(), self.flusher.phase.get());
        let beats = (now.as_nanos() + period - phase) / period;
        Instant::from_nanos(beats * period + phase)
    }

    /// When the flusher wants to be woken.
    pub(super) fn flush_due(&self) -> Option<Instant> {
        self.flusher.due
    }

    /// Are there more dirty pages than writers may make? They wait if so.
    pub(super) fn over_dirty_limit(&self) -> bool {
        self.flusher.dirty + self.flusher.under_way > self.params.dirty_pages
    }

    /// Let writers go on that the dirty limit held back, once there is room.
    pub(super) fn wake_throttled(&mut self) {
        let resume = self.params.dirty_pages - self.params.dirty_pages / 32;
        if self.flusher.dirty + self.flusher.under_way <= resume {
            self.ready.extend(self.throttled.drain(..));
        }
    }

    fn over_background(&self) -> bool {
        // Memory that waits for clean pages is as good a reason as the limit.
        self.flusher.dirty > self.params.background_pages || !self.memory_waiters.is_empty()
    }

    /// Choose work if there is none, and do as much as the queue takes.
    pub(super) fn flush(&mut self, now: Instant) {
        if self.flusher.due.is_some_and(|at| at <= now) {
            self.tick(now);
        }
        // What is dirty may all be under write-back already: look once, then wait.
        let mut progress = true;
        while self.flusher.outstanding < self.params.nr_requests {
            if self.flusher.work.is_empty()
                && (!std::mem::take(&mut progress) || !self.choose_work())
            {
                return;
            }
            if self.flusher.reason == Reason::Background && !self.over_background() {
                while let Some(file) = self.flusher.work.pop_back() {
                    self.flusher.files.push_front(file);
                }
                return;
            }
            progress |= self.flush_front();
        }
    }

    /// The periodic wake-up: files that have been dirty for too long become work.
    fn tick(&mut self, now: Instant) {
        let (files, expire) = (&self.files, self.params.expire);
        let expired = |file: &u32| {
            let at = files[*file as usize].dirtied_at;
            at.is_some_and(|at| now.since(at) >= expire)
        };
        let flusher = &mut self.flusher;
        let listed = std::mem::take(&mut flusher.files);
        let (old, young): (VecDeque<u32>, VecDeque<u32>) = listed.into_iter().partition(expired);
        if !old.is_empty() && flusher.reason == Reason::Background {
            // What was left of background work goes back: only the old must go.
            let rest = std::mem::take(&mut flusher.work);
            flusher.files.extend(rest);
            flusher.reason = Reason::Expired;
        }
        flusher.files.extend(young);
        flusher.work.extend(old);
        let any = !(flusher.files.is_empty() && flusher.work.is_empty());
        self.flusher.due = any.then(|| self.next_tick(now));
    }

    fn choose_work(&mut self) -> bool {
        let reason = if self.threads_left == 0 && self.params.sync_at_end {
            Reason::Sync
        } else {
            Reason::Background
        };
        if self.flusher.files.is_empty() || (reason != Reason::Sync && !self.over_background()) {
            return false;
        }
        self.flusher.reason = reason;
        self.flusher.turn_left = TURN_PAGES;
        self.flusher.work = std::mem::take(&mut self.flusher.files);
        true
    }

    /// One request from the file in front; false when it had none to write.
    fn flush_front(&mut self) -> bool {
        let Some(file) = self.flusher.work.front().copied() else { return false };
        let cursor = self.files[file as usize].cursor;
        match self.clean_run(file, cursor, u32::MAX, Cleaner::Flusher) {
            Some((_, next)) => {
                self.files[file as usize].cursor = next;
                self.flusher.turn_left =
                    self.flusher.turn_left.saturating_sub(self.params.request_pages);
                if self.flusher.turn_left == 0 {
                    self.flusher.turn_left = TURN_PAGES;
                    self.flusher.work.rotate_left(1);
                }
                true
            }
            None if cursor > 0 => {
                self.files[file as usize].cursor = 0;
                false
            }
            None => {
                // Clean, or what is dirty is under write-back already.
                self.flusher.turn_left = TURN_PAGES;
                self.flusher.work.pop_front();
                if self.files[file as usize].dirty_pages() > 0 {
                    self.flusher.files.push_back(file);
                } else {
                    self.files[file as usize].listed = false;
                }
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
            self.block.add_waiter(*number, waiter);
        }
        (f.cleaning.len() as u32, f.dirty_pages() > 0)
    }

    /// The same for some pages of it (`filemap_write_and_wait_range`): the
    /// requests that `waiter` has to wait for.
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
        for number in &self.files[file as usize].cleaning {
            let io = self.block.io(*number);
            if io.page < pages.end && pages.start < io.page + io.pages {
                self.block.add_waiter(*number, waiter);
                requests += 1;
            }
        }
        requests
    }
}
