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
//! number of zones: see `members.rs` for the mean and `table.rs` for the zones.
//! A zone whose density is below 10^-12 counts as gone from that moment; its
//! memory is reclaimed by a sweep that looks at two entries for each zone
//! touched, so a jump over thousands of windows costs nothing.
//!
//! **Memory.** At most [`ModelParams::zones`] zones. When a new zone finds the
//! table full, it takes the place of the least dense of the eight entries
//! under the sweep's hand. A request counts in at most [`SPAN_MAX`] zones.

mod members;
mod table;

use members::{Decay, Members};
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use table::{Table, Zone};

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
