//! A file as the guest's kernel sees it: where its blocks are, which of its
//! pages are cached, which are dirty.

use crate::guest::PAGE_SECTORS;
use crate::guest::cache::NONE;
use crate::guest::layout::Run;
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Lba, Sectors};

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
