use super::*;
use crate::{Means, build};

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

fn at(us: u64) -> Instant {
    Instant::ZERO + Nanos::from_micros(us)
}

fn vcpu(n: u16) -> VcpuId {
    VcpuId::new(n)
}

fn load(task: u64, on: u16, waited: u64) -> TaskLoad {
    TaskLoad {
        task: TaskId(task),
        vcpu: vcpu(on),
        allowed: VcpuSet::first(4),
        waited: us(waited),
        ran: us(5_000 - waited),
        ios: 40,
        io_time: us(4_000),
        last: None,
    }
}

/// A guest and its policy, with edges: vCPU n runs from `n · step` of each round for 11 ms of 22.
struct Guest {
    policy: Box<dyn VcpuPolicy>,
    step: u64,
    now: u64,
}

impl Guest {
    fn new(spec: &str, step: u64) -> Guest {
        let mut policy = build(spec).unwrap();
        policy.attach(at(0), &VcpuSet::first(4));
        Guest { policy, step, now: 0 }
    }

    /// Runs until `end`, with a window every 5 ms; returns the policy's actions with their times.
    fn until(&mut self, end: u64, loads: &[TaskLoad]) -> Vec<(u64, Action)> {
        let mut wanted = Vec::new();
        while self.now < end {
            self.now += 10;
            for n in 0..4 {
                let sign = match (self.now + 22_000 - u64::from(n) * self.step) % 22_000 {
                    0 => Sign::Resumed,
                    11_000 => Sign::Preempted,
                    _ => continue,
                };
                self.policy.heard(at(self.now), vcpu(n), sign);
            }
            if self.now.is_multiple_of(5_000) && self.policy.windows().is_some() {
                self.policy.window(at(self.now), loads);
            }
            let actions = std::iter::from_fn(|| self.policy.next(at(self.now)));
            wanted.extend(actions.map(|action| (self.now, action)));
        }
        wanted
    }

    fn done(&mut self, actions: &[(u64, Action)]) {
        for (_, action) in actions {
            self.policy.moved(at(self.now), action.task(), Outcome::Done);
        }
    }
}

#[test]
fn where_nothing_is_shared_it_does_next_to_nothing() {
    let mut policy = build("vmigrater").unwrap();
    policy.attach(at(0), &VcpuSet::first(4));
    let mut beats = 0;
    for ms in 0..10_000 {
        for n in 0..4 {
            let due = policy.beat_at(vcpu(n)).unwrap();
            if due <= at(ms * 1000) {
                // Late, as in an emulated guest, but not taken away.
                policy.heard(due + us(400), vcpu(n), Sign::Beat { due: Some(due) });
                beats += 1;
            }
        }
        assert_eq!((policy.windows(), policy.next(at(ms * 1000))), (None, None));
    }
    assert!(beats <= 4 * 10 * 10, "{beats} beats of four vCPUs in 10 s");
}

#[test]
fn a_task_leaves_in_time_for_the_longest_slice() {
    let mut guest = Guest::new("vmigrater", 4_000);
    guest.until(60_000, &[]);
    let moves = guest.until(88_000, &[load(7, 0, 4_000)]);
    // vCPU 0 has run from 66 ms, and has 700 us left at 76.3; 1 began at 70, 2 at 74.
    // Only there: a sleeper would wake on 1, which has 4 ms less.
    let (to, within) = (vcpu(2), VcpuSet::only(vcpu(2)));
    let wanted = Action::Move { task: TaskId(7), to, within, by: Means::Push };
    assert_eq!(moves, [(76_310, wanted)]);
}

#[test]
fn who_finds_none_that_runs_waits_where_it_is_heard_first() {
    // All run at the same time but the last, which comes back at half of their absence.
    for (spec, parks) in [("vmigrater", true), ("vmigrater:except=park", false)] {
        let mut guest = Guest::new(spec, 1_000);
        guest.until(60_000, &[]);
        let mut task = load(7, 3, 4_000);
        task.allowed = [vcpu(0), vcpu(3)].into_iter().collect();
        let moves = guest.until(88_000 - 3_000, &[task]);
        // 3 runs from 69 to 80 ms, 0 is back at 88: no sooner than an I/O more takes.
        let to = moves.iter().map(|(when, action)| match action {
            Action::Move { to, by: Means::Push, .. } => (*when > 79_000, to.index()),
            other => panic!("{other:?}"),
        });
        assert_eq!(to.collect::<Vec<_>>(), if parks { vec![(true, 0)] } else { vec![] }, "{spec}");
    }
}

