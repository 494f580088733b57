//! The guests' schedulers, the activities of tasks, and interrupts. Schedulers choose a vCPU's work while it has a processor.
//!
//! Work of the kernel and of the agent goes first, then the current task. A task that wakes takes
//! the vCPU from one that has run more, by over half a slice: one that does little but I/O always
//! has run less than one that computes.

use super::machine::Event;
use super::state::{
    Age, Asker, Beat, Heard, Io, Phase, State, Task, VcpuRunState, WakeState, Wants, Work, WorkKind,
};
use super::{Completes, Load, Machine};
use seekway_core::request::{Op, ProcessTag};
use seekway_core::units::{Lba, Nanos};
use seekway_vcpu::Sign;
use seekway_workload::Issue;

impl Machine {
    /// The host gave a vCPU a processor.
    pub(super) fn vcpu_starts(&mut self, v: usize) {
        let now = self.now;
        let vcpu = &mut self.vcpus[v];
        (vcpu.state, vcpu.since, vcpu.starts) = (VcpuRunState::Running, now, true);
        vcpu.ran.start(now);
        vcpu.away.stop(now);
        vcpu.waits.stop(now);
        let vm = &mut self.vms[vcpu.vm];
        vm.running.insert(vcpu.id);
        vm.runs += 1;
        vm.look_for_any(now);
        vm.least.runs(vcpu.id, vm.runs == 1);
        self.tell_edge(v, Sign::Resumed);
        self.empty_wake_list(v);
        let here = std::mem::take(&mut self.vcpus[v].unheard);
        let anywhere = std::mem::take(&mut self.vms[self.vcpus[v].vm].unheard);
        for heard in here.into_iter().chain(anywhere) {
            self.hear(v, heard);
        }
        if let Beat::Due(due) = self.vcpus[v].monitor.state {
            self.execute_beat(v, due);
        }
        if self.vcpus[v].monitor.alarm.state == WakeState::Due {
            self.execute_look(v);
        }
        self.catch_up(self.vcpus[v].vm);
        self.vcpus[v].starts = false;
        self.yield_to_younger(v);
        self.dispatch(v);
    }

    /// The host took its processor, or it has nothing to run.
    pub(super) fn vcpu_stops(&mut self, v: usize, state: VcpuRunState) {
        self.settle(v);
        let now = self.now;
        let vcpu = &mut self.vcpus[v];
        vcpu.state = state;
        vcpu.generation += 1;
        vcpu.ran.stop(now);
        vcpu.away.start(now);
        if state == VcpuRunState::Waiting {
            vcpu.waits.start(now);
        }
        for work in &mut vcpu.work {
            match &mut work.what {
                WorkKind::Call { was_away, .. } | WorkKind::Stop { was_away, .. } => {
                    *was_away = true
                }
                _ => {}
            }
        }
        let vm = &mut self.vms[vcpu.vm];
        vm.running.remove(vcpu.id);
        vm.runs -= 1;
        vm.halted += usize::from(state == VcpuRunState::Halted);
        vm.look_for_any(now);
        vm.least.stops(vcpu.id, &vm.running);
        let sign = if state == VcpuRunState::Halted { Sign::Idle } else { Sign::Preempted };
        self.tell_edge(v, sign);
    }

    /// Accounts for a vCPU's work up to now.
    pub(super) fn settle(&mut self, v: usize) {
        let vcpu = &mut self.vcpus[v];
        let span = self.now - vcpu.since;
        vcpu.since = self.now;
        if vcpu.state != VcpuRunState::Running || span == Nanos::ZERO {
            return;
        }
        let vm = &mut self.vms[vcpu.vm];
        if let Some(work) = vcpu.work.front_mut() {
            debug_assert!(work.left >= span, "work lasts longer than it does");
            work.left = work.left.saturating_sub(span);
            match work.what {
                WorkKind::Switch | WorkKind::Stop { .. } => vm.switching += span,
                _ => vm.agent_time += span,
            }
            return;
        }
        let current = vcpu.current.expect("a vCPU that runs executes something");
        vcpu.used += span;
        let task = &mut self.tasks[current];
        let cold = span.min(task.cold);
        let ran = span.saturating_sub(cold);
        task.cold = task.cold.saturating_sub(cold);
        vm.switching += cold;
        task.result.ran += ran;
        task.window.ran += span;
        task.age = task.age.plus(Age::of(span, 1));
        if let Some(left) = &mut task.left {
            debug_assert!(*left >= ran, "a phase lasts longer than it does");
            *left = left.saturating_sub(ran);
        }
        let age = task.age;
        let youngest = vcpu.queue.iter().map(|&t| self.tasks[t].age).min();
        let floor = youngest.map_or(age, |youngest| youngest.min(age));
        vcpu.floor = vcpu.floor.max(floor);
    }

