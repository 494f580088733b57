//! Tests of the machine on devices small enough to work out the results.

mod guests;
mod moves;
mod support;
mod swarm;

use super::{Completes, MachineSpec};
use crate::vcpu::{MachineResult, Start, *};
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_vcpu::*;
use seekway_workload::{Issue, Source};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use support::{Log, Script, Told, scripted, spans, *};

#[test]
fn two_vms_halve_what_an_io_task_gets() {
    let with = |vms: usize| {
        let result = run_named(&reading(vms, 4), "vanilla", 1, ms(2000));
        result.vms[0].tasks.iter().find(|t| t.io).unwrap().ios as f64
    };
    let (alone, shared) = (with(1), with(2));
    assert!((0.45..0.55).contains(&(shared / alone)), "{shared} of {alone}");
}

#[test]
fn moves_keep_an_io_task_running() {
    let mut spec = reading(2, 4);
    let ios = |spec: &MachineSpec, moves: bool| {
        let result = match moves {
            true => run_with(spec, &|| Box::<Nomad>::default(), 1, ms(2000)).0,
            false => run_named(spec, "vanilla", 1, ms(2000)),
        };
        let vm = &result.vms[0];
        (vm.tasks.iter().find(|t| t.io).unwrap().ios as f64, vm.moves, vm.blocked)
    };
    let (still, ..) = ios(&spec, false);
    // It moves when its vCPU has gone, and its completion is with that one.
    let (late, ..) = ios(&spec, true);
    spec.guest.completes = Completes::Any;
    let (moved, moves, blocked) = ios(&spec, true);
    assert!(moved > 1.3 * still && moved > 1.3 * late, "{moved}, {late} where it was, {still}");
    assert!(0 < blocked && blocked < moves, "{blocked} of {moves} wait for a vCPU");
    spec.ablation.free_stopper = true;
    spec.ablation.free_completions = true;
    let (free, ..) = ios(&spec, true);
    assert!(free > 1.05 * moved, "{free} with all for free, {moved} without");
}

// Tests of a policy's news, and of its actions.

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

// The guests' schedulers and their tasks.

/// One VM with these tasks and no others, alone on its host.
fn alone(vcpus: u16, tasks: Vec<TaskSpec>) -> MachineSpec {
    let mut spec = spec(vcpus, vec![vm("a", vcpus, Vec::new())]);
    spec.vms[0].tasks = tasks;
    spec
}

fn ran(spec: &MachineSpec, until: Nanos) -> Vec<f64> {
    let result = run_named(spec, "vanilla", 1, until);
    let share = |task: &TaskResult| task.ran.as_secs_f64() / until.as_secs_f64();
    result.vms[0].tasks.iter().map(share).collect()
}

#[test]
fn tasks_of_a_vcpu_share_it() {
    let all = ["a", "b", "c"].map(|name| task(name, 0, Load::Compute));
    for share in ran(&alone(1, all.into()), ms(1000)) {
        assert!((share - 1.0 / 3.0).abs() < 0.005, "{share}");
    }
}

#[test]
fn a_task_that_sleeps_gets_what_it_asks_for() {
    let partly = Load::Partly { burst: ms(2), permille: 200 };
    let shares = ran(&alone(1, vec![task("partly", 0, partly)]), ms(2000));
    assert!((shares[0] - 0.2).abs() < 0.005, "{shares:?}");
    let both = vec![task("partly", 0, partly), task("all", 0, Load::Compute)];
    let shares = ran(&alone(1, both), ms(2000));
    // It wakes younger than the other, but not by enough that it goes first each time.
    assert!(shares[0] > 0.15 && shares[0] + shares[1] > 0.99, "{shares:?}");
}

#[test]
fn an_io_task_that_computes_as_much_has_no_more_than_its_half() {
    let heavy = task("heavy", 0, io(|io| io.cpu = ms(1)));
    let both = vec![heavy, task("all", 0, Load::Compute)];
    let shares = ran(&alone(1, both), ms(2000));
    assert!((0.40..0.52).contains(&shares[0]), "{shares:?}");
    assert!(shares[0] + shares[1] > 0.99, "{shares:?}");
}

