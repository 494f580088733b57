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

#[cfg(test)]
mod tests;

use crate::entry::Entry;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, KeyedHeap, Links, Pool, Slots};
use seekway_core::request::{Completion, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, HOLD_MAX, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos};
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
        let weight = u64::from(spec.weight.get()) * WHOLE;
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
            let share = self.groups.share_in_use(usize::from(vm)) as f64 / WHOLE as f64;
            sink("share_in_use", VmId::new(vm), share);
        }
    }
}

// The VMs with their weights, budgets and virtual times.

/// Shares are in parts of this (`WEIGHT_ONE`).
const WHOLE: u64 = 1 << 16;

/// Weights in use grow by this percentage of the weight while a budget is short.
const STEP_PERCENT: u64 = 25;

/// Where the oldest request of a VM stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Head {
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
struct Group {
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
struct Groups {
    pub all: Vec<Group>,
    /// Numbers of the active VMs.
    pub active: Vec<u16>,
    active_sum: u64,
    inuse_sum: u64,
}

/// A cost in picoseconds as a VM with that share pays it (`abs_cost_to_cost`).
fn charged(cost: u64, share: u64) -> Virtual {
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

// Cost of a request (`calc_lcoefs`, `calc_vtime_cost_builtin`), and the classes of devices that
// the kernel has coefficients for (`autop`).

/// Picoseconds in a second. Costs are in picoseconds of device time.
const SECOND_PS: u64 = 1_000_000_000_000;

/// Costs count 4 KiB pages.
const PAGE_BYTES: u64 = 4096;

const PAGE_SECTORS: u64 = 8;

/// A request that begins further than that from the VM's last one is random (16 MiB).
const RANDOM_PAGES: u64 = 4096;

/// Longer requests cost as if they were that long (1 GiB), so that a cost stays finite.
const PAGES_MAX: u64 = 1 << 18;

/// Figures of a device, from which its coefficients follow, of reads and of writes: bytes a
/// second, sequential requests of 4 KiB a second, random ones.
type Figures = [[u64; 3]; 2];

/// A class of devices.
struct Class {
    /// Latency target of reads and writes.
    pub latency: Nanos,
    pub figures: Figures,
    /// A device that is faster than this percentage is of the next class.
    pub too_fast_percent: Option<u64>,
    /// One that is slower is of the class before.
    pub too_slow_percent: Option<u64>,
}

const HDD: usize = 0;

const SSD_QD1: usize = 1;

const SSD: usize = 2;

/// `autop`, in the kernel's order.
static CLASSES: [Class; 4] = [
    // hdd
    Class {
        latency: Nanos::from_millis(250),
        figures: [[174_019_176, 41_708, 370], [178_075_866, 42_705, 378]],
        too_fast_percent: None,
        too_slow_percent: None,
    },
    // ssd-qd1
    Class {
        latency: Nanos::from_millis(25),
        figures: [[245_855_193, 61_575, 6_946], [141_365_009, 33_716, 26_796]],
        too_fast_percent: None,
        too_slow_percent: None,
    },
    // ssd
    Class {
        latency: Nanos::from_millis(25),
        figures: [[488_636_629, 8_932, 8_518], [427_891_549, 28_755, 21_940]],
        too_fast_percent: Some(500),
        too_slow_percent: None,
    },
    // ssd-fast
    Class {
        latency: Nanos::from_millis(5),
        figures: [[3_102_524_156, 724_816, 778_122], [1_742_780_862, 425_702, 443_193]],
        too_fast_percent: None,
        too_slow_percent: Some(10),
    },
];

/// The figures that parameters give; `None` if they leave all to the class.
fn given_figures(params: &Params) -> Option<Figures> {
    let keys = [("rbps", ["rseqiops", "rrandiops"]), ("wbps", ["wseqiops", "wrandiops"])];
    let figures = keys.map(|(bytes, counts)| {
        let [sequential, random] = counts.map(|key| params.count(key));
        [params.bytes(bytes), sequential, random]
    });
    (figures != Figures::default()).then_some(figures)
}

/// The coefficients of one direction, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Coefficients {
    pub page: u64,
    pub sequential: u64,
    pub random: u64,
}

impl Coefficients {
    /// `calc_lcoefs`. A figure of zero makes its part free.
    fn new([bytes, sequential, random]: [u64; 3]) -> Self {
        let page = match bytes.div_ceil(PAGE_BYTES) {
            0 => 0,
            pages => SECOND_PS.div_ceil(pages),
        };
        let base = |iops: u64| match iops {
            0 => 0,
            iops => SECOND_PS.div_ceil(iops).saturating_sub(page),
        };
        Coefficients { page, sequential: base(sequential), random: base(random) }
    }
}

/// The cost model of a device: of reads and of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Model([Coefficients; 2]);

impl Model {
    /// By the class's figures, each replaced by the given one unless that is zero.
    pub fn new(class: &Class, given: Option<Figures>) -> Self {
        let given = given.unwrap_or_default();
        let either = |op: usize, n: usize| match given[op][n] {
            0 => class.figures[op][n],
            given => given,
        };
        Model([0, 1].map(|op| Coefficients::new([0, 1, 2].map(|n| either(op, n)))))
    }

