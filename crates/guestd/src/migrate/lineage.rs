//! What has been started by tasks that were moved: a new process or thread has the mask
//! that the one that started it had just then. If that mask was set here, it is not the
//! child's own, and it is given the one of the parent's owner.

use super::BootTime;
use super::given::Given;
use crate::system::System;
use seekway_policy::vcpu::VcpuSet;
use std::io;

/// Of start times in `/proc`: USER_HZ is 100 on every Linux.
const TICK_NS: u64 = 10_000_000;
/// Threads start others while this goes on.
const ROUNDS_MAX: usize = 5;

/// A task that may have been a parent while a mask was set on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ancestor {
    /// Its process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// When it started, in ticks after boot.
    pub start: u64,
    /// What its owner set.
    pub original: VcpuSet,
    /// What was set here.
    pub given: Given,
}

/// A thread that is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child {
    /// Its process.
    pub pid: i32,
    /// The process that started that.
    pub parent: i32,
    /// The thread.
    pub tid: i32,
    /// It was started no earlier than this,
    pub from: BootTime,
    /// and no later.
    pub to: BootTime,
}

impl Child {
    /// As `/proc` tells it.
    pub fn new(pid: i32, parent: i32, tid: i32, start: u64) -> Child {
        let from = start.saturating_mul(TICK_NS);
        Child { pid, parent, tid, from: BootTime(from), to: BootTime(from + TICK_NS) }
    }
}

/// Has this child, which shows that mask, got it from this thread? A process is started by
/// one of its parent's threads, and a thread by another of its process.
pub fn gave(
    (pid, tid): (i32, i32),
    (original, given): (&VcpuSet, &Given),
    (child, shown): (&Child, &VcpuSet),
) -> bool {
    let is_process = child.tid == child.pid;
    let is_parent =
        if is_process { pid == child.parent } else { pid == child.pid && tid != child.tid };
    is_parent && shown != original && given.stood(shown, child.from, child.to)
}

impl Ancestor {
    /// Has this child its mask from here?
    pub fn gave(&self, child: &Child, shown: &VcpuSet) -> bool {
        gave((self.pid, self.tid), (&self.original, &self.given), (child, shown))
    }
}

impl Child {
    /// It has this mask of one whose owner set `original`, and may have heirs too.
    pub fn inherits(&self, start: u64, original: VcpuSet, shown: VcpuSet) -> Ancestor {
        let mut given = Given::default();
        given.push(self.from, shown);
        Ancestor { pid: self.pid, tid: self.tid, start, original, given }
    }
}

/// Look at all threads for heirs of the `family`, and give them back what its owners set; how
/// many there were, or `None` if they were not all found.
///
/// # Errors
/// Processes cannot be listed.
pub fn put_heirs_back(
    system: &impl System,
    family: &mut Vec<Ancestor>,
) -> io::Result<Option<usize>> {
    let mut found = 0;
    for _ in 0..ROUNDS_MAX {
        let before = found;
        for pid in system.processes()? {
            found += look_at(system, pid, family);
        }
        if found == before {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn look_at(system: &impl System, pid: i32, family: &mut Vec<Ancestor>) -> usize {
    let Some(parent) = system.stat(pid).map(|stat| stat.parent) else { return 0 };
    if !family.iter().any(|a| a.pid == pid || a.pid == parent) {
        return 0;
    }
    let mut found = 0;
    for tid in system.threads(pid) {
        let (Some(stat), Ok(shown)) = (system.stat(tid), system.affinity(tid)) else { continue };
        let child = Child::new(pid, parent, tid, stat.start);
        let is_known = family.iter().any(|a| (a.tid, a.start) == (tid, stat.start));
        let from = family.iter().find(|a| a.gave(&child, &shown)).filter(|_| !is_known);
        let Some(original) = from.map(|a| a.original) else { continue };
        let heir = child.inherits(stat.start, original, shown);
        // Who has gone meanwhile may have started others before.
        if system.set_affinity(tid, &heir.original).is_ok() {
            found += 1;
        }
        family.push(heir);
    }
    found
}
