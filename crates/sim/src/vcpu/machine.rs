//! The machine as a source of requests: its events, one after the other, the host's scheduler, and
//! the results.

use super::state::{Age, Heard, Io, On, Pcpu, Phase, Slice, Task, Vcpu, VcpuRunState, Vm};
use super::{
    Ablation, Costs, Detector, GuestCpu, HostCpu, MachineSpec, PcpuResult, TaskResult, spec,
};
use crate::metrics::{MachineResult, VmCpu};
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{Sign, VcpuPolicy, build};
use seekway_workload::tasks::TaskSource;
use seekway_workload::{AppReport, Issue, Source, SourceError, VmDisk};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A host with its VMs, running. It comes to an end when all of its VMs have guests, and
/// their loads have ended.
pub struct Machine {
    pub(super) host: HostCpu,
    pub(super) guest: GuestCpu,
    pub(super) detector: Detector,
    pub(super) costs: Costs,
    pub(super) ablation: Ablation,
    pub(super) policy: String,
    /// Of all VMs, one after the other: see [`Vm::disks`].
    pub(super) disks: Vec<VmDisk>,
    pub(super) pcpus: Vec<Pcpu>,
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) vms: Vec<Vm>,
    pub(super) tasks: Vec<Task>,
    /// By token; none where it is free.
    pub(super) ios: Vec<Option<Io>>,
    pub(super) free_ios: Vec<usize>,
    pub(super) issues: Vec<Issue>,
    /// The guests of VMs whose tasks have a kernel below them, by VM.
    pub(super) guests: Vec<Option<Box<dyn TaskSource>>>,
    /// Why it cannot go on.
    pub(super) failed: Option<SourceError>,
    pub(super) events: Events,
    pub(super) now: Instant,
    pub(super) measured_from: Instant,
    pub(super) handled: u64,
}

impl Machine {
    /// Makes a machine whose agents have this policy. Its result covers the time from
    /// `measured_from` on.
    ///
    /// # Errors
    /// The policy is none, or the machine cannot be.
    pub fn new(
        spec: &MachineSpec,
        policy: &str,
        seed: u64,
        measured_from: Instant,
    ) -> Result<Machine, String> {
        let agent = || build(policy).map_err(|e| e.to_string());
        Machine::with(spec, policy, &agent, seed, measured_from)
    }

    /// As [`Machine::new`], with policies that are in no registry: `policy` builds one for each
    /// agent.
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn with(
        spec: &MachineSpec,
        name: &str,
        policy: &dyn Fn() -> Result<Box<dyn VcpuPolicy>, String>,
        seed: u64,
        measured_from: Instant,
    ) -> Result<Machine, String> {
        let guests = spec.vms.iter().map(|_| None).collect();
        Machine::with_guests(spec, guests, name, policy, seed, measured_from)
    }

    /// As [`Machine::with`], with a guest for each VM that has tasks of one
    /// ([`Load::Guest`](super::Load)).
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn with_guests(
        spec: &MachineSpec,
        guests: Vec<Option<Box<dyn TaskSource>>>,
        name: &str,
        policy: &dyn Fn() -> Result<Box<dyn VcpuPolicy>, String>,
        seed: u64,
        measured_from: Instant,
    ) -> Result<Machine, String> {
        spec::check(spec)?;
        spec::check_guests(spec, &guests)?;
        let mut machine = Machine::build(spec, name, seed, measured_from);
        machine.guests = guests;
        machine.plug_disks(spec);
        for (n, vm) in spec.vms.iter().enumerate() {
            if vm.agent {
                machine.give_agent(n, policy()?);
            }
        }
        machine.attach();
        machine.events.push(measured_from, Event::Measured);
        for (task, spec) in spec.vms.iter().flat_map(|vm| &vm.tasks).enumerate() {
            let vcpu = machine.tasks[task].vcpu;
            machine.events.push(Instant::ZERO + spec.from, Event::Slept { task, vcpu, nap: 0 });
        }
        Ok(machine)
    }

    /// Handles the events of this instant.
    fn handle_due(&mut self, now: Instant) {
        while let Some((at, event)) = self.events.peek() {
            if at <= now {
                debug_assert!(at >= self.now, "time ran backwards");
                self.now = at;
                self.events.pop();
                self.handle(event);
            } else if self.is_stale(event) {
                self.events.pop();
            } else {
                break;
            }
        }
        self.now = now;
    }