    /// Ends what a vCPU executed.
    pub(super) fn executed(&mut self, v: usize) {
        self.settle(v);
        let vcpu = &self.vcpus[v];
        match (vcpu.work.front().copied(), vcpu.current) {
            (Some(Work { left: Nanos::ZERO, what }), _) => {
                self.vcpus[v].work.pop_front();
                self.work_done(v, what);
            }
            (None, Some(t)) if self.tasks[t].is_due() => self.step(t),
            (None, Some(_)) if self.is_slice_over(v) => self.next_slice(v),
            _ => {}
        }
        self.dispatch(v);
    }

    /// Lets a running vCPU execute its first work. Everything up to now is settled.
    pub(super) fn dispatch(&mut self, v: usize) {
        if self.vcpus[v].state != VcpuRunState::Running || self.vcpus[v].starts {
            return;
        }
        if self.vcpus[v].work.is_empty() && self.vcpus[v].current.is_none() && !self.choose_task(v)
        {
            return self.host_halt(v);
        }
        self.arm(v);
    }

    /// Schedules the end of its present work.
    fn arm(&mut self, v: usize) {
        let vcpu = &mut self.vcpus[v];
        vcpu.generation += 1;
        let left = match (vcpu.work.front(), vcpu.current) {
            (Some(work), _) => Some(work.left),
            (None, Some(t)) => {
                let task = &self.tasks[t];
                let slice = self.guest.slice.saturating_sub(vcpu.used);
                let slice = (!vcpu.queue.is_empty()).then_some(slice);
                task.left.map(|left| left + task.cold).into_iter().chain(slice).min()
            }
            (None, None) => unreachable!("a vCPU that runs executes something"),
        };
        if let Some(left) = left {
            let generation = vcpu.generation;
            self.events.push(self.now + left, Event::Executed { vcpu: v, generation });
        }
    }

    /// Make a task of the queue current. False if there is none to run.
    fn choose_task(&mut self, v: usize) -> bool {
        if self.vcpus[v].queue.is_empty() && !self.pull_waiting(v) {
            return false;
        }
        if self.dozes_off(v) {
            return false;
        }
        let youngest = self.youngest_task(v).expect("somebody waits");
        self.make_current(v, youngest);
        true
    }

    fn youngest_task(&self, v: usize) -> Option<usize> {
        self.vcpus[v].queue.iter().copied().min_by_key(|&t| self.tasks[t].age)
    }

    fn make_current(&mut self, v: usize, t: usize) {
        let vcpu = &mut self.vcpus[v];
        vcpu.queue.retain(|&other| other != t);
        (vcpu.current, vcpu.used) = (Some(t), Nanos::ZERO);
        self.tasks[t].state = State::Current;
        if vcpu.last.replace(t) != Some(t) && self.guest.context_switch > Nanos::ZERO {
            vcpu.work.push_back(Work { left: self.guest.context_switch, what: WorkKind::Switch });
        }
    }

    /// The current task goes back into the queue.
    pub(super) fn put_back(&mut self, v: usize) {
        if let Some(t) = self.vcpus[v].current.take() {
            self.tasks[t].state = State::Queued;
            self.vcpus[v].queue.push(t);
        }
    }

    fn is_slice_over(&self, v: usize) -> bool {
        let vcpu = &self.vcpus[v];
        vcpu.used >= self.guest.slice && !vcpu.queue.is_empty()
    }

