//! Tests of the policy's events while its lock is taken.

mod parity;

use super::*;
use crate::migrate::clock;
use crate::migrate::records::tests::in_folder;
use crate::system::Linux;
use crate::tagger::Selection as Chosen;
use seekway_vcpu::agent::PATIENCE;
use seekway_vcpu::{Means, Sign, Urgent};
use std::collections::BTreeMap;

/// A policy that keeps what it is told.
#[derive(Default)]
struct Told {
    wake: Option<Instant>,
    heard: Vec<(u64, usize)>,
    windows: usize,
    wants: Vec<Action>,
    beat: Option<Instant>,
}

struct Policy(Arc<Mutex<Told>>);

impl VcpuPolicy for Policy {
    fn attach(&mut self, _now: Instant, _online: &VcpuSet) {}
    fn heard(&mut self, at: Instant, vcpu: VcpuId, _sign: Sign) {
        self.0.lock().unwrap().heard.push((at.as_nanos(), vcpu.index()));
    }
    fn window(&mut self, _now: Instant, _loads: &[TaskLoad]) {
        self.0.lock().unwrap().windows += 1;
    }
    fn moved(&mut self, _now: Instant, _task: TaskId, _outcome: Outcome) {}
    fn next(&mut self, _now: Instant) -> Option<Action> {
        self.0.lock().unwrap().wants.pop()
    }
    fn beat_at(&self, vcpu: VcpuId) -> Option<Instant> {
        self.0.lock().unwrap().beat.filter(|_| vcpu.index() == 1)
    }
    fn next_wake(&self) -> Option<Instant> {
        self.0.lock().unwrap().wake
    }
    fn windows(&self) -> Option<Nanos> {
        Some(Nanos::new(1))
    }
}

struct Nobody;

impl Loads for Nobody {
    fn window(&mut self, _now: Instant, _loads: &mut Vec<ThreadLoad>) -> io::Result<()> {
        Ok(())
    }
}

fn coordinator() -> (Coordinator<Linux>, Arc<Mutex<Told>>) {
    let dir = tempfile::tempdir().unwrap();
    let (_, records) = in_folder(dir.path());
    let online = VcpuSet::first(2);
    let tasks = Arc::new(Tasks::new(Linux, records, online, Waker::new().unwrap()));
    let watching: (Box<dyn Loads>, _) =
        (Box::new(Nobody), Selection::new(Linux, Chosen::default(), 1));
    let told: Arc<Mutex<Told>> = Arc::default();
    let policy = Box::new(Policy(told.clone()));
    (Coordinator::new(policy, None, watching, tasks, (online, clock::now)).unwrap(), told)
}

fn seen(at: u64, vcpu: u16) -> Vec<Seen> {
    let (at, vcpu) = (Instant::from_nanos(at), VcpuId::new(vcpu));
    vec![Seen { at, vcpu, sign: Sign::Resumed }]
}

#[test]
fn what_is_left_while_the_lock_is_taken_is_heard_in_order_by_whoever_gets_it() {
    let (coordinator, told) = coordinator();
    let (zero, one) = (VcpuId::new(0), VcpuId::new(1));
    let mut actions = Vec::new();
    let task = TaskId(7);
    let within = VcpuSet::first(2);
    told.lock().unwrap().wants = vec![Action::Move { task, to: one, within, by: Means::Push }];
    {
        let _taken = coordinator.core.lock().unwrap();
        coordinator.tell(one, &mut seen(10, 1), true);
        coordinator.tell(zero, &mut seen(20, 0), true);
        assert!(!coordinator.turn(zero, true, &mut actions));
        assert!(actions.is_empty() && told.lock().unwrap().heard.is_empty());
    }
    assert!(coordinator.turn(one, true, &mut actions));
    assert_eq!(told.lock().unwrap().heard, [(10, 1), (20, 0)]);
    assert_eq!(actions.len(), 1);
    // Signs without news come with the next news.
    coordinator.tell(one, &mut seen(30, 1), false);
    coordinator.turn(one, true, &mut actions);
    assert_eq!(told.lock().unwrap().heard.len(), 2);
    coordinator.ended(task, Outcome::Done);
    coordinator.turn(one, true, &mut actions);
    assert_eq!(told.lock().unwrap().heard.len(), 3);
}

