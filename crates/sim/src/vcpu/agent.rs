//! The agent of a guest. [`seekway_vcpu::agent`] orders its news for the policy and its monitors'
//! wake-ups, as in `seekway-guest`. This file adds the costs, and the effects of absent vCPUs.
//!
//! Monitors are threads of the highest priority, one on each vCPU. Each wake-up costs, and so does
//! each turn of the policy. While no vCPU of the guest runs, the policy is told nothing and decides
//! nothing: the agent catches up when one runs again.

use super::machine::Event;
use super::state::{Beat, GuestAgent, Phase, State, VcpuRunState, WakeState, WindowLoad, WorkKind};
use super::{Completes, Detector, Machine};
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::agent::{Rest, Seen, WORKERS_MAX, is_sooner, rest_of_move};
use seekway_vcpu::{Action, Outcome, Sign, TaskId, TaskLoad, VcpuId, VcpuSet};

/// No timer is finer: a policy that wants to be asked at once is asked after this.
const TIMER: Nanos = Nanos::from_micros(1);

impl Machine {
    /// A turn of the VM's agent by a thread on this vCPU. `awake`: by the monitor, which reads
    /// the timetable before it sleeps.
    pub(super) fn take_turn(&mut self, here: usize, awake: bool) {
        let vm = self.vcpus[here].vm;
        let Some(mut agent) = self.vms[vm].agent.take() else { return };
        agent.seat = here;
        let mut actions = Vec::new();
        agent.core.turn(self.now, &mut agent.news, &mut actions);
        self.vms[vm].slice = agent.core.policy.slice(self.host.slice).max(TIMER);
        let sleeps = self.plan(&mut agent, here, awake);
        self.vms[vm].agent = Some(agent);
        sleeps.into_iter().for_each(|v| self.wake_monitor(v));
        if awake {
            self.fall_asleep(here);
        }
        self.act(here, actions);
    }

    /// Records the end of an action; the policy is told in its next turn.
    pub(super) fn tell_later(&mut self, vm: usize, task: TaskId, outcome: Outcome) {
        if let Some(agent) = &mut self.vms[vm].agent {
            agent.news.ended.push((task, outcome));
        }
    }

    /// Updates the timetable. Returns the vCPUs whose monitors sleep too long for it.
    fn plan(&self, agent: &mut GuestAgent, here: usize, awake: bool) -> Vec<usize> {
        let first = self.vms[self.vcpus[here].vm].first;
        let mut beat = |vcpu: VcpuId, at: Option<Instant>| match (
            self.detector,
            self.vcpus[first + vcpu.index()].monitor.state,
        ) {
            (Detector::Exact { .. }, _) | (_, Beat::Due(_) | Beat::Executed) => false,
            (_, Beat::None) => is_sooner(at, None),
            (_, Beat::Armed { asked, .. }) => is_sooner(at, Some(asked)),
        };
        let here = (self.vcpus[here].id, awake);
        let sleeps = agent.core.plan(self.now, here, &mut agent.timetable, &mut beat);
        sleeps.iter().map(|vcpu| first + vcpu.index()).collect()
    }

    /// A monitor goes to sleep, until its beat or its alarm.
    fn fall_asleep(&mut self, v: usize) {
        let Some(agent) = &self.vms[self.vcpus[v].vm].agent else { return };
        let beat = match self.detector {
            Detector::Heartbeat { .. } => agent.core.policy.beat_at(self.vcpus[v].id),
            Detector::Exact { .. } => None,
        };
        let at = agent.timetable.alarm(self.vcpus[v].id, beat);
        let at = at.map(|at| at.max(self.now + TIMER));
        let alarm = &mut self.vcpus[v].monitor.alarm;
        if alarm.state == WakeState::No && alarm.at != at {
            alarm.at = at;
            alarm.generation += 1;
            let generation = alarm.generation;
            at.into_iter().for_each(|at| {
                self.events.push(at, Event::Alarm { vcpu: v, generation });
            });
        }
        self.arm_beat(v, beat);
    }

    /// The monitor of this vCPU has woken.
    fn has_woken(&mut self, v: usize) {
        let (now, id) = (self.now, self.vcpus[v].id);
        if let Some(agent) = &mut self.vms[self.vcpus[v].vm].agent {
            agent.timetable.woke(id, now);
        }
    }

