//! **pregather**: VMs take turns, and the device waits for a request that is
//! expected nearby when that is cheaper than going away and coming back
//! ("Pregather: spatial-locality-aware disk scheduling in the virtualized
//! cloud", section V, the SPLA algorithm; algorithms.md, section 2.2). What is
//! expected comes from one [`vnavigator`](crate::vnavigator) model per VM.
//!
//! Each VM x has a queue in order of LBA, an EDF queue with CFQ's deadlines,
//! AvgT (mean think time) and AvgD (mean distance between its requests).
//!
//! When the last request LR of the serving VM completes:
//! - x has nothing queued and AvgD is less than the way to the neighbour's
//!   request: the *coarse* timer runs for AvgT;
//! - x has something queued and LR ended in a sub-region unit U: the *fine*
//!   timer runs for the unit's interval ST(U).
//!
//! When the device asks:
//! 1. x's EDF head if it has expired;
//! 2. else PR: the next request of x in order of LBA, round the end; with x's
//!    queue empty, the neighbour's request nearest to LR. It goes unless a
//!    timer runs and it is unsuitable. *Suitable*, coarse: of x, or no further
//!    than a seek of AvgT. Fine: in U, or no further than a seek of ST(U).
//! 3. A hold ends with a suitable arrival (which goes), the timer, the slice,
//!    PR's deadline or that of x's EDF head.
//!
//! # Where the sources are silent
//!
//! - A slice runs from the first decision of a turn by the wall clock, scaled
//!   by the VM's weight (ours), whether or not the VM has work: others borrow.
//!   A VM's serving time, which the windows count, is the time in its turns.
//! - Round robin: of the VMs with work, the one whose last turn is longest
//!   ago. A VM that has nothing queued when its turn comes, such as one whose
//!   request was just borrowed, keeps its place in front.
//! - Only x's own deadlines are looked at: an expired request of another VM
//!   waits for that VM's turn, or to be PR. So a request waits for the turns of
//!   the others at the longest, not for its deadline.
//! - AvgT and AvgD are moving averages of weight 7/8, without a value before
//!   the second request; without AvgT or AvgD no coarse timer runs. A think
//!   time counts as a slice at the most, so that one long idleness is
//!   forgotten within a few requests.
//! - A timer of AvgT alone misses half of the requests that it waits for as
//!   soon as think times vary at all, and a reader loses its turn to every
//!   miss. So it runs for AvgT and four mean deviations, the extra no longer
//!   than until the wait has lasted as long as the seek that it saves
//!   (`patience`, ours; nothing changes where think times are constant).
//! - A request that continues the one just dispatched goes with it before
//!   deadlines are looked at again (`merge`), as Linux would have merged the
//!   two in the queue; otherwise every expired request would cut a command short.
//! - PR follows the VM's own last request, not the one that another VM put
//!   between (`sweep`), so a turn goes on where the last one stopped.
//! - With no request of another VM queued, the coarse timer runs too
//!   (`alone`): the condition on AvgD is then judged against the first
//!   foreign PR inside the window.
//! - Regions equally near: the VM with the request nearest to LR, then the
//!   lower number. A VM without a known region has the interval that its
//!   requests have touched.
//! - The model and the averages count a merged request once, by the one of its parts that came first,
//!   as an elevator of Linux is told of it once.
//! - SeekTime unknown (no profile, nothing learnt for any distance yet):
//!   nothing is held. Neither is it on a device without rotation, where no
//!   seek outweighs a wait, nor while a command is in flight.
//! - A timer lasts ten seconds at the most.
//!
//! The paper's conditions without brackets (`timer && in U || ST ≥ seek`)
//! cannot be run to the letter, since without the timer there is no U: the
//! brackets are not a parameter.

use crate::entry::Entry;
use crate::vnavigator::{ModelParams, Unit, VNavigator, ZONES_MAX};
use seekway_core::params::{DURATION_MAX, Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links, Pool};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, HOLD_MAX, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

pub(super) const ENTRY: Entry = Entry {
    name: "pregather",
    summary: "turns of VMs; waits where a zone model expects the next request nearby",
    source: "the Pregather paper, sections IV and V, corrected (algorithms.md, section 2)",
    params: PARAMS,
    holds: &[COARSE, FINE],
    keeps: &[],
    starves: &[],
    build: |params| Ok(Box::new(Pregather::new(Config::new(params)?))),
};

/// Held for the next request of the VM that is served (the coarse timer).
const COARSE: &str = "coarse";

/// Held for a request in the sub-region around the head (the fine timer).
const FINE: &str = "fine";

#[derive(Clone, Copy, Debug)]
struct Turn {
    vm: usize,
    start: Instant,
    end: Instant,
    /// With `except=expire`: the deadline has been looked at.
    checked: bool,
}

