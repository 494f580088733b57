//! **iocost**: a budget of device time for each VM, by a model of what requests
//! cost, which passes slower when the device is overloaded.
//!
//! Source: Linux `block/blk-iocost.c`, 6.12; Heo et al., "IOCost: Block IO
//! Control for Containers in Datacenters", ASPLOS 2022.
//!
//! *Cost.* A request costs a base, for a random request (more than 16 MiB from
//! where the VM's last one ended) or a sequential one, and an amount for each
//! 4 KiB. Both follow from six figures of the device: bytes a second, and
//! sequential and random requests of 4 KiB a second, of reads and of writes. The
//! kernel has these for four classes of devices; the class is chosen by rotation
//! and depth, and a solid-state drive moves to the faster class when the rate has
//! been 500 % for ten seconds, and back at 10 %.
//!
//! *Budget.* Virtual time of the device passes at a rate that begins at 100 %.
//! Each active VM has a virtual time of its own, which advances by the cost of a
//! request divided by the VM's share; a request may go while the VM's time does
//! not pass the device's. Otherwise it waits, and the policy holds until the
//! budget will suffice. A VM that becomes active has half a period of budget.
//!
//! *Giving.* At the end of each period, a VM that has used less than its share
//! gives weight away if somebody is short, so that it keeps half a period of
//! budget; what it has above that is thrown away, and the rate is raised within
//! the next period to make up for it. When its budget runs below a fifth of a
//! period it takes weight back, in steps of a quarter.
//!
//! *Rate.* The device is overloaded when requests that were paid for waited for
//! room (a tag) for more than 5 % of the period, or, if `rpct` or `wpct` is set,
//! when too many requests exceeded their latency target. Overload in several
//! periods in a row lowers the rate by 1 to 16 %; spare capacity while some VM
//! is short of budget raises it.
//!
//! Where Seekway differs:
//! - VMs are one level of groups; there is no hierarchy.
//! - A VM is one issuer, as a thread is that Linux blocks: only its oldest
//!   request stands before the budget, and the next one when this one is paid for
//!   and has a tag.
//! - Below the budget stand tags and a queue in order of arrival, as Linux has
//!   with the simplest elevator. There are as many tags as Linux gives a device of
//!   that depth with an elevator (`nr_requests`): twice the depth, from 64 (a SATA
//!   drive's) to 256. Waiting for one of them is what counts as waiting for room.
//! - No debts: in Linux swapping and metadata go at once and are paid for
//!   later, and their issuer is delayed. No such request is known here, and
//!   requests that are forced past the policy are charged to nobody.
//! - A request that will be coalesced pays as a sequential one, and not only for
//!   its size as in a merge.
//! - Timers do their work at the first input or decision after they were due,
//!   with the time at which they were due. Beyond 16 periods in a row without an
//!   input, the rest counts as one. Linux lets a wake-up come up to 1 % of a
//!   period late; here it comes when it is due.
//! - Virtual time is in picoseconds, rates in millionths.

mod groups;
mod model;
mod period;
#[cfg(test)]
mod tests;

use self::groups::{Group, Groups, Head, charged};
use self::model::{CLASSES, Figures, HDD, Model, SSD, SSD_QD1, given_figures};
use self::period::{Clock, Counted, MARGIN_LOW, MARGIN_TARGET, MILLION};
use super::Entry;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{KeyedHeap, Links, Pool, Slots};
use seekway_core::request::{Completion, Op, Request, RequestId, VmId};
use seekway_core::scheduler::HOLD_MAX;
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos};
use std::collections::VecDeque;

/// Device virtual time, in picoseconds.
type Virtual = i128;

const FIGURE_MAX: u64 = 1_000_000_000_000;
const FIGURE: Kind = Kind::Count(0, FIGURE_MAX);
const BYTES: Kind = Kind::Bytes(FIGURE_MAX);

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("rbps", BYTES, "0",
        "bytes a second that the device reads; 0, here and below: the figure of the device's class"),
    param("rseqiops", FIGURE, "0", "sequential reads of 4 KiB a second"),
    param("rrandiops", FIGURE, "0", "random reads of 4 KiB a second"),
    param("wbps", BYTES, "0", "bytes a second that the device writes"),
    param("wseqiops", FIGURE, "0", "sequential writes of 4 KiB a second"),
    param("wrandiops", FIGURE, "0", "random writes of 4 KiB a second"),
    param("rpct", Kind::Number(0.0, 100.0), "0",
        "percentile of reads' latencies that has to meet rlat; 0: latency does not count"),
    param("rlat", Kind::DurationOr("class"), "class",
        "latency target of reads; the period is a multiple of it"),
    param("wpct", Kind::Number(0.0, 100.0), "0", "the same percentile of writes"),
    param("wlat", Kind::DurationOr("class"), "class", "latency target of writes"),
    param("min", Kind::Number(1.0, 10_000.0), "1",
        "lowest rate of the device's virtual time, in percent"),
    param("max", Kind::Number(1.0, 10_000.0), "10000", "highest rate"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "iocost",
    summary: "budgets of modelled device time by weight, at a rate that overload lowers",
    source: "Linux block/blk-iocost.c, 6.12",
    params: PARAMS,
    holds: &[BUDGET, TAGS],
    keeps: &[],
    starves: &[],
    build: |params| Ok(Box::new(IoCost::new(params)?)),
};

