//! Shares of device time by weight.
//!
//! Source: start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996), with a window instead of an
//! order: the caller may serve any VM that is not too far ahead.
//!
//! A VM's tag is the device time that it has used, over its weight. Its *lead* is how far that
//! is ahead of the least tag of the active VMs, as device time of its own. A VM that becomes
//! active starts at the least tag, at which the others were when last one was active.
//!
//! A VM of a group has the part of the group's weight that its own is of those of the active VMs
//! of the group.

use seekway_core::queues::KeyedHeap;
use seekway_core::scheduler::Group;
use seekway_core::units::Nanos;

/// Binary digits behind the point of a tag: a tag grows with any weight.
const FRACTION: u32 = 24;

/// A VM that becomes active may have had less than the others by this much. 70 ms (with slices as
/// long) bring an idle VM a shorter wait, and the arena's disks a higher regret.
const LAG: Nanos = Nanos::from_millis(10);

struct Share {
    weight: u64,
    group: Option<usize>,
    /// Factor of its weight.
    boost: f64,
    tag: u128,
    active: bool,
}

/// A group with a weight.
#[derive(Clone, Copy, Default)]
struct GroupShare {
    weight: u64,
    /// The weights of its active VMs.
    active: u64,
}

impl Share {
    fn weighed(&self, time: Nanos, groups: &[GroupShare]) -> u128 {
        let Some(group) = self.group.map(|group| groups[group]) else {
            return match time.get().checked_mul(1 << FRACTION) {
                // Divisions of 128 bits are slow.
                Some(digits) if self.boost == 1.0 => u128::from(digits / self.weight),
                _ => {
                    (u128::from(time.get()) << FRACTION) / (self.weight as f64 * self.boost) as u128
                }
            };
        };
        let weight = group.weight as f64 * self.weight as f64 * self.boost;
        let part = weight / group.active.max(self.weight) as f64;
        ((u128::from(time.get()) << FRACTION) as f64 / part) as u128
    }
}

#[derive(Default)]
pub struct Tags {
    shares: Vec<Option<Share>>,
    groups: Vec<GroupShare>,
    /// The active VMs by tag.
    active: KeyedHeap<u128>,
    count: usize,
    /// The weights of the active VMs without a group and of the groups with one.
    weights: u64,
    /// The highest that the least tag has been.
    reached: u128,
}

impl Tags {
    pub fn attach(&mut self, vm: usize, weight: u64, group: Option<Group>) {
        let group = group.map(|Group { number, weight }| {
            let number = usize::from(number);
            if self.groups.len() <= number {
                self.groups.resize(number + 1, GroupShare::default());
            }
            let group = &mut self.groups[number];
            let before = std::mem::replace(&mut group.weight, u64::from(weight.get()));
            if group.active > 0 {
                self.weights = self.weights - before + group.weight;
            }
            number
        });
        if self.shares.len() <= vm {
            self.shares.resize_with(vm + 1, || None);
        }
        self.shares[vm] =
            Some(Share { weight, group, boost: 1.0, tag: self.reached, active: false });
    }

    pub fn detach(&mut self, vm: usize) {
        self.set_active(vm, false);
        self.shares[vm] = None;
    }

    /// Does the VM have work, or is its next request expected at once?
    pub fn set_active(&mut self, vm: usize, active: bool) {
        let Some(share) = self.shares.get_mut(vm).and_then(Option::as_mut) else { return };
        if share.active == active {
            return;
        }
        share.active = active;
        if active {
            let lag = share.weighed(LAG, &self.groups);
            share.tag = share.tag.max(self.reached.saturating_sub(lag));
            self.count += 1;
        } else {
            self.count -= 1;
        }
        let change = |sum: &mut u64, by: u64| *sum = if active { *sum + by } else { *sum - by };
        match share.group.map(|group| &mut self.groups[group]) {
            None => change(&mut self.weights, share.weight),
            Some(group) => {
                let was_active = group.active > 0;
                change(&mut group.active, share.weight);
                if was_active != (group.active > 0) {
                    change(&mut self.weights, group.weight);
                }
            }
        }
        self.active.set(vm as u32, active.then_some(share.tag));
        self.reach();
    }

    /// `time` by the VM's part of the device: as much for a VM that has the mean part of the
    /// active ones, more or less for another.
    pub fn by_part(&self, vm: usize, time: Nanos) -> Nanos {
        let Some(share) = self.shares.get(vm).and_then(Option::as_ref) else { return time };
        let (weight, of) = match share.group.map(|group| self.groups[group]) {
            None => (share.weight, self.weights),
            Some(group) => (
                group.weight.saturating_mul(share.weight),
                self.weights.saturating_mul(group.active),
            ),
        };
        time.scaled(weight.saturating_mul(self.count as u64), of.max(1))
    }

    /// Sets the factor of the VM's weight from now on.
    pub fn set_boost(&mut self, vm: usize, boost: f64) {
        if let Some(share) = self.shares.get_mut(vm).and_then(Option::as_mut) {
            share.boost = boost;
        }
    }

    /// Number of active VMs.
    pub fn active(&self) -> usize {
        self.count
    }

    /// Charges device time that the VM has used, or is going to use.
    pub fn charge(&mut self, vm: usize, time: Nanos) {
        self.change(vm, |tag, time| tag + time, time);
    }

    /// A part of what it was charged was not used.
    pub fn give_back(&mut self, vm: usize, time: Nanos) {
        self.change(vm, u128::saturating_sub, time);
    }

    fn change(&mut self, vm: usize, change: impl FnOnce(u128, u128) -> u128, time: Nanos) {
        let Some(share) = self.shares.get_mut(vm).and_then(Option::as_mut) else { return };
        share.tag = change(share.tag, share.weighed(time, &self.groups));
        if share.active {
            self.active.set(vm as u32, Some(share.tag));
            self.reach();
        }
    }

    fn reach(&mut self) {
        if let Some((least, _)) = self.active.first() {
            self.reached = self.reached.max(least);
        }
    }

    /// The active VM that has had least.
    pub fn first(&self) -> Option<usize> {
        self.active.first().map(|(_, vm)| vm as usize)
    }

    /// The least tag of the active VMs.
    pub fn least(&self) -> u128 {
        self.active.first().map_or(self.reached, |(tag, _)| tag)
    }

    /// Is the VM ahead of who has had least by more than `time` of its own device time?
    pub fn is_ahead(&self, vm: usize, time: Nanos) -> bool {
        self.level_at(vm, time) > self.least()
    }

    /// Least tag at which the VM's lead is no longer than `time`.
    pub fn level_at(&self, vm: usize, time: Nanos) -> u128 {
        let share = self.shares.get(vm).and_then(Option::as_ref);
        share.map_or(0, |share| share.tag.saturating_sub(share.weighed(time, &self.groups)))
    }
}
