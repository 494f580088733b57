//! cats on the bench: the order of its rules, and what bounds them.

use super::*;
use crate::schedulers::tests::Rig;
use seekway_core::request::Extent;
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::Sectors;

fn rig(spec: &str, head: u64) -> Rig {
    let mut rig = Rig::new(spec);
    rig.head = Lba::new(head);
    rig
}

#[test]
fn the_table_decides_and_stands_until_a_read_arrives() {
    let mut rig = rig("cats:busdriver=0,segments=0", 100_000);
    rig.reads(0, [20_000, 82_000, 120_000, 200_000]);
    assert_eq!(rig.serve_n(1), [120_000]);
    rig.write(1, 5);
    assert_eq!(rig.serve_n(2), [82_000, 20_000]);
    assert_eq!(rig.metric("plans"), 1.0, "a write does not change it");
    rig.read(0, 10_000);
    assert_eq!(rig.serve_n(3), [10_000, 200_000, 5]);
    assert_eq!(rig.metric("plans"), 2.0);
}

#[test]
fn hits_go_first_and_move_neither_head_nor_plan() {
    let mut rig = rig("cats:busdriver=0", 100_000);
    rig.read(0, 500_000);
    assert_eq!(rig.serve_n(1), [500_000]);
    rig.reads(0, [490_000, 900_000, 510_000]);
    assert_eq!(rig.serve_n(1), [490_000]);
    // What was read ahead behind 500,000; the head is at 490,008 all the while.
    rig.reads(1, [500_008, 500_040]);
    assert_eq!(rig.serve_n(2), [500_008, 500_040]);
    assert_eq!(rig.serve_n(2), [510_000, 900_000]);
    assert_eq!(rig.metric("by_hit"), 2.0);
    assert_eq!(rig.metric("predicted_actual_hits"), 2.0, "all take 100 us here");
}

#[test]
fn a_command_of_hits_takes_in_only_hits() {
    let mut rig = rig("cats:busdriver=0,prefetch_sectors=16", 0);
    rig.read(0, 1_000);
    rig.serve_n(1);
    rig.reads(0, [1_008, 1_016, 1_024, 5_000_000]);
    let order: Vec<u64> = (0..2).map(|_| rig.dispatch()).collect();
    assert_eq!(order, [1_008, 1_016]);
    rig.wait_us(100);
    rig.complete();
    assert_eq!(rig.metric("predicted_hits"), 1.0, "two requests, one command");
}

#[test]
fn reads_go_before_writes_and_writes_ascend() {
    let mut rig = rig("cats:busdriver=0", 1_000);
    rig.writes(1, [500, 9_000, 7_000]);
    rig.read(0, 100_000);
    assert_eq!(rig.serve_n(4), [100_000, 500, 7_000, 9_000]);
}

#[test]
fn an_old_read_sends_all_into_c_scan_order() {
    let mut rig = rig("cats:busdriver=0,segments=0", 100_000);
    rig.reads(0, [90_000, 900_000]);
    rig.wait_ms(99);
    rig.reads(1, [95_000, 120_000]);
    rig.wait_ms(1);
    // Upwards from the head, then from the lowest, until the old ones are gone.
    assert_eq!(rig.serve_n(3), [120_000, 900_000, 90_000]);
    assert_eq!((rig.metric("by_cscan"), rig.metric("by_table")), (3.0, 0.0));
    assert_eq!(rig.serve_n(1), [95_000]);
    assert_eq!(rig.metric("by_table"), 1.0);
}

#[test]
fn without_a_read_delay_a_distant_read_may_wait() {
    let mut rig = rig("cats:busdriver=0,read_delay=0,segments=0", 1_000);
    rig.read(0, 900_000_000);
    for n in 0..1_000 {
        rig.read(1, 2_000 + 1_000 * (n % 7));
        assert!(rig.serve(1_000) < 10_000);
    }
}

