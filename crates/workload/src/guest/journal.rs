//! An ext3-like journal (`fs/jbd/commit.c`): one running and one committing
//! transaction. A commit writes, in ordered mode, the data whose blocks the
//! transaction allocated; then descriptor and metadata blocks in sequence in
//! the log; then, when these are done, the commit block. The metadata blocks
//! become dirty in the inode area and are written in place by the flusher.

use crate::guest::PAGE_SECTORS;
use crate::guest::block::{Io, Purpose};
use crate::guest::cache::{NONE, UPTODATE};
use crate::guest::layout::Layout;
use crate::guest::pages::Cleaner;
use crate::guest::params::JournalMode;
use crate::guest::vm::{GuestVm, INODES, JOURNAL};
use seekway_policy::request::Op;
use seekway_policy::units::Instant;
use std::collections::BTreeSet;

/// Sectors of a block group of ext2 to ext4 (128 MiB), each with a bitmap block.
const GROUP_SECTORS: u64 = 262_144;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Data,
    Log,
    FlushBefore,
    CommitBlock,
    FlushAfter,
}

/// The journal of one guest.
#[derive(Debug)]
pub(super) struct Journal {
    sector: u64,
    pages: u32,
    inode_pages: u32,
    head: u32,
    running: BTreeSet<u32>,
    running_id: u64,
    started: Option<Instant>,
    fresh_files: Vec<u32>,
    state: State,
    committing: Vec<u32>,
    pending: u32,
    committed: u64,
    wanted: u64,
    waiters: Vec<(u64, u32)>,
}

impl Journal {
    pub fn new(layout: &Layout) -> Self {
        Journal {
            sector: layout.journal_sector,
            pages: layout.journal_pages,
            inode_pages: layout.inode_pages,
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
    /// Is the transaction on the disk?
    pub fn has_committed(&self, transaction: u64) -> bool {
        transaction <= self.committed
    }
}

impl GuestVm {
    /// The inode of `file` changes.
    pub(super) fn change_inode(&mut self, now: Instant, file: u32) {
        let block = self.files[file as usize].inode_block;
        self.change_metadata(now, block);
        if self.params.journal != JournalMode::None {
            self.files[file as usize].transaction = self.journal.running_id;
        }
    }

    /// A block at `sector` is allocated for `file`.
    pub(super) fn change_bitmap(&mut self, now: Instant, file: u32, sector: u64) {
        let half = self.journal.inode_pages / 2;
        self.change_metadata(now, half + (sector / GROUP_SECTORS) as u32 % half);
        if self.params.journal == JournalMode::Ordered && !self.files[file as usize].fresh {
            self.files[file as usize].fresh = true;
            self.journal.fresh_files.push(file);
        }
    }

    fn change_metadata(&mut self, now: Instant, block: u32) {
        if self.params.journal == JournalMode::None {
            self.dirty_metadata(now, block);
        } else {
            self.journal.running.insert(block);
            self.journal.started.get_or_insert(now);
        }
    }

    /// `thread` waits until `transaction` is on the disk.
    pub(super) fn wait_for_commit(&mut self, transaction: u64, thread: u32) {
        self.journal.wanted = self.journal.wanted.max(transaction);
        self.journal.waiters.push((transaction, thread));
    }

    /// When the running transaction is to be committed for its age.
    pub(super) fn commit_due(&self) -> Option<Instant> {
        let journal = &self.journal;
        journal.started.filter(|_| journal.state == State::Idle).map(|at| at + self.params.commit)
    }

    /// Start a commit if one is due, wanted, or the last thing to do.
    pub(super) fn maybe_commit(&mut self, now: Instant) {
        let Some(due) = self.commit_due() else { return };
        let wanted = self.journal.wanted >= self.journal.running_id;
        let last = self.threads_left == 0 && self.params.sync_at_end;
        if due > now && !wanted && !last {
            return;
        }
        self.journal.committing = std::mem::take(&mut self.journal.running).into_iter().collect();
        self.journal.running_id += 1;
        self.journal.started = None;
        self.journal.state = State::Data;
        for file in std::mem::take(&mut self.journal.fresh_files) {
            self.files[file as usize].fresh = false;
            let (requests, _) = self.sync_file(file, Cleaner::Commit, JOURNAL);
            self.journal.pending += requests;
        }
        self.advance_commit(now);
    }

    /// An I/O that the journal waits for is done.
    pub(super) fn journal_io_done(&mut self, now: Instant) {
        self.journal.pending -= 1;
        self.advance_commit(now);
    }

    /// Go to the commit's next step while there is nothing to wait for.
    fn advance_commit(&mut self, now: Instant) {
        while self.journal.pending == 0 {
            self.journal.state = match self.journal.state {
                State::Idle => return,
                State::Data => {
                    self.write_log(self.journal.committing.len() as u32 + 1);
                    State::Log
                }
                State::Log => {
                    self.barrier();
                    State::FlushBefore
                }
                State::FlushBefore => {
                    self.write_log(1);
                    State::CommitBlock
                }
                State::CommitBlock => {
                    self.barrier();
                    State::FlushAfter
                }
                State::FlushAfter => {
                    self.finish_commit(now);
                    State::Idle
                }
            };
        }
    }

    fn finish_commit(&mut self, now: Instant) {
        self.journal.committed = self.journal.running_id - 1;
        for block in std::mem::take(&mut self.journal.committing) {
            self.dirty_metadata(now, block);
        }
        let (committed, ready) = (self.journal.committed, &mut self.ready);
        self.journal.waiters.retain(|(transaction, thread)| {
            let done = *transaction <= committed;
            if done {
                ready.push_back(*thread);
            }
            !done
        });
    }

    /// Write the next `blocks` blocks of the log.
    fn write_log(&mut self, mut blocks: u32) {
        while blocks > 0 {
            let room = self.journal.pages - self.journal.head;
            let n = blocks.min(room).min(self.params.request_pages);
            let sector = self.journal.sector + u64::from(self.journal.head) * PAGE_SECTORS;
            self.submit_for_journal(Op::Write, sector, n * PAGE_SECTORS as u32);
            self.journal.head = (self.journal.head + n) % self.journal.pages;
            blocks -= n;
        }
    }

    fn barrier(&mut self) {
        if self.params.barrier {
            self.submit_for_journal(Op::Flush, 0, 1);
        }
    }

    fn submit_for_journal(&mut self, op: Op, sector: u64, sectors: u32) {
        self.journal.pending += 1;
        self.block.submit(Io {
            purpose: Purpose::Journal,
            op,
            sync: true,
            tag: None,
            sector,
            sectors,
            file: NONE,
            page: 0,
            pages: 0,
            waiters: vec![JOURNAL],
        });
    }

    /// A block of the inode area is newer in memory than on the disk.
    fn dirty_metadata(&mut self, now: Instant, block: u32) {
        let at = match self.files[INODES as usize].frames[block as usize] {
            NONE => match self.allocate(INODES, block) {
                Some(at) => at,
                // No memory: the log has it; it will be written by a later change.
                None => return,
            },
            at => at,
        };
        *self.cache.flags_mut(at) |= UPTODATE;
        self.dirty_page(now, INODES, block, at);
    }
}
