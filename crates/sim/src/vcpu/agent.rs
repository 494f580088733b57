//! The agent of a guest: what its policy is told, and when.
//!
//! It is a set of threads of the highest priority, one on each vCPU, as `seekway-guest` has
//! them (migrate/brain.rs, monitors.rs). Each sleeps until its beat is due; one, the keeper's,
//! until what the policy wants is: it is that of a vCPU which is expected to run then. If it
//! does not come, who wakes for a beat takes its place, or at last the next. All by what
//! they knew when they fell asleep.
//! Each wake-up costs, and so does each turn of the policy. While no vCPU of the guest
//! runs, nothing is told and nothing is decided: that is made up for when one does.

use super::events::Event;
use super::state::{Beat, Monitor, Phase, Run, What, WindowLoad, Woken};
use super::{Detector, Machine};
use seekway_policy::units::{Instant, Nanos};
use seekway_policy::vcpu::{
    Outcome, Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet, VcpuView,
};
use std::collections::VecDeque;

/// No timer is finer: a policy that wants to be asked at once is asked after this.
const TIMER: Nanos = Nanos::from_micros(1);

/// The keeper has lost its vCPU if it is as late as this: then the next one takes its place,
/// and if that is not there, the next after as long again. This and the next two: brain.rs.
pub(super) const PATIENCE: Nanos = Nanos::from_millis(20);
/// Who wakes for something else finds it late by as much, and so away.
pub(super) const OVERDUE: Nanos = Nanos::from_millis(2);
/// Who wakes for something else as soon after the end of a window sees to that then.
const TOGETHER: Nanos = Nanos::from_micros(300);

/// Actions at one instant beyond which a policy is taken to run away.
const ACTIONS_MAX: usize = 100_000;

/// An agent.
pub(super) struct Agent {
    pub policy: Box<dyn VcpuPolicy>,
    /// When the policy wants to be asked.
    wake: Option<Instant>,
    /// From window to window of the tasks' loads.
    window: Option<Nanos>,
    /// When this one ends.
    window_at: Option<Instant>,
    /// What no vCPU was there to be told.
    signs: VecDeque<(Instant, VcpuId, Sign)>,
    /// What the policy is told in its next turn.
    ended: Vec<(TaskId, Outcome)>,
    /// The vCPU whose thread had the turn last.
    seat: usize,
    /// The vCPU whose monitor wakes for what is due.
    keeper: usize,
    /// A keeper that did not come when it was to: it is none until it has woken.
    lost: Option<usize>,
}

impl Agent {
    pub fn new(policy: Box<dyn VcpuPolicy>, seat: usize) -> Agent {
        Agent {
            policy,
            wake: None,
            window: None,
            window_at: None,
            signs: VecDeque::new(),
            ended: Vec::new(),
            seat,
            keeper: seat,
            lost: None,
        }
    }

    /// When something is due next.
    fn until(&self) -> Option<Instant> {
        [self.wake, self.window_at].into_iter().flatten().min()
    }
}

impl Machine {
    /// On this vCPU a VM's policy is told something; do what it wants, and ask what it wants
    /// to be told. `awake`: by the monitor, which looks what is due before it sleeps.
    pub(super) fn take_turn(
        &mut self,
        here: usize,
        awake: bool,
        tell: impl FnOnce(&mut dyn VcpuPolicy),
    ) {
        let vm = self.vcpus[here].vm;
        let Some(mut agent) = self.vms[vm].agent.take() else { return };
        agent.seat = here;
        tell(&mut *agent.policy);
        for (task, outcome) in std::mem::take(&mut agent.ended) {
            agent.policy.moved(self.now, task, outcome);
        }
        let mut actions = Vec::new();
        while let Some(action) = agent.policy.next(self.now) {
            actions.push(action);
            assert!(actions.len() < ACTIONS_MAX, "a policy for vCPUs acts without end");
        }
        let sleeps = self.heed(&mut agent, here, awake);
        self.vms[vm].agent = Some(agent);
        sleeps.into_iter().for_each(|v| self.wake_monitor(v));
        if awake {
            self.fall_asleep(here);
        }
        self.act(here, actions);
    }

