//! Processes and threads that a moved task starts inherit its mask. They are given their
//! owner's mask again.

use super::{ANCESTORS_MAX, FORGOTTEN_AFTER, Table, Tasks};
use crate::connector::{Fork, ProcessEvent};
use crate::migrate::inheritance::{Child, restore_inherited};
use crate::migrate::records::Record;
use crate::migrate::{BootTime, clock};
use crate::system::System;
use seekway_policy::vcpu::VcpuSet;
use std::io;
use std::sync::atomic::Ordering::SeqCst;

impl<S: System> Tasks<S> {
    /// May moved tasks have started others?
    pub fn has_moved(&self) -> bool {
        self.moved.load(SeqCst)
    }

    /// All masks are their owners' again. Nobody changes any meanwhile. How many tasks, and
    /// how many descendants: `None` if tasks start others faster than these can be found.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn put_all_back(&self) -> io::Result<(usize, Option<usize>)> {
        let tids: Vec<i32> = self.table().tasks.keys().copied().collect();
        // Who has gone, or cannot be changed, stays written down for the restore.
        let changed = tids.into_iter().filter(|&tid| self.puts_back(tid)).count();
        self.look_for_inherited_masks().map(|descendants| (changed, descendants))
    }

    /// The kernel tells of these. If the mask of one that was started is one of ours, it is
    /// not its own.
    pub fn follow(&self, told: &[ProcessEvent]) {
        // In this order a fork is never told too early.
        let now = clock::now().as_nanos();
        let behind = BootTime::now().0.saturating_sub(now);
        let own = std::process::id().cast_signed();
        for told in told {
            match told {
                ProcessEvent::Forked(fork @ Fork { pid, .. }) if *pid != own => {
                    self.follow_child(&Child::told(fork, behind));
                }
                ProcessEvent::Runs(pid) => self.follow_first(*pid),
                ProcessEvent::Forked(_) => {}
            }
        }
    }

    fn follow_child(&self, child: &Child) {
        {
            let table = self.table();
            // Who is here was looked at when it came.
            let is_known = table.tasks.contains_key(&child.tid);
            if is_known || table.could_have_started(child).is_none() {
                return;
            }
        }
        let seen = self.system.stat(child.tid).zip(self.system.affinity(child.tid).ok());
        let Some((stat, shown)) = seen else {
            let mut table = self.table();
            let parent = table.could_have_started(child);
            if let Some(descendant) = parent.and_then(|a| a.through(child, BootTime::now())) {
                table.remember(descendant);
            }
            return;
        };
        let original = self.table().original_of(child, &shown);
        let descendant = original.and_then(|of| self.give_back(child, stat.start, (of, shown)));
        descendant.into_iter().for_each(|descendant| self.table().remember(descendant));
    }

    /// A process runs another program. If that was not its first thread, the one that it was
    /// has that number now, and its own mask.
    fn follow_first(&self, pid: i32) {
        let gone = |a: &Record| self.system.vcpu(a.tid).is_none();
        let of_it = |a: &&Record| a.pid == pid && a.tid != pid;
        let others: Vec<Record> = self.table().known().filter(of_it).cloned().collect();
        let others: Vec<Record> = others.into_iter().filter(gone).collect();
        let Ok(shown) = self.system.affinity(pid) else { return };
        let now = BootTime::now();
        let Some(was) = others.iter().find(|a| a.became_first(&shown, now)) else { return };
        if self.system.set_affinity(pid, was.affinity.original()).is_ok() {
            let mut table = self.table();
            // What was known of the first thread has gone with it.
            if table.tasks.get(&pid).is_some_and(|task| !task.busy) {
                table.forget(pid);
            }
        }
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

    /// It is let run on more: that does not wait for a vCPU. `None` if that cannot be.
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
    /// The tasks, and what else may have started others.
    fn known(&self) -> impl Iterator<Item = &Record> {
        self.tasks.values().map(|task| &task.record).chain(&self.ancestors)
    }

    /// What the owner of the one that started this has set, if this has one of our masks
    /// from there.
    pub(super) fn original_of(&self, child: &Child, shown: &VcpuSet) -> Option<VcpuSet> {
        self.known().find(|a| a.gave(child, shown)).map(|a| *a.affinity.original())
    }

    /// Who may have handed one on to it.
    fn could_have_started(&self, child: &Child) -> Option<&Record> {
        let had_ours = |a: &&Record| a.history.stood_any(child.from, child.to);
        self.known().filter(|a| child.is_of((a.pid, a.tid))).find(had_ours)
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
