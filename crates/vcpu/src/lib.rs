//! The contract between an engine and a policy for virtual CPUs: which of a
//! guest's tasks run on which of its vCPUs, while the host takes vCPUs away and
//! gives them back (algorithms.md, section 7).
//!
//! Each guest has one policy. A policy is a state machine like a scheduler: the engine reports the
//! signs of vCPUs and the loads of tasks, and asks for actions. It never reads a clock, and acts
//! the same on the same input. The engines are the simulator's guests and the agent
//! `seekway-guest`.
//!
//! 1. [`VcpuPolicy::attach`] says which vCPUs there are.
//! 2. The detector of preemption calls [`VcpuPolicy::heard`]: an exact detector for each edge; a
//!    heartbeat for each wake-up of a vCPU's sleeping thread, which sleeps until
//!    [`VcpuPolicy::beat_at`].
//! 3. Each window (5 ms) [`VcpuPolicy::window`] has the tasks that did I/O in it.
//! 4. After each of these, and at [`VcpuPolicy::next_wake`], the engine asks [`VcpuPolicy::next`]
//!    until it answers `None`. It starts each action without waiting for its end, and reports the
//!    end by [`VcpuPolicy::moved`].
//! 5. [`VcpuPolicy::beat_at`] and [`VcpuPolicy::windows`] say what the engine has to observe from
//!    now on. Where nothing is shared or nobody does I/O, that is next to nothing. They change only
//!    in the calls above: ask again after each.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod agent;
mod detector;
pub mod mask;
mod monitor;
mod registry;
mod vanilla;
mod vmigrater;
mod vsched;
mod vslicer;
mod xballoon;

pub use mask::{Affinity, VCPUS_MAX, VcpuSet};
pub use registry::{Entry, REGISTRY, build};

use seekway_core::units::{Instant, Nanos};

/// One of a guest's vCPUs, by its number in the guest: 0 to [`VCPUS_MAX`] - 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VcpuId(u16);

impl VcpuId {
    /// The vCPU of that number, which is below [`VCPUS_MAX`]; panics otherwise.
    pub const fn new(number: u16) -> VcpuId {
        assert!((number as usize) < VCPUS_MAX, "a vCPU's number is below 1024");
        VcpuId(number)
    }

    /// Its number, to index with.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A task of a guest: the engine's own handle, the same for the task's whole life
/// (a thread's id).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub u64);

/// An observation of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// Its monitor woke up: it runs. It had asked to be woken at `due`; much later means
    /// that the vCPU was taken away between the beat before and `due`, and is back
    /// since now. The first beat after a rest has no `due`.
    Beat {
        /// Its due time.
        due: Option<Instant>,
    },
    /// The host took it away.
    Preempted,
    /// The host took it away: not before this sign was made, and by then at the latest.
    Lost {
        /// A time at which it did not run.
        by: Instant,
    },
    /// The host gave it back.
    Resumed,
    /// The vCPU has nothing to run; the host did not take it away.
    Idle,
}

/// A task's use of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskLoad {
    /// The task that did it.
    pub task: TaskId,
    /// Where it ran last, or is queued.
    pub vcpu: VcpuId,
    /// The affinity that its owner set, whatever the agent set meanwhile.
    pub allowed: VcpuSet,
    /// Time of the window in which it waited for I/O: from the block to the wake-up,
    /// not from there to when it ran.
    pub waited: Nanos,
    /// Time of the window in which it ran.
    pub ran: Nanos,
    /// Number of its I/Os that ended in the window and for which it waited. `leave` adds their mean
    /// time.
    pub ios: u32,
    /// Time that these took together, from issue to completion.
    pub io_time: Nanos,
    /// Its last I/O that ended, in this window or before; `None` if the engine does not know.
    pub last: Option<LastIo>,
}

/// An I/O that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastIo {
    /// When it was issued.
    pub asked: Instant,
    /// Time at which its completion was heard.
    pub done: Instant,
    /// The vCPU that heard of it.
    pub heard_on: VcpuId,
}

/// The thread that makes a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Means {
    /// The vCPU on which the task is, while it still runs.
    Push,
    /// The vCPU to which it goes: the source has gone.
    Pull,
}

/// An action for the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The task goes to a vCPU.
    Move {
        /// The task to move.
        task: TaskId,
        /// The vCPU to which it goes.
        to: VcpuId,
        /// And may run on these from then on: never empty, `to` is one, all are allowed.
        within: VcpuSet,
        /// Which of the two vCPUs carries the move out.
        by: Means,
    },
    /// The task may run again on all CPUs that its owner allows.
    Release {
        /// The task whose own affinity is restored.
        task: TaskId,
    },
}

