//! The guests' schedulers and their tasks.

use super::support::*;
use crate::vcpu::*;
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_workload::{Issue, Source};

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
