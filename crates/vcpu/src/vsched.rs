//! Pulls all tasks of vCPUs that are away to vCPUs that run.
//!
//! After vSched (EuroSys 2025), whose kernel module and user-level probers show the guest's
//! scheduler the true state of its vCPUs. Taken from it:
//!
//! - *vact*, probed activity: from beats, each vCPU's mean active span; a vCPU whose beat is stale
//!   counts as away (every millisecond here, about a tick).
//! - *ivh*, harvesting inside the guest: a task that is stuck on an absent vCPU is pulled to one
//!   that runs, compute and I/O alike: the one with the longest remainder of its mean active span,
//!   and one task for each.
//!
//! Not taken: capacity and topology (*vcap*, *vtop*), the placement of short tasks at their wake-up
//! (*bvs*: part of the kernel's wake-up path), relaxed work conservation (*rwc*). It knows only
//! tasks that do I/O at times, because the engine reports no others ([`VcpuPolicy::window`]). It
//! foresees nothing: it acts after the fact.

use super::monitor::{Monitor, News, Predict, Settings, State};
use super::{
    Action, Entry, Means, Outcome, Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet, VcpuView,
};
use seekway_core::units::{Instant, Nanos};
use std::cmp::Reverse;
use std::collections::BTreeMap;

pub(super) const ENTRY: Entry = Entry {
    name: "vsched",
    summary: "tasks that do I/O are pulled from vCPUs that have gone, after the fact; no others",
    source: "after vSched (EuroSys 2025): probed activity and harvesting",
    params: &[],
    build: |_| Ok(Box::new(VSched::new())),
};

/// From beat to beat of each vCPU.
const PROBE: Nanos = Nanos::from_millis(1);
const WINDOW: Nanos = Nanos::from_millis(5);
/// Tasks that are followed at a time; more are left alone.
const TASKS_MAX: usize = 1024;
/// Time without news after which a task is forgotten.
const FORGET: Nanos = Nanos::from_secs(1);

struct Task {
    vcpu: VcpuId,
    allowed: VcpuSet,
    told: Instant,
    moved: Option<Instant>,
    going: Option<VcpuId>,
    releasing: bool,
    refused: bool,
}

impl Task {
    fn is_free(&self) -> bool {
        self.going.is_none() && !self.releasing && !self.refused
    }
}

#[derive(Default)]
struct VSched {
    monitor: Monitor,
    tasks: BTreeMap<TaskId, Task>,
    /// Edges are told; there are no beats.
    exact: bool,
    /// Look for tasks to be pulled.
    dirty: bool,
    moves: u64,
}

impl VSched {
    fn new() -> VSched {
        let absence = PROBE.scaled(2, 1);
        let settings = Settings { period: PROBE, predict: Predict::Min8, absence, literal: false };
        VSched { monitor: Monitor::new(settings), ..VSched::default() }
    }

    fn missing_at(&self) -> Option<Instant> {
        let runs = self.monitor.all().filter(|(_, watch)| watch.state == State::Runs);
        let seen = runs.map(|(_, watch)| watch.seen).min().filter(|_| !self.exact)?;
        Some(seen + PROBE + self.monitor.settings.grace())
    }

    fn find_missing(&mut self, now: Instant) {
        while self.missing_at().is_some_and(|at| at <= now) {
            let runs = self.monitor.all().filter(|(_, watch)| watch.state == State::Runs);
            let oldest = runs.map(|(vcpu, watch)| (watch.seen, vcpu)).min();
            let Some((seen, vcpu)) = oldest else { return };
            self.dirty |= self.monitor.missed(vcpu, seen + PROBE);
        }
    }

    /// Finds the running vCPU that will run for longest, and on which we put nobody.
    fn best(&self, now: Instant, allowed: &VcpuSet) -> Option<VcpuId> {
        let taken: VcpuSet = self.tasks.values().map(|t| t.going.unwrap_or(t.vcpu)).collect();
        let left = |vcpu: VcpuId| {
            let watch = self.monitor.get(vcpu).filter(|watch| watch.state != State::Away)?;
            let left = watch.mean_slice().saturating_sub(now.since(watch.runs_from()));
            Some((!taken.contains(vcpu), left, Reverse(vcpu)))
        };
        allowed.iter().filter_map(left).max().map(|(_, _, Reverse(vcpu))| vcpu)
    }

