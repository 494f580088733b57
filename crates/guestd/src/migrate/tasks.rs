//! The tasks that did I/O, their masks, and the changes of masks. A mask that another program sets
//! becomes the original. Each change is written to the state file before it is made.
//!
//! Workers may wait for the table's lock and for system calls; monitors wait for neither. No
//! thread holds the lock during a change of a mask, which may take as long as a vCPU is away.
//! The first thread, which any thread of the guest may preempt, makes no system call under it.

mod changes;
#[cfg(test)]
mod tests;

use super::inheritance::Child;
use super::loads::ThreadLoad;
use super::mask_history::MaskHistory;
use super::preemption::Waker;
use super::records::{Place, Record, Records};
use super::{BootTime, waited_for};
use crate::connector::ProcessEvent;
use crate::migrate::inheritance::{TICK_NS, look_at, restore_inherited};
use crate::system::{System, Watched};
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{Affinity, TaskId, TaskLoad, VcpuId, VcpuSet};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};

/// The most tasks in the table. Each has an open file.
const TASKS_MAX: usize = 256;

/// The most tasks that one window adds: each takes some system calls.
const NEW_MAX: usize = 4;

/// The most ended tasks and descendants that are remembered, because they may have started
/// others.
const ANCESTORS_MAX: usize = 256;

/// As above, if the table is full.
const ROOM_AFTER: Nanos = Nanos::from_millis(100);

/// Time without I/O after which a task that has its owner's mask is forgotten.
const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(10);

/// The most loads that are carried over to the next window.
const MISSED_MAX: usize = 4 * TASKS_MAX;

/// A task that did I/O.
#[derive(Debug)]
struct Task {
    record: Record,
    comm: Arc<str>,
    watched: Arc<Watched>,
    /// Its line in the state file.
    place: Option<Place>,
    /// An action is under way.
    busy: bool,
    /// A move to this vCPU while the task slept: its mask becomes these once it was seen there.
    then: Option<(VcpuId, VcpuSet)>,
    /// Why it is not to be moved.
    left_alone: Option<&'static str>,
    moves: u64,
    /// The last window in which it did I/O, when it ended, and where it ran.
    load: TaskLoad,
    seen: Instant,
    /// The length of that window.
    window: Nanos,
}

#[derive(Debug)]
pub struct Tasks<S> {
    system: S,
    table: Mutex<Table>,
    /// Loads that monitors saw while another thread had the table, and in how long.
    missed: Mutex<(Vec<ThreadLoad>, Nanos)>,
    /// Moved tasks may have started others.
    moved: AtomicBool,
    /// Wakes the first thread at the first change of a mask: it follows tasks' children.
    stirred: Waker,
}

#[derive(Debug)]
struct Table {
    tasks: BTreeMap<i32, Task>,
    online: VcpuSet,
    records: Records,
    /// Number of moves.
    moves: u64,
    /// Descendants that were given their owner's mask, and tasks that have ended.
    ancestors: VecDeque<Record>,
    /// Why the state file could not be written.
    unwritten: Option<io::Error>,
}

/// A task as `status` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskView {
    pub tid: i32,
    pub pid: i32,
    pub comm: Arc<str>,
    /// Where it ran last.
    pub vcpu: VcpuId,
    pub original: VcpuSet,
    /// Time of its last window in which it waited for I/O, and the window.
    pub waited: (Nanos, Nanos),
    /// When that window ended, of CLOCK_MONOTONIC.
    pub seen: Instant,
    /// Number of moves.
    pub moves: u64,
    /// Its mask is one of ours.
    pub confined: bool,
    /// Why it is not moved.
    pub left_alone: Option<&'static str>,
}

impl<S: System> Tasks<S> {
    /// No task is known yet.
    pub fn new(system: S, records: Records, online: VcpuSet, stirred: Waker) -> Tasks<S> {
        let (tasks, moves, ancestors) = Default::default();
        let table = Table { tasks, online, records, moves, ancestors, unwritten: None };
        let (missed, moved) = Default::default();
        Tasks { system, table: Mutex::new(table), missed, moved, stirred }
    }

    /// Wakes the agent's first thread.
    pub fn stir(&self) {
        self.stirred.wake();
    }

