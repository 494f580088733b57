//! The rules of kyber, one by one.

use super::*;
use crate::schedulers::tests::Rig;

/// `n` reads or writes, each on the device for `us`, the next one after the last.
fn serve(rig: &mut Rig, op: Op, n: u64, us: u64) {
    for i in 0..n {
        rig.arrive(0, 0, op, true, 1_000_000 + 100 * i);
        rig.serve(us);
    }
}

#[test]
fn sixteen_reads_then_eight_writes() {
    let mut rig = Rig::new("kyber");
    rig.reads(0, (0..40).map(|i| 1_000 + 100 * i));
    rig.writes(1, (0..20).map(|i| 100_000 + 100 * i));
    let reads: Vec<bool> = rig.serve_n(60).iter().map(|&lba| lba < 100_000).collect();
    let turns: Vec<usize> = reads.chunk_by(|a, b| a == b).map(<[bool]>::len).collect();
    assert_eq!(turns, [16, 8, 16, 8, 8, 4]);
}

#[test]
fn a_domain_goes_in_order_of_arrival_whoevers_the_requests_are() {
    let mut rig = Rig::new("kyber");
    rig.reads(0, [500, 100]);
    rig.reads(1, [900]);
    rig.reads(0, [300]);
    assert_eq!(rig.serve_n(4), [500, 100, 900, 300]);
}

#[test]
fn without_a_token_it_waits_and_the_other_domain_goes_on() {
    let mut rig = Rig::new("kyber");
    rig.writes(0, (0..129).map(|i| 100 * i));
    for n in 0..128 {
        assert_eq!(rig.dispatch(), 100 * n);
    }
    assert_eq!(rig.decide(), Decision::Wait { until: None, why: TOKENS });
    rig.read(0, 900_000);
    assert_eq!(rig.dispatch(), 900_000);
    rig.complete();
    assert_eq!(rig.dispatch(), 12_800);
    assert_eq!(rig.metric("throttled"), 1.0);
}

#[test]
fn a_run_of_adjacent_requests_takes_one_token() {
    let mut rig = Rig::new("kyber");
    rig.writes(0, [100, 108, 116]);
    rig.writes(0, (5..133).map(|i| 100 * i));
    assert_eq!((rig.dispatch(), rig.dispatch(), rig.dispatch()), (100, 108, 116));
    for n in 5..132 {
        assert_eq!(rig.dispatch(), 100 * n);
    }
    assert_eq!(rig.decide(), Decision::Wait { until: None, why: TOKENS });
    rig.complete();
    assert_eq!(rig.dispatch(), 13_200);
}

#[test]
fn buckets_are_quarters_of_the_target() {
    let mut histogram = Histogram::default();
    for us in [0, 500, 501, 2_000, 2_001, 3_501, 60_000_000] {
        histogram.add(Nanos::from_millis(2), Nanos::from_micros(us));
    }
    assert_eq!(histogram.0, [2, 1, 0, 1, 1, 0, 0, 2]);
    assert_eq!(histogram.take_percentile(50), 3);
    assert_eq!(histogram.samples(), 0);
}

#[test]
fn late_reads_take_tokens_from_early_writes() {
    let mut rig = Rig::new("kyber");
    // Reads of 6 ms, target 2 ms; writes of 0.2 ms, target 10 ms: the lowest bucket.
    for _ in 0..4 {
        serve(&mut rig, Op::Read, 500, 6_000);
        serve(&mut rig, Op::Write, 500, 200);
    }
    assert_eq!(rig.metric("read_tokens"), 256.0);
    assert!(rig.metric("write_tokens") <= 128.0 / 16.0, "{}", rig.metric("write_tokens"));
}

#[test]
fn early_domains_keep_their_tokens_without_congestion() {
    let mut rig = Rig::new("kyber");
    serve(&mut rig, Op::Read, 2_000, 400);
    serve(&mut rig, Op::Write, 2_000, 400);
    assert_eq!((rig.metric("read_tokens"), rig.metric("write_tokens")), (256.0, 128.0));
}

#[test]
fn a_flood_of_reads_is_never_throttled_for_a_quiet_reader() {
    let mut rig = Rig::new("kyber");
    // 64 outstanding, 8 ms each: late, so the domain would even gain tokens.
    rig.reads(0, (0..64).map(|i| 100 * i));
    for i in 0..4_000 {
        while rig.decide() != Decision::Idle {}
        rig.wait_us(125);
        rig.complete();
        rig.read(0, 1_000_000 + 100 * i);
    }
    assert_eq!((rig.metric("read_tokens"), rig.metric("throttled")), (256.0, 0.0));
}

#[test]
fn a_percentile_counts_after_500_samples_or_a_second() {
    let mut domain = Domain::new(Nanos::from_millis(2), 256);
    let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
    domain.device_time.add(domain.target, Nanos::from_millis(6));
    assert_eq!(domain.percentile(at(100), true, 90), None);
    assert_eq!(domain.percentile(at(1_099), true, 90), None);
    assert_eq!(domain.percentile(at(1_100), true, 90), Some(7));
    (0..500).for_each(|_| domain.device_time.add(domain.target, Nanos::from_millis(1)));
    assert_eq!(domain.percentile(at(1_101), true, 90), Some(1));
}

#[test]
fn congestion_uses_a_saved_percentile_once() {
    let mut domain = Domain::new(Nanos::from_millis(2), 256);
    let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
    (0..500).for_each(|_| domain.total_time.add(domain.target, Nanos::from_micros(900)));
    domain.adjust(at(100), false);
    assert_eq!((domain.tokens, domain.p99), (256, Some(1)));
    domain.adjust(at(200), true);
    assert_eq!((domain.tokens, domain.p99), (128, None));
    domain.adjust(at(300), true);
    assert_eq!(domain.tokens, 128);
    // A domain that is late gains, congested or not, up to where it began.
    (0..500).for_each(|_| domain.total_time.add(domain.target, Nanos::from_micros(9_000)));
    domain.adjust(at(400), false);
    assert_eq!(domain.tokens, 256);
}

#[test]
fn at_least_one_token_stays() {
    let mut domain = Domain::new(Nanos::from_millis(2), 3);
    for ms in 0..4 {
        (0..500).for_each(|_| domain.total_time.add(domain.target, Nanos::new(1)));
        domain.adjust(Instant::ZERO + Nanos::from_millis(ms), true);
    }
    assert_eq!(domain.tokens, 1);
}

#[test]
fn asynchronous_requests_get_three_quarters_of_the_tags() {
    // The rig's device is deep: 256 tags, and as many tokens of reads.
    let mut rig = Rig::new("kyber");
    for i in 0..300 {
        rig.arrive(0, 0, Op::Read, false, 100 * i);
    }
    for n in 0..192 {
        assert_eq!(rig.dispatch(), 100 * n);
    }
    assert_eq!(rig.decide(), Decision::Wait { until: None, why: TOKENS });
    rig.read(1, 1_000_000);
    assert_eq!(rig.dispatch(), 1_000_000);
    // One that is done makes room for the next one.
    rig.complete();
    assert_eq!(rig.dispatch(), 19_200);
}

#[test]
fn tags_go_in_order_of_arrival() {
    let mut rig = Rig::new("kyber");
    rig.reads(0, (0..300).map(|i| 100 * i));
    let write = 50_000_000;
    rig.write(1, write);
    // 256 reads have tags. When the 44 others have theirs, it is the write's turn.
    let order = rig.serve_n(301);
    let place = order.iter().position(|&lba| lba == write).unwrap();
    assert!((45..=61).contains(&place), "{place}");
}
