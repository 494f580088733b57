//! Which masks were inherited from moved tasks. A new process or thread has the mask that its
//! parent had just then. If the agent had set that mask, it is not the child's own, and the
//! child is given the mask of the parent's owner.

use super::BootTime;
use super::mask_history::{LEAST_ASKED_NS, MaskHistory};
use super::records::Record;
use crate::system::System;
use seekway_vcpu::{Affinity, VcpuSet};
use std::io;

/// Of start times in `/proc`: USER_HZ is 100 on every Linux.
pub const TICK_NS: u64 = 10_000_000;
/// A fork copies the mask first and takes the time last. Between them it copies the page
/// tables of a process, some 20 ms for each GiB,
const PROCESS_FORK_NS: u64 = 1_000_000_000;
/// and its vCPU may be away.
const THREAD_FORK_NS: u64 = LEAST_ASKED_NS;
/// Delay of the look at a process that runs another program.
const LATE_NS: u64 = 1_000_000_000;
/// An orphan that is older was looked at before, or its mask is its own.
const ORPHAN_NS: u64 = 10_000_000_000;
/// Threads start others while this goes on.
const ROUNDS_MAX: usize = 5;

/// A thread that is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child {
    pub pid: i32,
    /// The process that started that.
    pub parent: i32,
    pub tid: i32,
    /// Its mask was copied no earlier than this,
    pub from: BootTime,
    /// and no later than this.
    pub to: BootTime,
}

impl Child {
    /// `start`: in ticks after boot, as `/proc` tells it.
    pub fn new(pid: i32, parent: i32, tid: i32, start: u64) -> Child {
        let at = start.saturating_mul(TICK_NS);
        let took = if tid == pid { PROCESS_FORK_NS } else { THREAD_FORK_NS };
        let (from, to) = (at.saturating_sub(took), at.saturating_add(TICK_NS));
        Child { pid, parent, tid, from: BootTime(from), to: BootTime(to) }
    }

    /// Is it of this process, or was that started by it? A process is started by one of its
    /// parent's threads, and a thread by another of its process.
    pub fn is_of(&self, (pid, tid): (i32, i32)) -> bool {
        match self.tid == self.pid {
            true => pid == self.parent,
            false => pid == self.pid && tid != self.tid,
        }
    }

    /// Records a task with this mask whose parent's owner set `original`; it may have descendants
    /// too.
    pub fn inherits(&self, start: u64, original: VcpuSet, shown: VcpuSet) -> Record {
        let mut history = MaskHistory::default();
        history.begin(self.from, shown);
        let affinity = Affinity::new(original);
        Record { pid: self.pid, tid: self.tid, start, affinity, history }
    }
}

/// A task that may have been a parent while a mask was set on it.
impl Record {
    /// Has this child, which shows that mask, got it from here?
    pub fn gave(&self, child: &Child, shown: &VcpuSet) -> bool {
        child.is_of((self.pid, self.tid)) && self.had(child, shown)
    }

    /// May this orphan, which shows that mask, have got it from here?
    fn left(&self, child: &Child, shown: &VcpuSet, now: BootTime) -> bool {
        let is_young = now.0.saturating_sub(child.to.0) < ORPHAN_NS;
        is_young && child.tid == child.pid && self.had(child, shown)
    }

    /// Had it that mask, not its own, when the child was started?
    fn had(&self, child: &Child, shown: &VcpuSet) -> bool {
        shown != self.affinity.original() && self.history.stood(shown, child.from, child.to)
    }

    /// Tells whether this task, which had another number, has replaced the ended first thread of
    /// its process to run another program, and still shows one of our masks.
    pub fn became_first(&self, shown: &VcpuSet, now: BootTime) -> bool {
        let from = BootTime(now.0.saturating_sub(LATE_NS));
        let is_ours = shown != self.affinity.original() && self.history.stood(shown, from, now);
        self.tid != self.pid && is_ours
    }

    /// Masks that a child which ended before it was looked at may have handed on.
    pub fn through(&self, child: &Child, now: BootTime) -> Option<Record> {
        let mut history = self.history.handed_on(child.from, child.to);
        history.settle(now, &VcpuSet::EMPTY);
        let affinity = self.affinity.clone();
        let descendant = Record { pid: child.pid, tid: child.tid, start: 0, affinity, history };
        Some(descendant).filter(|descendant| {
            child.is_of((self.pid, self.tid)) && !descendant.history.is_empty()
        })
    }
}

