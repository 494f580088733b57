//! **vNavigator**: which parts of one VM's disk will be read or written next,
//! and how soon (Pregather, section IV; algorithms.md, section 2.1).
//!
//! The disk is cut into zones of equal size, time into prediction windows.
//! A zone's density is the number of its requests, each divided by λ for every
//! window that has passed since. Zones at or above the mean density (over
//! those with at least 1) are *hot*: requests are expected there, after the
//! mean interval that was seen between the zone's requests. A hot zone and the
//! zone behind it, unless that is hot itself, form a *sub-region unit*.
//!
//! One model serves one VM and knows of no scheduler: [`VNavigator::observe`]
//! takes the time in which windows are counted (the VM's serving time, or the
//! wall's) apart from the time of arrival.
//!
//! **Cost.** A request costs O(1) for each zone that it touches, whatever the
//! number of zones: see `Members` for the mean and `Table` for the zones.
//! A zone whose density is below 10^-12 counts as gone from that moment; its
//! memory is reclaimed by a sweep that looks at two entries for each zone
//! touched, so a jump over thousands of windows costs nothing.
//!
//! **Memory.** At most [`ModelParams::zones`] zones. When a new zone finds the
//! table full, it takes the place of the least dense of the eight entries
//! under the sweep's hand. A request counts in at most [`SPAN_MAX`] zones.

use seekway_core::request::Extent;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::collections::VecDeque;

/// Zones in which one request counts; the rest of a longer one is ignored.
pub const SPAN_MAX: u64 = 1024;

/// Largest value of [`ModelParams::zones`].
pub const ZONES_MAX: usize = 1 << 20;

/// A zone with less density than this is forgotten, its intervals with it.
pub const DENSITY_MIN: f64 = 1e-12;

/// Ties with the threshold are common; without this rounding would decide them.
const TIE: f64 = 1.0 - 1e-9;

/// Entries that the sweep looks at for each zone touched.
const SWEEP: u32 = 2;

/// Entries among which a full table gives up the least dense.
const VICTIMS: u32 = 8;

/// Parameters of a model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ModelParams {
    /// B: the size of a zone, at least one sector.
    pub zone: Sectors,
    /// λ: by how much a request's weight falls from window to window; above 1.
    pub lambda: f64,
    /// The prediction window, more than nothing.
    pub window: Nanos,
    /// Intervals longer than the window are not counted: they span other VMs'
    /// turns or idleness. (Ours; the paper counts all.)
    pub interval_cap: bool,
    /// m of equation 7 counts intervals, so that ZT is their mean. (Ours; the
    /// paper counts requests, one more.)
    pub interval_mean: bool,
    /// Least predicted interval. (Ours; the paper has none.)
    pub interval_min: Nanos,
    /// Most zones that the model remembers, from 1 to [`ZONES_MAX`].
    pub zones: usize,
}

impl Default for ModelParams {
    /// The paper's figures, with our corrections.
    fn default() -> Self {
        ModelParams {
            zone: Sectors::new(2000),
            lambda: 2.0,
            window: Nanos::from_millis(20),
            interval_cap: true,
            interval_mean: true,
            interval_min: Nanos::from_millis(1),
            zones: 4096,
        }
    }
}

/// A sub-region unit: one hot zone, or one and the zone behind it (Definition 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The first sector of the hot zone.
    pub start: Lba,
    /// The sector after the last.
    pub end: Lba,
    /// ST(U): the predicted interval to the next request (Definition 5).
    pub interval: Nanos,
    /// Was any interval seen? If not, `interval` is the least one.
    pub measured: bool,
}

impl Unit {
    /// Does the sector lie inside?
    pub fn contains(&self, lba: Lba) -> bool {
        self.start <= lba && lba < self.end
    }
}

/// A hot zone, for `seekway inspect`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HotZone {
    /// Number of the zone, from 0 at the disk's beginning.
    pub zone: u64,
    /// Its first sector: its number times the zones' size.
    pub start: Lba,
    /// Its density in the current window: requests, decayed by λ.
    pub density: f64,
    /// ST: the predicted interval.
    pub interval: Nanos,
}

/// The model of one VM.
#[derive(Debug)]
pub struct VNavigator {
    params: ModelParams,
    decay: Decay,
    /// T: the current prediction window.
    window: u64,
    members: Members,
    table: Table,
    /// The entry that the sweep looks at next.
    hand: u32,
}

