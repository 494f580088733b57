//! A guest that has been up for long: its page cache is full of its applications' files.
//!
//! Under a load that reads its files evenly, the page cache holds a random part of them once it
//! is full. So a random part is put there before anything runs, and a run need not wait for
//! hours of simulated time until it is. What a load prefers comes to stay by its own reads.

use crate::generators::rng::Rng;
use crate::guest::cache::UPTODATE;
use crate::guest::vm::GuestVm;
use seekway_core::request::Extent;

/// Pages that are cached together: 256 KiB, twice the usual read-ahead.
const CHUNK_PAGES: u32 = 64;
/// Share of the page cache that stays free, one page of this number: dirty pages need some at once.
const FREE_PART: u32 = 16;

impl GuestVm {
    /// Fills the page cache with pages of the files that are read through it, in an order that
    /// follows from `seed`. Files that an application brought along stay outside.
    pub(super) fn warm(&mut self, seed: u64) {
        let inodes = self.disks.len() as u32;
        let chunks = |(number, pages): (u32, u32)| {
            (0..pages.div_ceil(CHUNK_PAGES)).map(move |chunk| (number, chunk * CHUNK_PAGES))
        };
        let size = |n: u32| (n, self.files[n as usize].size_pages);
        let direct = self.direct();
        let cached = (inodes..self.files.len() as u32).filter(|&n| !direct[n as usize]);
        let mut order: Vec<(u32, u32)> = cached.map(size).flat_map(chunks).collect();
        Rng::new(seed).shuffle(&mut order);
        let most = self.cache.limit() - self.cache.limit() / FREE_PART;
        for (file, start) in order {
            let end = self.files[file as usize].size_pages.min(start + CHUNK_PAGES);
            for page in start..end {
                if self.cache.used() >= most {
                    return;
                }
                let Some(at) = self.allocate(file, page) else { return };
                *self.cache.flags_mut(at) |= UPTODATE;
                self.cache.unpin(at);
            }
        }
    }

    /// Extents that the page cache of a prefilled guest lacks of the files on `disk` that are read
    /// through it, in random order.
    pub(super) fn lacks_on(&self, disk: usize) -> Vec<Extent> {
        let inodes = self.disks.len() as u32;
        let direct = self.direct();
        let files = (inodes..self.files.len() as u32).filter(|&n| {
            self.params.warm && self.files[n as usize].disk == disk && !direct[n as usize]
        });
        let mut lacks: Vec<Extent> = files.flat_map(|n| self.files[n as usize].lacks()).collect();
        Rng::new(lacks.len() as u64).shuffle(&mut lacks);
        lacks
    }

    /// By file: is it read past the page cache, by every handle that was opened on it?
    fn direct(&self) -> Vec<bool> {
        let mut direct = vec![false; self.files.len()];
        // What one handle reads through the cache is in it.
        for is_direct in [true, false] {
            for handle in self.handles.iter().filter(|h| h.direct == is_direct) {
                direct.get_mut(handle.file as usize).into_iter().for_each(|d| *d = is_direct);
            }
        }
        direct
    }
}

#[cfg(test)]
mod tests {
    use crate::generators::parse_vm;
    use crate::generators::plan::Load;
    use crate::guest::file::File;
    use crate::guest::vm::GuestVm;

    /// The guest before anything runs.
    fn guest(text: &str) -> Box<GuestVm> {
        let Ok(Load::Guest(guest)) = parse_vm(text).expect("a VM").load(1, 0) else {
            panic!("{text}: no guest")
        };
        guest
    }

    #[test]
    fn a_warm_guest_has_a_random_part_of_its_files() {
        const LOAD: &str = "app=webserver:threads=16,files=50000";
        assert_eq!(guest(&format!("ram=512MiB,{LOAD}")).cache_pages().0, 0);
        let warm = guest(&format!("ram=512MiB,warm=true,{LOAD}"));
        let (used, limit) = warm.cache_pages();
        assert!(used < limit && used > limit / 10 * 9, "{used} of {limit} pages");
        let cached = |file: &File| file.size_pages > 0 && file.is_cached(0);
        let files = |range: std::ops::Range<usize>| {
            let part = &warm.files[range.clone()];
            part.iter().filter(|file| cached(file)).count() as f64 / range.len() as f64
        };
        // 412 MiB of 781: a half everywhere, whatever the order of the files.
        for range in [1..10_000, 20_000..30_000, 40_000..50_000] {
            let part = files(range.clone());
            assert!((0.4..0.6).contains(&part), "{range:?}: {part}");
        }
        let again = guest(&format!("ram=512MiB,warm=true,{LOAD}"));
        let all = |guest: &GuestVm| guest.files.iter().map(cached).collect::<Vec<_>>();
        assert_eq!(all(&warm), all(&again));
    }

    #[test]
    fn what_is_read_past_the_cache_is_not_in_it() {
        let direct = "ram=512MiB,warm=true,app=fio:rw=read,bs=1MiB,size=1GiB,direct=true";
        assert_eq!(guest(direct).cache_pages().0, 0);
    }
}
