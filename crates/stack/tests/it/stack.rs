//! The stack under random guests, devices and operators, against a flat model that says
//! what each sector may read as; and its journal, which replays byte for byte.
//! `PROPTEST_CASES=20000` looks longer.

mod rig;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use rig::{Case, DISK, Rig, build, case, extent, map};
use seekway_core::request::{Op, VmId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Sectors};
use seekway_policy::schedulers;
use seekway_stack::journal::{Build, Replay, ReplayError};
use seekway_stack::stack::{Config, DiskSpec, Stack, Submit};
use std::num::NonZeroU32;

/// Every step of a case, and its journal played again.
fn runs(case: &Case) -> Result<(), TestCaseError> {
    let mut rig = Rig::new(case);
    for &step in &case.steps {
        rig.step(step)?;
    }
    rig.drain()?;
    let journal = rig.stack.take_journal();
    let mut replay = Replay::new(Build { scheduler: &build, ..Build::default() });
    for line in journal.lines() {
        replay.feed(line).map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
    let inputs = journal.matches(" submit ").count() + journal.matches(" io ").count();
    prop_assert!(replay.replayed().inputs >= inputs as u64);
    let done = journal.matches(" done ").count();
    prop_assert_eq!(done, journal.matches(" submit ").count());
    Ok(())
}

/// fairway: a command goes at the very instant at which the device is found to stand still, and
/// is done before those that do. (What of the device's content did not count was then more than
/// there was.)
#[test]
fn a_command_of_the_instant_of_a_stall_is_done() {
    #[rustfmt::skip]
    let steps = vec![
        (40, 15, 3088405538), (40, 176, 110073630), (20, 114, 2654701846), (20, 8, 856037098),
        (100, 221, 1121161990), (91, 0, 189717471), (100, 141, 3699886310), (246, 32, 3700678939),
        (100, 14, 1044819630), (211, 0, 294178850), (20, 33, 965824625), (20, 50, 2407610576),
        (20, 7, 4000), (120, 94, 525973481), (20, 93, 3719064454), (204, 5, 3773286990),
        (218, 105, 1056236713), (107, 149, 3857868033), (131, 189, 1157646266), (172, 214, 1771813230),
        (231, 121, 1477036877), (20, 182, 335480433), (115, 29, 817605285), (54, 141, 3397528925),
        (43, 209, 4127547860), (15, 159, 2691877154), (214, 1, 2256611819), (117, 57, 2434298074),
        (68, 228, 3623840656), (44, 56, 3475619416), (182, 97, 1874269210), (55, 33, 2603382282),
        (177, 154, 4068711396), (64, 171, 3653094424), (219, 11, 38752452), (222, 127, 2358846899),
        (158, 165, 1413130581), (174, 243, 945738193), (93, 33, 163288543), (179, 17, 2818581220),
        (137, 232, 3778917199), (86, 82, 3707178913), (174, 168, 3219436158), (12, 207, 2524702870),
        (64, 218, 2848899774), (11, 24, 3410209013), (213, 209, 2236583401), (95, 165, 697951927),
        (94, 50, 3944550437), (28, 114, 4178049919), (14, 215, 2049578434), (11, 41, 701267112),
        (11, 107, 1574354904), (178, 10, 238566388), (28, 132, 2494997389), (173, 72, 424246211),
        (212, 6, 3209424075), (236, 151, 3283923371), (139, 124, 80550272), (27, 244, 2815631333),
        (44, 31, 1909879734), (77, 112, 841210713), (173, 91, 3188511269), (98, 136, 2072425781),
        (137, 9, 3785818739),
    ];
    let (depth, coalesce, hard_us, cache) = (2, 35, 12_524, Some(2));
    let (policy, prefetcher) = (0, 0);
    assert_eq!(schedulers::REGISTRY[policy].name, "fairway", "the case is one of fairway's");
    let case =
        Case { depth, coalesce, hard_us, rotational: false, cache, policy, prefetcher, steps };
    runs(&case).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn guests_read_what_was_written_and_journals_replay(case in case()) {
        runs(&case)?;
    }

    #[test]
    fn replay_never_panics_on_garbage(lines in prop::collection::vec(line(), 0..60)) {
        let mut replay = Replay::new(Build::default());
        replay.feed(&format!("{HEADER} rotation=8ms cache=65536 unit=32 prefetch=vio")).unwrap();
        let mut time = 0u64;
        for (passed, line) in &lines {
            time = time.wrapping_add(*passed);
            let _ = replay.feed(&format!("{time} {line}"));
        }
    }
}

const HEADER: &str =
    "seekway-journal 2 policy=pregather depth=2 coalesce=1024 hard=30s outstanding=99 capacity=99";

/// A line that a journal may hold, or nearly: the time since the line before,
/// and the rest.
fn line() -> impl Strategy<Value = (u64, String)> {
    let time = prop_oneof![40 => 0u64..10_000_000, 4 => 0..20_000_000_000u64, 1 => any::<u64>()];
    let lba = prop_oneof![4 => 0u64..100, 1 => any::<u64>()];
    let what = (0..18, 0u32..3, lba.clone(), 0u64..40, lba, any::<u16>()).prop_map(
        |(verb, n, start, len, other, tag)| match verb {
            0 | 1 => format!("attach {n} weight={tag} size={other} cached=yes map={len}/{other}:0@{start},9@h{len}"),
            2 => format!("remap {n} 99/999:0@{start}"),
            3 => format!("detach {n}"),
            4 => format!("leave {n}"),
            5 => format!("resize {n} {other} {len}/{other}:0@{start}"),
            6 => format!(
                "switch {}",
                ["cfq", "pregather:literal=true", "deadline", "no"][tag as usize % 4]
            ),
            7 => format!("prefetcher {}", ["linux", "vio", "none", "no"][tag as usize % 4]),
            8..=11 => format!(
                "submit {n} {} sync {start}+{len} tag={tag} token={other}",
                ["R", "W", "F", "D", "", "x"][tag as usize % 6]
            ),
            12 => format!("io {n} ok"),
            13 => format!("io {n} {n}:5,{len}:7"),
            14 => format!("weight {n} {tag}"),
            16 => format!("limit {n} {}", ["iops=5", "none", "group=a", "x"][tag as usize % 4]),
            17 => format!("group {n} iops={tag}"),
            _ => "wait - -".into(),
        },
    );
    (time, prop_oneof![30 => what, 1 => ".{0,60}"])
}

#[test]
fn a_replay_refuses_curves_and_times_that_go_back() {
    let mut replay = Replay::new(Build::default());
    assert!(replay.feed(&format!("{HEADER} seek=9:1ms,5:2ms")).is_err(), "distances ascend");
    let mut replay = Replay::new(Build::default());
    replay.feed(&format!("{HEADER} seek=5:1ms,9:2ms")).unwrap();
    let arrays = ["1:128", "2:0", "9999:128", "2", "x:1"];
    for stripe in arrays {
        let mut replay = Replay::new(Build::default());
        assert!(replay.feed(&format!("{HEADER} stripe={stripe}")).is_err(), "{stripe}");
    }
    replay.feed("5 attach 0 weight=1 size=9 cached=no map=9/99:0@0").unwrap();
    assert!(matches!(replay.feed("4 detach 0"), Err(ReplayError::Line(3, _))));
    assert!(replay.feed(&format!("{} detach 0", u64::MAX)).is_err());
    replay.feed("5 detach 0").unwrap();
}

/// A stack of one VM without a cache, its journal begun.
fn small(spec: &str) -> Stack {
    let profile = DeviceProfile::unknown(Sectors::new(1 << 20), true);
    let scheduler = schedulers::build(spec).unwrap();
    let mut stack = Stack::new(scheduler, profile, Config::default(), None);
    stack.start_journal(spec);
    let (map, capacity) = (map(0, 0), Sectors::new(DISK));
    let disk = DiskSpec { weight: NonZeroU32::MIN, capacity, map, cached: false };
    stack.attach(Instant::ZERO, VmId::new(0), disk);
    stack
}

fn read(start: u64, len: u64, token: u64) -> Submit {
    let vm = VmId::new(0);
    Submit { vm, tag: None, op: Op::Read, sync: true, extent: extent(start, len), token }
}

#[test]
fn a_specification_with_spaces_stays_one_word_of_the_journal() {
    let spec = "cfq:slice_idle=4ms, quantum=4";
    let mut stack = small(spec);
    stack.switch(Instant::ZERO, spec, schedulers::build(spec).unwrap());
    let mut replay = Replay::new(Build::default());
    for line in stack.take_journal().lines() {
        replay.feed(line).unwrap();
    }
    assert_eq!(replay.replayed().inputs, 2);
}

#[test]
fn replay_says_where_it_differs() {
    let mut stack = small("noop");
    stack.submit(Instant::ZERO, read(100, 8, 7)).unwrap();
    stack.poll(Instant::ZERO);
    let text = stack.take_journal().replace("issue 0 R 100+8", "issue 0 R 100+9");
    let mut replay = Replay::new(Build::default());
    let error = text.lines().find_map(|l| replay.feed(l).err()).unwrap();
    assert!(matches!(error, ReplayError::Differs { line: 4, .. }), "{error}");
}

/// A journal may come from anywhere: one that asks for more than a stack takes is refused like
/// any other wrong line.
#[test]
fn a_journal_of_too_many_requests_is_refused() {
    let mut replay = Replay::new(Build::default());
    replay.feed(HEADER).unwrap();
    replay.feed("0 attach 0 weight=1 size=99 cached=no map=99/99:0@0").unwrap();
    let refused = (0..200).find(|_| replay.feed("0 submit 0 R sync 0+8 tag=0 token=1").is_err());
    assert_eq!(refused, Some(99));
}
