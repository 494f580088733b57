//! Exactness: 1 % over any second, from 1 to 100,000 IOPS, 4 KiB to 1 MiB,
//! depth 1 to 256, bursts included. The allowance at the start is a tenth of a
//! second's worth and one request.

use super::load::{Load, SECOND, Stream, at, vm};
use proptest::prelude::*;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::limit::{Direction, Limits, Unit};

/// From 1 to `most`, each power of ten alike.
fn log_uniform(most: u64) -> impl Strategy<Value = u64> {
    (0.0..1.0f64).prop_map(move |x| ((most as f64).powf(x).round() as u64).clamp(1, most))
}

/// A load that would pass `rate` requests a second at least twice over.
fn stream(direction: Direction, bytes: u64, depth: u32, rate: u64) -> Stream {
    let latency = Nanos::new((u64::from(depth) * 500_000_000 / rate).clamp(1, 100_000_000));
    Stream { vm: 0, direction, bytes, depth, latency }
}

/// Length of a run at a rate: a few seconds, longer where requests are few.
fn seconds(rate: u64) -> f64 {
    if rate < 100 { 12.0 } else { 2.5 }
}

fn direction() -> impl Strategy<Value = Direction> {
    prop::sample::select(Direction::ALL.to_vec())
}

fn scope(direction: Direction, total: bool) -> &'static str {
    match (total, direction) {
        (true, _) => "",
        (false, Direction::Read) => "read_",
        (false, Direction::Write) => "write_",
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn iops_are_exact(
        rate in log_uniform(100_000), kib in log_uniform(1024), depth in 1u32..=256,
        direction in direction(), total in any::<bool>(),
    ) {
        let text = format!("{}iops={rate}", scope(direction, total));
        let mut load = Load::new(&[&text], &[], &[stream(direction, kib << 10, depth, rate)]);
        let end = at(seconds(rate));
        load.run(end);
        load.assert_fifo();
        load.assert_rate(&[0], Unit::Iops, rate, at(0.1), end);
        // The allowance, and nothing beyond it.
        let whole = load.count(&[0], Unit::Iops, Instant::ZERO, end) as f64;
        let due = rate as f64 * end.as_secs_f64();
        prop_assert!(whole <= due + rate as f64 / 10.0 + 1.0, "{} of {}", whole, due);
    }

    #[test]
    fn bandwidth_is_exact(
        rate in log_uniform(10_000), kib in 4u64..=1024, depth in 1u32..=256,
        direction in direction(), total in any::<bool>(),
    ) {
        let bytes = kib << 10;
        let text = format!("{}bandwidth={}", scope(direction, total), rate * bytes + bytes / 3);
        let mut load = Load::new(&[&text], &[], &[stream(direction, bytes, depth, rate)]);
        let end = at(seconds(rate));
        load.run(end);
        load.assert_rate(&[0], Unit::Bytes, rate * bytes + bytes / 3, at(0.1), end);
    }

    /// A size of one I/O makes large requests count several times, rounded up.
    #[test]
    fn large_requests_count_as_several(
        rate in 100u64..10_000, kib in 4u64..=1024, size_kib in 4u64..=64, depth in 1u32..=256,
    ) {
        let text = format!("iops={rate},iops_size={size_kib}KiB");
        let each = kib.div_ceil(size_kib);
        let stream = stream(Direction::Read, kib << 10, depth, rate);
        let mut load = Load::new(&[&text], &[], &[stream]);
        load.run(at(12.0));
        let passed = load.count(&[0], Unit::Iops, at(1.0), at(11.0)) * each;
        prop_assert!(passed.abs_diff(10 * rate) <= rate / 10 + each, "{} of {}", passed, 10 * rate);
    }

    /// After an idle time the burst's rate holds for its length, then the rate.
    #[test]
    fn bursts_hold_for_their_length(
        rate in log_uniform(10_000), times in 2u64..=10, length_ms in 1_000u64..=5_000, depth in 1u32..=256,
    ) {
        let peak = rate * times;
        let text = format!("iops={rate},iops_burst={peak},burst_length={length_ms}ms");
        let mut load = Load::new(&[&text], &[], &[stream(Direction::Read, 4096, depth, peak)]);
        let length = length_ms as f64 / 1e3;
        let end = at(length + 3.0);
        load.run(end);
        let whole = load.count(&[0], Unit::Iops, Instant::ZERO, at(length)) as f64;
        let due = peak as f64 * length;
        prop_assert!((whole - due).abs() <= due / 100.0 + 1.0, "{} of {}", whole, due);
        // Requests of the burst that are ahead by the allowance end it a little earlier.
        load.assert_rate(&[0], Unit::Iops, peak, at(0.1), at(length - 0.2));
        load.assert_rate(&[0], Unit::Iops, rate, at(length), end);
    }

    /// A group's disks have together what the group has.
    #[test]
    fn groups_are_exact(
        rate in log_uniform(20_000), disks in 1u16..=8, depth in 1u32..=64, kib in 4u64..=256,
    ) {
        let bytes = kib << 10;
        let streams: Vec<Stream> = (0..disks)
            .map(|n| {
                let direction = Direction::ALL[usize::from(n % 2)];
                Stream { vm: n, ..stream(direction, bytes, depth * (1 + u32::from(n)), rate) }
            })
            .collect();
        let texts = vec!["group=a"; disks.into()];
        let limit = format!("iops={rate}");
        let mut load = Load::new(&texts, &[("a", &limit)], &streams);
        let (end, all): (_, Vec<usize>) = (at(seconds(rate)), (0..disks.into()).collect());
        load.run(end);
        load.assert_fifo();
        load.assert_rate(&all, Unit::Iops, rate, at(0.1), end);
    }

    /// New limits hold from the moment at which they are set, and nothing is lost.
    #[test]
    fn changes_hold_at_once(
        first in log_uniform(20_000), second in log_uniform(20_000), depth in 1u32..=256,
    ) {
        let fastest = stream(Direction::Read, 4096, depth, first.max(second));
        let mut load = Load::new(&[&format!("iops={first}")], &[], &[fastest]);
        load.run(at(2.0));
        let waiting = load.limiter.waiting(vm(0));
        let before = load.passed.len();
        let limits = Limits::parse(&format!("iops={second}")).unwrap();
        load.limiter.set_disk(load.now, vm(0), &limits, None);
        prop_assert_eq!(load.limiter.waiting(vm(0)), waiting);
        load.poll();
        let end = at(2.0 + seconds(second));
        load.run(end);
        load.assert_fifo();
        load.assert_rate(&[0], Unit::Iops, second, at(2.1), end);
        let passed = (load.passed.len() - before) as f64;
        let due = second as f64 * (seconds(second) + 0.1);
        prop_assert!(passed <= due + 2.0, "{} of {}", passed, due);
    }
}

