//! Service-level targets of VMs, on either kind of device: latencies and reservations.

use seekway_core::queues::KeyedHeap;
use seekway_core::request::{Completion, VmId};
use seekway_core::scheduler::{Reserve, VmSpec};
use seekway_core::units::{Instant, Nanos, Sectors};

/// The promises on one device.
#[derive(Default)]
pub struct Promises {
    pub reserves: Reserves,
    pub targets: Targets,
}

impl Promises {
    pub fn attach(&mut self, vm: usize, spec: &VmSpec) {
        self.reserves.attach(vm, spec.reserve);
        self.targets.attach(vm, spec.latency);
    }

    pub fn detach(&mut self, vm: usize) {
        self.reserves.attach(vm, Reserve::default());
        self.targets.attach(vm, None);
    }

    /// Has this VM a reservation or a target?
    pub fn has(&self, vm: usize) -> bool {
        self.reserves.has(vm) || self.targets.has(vm)
    }

    /// When the VM's oldest request arrived; `None`: it has none queued.
    pub fn set_work(&mut self, now: Instant, vm: usize, arrived: Option<Instant>) {
        self.reserves.set_work(now, vm, arrived.is_some());
        self.targets.set_work(vm, arrived);
    }

    /// The VM that a promise wants to go now: one with a request that is due for a target, if that
    /// VM is level with the others, or else the one whose reservation is furthest behind, unless a
    /// VM without one has its turn (`is_others_turn`).
    pub fn next(
        &mut self,
        now: Instant,
        is_level: impl Fn(usize) -> bool,
        is_others_turn: impl Fn(&Reserves) -> bool,
    ) -> Option<usize> {
        let Promises { reserves, targets } = self;
        let due = targets.due(now, is_level);
        due.or_else(|| reserves.behind(now).filter(|_| !is_others_turn(reserves)))
    }

    /// Shows how reservations are met, all VMs of the device together.
    pub fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("reservations_met", self.reserves.met());
        sink("by_reservation", self.reserves.served as f64);
    }

    /// Of one VM, if it was promised something.
    pub fn vm_metrics(&self, vm: usize, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        let id = VmId::new(vm as u16);
        if self.reserves.has(vm) {
            sink("reservation_met", id, self.reserves.met());
        }
        if let Some(state) = self.targets.state(vm) {
            sink("latency_missed", id, state.missed);
            sink("latency_p99_us", id, state.p99 / 1e3);
            sink("latency_pressure", id, state.pressure);
            if let Some(best) = state.best {
                sink("latency_unreachable_best_us", id, best / 1e3);
            }
        }
    }
}

// Reservations: what a VM is to have at least, before anybody has a share.
//
// Each VM with a reservation has a clock, as in mClock (Gulati, Merchant, Varman, OSDI 2010,
// section 3): each request moves it on by the time in which the reservation grants one. A VM
// with work whose clock is not ahead of the time is behind, and the one that is furthest
// behind goes first. Unlike in mClock all that a VM sends counts, by share or by reservation:
// it is to have the larger of the two.
//
// When the device cannot do what is reserved, all clocks would fall behind for ever. So the
// reservations have a time of their own: when the VM that is furthest behind is `BEHIND_MAX`
// late, that time stands still. All reservations shrink in the same proportion then, which
// `Reserves::met` says.
//
// While a VM without a reservation has work, a tenth of the device is not reserved: after
// `RESERVED` times a command's cost for reservations, it goes by share. (Linux leaves its
// ordinary tasks 5 % beside real-time ones for the same reason: `sched_rt_runtime_us`.)

/// The reservations' time stands still when one is this far behind.
const BEHIND_MAX: Nanos = Nanos::from_millis(100);

/// Longest time for which a VM that had more than its reservation does without it, and most that
/// one that asked for less may catch up by.
const CREDIT: Nanos = Nanos::from_millis(10);

/// Highest ratio of the cost of commands for reservations to that of commands by share.
const RESERVED: u64 = 9;

/// Highest cost of a command that goes by share at once.
const CLAIM_MAX: u64 = 1 << 20;

/// Time over which the share of the reservations that is met is measured.
const WINDOW: Nanos = Nanos::from_secs(1);

#[derive(Clone, Copy, Default)]
struct Clock {
    reserve: Reserve,
    /// When the reservation grants the next request, and the next byte, in its own time.
    requests: u64,
    bytes: u64,
    has_work: bool,
}

impl Clock {
    /// When the reservation is behind.
    fn due(&self) -> u64 {
        let of = |rate: u64, at: u64| if rate > 0 { at } else { u64::MAX };
        of(self.reserve.iops, self.requests).min(of(self.reserve.bytes_per_s, self.bytes))
    }
}

