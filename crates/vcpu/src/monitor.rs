//! Derives slices from signs: when each vCPU was given to the guest and taken away, the expected
//! remainder of its slice, and the expected return of one that is away.
//!
//! Source: vMigrater, section 3.2. A beat that comes late says that the vCPU was away at
//! the time at which it was due: it was taken away after the beat before, and is back
//! now. Slice = last beat - return before it; remaining = predicted slice - time since the
//! return. Where this differs from the paper (`literal` switches it off):
//!
//! - An absence shorter than two periods (600 µs) does not end a slice. Beats are late by 15 µs,
//!   and in an emulated guest by hundreds, without any absence; and a move two periods before an
//!   absence cannot pay if that is shorter.
//! - With beats, nor does an absence shorter than a quarter of the usual one and of the usual
//!   slice: a host that takes a vCPU away keeps it for a slice, and an emulated guest's timers are
//!   late by milliseconds at times. When most absences are that short, short is usual.
//! - Beats may be sparse. Then the end of a slice is only known to be between the last beat and the
//!   due time of the next. Such a slice is recorded only when all of that span contradicts the
//!   prediction, and then with its nearer end. So no prediction falls below some real slice by more
//!   than a period, however sparse the beats are (`predictions_never_fall_below_what_was_seen`
//!   below).
//! - `min8` leaves out slices that are shorter than 3/4 of the median of the eight or longer than
//!   5/4: they were cut short, or are two with an unseen absence between. Either comes without a
//!   warning and says nothing about the next.
//! - A vCPU with few known slices is expected to have those of the guest's other vCPUs.
//! - A vCPU that runs longer than predicted is expected to run until the next longer slice of the
//!   eight; one that has outlived all of these, or was never taken away, for as long again as it
//!   has.

use super::{Sign, VcpuId, VcpuSet, VcpuView};
use seekway_core::units::{Instant, Nanos};

/// Prediction of the next slice from those seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Predict {
    /// As long as the last.
    Last,
    /// As the least of the last eight.
    #[default]
    Min8,
}

/// Settings that hold for all vCPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    /// From beat to beat, at the densest.
    pub period: Nanos,
    pub predict: Predict,
    /// An absence that is shorter ends no slice.
    pub absence: Nanos,
    /// As the paper has it.
    pub literal: bool,
}

impl Settings {
    /// A beat that comes later than this was kept from coming.
    pub fn tolerance(&self) -> Nanos {
        self.period.scaled(1, 2)
    }

    /// Time without a beat after which a vCPU counts as away.
    pub fn grace(&self) -> Nanos {
        self.tolerance().max(self.absence)
    }
}

/// State of each vCPU that is on line.
#[derive(Clone, Debug, Default)]
pub(super) struct Monitor {
    pub settings: Settings,
    watches: Vec<Option<Watch>>,
    pub online: VcpuSet,
}

impl Monitor {
    pub fn new(settings: Settings) -> Monitor {
        Monitor { settings, ..Monitor::default() }
    }

    /// Sets the vCPUs that are on line. Those that stay keep their state.
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

    /// Takes a sign of a vCPU, unless it is off line.
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
            watch.lend(slice);
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

    /// Of the slices that are remembered, how many were much shorter than is usual, in
    /// thousandths.
    pub fn cut_permille(&self) -> u64 {
        let (cut, all) = self
            .watches
            .iter()
            .flatten()
            .fold((0, 0), |(cut, all), watch| (cut + watch.cut, all + watch.remembered()));
        (cut * 1000).checked_div(all).unwrap_or(0) as u64
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

// The last few spans of time, and the next one that they predict.

/// Slices that are remembered of each vCPU.
const RECENT: usize = 8;

/// The last few of some spans of time.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Recent {
    spans: [Nanos; RECENT],
    pub seen: u64,
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

    pub fn all(&self) -> &[Nanos] {
        &self.spans[..self.seen.min(RECENT as u64) as usize]
    }
}

/// Basis of the prediction: computed when a slice is learned, asked for often.
#[derive(Clone, Copy, Default, Debug)]
struct Usual {
    spans: [Nanos; RECENT],
    pub len: usize,
    pub least: Nanos,
    pub longest: Nanos,
}

impl Usual {
    pub fn of(spans: impl Iterator<Item = Nanos>) -> Usual {
        let mut usual = Usual::default();
        for span in spans.take(RECENT) {
            usual.spans[usual.len] = span;
            usual.least = if usual.len == 0 { span } else { usual.least.min(span) };
            usual.longest = usual.longest.max(span);
            usual.len += 1;
        }
        usual
    }