    /// The current task's slice is over, and others wait.
    fn next_slice(&mut self, v: usize) {
        self.push_waiting(v);
        self.put_back(v);
        if self.dozes_off(v) {
            return;
        }
        if let Some(t) = self.youngest_task(v) {
            self.make_current(v, t);
        }
    }

    /// A task that wants to run joins a vCPU's queue; its age is right for it.
    pub(super) fn enqueue(&mut self, t: usize, v: usize) {
        debug_assert!(self.tasks[t].within.contains(self.vcpus[v].id), "a task outside its mask");
        self.settle(v);
        self.queue(t, v);
        match self.vcpus[v].state {
            VcpuRunState::Running => {
                self.yield_to_younger(v);
                self.dispatch(v);
            }
            VcpuRunState::Halted if self.vcpus[v].dozes && !self.tasks[t].is_io() => {}
            VcpuRunState::Halted => self.host_wake(v),
            VcpuRunState::Waiting => {}
        }
    }

    fn queue(&mut self, t: usize, v: usize) {
        let away = self.vcpus[v].away.at(self.now);
        let task = &mut self.tasks[t];
        (task.state, task.wants) = (State::Queued, Wants::VcpuRunState(away));
        task.vcpu = v;
        self.vcpus[v].queue.push(t);
    }

    /// Leaves a task for an absent vCPU, which has to queue it itself.
    pub(super) fn leave_on_wake_list(&mut self, t: usize, v: usize) {
        let away = self.vcpus[v].away.at(self.now);
        let task = &mut self.tasks[t];
        (task.state, task.wants, task.vcpu) = (State::Waking, Wants::VcpuRunState(away), v);
        self.vcpus[v].wake_list.push(t);
        self.host_wake(v);
    }

    /// A vCPU that is back queues who was woken on it; the stopper comes after that.
    fn empty_wake_list(&mut self, v: usize) {
        for t in std::mem::take(&mut self.vcpus[v].wake_list) {
            self.flush_wants(t);
            self.queue(t, v);
        }
    }

    /// Replaces the current task by one that has run less, by over half a slice. On a vCPU that is
    /// away this waits until it is back.
    fn yield_to_younger(&mut self, v: usize) {
        let half = Age::of(self.guest.slice.scaled(1, 2), 1);
        let (Some(current), Some(youngest)) = (self.vcpus[v].current, self.youngest_task(v)) else {
            return;
        };
        if self.tasks[current].age.minus(self.tasks[youngest].age) > half {
            self.put_back(v);
        }
    }

    /// A task leaves the vCPU on which it is current or queued.
    pub(super) fn dequeue(&mut self, t: usize) {
        let v = self.tasks[t].vcpu;
        self.settle(v);
        self.flush_wants(t);
        self.tasks[t].wants = Wants::No;
        let vcpu = &mut self.vcpus[v];
        match self.tasks[t].state {
            State::Current => vcpu.current = None,
            State::Queued => vcpu.queue.retain(|&other| other != t),
            State::Waking => vcpu.wake_list.retain(|&other| other != t),
            State::Sleeping => unreachable!("a task that sleeps is in no queue"),
        }
        self.tasks[t].state = State::Sleeping;
    }

    /// Executes work that goes before all else on a vCPU that has something to run: the stopper.
    pub(super) fn execute_first(&mut self, v: usize, left: Nanos, what: WorkKind) {
        self.settle(v);
        self.vcpus[v].work.push_front(Work { left, what });
        self.dispatch(v);
    }

    /// Something for a vCPU to execute before tasks.
    pub(super) fn execute(&mut self, v: usize, left: Nanos, what: WorkKind) {
        self.settle(v);
        self.vcpus[v].work.push_back(Work { left, what });
        match self.vcpus[v].state {
            VcpuRunState::Running => self.dispatch(v),
            VcpuRunState::Halted => self.host_wake(v),
            VcpuRunState::Waiting => {}
        }
    }