/// Cause of a hold. At most one timer runs.
#[derive(Clone, Copy, Debug)]
enum Timer {
    /// AvgT is over at `mean_end`, patience at `end`; `judged`: the condition
    /// on AvgD has been looked at.
    Coarse {
        start: Instant,
        mean_end: Instant,
        end: Instant,
        judged: bool,
    },
    Fine {
        end: Instant,
        unit: Unit,
    },
}

impl Timer {
    fn end(&self) -> Instant {
        match *self {
            Timer::Coarse { end, .. } | Timer::Fine { end, .. } => end,
        }
    }
    fn why(&self) -> &'static str {
        match self {
            Timer::Coarse { .. } => COARSE,
            Timer::Fine { .. } => FINE,
        }
    }
}

/// Why a request was dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// Continues the request before it.
    Merged,
    /// Its deadline had passed.
    Expired,
    /// PR of the serving VM.
    Next,
    /// PR of a neighbour.
    Borrowed,
    /// Arrived during a hold and was suitable.
    Arrival,
}

/// Names of the counters by [`Rule`].
const RULES: [&str; 5] = [
    "dispatch_merged",
    "dispatch_expired",
    "dispatch_next",
    "dispatch_borrowed",
    "dispatch_arrival",
];

/// Waits by timer: set when a request completed; tried: work was withheld;
/// paid: a suitable request came in time.
#[derive(Clone, Copy, Default, Debug)]
struct Waits {
    set: u64,
    tried: u64,
    paid: u64,
}

#[derive(Default)]
struct Pregather {
    config: Config,
    queued: Pool,
    links: Links,
    vms: Vec<Option<Vm>>,
    turn: Option<Turn>,
    timer: Option<Timer>,
    /// Arrivals since the last decision, while a timer runs.
    fresh: Vec<RequestId>,
    /// Work is being withheld.
    holding: Option<&'static str>,
    lr: Lba,
    /// VM, operation and end of the request just dispatched.
    building: Option<(VmId, Op, Lba)>,
    in_flight: u32,
    seek: Seek,
    dispatched: [u64; 5],
    coarse: Waits,
    fine: Waits,
    turns: u64,
}

impl Pregather {
    fn new(config: Config) -> Self {
        Pregather { config, ..Pregather::default() }
    }

    fn vm(&self, index: usize) -> Option<&Vm> {
        self.vms.get(index)?.as_ref()
    }

    fn request(&self, id: RequestId) -> &Request {
        self.queued.get(id).unwrap_or_else(|| panic!("request slot {} is not queued", id.slot()))
    }

    fn deadline(&self, request: &Request) -> Instant {
        let Config { sync_expire, async_expire, .. } = self.config;
        request.arrived + if request.sync { sync_expire } else { async_expire }
    }

    /// The head of a VM's EDF queue and its deadline.
    fn edf_head(&self, vm: &Vm) -> Option<(Instant, RequestId)> {
        let heads = vm.edf().into_iter().flatten();
        heads.map(|id| (self.deadline(self.request(id)), id)).min_by_key(|&(deadline, _)| deadline)
    }

    /// A VM's serving time, in which its windows are counted.
    fn clock(&self, vm: usize, now: Instant) -> Nanos {
        let served = self.vm(vm).map_or(Nanos::ZERO, |v| v.served);
        match self.turn {
            Some(turn) if turn.vm == vm => served + now.min(turn.end).since(turn.start),
            _ => served,
        }
    }

    /// See to it that some VM with work, or one that may be waited for, has the turn.
    fn take_turns(&mut self, now: Instant) {
        if self.turn.is_some_and(|turn| now < turn.end) {
            return;
        }
        self.end_turn(now);
        let busy = self.vms.iter_mut().enumerate().filter_map(|(v, vm)| Some((v, vm.as_mut()?)));
        let busy = busy.filter(|(_, vm)| !vm.sorted.is_empty());
        if let Some((vm, state)) = busy.min_by_key(|(_, vm)| vm.last_turn) {
            self.turns += 1;
            state.last_turn = self.turns;
            let end = now + state.slice(&self.config);
            self.turn = Some(Turn { vm, start: now, end, checked: false });
        }
    }

    /// The turn is over, and with it whatever was waited for.
    fn end_turn(&mut self, now: Instant) {
        self.timer = None;
        let Some(turn) = self.turn.take() else { return };
        if let Some(Some(vm)) = self.vms.get_mut(turn.vm) {
            vm.served += now.min(turn.end).since(turn.start);
        }
    }

    fn waits(&mut self, why: &'static str) -> &mut Waits {
        if why == COARSE { &mut self.coarse } else { &mut self.fine }
    }

    /// Send a request; all timers are off.
    fn dispatch(&mut self, id: RequestId, rule: Rule, paid: bool) -> Decision {
        let request = self.queued.take(id);
        let end = request.extent.end();
        if let Some(Some(vm)) = self.vms.get_mut(request.vm.index()) {
            vm.remove(&request, &mut self.links);
            vm.dispatched_end = Some(end);
        }
        if let Some(why) = self.holding.take() {
            self.waits(why).paid += u64::from(paid);
        }
        self.timer = None;
        self.fresh.clear();
        self.lr = self.position(&request);
        self.building = Some((request.vm, request.op, end));
        self.in_flight += 1;
        self.dispatched[rule as usize] += 1;
        Decision::Dispatch(id)
    }