#[test]
fn who_waits_is_given_to_a_vcpu_that_is_idle() {
    let both = || vec![task("a", 0, Load::Compute), task("b", 0, Load::Compute)];
    let mut spec = alone(2, both());
    let still = ran(&spec, ms(1000));
    assert!(still.iter().all(|share| (share - 0.5).abs() < 0.01), "{still:?}");
    spec.guest.balances = true;
    let balanced = ran(&spec, ms(1000));
    assert!(balanced.iter().all(|share| *share > 0.98), "{balanced:?}");
    spec.vms[0].tasks.iter_mut().for_each(|task| task.allowed = vec![0]);
    assert_eq!(ran(&spec, ms(1000)), still, "their owner does not let them");
}

#[test]
fn a_vcpu_that_gets_idle_takes_who_waits() {
    // The third computes for 100 ms at a time on a vCPU of its own, which idles after.
    let partly = Load::Partly { burst: ms(100), permille: 500 };
    let all = [task("a", 0, Load::Compute), task("b", 0, Load::Compute), task("c", 1, partly)];
    let mut spec = alone(2, all.into());
    spec.guest.balances = true;
    let shares = ran(&spec, ms(2000));
    assert!(shares.iter().sum::<f64>() > 1.95, "{shares:?}");
}

#[test]
fn bursts_are_followed_by_pauses() {
    let with = |between_ms: u64, computes: bool| {
        io(|io| (io.burst, io.between, io.computes) = (10, ms(between_ms), computes))
    };
    let run = |load| {
        let result = run_named(&alone(1, vec![task("io", 0, load)]), "vanilla", 1, ms(1000));
        let task = &result.vms[0].tasks[0];
        (task.ios, task.ran)
    };
    let (ios, ran) = run(with(10, false));
    // Ten blocks in 10 ms and the time of ten blocks, nearly a millisecond.
    assert!((880..960).contains(&ios), "{ios}");
    assert!(ran < ms(20), "{ran}");
    let (computing, ran) = run(with(10, true));
    assert!((880..960).contains(&computing) && ran > ms(850), "{computing}, {ran}");
    assert!(run(with(0, false)).0 > 8_000, "no pause at all");
}

#[test]
fn a_task_begins_when_it_is_to() {
    let mut late = task("late", 0, reads());
    late.from = ms(600);
    let result = run_named(&alone(1, vec![late]), "vanilla", 1, ms(1000));
    let series = &result.vms[0].tasks[0].series;
    let ios: Vec<u64> = series.iter().map(|(_, ios)| *ios).collect();
    assert_eq!(series.iter().map(|(at, _)| *at).collect::<Vec<_>>()[2], at(ms(500)));
    assert!(ios[..2] == [0, 0] && ios[2] > 0 && ios[3] > ios[2], "{ios:?}");
}

#[test]
fn several_blocks_are_under_way_at_a_time() {
    let ios = |depth: u16| {
        let load = io(|io| io.depth = depth);
        run_named(&alone(1, vec![task("io", 0, load)]), "vanilla", 1, ms(500)).vms[0].tasks[0].ios
    };
    let (one, four) = (ios(1), ios(4));
    assert!(four > 2 * one, "{four} and {one}");
}

/// Requests of a machine up to `until` to a disk that answers after 100 µs.
fn issues(spec: &MachineSpec, until: Nanos) -> Vec<Issue> {
    on_a_plain_disk(spec, "vanilla", until).0
}

/// As [`issues`], under a policy, with times and results.
fn on_a_plain_disk(
    spec: &MachineSpec,
    policy: &str,
    until: Nanos,
) -> (Vec<Issue>, Vec<Instant>, MachineResult) {
    let mut machine = Machine::new(spec, policy, 1, Instant::ZERO).unwrap();
    let mut times = Vec::new();
    let mut source = &mut machine;
    let (mut all, mut disk) = (Vec::new(), Vec::new());
    let mut now = Instant::ZERO;
    while now <= at(until) {
        let before = all.len();
        source.poll(now, &mut all).unwrap();
        disk.extend(all[before..].iter().map(|issue| (now + us(100), issue.token)));
        let done = disk.iter().map(|(at, _)| *at).min();
        now = source.next_wake().into_iter().chain(done).min().expect("it goes on for ever");
        for (_, token) in disk.extract_if(.., |(at, _)| *at <= now) {
            source.completed(now, token);
        }
        times.resize(all.len(), now);
    }
    let result = machine.result(now);
    (all, times, result)
}