    fn work_done(&mut self, v: usize, what: WorkKind) {
        match what {
            WorkKind::Switch | WorkKind::Agent => {}
            WorkKind::Beat { due } => self.beaten(v, due),
            WorkKind::Look => self.look(v),
            WorkKind::Call { action, is_second: false, was_away } => {
                self.called(v, action, was_away)
            }
            WorkKind::Call { action, .. } => self.called_again(v, action),
            WorkKind::Stop { action, worker, was_away } => self.stopped(action, worker, was_away),
        }
    }

    /// Gives a vCPU without a task one that waits in another's queue. It does not know which vCPUs
    /// are away.
    fn pull_waiting(&mut self, v: usize) -> bool {
        if !self.guest.balances {
            return false;
        }
        let (id, vm) = (self.vcpus[v].id, &self.vms[self.vcpus[v].vm]);
        let others = (vm.first..vm.first + vm.vcpus).filter(|&w| w != v);
        let waits = |w: usize| {
            let vcpu = &self.vcpus[w];
            let spare = vcpu.queue.len() + usize::from(vcpu.current.is_some());
            let may = |&&t: &&usize| self.tasks[t].may_move() && self.tasks[t].within.contains(id);
            let task = vcpu.queue.iter().rev().find(may)?;
            (spare > 1).then_some((spare, *task))
        };
        let busiest = others.filter_map(|w| waits(w).map(|(n, t)| (n, usize::MAX - w, t))).max();
        let Some((_, _, t)) = busiest else { return false };
        self.dequeue(t);
        self.tasks[t].age = self.age_there(t, v);
        self.queue(t, v);
        true
    }

    /// A vCPU on which tasks wait gives one to a vCPU that has nothing to run.
    fn push_waiting(&mut self, v: usize) {
        let vm = &self.vms[self.vcpus[v].vm];
        if !self.guest.balances || vm.halted == 0 {
            return;
        }
        let mut idle = (vm.first..vm.first + vm.vcpus)
            .filter(|&w| self.vcpus[w].state == VcpuRunState::Halted && !self.vcpus[w].dozes);
        let fits = |w: usize| {
            let mut queue = self.vcpus[v].queue.iter().copied();
            let id = self.vcpus[w].id;
            queue.find(|&t| self.tasks[t].may_move() && self.tasks[t].within.contains(id))
        };
        let Some((w, t)) = idle.find_map(|w| fits(w).map(|t| (w, t))) else { return };
        self.relocate(t, w);
    }

    /// A task that wants to run goes to another vCPU's queue.
    pub(super) fn relocate(&mut self, t: usize, to: usize) {
        let from = self.tasks[t].vcpu;
        self.dequeue(t);
        self.tasks[t].age = self.age_there(t, to);
        self.enqueue(t, to);
        self.dispatch(from);
    }

    /// A task's age if it were on that vCPU.
    pub(super) fn age_there(&self, t: usize, to: usize) -> Age {
        let task = &self.tasks[t];
        task.age.moved(self.vcpus[task.vcpu].floor, self.vcpus[to].floor)
    }
}

// Activities of tasks: compute, sleep, ask for blocks and wait for them.

/// Length of a step of the series of a task.
const SERIES_STEP: Nanos = Nanos::from_millis(250);

impl Task {
    /// Has its phase come to its end?
    pub fn is_due(&self) -> bool {
        self.left == Some(Nanos::ZERO) && self.cold == Nanos::ZERO
    }

    /// Tells whether the guest's balancer may move it: not while it waits for the stopper.
    pub fn may_move(&self) -> bool {
        self.state == State::Queued
    }
}

impl Machine {
    /// The current task has come to the end of its phase.
    pub(super) fn step(&mut self, t: usize) {
        match (self.tasks[t].load, self.tasks[t].phase) {
            (Load::Compute, _) => {
                self.tasks[t].phase = Phase::Compute;
                self.tasks[t].left = None;
            }
            (Load::Partly { burst, permille }, Phase::Compute) => {
                let sleep = burst.scaled(u64::from(1000 - permille), u64::from(permille));
                self.sleep(t, sleep);
            }
            (Load::Partly { burst, .. }, _) => {
                self.tasks[t].phase = Phase::Compute;
                self.tasks[t].left = Some(burst);
            }
            (Load::Io { .. }, Phase::Prepare) => {
                self.ask(t);
                self.next_block(t);
            }
            (Load::Io { .. }, _) => self.next_block(t),
            (Load::Guest(number), _) => self.run_in_guest(t, number),
        }
    }

