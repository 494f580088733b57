//! **cfq**: complete fair queueing. A queue for each issuer, served in slices
//! of time, with idling for the issuer that is being served.
//!
//! Source: Linux `block/cfq-iosched.c`, 4.x; `generation=2.6.30` gives the form
//! that the CATS paper compares with, `generation=2.6.18` Pregather's.
//!
//! Each issuer has a synchronous queue, each VM an asynchronous one. The queue
//! that is served keeps the device for a slice, which starts at its first
//! completion. Inside, the oldest request goes if it has expired (looked at
//! once per slice), else the choose rule decides. When a synchronous queue runs
//! empty with slice left, the device is held for it up to `slice_idle`, unless
//! its issuer seeks much or thinks long. Such queues share a service tree of
//! their own, whose last queue is idled for all the same, so that the tree as a
//! whole keeps its share. Asynchronous requests go only when no synchronous one
//! is in flight. `low_latency` shrinks slices when more queues are busy than
//! fit in 300 ms.
//!
//! Where the source leaves room or Seekway differs:
//! - Shares are the VMs' (`share=vm`): one synchronous queue of each VM is in the service trees at
//!   a time, and when its slice is over or it runs empty, the VM's next one takes its place. A
//!   guest chooses its tags itself, so a share for each would give it as much as it likes. Linux
//!   does the same by control groups, where it is asked to; `share=issuer` is Linux without.
//! - Weights are the VMs': a slice is scaled by the weight of the queue's VM
//!   over the mean weight of the busy queues, so that a round keeps its length.
//! - Linux has one asynchronous queue for each priority; here each VM has one.
//! - No merging of queues and no preemption by close requests of others: VMs do
//!   not read the same file in turns. Other preemption is as in Linux (`cfq_should_preempt`): with
//!   `share=vm`, where VMs are what control groups are there, a request preempts another VM's queue
//!   only if it is synchronous and the other is not. With `share=issuer` a request also preempts a
//!   queue that has run empty and is not worth idling for, and goes to the front. So there, as in
//!   Linux, two issuers with one random request each at a time can preempt each other in turn for
//!   as long as neither pauses, and others wait.
//! - A deep queue is not idled for when it is seeky (Linux has a flag for it).
//! - Busy queues are counted as they are, not as a moving mean.
//! - Where Linux counts requests, which are merged there, commands are counted:
//!   runs of adjacent requests up to 512 KiB.
//! - In `generation=2.6.30` every issuer has a share, there is one service tree, and every synchronous
//!   queue idles for the whole of `slice_idle`, however it seeks.
//! - `generation=2.6.18` is plain round robin. Nothing preempts: its `cfq_should_preempt` asks whether
//!   the *new* queue is waited for (`cfq_cfqq_wait_request(new_cfqq)`), which only the active one is.
//!   Asynchronous requests do not wait for synchronous ones in flight, a queue goes to the back when
//!   its slice is over, a slice begins with its first dispatch, what is left of it is lost, a queue
//!   that is not idled for has 4 commands a turn (`cfq_quantum`), and the FIFO is looked at until one
//!   request has expired. A queue whose mean seek is above 64 MiB is idled for 2 ms at most, and
//!   a VM that issues an asynchronous request is idled for no longer. Not modelled: each attempt
//!   to dispatch starts the idle timer anew.
//! - On a device that does not rotate nothing is idled for.

#[cfg(test)]
mod tests;

use crate::entry::{Entry, Starves};
use crate::issuers::{IssuerId, Issuers};
use crate::runs::{BACK_SEEK_MAX, BACK_SEEK_PENALTY, Run};
use seekway_core::means::FadingMean;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links, Pool, Slots, choose};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, HOLD_MAX, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::collections::BTreeSet;

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("slice_idle", Kind::Duration, "8ms",
        "how long to wait for the issuer that is served; 0 never waits"),
    param("quantum", Kind::Count(1, 1_000_000), "8",
        "commands of one queue in flight while others wait"),
    param("fifo_expire_sync", Kind::Duration, "125ms",
        "age at which a synchronous request goes first in its queue"),
    param("fifo_expire_async", Kind::Duration, "250ms", "the same for an asynchronous one"),
    param("low_latency", Kind::Flag, "true",
        "shrink slices so that a round of all busy queues takes 300 ms"),
    param("generation", Kind::Choice(&["4.x", "2.6.30", "2.6.18"]), "4.x",
        "2.6.x: one service tree, no low_latency, every queue idles; 2.6.18: round robin without \
               preemption, a queue that seeks idles for 2 ms at most"),
    param("sync_writes", Kind::Flag, "true",
        "writes that somebody waits for are synchronous; in Linux 2.6.18 no write is"),
    param("share", Kind::Choice(&["vm", "issuer"]), "vm",
        "vm: VMs share the device, and the issuers in each its share; issuer: every issuer \
               has a share of its own"),
    param("issuer", Kind::Choice(&["process", "vm"]), "process",
        "whom requests belong to: the in-guest process where a tag is present, or the VM"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "cfq",
    summary: "slices of device time for each issuer in turn, with idling",
    source: "Linux block/cfq-iosched.c, 4.x",
    params: PARAMS,
    holds: &[ANTICIPATION, ASYNC],
    keeps: &[],
    starves: &[Starves {
        with: "",
        why: "an asynchronous queue waits until no synchronous command is in flight, and each \
              synchronous arrival preempts it (`cfq_should_preempt`): on a device with many in \
              flight, writes wait",
    }],
    build: |params| Ok(Box::new(Cfq::new(params)?)),
};

