//! Tests of moves: destinations, workers, waits, and the times at which timers are heard.

use super::support::{Log, Told, scripted, *};
use crate::vcpu::*;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::agent::{OVERDUE, PATIENCE};
use seekway_vcpu::*;
use std::sync::{Arc, Mutex};

/// Asks for all of these in its first window, and records their results.
struct Burst {
    wanted: Vec<Action>,
    begun: bool,
    /// With the time since they were decided.
    ended: Arc<Mutex<Vec<(Outcome, Nanos)>>>,
    decided: Instant,
    /// Where tasks were in the last window.
    places: Arc<Mutex<Vec<usize>>>,
}

impl VcpuPolicy for Burst {
    fn attach(&mut self, _: Instant, _: &VcpuSet) {}
    fn heard(&mut self, _: Instant, _: VcpuId, _: Sign) {}
    fn window(&mut self, _: Instant, loads: &[TaskLoad]) {
        self.begun = true;
        *self.places.lock().unwrap() = loads.iter().map(|load| load.vcpu.index()).collect();
    }
    fn moved(&mut self, now: Instant, _: TaskId, outcome: Outcome) {
        self.ended.lock().unwrap().push((outcome, now - self.decided));
    }
    fn next(&mut self, now: Instant) -> Option<Action> {
        let action = if self.begun { self.wanted.pop() } else { None }?;
        self.decided = now;
        Some(action)
    }
    fn windows(&self) -> Option<Nanos> {
        Some(ms(5))
    }
}

fn to(task: u64, to: u16, within: &[u16]) -> Action {
    let within = within.iter().map(|&v| VcpuId::new(v)).collect();
    Action::Move { task: TaskId(task), to: VcpuId::new(to), within, by: Means::Push }
}

/// Results of actions and their durations, the vCPUs of the I/O tasks afterwards, and the machine's
/// result.
type After = (Vec<(Outcome, Nanos)>, Vec<usize>, MachineResult);

fn after(spec: &MachineSpec, wanted: &[Action]) -> After {
    let (ended, places) = <(Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<_>>>)>::default();
    let policy = || -> Box<dyn VcpuPolicy> {
        let (ended, places) = (ended.clone(), places.clone());
        Box::new(Burst {
            wanted: wanted.to_vec(),
            begun: false,
            decided: Instant::ZERO,
            ended,
            places,
        })
    };
    let (result, _) = run_with(spec, &policy, 1, ms(100));
    let outcomes = ended.lock().unwrap().clone();
    let places = places.lock().unwrap().clone();
    (outcomes, places, result)
}

fn two_readers(vcpus: u16) -> MachineSpec {
    let load = io(|io| io.cpu = us(1));
    let readers = vec![task("one", 0, load), task("two", 0, load)];
    spec(vcpus, vec![vm("a", vcpus, readers)])
}

#[test]
fn who_sleeps_wakes_where_linux_puts_it() {
    let mut spec = two_readers(4);
    // Little comes before them meanwhile: both sleep when they are moved.
    spec.costs = Costs { call: us(5), cold: us(0), window: us(0), wake: us(0), turn: us(0) };
    let (_, places, result) = after(&spec, &[to(4, 3, &[3]), to(5, 2, &[2])]);
    assert_eq!((places, result.vms[0].moves), (vec![3, 2], 2), "there is one place only");
    let a_call_each = result.vms[0].agent;
    let all = [1, 2, 3];
    let (_, places, result) = after(&spec, &[to(4, 3, &all), to(5, 2, &all)]);
    assert_eq!(places, [3, 2], "not on the lowest of those where they may run");
    let more = us(2 * 5);
    assert_eq!(result.vms[0].agent, a_call_each + more, "a call each when they were seen there");
    // The third is idle, and nobody has moved anything.
    let mut idle = spec.clone();
    idle.vms[0].tasks.remove(2);
    idle.vms[0].tasks[4].allowed = vec![0];
    assert_eq!(after(&idle, &[]).1, [2, 0]);
    idle.guest.shared_cache = false;
    assert_eq!(after(&idle, &[]).1, [0, 0], "no cache is shared: it does not look further");
}

