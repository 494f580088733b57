//! VMs whose tasks have a guest's kernel below them: page cache, read-ahead, write-back and journal
//! run whenever a vCPU executes them, and stop while none does.
//!
//! The kernel's own work costs no CPU time, as in a guest whose vCPUs nobody takes away.

use super::Machine;
use super::machine::Event;
use super::state::{Asker, Heard, Io, Phase, State};
use seekway_core::units::{Instant, Nanos};
use seekway_workload::tasks::Need;
use seekway_workload::{Issue, SourceError};

/// A task that computes for no time at all takes this long: no load stops the clock.
const STEP_MIN: Nanos = Nanos::new(1);

impl Machine {
    /// Continues a task of a guest whose need is met.
    pub(super) fn run_in_guest(&mut self, t: usize, number: u32) {
        let (vm, v, now) = (self.tasks[t].vm, self.tasks[t].vcpu, self.now);
        self.take_wait(t);
        let Some(guest) = &mut self.guests[vm] else { unreachable!("checked when it was made") };
        let need = guest.run(now, number);
        match need {
            Ok(need) => self.give(t, need),
            Err(error) => self.fail(t, error),
        }
        self.follow_guest(v, vm);
    }

    /// The load of a task failed: it does nothing more, and the run ends.
    fn fail(&mut self, t: usize, error: SourceError) {
        self.failed.get_or_insert(error);
        self.give(t, Need::Nothing);
    }

    /// Gives a task its next need.
    fn give(&mut self, t: usize, need: Need) {
        let now = self.now;
        match need {
            Need::Compute(span) => {
                let task = &mut self.tasks[t];
                (task.phase, task.left) = (Phase::Compute, Some(span.max(STEP_MIN)));
            }
            Need::Wait { until: Some(at), io: false } => {
                self.sleep(t, (at - now).max(STEP_MIN));
            }
            Need::Wait { until, io } => {
                self.dequeue(t);
                let task = &mut self.tasks[t];
                (task.phase, task.left) = (if io { Phase::Wait } else { Phase::Sleep }, None);
                if io {
                    task.window.since = Some(now);
                    task.window.asked = true;
                    (task.io.has_waited, task.io.begun, task.io.outstanding) = (true, now, 1);
                }
                let (vcpu, nap) = (task.vcpu, task.naps);
                if let Some(at) = until {
                    let at = at.max(now + STEP_MIN);
                    self.events.push(at, Event::Slept { task: t, vcpu, nap });
                }
            }
            Need::Nothing => {
                self.dequeue(t);
                let task = &mut self.tasks[t];
                (task.phase, task.left) = (Phase::Sleep, None);
            }
        }
    }

    /// Ends a task's wait for the disk; it executes again.
    fn take_wait(&mut self, t: usize) {
        let now = self.now;
        if std::mem::take(&mut self.tasks[t].io.outstanding) > 0 {
            let begun = self.tasks[t].io.begun;
            self.tasks[t].result.ios += 1;
            self.tasks[t].result.response.record((now - begun).get());
        }
    }

    /// Carries out the effects of a guest's step on vCPU `v`: tasks wake, requests go out, the
    /// kernel's timer is set.
    fn follow_guest(&mut self, v: usize, vm: usize) {
        let (mut woken, mut issues) = (Vec::new(), Vec::new());
        let Some(guest) = &mut self.guests[vm] else { return };
        guest.take(&mut woken, &mut issues);
        let timer = guest.timer();
        for issue in issues {
            self.issue_of_guest(v, vm, issue);
        }
        self.arm_kernel(vm, timer);
        let first = self.vms[vm].tasks.start;
        for number in woken {
            let t = first + number as usize;
            if self.tasks[t].state == State::Sleeping {
                self.wake_of_guest(t, v);
            }
        }
    }

    fn wake_of_guest(&mut self, t: usize, v: usize) {
        let task = &mut self.tasks[t];
        if task.io.outstanding > 0 {
            task.window.ios += 1;
            task.window.io_time += self.now - task.io.begun;
        }
        self.wake(t, v);
    }

    fn issue_of_guest(&mut self, v: usize, vm: usize, issue: Issue) {
        let by = Asker::Guest { vm, token: issue.token };
        let io = Io { by, vcpu: v, begun: self.now, asked: self.now };
        let token = self.new_token(io) as u64;
        let disk = self.vms[vm].disks.start as u16 + issue.vm;
        self.issues.push(Issue { token, vm: disk, ..issue });
    }

    /// The disk is done with a request; its interrupt takes the way to the guest.
    pub(super) fn answered(&mut self, token: usize) {
        let latency = match self.ios[token].map(|io| io.by) {
            Some(Asker::Guest { vm, .. }) => {
                self.guests[vm].as_ref().map_or(Nanos::ZERO, |guest| guest.latency())
            }
            _ => Nanos::ZERO,
        };
        match latency {
            Nanos::ZERO => self.io_done(token),
            latency => self.events.push(self.now + latency, Event::Interrupt { token }),
        }
    }

    /// Tells the guest's kernel of a completion.
    pub(super) fn guest_hears(&mut self, v: usize, vm: usize, token: u64) {
        let now = self.now;
        if let Some(guest) = &mut self.guests[vm] {
            guest.heard(now, token);
        }
        self.follow_guest(v, vm);
    }

    fn arm_kernel(&mut self, vm: usize, at: Option<Instant>) {
        let (armed, generation) = &mut self.vms[vm].kernel_timer;
        if *armed == at {
            return;
        }
        (*armed, *generation) = (at, *generation + 1);
        if let Some(at) = at {
            let generation = *generation;
            self.events.push(at.max(self.now), Event::Kernel { vm, generation });
        }
    }

    /// Handles the kernel's timer: a worker of the kernel runs on a running vCPU, else on the first
    /// (an unbound work queue).
    pub(super) fn kernel_is_due(&mut self, vm: usize) {
        self.vms[vm].kernel_timer.1 += 1;
        let first = self.vms[vm].first;
        let v = self.any_running(first, first).unwrap_or(first);
        self.interrupt(v, Heard::Kernel);
    }

    /// Does the work of the kernel's timer on a vCPU.
    pub(super) fn kernel_timer(&mut self, v: usize) {
        let (vm, now) = (self.vcpus[v].vm, self.now);
        self.vms[vm].kernel_timer.0 = None;
        if let Some(guest) = &mut self.guests[vm] {
            guest.timer_due(now);
        }
        self.follow_guest(v, vm);
    }
}
