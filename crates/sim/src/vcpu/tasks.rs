//! Activities of tasks: compute, sleep, ask for blocks and wait for them.

use super::Load;
use super::Machine;
use super::events::Event;
use super::state::{Asker, Io, Phase, State, Task};
use seekway_core::request::{Op, ProcessTag};
use seekway_core::units::{Lba, Nanos};
use seekway_workload::Issue;

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
            result.response.saturating_record((self.now - begun).get());
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
