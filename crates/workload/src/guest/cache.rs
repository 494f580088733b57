//! The guest's page frames and the order in which they are reclaimed: Linux's
//! active and inactive lists (`mm/swap.c`, `mm/vmscan.c`). A page comes in on
//! the inactive list, is promoted when used a second time, and is reclaimed
//! from the inactive list's tail; the active list is kept no longer than the
//! inactive one.
//!
//! Unlike Linux, a page in flight, dirty or under write-back leaves the lists
//! until it is clean and returns to their head, so that reclaim never scans.

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