    pub fn all(&self) -> &[Nanos] {
        &self.spans[..self.len]
    }
}

// One vCPU: from its signs to its slices.

/// With sparse beats, one slice of this number is watched to its end.
const WATCHED_OF: u32 = 4;

/// Slices of a vCPU after which those of others stop counting for it.
const OWN: u64 = 4;

/// Time for which a vCPU without a known slice is watched every period.
const LEARNING: Nanos = Nanos::from_millis(100);

/// Activity of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum State {
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
pub(super) struct Watch {
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
    cut: usize,
    /// The slice that the last sign revealed.
    learned: Option<Nanos>,
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
pub(super) enum News {
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
    fn new(now: Instant) -> Watch {
        Watch { runs_from: now, seen: now, left: now, gone: now, ..Watch::default() }
    }

    /// A sign made at `at`.
    fn heard(&mut self, at: Instant, sign: Sign, settings: &Settings) -> News {
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
    fn lend(&mut self, slice: Nanos) {
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

    fn remembered(&self) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = Nanos::from_micros(300);

    fn us(us: u64) -> Nanos {
        Nanos::from_micros(us)
    }

    fn at(us: u64) -> Instant {
        Instant::ZERO + Nanos::from_micros(us)
    }

    fn settings(literal: bool) -> Settings {
        let predict = if literal { Predict::Last } else { Predict::Min8 };
        let absence = if literal { Nanos::ZERO } else { us(600) };
        Settings { period: PERIOD, predict, absence, literal }
    }

    fn remaining(monitor: &Monitor, now: Instant, vcpu: VcpuId) -> Option<Nanos> {
        monitor.get(vcpu)?.remaining(now, &monitor.settings)
    }

    /// One vCPU, with the beats that it is asked for and a host that takes it away.
    struct Host {
        monitor: Monitor,
        now: u64,
        sparse: bool,
        beats: u64,
    }

    const V: VcpuId = VcpuId::new(0);

    impl Host {
        fn new(literal: bool, sparse: bool) -> Host {
            let mut monitor = Monitor::new(settings(literal));
            monitor.attach(at(0), &VcpuSet::only(V));
            Host { monitor, now: 0, sparse, beats: 0 }
        }

        fn watch(&self) -> &Watch {
            self.monitor.get(V).unwrap()
        }

        fn due(&self) -> Instant {
            match self.sparse {
                true => self.watch().next_beat(&self.monitor.settings, Nanos::from_millis(100)),
                false => self.watch().seen + PERIOD,
            }
        }

        fn beat(&mut self, when: Instant) -> News {
            let due = Some(self.due());
            self.beats += 1;
            self.monitor.heard(when, V, Sign::Beat { due })
        }

        /// Lets the vCPU run for `runs` and be away for `away`, then gives it back.
        fn round(&mut self, runs: u64, away: u64) {
            let ends = at(self.now + runs);
            while self.due() < ends {
                self.beat(self.due());
            }
            self.now += runs + away;
            if self.due() <= at(self.now) {
                self.beat(at(self.now));
            }
        }
    }

    #[test]
    fn the_paper_takes_the_last_beat_for_the_end_and_the_late_one_for_the_beginning() {
        let mut host = Host::new(true, false);
        host.round(5_000, 11_000);
        assert_eq!(host.watch().predicted(), None, "how long it had run before nobody knows");
        host.round(11_000, 11_000);
        assert_eq!(host.watch().predicted(), Some(us(10_800)));
        assert_eq!(remaining(&host.monitor, at(host.now + 3_000), V), Some(us(7_800)));
        assert_eq!(remaining(&host.monitor, at(host.now + 13_000), V), Some(Nanos::ZERO));
        host.round(3_000, 11_000);
        assert_eq!(host.watch().predicted(), Some(us(2_700)), "the last one counts");
        assert_eq!(host.watch().slices(), 2);
    }

    #[test]
    fn a_late_beat_is_no_absence_where_nothing_was_to_be_gained() {
        for (literal, slices) in [(true, 20), (false, 0)] {
            let mut host = Host::new(literal, false);
            host.round(1_000, 11_000);
            for _ in 0..20 {
                host.beat(host.due() + us(500)); // as in an emulated guest
            }
            assert_eq!(host.watch().slices(), slices, "literal: {literal}");
        }
    }

    #[test]
    fn the_least_of_eight_without_those_that_were_cut_short() {
        let mut host = Host::new(false, false);
        for runs in [5_000, 11_200, 10_900, 11_100, 2_000, 11_000, 11_200] {
            host.round(runs, 11_000);
        }
        assert_eq!(host.watch().predicted(), Some(us(10_800)));
        // Every one is short now: that is how long they are.
        (0..8).for_each(|_| host.round(2_000, 11_000));
        assert_eq!(host.watch().predicted(), Some(us(1_800)));
    }

    #[test]
    fn one_that_outlives_what_was_seen_is_expected_to_go_on() {
        let mut host = Host::new(false, false);
        (0..6).for_each(|_| host.round(11_000, 11_000));
        let left = |host: &Host, ran: u64| remaining(&host.monitor, at(host.now + ran), V);
        assert_eq!(left(&host, 10_700), Some(us(100)));
        assert_eq!(left(&host, 10_800), Some(Nanos::ZERO));
        // Beats show that it runs on: expect as long again as it has outlived the longest.
        let began = host.now;
        while host.due() < at(began + 16_000) {
            host.beat(host.due());
        }
        assert_eq!(left(&host, 15_900), Some(us(5_100)));
        // Without them nothing is known of it, and less is expected.
        assert_eq!(left(&host, 19_000), Some(us(2_000)));
    }

    #[test]
    fn edges_are_exact_and_interruptions_end_nothing() {
        let mut monitor = Monitor::new(settings(false));
        monitor.attach(at(0), &VcpuSet::only(V));
        assert_eq!(monitor.heard(at(100), V, Sign::Preempted), News::Left);
        assert_eq!(monitor.heard(at(11_100), V, Sign::Resumed), News::Returned);
        assert_eq!(monitor.heard(at(14_000), V, Sign::Preempted), News::Left);
        assert_eq!(monitor.heard(at(14_200), V, Sign::Resumed), News::Back, "of 200 us");
        assert_eq!(monitor.heard(at(22_100), V, Sign::Preempted), News::Left);
        let watch = monitor.get(V).unwrap();
        assert_eq!((watch.back_at(at(22_100)), watch.away(at(22_200))), (at(33_100), us(11_100)));
        // Overdue: after as long again.
        assert_eq!(watch.back_at(at(34_100)), at(35_100));
        assert_eq!(monitor.heard(at(33_100), V, Sign::Resumed), News::Returned);
        assert_eq!(monitor.get(V).unwrap().predicted(), Some(us(11_000)));
        assert_eq!(monitor.heard(at(35_000), V, Sign::Idle), News::Back);
        assert_eq!(remaining(&monitor, at(40_000), V), Some(us(11_000)), "its slice is not used");
    }

    #[test]
    fn a_vcpu_learns_from_others_until_it_knows_better() {
        let other = VcpuId::new(1);
        let mut monitor = Monitor::new(settings(false));
        monitor.attach(at(0), &VcpuSet::first(2));
        for n in 0..3 {
            monitor.heard(at(n * 22_000), V, Sign::Resumed);
            monitor.heard(at(n * 22_000 + 11_000), V, Sign::Preempted);
        }
        assert_eq!(monitor.get(other).unwrap().predicted(), Some(us(11_000)));
        monitor.attach(at(70_000), &VcpuSet::only(other));
        assert!(monitor.get(V).is_none() && monitor.get(other).is_some(), "0 went off line");
        assert_eq!(monitor.heard(at(71_000), V, Sign::Resumed), News::None);
    }

    /// Sparse beats, varying slices and cut ones: a prediction is no less than some slice of the last
    /// eight learned ones, but for a period.
    #[test]
    fn predictions_never_fall_below_what_was_seen() {
        for seed in 1..200u64 {
            let mut random = seed;
            let mut draw = |most: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % most
            };
            let mut host = Host::new(false, true);
            let mut least = u64::MAX;
            for n in 0..200 {
                let whole = 10_700 + draw(600);
                let runs = if draw(10) == 0 { 700 + draw(10_000) } else { whole };
                host.round(runs, 2_000 + draw(60_000));
                if n > 0 {
                    least = least.min(runs);
                }
                let predicted = host.watch().predicted().unwrap_or(us(least));
                assert!(predicted + PERIOD >= us(least), "seed {seed}: {predicted} of {least} us");
            }
            // The prediction is right: slices cut to less than 3/4 are left out.
            let predicted = host.watch().predicted().unwrap();
            assert!(predicted + PERIOD >= us(10_700 * 3 / 4), "seed {seed}: {predicted} of 11 ms");
        }
    }

    #[test]
    fn sparse_beats_are_few_and_find_slices_that_have_become_shorter() {
        let mut host = Host::new(false, true);
        (0..60).for_each(|_| host.round(11_000, 11_000));
        let (beats, predicted) = (host.beats, host.watch().predicted());
        assert!(beats < 60 * 5, "{beats} beats in 60 slices");
        assert!(predicted.is_some_and(|p| p >= us(10_400)), "{predicted:?}");
        (0..60).for_each(|_| host.round(4_000, 4_000));
        let predicted = host.watch().predicted();
        assert!(predicted.is_some_and(|p| p <= us(4_300) && p >= us(3_400)), "{predicted:?}");
    }

    /// Two slices with an unseen absence between were once taken for one, and for ever.
    #[test]
    fn a_slice_that_is_really_three_is_found_out() {
        let mut host = Host::new(false, true);
        (0..6).for_each(|_| host.round(33_000, 33_000));
        (0..60).for_each(|_| host.round(11_000, 11_000));
        let predicted = host.watch().predicted();
        assert!(predicted.is_some_and(|p| p <= us(11_300)), "{predicted:?}");
    }

    #[test]
    fn one_that_was_idle_and_has_to_wait_is_away_from_then_on() {
        let mut monitor = Monitor::new(settings(false));
        monitor.attach(at(0), &VcpuSet::only(V));
        assert_eq!(monitor.heard(at(1_000), V, Sign::Idle), News::Back);
        assert_eq!(monitor.heard(at(50_000), V, Sign::Preempted), News::Left);
        let watch = monitor.get(V).unwrap();
        assert_eq!((watch.state, watch.away(at(52_000))), (State::Away, us(2_000)));
        assert_eq!(monitor.heard(at(50_200), V, Sign::Resumed), News::Back, "of 200 us, not 49 ms");
    }

    /// As in an emulated guest, whose timers are late by 1 to 8 ms at times.
    #[test]
    fn beats_that_come_late_now_and_then_end_no_slice() {
        let mut host = Host::new(false, true);
        (0..20).for_each(|_| host.round(11_000, 33_000));
        for n in 0..200 {
            // Late by 1 to 7 ms at the same point of every third slice.
            if n % 3 == 0 {
                let due = host.due();
                if due + us(8_000) < at(host.now + 11_000) {
                    host.beat(due + us(1_000 + n % 7 * 1_000));
                }
            }
            host.round(11_000, 33_000);
            let predicted = host.watch().predicted().unwrap();
            assert!(predicted >= us(10_400), "round {n}: {predicted}");
        }
        // When all are short that is how they are.
        (0..40).for_each(|_| host.round(4_000, 4_000));
        let predicted = host.watch().predicted().unwrap();
        assert!(predicted <= us(4_300), "{predicted}");
        assert!(host.watch().absence() <= us(4_300));
    }

    /// Slices of 11 ms whose ends are known to a tick of 4 ms, whenever the last tick was.
    #[test]
    fn ends_that_are_known_to_a_span_do_not_make_slices_short() {
        let predicted = |spans: bool| {
            let mut monitor = Monitor::new(settings(false));
            monitor.attach(at(0), &VcpuSet::only(V));
            for n in 0..32 {
                let (back, last) = (22_000 * n, 22_000 * n + 11_000 - 370 * (n * 7 % 11));
                monitor.heard(at(back), V, Sign::Resumed);
                let loss =
                    if spans { Sign::Lost { by: at(last + 4_000) } } else { Sign::Preempted };
                monitor.heard(at(last), V, loss);
            }
            monitor.get(V).unwrap().predicted().unwrap()
        };
        assert_eq!(predicted(false), us(7_300), "the shortest of eight");
        let spans = predicted(true);
        assert!((us(10_000)..=us(11_000)).contains(&spans), "{spans:?}");
    }
}
