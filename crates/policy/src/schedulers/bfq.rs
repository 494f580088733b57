//! **bfq**: budget fair queueing. A queue keeps the device until it has used a
//! budget of sectors; queues take turns by virtual time.
//!
//! Source: Linux `block/bfq-iosched.c` and `block/bfq-wf2q.c`, 6.12; Valente and
//! Avanzini, "Evolution of the BFQ Storage I/O Scheduler", MST 2015.
//!
//! Each VM has a queue of synchronous and one of asynchronous requests. One queue
//! is served until its budget is used, its time (125 ms) is over, or it is empty
//! and not worth waiting for. B-WF2Q+ says which is next ([`tree`]): service is in
//! sectors and shares are by weight. A budget grows when it was used up (× 4) or
//! timed out (× 2) and shrinks when its queue ran empty. A queue that was slow
//! (random, or less than half of the largest budget after 20 ms) is charged for
//! the time instead, as if it had received what the device does in that time. The
//! largest budget is what the device does in 125 ms at the peak rate that is
//! learnt ([`rate`]).
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

mod busy;
mod injection;
mod queue;
mod raising;
mod rate;
#[cfg(test)]
mod tests;
mod tree;
mod turns;

use self::queue::Queue;
use self::rate::Rate;
use self::tree::Tree;
use self::turns::Next;
use super::Entry;
use super::merge::Run;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{KeyedHeap, Links, Pool, Slots};
use seekway_core::request::{Completion, Request, RequestId, VmId};
use seekway_core::scheduler::HOLD_MAX;
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
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