#[test]
fn xballoon_dozes_for_half_of_each_period_and_io_ends_that_at_once() {
    let mut spec = alone(1, vec![task("compute", 0, Load::Compute), task("io", 0, reads())]);
    spec.guest.context_switch = Nanos::ZERO;
    let (_, times, result) = on_a_plain_disk(&spec, "xballoon", ms(3000));
    let [compute, io] = &result.vms[0].tasks[..] else { panic!("two tasks") };
    // It dozes for as long as each I/O takes, up to 15 ms of 30, and computes in the rest
    // whenever the I/O task waits.
    let share = compute.ran.as_secs_f64() / 3.0;
    assert!((0.38..0.52).contains(&share), "{share}");
    let rate = |from: u64, to: u64| {
        times.iter().filter(|time| (at(ms(from))..at(ms(to))).contains(time)).count()
    };
    for period in 10..90 {
        let ios = rate(30 * period, 30 * period + 30);
        assert!((240..285).contains(&ios), "{ios} in period {period}");
    }
    let slowest = io.response.value_at_quantile(0.99);
    // The disk, 10 µs of its own, the host's switch, and a window that is read at each 5 ms.
    assert!(slowest < 160_000, "{slowest} ns");
}

#[test]
fn each_task_has_its_part_of_the_disk() {
    let tasks = vec![
        task("random", 0, reads()),
        task("compute", 0, Load::Compute),
        task("in order", 1, io(|io| io.sequential = true)),
    ];
    let mut spec = alone(2, tasks);
    spec.vms[0].disk = Sectors::new(2 * 8 * 100 + 7);
    let all = issues(&spec, ms(100));
    let of = |tag: u16| all.iter().filter(move |issue| issue.tag.is_some_and(|t| t.get() == tag));
    let random: std::collections::BTreeSet<u64> = of(1).map(|issue| issue.start.get()).collect();
    assert!(random.iter().all(|start| start % 8 == 0 && start + 8 <= 800), "{random:?}");
    assert!(random.len() > 90, "anywhere in it: {}", random.len());
    let ordered: Vec<u64> = of(3).map(|issue| issue.start.get()).collect();
    for (n, start) in ordered.iter().enumerate() {
        assert_eq!(*start, 800 + n as u64 % 100 * 8);
    }
    assert!(ordered.len() > 200, "round the end: {}", ordered.len());
}

#[test]
fn xballoon_gains_where_who_wakes_preempts_and_costs_compute_tasks() {
    let run = |policy: &str, preempts: bool| {
        let mut spec = reading(2, 2);
        spec.host.wakeup_preempts = preempts;
        spec.vms[1].agent = false;
        let result = run_named(&spec, policy, 1, ms(4000));
        let vm = &result.vms[0];
        let computed = vm.tasks[0].ran.as_secs_f64();
        (vm.tasks[2].ios as f64, computed)
    };
    let (still, still_computed) = run("vanilla", true);
    let (gains, gains_computed) = run("xballoon", true);
    let (waits, _) = run("xballoon", false);
    assert!(gains > 1.15 * still, "{gains}, vanilla {still}");
    assert!(gains_computed < 0.9 * still_computed, "{gains_computed} of {still_computed}");
    assert!(waits < 0.9 * gains, "{waits} where the host lets nobody preempt, {gains}");
}

// The host's scheduler: shares, slices, switches.

fn share(result: &MachineResult, vm: usize) -> f64 {
    let all: f64 = result.vms.iter().map(|vm| vm.ran.as_secs_f64()).sum();
    result.vms[vm].ran.as_secs_f64() / all
}

fn computing(pcpus: u16, vms: usize) -> MachineSpec {
    spec(pcpus, (0..vms).map(|n| vm(&format!("vm{n}"), pcpus, Vec::new())).collect())
}

#[test]
fn weights_are_shares() {
    for (light, heavy) in [(10, 90), (20, 80), (40, 60), (1, 1)] {
        let mut spec = computing(4, 2);
        spec.vms[0].cpu_weight = NonZeroU32::new(light).unwrap();
        spec.vms[1].cpu_weight = NonZeroU32::new(heavy).unwrap();
        let result = run_named(&spec, "vanilla", 1, Nanos::from_secs(20));
        let want = f64::from(light) / f64::from(light + heavy);
        let got = share(&result, 0);
        assert!((got - want).abs() < 0.01 * want.max(0.5), "{light}:{heavy}: {got} for {want}");
    }
}