    /// A request has left the pool unserved.
    fn leaves(&mut self, request: &Request) {
        self.fresh.retain(|&id| id != request.id);
        if let Some(Some(vm)) = self.vms.get_mut(request.vm.index()) {
            vm.remove(request, &mut self.links);
        }
        if self.queued.is_empty() {
            self.holding = None;
        }
    }

    /// P(R) of a request that has been sent.
    fn position(&self, request: &Request) -> Lba {
        let extent = request.extent;
        if self.config.position_end { extent.end() } else { extent.start() }
    }

    /// The memory of the scheduler's own state.
    fn state_bytes(&self) -> usize {
        let vms: usize = self.vms.iter().flatten().map(Vm::state_bytes).sum();
        let queued = self.vms.iter().flatten().flat_map(|vm| vm.sorted.iter());
        let places = queued.map(|(_, id)| id.slot() + 1).max().unwrap_or(0);
        size_of::<Self>()
            + vms
            + self.vms.capacity() * size_of::<Option<Vm>>()
            + places * size_of::<Option<(Request, u64)>>()
            + self.fresh.capacity() * size_of::<RequestId>()
    }
}

impl Scheduler for Pregather {
    fn attach(&mut self, _now: Instant, vm: VmId, spec: VmSpec) {
        let index = vm.index();
        if self.vms.len() <= index {
            self.vms.resize_with(index + 1, || None);
        }
        let mut joining = Vm::new(spec, &self.config);
        joining.gaps = self.vms.iter().map(|o| joining.gap(o.as_ref()?)).collect();
        for (other, state) in self.vms.iter_mut().enumerate() {
            let Some(state) = state else { continue };
            state.gaps.resize(state.gaps.len().max(index + 1), None);
            state.gaps[index] = joining.gaps[other];
        }
        self.vms[index] = Some(joining);
    }

    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        if self.turn.is_some_and(|turn| turn.vm == vm.index()) {
            self.end_turn(now);
        }
        let leaving = self.queued.take_vm(vm);
        leaving.iter().for_each(|request| self.leaves(request));
        if let Some(place) = self.vms.get_mut(vm.index()) {
            *place = None;
        }
        leaving
    }

    fn merged(&mut self, _now: Instant, id: RequestId, extent: Extent) -> bool {
        self.building = None;
        let before = self.queued.resize(id, extent);
        if let Some(Some(vm)) = self.vms.get_mut(before.vm.index()) {
            vm.sorted.resize(&before, extent);
        }
        true
    }

    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        self.leaves(&request);
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        // The command that was being made is on its way.
        self.building = None;
        let index = request.vm.index();
        let clock = self.clock(index, now);
        let Some(Some(vm)) = self.vms.get_mut(index) else {
            panic!("request of {:?}, which is not attached", request.vm)
        };
        vm.arrive(&request, clock, &self.config, &mut self.links);
        self.queued.insert(request);
        if self.timer.is_some() {
            self.fresh.push(request.id);
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        let Completion { request, service, ok, .. } = completion;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.building = None;
        if *ok {
            self.seek.learn(request.extent.start(), request.extent.end(), *service);
        }
        if let Some(Some(vm)) = self.vms.get_mut(request.vm.index()) {
            vm.complete(now);
        }
        if self.in_flight == 0 {
            self.lr = self.position(request);
            self.set_timer(now, request.vm.index());
        }
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        if self.config.merge
            && device.in_flight > 0
            && let Some(id) = self.continuation()
        {
            return self.dispatch(id, Rule::Merged, false);
        }
        self.take_turns(now);
        if let Some(id) = self.expired(now) {
            return self.dispatch(id, Rule::Expired, false);
        }
        let Some((pr, rule)) = self.pending() else {
            panic!("requests are queued and nobody has a turn")
        };
        let timer = self.timer.take_if(|timer| now < timer.end());
        let may_wait = device.in_flight == 0 && device.profile.rotational();
        match timer.filter(|_| may_wait) {
            Some(timer) => {
                self.timer = Some(timer);
                let decision = self.wait(now, device, timer, pr, rule);
                self.fresh.clear();
                decision
            }
            None => self.dispatch(pr, rule, false),
        }
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        for (name, count) in RULES.iter().zip(self.dispatched) {
            sink(name, count as f64);
        }
        for (names, waits) in [
            (["coarse_set", "coarse_tried", "coarse_paid"], self.coarse),
            (["fine_set", "fine_tried", "fine_paid"], self.fine),
        ] {
            for (name, count) in names.iter().zip([waits.set, waits.tried, waits.paid]) {
                sink(name, count as f64);
            }
        }
        let models = || self.vms.iter().flatten().map(|vm| &vm.model);
        let thresholds: Vec<f64> = models().filter_map(|m| m.threshold()).collect();
        sink("turns", self.turns as f64);
        sink("zones", models().map(|m| m.zones() as f64).sum());
        sink("zones_at_least_1", models().map(|m| m.zones_at_least_1() as f64).sum());
        sink("threshold_mean", thresholds.iter().sum::<f64>() / thresholds.len().max(1) as f64);
        sink("state_bytes", self.state_bytes() as f64);
    }
}

