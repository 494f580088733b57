//! From signs to slices: when each vCPU was given to the guest and taken away, what of
//! its slice is left, and when one that is away will be back.
//!
//! Source: vMigrater, section 3.2. A beat that comes late says that the vCPU was away at
//! the time at which it was due: it was taken away after the beat before, and is back
//! now. Slice = last beat - return before it; remaining = predicted slice - time since the
//! return. Where this differs from the paper (`literal` switches it off):
//!
//! - An absence shorter than two periods (600 µs) is no end of a slice. Beats come late
//!   by 15 µs, and in an emulated guest by hundreds, though nothing happened; and to leave
//!   a vCPU two periods before it goes cannot pay for an absence that is shorter.
//! - Beats may be sparse. Then the slice is only known to lie between the last beat and
//!   the time at which the next was due. Such a slice is taken down only when the whole
//!   of that span contradicts the prediction, and then its end that is nearer to it. So no
//!   prediction falls below what some slice really was by more than a period, however
//!   sparse the beats are (`predictions_never_fall_below_what_was_seen` below).
//! - `min8` leaves slices out that are shorter than 3/4 of the median of the eight or longer
//!   than 5/4: they were cut short, or two with an absence between that no beat fell into.
//!   Either comes without a warning and says nothing about the next.
//! - A vCPU of which few slices were seen is expected to have what others of the guest had.
//! - A vCPU that runs longer than predicted is expected to run until the next longer
//!   slice of the eight; and one that has outlived all of these, or was never seen to be
//!   taken away, for as long again as it has.

use super::{Sign, VcpuId, VcpuSet, VcpuView};
use crate::units::{Instant, Nanos};

/// Slices that are remembered of each vCPU.
const RECENT: usize = 8;
/// One slice in so many is watched to its end, where beats are sparse.
const WATCHED_OF: u32 = 4;

/// With so many slices seen of a vCPU what was seen of others counts no more.
const OWN: u64 = 4;
/// For so long one of which no slice was seen is watched every period.
const LEARNING: Nanos = Nanos::from_millis(100);

/// How the next slice follows from those seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Predict {
    /// It is as the last.
    Last,
    /// As the least of the last eight.
    Min8,
}

/// What is the same for all vCPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// From beat to beat, at the densest.
    pub period: Nanos,
    pub predict: Predict,
    /// As the paper has it.
    pub literal: bool,
}

impl Settings {
    /// A beat that comes later than this was kept from coming.
    pub fn tolerance(&self) -> Nanos {
        self.period.scaled(1, 2)
    }

    /// A beat that is missing for so long says that its vCPU is away.
    pub fn grace(&self) -> Nanos {
        self.tolerance().max(self.absence_min())
    }

    /// An absence that is shorter ends no slice.
    fn absence_min(&self) -> Nanos {
        if self.literal { Nanos::ZERO } else { self.period.scaled(2, 1) }
    }
}

/// What a vCPU is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It runs, as far as is known.
    Runs,
    /// The host has taken it away.
    Away,
    /// It has nothing to run.
    Idle,
}

/// The last few of some spans of time.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Recent {
    spans: [Nanos; RECENT],
    seen: u64,
    median: Option<Nanos>,
}

impl Recent {
    pub fn push(&mut self, span: Nanos) {
        self.spans[(self.seen % RECENT as u64) as usize] = span;
        self.seen += 1;
        let mut sorted = self.spans;
        let sorted = &mut sorted[..self.all().len()];
        sorted.sort_unstable();
        // Of an even number the lower one in the middle.
        self.median = sorted.get(sorted.len().saturating_sub(1) / 2).copied();
    }

    /// Asked for often: computed with each that comes.
    pub fn median(&self) -> Option<Nanos> {
        self.median
    }

    fn all(&self) -> &[Nanos] {
        &self.spans[..self.seen.min(RECENT as u64) as usize]
    }
}

/// One vCPU.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub state: State,
    /// When it was given back, if that was seen.
    since: Option<Instant>,
    /// It runs since then at least.
    runs_from: Instant,
    /// The last time at which it was known to run.
    pub seen: Instant,
    /// While it is away: when it was taken away, as far as is known.
    left: Instant,
    /// Its edges are told: it runs until one says that it does not.
    exact: bool,
    slices: Recent,
    absences: Recent,
    /// Slices with what of them is not expected again left out.
    usual: Usual,
    /// The slice that the last sign has told.
    learned: Option<Nanos>,
    /// What another vCPU's slice was before any of its own was seen.
    lent: Option<Nanos>,
    /// Slices in a row that were watched closely and ended unseen all the same.
    unseen_ends: u32,
    /// Slices since the last one that was watched closely.
    unwatched: u32,
    /// Time for which it was away before the present absence.
    away: Nanos,
}

