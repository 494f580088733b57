//! The guest's page frames, the pages of a file, and the order in which they are reclaimed: Linux's
//! active and inactive lists (`mm/swap.c`, `mm/vmscan.c`). A page comes in on
//! the inactive list, is promoted when used a second time, and is reclaimed
//! from the inactive list's tail; the active list is kept no longer than the
//! inactive one.
//!
//! Unlike Linux, a page in flight, dirty or under write-back leaves the lists
//! until it is clean and returns to their head, so that reclaim never scans.

use crate::guest::PAGE_SECTORS;
use crate::guest::layout::Run;
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Lba, Sectors};

/// "No frame", "no page", "end of list".
pub const NONE: u32 = u32::MAX;

/// The contents are valid.
pub const UPTODATE: u8 = 1;
/// Newer than the disk.
pub const DIRTY: u8 = 2;
/// On its way to the disk.
pub const WRITEBACK: u8 = 4;
/// Reading this page starts the next read-ahead window (`PG_readahead`).
pub const MARKER: u8 = 8;
const REFERENCED: u8 = 16;
const ACTIVE: u8 = 32;
const LISTED: u8 = 64;

#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub file: u32,
    /// Which page of that file.
    pub page: u32,
    /// Flags, see the constants.
    pub flags: u8,
    /// The I/O that reads it, while not up to date.
    pub io: u32,
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };
const INACTIVE_LIST: usize = 0;
const ACTIVE_LIST: usize = 1;

/// All page frames of a guest, bounded.
#[derive(Debug)]
pub struct Cache {
    frames: Vec<Frame>,
    limit: u32,
    lists: [List; 2],
}

impl Cache {
    /// A cache of at most `limit` pages.
    pub fn new(limit: u32) -> Self {
        Cache { frames: Vec::new(), limit, lists: [EMPTY; 2] }
    }
    /// Pages held; never above the limit.
    pub fn used(&self) -> u32 {
        self.frames.len() as u32
    }
    /// The most pages that it may hold.
    pub fn limit(&self) -> u32 {
        self.limit
    }
    pub fn frame(&self, at: u32) -> &Frame {
        &self.frames[at as usize]
    }
    /// The frame's flags, to be changed.
    pub fn flags_mut(&mut self, at: u32) -> &mut u8 {
        &mut self.frames[at as usize].flags
    }

    /// Note which I/O reads the frame.
    pub fn set_io(&mut self, at: u32, io: u32) {
        self.frames[at as usize].io = io;
    }

    /// A frame for `page` of `file`, not up to date, off the lists, read by
    /// `io`; with the (file, page) that had to go for it ([`NONE`] for a discarded
    /// one). `None` when every
    /// frame is in flight or dirty.
    pub fn allocate(&mut self, file: u32, page: u32, io: u32) -> Option<(u32, Option<(u32, u32)>)> {
        let fresh = Frame { file, page, flags: 0, io, prev: NONE, next: NONE };
        if self.used() < self.limit {
            self.frames.push(fresh);
            return Some((self.frames.len() as u32 - 1, None));
        }
        self.balance();
        let from = if self.lists[INACTIVE_LIST].tail == NONE { ACTIVE_LIST } else { INACTIVE_LIST };
        let at = self.lists[from].tail;
        if at == NONE {
            return None;
        }
        self.unlink(at);
        let old = self.frames[at as usize];
        self.frames[at as usize] = fresh;
        Some((at, Some((old.file, old.page))))
    }

    /// Take the frame off the lists: it may not be reclaimed now.
    pub fn pin(&mut self, at: u32) {
        if self.frames[at as usize].flags & LISTED != 0 {
            self.unlink(at);
        }
    }

    /// Put a frame back on its list's head when nothing keeps it any more.
    pub fn unpin(&mut self, at: u32) {
        let flags = self.frames[at as usize].flags;
        if flags & (DIRTY | WRITEBACK | LISTED) == 0 && flags & UPTODATE != 0 {
            self.link(at);
        }
    }