/// The reservations on one device.
#[derive(Default)]
pub struct Reserves {
    clocks: Vec<Clock>,
    /// The VMs with a reservation and work, by when they are behind.
    waiting: KeyedHeap<u64>,
    /// For how long the reservations' time stood still.
    lost: u64,
    /// When the window began, what was lost then, and the part met in the window before.
    window: (Instant, u64),
    met: Option<f64>,
    /// Commands that went because a reservation was behind.
    pub served: u64,
    /// Cost of commands for reservations, less [`RESERVED`] times that of commands by share; at
    /// least 0.
    reserved: u64,
}

impl Reserves {
    /// The VM has this reservation, or none.
    pub fn attach(&mut self, vm: usize, reserve: Reserve) {
        if reserve.is_none() && vm >= self.clocks.len() {
            return;
        }
        if self.clocks.len() <= vm {
            self.clocks.resize(vm + 1, Clock::default());
        }
        self.waiting.set(vm as u32, None);
        self.clocks[vm] = Clock { reserve, ..Clock::default() };
    }

    /// The reservations' own time.
    fn time(&self, now: Instant) -> u64 {
        now.as_nanos().saturating_sub(self.lost)
    }

    fn known(&mut self, vm: usize) -> Option<&mut Clock> {
        self.clocks.get_mut(vm).filter(|clock| !clock.reserve.is_none())
    }

    /// Has the VM something queued?
    pub fn set_work(&mut self, now: Instant, vm: usize, has_work: bool) {
        // A VM that comes back begins with the clock that is furthest behind. With a later one, a VM
        // with one request at a time would wait for all others at each request.
        let furthest = self.waiting.first().map_or(u64::MAX, |(due, _)| due);
        let least = self.time(now).saturating_sub(CREDIT.get()).min(furthest);
        let Some(clock) = self.known(vm) else { return };
        if has_work && !std::mem::replace(&mut clock.has_work, has_work) {
            (clock.requests, clock.bytes) = (clock.requests.max(least), clock.bytes.max(least));
        }
        clock.has_work = has_work;
        let due = has_work.then(|| clock.due());
        self.waiting.set(vm as u32, due);
    }

    /// The VM whose reservation is furthest behind.
    pub fn behind(&mut self, now: Instant) -> Option<usize> {
        let (due, vm) = self.waiting.first()?;
        let time = self.time(now);
        if due > time {
            return None;
        }
        self.lost += (time - due).saturating_sub(BEHIND_MAX.get());
        Some(vm as usize)
    }

    /// Have reservations had nine tenths, so that a command of this cost goes by share?
    pub fn leaves(&self, cost: u64) -> bool {
        self.reserved >= RESERVED * cost.clamp(1, CLAIM_MAX)
    }

    /// The VM has sent `requests` of this length together, at this cost. Was its reservation behind?
    pub fn charge(
        &mut self,
        now: Instant,
        vm: usize,
        requests: u64,
        len: Sectors,
        cost: u64,
    ) -> bool {
        let time = self.time(now);
        let was_behind = self.known(vm).is_some_and(|clock| clock.has_work && clock.due() <= time);
        self.reserved = match was_behind {
            true => (self.reserved + cost).min(RESERVED * CLAIM_MAX),
            false => self.reserved.saturating_sub(RESERVED.saturating_mul(cost)),
        };
        let Some(clock) = self.known(vm) else { return false };
        let move_on = |at: u64, amount: u64, rate: u64| {
            let span = u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1));
            let span = u64::try_from(span).unwrap_or(u64::MAX / 4);
            at.saturating_add(span).min(time.saturating_add(span.max(CREDIT.get())))
        };
        clock.requests = move_on(clock.requests, requests, clock.reserve.iops);
        clock.bytes = move_on(clock.bytes, len.bytes(), clock.reserve.bytes_per_s);
        let due = clock.has_work.then(|| clock.due());
        self.waiting.set(vm as u32, due);
        self.served += u64::from(was_behind);
        self.measure(now);
        was_behind
    }

    fn measure(&mut self, now: Instant) {
        let (since, lost) = self.window;
        let length = now.since(since);
        if length >= WINDOW {
            let stood = (self.lost - lost) as f64 / length.get() as f64;
            self.met = Some((1.0 - stood).clamp(0.0, 1.0));
            self.window = (now, self.lost);
        }
    }

    /// The share of the reservations that was met recently, 0 to 1.
    pub fn met(&self) -> f64 {
        self.met.unwrap_or(1.0)
    }

    /// Has this VM a reservation?
    pub fn has(&self, vm: usize) -> bool {
        self.clocks.get(vm).is_some_and(|clock| !clock.reserve.is_none())
    }
}