#[test]
fn under_flood_an_old_read_goes_within_a_sweep() {
    // Thirty-two reads near the head at any time, of 500 places; 1 ms each.
    let mut rig = rig("cats:busdriver=0,segments=0", 1_000);
    let mut places = (0u64..).map(|n| 1_000 + n * 7 % 500 * 100);
    rig.reads(0, places.by_ref().take(32));
    rig.read(1, 900_000_000);
    let served = (0..700).find(|_| {
        rig.read(0, places.next().unwrap());
        rig.serve(1_000) == 900_000_000
    });
    // 100 ms, and what the sweep passes on its way: no more than all places.
    assert!(served.is_some_and(|n| (100..=100 + 500).contains(&n)), "{served:?}");
}

#[test]
fn a_late_request_behind_a_sequential_stream_is_turned_back_for() {
    // 128 KiB at a time: more than the drive reads ahead, so never a hit.
    for (spec, op, delay_ms) in [
        ("cats:busdriver=0,segments=0", Op::Read, 100),
        ("cats:busdriver=0,write_delay=200ms", Op::Write, 200),
    ] {
        let mut rig = rig(spec, 1_000_000);
        let send = |rig: &mut Rig, vm, lba| rig.arrive(vm, 0, op, op == Op::Read, lba);
        let mut next = (0u64..).map(|n| 1_000_000 + n * 8);
        next.by_ref().take(2).for_each(|lba| _ = send(&mut rig, 0, lba));
        send(&mut rig, 1, 5);
        let served = (0..2_000).find(|_| {
            send(&mut rig, 0, next.next().unwrap());
            rig.serve(1_000) == 5
        });
        // The delay, then twice the four that are queued, and the spare.
        assert!(served.is_some_and(|n| n <= delay_ms + 2 * 4 + 64), "{spec}: {served:?}");
    }
}

#[test]
fn hits_without_end_pass_an_old_read_and_an_old_write_by_the_number() {
    let mut rig = rig("cats:busdriver=0,write_delay=200ms", 1_000);
    rig.read(0, 1_000);
    rig.serve(1_000);
    rig.read(1, 900_000_000);
    rig.write(2, 5);
    let (mut read_ms, mut write_ms) = (None, None);
    for n in 1..1_000u64 {
        // The stream always has its next read queued, and all are predicted.
        rig.read(0, 1_000 + n * 16);
        match rig.serve(1_000) {
            900_000_000 => read_ms = Some(n),
            5 => write_ms = Some(n),
            _ => {}
        }
    }
    // Past its delay only these pass, and those that are dispatched already.
    let within = |ms: Option<u64>, delay: u64| {
        ms.is_some_and(|n| (delay..=delay + 2 + u64::from(HITS_IN_A_ROW)).contains(&n))
    };
    assert!(within(read_ms, 99), "{read_ms:?}");
    assert!(within(write_ms, 199), "{write_ms:?}");
}

#[test]
fn old_writes_and_reads_take_turns() {
    let mut rig = rig("cats:busdriver=0,write_delay=10ms,read_delay=0,segments=0", 1_000);
    rig.writes(1, (0..8).map(|n| 1_000_000 + n * 1_000));
    rig.wait_ms(10);
    rig.reads(0, (0..8).map(|n| 2_000 + n * 1_000));
    let writes: Vec<bool> = rig.serve_n(16).iter().map(|&lba| lba >= 1_000_000).collect();
    assert!(writes.chunks(2).all(|pair| pair[0] != pair[1]), "{writes:?}");
}

#[test]
fn the_busdriver_waits_from_the_completion_for_a_near_read() {
    let mut rig = rig("cats:busdriver=7ms", 0);
    rig.read(0, 1_000);
    rig.serve(500);
    rig.read(1, 900_000);
    rig.wait_us(1_000);
    assert_eq!(rig.hold_us(BUSDRIVER), 6_000);
    rig.read(2, 800_000);
    assert_eq!(rig.hold_us(BUSDRIVER), 6_000, "neither a hit nor adjacent");
    rig.read(0, 1_008);
    assert_eq!(rig.serve(500), 1_008);
    rig.wait_us(7_000);
    assert_eq!(rig.serve(500), 800_000);
    rig.wait_ms(91);
    assert_eq!(rig.serve(500), 900_000, "no wait past a read's delay");
}

