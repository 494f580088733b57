//! **bfq**: budget fair queueing. A queue keeps the device until it has used a
//! budget of sectors; queues take turns by virtual time.
//!
//! Source: Linux `block/bfq-iosched.c` and `block/bfq-wf2q.c`, 6.12; Valente and
//! Avanzini, "Evolution of the BFQ Storage I/O Scheduler", MST 2015.
//!
//! Each VM has a queue of synchronous and one of asynchronous requests. One queue
//! is served until its budget is used, its time (125 ms) is over, or it is empty
//! and not worth waiting for. B-WF2Q+ says which is next ([`queue`]): service is in
//! sectors and shares are by weight. A budget grows when it was used up (× 4) or
//! timed out (× 2) and shrinks when its queue ran empty. A queue that was slow
//! (random, or less than half of the largest budget after 20 ms) is charged for
//! the time instead, as if it had received what the device does in that time. The
//! largest budget is what the device does in 125 ms at the peak rate that is
//! learnt ([`queue`]).
//!
//! When the queue that is served runs empty, the device waits for its next request
//! (8 ms; 2 ms if it is random; at least 20 ms if it is raised) where that helps:
//! a stream on a disk, or shares that would not hold otherwise (weights differ, it
//! is raised, it is the only one). Meanwhile others may send a few requests, as
//! many as did not slow the waited one's requests by more than half in the past
//! (injection).
//!
//! With `low_latency`, a synchronous queue of weight 1 that begins after 2 s
//! without requests is interactive: its weight is 30 times as much for 3 to 25 s
//! or 120,000 sectors. One whose requests come paced (at most 7,000 sectors a
//! second, never a backlog) is soft real time: 3,000 times for 300 ms.
//!
//! Where Seekway differs:
//! - A VM is one process. There are no queues for processes inside of a VM, so
//!   no merging of cooperating queues, no detection of bursts of new processes,
//!   and no wakers.
//! - Groups are not a level of their own: both queues of a VM have the VM's
//!   weight. With `groups=true`, VMs are idled for as different control groups
//!   are (whenever two have requests), and raising does not change their weights.
//! - I/O priorities: all are best effort.
//! - What a request needs before it is queued (a tag) is not limited.
//! - Injection looks only at the queue that is next, not at all of them.
//! - Linux can turn virtual time back when all queues have left; here it never
//!   goes back. Linux's times are in clock ticks; here they are exact.
//! - What the idle timer does is done at the first input or decision after it
//!   was due.
//! - Where Linux counts requests, which are merged there, commands are counted:
//!   runs of adjacent requests up to 512 KiB.

mod queue;
#[cfg(test)]
mod tests;

use self::queue::Queue;
use crate::entry::Entry;
use crate::runs::{BACK_SEEK_MAX, BACK_SEEK_PENALTY, Run};
use queue::{Rate, SHORT_SOLID, Tree};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{KeyedHeap, Links, Pool, Slots, choose};
use seekway_core::request::{Completion, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, HOLD_MAX, Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos};
use std::cmp::Reverse;

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("slice_idle", Kind::Duration, "8ms",
        "how long to wait for the queue that is served; 0 never waits"),
    param("max_budget", Kind::Count(0, 1 << 40), "0",
        "largest budget in sectors; 0: what the device does in 125 ms"),
    param("low_latency", Kind::Flag, "true",
        "raise the weight of interactive and soft real-time VMs"),
    param("groups", Kind::Flag, "false",
        "VMs are control groups and not processes: wait whenever two have requests"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "bfq",
    summary: "budgets of sectors by weight, with idling and raised weights",
    source: "Linux block/bfq-iosched.c and bfq-wf2q.c, 6.12",
    params: PARAMS,
    holds: &[ANTICIPATION, IN_FLIGHT],
    keeps: &[],
    starves: &[],
    build: |params| Ok(Box::new(Bfq::new(params)?)),
};

/// Held for the queue that is served.
const ANTICIPATION: &str = "anticipation";

/// The queue that is served has requests in flight and is worth waiting for.
const IN_FLIGHT: &str = "in-flight";

/// The longest turn of a queue: Linux's `timeout_sync`.
const TIMEOUT: Nanos = Nanos::from_millis(125);

