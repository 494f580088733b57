//! Completions and timers, the vCPUs that hear of them, and the tasks that they wake.

use super::fair::Age;
use super::state::{Asker, Heard, Io, Phase, State, VcpuRunState, Wants};
use super::{Completes, Machine};
use seekway_core::units::Nanos;

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
