//! Processes and threads that a moved task starts inherit its mask. They are given their
//! owner's mask again.

use super::{ANCESTORS_MAX, FORGOTTEN_AFTER, Table, Tasks};
use crate::connector::ProcessEvent;
use crate::migrate::BootTime;
use crate::migrate::inheritance::{Child, TICK_NS, look_at, restore_inherited};
use crate::migrate::records::Record;
use crate::system::System;
use seekway_vcpu::VcpuSet;
use std::io;
use std::sync::atomic::Ordering::SeqCst;

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
    pub(super) fn give_back(
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
    pub(super) fn original_of(&self, child: &Child, shown: &VcpuSet) -> Option<VcpuSet> {
        self.known().find(|a| a.gave(child, shown)).map(|a| *a.affinity.original())
    }

    pub(super) fn remember(&mut self, ancestor: Record) {
        if ancestor.history.is_empty() {
            return;
        }
        if self.ancestors.len() == ANCESTORS_MAX {
            self.ancestors.pop_front();
        }
        self.ancestors.push_back(ancestor);
    }

    /// Masks that stood long ago; false if there are no others.
    pub(super) fn forget_masks(&mut self) -> bool {
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