/// No VM with requests has budget.
const BUDGET: &str = "budget";
/// All tags are taken by what is in flight.
const TAGS: &str = "tags";

/// The depths whose double is the number of tags (a SATA drive's, `BLKDEV_DEFAULT_RQ`).
const DEPTH_MIN: u32 = 32;
const DEPTH_MAX: u32 = 128;

/// The latency that a percentile of the requests has to keep.
#[derive(Clone, Copy, Default)]
struct Qos {
    /// The percentile in millionths; zero: none.
    ppm: u64,
    given: Option<Nanos>,
    latency: Nanos,
}

/// A request's record from arrival to completion.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The generation of its VM.
    generation: u32,
    /// Charge, and when it was paid; `None` until then.
    paid: Option<(Instant, Virtual)>,
    /// When it got its tag.
    tagged: Option<Instant>,
}

#[derive(Default)]
struct IoCost {
    /// Given figures: then the class stays.
    figures: Option<Figures>,
    /// Of reads, of writes.
    qos: [Qos; 2],
    /// Some of it was given: then the class stays.
    qos_given: bool,
    /// Lowest and highest rate.
    rates: (u64, u64),
    class: usize,
    /// The class changes with the rate.
    steps: bool,
    too_fast_since: Option<Instant>,
    too_slow_since: Option<Instant>,
    /// `None` until the device is known.
    model: Option<Model>,
    clock: Clock,
    counted: Counted,
    groups: Groups,
    /// When the budgets of VMs that wait will suffice.
    kicks: KeyedHeap<Instant>,
    tags: u32,
    tags_taken: u32,
    /// VMs whose oldest request is paid for and has no tag, in that order; some may be gone.
    blocked: VecDeque<VmId>,
    /// Requests that have a tag, in that order; some may be gone.
    tagged: VecDeque<RequestId>,
    queued: Pool,
    links: Links,
    known: Slots<Known>,
    /// Kept between periods for its memory.
    donors: Vec<(u16, u64)>,
}

impl IoCost {
    fn new(params: &Params) -> Result<Self, ParamError> {
        let (min, max) = (params.number("min"), params.number("max"));
        if min > max {
            return Err(ParamError::new(format!("min={min} is above max={max}")));
        }
        let given = |pct, lat| Qos {
            ppm: (params.number(pct) * 10_000.0) as u64,
            given: params.duration_or_word(lat),
            latency: Nanos::ZERO,
        };
        Ok(IoCost {
            figures: given_figures(params),
            qos: [given("rpct", "rlat"), given("wpct", "wlat")],
            qos_given: ["rpct", "rlat", "wpct", "wlat", "min", "max"]
                .iter()
                .any(|key| params.is_given(key)),
            rates: ((min * 10_000.0) as u64, (max * 10_000.0) as u64),
            class: SSD,
            ..IoCost::default()
        })
    }

    /// `ioc_refresh_params`: take over a class's figures.
    fn set_class(&mut self, class: usize) {
        self.class = class;
        (self.too_fast_since, self.too_slow_since) = (None, None);
        let of = &CLASSES[class];
        for qos in &mut self.qos {
            qos.latency = qos.given.unwrap_or(of.latency);
        }
        let [read, write] = self.qos;
        let slower = if read.latency >= write.latency { read } else { write };
        self.clock.set_period(slower.latency, slower.ppm);
        self.model = Some(Model::new(of, self.figures));
    }