/// What the prediction rests on: computed when a slice is learned, asked for often.
#[derive(Clone, Copy, Default, Debug)]
struct Usual {
    spans: [Nanos; RECENT],
    len: usize,
    least: Nanos,
    longest: Nanos,
}

impl Usual {
    fn of(spans: impl Iterator<Item = Nanos>) -> Usual {
        let mut usual = Usual::default();
        for span in spans.take(RECENT) {
            usual.spans[usual.len] = span;
            usual.least = if usual.len == 0 { span } else { usual.least.min(span) };
            usual.longest = usual.longest.max(span);
            usual.len += 1;
        }
        usual
    }
}

/// What a sign has told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum News {
    /// Nothing new.
    None,
    /// It does not run any more.
    Left,
    /// It runs again, or it was wrong to think that it does not.
    Back,
    /// The same, and it was really away.
    Returned,
}

impl Watch {
    fn new(now: Instant) -> Watch {
        Watch {
            state: State::Runs,
            since: None,
            runs_from: now,
            seen: now,
            left: now,
            exact: false,
            slices: Recent::default(),
            absences: Recent::default(),
            usual: Usual::default(),
            learned: None,
            lent: None,
            unseen_ends: 0,
            unwatched: 0,
            away: Nanos::ZERO,
        }
    }

