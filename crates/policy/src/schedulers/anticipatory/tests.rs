//! The rules of anticipatory, one by one.

use super::{ANTICIPATION, DRAIN};
use crate::schedulers::tests::Rig;
use seekway_core::request::{Op, VmId};

/// VM 0 reads sequentially with a think time, eight times; then VM 1 queues a distant read.
fn reader(think_us: u64) -> Rig {
    let mut rig = Rig::new("anticipatory");
    for i in 0..8 {
        rig.read(0, 1_000 + 8 * i);
        rig.serve(500);
        rig.wait_us(think_us);
    }
    rig.read(0, 1_064);
    rig.read(1, 9_000_000);
    rig.serve(500);
    rig
}

#[test]
fn waits_for_the_reader_just_served() {
    let mut rig = reader(1_000);
    assert_eq!(rig.hold_us(ANTICIPATION), 6_700);
    rig.wait_us(1_000);
    // A third VM far away does not end the wait, and does not prolong it.
    rig.read(2, 5_000_000);
    assert_eq!(rig.hold_us(ANTICIPATION), 5_700);
    rig.read(0, 1_072);
    assert_eq!(rig.dispatch(), 1_072);
    assert_eq!(rig.metric("waits_met"), 1.0);
}

#[test]
fn the_wait_ends_in_vain_after_antic_expire() {
    let mut rig = reader(1_000);
    let us = rig.hold_us(ANTICIPATION);
    rig.wait_us(us);
    assert_eq!(rig.dispatch(), 9_000_000);
    assert_eq!(rig.metric("waits_in_vain"), 1.0);
}

#[test]
fn a_slow_thinker_is_not_waited_for() {
    assert_eq!(reader(10_000).dispatch(), 9_000_000);
}

#[test]
fn an_issuer_with_a_request_queued_is_not_waited_for() {
    let mut rig = Rig::new("anticipatory");
    rig.reads(0, [1_000, 900_000]);
    rig.read(1, 5_000);
    assert_eq!(rig.serve_n(2), [1_000, 5_000]);
}

#[test]
fn a_request_closer_than_the_mean_seek_is_as_good() {
    let mut rig = Rig::new("anticipatory");
    for i in 0..8 {
        rig.read(0, 1_000 + 10_000 * i);
        rig.serve(500);
    }
    rig.read(1, 900_000);
    assert_eq!(rig.hold_us(ANTICIPATION), 6_700);
    // VM 0 seeks 9,992 sectors from 71,008: 12,000 away is too far, 9,000 is not.
    rig.read(2, 83_008);
    rig.hold_us(ANTICIPATION);
    rig.read(3, 80_008);
    assert_eq!(rig.dispatch(), 80_008);
}

#[test]
fn batches_alternate_by_time() {
    let mut rig = Rig::new("anticipatory:antic_expire=0");
    rig.reads(0, (0..200).map(|i| 1_000 + 100 * i));
    rig.writes(1, (0..200).map(|i| 1_000_000 + 100 * i));
    let order: Vec<bool> = (0..60).map(|_| rig.serve(20_000) < 1_000_000).collect();
    let runs: Vec<(bool, usize)> =
        order.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    // The first batch counts from the rig's start: 500 ms. Writes go for more than
    // 125 ms; then the reads' clock starts with their first completion.
    assert_eq!(runs[..3], [(true, 26), (false, 7), (true, 27)]);
}

#[test]
fn changing_direction_drains_the_device() {
    let mut rig = Rig::new("anticipatory:antic_expire=0");
    rig.reads(0, [100, 200, 300]);
    rig.writes(1, [10_000]);
    assert_eq!(rig.dispatch(), 100);
    rig.wait_ms(501);
    assert_eq!(rig.hold_us(DRAIN), 125_000);
    rig.complete();
    assert_eq!(rig.dispatch(), 10_000);
}

#[test]
fn the_fifo_is_looked_at_once_per_interval() {
    let mut rig = Rig::new("anticipatory:antic_expire=0");
    rig.read(0, 1_000_000);
    rig.serve(100);
    rig.reads(1, [10, 20, 30]);
    rig.reads(0, (0..100).map(|i| 1_000_008 + 8 * i));
    rig.wait_ms(1);
    // What lies at 10 to 30 expires at 125.1 ms; one of them goes then, and the
    // choose rule goes on from there: 20 and 30 lie ahead.
    let order: Vec<u64> = (0..50).map(|_| rig.serve(5_000)).collect();
    let first = order.iter().position(|&lba| lba == 10).unwrap();
    assert_eq!(first, 25);
    assert_eq!(order[26..28], [20, 30]);
}

#[test]
fn detach_of_the_awaited_ends_the_wait() {
    let mut rig = reader(1_000);
    rig.hold_us(ANTICIPATION);
    let now = rig.now;
    assert!(rig.policy.detach(now, VmId::new(0)).is_empty());
    assert_eq!(rig.dispatch(), 9_000_000);
}

#[test]
fn processes_of_one_vm_are_told_apart() {
    let mut rig = Rig::new("anticipatory");
    for tag in [8, 9] {
        rig.arrive(0, tag, Op::Read, true, 1_000 * u64::from(tag));
    }
    assert_eq!(rig.serve(500), 8_000);
    assert_eq!(rig.hold_us(ANTICIPATION), 6_700);
}