#[test]
fn a_move_that_is_blocked_keeps_no_other_from_being_made() {
    let mut guest = Guest::new("vmigrater", 4_000);
    guest.until(60_000, &[]);
    let first = guest.until(80_000, &[load(7, 0, 4_000)]);
    assert_eq!(first.len(), 1, "{first:?}");
    // It is never done. The other is moved again and again; this one is not asked for twice.
    let mut moved = 0;
    for round in 4..8 {
        let more = guest.until(round * 22_000, &[load(7, 0, 4_000), load(8, 1, 4_000)]);
        assert!(more.iter().all(|(_, action)| action.task() == TaskId(8)), "{more:?}");
        guest.done(&more);
        moved += more.len();
    }
    assert!(moved >= 3, "{moved} moves");
}

#[test]
fn who_waits_no_more_or_has_ended_is_let_go_and_forgotten() {
    let mut guest = Guest::new("vmigrater", 4_000);
    guest.until(60_000, &[]);
    let moves = guest.until(80_000, &[load(7, 0, 4_000)]);
    guest.done(&moves);
    let (when, last) = loop {
        let actions = guest.until(guest.now + 10, &[]);
        guest.done(&actions);
        match actions.last() {
            Some(released @ (_, Action::Release { .. })) => break *released,
            _ => assert!(guest.now < 200_000, "it is not let go"),
        }
    };
    assert_eq!(last.task(), TaskId(7));
    // 20 ms after the last window in which it waited; its vCPU may have been away for some.
    assert!(when > 100_000 && when <= 100_000 + 2 * 5_000 + 11_000, "at {when}");
    let mut followed = None;
    guest.policy.metrics(&mut |name, value| {
        followed = followed.or((name == "followed").then_some(value));
    });
    assert_eq!(followed, Some(0.0));
}

#[test]
fn all_are_let_go_when_nobody_shares_any_more() {
    let mut guest = Guest::new("vmigrater", 4_000);
    guest.until(60_000, &[]);
    let moves = guest.until(80_000, &[load(7, 0, 4_000)]);
    guest.done(&moves);
    assert_eq!(guest.policy.next(at(guest.now)), None);
    assert!(guest.policy.next_wake().is_some_and(|ends| ends < at(85_000)), "to leave vCPU 2");
    // No edge for two seconds.
    let now = at(3_000_000);
    assert_eq!(guest.policy.next(now), Some(Action::Release { task: TaskId(7) }));
    assert_eq!((guest.policy.next(now), guest.policy.windows()), (None, None));
}

#[test]
fn tasks_spread_and_the_heaviest_has_the_longest_slice() {
    let mut guest = Guest::new("vmigrater", 4_000);
    guest.until(60_000, &[]);
    let loads = [load(7, 0, 3_000), load(8, 0, 4_900), load(9, 0, 4_000)];
    let moves = guest.until(76_400, &loads);
    let to = moves.iter().map(|(_, action)| match action {
        Action::Move { task, to, .. } => (task.0, to.index()),
        other => panic!("{other:?}"),
    });
    // 2 has 8.7 ms left and 1 has 4.7, so 2 is better for two tasks but not for three.
    assert_eq!(to.collect::<Vec<_>>(), [(8, 2), (9, 1), (7, 2)]);
}

fn metric(policy: &dyn VcpuPolicy, wanted: &str) -> f64 {
    let mut found = None;
    policy.metrics(&mut |name, value| found = found.or((name == wanted).then_some(value)));
    found.unwrap_or_else(|| panic!("no metric {wanted}"))
}

#[test]
fn who_was_on_a_vcpu_that_went_off_line_is_forgotten_whether_dead_or_idle() {
    for outcome in [Outcome::Refused, Outcome::Done] {
        let mut guest = Guest::new("vmigrater", 4_000);
        guest.until(60_000, &[]);
        let mut only = load(7, 0, 4_000);
        only.allowed = [vcpu(0), vcpu(3)].into_iter().collect();
        let moves = guest.until(80_000, &[only]);
        assert_eq!(moves.len(), 1, "to 3: {moves:?}");
        guest.done(&moves);
        guest.policy.attach(at(80_000), &VcpuSet::first(3));
        // The task stops, or has ended: no loads of it any more.
        let mut released = 0;
        while guest.now < 200_000 {
            for (_, action) in guest.until(guest.now + 10, &[]) {
                released += u32::from(matches!(action, Action::Release { .. }));
                guest.policy.moved(at(guest.now), action.task(), outcome);
            }
        }
        assert_eq!(metric(&*guest.policy, "followed"), 0.0, "{outcome:?}");
        assert!(released == 1, "{released} releases, {outcome:?}");
    }
}