    fn of(&self, op: Op) -> &Coefficients {
        &self.0[usize::from(op != Op::Read)]
    }

    /// Cost of a request in all; `cursor` is where the VM's last one ended.
    pub fn cost(&self, request: &Request, cursor: Option<Lba>) -> u64 {
        let of = self.of(request.op);
        let pages = (request.extent.len().get() / PAGE_SECTORS).clamp(1, PAGES_MAX);
        let start = request.extent.start();
        let seek = cursor.map_or(0, |cursor| start.distance(cursor).get() / PAGE_SECTORS);
        let base = if seek > RANDOM_PAGES { of.random } else { of.sequential };
        base + pages * of.page
    }

    /// The part of the cost that is for the size (`calc_size_vtime_cost`).
    pub fn size_time(&self, request: &Request) -> Nanos {
        let pages = (request.extent.len().get() / PAGE_SECTORS).min(PAGES_MAX);
        Nanos::new(pages * self.of(request.op).page / 1_000)
    }
}

// The clock of the device's virtual time, and what happens at the end of a
// period (`ioc_timer_fn`).

/// A rate of 100 %, in millionths.
const MILLION: u64 = 1_000_000;

/// Bounds of a period.
const PERIOD_MIN: Nanos = Nanos::from_millis(1);

const PERIOD_MAX: Nanos = Nanos::from_secs(1);

/// Margins of a budget, in percent of a period.
const MARGIN_MIN: u64 = 10;

const MARGIN_LOW: u64 = 20;

const MARGIN_TARGET: u64 = 50;

/// Waiting for the device above this percentage of a period is overload.
const WAIT_BUSY_PERCENT: u64 = 5;

/// Below this percentage of the thresholds the device is not busy.
const UNBUSY_PERCENT: u64 = 75;

/// Periods for which a request in flight counts as lagging.
const LAGGING_PERIODS: Virtual = 10;

/// Time for which a device is too fast or too slow for its class before the class changes.
const CLASS_CYCLE: Nanos = Nanos::from_secs(10);

/// Percentage by which a rate out of bounds goes back.
const CLAMP_PERCENT: u64 = 4;

/// Periods without an input that are made up for one by one.
const CATCH_UP_MAX: u32 = 16;

/// `vrate_adj_pct`: by how many percent the rate changes at that level.
fn adjustment(level: i32) -> u64 {
    match level.unsigned_abs() {
        0..=3 => 0,
        4..=19 => 1,
        20..=35 => 2,
        36..=43 => 4,
        44..=51 => 8,
        _ => 16,
    }
}

/// Device virtual time (vtime): how fast it runs, and in which period it is.
struct Clock {
    pub running: bool,
    /// Number of the period: how many have ended before it.
    pub number: u64,
    pub period: Nanos,
    /// When the period began.
    pub at: Instant,
    at_virtual: Virtual,
    /// The rate against the wall clock, in millionths, by how busy the device is.
    pub base_rate: u64,
    /// As `base_rate`, with a correction for budget that was thrown away.
    rate: u64,
    /// Budget that was thrown away and has not been made up for, negative.
    error: Virtual,
    /// Above zero: periods of overload in a row; below: of spare capacity.
    pub busy_level: i32,
}

impl Default for Clock {
    fn default() -> Self {
        Clock {
            running: false,
            number: 0,
            period: PERIOD_MAX,
            at: Instant::ZERO,
            at_virtual: 0,
            base_rate: MILLION,
            rate: MILLION,
            error: 0,
            busy_level: 0,
        }
    }
}

impl Clock {
    /// `ioc_refresh_period_us`: by the latency target and its percentile in millionths.
    pub fn set_period(&mut self, latency: Nanos, ppm: u64) {
        let times = if ppm > 0 { ((MILLION - ppm) / 50_000).max(2) } else { 2 };
        self.period = latency.scaled(times, 1).clamp(PERIOD_MIN, PERIOD_MAX);
    }

