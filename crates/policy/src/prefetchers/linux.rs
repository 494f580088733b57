//! **linux**: reads ahead as a Linux host does when virtual disks are files that it reads through
//! its page cache. Source: Linux 5.10, `mm/readahead.c`: `page_cache_sync_ra` and
//! `page_cache_async_ra` (who asks), and `ondemand_readahead` with `get_init_ra_size`,
//! `get_next_ra_size`, `count_history_pages` and `try_context_readahead` (what is read), which
//! stand in [`seekway_core::readahead`]; `VM_READAHEAD_PAGES` of `include/linux/mm.h` is the
//! default of `max`.
//!
//! The host has each image open once, so there is one `file_ra_state` for each
//! VM's disk, whoever reads inside. A read that misses asks for a window, and
//! so does one that comes to the page marked in a window before it. Streams
//! that read by turns overwrite each other's state; their marked pages and what
//! the kernel finds in its page cache (the pages before a miss) bring them back.
//!
//! Where it differs: a prefetcher does not see the cache. It takes for cached what was read or read
//! ahead recently, 64 stretches of each disk, and remembers the last 64 marked pages.

use super::Entry;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::prefetcher::{Access, Prefetcher, Proposal};
use seekway_core::readahead::ReadAhead;
use seekway_core::request::{Extent, VmId};
use seekway_core::units::{Instant, Lba, SECTOR_BYTES, Sectors};
use std::collections::VecDeque;

/// Sectors of a page.
const PAGE: u64 = 4096 / SECTOR_BYTES;
/// Stretches, marked pages and windows remembered for each disk.
const REMEMBERED: usize = 64;
/// Greatest `max`, in pages: a miss looks at as many pages before it.
const MAX_PAGES: u64 = 4096;

pub(super) const ENTRY: Entry = Entry {
    name: "linux",
    summary: "Linux's on-demand read-ahead, one state for each VM's disk",
    source: "Linux mm/readahead.c, 5.10",
    params: &[ParamSpec {
        key: "max",
        kind: Kind::Size,
        default: "128KiB",
        help: "longest window (read_ahead_kb of the host)",
    }],
    build,
};

fn build(params: &Params) -> Result<Box<dyn Prefetcher>, ParamError> {
    let max = params.size("max").get() / PAGE;
    if !(1..=MAX_PAGES).contains(&max) {
        let given = params.size("max");
        return Err(ParamError::new(format!("max={given} sectors: 4KiB to 16MiB")));
    }
    Ok(Box::new(Linux { max, disks: Vec::new(), turns: VecDeque::new() }))
}

/// Pages from `start` to before `end`.
#[derive(Clone, Copy)]
struct Pages {
    start: u64,
    end: u64,
}

/// The host kernel's state of an image.
#[derive(Default)]
struct Disk {
    capacity: Sectors,
    state: ReadAhead,
    /// Taken for cached; the latest last.
    cached: VecDeque<Pages>,
    /// Pages whose use asks for the next window.
    marked: VecDeque<u64>,
    /// Windows still to be proposed, the oldest first.
    windows: VecDeque<Pages>,
}

struct Linux {
    /// Longest window, in pages.
    max: u64,
    disks: Vec<Option<Disk>>,
    /// Disks with windows to propose.
    turns: VecDeque<VmId>,
}

impl Prefetcher for Linux {
    fn attach(&mut self, _now: Instant, vm: VmId, capacity: Sectors) {
        if self.disks.len() <= vm.index() {
            self.disks.resize_with(vm.index() + 1, || None);
        }
        match &mut self.disks[vm.index()] {
            Some(known) => known.capacity = capacity,
            slot => *slot = Some(Disk::new(capacity)),
        }
    }

    fn detach(&mut self, vm: VmId) {
        if let Some(slot) = self.disks.get_mut(vm.index()) {
            *slot = None;
        }
        self.turns.retain(|&turn| turn != vm);
    }

