//! Who has had how much of the device: shares of device time by weight.
//!
//! Source: start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996), with a window instead of
//! an order: the caller may serve whom it likes among those that are not too far ahead.
//!
//! A VM's tag is the device time that it has used, over its weight. Its *lead* is how far that
//! is ahead of the least tag of the active VMs, as device time of its own. A VM that becomes
//! active starts at the least tag, at which the others were when last one was active.

use crate::queues::KeyedHeap;
use crate::units::Nanos;

/// Binary digits behind the point of a tag: a tag grows with any weight.
const FRACTION: u32 = 24;

struct Share {
    weight: u64,
    tag: u128,
    active: bool,
}

impl Share {
    fn weighed(&self, time: Nanos) -> u128 {
        match time.get().checked_mul(1 << FRACTION) {
            // Divisions of 128 bits are slow.
            Some(digits) => u128::from(digits / self.weight),
            None => (u128::from(time.get()) << FRACTION) / u128::from(self.weight),
        }
    }
}

pub struct Tags {
    shares: Vec<Option<Share>>,
    /// The active VMs by tag.
    active: KeyedHeap<u128>,
    count: usize,
    /// The highest that the least tag has been.
    reached: u128,
}

impl Tags {
    pub fn new() -> Self {
        let (shares, active) = (Vec::new(), KeyedHeap::default());
        Tags { shares, active, count: 0, reached: 0 }
    }

    pub fn attach(&mut self, vm: usize, weight: u64) {
        if self.shares.len() <= vm {
            self.shares.resize_with(vm + 1, || None);
        }
        self.shares[vm] = Some(Share { weight, tag: self.reached, active: false });
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
            share.tag = share.tag.max(self.reached);
            self.count += 1;
        } else {
            self.count -= 1;
        }
        self.active.set(vm as u32, active.then_some(share.tag));
        self.reach();
    }

    /// How many VMs are active.
    pub fn active(&self) -> usize {
        self.count
    }

    /// The VM has used, or is going to use, so much device time.
    pub fn charge(&mut self, vm: usize, time: Nanos) {
        self.change(vm, |share| share.tag += share.weighed(time));
    }

    /// A part of what it was charged was not used.
    pub fn give_back(&mut self, vm: usize, time: Nanos) {
        self.change(vm, |share| share.tag = share.tag.saturating_sub(share.weighed(time)));
    }

    fn change(&mut self, vm: usize, change: impl FnOnce(&mut Share)) {
        let Some(share) = self.shares.get_mut(vm).and_then(Option::as_mut) else { return };
        change(share);
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

    /// What the least tag has to be for the VM's lead to be no longer than `time`.
    pub fn level_at(&self, vm: usize, time: Nanos) -> u128 {
        let share = self.shares.get(vm).and_then(Option::as_ref);
        share.map_or(0, |share| share.tag.saturating_sub(share.weighed(time)))
    }
}
