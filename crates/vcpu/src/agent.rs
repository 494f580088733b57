//! The agent around a policy for virtual CPUs: it orders the policy's news, and wakes the agent's
//! threads. The simulator's machine and `seekway-guest migrate` run this code.
//!
//! An agent has one sleeping thread on each vCPU, its *monitor*. A turn goes like this:
//!
//! 1. A monitor wakes because its vCPU came back, because it beats, because its alarm has come
//!    ([`Timetable::alarm`]), or because another thread woke it. It calls
//!    [`Timetable::woke`].
//! 2. If a window of loads is due ([`Timetable::window_is_due`]), it reads the loads and calls
//!    [`Timetable::next_window`].
//! 3. [`Agent::turn`] tells the policy all news and collects its actions, for workers to carry
//!    out. An action that no worker takes has ended too: [`Outcome::Dropped`].
//! 4. [`Agent::plan`] updates the timetable with what the policy wants from now on, and returns
//!    the vCPUs whose monitors sleep too long for that: the caller wakes these.
//! 5. The monitor sleeps until its alarm or its beat, whichever comes first.
//!
//! A wake-up costs (0.1 to 0.2 ms in an emulated guest), so only one monitor, the *lead*, wakes for
//! windows and decisions. Its vCPU is expected to run until then. If the host takes that vCPU away,
//! the first monitor that wakes more than [`OVERDUE`] after the due time takes over. The other
//! monitors' alarms guarantee that one wakes: [`PATIENCE`] after the due time, then twice that, and
//! so on in the order of their numbers.

mod moves;
#[cfg(test)]
mod tests;
mod timetable;

pub use moves::{Rest, WORKERS_MAX, rest_of_move};
pub use timetable::{OVERDUE, PATIENCE, TOGETHER, Timetable, is_sooner};

use super::{Action, Outcome, Sign, TaskId, TaskLoad, Urgent, VcpuId, VcpuPolicy, VcpuSet};
use seekway_core::units::{Instant, Nanos};

/// The most actions in one turn; a policy that asks for more never stops.
const ACTIONS_MAX: usize = 100_000;

/// A sign of a vCPU, with the time at which it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// When the sign was made.
    pub at: Instant,
    /// The vCPU of which the sign tells.
    pub vcpu: VcpuId,
    /// The observation.
    pub sign: Sign,
}

/// News that the policy has not been told yet. A turn empties the lists.
#[derive(Default)]
pub struct News {
    /// The vCPUs that are on line, if that has changed.
    pub online: Option<VcpuSet>,
    /// Signs; those of one vCPU in order.
    pub signs: Vec<Seen>,
    /// The agent's use of the guest's vCPUs from its start on, reported with a window.
    pub used: Option<Nanos>,
    /// End of the window whose loads are in `loads`.
    pub window: Option<Instant>,
    /// The tasks that did I/O in that window, in ascending order.
    pub loads: Vec<TaskLoad>,
    /// Actions that have come to their end.
    pub ended: Vec<(TaskId, Outcome)>,
}

/// A policy and the vCPUs that it was told of.
pub struct Agent {
    /// The policy. Its engine may ask it for slices, idling and metrics, which an agent does not
    /// need.
    pub policy: Box<dyn VcpuPolicy>,
    online: VcpuSet,
    /// As of the last [`Agent::plan`].
    windows: Option<Nanos>,
}

impl Agent {
    /// Makes an agent whose policy knows no vCPU yet: [`Agent::attach`] comes first.
    pub fn new(policy: Box<dyn VcpuPolicy>) -> Agent {
        Agent { policy, online: VcpuSet::EMPTY, windows: None }
    }

    /// Tells the policy which vCPUs are on line.
    pub fn attach(&mut self, now: Instant, online: VcpuSet) {
        self.online = online;
        self.policy.attach(now, &online);
    }

    /// The length of windows that the policy wants; `None` while it needs no loads.
    pub fn windows(&self) -> Option<Nanos> {
        self.windows
    }

    /// The vCPUs that the policy was told of.
    pub fn online(&self) -> &VcpuSet {
        &self.online
    }

    /// The edges of this vCPU that wake a monitor at once, with a detector that tells edges. The
    /// other edges wait for the next turn.
    pub fn urgent(&self, vcpu: VcpuId) -> Urgent {
        self.policy.urgent(vcpu)
    }

    /// Tells the policy the news, and appends its actions to `actions`. Panics if the policy asks
    /// without end.
    pub fn turn(&mut self, now: Instant, news: &mut News, actions: &mut Vec<Action>) {
        if let Some(online) = news.online.take() {
            self.attach(now, online);
        }
        // A stable sort: the signs of one vCPU stay in order. Of two that different threads have
        // left, a return and the next loss may be of one look at the clock.
        news.signs.sort_by_key(|seen| (seen.at, matches!(seen.sign, Sign::Lost { .. })));
        for Seen { at, vcpu, sign } in news.signs.drain(..) {
            self.policy.heard(at, vcpu, sign);
        }
        if let Some(used) = news.used.take() {
            self.policy.spent(now, used);
        }
        if let Some(end) = news.window.take() {
            self.policy.window(end, &news.loads);
            news.loads.clear();
        }
        for (task, outcome) in news.ended.drain(..) {
            self.policy.moved(now, task, outcome);
        }
        let before = actions.len();
        while let Some(action) = self.policy.next(now) {
            actions.push(action);
            assert!(actions.len() - before < ACTIONS_MAX, "a policy for vCPUs acts without end");
        }
    }

    /// Updates the timetable after a turn by a thread on the vCPU `here`. Returns the vCPUs whose
    /// monitors sleep too long: the caller wakes them once the timetable can be read.
    ///
    /// `awake`: the thread is the monitor of `here`, and reads the timetable before it sleeps.
    /// `beat` stores the time of a vCPU's next beat, and returns whether its monitor is asleep and
    /// would beat too late for that ([`is_sooner`]).
    pub fn plan(
        &mut self,
        now: Instant,
        (here, awake): (VcpuId, bool),
        timetable: &mut Timetable,
        beat: &mut dyn FnMut(VcpuId, Option<Instant>) -> bool,
    ) -> VcpuSet {
        let before = (timetable.decision, timetable.lead);
        timetable.decision = self.policy.next_wake();
        let mut sooner = timetable.decision.is_some_and(|at| before.0.is_none_or(|was| at < was));
        let windows = self.policy.windows();
        if windows != self.windows {
            self.windows = windows;
            timetable.window = windows.map(|length| now + length);
            sooner |= windows.is_some();
        }
        // A thread that has just read loads sets the next window without asking the policy. A
        // window without a user would stay due for ever.
        timetable.window = timetable.window.filter(|_| windows.is_some());
        if let Some(due) = timetable.due() {
            let wanted = self.policy.wakes_on();
            timetable.choose_lead(due.since(now), &self.policy.vcpus(now), (wanted, here));
            sooner |= timetable.lead != before.1;
        }
        timetable.vcpus = self.online.iter().last().map_or(1, |last| last.index() + 1);
        let sleeps = self.online.iter().filter(|&vcpu| {
            let late = beat(vcpu, self.policy.beat_at(vcpu)) || sooner && vcpu == timetable.lead;
            late && !(vcpu == here && awake)
        });
        sleeps.collect()
    }
}
