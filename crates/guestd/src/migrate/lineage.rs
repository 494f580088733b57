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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::fake::Fake;

    fn set(text: &str) -> VcpuSet {
        text.parse().unwrap()
    }

    /// Process 10 has had mask 1-2 from the second tick on.
    fn ancestor(fake: &Fake) -> Ancestor {
        fake.start(10, 1, "parent");
        let start = fake.stat(10).unwrap().start;
        let mut given = Given::default();
        given.push(BootTime((start + 1) * TICK_NS), set("1-2"));
        fake.taskset(10, set("1-2"));
        Ancestor { pid: 10, tid: 10, start, original: set("0-3"), given }
    }

    #[test]
    fn children_threads_and_theirs_are_given_back_and_others_are_not() {
        let fake = Fake::default();
        let mut family = vec![ancestor(&fake)];
        fake.start(9, 10, "child, of a lower number");
        fake.start(8, 9, "grandchild");
        fake.thread(10, 100);
        fake.start(20, 1, "stranger with the same mask");
        fake.taskset(20, set("1-2"));
        fake.start(21, 10, "child with a mask of its own");
        fake.taskset(21, set("1"));
        assert_eq!(put_heirs_back(&fake, &mut family).unwrap(), Some(3));
        let mask = |tid| fake.whole_affinity(tid).unwrap();
        assert_eq!([9, 8, 100].map(mask), [set("0-3"); 3]);
        assert_eq!([10, 20, 21].map(mask), [set("1-2"), set("1-2"), set("1")]);
    }

    #[test]
    fn who_was_started_before_the_mask_was_set_has_chosen_it() {
        let fake = Fake::default();
        let mut family = vec![ancestor(&fake)];
        family[0].given = "99999999999@1-2".parse().unwrap();
        fake.start(11, 10, "child");
        assert_eq!(put_heirs_back(&fake, &mut family).unwrap(), Some(0));
        assert_eq!(fake.whole_affinity(11).unwrap(), set("1-2"));
    }
}