/// Held for the issuer that is served.
const ANTICIPATION: &str = "anticipation";

/// Requests wait for what is in flight: writes for synchronous ones, mostly.
const ASYNC: &str = "async";

/// The slice of an asynchronous and of a synchronous queue: Linux's defaults of `slice_async` and
/// `slice_sync`.
const SLICE: [Nanos; 2] = [Nanos::from_millis(40), Nanos::from_millis(100)];

/// Length of a round of all busy queues with `low_latency`: Linux's default.
const TARGET_LATENCY: Nanos = Nanos::from_millis(300);

/// Time that Linux 2.6.18 idles for a queue that seeks (`cfq_arm_slice_timer`).
const SEEKY_IDLE: Nanos = Nanos::from_millis(2);

/// Mean seek above which Linux 2.6.18 calls a queue seeky (`CIC_SEEKY`): 64 MiB.
const SEEK_MEAN_MAX: u64 = 128 << 10;

/// Commands of a queue in one turn in Linux 2.6.18 if it is not worth idling for (`cfq_quantum`).
const TURN_COMMANDS: u64 = 4;

/// Commands after which an asynchronous slice is over: `cfq_prio_to_maxrq` at the default priority,
/// 2 · 2 · (8 - 4), with Linux's default of 2 for `slice_async_rq`.
const ASYNC_COMMANDS_MAX: u64 = 16;

/// Longest time to hold back for commands in flight before going on regardless.
const STALL_MAX: Nanos = Nanos::from_secs(1);

#[derive(Default)]
struct Config {
    slice_idle: Nanos,
    quantum: u64,
    fifo_expire: [Nanos; 2],
    low_latency: bool,
    /// Without it all writes are asynchronous.
    sync_writes: bool,
    /// VMs share the device, and the issuers in each its share.
    share_by_vm: bool,
    /// The form of Linux 2.6.30 or 2.6.18.
    old: bool,
    /// The form of Linux 2.6.18.
    round_robin: bool,
}

/// A request's record from arrival to completion.
#[derive(Clone, Copy)]
struct RequestRecord {
    queue: QueueId,
    /// Is it the first of its command?
    leads: bool,
}

#[derive(Default)]
struct Cfq {
    config: Config,
    /// `slice_idle`, or zero while the device is known not to rotate.
    idle: Nanos,
    weights: Vec<u64>,
    queued: Pool,
    links: Links,
    known: Slots<RequestRecord>,
    /// The queues, asynchronous (one a VM) and synchronous (one an issuer).
    queues: [Issuers<Queue>; 2],
    trees: Trees,
    serving: Workload,
    workload_ends: Instant,
    active: Option<QueueId>,
    /// The active queue is idled for until then.
    idle_until: Option<Instant>,
    /// Requests are held back for what is in flight, at the latest until then.
    stall_until: Option<Instant>,
    /// Commands in flight, asynchronous and synchronous.
    in_flight: [u32; 2],
    run: Run,
    /// When a synchronous request last completed after its expiry.
    last_delayed_sync: Instant,
    slices: u64,
    idles: u64,
    idles_in_vain: u64,
    preemptions: u64,
}

impl Cfq {
    fn new(params: &Params) -> Result<Self, ParamError> {
        let generation = params.choice("generation");
        let old = generation != "4.x";
        let slice_idle = params.duration_within("slice_idle", Nanos::ZERO, HOLD_MAX)?;
        let by_process = params.choice("issuer") == "process";
        let config = Config {
            slice_idle,
            quantum: params.count("quantum"),
            fifo_expire: [
                params.duration("fifo_expire_async"),
                params.duration("fifo_expire_sync"),
            ],
            low_latency: params.flag("low_latency") && !old,
            sync_writes: params.flag("sync_writes"),
            share_by_vm: params.choice("share") == "vm" && !old,
            old,
            round_robin: generation == "2.6.18",
        };
        Ok(Cfq {
            idle: config.slice_idle,
            config,
            queues: [Issuers::new(false), Issuers::new(by_process)],
            ..Cfq::default()
        })
    }

