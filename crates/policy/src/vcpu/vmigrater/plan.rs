//! Who goes where.
//!
//! An I/O is heard of on the vCPU on which it was asked for, once that runs. So a place is
//! worth to a task what it says about when an I/O that is asked for there would be heard:
//!
//! - on a vCPU with at least `leave` left of its slice: as soon as the disk is done;
//! - on one with less: when that vCPU is back from its next absence;
//! - on one that is away: as soon as the disk is done after it is back.
//!
//! A task that is in time where it is stays there. The paper's form and ours differ in which
//! places are looked at: the first kind alone, or (`park`) the others too, if an I/O is
//! heard sooner there than at home.

use super::super::detector::Task;
use super::super::monitor::State;
use super::super::{Action, Means, VcpuId, VcpuSet};
use super::VMigrater;
use crate::units::{Instant, Nanos};
use std::cmp::Reverse;

/// What a vCPU offers to a task.
#[derive(Clone, Copy)]
struct Prospect {
    /// What is left of its slice.
    left: Nanos,
    /// An I/O that is asked for at once is heard in this slice.
    in_time: bool,
    /// When it is heard.
    heard: Instant,
}

/// A task that is not in time where it is.
struct Leaving {
    at: usize,
    load_permille: u64,
    /// What it has if it stays. `None`: nobody knows.
    here: Option<Prospect>,
}

impl VMigrater {
    /// Decide for all tasks, as of now.
    pub(super) fn decide(&mut self, now: Instant) {
        self.dirty = false;
        self.decide_at = None;
        self.actions.clear();
        self.detector.forget();
        let works = self.settings.literal || self.sharing.is_shared();
        self.release(works);
        if !works {
            return;
        }
        let leaving = self.leaving(now);
        if leaving.is_empty() {
            return;
        }
        let mut hosted = self.hosted();
        for leaving in leaving {
            let task = &self.detector.tasks[leaving.at];
            let action = self
                .destination(now, task, &hosted)
                .or_else(|| self.parking(now, task, leaving.here?));
            if let Some(Action::Move { to, .. }) = action {
                hosted[to.index()] += 1;
            }
            self.actions.extend(action);
        }
        // Who has found nothing, or has to wait there, looks again: some vCPU may run on for
        // longer than was thought, and nothing else would tell.
        self.decide_at = earlier(self.decide_at, Some(now + self.settings.period));
    }

    /// Let tasks go that are not I/O-bound any more, or all.
    fn release(&mut self, works: bool) {
        let tasks = self.detector.tasks.iter().filter(|task| !(works && task.is_bound()));
        let free = |task: &&Task| task.moved && task.going.is_none() && !task.releasing;
        self.actions.extend(tasks.filter(free).map(|task| Action::Release { task: task.id }));
    }

    /// Tasks that are to go, the heaviest first; and when the next one will be.
    fn leaving(&mut self, now: Instant) -> Vec<Leaving> {
        let mut leaving = Vec::new();
        for (at, task) in self.detector.tasks.iter().enumerate() {
            if !task.is_movable() || self.is_stuck(task) {
                continue;
            }
            let here = match self.prospect(now, task, task.vcpu) {
                Some(here) if here.in_time => {
                    let until = now + here.left.saturating_sub(self.leave(task, task.vcpu));
                    self.decide_at = earlier(self.decide_at, Some(until + Nanos::new(1)));
                    continue;
                }
                Some(here) => Some(here),
                // Nothing is known of it, or it is off line.
                None if self.settings.fresh || !self.runs(task.vcpu) => None,
                None => continue,
            };
            leaving.push(Leaving { at, load_permille: task.load_permille, here });
        }
        leaving.sort_by_key(|leaving| (Reverse(leaving.load_permille), leaving.at));
        leaving
    }