    /// An action has come to its end; the policy hears so in its next turn.
    pub(super) fn tell_later(&mut self, vm: usize, task: TaskId, outcome: Outcome) {
        if let Some(agent) = &mut self.vms[vm].agent {
            agent.ended.push((task, outcome));
        }
    }

    /// What a policy wants to be told from now on. The vCPUs whose monitors sleep for too
    /// long for that.
    fn heed(&mut self, agent: &mut Agent, here: usize, awake: bool) -> Vec<usize> {
        let vm = self.vcpus[here].vm;
        self.vms[vm].slice = agent.policy.slice(self.host.slice).max(TIMER);
        let before = std::mem::replace(&mut agent.wake, agent.policy.next_wake());
        let mut sooner = is_sooner(agent.wake, before);
        let window = agent.policy.windows();
        if window != agent.window {
            agent.window = window;
            agent.window_at = window.map(|length| self.now + length.max(TIMER));
            sooner |= window.is_some();
        }
        let before = agent.keeper;
        agent.keeper = self.keeper(agent, here);
        sooner |= agent.keeper != before;
        let (first, vcpus) = (self.vms[vm].first, self.vms[vm].vcpus);
        let sleeps = |&v: &usize| {
            let Monitor { state, .. } = self.vcpus[v].monitor;
            let beats = match (self.detector, state) {
                (Detector::Exact { .. }, _) | (_, Beat::Due(_) | Beat::Executed) => false,
                (_, Beat::None) => agent.policy.beat_at(self.vcpus[v].id).is_some(),
                // One that comes a little later than is wanted is not worth a wake-up.
                (_, Beat::Armed { asked, .. }) => {
                    let beat = agent.policy.beat_at(self.vcpus[v].id);
                    is_sooner(beat.map(|at| at + TOGETHER), Some(asked))
                }
            };
            (beats || sooner && v == agent.keeper) && !(v == here && awake)
        };
        (first..first + vcpus).filter(sleeps).collect()
    }

    /// Who is to wake for what is due: the keeper so far, if its vCPU is expected to run until
    /// then. Else who is awake. Else the one with most left; and if none is expected to last,
    /// who is awake: that one runs.
    fn keeper(&self, agent: &Agent, here: usize) -> usize {
        let Some(until) = agent.until() else { return agent.keeper };
        let (left, first) = (until.since(self.now), self.vms[self.vcpus[here].vm].first);
        let number = |view: &VcpuView| first + view.vcpu.index();
        let mut views = agent.policy.vcpus(self.now);
        views.retain(|view| view.active && Some(number(view)) != agent.lost);
        views.retain(|view| view.remaining > Some(left));
        let lasts = |v: &usize| views.iter().any(|view| number(view) == *v);
        let most = views.iter().max_by_key(|view| view.remaining).map(number);
        [agent.keeper, here].into_iter().find(lasts).or(most).unwrap_or(here)
    }

    /// A monitor has woken. If the keeper has not long after it was to, this one takes its place.
    fn has_woken(&mut self, v: usize) {
        let now = self.now;
        let Some(agent) = &mut self.vms[self.vcpus[v].vm].agent else { return };
        agent.lost = agent.lost.filter(|lost| *lost != v);
        if agent.keeper != v && agent.until().is_some_and(|until| now > until + OVERDUE) {
            agent.lost = Some(agent.keeper);
            agent.keeper = v;
        }
    }

    /// A monitor goes to sleep, until its beat or what the policy wants done.
    fn fall_asleep(&mut self, v: usize) {
        let Some(agent) = &self.vms[self.vcpus[v].vm].agent else { return };
        let beat = match self.detector {
            Detector::Heartbeat { .. } => agent.policy.beat_at(self.vcpus[v].id),
            Detector::Exact { .. } => None,
        };
        let vcpus = self.vms[self.vcpus[v].vm].vcpus;
        let rank = (vcpus + v - agent.keeper) % vcpus;
        let window = agent.window_at.map(|window| {
            let together = window..=window + TOGETHER;
            let soon = [beat, agent.wake].into_iter().flatten().filter(|at| together.contains(at));
            soon.min().filter(|_| rank == 0).unwrap_or(window)
        });
        let until = [agent.wake, window].into_iter().flatten().min();
        let patience = PATIENCE.scaled(rank as u64, 1);
        let at = until.map(|at| (at + patience).max(self.now + TIMER));
        let alarm = &mut self.vcpus[v].monitor.alarm;
        if alarm.state == Woken::No && alarm.at != at {
            alarm.at = at;
            alarm.generation += 1;
            let generation = alarm.generation;
            at.into_iter().for_each(|at| {
                self.events.push(at, Event::Alarm { vcpu: v, generation });
            });
        }
        self.arm_beat(v, beat);
    }

