use super::*;
use proptest::prelude::*;

fn rules() -> ReadRules {
    ReadRules {
        first_below_units: u32::MAX,
        program: Suspension { times: 2, stop_ns: 20, resume_ns: 30, keep_ns: 10 },
        erase: Suspension { times: 1, stop_ns: 70, resume_ns: 0, keep_ns: 0 },
        resume_min_ns: 100,
    }
}

fn task(kind: Kind, job: u64, begin_ns: u64, length_ns: u64) -> Task {
    Task { kind, job, begin_ns, array_ns: begin_ns, end_ns: begin_ns + length_ns, suspended: 0 }
}

#[test]
fn an_erase_is_suspended_by_its_own_figures_and_a_read_of_the_background_never() {
    let mut tasks = Tasks::default();
    tasks.push(0, task(Kind::Read, 0, 0, 50));
    tasks.push(0, task(Kind::Erase, 0, 50, 3_000));
    let mut moved = Vec::new();
    // The read under way ends, and the erase behind it has not begun.
    assert_eq!(tasks.admit(&rules(), 10), (50, None));
    let last = tasks.move_behind(50, 60, &mut moved).unwrap();
    assert_eq!((last.begin_ns, last.end_ns), (60, 3_060));
    assert_eq!(tasks.admit(&rules(), 1_060), (1_130, Some(Kind::Erase)));
    let last = tasks.move_behind(1_130, 1_180, &mut moved).unwrap();
    assert_eq!((last.begin_ns, last.end_ns), (1_180, 3_180));
    // Once and no more.
    assert_eq!(tasks.admit(&rules(), 1_500), (3_180, None));
    assert!(moved.is_empty(), "nobody waits for an erase");
}

/// The die stops for longer than the next task takes: that one goes behind the read all the same.
#[test]
fn what_is_next_does_not_run_while_the_die_stops() {
    let mut tasks = Tasks::default();
    tasks.push(0, task(Kind::Erase, 1, 0, 100));
    tasks.push(0, task(Kind::Erase, 2, 100, 20));
    assert_eq!(tasks.admit(&rules(), 90), (160, Some(Kind::Erase)));
    let mut moved = Vec::new();
    let last = tasks.move_behind(160, 200, &mut moved).unwrap();
    let ends = [Moved { job: 1, to_ns: 210 }, Moved { job: 2, to_ns: 230 }];
    assert_eq!((last.end_ns, &moved[..]), (230, &ends[..]));
}

#[test]
fn a_page_on_its_way_to_the_die_is_not_suspended() {
    let mut tasks = Tasks::default();
    let begin_ns = 0;
    tasks.push(0, Task { begin_ns, ..task(Kind::Program, 1, 40, 600) });
    // Without overlap: the die is busy from 0 on, and its array from 40 on.
    assert_eq!(tasks.admit(&rules(), 5), (60, Some(Kind::Program)));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Task(Kind, u64),
    /// A read of this length, this long after the last.
    Read(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(Kind::Read), Just(Kind::Program), Just(Kind::Erase)];
    prop_oneof![
        (kind, 1..800_u64).prop_map(|(kind, length)| Step::Task(kind, length)),
        (1..60_u64, 0..300_u64).prop_map(|(length, gap)| Step::Read(length, gap)),
    ]
}

/// A use of a die's array: begin, end, and job (0: a read).
type Segment = (u64, u64, u64);
/// A task's kind, length, and how often it was suspended.
type Done = (Kind, u64, u32);

/// Runs the steps as a die does.
fn run(steps: &[Step]) -> (Vec<Segment>, Vec<Done>) {
    let rules = rules();
    let (mut tasks, mut segments, mut all) = (Tasks::default(), Vec::new(), Vec::new());
    let (mut now, mut free_ns) = (0, 0);
    let mut ends = vec![0];
    for &step in steps {
        match step {
            Step::Task(kind, length) => {
                let job = ends.len() as u64;
                tasks.push(0, task(kind, job, free_ns.max(now), length));
                free_ns = free_ns.max(now) + length;
                ends.push(free_ns);
                all.push((kind, length, 0));
            }
            Step::Read(length, gap) => {
                now += gap;
                let before = tasks.queue.clone();
                let (begin_ns, suspended) = tasks.admit(&rules, now);
                assert!(begin_ns >= now);
                let parts =
                    before.iter().zip(&tasks.queue).find(|(a, b)| a.suspended != b.suspended);
                assert_eq!(parts.is_some(), suspended.is_some());
                if let Some((old, new)) = parts {
                    let stop = if new.kind == Kind::Erase { rules.erase } else { rules.program };
                    segments.push((old.array_ns, begin_ns - stop.stop_ns, new.job));
                    all[new.job as usize - 1].2 += 1;
                }
                let mut moved = Vec::new();
                let last = tasks.move_behind(begin_ns, begin_ns + length, &mut moved);
                segments.push((begin_ns, begin_ns + length, 0));
                free_ns = free_ns.max(begin_ns + length).max(last.map_or(0, |last| last.end_ns));
                for moved in moved {
                    assert!(moved.to_ns >= ends[moved.job as usize], "an end moved earlier");
                    ends[moved.job as usize] = moved.to_ns;
                }
                let order = tasks.queue.iter().zip(tasks.queue.iter().skip(1));
                assert!(order.clone().all(|(a, b)| a.end_ns <= b.begin_ns), "{:?}", tasks.queue);
            }
        }
    }
    for task in &tasks.queue {
        assert_eq!(task.end_ns, ends[task.job as usize], "an end moved and nobody was told");
        segments.push((task.array_ns, task.end_ns, task.job));
    }
    (segments, all)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The array does one thing at a time; it does each task completely, with the additions of
    /// suspension.
    #[test]
    fn what_reads_push_back_is_done_all_the_same(steps in prop::collection::vec(step(), 1..60)) {
        let (mut segments, all) = run(&steps);
        segments.sort_unstable();
        for pair in segments.windows(2) {
            prop_assert!(pair[0].1 <= pair[1].0, "two at once: {:?}", pair);
        }
        for (job, &(kind, length, suspended)) in (1..).zip(&all) {
            let rule = match kind {
                Kind::Read => Suspension::default(),
                Kind::Program => rules().program,
                Kind::Erase => rules().erase,
            };
            prop_assert!(suspended <= rule.times);
            let done: u64 = segments.iter().filter(|s| s.2 == job).map(|s| s.1 - s.0).sum();
            prop_assert_eq!(done, length + u64::from(suspended) * rule.resume_ns);
        }
    }
}