    /// vCPUs have come or gone.
    pub fn set_online(&self, online: VcpuSet) {
        let mut table = self.table();
        let before = std::mem::replace(&mut table.online, online);
        for vcpu in before.iter().filter(|vcpu| !online.contains(*vcpu)) {
            table.tasks.values_mut().for_each(|task| task.record.affinity.went_offline(vcpu));
        }
    }

    /// Appends to `tasks` those of `loads` that may be moved, each with the mask of its owner.
    /// Does not wait: returns false when another thread has the table; then the next call
    /// covers both windows.
    pub fn admit(
        &self,
        loads: &[ThreadLoad],
        (now, window): (Instant, Nanos),
        tasks: &mut Vec<TaskLoad>,
    ) -> bool {
        // One monitor at a time sees loads.
        let mut missed = waited_for(&self.missed);
        let (loads, window) = match missed.0.is_empty() {
            true => (loads.to_vec(), window),
            false => (together(std::mem::take(&mut missed.0), loads), missed.1 + window),
        };
        let Ok(mut table) = self.table.try_lock() else {
            *missed = (loads, window);
            return false;
        };
        let mut met = 0;
        for load in &loads {
            if !table.tasks.contains_key(&load.tid) {
                met += 1;
                if met > NEW_MAX || !self.meet(&mut table, load, now) {
                    continue;
                }
            }
            tasks.extend(self.look(&mut table, load, (now, window)));
        }
        true
    }

    /// Forgets tasks that have ended or are long idle, once a second. The caller looks for
    /// their descendants before.
    pub fn tidy(&self, now: Instant) {
        let known: Vec<Arc<Watched>> = {
            let table = self.table();
            table.tasks.values().map(|task| task.watched.clone()).collect()
        };
        let dead = known.into_iter().filter(|watched| !self.system.lives(watched));
        let dead: Vec<Arc<Watched>> = dead.collect();
        let mut table = self.table();
        let is_dead = |task: &Task| dead.iter().any(|dead| Arc::ptr_eq(dead, &task.watched));
        let idle = |task: &Task| {
            now.since(task.seen) > FORGOTTEN_AFTER && task.record.affinity.is_original()
        };
        let tids = table.tasks.iter().filter(|(_, task)| !task.busy);
        let tids = tids.filter(|(_, task)| is_dead(task) || idle(task)).map(|(tid, _)| *tid);
        let tids: Vec<i32> = tids.collect();
        tids.into_iter().for_each(|tid| table.forget(tid));
        let moved = table.forget_masks();
        self.moved.store(moved, SeqCst);
    }

    /// Is this task on that vCPU, as far as is known? False if another thread has the table.
    pub fn is_on(&self, task: TaskId, vcpu: VcpuId) -> bool {
        let Ok(table) = self.table.try_lock() else { return false };
        let tid = i32::try_from(task.0).ok();
        tid.and_then(|tid| table.tasks.get(&tid)).is_some_and(|task| task.load.vcpu == vcpu)
    }

    /// The number of moves made.
    pub fn moves(&self) -> u64 {
        self.table().moves
    }

    /// All tasks, for `status`.
    pub fn view(&self) -> Vec<TaskView> {
        let table = self.table();
        let view = |(&tid, task): (&i32, &Task)| TaskView {
            tid,
            pid: task.record.pid,
            comm: task.comm.clone(),
            vcpu: task.load.vcpu,
            original: *task.record.affinity.original(),
            waited: (task.load.waited, task.window),
            seen: task.seen,
            moves: task.moves,
            confined: !task.record.affinity.is_original(),
            left_alone: task.left_alone,
        };
        table.tasks.iter().map(view).collect()
    }

    /// Why the state file could not be written; reported once.
    pub fn take_error(&self) -> Option<io::Error> {
        self.table().unwritten.take()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        waited_for(&self.table)
    }