// Targets of latency: 99 of 100 requests of a VM are to be done within a stated time.
//
// A request spends its time in the queue and in the device, and each part has its cure. For
// the queue, the VM's share grows by a boost, and a request that has waited for half of the
// target, or less, is due: it goes first while its VM is not ahead of its share by more than a
// quantum. For the device, the others' bound and parts shrink. How much of each cure is given is
// the *pressure*, 0 to 1: each request that misses the target raises the pressure of the part
// that took longer by `STEP`, each that meets it lowers both by `MISSES` of that. So it
// settles where `MISSES` of the requests miss (stochastic approximation: Robbins, Monro,
// Annals of Mathematical Statistics 1951).
//
// A target that is still missed after `TRY_FOR` at full pressure cannot be reached on this
// device beside this load. The others would pay for nothing, so the pressure is taken off for
// `REST_FOR`; `State` says what was reached. Each target that is given up halves the time for
// which the next is tried: many that cannot be reached cost the others two seconds in all.

/// Rise of the pressure by one miss.
const STEP: f64 = 0.05;

/// The part of requests that may miss: half of what is asked, to be on the safe side.
const MISSES: f64 = 0.005;

/// Factor of a VM's share at full pressure.
const BOOST_MAX: f64 = 32.0;

/// The others' bound shrinks to this at full pressure.
const BOUND_LEAST: f64 = 1.0 / 32.0;

/// A VM's pressure on the others counts for this time after it sent something.
const ACTIVE_FOR: Nanos = Nanos::from_millis(100);

/// Weight of the newest sample in the measured share of misses.
const FORGETS: f64 = 0.01;

/// Time for which a target is tried at full pressure, and for which it is given up after that.
const TRY_FOR: Nanos = Nanos::from_secs(1);

const REST_FOR: Nanos = Nanos::from_secs(30);

/// A request above the estimated p99 raises that by this factor.
const P99_STEP: f64 = 1.1;

struct Target {
    within: Nanos,
    /// Pressure on the queue and on the device.
    queue: f64,
    device: f64,
    /// Since when one of them has been full.
    full_since: Option<Instant>,
    /// Until when the target is given up.
    rests_until: Instant,
    /// As in [`State`]: a part of requests here, nanoseconds in the next two.
    missed: f64,
    p99: f64,
    best: Option<f64>,
}

impl Target {
    fn new(within: Nanos) -> Target {
        Target {
            within,
            queue: 0.0,
            device: 0.0,
            full_since: None,
            rests_until: Instant::ZERO,
            missed: 0.0,
            p99: within.get() as f64,
            best: None,
        }
    }

    /// Requests that miss raise the pressure.
    fn press(&mut self, now: Instant, waited: Nanos, took: Nanos, try_for: Nanos) {
        let missed = waited + took > self.within;
        let change = |pressure: &mut f64, by: f64| *pressure = (*pressure + by).clamp(0.0, 1.0);
        match missed {
            true if waited >= took => change(&mut self.queue, STEP),
            true => change(&mut self.device, STEP),
            false => {
                change(&mut self.queue, -MISSES * STEP);
                change(&mut self.device, -MISSES * STEP);
            }
        }
        if self.queue.max(self.device) < 1.0 {
            self.full_since = None;
            return;
        }
        let since = *self.full_since.get_or_insert(now);
        if now.since(since) >= try_for {
            let is_met = self.p99 <= self.within.get() as f64;
            self.best = (!is_met).then_some(self.p99);
            if !is_met {
                (self.queue, self.device, self.full_since) = (0.0, 0.0, None);
                self.rests_until = now + REST_FOR;
            }
        }
    }
}

/// State of a target.
pub struct State {
    /// The share of requests that missed recently.
    pub missed: f64,
    /// The estimated p99, in nanoseconds.
    pub p99: f64,
    /// The higher pressure, 0 to 1.
    pub pressure: f64,
    /// The target cannot be reached: the p99 at full pressure, in nanoseconds.
    pub best: Option<f64>,
}

/// The targets on one device.
#[derive(Default)]
pub struct Targets {
    vms: Vec<Option<Target>>,
    /// The VMs with a target and work, by when their oldest request is due.
    waiting: KeyedHeap<Instant>,
    /// The VM whose pressure on the device counts, that pressure, and when it sent something.
    tightest: (usize, f64, Instant),
}

impl Targets {
    /// The VM has this target, or none.
    pub fn attach(&mut self, vm: usize, latency: Option<Nanos>) {
        if latency.is_none() && vm >= self.vms.len() {
            return;
        }
        if self.vms.len() <= vm {
            self.vms.resize_with(vm + 1, || None);
        }
        self.waiting.set(vm as u32, None);
        self.vms[vm] = latency.map(Target::new);
    }

