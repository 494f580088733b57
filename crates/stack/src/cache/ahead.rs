//! Prefetches: from what the prefetcher proposes to fetches that begin, are
//! taken over by guests, or are dropped.

use super::blocks::{BLOCK_SECTORS, Block};
use super::fetches::FetchId;
use super::pieces::{blocks_of, cut};
use super::{HostCache, KEPT_MAX};
use seekway_core::prefetcher::Proposal;
use seekway_core::request::{Extent, VmId};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

/// Proposals that one call of [`HostCache::propose`] looks at.
const PROPOSALS_MAX: usize = 64;
/// Blocks that one call looks up.
const LOOKS_MAX: u64 = KEPT_MAX as u64;
/// The end of every disk.
const END: Sectors = Sectors::new(u64::MAX);
/// When one that stopped for that goes on: after whatever else is due.
const RESUME: Nanos = Nanos::new(1);

impl HostCache {
    /// The next prefetch to be made, with room for `room` of them. Ask until
    /// `None`. It looks at a bounded number of blocks: where all of them are in
    /// the cache it says `None` and [`HostCache::next_wake`] says to ask again.
    pub fn propose(&mut self, now: Instant, room: usize) -> Option<FetchId> {
        self.resume = None;
        if room == 0 {
            return None;
        }
        let most = Sectors::new(self.config.unit.get().saturating_mul(room as u64));
        let mut looks = LOOKS_MAX;
        for _ in 0..PROPOSALS_MAX {
            let proposal = match self.rest.take() {
                Some(rest) => rest,
                None => {
                    let new = self.prefetcher.propose(now, most)?;
                    Proposal { extent: cut(new.extent, most, END).unwrap_or(new.extent), ..new }
                }
            };
            if let Some(id) = self.begin(now, proposal, &mut looks) {
                return Some(id);
            }
            if looks == 0 {
                break;
            }
        }
        self.resume = Some(now + RESUME);
        None
    }

    /// Prefetches that go to a head along with the read that was looked up last, at most
    /// `most` sectors right behind it: those that begin are appended to `begun`.
    pub fn along(&mut self, now: Instant, most: Sectors, begun: &mut Vec<FetchId>) {
        let kept = self.rest.take();
        let mut looks = LOOKS_MAX;
        let mut next = self.prefetcher.along(now, most);
        while let Some(proposal) = next {
            begun.extend(self.begin(now, proposal, &mut looks));
            next = self.rest.take().filter(|_| looks > 0);
        }
        self.rest = kept;
    }

    /// Begin a fetch of what the cache has not of a proposal; what is longer than
    /// one fetch is kept for the next, what finds no frame is given up.
    fn begin(&mut self, now: Instant, proposal: Proposal, looks: &mut u64) -> Option<FetchId> {
        let Proposal { vm, tag, extent } = proposal;
        let known = self.vms.get(vm.index()).filter(|vm| vm.attached)?;
        let capacity = known.capacity;
        let extent = cut(extent, extent.len(), capacity)?;
        let (first, end) = blocks_of(extent);
        let is_writing = known.writes.overlaps(first, end);
        let account = self.accounts.of(vm, tag);
        let unit = self.config.unit.get() / BLOCK_SECTORS;
        let (mut block, mut from, mut id, mut full) = (first, first, None, false);
        self.fetches.open();
        while block < end && *looks > 0 && block - from < unit {
            let most = (block + *looks).min(from + unit).min(end);
            let absent = self.absent(vm, block, most, is_writing);
            if id.is_some() && absent.start > block {
                break;
            }
            *looks -= absent.end - block;
            block = absent.end;
            if id.is_none() {
                from = absent.start;
            }
            if absent.is_empty() {
                continue;
            }
            let (begun, blocks) = self.reserve(vm, absent.clone(), account, true);
            id = begun.or(id);
            full = blocks < absent.end - absent.start;
            if full {
                block = absent.start + blocks;
                break;
            }
        }
        let left = (end - block) * BLOCK_SECTORS;
        let left = Extent::new(Lba::new(block * BLOCK_SECTORS), Sectors::new(left));
        let left = left.and_then(|left| cut(left, left.len(), capacity));
        if let Some(id) = id {
            self.close(id, vm, tag, account, true);
            let len = self.fetch(id).extent.len().get();
            self.accounts.usage(account).prefetched += len;
        }
        self.bury(now);
        match left {
            Some(extent) if full => self.prefetcher.evicted(now, vm, extent, false),
            left => self.rest = left.map(|extent| Proposal { vm, tag, extent }),
        }
        id
    }

    /// Nobody will read what was prefetched of `extent`, it seems: what is there of it goes
    /// first from now on, and what is on its way as soon as it has come.
    pub(super) fn leave(&mut self, vm: VmId, extent: Extent) {
        let (first, end) = blocks_of(extent);
        let end = end.min(first + LOOKS_MAX);
        self.blocks.leave(vm, first, end);
        for block in self.blocks.lookup_all(vm, first, end) {
            if let Block::Filling(frame) = block {
                self.fetches.get_mut(FetchId(self.blocks.fetch(frame))).is_left = true;
            }
        }
    }

    /// Hears of sectors that a guest wants to read and that wait at a limit of its VM.
    pub(crate) fn held(&mut self, vm: VmId, len: Sectors) {
        self.prefetcher.held(vm, len);
    }

    /// A prefetch that still waited has become demand.
    pub fn promoted(&mut self, id: FetchId) {
        if let Some(account) = self.fetch(id).account {
            self.accounts.usage(account).promoted += 1;
        }
    }

    /// A prefetch that still waited, and which nobody waits for, is not made.
    /// Panics when somebody does.
    pub fn dropped(&mut self, now: Instant, id: FetchId) {
        let fetch = self.fetches.get(id);
        assert!(fetch.waiters.is_empty(), "a guest waits for {}", fetch.extent);
        self.blocks.filled(fetch.vm, fetch.first_block(), &fetch.frames, false, &mut self.gone);
        self.fetches.remove(id);
        // What a write has taken out before has been counted as wasted, and stays so.
        self.bury_as(now, true);
    }

    /// When [`HostCache::propose`] wants to be asked again if nothing else
    /// happens; at once, when it stopped because it had looked for long enough.
    pub fn next_wake(&self) -> Option<Instant> {
        self.resume.into_iter().chain(self.prefetcher.next_wake()).min()
    }
}
