//! One vCPU: from its signs to its slices.

use super::slices::{Recent, Usual};
use super::{Predict, Settings};
use crate::Sign;
use seekway_core::units::{Instant, Nanos};

/// With sparse beats, one slice of this number is watched to its end.
const WATCHED_OF: u32 = 4;

/// Slices of a vCPU after which those of others stop counting for it.
const OWN: u64 = 4;
/// Time for which a vCPU without a known slice is watched every period.
const LEARNING: Nanos = Nanos::from_millis(100);

/// Activity of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum State {
    /// Runs, as far as is known.
    #[default]
    Runs,
    /// The host has taken it away.
    Away,
    /// Has nothing to run.
    Idle,
}

/// State of one vCPU, learned from its signs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    pub state: State,
    /// When it was given back, if that was seen.
    since: Option<Instant>,
    /// The time from which it certainly runs.
    runs_from: Instant,
    /// The last time at which it was known to run.
    pub seen: Instant,
    /// While it is away: when it was taken away, as far as is known.
    left: Instant,
    /// While it is away, with edges: the time at which it had certainly gone.
    gone: Instant,
    /// Edges are told: it runs until one says that it does not.
    exact: bool,
    slices: Recent,
    absences: Recent,
    /// Slices without those that are not expected again.
    usual: Usual,
    /// Number of remembered slices that were cut short.
    pub(super) cut: usize,
    /// The slice that the last sign revealed.
    pub(super) learned: Option<Nanos>,
    /// Another vCPU's slice, before any of its own was seen.
    lent: Option<Nanos>,
    /// Slices in a row that were watched closely and ended unseen all the same.
    unseen_ends: u32,
    /// Slices after the last one that was watched closely.
    unwatched: u32,
    /// Number of beats; their intervals vary.
    pub beats: u64,
    /// Time for which it was away before the present absence.
    away: Nanos,
}

/// Meaning of a sign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// No change of state.
    None,
    /// The vCPU has stopped running.
    Left,
    /// The vCPU runs again, or was wrongly taken to be away.
    Back,
    /// The vCPU runs again after a real absence.
    Returned,
}

impl Watch {
    pub(super) fn new(now: Instant) -> Watch {
        Watch { runs_from: now, seen: now, left: now, gone: now, ..Watch::default() }
    }

    /// A sign made at `at`.
    pub(super) fn heard(&mut self, at: Instant, sign: Sign, settings: &Settings) -> News {
        self.exact = !matches!(sign, Sign::Beat { .. });
        self.learned = None;
        match sign {
            Sign::Beat { due } => self.beat(at, due, settings),
            Sign::Preempted => {
                if self.state == State::Away {
                    return News::None;
                }
                // An idle vCPU wants to run and has to wait: its absence begins now.
                (self.state, self.seen) = (State::Away, at);
                (self.left, self.gone) = (at, at);
                News::Left
            }
            Sign::Lost { by } => {
                if self.state == State::Away {
                    return News::None;
                }
                let by = by.max(at);
                self.left = self.left_at(at, by, settings);
                (self.state, self.seen, self.gone) = (State::Away, at, by);
                News::Left
            }
            Sign::Resumed if self.state == State::Away => self.returned(at, self.gone, settings),
            Sign::Resumed | Sign::Idle => {
                let idle = sign == Sign::Idle;
                let was = self.state;
                if idle && was == State::Away {
                    self.away += at.since(self.left);
                }
                self.state = if idle { State::Idle } else { State::Runs };
                (self.since, self.runs_from, self.seen) = ((!idle).then_some(at), at, at);
                if was == self.state { News::None } else { News::Back }
            }
        }
    }

    fn beat(&mut self, at: Instant, due: Option<Instant>, settings: &Settings) -> News {
        self.beats += 1;
        let late = due.map_or(Nanos::ZERO, |due| at.since(due));
        if late > settings.tolerance() {
            return self.returned(at, due.unwrap_or(at).max(self.seen), settings);
        }
        // After a long rest it may have been away and back again, unseen.
        let rest = self.predicted().unwrap_or(Nanos::ZERO) + settings.period.scaled(2, 1);
        let rest = rest.max(at.since(self.runs_from).scaled(1, 4));
        if due.is_none() || at.since(self.seen) > rest {
            (self.since, self.runs_from) = (None, at);
        }
        self.seen = at;
        let was = std::mem::replace(&mut self.state, State::Runs);
        if was == State::Away { News::Back } else { News::None }
    }

