//! Which request goes next on a disk with a head, or who is waited for.

use super::{
    COMMAND, FEW, Head, OLDEST, ROUND, SHARE, SHORT_TURN, SLICE, STALL, STREAM, TURN, Vm, WINDOW,
};
use crate::schedulers::fairway::reserves::Reserves;
use seekway_core::request::RequestId;
use seekway_core::scheduler::{Decision, DeviceView};
use seekway_core::units::{Instant, Lba, Nanos};

impl Head {
    /// The request that a promise wants to go now.
    pub(super) fn promised(&mut self, now: Instant) -> Option<RequestId> {
        let Head { tags, vms, promises, .. } = self;
        let waits = |vm: &Option<Vm>| vm.as_ref().is_some_and(|vm| vm.heads().next().is_some());
        let is_others_turn = |reserves: &Reserves| {
            let mut others = vms.iter().enumerate().filter(|(vm, _)| !reserves.has(*vm));
            reserves.leaves(COMMAND) && others.any(|(_, vm)| waits(vm))
        };
        let vm = promises.next(now, |vm| !tags.is_ahead(vm, WINDOW), is_others_turn)?;
        let heads = self.vm(vm)?.heads().filter_map(|id| self.queued.get(id));
        Some(heads.min_by_key(|head| head.arrived)?.id)
    }

    /// The request that continues the last dispatch, if no input came since.
    pub(super) fn continuation(&self) -> Option<RequestId> {
        let vm = self.run.vm()?.index();
        let id = self.vm(vm)?.following(self.dwell.as_ref()?.end)?;
        self.run.continues(self.queued.get(id)?).then_some(id)
    }

    /// Time for which a stream keeps the head: less while a VM waits that has a single request.
    fn turn(&self, now: Instant, vm: usize) -> Nanos {
        let active = self.tags.active().max(2) as u64;
        let turn = match self.single {
            Some(_) => TURN.min(SHORT_TURN.scaled(active, 2)),
            None => TURN,
        };
        let squeeze = self.promises.targets.squeeze(now, vm);
        Nanos::new((turn.get() as f64 * squeeze) as u64)
    }

    /// Longest hold of the head for a stream's next request: half of what it costs to come back
    /// from another VM, so that a hold that pays brings more than one in vain costs.
    fn stream_hold_max(&self) -> Nanos {
        self.switch.get().map_or(self.stay, |back| self.stay.min(back.scaled(1, 2)))
    }

    /// The next of the common sweep.
    fn next(&self, head: Lba) -> Option<RequestId> {
        self.sweep.at_or_after(head).or_else(|| self.sweep.first()).map(|(_, id)| id)
    }

    /// Goes on at the head: the next request of a stream, or a hold for it.
    pub(super) fn dwell(&mut self, now: Instant, device: &DeviceView<'_>) -> Option<Decision> {
        let dwell = self.dwell.as_ref()?;
        let (vm, end) = (dwell.vm, dwell.end);
        let turn = self.turn(now, vm);
        let known = self.vms.get(vm)?.as_ref()?;
        if self.tags.is_ahead(vm, turn) {
            self.dwell = None;
            return None;
        }
        let following = known.following(end);
        if known.stream_had >= turn {
            self.dwell = None;
            let known = self.vms[vm].as_mut()?;
            known.stream_had = Nanos::ZERO;
            // If the stream's next request is the oldest, it passes nobody.
            if known.heads().any(|id| Some(id) != following) {
                known.skip(end);
            }
            self.place(vm);
            return None;
        }
        if let Some(id) = following {
            return Some(self.dispatch(now, device, id));
        }
        let longest = self.stream_hold_max();
        if dwell.run == 0 || !known.stream_pause.is_worth(longest) {
            return None;
        }
        if known.in_flight > 0 {
            let until = known.last_service + STALL;
            return (now < until).then_some(Decision::Wait { until: Some(until), why: STREAM });
        }
        let until = known.stream_pause.until(longest)?;
        if now < until {
            return Some(self.hold(now, vm, until, STREAM));
        }
        self.vms[vm].as_mut()?.stream_pause.was_in_vain(longest);
        self.dwell = None;
        None
    }

