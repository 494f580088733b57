//! The zones of one model: a hash table that grows and shrinks by constant
//! steps, so that no single request pays for a million zones.
//!
//! Linear hashing over chains: entries lie in pages of a slab, and one more
//! bucket is split off whenever there are more entries than buckets. Nothing
//! is ever copied as a whole. The hash is fixed: the same requests give the
//! same table, and nothing outside sees its order.

use seekway_core::units::Instant;

/// State of a zone: 48 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zone {
    /// Which zone: its first sector divided by the zone size.
    pub number: u64,
    /// D(Z, T_r): the density in the window of the last request. Zero marks a
    /// free entry.
    pub density: f64,
    /// T_r: the window of the last request.
    pub window: u64,
    /// When the last request arrived.
    pub arrived: Instant,
    /// The sum of the intervals between requests, in nanoseconds.
    pub interval_sum: u64,
    /// m: how many requests or intervals the sum is divided by.
    pub intervals: u32,
    next: u32,
}

const FREE: Zone = Zone {
    number: 0,
    density: 0.0,
    window: 0,
    arrived: Instant::ZERO,
    interval_sum: 0,
    intervals: 0,
    next: NIL,
};

/// The end of a chain.
const NIL: u32 = u32::MAX;
/// Entries in a page of the slab.
const PAGE: usize = 256;
/// Bucket heads in a page.
const HEADS: usize = 512;

/// The zones by number.
#[derive(Debug, Default)]
pub(super) struct Table {
    pages: Vec<Box<[Zone]>>,
    heads: Vec<Box<[u32]>>,
    /// Buckets in use; `2^k ≤ buckets < 2^(k+1)`.
    buckets: usize,
    /// Entries that were ever used: the free list links those of them that are not.
    used: u32,
    free: u32,
    len: u32,
    /// Entries looked at, for the test that bounds the work of a request.
    #[cfg(test)]
    pub looked_at: std::cell::Cell<u64>,
}

impl Table {
    /// A table without zones, for `zones` of them. The directories have their
    /// final size at once: they are never copied.
    pub fn new(zones: usize) -> Self {
        let mut heads = Vec::with_capacity(zones / HEADS + 1);
        heads.push(vec![NIL; HEADS].into_boxed_slice());
        let pages = Vec::with_capacity(zones.div_ceil(PAGE));
        Table { pages, heads, buckets: 16, free: NIL, ..Table::default() }
    }
    /// Zones held, faded ones that the sweep has not met yet included.
    pub fn len(&self) -> usize {
        self.len as usize
    }
    /// Entries that were ever used: slots `0..slots()` may be looked at.
    pub fn slots(&self) -> u32 {
        self.used
    }
    /// The memory it occupies.
    pub fn bytes(&self) -> usize {
        let directories = self.pages.capacity() + self.heads.capacity();
        directories * size_of::<Box<[u32]>>()
            + self.pages.len() * PAGE * size_of::<Zone>()
            + self.heads.len() * HEADS * size_of::<u32>()
    }

    /// An entry, which may be free.
    #[inline]
    pub fn at(&self, slot: u32) -> &Zone {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
        &self.pages[slot as usize / PAGE][slot as usize % PAGE]
    }
    /// An entry, to change anything but its number.
    #[inline]
    pub fn at_mut(&mut self, slot: u32) -> &mut Zone {
        &mut self.pages[slot as usize / PAGE][slot as usize % PAGE]
    }
    #[inline]
    fn head_mut(&mut self, bucket: usize) -> &mut u32 {
        &mut self.heads[bucket / HEADS][bucket % HEADS]
    }

    /// The bucket of a zone, as long as there are `self.buckets` of them.
    #[inline]
    fn bucket(&self, number: u64) -> usize {
        let hash = hash(number) as usize;
        let half = 1 << self.buckets.ilog2();
        let wide = hash & (2 * half - 1);
        if wide < self.buckets { wide } else { hash & (half - 1) }
    }

    /// The slot of a zone.
    #[inline]
    pub fn find(&self, number: u64) -> Option<u32> {
        let bucket = self.bucket(number);
        let mut slot = self.heads[bucket / HEADS][bucket % HEADS];
        while slot != NIL {
            let zone = self.at(slot);
            if zone.number == number {
                return Some(slot);
            }
            slot = zone.next;
        }
        None
    }

