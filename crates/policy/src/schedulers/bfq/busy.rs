//! When a queue has requests again and when it has none left: what is counted then, and whether
//! one that returns takes the device.

use super::queue::Queue;
use super::{Bfq, Reason};
use seekway_core::units::Instant;

impl Bfq {
    /// Does a VM have requests, queued or in flight?
    fn is_pending(&self, id: u32) -> bool {
        let own = id as usize & !1;
        self.queues[own..own + 2].iter().any(|queue| queue.busy || queue.in_flight > 0)
    }

    /// Change a queue; its VM may have requests now, or none any more.
    pub(super) fn change(&mut self, id: u32, change: impl FnOnce(&mut Queue)) {
        let before = self.is_pending(id);
        change(&mut self.queues[id as usize]);
        match (before, self.is_pending(id)) {
            (false, true) => self.vms_pending += 1,
            (true, false) => self.vms_pending -= 1,
            _ => {}
        }
        self.count_weight(id);
    }

    /// `bfq_del_bfqq_busy`: a queue has no requests left.
    pub(super) fn leave_busy(&mut self, id: u32) {
        self.busy -= 1;
        self.raised_busy -= u32::from(self.queues[id as usize].is_raised());
        self.tree.deactivate(id);
        self.change(id, |queue| queue.busy = false);
    }

    /// `bfq_bfqq_handle_idle_busy_switch`: a queue has requests again. Is it
    /// interactive?
    pub(super) fn returns(&mut self, now: Instant, id: u32) -> bool {
        let queue = &mut self.queues[id as usize];
        let in_time = now <= queue.last_completion + self.config.slice_idle.scaled(3, 1);
        let in_time = std::mem::take(&mut queue.may_return) && in_time;
        let max_budget = queue.max_budget;
        let charge = self.charge_next(id).expect("a request has arrived");
        let entity = self.tree.get_mut(id);
        let left = entity.budget_left();
        let in_time = in_time && left > 0;
        entity.budget = if in_time { left.min(max_budget) } else { max_budget.max(charge) };
        entity.service = 0;
        let interactive = self.raise_on_return(now, id);
        let raising = &mut self.queues[id as usize].raising;
        (raising.backlogged_at, raising.backlogged_service) = (now, 0);
        raising.soft_due = false;
        let factor = raising.factor;
        self.reweigh(id);
        self.tree.activate(id, in_time, factor);
        self.change(id, |queue| queue.busy = true);
        self.busy += 1;
        self.raised_busy += u32::from(factor > 1);
        if let Some(serving) = self.serving.filter(|&serving| serving != id) {
            let raised = self.queues[serving as usize].raising.factor;
            let heavier = self.tree.get(id).weight > self.tree.get(serving).weight;
            if in_time && factor >= raised || heavier || !self.better_to_idle(serving) {
                self.expire(now, serving, false, Reason::Preempted);
            }
        }
        interactive
    }
}
