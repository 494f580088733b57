//! When each vCPU's monitor beats, and whether there is anything to do at all.
//!
//! Each beat costs; most tell nothing. A monitor whose beat is due while its vCPU is away
//! beats the moment the vCPU is back: so the return is known to the microsecond if only
//! one beat falls into the absence, and what dense beats are for is the time at which the
//! vCPU is taken away. With `beats=sparse`:
//!
//! - Inert, while no absence was seen (two within a second): ten beats a second for each
//!   vCPU, no windows, no actions. One that is away a tenth of its time is seen within a
//!   second; two vCPUs that are away half of it within a tenth of one.
//! - Shared, and nobody is I/O-bound: the same beats, and windows.
//! - Somebody is: every period on the vCPUs on which such tasks are, so that it is seen
//!   when one is cut short; elsewhere every period from two periods before the expected
//!   end until it is away, and once in between. A vCPU that outlives all that was seen of it
//!   beats the less often the longer it does.

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

    /// Time has come to here.
    pub fn look(&mut self, now: Instant) {
        self.until = self.until.filter(|until| *until > now);
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
            () if !self.settings.sparse || self.hosts(vcpu) => period,
            () => return Some(self.sparse_beat(watch)),
        };
        Some(watch.seen + gap)
    }

    /// Does an I/O-bound task sit there, or is one on its way?
    fn hosts(&self, vcpu: VcpuId) -> bool {
        let mut tasks = self.detector.tasks.iter().filter(|task| task.is_bound());
        tasks.any(|task| task.vcpu == vcpu || task.going == Some(vcpu))
    }

    fn sparse_beat(&self, watch: &Watch) -> Instant {
        let period = self.settings.period;
        let (first, last) = watch.ends();
        let begins =
            first.map(|first| watch.runs_from() + first.saturating_sub(period.scaled(2, 1)));
        match begins {
            Some(begins) if watch.seen < begins => begins,
            _ => {
                let beyond = watch.seen.since(watch.runs_from() + last);
                watch.seen + period.max(beyond.scaled(1, 8)).min(PROBE)
            }
        }
    }

    /// Beats that were due and have not come: those vCPUs are away.
    pub(super) fn find_missing(&mut self, now: Instant) {
        if self.missing_at().is_none_or(|at| at > now) {
            return;
        }
        let grace = self.monitor.settings.grace();
        let missing = |(vcpu, watch): (VcpuId, &Watch)| {
            let due = self.beat(vcpu)? + grace;
            (watch.state == State::Runs && due <= now).then_some(vcpu)
        };
        let missing: Vec<VcpuId> = self.monitor.all().filter_map(missing).collect();
        for vcpu in missing {
            self.dirty |= self.monitor.missed(vcpu);
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
