//! A guest's read: which parts of it are cached, waited for, fetched or read past the cache.

use super::blocks::{Account, Block, FirstUse};
use super::fetches::{FetchId, Waiter};
use super::pieces::{self, Piece, blocks_of, clip};
use super::{HostCache, KEPT_MAX};
use seekway_core::prefetcher::Access;
use seekway_core::request::{Extent, ProcessTag, VmId};
use seekway_core::units::{Instant, Sectors};

impl HostCache {
    /// A guest reads `extent` of its disk, inside its capacity: the pieces are
    /// appended to `pieces`. `token` comes back with the fetches that it waits for.
    /// Panics for a VM that is not attached.
    pub fn read(
        &mut self,
        now: Instant,
        vm: VmId,
        tag: Option<ProcessTag>,
        extent: Extent,
        token: u64,
        pieces: &mut Vec<Piece>,
    ) {
        assert!(self.is_attached(vm), "read of {vm:?}, which is not attached");
        let account = self.accounts.of(vm, tag);
        let before = pieces.len();
        if self.is_cached(vm, extent) {
            pieces.push(Piece::Cached(extent));
        } else if let Some(id) = self.fetch_absent(vm, extent, account) {
            pieces.push(Piece::Fetch(id, extent));
        } else {
            self.cut(vm, extent, before, pieces);
        }
        let (mut missed, mut late, mut cached) = (0, 0, 0);
        for &piece in &pieces[before..] {
            let (Piece::Cached(extent)
            | Piece::Direct(extent)
            | Piece::Wait(_, extent)
            | Piece::Fetch(_, extent)) = piece;
            let sectors = extent.len().get();
            if let Piece::Wait(id, _) | Piece::Fetch(id, _) = piece {
                self.fetches.get_mut(id).waiters.push(Waiter { token, extent });
            }
            match piece {
                Piece::Cached(_) => cached += sectors,
                Piece::Wait(id, _) if self.fetch(id).prefetch => late += sectors,
                Piece::Wait(..) => {}
                Piece::Direct(_) => missed += sectors,
                Piece::Fetch(id, _) => {
                    missed += sectors;
                    self.close(id, vm, tag, account, false);
                }
            }
        }
        self.bury(now);
        let usage = self.accounts.usage(account);
        usage.reads += 1;
        usage.read += extent.len().get();
        usage.cached += cached;
        usage.late += late;
        usage.missed += missed;
        let (missed, late) = (Sectors::new(missed), Sectors::new(late));
        self.prefetcher.accessed(now, &Access { vm, tag, extent, missed, late });
        while let Some(left) = self.prefetcher.left(now) {
            self.leave(vm, left);
        }
    }

    /// Is all of it in the cache? Then it is used.
    fn is_cached(&mut self, vm: VmId, extent: Extent) -> bool {
        let (first, end) = blocks_of(extent);
        if !self.blocks.hit(vm, first, end, &mut self.first_uses) {
            return false;
        }
        self.account_uses(vm);
        true
    }

    /// The first use of a prefetched block is what it was for.
    fn account_uses(&mut self, vm: VmId) {
        for FirstUse { blocks, account } in self.first_uses.drain(..) {
            let part = self.vms[vm.index()].part(&blocks);
            self.accounts.usage(account).used += part.map_or(0, |part| part.len().get());
        }
        self.first_uses.shrink_to(KEPT_MAX);
    }

    /// Begin fetches of those of a read's blocks that are absent and to be had.
    /// The fetch, if it is one that brings all of them.
    fn fetch_absent(&mut self, vm: VmId, extent: Extent, account: Account) -> Option<FetchId> {
        let (first, end) = blocks_of(extent);
        let known = &self.vms[vm.index()];
        let (is_writing, inside) = (known.writes.overlaps(first, end), end.min(known.end()));
        self.fetches.open();
        let (mut block, mut begun, mut only) = (first, 0, None);
        while block < inside {
            let absent = self.absent(vm, block, inside, is_writing);
            block = absent.end;
            if absent.is_empty() {
                continue;
            }
            let (id, blocks) = self.reserve(vm, absent.clone(), account, false);
            only = id.or(only);
            begun += blocks;
            if blocks < absent.end - absent.start {
                break;
            }
        }
        only.filter(|_| begun == end - first)
    }

    /// Cut a read into pieces, after fetches of it began: room may have been made at
    /// the cost of other blocks of the same read, which are then read past the cache.
    fn cut(&mut self, vm: VmId, extent: Extent, before: usize, pieces: &mut Vec<Piece>) {
        let (first, end) = blocks_of(extent);
        for block in first..end {
            let part = clip(block, extent);
            let piece = match self.blocks.lookup(vm, block) {
                Block::Absent => Piece::Direct(part),
                Block::Valid(_) => {
                    self.used(vm, block);
                    Piece::Cached(part)
                }
                Block::Filling(frame) => match FetchId(self.blocks.fetch(frame)) {
                    id if self.fetches.is_new(id) => Piece::Fetch(id, part),
                    id => {
                        self.used(vm, block);
                        Piece::Wait(id, part)
                    }
                },
            };
            pieces::push(pieces, before, piece);
        }
    }

    /// A guest uses a block.
    fn used(&mut self, vm: VmId, block: u64) {
        self.blocks.touch(vm, block, &mut self.first_uses);
        self.account_uses(vm);
    }
}
