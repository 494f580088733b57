//! Device time that flushes, discards and write-zeroes take is charged to their VM. No policy sees
//! them, so a VM that always has one would otherwise keep the device from all others.
//!
//! A virtual clock advances with the device time of reads and writes, divided by the weights of
//! the VMs that want some. What a VM's barrier took puts the VM's next one off until the clock has
//! advanced by as much per unit of weight: while others want the device, a VM's barriers take no
//! more of it than its weight gives it.
//!
//! What nobody else wants is free. When no other VM has a request queued, a barrier goes at once
//! if the device has room for others beside it. If it would have the device to itself, it waits
//! for a VM that was served a moment ago ([`GRACE`]) and may be about to ask for more, but no
//! longer than what is owed.

use seekway_core::request::VmId;
use seekway_core::units::{Instant, Nanos};

/// For how long a VM that was just served may think before its next request without losing its
/// turn to others' barriers.
const GRACE: Nanos = Nanos::from_millis(1);

/// Parts of a nanosecond per unit of weight that the clock counts in.
const SCALE: u128 = 1 << 10;

/// Debts of VMs for their barriers.
#[derive(Default)]
pub(super) struct Dues {
    clock: u64,
    /// By VM number: the clock at which nothing is owed.
    paid_at: Vec<u64>,
    /// The VM that last had a read or write arrive or complete, and when; and the last other one.
    recent: [Option<(VmId, Instant)>; 2],
}

/// Work for the device other than a VM's barrier.
#[derive(Clone, Copy)]
pub(super) struct Rivals {
    /// Another VM has reads or writes queued.
    pub queued: bool,
    /// The device has room for one of them beside the barrier.
    pub room: bool,
    /// When the device was last busy, if it is not now.
    pub idle_since: Instant,
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
        let paid_at = self.paid_at(vm);
        *paid_at = paid_at.saturating_add(scaled(service, weight));
    }

    /// A barrier of this VM goes: what is owed still, nobody wanted.
    pub fn goes(&mut self, vm: VmId) {
        let clock = self.clock;
        *self.paid_at(vm) = clock;
    }

    fn paid_at(&mut self, vm: VmId) -> &mut u64 {
        if self.paid_at.len() <= vm.index() {
            self.paid_at.resize(vm.index() + 1, 0);
        }
        &mut self.paid_at[vm.index()]
    }

    /// The VM leaves: the next one of its number owes nothing.
    pub fn forget(&mut self, vm: VmId) {
        if let Some(paid_at) = self.paid_at.get_mut(vm.index()) {
            *paid_at = 0;
        }
    }

    /// May a barrier of this VM, of this `weight`, go?
    pub fn turn(&self, now: Instant, vm: VmId, weight: u64, rivals: Rivals) -> Turn {
        let owed = match self.paid_at.get(vm.index()) {
            Some(&at) if at > self.clock => {
                u128::from(at - self.clock) * u128::from(weight) / SCALE
            }
            _ => return Turn::Now,
        };
        if rivals.queued {
            return Turn::Later;
        }
        let other = self.recent.iter().flatten().find(|(of, _)| *of != vm);
        let Some(&(_, last)) = other.filter(|_| !rivals.room) else { return Turn::Now };
        let owed = Nanos::new(u64::try_from(owed).unwrap_or(u64::MAX));
        let free = (last + GRACE).min(rivals.idle_since + owed);
        if now < free { Turn::At(free) } else { Turn::Now }
    }
}

fn scaled(service: Nanos, weights: u64) -> u64 {
    let units = u128::from(service.get()) * SCALE / u128::from(weights.max(1));
    u64::try_from(units).unwrap_or(u64::MAX)
}