    fn accessed(&mut self, _now: Instant, access: &Access) {
        let Some(Some(disk)) = self.disks.get_mut(access.vm.index()) else { return };
        let idle = disk.windows.is_empty();
        disk.read(access, self.max);
        if idle && !disk.windows.is_empty() {
            self.turns.push_back(access.vm);
        }
    }

    fn propose(&mut self, _now: Instant, room: Sectors) -> Option<Proposal> {
        if room == Sectors::ZERO {
            return None;
        }
        loop {
            let vm = self.turns.pop_front()?;
            let Some(disk) = &mut self.disks[vm.index()] else { continue };
            let extent = disk.next(room);
            if !disk.windows.is_empty() {
                self.turns.push_back(vm);
            }
            if let Some(extent) = extent {
                return Some(Proposal { vm, tag: None, extent });
            }
        }
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        let of = |disk: &Disk| disk.cached.len() + disk.marked.len() + disk.windows.len();
        sink("remembered", self.disks.iter().flatten().map(of).sum::<usize>() as f64);
    }
}

impl Disk {
    fn new(capacity: Sectors) -> Disk {
        Disk { capacity, ..Disk::default() }
    }

    /// A guest reads: the windows that the host's kernel would ask for.
    fn read(&mut self, access: &Access, max: u64) {
        let read = Pages {
            start: access.extent.start().get() / PAGE,
            end: access.extent.end().get().div_ceil(PAGE),
        };
        if access.missed > Sectors::ZERO {
            if access.missed == access.extent.len() {
                // None of it is there: what was taken for cached is so no more.
                self.cached.retain(|old| old.end <= read.start || read.end <= old.start);
            }
            let missing = (read.start..read.end).find(|&page| !is_cached(&self.cached, page));
            self.demand(max, false, missing.unwrap_or(read.start), read);
        }
        while let Some(at) =
            self.marked.iter().position(|page| (read.start..read.end).contains(page))
        {
            let page = self.marked.remove(at).unwrap_or(read.start);
            self.demand(max, true, page, read);
        }
        self.remember(read);
        self.state.read_until(read.end - 1);
    }

    /// `page` of a read is missing, or marked.
    fn demand(&mut self, max: u64, marker: bool, page: u64, read: Pages) {
        let cached = |page| is_cached(&self.cached, page);
        let Some(window) = self.state.demand(max, marker, page, read.end - page, cached) else {
            return;
        };
        if let Some(marked) = window.marked {
            push(&mut self.marked, marked);
        }
        let end = window.start + window.pages;
        // What the guest asks for itself is read without us, and nothing twice.
        let own = window.start.max(read.end)..end;
        let start = own.clone().find(|&page| !is_cached(&self.cached, page)).unwrap_or(end);
        self.remember(Pages { start: window.start, end });
        let planned = |old: &Pages| old.start <= start && end <= old.end;
        if start < end && !self.windows.iter().any(planned) {
            push(&mut self.windows, Pages { start, end });
        }
    }

    /// These pages are cached from now on.
    fn remember(&mut self, new: Pages) {
        let touches = |old: &Pages| new.start <= old.end && old.start <= new.end;
        let old = self.cached.iter().position(touches).and_then(|at| self.cached.remove(at));
        let start = old.map_or(new.start, |old| old.start.min(new.start));
        let end = old.map_or(new.end, |old| old.end.max(new.end));
        push(&mut self.cached, Pages { start, end });
    }

    /// The next part of a window, at most `room`, inside the disk.
    fn next(&mut self, room: Sectors) -> Option<Extent> {
        let window = self.windows.front_mut()?;
        let start = window.start.saturating_mul(PAGE);
        let end = window.end.saturating_mul(PAGE).min(self.capacity.get());
        let len = end.saturating_sub(start).min(room.get());
        window.start += len.div_ceil(PAGE);
        let extent = Extent::new(Lba::new(start), Sectors::new(len));
        if extent.is_none() || window.start >= window.end || start + len >= end {
            self.windows.pop_front();
        }
        extent
    }
}

fn is_cached(cached: &VecDeque<Pages>, page: u64) -> bool {
    cached.iter().rev().any(|pages| pages.start <= page && page < pages.end)
}