    /// Records a return. The vCPU was taken away after `seen`, and was away at `gone`.
    fn returned(&mut self, at: Instant, gone: Instant, settings: &Settings) -> News {
        let was = std::mem::replace(&mut self.state, State::Runs);
        let seen = std::mem::replace(&mut self.seen, at);
        let none = if was == State::Away { News::Back } else { News::None };
        if at.since(gone) < settings.absence {
            return none;
        }
        let left = self.left_at(seen, gone, settings);
        let usual = self.absences.median().min(self.slices.median()).unwrap_or(Nanos::ZERO);
        self.absences.push(at.since(left));
        if !settings.literal && !self.exact && at.since(left) < usual.scaled(1, 4) {
            return none;
        }
        self.away += at.since(left);
        if let Some(since) = self.since {
            self.learn(seen.since(since), gone.since(since), settings);
        }
        (self.since, self.runs_from) = (Some(at), at);
        News::Returned
    }

    /// When it was taken away that ran at `seen` and was away at `gone`: the last beat, as
    /// the paper has it; as predicted, where that leaves too much open.
    fn left_at(&self, seen: Instant, gone: Instant, settings: &Settings) -> Instant {
        if settings.literal || is_sharp(seen, gone, settings) {
            return seen;
        }
        match (self.since, self.predicted()) {
            (Some(since), Some(slice)) => (since + slice).clamp(seen, gone),
            _ => gone,
        }
    }

    /// The beat that was due at `due` has not come. Was it thought to run?
    pub(super) fn missed(&mut self, due: Instant, settings: &Settings) -> bool {
        let ran = self.state == State::Runs;
        if ran {
            self.left = self.left_at(self.seen, due.max(self.seen), settings);
            self.state = State::Away;
        }
        ran
    }

    /// A slice has ended that was no shorter than `least` and no longer than `most`.
    fn learn(&mut self, least: Nanos, most: Nanos, settings: &Settings) {
        let predicted = self.predicted().unwrap_or(least);
        let sharp = is_sharp(Instant::ZERO + least, Instant::ZERO + most, settings);
        if self.is_watched() {
            self.unseen_ends = if sharp { 0 } else { self.unseen_ends + 1 };
            self.unwatched = 0;
        } else {
            self.unwatched += 1;
        }
        // Beats are dense until the first sharp slice; with edges they are never dense.
        let first = self.exact && self.slices() == 0;
        let slice = match () {
            () if settings.literal || sharp || first || least > predicted => least,
            () if most < predicted => most,
            () => return,
        };
        self.slices.push(slice);
        self.learned = Some(slice);
        let median = self.slices.median().unwrap_or(slice);
        let usual = median.scaled(3, 4)..=median.scaled(5, 4);
        self.cut = self.slices.all().iter().filter(|span| *span < usual.start()).count();
        let (kept, lent) = match settings.predict {
            Predict::Last => (&[slice][..], None),
            Predict::Min8 => (self.slices.all(), self.lent.filter(|_| self.slices() < OWN)),
        };
        let usual = kept.iter().filter(|span| kept.len() == 1 || usual.contains(span));
        self.usual = Usual::of(usual.copied().chain(lent));
    }

    /// The slice that it is expected to have, once one was seen.
    pub fn predicted(&self) -> Option<Nanos> {
        (self.usual.len > 0).then_some(self.usual.least)
    }

