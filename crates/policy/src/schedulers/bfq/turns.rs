//! Turns: which queue is served, for how long, what is waited for, and what
//! others send meanwhile.

use super::{Bfq, DEFAULT_BUDGET, Reason, TIMEOUT};
use crate::schedulers::merge::{BACK_SEEK_MAX, BACK_SEEK_PENALTY};
use seekway_core::queues::choose;
use seekway_core::request::RequestId;
use seekway_core::units::{Instant, Nanos};
use std::cmp::Reverse;

/// Time to idle for a seeky queue (`BFQ_MIN_TT`).
const IDLE_SEEKY: Nanos = Nanos::from_millis(2);
/// Least time to idle for a raised one.
const IDLE_RAISED: Nanos = Nanos::from_millis(20);
/// An asynchronous request is charged that many times its length.
const ASYNC_CHARGE: u64 = 3;
/// Turns (of 256) after which the measured rate gives the budgets.
const TURNS_KNOWN: u64 = 194;
/// A turn that was longer and used less than half of the largest budget was slow.
const SLOW_SPAN: Nanos = Nanos::from_millis(20);
/// Requests in flight of others that make a raised queue worth waiting for.
const OTHERS: u32 = 4;

/// The queue that may send now, or the reason that none does.
pub(super) enum Next {
    /// A request of this queue.
    Send(u32),
    /// The queue that is served is waited for.
    Wait,
}

impl Bfq {
    fn max_budget(&self) -> u64 {
        if self.budgets_assigned < TURNS_KNOWN { DEFAULT_BUDGET } else { self.max_budget }
    }
    pub(super) fn min_budget(&self) -> u64 {
        self.max_budget() / 32
    }

    /// The request of a queue that is next in its order.
    pub(super) fn next_request(&self, id: u32) -> Option<RequestId> {
        let queue = &self.queues[id as usize];
        let from = queue.position.or(self.rate.last_position).unwrap_or_default();
        Some(choose(&queue.sorted, from, BACK_SEEK_MAX, BACK_SEEK_PENALTY)?.1)
    }

    /// `bfq_serv_to_charge` for the next request of a queue; `None` without one.
    pub(super) fn charge_next(&self, id: u32) -> Option<u64> {
        let request = self.queued.get(self.next_request(id)?)?;
        Some(self.charge(id, request.extent.len().get()))
    }
    pub(super) fn charge(&self, id: u32, sectors: u64) -> u64 {
        let queue = &self.queues[id as usize];
        match queue.sync || queue.is_raised() || self.is_asymmetric(id) {
            true => sectors,
            false => sectors.saturating_mul(ASYNC_CHARGE),
        }
    }

    /// `bfq_asymmetric_scenario`: without waiting, shares would not hold.
    fn is_asymmetric(&self, id: u32) -> bool {
        if self.config.groups && self.vms_pending > 1 {
            return true;
        }
        let Some((least, _)) = self.lightest.first() else { return false };
        let most = self.heaviest.first().map_or(least, |(Reverse(most), _)| most);
        let smallest = self.lightest.get(id) == Some(least);
        most != least && !smallest
    }

    /// A queue's weight counts while it is not raised and has requests.
    pub(super) fn count_weight(&mut self, id: u32) {
        let queue = &self.queues[id as usize];
        let counts = (queue.busy || queue.in_flight > 0) && !queue.is_raised();
        self.lightest.set(id, counts.then_some(queue.weight));
        self.heaviest.set(id, counts.then_some(Reverse(queue.weight)));
    }

    /// Does idling raise throughput, no raised queue busy (`idling_boosts_thr_without_issues`)?
    pub(super) fn idling_boosts(&self, id: u32) -> bool {
        let queue = &self.queues[id as usize];
        let rotational = self.rate.rotational();
        let no_queueing = self.hw_tag == Some(false);
        let stream = !queue.is_seeky() && queue.io_bound && queue.thinks_short;
        let boosts = rotational && no_queueing || (rotational || no_queueing) && stream;
        boosts && self.raised_busy == 0
    }