    /// The page is wanted no more: its frame is the next to go. False, and
    /// nothing is done, for a page in flight, dirty or under write-back.
    pub fn discard(&mut self, at: u32) -> bool {
        if self.frames[at as usize].flags & LISTED == 0 {
            return false;
        }
        self.unlink(at);
        let tail = self.lists[INACTIVE_LIST].tail;
        self.frames[at as usize] =
            Frame { file: NONE, page: NONE, flags: LISTED, io: NONE, prev: tail, next: NONE };
        match tail {
            NONE => self.lists[INACTIVE_LIST].head = at,
            t => self.frames[t as usize].next = at,
        }
        self.lists[INACTIVE_LIST].tail = at;
        self.lists[INACTIVE_LIST].len += 1;
        true
    }

    /// The page was used (`mark_page_accessed`).
    pub fn accessed(&mut self, at: u32) {
        let flags = self.frames[at as usize].flags;
        if flags & ACTIVE != 0 || flags & REFERENCED == 0 {
            self.frames[at as usize].flags |= REFERENCED;
            return;
        }
        let listed = flags & LISTED != 0;
        if listed {
            self.unlink(at);
        }
        self.frames[at as usize].flags = (self.frames[at as usize].flags | ACTIVE) & !REFERENCED;
        if listed {
            self.link(at);
        }
    }

    /// Keep the active list no longer than the inactive one (`shrink_active_list`).
    fn balance(&mut self) {
        for _ in 0..2 {
            if self.lists[ACTIVE_LIST].len <= self.lists[INACTIVE_LIST].len {
                return;
            }
            let at = self.lists[ACTIVE_LIST].tail;
            self.unlink(at);
            self.frames[at as usize].flags &= !(ACTIVE | REFERENCED);
            self.link(at);
        }
    }

    fn list_of(flags: u8) -> usize {
        if flags & ACTIVE != 0 { ACTIVE_LIST } else { INACTIVE_LIST }
    }

    fn link(&mut self, at: u32) {
        let which = Self::list_of(self.frames[at as usize].flags);
        let head = self.lists[which].head;
        let frame = &mut self.frames[at as usize];
        frame.flags |= LISTED;
        frame.prev = NONE;
        frame.next = head;
        if head == NONE {
            self.lists[which].tail = at;
        } else {
            self.frames[head as usize].prev = at;
        }
        self.lists[which].head = at;
        self.lists[which].len += 1;
    }

    fn unlink(&mut self, at: u32) {
        let frame = &mut self.frames[at as usize];
        let which = Self::list_of(frame.flags);
        frame.flags &= !LISTED;
        let (prev, next) = (frame.prev, frame.next);
        match prev {
            NONE => self.lists[which].head = next,
            p => self.frames[p as usize].next = next,
        }
        match next {
            NONE => self.lists[which].tail = prev,
            n => self.frames[n as usize].prev = prev,
        }
        self.lists[which].len -= 1;
    }
}

// A file as the guest's kernel sees it: where its blocks are, which of its
// pages are cached, which are dirty.

/// One file (or the inode area, which is cached like one).
#[derive(Debug)]
pub struct File {
    /// The disk that it is on, by number.
    pub disk: usize,
    runs: Vec<Run>,
    /// Frame of each page, [`NONE`] when absent.
    pub frames: Vec<u32>,
    /// Pages that have blocks; reading beyond is not done.
    pub size_pages: u32,
    /// The block of the inode area that holds its inode.
    pub inode_block: u32,
    /// When the oldest dirty page became so; `None` when clean.
    pub dirtied_at: Option<Instant>,
    /// On the flusher's list?
    pub listed: bool,
    /// Has dirty pages in blocks that the running transaction allocated.
    pub fresh: bool,
    /// Has been read since it was last changed (relatime).
    pub read_once: bool,
    /// The last transaction that changed its inode.
    pub transaction: u64,
    /// The clock tick of its last change of mtime, plus one.
    pub mtime_tick: u64,
    /// Write-back requests under way.
    pub cleaning: Vec<u32>,
    /// Where the flusher goes on.
    pub cursor: u32,
    /// A bit for each page; none until one becomes dirty.
    dirty: Vec<u64>,
    /// A bit for each word of `dirty` that is not 0: a search passes over 4096 clean pages at
    /// a time.
    dirty_words: Vec<u64>,
    dirty_pages: u32,
}