    /// Expected remainder of its slice; `None` when nothing can be said or it does not run.
    pub fn remaining(&self, now: Instant, settings: &Settings) -> Option<Nanos> {
        let predicted = self.predicted();
        match self.state {
            State::Away => return None,
            State::Idle => return predicted,
            State::Runs => {}
        }
        if settings.literal {
            return Some(predicted?.saturating_sub(now.since(self.since?)));
        }
        let ran = now.since(self.runs_from);
        // It certainly ran until the last sign.
        let surely = if self.exact { now } else { self.seen };
        let unseen = now.since(surely);
        let next = self.usual.all().iter().filter(|span| **span > ran).min();
        match (self.since, next) {
            (Some(_), Some(next)) => Some(next.saturating_sub(ran)),
            // Outlived all that was seen: as long again. The same if it began unseen.
            (_, None) if self.usual.len == 0 && ran < LEARNING => None,
            (_, None) => {
                let beyond = surely.since(self.runs_from).saturating_sub(self.longest());
                Some(beyond.saturating_sub(unseen))
            }
            (None, Some(_)) => None,
        }
    }

    /// The latest time from which it is known to run.
    pub fn runs_from(&self) -> Instant {
        self.runs_from
    }

    /// The longest slice that is expected; zero if none was seen.
    fn longest(&self) -> Nanos {
        self.usual.longest
    }

    /// Is the end of this slice to be seen? Every fourth is enough to keep up with a host
    /// that changes its mind, until one ends before it was looked for.
    fn is_watched(&self) -> bool {
        self.slices() == 0 || self.unseen_ends > 0 || self.unwatched + 1 >= WATCHED_OF
    }

    /// Time of the next sparse beat: within the vCPU's next absence, so that its return is seen;
    /// and if the end of this slice should be seen, every period from two periods before it, or
    /// earlier if the last end went unseen.
    pub fn next_beat(&self, settings: &Settings, rest_max: Nanos) -> Instant {
        let ran = self.seen.since(self.runs_from);
        let early = self.predicted().filter(|_| self.slices() > 0).unwrap_or(Nanos::ZERO);
        let early = early.saturating_sub(settings.period.scaled(2, 1));
        // One slice may really be two or three with absences between: one of those is in the middle
        // or at a third.
        let within = early.scaled(1, 2 + self.slices() % 2);
        let from = match self.is_watched() {
            true if self.unseen_ends == 0 && ran < within => within,
            true => early.scaled(1, 1 << self.unseen_ends.min(16)),
            false => self.predicted().unwrap_or(Nanos::ZERO) + settings.period,
        };
        if self.since.is_some() && ran < from {
            return self.runs_from + from;
        }
        // The longer it outlives the longest known slice, the rarer the beats.
        let known = if self.slices() == 0 { LEARNING } else { self.longest() };
        let beyond = ran.saturating_sub(known);
        self.seen + settings.period.max(beyond.scaled(1, 8)).min(rest_max)
    }

    /// Expected return of an absent vCPU. An overdue one is expected after as long again.
    pub fn back_at(&self, now: Instant) -> Instant {
        let expected = self.left + self.absence();
        if expected > now { expected } else { now + now.since(expected) }
    }

    /// Of one of which no slice was seen the same is expected as of others.
    pub(super) fn lend(&mut self, slice: Nanos) {
        self.usual = Usual::of(std::iter::once(slice));
        self.lent = Some(slice);
    }

    /// Usual length of its absences; before one was seen, of one other vCPU's slice.
    pub fn absence(&self) -> Nanos {
        self.absences.median().or(self.predicted()).unwrap_or(Nanos::ZERO)
    }

    /// Mean of the last eight slices.
    pub fn mean_slice(&self) -> Nanos {
        let all = self.slices.all();
        let sum = all.iter().fold(Nanos::ZERO, |sum, span| sum + *span);
        sum.scaled(1, all.len() as u64)
    }

    pub(super) fn remembered(&self) -> usize {
        self.slices.all().len()
    }

    /// Number of slices whose length was learned.
    pub fn slices(&self) -> u64 {
        self.slices.seen
    }

    /// Time for which it was away up to now.
    pub fn away(&self, now: Instant) -> Nanos {
        match self.state {
            State::Away => self.away + now.since(self.left),
            _ => self.away,
        }
    }
}

/// Tells whether the two times are near enough that the end between them is known.
fn is_sharp(seen: Instant, gone: Instant, settings: &Settings) -> bool {
    gone.since(seen) <= settings.period.scaled(3, 2)
}
