//! Completions and timers, the vCPUs that hear of them, and the tasks that they wake.

use super::fair::Age;
use super::state::{Heard, Io, Phase, Run, State, Wants};
use super::{Completes, Machine};
use seekway_policy::units::Nanos;

impl Machine {
    /// The disk has done an I/O.
    pub(super) fn io_done(&mut self, token: usize) {
        let Some(io) = self.ios[token] else { return };
        let vm = &self.vms[self.tasks[io.task].vm];
        let v = match self.guest.completes {
            Completes::Submitter => io.vcpu,
            Completes::Fixed => vm.first,
            Completes::Any => match self.any_running(io.vcpu, self.tasks[io.task].vcpu) {
                Some(v) => v,
                None => return self.interrupt_first(io, token),
            },
        };
        let heard = Heard::Io(token);
        if self.ablation.free_completions { self.hear(v, heard) } else { self.interrupt(v, heard) }
    }

    /// The submitter if it runs, the task's vCPU if that does, the next that does.
    fn any_running(&self, submitter: usize, home: usize) -> Option<usize> {
        let vm = &self.vms[self.vcpus[submitter].vm];
        let after = (submitter..vm.first + vm.vcpus).chain(vm.first..submitter);
        let mut all = [submitter, home].into_iter().chain(after);
        all.find(|&v| self.vcpus[v].state == Run::Running)
    }

    /// No vCPU runs: the first that does will hear of it.
    fn interrupt_first(&mut self, io: Io, token: usize) {
        self.vms[self.tasks[io.task].vm].unheard.push(Heard::Io(token));
        self.not_heard(io.task);
        self.host_wake(io.vcpu);
    }

    /// What a task waits for has happened, and no vCPU hears of it.
    fn not_heard(&mut self, t: usize) {
        let is_first = !matches!(self.tasks[t].wants, Wants::Unheard(_));
        if self.tasks[t].state == State::Sleeping && is_first {
            self.tasks[t].wants = Wants::Unheard(self.now);
        }
    }

    /// A vCPU is interrupted: now if it runs, else when it does.
    pub(super) fn interrupt(&mut self, v: usize, heard: Heard) {
        match self.vcpus[v].state {
            Run::Running => self.hear(v, heard),
            Run::Halted | Run::Waiting => {
                self.vcpus[v].unheard.push(heard);
                self.not_heard(self.task_of(heard));
                self.host_wake(v);
            }
        }
    }

    fn task_of(&self, heard: Heard) -> usize {
        match heard {
            Heard::Slept(task) => task,
            Heard::Io(token) => self.ios[token].expect("an I/O that was not heard of").task,
        }
    }

    /// The kernel hears, on `v`.
    pub(super) fn hear(&mut self, _v: usize, heard: Heard) {
        let t = self.task_of(heard);
        let task = &mut self.tasks[t];
        match heard {
            Heard::Io(token) => {
                let io = self.ios[token].take().expect("an I/O is heard of once");
                self.free_ios.push(token);
                task.io.done.push(io.begun);
                task.window.ios += 1;
                task.window.io_time += self.now - io.asked;
                if task.phase == Phase::Wait {
                    self.wake(t, Phase::Take);
                }
            }
            Heard::Slept(_) => {
                debug_assert!(matches!(task.phase, Phase::Sleep | Phase::New));
                self.wake(t, Phase::Take);
            }
        }
    }

    /// A task wants to run.
    fn wake(&mut self, t: usize, phase: Phase) {
        self.flush_wants(t);
        let v = self.nearest_allowed(t, self.tasks[t].vcpu);
        let task = &mut self.tasks[t];
        if let Some(since) = task.window.since.take() {
            task.window.waited += self.now - since;
        }
        (task.phase, task.left) = (phase, Some(Nanos::ZERO));
        self.settle(v);
        let age = self.age_there(t, v);
        let credit = Age::of(self.guest.slice, 1);
        self.tasks[t].age = age.waking(self.vcpus[v].floor, credit);
        self.enqueue(t, v);
    }

    /// The vCPU where it was, or the nearest on which it may run.
    pub(super) fn nearest_allowed(&self, t: usize, v: usize) -> usize {
        let task = &self.tasks[t];
        if task.within.contains(self.vcpus[v].id) {
            return v;
        }
        let vm = &self.vms[task.vm];
        let all = vm.first..vm.first + vm.vcpus;
        let may = all.filter(|&w| task.within.contains(self.vcpus[w].id));
        may.min_by_key(|&w| (w.abs_diff(v), w)).expect("a task may run somewhere")
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
            Wants::Run(before) => {
                task.result.inactive += away.saturating_sub(*before);
                *before = away;
            }
        }
    }
}