impl File {
    /// A file on `disk` of which `size_pages` exist, in these runs.
    pub fn new(disk: usize, runs: Vec<Run>, size_pages: u32, inode_block: u32) -> Self {
        let pages = runs.last().map_or(0, |r| r.page + r.pages) as usize;
        File {
            disk,
            runs,
            frames: vec![NONE; pages],
            size_pages,
            inode_block,
            dirtied_at: None,
            listed: false,
            fresh: false,
            read_once: false,
            transaction: 0,
            mtime_tick: 0,
            cleaning: Vec::new(),
            cursor: 0,
            dirty: Vec::new(),
            dirty_words: Vec::new(),
            dirty_pages: 0,
        }
    }

    /// The sector of `page`, and how many pages from there on are contiguous on the image.
    pub fn locate(&self, page: u32) -> (u64, u32) {
        let at = self.runs.partition_point(|r| r.page + r.pages <= page);
        let run = self.runs[at];
        let into = page - run.page;
        (run.sector + u64::from(into) * PAGE_SECTORS, run.pages - into)
    }
    /// Where the pages lie that have no frame: at most 256 KiB each.
    pub fn lacks(&self) -> Vec<Extent> {
        const PAGES_MAX: u32 = 64;
        let (mut lacks, mut page) = (Vec::new(), 0);
        while page < self.size_pages {
            if self.is_cached(page) {
                page += 1;
                continue;
            }
            let (sector, contiguous) = self.locate(page);
            let most = contiguous.min(PAGES_MAX).min(self.size_pages - page);
            let pages = (1..most).find(|n| self.is_cached(page + n)).unwrap_or(most);
            let len = Sectors::new(u64::from(pages) * PAGE_SECTORS);
            lacks.extend(Extent::new(Lba::new(sector), len));
            page += pages;
        }
        lacks
    }
    /// Pages that the file may have.
    pub fn pages_max(&self) -> u32 {
        self.frames.len() as u32
    }
    /// Is there a frame for `page`?
    pub fn is_cached(&self, page: u32) -> bool {
        self.frames.get(page as usize).is_some_and(|f| *f != NONE)
    }
    /// Number of dirty pages.
    pub fn dirty_pages(&self) -> u32 {
        self.dirty_pages
    }
    /// Note that `page` is dirty. It was not.
    pub fn set_dirty(&mut self, now: Instant, page: u32) {
        if self.dirty.is_empty() {
            self.dirty.resize(self.frames.len().div_ceil(64), 0);
            self.dirty_words.resize(self.dirty.len().div_ceil(64), 0);
        }
        let word = page as usize / 64;
        self.dirty[word] |= 1 << (page % 64);
        self.dirty_words[word / 64] |= 1 << (word % 64);
        self.dirty_pages += 1;
        self.dirtied_at.get_or_insert(now);
    }
    /// Note that `page` is clean. It was dirty.
    pub fn clear_dirty(&mut self, page: u32) {
        let word = page as usize / 64;
        self.dirty[word] &= !(1 << (page % 64));
        if self.dirty[word] == 0 {
            self.dirty_words[word / 64] &= !(1 << (word % 64));
        }
        self.dirty_pages -= 1;
        if self.dirty_pages == 0 {
            self.dirtied_at = None;
        }
    }
    /// The first dirty page at or after `page`.
    pub fn next_dirty(&self, page: u32) -> Option<u32> {
        let word = page as usize / 64;
        let bits = self.dirty.get(word)? & (u64::MAX << (page % 64));
        if bits != 0 {
            return Some(word as u32 * 64 + bits.trailing_zeros());
        }
        let word = next_bit(&self.dirty_words, word + 1)?;
        Some(word as u32 * 64 + self.dirty[word].trailing_zeros())
    }
}