    /// Wakes a monitor to look for due events: its time has come, or another thread asks.
    pub(super) fn wake_monitor(&mut self, v: usize) {
        let alarm = &mut self.vcpus[v].monitor.alarm;
        if alarm.state != WakeState::No {
            return;
        }
        (alarm.state, alarm.at) = (WakeState::Due, None);
        alarm.generation += 1;
        match self.vcpus[v].state {
            VcpuRunState::Running => self.execute_look(v),
            VcpuRunState::Waiting => {}
            // A policy that lets vCPUs doze is the guest's kernel, and does not wake them to look.
            VcpuRunState::Halted if self.vcpus[v].dozes => {}
            VcpuRunState::Halted => self.host_wake(v),
        }
    }

    /// A monitor's vCPU runs.
    pub(super) fn execute_look(&mut self, v: usize) {
        self.vcpus[v].monitor.alarm.state = WakeState::Executed;
        self.execute(v, self.costs.wake, WorkKind::Look);
    }

    /// Does a monitor's due work.
    pub(super) fn look(&mut self, v: usize) {
        self.vcpus[v].monitor.alarm.state = WakeState::No;
        self.has_woken(v);
        self.do_due(v);
        self.fall_asleep(v);
    }

    /// End the window that is due, and ask the policy if it wanted to be.
    fn do_due(&mut self, v: usize) {
        let vm = self.vcpus[v].vm;
        let Some(agent) = &self.vms[vm].agent else { return };
        let asked = agent.timetable.decision_is_due(self.now);
        if agent.timetable.window_is_due(self.now, Nanos::ZERO) {
            self.window(v);
        } else if asked {
            self.spend(v, self.costs.turn);
            self.take_turn(v, true);
        }
        if asked {
            self.ask_idles(vm);
        }
    }

    fn arm_beat(&mut self, v: usize, at: Option<Instant>) {
        let monitor = &mut self.vcpus[v].monitor;
        let armed = match monitor.state {
            Beat::None => None,
            Beat::Armed { asked, .. } => Some(asked),
            Beat::Due(_) | Beat::Executed => return,
        };
        if at == armed {
            return;
        }
        monitor.generation += 1;
        let generation = monitor.generation;
        let Some(asked) = at else {
            (monitor.state, monitor.rests) = (Beat::None, true);
            return;
        };
        // A beat that was due before it was requested is not late: it comes now.
        let due = asked.max(self.now + TIMER);
        monitor.state = Beat::Armed { asked, due };
        self.events.push(due, Event::Beat { vcpu: v, generation });
    }

    /// A monitor's time has come.
    pub(super) fn beat(&mut self, v: usize) {
        let Beat::Armed { due, .. } = self.vcpus[v].monitor.state else { return };
        if self.vcpus[v].state == VcpuRunState::Running {
            return self.execute_beat(v, due);
        }
        self.vcpus[v].monitor.state = Beat::Due(due);
        self.host_wake(v);
    }

    /// A monitor's vCPU runs.
    pub(super) fn execute_beat(&mut self, v: usize, due: Instant) {
        let Detector::Heartbeat { beat } = self.detector else { return };
        let monitor = &mut self.vcpus[v].monitor;
        monitor.state = Beat::Executed;
        let due = (!std::mem::replace(&mut monitor.rests, false)).then_some(due);
        self.execute(v, beat, WorkKind::Beat { due });
    }

    /// A beat was executed.
    pub(super) fn beaten(&mut self, v: usize, due: Option<Instant>) {
        self.vcpus[v].monitor.state = Beat::None;
        let (now, id) = (self.now, self.vcpus[v].id);
        self.has_woken(v);
        self.turn_with(v, Seen { at: now, vcpu: id, sign: Sign::Beat { due } });
        self.do_due(v);
    }

    /// A vCPU gets or loses its processor now: an exact detector tells so.
    pub(super) fn tell_edge(&mut self, v: usize, sign: Sign) {
        let Detector::Exact { delay, .. } = self.detector else { return };
        if self.vms[self.vcpus[v].vm].agent.is_none() {
            return;
        }
        let was_foretold = std::mem::replace(&mut self.vcpus[v].is_foretold, false);
        if !(was_foretold && sign == Sign::Preempted) {
            let edge = Event::Edge { vcpu: v, at: self.now, sign };
            self.events.push(self.now + delay, edge);
        }
    }

    /// Tells the policy, at once and only once, that a vCPU will lose its processor.
    pub(super) fn foretell(&mut self, v: usize) {
        if !self.vcpus[v].is_foretold && self.vms[self.vcpus[v].vm].agent.is_some() {
            self.vcpus[v].is_foretold = true;
            self.edge(v, self.now, Sign::Preempted);
        }
    }