    /// A task leaves its vCPU, for `span`.
    pub(super) fn sleep(&mut self, t: usize, span: Nanos) {
        if span == Nanos::ZERO {
            self.tasks[t].phase = Phase::Take;
            self.tasks[t].left = Some(Nanos::ZERO);
            return;
        }
        self.dequeue(t);
        (self.tasks[t].phase, self.tasks[t].left) = (Phase::Sleep, None);
        let (vcpu, nap) = (self.tasks[t].vcpu, self.tasks[t].naps);
        self.events.push(self.now + span, Event::Slept { task: t, vcpu, nap });
    }

    /// Takes the blocks that are there, and goes on.
    fn next_block(&mut self, t: usize) {
        let Load::Io { cpu, depth, burst, between, computes, .. } = self.tasks[t].load else {
            unreachable!("only tasks that do I/O come here")
        };
        self.take_blocks(t);
        let now = self.now;
        let task = &mut self.tasks[t];
        let is_over = burst > 0 && task.io.in_burst >= burst;
        if task.io.outstanding >= depth || (is_over && task.io.outstanding > 0) {
            task.phase = Phase::Wait;
            task.left = None;
            task.window.since = Some(now);
            return self.dequeue(t);
        }
        if is_over {
            task.io.in_burst = 0;
            if !computes {
                return self.sleep(t, between);
            }
            (task.phase, task.left) = (Phase::Compute, Some(between));
            return;
        }
        task.io.in_burst += 1;
        task.io.begun = now;
        (task.phase, task.left) = (Phase::Prepare, Some(cpu));
    }

    /// Hands a task the blocks that its vCPU has heard of.
    fn take_blocks(&mut self, t: usize) {
        let Load::Io { block, .. } = self.tasks[t].load else { return };
        let step = (self.now.since(self.measured_from).get() / SERIES_STEP.get()) as usize;
        let io = &mut self.tasks[t].io;
        let done = std::mem::take(&mut io.done);
        io.outstanding -= done.len() as u16;
        let result = &mut self.tasks[t].result;
        for &begun in &done {
            result.ios += 1;
            result.bytes += block.bytes();
            result.response.record((self.now - begun).get());
            while result.series.len() <= step {
                let steps = result.series.len() as u64;
                result.series.push((self.measured_from + SERIES_STEP.scaled(steps, 1), 0));
            }
            result.series[step].1 += 1;
        }
        self.tasks[t].io.done = done;
        self.tasks[t].io.done.clear();
    }

    /// The token of a request under way.
    pub(super) fn new_token(&mut self, io: Io) -> usize {
        let token = self.free_ios.pop().unwrap_or_else(|| {
            self.ios.push(None);
            self.ios.len() - 1
        });
        self.ios[token] = Some(io);
        token
    }

    /// A task asks for a block.
    fn ask(&mut self, t: usize) {
        let Load::Io { block, sequential, .. } = self.tasks[t].load else { return };
        let task = &mut self.tasks[t];
        let io = &mut task.io;
        let at = if sequential { io.next } else { io.rng.below(io.blocks) };
        io.next = (io.next + 1) % io.blocks;
        io.outstanding += 1;
        task.window.asked = true;
        let asked = Io { by: Asker::Task(t), vcpu: task.vcpu, begun: io.begun, asked: self.now };
        let start = Lba::new((io.first_block + at) * block.get());
        let (vm, first) = (task.vm, self.vms[task.vm].tasks.start);
        let token = self.new_token(asked);
        self.issues.push(Issue {
            token: token as u64,
            vm: self.vms[vm].disks.start as u16,
            tag: u16::try_from(t - first + 1).ok().and_then(ProcessTag::new),
            op: Op::Read,
            sync: true,
            start,
            len: block,
        });
    }
}

