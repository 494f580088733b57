//! A cache that begins full, as after a long run: for simulations, which would else have to
//! simulate hours until it is.

use super::{Account, HostCache, blocks_of};
use seekway_core::request::{Extent, VmId};
use seekway_core::units::Instant;

/// Number of times that each block was read before the run begins: enough that it stays
/// ([`Blocks`](super::Blocks)).
const READS: usize = 3;

impl HostCache {
    /// Puts parts of VMs' disks into the cache as if they had been read again and again, as far as
    /// there is room: each VM has as much as another, unless it wants less. Nothing is counted,
    /// and the prefetcher hears of nothing. `wanted` is by VM; the VMs are attached, and the cache
    /// is empty.
    pub fn warm(&mut self, now: Instant, wanted: &[(VmId, Vec<Extent>)]) {
        let mut left: Vec<_> = wanted.iter().map(|(vm, parts)| (0, *vm, parts.iter())).collect();
        let mut kept = Vec::new();
        while let Some((had, vm, parts)) = left.iter_mut().min_by_key(|(had, vm, _)| (*had, *vm)) {
            let Some(&extent) = parts.next() else {
                let done = *vm;
                left.retain(|(_, vm, _)| *vm != done);
                continue;
            };
            *had += extent.len().get();
            let vm = *vm;
            let account = self.accounts.of(vm, None);
            if !self.put(vm, extent, account) {
                break;
            }
            kept.push((vm, extent));
        }
        for (vm, extent) in (1..READS).flat_map(|_| kept.iter().copied()) {
            let (first, end) = blocks_of(extent);
            self.blocks.hit(vm, first, end, &mut self.first_uses);
        }
        self.bury(now);
    }

    /// False when there is no room for all of it.
    fn put(&mut self, vm: VmId, extent: Extent, account: Account) -> bool {
        let (first, end) = blocks_of(extent);
        let mut block = first;
        while block < end {
            let absent = self.blocks.absent(vm, block, end);
            block = absent.end;
            let len = absent.end - absent.start;
            if len == 0 {
                continue;
            }
            if u64::from(self.blocks.backed()) + len > u64::from(self.blocks.limit()) {
                return false;
            }
            let start = absent.start;
            self.frames.clear();
            self.blocks.reserve(vm, absent, account, false, &mut self.frames, &mut self.gone);
            self.blocks.filled(vm, start, &self.frames, true, &mut self.gone);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{BLOCK_BYTES, BLOCK_SECTORS, Config};
    use seekway_core::units::{Lba, Sectors};
    use std::num::NonZeroU32;

    #[test]
    fn each_vm_has_what_it_wants_as_far_as_there_is_room() {
        let mut cache = HostCache::new(Config::new(100 * BLOCK_BYTES), "none").expect("a cache");
        let vms = [0, 1].map(VmId::new);
        let size = Sectors::new(1 << 20);
        vms.iter().for_each(|&vm| cache.attach(Instant::ZERO, vm, NonZeroU32::MIN, size));
        let part = |n: u64| {
            let start = Lba::new(n * 10 * BLOCK_SECTORS);
            Extent::new(start, Sectors::new(10 * BLOCK_SECTORS)).expect("a part")
        };
        let wanted = [(vms[0], vec![part(0), part(7)]), (vms[1], (0..20).map(part).collect())];
        cache.warm(Instant::ZERO, &wanted);
        let bytes = |vm| cache.resident_bytes(vm) / BLOCK_BYTES;
        assert_eq!((bytes(vms[0]), bytes(vms[1])), (20, 80));
        // What was read again and again stays beside one that reads once.
        let (mut pieces, mut at) = (Vec::new(), 100);
        for _ in 0..40 {
            pieces.clear();
            cache.read(Instant::ZERO, vms[1], None, part(at), 0, &mut pieces);
            for piece in &pieces {
                if let crate::cache::Piece::Fetch(id, _) = *piece {
                    cache.fetched(Instant::ZERO, id, true);
                }
            }
            at += 1;
        }
        assert!(cache.holds(vms[0], part(0)) && cache.holds(vms[0], part(7)));
        let kept = (0..8).filter(|&n| cache.holds(vms[1], part(n))).count();
        assert!(kept >= 6, "{kept} of 8 parts");
    }
}