// SeekTime: the device's profile where it has a curve, else what completions
// have taught.

/// Buckets of distance: 0, 1, 2–3, 4–7, …
const BUCKETS: usize = 65;

/// Service time against distance, learnt on line: a moving average (7/8) for
/// each power of two.
#[derive(Debug)]
struct Seek {
    /// The average, by the number of bits of the distance.
    learnt: [Option<Nanos>; BUCKETS],
    /// Where the last completed request ended.
    stood: Option<Lba>,
}

impl Default for Seek {
    fn default() -> Self {
        Seek { learnt: [None; BUCKETS], stood: None }
    }
}

impl Seek {
    /// A request that starts at `start` and ends at `end` took `service`.
    /// Requests that rode along in a command take none and teach none.
    pub fn learn(&mut self, start: Lba, end: Lba, service: Nanos) {
        let stood = self.stood.replace(end);
        let (Some(stood), true) = (stood, service > Nanos::ZERO) else { return };
        let bucket = &mut self.learnt[bits(stood.distance(start))];
        *bucket = Some(bucket.map_or(service, |mean| average(mean, service)));
    }

    /// Time to position the head `distance` away; `None` while nothing is known.
    pub fn time(
        &self,
        profile: &DeviceProfile,
        distance: Sectors,
        half_rotation: bool,
    ) -> Option<Nanos> {
        if distance == Sectors::ZERO {
            return Some(Nanos::ZERO);
        }
        let time = profile.positioning(distance).or_else(|| self.estimate(distance))?;
        let turn = profile.rotation.unwrap_or(Nanos::ZERO);
        Some(if half_rotation { time } else { time.saturating_sub(Nanos::new(turn.get() / 2)) })
    }

    /// Estimates what a distance adds to the service of a request at distance zero. Never falls
    /// with distance; straight between the middles of two buckets on a logarithmic scale.
    fn estimate(&self, distance: Sectors) -> Option<Nanos> {
        let (mut below, mut above) = (None, None);
        let bucket = bits(distance);
        let mut highest = Nanos::ZERO;
        for (at, mean) in self.learnt.iter().enumerate().skip(1) {
            let Some(mean) = *mean else { continue };
            highest = highest.max(mean);
            if at <= bucket {
                below = Some((at, highest));
            } else {
                above = Some((at, highest));
                break;
            }
        }
        let total = match (below, above) {
            (Some((b0, t0)), Some((b1, t1))) => {
                // In 256ths of a bucket: b0 stands for 2^(b0-1).
                let (span, into) =
                    (((b1 - b0) as u64) << 8, log2(distance) - ((b0 as u64 - 1) << 8));
                t0 + t1.saturating_sub(t0).scaled(into.min(span), span)
            }
            (known, other) => known.or(other)?.1,
        };
        Some(total.saturating_sub(self.learnt[0].unwrap_or(Nanos::ZERO)))
    }
}

/// The moving average with weight 7/8.
fn average(mean: Nanos, sample: Nanos) -> Nanos {
    mean.scaled(7, 8) + Nanos::new(sample.get() / 8)
}

/// The number of bits of a distance: 0 for 0, 1 for 1, 2 for 2–3.
fn bits(distance: Sectors) -> usize {
    (u64::BITS - distance.get().leading_zeros()) as usize
}

/// log2 in 256ths, linear between powers of two. Of a distance above zero.
fn log2(distance: Sectors) -> u64 {
    let d = distance.get();
    let whole = d.ilog2();
    let fraction = (u128::from(d - (1 << whole)) << 8) >> whole;
    (u64::from(whole) << 8) + fraction as u64
}

// The two algorithms of the paper: when a timer is set, and what goes or
// waits while it runs.

