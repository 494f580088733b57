//! Tasks whose affinity is ours to change, whose mask each has, and the changes
//! themselves. A mask that somebody else sets becomes the original; nothing is changed
//! that is not written down before.
//!
//! Workers may wait for the lock and for system calls; monitors wait for neither. The lock
//! is never held during a change of a mask, which may take as long as a vCPU is away; the
//! first thread, which everything else in the guest may preempt, makes no system call under it.

mod changes;
mod family;
#[cfg(test)]
mod tests;

use super::given::Given;
use super::lineage::{Ancestor, Child};
use super::preemption::Waker;
use super::records::{Place, Records};
use super::{BootTime, loads::ThreadLoad};
use crate::system::{System, Watched};
use seekway_policy::units::{Instant, Nanos};
use seekway_policy::vcpu::{Affinity, TaskId, TaskLoad, VcpuId, VcpuSet};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tasks that are known at a time. Each has an open file.
const TASKS_MAX: usize = 256;
/// New ones are met at a time: that takes some system calls for each.
const NEW_MAX: usize = 4;
/// Heirs and dead tasks that are remembered, because they may have heirs.
const FAMILY_MAX: usize = 256;
/// The same if there are too many.
const ROOM_AFTER: Nanos = Nanos::from_millis(100);
/// A task that did no I/O for so long and has its owner's mask is forgotten.
const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(10);
/// Tasks that are carried over to the next window.
const MISSED_MAX: usize = 4 * TASKS_MAX;

/// A task that did I/O.
#[derive(Debug)]
struct Task {
    pid: i32,
    comm: Arc<str>,
    watched: Arc<Watched>,
    affinity: Affinity,
    given: Given,
    /// Where it is written down.
    place: Option<Place>,
    /// An action is under way.
    busy: bool,
    /// It was moved while it slept: let it run on these when it was seen there.
    then: Option<(VcpuId, VcpuSet)>,
    /// Not to be moved: why.
    left_alone: Option<&'static str>,
    moves: u64,
    /// The last window in which it did I/O, when it ended, and where it ran.
    load: TaskLoad,
    seen: Instant,
    /// The length of that window.
    window: Nanos,
}

/// All of them.
#[derive(Debug)]
pub struct Book<S> {
    system: S,
    pages: Mutex<Pages>,
    /// What monitors saw while somebody else had the book, and in how long.
    missed: Mutex<(Vec<ThreadLoad>, Nanos)>,
    /// There may be heirs.
    moved: AtomicBool,
    /// Wakes who follows what tasks start, when the first one is changed.
    stirred: Waker,
}

#[derive(Debug)]
struct Pages {
    tasks: BTreeMap<i32, Task>,
    online: VcpuSet,
    records: Records,
    /// Made so far.
    moves: u64,
    /// Heirs that were given back what their parents' owners set, and tasks that have ended.
    family: VecDeque<Ancestor>,
    /// The file could not be written.
    unwritten: Option<io::Error>,
}

/// A task as `status` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskView {
    /// The thread.
    pub tid: i32,
    /// Its process.
    pub pid: i32,
    /// Its name.
    pub comm: Arc<str>,
    /// Where it ran last.
    pub vcpu: VcpuId,
    /// Its owner's mask.
    pub original: VcpuSet,
    /// Time of its last window in which it waited for I/O, and the window.
    pub waited: (Nanos, Nanos),
    /// When that was.
    pub seen: Instant,
    /// How often it was moved.
    pub moves: u64,
    /// Its mask is one of ours.
    pub confined: bool,
    /// Why it is not moved.
    pub left_alone: Option<&'static str>,
}

impl<S: System> Book<S> {
    /// Nobody is known yet.
    pub fn new(system: S, records: Records, online: VcpuSet, stirred: Waker) -> Book<S> {
        let (tasks, moves, family) = Default::default();
        let pages = Pages { tasks, online, records, moves, family, unwritten: None };
        let (missed, moved) = Default::default();
        Book { system, pages: Mutex::new(pages), missed, moved, stirred }
    }

    /// vCPUs have come or gone.
    pub fn set_online(&self, online: VcpuSet) {
        let mut pages = self.pages();
        let before = std::mem::replace(&mut pages.online, online);
        for vcpu in before.iter().filter(|vcpu| !online.contains(*vcpu)) {
            pages.tasks.values_mut().for_each(|task| task.affinity.went_offline(vcpu));
        }
    }

    /// Who of these may be moved, and where their owners let them run. Does not wait:
    /// false when somebody else has the book just now; then the next call tells of both.
    pub fn admit(
        &self,
        loads: &[ThreadLoad],
        (now, window): (Instant, Nanos),
        tasks: &mut Vec<TaskLoad>,
    ) -> bool {
        // One monitor at a time sees loads.
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        let (loads, window) = match missed.0.is_empty() {
            true => (loads.to_vec(), window),
            false => (together(std::mem::take(&mut missed.0), loads), missed.1 + window),
        };
        let Ok(mut pages) = self.pages.try_lock() else {
            *missed = (loads, window);
            return false;
        };
        let mut met = 0;
        for load in &loads {
            if !pages.tasks.contains_key(&load.tid) {
                met += 1;
                if met > NEW_MAX || !self.meet(&mut pages, load, now) {
                    continue;
                }
            }
            tasks.extend(self.look(&mut pages, load, (now, window)));
        }
        true
    }