#[test]
fn who_is_where_it_is_to_go_is_not_moved_and_a_release_is_no_move() {
    let (outcomes, _, result) = after(&two_readers(2), &[to(2, 0, &[0])]);
    assert_eq!((outcomes[0].0, result.vms[0].moves), (Outcome::Done, 0));
    let release = Action::Release { task: TaskId(3) };
    let (outcomes, _, result) = after(&two_readers(2), &[release]);
    assert_eq!(outcomes[0].0, Outcome::Done);
    assert_eq!((result.vms[0].moves, result.vms[0].releases), (0, 1));
}

#[test]
fn what_workers_cannot_take_is_dropped() {
    let readers = (0..40).map(|_| task("io", 0, reads())).collect();
    let spec = spec(2, vec![vm("a", 2, readers)]);
    let all: Vec<Action> = (2..42).map(|t| to(t, 1, &[1])).collect();
    let (outcomes, _, result) = after(&spec, &all);
    let of = |outcome| outcomes.iter().filter(|(other, _)| *other == outcome).count();
    assert_eq!((of(Outcome::Done), of(Outcome::Dropped)), (4, 36));
    assert_eq!(result.vms[0].moves, 4);
}

#[test]
fn a_second_change_and_a_stopper_take_time() {
    // A task that computes on vCPU 1 is moved by a worker of vCPU 0.
    let took = |within: &[u16], change: fn(&mut MachineSpec)| {
        let mut spec = spec(2, vec![vm("a", 2, vec![task("io", 0, reads())])]);
        spec.guest.context_switch = us(200);
        change(&mut spec);
        let (outcomes, _, result) = after(&spec, &[to(1, 0, within)]);
        assert_eq!((outcomes[0].0, result.vms[0].moves), (Outcome::Done, 1));
        outcomes[0].1
    };
    let one = took(&[0], |_| {});
    // The window and the turn first, then a worker's wake-up and its call.
    assert_eq!(one, us(20 + 2 + 5 + 5 + 200));
    let two = took(&[0, 1], |_| {});
    assert!((one + us(5)..one + us(205)).contains(&two), "{two}, {one}: a call more");
    let free = |spec: &mut MachineSpec| spec.ablation.free_stopper = true;
    assert_eq!(took(&[0], free) + us(200), one);
}

#[test]
fn without_a_shared_cache_who_is_woken_on_an_absent_vcpu_cannot_be_moved() {
    // vCPU 0 hears of the I/O of a task of vCPU 1. When 1 has been away for a while, the task
    // should go to 0. It goes back when 1 is back.
    let run = |shared: bool| {
        let reader = vec![task("io", 1, reads())];
        let mut spec = spec(2, vec![vm("a", 2, reader), vm("b", 2, Vec::new())]);
        spec.vms[1].agent = false;
        spec.vms[1].tasks.remove(0);
        spec.guest.completes = Completes::Fixed;
        spec.guest.shared_cache = shared;
        spec.detector = Detector::Exact { delay: us(500), edge: us(1) };
        let log = Log::default();
        let script = scripted(&log, |script| {
            script.answer = Box::new(|told| match told {
                Told::Sign(_, 1, Sign::Preempted) => Some(to(2, 0, &[0])),
                Told::Sign(_, 1, Sign::Resumed) => Some(to(2, 1, &[1])),
                _ => None,
            });
        });
        let (result, _) = run_with(&spec, &script, 1, ms(1000));
        (result.vms[0].moves, result.vms[0].blocked)
    };
    let (moves, blocked) = run(true);
    assert!(moves > 60 && blocked < moves / 8, "{blocked} of {moves}");
    let (moves, blocked) = run(false);
    assert!(moves > 60 && blocked > moves / 3, "{blocked} of {moves}: half are away from it");
}

