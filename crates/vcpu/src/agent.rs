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

use super::{
    Action, Outcome, Sign, TaskId, TaskLoad, Urgent, VcpuId, VcpuPolicy, VcpuSet, VcpuView,
};
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

// The steps of a move: first the task's mask is set to the destination alone, then to all vCPUs
// that the policy named.
//
// The kernel does not move a task that sleeps: it places the task when it wakes, and only a
// mask of one vCPU says where. So such a task keeps that mask until it was seen there.

/// Workers of one vCPU, which is how many moves may be blocked there at a time.
pub const WORKERS_MAX: usize = 4;

/// Remaining steps of a move after the first change of the mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Nothing: the task may run on its destination only.
    Nothing,
    /// Widen the mask now: the task is there.
    Widen,
    /// Widen the mask when the task was seen there.
    WidenWhenSeen,
}

/// The rest of a move to `to`, from where the task may run `within`. `on`: where it is now, if
/// that is known.
pub fn rest_of_move(to: VcpuId, within: &VcpuSet, on: Option<VcpuId>) -> Rest {
    if *within == VcpuSet::only(to) {
        Rest::Nothing
    } else if on == Some(to) {
        Rest::Widen
    } else {
        Rest::WidenWhenSeen
    }
}

// When the monitors of an agent wake, and which of them leads.

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
    fn choose_lead(
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

/// Tests of wake-ups, and of the order in which the policy is told of events.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Means, VcpuView};
    use std::sync::{Arc, Mutex};

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn at(t: u64) -> Instant {
        Instant::ZERO + ms(t)
    }

    fn vcpu(number: u16) -> VcpuId {
        VcpuId::new(number)
    }

    fn view(number: u16, active: bool, left_ms: Option<u64>) -> VcpuView {
        let (vcpu, remaining) = (vcpu(number), left_ms.map(ms));
        VcpuView { vcpu, active, slice: None, remaining, slices: 0, away: Nanos::ZERO }
    }

    /// Three vCPUs, of which 0 leads.
    fn timetable(decision: Option<u64>, window: Option<u64>) -> Timetable {
        let (decision, window) = (decision.map(at), window.map(at));
        Timetable { decision, window, vcpus: 3, ..Timetable::new(vcpu(0)) }
    }

    #[test]
    fn the_lead_stays_while_its_vcpu_lasts_and_then_the_awake_or_the_longest_leads() {
        let lead_of = |left_ms: [Option<u64>; 3]| {
            let views = [0u16, 1, 2].map(|n| view(n, true, left_ms[usize::from(n)]));
            let mut timetable = timetable(None, None);
            timetable.choose_lead(ms(5), &views, (None, vcpu(1)));
            timetable.lead.index()
        };
        assert_eq!(lead_of([Some(6), Some(7), Some(8)]), 0);
        assert_eq!(lead_of([Some(5), Some(7), Some(8)]), 1);
        assert_eq!(lead_of([Some(5), Some(2), Some(8)]), 2);
        assert_eq!(lead_of([Some(5), Some(2), None]), 1, "it runs for certain");
        let mut wanted = timetable(None, None);
        let views = [view(0, true, Some(9)), view(1, true, Some(9)), view(2, true, Some(4))];
        wanted.choose_lead(ms(5), &views, (Some(vcpu(1)), vcpu(0)));
        assert_eq!(wanted.lead, vcpu(1), "its task is to be decided on");
        wanted.choose_lead(ms(5), &views, (Some(vcpu(2)), vcpu(0)));
        assert_eq!(wanted.lead, vcpu(1), "the wanted one will have gone");
        let mut timetable = timetable(None, None);
        timetable.absent = Some(vcpu(0));
        timetable.choose_lead(
            ms(5),
            &[view(0, true, Some(9)), view(2, false, Some(9))],
            (None, vcpu(1)),
        );
        assert_eq!(timetable.lead, vcpu(1), "one is absent, the other is away");
    }

    #[test]
    fn the_lead_wakes_for_what_is_due_and_the_others_look_after_it_in_turn() {
        let timetable = timetable(Some(50), Some(70));
        let alarms = [0, 1, 2].map(|n| timetable.alarm(vcpu(n), None));
        assert_eq!(alarms, [50, 70, 90].map(|t| Some(at(t))));
        assert_eq!(timetable.alarm(vcpu(7), None), Some(at(50 + 7 * 20)), "it has just come");
        assert_eq!(Timetable::new(vcpu(0)).alarm(vcpu(0), Some(at(3))), None);
    }

    #[test]
    fn a_monitor_that_finds_the_lead_overdue_leads_until_that_has_woken() {
        let mut timetable = timetable(Some(50), None);
        timetable.woke(vcpu(2), at(52));
        assert_eq!((timetable.lead, timetable.absent), (vcpu(0), None), "not so late yet");
        timetable.woke(vcpu(2), at(53));
        assert_eq!((timetable.lead, timetable.absent), (vcpu(2), Some(vcpu(0))));
        timetable.woke(vcpu(1), at(51));
        assert_eq!(timetable.absent, Some(vcpu(0)));
        timetable.woke(vcpu(0), at(52));
        assert_eq!((timetable.lead, timetable.absent), (vcpu(2), None));
        timetable.decision = None;
        timetable.woke(vcpu(0), at(99));
        assert_eq!(timetable.lead, vcpu(2), "nothing is due");
    }

    #[test]
    fn what_is_due_shortly_after_a_window_is_one_wake_up_with_it() {
        let alarm = |decision: Option<Nanos>, beat: Option<Nanos>, number: u16| {
            let mut timetable = timetable(None, Some(10));
            timetable.decision = decision.map(|after| at(10) + after);
            timetable.alarm(vcpu(number), beat.map(|after| at(10) + after)).unwrap()
        };
        assert_eq!(alarm(None, Some(TOGETHER), 0), at(10) + TOGETHER);
        assert_eq!(alarm(None, Some(TOGETHER + Nanos::new(1)), 0), at(10));
        assert_eq!(alarm(Some(Nanos::new(7)), Some(TOGETHER), 0), at(10) + Nanos::new(7));
        assert_eq!(alarm(None, Some(TOGETHER), 1), at(30), "another monitor waits for the window");
        assert!(!is_sooner(Some(at(9)), Some(at(9) + TOGETHER)));
        assert!(is_sooner(Some(at(9)), Some(at(10))) && is_sooner(Some(at(9)), None));
        assert!(!is_sooner(None, Some(at(10))));
    }

    /// A policy that notes its news, and asks for one move.
    struct Noting(Arc<Mutex<Vec<String>>>, bool);

    impl VcpuPolicy for Noting {
        fn attach(&mut self, _now: Instant, online: &VcpuSet) {
            self.0.lock().unwrap().push(format!("attach {online}"));
        }
        fn heard(&mut self, at: Instant, vcpu: VcpuId, _sign: Sign) {
            self.0.lock().unwrap().push(format!("heard {} {}", at.as_nanos(), vcpu.index()));
        }
        fn spent(&mut self, _now: Instant, used: Nanos) {
            self.0.lock().unwrap().push(format!("spent {}", used.get()));
        }
        fn window(&mut self, _now: Instant, loads: &[TaskLoad]) {
            self.0.lock().unwrap().push(format!("window {}", loads.len()));
        }
        fn moved(&mut self, _now: Instant, task: TaskId, outcome: Outcome) {
            self.0.lock().unwrap().push(format!("moved {} {outcome:?}", task.0));
        }
        fn next(&mut self, _now: Instant) -> Option<Action> {
            let (task, to) = (TaskId(1), vcpu(1));
            let action = Action::Move { task, to, within: VcpuSet::only(to), by: Means::Push };
            std::mem::take(&mut self.1).then_some(action)
        }
        fn next_wake(&self) -> Option<Instant> {
            Some(at(50))
        }
        fn windows(&self) -> Option<Nanos> {
            Some(ms(5))
        }
        fn beat_at(&self, vcpu: VcpuId) -> Option<Instant> {
            Some(at(vcpu.index() as u64))
        }
    }

    /// A policy that wants nothing.
    struct Quiet;

    impl VcpuPolicy for Quiet {}

    #[test]
    fn news_are_told_in_one_order_and_are_gone_then() {
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut agent = Agent::new(Box::new(Noting(log.clone(), true)));
        let seen = |at, n| Seen { at: Instant::from_nanos(at), vcpu: vcpu(n), sign: Sign::Resumed };
        let mut news = News {
            online: Some(VcpuSet::first(3)),
            signs: vec![seen(7, 1), seen(9, 1), seen(8, 0)],
            used: Some(Nanos::new(3)),
            window: Some(at(1)),
            loads: Vec::new(),
            ended: vec![(TaskId(4), Outcome::Dropped)],
        };
        let mut actions = Vec::new();
        agent.turn(at(2), &mut news, &mut actions);
        agent.turn(at(2), &mut news, &mut actions);
        let told = [
            "attach 0-2",
            "heard 7 1",
            "heard 8 0",
            "heard 9 1",
            "spent 3",
            "window 0",
            "moved 4 Dropped",
        ];
        assert_eq!(*log.lock().unwrap(), told);
        assert_eq!(actions.len(), 1);
    }

    /// A policy that notes its signs.
    struct Hearing(Arc<Mutex<Vec<Sign>>>);

    impl VcpuPolicy for Hearing {
        fn heard(&mut self, _at: Instant, _vcpu: VcpuId, sign: Sign) {
            self.0.lock().unwrap().push(sign);
        }
    }

    #[test]
    fn a_return_and_the_next_loss_of_one_instant_are_told_in_that_order() {
        let heard: Arc<Mutex<Vec<Sign>>> = Arc::default();
        let mut agent = Agent::new(Box::new(Hearing(heard.clone())));
        agent.attach(at(0), VcpuSet::first(1));
        let loss = |ms| Seen { at: at(ms), vcpu: vcpu(0), sign: Sign::Lost { by: at(ms + 4) } };
        let back = Seen { at: at(20), vcpu: vcpu(0), sign: Sign::Resumed };
        // One thread has left both losses, another the return.
        let signs = vec![loss(1), loss(20), back];
        agent.turn(at(40), &mut News { signs, ..News::default() }, &mut Vec::new());
        let told = [loss(1).sign, back.sign, loss(20).sign];
        assert_eq!(*heard.lock().unwrap(), told);
    }

    #[test]
    fn monitors_that_sleep_too_long_are_named_but_not_the_one_that_plans() {
        let mut agent = Agent::new(Box::new(Noting(Arc::default(), false)));
        agent.attach(at(0), VcpuSet::first(3));
        let mut timetable = Timetable::new(vcpu(0));
        let sleeps = agent.plan(at(1), (vcpu(0), true), &mut timetable, &mut |v, _| v == vcpu(2));
        assert_eq!(sleeps, VcpuSet::only(vcpu(2)), "the lead plans itself");
        assert_eq!((timetable.decision, timetable.window), (Some(at(50)), Some(at(6))));
        assert_eq!((timetable.vcpus, agent.windows()), (3, Some(ms(5))));
        // Planned by a worker of the same vCPU, and sooner than before.
        timetable.decision = Some(at(60));
        let sleeps = agent.plan(at(1), (vcpu(0), false), &mut timetable, &mut |_, _| false);
        assert_eq!(sleeps, VcpuSet::only(vcpu(0)));
        let sleeps = agent.plan(at(1), (vcpu(0), false), &mut timetable, &mut |_, _| false);
        assert_eq!(sleeps, VcpuSet::EMPTY);
        assert_eq!(timetable.window, Some(at(6)), "it goes on");
        let mut agent = Agent::new(Box::new(Quiet));
        agent.plan(at(1), (vcpu(0), true), &mut timetable, &mut |_, _| false);
        assert_eq!(timetable.due(), None, "nobody wants the window that another thread has set");
    }
}
