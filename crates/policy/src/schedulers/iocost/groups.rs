//! The VMs with their weights, budgets and virtual times.

use super::Virtual;
use seekway_core::queues::ExpiryQueue;
use seekway_core::units::{Instant, Lba};

/// Shares are in parts of this (`WEIGHT_ONE`).
pub(super) const WHOLE: u64 = 1 << 16;
/// Weights in use grow by this percentage of the weight while a budget is short.
const STEP_PERCENT: u64 = 25;

/// Where the oldest request of a VM stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Head {
    /// There is none, or it has not been looked at.
    #[default]
    Unseen,
    /// Waits for budget; the cost in picoseconds.
    Waiting(u64),
    /// Is paid for and waits for a tag.
    Blocked,
}

/// A VM's weights, budget and virtual time (`ioc_gq`).
#[derive(Default)]
pub(super) struct Group {
    /// Changes whenever the VM leaves, so that late completions find out.
    pub generation: u32,
    pub weight: u64,
    /// Its weight while it is active; zero while it is not.
    pub active: u64,
    /// The share in use: the rest is given to the others.
    pub inuse: u64,
    /// The share in use before the last change.
    pub last_inuse: u64,
    /// Advances by the cost of what is sent, and of what is done.
    pub vtime: Virtual,
    pub done_vtime: Virtual,
    /// The budget when the weight in use was last set.
    pub saved_margin: Virtual,
    /// The last period in which something was sent.
    pub active_period: u64,
    pub activated_at: Instant,
    /// Costs in this period, in picoseconds.
    pub usage: u64,
    /// Where its last request ended.
    pub cursor: Option<Lba>,
    pub fifo: ExpiryQueue,
    pub head: Head,
}

impl Group {
    pub fn is_waiting(&self) -> bool {
        matches!(self.head, Head::Waiting(_))
    }
}

/// The VMs by number, and those that are active.
#[derive(Default)]
pub(super) struct Groups {
    pub all: Vec<Group>,
    /// Numbers of the active VMs.
    pub active: Vec<u16>,
    active_sum: u64,
    inuse_sum: u64,
}

/// A cost in picoseconds as a VM with that share pays it (`abs_cost_to_cost`).
pub(super) fn charged(cost: u64, share: u64) -> Virtual {
    (Virtual::from(cost) * Virtual::from(WHOLE) + Virtual::from(share) - 1) / Virtual::from(share)
}

fn ratio(part: u64, sum: u64) -> u64 {
    if sum == 0 {
        return WHOLE;
    }
    ((u128::from(part) * u128::from(WHOLE) / u128::from(sum)) as u64).clamp(1, WHOLE)
}

impl Groups {
    /// `hweight_active`: a VM's share by weight among the active ones.
    pub fn share(&self, vm: usize) -> u64 {
        ratio(self.all[vm].active, self.active_sum)
    }
    /// `hweight_inuse`: its share after what is given away.
    pub fn share_in_use(&self, vm: usize) -> u64 {
        ratio(self.all[vm].inuse, self.inuse_sum)
    }
    /// Its share if it used all its weight and the others went on as they do.
    pub fn share_at_most(&self, vm: usize) -> u64 {
        let group = &self.all[vm];
        ratio(group.active, self.inuse_sum + group.active - group.inuse)
    }

    /// `__propagate_weights`: set what a VM's weight is and what of it is in use.
    pub fn set(&mut self, vm: usize, active: u64, inuse: u64) {
        let group = &mut self.all[vm];
        let inuse = if active == 0 { 0 } else { inuse.clamp(1, active) };
        group.last_inuse = group.inuse;
        self.active_sum = self.active_sum - group.active + active;
        self.inuse_sum = self.inuse_sum - group.inuse + inuse;
        (group.active, group.inuse) = (active, inuse);
    }

    /// As [`Groups::set`]; remembers the VM's budget at `vnow`.
    pub fn set_and_save(&mut self, vm: usize, inuse: u64, vnow: Virtual) {
        self.set(vm, self.all[vm].active, inuse);
        let group = &mut self.all[vm];
        group.saved_margin = vnow - group.vtime;
    }

    /// `adjust_inuse_and_calc_cost`: what a request costs its VM. If its budget
    /// has run below `low` since it gave weight away, it takes back as much as
    /// the request needs.
    pub fn cost(&mut self, vm: usize, cost: u64, low: Virtual, vnow: Virtual) -> Virtual {
        let mut charge = charged(cost, self.share_in_use(vm));
        let group = &self.all[vm];
        let margin = vnow - group.vtime - charge;
        if margin >= group.saved_margin || margin >= low || group.inuse == group.active {
            return charge;
        }
        let step = (group.active * STEP_PERCENT).div_ceil(100);
        loop {
            let inuse = self.all[vm].inuse.saturating_add(step);
            self.set_and_save(vm, inuse, vnow);
            charge = charged(cost, self.share_in_use(vm));
            let group = &self.all[vm];
            if group.vtime + charge <= vnow || group.inuse == group.active {
                return charge;
            }
        }
    }

    /// `transfer_surpluses` for one level: the donors keep the shares in
    /// `donors`, and the others get the rest in proportion to their weights.
    pub fn transfer(&mut self, donors: &mut [(u16, u64)], vnow: Virtual) {
        let after_sum: u64 = donors.iter().map(|&(_, after)| after).sum();
        if after_sum >= WHOLE {
            // Those above their share shrink, so that something is left for the others.
            let above =
                |groups: &Groups, &(vm, after): &(u16, u64)| after > groups.share(usize::from(vm));
            let over: u64 = donors.iter().filter(|d| above(self, d)).map(|d| d.1).sum();
            let target = over.saturating_sub(after_sum - (WHOLE - 1));
            for donor in donors.iter_mut().filter(|d| above(self, d)) {
                donor.1 = (donor.1 * target / over).max(1);
            }
        }
        let donating: u64 = donors.iter().map(|&(vm, _)| self.share(usize::from(vm))).sum();
        let donating = donating.min(WHOLE - 1);
        let after: u64 = donors.iter().map(|&(_, after)| after).sum();
        let after = after.min(donating.saturating_sub(1));
        if after == 0 {
            return;
        }
        let kept = u128::from(self.active_sum) * u128::from(WHOLE - donating);
        let sum = kept.div_ceil(u128::from(WHOLE - after));
        for &(vm, after) in donors.iter() {
            let inuse = (sum * u128::from(after)).div_ceil(u128::from(WHOLE)) as u64;
            self.set_and_save(usize::from(vm), inuse, vnow);
        }
    }
}