/// The age at which an asynchronous, a synchronous request goes first in its queue: Linux's
/// `fifo_expire_async` and `fifo_expire_sync`.
const FIFO_EXPIRE: [Nanos; 2] = [Nanos::from_millis(250), Nanos::from_millis(125)];

/// The largest budget until the device's rate is known, in sectors.
const DEFAULT_BUDGET: u64 = 16 * 1024;

/// Why a turn ends (`enum bfqq_expiration`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    /// Idled for in vain.
    TooIdle,
    Timeout,
    Exhausted,
    Empty,
    Preempted,
}

#[derive(Default)]
struct Config {
    slice_idle: Nanos,
    low_latency: bool,
    groups: bool,
}

#[derive(Default)]
struct Bfq {
    config: Config,
    queued: Pool,
    links: Links,
    /// Of each request from arrival to completion: in flight, and the first of its command?
    known: Slots<bool>,
    /// The asynchronous queue of VM n at 2n, the synchronous one at 2n + 1.
    queues: Vec<Queue>,
    tree: Tree,
    rate: Rate,
    /// The device is known.
    begun: bool,
    max_budget: u64,
    budget_given: bool,
    /// Turns, each counted 256 times and seven eighths of it kept.
    budgets_assigned: u64,
    serving: Option<u32>,
    turn_began: Instant,
    idle_until: Option<Instant>,
    idling_since: Option<Instant>,
    busy: u32,
    raised_busy: u32,
    /// Commands of all queues that are on the device.
    in_driver: u32,
    in_driver_max: u32,
    hw_tag: Option<bool>,
    hw_tag_samples: u32,
    /// VMs with requests queued or in flight.
    vms_pending: u32,
    lightest: KeyedHeap<u64>,
    heaviest: KeyedHeap<Reverse<u64>>,
    /// Injection: others have sent since the sample began; the next dispatch of
    /// the served queue is the sample; this request is, which arrived then.
    injected: bool,
    sampling: bool,
    sample: Option<(RequestId, Instant)>,
    sample_began: Instant,
    run: Run,
    turns: u64,
    idles: u64,
    idles_in_vain: u64,
    injections: u64,
}

impl Bfq {
    fn new(params: &Params) -> Result<Self, ParamError> {
        let given = params.count("max_budget");
        let config = Config {
            slice_idle: params.duration_within("slice_idle", Nanos::ZERO, HOLD_MAX)?,
            low_latency: params.flag("low_latency"),
            groups: params.flag("groups"),
        };
        Ok(Bfq {
            config,
            rate: Rate::new(false),
            max_budget: if given > 0 { given } else { DEFAULT_BUDGET },
            budget_given: given > 0,
            ..Bfq::default()
        })
    }

    /// The rate has changed: so does the largest budget.
    fn rate_changed(&mut self) {
        if !self.budget_given {
            self.max_budget = self.rate.budget(TIMEOUT).max(1);
        }
    }

    /// `bfq_idle_slice_timer_body`, if it was due.
    fn tick(&mut self, now: Instant) {
        if self.idle_until.is_none_or(|until| now < until) {
            return;
        }
        self.idle_until = None;
        let Some(id) = self.serving else { return };
        if self.timed_out(now, id) {
            self.expire(now, id, true, Reason::Timeout);
        } else if self.queues[id as usize].sorted.is_empty() {
            self.idles_in_vain += 1;
            self.expire(now, id, true, Reason::TooIdle);
        }
    }

    /// The request of a queue that goes next: its oldest if expired, looked at
    /// once per turn, else the one that the choose rule gives.
    fn pick(&mut self, now: Instant, id: u32) -> RequestId {
        let queue = &mut self.queues[id as usize];
        if !std::mem::replace(&mut queue.fifo_looked, true) {
            let expire = FIFO_EXPIRE[usize::from(queue.sync)];
            let oldest = queue.fifo.head().and_then(|oldest| self.queued.get(oldest));
            if let Some(oldest) = oldest.filter(|oldest| now >= oldest.arrived + expire) {
                return oldest.id;
            }
        }
        self.next_request(id).expect("a queue with requests")
    }

