//! Medians, what is asked, and what is void.

use super::*;
use seekway_live::Accelerator;
use seekway_live::experiment::{AgentReport, Progress, TogetherLoadFigures, TogetherSide};
use std::time::Duration;

const LOADS: [TogetherLoad; 2] = [TogetherLoad::Database, TogetherLoad::Build];

fn options() -> TogetherOptions {
    let side = |device: &str| TogetherSide {
        policy: "noop".into(),
        cache: None,
        tags: None,
        agent: None,
        device: device.into(),
    };
    TogetherOptions {
        program: "seekway".into(),
        agent: "seekway-guest".into(),
        loads: LOADS.to_vec(),
        sides: [side("disk:k=1"), side("disk:k=1"), side("disk:k=2")],
        rounds: 3,
        window: Duration::from_secs(10),
        accelerator: Accelerator::Tcg,
        seed: 1,
        interrupted: Default::default(),
    }
}

/// A database with these IOPS and p99, and a build with so much work in ten seconds.
fn window(iops: f64, p99_ms: f64, mib: f64) -> TogetherWindow {
    let guest = |load, mib| TogetherGuest {
        load,
        compute: Progress { seconds: 10.0, look_s: 0.01, mib, tag_cpu: 0.1, migrate_cpu: 0.2 },
        usage: None,
        tags: 0,
        agent: None,
    };
    let load = TogetherLoadFigures { iops, mib_s: 1.0, mean_ms: 1.0, p99_ms, busy: 0.1 };
    TogetherWindow {
        guests: vec![guest(Some(load), 1000.0), guest(None, mib)],
        host: HostShares { vcpus: vec![0.45; 2], qemu: vec![0.02; 2], daemons: 0.01, busy: 0.96 },
        commands: 1000,
        late: 10,
        slices: 500.0,
    }
}

/// Off and alone the same: 100 IOPS, 50 ms and 50 MiB/s.
fn round(on: TogetherWindow) -> TogetherRound {
    let base = window(100.0, 50.0, 500.0);
    TogetherRound { off: base.clone(), on, alone: vec![base; LOADS.len()] }
}

fn same(iops: f64, mib: f64) -> Vec<TogetherRound> {
    vec![round(window(iops, 50.0, mib)); 3]
}

fn judged(rounds: &[TogetherRound]) -> SceneRan {
    let figures = TogetherFigures { rounds: rounds.to_vec(), lost: Vec::new() };
    SceneRan::new("disk", &options(), &figures)
}

#[test]
fn medians_of_rounds_are_judged_by_the_private_disk() {
    let on = [(400.0, 40.0), (200.0, 54.0), (150.0, 90.0)];
    let mut rounds = on.map(|(iops, p99)| round(window(iops, p99, 490.0)));
    for round in &mut rounds {
        round.alone[0].guests[0].load.as_mut().expect("a database").iops = 80.0;
        // What the others' compute tasks do meanwhile is not the build's own window.
        round.alone[0].guests[1].compute.mib = 1.0;
    }
    let ran = judged(&rounds);
    let [database, build] = &ran.guests[..] else { panic!("two") };
    assert_eq!((database.off.median, database.on.median), (100.0, 200.0));
    assert_eq!(database.ratio, Spread { median: 2.0, least: 1.5, largest: 4.0 });
    assert_eq!((database.alone.median, database.progress_on.median), (80.0, 2.5));
    assert_eq!(database.progress_off.median, 1.25);
    assert_eq!(database.p99_over_private.expect("reads").median, 1.08);
    assert_eq!((build.alone.median, build.progress_on.median), (50.0, 0.98));
    assert_eq!((build.off.median, build.p99_over_private), (50.0, None));
    assert!((build.compute_lost.median - 0.02).abs() < 1e-9);
    assert!((ran.progress_on - (2.5 * 0.98_f64).sqrt()).abs() < 1e-9);
    assert!((ran.geometric_mean - 1.96_f64.sqrt()).abs() < 1e-9);
    assert_eq!((ran.verdict, ran.worst, ran.void_rounds), ("met", "build", 0), "{}", ran.why);
    assert!((build.agents_vcpus.median - 0.03).abs() < 1e-9);
    assert!((ran.on.others.median - 0.01).abs() < 1e-9);
    assert_eq!((ran.on.mib_s.median, ran.on.late.median), (1.0, 0.01));
    assert_eq!((ran.device.as_str(), ran.private_device.as_str()), ("disk:k=1", "disk:k=2"));
}