    pub fn virtual_now(&self, now: Instant) -> Virtual {
        let elapsed = Virtual::from(now.since(self.at).get());
        self.at_virtual + elapsed * Virtual::from(self.rate) / 1_000
    }
    pub fn end(&self) -> Instant {
        self.at + self.period
    }
    /// Work in picoseconds as time at the base rate.
    pub fn time(&self, work: Virtual) -> Nanos {
        let ns = (work.max(0) as u128 * 1_000).div_ceil(u128::from(self.base_rate.max(1)));
        Nanos::new(u64::try_from(ns).unwrap_or(u64::MAX / 4).min(u64::MAX / 4))
    }
    /// A percentage of a period in virtual time.
    pub fn margin(&self, percent: u64) -> Virtual {
        let period = Virtual::from(self.period.get()) * Virtual::from(self.base_rate);
        period * Virtual::from(percent) / 100_000
    }
    /// Tolerance of a wake-up.
    pub fn slack(&self) -> Nanos {
        Nanos::new(self.period.get() / 100)
    }

    pub fn start(&mut self, now: Instant) {
        let vnow = self.virtual_now(now);
        (self.at, self.at_virtual) = (now, vnow);
        self.running = true;
    }

    /// The rate is 100 % again.
    fn reset_rate(&mut self, now: Instant) {
        self.start_rate(now, MILLION);
        self.base_rate = MILLION;
    }
    fn start_rate(&mut self, now: Instant, rate: u64) {
        let vnow = self.virtual_now(now);
        (self.at, self.at_virtual, self.rate) = (now, vnow, rate);
    }

    /// `ioc_refresh_vrate`: make up for thrown away budget within the period.
    fn compensate(&mut self, now: Instant) {
        let base = Virtual::from(self.base_rate);
        let left = Virtual::from(self.end().since(now).get());
        if left > 0 {
            let more = (-self.error * 1_000 / left).clamp(-(base / 2), base);
            self.error += more * left / 1_000;
            self.start_rate(now, (base + more) as u64);
        }
        let bound = self.margin(100);
        self.error = self.error.clamp(-bound, bound);
    }
}

/// Counts of a period.
#[derive(Default)]
struct Counted {
    /// Reads and writes within their latency target, and over it.
    pub met: [u64; 2],
    pub missed: [u64; 2],
    /// Time for which requests that were paid for waited for a tag.
    pub waited: Nanos,
}

impl Counted {
    /// Misses of reads (0) or of writes (1), in millionths, rounded up.
    fn missed_ppm(&self, write: usize) -> u64 {
        let all = self.met[write] + self.missed[write];
        (self.missed[write] * MILLION).div_ceil(all.max(1))
    }
}

impl IoCost {
    /// Do what timers were due by `now`, in their order.
    fn advance(&mut self, now: Instant) {
        let mut periods = 0;
        loop {
            let ends = Some(self.clock.end()).filter(|&at| self.clock.running && at <= now);
            let kick = self.kicks.first().filter(|&(at, _)| at <= now);
            match (ends, kick) {
                (Some(ends), kick) if kick.is_none_or(|(at, _)| ends <= at) => {
                    periods += 1;
                    self.end_period(if periods < CATCH_UP_MAX { ends } else { now });
                }
                (_, Some((at, vm))) => {
                    self.kicks.set(vm, None);
                    self.kick(at, vm as usize);
                }
                (_, None) => return,
            }
        }
    }

