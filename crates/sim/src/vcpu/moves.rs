//! Moves: their workers, their durations, and their obstacles.
//!
//! A worker of the vCPU on which a move was decided wakes there and changes the task's mask, to the
//! destination alone and then to all that the policy named. A task that sleeps stays where it is
//! until it wakes, and only a mask of one vCPU decides where: so it keeps that until a window has
//! seen it there. A queued task is moved by the first change at once. A task that is current on
//! another vCPU has to be stopped there, by the stopper, which needs that vCPU to run; and so has
//! one that was woken on a vCPU which has not queued it yet. The worker waits with it, and another
//! one makes the next move (kernel/sched/core.c: `affine_move_task`).

use super::state::{State, VcpuRunState, WorkKind};
use super::{Completes, Machine};
use seekway_core::units::Nanos;
use seekway_vcpu::agent::{Rest, WORKERS_MAX, rest_of_move};
use seekway_vcpu::{Action, Outcome, VcpuSet};

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
