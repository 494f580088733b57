//! The two algorithms of the paper: when a timer is set, and what goes or
//! waits while it runs.

use super::{Pregather, Rule, Timer};
use seekway_core::request::RequestId;
use seekway_core::scheduler::HOLD_MAX;
use seekway_core::scheduler::{Decision, DeviceView};
use seekway_core::units::{Instant, Lba, Nanos};

impl Pregather {
    /// Algorithm 1, on completion of a request of `vm`, with nothing in flight.
    pub(super) fn set_timer(&mut self, now: Instant, vm: usize) {
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
    pub(super) fn neighbour(&self, x: usize) -> Option<(usize, RequestId)> {
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
    pub(super) fn continuation(&self) -> Option<RequestId> {
        let (vm, op, end) = self.building?;
        let sorted = &self.vm(vm.index())?.sorted;
        let (lba, id) = sorted.at_or_after(end)?;
        (lba == end && self.request(id).op == op).then_some(id)
    }

    /// The EDF head of the serving VM if it has expired.
    pub(super) fn expired(&mut self, now: Instant) -> Option<RequestId> {
        let turn = self.turn.as_mut()?;
        if !self.config.expire_always && std::mem::replace(&mut turn.checked, true) {
            return None;
        }
        let turn = *turn;
        let (deadline, id) = self.edf_head(self.vm(turn.vm)?)?;
        (deadline <= now).then_some(id)
    }

    pub(super) fn pending(&self) -> Option<(RequestId, Rule)> {
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
    pub(super) fn wait(
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
