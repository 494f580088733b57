//! Injection: requests of others while the queue that is served is waited for.
//! How many may be in flight follows from samples: how long the first request of
//! the queue took with others in flight, and how long without.

use super::Bfq;
use super::queue::SHORT_SOLID;
use seekway_core::units::{Instant, Nanos};

/// Requests in flight above which a device is known to queue, and how often they
/// are looked at for that.
const QUEUEING: u32 = 3;
const QUEUEING_SAMPLES: u32 = 32;
/// Time without samples after a limit was lowered; and time without lowering after which all is
/// learnt anew.
const INJECTION_PAUSE: Nanos = Nanos::from_millis(10);
const INJECTION_RESET: Nanos = Nanos::from_secs(1);

impl Bfq {
    /// Which queue sends while the one that is served is waited for: the VM's
    /// asynchronous one, or the next by virtual time within the limit
    /// (`bfq_choose_bfqq_for_injection`).
    pub(super) fn inject(&mut self, now: Instant, id: u32) -> Option<u32> {
        let fits = |bfq: &Bfq, other: u32| {
            let left = bfq.tree.get(other).budget_left();
            bfq.charge_next(other).is_some_and(|charge| charge <= left)
        };
        let own = id & !1;
        if self.queues[own as usize].busy && fits(self, own) {
            return Some(own);
        }
        let queue = &self.queues[id as usize];
        let always = !queue.is_raised() || !queue.thinks_short;
        if self.idling_boosts(id) || !always && self.raised_busy <= 1 {
            return None;
        }
        let overdue = self.idling_since.is_some_and(|since| now >= since + self.config.slice_idle);
        let mut limit = queue.injection.limit;
        if limit == 0 && queue.injection.base.is_none() && self.idle_until.is_some() && overdue {
            limit = 1;
        }
        if self.in_driver >= limit {
            return None;
        }
        let other = self.tree.peek_next()?;
        let request = self.queued.get(self.next_request(other)?)?;
        let large = !self.rate.rotational()
            && request.extent.len().get() >= SHORT_SOLID
            && self.in_driver >= 1;
        if large || !(always || self.queues[other as usize].is_raised()) || !fits(self, other) {
            return None;
        }
        self.injected = true;
        self.injections += 1;
        Some(other)
    }

    /// The first request of a queue that had none queued or in flight: it may be
    /// a sample for injection.
    pub(super) fn first_request(&mut self, now: Instant, id: u32) {
        let queue = &mut self.queues[id as usize];
        let injection = &mut queue.injection;
        if now >= injection.decreased_at + INJECTION_RESET {
            self.reset_injection(now, id);
        }
        let injection = &self.queues[id as usize].injection;
        let alone = self.in_driver == 0;
        let disturbed = injection.base.is_some() && self.injected;
        if self.serving == Some(id)
            && (alone || disturbed)
            && now >= injection.decreased_at + INJECTION_PAUSE
        {
            (self.sample_began, self.sampling) = (now, true);
            self.injected &= !alone;
        }
    }

    pub(super) fn reset_injection(&mut self, now: Instant, id: u32) {
        let queue = &mut self.queues[id as usize];
        queue.injection.base = None;
        queue.injection.limit = u32::from(!queue.thinks_short);
        queue.injection.decreased_at = now;
        self.sample = None;
    }

    /// `bfq_update_inject_limit`: the sample is done.
    pub(super) fn learn_injection(&mut self, now: Instant, id: u32) {
        let took = now.since(self.sample_began);
        let injection = &mut self.queues[id as usize].injection;
        let old = injection.limit;
        if let Some(base) = injection.base.filter(|_| self.injected) {
            let slow = took >= base.scaled(3, 2);
            if slow && old > 0 {
                injection.limit -= 1;
                injection.decreased_at = now;
            } else if !slow && old <= self.in_driver_max {
                injection.limit += 1;
            }
        }
        match injection.base {
            None if self.in_driver == 1 => {
                injection.limit = old.max(1);
                injection.base = Some(took);
            }
            Some(base) if took < base || !self.injected && self.in_driver == 1 => {
                injection.base = Some(took);
            }
            _ => {}
        }
        (self.sample, self.injected) = (None, false);
    }

    /// `bfq_update_hw_tag`: does the device queue?
    pub(super) fn learn_queueing(&mut self) {
        self.in_driver_max = self.in_driver_max.max(self.in_driver);
        let few = |id: u32| {
            let queue = &self.queues[id as usize];
            let queued = self.queues[id as usize & !1].sorted.len() + queue.sorted.len();
            queue.thinks_short && (queue.in_flight as usize + queued) < QUEUEING as usize
        };
        if self.hw_tag == Some(true)
            || self.in_driver as usize + self.queued.len() <= QUEUEING as usize
            || self.serving.is_some_and(few) && self.in_driver < QUEUEING
        {
            return;
        }
        self.hw_tag_samples += 1;
        if self.hw_tag_samples > QUEUEING_SAMPLES {
            self.hw_tag = Some(self.in_driver_max > QUEUEING);
            (self.in_driver_max, self.hw_tag_samples) = (0, 0);
        }
    }
}