    /// Ends a period: donates unused shares and adjusts the rate (`ioc_timer_fn`).
    fn end_period(&mut self, now: Instant) {
        let vnow = self.clock.virtual_now(now);
        self.check_groups(now, vnow);
        let mut donors = std::mem::take(&mut self.donors);
        let (shortages, lagging) = self.find_surpluses(now, vnow, &mut donors);
        if !donors.is_empty() && shortages > 0 {
            self.groups.transfer(&mut donors, vnow);
        }
        donors.clear();
        self.donors = donors;
        self.judge(shortages > 0, lagging > 0);
        self.adjust_rate(lagging > 0);
        self.classify(now);
        self.counted = Counted::default();
        self.clock.number += 1;
        if self.groups.active.is_empty() {
            self.clock.running = false;
            (self.clock.busy_level, self.clock.error) = (0, 0);
        } else {
            self.clock.start(now);
            self.clock.compensate(now);
        }
    }

    /// `ioc_check_iocgs`: wake those that wait, put to rest those that were idle.
    fn check_groups(&mut self, now: Instant, vnow: Virtual) {
        let mut at = 0;
        while let Some(&vm) = self.groups.active.get(at) {
            let vm = usize::from(vm);
            let group = &self.groups.all[vm];
            let idle = group.active_period != self.clock.number && group.done_vtime == group.vtime;
            if group.is_waiting() {
                self.kick(now, vm);
            } else if idle && group.head == Head::Unseen {
                let excess = vnow - group.vtime - self.clock.margin(MARGIN_TARGET);
                let share = Virtual::from(self.groups.share_in_use(vm));
                self.clock.error -= excess.max(0) * share / Virtual::from(WHOLE);
                self.groups.set(vm, 0, 0);
                self.groups.active.swap_remove(at);
                continue;
            }
            at += 1;
        }
    }

    /// Finds VMs that do not use all of their budget, and appends them to `donors` with the share
    /// that each has afterwards. Counts VMs that are short of budget, and VMs with requests of past
    /// periods in flight.
    fn find_surpluses(
        &mut self,
        now: Instant,
        vnow: Virtual,
        donors: &mut Vec<(u16, u64)>,
    ) -> (u32, u32) {
        let (mut shortages, mut lagging) = (0, 0);
        let latency = self.qos.iter().any(|qos| qos.ppm > 0);
        let period = vnow - self.clock.at_virtual;
        for at in 0..self.groups.active.len() {
            let id = self.groups.active[at];
            let vm = usize::from(id);
            let usage = std::mem::take(&mut self.groups.all[vm].usage);
            let group = &self.groups.all[vm];
            let (vtime, done) = (group.vtime, group.done_vtime);
            let late = vtime > done && vtime > vnow - LAGGING_PERIODS * period;
            lagging += u32::from(latency && late && done < vnow - period);
            let low = vnow - self.clock.margin(MARGIN_LOW);
            let gives = self.groups.share_in_use(vm) < self.groups.share(vm);
            if !gives && (group.is_waiting() || vtime >= low) {
                shortages += 1;
                continue;
            }
            let usage = self.usage_share(now, vm, usage);
            let most = self.groups.share_at_most(vm);
            let after = self.share_after_donation(vm, most, usage, vnow);
            if after < most && self.groups.share(vm) >= 2 {
                donors.push((id, after));
            } else {
                let all = self.groups.all[vm].active;
                self.groups.set_and_save(vm, all, vnow);
                shortages += 1;
            }
        }
        (shortages, lagging)
    }

    /// The share of the device that a VM used in this period; `usage` in picoseconds.
    fn usage_share(&self, now: Instant, vm: usize, usage: u64) -> u64 {
        let group = &self.groups.all[vm];
        let flying = (group.vtime - group.done_vtime).max(0);
        let flying = flying * Virtual::from(self.groups.share_in_use(vm));
        let work = Virtual::from(usage).max(flying / Virtual::from(WHOLE));
        let span = now.since(group.activated_at.max(self.clock.at)).get().max(1);
        let used = self.clock.time(work).scaled(WHOLE, span).get();
        used.clamp(1, WHOLE)
    }