impl Action {
    /// The task that it is about.
    pub fn task(&self) -> TaskId {
        match *self {
            Action::Move { task, .. } | Action::Release { task } => task,
        }
    }
}

/// Result of an action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The action was carried out as asked.
    Done,
    /// The action is impossible: the task has ended, or may not be moved.
    Refused,
    /// The agent was busy; the action may be asked for again.
    Dropped,
}

/// A vCPU as a policy sees it, for `status` and reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VcpuView {
    /// The vCPU's number in the guest.
    pub vcpu: VcpuId,
    /// False while the host has it taken away; an idle vCPU is active.
    pub active: bool,
    /// The slice that it is expected to have, once one was seen.
    pub slice: Option<Nanos>,
    /// Expected remainder of its slice; none while it is away.
    pub remaining: Option<Nanos>,
    /// Number of slices whose length was learned.
    pub slices: u64,
    /// Time for which it was taken away, as far as is known.
    pub away: Nanos,
}

/// The edges of a vCPU that a policy has to hear of at once, with an exact detector. The others
/// wait for its next turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Urgent {
    /// The host takes the vCPU away.
    pub loss: bool,
    /// The host gives it back.
    pub back: bool,
}

impl Urgent {
    /// Every edge at once.
    pub const ALL: Urgent = Urgent { loss: true, back: true };
}

/// A policy for the vCPUs of one guest.
pub trait VcpuPolicy: Send {
    /// Sets the guest's vCPUs. Called first of all, and when one goes on or off line; the state of
    /// the others stays.
    fn attach(&mut self, _now: Instant, _online: &VcpuSet) {}

    /// A sign of a vCPU, made at `at`. Those of one vCPU come in order; those of
    /// several may come late by some microseconds, and `at` then lies before the time of
    /// an earlier call.
    fn heard(&mut self, _at: Instant, _vcpu: VcpuId, _sign: Sign) {}

    /// Reports the agent's use of the guest's vCPUs from its start on; called before a window,
    /// where it is known.
    fn spent(&mut self, _now: Instant, _used: Nanos) {}

    /// Reports the tasks that did I/O in the window that ends at `now`, in ascending order, each
    /// once. All other tasks did none.
    fn window(&mut self, _now: Instant, _loads: &[TaskLoad]) {}

    /// The action on this task has come to its end.
    fn moved(&mut self, _now: Instant, _task: TaskId, _outcome: Outcome) {}

    /// Returns the next action, or `None`. No task has two actions under way.
    fn next(&mut self, _now: Instant) -> Option<Action> {
        None
    }

    /// The time of the next decision, if no news comes before.
    fn next_wake(&self) -> Option<Instant> {
        None
    }

    /// The vCPU whose monitor had best decide then, because the decision concerns a task there.
    fn wakes_on(&self) -> Option<VcpuId> {
        None
    }

    /// The edges of this vCPU that the policy has to hear of at once. Called with an exact detector
    /// only; a wake-up for each edge costs more than most edges tell.
    fn urgent(&self, _vcpu: VcpuId) -> Urgent {
        Urgent::ALL
    }

    /// The time of the next beat of this vCPU's monitor; `None`: not before other news. Not called
    /// with an exact detector.
    fn beat_at(&self, _vcpu: VcpuId) -> Option<Instant> {
        None
    }

    /// Length of the windows of tasks' loads; `None`: no windows for now, and the next one covers
    /// the time from the last one on. 5 ms in the paper.
    fn windows(&self) -> Option<Nanos> {
        None
    }

    /// The slice that the host's scheduler gives this guest's vCPUs instead of its own:
    /// for policies that are the host's (vSlicer).
    fn slice(&self, whole: Nanos) -> Nanos {
        whole
    }

    /// The time until which the vCPU idles although a compute task could run, because none of its
    /// I/O tasks can. An I/O task that wakes ends the idling. `waited` is the vCPU's steal time:
    /// its wait for a processor from the guest's start on. For policies inside the guest's kernel
    /// (xBalloon).
    fn idles(&mut self, _now: Instant, _vcpu: VcpuId, _waited: Nanos) -> Option<Instant> {
        None
    }

    /// The vCPUs as this policy sees them, in ascending order; empty if it does not look.
    fn vcpus(&self, _now: Instant) -> Vec<VcpuView> {
        Vec::new()
    }

    /// Reports figures that only this policy knows, by name.
    fn metrics(&self, _sink: &mut dyn FnMut(&'static str, f64)) {}
}
