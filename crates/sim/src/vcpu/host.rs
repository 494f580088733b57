//! The host's scheduler: which vCPU has a processor, and for how long.
//!
//! Every vCPU that starts does so in an event of its processor. So nothing that wakes
//! one is ever called from within another's start.

use super::Machine;
use super::events::Event;
use super::fair::Age;
use super::state::{On, Slice, VcpuRunState};
use seekway_core::units::Nanos;
use seekway_vcpu::Sign;

impl Machine {
    /// A vCPU that had nothing to run has something.
    pub(super) fn host_wake(&mut self, v: usize) {
        if self.vcpus[v].state != VcpuRunState::Halted {
            return;
        }
        let (p, vm) = (self.vcpus[v].pcpu, self.vcpus[v].vm);
        self.charge(p);
        let credit = Age::of(self.vms[vm].slice, self.vcpus[v].weight);
        let floor = self.pcpus[p].floor;
        let vcpu = &mut self.vcpus[v];
        (vcpu.age, vcpu.state) = (vcpu.age.waking(floor, credit), VcpuRunState::Waiting);
        vcpu.waits.start(self.now);
        (vcpu.dozes, vcpu.doze_generation) = (false, vcpu.doze_generation + 1);
        self.vms[vm].halted -= 1;
        self.vms[vm].look_for_any(self.now);
        self.pcpus[p].waiting.push(v);
        match self.pcpus[p].on {
            On::Idle => self.choose_soon(p),
            On::Choosing => {}
            On::Switching(_) => self.tell_edge(v, Sign::Preempted),
            On::Running(c) if self.host.wakeup_preempts && self.is_overtaken(c, v) => {
                self.take_away(p, c, VcpuRunState::Waiting);
            }
            On::Running(_) => {
                self.tell_edge(v, Sign::Preempted);
                self.arm_slice(p);
            }
        }
    }

    /// Has `running` used more than `woken`, by over half a slice?
    fn is_overtaken(&self, running: usize, woken: usize) -> bool {
        let woken = &self.vcpus[woken];
        let half = Age::of(self.vms[woken.vm].slice.scaled(1, 2), woken.weight);
        self.vcpus[running].age.minus(woken.age) > half
    }

    /// A vCPU has nothing to run any more.
    pub(super) fn host_halt(&mut self, v: usize) {
        let p = self.vcpus[v].pcpu;
        self.charge(p);
        self.take_away(p, v, VcpuRunState::Halted);
    }

    /// The processor of a vCPU is taken from it.
    fn take_away(&mut self, p: usize, v: usize, state: VcpuRunState) {
        self.vcpu_stops(v, state);
        if state == VcpuRunState::Waiting {
            self.pcpus[p].waiting.push(v);
        }
        self.pcpus[p].last = Some(v);
        self.choose_soon(p);
    }

    /// The processor chooses a vCPU when all that happens at this instant has.
    fn choose_soon(&mut self, p: usize) {
        self.turn(p, On::Choosing);
        self.arm_processor(p, Nanos::ZERO);
    }

    /// Begins another activity of a processor.
    fn turn(&mut self, p: usize, on: On) {
        self.charge(p);
        self.pcpus[p].on = on;
    }

    /// Accounts for a processor's work up to now.
    pub(super) fn charge(&mut self, p: usize) {
        let pcpu = &mut self.pcpus[p];
        let span = self.now - pcpu.since;
        pcpu.since = self.now;
        match pcpu.on {
            On::Idle | On::Choosing => pcpu.result.idle += span,
            On::Switching(_) => pcpu.result.switching += span,
            On::Running(v) => {
                pcpu.result.ran += span;
                let vcpu = &mut self.vcpus[v];
                vcpu.age = vcpu.age.plus(Age::of(span, vcpu.weight));
                let youngest = self.pcpus[p].waiting.iter().map(|&w| self.vcpus[w].age).min();
                let age = self.vcpus[v].age;
                let floor = youngest.map_or(age, |youngest| youngest.min(age));
                self.pcpus[p].floor = self.pcpus[p].floor.max(floor);
            }
        }
    }