impl Pregather {
    /// Algorithm 1, on completion of a request of `vm`, with nothing in flight.
    fn set_timer(&mut self, now: Instant, vm: usize) {
        let Some(turn) = self.turn.filter(|turn| turn.vm == vm && now < turn.end) else { return };
        let clock = self.clock(vm, now);
        let Some(Some(state)) = self.vms.get_mut(turn.vm) else { return };
        let span = |time: Nanos| now + time.min(HOLD_MAX);
        if !state.sorted.is_empty() {
            state.model.advance(clock);
            let unit = state.model.unit_at(self.lr);
            let unit = unit.filter(|u| u.measured || !self.config.skip_unmeasured);
            if let Some(unit) = unit {
                self.fine.set += 1;
                self.timer = Some(Timer::Fine { end: span(unit.interval), unit });
            }
            return;
        }
        let (Some(think), Some(_)) = (state.think, state.distance) else { return };
        let judged = match self.neighbour(vm) {
            Some((_, id)) => {
                if !self.is_far(vm, id) {
                    return;
                }
                true
            }
            None if self.config.alone => false,
            None => return,
        };
        self.coarse.set += 1;
        let patience =
            if self.config.patience { think.deviation().scaled(4, 1) } else { Nanos::ZERO };
        let (mean_end, end) = (span(think.mean()), span(think.mean() + patience));
        self.timer = Some(Timer::Coarse { start: now, mean_end, end, judged });
    }

    /// AvgD(x) < |P(request) - P(LR)|
    fn is_far(&self, vm: usize, id: RequestId) -> bool {
        let way = self.request(id).extent.start().distance(self.lr);
        self.vm(vm).and_then(|v| v.distance).is_some_and(|mean| mean < way)
    }

    /// The neighbour of `x`: the VM with requests whose region is nearest, and
    /// its request nearest to LR.
    fn neighbour(&self, x: usize) -> Option<(usize, RequestId)> {
        let this = self.vm(x)?;
        let near = |y: usize| {
            let other = self.vm(y).filter(|_| y != x)?;
            let (lba, id) = other.sorted.nearest(self.lr)?;
            let gap = this.gaps.get(y).copied().flatten();
            let gap = gap.unwrap_or_else(|| this.touched_gap(other));
            Some((gap, lba.distance(self.lr), y, id))
        };
        let nearest = (0..self.vms.len()).filter_map(near).min();
        nearest.map(|(_, _, y, id)| (y, id))
    }

    /// The request that continues the one just dispatched.
    fn continuation(&self) -> Option<RequestId> {
        let (vm, op, end) = self.building?;
        let sorted = &self.vm(vm.index())?.sorted;
        let (lba, id) = sorted.at_or_after(end)?;
        (lba == end && self.request(id).op == op).then_some(id)
    }

    /// The EDF head of the serving VM if it has expired.
    fn expired(&mut self, now: Instant) -> Option<RequestId> {
        let turn = self.turn.as_mut()?;
        if !self.config.expire_always && std::mem::replace(&mut turn.checked, true) {
            return None;
        }
        let turn = *turn;
        let (deadline, id) = self.edf_head(self.vm(turn.vm)?)?;
        (deadline <= now).then_some(id)
    }

    fn pending(&self) -> Option<(RequestId, Rule)> {
        let x = self.turn?.vm;
        let vm = self.vm(x)?;
        let own = vm.dispatched_end.filter(|_| self.config.sweep_own);
        match vm.next_from(own.unwrap_or(self.lr)) {
            Some(id) => Some((id, Rule::Next)),
            None => self.neighbour(x).map(|(_, id)| (id, Rule::Borrowed)),
        }
    }

    /// SeekTime from `from` to the start of a queued request.
    fn seek_to(&self, id: RequestId, from: Lba, device: &DeviceView<'_>) -> Option<Nanos> {
        let distance = self.request(id).extent.start().distance(from);
        self.seek.time(device.profile, distance, self.config.half_rotation)
    }

    /// Does the request meet the timer's condition, with the seek counted from `from`?
    fn is_suitable(
        &self,
        timer: &Timer,
        id: RequestId,
        from: Lba,
        device: &DeviceView<'_>,
    ) -> bool {
        let request = self.request(id);
        let start = request.extent.start();
        let time = match timer {
            Timer::Coarse { .. } => {
                let Some(turn) = self.turn else { return true };
                if request.vm.index() == turn.vm {
                    return true;
                }
                self.vm(turn.vm).and_then(|vm| vm.think).map(|think| think.mean())
            }
            Timer::Fine { unit, .. } => {
                if unit.contains(start) {
                    return true;
                }
                Some(unit.interval)
            }
        };
        let seek = self.seek_to(id, from, device);
        time >= seek
    }

