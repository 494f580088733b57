//! What tasks start while their masks are ours: it is given back its owner's mask.

use super::{Book, FAMILY_MAX, FORGOTTEN_AFTER, Pages, Task};
use crate::connector::{Fork, Told};
use crate::migrate::lineage::{Ancestor, Child, put_heirs_back};
use crate::migrate::{BootTime, clock};
use crate::system::System;
use seekway_policy::vcpu::VcpuSet;
use std::io;
use std::sync::atomic::Ordering::SeqCst;

impl<S: System> Book<S> {
    /// May there be heirs?
    pub fn has_moved(&self) -> bool {
        self.moved.load(SeqCst)
    }

    /// All masks are their owners' again. Nobody changes any meanwhile. How many tasks, and
    /// how many heirs: `None` if tasks start others faster than these can be found.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn put_all_back(&self) -> io::Result<(usize, Option<usize>)> {
        let tids: Vec<i32> = self.pages().tasks.keys().copied().collect();
        // Who has gone, or cannot be changed, stays written down for the restore.
        let changed = tids.into_iter().filter(|&tid| self.puts_back(tid)).count();
        self.look_for_heirs().map(|heirs| (changed, heirs))
    }

    /// The kernel tells of these. If the mask of one that was started is one of ours, it is
    /// not its own.
    pub fn follow(&self, told: &[Told]) {
        // In this order a fork is never told too early.
        let now = clock::now().as_nanos();
        let behind = BootTime::now().0.saturating_sub(now);
        let own = std::process::id().cast_signed();
        for told in told {
            match told {
                Told::Forked(fork @ Fork { pid, .. }) if *pid != own => {
                    self.follow_child(&Child::told(fork, behind));
                }
                Told::Runs(pid) => self.follow_first(*pid),
                Told::Forked(_) => {}
            }
        }
    }

    fn follow_child(&self, child: &Child) {
        {
            let pages = self.pages();
            // Who is here was looked at when it came.
            let is_known = pages.tasks.contains_key(&child.tid);
            if is_known || pages.could_have_started(child).is_none() {
                return;
            }
        }
        let seen = self.system.stat(child.tid).zip(self.system.affinity(child.tid).ok());
        let Some((stat, shown)) = seen else {
            let mut pages = self.pages();
            let parent = pages.could_have_started(child);
            if let Some(heir) = parent.and_then(|a| a.through(child, BootTime::now())) {
                pages.remember(heir);
            }
            return;
        };
        let original = self.pages().original_of(child, &shown);
        let heir = original.and_then(|of| self.give_back(child, stat.start, (of, shown)));
        heir.into_iter().for_each(|heir| self.pages().remember(heir));
    }

    /// A process runs another program. If that was not its first thread, the one that it was
    /// has that number now, and its own mask.
    fn follow_first(&self, pid: i32) {
        let gone = |a: &Ancestor| self.system.vcpu(a.tid).is_none();
        let of_it = |a: &&Ancestor| a.pid == pid && a.tid != pid;
        let others: Vec<Ancestor> = {
            let pages = self.pages();
            let tasks = pages.tasks.values().filter(|task| task.pid == pid).map(Task::ancestor);
            tasks.filter(|a| of_it(&a)).chain(pages.family.iter().filter(of_it).cloned()).collect()
        };
        let others: Vec<Ancestor> = others.into_iter().filter(gone).collect();
        let Ok(shown) = self.system.affinity(pid) else { return };
        let now = BootTime::now();
        let Some(was) = others.iter().find(|a| a.became_first(&shown, now)) else { return };
        if self.system.set_affinity(pid, &was.original).is_ok() {
            let mut pages = self.pages();
            // What was known of the first thread has gone with it.
            if pages.tasks.get(&pid).is_some_and(|task| !task.busy) {
                pages.forget(pid);
            }
        }
    }

    /// Look at all threads that there are: how many had a mask of ours and are free now;
    /// `None` as in [`Book::put_all_back`].
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn look_for_heirs(&self) -> io::Result<Option<usize>> {
        let mut family: Vec<Ancestor> = {
            let pages = self.pages();
            let tasks = pages.tasks.values().map(Task::ancestor);
            tasks.chain(pages.family.iter().cloned()).collect()
        };
        family.retain(|ancestor| !ancestor.given.is_empty());
        if family.is_empty() {
            return Ok(Some(0));
        }
        let known = family.len();
        let found = put_heirs_back(&self.system, &mut family);
        let mut pages = self.pages();
        family.drain(known..).for_each(|heir| pages.remember(heir));
        found
    }

    /// It is let run on more: that does not wait for a vCPU. `None` if that cannot be.
    pub(super) fn give_back(
        &self,
        child: &Child,
        start: u64,
        (original, shown): (VcpuSet, VcpuSet),
    ) -> Option<Ancestor> {
        let mut heir = child.inherits(start, original, shown);
        self.system.set_affinity(child.tid, &original).ok()?;
        heir.given.settle(BootTime::now(), &original);
        Some(heir)
    }
}

impl Task {
    pub(super) fn ancestor(&self) -> Ancestor {
        let (tid, start, original) =
            (self.watched.tid, self.watched.start, *self.affinity.original());
        Ancestor { pid: self.pid, tid, start, original, given: self.given.clone() }
    }
}

impl Pages {
    /// What the owner of the one that started this has set, if this has one of our masks
    /// from there.
    pub(super) fn original_of(&self, child: &Child, shown: &VcpuSet) -> Option<VcpuSet> {
        let mut family = self.parents(child);
        family.find(|a| a.gave(child, shown)).map(|a| a.original)
    }

    /// Who may have handed one on to it.
    fn could_have_started(&self, child: &Child) -> Option<Ancestor> {
        self.parents(child).find(|a| a.given.stood_any(child.from, child.to))
    }

    fn parents(&self, child: &Child) -> impl Iterator<Item = Ancestor> {
        let child = *child;
        let tasks = self.tasks.values().filter(move |t| child.is_of((t.pid, t.watched.tid)));
        let family = self.family.iter().filter(move |a| child.is_of((a.pid, a.tid)));
        tasks.map(Task::ancestor).chain(family.cloned())
    }

    pub(super) fn remember(&mut self, ancestor: Ancestor) {
        if ancestor.given.is_empty() {
            return;
        }
        if self.family.len() == FAMILY_MAX {
            self.family.pop_front();
        }
        self.family.push_back(ancestor);
    }

    /// Masks that stood long ago; false if there are no others.
    pub(super) fn forget_masks(&mut self) -> bool {
        let now = BootTime::now().0;
        let before = BootTime(now.saturating_sub(FORGOTTEN_AFTER.get()));
        let tasks = self.tasks.values_mut().map(|task| &mut task.given);
        let family = self.family.iter_mut().map(|ancestor| &mut ancestor.given);
        tasks.chain(family).for_each(|given| given.forget_before(before));
        self.family.retain(|ancestor| !ancestor.given.is_empty());
        !self.family.is_empty() || self.tasks.values().any(|task| !task.given.is_empty())
    }
}