    fn pull(&mut self, now: Instant) -> Option<Action> {
        let gone =
            |vcpu: VcpuId| self.monitor.get(vcpu).is_none_or(|watch| watch.state == State::Away);
        let stuck = self.tasks.iter().filter(|(_, task)| task.is_free() && gone(task.vcpu));
        let found = stuck.filter_map(|(id, task)| Some((*id, self.best(now, &task.allowed)?)));
        let (id, to) = { found }.next()?;
        let task = self.tasks.get_mut(&id)?;
        task.going = Some(to);
        self.moves += 1;
        Some(Action::Move { task: id, to, within: VcpuSet::only(to), by: Means::Pull })
    }

    fn release(&mut self, now: Instant) -> Option<Action> {
        self.tasks.retain(|_, task| {
            let old = now.since(task.told) >= FORGET;
            !old || task.going.is_some() || task.releasing || task.moved.is_some()
        });
        let free = |task: &Task| task.going.is_none() && !task.releasing;
        let old = |task: &Task| now.since(task.told) >= FORGET && free(task);
        let (id, task) = self.tasks.iter_mut().find(|(_, task)| old(task))?;
        task.releasing = true;
        Some(Action::Release { task: *id })
    }
}

impl VcpuPolicy for VSched {
    fn attach(&mut self, now: Instant, online: &VcpuSet) {
        self.monitor.attach(now, online);
        self.dirty = true;
    }

    fn heard(&mut self, at: Instant, vcpu: VcpuId, sign: Sign) {
        self.exact = !matches!(sign, Sign::Beat { .. });
        self.dirty |= self.monitor.heard(at, vcpu, sign) != News::None;
    }

    fn window(&mut self, now: Instant, loads: &[TaskLoad]) {
        for load in loads {
            if let Some(task) = self.tasks.get_mut(&load.task) {
                (task.allowed, task.told) = (load.allowed, now);
                let settled = task.moved.is_none_or(|moved| now.since(moved) >= WINDOW);
                if settled && task.going.is_none() && load.ran > Nanos::ZERO {
                    task.vcpu = load.vcpu;
                }
            } else if self.tasks.len() < TASKS_MAX {
                self.tasks.insert(
                    load.task,
                    Task {
                        vcpu: load.vcpu,
                        allowed: load.allowed,
                        told: now,
                        moved: None,
                        going: None,
                        releasing: false,
                        refused: false,
                    },
                );
            }
        }
        self.dirty = true;
    }

    fn moved(&mut self, now: Instant, task: TaskId, outcome: Outcome) {
        let Some(task) = self.tasks.get_mut(&task) else { return };
        match (outcome, task.going.take()) {
            (Outcome::Done, Some(to)) => (task.vcpu, task.moved) = (to, Some(now)),
            (Outcome::Dropped, _) => {}
            (_, None) => task.moved = None,
            (Outcome::Refused, Some(_)) => task.refused = true,
        }
        task.releasing = false;
        // A busy worker will be busy for a while: the next sign or window is soon enough.
        self.dirty |= outcome != Outcome::Dropped;
    }

    fn next(&mut self, now: Instant) -> Option<Action> {
        self.find_missing(now);
        if !self.dirty {
            return None;
        }
        let action = self.pull(now).or_else(|| self.release(now));
        self.dirty = action.is_some();
        action
    }

    fn next_wake(&self) -> Option<Instant> {
        self.missing_at().filter(|_| !self.tasks.is_empty())
    }

    fn beat_at(&self, vcpu: VcpuId) -> Option<Instant> {
        Some(self.monitor.get(vcpu)?.seen + PROBE)
    }

    fn windows(&self) -> Option<Nanos> {
        Some(WINDOW)
    }

    fn vcpus(&self, now: Instant) -> Vec<VcpuView> {
        self.monitor.view(now)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("followed", self.tasks.len() as f64);
        sink("moves", self.moves as f64);
    }
}
