//! Tasks whose affinity is ours to change, whose mask each has, and the changes
//! themselves. A mask that somebody else sets becomes the original; nothing is changed
//! that is not written down before.
//!
//! Workers may wait for the lock and for system calls; monitors wait for neither. The lock
//! is never held during a change of a mask, which may take as long as a vCPU is away.

#[cfg(test)]
mod tests;

use super::given::Given;
use super::lineage::{self, Ancestor, Child};
use super::preemption::Waker;
use super::records::{Place, Record, Records};
use super::{BootTime, loads::ThreadLoad};
use crate::system::{System, Watched};
use seekway_policy::units::{Instant, Nanos};
use seekway_policy::vcpu::{Action, Affinity, Outcome, TaskId, TaskLoad, VcpuId, VcpuSet};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tasks that are known at a time. Each has an open file.
const TASKS_MAX: usize = 256;
/// New ones are met at a time: that takes some system calls for each.
const NEW_MAX: usize = 4;
/// Heirs that are remembered, because they may have heirs.
const HEIRS_MAX: usize = 256;
/// The same if there are too many.
const ROOM_AFTER: Nanos = Nanos::from_millis(100);
/// A task that did no I/O for so long and has its owner's mask is forgotten.
const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(10);

/// A task that did I/O.
#[derive(Debug)]
struct Task {
    pid: i32,
    comm: String,
    watched: Watched,
    affinity: Affinity,
    given: Given,
    /// Where it is written down.
    place: Option<Place>,
    /// An action is under way.
    busy: bool,
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
    /// They were given back what their parents' owners set.
    heirs: VecDeque<Ancestor>,
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
    pub comm: String,
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
        let (tasks, moves, heirs) = Default::default();
        let pages = Pages { tasks, online, records, moves, heirs, unwritten: None };
        Book { system, pages: Mutex::new(pages), stirred }
    }

    /// vCPUs have come or gone.
    pub fn set_online(&self, online: VcpuSet) {
        self.pages().online = online;
    }

    /// Who of these may be moved, and where their owners let them run. Does not wait:
    /// false when somebody else has the book just now.
    pub fn admit(
        &self,
        loads: &[ThreadLoad],
        (now, window): (Instant, Nanos),
        tasks: &mut Vec<TaskLoad>,
    ) -> bool {
        let Ok(mut pages) = self.pages.try_lock() else { return false };
        let mut met = 0;
        for load in loads {
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

    /// Do it. Waits as long as the kernel does.
    pub fn carry_out(&self, action: &Action) -> Outcome {
        let TaskId(tid) = action.task();
        let Ok(tid) = i32::try_from(tid) else { return Outcome::Refused };
        let done = match action {
            Action::Move { to, within, .. } => self
                .change(tid, Some(&VcpuSet::only(*to)))
                .and_then(|()| self.change(tid, Some(within))),
            Action::Release { .. } => self.change(tid, None),
        };
        let mut pages = self.pages();
        let Some(task) = pages.tasks.get_mut(&tid) else { return Outcome::Refused };
        task.busy = false;
        match done {
            Ok(()) => {
                let moved = u64::from(matches!(action, Action::Move { .. }));
                task.moves += moved;
                pages.moves += moved;
                Outcome::Done
            }
            Err(e) => {
                if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) {
                    task.left_alone = Some("the kernel does not let it be moved");
                }
                Outcome::Refused
            }
        }
    }

    /// Once a second: who has gone is forgotten, and who needs no attention any more.
    pub fn tidy(&self, now: Instant) {
        let mut pages = self.pages();
        let forgotten = |task: &Task| {
            let idle = now.since(task.seen) > FORGOTTEN_AFTER;
            !self.system.lives(&task.watched) || (idle && task.affinity.is_original())
        };
        let tids = pages.tasks.iter().filter(|(_, task)| !task.busy && forgotten(task));
        let tids: Vec<i32> = tids.map(|(tid, _)| *tid).collect();
        tids.into_iter().for_each(|tid| pages.forget(tid));
    }

    /// All masks are their owners' again. Nobody changes any meanwhile. False if tasks
    /// start others faster than these can be found.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn put_all_back(&self) -> io::Result<bool> {
        let tids: Vec<i32> = self.pages().tasks.keys().copied().collect();
        for tid in tids {
            // Who has gone, or cannot be changed, stays written down for the restore.
            let _ = self.change(tid, None);
        }
        self.look_for_heirs()
    }

    /// May there be heirs?
    pub fn has_moved(&self) -> bool {
        self.pages().tasks.values().any(|task| !task.given.is_empty())
    }

    /// This was started just now. If its mask is one of ours, it is not its own.
    pub fn follow(&self, child: &Child) {
        let mut pages = self.pages();
        // Who is here was looked at when it came.
        if pages.tasks.contains_key(&child.tid) {
            return;
        }
        let Ok(shown) = self.system.affinity(child.tid) else { return };
        let Some(original) = pages.original_of(child, &shown) else { return };
        let Some(stat) = self.system.stat(child.tid) else { return };
        // It is let run on more: that does not wait for a vCPU.
        let _ = self.system.set_affinity(child.tid, &original);
        if pages.heirs.len() == HEIRS_MAX {
            pages.heirs.pop_front();
        }
        pages.heirs.push_back(child.inherits(stat.start, original, shown));
    }

    /// The same for all threads that there are: false as in [`Book::put_all_back`].
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn look_for_heirs(&self) -> io::Result<bool> {
        let mut family: Vec<Ancestor> = {
            let pages = self.pages();
            pages.tasks.values().map(Task::ancestor).chain(pages.heirs.iter().cloned()).collect()
        };
        if family.iter().all(|ancestor| ancestor.given.is_empty()) {
            return Ok(true);
        }
        lineage::put_heirs_back(&self.system, &mut family).map(|found| found.is_some())
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
        let (Some(stat), Some(mask)) = (self.system.stat(tid), self.system.whole_affinity(tid))
        else {
            return false;
        };
        let child = Child::new(load.pid, stat.parent, tid, stat.start);
        let (mut affinity, mut given) = (Affinity::new(mask), Given::default());
        if let Some(original) = pages.original_of(&child, &mask) {
            (affinity, given) = (
                Affinity::inherited(original, mask),
                child.inherits(stat.start, original, mask).given,
            );
        }
        let task = Task {
            pid: load.pid,
            comm: stat.comm,
            watched,
            affinity,
            given,
            place: None,
            busy: false,
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
            let shown = task.shown(&self.system, &online).ok()?;
            task.look(&self.system, (&shown, &online), |affinity, shown, online| {
                affinity.change(shown, online, shown);
                affinity.done(false);
                None
            });
        }
        task.load.allowed = *task.affinity.original();
        // Pinned to one vCPU by its owner, or with a deadline.
        let stays = task.load.allowed.and(&online).len() < 2
            || self.system.has_deadline(load.tid).unwrap_or(true);
        (!stays).then_some(task.load)
    }

    /// Set the part of the owner's mask that is wanted, or the whole.
    fn change(&self, tid: i32, wanted: Option<&VcpuSet>) -> io::Result<()> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let mask = {
            let mut pages = self.pages();
            let online = pages.online;
            let task = pages.tasks.get_mut(&tid).ok_or_else(gone)?;
            if !self.system.lives(&task.watched) {
                return Err(gone());
            }
            task.busy = true;
            let shown = task.shown(&self.system, &online)?;
            let ask = |affinity: &mut Affinity, shown: &VcpuSet, online: &VcpuSet| match wanted {
                Some(wanted) => affinity.change(shown, online, wanted),
                None => affinity.restore(shown, online),
            };
            let mask = task.look(&self.system, (&shown, &online), ask);
            let Some(mask) = mask else {
                pages.settle(tid);
                return Ok(());
            };
            if task.given.is_empty() {
                self.stirred.wake();
            }
            task.given.push(BootTime::now(), mask);
            pages.write_down(tid).inspect_err(|e| {
                pages.unwritten = Some(io::Error::new(e.kind(), e.to_string()));
            })?;
            mask
        };
        let set = self.system.set_affinity(tid, &mask);
        let mut pages = self.pages();
        if let Some(task) = pages.tasks.get_mut(&tid) {
            task.affinity.done(set.is_ok());
        }
        pages.settle(tid);
        set
    }
}