    /// Adds a task to the table. Returns false if it is not to be known.
    fn meet(&self, table: &mut Table, load: &ThreadLoad, now: Instant) -> bool {
        if table.tasks.len() >= TASKS_MAX && !table.make_room(now) {
            return false;
        }
        let tid = load.tid;
        let Some(watched) = self.system.watch(tid) else { return false };
        let (Some(stat), Some(mut mask)) = (self.system.stat(tid), self.system.whole_affinity(tid))
        else {
            return false;
        };
        let child = Child::new(load.pid, stat.parent, tid, stat.start);
        if let Some(original) = table.original_of(&child, &mask) {
            let Some(descendant) = self.give_back(&child, stat.start, (original, mask)) else {
                return false;
            };
            mask = original;
            table.remember(descendant);
        }
        let (affinity, history) = (Affinity::new(mask), MaskHistory::default());
        let task = Task {
            record: Record { pid: load.pid, tid, start: watched.start, affinity, history },
            comm: stat.comm.into(),
            watched: Arc::new(watched),
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
                last: None,
            },
            seen: now,
            window: Nanos::ZERO,
        };
        table.tasks.insert(tid, task);
        true
    }

    /// Reads a task's mask; returns the task's entry for the policy.
    fn look(
        &self,
        table: &mut Table,
        load: &ThreadLoad,
        (now, window): (Instant, Nanos),
    ) -> Option<TaskLoad> {
        let online = table.online;
        let task = table.tasks.get_mut(&load.tid)?;
        let (waited, ran, ios, io_time) = (load.waited, load.ran, load.ios, load.io_time);
        (task.seen, task.window) = (now, window);
        let (vcpu, last) = (load.vcpu, load.last);
        task.load = TaskLoad { vcpu, waited, ran, ios, io_time, last, ..task.load };
        if task.left_alone.is_some() {
            return None;
        }
        if !task.busy {
            task.look_and_let_run(&self.system, &online, load.vcpu).ok()?;
        }
        task.load.allowed = *task.record.affinity.original();
        // Pinned to one vCPU by its owner, or with a deadline.
        let stays = task.load.allowed.and(&online).len() < 2
            || self.system.has_deadline(load.tid).unwrap_or(true);
        (!stays).then_some(task.load)
    }
}

impl Table {
    /// Forgets the task that did no I/O for longest and has its owner's mask.
    fn make_room(&mut self, now: Instant) -> bool {
        let idle = |task: &Task| now.since(task.seen) > ROOM_AFTER;
        let free = self.tasks.iter().filter(|(_, task)| !task.busy && idle(task));
        let free = free.filter(|(_, task)| task.record.affinity.is_original());
        let oldest = free.min_by_key(|(_, task)| task.seen).map(|(tid, _)| *tid);
        oldest.map(|tid| self.forget(tid)).is_some()
    }

    fn forget(&mut self, tid: i32) {
        let Some(Task { mut record, place, .. }) = self.tasks.remove(&tid) else { return };
        record.history.settle(BootTime::now(), record.affinity.original());
        self.remember(record);
        if let Some(place) = place {
            self.records.erase(place);
        }
    }
}

/// The loads of two windows as those of one.
fn together(mut missed: Vec<ThreadLoad>, loads: &[ThreadLoad]) -> Vec<ThreadLoad> {
    for load in loads {
        match missed.iter().position(|before| before.tid == load.tid) {
            Some(n) => missed[n].add(load),
            None if missed.len() < MISSED_MAX => missed.push(load.clone()),
            None => {}
        }
    }
    missed
}

// Processes and threads that a moved task starts inherit its mask. They are given their
// owner's mask again.

impl<S: System> Tasks<S> {
    /// May moved tasks have started others?
    pub fn has_moved(&self) -> bool {
        self.moved.load(SeqCst)
    }

