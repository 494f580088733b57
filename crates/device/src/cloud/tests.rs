use super::*;
use crate::closed_loop::ClosedLoop;
use crate::tests::{metric, read, request, serve_one};
use proptest::prelude::*;
use seekway_core::request::Extent;
use seekway_core::units::{Lba, Nanos};

const MIB: u64 = 1 << 20;

fn steady(rate: u64) -> Cap {
    Cap { base: rate, burst: rate, credit: 0 }
}

/// 1,000 I/Os and 100 MiB a second, 1 ms.
fn spec() -> CloudSpec {
    CloudSpec {
        capacity: 1 << 24,
        ios: steady(1_000),
        bytes: steady(100 * MIB),
        unit_bytes: 256 << 10,
        read_latency_ns: 1_000_000,
        write_latency_ns: 2_000_000,
        spread_ns: 0,
        seed: 1,
        queue_depth: 64,
    }
}

/// Commands of `sectors` at `depth`; how many were done in each of `spans` of `span_ns`.
fn rates(spec: CloudSpec, sectors: u64, depth: u32, span_ns: u64, spans: usize) -> Vec<u64> {
    let mut cloud = Cloud::new(spec);
    let mut done = vec![0; spans];
    let places = spec.capacity / sectors;
    let stop = std::cell::Cell::new(false);
    let next = |n: u64| {
        let extent = Extent::new(Lba::new(n * 7_919 % places * sectors), Sectors::new(sectors))?;
        (!stop.get()).then_some((Op::Read, extent))
    };
    ClosedLoop { depth, think: Nanos::ZERO }.run(&mut cloud, next, |at| {
        match done.get_mut((at.as_nanos() / span_ns) as usize) {
            Some(count) => *count += 1,
            None => stop.set(true),
        }
    });
    done
}

#[test]
fn an_idle_volume_answers_after_its_floor() {
    let mut cloud = Cloud::new(spec());
    assert_eq!(serve_one(&mut cloud, 0, &read(0, 0, 8)), 1_000_000);
    let write = request(0, Op::Write, 0, 8);
    assert_eq!(serve_one(&mut cloud, 5_000_000, &write), 7_000_000);
    // A flush is neither billed nor delayed.
    let flush = request(0, Op::Flush, 0, 1);
    assert_eq!(serve_one(&mut cloud, 7_000_000, &flush), 9_000_000);
    assert_eq!((metric(&cloud, "billed_ios"), metric(&cloud, "gate_ms")), (2.0, 0.0));
}

#[test]
fn a_large_command_is_billed_by_the_unit() {
    // 1 MiB: four I/Os, 10 ms at 100 MiB/s, of which the first quarter is paid for later.
    let mut cloud = Cloud::new(spec());
    assert_eq!(serve_one(&mut cloud, 0, &read(0, 0, 2_048)), 7_500_000 + 1_000_000);
    assert_eq!(metric(&cloud, "billed_ios"), 4.0);
    // The next one waits until all of it is paid for.
    let next = serve_one(&mut cloud, 8_500_000, &read(0, 0, 8));
    assert_eq!(next, 10_000_000 + 1_000_000);
    // A sector more than a unit is two I/Os: 2 ms at 1,000 a second, above its bytes' time
    // only where bytes are fast.
    let fast = CloudSpec { bytes: steady(1_000 * MIB), ..spec() };
    let mut cloud = Cloud::new(fast);
    assert_eq!(serve_one(&mut cloud, 0, &read(0, 0, 513)), 1_000_000 + 1_000_000);
}

#[test]
fn credit_is_spent_and_then_the_base_rate_holds() {
    // 500 a second, 2,000 while 3,000 tokens last: they go at 1,500 net, so for 2 s.
    let ios = Cap { base: 500, burst: 2_000, credit: 3_000 };
    let bytes = steady(1_000 * MIB);
    let found = rates(CloudSpec { ios, bytes, ..spec() }, 8, 32, 1_000_000_000, 5);
    for (found, expected) in found.iter().zip([2_000, 2_000, 500, 500, 500]) {
        assert!(found.abs_diff(expected) * 100 <= expected, "{found} of {expected}");
    }
    // Bytes have a bucket of their own: 10 MiB/s, 40 with 60 MiB of credit, for 2 s.
    let bytes = Cap { base: 10 * MIB, burst: 40 * MIB, credit: 60 * MIB };
    let found = rates(CloudSpec { bytes, ..spec() }, 128, 32, 1_000_000_000, 4);
    for (found, expected) in found.iter().zip([640, 640, 160, 160]) {
        assert!(found.abs_diff(expected) * 50 <= expected, "{found} of {expected}");
    }
}