    /// The device is known: choose its class, and look at what has arrived.
    #[cold]
    fn begin(&mut self, now: Instant, device: &DeviceView<'_>) {
        let class = match (device.profile.rotational(), device.depth) {
            (true, _) => HDD,
            (false, 0..=1) => SSD_QD1,
            _ => SSD,
        };
        let given = self.figures.is_some() || self.qos_given;
        self.steps = class == SSD && !given;
        self.set_class(class);
        self.tags = 2 * device.depth.clamp(DEPTH_MIN, DEPTH_MAX);
        for vm in 0..self.groups.all.len() {
            self.throttle(now, vm);
        }
    }

    /// `iocg_activate`: a VM that sends something has a share and half a period of budget.
    fn activate(&mut self, now: Instant, vm: usize) {
        let group = &mut self.groups.all[vm];
        group.active_period = self.clock.number;
        if group.active > 0 {
            return;
        }
        if !self.clock.running {
            self.clock.start(now);
        }
        let vnow = self.clock.virtual_now(now);
        let group = &mut self.groups.all[vm];
        let vtime = vnow - self.clock.margin(MARGIN_TARGET);
        group.done_vtime += vtime - group.vtime;
        group.vtime = vtime;
        group.activated_at = now;
        group.usage = 0;
        let inuse = if group.last_inuse > 0 { group.last_inuse } else { group.weight };
        let weight = group.weight;
        self.groups.set(vm, weight, inuse);
        self.groups.all[vm].saved_margin = vnow - vtime;
        self.groups.active.push(vm as u16);
    }

    /// `ioc_rqos_throttle` for a VM's requests, the oldest first: each is paid for
    /// if there is budget; otherwise the VM waits.
    fn throttle(&mut self, now: Instant, vm: usize) {
        let Some(model) = self.model else { return };
        while let Some(id) = self.groups.all[vm].fifo.head() {
            self.activate(now, vm);
            let vnow = self.clock.virtual_now(now);
            let low = self.clock.margin(MARGIN_LOW);
            let group = &mut self.groups.all[vm];
            let request = self.queued.get(id).expect("in a queue: queued");
            let cost = model.cost(request, group.cursor);
            group.cursor = Some(request.extent.end());
            let charge = self.groups.cost(vm, cost, low, vnow);
            let group = &mut self.groups.all[vm];
            if group.vtime + charge <= vnow {
                if self.pay(now, vm, cost, charge) {
                    continue;
                }
                return;
            }
            group.head = Head::Waiting(cost);
            if group.inuse != group.active {
                let all = group.active;
                self.groups.set_and_save(vm, all, vnow);
            }
            self.kick(now, vm);
            return;
        }
    }

    /// `iocg_commit_bio`: the oldest request of a VM is paid for. Has it got a
    /// tag? If not, the VM is blocked.
    fn pay(&mut self, now: Instant, vm: usize, cost: u64, charge: Virtual) -> bool {
        let group = &mut self.groups.all[vm];
        group.vtime += charge;
        group.usage = group.usage.saturating_add(cost);
        let id = group.fifo.head().expect("a VM with a request");
        self.known.get_mut(id).expect("queued: known").paid = Some((now, charge));
        self.kicks.set(vm as u32, None);
        if self.tags_taken < self.tags {
            self.give_tag(now, vm);
            return true;
        }
        self.groups.all[vm].head = Head::Blocked;
        self.blocked.push_back(VmId::new(vm as u16));
        false
    }

    /// The oldest request of a VM gets a tag, and goes where policies cannot tell
    /// VMs apart.
    fn give_tag(&mut self, now: Instant, vm: usize) {
        let group = &mut self.groups.all[vm];
        group.head = Head::Unseen;
        let id = group.fifo.head().expect("a VM with a request");
        group.fifo.remove(&mut self.links, id);
        self.known.get_mut(id).expect("queued: known").tagged = Some(now);
        self.tags_taken += 1;
        self.tagged.push_back(id);
    }

    /// Tags have been returned: VMs that were blocked go on, in their order.
    fn unblock(&mut self, now: Instant) {
        while self.tags_taken < self.tags
            && let Some(vm) = self.blocked.pop_front()
        {
            if self.groups.all[vm.index()].head == Head::Blocked {
                self.give_tag(now, vm.index());
                self.throttle(now, vm.index());
            }
        }
    }