    /// Algorithm 2 from the point where PR is known and a timer runs.
    fn wait(
        &mut self,
        now: Instant,
        device: &DeviceView<'_>,
        timer: Timer,
        pr: RequestId,
        rule: Rule,
    ) -> Decision {
        if self.holding.is_some() {
            let p_pr = self.request(pr).extent.start();
            let from = if self.config.arrival_from_lr { self.lr } else { p_pr };
            let fresh = self.fresh.iter().copied().filter(|&id| self.queued.get(id).is_some());
            let suitable = |&id: &RequestId| self.is_suitable(&timer, id, from, device);
            if let Some(new) = fresh.into_iter().find(suitable) {
                let literal = !self.config.arrival_new && matches!(timer, Timer::Fine { .. });
                return self.dispatch(if literal { pr } else { new }, Rule::Arrival, true);
            }
        }
        if self.is_suitable(&timer, pr, self.lr, device) {
            return self.dispatch(pr, rule, true);
        }
        let Some(turn) = self.turn else { return self.dispatch(pr, rule, false) };
        let mut until = timer.end().min(turn.end).min(self.deadline(self.request(pr)));
        if let Timer::Coarse { start, mean_end, end, judged } = timer {
            if !judged && !self.is_far(turn.vm, pr) {
                return self.dispatch(pr, rule, false);
            }
            self.timer = Some(Timer::Coarse { start, mean_end, end, judged: true });
            let seek = self.seek_to(pr, self.lr, device).unwrap_or(Nanos::ZERO);
            until = until.min(mean_end.max(start + seek));
        }
        if self.config.expire_always
            && let Some((deadline, _)) = self.vm(turn.vm).and_then(|vm| self.edf_head(vm))
        {
            until = until.min(deadline);
        }
        if until <= now {
            return self.dispatch(pr, rule, false);
        }
        let why = timer.why();
        if self.holding.replace(why).is_none() {
            self.waits(why).tried += 1;
        }
        Decision::Hold { until, why }
    }
}

// Pregather's state of one VM.

/// A VM's queues, averages and model.
#[derive(Debug)]
struct Vm {
    weight: u32,
    /// Extents of its images, or the interval around them; empty when unknown.
    region: Vec<Extent>,
    /// Distance of its region from each other VM's; `None` when one is unknown.
    pub gaps: Vec<Option<Sectors>>,
    /// The interval that its requests have touched, for want of a region.
    touched: Option<(Lba, Lba)>,
    pub sorted: LbaQueue,
    /// The EDF queue: synchronous requests and the others, each in order of
    /// arrival, which is order of deadline.
    sync: ExpiryQueue,
    rest: ExpiryQueue,
    /// AvgT; `None` before the second arrival.
    pub think: Option<Average>,
    /// AvgD; `None` before the second arrival.
    pub distance: Option<Sectors>,
    arrived: Option<Instant>,
    completed: Option<Instant>,
    /// End of its last request to arrive.
    arrived_end: Option<Lba>,
    /// End of its last request to be dispatched.
    pub dispatched_end: Option<Lba>,
    /// Number of its last turn, 0 before the first.
    pub last_turn: u64,
    /// Serving time of the turns that are over.
    pub served: Nanos,
    pub model: VNavigator,
}

impl Vm {
    pub fn new(spec: VmSpec, config: &Config) -> Vm {
        let mut region = spec.region;
        let (low, high) =
            (region.iter().map(|e| e.start()).min(), region.iter().map(|e| e.end()).max());
        if let (false, Some(low), Some(high)) = (config.region_extents, low, high) {
            region = Vec::from_iter(Extent::new(low, high.distance(low)));
        }
        Vm {
            weight: spec.weight.get(),
            region,
            gaps: Vec::new(),
            touched: None,
            sorted: LbaQueue::new(),
            sync: ExpiryQueue::new(),
            rest: ExpiryQueue::new(),
            think: None,
            distance: None,
            arrived: None,
            completed: None,
            arrived_end: None,
            dispatched_end: None,
            last_turn: 0,
            served: Nanos::ZERO,
            model: VNavigator::new(config.model),
        }
    }

    /// Its turn: the slice times its weight.
    pub fn slice(&self, config: &Config) -> Nanos {
        config.slice.scaled(u64::from(self.weight), 1)
    }

    /// A request arrives: queues, averages, model. `clock` counts windows.
    pub fn arrive(&mut self, request: &Request, clock: Nanos, config: &Config, links: &mut Links) {
        let (now, start, end) = (request.arrived, request.extent.start(), request.extent.end());
        if let Some(arrived) = self.arrived {
            let sample = if config.think {
                // A hold ends with the slice: what is longer is all the same.
                now.since(arrived.max(self.completed.unwrap_or(arrived))).min(config.slice)
            } else {
                now.since(arrived)
            };
            self.think = Some(Average::with(self.think, sample));
        }
        if let Some(previous) = self.arrived_end {
            let sample = previous.distance(start).get();
            let mean = self.distance.map_or(sample, |d| d.get() - d.get() / 8 + sample / 8);
            self.distance = Some(Sectors::new(mean));
        }
        (self.arrived, self.arrived_end) = (Some(now), Some(end));
        let (low, high) = self.touched.unwrap_or((start, end));
        self.touched = Some((low.min(start), high.max(end)));
        self.sorted.insert(request);
        let edf = if request.sync { &mut self.sync } else { &mut self.rest };
        edf.push(links, request.id);
        self.model.observe(clock, now, request.extent);
    }

    /// A request leaves the queues.
    pub fn remove(&mut self, request: &Request, links: &mut Links) {
        self.sorted.remove(request);
        let edf = if request.sync { &mut self.sync } else { &mut self.rest };
        edf.remove(links, request.id);
    }

