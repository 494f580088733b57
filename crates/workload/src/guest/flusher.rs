//! The flusher's lists and counters: which files have dirty pages, which of them are being
//! written, and when it wakes up (`fs/fs-writeback.c`).

use seekway_core::units::{Instant, Nanos};
use std::collections::VecDeque;

/// Pages that the flusher writes of one file before it turns to the next: 4 MiB
/// (`MAX_WRITEBACK_PAGES`).
const TURN_PAGES: u32 = 1024;

/// Why the flusher works on its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// More dirty pages than the background limit.
    Background,
    /// These files have been dirty for too long.
    Expired,
    /// The last application is done, and all is written back (`sync_at_end`).
    Sync,
}

/// State of write-back on one disk: counters, and lists of files.
#[derive(Debug)]
pub(super) struct Flusher {
    /// Dirty pages in the guest.
    pub dirty: u32,
    /// Pages whose write-back has begun and not ended.
    pub under_way: u32,
    /// The flusher's own requests, queued or in flight.
    pub outstanding: u32,
    /// Dirty files, the one that was dirtied first in front (`b_dirty`).
    files: VecDeque<u32>,
    /// Files being written (`b_io`).
    work: VecDeque<u32>,
    reason: Reason,
    /// Pages left of the front file's turn.
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

    /// Put a file that has become dirty on the list.
    pub fn list(&mut self, file: u32) {
        self.files.push_back(file);
    }
    /// Pages that are dirty or under write-back.
    pub fn unwritten(&self) -> u32 {
        self.dirty + self.under_way
    }

    /// When the flusher wants to be woken.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }
    /// See that it wakes up at its next period, unless it will anyway.
    pub fn schedule(&mut self, now: Instant, period: Nanos) {
        if self.due.is_none() {
            self.due = Some(self.next_tick(now, period));
        }
    }
    /// The flusher's next periodic wake-up after `now`.
    fn next_tick(&self, now: Instant, period: Nanos) -> Instant {
        let (period, phase) = (period.get(), self.phase.get());
        let beats = (now.as_nanos() + period - phase) / period;
        Instant::from_nanos(beats * period + phase)
    }

    /// The periodic wake-up: files that have been dirty for too long become work.
    pub fn tick(&mut self, now: Instant, period: Nanos, is_expired: impl Fn(&u32) -> bool) {
        let listed = std::mem::take(&mut self.files);
        let (old, young): (VecDeque<u32>, VecDeque<u32>) = listed.into_iter().partition(is_expired);
        if !old.is_empty() && self.reason == Reason::Background {
            // What was left of background work goes back: only the old must go.
            let rest = std::mem::take(&mut self.work);
            self.files.extend(rest);
            self.reason = Reason::Expired;
        }
        self.files.extend(young);
        self.work.extend(old);
        let any = !(self.files.is_empty() && self.work.is_empty());
        self.due = any.then(|| self.next_tick(now, period));
    }

    /// Why it works on what it has.
    pub fn reason(&self) -> Reason {
        self.reason
    }
    /// Has it files to write?
    pub fn has_work(&self) -> bool {
        !self.work.is_empty()
    }
    /// Are there dirty files that are not being written?
    pub fn has_listed(&self) -> bool {
        !self.files.is_empty()
    }
    /// All listed files become work.
    pub fn begin(&mut self, reason: Reason) {
        self.reason = reason;
        self.turn_left = TURN_PAGES;
        self.work = std::mem::take(&mut self.files);
    }
    /// Puts the remaining work back to the front of the list.
    pub fn end(&mut self) {
        while let Some(file) = self.work.pop_back() {
            self.files.push_front(file);
        }
    }
    /// The file that is written now.
    pub fn front(&self) -> Option<u32> {
        self.work.front().copied()
    }
    /// A request of the front file takes `pages` of its turn; the next file's comes after it.
    pub fn spend(&mut self, pages: u32) {
        self.turn_left = self.turn_left.saturating_sub(pages);
        if self.turn_left == 0 {
            self.turn_left = TURN_PAGES;
            self.work.rotate_left(1);
        }
    }
    /// The front file has nothing more to write now; it is listed again if it is `dirty`.
    pub fn front_done(&mut self, dirty: bool) {
        self.turn_left = TURN_PAGES;
        let file = self.work.pop_front();
        self.files.extend(file.filter(|_| dirty));
    }
}