#[test]
fn signs_are_bounded() {
    let (coordinator, told) = coordinator();
    for at in 0..1000 {
        coordinator.tell(VcpuId::new(0), &mut seen(at, 0), true);
    }
    coordinator.turn(VcpuId::new(0), true, &mut Vec::new());
    let told = told.lock().unwrap();
    assert_eq!((told.heard.len(), told.heard[0].0), (SIGNS_MAX, 1000 - SIGNS_MAX as u64));
}

#[test]
fn a_beat_that_was_not_wanted_before_wakes_its_monitor_and_no_other() {
    let (coordinator, told) = coordinator();
    let wakers = [0, 1].map(|vcpu| {
        let waker = Waker::new().unwrap();
        coordinator.add_waker(VcpuId::new(vcpu), Some(waker.try_clone().unwrap()));
        waker
    });
    let turn = |here, awake| {
        coordinator.tell(VcpuId::new(0), &mut seen(1, 0), true);
        coordinator.turn(VcpuId::new(here), awake, &mut Vec::new());
        [0, 1].map(|n: usize| wakers[n].take())
    };
    assert_eq!(turn(0, true), [false; 2]);
    let beat = Instant::from_nanos(u64::MAX / 2);
    told.lock().unwrap().beat = Some(beat);
    assert_eq!(turn(0, true), [false, true]);
    assert_eq!(coordinator.due(VcpuId::new(1), None).1, Some(beat));
    assert_eq!(turn(0, true), [false; 2], "it knows");
    told.lock().unwrap().beat = Some(Instant::from_nanos(u64::MAX / 3));
    assert_eq!(turn(1, true), [false; 2], "who asks is awake");
    told.lock().unwrap().beat = Some(Instant::from_nanos(u64::MAX / 4));
    assert_eq!(turn(1, false), [false, true], "a worker's monitor sleeps");
}

#[test]
fn a_window_is_seen_by_one_and_heard_by_whoever_has_the_lock() {
    let (coordinator, told) = coordinator();
    {
        let _watched = coordinator.watching.lock().unwrap();
        assert!(!coordinator.observe().unwrap(), "somebody else is at it");
    }
    assert!(coordinator.observe().unwrap());
    coordinator.turn(VcpuId::new(0), true, &mut Vec::new());
    assert_eq!(told.lock().unwrap().windows, 1);
}

#[test]
fn a_lead_that_is_overdue_is_replaced_without_the_lock() {
    let (coordinator, told) = coordinator();
    let (zero, one) = (VcpuId::new(0), VcpuId::new(1));
    let ms = Nanos::from_millis;
    let wake = clock::now() + ms(10_000);
    told.lock().unwrap().wake = Some(wake);
    coordinator.left.store(true, SeqCst);
    coordinator.turn(zero, true, &mut Vec::new());
    coordinator.published.window.store(NEVER, SeqCst);
    let _held = coordinator.core.lock().unwrap();
    assert_eq!(
        (coordinator.due(zero, None).0, coordinator.due(one, None).0),
        (Some(wake), Some(wake + PATIENCE))
    );
    coordinator.woke(one, wake + ms(1));
    assert_eq!(coordinator.due(zero, None).0, Some(wake), "not so late yet");
    coordinator.woke(one, wake + ms(3));
    assert_eq!(
        (coordinator.due(zero, None).0, coordinator.due(one, None).0),
        (Some(wake + PATIENCE), Some(wake))
    );
    assert_eq!(coordinator.published.timetable().absent, Some(zero));
    coordinator.woke(zero, wake + ms(1));
    assert_eq!(coordinator.published.timetable().absent, None);
}

#[test]
fn a_window_that_nobody_has_heard_is_left_for_the_next_turn() {
    let (coordinator, told) = coordinator();
    assert!(coordinator.observe().unwrap());
    coordinator.left.store(false, SeqCst);
    coordinator.published.window.store(0, SeqCst);
    assert!(!coordinator.observe().unwrap());
    assert!(coordinator.turn(VcpuId::new(0), true, &mut Vec::new()));
    assert_eq!(told.lock().unwrap().windows, 1);
}

#[test]
fn what_is_not_done_is_kept_while_the_list_is_taken() {
    let (coordinator, _) = coordinator();
    let mut dropped = vec![(TaskId(7), Outcome::Dropped)];
    {
        let _taken = coordinator.ended.lock().unwrap();
        coordinator.ended_all(&mut dropped);
        assert_eq!((dropped.len(), coordinator.left.load(SeqCst)), (1, false));
    }
    coordinator.ended_all(&mut dropped);
    assert!(dropped.is_empty() && coordinator.left.load(SeqCst));
}

