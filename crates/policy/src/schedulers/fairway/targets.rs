//! Targets of latency: 99 of 100 requests of a VM are to be done within a stated time.
//!
//! A request spends its time in the queue and in the device, and each part has its cure. For
//! the queue, the VM's share grows by a boost, and a request that has waited for half of the
//! target, or less, is due: it goes first while its VM is not ahead of its share by more than a
//! quantum. For the device, the others' bound and parts shrink. How much of each cure is given is
//! the *pressure*, 0 to 1: each request that misses the target raises the pressure of the part
//! that took longer by [`STEP`], each that meets it lowers both by [`MISSES`] of that. So it
//! settles where [`MISSES`] of the requests miss (stochastic approximation: Robbins, Monro,
//! Annals of Mathematical Statistics 1951).
//!
//! A target that is still missed after [`TRY_FOR`] at full pressure cannot be reached on this
//! device beside this load. The others would pay for nothing, so the pressure is taken off for
//! [`REST_FOR`]; [`State`] says what was reached. Each target that is given up halves the time for
//! which the next is tried: many that cannot be reached cost the others two seconds in all.

use seekway_core::queues::KeyedHeap;
use seekway_core::request::Completion;
use seekway_core::units::{Instant, Nanos};

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
mod tests {
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