#[test]
fn the_sentence_has_the_worst_guest_of_all_scenes() {
    let mut rounds = same(300.0, 490.0);
    for round in &mut rounds {
        round.off.guests[0].load.as_mut().expect("a database").iops = 7.0;
    }
    let ran = Ran::new(vec![judged(&rounds), judged(&same(300.0, 480.0))]);
    let said = "Every guest has at least 0.96 of what a disk of its own would give it; with \
                everything off, at least 0.07.";
    assert_eq!(ran.sentence, said);
    let mut void = same(300.0, 490.0);
    void.iter_mut().for_each(|round| round.on.late = 11);
    let ran = Ran::new(vec![judged(&void)]);
    assert!(ran.sentence.ends_with(". Void, and no result: disk."), "{}", ran.sentence);
}

#[test]
fn each_miss_is_said() {
    let verdict = |rounds: &[TogetherRound]| {
        let ran = judged(rounds);
        let guests = ran.guests.iter().map(|g| g.verdict).collect::<Vec<_>>();
        (ran.verdict, guests, ran.why)
    };
    // Nobody has less, and nothing is gained.
    let (total, guests, why) = verdict(&same(100.0, 500.0));
    assert_eq!((total, guests), ("missed", vec!["met", "met"]), "{why}");
    assert_eq!(why, "geometric mean of progress 1.00, 1.00 with everything off");
    let (total, guests, why) = verdict(&same(94.0, 474.0));
    assert_eq!((total, guests), ("missed", vec!["missed", "missed"]));
    assert!(why.ends_with("missed by database, build"), "{why}");
    assert_eq!(verdict(&same(300.0, 475.0)).0, "met");
    // The database's compute tasks, by more than a tenth.
    let mut rounds = same(300.0, 500.0);
    for round in &mut rounds {
        round.on.guests[0].compute.mib = 890.0;
    }
    let ran = judged(&rounds);
    assert_eq!(ran.guests[0].why, "11 % of its compute lost (10 % at most)");
    // 16 readers in 500 slices: 8,000 moves are one for each.
    let mut rounds = same(300.0, 500.0);
    for round in &mut rounds {
        let moves = 16_800;
        round.on.guests[0].agent = Some(AgentReport { moves, ..AgentReport::default() });
    }
    let ran = judged(&rounds);
    assert_eq!(ran.guests[0].moves_a_slice.expect("an agent").median, 2.1);
    assert_eq!(ran.guests[0].why, "2.10 moves a slice (1.1 at most)");
}

#[test]
fn what_says_nothing_is_void() {
    let good = same(300.0, 500.0);
    let mut one = good.clone();
    one[0].alone[1].late = 11;
    let ran = judged(&one);
    assert_eq!((ran.verdict, ran.void_rounds, ran.counted_rounds), ("met", 1, 2));
    one[1].off.host = HostShares { daemons: 0.0, busy: 1.0, ..one[1].off.host.clone() };
    let ran = judged(&one);
    assert_eq!((ran.verdict, ran.void_rounds, ran.counted_rounds), ("void", 2, 3));
    assert!(ran.guests.iter().all(|g| g.verdict == "void"));
    assert!(ran.why.contains("alone: 1.1 % of the commands later"), "{}", ran.why);
    assert!(ran.why.contains("off: others had 6.0 % of the CPU"), "{}", ran.why);
    // 2 vCPUs for 16 processes and two compute tasks: 11.1 % each, of which 95 % is 10.6 %.
    let mut busy = good;
    for round in &mut busy {
        round.on.guests[0].load.as_mut().expect("a database").busy = 0.108;
    }
    let ran = judged(&busy);
    let guests: Vec<&str> = ran.guests.iter().map(|g| g.verdict).collect();
    assert_eq!((ran.verdict, guests), ("void", vec!["void", "met"]), "{}", ran.why);
}
