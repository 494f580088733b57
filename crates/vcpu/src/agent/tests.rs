//! Tests of wake-ups, and of the order in which the policy is told of events.

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
