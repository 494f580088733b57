//! Pages on their way between frames and disk: filling, cleaning, and what
//! happens when either is done (`mm/filemap.c`, `mm/readahead.c`, `fs/mpage.c`).

use crate::guest::PAGE_SECTORS;
use crate::guest::block::{Io, Purpose};
use crate::guest::cache::{DIRTY, MARKER, NONE, UPTODATE, WRITEBACK};
use crate::guest::vm::GuestVm;
use seekway_core::readahead::Window;
use seekway_core::request::Op;
use seekway_core::units::Instant;

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
                waiters: Vec::new(),
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
            waiters: Vec::new(),
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
