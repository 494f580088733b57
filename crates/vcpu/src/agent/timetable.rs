//! When the monitors of an agent wake, and which of them leads.

use super::super::{VcpuId, VcpuView};
use seekway_core::units::{Instant, Nanos};

/// Delay after the due time at which another monitor checks that the lead is still there: the next
/// one after this time, the one after it after twice this time, and so on.
pub const PATIENCE: Nanos = Nanos::from_millis(20);
/// Lateness at which a lead counts as having lost its vCPU.
pub const OVERDUE: Nanos = Nanos::from_millis(2);
/// A wake-up within this time after the end of a window serves for the window too, and a beat
/// that is this much earlier than planned is not worth a wake-up.
pub const TOGETHER: Nanos = Nanos::from_micros(300);

/// Due times, and the monitor that wakes for each. `None` means never.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timetable {
    /// When the policy wants to decide.
    pub decision: Option<Instant>,
    /// When the window ends.
    pub window: Option<Instant>,
    /// The vCPU whose monitor wakes for windows and decisions.
    pub lead: VcpuId,
    /// A lead that missed the due time. It does not lead again before it has woken.
    pub absent: Option<VcpuId>,
    /// One more than the highest number of a vCPU that is on line.
    pub vcpus: usize,
}

impl Timetable {
    /// Nothing is due, and this vCPU's monitor leads.
    pub fn new(lead: VcpuId) -> Timetable {
        Timetable { decision: None, window: None, lead, absent: None, vcpus: 1 }
    }

    /// When a decision or the end of a window is due.
    pub fn due(&self) -> Option<Instant> {
        [self.decision, self.window].into_iter().flatten().min()
    }

    /// Is it time for a decision?
    pub fn decision_is_due(&self, now: Instant) -> bool {
        self.decision.is_some_and(|at| at <= now)
    }

    /// Is the window to end now, or within `early`?
    pub fn window_is_due(&self, now: Instant, early: Nanos) -> bool {
        self.window.is_some_and(|at| at <= now + early)
    }

    /// Ends a window and begins the next, of this length.
    pub fn next_window(&mut self, now: Instant, length: Option<Nanos>) {
        self.window = length.map(|length| now + length);
    }

    /// Until when a monitor sleeps that beats at `beat`.
    pub fn alarm(&self, vcpu: VcpuId, beat: Option<Instant>) -> Option<Instant> {
        let vcpus = self.vcpus.max(vcpu.index() + 1);
        let rank = (vcpus + vcpu.index() - self.lead.index() % vcpus) % vcpus;
        let window = self.window.map(|window| {
            let serves = |at: &Instant| (window..=window + TOGETHER).contains(at);
            let soon = [beat, self.decision].into_iter().flatten().filter(serves).min();
            soon.filter(|_| rank == 0).unwrap_or(window)
        });
        let due = [self.decision, window].into_iter().flatten().min();
        due.map(|at| at + PATIENCE.scaled(rank as u64, 1))
    }

    /// A monitor has woken. If the lead is overdue, this monitor leads from now on.
    pub fn woke(&mut self, vcpu: VcpuId, now: Instant) {
        self.absent = self.absent.filter(|absent| *absent != vcpu);
        if self.lead != vcpu && self.due().is_some_and(|due| now > due + OVERDUE) {
            self.absent = Some(std::mem::replace(&mut self.lead, vcpu));
        }
    }

    /// Chooses the lead for an event that is due in `left`: the `wanted` monitor if its vCPU is
    /// expected to run until then, else the present lead on the same condition, else the monitor of
    /// `here`, else the one with the longest remaining slice. If no vCPU is expected to last,
    /// `here` leads, because it runs now.
    pub(super) fn choose_lead(
        &mut self,
        left: Nanos,
        vcpus: &[VcpuView],
        (wanted, here): (Option<VcpuId>, VcpuId),
    ) {
        let lasts = |view: &&VcpuView| {
            view.active && Some(view.vcpu) != self.absent && view.remaining > Some(left)
        };
        let lasting = || vcpus.iter().filter(lasts);
        let most = lasting().max_by_key(|view| view.remaining).map(|view| view.vcpu);
        let mut near = wanted.into_iter().chain([self.lead, here]);
        let near = near.find(|vcpu| lasting().any(|view| view.vcpu == *vcpu));
        self.lead = near.or(most).unwrap_or(here);
    }
}

/// Is a monitor that sleeps until `asleep` to be woken for a beat at `beat`? A beat that comes
/// later than planned does not need it.
pub fn is_sooner(beat: Option<Instant>, asleep: Option<Instant>) -> bool {
    beat.is_some_and(|at| asleep.is_none_or(|asleep| at + TOGETHER < asleep))
}