impl Task {
    fn ancestor(&self) -> Ancestor {
        let (Watched { tid, start, .. }, original) = (&self.watched, *self.affinity.original());
        Ancestor { pid: self.pid, tid: *tid, start: *start, original, given: self.given.clone() }
    }

    /// Ask its affinity something about what it shows. Before a mask becomes its owner's it
    /// is looked at twice: it may be what the kernel made of ours when a vCPU went off line,
    /// which nobody has heard of yet, and some of it may be off line.
    fn look(
        &mut self,
        system: &impl System,
        (shown, online): (&VcpuSet, &VcpuSet),
        mut ask: impl FnMut(&mut Affinity, &VcpuSet, &VcpuSet) -> Option<VcpuSet>,
    ) -> Option<VcpuSet> {
        let before = self.affinity.clone();
        let mask = ask(&mut self.affinity, shown, online);
        let adopted = self.affinity.original() == shown && before.original() != shown;
        let again = || Some((system.whole_affinity(self.watched.tid)?, system.online().ok()?));
        match adopted.then(again).flatten() {
            None => mask,
            Some((whole, now)) => {
                self.affinity = before;
                ask(&mut self.affinity, &whole, &online.and(&now))
            }
        }
    }

    /// The kernel shows only what is on line: what the owner has off line stays his.
    fn shown(&self, system: &impl System, online: &VcpuSet) -> io::Result<VcpuSet> {
        let shown = system.affinity(self.watched.tid)?;
        let original = self.affinity.original();
        Ok(if shown == original.and(online) { *original } else { shown })
    }
}

