//! Commits of the journal. A commit writes, in ordered mode, the data whose blocks the
//! transaction allocated; then descriptor and metadata blocks in sequence in
//! the log; then, when these are done, the commit block. The metadata blocks
//! become dirty in the inode area and are written in place by the flusher.

use crate::guest::PAGE_SECTORS;
use crate::guest::block::{Io, Purpose};
use crate::guest::cache::{NONE, UPTODATE};
use crate::guest::file::File;
use crate::guest::journal::{CommitStep, JOURNAL};
use crate::guest::pages::Cleaner;
use crate::guest::params::JournalMode;
use crate::guest::vm::GuestVm;
use seekway_core::request::Op;
use seekway_core::units::Instant;

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