/// A load that comes and goes never has more than the rate, the allowance and one
/// request in any time.
#[test]
fn what_comes_in_batches_has_the_allowance_and_no_more() {
    let mut load = Load::new(&["iops=1000"], &[], &[]);
    let mut passed = Vec::new();
    for batch in 0..20 {
        let now = at(f64::from(batch) * 0.25);
        while load.limiter.next_wake().is_some_and(|t| t <= now) {
            let at = load.limiter.next_wake().unwrap();
            passed.extend(std::iter::from_fn(|| load.limiter.next(at)).map(|_| at));
        }
        for item in 0..150 {
            if load.limiter.submit(now, vm(0), Direction::Read, 4096, item) {
                passed.push(now);
            }
        }
    }
    // 150 every quarter of a second are below the rate: each batch has 101 at
    // once, and the rest a millisecond apart.
    for (n, start) in passed.iter().enumerate() {
        for (count, end) in passed[n..].iter().enumerate() {
            let span = end.since(*start).get() as f64 / 1e9;
            assert!((count + 1) as f64 <= 1000.0 * span + 101.0, "{} in {span} s", count + 1);
        }
    }
    assert_eq!(passed.iter().filter(|t| **t == Instant::ZERO).count(), 101);
    assert_eq!(passed.len(), 19 * 150 + 101);
    assert_eq!(load.limiter.waited(at(4.75), vm(0)), Nanos::new(SECOND.get() * 19 * 49 / 1000));
}