    fn handle(&mut self, event: Event) {
        if self.is_stale(event) {
            return;
        }
        self.handled += 1;
        match event {
            Event::Processor { pcpu, .. } => self.processor_event(pcpu),
            Event::Foreseen { pcpu, .. } => self.foreseen(pcpu),
            Event::Executed { vcpu, .. } => self.executed(vcpu),
            Event::Slept { task, vcpu, nap } if self.tasks[task].phase == Phase::New => {
                self.hear(vcpu, Heard::Slept { task, nap });
            }
            Event::Slept { task, vcpu, nap } => self.interrupt(vcpu, Heard::Slept { task, nap }),
            Event::Interrupt { token } => self.io_done(token),
            Event::Kernel { vm, .. } => self.kernel_is_due(vm),
            Event::Dozed { vcpu, .. } => self.host_wake(vcpu),
            Event::Beat { vcpu, .. } => self.beat(vcpu),
            Event::Edge { vcpu, at, sign } => self.edge(vcpu, at, sign),
            Event::Alarm { vcpu, .. } => self.wake_monitor(vcpu),
            Event::Measured => self.begin_measuring(),
        }
    }

    fn is_stale(&self, event: Event) -> bool {
        match event {
            Event::Processor { pcpu, generation } | Event::Foreseen { pcpu, generation } => {
                self.pcpus[pcpu].generation != generation
            }
            Event::Executed { vcpu, generation } => self.vcpus[vcpu].generation != generation,
            Event::Dozed { vcpu, generation } => self.vcpus[vcpu].doze_generation != generation,
            Event::Beat { vcpu, generation } => self.vcpus[vcpu].monitor.generation != generation,
            Event::Alarm { vcpu, generation } => {
                self.vcpus[vcpu].monitor.alarm.generation != generation
            }
            Event::Slept { task, nap, .. } => self.tasks[task].naps != nap,
            Event::Kernel { vm, generation } => self.vms[vm].kernel_timer.1 != generation,
            Event::Interrupt { .. } | Event::Edge { .. } | Event::Measured => false,
        }
    }

    /// Forgets the counts up to now.
    fn begin_measuring(&mut self) {
        let now = self.now;
        self.account(now);
        for pcpu in &mut self.pcpus {
            pcpu.result = PcpuResult::default();
        }
        for task in &mut self.tasks {
            task.result = TaskResult::new(std::mem::take(&mut task.result.name));
        }
        for vm in &mut self.vms {
            vm.any.restart(now);
            vm.least.restart();
            (vm.agent_time, vm.switching) = (Nanos::ZERO, Nanos::ZERO);
            (vm.moves, vm.releases, vm.blocked) = (0, 0, 0);
        }
        for vcpu in &mut self.vcpus {
            vcpu.ran.restart(now);
            vcpu.waits.restart(now);
        }
    }

    /// Everything is counted up to `now`.
    pub(super) fn account(&mut self, now: Instant) {
        self.now = now;
        (0..self.pcpus.len()).for_each(|p| self.charge(p));
        let running = |v: &usize| self.vcpus[*v].state == VcpuRunState::Running;
        let running: Vec<usize> = (0..self.vcpus.len()).filter(running).collect();
        running.into_iter().for_each(|v| self.settle(v));
        (0..self.tasks.len()).for_each(|t| self.flush_wants(t));
    }
}

impl Source for &mut Machine {
    fn vms(&self) -> &[VmDisk] {
        &self.disks
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        self.handle_due(now);
        out.append(&mut self.issues);
        self.failed.take().map_or(Ok(()), Err)
    }

    fn completed(&mut self, now: Instant, token: u64) {
        self.handle_before(now);
        self.answered(token as usize);
    }

    fn next_wake(&self) -> Option<Instant> {
        // Agents and slices would go on for ever.
        if self.finished() { None } else { self.events.peek().map(|(at, _)| at) }
    }

    fn finished(&self) -> bool {
        self.guests.iter().all(|guest| guest.as_ref().is_some_and(|g| g.finished()))
    }

    fn lacks(&self, disk: usize) -> Vec<Extent> {
        let vm = self.vms.iter().position(|vm| vm.disks.contains(&disk));
        let guest = vm.and_then(|vm| Some((self.guests[vm].as_ref()?, self.vms[vm].disks.start)));
        guest.map_or(Vec::new(), |(guest, first)| guest.lacks(disk - first))
    }