impl VNavigator {
    /// A model that has seen nothing. Panics on parameters out of range.
    pub fn new(params: ModelParams) -> Self {
        assert!(params.zone > Sectors::ZERO, "a zone has at least one sector");
        assert!(params.window > Nanos::ZERO, "a window lasts");
        assert!((1..=ZONES_MAX).contains(&params.zones), "1 to {ZONES_MAX} zones");
        VNavigator {
            params,
            decay: Decay::new(params.lambda),
            window: 0,
            members: Members::default(),
            table: Table::new(params.zones),
            hand: 0,
        }
    }

    /// Move on to the window in which `clock` lies. Windows never go back.
    #[inline]
    pub fn advance(&mut self, clock: Nanos) {
        let window = clock.get() / self.params.window.get();
        if window > self.window {
            self.window = window;
            self.members.advance(window, &self.decay);
        }
    }

    /// A guest request arrives at `now`, in the window of `clock`.
    pub fn observe(&mut self, clock: Nanos, now: Instant, extent: Extent) {
        self.advance(clock);
        let first = self.zone_of(extent.start());
        let last = self.zone_of(Lba::new(extent.end().get() - 1));
        for number in first..=last.min(first.saturating_add(SPAN_MAX - 1)) {
            self.touch(number, now);
        }
    }

    fn zone_of(&self, lba: Lba) -> u64 {
        lba.get() / self.params.zone.get()
    }

    /// Lemma 1, equation 7, and the mean kept in step.
    fn touch(&mut self, number: u64, now: Instant) {
        for _ in 0..SWEEP {
            self.sweep_one();
        }
        let (window, unmeasured) = (self.window, u32::from(!self.params.interval_mean));
        let Some(slot) = self.table.find(number) else {
            if self.table.len() >= self.params.zones {
                self.make_room();
            }
            self.table.insert(Zone::new(number, window, now, unmeasured));
            return self.members.add(1.0, &self.decay);
        };
        let zone = self.table.at_mut(slot);
        let faded = self.decay.faded(zone.density, window - zone.window);
        if faded < DENSITY_MIN {
            zone.restart(window, now, unmeasured);
            return self.members.add(1.0, &self.decay);
        }
        self.members.remove(zone.density, zone.window, &self.decay);
        let interval = now.since(zone.arrived);
        if interval <= self.params.window || !self.params.interval_cap {
            if zone.intervals == u32::MAX {
                (zone.intervals, zone.interval_sum) = (zone.intervals / 2, zone.interval_sum / 2);
            }
            zone.intervals += 1;
            zone.interval_sum = zone.interval_sum.saturating_add(interval.get());
        }
        (zone.density, zone.window, zone.arrived) = (faded + 1.0, window, now);
        self.members.add(faded + 1.0, &self.decay);
    }

    /// The entry under the hand, and the hand moves on.
    fn turn_hand(&mut self) -> Option<u32> {
        let slots = self.table.slots();
        if slots == 0 {
            return None;
        }
        let slot = self.hand;
        self.hand = if slot + 1 < slots { slot + 1 } else { 0 };
        Some(slot)
    }

    /// Evict the entry under the hand if it has faded away.
    fn sweep_one(&mut self) {
        let Some(slot) = self.turn_hand() else { return };
        let zone = self.table.at(slot);
        if zone.density > 0.0 && self.density_of(zone) < DENSITY_MIN {
            self.table.remove(slot);
        }
    }

    /// The table is full, so that no entry is free: the least dense of the
    /// next ones leaves.
    fn make_room(&mut self) {
        let mut least: Option<(f64, u32)> = None;
        for _ in 0..VICTIMS {
            let Some(slot) = self.turn_hand() else { return };
            let density = self.density_of(self.table.at(slot));
            if least.is_none_or(|(d, _)| density < d) {
                least = Some((density, slot));
            }
        }
        let Some((_, slot)) = least else { return };
        let Zone { density, window, .. } = *self.table.at(slot);
        self.members.remove(density, window, &self.decay);
        self.table.remove(slot);
    }

    /// D(Z, T) in the current window.
    #[inline]
    fn density_of(&self, zone: &Zone) -> f64 {
        self.decay.faded(zone.density, self.window - zone.window)
    }

    /// ZT, at least the least interval.
    fn interval_of(&self, zone: &Zone) -> Nanos {
        let mean = zone.interval_sum / u64::from(zone.intervals.max(1));
        Nanos::new(mean).max(self.params.interval_min)
    }

    /// The zone's entry if it is hot.
    #[inline]
    fn hot(&self, number: u64) -> Option<&Zone> {
        let least = self.members.mean()? * TIE;
        let zone = self.table.at(self.table.find(number)?);
        (self.density_of(zone) >= least).then_some(zone)
    }