    /// `hweight_after_donation`: the share that leaves half a period's budget at
    /// the end of the next one. Throws away budget above that.
    fn share_after_donation(&mut self, vm: usize, most: u64, usage: u64, vnow: Virtual) -> u64 {
        let margin = self.clock.margin(MARGIN_MIN);
        let share = Virtual::from(self.groups.share_in_use(vm));
        let group = &mut self.groups.all[vm];
        if group.is_waiting() || group.vtime > vnow - margin {
            return most;
        }
        let excess = vnow - group.vtime - self.clock.margin(MARGIN_TARGET);
        if excess > 0 {
            group.vtime += excess;
            group.done_vtime += excess;
            self.clock.error -= excess * share / Virtual::from(WHOLE);
        }
        let whole = Virtual::from(WHOLE);
        let period = (vnow - self.clock.at_virtual).max(1);
        let delta = whole * (vnow - group.vtime) / period;
        let target = whole * Virtual::from(MARGIN_TARGET) / 100;
        let after = whole * Virtual::from(usage) / (whole - target + delta).max(1);
        after.clamp(1, Virtual::from(most)) as u64
    }

    /// How busy was the device?
    fn judge(&mut self, shortages: bool, lagging: bool) {
        let waited = self.counted.waited.scaled(100, self.clock.period.get()).get();
        let missed = [0, 1].map(|write| self.counted.missed_ppm(write));
        let allowed = [0, 1].map(|write| MILLION - self.qos[write].ppm);
        let level = &mut self.clock.busy_level;
        if waited > WAIT_BUSY_PERCENT || missed[0] > allowed[0] || missed[1] > allowed[1] {
            *level = (*level).max(0) + 1;
        } else if waited <= WAIT_BUSY_PERCENT * UNBUSY_PERCENT / 100
            && missed[0] <= allowed[0] * UNBUSY_PERCENT / 100
            && missed[1] <= allowed[1] * UNBUSY_PERCENT / 100
        {
            // With room to spare; only if somebody is short does that matter.
            *level = if shortages { (*level).min(0) - i32::from(!lagging) } else { 0 };
        } else {
            *level = 0;
        }
        *level = (*level).clamp(-1_000, 1_000);
    }

    /// Moves the base rate by the busy level, within its bounds (`ioc_adjust_base_vrate`).
    fn adjust_rate(&mut self, lagging: bool) {
        let (level, rate) = (self.clock.busy_level, self.clock.base_rate);
        if level == 0 || level < 0 && lagging {
            return;
        }
        let (min, max) = self.rates;
        self.clock.base_rate = if rate < min {
            (rate * (100 + CLAMP_PERCENT) / 100).min(min)
        } else if rate > max {
            (rate * (100 - CLAMP_PERCENT) / 100).max(max)
        } else {
            let change = adjustment(level);
            let percent = if level > 0 { 100 - change } else { 100 + change };
            (rate * percent).div_ceil(100).clamp(min, max)
        };
    }

    /// `ioc_autop_idx`: does the device belong to another class?
    fn classify(&mut self, now: Instant) {
        if !self.steps {
            return;
        }
        let class = &CLASSES[self.class];
        let percent = self.clock.base_rate * 100 / MILLION;
        let long = |since: &mut Option<Instant>, off: bool| {
            if !off {
                *since = None;
            }
            off && now.since(*since.get_or_insert(now)) >= CLASS_CYCLE
        };
        let fast = class.too_fast_percent.is_some_and(|limit| percent >= limit);
        let slow = class.too_slow_percent.is_some_and(|limit| percent <= limit);
        if long(&mut self.too_fast_since, fast) {
            self.clock.reset_rate(now);
            self.set_class(self.class + 1);
        } else if long(&mut self.too_slow_since, slow) {
            self.clock.reset_rate(now);
            self.set_class(self.class - 1);
        }
    }
}
