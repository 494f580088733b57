//! Kernel's part for each disk of a guest: a block layer, a file system with a journal, and a
//! flusher (Linux's `backing_dev_info`). Page cache, dirty limits, vCPUs and applications are the
//! guest's.

use crate::guest::block::{BlockLayer, Elevator};
use crate::guest::cache::File;
use crate::guest::layout::{Layout, Run, lay_out};
use crate::guest::params::GuestParams;
use crate::guest::{DISKS_MAX, PAGE_SECTORS};
use crate::rng::{Rng, split};
use crate::{SourceError, VmDisk};
use seekway_core::units::{Instant, Nanos};
use std::collections::{BTreeSet, VecDeque};

/// One disk of a guest.
pub(super) struct GuestDisk {
    pub block: BlockLayer,
    pub journal: Journal,
    pub flusher: Flusher,
}

/// A disk with its inode area, and the runs of the files of each application on it.
pub(super) struct Formatted {
    pub disk: GuestDisk,
    pub inodes: File,
    pub files: Vec<Vec<Vec<Run>>>,
}

impl GuestDisk {
    /// Makes disk `number` with a file system for files of `sizes` bytes, by application.
    /// Placement follows from `seed`.
    ///
    /// # Errors
    /// The files do not fit.
    pub fn format(
        spec: &VmDisk,
        number: usize,
        sizes: &[Vec<u64>],
        params: &GuestParams,
        seed: u64,
    ) -> Result<Formatted, SourceError> {
        // The first disk's numbers do not depend on whether there are others.
        let mut rng = Rng::new(split(seed, (number as u64) << 32));
        let layout = lay_out(spec.capacity.get(), sizes, params.pieces, &mut rng);
        let layout = layout.map_err(|missing| {
            let (what, key) = if number == 0 { ("image", "image=") } else { ("disk", "its size") };
            SourceError(format!(
                "VM {}: its applications' files exceed the {what} by {missing} bytes: \
                 raise {key} or make them smaller",
                spec.name
            ))
        })?;
        let phase = Nanos::new(rng.below(params.flush_interval.get()));
        let sectors_max = params.request_pages * PAGE_SECTORS as u32;
        let elevator = Elevator::new(params.elevator, spec.capacity);
        let disk = GuestDisk {
            block: BlockLayer::new(params.nr_requests, params.ring, sectors_max, elevator),
            journal: Journal::new(&layout),
            flusher: Flusher::new(phase),
        };
        Ok(Formatted { disk, inodes: inode_file(&layout, number), files: layout.files })
    }

    /// Is nothing queued or under way, and, with `synced`, nothing left to write?
    pub fn is_finished(&self, synced: bool) -> bool {
        self.block.is_idle() && (!synced || (self.flusher.dirty == 0 && self.journal.is_idle()))
    }
}

fn inode_file(layout: &Layout, disk: usize) -> File {
    let run = Run { page: 0, pages: layout.inode_pages, sector: layout.inode_sector };
    File::new(disk, vec![run], layout.inode_pages, 0)
}

/// A request's number on its disk, and the disk, as the token that the host hands back.
pub(super) fn token(disk: usize, number: u32) -> u64 {
    (disk as u64) << 32 | u64::from(number)
}

/// The inverse of [`token`].
pub(super) fn of_token(token: u64) -> (usize, u32) {
    let disk = (token >> 32) as usize;
    debug_assert!(disk < DISKS_MAX, "a token of another guest");
    (disk, token as u32)
}

// An ext3-like journal (`fs/jbd/commit.c`): one running and one committing transaction, and the
// place of the next block in the log. `writeback` makes its commits.

/// The number under which the journal waits for an I/O.
pub(super) const JOURNAL: u32 = u32::MAX;

/// Stage of a commit: the writes that are under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Data,
    Log,
    FlushBefore,
    CommitBlock,
    FlushAfter,
}

/// Next action of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CommitStep {
    /// Write this number of blocks of the log.
    Log(u32),
    /// Flush the disk's cache, if the guest uses barriers.
    Barrier,
    /// The transaction is on the disk.
    Finish,
}

/// The journal of one guest.
#[derive(Debug)]
pub(super) struct Journal {
    sector: u64,
    pages: u32,
    /// The next block of the log.
    head: u32,
    /// Metadata blocks of the running transaction.
    running: BTreeSet<u32>,
    running_id: u64,
    /// When the running transaction got its first block.
    started: Option<Instant>,
    /// Files whose new blocks the running transaction allocated.
    fresh_files: Vec<u32>,
    state: State,
    /// Metadata blocks of the committing transaction.
    committing: Vec<u32>,
    /// I/Os that the commit waits for.
    pending: u32,
    committed: u64,
    /// The last transaction that somebody waits for.
    wanted: u64,
    /// Transactions, and the threads that wait for them.
    waiters: Vec<(u64, u32)>,
}