#[test]
fn the_busdriver_leaves_alone_what_does_not_rotate_or_is_busy() {
    let mut solid = rig("cats:busdriver=7ms", 0).solid();
    solid.reads(0, [1_000, 900_000]);
    assert_eq!(solid.serve_n(2), [1_000, 900_000]);
    let mut busy = rig("cats:busdriver=7ms", 0);
    busy.reads(0, [1_000, 50_000, 900_000]);
    let order: Vec<u64> = (0..2).map(|_| busy.dispatch()).collect();
    assert_eq!(order, [1_000, 50_000]);
    busy.complete();
    assert_eq!(busy.dispatch(), 900_000, "one is in flight still");
}

/// A reader that goes on 1 ms after each completion, and one far away that
/// always has a read queued. A command where the last one ended takes
/// `near_us`, any other `far_us`. The share of dispatches that were the near reader's.
fn near_share(spec: &str, near_us: u64, far_us: u64, think_us: u64) -> (f64, Rig) {
    let mut rig = rig(spec, 0);
    let (mut place, mut far, mut near) = (0, 0u64, 0u32);
    let mut next = Some(Instant::ZERO);
    rig.read(1, 500_000_000);
    for _ in 0..4_000 {
        if next.is_some_and(|at| at <= rig.now) {
            rig.read(0, place);
            next = None;
        }
        let head = rig.head.get();
        match rig.decide() {
            Decision::Dispatch(_) => {
                let at = rig.head.get() - 8;
                let ends = rig.now + Nanos::from_micros(if at == head { near_us } else { far_us });
                if let Some(arrives) = next.take_if(|arrives| *arrives < ends) {
                    rig.now = arrives;
                    rig.read(0, place);
                }
                rig.now = ends;
                rig.complete();
                if at < 1_000_000 {
                    near += 1;
                    place += 8;
                    next = Some(rig.now + Nanos::from_micros(think_us));
                } else {
                    far += 1;
                    rig.read(1, 1_000_000 * (1 + far * 7_919 % 1_000));
                }
            }
            Decision::Hold { until, .. } => {
                rig.now = next.map_or(until, |at| at.max(rig.now).min(until));
            }
            other => unreachable!("the distant reader always has one queued: {other:?}"),
        }
    }
    (f64::from(near) / (rig.metric("by_table") + rig.metric("by_cscan")), rig)
}

#[test]
fn auto_waits_where_a_successor_saves_more_than_the_wait() {
    // 10 ms to go away and come back against 1 ms of waiting, without a cache.
    let (share, rig) = near_share("cats:segments=0", 500, 10_000, 1_000);
    assert!(share > 0.8 && rig.metric("waits") > 1_000.0, "{share} {}", rig.metric("waits"));
}

#[test]
fn auto_does_not_wait_where_a_successor_saves_nothing_or_comes_late() {
    for (near_us, far_us, think_us) in
        [(5_000, 5_000, 1_000), (5_000, 5_500, 3_000), (500, 6_000, 20_000)]
    {
        let (share, rig) = near_share("cats:segments=0", near_us, far_us, think_us);
        assert!(share < 0.6, "{share}");
        assert!(rig.metric("waits") < 60.0, "{} waits", rig.metric("waits"));
    }
}

