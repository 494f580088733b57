//! The agent's messages, one line each, as text or JSON.

use seekway_core::ioprio;
use serde::Serialize;
use std::fmt;

/// Something happened. JSON keys stay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Tags are given from now on.
    Started {
        /// Encoding of tags: `hints`.
        encoding: &'static str,
        /// Number of tags.
        tags: usize,
        /// The kernel tells of new processes.
        connector: bool,
    },
    /// A process has a tag of its own.
    Tagged {
        pid: i32,
        comm: String,
        tag: u16,
        /// Threads that were given it now.
        threads: usize,
        /// Other processes have the same: there are no more.
        shared: bool,
    },
    /// A process has ended and its tag rests.
    Ended { pid: i32, tag: u16 },
    /// A thread has a priority that another program set: it is left alone.
    Foreign {
        pid: i32,
        comm: String,
        tid: i32,
        /// Its priority, as ionice(1) shows it.
        priority: String,
    },
    /// Another program has changed a priority after this agent: it is left alone.
    Overwritten { pid: i32, comm: String, tid: i32, priority: String },
    /// The kernel did not let a process be tagged.
    Refused { pid: i32, comm: String, error: String },
    /// A control group's `io.prio.class` replaces tags on their way to the disk.
    Group {
        /// Its path below /sys/fs/cgroup.
        group: String,
        class: String,
    },
    /// Another message for the user.
    Warning { message: String },
    /// Tasks are moved from now on.
    Migrates {
        policy: String,
        /// Detector of preemption.
        preemption: String,
        /// Detector of waiting for I/O.
        loads: String,
        /// Better detectors, and why they do not work in this guest.
        passed_over: Vec<String>,
        /// The kernel tells of new processes.
        connector: bool,
    },
    /// Affinities have been put back.
    PutBack {
        /// Tasks that had been moved.
        tasks: usize,
        /// Processes and threads that they had started and that had inherited such a mask.
        #[serde(rename = "heirs")]
        inherited: usize,
        /// Tasks that could not be changed.
        failed: usize,
    },
    /// Priorities have been put back.
    Restored {
        /// Threads that had been given a tag.
        threads: usize,
        /// Threads that had inherited one.
        #[serde(rename = "heirs")]
        inherited: usize,
        /// Threads whose priority another program has changed: left alone.
        changed: usize,
        /// Threads that could not be changed.
        failed: usize,
    },
}

impl Event {
    /// To be said without being asked.
    pub fn is_warning(&self) -> bool {
        match self {
            Event::Group { .. } | Event::Warning { .. } | Event::Refused { .. } => true,
            Event::Restored { failed, .. } | Event::PutBack { failed, .. } => *failed > 0,
            _ => false,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Started { encoding, tags, connector } => {
                let how = if *connector { "process events" } else { "polling" };
                write!(f, "{tags} tags as {encoding}; new processes by {how}")
            }
            Event::Tagged { pid, comm, tag, threads, shared } => {
                let shared = if *shared { ", shared" } else { "" };
                write!(f, "tag {tag}: {pid} ({comm}), {threads} threads{shared}")
            }
            Event::Ended { pid, tag } => write!(f, "tag {tag}: {pid} has ended"),
            Event::Foreign { pid, comm, tid, priority } => {
                write!(f, "{pid} ({comm}), thread {tid}: has {priority}, left alone")
            }
            Event::Overwritten { pid, comm, tid, priority } => {
                write!(f, "{pid} ({comm}), thread {tid}: was given {priority}, left alone")
            }
            Event::Refused { pid, comm, error } => {
                write!(f, "{pid} ({comm}) cannot be tagged: {error}; run as root (CAP_SYS_NICE)")
            }
            Event::Group { group, class } => write!(
                f,
                "/sys/fs/cgroup{group}/io.prio.class is {class}, which replaces tags: write \
                 no-change there if requests of its processes are to be told apart"
            ),
            Event::Warning { message } => f.write_str(message),
            Event::Migrates { policy, preemption, loads, passed_over, connector } => {
                let how = if *connector { "process events" } else { "polling" };
                write!(f, "policy {policy}; preemption by {preemption}, loads by {loads}, ")?;
                write!(f, "new tasks by {how}")?;
                passed_over.iter().try_for_each(|why| write!(f, "; not by {why}"))
            }
            Event::PutBack { tasks, inherited, failed } => write!(
                f,
                "affinities put back: {tasks} tasks and {inherited} that had inherited; \
                 {failed} failed"
            ),
            Event::Restored { threads, inherited, changed, failed } => write!(
                f,
                "priorities put back: {threads} threads and {inherited} that had inherited; \
                 {changed} changed by others since, {failed} failed"
            ),
        }
    }
}

/// A priority as ionice(1) shows it.
pub fn shown(priority: u16) -> String {
    let class = match ioprio::class(priority) {
        0 => "none",
        1 => "realtime",
        2 => "best-effort",
        3 => "idle",
        _ => "unknown class",
    };
    let (hint, level) = (priority >> 3 & ioprio::HINT_MAX, priority & 7);
    let hint = if hint > 0 { format!(", hint {hint}") } else { String::new() };
    format!("{class}, prio {level}{hint}")
}