    /// Its I/O is pending on a vCPU that is away: before that is back nothing happens.
    fn is_stuck(&self, task: &Task) -> bool {
        let away = |vcpu| self.monitor.get(vcpu).is_some_and(|watch| watch.state == State::Away);
        !self.settings.literal && task.silent && away(task.asked_on)
    }

    fn runs(&self, vcpu: VcpuId) -> bool {
        self.monitor.get(vcpu).is_some_and(|watch| watch.state != State::Away)
    }

    /// Less than this is not worth a move, nor known.
    pub(super) fn margin(&self) -> Nanos {
        self.settings.period.scaled(2, 1)
    }

    /// How much has to be left of a vCPU's slice for this task.
    fn leave(&self, task: &Task, vcpu: VcpuId) -> Nanos {
        if let Some(leave) = self.settings.leave {
            return leave;
        }
        let needed = self.margin() + task.latency();
        let slice = self.monitor.get(vcpu).and_then(|watch| watch.predicted());
        slice.map_or(needed, |slice| needed.min(slice.scaled(1, 2)))
    }

    /// `None`: nothing can be said.
    fn prospect(&self, now: Instant, task: &Task, vcpu: VcpuId) -> Option<Prospect> {
        let watch = self.monitor.get(vcpu)?;
        let (needed, done) = (self.leave(task, vcpu), task.latency());
        let slice = watch.predicted();
        if watch.state == State::Away {
            let back = watch.back_at(now);
            let heard = match slice {
                Some(slice) if slice < needed => back + slice + watch.absence(),
                _ => back + done,
            };
            return Some(Prospect { left: Nanos::ZERO, in_time: false, heard });
        }
        let left = self.monitor.remaining(now, vcpu)?;
        let in_time = left >= needed;
        let heard = if in_time { now + done } else { now + left + watch.absence() };
        Some(Prospect { left, in_time, heard: heard.max(now + done) })
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

    /// The vCPU that runs and has the most left for each of the tasks on it.
    fn destination(&self, now: Instant, task: &Task, hosted: &[u64]) -> Option<Action> {
        let allowed = task.allowed.and(&self.monitor.online);
        let score = |vcpu: VcpuId| {
            let offers = self.prospect(now, task, vcpu).filter(|offers| offers.in_time)?;
            (vcpu != task.vcpu)
                .then(|| (offers.left.scaled(1, 1 + hosted[vcpu.index()]), Reverse(vcpu)))
        };
        let scores: Vec<(Nanos, Reverse<VcpuId>)> = allowed.iter().filter_map(score).collect();
        let (best, Reverse(to)) = scores.iter().max().copied()?;
        // Where the guest puts it among these is as good; those with little left are not.
        let least = if self.settings.literal { Nanos::ZERO } else { best.scaled(1, 2) };
        let near = scores.iter().filter(|(score, _)| *score >= least);
        let within = near.map(|(_, Reverse(vcpu))| *vcpu).collect();
        let by = if self.runs(task.vcpu) { Means::Push } else { Means::Pull };
        Some(Action::Move { task: task.id, to, within, by })
    }

    /// The vCPU on which an I/O is heard first, if that is sooner than where the task is. To
    /// wait there costs what is left of the slice here: so not before an I/O more would
    /// be late, with a period for what is not known of the slice's end.
    fn parking(&self, now: Instant, task: &Task, here: Prospect) -> Option<Action> {
        let last = task.latency() + self.settings.period;
        if !self.settings.park || !self.runs(task.vcpu) || here.left > last {
            return None;
        }
        let allowed = task.allowed.and(&self.monitor.online);
        let others = allowed.iter().filter(|vcpu| *vcpu != task.vcpu);
        let heard = others.filter_map(|vcpu| Some((self.prospect(now, task, vcpu)?.heard, vcpu)));
        let (heard, to) = heard.min()?;
        (heard + self.margin() < here.heard).then(|| Action::Move {
            task: task.id,
            to,
            within: VcpuSet::only(to),
            by: Means::Push,
        })
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}
