//! Who goes where.

use super::super::detector::Task;
use super::super::monitor::State;
use super::super::{Action, Means, VcpuId, VcpuSet};
use super::VMigrater;
use crate::units::{Instant, Nanos};
use std::cmp::Reverse;

/// What a task's place is worth to it.
enum Place {
    /// It may stay, until then.
    Good(Option<Instant>),
    /// It has to leave, while its vCPU still runs.
    Ends,
    /// Its vCPU runs, and how long is not known.
    Unknown,
    /// Its vCPU has gone.
    Gone,
}

impl VMigrater {
    /// Decide for all tasks, as of now.
    pub(super) fn decide(&mut self, now: Instant) {
        self.dirty = false;
        self.decide_at = None;
        self.actions.clear();
        let fresh = std::mem::replace(&mut self.fresh, VcpuSet::EMPTY);
        self.detector.forget();
        if !self.settings.literal && !self.sharing.is_shared() {
            self.release_all();
            return;
        }
        self.release_done();
        let mut leaving: Vec<(u64, usize, bool)> = Vec::new();
        for (at, task) in self.detector.tasks.iter().enumerate() {
            if !task.is_movable() {
                continue;
            }
            match self.place(now, task) {
                Place::Good(until) => self.decide_at = earlier(self.decide_at, until),
                Place::Gone if task.silent => {}
                Place::Unknown if !self.settings.fresh || fresh.is_empty() => {}
                place => leaving.push((task.load_permille, at, matches!(place, Place::Ends))),
            }
        }
        leaving.sort_by_key(|&(load, at, _)| (Reverse(load), at));
        let mut hosted = self.hosted();
        for (_, at, ends) in leaving {
            let action = match self.destination(now, &self.detector.tasks[at], &hosted) {
                Some(action) => action,
                None if ends && self.settings.park => {
                    match self.parking(&self.detector.tasks[at]) {
                        Some(action) => {
                            self.parks += 1;
                            action
                        }
                        None => continue,
                    }
                }
                None => {
                    self.decide_at = earlier(self.decide_at, Some(now + self.settings.period));
                    continue;
                }
            };
            if let Action::Move { to, .. } = action {
                hosted[to.index()] += 1;
            }
            self.actions.push_back(action);
        }
    }

    fn release_done(&mut self) {
        let done = self.detector.tasks.iter().filter(|task| {
            !task.is_bound() && task.moved.is_some() && task.going.is_none() && !task.releasing
        });
        self.actions.extend(done.map(|task| Action::Release { task: task.id }));
    }

    fn release_all(&mut self) {
        let moved = self
            .detector
            .tasks
            .iter()
            .filter(|task| task.moved.is_some() && task.going.is_none() && !task.releasing);
        self.actions.extend(moved.map(|task| Action::Release { task: task.id }));
    }

    /// How much has to be left of a slice for this task, where slices are that long.
    fn leave(&self, task: &Task, slice: Option<Nanos>) -> Nanos {
        self.settings.leave.unwrap_or_else(|| {
            let needed = self.settings.period.scaled(2, 1) + task.latency();
            slice.map_or(needed, |slice| needed.min(slice.scaled(1, 2)))
        })
    }

    fn place(&self, now: Instant, task: &Task) -> Place {
        let Some(watch) = self.monitor.get(task.vcpu) else { return Place::Gone };
        if watch.state == State::Away {
            return Place::Gone;
        }
        let leave = self.leave(task, watch.predicted());
        match self.monitor.remaining(now, task.vcpu) {
            None => Place::Unknown,
            Some(left) if left < leave => Place::Ends,
            Some(left) => {
                let until = now + left.saturating_sub(leave) + Nanos::new(1);
                Place::Good(watch.is_known().then_some(until))
            }
        }
    }

    /// I/O-bound tasks on each vCPU.
    fn hosted(&self) -> Vec<u64> {
        let last = self.monitor.online.iter().last().map_or(0, |last| last.index() + 1);
        let mut hosted = vec![0; last];
        for task in self.detector.tasks.iter().filter(|task| task.is_bound()) {
            if let Some(count) = hosted.get_mut(task.going.unwrap_or(task.vcpu).index()) {
                *count += 1;
            }
        }
        hosted
    }

    /// The best that runs, if there is one.
    fn destination(&self, now: Instant, task: &Task, hosted: &[u64]) -> Option<Action> {
        let score = |vcpu: VcpuId| {
            let watch = self.monitor.get(vcpu)?;
            let left = self.monitor.remaining(now, vcpu)?;
            let qualifies = left >= self.leave(task, watch.predicted()) && vcpu != task.vcpu;
            qualifies.then(|| (left.scaled(1, 1 + hosted[vcpu.index()]), Reverse(vcpu)))
        };
        let allowed = task.allowed.and(&self.monitor.online);
        let (best, Reverse(to)) = allowed.iter().filter_map(score).max()?;
        let near = |vcpu: &VcpuId| {
            let least = if self.settings.literal { Nanos::ZERO } else { best.scaled(1, 2) };
            score(*vcpu).is_some_and(|(score, _)| score >= least)
        };
        let within = allowed.iter().filter(near).collect();
        let gone = matches!(self.place(now, task), Place::Gone);
        let by = if gone { Means::Pull } else { Means::Push };
        Some(Action::Move { task: task.id, to, within, by })
    }

    /// The vCPU that is away and will be back first.
    fn parking(&self, task: &Task) -> Option<Action> {
        let allowed = task.allowed.and(&self.monitor.online);
        let away = allowed.iter().filter_map(|vcpu| {
            let watch = self.monitor.get(vcpu).filter(|watch| watch.state == State::Away)?;
            Some((watch.back_at(), vcpu))
        });
        let (_, to) = away.min()?;
        let within = VcpuSet::only(to);
        Some(Action::Move { task: task.id, to, within, by: Means::Push })
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}
