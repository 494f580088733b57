//! The timetable that the policy publishes for threads that do not have its lock.

use seekway_core::units::Instant;
use seekway_vcpu::agent::Timetable;
use seekway_vcpu::{VCPUS_MAX, VcpuId};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// "Never", in an atomic.
pub(super) const NEVER: u64 = u64::MAX;
/// "No vCPU", in an atomic.
const NONE: usize = usize::MAX;

/// The timetable, for threads that do not have the lock: nanoseconds, or [`NEVER`].
pub(super) struct Published {
    pub(super) beats: Vec<AtomicU64>,
    decision: AtomicU64,
    pub(super) window: AtomicU64,
    /// The length of windows.
    pub(super) windows: AtomicU64,
    lead: AtomicUsize,
    absent: AtomicUsize,
    vcpus: AtomicUsize,
}

impl Published {
    pub(super) fn new() -> Published {
        let never = || AtomicU64::new(NEVER);
        Published {
            beats: (0..VCPUS_MAX).map(|_| never()).collect(),
            decision: never(),
            window: never(),
            windows: never(),
            lead: AtomicUsize::new(0),
            absent: AtomicUsize::new(NONE),
            vcpus: AtomicUsize::new(1),
        }
    }

    /// The present timetable. While the policy wants no windows none is due, even if `window` is
    /// set: a thread that read loads while the policy gave them up may have set it. Nobody clears
    /// it, because the policy's own thread sets it before the windows' length.
    pub(super) fn timetable(&self) -> Timetable {
        let has_windows = self.windows.load(SeqCst) != NEVER;
        let absent = Some(self.absent.load(SeqCst)).filter(|absent| *absent != NONE);
        Timetable {
            decision: time(self.decision.load(SeqCst)),
            window: time(self.window.load(SeqCst)).filter(|_| has_windows),
            lead: VcpuId::new(self.lead.load(SeqCst) as u16),
            absent: absent.map(|absent| VcpuId::new(absent as u16)),
            vcpus: self.vcpus.load(SeqCst),
        }
    }

    /// Applies `change`. Other threads may change the timetable at the same time: only the
    /// fields that are different afterwards are stored.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut Timetable) -> T) -> T {
        let before = self.timetable();
        let mut after = before;
        let result = change(&mut after);
        if after.decision != before.decision {
            self.decision.store(raw(after.decision), SeqCst);
        }
        if after.window != before.window {
            self.window.store(raw(after.window), SeqCst);
        }
        if after.absent != before.absent {
            self.absent.store(after.absent.map_or(NONE, VcpuId::index), SeqCst);
        }
        if after.lead != before.lead {
            self.lead.store(after.lead.index(), SeqCst);
        }
        if after.vcpus != before.vcpus {
            self.vcpus.store(after.vcpus, SeqCst);
        }
        result
    }
}

pub(super) fn raw(at: Option<Instant>) -> u64 {
    at.map_or(NEVER, Instant::as_nanos)
}

pub(super) fn time(raw: u64) -> Option<Instant> {
    Some(raw).filter(|raw| *raw != NEVER).map(Instant::from_nanos)
}
