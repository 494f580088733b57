//! Chooses the vCPU for each task.
//!
//! A vCPU hears of an I/O that was asked for there, once it runs. So a vCPU's worth to a task is
//! the time at which an I/O would be heard there:
//!
//! - on a vCPU with at least `leave` left of its slice: as soon as the disk is done;
//! - on one with less: when that vCPU is back from its next absence;
//! - on one that is away: as soon as the disk is done after it is back.
//!
//! A task that hears in time on its vCPU stays there. The paper's form and ours differ in the vCPUs
//! that they consider: the first kind alone, or (`park`) the others too, if an I/O is heard sooner
//! there than at home.

use super::super::detector::Task;
use super::super::monitor::State;
use super::super::{Action, Means, VcpuId, VcpuSet};
use super::VMigrater;
use seekway_core::units::{Instant, Nanos};
use std::cmp::Reverse;

/// A vCPU, as of now.
#[derive(Clone, Copy)]
struct Destination {
    vcpu: VcpuId,
    runs: bool,
    /// For how long it has run.
    ran: Nanos,
    /// Remainder of its slice, if anything can be said.
    left: Option<Nanos>,
    slice: Option<Nanos>,
    absence: Nanos,
    /// When it is back, if it is away.
    back: Instant,
}

/// A vCPU's offer to a task.
#[derive(Clone, Copy)]
struct Prospect {
    /// Remainder of its slice.
    left: Nanos,
    /// An I/O that is asked for now is heard in this slice.
    in_time: bool,
    /// Time at which it is heard.
    heard: Instant,
}

/// A task that is not in time where it is, or may be better off elsewhere.
struct MoveCandidate {
    at: usize,
    load_permille: u64,
    /// Offer of the vCPU where it is. `None`: unknown.
    here: Option<Prospect>,
}

/// The vCPUs and their tasks, in one decision.
struct Map {
    /// By number; `None` for vCPUs that are off line.
    places: Vec<Option<Destination>>,
    /// I/O-bound tasks on each.
    hosted: Vec<u64>,
    /// Number of tasks that this plan sends away.
    sent: usize,
}

impl Map {
    fn get(&self, vcpu: VcpuId) -> Option<&Destination> {
        self.places.get(vcpu.index())?.as_ref()
    }

    fn runs(&self, vcpu: VcpuId) -> bool {
        self.get(vcpu).is_some_and(|place| place.runs)
    }
}

impl VMigrater {
    /// Decide for all tasks, as of now.
    pub(super) fn decide(&mut self, now: Instant) {
        self.dirty = false;
        (self.decide_at, self.decide_on, self.seeks) = (None, None, false);
        self.actions.clear();
        let works = self.settings.monitor.literal || self.sharing.is_shared();
        if works {
            self.detector.forget()
        } else {
            self.detector.rest()
        }
        self.find_outlasting();
        self.release();
        if !works || !self.budget.allows() {
            return;
        }
        let mut map = self.map(now);
        for leaving in self.leaving(now, &map) {
            let task = &self.detector.tasks[leaving.at];
            let (latency, home) = (task.latency(), map.get(task.vcpu).copied());
            let action = self.destination(now, task, &leaving, &map).or_else(|| {
                let here = leaving.here.filter(|here| !here.in_time)?;
                self.parking(now, task, here, &map)
            });
            let Some(action) = action else {
                self.look_again(now, home, leaving.here, latency);
                continue;
            };
            if let Action::Move { to, .. } = action {
                map.hosted[to.index()] += 1;
                map.sent += 1;
            }
            self.actions.push_back(action);
        }
    }

    /// Plans the next look for a task that found no destination or has to wait there: at its time
    /// to park, and at intervals, because a vCPU may run longer than predicted and nothing else
    /// would tell.
    fn look_again(
        &mut self,
        now: Instant,
        home: Option<Destination>,
        here: Option<Prospect>,
        latency: Nanos,
    ) {
        if here.is_some_and(|here| here.in_time) {
            return;
        }
        self.seeks = true;
        let slice = home.and_then(|home| home.slice).unwrap_or(Nanos::ZERO);
        // With edges, a return is noticed.
        let part = if self.sharing.is_exact() { 1 } else { 8 };
        let at_times = self.settings.monitor.period.max(slice.scaled(1, part));
        let parks = here.map(|here| here.left.saturating_sub(self.parks_with(latency)));
        let parks = parks.filter(|after| *after > Nanos::ZERO).map(|after| after + Nanos::new(1));
        let after = parks.map_or(at_times, |after| after.min(at_times));
        self.decide_at = earlier(self.decide_at, Some(now + after));
    }

