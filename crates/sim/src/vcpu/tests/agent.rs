//! Tests of a policy's news, and of its actions.

use super::script::{Log, Script, Told, scripted, spans};
use super::support::*;
use crate::vcpu::*;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::*;

fn two_vms(pcpus: u16, more: Vec<TaskSpec>) -> MachineSpec {
    let mut spec = spec(pcpus, vec![vm("a", pcpus, more), vm("b", pcpus, Vec::new())]);
    spec.vms[1].agent = false;
    spec
}

fn run_script(
    spec: &MachineSpec,
    change: impl Fn(&mut Script),
    until: Nanos,
) -> (Vec<(Instant, Told)>, Log, MachineResult) {
    let log = Log::default();
    let (result, _) = run_with(spec, &scripted(&log, change), 5, until);
    let told = log.lock().unwrap().clone();
    (told, log, result)
}

fn go(task: u64, to: u16, by: Means) -> Option<Action> {
    let to = VcpuId::new(to);
    Some(Action::Move { task: TaskId(task), to, within: VcpuSet::only(to), by })
}

const LATE: u64 = 100_000_000;

/// A task of vCPU 0 is pulled away when that has gone: when it had, when it was back, and
/// when the move was done.
fn pull_from_absent(spec: &MachineSpec, task: u64) -> (Instant, Instant, Instant, u64) {
    let (told, _, result) = run_script(
        spec,
        |script| {
            script.answer = Box::new(move |told| match told {
                Told::Sign(at, 0, Sign::Preempted) if (LATE..2 * LATE).contains(&at.as_nanos()) => {
                    go(task, 1, Means::Pull)
                }
                _ => None,
            });
        },
        // Once only: the next absence is later than that.
        ms(115),
    );
    let moved = told.iter().find(|(_, told)| matches!(told, Told::Moved(..)));
    let (moved, _) = moved.expect("it was moved");
    let gone = told.iter().find_map(|(_, told)| match told {
        Told::Sign(at, 0, Sign::Preempted) if at.as_nanos() >= LATE => Some(*at),
        _ => None,
    });
    let gone = gone.expect("it was taken away");
    let back = told.iter().find_map(|(_, told)| match told {
        Told::Sign(at, 0, Sign::Resumed) if *at > gone => Some(*at),
        _ => None,
    });
    (gone, back.expect("it was back"), *moved, result.vms[0].blocked)
}

#[test]
fn a_task_that_is_current_on_an_absent_vcpu_waits_for_the_stopper() {
    let mut spec = two_vms(2, Vec::new());
    let (gone, back, moved, blocked) = pull_from_absent(&spec, 0);
    assert!(back - gone > ms(10), "away from {gone} to {back}");
    assert!(moved >= back && moved - back <= us(20), "{moved}, back at {back}");
    assert_eq!(blocked, 1);
    spec.ablation.free_stopper = true;
    let (gone, _, moved, blocked) = pull_from_absent(&spec, 0);
    assert!(moved - gone < us(200), "{moved}, away from {gone}");
    assert_eq!(blocked, 0);
}

#[test]
fn a_task_that_is_queued_on_an_absent_vcpu_is_moved_at_once() {
    // Two tasks compete there; whichever is current when it goes, the other is not.
    let spec = two_vms(2, vec![task("second", 0, Load::Compute)]);
    let times: Vec<_> = [0, 2].map(|task| pull_from_absent(&spec, task)).into();
    let at_once = times.iter().filter(|(gone, _, moved, _)| *moved - *gone < us(200)).count();
    assert_eq!(at_once, 1, "{times:?}");
    assert_eq!(times.iter().map(|time| time.3).sum::<u64>(), 1);
}

#[test]
fn a_task_that_sleeps_is_moved_and_hears_where_it_asked() {
    // It reads on vCPU 0, alone, and is moved to vCPU 1 while it waits.
    let mut spec = spec(2, vec![vm("a", 2, vec![task("io", 0, reads())])]);
    spec.vms[0].tasks.remove(0);
    let (_, _, result) = run_script(
        &spec,
        |script| {
            script.windows = Some(ms(50));
            script.answer = Box::new(|told| match told {
                Told::Window(loads) if loads[0].vcpu.index() == 0 => go(1, 1, Means::Pull),
                _ => None,
            });
        },
        ms(200),
    );
    let vm = &result.vms[0];
    assert_eq!((vm.moves, vm.blocked), (1, 0), "whoever decided made the move");
    assert!(vm.first_ran < ms(25), "it runs on vCPU 1 from then on");
    assert!(vm.tasks[1].ios > 2_000, "{}", vm.tasks[1].ios);
}

#[test]
fn edges_are_told_late_and_with_their_time() {
    let (told, log, result) = run_script(&two_vms(2, Vec::new()), |_| {}, ms(500));
    for (now, sign) in &told {
        let Told::Sign(at, ..) = sign else { continue };
        assert!(*now - *at >= us(20), "{sign:?} at {now}");
    }
    assert_eq!(result.vms[0].agent, Nanos::ZERO, "without windows there is no agent to pay");
    let ran = |vcpu| spans(&log, vcpu).iter().fold(Nanos::ZERO, |sum, (a, b)| sum + (*b - *a));
    assert!(ran(0) + ran(1) <= result.vms[0].ran);
    assert!(ran(0) + ran(1) + ms(50) > result.vms[0].ran);
}