impl Journal {
    /// An empty journal where the layout has it.
    pub fn new(layout: &Layout) -> Self {
        Journal {
            sector: layout.journal_sector,
            pages: layout.journal_pages,
            head: 0,
            running: BTreeSet::new(),
            running_id: 1,
            started: None,
            fresh_files: Vec::new(),
            state: State::Idle,
            committing: Vec::new(),
            pending: 0,
            committed: 0,
            wanted: 0,
            waiters: Vec::new(),
        }
    }

    /// No transaction runs or commits.
    pub fn is_idle(&self) -> bool {
        self.state == State::Idle && self.started.is_none()
    }
    /// The number of the running transaction.
    pub fn running_id(&self) -> u64 {
        self.running_id
    }
    /// Is the transaction on the disk?
    pub fn has_committed(&self, transaction: u64) -> bool {
        transaction <= self.committed
    }

    /// A metadata block changes in the running transaction.
    pub fn change(&mut self, now: Instant, block: u32) {
        self.running.insert(block);
        self.started.get_or_insert(now);
    }
    /// The running transaction's commit writes the data of `file` first (ordered mode).
    pub fn add_fresh(&mut self, file: u32) {
        self.fresh_files.push(file);
    }
    /// `thread` waits until `transaction` is on the disk.
    pub fn wait(&mut self, transaction: u64, thread: u32) {
        self.wanted = self.wanted.max(transaction);
        self.waiters.push((transaction, thread));
    }

    /// When the running transaction, if there is one and none commits, is `age` old.
    pub fn due(&self, age: Nanos) -> Option<Instant> {
        self.started.filter(|_| self.state == State::Idle).map(|at| at + age)
    }
    /// Does somebody wait for the running transaction?
    pub fn is_wanted(&self) -> bool {
        self.wanted >= self.running_id
    }

    /// Begin to commit the running transaction: the files whose data go first.
    pub fn begin(&mut self) -> Vec<u32> {
        self.committing = std::mem::take(&mut self.running).into_iter().collect();
        self.running_id += 1;
        self.started = None;
        self.state = State::Data;
        std::mem::take(&mut self.fresh_files)
    }
    /// Makes the commit wait for `ios` further I/Os.
    pub fn add_pending(&mut self, ios: u32) {
        self.pending += ios;
    }
    /// One of them is done.
    pub fn io_done(&mut self) {
        self.pending -= 1;
    }
    /// The commit's next step; `None` while it waits for I/Os, or when there is no commit.
    pub fn next_step(&mut self) -> Option<CommitStep> {
        if self.pending > 0 {
            return None;
        }
        let (next, step) = match self.state {
            State::Idle => return None,
            State::Data => (State::Log, CommitStep::Log(self.committing.len() as u32 + 1)),
            State::Log => (State::FlushBefore, CommitStep::Barrier),
            State::FlushBefore => (State::CommitBlock, CommitStep::Log(1)),
            State::CommitBlock => (State::FlushAfter, CommitStep::Barrier),
            State::FlushAfter => (State::Idle, CommitStep::Finish),
        };
        self.state = next;
        Some(step)
    }
    /// Take the next blocks of the log, at most `most` and as far as its end: the first one's
    /// sector, and how many.
    pub fn take_blocks(&mut self, most: u32) -> (u64, u32) {
        let blocks = most.min(self.pages - self.head);
        let sector = self.sector + u64::from(self.head) * PAGE_SECTORS;
        self.head = (self.head + blocks) % self.pages;
        (sector, blocks)
    }
    /// The commit is over: its metadata blocks.
    pub fn finish(&mut self) -> Vec<u32> {
        self.committed = self.running_id - 1;
        std::mem::take(&mut self.committing)
    }
    /// Append to `ready` the threads whose transactions are on the disk; they wait no more.
    pub fn take_waiters(&mut self, ready: &mut impl Extend<u32>) {
        let committed = self.committed;
        self.waiters.retain(|&(transaction, thread)| {
            let done = transaction <= committed;
            ready.extend(done.then_some(thread));
            !done
        });
    }
}

// The flusher's lists and counters: which files have dirty pages, which of them are being
// written, and when it wakes up (`fs/fs-writeback.c`).

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
