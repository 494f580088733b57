//! When each vCPU's monitor beats, and whether there is anything to do at all.
//!
//! Each beat costs, in an emulated guest a hundred times what it costs in others; most
//! tell nothing. A monitor whose beat is due while its vCPU is away beats the moment it is
//! back: so returns are known to the microsecond if one beat falls into each absence. What
//! dense beats are for is the time at which a vCPU is taken away, and that changes seldom.
//! With `beats=sparse`:
//!
//! - Inert, while no absence was seen (two within a second): ten beats a second for each
//!   vCPU, no windows, no actions. One that is away a tenth of its time is seen within a
//!   second; two vCPUs that are away half of it within a tenth of one.
//! - Shared, and nobody is I/O-bound: the same beats, and windows.
//! - Somebody is: one beat a slice, just after its expected end. In one slice of four, and
//!   after one that ended before it was expected to, every period from two periods before
//!   that end. A vCPU that outlives all that was seen of it beats the less often the longer
//!   it does.
//!
//! What is lost: a slice that is cut short is seen when it was expected to end. There is
//! little to be done about it before: what its tasks wait for completes on it.

use super::super::monitor::{News, State, Watch};
use super::super::{Sign, VcpuId};
use super::VMigrater;
use crate::units::{Instant, Nanos};

/// From beat to beat where nothing is expected.
const PROBE: Nanos = Nanos::from_millis(100);
/// Two absences within this: there is somebody to share with.
const SHARED_WITHIN: Nanos = Nanos::from_secs(1);
/// That holds for so long.
const SHARED_FOR: Nanos = Nanos::from_secs(2);

/// Does anybody take our vCPUs away?
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sharing {
    /// The last absence.
    last: Option<Instant>,
    /// Yes, until then.
    until: Option<Instant>,
    /// Edges are told; there are no beats.
    exact: bool,
}

impl Sharing {
    pub fn heard(&mut self, at: Instant, sign: Sign, news: News) {
        self.exact = !matches!(sign, Sign::Beat { .. });
        if news != News::Returned {
            return;
        }
        if self.last.is_some_and(|last| at.since(last) <= SHARED_WITHIN) {
            self.until = Some(self.until.map_or(at, |until| until.max(at)).max(at + SHARED_FOR));
        }
        self.last = Some(self.last.map_or(at, |last| last.max(at)));
    }

    /// Time has come to here. Has it come to an end?
    pub fn look(&mut self, now: Instant) -> bool {
        let ended = self.until.is_some_and(|until| until <= now);
        if ended {
            self.until = None;
        }
        ended
    }

    pub fn is_shared(&self) -> bool {
        self.until.is_some()
    }

    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    pub fn is_exact(&self) -> bool {
        self.exact
    }
}

impl VMigrater {
    /// When this vCPU's monitor is to beat.
    pub(super) fn beat(&self, vcpu: VcpuId) -> Option<Instant> {
        let watch = self.monitor.get(vcpu)?;
        let period = self.settings.period;
        let gap = match () {
            () if self.settings.literal => period,
            () if !self.sharing.is_shared() || !self.detector.any_bound() => PROBE,
            () if !self.settings.sparse => period,
            () => return Some(watch.next_beat(&self.monitor.settings, PROBE)),
        };
        Some(watch.seen + gap)
    }

    /// Beats that were due and have not come: those vCPUs are away.
    pub(super) fn find_missing(&mut self, now: Instant) {
        if self.missing_at().is_none_or(|at| at > now) {
            return;
        }
        let grace = self.monitor.settings.grace();
        let missing = |(vcpu, watch): (VcpuId, &Watch)| {
            let due = self.beat(vcpu)?;
            (watch.state == State::Runs && due + grace <= now).then_some((vcpu, due))
        };
        let missing: Vec<(VcpuId, Instant)> = self.monitor.all().filter_map(missing).collect();
        for (vcpu, due) in missing {
            self.dirty |= self.monitor.missed(vcpu, due);
        }
    }

    /// When the next one will be missing if it does not come. Where nobody is to be moved,
    /// that is of no use.
    pub(super) fn missing_at(&self) -> Option<Instant> {
        if self.sharing.is_exact() || !self.detector.any_bound() {
            return None;
        }
        let grace = self.monitor.settings.grace();
        let runs = self.monitor.all().filter(|(_, watch)| watch.state == State::Runs);
        runs.filter_map(|(vcpu, _)| Some(self.beat(vcpu)? + grace)).min()
    }
}