#[test]
fn slices_are_as_long_as_they_should_be() {
    let log = Log::default();
    let mut spec = computing(1, 2);
    spec.vms[1].agent = false;
    run_with(&spec, &scripted(&log, |_| {}), 3, Nanos::from_secs(20));
    let (mut single, mut more) = (0, 0);
    // The first is a part of one.
    for (from, to) in spans(&log, 0).into_iter().skip(1) {
        let slices = ((to - from).as_millis_f64() / 11.0).round();
        let off = (to - from).as_millis_f64() - 11.0 * slices;
        assert!(off.abs() <= 0.3 * slices, "{} from {from}", to - from);
        *(if slices == 1.0 { &mut single } else { &mut more }) += 1;
    }
    assert!(single > 800 && more < single / 20, "{single} single, {more} longer");
}

#[test]
fn cut_slices_are_cut_and_shares_stay() {
    let log = Log::default();
    let mut spec = computing(1, 2);
    spec.vms[1].agent = false;
    spec.host.cut_permille = 100;
    let (result, _) = run_with(&spec, &scripted(&log, |_| {}), 3, Nanos::from_secs(20));
    let spans = spans(&log, 0);
    let cut = spans.iter().filter(|(from, to)| (*to - *from).as_millis_f64() < 10.7).count();
    let share_cut = cut as f64 / spans.len() as f64;
    assert!((0.06..0.14).contains(&share_cut), "{share_cut} of {}", spans.len());
    assert!((share(&result, 0) - 0.5).abs() < 0.01, "{}", share(&result, 0));
}

#[test]
fn short_slices_are_cut_no_more_often() {
    let log = Log::default();
    let cuts = |slice: Nanos| {
        log.lock().unwrap().clear();
        let script = scripted(&log, |script| script.slice = Some(slice));
        let mut spec = computing(1, 2);
        spec.vms[1].agent = false;
        spec.host.jitter = Nanos::ZERO;
        spec.host.cut_permille = 200;
        run_with(&spec, &script, 3, Nanos::from_secs(20));
        let is_cut = |from: Instant, to: Instant| (to - from).get() * 100 < slice.get() * 99;
        spans(&log, 0).iter().filter(|(from, to)| is_cut(*from, *to)).count() as f64
    };
    let (whole, halves) = (cuts(ms(11)), cuts(us(5_500)));
    assert!((halves / whole - 1.0).abs() < 0.25, "{halves} in 20 s, {whole} of whole slices");
}

#[test]
fn a_vcpu_that_has_nothing_to_run_is_not_away() {
    // It does nothing but I/O, and its only vCPU is halted for most of the time.
    let mut quiet = vm("quiet", 1, vec![task("io", 0, reads())]);
    quiet.tasks.remove(0);
    let idle = run_named(&spec(1, vec![quiet.clone()]), "vanilla", 1, ms(1000));
    let idle = &idle.vms[0];
    assert!(idle.ran < ms(250), "{}", idle.ran);
    let missing = ms(1000).saturating_sub(idle.any_ran);
    // From each wake-up to the switch to it.
    assert!(missing <= us(5).scaled(idle.tasks[0].ios + 2, 1), "{missing}");
    // Beside a computing VM it waits to run most of the time.
    let beside = spec(1, vec![quiet, vm("busy", 1, Vec::new())]);
    let any = run_named(&beside, "vanilla", 1, ms(1000)).vms[0].any_ran;
    assert!(any < ms(300), "{any}");
}

#[test]
fn a_processors_time_adds_up() {
    let mut spec = computing(3, 3);
    spec.vms[0].tasks.push(task("io", 0, reads()));
    spec.vms[1].tasks.clear();
    spec.vms[1].tasks.push(task("io", 2, reads()));
    for seed in 0..5 {
        let result = run_named(&spec, "vanilla", seed, ms(700));
        for (n, p) in result.pcpus.iter().enumerate() {
            assert_eq!(p.ran + p.switching + p.idle, ms(700), "pCPU {n}, seed {seed}");
            assert_eq!(p.switching, spec.host.context_switch.scaled(p.switches, 1), "pCPU {n}");
        }
        let ran = |r: &MachineResult| r.pcpus.iter().fold(Nanos::ZERO, |sum, p| sum + p.ran);
        let vms = result.vms.iter().fold(Nanos::ZERO, |sum, vm| sum + vm.ran);
        assert_eq!(ran(&result), vms, "seed {seed}");
    }
}