#[test]
fn an_idle_volume_earns_credit_and_no_more_than_the_bucket_holds() {
    let ios = Cap { base: 100, burst: 1_000, credit: 50 };
    let mut cloud = Cloud::new(CloudSpec { ios, ..spec() });
    for id in 0..60 {
        cloud.submit(Instant::ZERO, &read(id, 0, 8));
    }
    while let Some(at) = cloud.next_completion() {
        cloud.pop_completed(at);
    }
    assert_eq!(metric(&cloud, "io_credit"), 0.0);
    // 100 ms earn ten, an hour no more than fifty.
    let spent = cloud.gate_ns;
    cloud.ios.refill(spent + 100_000_000);
    assert_eq!(metric(&cloud, "io_credit"), 10.0);
    cloud.ios.refill(spent + 3_600_000_000_000);
    assert_eq!(metric(&cloud, "io_credit"), 50.0);
}

#[test]
fn the_additions_have_the_mean_that_is_stated_and_follow_from_the_seed() {
    let latencies = |seed| {
        let mut cloud = Cloud::new(CloudSpec { spread_ns: 300_000, seed, ..spec() });
        (0..20_000_u64)
            .map(|n| serve_one(&mut cloud, n * 10_000_000, &read(0, 0, 8)) - n * 10_000_000)
            .collect::<Vec<_>>()
    };
    let found = latencies(7);
    let mean = found.iter().sum::<u64>() as f64 / found.len() as f64;
    assert!((mean / 1_300_000.0 - 1.0).abs() < 0.01, "{mean}");
    assert!(found.iter().all(|&ns| (1_000_000..=1_000_000 + 8 * 300_000).contains(&ns)));
    assert_eq!(found, latencies(7));
    assert_ne!(found, latencies(8));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Under a full queue the tighter cap is met to 1 %, whichever it is.
    #[test]
    fn caps_are_exact(
        iops in 50..20_000_u64,
        mib in 10..2_000_u64,
        sectors in prop_oneof![Just(8_u64), 1..2_048_u64],
        latency_us in 0..3_000_u64,
        spread_us in 0..1_000_u64,
    ) {
        let bytes = sectors * 512;
        let billed = bytes.div_ceil(256 << 10) as f64;
        let expected = (iops as f64 / billed).min((mib * MIB) as f64 / bytes as f64);
        // Deep enough that latency never limits, long enough to count 1 %.
        let span_ns = (1_000e9 / expected) as u64;
        let latency_s = (latency_us + 8 * spread_us) as f64 / 1e6;
        let depth = (2.0 + 2.0 * expected * latency_s) as u32;
        let spec = CloudSpec {
            ios: steady(iops),
            bytes: steady(mib * MIB),
            read_latency_ns: latency_us * 1_000,
            spread_ns: spread_us * 1_000,
            queue_depth: depth,
            ..spec()
        };
        let warm = (latency_s * 1e9 / span_ns as f64).ceil() as usize + 1;
        let found = rates(spec, sectors, depth, span_ns, warm + 1)[warm] as f64;
        prop_assert!((found / 1_000.0 - 1.0).abs() <= 0.01, "{} of 1000 at {}/s", found, expected);
    }

    /// No command is answered before the floor, the caps hold over any stretch but for one command
    /// and the credit, and the first one alone does not wait.
    #[test]
    fn no_command_is_before_the_floor_and_no_stretch_is_above_the_caps(
        commands in prop::collection::vec(
            (1..3_000_u64, 0..2_000_000_u64, any::<bool>()), 1..200,
        ),
        credit in 0..100_u64,
    ) {
        let ios = Cap { base: 1_000, burst: 4_000, credit };
        let spec = CloudSpec { ios, spread_ns: 100_000, queue_depth: 256, ..spec() };
        let mut cloud = Cloud::new(spec);
        let (mut now, mut billed, mut bytes) = (0, 0, 0);
        for (id, (sectors, gap_ns, write)) in commands.iter().enumerate() {
            now += gap_ns;
            let op = if *write { Op::Write } else { Op::Read };
            let floor = if *write { 2_000_000 } else { 1_000_000 };
            let before = cloud.gate_ns;
            let done = cloud.accept(now, &request(id as u32, op, 0, *sectors));
            prop_assert!(done >= now.max(before) + floor);
            prop_assert!(done <= cloud.gate_ns.max(now) + floor + 800_000);
            billed += (sectors * 512).div_ceil(256 << 10);
            bytes += sectors * 512;
            // The gate cannot be free earlier than the caps allow since time 0.
            let gate_s = cloud.gate_ns as f64 / 1e9;
            prop_assert!(billed as f64 <= 4_000.0 * gate_s + 1e-3);
            prop_assert!(billed as f64 <= credit as f64 + 1_000.0 * gate_s + 1e-3);
            prop_assert!(bytes as f64 <= (100 * MIB) as f64 * gate_s + 1.0);
        }
    }
}
