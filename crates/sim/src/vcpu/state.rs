//! State of a machine. Processors, vCPUs and tasks are numbered over the whole machine; a VM's
//! vCPUs are consecutive.

use super::fair::Age;
use super::measure::{LeastMoves, Tally};
use super::{Load, PcpuResult, TaskResult, VmSpec};
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::agent::{Agent, News, Seen, Timetable};
use seekway_vcpu::{Action, VcpuId, VcpuPolicy, VcpuSet};
use seekway_workload::generators::rng::Rng;
use std::collections::VecDeque;

/// A processor of the host.
pub(super) struct Pcpu {
    pub on: On,
    /// Since when it has been so.
    pub since: Instant,
    /// vCPUs that want to run, in the order in which they came.
    pub waiting: Vec<usize>,
    /// Which ran last: only another costs a switch.
    pub last: Option<usize>,
    /// The vCPU that goes next, even if others are younger, with the rest of its slice if that was
    /// interrupted.
    pub front: Option<(usize, Option<Nanos>)>,
    /// The slice of the vCPU that runs.
    pub slice: Slice,
    /// No vCPU here is younger than this without having slept.
    pub floor: Age,
    pub generation: u64,
    /// The first slice is a part of one: processors are not in step.
    pub is_fresh: bool,
    pub rng: Rng,
    pub result: PcpuResult,
}

/// Activity of a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum On {
    Idle,
    /// Chooses a vCPU at this very instant.
    Choosing,
    /// Switches to the vCPU of this number.
    Switching(usize),
    Running(usize),
}

#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Slice {
    pub from: Instant,
    pub length: Nanos,
    /// The slice is cut short: another vCPU goes next, whichever is the youngest.
    pub is_cut: bool,
}

pub(super) struct Vcpu {
    pub vm: usize,
    /// Its number among the vCPUs of its VM.
    pub id: VcpuId,
    pub pcpu: usize,
    pub state: VcpuRunState,
    pub weight: u32,
    pub age: Age,
    /// Work before any task, in this order.
    pub work: VecDeque<Work>,
    /// The task that it executes, or executed when it was taken away.
    pub current: Option<usize>,
    /// The task before: only another costs a switch.
    pub last: Option<usize>,
    /// Tasks that want to run, in the order in which they came.
    pub queue: Vec<usize>,
    /// Since `current` was chosen.
    pub used: Nanos,
    /// As of a processor.
    pub floor: Age,
    /// Time up to which its work is accounted for.
    pub since: Instant,
    pub generation: u64,
    /// News that it hears when it is back.
    pub unheard: Vec<Heard>,
    /// Tasks that others woke here while it was away, and that are in no queue yet.
    pub wake_list: Vec<usize>,
    /// Threads of it that are at a move, or wait in a system call.
    pub workers: usize,
    /// Its news and work are being put together: it does not execute anything yet.
    pub starts: bool,
    /// The policy has made it idle.
    pub dozes: bool,
    pub doze_generation: u64,
    /// The policy has been told that the vCPU will lose its processor.
    pub is_foretold: bool,
    pub monitor: Monitor,
    pub ran: Tally,
    pub away: Tally,
    /// Away, and with something to run.
    pub waits: Tally,
}

/// Has a vCPU a processor?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum VcpuRunState {
    Running,
    Waiting,
    /// Has nothing to run.
    Halted,
}

/// Activity of a vCPU's monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Monitor {
    pub state: Beat,
    pub generation: u64,
    /// The monitor has slept without end: the next beat has no due time.
    pub rests: bool,
    pub alarm: Alarm,
}

/// Time of a monitor's alarm for the policy, as of when it fell asleep.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Alarm {
    pub at: Option<Instant>,
    pub generation: u64,
    pub state: WakeState,
}