    /// Puts all masks back; nobody changes any meanwhile. Returns the number of tasks, and of
    /// descendants: `None` if tasks start others faster than these can be found.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn put_all_back(&self) -> io::Result<(usize, Option<usize>)> {
        let tids: Vec<i32> = self.table().tasks.keys().copied().collect();
        // Tasks that have ended, or cannot be changed, stay in the record for the restore.
        let changed = tids.into_iter().filter(|&tid| self.puts_back(tid)).count();
        self.look_for_inherited_masks().map(|descendants| (changed, descendants))
    }

    /// The kernel tells of these. Who was started and has a mask of ours is given its owner's.
    pub fn follow(&self, told: &[ProcessEvent]) {
        let own = std::process::id().cast_signed();
        for told in told {
            match told {
                ProcessEvent::Forked(fork) if fork.pid != own => {
                    self.look_near((fork.pid, fork.parent), Some(fork.tid));
                }
                // If that was not its first thread, the thread now has that number, and its own
                // mask.
                ProcessEvent::Runs(pid) => self.look_near((*pid, *pid), None),
                ProcessEvent::Forked(_) => {}
            }
        }
    }

    /// Looks at this thread of a process, or at all, if the process or its parent was moved.
    fn look_near(&self, (pid, parent): (i32, i32), tid: Option<i32>) {
        let near = |a: &&Record| a.pid == pid || a.pid == parent;
        let mut ancestors: Vec<Record> = self.table().known().filter(near).cloned().collect();
        if ancestors.iter().all(|a| a.history.is_empty()) {
            return;
        }
        let known = ancestors.len();
        let tids = tid.map_or_else(|| self.system.threads(pid), |tid| vec![tid]);
        look_at(&self.system, (pid, parent), &tids, &mut ancestors, &[]);
        // A task that ended before the search saw it may have started others.
        for tid in tids.into_iter().filter(|tid| self.system.stat(*tid).is_none()) {
            let now = BootTime::now();
            let child = Child::new(pid, parent, tid, now.0 / TICK_NS);
            let descendant = ancestors.iter().find_map(|a| a.through(&child, now));
            ancestors.extend(descendant);
        }
        let mut table = self.table();
        ancestors.drain(known..).for_each(|descendant| table.remember(descendant));
    }

    /// Look at all threads that there are: how many had a mask of ours and are free now;
    /// `None` as in [`Tasks::put_all_back`].
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn look_for_inherited_masks(&self) -> io::Result<Option<usize>> {
        let had_ours = |a: &&Record| !a.history.is_empty();
        let mut ancestors: Vec<Record> = self.table().known().filter(had_ours).cloned().collect();
        if ancestors.is_empty() {
            return Ok(Some(0));
        }
        let known = ancestors.len();
        let found = restore_inherited(&self.system, &mut ancestors);
        let mut table = self.table();
        ancestors.drain(known..).for_each(|descendant| table.remember(descendant));
        found
    }

    /// Widens the task's mask, which waits for no vCPU. `None` if that is impossible.
    fn give_back(
        &self,
        child: &Child,
        start: u64,
        (original, shown): (VcpuSet, VcpuSet),
    ) -> Option<Record> {
        let mut descendant = child.inherits(start, original, shown);
        self.system.set_affinity(child.tid, &original).ok()?;
        descendant.history.settle(BootTime::now(), &original);
        Some(descendant)
    }
}

impl Table {
    /// The tasks, and all others that may have started some.
    fn known(&self) -> impl Iterator<Item = &Record> {
        self.tasks.values().map(|task| &task.record).chain(&self.ancestors)
    }

    /// The mask that the parent's owner has set, if this child has one of our masks from there.
    fn original_of(&self, child: &Child, shown: &VcpuSet) -> Option<VcpuSet> {
        self.known().find(|a| a.gave(child, shown)).map(|a| *a.affinity.original())
    }

    fn remember(&mut self, ancestor: Record) {
        if ancestor.history.is_empty() {
            return;
        }
        if self.ancestors.len() == ANCESTORS_MAX {
            self.ancestors.pop_front();
        }
        self.ancestors.push_back(ancestor);
    }

    /// Masks that stood long ago; false if there are no others.
    fn forget_masks(&mut self) -> bool {
        let now = BootTime::now().0;
        let before = BootTime(now.saturating_sub(FORGOTTEN_AFTER.get()));
        let tasks = self.tasks.values_mut().map(|task| &mut task.record.history);
        let ancestors = self.ancestors.iter_mut().map(|ancestor| &mut ancestor.history);
        tasks.chain(ancestors).for_each(|history| history.forget_before(before));
        self.ancestors.retain(|ancestor| !ancestor.history.is_empty());
        !self.ancestors.is_empty()
            || self.tasks.values().any(|task| !task.record.history.is_empty())
    }
}