// Completions and timers, the vCPUs that hear of them, and the tasks that they wake.

impl Machine {
    /// The disk has done an I/O.
    pub(super) fn io_done(&mut self, token: usize) {
        let Some(io) = self.ios[token] else { return };
        let vm = &self.vms[self.vcpus[io.vcpu].vm];
        let v = match self.guest.completes {
            Completes::Submitter => io.vcpu,
            Completes::Fixed => vm.first,
            Completes::Steered => vm.interrupted,
            Completes::Any => match self.any_running(io.vcpu, self.home(&io)) {
                Some(v) => v,
                None => return self.interrupt_first(io, token),
            },
        };
        let heard = Heard::Io(token);
        if self.ablation.free_completions { self.hear(v, heard) } else { self.interrupt(v, heard) }
    }

    /// Where the task is that has asked for it.
    fn home(&self, io: &Io) -> usize {
        match io.by {
            Asker::Task(t) => self.tasks[t].vcpu,
            Asker::Guest { .. } => io.vcpu,
        }
    }

    /// The submitter if it runs, the task's vCPU if that does, the next that does.
    pub(super) fn any_running(&self, submitter: usize, home: usize) -> Option<usize> {
        let vm = &self.vms[self.vcpus[submitter].vm];
        let after = (submitter..vm.first + vm.vcpus).chain(vm.first..submitter);
        let mut all = [submitter, home].into_iter().chain(after);
        all.find(|&v| self.vcpus[v].state == VcpuRunState::Running)
    }

    /// Leaves a completion for the first vCPU that will run, because none does.
    fn interrupt_first(&mut self, io: Io, token: usize) {
        self.vms[self.vcpus[io.vcpu].vm].unheard.push(Heard::Io(token));
        self.none_hear(Heard::Io(token));
        self.host_wake(io.vcpu);
    }

    /// Records an event that no vCPU hears for the task that waits for it.
    fn none_hear(&mut self, heard: Heard) {
        match heard {
            Heard::Slept { task, .. } => self.not_heard(task),
            Heard::Kernel => {}
            Heard::Io(token) => match self.ios[token].expect("an I/O that was not heard of").by {
                Asker::Task(t) => self.not_heard(t),
                Asker::Guest { vm, token } => {
                    let first = self.vms[vm].tasks.start;
                    let waiting = self.guests[vm].as_ref().map(|g| g.waiting_for(token));
                    for n in waiting.into_iter().flatten() {
                        self.not_heard(first + n as usize);
                    }
                }
            },
        }
    }

    /// Records an event for a task that no vCPU is there to hear.
    fn not_heard(&mut self, t: usize) {
        let is_first = !matches!(self.tasks[t].wants, Wants::Unheard(_));
        if self.tasks[t].state == State::Sleeping && is_first {
            self.tasks[t].wants = Wants::Unheard(self.now);
        }
    }

    /// Interrupts a vCPU: now if it runs, else when it does.
    pub(super) fn interrupt(&mut self, v: usize, heard: Heard) {
        match self.vcpus[v].state {
            VcpuRunState::Running => self.hear(v, heard),
            VcpuRunState::Halted | VcpuRunState::Waiting => {
                self.vcpus[v].unheard.push(heard);
                self.none_hear(heard);
                self.host_wake(v);
            }
        }
    }

    /// Lets the kernel handle an event on `v`.
    pub(super) fn hear(&mut self, v: usize, heard: Heard) {
        match heard {
            Heard::Io(token) => {
                let io = self.ios[token].take().expect("an I/O is heard of once");
                self.free_ios.push(token);
                match io.by {
                    Asker::Task(t) => self.hear_block(v, t, &io),
                    Asker::Guest { vm, token } => self.guest_hears(v, vm, token),
                }
            }
            Heard::Slept { task, nap } if self.tasks[task].naps == nap => {
                debug_assert!(matches!(
                    self.tasks[task].phase,
                    Phase::Sleep | Phase::New | Phase::Wait
                ));
                self.wake(task, v);
            }
            // Another event woke it before.
            Heard::Slept { .. } => {}
            Heard::Kernel => self.kernel_timer(v),
        }
    }