#[test]
fn what_was_io_bound_before_a_rest_is_not_acted_on_after_it() {
    let mut guest = Guest::new("vmigrater", 4_000);
    guest.until(60_000, &[]);
    guest.until(75_000, &[load(7, 0, 4_000)]);
    assert_eq!(metric(&*guest.policy, "io_bound"), 1.0);
    // Two seconds without an edge, and an hour more; then vCPUs are taken away again, without any
    // load of the task in between.
    let hour = 3_600_000_000 / 22_000 * 22_000;
    assert_eq!(guest.policy.next(at(3_000_000)), None);
    assert_eq!(metric(&*guest.policy, "followed"), 0.0);
    guest.now = hour;
    let actions = guest.until(hour + 100_000, &[]);
    assert_eq!(actions, []);
}

#[test]
fn sharing_is_found_whatever_the_hosts_round() {
    for round in [10_000, 20_000, 25_000, 50_000, 100_000] {
        let mut policy = build("vmigrater").unwrap();
        policy.attach(at(0), &VcpuSet::first(2));
        let mut found = None;
        // Each runs in the first half of a round.
        for us in (0..3_000_000u64).step_by(10).filter(|us| us % round < round / 2) {
            for n in 0..2 {
                let due = policy.beat_at(vcpu(n)).unwrap();
                if due <= at(us) {
                    policy.heard(at(us), vcpu(n), Sign::Beat { due: Some(due) });
                }
            }
            policy.next(at(us));
            found = found.or(policy.windows().map(|_| us));
        }
        assert!(found.is_some_and(|us| us < 2_000_000), "rounds of {round} us: {found:?}");
    }
}

#[test]
fn the_paper_goes_round_the_ranking() {
    let mut guest = Guest::new("vmigrater:literal=true", 2_000);
    guest.until(60_000, &[]);
    // 0 has run since 66 ms and 3 since 72. They leave with 600 us left.
    let moves = guest.until(76_450, &[load(7, 0, 3_000), load(8, 0, 4_900), load(9, 0, 4_000)]);
    let to = moves.iter().map(|(_, action)| match action {
        Action::Move { task, to, within, .. } => {
            assert_eq!(*within, VcpuSet::only(*to));
            (task.0, to.index())
        }
        other => panic!("{other:?}"),
    });
    // Two thirds of 3's remaining slice would be more than 1 has: the paper does not divide.
    assert_eq!(to.collect::<Vec<_>>(), [(8, 3), (9, 2), (7, 1)]);
}

#[test]
fn what_is_excepted_from_literal_is_ours() {
    // `park` is on by default, and off in the paper.
    for (spec, parks) in
        [("vmigrater:literal=true", false), ("vmigrater:literal=true,except=park", true)]
    {
        let mut guest = Guest::new(spec, 1_000);
        guest.until(69_500, &[]);
        let mut task = load(7, 3, 4_000);
        task.allowed = [vcpu(0), vcpu(3)].into_iter().collect();
        assert_eq!(!guest.until(85_000, &[task]).is_empty(), parks, "{spec}");
    }
    let beat = |spec: &str| {
        let mut policy = build(spec).unwrap();
        policy.attach(at(0), &VcpuSet::first(1));
        policy.beat_at(vcpu(0)).unwrap()
    };
    assert_eq!(beat("vmigrater:literal=true"), at(300));
    assert!(beat("vmigrater:literal=true,except=beats") > at(0));
    let left = |spec: &str| {
        let mut guest = Guest::new(spec, 4_000);
        guest.until(66_500, &[]);
        guest.until(88_000, &[load(7, 0, 4_000)]).first().map(|(when, _)| *when)
    };
    assert_eq!(left("vmigrater:literal=true"), Some(76_410));
    assert!(left("vmigrater:literal=true,except=leave") < Some(76_410), "an I/O sooner");
}