    /// Enter a zone that is not in the table.
    pub fn insert(&mut self, mut zone: Zone) {
        if self.len() >= self.buckets {
            self.split();
        }
        let slot = self.take_slot();
        let bucket = self.bucket(zone.number);
        zone.next = std::mem::replace(self.head_mut(bucket), slot);
        *self.at_mut(slot) = zone;
        self.len += 1;
    }

    fn take_slot(&mut self) -> u32 {
        if self.free != NIL {
            let slot = self.free;
            self.free = self.at(slot).next;
            return slot;
        }
        if self.used as usize == self.pages.len() * PAGE {
            self.pages.push(vec![FREE; PAGE].into_boxed_slice());
        }
        self.used += 1;
        self.used - 1
    }

    /// Take the zone in `slot` out.
    pub fn remove(&mut self, slot: u32) {
        let Zone { number, next, .. } = *self.at(slot);
        let bucket = self.bucket(number);
        let mut at = *self.head_mut(bucket);
        if at == slot {
            *self.head_mut(bucket) = next;
        } else {
            while self.at(at).next != slot {
                at = self.at(at).next;
            }
            self.at_mut(at).next = next;
        }
        *self.at_mut(slot) = Zone { next: self.free, ..FREE };
        self.free = slot;
        self.len -= 1;
    }

    /// One more bucket: it takes its share of the chain that stood for both.
    fn split(&mut self) {
        let new = self.buckets;
        if new / HEADS == self.heads.len() {
            self.heads.push(vec![NIL; HEADS].into_boxed_slice());
        }
        self.buckets += 1;
        let old = new - (1 << new.ilog2());
        let mut slot = std::mem::replace(self.head_mut(old), NIL);
        while slot != NIL {
            let Zone { number, next, .. } = *self.at(slot);
            let bucket = self.bucket(number);
            debug_assert!(bucket == old || bucket == new);
            let head = std::mem::replace(self.head_mut(bucket), slot);
            self.at_mut(slot).next = head;
            slot = next;
        }
    }
}

impl Zone {
    /// A zone on its first request.
    pub fn new(number: u64, window: u64, arrived: Instant, intervals: u32) -> Zone {
        Zone { number, density: 1.0, window, arrived, interval_sum: 0, intervals, next: NIL }
    }
    /// Forget what earlier requests left, as when the zone had been evicted.
    pub fn restart(&mut self, window: u64, arrived: Instant, intervals: u32) {
        *self = Zone { next: self.next, ..Zone::new(self.number, window, arrived, intervals) };
    }
}

/// A fixed mixing of the bits (the finaliser of splitmix64, shortened).
#[inline]
fn hash(number: u64) -> u64 {
    let x = (number ^ (number >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 24
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_table_holds_what_a_set_holds() {
        let (mut table, mut set) = (Table::new(1 << 13), BTreeSet::new());
        let mut x = 1_u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = x >> 51;
            if x & 3 != 0 {
                if set.insert(number) {
                    table.insert(Zone::new(number, 0, Instant::ZERO, 0));
                }
            } else if set.remove(&number) {
                table.remove(table.find(number).unwrap());
            }
            assert_eq!(table.find(number).is_some(), set.contains(&number));
            assert_eq!(table.len(), set.len());
        }
        let held = (0..table.slots()).map(|s| table.at(s)).filter(|z| z.density > 0.0);
        assert_eq!(held.map(|z| z.number).collect::<BTreeSet<_>>(), set);
        assert!(set.iter().all(|&n| table.at(table.find(n).unwrap()).number == n));
    }

    #[test]
    fn an_entry_stays_within_48_bytes() {
        assert_eq!(size_of::<Zone>(), 48);
    }

    #[test]
    fn chains_stay_short_on_regular_numbers() {
        for stride in [1, 2, 1000, 1 << 20, 1 << 33] {
            let mut table = Table::new(50_000);
            (0..50_000).for_each(|i| table.insert(Zone::new(i * stride, 0, Instant::ZERO, 0)));
            let mut longest = 0;
            for bucket in 0..table.buckets {
                let (mut n, mut slot) = (0, *table.head_mut(bucket));
                while slot != NIL {
                    (n, slot) = (n + 1, table.at(slot).next);
                }
                longest = longest.max(n);
            }
            assert!(longest <= 12, "stride {stride}: a chain of {longest}");
        }
    }
}
