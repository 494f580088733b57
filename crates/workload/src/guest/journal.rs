//! An ext3-like journal (`fs/jbd/commit.c`): one running and one committing transaction, and the
//! place of the next block in the log. [`super::commit`] writes what it says.

use crate::guest::PAGE_SECTORS;
use crate::guest::layout::Layout;
use seekway_core::units::{Instant, Nanos};
use std::collections::BTreeSet;

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