#[test]
fn windows_are_as_far_apart_as_wake_ups_are_dear() {
    let (ms, us) = (|n: u64| n * 1_000_000, Nanos::from_micros);
    let cost = Cost::default();
    assert_eq!(cost.windows(ms(5)), ms(5), "nothing is known");
    cost.spent(us(7));
    assert_eq!(cost.windows(ms(5)), ms(5));
    // One long wake-up says little, and it takes many to say much.
    cost.spent(us(400));
    assert_eq!(cost.windows(ms(5)), ms(5));
    (0..100).for_each(|_| cost.spent(us(120)));
    assert_eq!(cost.windows(ms(5)), ms(20), "no more than four times as far");
    (0..100).for_each(|_| cost.spent(us(60)));
    assert_eq!(cost.windows(ms(5)), ms(12));
    cost.spent(us(8));
    assert_eq!(cost.windows(ms(5)), ms(5));
    assert_eq!(cost.windows(u64::MAX), u64::MAX);
}

/// A kernel that keeps what it is told: alarms, and the edges that ring.
#[derive(Default)]
struct Kept {
    alarms: Mutex<BTreeMap<usize, Option<Instant>>>,
    urgent: Mutex<BTreeMap<usize, Urgent>>,
}

impl Alarms for Kept {
    fn set_alarm(&self, vcpu: VcpuId, at: Option<Instant>) {
        self.alarms.lock().unwrap().insert(vcpu.index(), at);
    }
    fn set_urgent(&self, vcpu: VcpuId, urgent: Urgent) {
        self.urgent.lock().unwrap().insert(vcpu.index(), urgent);
    }
}

#[test]
fn where_the_kernel_keeps_alarms_only_the_lead_sets_a_timer_and_only_to_decide() {
    let (mut coordinator, told) = coordinator();
    let kept = Arc::new(Kept::default());
    coordinator.alarms = Some(kept.clone());
    let (zero, one) = (VcpuId::new(0), VcpuId::new(1));
    let waker = Waker::new().unwrap();
    coordinator.add_waker(one, Some(waker.try_clone().unwrap()));
    let wake = clock::now() + Nanos::from_millis(10_000);
    told.lock().unwrap().wake = Some(wake);
    coordinator.left.store(true, SeqCst);
    assert!(coordinator.turn(zero, true, &mut Vec::new()));
    coordinator.published.window.store(NEVER, SeqCst);
    coordinator.left.store(true, SeqCst);
    assert!(coordinator.turn(zero, true, &mut Vec::new()));
    let alarm = |n| kept.alarms.lock().unwrap()[&n];
    assert_eq!((alarm(0), alarm(1)), (Some(wake), Some(wake + PATIENCE)));
    assert_eq!(kept.urgent.lock().unwrap()[&1], Urgent::ALL);
    assert!(!waker.take(), "an alarm is set by a store");
    // The alarm rang in vain: it is set again. Another thread's events wait.
    kept.set_alarm(zero, None);
    assert_eq!(coordinator.due(zero, None), (Some(wake), None), "to decide, on time");
    assert_eq!(coordinator.due(one, None), (None, None));
    assert_eq!(alarm(0), Some(wake));
    let pause = wake + Nanos::from_millis(4);
    assert_eq!(coordinator.due(zero, Some(pause)), (Some(pause), None));
    assert_eq!(alarm(0), Some(pause));
    assert_eq!(coordinator.forgets(wake), None);
    assert_eq!(coordinator.forgets(wake + Nanos::from_secs(1)), Some(zero));
}

/// A window that the policy's thread has just set stays, though another thread comes before the
/// length of windows is known; and one that is not wanted any more is not due.
#[test]
fn a_window_is_due_once_the_length_of_windows_is_known() {
    let (coordinator, _) = coordinator();
    let published = &coordinator.published;
    published.windows.store(NEVER, SeqCst);
    published.update(|timetable| timetable.window = Some(Instant::from_nanos(1)));
    assert!(coordinator.observe().unwrap() && !coordinator.is_due(clock::now()).0);
    published.windows.store(1, SeqCst);
    assert!(coordinator.is_due(clock::now()).0);
}