    /// δ: the density from which a zone is hot. `None` when no zone has 1 or more.
    pub fn threshold(&self) -> Option<f64> {
        self.members.mean()
    }

    /// The number of zones with a density of at least 1.
    pub fn zones_at_least_1(&self) -> usize {
        self.members.zones()
    }

    /// D(Z, T) of the zone of `lba`; zero when it is not remembered.
    pub fn density_at(&self, lba: Lba) -> f64 {
        let slot = self.table.find(self.zone_of(lba));
        let density = slot.map_or(0.0, |s| self.density_of(self.table.at(s)));
        if density < DENSITY_MIN { 0.0 } else { density }
    }

    /// The sub-region unit in which `lba` lies.
    pub fn unit_at(&self, lba: Lba) -> Option<Unit> {
        let number = self.zone_of(lba);
        if let Some(zone) = self.hot(number) {
            let alone = number.checked_add(1).is_some_and(|next| self.hot(next).is_some());
            return Some(self.unit(zone, if alone { 1 } else { 2 }));
        }
        let before = self.hot(number.checked_sub(1)?)?;
        Some(self.unit(before, 2))
    }

    fn unit(&self, zone: &Zone, zones: u64) -> Unit {
        let size = self.params.zone.get();
        let end = zone.number.saturating_add(zones).saturating_mul(size);
        let none = u32::from(!self.params.interval_mean);
        Unit {
            start: Lba::new(zone.number * size),
            end: Lba::new(end),
            interval: self.interval_of(zone),
            measured: zone.intervals > none,
        }
    }

    /// The hot zones, ascending. Looks at every zone: for people, not for schedulers.
    pub fn hot_zones(&self) -> impl Iterator<Item = HotZone> + use<> {
        let least = self.members.mean().map_or(f64::INFINITY, |mean| mean * TIE);
        let of = |zone: &Zone| HotZone {
            zone: zone.number,
            start: Lba::new(zone.number * self.params.zone.get()),
            density: self.density_of(zone),
            interval: self.interval_of(zone),
        };
        let all = (0..self.table.slots()).map(|slot| of(self.table.at(slot)));
        let mut hot: Vec<HotZone> = all.filter(|z| z.density >= least).collect();
        hot.sort_unstable_by_key(|z| z.zone);
        hot.into_iter()
    }

    /// Zones in the table, those included that have faded and wait for the sweep.
    pub fn zones(&self) -> usize {
        self.table.len()
    }

    /// The current prediction window.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// The memory that the model occupies, in bytes.
    pub fn state_bytes(&self) -> usize {
        size_of::<Self>() + self.table.bytes() + self.members.bytes() + self.decay.bytes()
    }
}

// The zones with a density of at least 1, counted and summed without a list
// of them (Definition 3).
//
// A density is known to fall below 1 in a certain window unless a request
// comes, so each zone is filed under that window; leaving the mean is then
// one subtraction for all that leave together. In its own bucket a density is
// expressed as of the bucket's window, where it lies in `[1/λ, 1)`: values of
// one magnitude, kept as integers, so that adding and taking away a million
// of them leaves no rounding behind.

/// One in a bucket's fixed-point sum: 2^20 zones below it fit 64 bits.
const ONE: f64 = (1_u64 << 43) as f64;

/// λ^-k for every k that can matter.
#[derive(Debug)]
struct Decay {
    powers: Vec<f64>,
    lambda: f64,
}

impl Decay {
    /// The powers of `lambda`, which must exceed 1.
    pub fn new(lambda: f64) -> Self {
        assert!(lambda > 1.0, "densities must decay");
        // The largest density that rounds correctly, down to the smallest kept.
        const LEAST: f64 = 1e-12 / (1_u64 << 53) as f64;
        let power = |p: &f64| (*p >= LEAST).then_some(p / lambda);
        Decay { powers: std::iter::successors(Some(1.0), power).collect(), lambda }
    }
    /// A density `age` windows later.
    #[inline]
    pub fn faded(&self, density: f64, age: u64) -> f64 {
        self.powers.get(age as usize).map_or(0.0, |power| density * power)
    }
    /// The number of windows after which a density of at least 1 is below 1.
    #[inline]
    fn lifetime(&self, density: f64) -> usize {
        let mut k = 1;
        // Densities are small: the first steps are the common ones.
        while k < 6 && density * self.powers[k] >= 1.0 {
            k += 1;
        }
        if k < 6 {
            return k;
        }
        self.powers.partition_point(|power| density * power >= 1.0)
    }
    /// The memory it occupies.
    pub fn bytes(&self) -> usize {
        self.powers.capacity() * size_of::<f64>()
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    zones: u32,
    /// Σ D(Z, the bucket's window), fixed point.
    sum: u64,
}

/// Count and sum of the densities that are at least 1.
#[derive(Debug, Default)]
struct Members {
    window: u64,
    /// Those that leave in `window + 1`, `window + 2`, …
    leaving: VecDeque<Bucket>,
    zones: u32,
    sum: f64,
}

impl Members {
    /// Number of zones in the mean.
    pub fn zones(&self) -> usize {
        self.zones as usize
    }
    /// δ: the mean of their densities.
    #[inline]
    pub fn mean(&self) -> Option<f64> {
        (self.zones > 0).then(|| self.sum / f64::from(self.zones))
    }
    /// The memory it occupies beside itself.
    pub fn bytes(&self) -> usize {
        self.leaving.capacity() * size_of::<Bucket>()
    }