    fn queue(&self, id: QueueId) -> &Queue {
        self.queues[id.sync as usize].get(id.issuer)
    }
    fn queue_mut(&mut self, id: QueueId) -> &mut Queue {
        self.queues[id.sync as usize].get_mut(id.issuer)
    }

    /// `cfq_select_queue`: the queue that is to be served, or until when to
    /// wait for the active one.
    fn select(&mut self, now: Instant) -> Result<QueueId, (Instant, &'static str)> {
        if let Some(id) = self.active {
            let queue = self.queue(id);
            if queue.slice_used(now) {
                self.expire(now, false);
            } else if !queue.sorted.is_empty() {
                return Ok(id);
            } else if let Some(until) = self.idle_until {
                if now < until {
                    return Err((until, ANTICIPATION));
                }
                self.idles_in_vain += 1;
                self.expire(now, true);
            } else if queue.in_flight > 0 && self.should_idle(queue) && !self.stalled(now) {
                return Err((self.stall(now), ANTICIPATION));
            } else {
                self.expire(now, false);
            }
        }
        Ok(self.activate_next(now).expect("something is queued"))
    }

    /// Until when to wait for what is in flight, from the first wait on.
    fn stall(&mut self, now: Instant) -> Instant {
        *self.stall_until.get_or_insert(now + STALL_MAX)
    }
    fn stalled(&self, now: Instant) -> bool {
        self.stall_until.is_some_and(|until| now >= until)
    }

    /// `cfq_may_dispatch`: may a queue send another command?
    fn may_dispatch(&self, now: Instant, queue: &Queue) -> bool {
        if self.config.round_robin {
            return true;
        }
        let [async_in_flight, sync_in_flight] = self.in_flight;
        if async_in_flight > 0 && self.should_idle(queue) || sync_in_flight > 0 && !queue.sync {
            return false;
        }
        let in_flight = u64::from(queue.in_flight);
        let mut limit = (self.config.quantum / 2).max(1);
        if in_flight >= limit {
            let alone = queue.sync && self.trees.busy_sync() == 1;
            let ends_soon =
                queue.slice_end.is_none_or(|end| now + self.idle.scaled(in_flight, 1) > end);
            if self.trees.busy() > 1 && ends_soon && !alone {
                return false;
            }
            limit = if self.trees.busy() == 1 || alone { u64::MAX } else { self.config.quantum };
        }
        if !queue.sync && self.config.low_latency {
            // More at once only as the last late synchronous request recedes.
            let since = now.since(self.last_delayed_sync).get();
            let depth = since / SLICE[1].get();
            limit = limit.min(if depth == 0 && in_flight == 0 { 1 } else { depth });
        }
        in_flight < limit
    }

    /// The request that the choose rule gives for a queue.
    fn chosen(&self, queue: &Queue, head: Lba) -> RequestId {
        let from = queue.position.unwrap_or(head);
        let chosen = choose(&queue.sorted, from, BACK_SEEK_MAX, BACK_SEEK_PENALTY);
        chosen.expect("queue has requests").1
    }

    /// The request of the active queue that goes next: its oldest if expired,
    /// looked at once per slice, else the chosen one.
    fn pick(&mut self, now: Instant, id: QueueId, head: Lba) -> RequestId {
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        if !queue.fifo_looked {
            queue.fifo_looked = !self.config.round_robin;
            let expire = self.config.fifo_expire[id.sync as usize];
            let oldest = queue.fifo.head().and_then(|oldest| self.queued.get(oldest));
            if let Some(oldest) = oldest.filter(|oldest| now >= oldest.arrived + expire) {
                queue.fifo_looked = true;
                return oldest.id;
            }
        }
        self.chosen(self.queue(id), head)
    }

    fn dispatch(&mut self, now: Instant, id: QueueId, request: RequestId) {
        let request = self.queued.take(request);
        let leads = !self.run.extend(&request);
        self.known.get_mut(request.id).expect("a queued request is known").leads = leads;
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        queue.sorted.remove(&request);
        queue.fifo.remove(&mut self.links, request.id);
        queue.position = Some(request.extent.end());
        queue.in_flight += leads as u32;
        queue.slice_commands += leads as u64;
        self.in_flight[id.sync as usize] += leads as u32;
        self.stall_until = None;
        if self.config.round_robin && self.queue(id).slice_end.is_none() {
            self.begin_slice(now, id);
        }
    }

    /// The time of the active queue's slice begins.
    fn begin_slice(&mut self, now: Instant, id: QueueId) {
        let end = now + self.slice(self.queue(id));
        self.queue_mut(id).slice_end = Some(end);
    }