    /// `iocg_kick_waitq`: pay for what waits if the budget suffices, or say when it will.
    fn kick(&mut self, now: Instant, vm: usize) {
        let group = &self.groups.all[vm];
        let Head::Waiting(cost) = group.head else { return };
        let charge = charged(cost, self.groups.share_in_use(vm));
        let shortage = group.vtime + charge - self.clock.virtual_now(now);
        if shortage <= 0 {
            if self.pay(now, vm, cost, charge) {
                self.throttle(now, vm);
            }
            return;
        }
        let slack = self.clock.slack();
        let at = now + self.clock.time(shortage) + slack.max(Nanos::new(1));
        let close = |old: Instant| at.since(old) <= slack && old.since(at) <= slack;
        if !self.kicks.get(vm as u32).is_some_and(close) {
            self.kicks.set(vm as u32, Some(at));
        }
    }

    /// The request that has had its tag for longest.
    fn next_tagged(&mut self) -> Option<RequestId> {
        loop {
            let id = self.tagged.pop_front()?;
            if self.queued.get(id).is_some()
                && self.known.get(id).is_some_and(|known| known.tagged.is_some())
            {
                return Some(id);
            }
        }
    }

    /// A request has left the pool unserved.
    fn leaves(&mut self, request: &Request) {
        let known = self.known.remove(request.id).expect("queued: known");
        let group = &mut self.groups.all[request.vm.index()];
        if known.tagged.is_some() {
            self.tags_taken -= 1;
        } else {
            if group.fifo.head() == Some(request.id) {
                group.head = Head::Unseen;
                self.kicks.set(request.vm.index() as u32, None);
            }
            group.fifo.remove(&mut self.links, request.id);
        }
        if let Some((_, charge)) = known.paid {
            group.vtime -= charge;
        }
    }
}

impl Scheduler for IoCost {
    fn attach(&mut self, _now: Instant, vm: VmId, spec: VmSpec) {
        if self.groups.all.len() <= vm.index() {
            self.groups.all.resize_with(vm.index() + 1, Group::default);
        }
        let generation = self.groups.all[vm.index()].generation + 1;
        let weight = u64::from(spec.weight.get()) * groups::WHOLE;
        self.groups.all[vm.index()] = Group { generation, weight, ..Group::default() };
    }

    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        let leaving = self.queued.take_vm(vm);
        leaving.iter().for_each(|request| self.leaves(request));
        self.groups.all[vm.index()].generation += 1;
        self.groups.set(vm.index(), 0, 0);
        self.groups.active.retain(|&active| usize::from(active) != vm.index());
        self.unblock(now);
        leaving
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        self.leaves(&request);
        if self.groups.all[request.vm.index()].head == Head::Unseen {
            self.throttle(now, request.vm.index());
        }
        self.unblock(now);
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.advance(now);
        let vm = request.vm.index();
        let group = &mut self.groups.all[vm];
        let known = Known { generation: group.generation, paid: None, tagged: None };
        let first = group.fifo.is_empty();
        group.fifo.push(&mut self.links, request.id);
        self.known.insert(request.id, known);
        self.queued.insert(request);
        if first {
            self.throttle(now, vm);
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.advance(now);
        let request = &completion.request;
        let Some(known) = self.known.remove(request.id) else { return };
        let (Some((paid, charge)), Some(tagged)) = (known.paid, known.tagged) else { return };
        self.tags_taken -= 1;
        self.unblock(now);
        let group = &mut self.groups.all[request.vm.index()];
        if group.generation == known.generation {
            group.done_vtime += charge;
        }
        let Some(model) = &self.model else { return };
        let write = usize::from(request.op == Op::Write);
        let taken = now.since(paid).saturating_sub(model.size_time(request));
        match taken <= self.qos[write].latency {
            true => self.counted.met[write] += 1,
            false => self.counted.missed[write] += 1,
        }
        self.counted.waited += tagged.since(paid);
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if self.model.is_none() {
            self.begin(now, device);
        }
        self.advance(now);
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        if let Some(id) = self.next_tagged() {
            self.queued.take(id);
            return Decision::Dispatch(id);
        }
        let Some((kick, _)) = self.kicks.first() else {
            return Decision::Wait { until: None, why: TAGS };
        };
        let until = kick.min(self.clock.end()).max(now + Nanos::new(1));
        Decision::Hold { until: until.min(now + HOLD_MAX), why: BUDGET }
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("rate_percent", self.clock.base_rate as f64 * 100.0 / MILLION as f64);
        sink("busy_level", f64::from(self.clock.busy_level));
        sink("class", self.class as f64);
        sink("periods", self.clock.number as f64);
        sink("active_vms", self.groups.active.len() as f64);
    }

    fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        for &vm in &self.groups.active {
            let share = self.groups.share_in_use(usize::from(vm)) as f64 / groups::WHOLE as f64;
            sink("share_in_use", VmId::new(vm), share);
        }
    }
}