    /// A sign made at `at`.
    fn heard(&mut self, at: Instant, sign: Sign, settings: &Settings) -> News {
        self.exact = !matches!(sign, Sign::Beat { .. });
        self.learned = None;
        match sign {
            Sign::Beat { due } => self.beat(at, due, settings),
            Sign::Preempted => {
                let news = if self.state == State::Runs { News::Left } else { News::None };
                self.state = State::Away;
                if news == News::Left {
                    (self.seen, self.left) = (at, at);
                }
                news
            }
            Sign::Resumed if self.state == State::Away => self.returned(at, self.left, settings),
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

    /// It is back. It was taken away after `seen`, and was away at `gone`.
    fn returned(&mut self, at: Instant, gone: Instant, settings: &Settings) -> News {
        let was = std::mem::replace(&mut self.state, State::Runs);
        let seen = std::mem::replace(&mut self.seen, at);
        if at.since(gone) < settings.absence_min() {
            return if was == State::Away { News::Back } else { News::None };
        }
        let left = self.left_at(seen, gone, settings);
        self.absences.push(at.since(left));
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
    fn missed(&mut self, due: Instant, settings: &Settings) -> bool {
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
        let slice = match () {
            () if settings.literal || sharp || least > predicted => least,
            () if most < predicted => most,
            () => return,
        };
        self.slices.push(slice);
        self.learned = Some(slice);
        let median = self.slices.median().unwrap_or(slice);
        let usual = median.scaled(3, 4)..=median.scaled(5, 4);
        let (kept, lent) = match settings.predict {
            Predict::Last => (&[slice][..], None),
            Predict::Min8 => (self.slices.all(), self.lent.filter(|_| self.slices() < OWN)),
        };
        let usual = kept.iter().filter(|span| kept.len() == 1 || usual.contains(span));
        self.usual = Usual::of(usual.copied().chain(lent));
    }

    fn usual(&self) -> &[Nanos] {
        &self.usual.spans[..self.usual.len]
    }

    /// The slice that it is expected to have, once one was seen.
    pub fn predicted(&self) -> Option<Nanos> {
        (self.usual.len > 0).then_some(self.usual.least)
    }

    /// What is expected to be left of its slice; `None` when nothing can be said or it
    /// does not run.
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
        // It runs for sure up to what was seen of it.
        let surely = if self.exact { now } else { self.seen };
        let unseen = now.since(surely);
        let next = self.usual().iter().filter(|span| **span > ran).min();
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

    /// It runs since then, or longer.
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

    /// When its monitor is to beat, where beats are sparse: at a time that lies in its next
    /// absence, so that its return is seen; and if this slice's end is to be seen, every
    /// period from two periods before it, or earlier if it was missed before.
    pub fn next_beat(&self, settings: &Settings, rest_max: Nanos) -> Instant {
        let ran = self.seen.since(self.runs_from);
        let early = self.predicted().filter(|_| self.slices() > 0).unwrap_or(Nanos::ZERO);
        let early = early.saturating_sub(settings.period.scaled(2, 1));
        // What is taken for one slice may be two or three with as many absences between:
        // one of them lies in the middle or at a third.
        let within = early.scaled(1, 2 + self.slices() % 2);
        let from = match self.is_watched() {
            true if self.unseen_ends == 0 && ran < within => within,
            true => early.scaled(1, 1 << self.unseen_ends.min(16)),
            false => self.predicted().unwrap_or(Nanos::ZERO) + settings.period,
        };
        if self.since.is_some() && ran < from {
            return self.runs_from + from;
        }
        // The longer it goes on beyond what was ever seen, the less often.
        let known = if self.slices() == 0 { LEARNING } else { self.longest() };
        let beyond = ran.saturating_sub(known);
        self.seen + settings.period.max(beyond.scaled(1, 8)).min(rest_max)
    }

    /// When it is expected back if it is away. One that is overdue: after as long again.
    pub fn back_at(&self, now: Instant) -> Instant {
        let expected = self.left + self.absence();
        if expected > now { expected } else { now + now.since(expected) }
    }

    /// How long it is away, as a rule. Before that was seen: for one other's slice.
    pub fn absence(&self) -> Nanos {
        self.absences.median().or(self.predicted()).unwrap_or(Nanos::ZERO)
    }

    /// Mean of the last eight slices.
    pub fn mean_slice(&self) -> Nanos {
        let all = self.slices.all();
        let sum = all.iter().fold(Nanos::ZERO, |sum, span| sum + *span);
        sum.scaled(1, all.len() as u64)
    }

    /// Slices seen.
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

/// Are these so near that what lies between is as good as known?
fn is_sharp(seen: Instant, gone: Instant, settings: &Settings) -> bool {
    gone.since(seen) <= settings.period.scaled(3, 2)
}

/// All vCPUs.
#[derive(Clone, Debug)]
pub(super) struct Monitor {
    pub settings: Settings,
    watches: Vec<Option<Watch>>,
    pub online: VcpuSet,
}

impl Monitor {
    pub fn new(settings: Settings) -> Monitor {
        Monitor { settings, watches: Vec::new(), online: VcpuSet::EMPTY }
    }

    /// These are on line. What is known of those that stay is kept.
    pub fn attach(&mut self, now: Instant, online: &VcpuSet) {
        self.online = *online;
        self.watches.resize(online.iter().last().map_or(0, |last| last.index() + 1), None);
        for (n, watch) in self.watches.iter_mut().enumerate() {
            if !online.contains(VcpuId::new(n as u16)) {
                *watch = None;
            } else if watch.is_none() {
                *watch = Some(Watch::new(now));
            }
        }
    }

    /// A sign of a vCPU; one that is off line is not looked at.
    pub fn heard(&mut self, at: Instant, vcpu: VcpuId, sign: Sign) -> News {
        let settings = self.settings;
        let watch = self.watches.get_mut(vcpu.index()).and_then(Option::as_mut);
        let Some(watch) = watch else { return News::None };
        let news = watch.heard(at, sign, &settings);
        if let Some(slice) = watch.learned.filter(|_| !settings.literal) {
            self.lend(slice);
        }
        news
    }

    /// Of a vCPU of which no slice was seen the same is expected as of others.
    fn lend(&mut self, slice: Nanos) {
        for watch in self.watches.iter_mut().flatten().filter(|watch| watch.slices() == 0) {
            watch.usual = Usual::of(std::iter::once(slice));
            watch.lent = Some(slice);
        }
    }

    /// A beat that was due has not come: the vCPU is away. Was it thought to run?
    pub fn missed(&mut self, vcpu: VcpuId, due: Instant) -> bool {
        let settings = self.settings;
        let watch = self.watches.get_mut(vcpu.index()).and_then(Option::as_mut);
        watch.is_some_and(|watch| watch.missed(due, &settings))
    }

    pub fn get(&self, vcpu: VcpuId) -> Option<&Watch> {
        self.watches.get(vcpu.index())?.as_ref()
    }

    /// What is left of a vCPU's slice; `None` if it is off line, or away, or that is unknown.
    pub fn remaining(&self, now: Instant, vcpu: VcpuId) -> Option<Nanos> {
        self.get(vcpu)?.remaining(now, &self.settings)
    }

    /// For `status` and reports.
    pub fn view(&self, now: Instant) -> Vec<VcpuView> {
        let view = |(vcpu, watch): (VcpuId, &Watch)| VcpuView {
            vcpu,
            active: watch.state != State::Away,
            slice: watch.predicted(),
            remaining: watch.remaining(now, &self.settings),
            slices: watch.slices(),
            away: watch.away(now),
        };
        self.all().map(view).collect()
    }

    /// Those on line, in ascending order.
    pub fn all(&self) -> impl Iterator<Item = (VcpuId, &Watch)> {
        let watches = self.watches.iter().enumerate();
        watches.filter_map(|(n, watch)| Some((VcpuId::new(n as u16), watch.as_ref()?)))
    }
}

#[cfg(test)]
mod tests;