    /// A block of a task's own is there.
    fn hear_block(&mut self, v: usize, t: usize, io: &Io) {
        let task = &mut self.tasks[t];
        task.io.done.push(io.begun);
        task.window.ios += 1;
        task.window.io_time += self.now - io.asked;
        if task.phase == Phase::Wait {
            self.wake(t, v);
        }
    }

    /// Makes a task ready: `waker` has heard its event.
    pub(super) fn wake(&mut self, t: usize, waker: usize) {
        self.flush_wants(t);
        let from = self.tasks[t].vcpu;
        let v = if self.tasks[t].phase == Phase::New { from } else { self.wakes_on(t, waker) };
        let task = &mut self.tasks[t];
        task.naps += 1;
        if let Some(since) = task.window.since.take() {
            task.window.waited += self.now - since;
        }
        (task.phase, task.left) = (Phase::Take, Some(Nanos::ZERO));
        if v != from && !self.ablation.free_moves {
            task.cold = self.costs.cold;
        }
        self.settle(v);
        let age = self.age_there(t, v);
        let credit = Age::of(self.guest.slice, 1);
        self.tasks[t].age = age.waking(self.vcpus[v].floor, credit);
        let is_remote = !self.guest.shared_cache && v != waker;
        match is_remote && self.vcpus[v].state != VcpuRunState::Running && !self.vcpus[v].dozes {
            true => self.leave_on_wake_list(t, v),
            false => self.enqueue(t, v),
        }
    }

    /// Chooses the vCPU on which it wakes, as Linux does (`select_task_rq_fair`, `wake_affine`,
    /// `select_idle_sibling`, `select_fallback_rq`): its last one, or the waker's if that has less
    /// to run, or an idle one. If its mask forbids that one, the lowest number in the mask.
    fn wakes_on(&self, t: usize, waker: usize) -> usize {
        let (task, vm) = (&self.tasks[t], &self.vms[self.tasks[t].vm]);
        let may = |w: usize| task.within.contains(self.vcpus[w].id);
        let from = task.vcpu;
        let load =
            |w: usize| self.vcpus[w].queue.len() + usize::from(self.vcpus[w].current.is_some());
        // With as much to run on both, a small load is drawn to the waker and a large one is
        // not: it is left where it was, if that is no reason to leave.
        let draws = may(waker)
            && !self.is_idle(from)
            && (load(waker) < load(from) || load(waker) == load(from) && !may(from));
        let target = if draws { waker } else { from };
        let others = (target + 1..vm.first + vm.vcpus).chain(vm.first..target);
        let idle = [target, from].into_iter().chain(others).find(|&w| {
            // It does not ask whether it may run on the first.
            self.is_idle(w) && (w == target || self.guest.shared_cache && may(w))
        });
        let chosen = idle.unwrap_or(target);
        let mut all = vm.first..vm.first + vm.vcpus;
        match may(chosen) {
            true => chosen,
            false => all.find(|&w| may(w)).expect("a task may run somewhere"),
        }
    }

    /// Has a vCPU nothing to run, as the guest sees it?
    fn is_idle(&self, v: usize) -> bool {
        let vcpu = &self.vcpus[v];
        let tasks = vcpu.current.is_some() || !vcpu.queue.is_empty() || !vcpu.wake_list.is_empty();
        !tasks && vcpu.work.is_empty()
    }

    /// Account for the time in which a task wanted to run and its vCPU was away.
    pub(super) fn flush_wants(&mut self, t: usize) {
        let away = self.vcpus[self.tasks[t].vcpu].away.at(self.now);
        let task = &mut self.tasks[t];
        match &mut task.wants {
            Wants::No => {}
            Wants::Unheard(since) => {
                task.result.inactive += self.now - *since;
                *since = self.now;
            }
            Wants::VcpuRunState(before) => {
                task.result.inactive += away.saturating_sub(*before);
                *before = away;
            }
        }
    }
}
