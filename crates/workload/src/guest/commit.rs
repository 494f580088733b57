//! Commits of the journal. A commit writes, in ordered mode, the data whose blocks the
//! transaction allocated; then descriptor and metadata blocks in sequence in
//! the log; then, when these are done, the commit block. The metadata blocks
//! become dirty in the inode area and are written in place by the flusher.

use crate::guest::PAGE_SECTORS;
use crate::guest::block::{Io, Purpose};
use crate::guest::cache::{NONE, UPTODATE};
use crate::guest::journal::{CommitStep, JOURNAL};
use crate::guest::pages::Cleaner;
use crate::guest::params::JournalMode;
use crate::guest::vm::{GuestVm, INODES};
use seekway_policy::request::Op;
use seekway_policy::units::Instant;

/// Sectors of a block group of ext2 to ext4 (128 MiB), each with a bitmap block.
const GROUP_SECTORS: u64 = 262_144;

impl GuestVm {
    /// The inode of `file` changes.
    pub(super) fn change_inode(&mut self, now: Instant, file: u32) {
        let block = self.files[file as usize].inode_block;
        self.change_metadata(now, block);
        if self.params.journal != JournalMode::None {
            self.files[file as usize].transaction = self.journal.running_id();
        }
    }

    /// A block at `sector` is allocated for `file`.
    pub(super) fn change_bitmap(&mut self, now: Instant, file: u32, sector: u64) {
        let half = self.files[INODES as usize].size_pages / 2;
        self.change_metadata(now, half + (sector / GROUP_SECTORS) as u32 % half);
        if self.params.journal == JournalMode::Ordered && !self.files[file as usize].fresh {
            self.files[file as usize].fresh = true;
            self.journal.add_fresh(file);
        }
    }

    fn change_metadata(&mut self, now: Instant, block: u32) {
        if self.params.journal == JournalMode::None {
            self.dirty_metadata(now, block);
        } else {
            self.journal.change(now, block);
        }
    }

    /// When the running transaction is to be committed for its age.
    pub(super) fn commit_due(&self) -> Option<Instant> {
        self.journal.due(self.params.commit)
    }

    /// Start a commit if one is due, wanted, or the last thing to do.
    pub(super) fn maybe_commit(&mut self, now: Instant) {
        let Some(due) = self.commit_due() else { return };
        let last = self.threads_left == 0 && self.params.sync_at_end;
        if due > now && !self.journal.is_wanted() && !last {
            return;
        }
        for file in self.journal.begin() {
            self.files[file as usize].fresh = false;
            let (requests, _) = self.sync_file(file, Cleaner::Commit, JOURNAL);
            self.journal.add_pending(requests);
        }
        self.advance_commit(now);
    }

    /// An I/O that the journal waits for is done.
    pub(super) fn journal_io_done(&mut self, now: Instant) {
        self.journal.io_done();
        self.advance_commit(now);
    }

    /// Go to the commit's next step while there is nothing to wait for.
    fn advance_commit(&mut self, now: Instant) {
        while let Some(step) = self.journal.next_step() {
            match step {
                CommitStep::Log(blocks) => self.write_log(blocks),
                CommitStep::Barrier => self.barrier(),
                CommitStep::Finish => self.finish_commit(now),
            }
        }
    }

    fn finish_commit(&mut self, now: Instant) {
        for block in self.journal.finish() {
            self.dirty_metadata(now, block);
        }
        self.journal.take_waiters(&mut self.ready);
    }

    /// Write the next `blocks` blocks of the log.
    fn write_log(&mut self, mut blocks: u32) {
        while blocks > 0 {
            let (sector, n) = self.journal.take_blocks(blocks.min(self.params.request_pages));
            self.submit_for_journal(Op::Write, sector, n * PAGE_SECTORS as u32);
            blocks -= n;
        }
    }

    fn barrier(&mut self) {
        if self.params.barrier {
            self.submit_for_journal(Op::Flush, 0, 1);
        }
    }

    fn submit_for_journal(&mut self, op: Op, sector: u64, sectors: u32) {
        self.journal.add_pending(1);
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
