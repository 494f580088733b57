//! Device time that flushes, discards and write-zeroes take is charged to their VM. No policy sees
//! them, so a VM that always has one would otherwise keep the device from all others.
//!
//! A virtual clock advances with the device time of reads and writes, divided by the weights of
//! the VMs that want some. What a VM's barrier took puts the VM's next one off until the clock has
//! advanced by as much per unit of weight: while others want the device, a VM's barriers take no
//! more of it than its weight gives it. Time that nobody else wants is free: a VM whose others
//! have been quiet for [`GRACE`] does not wait.

use crate::request::VmId;
use crate::units::{Instant, Nanos};

/// For how long a VM that was just served may think before its next request without losing its
/// turn to others' barriers.
const GRACE: Nanos = Nanos::from_millis(1);

/// Parts of a nanosecond per unit of weight that the clock counts in.
const SCALE: u128 = 1 << 10;

/// What VMs owe for their barriers.
#[derive(Default)]
pub(super) struct Dues {
    clock: u64,
    /// By VM number: the clock at which nothing is owed.
    paid_at: Vec<u64>,
    /// The VM that last had a read or write arrive or complete, and when; and the last other one.
    recent: [Option<(VmId, Instant)>; 2],
}

/// May a VM's barrier go?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Now,
    /// Then, unless another VM wants the device before.
    At(Instant),
    /// When others have been served.
    Later,
}

impl Dues {
    /// A read or write of this VM has arrived or completed.
    pub fn wants(&mut self, now: Instant, vm: VmId) {
        if !matches!(self.recent[0], Some((last, _)) if last == vm) {
            self.recent[1] = self.recent[0];
        }
        self.recent[0] = Some((vm, now));
    }

    /// A command of reads or writes took `service` while VMs of these `weights` together wanted
    /// the device. It does not pay for barriers of its own VM.
    pub fn served(&mut self, vm: VmId, service: Nanos, weights: u64) {
        let step = scaled(service, weights);
        if let Some(paid_at) = self.paid_at.get_mut(vm.index()).filter(|at| **at > self.clock) {
            *paid_at = paid_at.saturating_add(step);
        }
        self.clock = self.clock.saturating_add(step);
    }

    /// A barrier of this VM took `service`.
    pub fn charge(&mut self, vm: VmId, service: Nanos, weight: u64) {
        if self.paid_at.len() <= vm.index() {
            self.paid_at.resize(vm.index() + 1, 0);
        }
        let paid_at = &mut self.paid_at[vm.index()];
        *paid_at = (*paid_at).max(self.clock).saturating_add(scaled(service, weight));
    }

    /// The VM leaves: the next one of its number owes nothing.
    pub fn forget(&mut self, vm: VmId) {
        if let Some(paid_at) = self.paid_at.get_mut(vm.index()) {
            *paid_at = 0;
        }
    }

    /// May a barrier of this VM go? `others`: another VM has reads or writes queued.
    pub fn turn(&self, now: Instant, vm: VmId, others: bool) -> Turn {
        if self.paid_at.get(vm.index()).is_none_or(|&at| at <= self.clock) {
            return Turn::Now;
        }
        if others {
            return Turn::Later;
        }
        let other = self.recent.iter().flatten().find(|(of, _)| *of != vm);
        match other.map(|&(_, at)| at + GRACE) {
            Some(free) if now < free => Turn::At(free),
            _ => Turn::Now,
        }
    }
}

fn scaled(service: Nanos, weights: u64) -> u64 {
    let units = u128::from(service.get()) * SCALE / u128::from(weights.max(1));
    u64::try_from(units).unwrap_or(u64::MAX)
}