    /// A request has left the pool unserved.
    fn leaves(&mut self, now: Instant, request: &Request) {
        let RequestRecord { queue: id, .. } = self.known.remove(request.id).expect("queued: known");
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        queue.sorted.remove(request);
        queue.fifo.remove(&mut self.links, request.id);
        let vm = queue.vm;
        let goes = queue.sorted.is_empty() && self.active != Some(id);
        if goes {
            self.trees.remove(id, queue);
        }
        self.queues[id.sync as usize].leave(id.issuer);
        if goes {
            self.succeed(now, vm);
        }
    }

    /// Has a queue had its commands for this slice, while others wait?
    fn quota_used(&self, queue: &Queue) -> bool {
        let most = match (queue.sync, queue.idle_window) {
            (false, _) => ASYNC_COMMANDS_MAX,
            (true, false) if self.config.round_robin => TURN_COMMANDS,
            (true, _) => return false,
        };
        queue.slice_commands >= most && self.trees.busy() > 1
    }

    /// Would the queue only prolong the command that is being made?
    fn continues(&self, queue: &Queue, head: Lba) -> bool {
        let request = self.queued.get(self.chosen(queue, head));
        request.is_some_and(|request| self.run.continues(request))
    }
}

impl Scheduler for Cfq {
    fn attach(&mut self, _now: Instant, vm: VmId, spec: VmSpec) {
        if self.weights.len() <= vm.index() {
            self.weights.resize(vm.index() + 1, 1);
        }
        self.weights[vm.index()] = u64::from(spec.weight.get());
    }

    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        let leaving = self.queued.take_vm(vm);
        leaving.iter().for_each(|request| self.leaves(now, request));
        if self.active.is_some_and(|id| self.queue(id).vm == vm) {
            self.expire(now, false);
        }
        for queues in &mut self.queues {
            queues.detach(vm);
        }
        leaving
    }

    fn merged(&mut self, _now: Instant, id: RequestId, extent: Extent) -> bool {
        self.run.end();
        let before = self.queued.resize(id, extent);
        let RequestRecord { queue, .. } = *self.known.get(id).expect("a queued request is known");
        self.queue_mut(queue).sorted.resize(&before, extent);
        true
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        self.leaves(now, &request);
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.run.end();
        let sync = request.sync && (self.config.sync_writes || request.op == Op::Read);
        let vm = request.vm;
        let weight = self.weights.get(vm.index()).copied().unwrap_or(1);
        let queues = &mut self.queues[sync as usize];
        let (issuer, forgotten) = queues.enter(&request, || Queue::new(now, vm, sync, weight));
        let id = QueueId { sync, issuer };
        if let Some(mut forgotten) = forgotten {
            // It may be idled for, and `id` is its place in the table.
            self.trees.remove(id, &mut forgotten);
            if self.active == Some(id) {
                self.active = None;
                self.idle_until = None;
            }
            self.succeed(now, vm);
        }
        let queue = self.queues[sync as usize].get_mut(issuer);
        queue.sorted.insert(&request);
        queue.fifo.push(&mut self.links, request.id);
        self.known.insert(request.id, RequestRecord { queue: id, leads: false });
        self.queued.insert(request);
        if queue.place.is_none() && queue.waits.is_none() {
            self.enqueue(now, id);
        }
        if sync {
            let idle = self.config.slice_idle;
            let queue = self.queues[1].get_mut(issuer);
            queue.learn_seek(&request);
            queue.think.arrived(now, idle);
            let tree = queue.place.map_or(Workload::Sync, |(workload, ..)| workload);
            self.trees.think[tree as usize].arrived(now, idle);
            self.update_idle_window(id);
        }
        let waits_for_vm = || self.active.is_some_and(|active| self.queue(active).vm == vm);
        if self.config.round_robin && !sync && self.idle_until.is_some() && waits_for_vm() {
            // An asynchronous request ends the idling for its VM (`cfq_crq_enqueued`).
            self.expire(now, false);
        } else if self.active == Some(id) {
            self.idle_until = None;
        } else if self.should_preempt(now, id) {
            self.preempt(now, id);
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.run.end();
        let request = &completion.request;
        let Some(RequestRecord { queue: id, leads }) = self.known.remove(request.id) else {
            return;
        };
        self.stall_until = None;
        self.in_flight[id.sync as usize] -= leads as u32;
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        queue.in_flight -= leads as u32;
        if id.sync {
            queue.think.last_completion = now;
            let tree = queue.place.map_or(queue.workload(), |(workload, ..)| workload);
            self.trees.think[tree as usize].last_completion = now;
            if request.arrived + self.config.fifo_expire[1] <= now {
                self.last_delayed_sync = now;
            }
        }
        if self.active == Some(id) {
            if self.queue(id).slice_end.is_none() {
                self.begin_slice(now, id);
            }
            if self.queue(id).slice_used(now) {
                self.expire(now, true);
            } else if id.sync && self.queue(id).sorted.is_empty() && self.idle_until.is_none() {
                self.arm_idle(now, id);
            }
        }
        self.queues[id.sync as usize].leave(id.issuer);
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        self.idle = if device.profile.rotational() { self.config.slice_idle } else { Nanos::ZERO };
        loop {
            let id = match self.select(now) {
                Ok(id) => id,
                Err((until, why)) => return Decision::Hold { until, why },
            };
            let queue = self.queue(id);
            if self.quota_used(queue) && !self.continues(queue, device.head) {
                self.expire(now, false);
                continue;
            }
            if !self.may_dispatch(now, queue)
                && self.in_flight != [0; 2]
                && !self.stalled(now)
                && !self.continues(queue, device.head)
            {
                return Decision::Hold { until: self.stall(now), why: ASYNC };
            }
            let request = self.pick(now, id, device.head);
            self.dispatch(now, id, request);
            return Decision::Dispatch(request);
        }
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("slices", self.slices as f64);
        sink("idles", self.idles as f64);
        sink("idles_in_vain", self.idles_in_vain as f64);
        sink("preemptions", self.preemptions as f64);
        sink("busy_queues", self.trees.busy() as f64);
    }
}