/// Two guests of four vCPUs on two cores, slices of 11 ms and a bit: beats of each monitor while
/// one task reads.
#[test]
fn beats_are_few_while_a_task_is_followed() {
    let mut policy = build("vmigrater").unwrap();
    policy.attach(at(0), &VcpuSet::first(4));
    let mut random = 1u64;
    let mut jitter = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % 600
    };
    // On each core four vCPUs by turns: ours are 0 and 2 on one, 1 and 3 on the other.
    let mut ends = [[0u64; 2], [5_000, 5_000]];
    let (mut on, mut beats, mut wakes, mut home) = ([0usize; 2], 0u64, 0u64, 0u16);
    for now in (0..10_000_000u64).step_by(20) {
        for core in 0..2 {
            if now >= ends[core][0] {
                on[core] = (on[core] + 1) % 4;
                ends[core][0] = now + 10_700 + jitter();
            }
        }
        let runs = |n: u16| on[usize::from(n % 2)] == usize::from(n / 2) * 2;
        if !(0..4).any(runs) {
            continue;
        }
        let mut told = false;
        for n in (0..4).filter(|n| runs(*n)) {
            let due = policy.beat_at(vcpu(n)).unwrap();
            if due <= at(now) {
                policy.heard(at(now), vcpu(n), Sign::Beat { due: Some(due) });
                (beats, told) = (beats + u64::from(now >= 2_000_000), true);
            }
        }
        if now % 5_000 < 20 && policy.windows().is_some() {
            let mut load = load(7, home, 4_500);
            if !runs(home) {
                (load.ran, load.ios, load.waited) = (us(0), 0, us(5_000));
            }
            policy.window(at(now), &[load]);
            told = true;
        }
        let wake = policy.next_wake().is_some_and(|wake| wake <= at(now));
        wakes += u64::from(wake && !told && now >= 2_000_000);
        while let Some(action) = policy.next(at(now)) {
            if let Action::Move { to, .. } = action {
                home = to.index() as u16;
            }
            policy.moved(at(now), action.task(), Outcome::Done);
        }
    }
    let (a_second, wakes) = (beats / 8 / 4, wakes / 8);
    assert!((20..=60).contains(&a_second), "{a_second} beats a second on each vCPU");
    assert!(wakes <= 200, "{wakes} wakes a second beside beats and windows");
}

/// A window in which one I/O ended that had taken 15 ms; slices take 11.
fn long(on: u16) -> TaskLoad {
    TaskLoad { ios: 1, io_time: us(15_000), ..load(7, on, 4_000) }
}

#[test]
fn whose_io_outlasts_a_slice_is_left_alone_and_let_go() {
    let mut guest = Guest::new("vmigrater", 4_000);
    guest.until(60_000, &[]);
    assert_eq!(guest.until(400_000, &[long(0)]), []);
    let mut guest = Guest::new("vmigrater", 4_000);
    guest.until(60_000, &[]);
    let moves = guest.until(77_000, &[load(7, 0, 4_000)]);
    assert_eq!(moves.len(), 1);
    guest.done(&moves);
    let mut wanted = Vec::new();
    while guest.now < 400_000 {
        let more = guest.until(guest.now + 1_000, &[long(2)]);
        guest.done(&more);
        wanted.extend(more.into_iter().map(|(_, action)| action));
    }
    assert_eq!(wanted.last(), Some(&Action::Release { task: TaskId(7) }), "{wanted:?}");
    assert_eq!(guest.until(800_000, &[long(2)]), []);
}

#[test]
fn edges_are_urgent_where_a_task_is_or_seeks_a_place() {
    let none = Urgent { loss: false, back: false };
    let mut guest = Guest::new("vmigrater", 4_000);
    assert_eq!(guest.policy.urgent(vcpu(1)), Urgent::ALL, "nobody is known to share");
    guest.until(60_000, &[]);
    assert_eq!(guest.policy.urgent(vcpu(0)), none, "no task is I/O-bound");
    guest.until(71_000, &[load(7, 0, 4_000)]);
    assert_eq!((guest.policy.urgent(vcpu(0)), guest.policy.urgent(vcpu(1))), (Urgent::ALL, none));
    assert_eq!(guest.policy.wakes_on(), Some(vcpu(0)));
    // All are away from 14 to 22 ms of each round: it takes the first that comes back.
    let mut guest = Guest::new("vmigrater:except=park", 1_000);
    guest.until(60_000, &[]);
    guest.until(81_000, &[load(7, 3, 4_000)]);
    assert_eq!(guest.policy.urgent(vcpu(1)), Urgent { loss: false, back: true });
}