    /// Takes a queue's next request out and charges for it (`bfq_dispatch_rq_from_bfqq`).
    fn dispatch(&mut self, now: Instant, id: u32) -> RequestId {
        let request = self.pick(now, id);
        let request = self.queued.take(request);
        let charge = self.charge(id, request.extent.len().get());
        self.receive(id, charge);
        if self.serving == Some(id) && std::mem::take(&mut self.sampling) {
            self.sample = Some((request.id, now));
        }
        let leads = !self.run.extend(&request);
        *self.known.get_mut(request.id).expect("queued: known") = leads;
        let queue = &mut self.queues[id as usize];
        queue.sorted.remove(&request);
        queue.fifo.remove(&mut self.links, request.id);
        queue.position = Some(request.extent.end());
        if self.rate.dispatched(now, &request, self.in_driver > 0) {
            self.rate_changed();
        }
        self.change(id, |queue| queue.in_flight += u32::from(leads));
        self.in_driver += u32::from(leads);
        if self.serving == Some(id) {
            self.update_raising(now, id);
        } else if self.queues[id as usize].sorted.is_empty() {
            // Injected, and it was its last.
            self.leave_busy(id);
        }
        request.id
    }

    /// A request has left the pool unserved.
    fn leaves(&mut self, request: &Request) {
        let id = queue_of(request);
        self.known.remove(request.id);
        let queue = &mut self.queues[id as usize];
        queue.sorted.remove(request);
        queue.fifo.remove(&mut self.links, request.id);
        if queue.sorted.is_empty() && queue.busy && self.serving != Some(id) {
            self.leave_busy(id);
        }
    }
}

fn queue_of(request: &Request) -> u32 {
    request.vm.index() as u32 * 2 + u32::from(request.sync)
}

impl Scheduler for Bfq {
    fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        let weight = u64::from(spec.weight.get());
        for id in 2 * vm.index()..2 * vm.index() + 2 {
            let sync = id % 2 == 1;
            let mut queue = Queue::new(now, sync, weight, self.max_budget);
            while self.queues.len() <= id {
                let sync = self.queues.len() % 2 == 1;
                self.queues.push(Queue::new(now, sync, 1, self.max_budget));
                self.tree.add(self.queues.len() as u32 - 1, 1);
            }
            // Commands of a VM that left before are still in flight.
            queue.in_flight = self.queues[id].in_flight;
            self.queues[id] = queue;
            self.tree.add(id as u32, weight);
            self.count_weight(id as u32);
        }
    }

    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        let leaving = self.queued.take_vm(vm);
        leaving.iter().for_each(|request| self.leaves(request));
        for id in 2 * vm.index() as u32..2 * vm.index() as u32 + 2 {
            if self.serving == Some(id) {
                self.expire(now, id, false, Reason::Empty);
            }
            if self.queues[id as usize].busy {
                self.leave_busy(id);
            }
            self.tree.forget(id);
        }
        leaving
    }

    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        self.leaves(&request);
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.tick(now);
        self.run.end();
        let id = queue_of(&request);
        let (rotational, idle) = (self.rate.rotational(), self.config.slice_idle);
        let queue = &mut self.queues[id as usize];
        let first = queue.sync && queue.sorted.is_empty() && queue.in_flight == 0;
        let changed = queue.learn(now, &request, rotational, idle);
        let learnt = queue.injection.base.is_some();
        let long_ago = now >= queue.injection.decreased_at + Nanos::from_millis(100);
        if changed && !learnt && (long_ago || !queue.thinks_short) {
            self.reset_injection(now, id);
        }
        self.end_seeky_raising(now, id);
        if first {
            self.first_request(now, id);
        }
        let queue = &mut self.queues[id as usize];
        let was_raised = queue.is_raised();
        queue.sorted.insert(&request);
        queue.fifo.push(&mut self.links, request.id);
        self.known.insert(request.id, false);
        self.queued.insert(request);
        let mut interactive = false;
        if !self.queues[id as usize].busy {
            interactive = self.returns(now, id);
        } else {
            self.raise_async(now, id);
            self.update_budget(id);
        }
        let queue = &mut self.queues[id as usize];
        if self.config.low_latency && (!was_raised || !queue.is_raised() || interactive) {
            queue.raising.since = now;
        }
        if self.serving == Some(id) && self.idle_until.take().is_some() && self.timed_out(now, id) {
            self.expire(now, id, false, Reason::Timeout);
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.tick(now);
        self.run.end();
        let request = &completion.request;
        let Some(leads) = self.known.remove(request.id) else { return };
        let id = queue_of(request);
        if self.sample.is_some_and(|(sample, _)| sample == request.id) {
            self.learn_injection(now, id);
        }
        if !leads {
            return;
        }
        self.learn_queueing();
        self.in_driver -= 1;
        self.change(id, |queue| queue.in_flight -= 1);
        let slice_idle = self.config.slice_idle;
        let queue = &mut self.queues[id as usize];
        if queue.in_flight == 0 && !queue.busy {
            queue.timeout = Some(now);
        }
        queue.last_completion = now;
        let empty = queue.sorted.is_empty();
        let soft = !queue.is_raised() || queue.raising.soft;
        if queue.raising.soft_due && queue.in_flight == 0 && empty && soft {
            queue.raising.soft_from = queue.soft_from(now, slice_idle);
        }
        if self.rate.completed(now) {
            self.rate_changed();
        }
        if self.serving == Some(id) {
            self.served_completed(now, id);
        }
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if !self.begun {
            self.begun = true;
            self.rate = Rate::new(device.profile.rotational());
        }
        self.tick(now);
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        match (self.select(now), self.idle_until) {
            (Next::Send(id), _) => Decision::Dispatch(self.dispatch(now, id)),
            (Next::Wait, Some(until)) => Decision::Hold { until, why: ANTICIPATION },
            (Next::Wait, None) => Decision::Wait { until: None, why: IN_FLIGHT },
        }
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("turns", self.turns as f64);
        sink("idles", self.idles as f64);
        sink("idles_in_vain", self.idles_in_vain as f64);
        sink("injected", self.injections as f64);
        sink("raised_queues", f64::from(self.raised_busy));
        sink("max_budget_sectors", self.max_budget as f64);
        sink("peak_sectors_per_s", self.rate.sectors_a_second() as f64);
    }
}

