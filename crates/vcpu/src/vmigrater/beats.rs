//! Times of each vCPU monitor's beats, and the state without any work.
//!
//! Each beat costs, in an emulated guest a hundred times more than in others; most tell nothing. A
//! monitor whose beat is due while its vCPU is away beats the moment it is back: so one beat in
//! each absence shows returns to the microsecond. Only the time at which a vCPU is taken away needs
//! dense beats, and that changes seldom. With sparse beats:
//!
//! - Inert, while no absence was seen (two within a second): some ten beats a second for each vCPU,
//!   no windows, no actions. One that is away a tenth of its time is seen within a second; two
//!   vCPUs that are away half of it within a tenth of one.
//! - Shared, without an I/O-bound task: these beats, and windows.
//! - With one: one beat a slice, just after its expected end. In one slice of four, and after one
//!   that ended early, every period from two periods before that end. The longer a vCPU outlives
//!   its longest known slice, the rarer its beats.
//!
//! The price: a slice that is cut short is noticed at its expected end. An earlier notice would
//! help little, because its tasks' I/O completes on it.

use super::super::monitor::{News, State, Watch};
use super::super::{Sign, VcpuId, VcpuSet};
use super::VMigrater;
use seekway_core::units::{Instant, Nanos};

/// Intervals of beats while nothing is expected, by turns. Equal intervals could meet a host's
/// round at the same point each time, and take an absent vCPU for one that runs.
const PROBES: [Nanos; 3] =
    [Nanos::from_millis(67), Nanos::from_millis(103), Nanos::from_millis(149)];
/// Time within which two absences show that somebody shares the processors.
const SHARED_WITHIN: Nanos = Nanos::from_secs(1);
/// Time for which that holds.
const SHARED_FOR: Nanos = Nanos::from_secs(2);

/// Does anybody take our vCPUs away?
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SharingEstimate {
    /// When a vCPU last came back from an absence.
    last: Option<Instant>,
    /// Until when the vCPUs are taken to be shared; `None`: they are not.
    until: Option<Instant>,
    /// Edges are told; there are no beats.
    exact: bool,
}

impl SharingEstimate {
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
    /// Time of this vCPU monitor's next beat.
    pub(super) fn beat(&self, vcpu: VcpuId) -> Option<Instant> {
        let watch = self.monitor.get(vcpu)?;
        let rest = PROBES[((watch.beats + vcpu.index() as u64) % 3) as usize];
        let works = self.sharing.is_shared() && self.detector.any_bound();
        match () {
            () if !works && !self.settings.monitor.literal => Some(watch.seen + rest),
            () if self.settings.sparse => Some(watch.next_beat(&self.monitor.settings, rest)),
            // Absolute times: a beat's duration does not delay the next ones.
            () => {
                let period = self.settings.monitor.period.get();
                let next = (watch.seen.as_nanos() / period).saturating_add(1);
                Some(Instant::from_nanos(next.saturating_mul(period)))
            }
        }
    }

    /// Beats that were due and have not come: those vCPUs are away.
    pub(super) fn find_missing(&mut self, now: Instant) {
        if self.sharing.is_exact() || !self.detector.any_bound() {
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

    /// When this one's beat will be missing if it does not come.
    fn missing(&self, vcpu: VcpuId) -> Option<Instant> {
        let runs = self.monitor.get(vcpu).is_some_and(|watch| watch.state == State::Runs);
        let due = self.beat(vcpu).filter(|_| runs && !self.sharing.is_exact())?;
        Some(due + self.monitor.settings.grace())
    }

    /// Recomputes the times of missing beats, of all vCPUs that have a task which could be pulled
    /// away. Others' absence is found by the search for a destination.
    pub(super) fn expect_all(&mut self) {
        let tasks = self.detector.tasks.iter().filter(|task| task.is_movable());
        let hosts: VcpuSet = tasks.map(|task| task.vcpu).collect();
        self.expected.clear();
        self.expected.resize(hosts.iter().last().map_or(0, |last| last.index() + 1), None);
        for vcpu in hosts.iter() {
            self.expected[vcpu.index()] = Some(self.missing(vcpu));
        }
        self.missing_at = self.expected.iter().copied().flatten().flatten().min();
    }

    /// Recomputes the time of this vCPU's missing beat, after a sign without other news.
    pub(super) fn expect(&mut self, vcpu: VcpuId) {
        let missing = self.missing(vcpu);
        if let Some(Some(expected)) = self.expected.get_mut(vcpu.index()) {
            *expected = missing;
            self.missing_at = self.expected.iter().copied().flatten().flatten().min();
        }
    }
}
