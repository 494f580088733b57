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

mod slices;
mod watch;

use super::{Sign, VcpuId, VcpuSet, VcpuView};
use seekway_core::units::{Instant, Nanos};
pub(super) use slices::Recent;
pub(super) use watch::{News, State, Watch};

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

#[cfg(test)]
mod tests;