impl Bfq {
    /// `bfq_updated_next_req`: the next request of a queue may need a larger budget.
    fn update_budget(&mut self, id: u32) {
        if self.serving == Some(id) {
            return;
        }
        let charge = self.charge_next(id).expect("a busy queue has requests");
        let entity = self.tree.get_mut(id);
        let budget = self.queues[id as usize].max_budget.max(charge).max(entity.service);
        if entity.budget != budget {
            entity.budget = budget;
            self.tree.requeue(id);
        }
    }

    /// The last part of `bfq_completed_request`, for the queue that is served.
    fn served_completed(&mut self, now: Instant, id: u32) {
        let queue = &self.queues[id as usize];
        let (empty, in_flight) = (queue.sorted.is_empty(), queue.in_flight);
        let worth = self.better_to_idle(id);
        if empty && worth {
            if in_flight == 0 {
                self.arm_idle(now, id);
            }
        } else if self.idle_until.is_none() && self.timed_out(now, id) {
            self.expire(now, id, false, Reason::Timeout);
        } else if empty && (in_flight == 0 || !worth) {
            self.expire(now, id, false, Reason::Empty);
        }
    }
}

// When a queue has requests again and when it has none left: what is counted then, and whether
// one that returns takes the device.

impl Bfq {
    /// Does a VM have requests, queued or in flight?
    fn is_pending(&self, id: u32) -> bool {
        let own = id as usize & !1;
        self.queues[own..own + 2].iter().any(|queue| queue.busy || queue.in_flight > 0)
    }