    fn known(&self, vm: usize) -> Option<&Target> {
        self.vms.get(vm)?.as_ref()
    }

    /// Has this VM a target?
    pub fn has(&self, vm: usize) -> bool {
        self.known(vm).is_some()
    }

    /// Factor of its share.
    pub fn boost(&self, vm: usize) -> f64 {
        self.known(vm).map_or(1.0, |target| BOOST_MAX.powf(target.queue))
    }

    /// When the VM's oldest request arrived; `None`: it has none queued.
    pub fn set_work(&mut self, vm: usize, arrived: Option<Instant>) {
        let Some(target) = self.known(vm) else { return };
        let patience = Nanos::new((target.within.get() as f64 / 2.0 * (1.0 - target.queue)) as u64);
        self.waiting.set(vm as u32, arrived.map(|at| at + patience));
    }

    /// The VM with the request that is due first, of those that may go. One that may not is
    /// looked at again after half of its target, and keeps no other from its turn.
    pub fn due(&mut self, now: Instant, may_go: impl Fn(usize) -> bool) -> Option<usize> {
        while let Some((_, vm)) = self.waiting.first().filter(|&(at, _)| at <= now) {
            if may_go(vm as usize) {
                return Some(vm as usize);
            }
            let target = self.known(vm as usize).expect("only VMs with a target wait");
            let again = now + Nanos::new((target.within.get() / 2).max(1));
            self.waiting.set(vm, Some(again));
        }
        None
    }

    /// The VM has sent something: its pressure on the device counts for a while.
    pub fn active(&mut self, now: Instant, vm: usize) {
        let Some(target) = self.known(vm) else { return };
        let (tightest, pressure, at) = self.tightest;
        if vm == tightest || target.device >= pressure || now.since(at) > ACTIVE_FOR {
            self.tightest = (vm, target.device, now);
        }
    }

    /// By how much the bound of this VM shrinks for the targets of others.
    pub fn squeeze(&self, now: Instant, vm: usize) -> f64 {
        let (tightest, pressure, at) = self.tightest;
        if vm == tightest || now.since(at) > ACTIVE_FOR { 1.0 } else { BOUND_LEAST.powf(pressure) }
    }

    /// Has another VM than this one a target, and sent something a moment ago?
    pub fn presses(&self, now: Instant, vm: usize) -> bool {
        let (tightest, _, at) = self.tightest;
        vm != tightest && self.has(tightest) && now.since(at) <= ACTIVE_FOR
    }

    /// A request is done.
    pub fn completed(&mut self, now: Instant, completion: &Completion) {
        let request = &completion.request;
        let rests = |target: &&Target| target.rests_until > now;
        let given_up = match self.known(request.vm.index()).and_then(|known| known.full_since) {
            Some(_) => self.vms.iter().flatten().filter(rests).count(),
            None => 0,
        };
        let try_for = Nanos::new(TRY_FOR.get() >> given_up.min(20));
        let Some(Some(target)) = self.vms.get_mut(request.vm.index()) else { return };
        let waited = completion.dispatched.since(request.arrived);
        let took = now.since(completion.dispatched);
        let (took_all, within) = ((waited + took).get() as f64, target.within.get() as f64);
        let missed = f64::from(u8::from(took_all > within));
        target.missed += FORGETS * (missed - target.missed);
        target.p99 *= if took_all > target.p99 { P99_STEP } else { P99_STEP.powf(-1.0 / 99.0) };
        if took_all <= within && now >= target.rests_until && target.p99 <= within {
            target.best = None;
        }
        if now >= target.rests_until {
            target.press(now, waited, took, try_for);
        }
    }

    /// State of the VM's target.
    pub fn state(&self, vm: usize) -> Option<State> {
        let Target { missed, p99, best, queue, device, .. } = *self.known(vm)?;
        Some(State { missed, p99, best, pressure: queue.max(device) })
    }
}

#[cfg(test)]
mod targets_tests {
    use super::*;

    #[test]
    fn a_due_vm_that_may_not_go_keeps_no_other_from_its_turn() {
        let (mut targets, start) = (Targets::default(), Instant::ZERO);
        for vm in 0..2 {
            targets.attach(vm, Some(Nanos::from_millis(2)));
            targets.set_work(vm, Some(start + Nanos::from_micros(vm as u64)));
        }
        let later = start + Nanos::from_millis(3);
        assert_eq!(targets.due(later, |_| true), Some(0));
        assert_eq!(targets.due(later, |vm| vm != 0), Some(1));
        // It is looked at again.
        assert_eq!(targets.due(later + Nanos::from_millis(1), |vm| vm == 0), Some(0));
        assert_eq!(targets.due(start, |_| true), None);
    }
}