    /// A monitor is to look what is due: its time has come, or somebody says so.
    pub(super) fn wake_monitor(&mut self, v: usize) {
        let alarm = &mut self.vcpus[v].monitor.alarm;
        if alarm.state != Woken::No {
            return;
        }
        (alarm.state, alarm.at) = (Woken::Due, None);
        alarm.generation += 1;
        match self.vcpus[v].state {
            Run::Running => self.execute_look(v),
            Run::Waiting => {}
            // Who has vCPUs doze is the guest's kernel, and does not wake them to look.
            Run::Halted if self.vcpus[v].dozes => {}
            Run::Halted => self.host_wake(v),
        }
    }

    /// A monitor's vCPU runs.
    pub(super) fn execute_look(&mut self, v: usize) {
        self.vcpus[v].monitor.alarm.state = Woken::Executed;
        self.execute(v, self.costs.wake, What::Look);
    }

    /// A monitor is awake, and does what is due.
    pub(super) fn look(&mut self, v: usize) {
        self.vcpus[v].monitor.alarm.state = Woken::No;
        self.has_woken(v);
        self.do_due(v);
        self.fall_asleep(v);
    }

    /// End the window that is due, and ask the policy if it wanted to be.
    fn do_due(&mut self, v: usize) {
        let vm = self.vcpus[v].vm;
        let Some(agent) = &self.vms[vm].agent else { return };
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= self.now);
        let (window, asked) = (is_due(agent.window_at), is_due(agent.wake));
        if window {
            self.window(v);
        } else if asked {
            self.spend(v, self.costs.turn);
            self.take_turn(v, true, |_| {});
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
        // One that was to come before it was asked for is not late: it comes now.
        let due = asked.max(self.now + TIMER);
        monitor.state = Beat::Armed { asked, due };
        self.events.push(due, Event::Beat { vcpu: v, generation });
    }