// Slices of CFQ: how long, whose turn, and what is worth waiting for.

/// The least time that a workload is given (`CFQ_MIN_TT`).
const WORKLOAD_MIN: Nanos = Nanos::from_millis(2);

impl Cfq {
    /// `cfq_scaled_cfqq_slice`: by weight, and by `low_latency`.
    fn slice(&self, queue: &Queue) -> Nanos {
        let busy = self.trees.busy().max(1) as u64;
        let standing = self.trees.standing().max(1) as u64;
        let weights = self.trees.weight.max(1);
        let base = SLICE[queue.sync as usize];
        let slice = base.scaled(queue.weight.saturating_mul(standing), weights);
        let slice_sync = SLICE[1];
        let round = slice_sync.scaled(busy, 1);
        if !self.config.low_latency || round <= TARGET_LATENCY {
            return slice;
        }
        let low = self.config.slice_idle.scaled(2 * slice.get(), slice_sync.get()).min(slice);
        slice.scaled(TARGET_LATENCY.get(), round.get()).max(low)
    }

    /// The key at which a queue goes back into its tree (`cfq_slice_offset`):
    /// the later, the more queues there are and the shorter its slices.
    fn key(&self, now: Instant, queue: &Queue) -> i64 {
        if self.config.round_robin {
            return now.as_nanos() as i64;
        }
        // The longest slice, of the highest priority, is 1.8 times the default one.
        let longest = SLICE[1].scaled(9, 5);
        let short = longest.saturating_sub(SLICE[queue.sync as usize]);
        // It stands in no tree now: those that do are the others.
        let others = self.trees.standing() as u64;
        let key = (now + short.scaled(others, 1)).as_nanos() as i64;
        key.saturating_sub(queue.residual_ns)
    }

    /// A queue has work: put it into its tree, at the back, or behind the others of its VM.
    fn enqueue(&mut self, now: Instant, id: QueueId) {
        let vm = self.queue(id).vm;
        let others = self.trees.current(vm).is_some() || self.trees.have_waiting(vm);
        if self.config.share_by_vm && id.sync && others {
            let queue = self.queues[id.sync as usize].get_mut(id.issuer);
            return self.trees.wait(id, queue);
        }
        self.insert(now, id);
    }

    /// A queue has left the trees: the next one of its VM takes its place, at the back.
    fn succeed(&mut self, now: Instant, vm: VmId) {
        if self.trees.current(vm).is_none()
            && let Some(next) = self.trees.next_waiting(vm)
        {
            self.trees.remove(next, self.queues[1].get_mut(next.issuer));
            self.insert(now, next);
        }
    }

    fn insert(&mut self, now: Instant, id: QueueId) {
        let key = self.key(now, self.queue(id));
        let old = self.config.old;
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        queue.residual_ns = 0;
        let workload = if old { Workload::Sync } else { queue.workload() };
        self.trees.insert(id, queue, workload, key);
    }

    /// The active queue gives the device up (`cfq_slice_expired`); `cut`: what
    /// is left of its slice, or what it overran, counts next time.
    fn expire(&mut self, now: Instant, cut: bool) {
        let Some(id) = self.active.take() else { return };
        self.idle_until = None;
        let whole = self.slice(self.queue(id)).get() as i64;
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        if cut {
            let left = |end: Instant| end.as_nanos() as i64 - now.as_nanos() as i64;
            queue.residual_ns = queue.slice_end.map_or(whole, left);
        }
        self.trees.remove(id, queue);
        let (vm, has_work) = (queue.vm, !queue.sorted.is_empty());
        if has_work {
            self.enqueue(now, id);
        }
        self.succeed(now, vm);
    }