    /// Takes back a preemption that was announced.
    pub(super) fn untell(&mut self, v: usize) {
        if self.vcpus[v].is_foretold {
            self.tell_edge(v, Sign::Resumed);
        }
    }

    /// An edge that happened at `at` is known.
    pub(super) fn edge(&mut self, v: usize, at: Instant, sign: Sign) {
        let (vm, vcpu) = (self.vcpus[v].vm, self.vcpus[v].id);
        let seen = Seen { at, vcpu, sign };
        if self.vms[vm].runs > 0 {
            return self.tell(vm, seen);
        }
        if let Some(agent) = &mut self.vms[vm].agent {
            agent.untold.push(seen);
        }
    }

    /// A vCPU that runs tells the policy of an edge.
    fn tell(&mut self, vm: usize, seen: Seen) {
        let Detector::Exact { edge, .. } = self.detector else { return };
        let seat = self.seat(vm);
        self.spend(seat, edge + self.costs.turn);
        self.turn_with(seat, seen);
    }

    /// A turn by the monitor of this vCPU that tells of a sign.
    fn turn_with(&mut self, v: usize, seen: Seen) {
        if let Some(agent) = &mut self.vms[self.vcpus[v].vm].agent {
            agent.news.signs.push(seen);
        }
        self.take_turn(v, true);
    }

    /// The agent uses a vCPU that runs; if there is one, which who never asks for windows
    /// has not.
    pub(super) fn spend(&mut self, v: usize, cost: Nanos) {
        let agent = &self.vms[self.vcpus[v].vm].agent;
        if cost > Nanos::ZERO && agent.as_ref().is_some_and(|agent| agent.core.windows().is_some())
        {
            self.execute(v, cost, WorkKind::Agent);
        }
    }

    /// The vCPU that does the agent's work: a running one, the same as before if it runs.
    fn seat(&self, vm: usize) -> usize {
        let (first, vcpus) = (self.vms[vm].first, self.vms[vm].vcpus);
        let Some(agent) = &self.vms[vm].agent else { return first };
        let runs = |&v: &usize| self.vcpus[v].state == VcpuRunState::Running;
        let mut all = std::iter::once(agent.seat).chain(first..first + vcpus);
        all.find(runs).unwrap_or(agent.seat)
    }

    /// A window of loads is over: it is read on this vCPU.
    fn window(&mut self, v: usize) {
        let (vm, now) = (self.vcpus[v].vm, self.now);
        let widened = self.widen(vm);
        self.spend(v, self.costs.window + widened + self.costs.turn);
        let loads = self.loads(vm);
        let used = self.vms[vm].agent_time;
        if let Some(agent) = &mut self.vms[vm].agent {
            agent.timetable.next_window(now, agent.core.windows());
            (agent.news.window, agent.news.loads) = (Some(now), loads);
            agent.news.used = Some(used);
        }
        self.take_turn(v, true);
    }

    /// Collects the loads of tasks that did I/O after the last call.
    fn loads(&mut self, vm: usize) -> Vec<TaskLoad> {
        let mut loads = Vec::new();
        for t in self.vms[vm].tasks.clone() {
            if !self.tasks[t].is_io() {
                continue;
            }
            self.settle(self.tasks[t].vcpu);
            let (now, vcpu) = (self.now, self.vcpus[self.tasks[t].vcpu].id);
            let task = &mut self.tasks[t];
            let window = std::mem::take(&mut task.window);
            let waited = window.since.map_or(Nanos::ZERO, |since| now - since) + window.waited;
            task.window.since = window.since.map(|_| now);
            if window.asked || window.ios > 0 || task.phase == Phase::Wait {
                let (task, allowed) = (TaskId(t as u64), task.allowed);
                let WindowLoad { ran, ios, io_time, .. } = window;
                let last = None;
                loads.push(TaskLoad { task, vcpu, allowed, waited, ran, ios, io_time, last });
            }
        }
        loads
    }

    /// Tells the news that waited for a running vCPU of the VM.
    pub(super) fn catch_up(&mut self, vm: usize) {
        let Some(agent) = &mut self.vms[vm].agent else { return };
        for seen in std::mem::take(&mut agent.untold) {
            self.tell(vm, seen);
        }
    }

