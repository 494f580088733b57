//! A host whose processors the vCPUs of several VMs share. Its scheduling decides when a guest's
//! task runs, and so when it asks its disk for anything.
//!
//! ```text
//!  tasks ─▶ guest's scheduler ─▶ vCPUs ─▶ host's scheduler ─▶ processors
//!    │            ▲                                │
//!    │            └── policy::vcpu ◀── signs ──────┘
//!    └─▶ Issue ─▶ engine ─▶ dispatcher ─▶ device ─▶ completed ─▶ interrupt of a vCPU
//! ```
//!
//! It is a [`Source`](seekway_workload::Source) like any other: the engine knows
//! nothing of processors, and the disk is the one of every other run.

mod agent;
mod build;
mod check;
mod events;
mod fair;
mod guest;
mod guests;
mod host;
mod irq;
mod machine;
mod measure;
mod moves;
mod plans;
mod spec;
mod state;
#[cfg(test)]
mod tests;

use crate::metrics::{Times, times};
use events::Event;
pub use machine::Machine;
pub use plans::{PlannedVm, Processors};
use seekway_core::request::{Op, ProcessTag};
use seekway_core::units::{Instant, Lba, Nanos};
use seekway_workload::Issue;
pub use spec::{
    Ablation, Completes, Costs, Detector, GuestCpu, HostCpu, Load, MachineSpec, Start, TaskSpec,
    VmSpec,
};
use state::{Asker, Io, Phase, State, Task, Vm};

// Results of a machine's run.

impl Machine {
    /// Results from the begin of the measuring up to `now`, to which it has run.
    pub fn result(&mut self, now: Instant) -> MachineResult {
        self.account(now);
        MachineResult {
            policy: self.policy.clone(),
            pcpus: self.pcpus.iter().map(|pcpu| pcpu.result).collect(),
            vms: self.vms.iter().map(|vm| self.vm_result(vm)).collect(),
            events: self.handled,
        }
    }

    fn vm_result(&self, vm: &Vm) -> VmCpu {
        let vcpus = &self.vcpus[vm.first..vm.first + vm.vcpus];
        let tasks = self.tasks[vm.tasks.clone()].iter();
        let mut metrics = Vec::new();
        if let Some(agent) = &vm.agent {
            agent.core.policy.metrics(&mut |name, value| metrics.push((name, value)));
        }
        VmCpu {
            name: vm.name.clone(),
            disks: vm.disks.clone(),
            ran: vcpus.iter().fold(Nanos::ZERO, |sum, vcpu| sum + vcpu.ran.at(self.now)),
            stolen: vcpus.iter().fold(Nanos::ZERO, |sum, vcpu| sum + vcpu.waits.at(self.now)),
            vcpus: vcpus.len() as u16,
            any_ran: vm.any.at(self.now),
            first_ran: vcpus[0].ran.at(self.now),
            tasks: tasks.map(|t| TaskResult { io: t.is_io(), ..t.result.clone() }).collect(),
            moves: vm.moves,
            releases: vm.releases,
            blocked: vm.blocked,
            moves_min: vm.least.moves(),
            agent: vm.agent_time,
            overhead: vm.switching,
            metrics,
        }
    }
}

// Results of vCPUs and tasks.

/// Of all VMs, from the beginning of the measuring.
#[derive(Clone, Debug)]
pub struct MachineResult {
    pub policy: String,
    pub pcpus: Vec<PcpuResult>,
    pub vms: Vec<VmCpu>,
    /// Events handled since the start, for how fast the simulator is.
    pub events: u64,
}

/// Results of one processor of the host; its activities add up to the time measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PcpuResult {
    /// Time for which vCPUs ran.
    pub ran: Nanos,
    /// Time for which it went from one to another.
    pub switching: Nanos,
    /// Time for which none wanted to run.
    pub idle: Nanos,
    /// Switches from one vCPU to another.
    pub switches: u64,
    /// Slices that vCPUs began on it, those cut short included.
    pub slices: u64,
}

#[derive(Clone, Debug)]
pub struct VmCpu {
    pub name: String,
    /// Its disks, as indices among those of all VMs of the machine.
    pub disks: std::ops::Range<usize>,
    /// Time for which its vCPUs ran, together.
    pub ran: Nanos,
    /// Time for which they wanted to run and had no processor, together (what Linux counts as
    /// steal).
    pub stolen: Nanos,
    pub vcpus: u16,
    /// Time for which at least one of them ran or had nothing to run: the bound, as a share of the
    /// time measured. A vCPU that halts is not away, because nobody took it.
    pub any_ran: Nanos,
    /// Time for which its first vCPU ran.
    pub first_ran: Nanos,
    pub tasks: Vec<TaskResult>,
    /// Moves made; a task that was already there does not count.
    pub moves: u64,
    /// Tasks that were given back their owners' masks: a system call each, and no move.
    pub releases: u64,
    /// Of these, those that had to wait for a vCPU that was away.
    pub blocked: u64,
    /// Least moves with which a clairvoyant could have kept a task on a running vCPU
    /// all the time that one was.
    pub moves_min: u64,
    /// CPU time of the agent: beats, windows, calls.
    pub agent: Nanos,
    /// CPU time of its kernel: switches of tasks, and the cost of cold caches after moves. `ran` is
    /// this, the agent's and the tasks' together.
    pub overhead: Nanos,
    /// The policy's own figures.
    pub metrics: Vec<(&'static str, f64)>,
}

impl VmCpu {
    /// The response times of all its tasks.
    pub fn waits(&self) -> Times {
        let mut all = times(2);
        for task in &self.tasks {
            all.add(&task.response).expect("histograms of one kind");
        }
        all
    }
}

#[derive(Clone, Debug)]
pub struct TaskResult {
    pub name: String,
    /// Does it do I/O?
    pub io: bool,
    /// Its CPU time, without the cost of moves.
    pub ran: Nanos,
    /// Blocks that it took; for a guest's task, its waits for I/O.
    pub ios: u64,
    /// Bytes of these blocks; zero for a guest's task.
    pub bytes: u64,
    /// From one block to the next, as the task sees it: with CPU time and absence.
    pub response: Times,
    /// Time in which it had something to run, or its I/O was done, and its vCPU was away.
    pub inactive: Nanos,
    /// Number of moves.
    pub moves: u64,
    /// When each quarter of a second began, and its blocks in it.
    pub series: Vec<(Instant, u64)>,
}

impl TaskResult {
    /// Of a task that has done nothing yet.
    fn new(name: String) -> TaskResult {
        TaskResult {
            name,
            io: false,
            ran: Nanos::ZERO,
            ios: 0,
            bytes: 0,
            response: times(2),
            inactive: Nanos::ZERO,
            moves: 0,
            series: Vec::new(),
        }
    }
}

// Activities of tasks: compute, sleep, ask for blocks and wait for them.

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
    fn step(&mut self, t: usize) {
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
    fn sleep(&mut self, t: usize, span: Nanos) {
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
    fn new_token(&mut self, io: Io) -> usize {
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