    /// A monitor's time has come.
    pub(super) fn beat(&mut self, v: usize) {
        let Beat::Armed { due, .. } = self.vcpus[v].monitor.state else { return };
        if self.vcpus[v].state == Run::Running {
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
        self.execute(v, beat, What::Beat { due });
    }

    /// A beat was executed.
    pub(super) fn beaten(&mut self, v: usize, due: Option<Instant>) {
        self.vcpus[v].monitor.state = Beat::None;
        let (now, id) = (self.now, self.vcpus[v].id);
        self.has_woken(v);
        self.take_turn(v, true, |policy| policy.heard(now, id, Sign::Beat { due }));
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

    /// A vCPU will lose its processor: told at once, and only once.
    pub(super) fn foretell(&mut self, v: usize) {
        if !self.vcpus[v].is_foretold && self.vms[self.vcpus[v].vm].agent.is_some() {
            self.vcpus[v].is_foretold = true;
            self.edge(v, self.now, Sign::Preempted);
        }
    }

    /// What was foretold does not come to pass.
    pub(super) fn untell(&mut self, v: usize) {
        if self.vcpus[v].is_foretold {
            self.tell_edge(v, Sign::Resumed);
        }
    }

    /// An edge that happened at `at` is known.
    pub(super) fn edge(&mut self, v: usize, at: Instant, sign: Sign) {
        let (vm, id) = (self.vcpus[v].vm, self.vcpus[v].id);
        if self.vms[vm].runs > 0 {
            return self.tell(vm, at, id, sign);
        }
        if let Some(agent) = &mut self.vms[vm].agent {
            agent.signs.push_back((at, id, sign));
        }
    }

    /// A policy is told of an edge by a vCPU that runs.
    fn tell(&mut self, vm: usize, at: Instant, id: VcpuId, sign: Sign) {
        let Detector::Exact { edge, .. } = self.detector else { return };
        let seat = self.seat(vm);
        self.spend(seat, edge + self.costs.turn);
        self.take_turn(seat, true, |policy| policy.heard(at, id, sign));
    }

    /// The agent uses a vCPU that runs; if there is one, which who never asks for windows
    /// has not.
    pub(super) fn spend(&mut self, v: usize, cost: Nanos) {
        let agent = &self.vms[self.vcpus[v].vm].agent;
        if cost > Nanos::ZERO && agent.as_ref().is_some_and(|agent| agent.window.is_some()) {
            self.execute(v, cost, What::Agent);
        }
    }

    /// The vCPU that does the agent's work: one that runs, the same as before if it does.
    fn seat(&self, vm: usize) -> usize {
        let (first, vcpus) = (self.vms[vm].first, self.vms[vm].vcpus);
        let Some(agent) = &self.vms[vm].agent else { return first };
        let runs = |&v: &usize| self.vcpus[v].state == Run::Running;
        let mut all = std::iter::once(agent.seat).chain(first..first + vcpus);
        all.find(runs).unwrap_or(agent.seat)
    }

    /// A window of loads is over: it is read on this vCPU.
    fn window(&mut self, v: usize) {
        let (vm, now) = (self.vcpus[v].vm, self.now);
        let widened = self.widen(vm);
        self.spend(v, self.costs.window + widened + self.costs.turn);
        let loads = self.loads(vm);
        if let Some(agent) = &mut self.vms[vm].agent {
            agent.window_at = agent.window.map(|length| now + length.max(TIMER));
        }
        self.take_turn(v, true, |policy| policy.window(now, &loads));
    }

    /// What the tasks that did I/O did since they were asked before.
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
                loads.push(TaskLoad { task, vcpu, allowed, waited, ran, ios, io_time });
            }
        }
        loads
    }

    /// A vCPU of the VM runs: what could not be told is told.
    pub(super) fn catch_up(&mut self, vm: usize) {
        let Some(agent) = &mut self.vms[vm].agent else { return };
        for (at, id, sign) in std::mem::take(&mut agent.signs) {
            self.tell(vm, at, id, sign);
        }
    }

    /// Shall this vCPU, on which no I/O task can run, idle though others could?
    pub(super) fn dozes_off(&mut self, v: usize) -> bool {
        let (vm, id, now) = (self.vcpus[v].vm, self.vcpus[v].id, self.now);
        if self.vcpus[v].queue.iter().any(|&t| self.tasks[t].is_io()) {
            return false;
        }
        let Some(mut agent) = self.vms[vm].agent.take() else { return false };
        let until = agent.policy.idles(now, id).filter(|&until| until > now);
        self.vms[vm].agent = Some(agent);
        let Some(until) = until else { return false };
        let vcpu = &mut self.vcpus[v];
        vcpu.dozes = true;
        vcpu.doze_generation += 1;
        let generation = vcpu.doze_generation;
        self.events.push(until, Event::Dozed { vcpu: v, generation });
        true
    }

    /// Ask again whether vCPUs that compute shall go on.
    fn ask_idles(&mut self, vm: usize) {
        let (first, vcpus) = (self.vms[vm].first, self.vms[vm].vcpus);
        for v in first..first + vcpus {
            let vcpu = &self.vcpus[v];
            let computes = vcpu.current.is_some_and(|t| !self.tasks[t].is_io());
            if vcpu.state == Run::Running && vcpu.work.is_empty() && computes {
                self.settle(v);
                if self.dozes_off(v) {
                    self.put_back(v);
                }
                self.dispatch(v);
            }
        }
    }

    /// Every policy is told which vCPUs there are.
    pub(super) fn attach(&mut self) {
        for vm in 0..self.vms.len() {
            let online = VcpuSet::first(self.vms[vm].vcpus);
            let now = self.now;
            if let Some(agent) = &mut self.vms[vm].agent {
                agent.policy.attach(now, &online);
            }
            let (first, vcpus) = (self.vms[vm].first, self.vms[vm].vcpus);
            self.take_turn(first, true, |_| {});
            (first..first + vcpus).for_each(|v| self.fall_asleep(v));
        }
    }
}

/// Is `at` before what was asked for? `None`: never.
fn is_sooner(at: Option<Instant>, before: Option<Instant>) -> bool {
    at.is_some_and(|at| before.is_none_or(|before| at < before))
}