    /// Decides whether this vCPU, on which no I/O task can run, idles although others could run.
    pub(super) fn dozes_off(&mut self, v: usize) -> bool {
        let (vm, id, now) = (self.vcpus[v].vm, self.vcpus[v].id, self.now);
        if self.vcpus[v].queue.iter().any(|&t| self.tasks[t].is_io()) {
            return false;
        }
        let Some(mut agent) = self.vms[vm].agent.take() else { return false };
        let waited = self.vcpus[v].waits.at(now);
        let until = agent.core.policy.idles(now, id, waited).filter(|&until| until > now);
        self.vms[vm].agent = Some(agent);
        let Some(until) = until else { return false };
        let vcpu = &mut self.vcpus[v];
        vcpu.dozes = true;
        vcpu.doze_generation += 1;
        let generation = vcpu.doze_generation;
        self.events.push(until, Event::Dozed { vcpu: v, generation });
        true
    }

    /// Asks again whether computing vCPUs should go on.
    fn ask_idles(&mut self, vm: usize) {
        let (first, vcpus) = (self.vms[vm].first, self.vms[vm].vcpus);
        for v in first..first + vcpus {
            let vcpu = &self.vcpus[v];
            let computes = vcpu.current.is_some_and(|t| !self.tasks[t].is_io());
            if vcpu.state == VcpuRunState::Running && vcpu.work.is_empty() && computes {
                self.settle(v);
                if self.dozes_off(v) {
                    self.put_back(v);
                }
                self.dispatch(v);
            }
        }
    }

    /// Tells every policy its vCPUs.
    pub(super) fn attach(&mut self) {
        for vm in 0..self.vms.len() {
            let online = VcpuSet::first(self.vms[vm].vcpus);
            let now = self.now;
            if let Some(agent) = &mut self.vms[vm].agent {
                agent.core.attach(now, online);
            }
            let (first, vcpus) = (self.vms[vm].first, self.vms[vm].vcpus);
            self.take_turn(first, true);
            (first..first + vcpus).for_each(|v| self.fall_asleep(v));
        }
    }
}

// Moves: their workers, their durations, and their obstacles.
//
// A worker of the vCPU on which a move was decided wakes there and changes the task's mask, to the
// destination alone and then to all that the policy named. A task that sleeps stays where it is
// until it wakes, and only a mask of one vCPU decides where: so it keeps that until a window has
// seen it there. A queued task is moved by the first change at once. A task that is current on
// another vCPU has to be stopped there, by the stopper, which needs that vCPU to run; and so has
// one that was woken on a vCPU which has not queued it yet. The worker waits with it, and another
// one makes the next move (kernel/sched/core.c: `affine_move_task`).

impl Machine {
    /// Gives a policy's actions to the workers of the vCPU `here`. Actions beyond the workers are
    /// dropped, and the policy is told in its next turn.
    pub(super) fn act(&mut self, here: usize, actions: Vec<Action>) {
        let vm = self.vcpus[here].vm;
        for action in actions {
            if self.vcpus[here].workers == WORKERS_MAX {
                self.tell_later(vm, action.task(), Outcome::Dropped);
                continue;
            }
            if let Some(t) = self.task_of_vm(vm, &action) {
                self.assert_proper(t, &action);
                self.tasks[t].is_acted_on = true;
            }
            self.vcpus[here].workers += 1;
            let was_away = self.vcpus[here].state != VcpuRunState::Running;
            let call = WorkKind::Call { action, is_second: false, was_away };
            self.execute(here, self.unless_free(self.costs.wake + self.costs.call), call);
        }
    }

    fn unless_free(&self, cost: Nanos) -> Nanos {
        if self.ablation.free_moves { Nanos::ZERO } else { cost }
    }

    fn task_of_vm(&self, vm: usize, action: &Action) -> Option<usize> {
        let t = usize::try_from(action.task().0).ok()?;
        self.vms[vm].tasks.contains(&t).then_some(t)
    }

    /// Asserts that the policy keeps its duties.
    fn assert_proper(&self, t: usize, action: &Action) {
        let task = &self.tasks[t];
        assert!(
            !task.is_acted_on,
            "two actions on task {} of {}",
            task.result.name, self.vms[task.vm].name
        );
        if let Action::Move { to, within, .. } = action {
            assert!(within.contains(*to), "a task is moved to a vCPU outside its set");
            assert!(within.and(&task.allowed) == *within, "a task's owner does not allow it there");
        }
    }