    /// Time for which a VM with several requests keeps the head, by its weight: slices of all
    /// active VMs fit into [`ROUND`], and a VM with a single request waits for [`SHORT_TURN`] of
    /// one at most. None while another VM's target of latency presses.
    fn slice(&self, now: Instant, vm: usize) -> Nanos {
        if self.promises.targets.presses(now, vm) {
            return Nanos::ZERO;
        }
        let mean = SLICE.min(ROUND.scaled(1, self.tags.active().max(1) as u64));
        // No longer than a stream's turn: the bound of others' waits counts on it.
        let slice = self.tags.by_part(vm, mean).min(TURN);
        match self.single.is_some_and(|single| single != vm) {
            true => slice.min(SHORT_TURN),
            false => slice,
        }
    }

    /// The next request of the VM whose slice it is, in the order of its own sweep; `None` when
    /// the slice is over.
    pub(super) fn go_on(&mut self, now: Instant) -> Option<RequestId> {
        let vm = self.last_vm;
        let slice = self.slice(now, vm);
        let known = self.vms.get(vm)?.as_ref()?;
        let is_over = known.slice_had >= slice || self.tags.is_ahead(vm, slice);
        if is_over || known.is_empty() {
            return None;
        }
        if known.spent {
            self.release_one(vm);
        }
        let overdue = self.overdue(now, vm);
        overdue.or_else(|| self.vms[vm].as_mut()?.next(&self.queued, self.at))
    }

    /// Is the VM's next request expected, and until when is it worth waiting for?
    fn expected_until(&self, vm: usize) -> Option<Instant> {
        let known = self.vm(vm)?;
        if known.in_flight > 0 {
            return Some(known.last_service + STALL);
        }
        let is_late = known.think.get().is_some_and(|think| think > self.hold);
        known.idle_since.filter(|_| !is_late && !self.in_vain).map(|since| since + self.hold)
    }

    /// The VM that has had least, if it has requests or some are expected of it. Others that
    /// have had as little and from which nothing is expected are no longer active.
    fn least(&mut self, now: Instant) -> Option<(usize, Option<Instant>)> {
        loop {
            let vm = self.tags.first()?;
            if !self.vm(vm)?.is_empty() {
                return Some((vm, None));
            }
            match self.expected_until(vm).filter(|&until| now < until) {
                Some(until) => return Some((vm, Some(until))),
                None => {
                    self.tags.set_active(vm, false);
                }
            }
        }
    }

    /// The next of the common sweep; or a hold for a VM that has had less than all that could go.
    pub(super) fn sweep(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        loop {
            let least = self.least(now);
            self.release();
            let Some(id) = self.next(device.head) else {
                let (vm, until) = least.expect("a VM with work is active");
                let until =
                    until.expect("a VM with work that has not had its part is in the sweep");
                if self.vm(vm).is_some_and(|known| known.in_flight > 0) {
                    return Decision::Wait { until: Some(until), why: SHARE };
                }
                return self.hold(now, vm, until, SHARE);
            };
            let vm = self.queued.get(id).expect("the sweep holds queued requests").vm.index();
            if !self.spend(vm) {
                let id = self.overdue(now, vm).unwrap_or(id);
                return self.dispatch(now, device, id);
            }
        }
    }

    /// The VM's oldest request, if it has waited too long.
    fn overdue(&mut self, now: Instant, vm: usize) -> Option<RequestId> {
        if self.tags.active() < 2 {
            return None;
        }
        let (oldest, queued, mean) = self.vms.get_mut(vm)?.as_mut()?.oldest(&self.queued)?;
        let waited = now.since(self.queued.get(oldest)?.arrived).get() as f64;
        (queued <= FEW || waited > OLDEST * mean.get() as f64).then_some(oldest)
    }
}