    /// Choose the workload (`choose_wl_class_and_type`) and in it the next queue.
    fn activate_next(&mut self, now: Instant) -> Option<QueueId> {
        let stays = self.trees.count(self.serving) > 0 && now < self.workload_ends;
        if self.config.old {
            self.serving = Workload::Sync;
        } else if !stays {
            self.serving = self.trees.most_urgent()?;
            self.workload_ends = now + self.workload_time();
        }
        let id = self.trees.first(self.serving)?;
        self.queue_mut(id).begin_slice();
        self.active = Some(id);
        self.idle_until = None;
        self.slices += 1;
        Some(id)
    }

    /// Length of the turn of the workload in `serving`: its share of the target latency.
    fn workload_time(&self) -> Nanos {
        let count = self.trees.count(self.serving) as u64;
        let share = TARGET_LATENCY.scaled(count, self.trees.standing() as u64);
        let [slice_async, slice_sync] = SLICE;
        let time = match self.serving {
            Workload::Async => share.scaled(slice_async.get(), slice_sync.get()),
            _ => share.max(self.config.slice_idle.scaled(2, 1)),
        };
        time.max(WORKLOAD_MIN)
    }

    /// `cfq_should_idle`: is a queue worth waiting for?
    fn should_idle(&self, queue: &Queue) -> bool {
        if self.idle == Nanos::ZERO || !queue.sync {
            return false;
        }
        if queue.idle_window || self.config.old {
            return queue.idle_window;
        }
        // Not by itself; but the last one of its tree keeps the tree's share.
        let tree = queue.place.map_or(queue.workload(), |(workload, ..)| workload);
        let think = &self.trees.think[tree as usize];
        let last = self.trees.count(tree) == 1 && !self.trees.have_waiting(queue.vm);
        last && !think.is_longer_than(self.idle)
    }

    /// Decides anew whether the queue is worth idling for (`cfq_update_idle_window`).
    fn update_idle_window(&mut self, id: QueueId) {
        let (idle, old) = (self.idle, self.config.old);
        let queue = self.queue_mut(id);
        if idle == Nanos::ZERO || !old && queue.is_seeky() {
            queue.idle_window = false;
        } else if queue.think.is_known() {
            queue.idle_window = !queue.think.is_longer_than(idle);
        }
    }

    /// The active queue has run empty: wait for its issuer? (`cfq_arm_slice_timer`)
    fn arm_idle(&mut self, now: Instant, id: QueueId) {
        let (queue, round_robin) = (self.queue(id), self.config.round_robin);
        if queue.in_flight > 0 || !self.should_idle(queue) {
            return;
        }
        let left = queue.slice_end.map_or(Nanos::ZERO, |end| end.since(now));
        if !round_robin && queue.think.is_longer_than(left) {
            return;
        }
        let short = round_robin && queue.seek.is_known() && queue.seek.get() > SEEK_MEAN_MAX;
        self.idle_until = Some(now + if short { self.idle.min(SEEKY_IDLE) } else { self.idle });
        self.idles += 1;
    }

    /// `cfq_should_preempt`: does a request in the queue `new` end the active slice?
    fn should_preempt(&self, now: Instant, new: QueueId) -> bool {
        let Some(active) = self.active.map(|id| self.queue(id)) else { return false };
        let (empty, new) = (active.sorted.is_empty(), self.queue(new));
        if self.config.round_robin {
            return false;
        }
        if self.config.share_by_vm && new.vm != active.vm {
            return new.sync && !active.sync;
        }
        let both_no_idle = !self.config.old
            && self.serving == Workload::SyncNoIdle
            && new.workload() == Workload::SyncNoIdle;
        new.sync && !active.sync
            || active.slice_used(now)
            || empty && (both_no_idle || !self.should_idle(active))
    }

    fn preempt(&mut self, now: Instant, id: QueueId) {
        self.preemptions += 1;
        let before = self.active.map(|active| self.queue(active).workload());
        self.expire(now, true);
        let old = self.config.old;
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        let workload = queue.workload();
        if before != Some(workload) {
            // Another workload: its time begins anew.
            self.workload_ends = now;
        }
        self.trees.remove(id, queue);
        let vm = queue.vm;
        if self.config.share_by_vm
            && id.sync
            && let Some(other) = self.trees.current(vm)
        {
            let other_queue = self.queues[1].get_mut(other.issuer);
            self.trees.remove(other, other_queue);
            self.trees.wait(other, other_queue);
        }
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        let tree = if old { Workload::Sync } else { workload };
        self.trees.insert_front(now, id, queue, tree);
    }
}

// The service trees of CFQ: which queues have work, in the order in which
// they are to be served, by workload.

/// A queue that is put in front goes this far before the first.
const FRONT_NS: i64 = 1_000_000_000;