    fn arm_processor(&mut self, p: usize, after: Nanos) {
        self.pcpus[p].generation += 1;
        let generation = self.pcpus[p].generation;
        self.events.push(self.now + after, Event::Processor { pcpu: p, generation });
    }

    /// Ends what a processor was doing.
    pub(super) fn processor_event(&mut self, p: usize) {
        self.charge(p);
        match self.pcpus[p].on {
            On::Idle => {}
            On::Choosing => self.choose(p),
            On::Switching(v) => self.start(p, v),
            On::Running(v) => self.end_slice(p, v),
        }
    }

    /// Give the processor to a vCPU that waits.
    fn choose(&mut self, p: usize) {
        let Some(v) = self.preferred(p) else { return self.turn(p, On::Idle) };
        self.pcpus[p].waiting.retain(|&w| w != v);
        if self.pcpus[p].last == Some(v) || self.host.context_switch == Nanos::ZERO {
            return self.start(p, v);
        }
        self.turn(p, On::Switching(v));
        self.pcpus[p].result.switches += 1;
        self.arm_processor(p, self.host.context_switch);
    }

    /// Chooses the next vCPU: one with short slices whose turn it is, one that was interrupted by
    /// such, the youngest.
    fn preferred(&mut self, p: usize) -> Option<usize> {
        if let Some(short) = self.short_due(p) {
            return Some(short);
        }
        match self.pcpus[p].front {
            Some((v, _)) => Some(v),
            None => self.youngest(p),
        }
    }

    fn youngest(&self, p: usize) -> Option<usize> {
        self.pcpus[p].waiting.iter().copied().min_by_key(|&v| (self.vcpus[v].age, v))
    }

    /// Has this vCPU shorter slices than the host gives?
    fn is_short(&self, v: usize) -> bool {
        self.vms[self.vcpus[v].vm].slice < self.host.slice
    }

    /// The mean age of the waiting vCPUs, and their weights, if some have short slices and some
    /// have not: then those with short slices take turns in between.
    fn mean_age(&self, p: usize) -> Option<(Age, u64)> {
        let pcpu = &self.pcpus[p];
        let current = match pcpu.on {
            On::Running(v) => Some(v),
            _ => None,
        };
        let all = || pcpu.waiting.iter().copied().chain(current);
        let short = all().filter(|&v| self.is_short(v)).count();
        if short == 0 || short == all().count() {
            return None;
        }
        let of = |v: usize| (self.vcpus[v].age, self.vcpus[v].weight);
        let weights = all().map(|v| u64::from(self.vcpus[v].weight)).sum();
        Some((Age::mean(all().map(of))?, weights))
    }

    /// Finds the vCPU with short slices that has had less than its share.
    fn short_due(&self, p: usize) -> Option<usize> {
        let (mean, _) = self.mean_age(p)?;
        let waiting = self.pcpus[p].waiting.iter().copied();
        let due = waiting.filter(|&v| self.is_short(v) && self.vcpus[v].age <= mean);
        due.min_by_key(|&v| (self.vcpus[v].age, v))
    }

    /// Time until one with short slices is due, while one with whole slices runs.
    fn short_due_in(&self, p: usize, running: usize) -> Option<Nanos> {
        if self.is_short(running) {
            return None;
        }
        let (mean, weights) = self.mean_age(p)?;
        let waiting = self.pcpus[p].waiting.iter().copied().filter(|&v| self.is_short(v));
        waiting.map(|v| self.vcpus[v].age.until(mean, weights)).min()
    }

    /// A vCPU runs from now on.
    fn start(&mut self, p: usize, v: usize) {
        self.turn(p, On::Running(v));
        self.pcpus[p].last = Some(v);
        let front = self.pcpus[p].front.filter(|&(front, _)| front == v);
        if front.is_some() {
            self.pcpus[p].front = None;
        }
        self.pcpus[p].slice = match front {
            Some((_, Some(length))) => Slice { from: self.now, length, is_cut: false },
            _ => self.new_slice(p, v),
        };
        self.arm_slice(p);
        self.vcpu_starts(v);
    }