/// Remember `item`, and forget the oldest when there are too many.
fn push<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == REMEMBERED {
        list.pop_front();
    }
    list.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(max: u64, sectors: u64) -> Linux {
        let mut linux = Linux { max, disks: Vec::new(), turns: VecDeque::new() };
        linux.attach(Instant::ZERO, VmId::new(0), Sectors::new(sectors));
        linux
    }

    /// Pages of a read that misses (or hits), and the pages proposed then.
    fn read(linux: &mut Linux, start: u64, pages: u64, missed: bool) -> Vec<(u64, u64)> {
        let extent = Extent::new(Lba::new(start * PAGE), Sectors::new(pages * PAGE)).unwrap();
        let missed = if missed { extent.len() } else { Sectors::ZERO };
        let late = Sectors::ZERO;
        let access = Access { vm: VmId::new(0), tag: None, extent, missed, late };
        linux.accessed(Instant::ZERO, &access);
        let mut all = Vec::new();
        while let Some(p) = linux.propose(Instant::ZERO, Sectors::new(1 << 20)) {
            all.push((p.extent.start().get() / PAGE, p.extent.len().get() / PAGE));
        }
        all
    }

    #[test]
    fn windows_double_and_the_marked_page_asks_for_the_next() {
        let mut linux = new(32, 1 << 20);
        assert_eq!(read(&mut linux, 100, 4, true), []);
        // Touches the read before: 8 pages from 104 on, of which 4 are the guest's.
        assert_eq!(read(&mut linux, 104, 4, true), [(108, 4)]);
        // 108 carries the mark: the window behind, twice as long.
        assert_eq!(read(&mut linux, 108, 4, false), [(112, 16)]);
        assert_eq!(read(&mut linux, 112, 4, false), [(128, 32)]);
        assert_eq!(read(&mut linux, 116, 4, false), []);
    }

    #[test]
    fn interleaved_streams_are_kept_apart_by_their_marks() {
        let mut linux = new(32, 1 << 20);
        for page in [1000, 1004, 5000, 5004] {
            read(&mut linux, page, 4, true);
        }
        // Each comes to its own marked page while the state is the other's.
        assert_eq!(read(&mut linux, 1008, 4, false), [(1012, 16)]);
        assert_eq!(read(&mut linux, 5008, 4, false), [(5012, 16)]);
    }

    #[test]
    fn the_pages_before_a_miss_betray_a_stream() {
        let mut linux = new(32, 1 << 20);
        (0..8).for_each(|n| drop(read(&mut linux, 1000 + n, 1, false)));
        read(&mut linux, 9000, 1, true);
        // Eight pages of history and the one asked for; seven and the mark's page are new.
        assert_eq!(read(&mut linux, 1008, 1, true), [(1009, 8)]);
        // Without history a lone read is read as it is.
        assert_eq!(read(&mut linux, 20_000, 1, true), []);
    }

    #[test]
    fn the_disks_end_and_the_room_are_kept_to() {
        let mut linux = new(32, 110 * PAGE + 3);
        read(&mut linux, 100, 4, true);
        let access_end = read(&mut linux, 104, 4, true);
        assert_eq!(access_end, [(108, 2)]); // 2 pages and 3 sectors
        let mut linux = new(32, 1 << 20);
        linux.attach(Instant::ZERO, VmId::new(0), Sectors::new(1 << 20));
        let extent = Extent::new(Lba::new(0), Sectors::new(8)).unwrap();
        let missed = extent.len();
        let late = Sectors::ZERO;
        let access = Access { vm: VmId::new(0), tag: None, extent, missed, late };
        linux.accessed(Instant::ZERO, &access);
        let mut parts = Vec::new();
        while let Some(p) = linux.propose(Instant::ZERO, Sectors::new(16)) {
            parts.push((p.extent.start().get(), p.extent.len().get()));
        }
        assert_eq!(parts, [(8, 16), (24, 8)]);
    }
}