#[test]
fn what_is_before_the_measuring_is_forgotten() {
    let spec = reading(2, 2);
    let whole = run_from(&spec, "vanilla", 1, Nanos::ZERO, ms(1000));
    let half = run_from(&spec, "vanilla", 1, ms(500), ms(1000));
    for p in &half.pcpus {
        assert_eq!(p.ran + p.switching + p.idle, ms(500));
    }
    for (half, whole) in half.vms.iter().zip(&whole.vms) {
        assert!(half.any_ran <= ms(500) && half.ran < whole.ran.scaled(6, 10));
        for (half, whole) in half.tasks.iter().zip(&whole.tasks) {
            assert!(half.ran < whole.ran.scaled(6, 10) && half.ios <= whole.ios * 6 / 10);
        }
        assert!(half.moves_min <= whole.moves_min / 2 + 1 && half.moves_min > 0);
    }
}

#[test]
fn a_vm_alone_loses_nothing() {
    let spec = spec(4, vec![vm("alone", 4, vec![task("io", 0, reads())])]);
    let result = run_named(&spec, "vanilla", 1, ms(1000));
    let alone = &result.vms[0];
    assert_eq!(alone.any_ran, ms(1000).saturating_sub(spec.host.context_switch));
    assert!(result.pcpus.iter().all(|p| p.switches == 1 && p.slices == 1));
    let io = alone.tasks.last().unwrap();
    assert!(io.inactive < us(10), "{}", io.inactive);
    // It takes its vCPU from the compute task at once: nothing but the disk and itself.
    let slowest = io.response.value_at_quantile(0.999);
    assert!(slowest < 120_000, "{slowest} ns");
}

#[test]
fn the_bound_of_pinned_vms_is_that_of_independent_phases() {
    for (n, vcpus) in [(2, 2), (2, 4), (4, 4), (8, 12)] {
        let seeds = 12;
        let any = |seed| {
            let all = run_named(&computing(vcpus, n), "vanilla", seed, ms(2000));
            all.vms.iter().map(|vm| vm.any_ran.as_secs_f64() / 2.0).sum::<f64>() / n as f64
        };
        let got = (0..seeds).map(any).sum::<f64>() / seeds as f64;
        let want = 1.0 - (1.0 - 1.0 / n as f64).powi(i32::from(vcpus));
        assert!((got / want - 1.0).abs() < 0.05, "{n} VMs of {vcpus}: {got} for {want}");
    }
}

#[test]
fn short_slices_are_spread_over_the_round_at_the_same_share() {
    let log = Log::default();
    let script = scripted(&log, |script| script.slice = Some(us(5_500)));
    let mut spec = computing(1, 3);
    spec.host.jitter = Nanos::ZERO;
    spec.vms[1].agent = false;
    spec.vms[2].agent = false;
    let (result, _) = run_with(&spec, &script, 1, Nanos::from_secs(10));
    for vm in 0..3 {
        assert!((share(&result, vm) - 1.0 / 3.0).abs() < 0.005, "{vm}: {}", share(&result, vm));
    }
    // 5.5 ms in every 16.5, where whole slices are 11 in every 33.
    let spans = spans(&log, 0);
    let gaps = spans.windows(2).map(|pair| (pair[1].0 - pair[0].1).as_millis_f64()).skip(3);
    for gap in gaps {
        assert!((gap - 11.0).abs() < 0.1, "away for {gap} ms");
    }
    let whole = run_named(&computing(1, 3), "vanilla", 1, Nanos::from_secs(10));
    let (short, whole) = (result.pcpus[0].switches, whole.pcpus[0].switches);
    assert!(short > whole * 13 / 10, "{short} switches, {whole} with whole slices");
}