    /// Do shares or raised weights need idling (`idling_needed_for_service_guarantees`)?
    fn idling_needed(&self, id: u32) -> bool {
        let queue = &self.queues[id as usize];
        let raised = queue.is_raised()
            && (self.raised_busy < self.busy || self.in_driver >= queue.in_flight + OTHERS);
        raised || self.is_asymmetric(id) || self.busy == 1
    }

    /// `bfq_better_to_idle`: is the queue worth waiting for?
    pub(super) fn better_to_idle(&self, id: u32) -> bool {
        self.config.slice_idle > Nanos::ZERO
            && self.queues[id as usize].sync
            && (self.idling_boosts(id) || self.idling_needed(id))
    }

    fn must_idle(&self, id: u32) -> bool {
        self.queues[id as usize].sorted.is_empty() && self.better_to_idle(id)
    }

    /// Is its time over, and may that end its turn (`bfq_may_expire_for_budg_timeout`)?
    fn may_time_out(&self, now: Instant, id: u32) -> bool {
        let entity = self.tree.get(id);
        let much_left = entity.budget_left() >= entity.budget / 3;
        (self.idle_until.is_none() || much_left) && self.timed_out(now, id)
    }
    pub(super) fn timed_out(&self, now: Instant, id: u32) -> bool {
        self.queues[id as usize].timeout.is_none_or(|timeout| now >= timeout)
    }

    /// `bfq_select_queue`: from which queue the next request comes.
    pub(super) fn select(&mut self, now: Instant) -> Next {
        let mut reason = Reason::Timeout;
        let mut expired =
            self.serving.is_some_and(|id| self.may_time_out(now, id) && !self.must_idle(id));
        loop {
            let Some(id) = self.serving.filter(|_| !expired) else {
                if let Some(id) = self.serving {
                    self.expire(now, id, false, reason);
                }
                self.serve_next(now);
                expired = false;
                continue;
            };
            if let Some(charge) = self.charge_next(id) {
                if charge <= self.tree.get(id).budget_left() {
                    self.idle_until = None;
                    return Next::Send(id);
                }
                reason = Reason::Exhausted;
            } else if self.idle_until.is_some()
                || self.queues[id as usize].in_flight > 0 && self.better_to_idle(id)
            {
                return self.inject(now, id).map_or(Next::Wait, Next::Send);
            } else {
                reason = Reason::Empty;
            }
            expired = true;
        }
    }

    /// `bfq_set_in_service_queue`: the next turn begins.
    fn serve_next(&mut self, now: Instant) {
        let id = self.tree.serve_next().expect("a queue with requests");
        self.serving = Some(id);
        self.turns += 1;
        self.budgets_assigned = (self.budgets_assigned * 7 + 256) / 8;
        let queue = &mut self.queues[id as usize];
        queue.fifo_looked = false;
        let raising = &mut queue.raising;
        // The time without a turn is not part of its soft real time.
        if raising.factor > 1
            && raising.soft
            && now > raising.since
            && let Some(before) = queue.timeout.filter(|&before| now > before)
        {
            raising.since =
                if before > raising.since { raising.since + now.since(before) } else { now };
        }
        let longer = if raising.soft && raising.factor > 1 { 1 } else { raising.factor };
        queue.timeout = Some(now + TIMEOUT.scaled(longer, 1));
        self.turn_began = now;
    }

    /// The queue that is served has run empty: wait (`bfq_arm_slice_timer`).
    pub(super) fn arm_idle(&mut self, now: Instant, id: u32) {
        let queue = &self.queues[id as usize];
        let mut span = self.config.slice_idle;
        if queue.is_seeky() && !queue.is_raised() && !self.is_asymmetric(id) {
            span = span.min(IDLE_SEEKY);
        } else if queue.is_raised() {
            span = span.max(IDLE_RAISED);
        }
        self.idle_until = Some(now + span);
        self.idling_since = Some(now);
        self.idles += 1;
    }