/// Looks at all threads for descendants of the `ancestors` that have an inherited mask, gives
/// them their owner's mask, and appends them to `ancestors`. Returns how many there were, or
/// `None` if they were not all found.
///
/// # Errors
/// Processes cannot be listed.
pub fn restore_inherited(
    system: &impl System,
    ancestors: &mut Vec<Record>,
) -> io::Result<Option<usize>> {
    let mut found = 0;
    for _ in 0..ROUNDS_MAX {
        let before = found;
        let pids = system.processes()?;
        // An orphan's parent is unknown: only its mask and its age tell.
        let gone = |a: &Record| pids.binary_search(&a.pid).is_err();
        let dead: Vec<Record> = ancestors.iter().filter(|a| gone(a)).cloned().collect();
        for &pid in &pids {
            let Some(parent) = system.stat(pid).map(|stat| stat.parent) else { continue };
            let near = ancestors.iter().any(|a| a.pid == pid || a.pid == parent);
            let tids = match (near, dead.is_empty()) {
                (true, _) => system.threads(pid),
                (false, false) => vec![pid],
                (false, true) => continue,
            };
            found += look_at(system, (pid, parent), &tids, ancestors, &dead);
        }
        if found == before {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// As [`restore_inherited`] for these threads of a process. `dead`: ancestors of orphans.
pub fn look_at(
    system: &impl System,
    (pid, parent): (i32, i32),
    tids: &[i32],
    ancestors: &mut Vec<Record>,
    dead: &[Record],
) -> usize {
    let mut found = 0;
    for &tid in tids {
        let (Some(stat), Ok(shown)) = (system.stat(tid), system.affinity(tid)) else { continue };
        let child = Child::new(pid, parent, tid, stat.start);
        let is_known = ancestors.iter().any(|a| (a.tid, a.start) == (tid, stat.start));
        let now = BootTime::now();
        let left_by = |a: &&Record| {
            a.pid == pid && tid == pid && !tids.contains(&a.tid) && a.became_first(&shown, now)
        };
        let started_by = |a: &&Record| !is_known && a.gave(&child, &shown);
        let orphan_of = |a: &&Record| !is_known && a.left(&child, &shown, now);
        let from = ancestors.iter().find(|a| left_by(a) || started_by(a));
        let Some(from) = from.or_else(|| dead.iter().find(orphan_of)) else { continue };
        let original = *from.affinity.original();
        let mut descendant = child.inherits(stat.start, original, shown);
        // A task that has ended meanwhile may have started others before.
        if system.set_affinity(tid, &original).is_ok() {
            found += 1;
            descendant.history.settle(BootTime::now(), &original);
        }
        ancestors.push(descendant);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::fake::Fake;

    fn set(text: &str) -> VcpuSet {
        text.parse().unwrap()
    }

    /// Process 10 has had mask 1-2 from the second tick on.
    fn ancestor(fake: &Fake) -> Record {
        fake.start(10, 1, "parent");
        let start = fake.stat(10).unwrap().start;
        let mut history = MaskHistory::default();
        history.begin(BootTime((start + 1) * TICK_NS), set("1-2"));
        fake.taskset(10, set("1-2"));
        Record { pid: 10, tid: 10, start, affinity: Affinity::new(set("0-3")), history }
    }

    #[test]
    fn children_threads_and_theirs_are_given_back_and_others_are_not() {
        let fake = Fake::default();
        let mut ancestors = vec![ancestor(&fake)];
        fake.start(9, 10, "child, of a lower number");
        fake.start(8, 9, "grandchild");
        fake.thread(10, 100);
        fake.start(20, 1, "stranger with the same mask");
        fake.taskset(20, set("1-2"));
        fake.start(21, 10, "child with a mask of its own");
        fake.taskset(21, set("1"));
        assert_eq!(restore_inherited(&fake, &mut ancestors).unwrap(), Some(3));
        let mask = |tid| fake.whole_affinity(tid).unwrap();
        assert_eq!([9, 8, 100].map(mask), [set("0-3"); 3]);
        assert_eq!([10, 20, 21].map(mask), [set("1-2"), set("1-2"), set("1")]);
    }

    #[test]
    fn who_was_started_before_the_mask_was_set_has_chosen_it() {
        let fake = Fake::default();
        let mut ancestors = vec![ancestor(&fake)];
        ancestors[0].history = "99999999999-@1-2".parse().unwrap();
        fake.start(11, 10, "child");
        assert_eq!(restore_inherited(&fake, &mut ancestors).unwrap(), Some(0));
        assert_eq!(fake.whole_affinity(11).unwrap(), set("1-2"));
    }
}