/// Counts the moves of a task that waits for I/O all the time, on a guest whose agent uses
/// `used_us` of each 5 ms of its four vCPUs.
fn moves_of(spec: &str, used_us: u64) -> usize {
    let mut guest = Guest::new(spec, 5_500);
    let mut moves = 0;
    for n in 1..=200 {
        guest.policy.spent(at(guest.now), us(n * used_us));
        let wanted = guest.until(n * 5_000, &[load(1, 0, 4_500)]);
        guest.done(&wanted);
        moves += wanted.iter().filter(|(_, what)| matches!(what, Action::Move { .. })).count();
    }
    moves
}

#[test]
fn an_agent_that_is_too_dear_moves_nobody() {
    // vCPUs run for half of the time: 10 of each 20 ms, of which 3 % are 0.3 ms.
    let cheap = moves_of("vmigrater", 250);
    assert!(cheap > 30, "{cheap}");
    let dear = moves_of("vmigrater", 400);
    assert!(dear < cheap / 10, "{dear} of {cheap}");
    assert_eq!(moves_of("vmigrater:budget=0.05", 400), cheap);
    assert!(moves_of("vmigrater:literal=true", 400) > 30);
    assert!(moves_of("vmigrater:literal=true,budget=0.03", 400) < cheap / 10);
}

#[test]
fn windows_are_longer_while_more_was_spent() {
    let mut guest = Guest::new("vmigrater", 5_500);
    guest.policy.spent(at(0), us(0));
    guest.until(100_000, &[]);
    assert_eq!(guest.policy.windows(), Some(us(5_000)));
    guest.policy.spent(at(100_000), us(100_000));
    assert_eq!(guest.policy.windows(), Some(us(20_000)));
    let unshared = build("vmigrater").unwrap();
    assert_eq!(unshared.windows(), None);
}

/// The agent takes this part of a vCPU, in thousandths, with a reader on a vCPU that is away for half
/// of the time. The moves from the fourth second on.
fn moved_by_an_agent_that_takes(permille: u64, spec: &str, seconds: u64) -> (usize, Guest) {
    let (mut guest, mut moves) = (Guest::new(spec, 4_000), 0);
    for ms in 1..=seconds * 1000 {
        if guest.policy.windows().is_some() {
            guest.policy.spent(at(guest.now), us(ms * permille));
        }
        let actions = guest.until(ms * 1000, &[load(1, 0, 4_000)]);
        guest.done(&actions);
        let is_move = |(_, action): &&(u64, Action)| matches!(action, Action::Move { .. });
        moves += actions.iter().filter(is_move).filter(|_| ms > 4_000).count();
    }
    (moves, guest)
}

#[test]
fn where_moves_save_less_than_four_times_the_agents_time_it_rests_for_a_minute() {
    // They save half of the time.
    let (moves, guest) = moved_by_an_agent_that_takes(100, "vmigrater:budget=1", 10);
    assert!(moves > 200, "{moves}");
    assert!(guest.policy.urgent(vcpu(0)).loss || guest.policy.urgent(vcpu(1)).loss);
    let (moves, guest) = moved_by_an_agent_that_takes(140, "vmigrater:budget=1", 10);
    assert_eq!((moves, guest.policy.windows()), (0, None));
    let none = Urgent { loss: false, back: false };
    assert!((0..4).all(|n| guest.policy.urgent(vcpu(n)) == none), "edges can wait");
    assert!((0..4).all(|n| guest.policy.beat_at(vcpu(n)).is_none()), "nor does it beat");
    let mut metrics = Vec::new();
    guest.policy.metrics(&mut |name, value| metrics.push((name, value)));
    assert!(metrics.contains(&("rests", 1.0)) && metrics.contains(&("io_bound", 0.0)));
    let (moves, _) = moved_by_an_agent_that_takes(140, "vmigrater:budget=1", 130);
    assert!((80..600).contains(&moves), "two seconds each minute: {moves}");
    let (moves, _) = moved_by_an_agent_that_takes(140, "vmigrater:budget=1,except=rest", 10);
    assert!(moves > 200, "{moves}");
}