#[test]
fn a_plan_stands_while_more_reads_are_pending_than_it_takes() {
    let mut rig = rig("cats:busdriver=0,segments=0", 100_000);
    rig.reads(0, (1..=260).map(|n| 100_000 + 1_000 * n));
    assert_eq!(rig.serve_n(2), [101_000, 102_000]);
    // The head passes one of them; the other has to wait.
    rig.reads(0, [103_500, 102_000]);
    assert_eq!(rig.serve_n(5), [103_000, 103_500, 104_000, 105_000, 106_000]);
    assert_eq!(rig.metric("plans"), 1.0);
    // Now 256 are pending, and a plan takes all.
    rig.read(0, 105_500);
    assert_eq!(rig.serve_n(2), [105_500, 107_000]);
    assert_eq!(rig.metric("plans"), 2.0);
}

#[test]
fn tables_are_few_where_another_rule_breaks_them_off() {
    let mut rig = rig("cats:busdriver=0,segments=0,write_delay=1ms,read_delay=0", 0);
    let mut places = (0u64..).map(|n| n * 7_919 % 4_000 * 1_000);
    rig.writes(1, places.by_ref().take(1_280));
    rig.reads(0, places.by_ref().take(1_920));
    rig.wait_ms(1);
    // A write and a read in turn, 1,280 times; enough reads are left.
    rig.serve_n(2_560);
    assert_eq!(rig.metric("by_write"), 1_280.0);
    assert!(rig.metric("plans") <= 2_560.0 / 128.0, "{}", rig.metric("plans"));
    assert!(rig.metric("by_cscan") > 0.0);
}

/// Most reads that one decision looked at, with `pending` reads in a small place, all of which the
/// shadow knows.
fn most_looked(pending: u32, range: u64) -> (usize, usize) {
    let params = Params::with(PARAMS, "cats", &[("busdriver", "0")]).unwrap();
    let mut cats = Cats::new(&params).unwrap();
    let profile = DeviceProfile::unknown(Sectors::new(1 << 31), true);
    let (mut state, mut head) = (5u64, Lba::ZERO);
    let mut request = |slot: u32, now: Instant| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let extent = Extent::new(Lba::new((state >> 33) % range), Sectors::new(8)).unwrap();
        let (id, vm) = (RequestId::new(slot), VmId::new(0));
        Request { id, vm, tag: None, op: Op::Read, sync: true, extent, arrived: now }
    };
    let mut requests: Vec<Request> = Vec::new();
    for slot in 0..pending {
        requests.push(request(slot, Instant::ZERO));
        cats.arrived(Instant::ZERO, requests[slot as usize]);
    }
    let (mut most, mut longest) = (0, 0);
    for n in 0..500u64 {
        let now = Instant::from_nanos(n * 1_000_000);
        let before = cats.shadow.looked;
        let view = DeviceView::idle(head, &profile);
        let Decision::Dispatch(id) = cats.decide(now, &view) else { panic!("no dispatch") };
        most = most.max(cats.shadow.looked - before);
        longest = longest.max(cats.plan.order.len());
        let sent = requests[id.slot()];
        head = sent.extent.end();
        let service = Nanos::from_micros(100);
        cats.completed(now, &Completion::alone(sent, now, service));
        requests[id.slot()] = request(id.slot() as u32, now);
        cats.arrived(now, requests[id.slot()]);
    }
    (most, longest)
}

#[test]
fn the_work_of_a_decision_is_bounded_at_any_length_of_the_queue() {
    for range in [1 << 30, 100_000, 200] {
        let [few, many] = [1_000, 100_000].map(|pending| most_looked(pending, range));
        // All 64 segments may lose their candidate at once, and each finds another soon.
        assert!(many.0 <= 4 * 64, "{few:?} {many:?} of {range}");
        assert!(few.1 <= 256 && many.1 <= 256, "{few:?} {many:?}");
    }
}

#[test]
fn a_plan_stands_at_any_length_of_the_queue() {
    let mut rig = rig("cats:busdriver=0", 1 << 29);
    let mut place = 1u64;
    for _ in 0..10_000 {
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        rig.read(0, (place >> 33) / 8 * 8);
    }
    for n in 0..256 {
        rig.dispatch();
        rig.wait_us(1);
        rig.complete();
        assert_eq!(rig.metric("plans"), 1.0, "after {n}");
    }
}