    /// A slice, longer or shorter by chance.
    fn new_slice(&mut self, p: usize, v: usize) -> Slice {
        let whole = self.vms[self.vcpus[v].vm].slice;
        let jitter = self.host.jitter.scaled(whole.get(), self.host.slice.get()).get();
        // By time, not by slice: who has shorter ones is not interrupted more often.
        let of = 1000 * self.host.slice.get();
        let cut = u64::from(self.host.cut_permille) * whole.get();
        let pcpu = &mut self.pcpus[p];
        let length = whole.get() - jitter + pcpu.rng.below(2 * jitter + 1);
        pcpu.result.slices += 1;
        let is_cut = cut > 0 && pcpu.rng.below(of) < cut;
        let is_part = std::mem::replace(&mut pcpu.is_fresh, false) || is_cut;
        let length = if is_part { pcpu.rng.below(length) + 1 } else { length };
        Slice { from: self.now, length: Nanos::new(length), is_cut }
    }

    /// A slice has an end while another vCPU waits.
    pub(super) fn arm_slice(&mut self, p: usize) {
        let On::Running(v) = self.pcpus[p].on else { return };
        self.charge(p);
        if self.pcpus[p].waiting.is_empty() {
            self.pcpus[p].generation += 1;
            return;
        }
        let whole = self.vms[self.vcpus[v].vm].slice;
        let slice = &mut self.pcpus[p].slice;
        let used = self.now - slice.from;
        if used > slice.length {
            // It ran alone for longer: slices passed unnoticed.
            let into = Nanos::new((used.get() - slice.length.get()) % whole.get());
            let from = self.now.as_nanos() - into.get();
            let from = seekway_core::units::Instant::from_nanos(from);
            *slice = Slice { from, length: whole, is_cut: false };
        }
        let left = slice.length.saturating_sub(self.now - slice.from);
        let left = self.short_due_in(p, v).map_or(left, |short| short.min(left));
        self.arm_processor(p, left);
        if let Some(before) = self.ablation.foresight {
            let generation = self.pcpus[p].generation;
            let at = self.now + left.saturating_sub(before);
            self.events.push(at, Event::Foreseen { pcpu: p, generation });
        }
    }

    /// Ends a slice: its time is over, or a vCPU with short slices is due.
    fn end_slice(&mut self, p: usize, v: usize) {
        let slice = self.pcpus[p].slice;
        let left = slice.length.saturating_sub(self.now - slice.from);
        if left > Nanos::ZERO {
            if self.short_due(p).is_some() {
                self.pcpus[p].front = Some((v, Some(left)));
                return self.take_away(p, v, VcpuRunState::Waiting);
            }
            return self.arm_slice(p);
        }
        if self.stays(p, v) {
            self.pcpus[p].slice = self.new_slice(p, v);
            self.untell(v);
            return self.arm_slice(p);
        }
        if slice.is_cut && self.pcpus[p].front.is_none() {
            // The interrupting vCPU took its turn: another goes next.
            self.pcpus[p].front = self.youngest(p).map(|next| (next, None));
        }
        self.take_away(p, v, VcpuRunState::Waiting);
    }

    /// Is the vCPU that runs to have the next slice too?
    fn stays(&self, p: usize, v: usize) -> bool {
        let Some(next) = self.youngest(p) else { return true };
        let key = |v: usize| (self.vcpus[v].age, v);
        self.short_due(p).is_none() && !self.pcpus[p].slice.is_cut && key(v) < key(next)
    }

    /// Tells the policy that its processor's vCPU will be taken away soon.
    pub(super) fn foreseen(&mut self, p: usize) {
        let On::Running(v) = self.pcpus[p].on else { return };
        self.charge(p);
        let mut left = self.pcpus[p].slice.length;
        left = left.saturating_sub(self.now - self.pcpus[p].slice.from);
        let then = self.vcpus[v].age.plus(Age::of(left, self.vcpus[v].weight));
        let youngest = self.youngest(p).map(|w| (self.vcpus[w].age, w));
        let goes = youngest.is_some_and(|youngest| youngest < (then, v));
        if goes || self.pcpus[p].slice.is_cut {
            self.foretell(v);
        }
    }
}