    /// A request of this VM is done.
    pub fn complete(&mut self, now: Instant) {
        self.completed = Some(now);
    }

    /// The heads of the EDF queue: of the synchronous requests and of the others.
    pub fn edf(&self) -> [Option<RequestId>; 2] {
        [self.sync.head(), self.rest.head()]
    }

    /// The request after `from` in ascending order, round the end.
    pub fn next_from(&self, from: Lba) -> Option<RequestId> {
        let next = self.sorted.at_or_after(from).or_else(|| self.sorted.first());
        next.map(|(_, id)| id)
    }

    /// Distance between two regions, if both are known.
    pub fn gap(&self, other: &Vm) -> Option<Sectors> {
        let mut least: Option<Sectors> = None;
        let (mut a, mut b) = (self.region.iter().peekable(), other.region.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            let gap = between((x.start(), x.end()), (y.start(), y.end()));
            least = Some(least.map_or(gap, |l| l.min(gap)));
            if x.end() <= y.end() {
                a.next()
            } else {
                b.next()
            };
        }
        least
    }

    /// Distance between what the two have touched.
    pub fn touched_gap(&self, other: &Vm) -> Sectors {
        match (self.touched, other.touched) {
            (Some(a), Some(b)) => between(a, b),
            _ => Sectors::new(u64::MAX),
        }
    }

    /// The memory that it occupies beside itself; a queued request is counted
    /// once here, for its place in the sorted queue.
    pub fn state_bytes(&self) -> usize {
        self.model.state_bytes() - size_of::<VNavigator>()
            + self.region.capacity() * size_of::<Extent>()
            + self.gaps.capacity() * size_of::<Option<Sectors>>()
            + self.sorted.len() * size_of::<(Lba, RequestId)>()
    }
}

/// A moving mean of weight 7/8 with its mean deviation, in 256ths of a
/// nanosecond: without the fraction rounding would pull the mean of equal
/// samples below them, and a timer would end just before what it waits for.
#[derive(Clone, Copy, Debug)]
struct Average {
    mean: u64,
    deviation: u64,
}

impl Average {
    /// Samples count as this at the most.
    const LONGEST: Nanos = Nanos::from_secs(3_600);

    /// The average, if there is one, and one sample more.
    fn with(average: Option<Average>, sample: Nanos) -> Average {
        let sample = sample.min(Self::LONGEST).get() << 8;
        let Some(Average { mean, deviation }) = average else {
            return Average { mean: sample, deviation: 0 };
        };
        let step = mean.abs_diff(sample);
        let mean = if sample > mean { mean + step / 8 } else { mean - step / 8 };
        Average { mean, deviation: deviation - deviation / 8 + step / 8 }
    }
    /// The mean, rounded to the nearest nanosecond.
    pub fn mean(&self) -> Nanos {
        Nanos::new((self.mean + 128) >> 8)
    }
    /// The mean deviation, rounded.
    pub fn deviation(&self) -> Nanos {
        Nanos::new((self.deviation + 128) >> 8)
    }
}

/// Distance between two intervals; zero when they touch.
fn between(a: (Lba, Lba), b: (Lba, Lba)) -> Sectors {
    if a.1 <= b.0 {
        a.1.distance(b.0)
    } else if b.1 <= a.0 {
        b.1.distance(a.0)
    } else {
        Sectors::ZERO
    }
}

// Pregather's parameters, and its readings of the paper. A reading is ours or the
// paper's letter (`literal=true`), and `except` takes one of them the other way.

/// Values of `except`. The last four stay as they are with `literal=true`: the paper is silent.
const READINGS: &[&str] = &[
    "none",
    // Intervals longer than the window are dropped; the letter: they count.
    "interval_cap",
    // The sum of intervals is divided by their number; the letter: by that of requests.
    "interval_mean",
    // No interval below 1 ms is predicted; the letter: any is.
    "interval_min",
    // AvgT is the think time; the letter: the time between arrivals.
    "think",
    // The coarse timer adds four mean deviations of the think time to AvgT, up to the seek that it
    // saves; the letter: it runs for AvgT.
    "patience",
    // SeekTime has half a rotation in it; the letter: it has none.
    "half_rotation",
    // P(LR) is the end of the last request; the letter: its start.
    "position",
    // A suitable arrival in a fine hold sends itself; the letter: PR.
    "arrival",
    // An arrival's seek is measured from LR; the letter: from PR.
    "arrival_seek",
    // A VM's region is its extents; the letter: the interval around them.
    "region",
    // The coarse timer runs with no neighbour pending too; the letter: it does not.
    "alone",
    // Deadlines are looked at for each request; else: once a turn.
    "expire",
    // A continuation joins its command before deadlines are looked at; else: it does not.
    "merge",
    // A turn goes on where the VM's own last request ended; else: at the head.
    "sweep",
    // For a hot zone without an interval yet the least is waited; else: nothing is.
    "unmeasured",
];

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("zone", Kind::Size, "1000KiB", "zone size B of the model, 2000 sectors"),
    param("lambda", Kind::Number(1.1, 1000.0), "2", "decay of a request's weight per window"),
    param("window", Kind::Duration, "20ms", "prediction window"),
    param("slice", Kind::Duration, "200ms", "a VM's turn, times its weight"),
    param("sync_expire", Kind::Duration, "125ms", "deadline of synchronous requests"),
    param("async_expire", Kind::Duration, "250ms", "deadline of the others"),
    param("zones", Kind::Count(64, ZONES_MAX as u64), "4096", "most zones a VM's model remembers"),
    param("literal", Kind::Flag, "false", "the paper's letter, without our corrections"),
    param("except", Kind::Choice(READINGS), "none",
        "one reading that is taken the other way than 'literal' says, or than is usual"),
];

