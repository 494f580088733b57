//! State of a machine, with the clocks of fairness and of results. Processors, vCPUs and tasks are numbered over the whole machine; a VM's
//! vCPUs are consecutive.

use super::{Load, PcpuResult, TaskResult, VmSpec};
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::agent::{Agent, News, Seen, Timetable};
use seekway_vcpu::{Action, VcpuId, VcpuPolicy, VcpuSet};
use seekway_workload::rng::Rng;
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

// Weighted fairness by virtual runtime, for the host's scheduler and the guests': the common core
// of CFS and EEVDF (Linux, kernel/sched/fair.c).
//
// A running entity ages by the time it ran, divided by its weight; the youngest goes next. One
// that slept for long wakes no younger than a slice before the youngest of those that did not
// (`place_entity`).

/// Age by virtual runtime: nanoseconds at weight 1, in 2^-20.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Age(pub i128);

const SCALE: i128 = 1 << 20;

impl Age {
    /// By how much `ran` ages at this weight.
    pub fn of(ran: Nanos, weight: u32) -> Age {
        Age(i128::from(ran.get()) * SCALE / i128::from(weight))
    }

    /// After ageing by `by`.
    pub fn plus(self, by: Age) -> Age {
        Age(self.0 + by.0)
    }

    /// Difference of age; negative if this one is younger.
    pub fn minus(self, other: Age) -> Age {
        Age(self.0 - other.0)
    }

    /// Age at a wake-up: the old one, but no more than `credit` younger than `floor`.
    pub fn waking(self, floor: Age, credit: Age) -> Age {
        self.max(floor.minus(credit))
    }

    /// When it moves to another queue, it is as much before or behind there.
    pub fn moved(self, from: Age, to: Age) -> Age {
        to.plus(self.minus(from))
    }

    /// Time until the mean age of all with `weights` together has grown to this from
    /// `mean`; zero if it has.
    pub fn until(self, mean: Age, weights: u64) -> Nanos {
        let left = (self.0 - mean.0).max(0) * i128::from(weights);
        Nanos::new(u64::try_from((left + SCALE - 1) / SCALE).unwrap_or(u64::MAX))
    }

    /// The mean by weight (EEVDF's virtual time).
    pub fn mean(of: impl Iterator<Item = (Age, u32)>) -> Option<Age> {
        let (mut sum, mut weights) = (0i128, 0i128);
        for (age, weight) in of {
            sum += age.0 * i128::from(weight);
            weights += i128::from(weight);
        }
        (weights > 0).then(|| Age(sum.div_euclid(weights)))
    }
}

// Times that add up while something lasts, and the least number of moves.

/// Total duration of a state that comes and goes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    sum: Nanos,
    since: Option<Instant>,
}

impl Tally {
    /// Begins the state; nothing if it has begun already.
    pub fn start(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    pub fn stop(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.sum += now - since;
        }
    }

    /// The sum up to `now`, with the stretch that still lasts.
    pub fn at(&self, now: Instant) -> Nanos {
        self.since.map_or(self.sum, |since| self.sum + (now - since))
    }

    /// Forgets the time up to now.
    pub fn restart(&mut self, now: Instant) {
        self.sum = Nanos::ZERO;
        self.since = self.since.map(|_| now);
    }
}

/// The least number of moves that keeps one task on a running vCPU all the time that one runs,
/// known afterwards: at each move it goes to the vCPU whose turn then ends last. Computed without
/// knowing the future, by following all vCPUs that it may be on: the last remaining one was right.
#[derive(Clone, Default, Debug)]
pub(super) struct LeastMoves {
    /// Where it may be, if it was wise.
    may: VcpuSet,
    /// Where it was when all were away.
    left_on: Option<VcpuId>,
    moves: u64,
}

impl LeastMoves {
    /// A vCPU runs from now on, and it alone if `first`.
    pub fn runs(&mut self, vcpu: VcpuId, first: bool) {
        if first {
            self.moves += u64::from(self.left_on.is_some_and(|on| on != vcpu));
            self.may = VcpuSet::only(vcpu);
        }
    }

    /// A vCPU does not run any more; `running` do.
    pub fn stops(&mut self, vcpu: VcpuId, running: &VcpuSet) {
        self.may.remove(vcpu);
        if !self.may.is_empty() {
            return;
        }
        if running.is_empty() {
            self.left_on = Some(vcpu);
        } else {
            self.may = *running;
            self.moves += 1;
        }
    }

    /// The least number of moves since the beginning or the last [`Self::restart`].
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Forget those up to now.
    pub fn restart(&mut self) {
        self.moves = 0;
    }
}

#[cfg(test)]
mod measure_tests {
    use super::*;
    use seekway_workload::rng::Rng;

    /// Knowing all spans: at each move to the vCPU that then runs for longest.
    fn naive(spans: &[(usize, u64, u64)], until: u64) -> u64 {
        let (mut on, mut moves, mut t) = (None, 0, 0);
        while t < until {
            let runs = spans.iter().filter(|(_, from, to)| *from <= t && t < *to);
            let Some(&(next, _, to)) = runs.max_by_key(|(_, _, to)| *to) else {
                t += 1;
                continue;
            };
            moves += u64::from(on.is_some_and(|on| on != next));
            (on, t) = (Some(next), to);
        }
        moves
    }

    #[test]
    fn the_least_moves_are_those_of_who_knows_the_future() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut edges: Vec<(u64, bool, usize)> = Vec::new();
            let mut spans = Vec::new();
            for vcpu in 0..1 + rng.below(5) as usize {
                let mut t = 0;
                // Times of a vCPU have a remainder of their own: no two are the same.
                while t < 2_000 {
                    let from = (t / 8 + 1 + rng.below(12)) * 8 + vcpu as u64;
                    let to = (from / 8 + 1 + rng.below(12)) * 8 + vcpu as u64;
                    spans.push((vcpu, from, to));
                    edges.extend([(from, true, vcpu), (to, false, vcpu)]);
                    t = to;
                }
            }
            edges.sort_unstable();
            let (mut least, mut running) = (LeastMoves::default(), VcpuSet::EMPTY);
            for (_, runs, vcpu) in edges {
                let id = VcpuId::new(vcpu as u16);
                if runs {
                    running.insert(id);
                    least.runs(id, running.len() == 1);
                } else {
                    running.remove(id);
                    least.stops(id, &running);
                }
            }
            assert_eq!(least.moves(), naive(&spans, 3_000), "seed {seed}");
        }
    }
}