/// Measures the lateness of a timer of a millisecond over a second, and the agent's CPU time: vCPU
/// 0 leads and is taken away for slices of this length, vCPU 1 is not. With beats of both, the
/// policy expects vCPU 0 to run on.
fn lateness(slice: Nanos, beats: Option<Nanos>) -> (Vec<Nanos>, Nanos) {
    let mut spec = spec(2, vec![vm("a", 2, Vec::new()), vm("b", 1, Vec::new())]);
    spec.vms[1].agent = false;
    spec.host.slice = slice;
    spec.detector = Detector::Heartbeat { beat: us(5) };
    let log = Log::default();
    let script = scripted(&log, |script| {
        (script.wakes, script.beats) = (Some(ms(1)), beats);
        script.lasts = beats.map(|_| VcpuId::new(0));
    });
    let (result, _) = run_with(&spec, &script, 1, ms(1000));
    let log = log.lock().unwrap();
    let late = log.iter().filter_map(|(now, told)| match told {
        Told::Asked(due) => Some(*now - *due),
        _ => None,
    });
    // The first is asked for before anything runs.
    (late.skip(1).collect(), result.vms[0].agent)
}

#[test]
fn a_timer_waits_for_the_lead_which_costs() {
    let (late, agent) = lateness(ms(11), None);
    assert!(late.iter().all(|late| *late >= us(5)), "a thread wakes first");
    let away = late.iter().filter(|late| **late > ms(9)).count();
    assert!(away > 0, "vCPU 1 has it once it has looked while 0 was away");
    assert!(*late.iter().max().unwrap() <= PATIENCE + us(10));
    assert!(agent >= us(5).scaled(late.len() as u64, 1), "{agent}");
}

#[test]
fn who_finds_the_lead_overdue_takes_its_place() {
    // Only the next in turn, when its patience has ended.
    let (late, _) = lateness(ms(60), None);
    let long: Vec<&Nanos> = late.iter().filter(|late| **late > us(20)).collect();
    assert_eq!(long, [&(PATIENCE + us(5))], "vCPU 1 has it from then on");
    // A monitor that beats finds it sooner, and has it until vCPU 0 has woken again.
    let (late, _) = lateness(ms(60), Some(ms(5)));
    let long: Vec<&Nanos> = late.iter().filter(|late| **late > us(20)).collect();
    assert!((8..30).contains(&long.len()), "one or two of each absence: {long:?}");
    assert!(**long.iter().max().unwrap() < OVERDUE + ms(6), "{long:?}");
}

/// Bytes that readers read between 6 and 12 s.
fn read(spec: &MachineSpec, policy: &str) -> u64 {
    let result = run_from(spec, policy, 1, ms(6_000), ms(12_000));
    result.vms.iter().flat_map(|vm| &vm.tasks).map(|task| task.bytes).sum()
}

/// In an emulated guest a wake-up takes 0.3 ms, and a preemption shows after two ticks: moves come
/// too late to gain anything, and looking at tasks costs I/O.
#[test]
fn where_the_agent_costs_more_than_it_brings_it_rests() {
    let mut dear = reading(2, 4);
    dear.costs =
        Costs { call: us(450), cold: us(300), window: us(300), wake: us(300), turn: us(60) };
    dear.detector = Detector::Exact { delay: ms(8), edge: us(60) };
    let [vanilla, published, ours] =
        ["vanilla", "vmigrater:published=true", "vmigrater"].map(|policy| read(&dear, policy));
    assert!(100 * published < 90 * vanilla, "{published} of {vanilla}");
    assert!(100 * ours >= 99 * vanilla, "{ours} of {vanilla}");
    let cheap = reading(2, 4);
    let [vanilla, ours] = ["vanilla", "vmigrater"].map(|policy| read(&cheap, policy));
    assert!(10 * ours > 17 * vanilla, "it does not rest: {ours} of {vanilla}");
}