/// The parameters as the scheduler uses them. A flag named after a correction
/// is true for our form.
#[derive(Clone, Copy, Debug, Default)]
struct Config {
    pub model: ModelParams,
    pub slice: Nanos,
    pub sync_expire: Nanos,
    pub async_expire: Nanos,
    pub expire_always: bool,
    pub merge: bool,
    pub sweep_own: bool,
    pub skip_unmeasured: bool,
    pub think: bool,
    pub patience: bool,
    pub half_rotation: bool,
    pub position_end: bool,
    pub arrival_new: bool,
    pub arrival_from_lr: bool,
    pub region_extents: bool,
    pub alone: bool,
}

impl Config {
    pub fn new(p: &Params) -> Result<Config, ParamError> {
        if p.size("zone") == Sectors::ZERO {
            return Err(ParamError::new("zone=0: a zone has at least one sector"));
        }
        let window = p.duration_within("window", Nanos::from_micros(1), DURATION_MAX)?;
        let slice = p.duration_within("slice", Nanos::from_millis(1), DURATION_MAX)?;
        let (literal, except) = (p.flag("literal"), p.choice("except"));
        let usual = |reading: &str| {
            debug_assert!(READINGS.contains(&reading), "{reading} is no reading");
            reading != except
        };
        let ours = |reading: &str| usual(reading) != literal;
        let floor = Nanos::from_millis(1);
        Ok(Config {
            model: ModelParams {
                zone: p.size("zone"),
                lambda: p.number("lambda"),
                window,
                interval_cap: ours("interval_cap"),
                interval_mean: ours("interval_mean"),
                interval_min: if ours("interval_min") { floor } else { Nanos::ZERO },
                zones: p.count("zones") as usize,
            },
            slice,
            sync_expire: p.duration("sync_expire"),
            async_expire: p.duration("async_expire"),
            expire_always: usual("expire"),
            merge: usual("merge"),
            sweep_own: usual("sweep"),
            skip_unmeasured: !usual("unmeasured"),
            think: ours("think"),
            patience: ours("patience"),
            half_rotation: ours("half_rotation"),
            position_end: ours("position"),
            arrival_new: ours("arrival"),
            arrival_from_lr: ours("arrival_seek"),
            region_extents: ours("region"),
            alone: ours("alone"),
        })
    }
}

#[cfg(test)]
mod seek_tests {
    use super::*;

    #[test]
    fn learns_a_curve_that_never_falls() {
        let mut seek = Seek::default();
        let unknown = DeviceProfile::unknown(Sectors::new(1 << 40), true);
        let time = |s: &Seek, d| s.time(&unknown, Sectors::new(d), true);
        assert_eq!((time(&seek, 0), time(&seek, 9)), (Some(Nanos::ZERO), None));
        let mut at = Lba::ZERO;
        for (distance, ms) in [(0, 1), (0, 1), (1_000, 9), (1_000_000, 7), (1 << 30, 17)] {
            let start = at + Sectors::new(distance);
            at = start + Sectors::new(8);
            seek.learn(start, at, Nanos::from_millis(ms));
            seek.learn(at, at + Sectors::new(8), Nanos::ZERO);
            at = at + Sectors::new(8);
        }
        let times: Vec<u64> = (0..50).map(|b| time(&seek, 1 << b).unwrap().get()).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!((times[0], times[49]), (8_000_000, 16_000_000));
        let without = seek.time(&unknown, Sectors::new(1), false).unwrap();
        assert_eq!(without.get(), 8_000_000 - 8_333_333 / 2);
    }
}

#[cfg(test)]
mod vm_tests {
    use super::*;

    #[test]
    fn equal_samples_average_to_themselves() {
        let mut average = Average::with(None, Nanos::new(900_017));
        for ns in [1, 2_000_003].into_iter().chain([500_001; 400]) {
            average = Average::with(Some(average), Nanos::new(ns));
        }
        assert_eq!(average.mean(), Nanos::new(500_001));
        assert!(average.deviation() <= Nanos::new(1));
    }
}
