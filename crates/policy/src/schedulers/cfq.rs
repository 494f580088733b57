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
//!   not read the same file in turns. Other preemption is as in Linux.
//! - A deep queue is not idled for when it is seeky (Linux has a flag for it).
//! - Busy queues are counted as they are, not as a moving mean.
//! - Where Linux counts requests, which are merged there, commands are counted:
//!   runs of adjacent requests up to 512 KiB.
//! - In `generation=2.6.30` every issuer has a share, there is one service tree, and every synchronous
//!   queue idles for the whole of `slice_idle`, however it seeks.
//! - `generation=2.6.18` differs from it in one thing: a queue that seeks idles for 2 ms at most. Linux
//!   2.6.18 calls a queue seeky by its mean seek (64 MiB); here the rule of 4.x decides. Its
//!   `cfq_quantum` was 4, which nothing shows at queue depth 1.
//! - On a device that does not rotate nothing is idled for.

mod queue;
mod slices;
#[cfg(test)]
mod tests;
mod trees;

use self::queue::{Queue, QueueId, Workload};
use self::trees::Trees;
use super::issuers::Issuers;
use super::merge::{BACK_SEEK_MAX, BACK_SEEK_PENALTY, Run};
use super::{Entry, Starves};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{Links, Pool, Slots, choose};
use seekway_core::request::{Completion, Op, Request, RequestId, VmId};
use seekway_core::scheduler::HOLD_MAX;
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos};

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
        "2.6.x: one service tree, no low_latency, every queue idles; 2.6.18: one that seeks \
               for 2 ms at most"),
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
    /// Time to idle for a queue that seeks, if at all.
    seeky_idle: Nanos,
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
            seeky_idle: if generation == "2.6.18" {
                slice_idle.min(SEEKY_IDLE)
            } else {
                slice_idle
            },
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
            queue.fifo_looked = true;
            let expire = self.config.fifo_expire[id.sync as usize];
            let oldest = queue.fifo.head().and_then(|oldest| self.queued.get(oldest));
            if let Some(oldest) = oldest.filter(|oldest| now >= oldest.arrived + expire) {
                return oldest.id;
            }
        }
        self.chosen(self.queue(id), head)
    }

    fn dispatch(&mut self, id: QueueId, request: RequestId) {
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

    /// Has an asynchronous queue had its commands for this slice, while others wait?
    fn async_quota_used(&self, queue: &Queue) -> bool {
        !queue.sync && queue.slice_commands >= ASYNC_COMMANDS_MAX && self.trees.busy() > 1
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
        if self.active == Some(id) {
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
                let end = now + self.slice(self.queue(id));
                self.queue_mut(id).slice_end = Some(end);
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
            if self.async_quota_used(queue) && !self.continues(queue, device.head) {
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
            self.dispatch(id, request);
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