    /// Which tasks' I/Os take longer than the slice of the vCPU on which they are.
    fn find_outlasting(&mut self) {
        let slice = |vcpu| self.monitor.get(vcpu).and_then(|watch| watch.predicted());
        for task in self.detector.tasks.iter_mut().filter(|_| !self.settings.monitor.literal) {
            task.outlasts = slice(task.vcpu).is_some_and(|slice| task.latency() > slice);
        }
    }

    /// Releases tasks that are not I/O-bound any more, or gain nothing by a move.
    fn release(&mut self) {
        let tasks = self.detector.tasks.iter();
        let tasks = tasks.filter(|task| !task.is_bound() || task.outlasts);
        let free = |task: &&Task| task.moved && task.going.is_none() && !task.releasing;
        self.actions.extend(tasks.filter(free).map(|task| Action::Release { task: task.id }));
    }

    fn map(&self, now: Instant) -> Map {
        let last = self.monitor.online.iter().last().map_or(0, |last| last.index() + 1);
        let mut map = Map { places: vec![None; last], hosted: vec![0; last], sent: 0 };
        for (vcpu, watch) in self.monitor.all() {
            map.places[vcpu.index()] = Some(Destination {
                vcpu,
                runs: watch.state != State::Away,
                ran: now.since(watch.runs_from()),
                left: watch.remaining(now, &self.monitor.settings),
                slice: watch.predicted(),
                absence: watch.absence(),
                back: watch.back_at(now),
            });
        }
        for task in self.detector.tasks.iter().filter(|task| task.is_bound()) {
            if let Some(count) = map.hosted.get_mut(task.going.unwrap_or(task.vcpu).index()) {
                *count += 1;
            }
        }
        map
    }

    /// Returns the tasks that leave now, the heaviest first; and the time of the next one.
    fn leaving(&mut self, now: Instant, map: &Map) -> Vec<MoveCandidate> {
        let mut leaving = Vec::new();
        let cuts = self.settings.fresh && self.monitor.cut_permille() > 0;
        for (at, task) in self.detector.tasks.iter().enumerate() {
            if !task.is_movable() || self.is_stuck(task, map) {
                continue;
            }
            let place = map.get(task.vcpu);
            let here = match place.and_then(|place| self.prospect(now, task, place)) {
                Some(here) if here.in_time => {
                    let leave = place.map_or(Nanos::ZERO, |place| self.leave(task, place));
                    let until = now + here.left.saturating_sub(leave) + Nanos::new(1);
                    if self.decide_at.is_none_or(|at| until < at) {
                        (self.decide_at, self.decide_on) = (Some(until), Some(task.vcpu));
                    }
                    if !cuts {
                        continue;
                    }
                    Some(here)
                }
                Some(here) => Some(here),
                // Nothing is known of it, or it is off line.
                None if self.settings.fresh || !map.runs(task.vcpu) => None,
                None => continue,
            };
            leaving.push(MoveCandidate { at, load_permille: task.load_permille, here });
        }
        leaving.sort_by_key(|leaving| (Reverse(leaving.load_permille), leaving.at));
        leaving
    }

    /// Its I/O is pending on a vCPU that is away: before that is back nothing happens.
    fn is_stuck(&self, task: &Task, map: &Map) -> bool {
        let away = |vcpu| map.get(vcpu).is_some_and(|place| !place.runs);
        !self.settings.monitor.literal && task.silent && away(task.asked_on)
    }

    /// Less than this is not worth a move, nor known.
    pub(super) fn margin(&self) -> Nanos {
        self.settings.monitor.period.scaled(2, 1)
    }

    /// Remainder of a vCPU's slice at which this task leaves it.
    fn leave(&self, task: &Task, place: &Destination) -> Nanos {
        if let Some(leave) = self.settings.leave {
            return leave;
        }
        let needed = self.margin() + task.latency();
        place.slice.map_or(needed, |slice| needed.min(slice.scaled(1, 2)))
    }