    fn apps(&self) -> Vec<AppReport> {
        let of = |(vm, guest): (&Vm, &Option<Box<dyn TaskSource>>)| {
            let first = vm.disks.start as u16;
            let apps = guest.iter().flat_map(|guest| guest.apps());
            apps.map(|app| AppReport { vm: first + app.vm, ..app }).collect::<Vec<_>>()
        };
        self.vms.iter().zip(&self.guests).flat_map(of).collect()
    }
}

impl Machine {
    /// Nothing is due before `now`: the engine polls at each wake.
    fn handle_before(&mut self, now: Instant) {
        debug_assert!(self.events.peek().is_none_or(|(at, _)| at >= now), "a wake was missed");
        self.now = now;
    }
}

// A machine's future events: one heap, in order of time, then of scheduling.
//
// An event that may become obsolete has a generation; one whose generation has passed is stale and
// does nothing.

/// An event. vCPUs, processors, VMs and tasks are numbers of the whole machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Event {
    /// A processor: its switch is done, its slice is over, or it has to choose.
    Processor { pcpu: usize, generation: u64 },
    /// The policy is told, before its slice's end, that a vCPU will be taken away.
    Foreseen { pcpu: usize, generation: u64 },
    /// A vCPU has finished what it executed.
    Executed { vcpu: usize, generation: u64 },
    /// A task's sleep is over; the timer is the vCPU's on which it fell asleep. `nap` counts its
    /// sleeps before.
    Slept { task: usize, vcpu: usize, nap: u64 },
    /// The interrupt of a request that is done reaches the guest.
    Interrupt { token: usize },
    /// The timer of a guest's kernel goes off.
    Kernel { vm: usize, generation: u64 },
    /// A vCPU that idles of its own accord has done so for long enough.
    Dozed { vcpu: usize, generation: u64 },
    /// A monitor's beat is due.
    Beat { vcpu: usize, generation: u64 },
    /// A detector learns of an edge that happened at `at`.
    Edge { vcpu: usize, at: Instant, sign: Sign },
    /// A monitor wakes for the policy's due work.
    Alarm { vcpu: usize, generation: u64 },
    /// From now on it is measured.
    Measured,
}

/// The events to come.
#[derive(Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
    asked: u64,
}

struct Entry {
    at: Instant,
    order: u64,
    event: Event,
}

impl Events {
    /// Schedules `event` for the time `at`, after those already asked for then.
    pub fn push(&mut self, at: Instant, event: Event) {
        self.asked += 1;
        self.heap.push(Reverse(Entry { at, order: self.asked, event }));
    }

    pub fn peek(&self) -> Option<(Instant, Event)> {
        self.heap.peek().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// Take the next one.
    pub fn pop(&mut self) {
        self.heap.pop();
    }
}

impl Entry {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.order)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

// The host's scheduler: which vCPU has a processor, and for how long.
//
// Every vCPU that starts does so in an event of its processor. So nothing that wakes
// one is ever called from within another's start.

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

// Results of a machine's run.

impl Machine {
    /// Results from the begin of the measuring up to `now`, to which it has run.
    pub fn result(&mut self, now: Instant) -> MachineResult {
        self.account(now);
        MachineResult {
            policy: self.policy.clone(),
            pcpus: self.pcpus.iter().map(|pcpu| pcpu.result).collect(),
            vms: self.vms.iter().map(|vm| self.vm_result(vm)).collect(),
            events: self.handled,
        }
    }

    fn vm_result(&self, vm: &Vm) -> VmCpu {
        let vcpus = &self.vcpus[vm.first..vm.first + vm.vcpus];
        let tasks = self.tasks[vm.tasks.clone()].iter();
        let mut metrics = Vec::new();
        if let Some(agent) = &vm.agent {
            agent.core.policy.metrics(&mut |name, value| metrics.push((name, value)));
        }
        VmCpu {
            name: vm.name.clone(),
            disks: vm.disks.clone(),
            ran: vcpus.iter().fold(Nanos::ZERO, |sum, vcpu| sum + vcpu.ran.at(self.now)),
            stolen: vcpus.iter().fold(Nanos::ZERO, |sum, vcpu| sum + vcpu.waits.at(self.now)),
            vcpus: vcpus.len() as u16,
            any_ran: vm.any.at(self.now),
            first_ran: vcpus[0].ran.at(self.now),
            tasks: tasks.map(|t| TaskResult { io: t.is_io(), ..t.result.clone() }).collect(),
            moves: vm.moves,
            releases: vm.releases,
            blocked: vm.blocked,
            moves_min: vm.least.moves(),
            agent: vm.agent_time,
            overhead: vm.switching,
            metrics,
        }
    }
}