#[derive(Default)]
struct Trees {
    /// By key, then by order of entry.
    trees: [BTreeSet<(i64, u64, QueueId)>; 3],
    /// Think times of each tree as a whole.
    pub think: [Think; 3],
    entered: u64,
    /// Sum of the weights of all queues in the trees.
    pub weight: u64,
    /// The synchronous queues of each VM, by its number.
    vms: Vec<VmQueues>,
    /// Queues that wait for others of their VM.
    waiting: usize,
}

/// Where the shares are the VMs': one synchronous queue of each VM is in the trees at a time.
#[derive(Default)]
struct VmQueues {
    /// The one in the trees.
    current: Option<QueueId>,
    /// Those that have work and wait for their turn, by order of entry.
    waiting: BTreeSet<(u64, QueueId)>,
}

/// In the order that decides between equal keys.
const ALL: [Workload; 3] = [Workload::Sync, Workload::SyncNoIdle, Workload::Async];

impl Trees {
    /// Queues in one tree.
    pub fn count(&self, workload: Workload) -> usize {
        self.trees[workload as usize].len()
    }
    /// Queues in the trees.
    pub fn standing(&self) -> usize {
        self.trees.iter().map(BTreeSet::len).sum()
    }
    /// Queues with work, or idled for.
    pub fn busy(&self) -> usize {
        self.standing() + self.waiting
    }
    pub fn busy_sync(&self) -> usize {
        self.count(Workload::SyncNoIdle) + self.count(Workload::Sync) + self.waiting
    }

    /// The synchronous queue of a VM that is in the trees.
    pub fn current(&self, vm: VmId) -> Option<QueueId> {
        self.vms.get(vm.index())?.current
    }
    /// Do synchronous queues of a VM wait for their turn among each other?
    pub fn have_waiting(&self, vm: VmId) -> bool {
        self.vms.get(vm.index()).is_some_and(|vm| !vm.waiting.is_empty())
    }
    /// The next of them.
    pub fn next_waiting(&self, vm: VmId) -> Option<QueueId> {
        self.vms.get(vm.index())?.waiting.first().map(|&(_, id)| id)
    }
    /// Let a queue wait behind the others of its VM.
    pub fn wait(&mut self, id: QueueId, queue: &mut Queue) {
        let entered = self.entered;
        self.vm(queue.vm).waiting.insert((entered, id));
        queue.waits = Some(self.entered);
        self.entered += 1;
        self.waiting += 1;
    }
    fn vm(&mut self, vm: VmId) -> &mut VmQueues {
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, VmQueues::default);
        }
        &mut self.vms[vm.index()]
    }

    /// Put a queue in, at `key`.
    pub fn insert(&mut self, id: QueueId, queue: &mut Queue, workload: Workload, key: i64) {
        debug_assert!(queue.place.is_none(), "queue stands in two trees");
        self.trees[workload as usize].insert((key, self.entered, id));
        queue.place = Some((workload, key, self.entered));
        self.entered += 1;
        self.weight += queue.weight;
        if id.sync {
            self.vm(queue.vm).current = Some(id);
        }
    }
    /// Put a queue in, before all others of its tree.
    pub fn insert_front(&mut self, now: Instant, id: QueueId, queue: &mut Queue, of: Workload) {
        let first = self.trees[of as usize].first().map(|&(key, ..)| key);
        let key = first.unwrap_or(now.as_nanos() as i64).saturating_sub(FRONT_NS);
        self.insert(id, queue, of, key);
    }
    /// Take a queue out, if it is in or waits.
    pub fn remove(&mut self, id: QueueId, queue: &mut Queue) {
        if let Some(entered) = queue.waits.take() {
            self.vm(queue.vm).waiting.remove(&(entered, id));
            self.waiting -= 1;
        }
        let vm = self.vm(queue.vm);
        vm.current = vm.current.filter(|current| *current != id);
        if let Some((workload, key, entered)) = queue.place.take() {
            self.remove_at(id, (workload, key, entered), queue.weight);
        }
    }
    fn remove_at(&mut self, id: QueueId, (workload, key, entered): Place, weight: u64) {
        let found = self.trees[workload as usize].remove(&(key, entered, id));
        debug_assert!(found, "queue is not where it stands");
        self.weight -= weight;
    }

    /// The queue that is next in a tree.
    pub fn first(&self, workload: Workload) -> Option<QueueId> {
        self.trees[workload as usize].first().map(|&(_, _, id)| id)
    }
    /// The tree whose first queue has the lowest key.
    pub fn most_urgent(&self) -> Option<Workload> {
        let key = |w: &Workload| self.trees[*w as usize].first().map(|&(key, ..)| key);
        ALL.into_iter().filter(|w| key(w).is_some()).min_by_key(|w| key(w))
    }
}