#[test]
fn nothing_is_decided_while_no_vcpu_runs() {
    let spec = two_vms(1, Vec::new());
    let change = |script: &mut Script| script.windows = Some(ms(5));
    let (told, log, result) = run_script(&spec, change, ms(1000));
    let spans = spans(&log, 0);
    let runs = |now: Instant| spans.iter().any(|&(from, to)| from <= now && now < to);
    let last = spans.last().unwrap().1;
    let told: Vec<_> = told.iter().filter(|(now, _)| *now > at(ms(50)) && *now < last).collect();
    assert!(told.len() > 100);
    for (now, what) in told {
        assert!(runs(*now), "{what:?} is told at {now}");
    }
    assert!(result.vms[0].agent > Nanos::ZERO);
}

#[test]
fn beats_come_on_their_vcpu_and_cost() {
    let mut spec = two_vms(1, Vec::new());
    spec.detector = Detector::Heartbeat { beat: us(10) };
    let change = |script: &mut Script| script.beats = Some(us(300));
    let (told, _, result) = run_script(&spec, change, ms(1000));
    let late = told.iter().filter_map(|(_, told)| match told {
        Told::Sign(at, 0, Sign::Beat { due }) => Some(due.map_or(Nanos::ZERO, |due| *at - due)),
        _ => None,
    });
    let late: Vec<Nanos> = late.collect();
    // Half a second of beats each 310 µs, and one long absence in each round of 22 ms.
    assert!((1_550..1_680).contains(&late.len()), "{}", late.len());
    let absences = late.iter().filter(|late| **late > ms(9)).count();
    assert!((43..48).contains(&absences), "{absences}");
    let others = late.iter().filter(|late| **late <= ms(9)).max().unwrap();
    assert!(*others < us(50), "{others}");
    let all = late.len() as u64;
    assert!(result.vms[0].agent >= us(10).scaled(all, 1));
    assert!(result.vms[0].agent <= us(10).scaled(all + 1, 1));
}

#[test]
fn windows_tell_what_tasks_did() {
    let mut spec = spec(1, vec![vm("a", 1, vec![task("io", 0, reads())])]);
    (spec.costs.window, spec.costs.wake, spec.costs.turn) = Default::default();
    spec.guest.context_switch = Nanos::ZERO;
    let change = |script: &mut Script| script.windows = Some(ms(5));
    let (told, _, result) = run_script(&spec, change, ms(500));
    let mut ios = 0;
    let mut windows = told.iter().filter_map(|(now, told)| match told {
        Told::Window(loads) => Some((*now, loads)),
        _ => None,
    });
    let mut last = windows.next().unwrap().0;
    for (now, loads) in windows {
        let [load] = &loads[..] else { panic!("one task does I/O: {loads:?}") };
        assert_eq!(now - last, ms(5));
        assert_eq!(load.waited + load.ran, ms(5), "it waits or it runs");
        assert!(load.io_time >= load.waited.saturating_sub(us(200)));
        (ios, last) = (ios + u64::from(load.ios), now);
    }
    assert!(ios <= result.vms[0].tasks[1].ios && ios > 5_000, "{ios}");
}

#[test]
fn waiting_ends_when_the_guest_hears_of_it() {
    // Alone on a vCPU that is away half of the time: one wait in each round is long, and
    // the guest cannot know that the disk was done long ago.
    let spec = two_vms(1, vec![task("io", 0, reads())]);
    let change = |script: &mut Script| script.windows = Some(ms(5));
    let (told, _, _) = run_script(&spec, change, ms(500));
    let longest = told.iter().filter_map(|(_, told)| match told {
        Told::Window(loads) => loads.iter().map(|load| load.waited).max(),
        _ => None,
    });
    let longest = longest.max().unwrap();
    assert!(longest > ms(10), "{longest}");
}

#[test]
fn foresight_tells_before_it_happens() {
    let mut spec = two_vms(2, Vec::new());
    spec.ablation.foresight = Some(us(700));
    let (told, _, _) = run_script(&spec, |_| {}, ms(500));
    let mut starts = [None; 2];
    let mut spans = 0;
    for (now, told) in told.iter().filter(|(now, _)| *now > at(ms(50))) {
        match told {
            Told::Sign(at, v, Sign::Resumed) => starts[*v] = Some(*at),
            Told::Sign(at, v, Sign::Preempted) => {
                assert_eq!(now, at, "at once");
                if let Some(from) = starts[*v].take() {
                    let span = (*at - from).as_millis_f64();
                    assert!((9.9..10.7).contains(&span), "told after {span} ms of 11 ± 0.3");
                    spans += 1;
                }
            }
            _ => {}
        }
    }
    assert!(spans > 35, "{spans}");
}

#[test]
fn a_policy_may_not_move_a_task_where_its_owner_does_not_let_it() {
    let mut spec = two_vms(2, vec![task("io", 0, reads())]);
    spec.vms[0].tasks[2].allowed = vec![0];
    let run = || {
        run_script(
            &spec,
            |script| {
                script.windows = Some(ms(5));
                script.answer = Box::new(|told| match told {
                    Told::Window(_) => go(2, 1, Means::Push),
                    _ => None,
                });
            },
            ms(50),
        )
    };
    let panic = std::panic::catch_unwind(run).unwrap_err();
    let text = panic.downcast_ref::<&str>().expect("it says why");
    assert!(text.contains("does not allow"), "{text}");
}

#[test]
fn an_action_on_a_task_that_is_none_is_refused() {
    let (told, ..) = run_script(
        &two_vms(2, Vec::new()),
        |script| {
            script.answer = Box::new(|told| match told {
                Told::Sign(at, 0, Sign::Preempted) if at.as_nanos() < 12_000_000 => {
                    go(77, 1, Means::Pull)
                }
                _ => None,
            });
        },
        ms(40),
    );
    assert!(told.iter().any(|(_, told)| *told == Told::Moved(TaskId(77), Outcome::Refused)));
}