    /// `None`: nothing can be said.
    fn prospect(&self, now: Instant, task: &Task, place: &Destination) -> Option<Prospect> {
        let (needed, done) = (self.leave(task, place), task.latency());
        if !place.runs {
            let heard = match place.slice {
                Some(slice) if slice < needed => place.back + slice + place.absence,
                _ => place.back + done,
            };
            return Some(Prospect { left: Nanos::ZERO, in_time: false, heard });
        }
        let left = place.left?;
        let in_time = left >= needed;
        let heard = if in_time { now + done } else { now + left + place.absence };
        Some(Prospect { left, in_time, heard: heard.max(now + done) })
    }

    /// Chooses the running vCPU with the longest remaining slice for each of its tasks; in the
    /// paper's form the next one round the ranking by remaining slice.
    ///
    /// The mask has those too that are as good, and empty. No others: a task that sleeps
    /// wakes on whichever of its mask the kernel comes to first, not on the best.
    fn destination(
        &self,
        now: Instant,
        task: &Task,
        leaving: &MoveCandidate,
        map: &Map,
    ) -> Option<Action> {
        let stays = leaving.here.filter(|here| here.in_time);
        let others = map
            .places
            .iter()
            .flatten()
            .filter(|place| place.vcpu != task.vcpu && task.allowed.contains(place.vcpu));
        let score = |place: &Destination| {
            let offers = self.prospect(now, task, place).filter(|offers| offers.in_time)?;
            let shared =
                if self.settings.monitor.literal { 0 } else { map.hosted[place.vcpu.index()] };
            Some((offers.left.scaled(1, 1 + shared), Reverse(place.vcpu)))
        };
        let mut scores: Vec<(Nanos, Reverse<VcpuId>)> = others.filter_map(score).collect();
        let by = if map.runs(task.vcpu) { Means::Push } else { Means::Pull };
        if self.settings.monitor.literal {
            scores.sort_unstable_by_key(|score| Reverse(*score));
            let Reverse(to) = scores.get(map.sent % scores.len().max(1))?.1;
            return Some(Action::Move { task: task.id, to, within: VcpuSet::only(to), by });
        }
        let (best, Reverse(to)) = scores.iter().max().copied()?;
        if stays.is_some_and(|here| !self.is_safer(here, map.get(task.vcpu), map.get(to))) {
            return None;
        }
        let least = best.saturating_sub(self.margin());
        let as_good = scores.iter().filter(|(score, Reverse(vcpu))| {
            *vcpu == to || *score >= least && map.hosted[vcpu.index()] == 0
        });
        let within = as_good.map(|(_, Reverse(vcpu))| *vcpu).collect();
        Some(Action::Move { task: task.id, to, within, by })
    }

    /// Tells whether a vCPU that has run less is worth a move. Slices are cut short at times, at
    /// any point. A task that is caught waits until its vCPU is back, and a fair host gives a vCPU
    /// back the sooner the less it has used: one that has used all of its slice waits for all
    /// others', one that has just begun for hardly more than one. So in the time for which the task
    /// would stay, a vCPU that has run less saves: chance of a cut × the difference × absence /
    /// slice.
    fn is_safer(
        &self,
        here: Prospect,
        home: Option<&Destination>,
        there: Option<&Destination>,
    ) -> bool {
        let (Some(home), Some(there)) = (home, there) else { return false };
        let Some(slice) = home.slice.filter(|slice| *slice > Nanos::ZERO) else { return false };
        let less = home.ran.saturating_sub(there.ran);
        let waits = less.scaled(home.absence.get(), slice.get());
        let stays = here.left.min(slice).scaled(self.monitor.cut_permille(), 1000);
        waits.scaled(stays.get(), slice.get()) > self.settings.monitor.period.scaled(1, 3)
    }

    /// Remainder of the slice at which parking is still too early.
    fn parks_with(&self, latency: Nanos) -> Nanos {
        latency + self.settings.monitor.period
    }

    /// Finds the vCPU on which an I/O is heard first, if that is sooner than where the task is. To
    /// wait there costs the rest of the slice here: so not before one more I/O would be late, with
    /// a period for the uncertainty of the slice's end.
    fn parking(&self, now: Instant, task: &Task, here: Prospect, map: &Map) -> Option<Action> {
        let too_early = here.left > self.parks_with(task.latency());
        if !self.settings.park || !map.runs(task.vcpu) || too_early {
            return None;
        }
        let others = map
            .places
            .iter()
            .flatten()
            .filter(|place| place.vcpu != task.vcpu && task.allowed.contains(place.vcpu));
        let heard =
            |place: &Destination| Some((self.prospect(now, task, place)?.heard, place.vcpu));
        let (heard, to) = others.filter_map(heard).min()?;
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