    /// `bfq_bfqq_expire`: the turn of the queue that is served is over;
    /// `idled`: since the wait began nothing came.
    pub(super) fn expire(&mut self, now: Instant, id: u32, idled: bool, reason: Reason) {
        let end = if idled { self.idling_since.unwrap_or(now) } else { now };
        self.charge_for_time(end, id, reason);
        let queue = &mut self.queues[id as usize];
        if self.config.low_latency {
            if !queue.is_raised() {
                queue.raising.since = now;
            }
            if queue.sorted.is_empty() {
                match queue.in_flight {
                    0 => queue.raising.soft_from = queue.soft_from(now, self.config.slice_idle),
                    _ => queue.raising.soft_due = true,
                }
            }
        }
        (self.injected, self.sampling, self.sample) = (false, false, None);
        self.recalculate_budget(id, reason);
        let keeps = reason == Reason::Preempted && self.idling_needed(id);
        let queue = &mut self.queues[id as usize];
        if queue.sorted.is_empty() && !keeps {
            if queue.in_flight == 0 {
                queue.timeout = Some(now);
            }
            self.leave_busy(id);
        } else {
            self.tree.requeue(id);
        }
        (self.serving, self.idle_until, self.idling_since) = (None, None, None);
        let queue = &mut self.queues[id as usize];
        if !queue.busy && !matches!(reason, Reason::Timeout | Reason::Exhausted) {
            queue.may_return = true;
        } else {
            self.tree.get_mut(id).service = 0;
        }
    }

    /// A slow queue is charged for the time that it had the device
    /// (`bfq_bfqq_is_slow`, `bfq_bfqq_charge_time`).
    fn charge_for_time(&mut self, end: Instant, id: u32, reason: Reason) {
        let (queue, entity) = (&self.queues[id as usize], self.tree.get(id));
        let mut span = end.since(self.turn_began);
        let mut slow = queue.sync && queue.is_seeky();
        if !queue.sync {
            // Linux leaves the time zero.
            span = Nanos::ZERO;
        } else if span < Nanos::from_millis(1) {
            let rotational = self.rate.rotational();
            span = if rotational { self.config.slice_idle } else { IDLE_SEEKY };
        } else if span > SLOW_SPAN {
            slow = entity.service < self.max_budget / 2;
        }
        let unused = reason == Reason::Timeout && entity.budget_left() >= entity.budget / 3;
        if queue.is_raised() || !(slow || unused) {
            return;
        }
        let share = u128::from(span.min(TIMEOUT).get());
        let worth = u128::from(self.max_budget) * share / u128::from(TIMEOUT.get());
        let service = (worth as u64).max(entity.service);
        let more = service - entity.service;
        let entity = self.tree.get_mut(id);
        entity.budget = entity.budget.max(service);
        self.receive(id, more);
    }

    /// Sets the next budget by why the turn has ended (`__bfq_bfqq_recalc_budget`).
    fn recalculate_budget(&mut self, id: u32, reason: Reason) {
        let (min, most) = (self.min_budget(), self.max_budget);
        let service = self.tree.get(id).service;
        let queue = &mut self.queues[id as usize];
        let mut budget = if queue.is_raised() { 2 * min } else { queue.max_budget };
        if queue.sync && !queue.is_raised() {
            budget = match reason {
                Reason::TooIdle if queue.in_flight > 0 => (budget * 2).min(most),
                Reason::TooIdle if budget > 5 * min => budget - 4 * min,
                Reason::TooIdle => min,
                Reason::Timeout => (budget * 2).min(most),
                Reason::Exhausted => (budget * 4).min(most),
                Reason::Empty => service.max(min),
                Reason::Preempted => return,
            };
        } else if !queue.sync {
            budget = most;
        }
        if self.budgets_assigned >= TURNS_KNOWN && !self.budget_given {
            budget = budget.min(most);
        }
        queue.max_budget = budget;
        if let Some(charge) = self.charge_next(id) {
            self.tree.get_mut(id).budget = budget.max(charge);
        }
    }

    /// A queue receives service.
    pub(super) fn receive(&mut self, id: u32, sectors: u64) {
        let raising = &mut self.queues[id as usize].raising;
        if raising.factor > 1 {
            raising.service = raising.service.saturating_add(sectors);
        }
        raising.backlogged_service = raising.backlogged_service.saturating_add(sectors);
        self.tree.served(id, sectors);
    }
}