/// Has it been woken?
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum WakeState {
    #[default]
    No,
    /// Yes, but its vCPU was away.
    Due,
    /// The monitor is waking up.
    Executed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beat {
    None,
    /// The policy asked for it at that time, and it comes at this.
    Armed {
        asked: Instant,
        due: Instant,
    },
    /// That time has come, but not the vCPU.
    Due(Instant),
    /// The work is being executed.
    Executed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// An I/O is done.
    Io(usize),
    /// A task's sleep is over.
    Slept { task: usize, nap: u64 },
    /// The timer of its kernel has gone off.
    Kernel,
}

/// Something that a vCPU executes before tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub left: Nanos,
    pub what: WorkKind,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum WorkKind {
    /// The guest goes from one task to another.
    Switch,
    /// The agent reads or thinks.
    Agent,
    Beat {
        due: Option<Instant>,
    },
    /// The monitor wakes, and looks for due work.
    Look,
    /// A worker changes a mask for this action; the vCPU was away before it was done.
    Call {
        action: Action,
        is_second: bool,
        was_away: bool,
    },
    /// The stopper makes a move for a worker of that vCPU.
    Stop {
        action: Action,
        worker: usize,
        was_away: bool,
    },
}

/// The agent of a VM.
pub(super) struct GuestAgent {
    pub core: Agent,
    pub timetable: Timetable,
    /// For the next turn.
    pub news: News,
    /// Edges that no vCPU was there to tell of.
    pub untold: Vec<Seen>,
    /// The vCPU whose thread had the last turn.
    pub seat: usize,
}

impl GuestAgent {
    /// `seat`: the VM's first vCPU.
    pub fn new(policy: Box<dyn VcpuPolicy>, seat: usize) -> GuestAgent {
        let (core, timetable) = (Agent::new(policy), Timetable::new(VcpuId::new(0)));
        GuestAgent { core, timetable, news: News::default(), untold: Vec::new(), seat }
    }
}

#[derive(Default)]
pub(super) struct Vm {
    pub name: String,
    /// Its own disks, among [`Machine::disks`](super::Machine).
    pub disks: std::ops::Range<usize>,
    pub agent: Option<GuestAgent>,
    pub first: usize,
    pub vcpus: usize,
    pub tasks: std::ops::Range<usize>,
    /// Those of its vCPUs that have a processor now.
    pub running: VcpuSet,
    pub runs: usize,
    /// vCPUs that have nothing to run.
    pub halted: usize,
    /// The slice of its vCPUs.
    pub slice: Nanos,
    /// News that no vCPU was there to hear.
    pub unheard: Vec<Heard>,
    /// The vCPU that its disk interrupts, where the agent steers that.
    pub interrupted: usize,
    /// When its kernel's timer goes off, and which timer that is.
    pub kernel_timer: (Option<Instant>, u64),
    /// Time in which one ran, or had nothing to run.
    pub any: Tally,
    pub least: LeastMoves,
    pub agent_time: Nanos,
    pub switching: Nanos,
    pub moves: u64,
    pub releases: u64,
    pub blocked: u64,
}

pub(super) struct Task {
    pub vm: usize,
    pub load: Load,
    /// The CPUs that its owner allows.
    pub allowed: VcpuSet,
    /// Where it may run now.
    pub within: VcpuSet,
    /// A move while the task slept: its mask becomes these once it was seen there.
    pub then: Option<(usize, VcpuSet)>,
    /// The vCPU by the guest's kernel (`task_cpu`): where it runs, is queued, or ran last. A task
    /// whose mask is changed while it sleeps stays there until it wakes.
    pub vcpu: usize,
    pub state: State,
    pub phase: Phase,
    /// Of the phase; none: for ever.
    pub left: Option<Nanos>,
    /// Time to execute first: the cost of cold caches after a move.
    pub cold: Nanos,
    pub age: Age,
    /// An action on it is under way.
    pub is_acted_on: bool,
    /// Number of its sleeps.
    pub naps: u64,
    pub io: IoState,
    pub window: WindowLoad,
    pub wants: Wants,
    /// Its results, but for [`TaskResult::io`], which is known in the end.
    pub result: TaskResult,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Sleeping,
    /// On the wake list of its vCPU.
    Waking,
    Queued,
    Current,
}

/// Activity of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Has not begun.
    New,
    /// Computes, for its own sake.
    Compute,
    /// Sleeps for a time, or until its guest wakes it.
    Sleep,
    /// Computes for a block that it will ask for.
    Prepare,
    /// Waits for its own blocks, or for I/O of its guest.
    Wait,
    /// Was woken, and takes the blocks that are there.
    Take,
}

/// Activity of a task that does I/O.
pub(super) struct IoState {
    pub rng: Rng,
    /// Its part of the disk: first block and how many.
    pub first_block: u64,
    pub blocks: u64,
    /// The next block, if they are in sequence.
    pub next: u64,
    /// Asked for and not taken.
    pub outstanding: u16,
    /// Begin times of the blocks that are done and not taken.
    pub done: Vec<Instant>,
    /// Begin time of the block that it prepares.
    pub begun: Instant,
    /// Begun since the last pause.
    pub in_burst: u32,
    /// The task has waited for the disk.
    pub has_waited: bool,
}

/// Its load in this window.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct WindowLoad {
    pub waited: Nanos,
    /// Since when it waits, as far as it is not in `waited`.
    pub since: Option<Instant>,
    pub ran: Nanos,
    pub ios: u32,
    pub io_time: Nanos,
    /// The task asked for a block.
    pub asked: bool,
}

/// Does a task want to run?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wants {
    No,
    /// Its event has come, and the vCPU that hears of it is away.
    Unheard(Instant),
    /// Total absence of its vCPU when this began to count.
    VcpuRunState(Nanos),
}

/// A request of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Io {
    pub by: Asker,
    /// The vCPU that submitted it, numbered over the whole machine.
    pub vcpu: usize,
    pub begun: Instant,
    pub asked: Instant,
}

/// Origin of the request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    Task(usize),
    /// The guest of that VM, which knows it by this token.
    Guest {
        vm: usize,
        token: u64,
    },
}

impl Task {
    /// Does it do I/O? Of a guest's task that shows when it waits for the disk for the first
    /// time.
    pub fn is_io(&self) -> bool {
        match self.load {
            Load::Io { .. } => true,
            Load::Guest(_) => self.io.has_waited,
            Load::Compute | Load::Partly { .. } => false,
        }
    }
}

impl Vm {
    /// Tells whether a vCPU is available: one that halts is, and one that dozes too.
    pub fn look_for_any(&mut self, now: Instant) {
        match self.runs + self.halted > 0 {
            true => self.any.start(now),
            false => self.any.stop(now),
        }
    }

    pub fn new(spec: &VmSpec, first: usize, tasks: std::ops::Range<usize>, slice: Nanos) -> Vm {
        let mut any = Tally::default();
        any.start(Instant::ZERO);
        Vm {
            name: spec.name.clone(),
            first,
            vcpus: usize::from(spec.vcpus),
            tasks,
            halted: usize::from(spec.vcpus),
            slice,
            interrupted: first,
            any,
            ..Vm::default()
        }
    }
}