// A queue of CFQ: the requests of one issuer, and what is known of it.

/// Names a queue: the synchronous queue of an issuer, or the asynchronous one
/// of a VM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct QueueId {
    pub sync: bool,
    pub issuer: IssuerId,
}

/// Kind of a queue's load: each has its service tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Workload {
    Async = 0,
    /// Synchronous, and not worth idling for by itself.
    SyncNoIdle = 1,
    #[default]
    Sync = 2,
}

/// Seeks longer than this count as seeks (`CFQQ_SEEK_THR`).
const SEEK_LONG: Sectors = Sectors::new(800);

/// Of the last 32 seeks, more long ones than this make a queue seeky.
const SEEKS_LONG_MAX: u32 = 4;

/// A moving mean of the time from a completion to the next arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Think {
    pub last_completion: Instant,
    mean: FadingMean,
}

impl Think {
    /// A request arrives; a gap longer than twice the idle time counts as that.
    pub fn arrived(&mut self, now: Instant, slice_idle: Nanos) {
        let longest = slice_idle.get().min(1 << 50) * 2;
        self.mean.add(now.since(self.last_completion).get().min(longest));
    }
    /// Are there enough samples?
    pub fn is_known(&self) -> bool {
        self.mean.is_known()
    }
    /// Is the mean known, and above `span`? (Without the division.)
    pub fn is_longer_than(&self, span: Nanos) -> bool {
        let limit = u128::from(span.get()) * u128::from(self.mean.samples);
        self.is_known() && u128::from(self.mean.total) > limit
    }
}

/// Where a queue stands in the service trees: tree, key, and number of entry.
type Place = (Workload, i64, u64);

struct Queue {
    pub vm: VmId,
    pub sync: bool,
    pub weight: u64,
    pub sorted: LbaQueue,
    pub fifo: ExpiryQueue,
    /// The sector after its last dispatch, from which the choose rule counts.
    pub position: Option<Lba>,
    /// Its commands on the device; requests that share one count once.
    pub in_flight: u32,
    pub think: Think,
    /// Worth idling for, by its seeks and its think time.
    pub idle_window: bool,
    pub place: Option<Place>,
    /// Order of entry among the waiting queues of its VM; `None`: does not wait.
    pub waits: Option<u64>,
    /// When its slice ends; `None` until the first completion starts it.
    pub slice_end: Option<Instant>,
    /// Time remaining of the last slice when it was cut short; negative: overrun.
    pub residual_ns: i64,
    /// Commands dispatched in this slice.
    pub slice_commands: u64,
    /// The FIFO has been looked at in this slice.
    pub fifo_looked: bool,
    /// The last 32 seeks, a bit for each long one.
    seeks: u32,
    /// Mean seek in sectors.
    seek: FadingMean,
    /// The end of the last request that arrived.
    last_end: Option<Lba>,
}

impl Queue {
    pub fn new(now: Instant, vm: VmId, sync: bool, weight: u64) -> Self {
        Queue {
            vm,
            sync,
            weight,
            sorted: LbaQueue::new(),
            fifo: ExpiryQueue::new(),
            position: None,
            in_flight: 0,
            think: Think { last_completion: now, ..Think::default() },
            idle_window: sync,
            place: None,
            waits: None,
            slice_end: None,
            residual_ns: 0,
            slice_commands: 0,
            fifo_looked: false,
            seeks: 0,
            seek: FadingMean::default(),
            last_end: None,
        }
    }

    /// Notes whether an arriving request is a long seek (`cfq_update_io_seektime`).
    pub fn learn_seek(&mut self, request: &Request) {
        let start = request.extent.start();
        let distance = self.last_end.map_or(Sectors::ZERO, |end| start.distance(end));
        self.seeks = self.seeks << 1 | (distance > SEEK_LONG) as u32;
        // Do not let one odd fragment spoil the mean.
        let slack = if self.seek.samples <= 60 { 1 << 21 } else { 1 << 17 };
        self.seek.add(distance.get().min(self.seek.get().saturating_mul(4).saturating_add(slack)));
        self.last_end = Some(request.extent.end());
    }

    pub fn is_seeky(&self) -> bool {
        self.seeks.count_ones() > SEEKS_LONG_MAX
    }

    pub fn workload(&self) -> Workload {
        match (self.sync, self.idle_window) {
            (false, _) => Workload::Async,
            (true, false) => Workload::SyncNoIdle,
            (true, true) => Workload::Sync,
        }
    }

    /// Has its slice begun and ended?
    pub fn slice_used(&self, now: Instant) -> bool {
        self.slice_end.is_some_and(|end| now >= end)
    }

    /// Begins the queue's turn on the device.
    pub fn begin_slice(&mut self) {
        self.slice_end = None;
        self.slice_commands = 0;
        self.fifo_looked = false;
    }
}