/// The first bit at or after `from` that is set.
fn next_bit(words: &[u64], from: usize) -> Option<usize> {
    let mut word = from / 64;
    let mut bits = words.get(word)? & (u64::MAX << (from % 64));
    while bits == 0 {
        word += 1;
        bits = *words.get(word)?;
    }
    Some(word * 64 + bits.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(cache: &mut Cache, page: u32) -> Option<(u32, u32)> {
        let (at, evicted) = cache.allocate(1, page, 0).unwrap();
        *cache.flags_mut(at) |= UPTODATE;
        cache.unpin(at);
        evicted
    }

    #[test]
    fn reclaims_the_oldest_unless_used_twice() {
        let mut cache = Cache::new(3);
        assert!((0..3).all(|p| fill(&mut cache, p).is_none()));
        cache.accessed(0);
        cache.accessed(0);
        assert_eq!(fill(&mut cache, 3), Some((1, 1)));
        assert_eq!(fill(&mut cache, 4), Some((1, 2)));
        cache.pin(0);
        *cache.flags_mut(0) |= DIRTY;
        assert_eq!(fill(&mut cache, 5), Some((1, 3)));
        *cache.flags_mut(0) &= !DIRTY;
        cache.unpin(0);
        assert_eq!(cache.used(), 3);
    }

    #[test]
    fn a_discarded_frame_is_the_next_to_go() {
        let mut cache = Cache::new(3);
        assert!((0..3).all(|p| fill(&mut cache, p).is_none()));
        cache.accessed(2);
        cache.accessed(2); // on the active list
        assert!(cache.discard(2));
        cache.pin(1);
        *cache.flags_mut(1) |= DIRTY;
        assert!(!cache.discard(1));
        assert_eq!(fill(&mut cache, 3), Some((NONE, NONE)));
        assert_eq!(fill(&mut cache, 4), Some((1, 0)));
        assert!(cache.discard(0) && cache.discard(2));
        assert_eq!(fill(&mut cache, 5), Some((NONE, NONE)));
        assert_eq!(fill(&mut cache, 6), Some((NONE, NONE)));
    }

    #[test]
    fn nothing_to_reclaim_is_said() {
        let mut cache = Cache::new(1);
        cache.allocate(1, 0, 7).unwrap();
        assert!(cache.allocate(1, 1, 7).is_none());
    }
}

#[cfg(test)]
mod file_tests {
    use super::*;

    #[test]
    fn dirty_pages_are_found_in_order() {
        let runs = vec![
            Run { page: 0, pages: 100, sector: 8000 },
            Run { page: 100, pages: 100, sector: 80 },
        ];
        let mut f = File::new(0, runs, 200, 0);
        for p in [199, 0, 63, 64, 130] {
            f.set_dirty(Instant::ZERO, p);
        }
        let mut seen = Vec::new();
        let mut at = 0;
        while let Some(p) = f.next_dirty(at) {
            seen.push(p);
            at = p + 1;
        }
        assert_eq!(seen, [0, 63, 64, 130, 199]);
        seen.iter().for_each(|p| f.clear_dirty(*p));
        assert_eq!((f.next_dirty(0), f.dirtied_at), (None, None));
        assert_eq!(f.locate(99), (8000 + 99 * 8, 1));
        assert_eq!(f.locate(150), (80 + 50 * 8, 50));
    }

    /// Far apart, and at the ends of what a word of each level has.
    #[test]
    fn dirty_pages_are_found_across_much_that_is_clean() {
        const PAGES: u32 = 1 << 20;
        let runs = vec![Run { page: 0, pages: PAGES, sector: 0 }];
        let mut f = File::new(0, runs, PAGES, 0);
        let dirty = [5, 4_095, 4_096, 8_191, 300_000, PAGES - 1];
        dirty.iter().for_each(|&page| f.set_dirty(Instant::ZERO, page));
        let found = |f: &File| {
            let mut from = 0;
            let next = || {
                let page = f.next_dirty(from)?;
                from = page + 1;
                Some(page)
            };
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        assert_eq!(found(&f), dirty);
        assert_eq!(f.next_dirty(PAGES), None);
        f.clear_dirty(4_096);
        f.clear_dirty(8_191);
        assert_eq!(found(&f), [5, 4_095, 300_000, PAGES - 1]);
        f.set_dirty(Instant::ZERO, 5_000);
        assert_eq!(f.next_dirty(4_096), Some(5_000));
    }
}