impl Pages {
    /// What the owner of the one that started this has set, if this has one of our masks
    /// from there.
    fn original_of(&self, child: &Child, shown: &VcpuSet) -> Option<VcpuSet> {
        let of_tasks = self.tasks.iter().find_map(|(&tid, task)| {
            let original = task.affinity.original();
            let (parent, masks) = ((task.pid, tid), (original, &task.given));
            lineage::gave(parent, masks, (child, shown)).then_some(*original)
        });
        of_tasks.or_else(|| self.heirs.iter().find(|a| a.gave(child, shown)).map(|a| a.original))
    }

    fn write_down(&mut self, tid: i32) -> io::Result<()> {
        let Some(task) = self.tasks.get_mut(&tid) else { return Ok(()) };
        let place = *task.place.get_or_insert_with(|| self.records.place());
        let record = Record {
            pid: task.pid,
            tid,
            start: task.watched.start,
            affinity: task.affinity.clone(),
            given: task.given.clone(),
        };
        let written = self.records.write(place, &record);
        if written.is_err() {
            task.affinity.done(false);
        }
        written
    }

    /// What is its owner's again need not be written down.
    fn settle(&mut self, tid: i32) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if let (true, Some(place)) = (task.affinity.is_original(), task.place) {
            task.place = None;
            self.records.erase(place);
        }
    }

    /// Forget the one that did no I/O for longest and whose mask is its owner's.
    fn make_room(&mut self, now: Instant) -> bool {
        let idle = |task: &Task| now.since(task.seen) > ROOM_AFTER;
        let free = self.tasks.iter().filter(|(_, task)| !task.busy && idle(task));
        let free = free.filter(|(_, task)| task.affinity.is_original());
        let oldest = free.min_by_key(|(_, task)| task.seen).map(|(tid, _)| *tid);
        oldest.map(|tid| self.forget(tid)).is_some()
    }

    fn forget(&mut self, tid: i32) {
        let place = self.tasks.remove(&tid).and_then(|task| task.place);
        if let Some(place) = place {
            self.records.erase(place);
        }
    }
}
