//! The guests' schedulers: they choose a vCPU's work while it has a processor.
//!
//! Work of the kernel and of the agent goes first, then the current task. A task that wakes takes
//! the vCPU from one that has run more, by over half a slice: one that does little but I/O always
//! has run less than one that computes.

use super::Machine;
use super::events::Event;
use super::fair::Age;
use super::state::{Beat, State, VcpuRunState, WakeState, Wants, Work, WorkKind};
use seekway_core::units::Nanos;
use seekway_vcpu::Sign;

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