    /// Change a queue; its VM may have requests now, or none any more.
    fn change(&mut self, id: u32, change: impl FnOnce(&mut Queue)) {
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
    fn leave_busy(&mut self, id: u32) {
        self.busy -= 1;
        self.raised_busy -= u32::from(self.queues[id as usize].is_raised());
        self.tree.deactivate(id);
        self.change(id, |queue| queue.busy = false);
    }

    /// `bfq_bfqq_handle_idle_busy_switch`: a queue has requests again. Is it
    /// interactive?
    fn returns(&mut self, now: Instant, id: u32) -> bool {
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

// Injection: requests of others while the queue that is served is waited for.
// How many may be in flight follows from samples: how long the first request of
// the queue took with others in flight, and how long without.

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
    fn inject(&mut self, now: Instant, id: u32) -> Option<u32> {
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
    fn first_request(&mut self, now: Instant, id: u32) {
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

    fn reset_injection(&mut self, now: Instant, id: u32) {
        let queue = &mut self.queues[id as usize];
        queue.injection.base = None;
        queue.injection.limit = u32::from(!queue.thinks_short);
        queue.injection.decreased_at = now;
        self.sample = None;
    }

    /// `bfq_update_inject_limit`: the sample is done.
    fn learn_injection(&mut self, now: Instant, id: u32) {
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
    fn learn_queueing(&mut self) {
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

// Raised weights: interactive and soft real-time queues.

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
    fn soft_from(&self, now: Instant, slice_idle: Nanos) -> Instant {
        let paced = Nanos::from_secs(1).scaled(self.raising.backlogged_service, SOFT_RATE);
        let paced = self.raising.backlogged_at + paced.min(Nanos::from_secs(3_600));
        self.raising.soft_from.max(paced).max(now + slice_idle + SOFT_EXTRA)
    }
}

impl Bfq {
    /// Give a queue the weight that it has when raised as it is now.
    fn reweigh(&mut self, id: u32) {
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
    fn raise_on_return(&mut self, now: Instant, id: u32) -> bool {
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
    fn raise_async(&mut self, now: Instant, id: u32) {
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
    fn update_raising(&mut self, now: Instant, id: u32) {
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
    fn end_seeky_raising(&mut self, now: Instant, id: u32) {
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

// Turns: which queue is served, for how long, what is waited for, and what
// others send meanwhile.

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
enum Next {
    /// A request of this queue.
    Send(u32),
    /// The queue that is served is waited for.
    Wait,
}

impl Bfq {
    fn max_budget(&self) -> u64 {
        if self.budgets_assigned < TURNS_KNOWN { DEFAULT_BUDGET } else { self.max_budget }
    }
    fn min_budget(&self) -> u64 {
        self.max_budget() / 32
    }

    /// The request of a queue that is next in its order.
    fn next_request(&self, id: u32) -> Option<RequestId> {
        let queue = &self.queues[id as usize];
        let from = queue.position.or(self.rate.last_position).unwrap_or_default();
        Some(choose(&queue.sorted, from, BACK_SEEK_MAX, BACK_SEEK_PENALTY)?.1)
    }

    /// `bfq_serv_to_charge` for the next request of a queue; `None` without one.
    fn charge_next(&self, id: u32) -> Option<u64> {
        let request = self.queued.get(self.next_request(id)?)?;
        Some(self.charge(id, request.extent.len().get()))
    }
    fn charge(&self, id: u32, sectors: u64) -> u64 {
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
    fn count_weight(&mut self, id: u32) {
        let queue = &self.queues[id as usize];
        let counts = (queue.busy || queue.in_flight > 0) && !queue.is_raised();
        self.lightest.set(id, counts.then_some(queue.weight));
        self.heaviest.set(id, counts.then_some(Reverse(queue.weight)));
    }

    /// Does idling raise throughput, no raised queue busy (`idling_boosts_thr_without_issues`)?
    fn idling_boosts(&self, id: u32) -> bool {
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
    fn better_to_idle(&self, id: u32) -> bool {
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
    fn timed_out(&self, now: Instant, id: u32) -> bool {
        self.queues[id as usize].timeout.is_none_or(|timeout| now >= timeout)
    }

    /// `bfq_select_queue`: from which queue the next request comes.
    fn select(&mut self, now: Instant) -> Next {
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
    fn arm_idle(&mut self, now: Instant, id: u32) {
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
    fn expire(&mut self, now: Instant, id: u32, idled: bool, reason: Reason) {
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
    fn receive(&mut self, id: u32, sectors: u64) {
        let raising = &mut self.queues[id as usize].raising;
        if raising.factor > 1 {
            raising.service = raising.service.saturating_add(sectors);
        }
        raising.backlogged_service = raising.backlogged_service.saturating_add(sectors);
        self.tree.served(id, sectors);
    }
}
