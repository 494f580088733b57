//! Which queued request of a VM starts at a given sector? Asked after every
//! dispatch, to know whether the policy has to be asked for a continuation.

use seekway_core::queues::{ExpiryQueue, Links};
use seekway_core::request::{RequestId, VmId};
use seekway_core::units::Lba;

/// Requests of one bucket that are looked at. Guests choose where requests
/// start, so they can put all of theirs into one bucket: what they lose is that
/// their own requests are coalesced. In an ordinary bucket there are one or two.
const PROBES_MAX: usize = 16;
/// Buckets of an empty table.
const BUCKETS_MIN: usize = 16;

/// Hash tables from first sector to queued requests, one for each VM, chained
/// through [`Links`]. No order shows: they answer yes or no.
#[derive(Default)]
pub(super) struct Adjacency {
    /// By number of the VM.
    tables: Vec<HashTable>,
    links: Links,
    /// VM and first sector by slot, to compare and to grow without the requests.
    keys: Vec<(VmId, Lba)>,
}

/// The queued requests of one VM.
struct HashTable {
    /// Always a power of two.
    buckets: Vec<ExpiryQueue>,
    len: usize,
}

impl HashTable {
    fn new() -> Self {
        HashTable { buckets: vec![ExpiryQueue::new(); BUCKETS_MIN], len: 0 }
    }

    fn bucket(&self, start: Lba) -> usize {
        // Fibonacci hashing: sectors come in strides of powers of two.
        let hash = start.get().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> 32) as usize & (self.buckets.len() - 1)
    }

    fn grow(&mut self, links: &mut Links, keys: &[(VmId, Lba)]) {
        let queued: Vec<RequestId> =
            self.buckets.iter().flat_map(|b| b.iter(links).collect::<Vec<_>>()).collect();
        self.buckets = vec![ExpiryQueue::new(); self.buckets.len() * 2];
        for id in queued {
            let bucket = self.bucket(keys[id.slot()].1);
            self.buckets[bucket].push(links, id);
        }
    }
}

impl Adjacency {
    #[inline]
    pub(super) fn insert(&mut self, vm: VmId, id: RequestId, start: Lba) {
        if vm.index() >= self.tables.len() {
            self.tables.resize_with(vm.index() + 1, HashTable::new);
        }
        let table = &mut self.tables[vm.index()];
        if table.len >= table.buckets.len() {
            table.grow(&mut self.links, &self.keys);
        }
        let slot = id.slot();
        if slot >= self.keys.len() {
            self.keys.resize(slot + 1, (vm, start));
        }
        self.keys[slot] = (vm, start);
        let bucket = table.bucket(start);
        table.buckets[bucket].push(&mut self.links, id);
        table.len += 1;
    }

    /// Take out a request that was inserted.
    #[inline]
    pub(super) fn remove(&mut self, id: RequestId) {
        let (vm, start) = self.keys[id.slot()];
        let table = &mut self.tables[vm.index()];
        let bucket = table.bucket(start);
        table.buckets[bucket].remove(&mut self.links, id);
        table.len -= 1;
    }

    /// The queued requests of `vm` that start at `lba`, as far as the first
    /// [`PROBES_MAX`] of its bucket go.
    pub(super) fn at(&self, vm: VmId, lba: Lba) -> impl Iterator<Item = RequestId> + '_ {
        self.probes(vm, lba).filter(move |id| self.keys[id.slot()].1 == lba)
    }

    fn probes(&self, vm: VmId, lba: Lba) -> impl Iterator<Item = RequestId> + '_ {
        let table = self.tables.get(vm.index()).into_iter();
        let chain = table.flat_map(move |t| t.buckets[t.bucket(lba)].iter(&self.links));
        chain.take(PROBES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sectors that fall into one bucket of a table with up to 2^16 of them.
    fn colliding(count: usize) -> Vec<Lba> {
        let bucket = |lba: u64| lba.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & 0xffff;
        (0..).filter(|&lba| bucket(lba) == 7).take(count).map(Lba::new).collect()
    }

    #[test]
    fn a_guest_that_fills_one_bucket_makes_nothing_slow_and_hides_only_its_own() {
        let (hostile, other) = (VmId::new(0), VmId::new(1));
        let mut adjacency = Adjacency::default();
        let starts = colliding(1000);
        for (slot, &start) in starts.iter().enumerate() {
            adjacency.insert(hostile, RequestId::new(slot as u32), start);
        }
        let last = RequestId::new(5000);
        adjacency.insert(other, last, starts[999]);
        assert!(starts.iter().all(|&start| adjacency.probes(hostile, start).count() <= PROBES_MAX));
        assert!(adjacency.at(hostile, starts[999]).next().is_none());
        assert_eq!(adjacency.at(other, starts[999]).next(), Some(last));
        // All can be taken out all the same, and the first are found.
        (16..1000).for_each(|slot| adjacency.remove(RequestId::new(slot)));
        let found = (0..16).filter(|&n| adjacency.at(hostile, starts[n]).next().is_some());
        assert_eq!(found.count(), 16);
    }

    #[test]
    fn a_vm_that_has_nothing_queued_has_nothing_at_any_sector() {
        assert!(Adjacency::default().at(VmId::new(3), Lba::ZERO).next().is_none());
    }
}
