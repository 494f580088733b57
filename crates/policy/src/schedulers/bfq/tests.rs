//! The rules of bfq, one by one.

use super::queue::Tree;
use super::{ANTICIPATION, IN_FLIGHT};
use crate::schedulers::tests::Rig;
use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::Decision;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

const GIB: u64 = 1 << 21;

/// Serves requests, and returns whose they are in runs of (VM, count), when each VM has a GiB.
fn turns(rig: &mut Rig, n: usize, us: u64) -> Vec<(u64, usize)> {
    let vms: Vec<u64> = (0..n).map(|_| rig.serve_late(us) / GIB).collect();
    vms.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

/// VMs with `n` reads of 64 KiB each, one after the other with a gap.
fn streams(spec: &str, weights: &[u32], n: u64) -> Rig {
    let mut rig = Rig::with_weights(spec, weights);
    for vm in 0..weights.len() as u16 {
        (0..n).for_each(|i| _ = rig.read_long(vm, u64::from(vm) * GIB + 136 * i, 128));
    }
    rig
}

/// Ratio of the requests of one VM in these runs to those of another.
fn ratio(runs: &[(u64, usize)], more: u64, fewer: u64) -> f64 {
    let of = |vm| runs.iter().filter(|run| run.0 == vm).map(|run| run.1).sum::<usize>();
    of(more) as f64 / of(fewer) as f64
}

/// A solid-state drive and two VMs with a read each.
fn pair_on_flash(spec: &str, weights: [u32; 2]) -> Rig {
    let mut rig = Rig::with_weights(spec, &weights).solid();
    rig.read(0, 1_000);
    rig.read(1, GIB);
    rig
}

#[test]
fn a_turn_lasts_for_the_budget() {
    // Two thirds of 16,384 sectors at first: 85 requests of 128 sectors.
    let mut rig = streams("bfq:low_latency=false", &[1, 1], 200);
    assert_eq!(turns(&mut rig, 170, 100), [(0, 85), (1, 85)]);
    // Used up: four times as much, at most 16,384.
    assert_eq!(turns(&mut rig, 230, 100), [(0, 115), (1, 115)]);
}

#[test]
fn a_turn_lasts_for_the_timeout() {
    let mut rig = streams("bfq:low_latency=false", &[1, 1], 200);
    // 3 ms each: 42 of them in 125 ms.
    assert_eq!(turns(&mut rig, 84, 3_000), [(0, 42), (1, 42)]);
}

#[test]
fn sectors_are_shared_by_weight() {
    let mut rig = streams("bfq:low_latency=false,max_budget=512", &[1, 3], 4_000);
    let runs = turns(&mut rig, 2_000, 100);
    let share = ratio(&runs, 1, 0);
    assert!((2.8..3.2).contains(&share), "{share}: {runs:?}");
}

#[test]
fn the_queue_that_runs_empty_is_waited_for() {
    // Alone, a queue is always waited for; here it streams on a disk besides.
    let mut rig = Rig::with_weights("bfq:low_latency=false", &[1, 1]);
    rig.read(0, 1_000);
    rig.serve(500);
    rig.read(1, GIB);
    assert_eq!(rig.hold_us(ANTICIPATION), 8_000);
    rig.wait_us(50);
    rig.read(0, 1_008);
    assert_eq!(rig.serve(500), 1_008);
    let us = rig.hold_us(ANTICIPATION);
    rig.wait_us(us);
    assert_eq!(rig.dispatch(), GIB);
    assert_eq!(rig.metric("idles_in_vain"), 1.0);
}

#[test]
fn a_random_queue_is_waited_for_briefly() {
    let mut rig = Rig::with_weights("bfq:low_latency=false", &[1, 1]);
    // A disk that takes one command at a time, as is known after 33 of them.
    rig.reads(0, (0..80).map(|i| 7 * i % 80 * 50_000));
    rig.serve_n(80);
    rig.read(0, 9_000_000);
    rig.serve(100);
    rig.read(1, GIB * 10);
    assert_eq!(rig.hold_us(ANTICIPATION), 2_000);
}

#[test]
fn on_flash_equal_queues_with_company_are_not_waited_for() {
    let mut rig = pair_on_flash("bfq:low_latency=false", [1, 1]);
    assert_eq!((rig.serve(100), rig.serve(100)), (1_000, GIB));
}

#[test]
fn groups_are_waited_for_whenever_two_have_requests() {
    let mut rig = pair_on_flash("bfq:low_latency=false,groups=true", [1, 1]);
    rig.serve(100);
    assert_eq!(rig.hold_us(ANTICIPATION), 8_000);
}

#[test]
fn different_weights_are_waited_for() {
    let mut rig = pair_on_flash("bfq:low_latency=false", [4, 1]);
    rig.serve(100);
    assert_eq!(rig.hold_us(ANTICIPATION), 8_000);
    // Not the one with the least weight.
    rig.wait_us(8_000);
    assert_eq!(rig.serve(100), GIB);
}

#[test]
fn requests_in_flight_are_waited_for() {
    let mut rig = pair_on_flash("bfq:low_latency=false", [4, 1]);
    assert_eq!(rig.dispatch(), 1_000);
    assert_eq!(rig.decide(), Decision::Wait { until: None, why: IN_FLIGHT });
}

#[test]
fn an_interactive_vm_goes_before_a_flood() {
    let mut rig = streams("bfq", &[1, 1, 1, 1], 0);
    for i in 0..2_000 {
        rig.read_long(0, 136 * i, 128);
    }
    // The flood is interactive itself until it has had 120,000 sectors.
    turns(&mut rig, 1_200, 100);
    assert_eq!(rig.metric("raised_queues"), 0.0);
    rig.read(1, GIB);
    assert_eq!(rig.metric("raised_queues"), 1.0);
    // It preempts the flood, by its weight.
    assert_eq!(rig.serve(100), GIB);
    // And is waited for longer than others are.
    assert_eq!(rig.hold_us(ANTICIPATION), 20_000);
}

#[test]
fn without_low_latency_or_with_other_weights_nobody_is_raised() {
    for (spec, weight, raised) in
        [("bfq:low_latency=false", 1, false), ("bfq", 2, false), ("bfq", 1, true)]
    {
        let mut rig = streams(spec, &[weight; 2], 10);
        turns(&mut rig, 5, 100);
        assert_eq!(rig.metric("raised_queues") > 0.0, raised, "{spec}, weights of {weight}");
    }
}

#[test]
fn asynchronous_requests_are_charged_three_times() {
    let mut rig = Rig::with_weights("bfq:low_latency=false,max_budget=3072", &[1, 1]);
    for i in 0..400 {
        rig.read_long(0, 136 * i, 128);
        rig.write_long(1, GIB + 136 * i, 128);
    }
    let runs = turns(&mut rig, 320, 100);
    let share = ratio(&runs, 0, 1);
    assert!((2.5..3.5).contains(&share), "{share}: {runs:?}");
}

#[test]
fn an_expired_request_goes_first_in_its_turn() {
    let mut rig = Rig::with_weights("bfq:low_latency=false", &[1, 1]);
    rig.read(0, 500_000);
    rig.serve(100);
    rig.read(0, 100_000);
    for i in 0..10 {
        rig.read(0, 600_000 + 100 * i);
    }
    rig.wait_ms(200);
    // The turn is over; the next one begins with the oldest, though others are nearer.
    assert_eq!((rig.serve(100), rig.serve(100)), (100_000, 600_000));
}

#[test]
fn a_slow_queue_is_charged_for_its_time() {
    // VM 0 reads at random, 5 ms each; VM 1 streams, 0.1 ms each. Both are backlogged.
    let mut rig = Rig::with_weights("bfq:low_latency=false", &[1, 1]);
    for i in 0..400u64 {
        rig.read(0, 7_919 * i % 400 * 5_000);
    }
    for i in 0..4_000 {
        rig.read_long(1, GIB + 136 * i, 128);
    }
    let mut time = [0u64; 2];
    for _ in 0..1_500 {
        let lba = match rig.decide() {
            Decision::Dispatch(_) => rig.newest_in_flight().extent.start().get(),
            other => panic!("{other:?}"),
        };
        let vm = usize::from(lba >= GIB);
        let us = [5_000, 100][vm];
        rig.wait_us(us);
        rig.complete();
        time[vm] += us;
    }
    // By sectors alone, the random one would have 800 times the time of the stream.
    let share = time[0] as f64 / time[1] as f64;
    assert!((0.5..20.0).contains(&share), "{time:?}");
}

#[test]
fn a_queue_that_is_waited_for_lets_others_in_once_it_is_known() {
    let mut rig = Rig::with_weights("bfq:low_latency=false", &[4, 1]).solid();
    // VM 0 thinks 1 ms; VM 1 always has requests.
    for i in 0..200 {
        rig.read(1, GIB + 1_000 * i);
    }
    for i in 0..60 {
        rig.read(0, 1_000 * i);
        for _ in 0..4 {
            match rig.decide() {
                Decision::Dispatch(_) => {
                    rig.wait_us(100);
                    rig.complete();
                }
                Decision::Hold { .. } | Decision::Wait { .. } => rig.wait_us(300),
                _ => break,
            }
        }
        rig.wait_us(1_000);
    }
    assert!(rig.metric("injected") > 0.0);
}

#[test]
fn virtual_time_passes_by_the_sum_of_weights() {
    let mut tree = Tree::default();
    for (queue, weight) in [(0, 1), (1, 3)] {
        tree.add(queue, weight);
        tree.get_mut(queue).budget = 300;
        tree.activate(queue, false, 1);
    }
    // The heavier one would finish its 300 sectors first.
    assert_eq!(tree.serve_next(), Some(1));
    tree.served(1, 300);
    tree.requeue(1);
    tree.get_mut(1).service = 0;
    // At virtual time 75 it may begin again at 100 only; the other one is next.
    assert_eq!(tree.peek_next(), Some(0));
    assert_eq!(tree.serve_next(), Some(0));
    tree.served(0, 100);
    tree.deactivate(0);
    // 25 more have passed: at 100 the first one begins.
    assert_eq!(tree.serve_next(), Some(1));
}

#[test]
fn a_queue_that_leaves_and_comes_back_keeps_its_finish() {
    let mut tree = Tree::default();
    for queue in [0, 1] {
        tree.add(queue, 1);
        tree.get_mut(queue).budget = 100;
        tree.activate(queue, false, 1);
    }
    assert_eq!(tree.serve_next(), Some(0));
    tree.served(0, 100);
    tree.deactivate(0);
    tree.get_mut(0).service = 0;
    tree.activate(0, false, 1);
    // It has had its 100; virtual time is 50, and it begins at 100.
    assert_eq!(tree.serve_next(), Some(1));
    assert_eq!(tree.get(0).start, tree.get(1).finish);
}

#[test]
fn the_peak_rate_follows_a_stream() {
    let mut rate = super::queue::Rate::new(false);
    let before = rate.sectors_a_second();
    let mut now = Instant::ZERO;
    for i in 0..20_000u64 {
        let extent = Extent::new(Lba::new(i * 256), Sectors::new(256)).unwrap();
        let (id, vm) = (RequestId::new(0), VmId::new(0));
        let request = Request { id, vm, tag: None, op: Op::Read, sync: true, extent, arrived: now };
        rate.dispatched(now, &request, true);
        now = now + Nanos::from_micros(250);
        rate.completed(now);
    }
    // 256 sectors in 250 µs: a million a second, three times what it began with.
    let after = rate.sectors_a_second();
    assert!(before < 400_000 && after.abs_diff(1_024_000) < 60_000, "{before} {after}");
}
