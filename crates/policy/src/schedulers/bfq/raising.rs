//! Raised weights: interactive and soft real-time queues.

use super::Bfq;
use super::queue::Queue;
use seekway_core::units::{Instant, Nanos};

/// Factor of a raised weight (`bfq_wr_coeff`), and the further factor in soft real time
/// (`BFQ_SOFTRT_WEIGHT_FACTOR`).
const FACTOR: u64 = 30;
const SOFT_FACTOR: u64 = 100;
/// A queue that was idle for this time is interactive.
const IDLE_MIN: Nanos = Nanos::from_millis(2_000);
/// An asynchronous queue without an arrival for this time is raised.
const ASYNC_GAP: Nanos = Nanos::from_millis(500);
/// Length of soft real time.
const SOFT_SPAN: Nanos = Nanos::from_millis(300);
/// Most sectors a second that a queue in soft real time receives.
const SOFT_RATE: u64 = 7_000;
/// Linux adds four of its clock ticks, of 4 ms with the usual 250 Hz.
const SOFT_EXTRA: Nanos = Nanos::from_millis(16);
/// Most sectors that an interactive queue receives at its raised weight.
const SERVICE_MAX: u64 = 120_000;

impl Queue {
    fn stop_raising(&mut self, now: Instant) {
        self.raising.factor = 1;
        self.raising.since = now;
    }

    /// From soft real time back to interactive (`switch_back_to_interactive_wr`).
    fn back_to_interactive(&mut self, now: Instant, span: Nanos) {
        self.raising.factor = FACTOR;
        self.raising.soft = false;
        self.raising.span = span;
        self.raising.since = self.raising.interactive_since.unwrap_or(now);
    }

    fn interactive_is_over(&self, now: Instant, span: Nanos) -> bool {
        self.raising.interactive_since.is_none_or(|since| now > since + span)
    }

    /// `bfq_bfqq_softrt_next_start`: from when on a request is soft real time.
    pub(super) fn soft_from(&self, now: Instant, slice_idle: Nanos) -> Instant {
        let paced = Nanos::from_secs(1).scaled(self.raising.backlogged_service, SOFT_RATE);
        let paced = self.raising.backlogged_at + paced.min(Nanos::from_secs(3_600));
        self.raising.soft_from.max(paced).max(now + slice_idle + SOFT_EXTRA)
    }
}

impl Bfq {
    /// Give a queue the weight that it has when raised as it is now.
    pub(super) fn reweigh(&mut self, id: u32) {
        let queue = &self.queues[id as usize];
        // A group's weight is not its processes'.
        let factor = if self.config.groups { 1 } else { queue.raising.factor };
        let weight = queue.weight * factor;
        if self.tree.get(id).weight != weight {
            self.tree.set_weight(id, weight);
        }
        self.count_weight(id);
    }

    /// A queue has requests again: is it interactive or soft real time
    /// (`bfq_bfqq_handle_idle_busy_switch`, first part)?
    pub(super) fn raise_on_return(&mut self, now: Instant, id: u32) -> bool {
        if !self.config.low_latency {
            return false;
        }
        let (span, min_budget) = (self.rate.raise_span(), self.min_budget());
        let queue = &mut self.queues[id as usize];
        let usual = queue.weight == 1 && queue.in_flight == 0;
        let interactive = usual && queue.timeout.is_none_or(|since| now > since + IDLE_MIN);
        let soft = usual && !queue.is_totally_seeky() && now > queue.raising.soft_from;
        let raising = &mut queue.raising;
        match raising.factor {
            1 if queue.sync && interactive => {
                raising.service = 0;
                (raising.factor, raising.soft, raising.span) = (FACTOR, false, span);
            }
            1 if queue.sync && soft => {
                raising.interactive_since = None;
                (raising.factor, raising.soft, raising.span) =
                    (FACTOR * SOFT_FACTOR, true, SOFT_SPAN);
            }
            1 => return interactive,
            _ if interactive => {
                (raising.factor, raising.soft, raising.span) = (FACTOR, false, span);
                return interactive;
            }
            _ => {
                if soft {
                    if !raising.soft {
                        raising.interactive_since = Some(raising.since);
                        (raising.factor, raising.soft, raising.span) =
                            (FACTOR * SOFT_FACTOR, true, SOFT_SPAN);
                    }
                    raising.since = now;
                }
                return interactive;
            }
        }
        // A raised queue has small budgets, so that its turns come soon.
        let entity = self.tree.get_mut(id);
        entity.budget = entity.budget.min(2 * min_budget);
        interactive
    }

    /// A request arrives in a busy queue: an asynchronous one that had a gap is raised.
    pub(super) fn raise_async(&mut self, now: Instant, id: u32) {
        let span = self.rate.raise_span();
        let queue = &mut self.queues[id as usize];
        let gap = now > queue.raising.since + ASYNC_GAP;
        if self.config.low_latency && !queue.sync && !queue.is_raised() && gap {
            let raising = &mut queue.raising;
            (raising.factor, raising.soft, raising.span) = (FACTOR, false, span);
            self.raised_busy += 1;
            self.reweigh(id);
        }
    }

    /// The queue that is served has sent a request: is its raising over
    /// (`bfq_update_wr_data`)?
    pub(super) fn update_raising(&mut self, now: Instant, id: u32) {
        let span = self.rate.raise_span();
        let queue = &mut self.queues[id as usize];
        if !queue.is_raised() {
            return;
        }
        let over = now > queue.raising.since + queue.raising.span;
        if over && queue.raising.soft && !queue.interactive_is_over(now, span) {
            queue.back_to_interactive(now, span);
        } else if over || !queue.raising.soft && queue.raising.service > SERVICE_MAX {
            queue.stop_raising(now);
            self.raised_busy -= u32::from(queue.busy);
        }
        self.reweigh(id);
    }

    /// A soft real-time queue has turned out to read at random.
    pub(super) fn end_seeky_raising(&mut self, now: Instant, id: u32) {
        let span = self.rate.raise_span();
        let queue = &mut self.queues[id as usize];
        if !queue.is_raised() || !queue.raising.soft || !queue.is_totally_seeky() {
            return;
        }
        if queue.interactive_is_over(now, span) {
            queue.stop_raising(now);
            self.raised_busy -= u32::from(queue.busy);
        } else {
            queue.back_to_interactive(now, span);
        }
        self.reweigh(id);
    }
}