    /// Once a second: who has gone is forgotten, and who needs no attention any more. Heirs
    /// are looked for before.
    pub fn tidy(&self, now: Instant) {
        let known: Vec<Arc<Watched>> = {
            let pages = self.pages();
            pages.tasks.values().map(|task| task.watched.clone()).collect()
        };
        let dead = known.into_iter().filter(|watched| !self.system.lives(watched));
        let dead: Vec<Arc<Watched>> = dead.collect();
        let mut pages = self.pages();
        let is_dead = |task: &Task| dead.iter().any(|dead| Arc::ptr_eq(dead, &task.watched));
        let idle =
            |task: &Task| now.since(task.seen) > FORGOTTEN_AFTER && task.affinity.is_original();
        let tids = pages.tasks.iter().filter(|(_, task)| !task.busy);
        let tids = tids.filter(|(_, task)| is_dead(task) || idle(task)).map(|(tid, _)| *tid);
        let tids: Vec<i32> = tids.collect();
        tids.into_iter().for_each(|tid| pages.forget(tid));
        let moved = pages.forget_masks();
        self.moved.store(moved, SeqCst);
    }

    /// How many moves were made.
    pub fn moves(&self) -> u64 {
        self.pages().moves
    }

    /// As they are now.
    pub fn view(&self) -> Vec<TaskView> {
        let pages = self.pages();
        let view = |(&tid, task): (&i32, &Task)| TaskView {
            tid,
            pid: task.pid,
            comm: task.comm.clone(),
            vcpu: task.load.vcpu,
            original: *task.affinity.original(),
            waited: (task.load.waited, task.window),
            seen: task.seen,
            moves: task.moves,
            confined: !task.affinity.is_original(),
            left_alone: task.left_alone,
        };
        pages.tasks.iter().map(view).collect()
    }

    /// Why the file could not be written, once.
    pub fn take_error(&self) -> Option<io::Error> {
        self.pages().unwritten.take()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is new here. False if it is not to be known.
    fn meet(&self, pages: &mut Pages, load: &ThreadLoad, now: Instant) -> bool {
        if pages.tasks.len() >= TASKS_MAX && !pages.make_room(now) {
            return false;
        }
        let tid = load.tid;
        let Some(watched) = self.system.watch(tid) else { return false };
        let (Some(stat), Some(mut mask)) = (self.system.stat(tid), self.system.whole_affinity(tid))
        else {
            return false;
        };
        let child = Child::new(load.pid, stat.parent, tid, stat.start);
        if let Some(original) = pages.original_of(&child, &mask) {
            let Some(heir) = self.give_back(&child, stat.start, (original, mask)) else {
                return false;
            };
            mask = heir.original;
            pages.remember(heir);
        }
        let task = Task {
            pid: load.pid,
            comm: stat.comm.into(),
            watched: Arc::new(watched),
            affinity: Affinity::new(mask),
            given: Given::default(),
            place: None,
            busy: false,
            then: None,
            left_alone: stat.kernel.then_some("a thread of the kernel"),
            moves: 0,
            load: TaskLoad {
                task: TaskId(tid.unsigned_abs().into()),
                vcpu: load.vcpu,
                allowed: mask,
                waited: Nanos::ZERO,
                ran: Nanos::ZERO,
                ios: 0,
                io_time: Nanos::ZERO,
            },
            seen: now,
            window: Nanos::ZERO,
        };
        pages.tasks.insert(tid, task);
        true
    }

    /// What its mask is now, and what the policy is to know of it.
    fn look(
        &self,
        pages: &mut Pages,
        load: &ThreadLoad,
        (now, window): (Instant, Nanos),
    ) -> Option<TaskLoad> {
        let online = pages.online;
        let task = pages.tasks.get_mut(&load.tid)?;
        let (waited, ran, ios, io_time) = (load.waited, load.ran, load.ios, load.io_time);
        (task.seen, task.window) = (now, window);
        task.load = TaskLoad { vcpu: load.vcpu, waited, ran, ios, io_time, ..task.load };
        if task.left_alone.is_some() {
            return None;
        }
        if !task.busy {
            task.look_and_let_run(&self.system, &online, load.vcpu).ok()?;
        }
        task.load.allowed = *task.affinity.original();
        // Pinned to one vCPU by its owner, or with a deadline.
        let stays = task.load.allowed.and(&online).len() < 2
            || self.system.has_deadline(load.tid).unwrap_or(true);
        (!stays).then_some(task.load)
    }
}

impl Pages {
    /// Forget the one that did no I/O for longest and whose mask is its owner's.
    fn make_room(&mut self, now: Instant) -> bool {
        let idle = |task: &Task| now.since(task.seen) > ROOM_AFTER;
        let free = self.tasks.iter().filter(|(_, task)| !task.busy && idle(task));
        let free = free.filter(|(_, task)| task.affinity.is_original());
        let oldest = free.min_by_key(|(_, task)| task.seen).map(|(tid, _)| *tid);
        oldest.map(|tid| self.forget(tid)).is_some()
    }

    fn forget(&mut self, tid: i32) {
        let Some(task) = self.tasks.remove(&tid) else { return };
        let mut ancestor = task.ancestor();
        ancestor.given.settle(BootTime::now(), &ancestor.original);
        self.remember(ancestor);
        if let Some(place) = task.place {
            self.records.erase(place);
        }
    }
}

/// Both windows of each task as one.
fn together(mut missed: Vec<ThreadLoad>, loads: &[ThreadLoad]) -> Vec<ThreadLoad> {
    for load in loads {
        match missed.iter().position(|before| before.tid == load.tid) {
            Some(n) => {
                let before = &mut missed[n];
                let [waited, ran] = [before.waited + load.waited, before.ran + load.ran];
                let (ios, io_time) =
                    (before.ios.saturating_add(load.ios), before.io_time + load.io_time);
                *before = ThreadLoad { waited, ran, ios, io_time, ..load.clone() };
            }
            None if missed.len() < MISSED_MAX => missed.push(load.clone()),
            None => {}
        }
    }
    missed
}