#[test]
fn vslicer_pays_for_its_switches() {
    let mut spec = computing(2, 4);
    spec.host.context_switch = us(50);
    let vanilla = run_named(&spec, "vanilla", 1, Nanos::from_secs(4));
    let sliced = run_named(&spec, "vslicer", 1, Nanos::from_secs(4));
    let ratio = sliced.pcpus[0].switches as f64 / vanilla.pcpus[0].switches as f64;
    assert!((1.9..2.1).contains(&ratio), "{ratio}");
    let lost = vanilla.pcpus[0].ran.saturating_sub(sliced.pcpus[0].ran);
    let more = us(50).scaled(sliced.pcpus[0].switches - vanilla.pcpus[0].switches, 1);
    assert_eq!(lost, more);
}

#[test]
fn who_wakes_takes_the_processor_only_where_the_host_lets_it() {
    // A VM that does nothing but I/O beside one that computes.
    let mut quiet = vm("quiet", 1, vec![task("io", 0, reads())]);
    quiet.tasks.remove(0);
    let mut spec = spec(1, vec![quiet, vm("busy", 1, Vec::new())]);
    let ios = |spec: &MachineSpec| run_named(spec, "vanilla", 1, ms(2000)).vms[0].tasks[0].ios;
    let waits = ios(&spec);
    spec.host.wakeup_preempts = true;
    let takes = ios(&spec);
    assert!(waits < 400 && takes > 20_000, "{waits} and {takes}");
}

#[test]
fn a_fixed_vcpu_for_completions_holds_up_the_others() {
    let ios = |on: u16, completes: Completes| {
        let mut spec = reading(2, 4);
        spec.guest.completes = completes;
        let readers = spec.vms.iter_mut().filter_map(|vm| vm.tasks.last_mut());
        readers.for_each(|reader| reader.start = Start::On(on));
        let mean = |seed| {
            let result = run_named(&spec, "vanilla", seed, ms(1000));
            result.vms.iter().map(|vm| vm.tasks.last().unwrap().ios as f64).sum::<f64>()
        };
        (0..8).map(mean).sum::<f64>()
    };
    let submitter = ios(1, Completes::Submitter);
    let any = ios(1, Completes::Any) / submitter;
    assert!((any - 1.0).abs() < 0.02, "{any}: it needs its own anyway");
    let same = ios(0, Completes::Fixed) / ios(0, Completes::Submitter);
    assert!((same - 1.0).abs() < 0.001, "{same}");
    let fixed = ios(1, Completes::Fixed) / submitter;
    // Both vCPUs have to run: at independent phases that is half of the time.
    assert!((0.35..0.65).contains(&fixed), "{fixed}");
}

// A policy that moves every I/O task to a running vCPU, as soon as its own does not run.

#[derive(Default)]
pub struct Nomad {
    online: Option<VcpuSet>,
    runs: Option<VcpuSet>,
    /// Where each task is, and where it may be.
    tasks: BTreeMap<TaskId, (VcpuId, VcpuSet)>,
    under_way: Vec<TaskId>,
}

impl VcpuPolicy for Nomad {
    fn attach(&mut self, _: Instant, online: &VcpuSet) {
        (self.online, self.runs) = (Some(*online), Some(*online));
    }

    fn heard(&mut self, _: Instant, vcpu: VcpuId, sign: Sign) {
        let runs = self.runs.as_mut().expect("attached");
        match sign {
            Sign::Preempted | Sign::Lost { .. } | Sign::Idle => runs.remove(vcpu),
            Sign::Resumed | Sign::Beat { .. } => runs.insert(vcpu),
        }
    }

    fn window(&mut self, _: Instant, loads: &[TaskLoad]) {
        for load in loads {
            self.tasks.entry(load.task).or_insert((load.vcpu, load.allowed));
        }
    }

    fn moved(&mut self, _: Instant, task: TaskId, _: Outcome) {
        self.under_way.retain(|&other| other != task);
    }

    fn next(&mut self, _: Instant) -> Option<Action> {
        let runs = self.runs?;
        let idle = |task: &TaskId| !self.under_way.contains(task);
        let mut stuck = self.tasks.iter_mut().filter(|(t, (on, _))| idle(t) && !runs.contains(*on));
        let (task, to, within) = stuck.find_map(|(&task, (on, allowed))| {
            let to = runs.and(allowed).iter().next()?;
            *on = to;
            Some((task, to, runs.and(allowed)))
        })?;
        self.under_way.push(task);
        Some(Action::Move { task, to, within, by: Means::Pull })
    }

    fn windows(&self) -> Option<Nanos> {
        Some(Nanos::from_millis(5))
    }
}
