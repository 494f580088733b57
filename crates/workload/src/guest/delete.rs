//! Removing a file (`truncate_inode_pages`, `ext3_truncate`).

use crate::guest::cache::{DIRTY, NONE, UPTODATE};
use crate::guest::vm::GuestVm;
use seekway_core::units::Instant;

impl GuestVm {
    /// Remove `file` for `thread`; false when that has to wait for pages under
    /// way, and will be woken to try again.
    pub(super) fn delete(&mut self, now: Instant, thread: u32, file: u32) -> bool {
        let pending = self.wait_for_pages(file, thread);
        if pending > 0 {
            self.threads[thread as usize].pending = pending;
            return false;
        }
        self.drop_pages(file);
        self.free_blocks(now, file);
        self.wake_throttled();
        self.wake_memory_waiters();
        true
    }

    /// Make `thread` wait for the requests that carry pages of `file`: how many.
    fn wait_for_pages(&mut self, file: u32, thread: u32) -> u32 {
        let f = &self.files[file as usize];
        let mut numbers = f.cleaning.clone();
        for at in f.frames.iter().filter(|at| **at != NONE) {
            let frame = self.cache.frame(*at);
            if frame.flags & UPTODATE == 0 && numbers.last() != Some(&frame.io) {
                numbers.push(frame.io); // a request's pages are neighbours
            }
        }
        for number in &numbers {
            self.disk_of(file).block.add_waiter(*number, thread);
        }
        numbers.len() as u32
    }

    fn drop_pages(&mut self, file: u32) {
        let f = &mut self.files[file as usize];
        for page in 0..f.frames.len() {
            let at = std::mem::replace(&mut f.frames[page], NONE);
            if at == NONE {
                continue;
            }
            if self.cache.frame(at).flags & DIRTY != 0 {
                *self.cache.flags_mut(at) &= !DIRTY;
                f.clear_dirty(page as u32);
                self.disks[f.disk].flusher.dirty -= 1;
                self.cache.unpin(at);
            }
            let dropped = self.cache.discard(at);
            assert!(dropped, "a page of a removed file is under way");
        }
        f.cursor = 0;
    }

    fn free_blocks(&mut self, now: Instant, file: u32) {
        let mut page = 0;
        while page < self.files[file as usize].size_pages {
            let (sector, contiguous) = self.files[file as usize].locate(page);
            self.change_bitmap(now, file, sector);
            page += contiguous;
        }
        self.change_inode(now, file);
        let f = &mut self.files[file as usize];
        f.size_pages = 0;
        f.read_once = false;
    }
}
