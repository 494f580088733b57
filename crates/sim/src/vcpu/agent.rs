//! The agent of a guest: what its policy is told, and when.
//!
//! It is a set of threads of the highest priority, one on each vCPU; whichever has a
//! vCPU that runs does what is to be done. While no vCPU of the guest runs, nothing is
//! told and nothing is decided: that is made up for when one does.

use super::events::Event;
use super::state::{Beat, Phase, Run, What, WindowLoad};
use super::{Detector, Machine};
use seekway_policy::units::{Instant, Nanos};
use seekway_policy::vcpu::{Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet};
use std::collections::VecDeque;

/// No timer is finer: a policy that wants to be asked at once is asked after this.
const TIMER: Nanos = Nanos::from_micros(1);

/// Actions at one instant beyond which a policy is taken to run away.
const ACTIONS_MAX: usize = 100_000;

/// An agent.
pub(super) struct Agent {
    pub policy: Box<dyn VcpuPolicy>,
    /// When the policy wants to be asked; that time has come, but no vCPU.
    ask: Option<Instant>,
    ask_generation: u64,
    is_asked_late: bool,
    /// Of the window under way.
    window_from: Instant,
    window: Option<Nanos>,
    window_generation: u64,
    is_window_late: bool,
    /// What no vCPU was there to be told.
    signs: VecDeque<(Instant, VcpuId, Sign)>,
    /// The vCPU that did its work last.
    seat: usize,
}

impl Agent {
    pub fn new(policy: Box<dyn VcpuPolicy>, seat: usize) -> Agent {
        Agent {
            policy,
            ask: None,
            ask_generation: 0,
            is_asked_late: false,
            window_from: Instant::ZERO,
            window: None,
            window_generation: 0,
            is_window_late: false,
            signs: VecDeque::new(),
            seat,
        }
    }
}

impl Machine {
    /// Is this the generation of an agent's timer, or of its window?
    pub(super) fn is_agents(&self, vm: usize, generation: u64, of_window: bool) -> bool {
        self.vms[vm].agent.as_ref().is_some_and(|agent| match of_window {
            true => agent.window_generation == generation,
            false => agent.ask_generation == generation,
        })
    }

    /// Tell a VM's policy something, do what it wants, and ask what it wants to be told.
    pub(super) fn with_policy(&mut self, vm: usize, tell: impl FnOnce(&mut dyn VcpuPolicy)) {
        let Some(mut agent) = self.vms[vm].agent.take() else { return };
        tell(&mut *agent.policy);
        let mut actions = Vec::new();
        while let Some(action) = agent.policy.next(self.now) {
            actions.push(action);
            assert!(actions.len() < ACTIONS_MAX, "a policy for vCPUs acts without end");
        }
        self.heed(vm, &mut agent);
        self.vms[vm].agent = Some(agent);
        for action in actions {
            self.act(vm, action);
        }
    }

    /// Arrange for what a policy wants to be told from now on.
    fn heed(&mut self, vm: usize, agent: &mut Agent) {
        self.vms[vm].slice = agent.policy.slice(self.host.slice).max(TIMER);
        let ask = agent.policy.next_wake();
        if ask != agent.ask || ask.is_some_and(|at| at <= self.now) {
            agent.ask = ask;
            agent.ask_generation += 1;
            agent.is_asked_late = false;
            let generation = agent.ask_generation;
            let at = ask.map(|at| at.max(self.now + TIMER));
            at.into_iter().for_each(|at| self.events.push(at, Event::Asked { vm, generation }));
        }
        let window = agent.policy.windows();
        if window != agent.window {
            agent.window = window;
            self.arm_window(vm, agent);
        }
        if let Detector::Heartbeat { .. } = self.detector {
            let (first, vcpus) = (self.vms[vm].first, self.vms[vm].vcpus);
            for v in first..first + vcpus {
                let at = agent.policy.beat_at(self.vcpus[v].id);
                self.arm_beat(v, at);
            }
        }
    }

    fn arm_window(&mut self, vm: usize, agent: &mut Agent) {
        agent.window_generation += 1;
        agent.is_window_late = false;
        let generation = agent.window_generation;
        let Some(length) = agent.window else { return };
        let at = (agent.window_from + length.max(TIMER)).max(self.now);
        self.events.push(at, Event::Window { vm, generation });
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
        self.with_policy(self.vcpus[v].vm, |policy| policy.heard(now, id, Sign::Beat { due }));
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
        if self.vms[vm].agent.as_ref().is_some_and(|agent| agent.window.is_some()) {
            self.spend(vm, edge);
        }
        self.with_policy(vm, |policy| policy.heard(at, id, sign));
    }

    /// The agent uses a vCPU that runs.
    fn spend(&mut self, vm: usize, cost: Nanos) {
        if cost > Nanos::ZERO {
            let seat = self.seat(vm);
            self.execute(seat, cost, What::Agent);
        }
    }

    /// The vCPU that does the agent's work: one that runs, the same as before if it does.
    pub(super) fn seat(&mut self, vm: usize) -> usize {
        let (first, vcpus) = (self.vms[vm].first, self.vms[vm].vcpus);
        let Some(agent) = &mut self.vms[vm].agent else { return first };
        let runs = |&v: &usize| self.vcpus[v].state == Run::Running;
        let mut all = std::iter::once(agent.seat).chain(first..first + vcpus);
        agent.seat = all.find(runs).unwrap_or(agent.seat);
        agent.seat
    }

    /// The policy wanted to be asked.
    pub(super) fn asked(&mut self, vm: usize) {
        if self.vms[vm].runs > 0 {
            self.with_policy(vm, |_| {});
            return self.ask_idles(vm);
        }
        if let Some(agent) = &mut self.vms[vm].agent {
            agent.is_asked_late = true;
        }
    }

    /// A window of loads is over.
    pub(super) fn window(&mut self, vm: usize) {
        let now = self.now;
        if self.vms[vm].runs == 0 {
            if let Some(agent) = &mut self.vms[vm].agent {
                agent.is_window_late = true;
            }
            return;
        }
        self.spend(vm, self.costs.window);
        let loads = self.loads(vm);
        if let Some(mut agent) = self.vms[vm].agent.take() {
            agent.window_from = now;
            self.arm_window(vm, &mut agent);
            self.vms[vm].agent = Some(agent);
        }
        self.with_policy(vm, |policy| policy.window(now, &loads));
    }

    /// What the tasks that did I/O did since they were asked before.
    fn loads(&mut self, vm: usize) -> Vec<TaskLoad> {
        let mut loads = Vec::new();
        for t in self.vms[vm].tasks.clone() {
            if !self.tasks[t].is_io() {
                continue;
            }
            self.settle(self.tasks[t].vcpu);
            let (now, vcpu) = (self.now, self.vcpus[self.tasks[t].listed].id);
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
        let signs = std::mem::take(&mut agent.signs);
        let window = std::mem::replace(&mut agent.is_window_late, false);
        let ask = std::mem::replace(&mut agent.is_asked_late, false);
        for (at, id, sign) in signs {
            self.tell(vm, at, id, sign);
        }
        if window {
            self.window(vm);
        }
        if ask {
            self.asked(vm);
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
        self.heed(vm, &mut agent);
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
            for v in self.vms[vm].first..self.vms[vm].first + self.vms[vm].vcpus {
                self.vcpus[v].monitor.rests = true;
            }
            self.with_policy(vm, |_| {});
        }
    }
}