    /// A worker of vCPU `v` has made its first change.
    pub(super) fn called(&mut self, v: usize, action: Action, was_away: bool) {
        let vm = self.vcpus[v].vm;
        let Some(t) = self.task_of_vm(vm, &action) else {
            return self.ended(v, action, Outcome::Refused);
        };
        self.tasks[t].then = None;
        let Action::Move { to, .. } = action else {
            self.tasks[t].within = self.tasks[t].allowed;
            self.vms[vm].releases += 1;
            return self.ended(v, action, Outcome::Done);
        };
        self.tasks[t].within = VcpuSet::only(to);
        let on = self.tasks[t].vcpu;
        let moves = on != self.vms[vm].first + to.index();
        // The current task of the worker's own vCPU does not execute: the worker does.
        if moves && on != v && !self.ablation.free_stopper && self.needs_stopper(t) {
            let was_away = was_away || self.vcpus[on].state != VcpuRunState::Running;
            let cost = self.unless_free(self.guest.context_switch);
            return self.execute_first(on, cost, WorkKind::Stop { action, worker: v, was_away });
        }
        self.stopped(action, v, was_away);
    }

    /// Does it execute just now, or would if its vCPU ran; or was it woken there and has not
    /// been queued?
    fn needs_stopper(&self, t: usize) -> bool {
        let vcpu = &self.vcpus[self.tasks[t].vcpu];
        let is_switch = |what| matches!(what, WorkKind::Switch | WorkKind::Stop { .. });
        match self.tasks[t].state {
            State::Waking => true,
            // The vCPU executes an agent's thread, or a worker, that has preempted the task.
            State::Current => vcpu.work.iter().all(|work| is_switch(work.what)),
            State::Queued | State::Sleeping => false,
        }
    }

    /// Continues a move after the stopper has run.
    pub(super) fn stopped(&mut self, action: Action, worker: usize, was_away: bool) {
        let (t, Action::Move { to, within, .. }) = (action.task().0 as usize, action) else {
            unreachable!("only moves are stopped for")
        };
        let there = self.vms[self.tasks[t].vm].first + to.index();
        self.arrive(t, there, was_away);
        self.steer(worker, there);
        match rest_of_move(to, &within, Some(self.vcpus[self.tasks[t].vcpu].id)) {
            Rest::Widen => {
                let again = WorkKind::Call { action, is_second: true, was_away };
                return self.execute(worker, self.unless_free(self.costs.call), again);
            }
            Rest::WidenWhenSeen => self.tasks[t].then = Some((there, within)),
            Rest::Nothing => self.tasks[t].then = None,
        }
        self.ended(worker, action, Outcome::Done);
    }

    /// The disk's interrupts follow a task that was moved: a write to the affinity of one.
    fn steer(&mut self, worker: usize, to: usize) {
        let vm = self.vcpus[worker].vm;
        if self.guest.completes == Completes::Steered && self.vms[vm].interrupted != to {
            self.vms[vm].interrupted = to;
            self.spend(worker, self.unless_free(self.costs.call));
        }
    }

    /// A worker has made its second change, after which its task may run on all of the set.
    pub(super) fn called_again(&mut self, v: usize, action: Action) {
        if let Action::Move { within, .. } = action {
            self.tasks[action.task().0 as usize].within = within;
        }
        self.ended(v, action, Outcome::Done);
    }

    /// Widens the masks of this VM's tasks that were moved while they slept and have been seen at
    /// their destination; returns the CPU time it costs the caller.
    pub(super) fn widen(&mut self, vm: usize) -> Nanos {
        let mut cost = Nanos::ZERO;
        for t in self.vms[vm].tasks.clone() {
            let task = &mut self.tasks[t];
            let here = task.vcpu;
            let seen = task.then.take_if(|(there, _)| *there == here && !task.is_acted_on);
            if let Some((_, within)) = seen {
                task.within = within;
                cost += self.unless_free(self.costs.call);
            }
        }
        cost
    }

    /// A task goes to a vCPU, or will when it wakes.
    fn arrive(&mut self, t: usize, to: usize, was_away: bool) {
        if self.tasks[t].vcpu == to {
            return;
        }
        let vm = &mut self.vms[self.tasks[t].vm];
        vm.moves += 1;
        vm.blocked += u64::from(was_away);
        self.tasks[t].result.moves += 1;
        if self.tasks[t].state != State::Sleeping {
            self.tasks[t].cold = self.unless_free(self.costs.cold);
            self.relocate(t, to);
        }
    }

    /// Frees a worker, and reports its action to the policy.
    fn ended(&mut self, v: usize, action: Action, outcome: Outcome) {
        self.vcpus[v].workers -= 1;
        let vm = self.vcpus[v].vm;
        if let Some(t) = self.task_of_vm(vm, &action) {
            self.tasks[t].is_acted_on = false;
        }
        self.tell_later(vm, action.task(), outcome);
        self.spend(v, self.costs.turn);
        self.take_turn(v, false);
    }
}
