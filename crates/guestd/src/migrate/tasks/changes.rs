//! Changes a task's mask: reads it, plans the change, writes the plan to the state file, reads
//! the mask once more, and sets it.

use super::{Table, Task, Tasks};
use crate::migrate::BootTime;
use crate::migrate::records::Record;
use crate::system::System;
use seekway_vcpu::agent::{Rest, rest_of_move};
use seekway_vcpu::{Action, Affinity, Outcome, TaskId, VcpuId, VcpuSet};
use std::io;
use std::sync::atomic::Ordering::SeqCst;

/// Attempts at one change: another program may change the mask between the two readings.
const TRIES_MAX: usize = 8;

/// The result of a change that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Changed {
    /// The mask was changed.
    Set,
    /// The task already had that mask.
    Stood,
    /// None of the wanted CPUs is online and in the owner's mask.
    Nothing,
}

/// A change that is in the state file.
struct Plan {
    mask: VcpuSet,
    /// The mask at the first reading.
    shown: VcpuSet,
}

impl<S: System> Tasks<S> {
    /// Carry out an action. Blocks as long as the kernel does: the task's vCPU may be preempted.
    pub fn carry_out(&self, action: &Action) -> Outcome {
        let TaskId(tid) = action.task();
        let Ok(tid) = i32::try_from(tid) else { return Outcome::Refused };
        let done = match action {
            Action::Move { to, within, .. } => self.shift(tid, *to, within),
            Action::Release { .. } => self.change(tid, None),
        };
        let is_move = matches!(action, Action::Move { .. });
        let mut table = self.table();
        let Some(task) = table.tasks.get_mut(&tid) else { return Outcome::Refused };
        task.busy = false;
        match done {
            Ok(Changed::Nothing) if is_move => Outcome::Refused,
            Ok(changed) => {
                let moved = u64::from(is_move && changed == Changed::Set);
                task.moves += moved;
                if let Action::Move { to, .. } = action {
                    task.load.vcpu = *to;
                }
                table.moves += moved;
                Outcome::Done
            }
            Err(e) => {
                if e.raw_os_error() == Some(libc::EPERM) {
                    task.left_alone = Some("the kernel does not let it be moved");
                }
                Outcome::Refused
            }
        }
    }

    /// Give a task its owner's mask again. False if it had that mask, has ended, or cannot be
    /// changed.
    pub(super) fn puts_back(&self, tid: i32) -> bool {
        self.change(tid, None).is_ok_and(|changed| changed == Changed::Set)
    }

    /// Moves a task to one vCPU, then lets it run on all of `within`
    /// ([`agent`](seekway_vcpu::agent) gives the reason for the two steps).
    fn shift(&self, tid: i32, to: VcpuId, within: &VcpuSet) -> io::Result<Changed> {
        let changed = self.change(tid, Some(&VcpuSet::only(to)))?;
        if changed == Changed::Nothing {
            return Ok(changed);
        }
        // The task is on that vCPU or will be, so a failure from here on is harmless.
        match rest_of_move(to, within, self.system.vcpu(tid)) {
            Rest::Nothing => {}
            Rest::Widen => drop(self.change(tid, Some(within))),
            Rest::WidenWhenSeen => {
                let mut table = self.table();
                let planned = self.plan(&mut table, tid, Some(within));
                if let (Ok(Ok(_)), Some(task)) = (planned, table.tasks.get_mut(&tid)) {
                    task.then = Some((to, *within));
                }
            }
        }
        Ok(changed)
    }

