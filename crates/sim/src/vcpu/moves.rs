//! Moves: who makes them, how long they take, and what stands in their way.
//!
//! A worker of the vCPU that makes a move executes a system call there. A task that
//! sleeps or is queued is moved by it at once. One that is current on another vCPU
//! has to be stopped there, by the stopper, which needs that vCPU to run; the worker waits
//! with it, and another one makes the next move (kernel/sched/core.c:
//! `affine_move_task`).

use super::Machine;
use super::state::{Run, State, What};
use seekway_policy::units::Nanos;
use seekway_policy::vcpu::{Action, Means, Outcome, TaskId};

impl Machine {
    /// A policy wants something done.
    pub(super) fn act(&mut self, vm: usize, action: Action) {
        let Some(t) = self.task_of_vm(vm, action.task()) else {
            let (now, task) = (self.now, action.task());
            return self.with_policy(vm, |policy| policy.moved(now, task, Outcome::Refused));
        };
        self.assert_proper(t, &action);
        self.tasks[t].is_acted_on = true;
        let worker = match action {
            Action::Move { by: Means::Push, .. } => self.tasks[t].vcpu,
            Action::Move { by: Means::Pull, to, .. } => self.vms[vm].first + to.index(),
            Action::Release { .. } => self.seat(vm),
        };
        let cost = if self.ablation.free_moves { Nanos::ZERO } else { self.costs.call };
        let was_away = self.vcpus[worker].state != Run::Running;
        self.execute(worker, cost, What::Call { action, was_away });
    }

    fn task_of_vm(&self, vm: usize, task: TaskId) -> Option<usize> {
        let t = usize::try_from(task.0).ok()?;
        self.vms[vm].tasks.contains(&t).then_some(t)
    }

    /// What no policy may do.
    fn assert_proper(&self, t: usize, action: &Action) {
        let task = &self.tasks[t];
        assert!(
            !task.is_acted_on,
            "two actions on task {} of {}",
            task.name, self.vms[task.vm].name
        );
        if let Action::Move { to, within, .. } = action {
            assert!(within.contains(*to), "a task is moved to a vCPU outside its set");
            assert!(within.and(&task.allowed) == *within, "a task's owner does not allow it there");
        }
    }

    /// A worker has made its call, on vCPU `v`.
    pub(super) fn called(&mut self, v: usize, action: Action, was_away: bool) {
        let t = action.task().0 as usize;
        let vm = self.tasks[t].vm;
        let Action::Move { to, within, .. } = action else {
            self.tasks[t].within = self.tasks[t].allowed;
            return self.acted(t);
        };
        self.vms[vm].blocked += u64::from(was_away);
        let on = self.tasks[t].vcpu;
        let executes = self.tasks[t].state == State::Current
            && self.vcpus[on].state == Run::Waiting
            && self.vcpus[on].work.iter().all(|work| work.what == What::Switch);
        if executes && on != self.vms[vm].first + to.index() && !self.ablation.free_stopper {
            debug_assert_ne!(on, v, "the worker runs");
            self.vms[vm].blocked += u64::from(!was_away);
            self.vcpus[on].stopper.push((action, t));
            return;
        }
        self.tasks[t].within = within;
        self.arrive(t, self.vms[vm].first + to.index());
        self.acted(t);
    }

    /// The stopper of a vCPU that is back makes the moves that wait for it.
    pub(super) fn run_stopper(&mut self, v: usize) {
        for (action, t) in std::mem::take(&mut self.vcpus[v].stopper) {
            let Action::Move { to, within, .. } = action else { continue };
            self.tasks[t].within = within;
            self.arrive(t, self.vms[self.tasks[t].vm].first + to.index());
            self.execute(v, self.guest.context_switch, What::Switch);
            self.acted(t);
        }
    }

    /// A task goes to a vCPU.
    fn arrive(&mut self, t: usize, to: usize) {
        let vm = self.tasks[t].vm;
        self.vms[vm].moves += 1;
        self.tasks[t].result.moves += 1;
        let from = self.tasks[t].vcpu;
        if from == to {
            return;
        }
        if !self.ablation.free_moves {
            self.tasks[t].cold = self.costs.cold;
        }
        if self.tasks[t].state != State::Sleeping {
            return self.relocate(t, to);
        }
        self.flush_wants(t);
        self.tasks[t].age = self.age_there(t, to);
        self.tasks[t].vcpu = to;
    }

    /// An action has come to its end.
    fn acted(&mut self, t: usize) {
        self.tasks[t].is_acted_on = false;
        let (now, task) = (self.now, TaskId(t as u64));
        self.with_policy(self.tasks[t].vm, |policy| policy.moved(now, task, Outcome::Done));
    }
}
