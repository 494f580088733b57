//! Results of vCPUs and tasks.

use crate::metrics::{Times, times};
use seekway_core::units::{Instant, Nanos};

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
    pub(super) fn new(name: String) -> TaskResult {
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