    /// Set the wanted part of the owner's mask; with `None`, the owner's mask.
    fn change(&self, tid: i32, wanted: Option<&VcpuSet>) -> io::Result<Changed> {
        for _ in 0..TRIES_MAX {
            let Plan { mask, shown } = match self.plan(&mut self.table(), tid, wanted)? {
                Ok(plan) => plan,
                Err(changed) => return Ok(changed),
            };
            // This vCPU may have been preempted while the plan was written.
            if self.system.affinity(tid)? != shown {
                continue;
            }
            let set = self.system.set_affinity(tid, &mask);
            let mut table = self.table();
            if let Some(task) = table.tasks.get_mut(&tid) {
                task.record.affinity.done(set.is_ok());
                let standing = if set.is_ok() { &mask } else { &shown };
                task.record.history.settle(BootTime::now(), standing);
            }
            table.settle(tid);
            return set.map(|()| Changed::Set);
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Plan a change and write it to the state file. The inner error says why none is needed.
    fn plan(
        &self,
        table: &mut Table,
        tid: i32,
        wanted: Option<&VcpuSet>,
    ) -> io::Result<Result<Plan, Changed>> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let online = table.online;
        let task = table.tasks.get_mut(&tid).ok_or_else(gone)?;
        if !self.system.lives(&task.watched) {
            return Err(gone());
        }
        (task.busy, task.then) = (true, None);
        let shown = self.system.affinity(tid)?;
        let whole = task.whole(&shown, &online);
        let ask = |affinity: &mut Affinity, shown: &VcpuSet, online: &VcpuSet| match wanted {
            Some(wanted) => affinity.change(shown, online, wanted),
            None => affinity.restore(shown, online),
        };
        let Some(mask) = task.look(&self.system, (&whole, &online), ask) else {
            let left = task.record.affinity.original().and(&online);
            let stood = wanted.is_none_or(|wanted| left.and(wanted) == shown);
            table.settle(tid);
            return Ok(Err(if stood { Changed::Stood } else { Changed::Nothing }));
        };
        task.record.history.begin(BootTime::now(), mask);
        let written = table.write_down(tid);
        if let Err(e) = &written {
            table.unwritten = Some(io::Error::new(e.kind(), e.to_string()));
        }
        written?;
        if !self.moved.swap(true, SeqCst) {
            self.stir();
        }
        Ok(Ok(Plan { mask, shown }))
    }
}

impl Task {
    /// Decides the mask's ownership. A task that arrived where it was moved while asleep gets its
    /// wider mask.
    pub(super) fn look_and_let_run(
        &mut self,
        system: &impl System,
        online: &VcpuSet,
        seen: VcpuId,
    ) -> io::Result<()> {
        let tid = self.watched.tid;
        let shown = system.affinity(tid)?;
        let whole = self.whole(&shown, online);
        self.look(system, (&whole, online), |affinity, shown, online| {
            affinity.change(shown, online, shown)
        });
        let Record { affinity, history, .. } = &mut self.record;
        affinity.done(false);
        if affinity.is_original() {
            self.then = None;
            history.settle(BootTime::now(), &shown);
        }
        let Some((_, within)) = self.then.take_if(|(to, _)| *to == seen) else { return Ok(()) };
        if let Some(mask) = affinity.change(&whole, online, &within) {
            // It has more to run on: that does not wait for a vCPU. It is written down.
            let set = system.set_affinity(tid, &mask).is_ok();
            affinity.done(set);
            history.settle(BootTime::now(), if set { &mask } else { &shown });
        }
        Ok(())
    }

    /// Asks the task's affinity about the mask that it shows. A new owner's mask is read twice: it
    /// may be the kernel's change of ours after a vCPU went off line, unnoticed until now, and some
    /// of it may be off line.
    fn look(
        &mut self,
        system: &impl System,
        (shown, online): (&VcpuSet, &VcpuSet),
        mut ask: impl FnMut(&mut Affinity, &VcpuSet, &VcpuSet) -> Option<VcpuSet>,
    ) -> Option<VcpuSet> {
        let affinity = &mut self.record.affinity;
        let before = affinity.clone();
        let mask = ask(affinity, shown, online);
        let adopted = affinity.original() == shown && before.original() != shown;
        let again = || Some((system.whole_affinity(self.watched.tid)?, system.online().ok()?));
        match adopted.then(again).flatten() {
            None => mask,
            Some((whole, now)) => {
                *affinity = before;
                ask(affinity, &whole, &online.and(&now))
            }
        }
    }

    /// Adds the owner's CPUs that are off line, which the kernel does not show.
    fn whole(&self, shown: &VcpuSet, online: &VcpuSet) -> VcpuSet {
        let original = self.record.affinity.original();
        if *shown == original.and(online) { *original } else { *shown }
    }
}

impl Table {
    fn write_down(&mut self, tid: i32) -> io::Result<()> {
        let Some(task) = self.tasks.get_mut(&tid) else { return Ok(()) };
        let place = *task.place.get_or_insert_with(|| self.records.place());
        let written = self.records.write(place, &task.record);
        if written.is_err() {
            task.record.affinity.done(false);
        }
        written
    }

    /// Drops the record of a task that has its owner's mask again.
    fn settle(&mut self, tid: i32) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if let (true, Some(place)) = (task.record.affinity.is_original(), task.place) {
            task.place = None;
            self.records.erase(place);
        }
    }
}
