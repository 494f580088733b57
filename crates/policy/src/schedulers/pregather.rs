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
//! - SeekTime unknown (no profile, nothing learnt for any distance yet):
//!   nothing is held. Neither is it on a device without rotation, where no
//!   seek outweighs a wait, nor while a command is in flight.
//! - A timer lasts ten seconds at the most.
//!
//! The paper's conditions without brackets (`timer && in U || ST ≥ seek`)
//! cannot be run to the letter, since without the timer there is no U: the
//! brackets are not a parameter.

mod config;
mod seek;
mod spla;
mod vm;

use super::Entry;
use crate::vnavigator::Unit;
use config::Config;
use seek::Seek;
use seekway_core::queues::{Links, Pool};
use seekway_core::request::{Completion, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos};
use vm::Vm;

pub(super) const ENTRY: Entry = Entry {
    name: "pregather",
    summary: "turns of VMs; waits where a zone model expects the next request nearby",
    source: "the Pregather paper, sections IV and V, corrected (algorithms.md, section 2)",
    params: config::PARAMS,
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

    /// The clock in which a VM's windows are counted.
    fn clock(&self, vm: usize, now: Instant) -> Nanos {
        if !self.config.serving_clock {
            return Nanos::new(now.as_nanos());
        }
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