    /// A later window begins. Costs a step for each bucket in use: the
    /// logarithm of the largest density.
    pub fn advance(&mut self, window: u64, decay: &Decay) {
        let passed = window - self.window;
        self.window = window;
        for _ in 0..passed.min(self.leaving.len() as u64) {
            self.zones -= self.leaving.pop_front().map_or(0, |b| b.zones);
        }
        let later = |sum, bucket: &Bucket| (sum + bucket.sum as f64 / ONE) * decay.lambda;
        self.sum = self.leaving.iter().rev().fold(0.0, later);
    }

    /// A zone gets the density `density ≥ 1` in this window.
    #[inline]
    pub fn add(&mut self, density: f64, decay: &Decay) {
        let lifetime = decay.lifetime(density);
        if self.leaving.len() < lifetime {
            self.leaving.resize(lifetime, Bucket::default());
        }
        let bucket = &mut self.leaving[lifetime - 1];
        bucket.zones += 1;
        bucket.sum += fixed(decay.faded(density, lifetime as u64));
        self.zones += 1;
        self.sum += density;
    }

    /// Take out a zone that got `density` in `window`; nothing happens when it
    /// has left by now.
    #[inline]
    pub fn remove(&mut self, density: f64, window: u64, decay: &Decay) {
        let (lifetime, age) = (decay.lifetime(density) as u64, self.window - window);
        if age >= lifetime {
            return;
        }
        let bucket = &mut self.leaving[(lifetime - age - 1) as usize];
        bucket.zones -= 1;
        bucket.sum -= fixed(decay.faded(density, lifetime));
        self.zones -= 1;
        self.sum = if self.zones == 0 { 0.0 } else { self.sum - decay.faded(density, age) };
    }
}

fn fixed(density: f64) -> u64 {
    (density * ONE) as u64
}

// The zones of one model: a hash table that grows and shrinks by constant
// steps, so that no single request pays for a million zones.
//
// Linear hashing over chains: entries lie in pages of a slab, and one more
// bucket is split off whenever there are more entries than buckets. Nothing
// is ever copied as a whole. The hash is fixed: the same requests give the
// same table, and nothing outside sees its order.

/// State of a zone: 48 bytes.
#[derive(Clone, Copy, Debug)]
struct Zone {
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
struct Table {
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

    /// Counts entries looked at by one request: a bound on its time that does
    /// not depend on the machine. Hundreds of entries, each a cache miss,
    /// stay below 20 µs.
    #[test]
    fn no_request_pays_for_a_million_zones() {
        let params = ModelParams { zones: ZONES_MAX, ..ModelParams::default() };
        let mut model = VNavigator::new(params);
        let (mut worst, mut total, mut touched) = (0, 0, 0);
        let mut touch = |model: &mut VNavigator, ms: u64, zone: u64| {
            let before = model.table.looked_at.get();
            let extent = Extent::new(Lba::new(zone * 2000), Sectors::new(8));
            let (clock, now) = (Nanos::from_millis(ms), Instant::ZERO + Nanos::from_millis(ms));
            model.observe(clock, now, extent.expect("not empty"));
            let work = model.table.looked_at.get() - before;
            (worst, total, touched) = (work.max(worst), total + work, touched + 1);
        };
        // Grow to a million; overflow; jump over thousands of windows; shrink.
        (0..1_200_000).for_each(|i| touch(&mut model, i / 100_000, i * 977));
        (0..600_000).for_each(|i| touch(&mut model, 1_000_000 + i / 10, i % 1_000));
        assert!(model.zones() <= 1_000);
        assert!(worst <= 100, "a request looked at {worst} entries");
        assert!(total / touched <= 16, "{} entries on average", total / touched);
    }
}

#[cfg(test)]
mod table_tests {
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
