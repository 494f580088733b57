//! Rate limits on the model clock: how exact they are, that nobody starves and
//! nothing waits for nothing, and that the limiter does what a model does that
//! looks at everything at every step. `PROPTEST_CASES=20000` looks longer.

mod swarm;

use proptest::prelude::*;
use seekway_core::request::{Op, VmId};
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::limit::{Direction, DiskLimits, GroupName, Limiter, Limits, Unit};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

// Exactness: 1 % over any second, from 1 to 100,000 IOPS, 4 KiB to 1 MiB,
// depth 1 to 256, bursts included. The allowance at the start is a tenth of a
// second's worth and one request.

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

// Order of service: reads and writes of a disk, the disks of a group.

const READ: Direction = Direction::Read;

const WRITE: Direction = Direction::Write;

const T0: Instant = Instant::ZERO;

fn limiter(text: &str) -> Limiter {
    let mut limiter = Limiter::new();
    limiter.set_disk(T0, vm(0), &Limits::parse(text).unwrap(), None);
    limiter
}

fn all(limiter: &mut Limiter, now: Instant) -> Vec<u32> {
    std::iter::from_fn(|| limiter.next(now)).collect()
}

#[test]
fn without_limits_nothing_is_asked_and_nothing_waits() {
    let mut limiter = Limiter::new();
    assert!(!limiter.is_limited(vm(3)) && limiter.submit(T0, vm(3), READ, 1 << 40, 1));
    limiter.set_disk(T0, vm(1), &Limits::parse("iops=1").unwrap(), None);
    assert!(limiter.is_limited(vm(1)) && !limiter.is_limited(vm(0)) && !limiter.is_limited(vm(2)));
    let group = GroupName::new("a").unwrap();
    limiter.set_disk(T0, vm(0), &Limits::default(), Some(&group));
    assert!(!limiter.is_limited(vm(0)));
    limiter.set_group(T0, &group, &Limits::parse("iops=1").unwrap());
    assert!(limiter.is_limited(vm(0)));
    limiter.set_group(T0, &group, &Limits::default());
    assert!(!limiter.is_limited(vm(0)));
    assert_eq!((limiter.next(at(9.0)), limiter.next_wake()), (None, None));
}

#[test]
fn flushes_are_not_limited_and_discards_are_writes() {
    let directions =
        [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush].map(Direction::of);
    assert_eq!(directions, [Some(READ), Some(WRITE), Some(WRITE), Some(WRITE), None]);
}

#[test]
fn a_read_passes_a_write_that_waits_for_the_limit_of_writes() {
    let mut limiter = limiter("write_iops=1");
    assert!(limiter.submit(T0, vm(0), WRITE, 512, 1));
    assert!(!limiter.submit(T0, vm(0), WRITE, 512, 2));
    assert!(all(&mut limiter, T0).is_empty());
    // A disk where something waits is asked for the rest through the queue.
    assert!(!limiter.submit(T0, vm(0), READ, 512, 3));
    assert_eq!(all(&mut limiter, T0), [3]);
    assert_eq!(limiter.next_wake(), Some(at(0.9)));
    assert_eq!(all(&mut limiter, at(0.9)), [2]);
}

#[test]
fn a_read_waits_behind_a_write_for_the_total() {
    let mut limiter = limiter("iops=1,write_bandwidth=1MiB");
    assert!(limiter.submit(T0, vm(0), WRITE, 2 << 20, 0));
    for (item, direction) in [(1, WRITE), (2, READ), (3, WRITE), (4, READ)] {
        assert!(!limiter.submit(T0, vm(0), direction, 512, item));
    }
    // At 0.9 s the total would let the write go, and the writes' limit does not.
    assert_eq!(all(&mut limiter, at(0.9)), [2]);
    assert_eq!(all(&mut limiter, at(1.9)), [1]);
    assert_eq!(all(&mut limiter, at(2.9)), [3]);
    assert_eq!(all(&mut limiter, at(3.9)), [4]);
}

#[test]
fn what_is_larger_than_the_bucket_passes() {
    let mut limiter = limiter("bandwidth=1MiB");
    assert!(limiter.submit(T0, vm(0), READ, 10 << 20, 0));
    assert!(!limiter.submit(T0, vm(0), READ, u64::MAX, 1));
    assert_eq!(limiter.next_wake(), Some(at(9.9)));
    assert_eq!(all(&mut limiter, at(9.9)), [1]);
    assert!(!limiter.submit(at(10.0), vm(0), READ, 512, 2));
    // Lifted limits let go what waits, at once and in order.
    assert!(!limiter.submit(at(10.0), vm(0), WRITE, 512, 3));
    limiter.set_disk(at(11.0), vm(0), &Limits::default(), None);
    assert!(limiter.is_limited(vm(0)) && limiter.waiting(vm(0)) == 2);
    assert!(!limiter.submit(at(11.0), vm(0), READ, 512, 4));
    assert_eq!(all(&mut limiter, at(11.0)), [2, 3, 4]);
    assert!(!limiter.is_limited(vm(0)) && limiter.submit(at(11.0), vm(0), READ, 512, 5));
}

#[test]
fn who_leaves_takes_what_waits_with_him() {
    let mut limiter = limiter("iops=1");
    assert!(limiter.submit(T0, vm(0), READ, 512, 0));
    for (item, direction) in [(1, WRITE), (2, READ), (3, WRITE), (4, READ)] {
        assert!(!limiter.submit(T0, vm(0), direction, 512, item));
    }
    assert!(limiter.withdraw(at(0.5), vm(0), 1) && !limiter.withdraw(at(0.5), vm(0), 1));
    assert!(!limiter.withdraw(T0, vm(7), 1));
    assert_eq!(limiter.waited(at(0.5), vm(0)), Nanos::from_millis(500));
    assert_eq!(all(&mut limiter, at(0.9)), [2]);
    let mut items = vec![9];
    limiter.remove(at(1.0), vm(0), &mut items);
    assert_eq!(items, [9, 3, 4]);
    assert_eq!((limiter.waiting(vm(0)), limiter.next_wake()), (0, None));
    assert!(!limiter.is_limited(vm(0)));
}

/// Whoever comes when the time of another has come, and nobody has looked yet,
/// goes behind the other.
#[test]
fn nobody_overtakes_who_waits_in_the_group() {
    let group = GroupName::new("a").unwrap();
    let mut limiter = Limiter::new();
    limiter.set_group(T0, &group, &Limits::parse("iops=1").unwrap());
    (0..2).for_each(|n| limiter.set_disk(T0, vm(n), &Limits::default(), Some(&group)));
    assert!(limiter.submit(T0, vm(0), READ, 512, 0) && !limiter.submit(T0, vm(0), READ, 512, 1));
    assert!(!limiter.submit(at(1.0), vm(1), WRITE, 512, 2));
    assert_eq!(all(&mut limiter, at(1.0)), [1]);
    assert_eq!(all(&mut limiter, at(2.0)), [2]);
}

#[test]
fn a_disk_that_joins_and_leaves_a_group_keeps_its_queue() {
    let (a, b) = (GroupName::new("a").unwrap(), GroupName::new("b").unwrap());
    let mut limiter = Limiter::new();
    limiter.set_group(T0, &a, &Limits::parse("iops=1").unwrap());
    limiter.set_disk(T0, vm(0), &Limits::default(), Some(&a));
    limiter.set_disk(T0, vm(1), &Limits::parse("iops=10").unwrap(), Some(&a));
    assert!(limiter.submit(T0, vm(0), READ, 512, 0));
    assert!(!limiter.submit(T0, vm(0), READ, 512, 1) && !limiter.submit(T0, vm(1), READ, 512, 2));
    // The other group does not limit: what waits may go.
    limiter.set_disk(T0, vm(0), &Limits::default(), Some(&b));
    assert_eq!(all(&mut limiter, T0), [1]);
    assert_eq!(limiter.next_wake(), Some(at(0.9)));
    limiter.set_disk(T0, vm(1), &Limits::parse("iops=10").unwrap(), None);
    assert_eq!(all(&mut limiter, T0), [2]);
    limiter.set_group(T0, &a, &Limits::default());
    assert_eq!((limiter.next_wake(), limiter.waiting(vm(0)), limiter.waiting(vm(1))), (None, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    /// Disks of a group that always want more have the same, however much they
    /// have waiting, and whichever way.
    #[test]
    fn a_groups_disks_take_turns(
        rate in 50u64..2_000, depths in prop::collection::vec((1u32..=128, any::<bool>()), 2..10),
        apart in any::<bool>(),
    ) {
        let streams: Vec<Stream> = depths
            .iter()
            .enumerate()
            .map(|(n, (depth, write))| Stream {
                vm: n as u16,
                direction: if *write { WRITE } else { READ },
                bytes: 4096,
                depth: *depth,
                latency: Nanos::new(1),
            })
            .collect();
        let limit = match apart {
            false => format!("iops={rate}"),
            true => format!("read_iops={rate},write_iops={rate}"),
        };
        let texts = vec!["group=a"; streams.len()];
        let mut load = Load::new(&texts, &[("a", &limit)], &streams);
        load.run(at(3.0));
        load.assert_fifo();
        // The first tenth of a second's worth goes to whoever asks first.
        for direction in Direction::ALL {
            let peers: Vec<usize> = (0..streams.len())
                .filter(|n| !apart || streams[*n].direction == direction)
                .collect();
            let got: Vec<u64> =
                peers.iter().map(|n| load.count(&[*n], Unit::Iops, at(1.0), at(3.0))).collect();
            if let (Some(least), Some(most)) = (got.iter().min(), got.iter().max()) {
                prop_assert!(most - least <= 1, "{:?}", got);
                prop_assert!(*least > 0);
            }
        }
    }

    /// A limit of one's own holds in a group too, and leaves the rest to the others.
    #[test]
    fn own_limits_hold_beside_the_groups(rate in 100u64..2_000, own in 1u64..40, depth in 1u32..64) {
        let stream = |vm| Stream { vm, direction: READ, bytes: 4096, depth, latency: Nanos::new(1) };
        let (mine, limit) = (format!("iops={own},group=a"), format!("iops={rate}"));
        let mut load = Load::new(&[&mine, "group=a"], &[("a", &limit)], &[stream(0), stream(1)]);
        load.run(at(4.0));
        load.assert_rate(&[0], Unit::Iops, own, at(0.1), at(4.0));
        load.assert_rate(&[0, 1], Unit::Iops, rate, at(0.1), at(4.0));
    }
}

// Disks under load that never lets up: each keeps a fixed number of requests outstanding, and each
// request takes the same time once it may go.

pub const SECOND: Nanos = Nanos::from_secs(1);

/// A stream of requests of one disk: it keeps `depth` of them outstanding.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub vm: u16,
    pub direction: Direction,
    pub bytes: u64,
    pub depth: u32,
    /// From when a request may go until it is done.
    pub latency: Nanos,
}

/// A request that went.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    pub at: Instant,
    pub stream: usize,
    /// Its place among the stream's requests.
    pub number: u32,
}

pub struct Load {
    pub limiter: Limiter,
    pub now: Instant,
    streams: Vec<Stream>,
    issued: Vec<u32>,
    /// When a request is done, and whose it is.
    done: BinaryHeap<Reverse<(Instant, usize)>>,
    /// By item: stream and number.
    items: Vec<(usize, u32)>,
    pub passed: Vec<Passed>,
}

pub fn vm(number: u16) -> VmId {
    VmId::new(number)
}

pub fn at(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

impl Load {
    /// Disks with limits by number, groups, and the streams that load them.
    pub fn new(disks: &[&str], groups: &[(&str, &str)], streams: &[Stream]) -> Load {
        let mut limiter = Limiter::new();
        for (n, text) in disks.iter().enumerate() {
            let DiskLimits { limits, group } = DiskLimits::parse(text).unwrap();
            limiter.set_disk(Instant::ZERO, vm(n as u16), &limits, group.as_ref());
        }
        for (name, text) in groups {
            let (name, limits) = (GroupName::new(name).unwrap(), Limits::parse(text).unwrap());
            limiter.set_group(Instant::ZERO, &name, &limits);
        }
        let issued = vec![0; streams.len()];
        let mut load = Load {
            limiter,
            now: Instant::ZERO,
            streams: streams.to_vec(),
            issued,
            done: BinaryHeap::new(),
            items: Vec::new(),
            passed: Vec::new(),
        };
        for (n, stream) in streams.iter().enumerate() {
            (0..stream.depth).for_each(|_| load.issue(n));
        }
        load
    }

    fn issue(&mut self, stream: usize) {
        let Stream { vm: number, direction, bytes, .. } = self.streams[stream];
        let item = self.items.len() as u32;
        self.items.push((stream, self.issued[stream]));
        self.issued[stream] += 1;
        if self.limiter.submit(self.now, vm(number), direction, bytes, item) {
            self.go(item);
        }
        self.poll();
    }

    fn go(&mut self, item: u32) {
        let (stream, number) = self.items[item as usize];
        self.passed.push(Passed { at: self.now, stream, number });
        self.done.push(Reverse((self.now + self.streams[stream].latency, stream)));
    }

    pub fn poll(&mut self) {
        while let Some(item) = self.limiter.next(self.now) {
            self.go(item);
        }
    }

    /// Let time pass, and everything happen that happens until then.
    pub fn run(&mut self, until: Instant) {
        loop {
            let wake = self.limiter.next_wake();
            let done = self.done.peek().map(|Reverse((at, _))| *at);
            let Some(next) = wake.into_iter().chain(done).min().filter(|at| *at <= until) else {
                break;
            };
            assert!(wake.is_none_or(|at| at > self.now), "something waits that may go");
            self.now = next;
            self.poll();
            while let Some(Reverse((at, stream))) = self.done.peek().copied() {
                if at > self.now {
                    break;
                }
                self.done.pop();
                self.issue(stream);
            }
        }
        self.now = until;
    }

    /// Amount of these streams that passed in `from..until`, in units.
    pub fn count(&self, of: &[usize], unit: Unit, from: Instant, until: Instant) -> u64 {
        let units = |p: &Passed| match unit {
            Unit::Iops => 1,
            Unit::Bytes => self.streams[p.stream].bytes,
        };
        let first = self.passed.partition_point(|p| p.at < from);
        let last = self.passed.partition_point(|p| p.at < until);
        self.passed[first..last].iter().filter(|p| of.contains(&p.stream)).map(units).sum()
    }

    /// Every second that begins in `from..until`, at a request or just behind
    /// one, has `rate` to within 1 % and one request.
    pub fn assert_rate(&self, of: &[usize], unit: Unit, rate: u64, from: Instant, until: Instant) {
        let units: Vec<(Instant, u64)> = self
            .passed
            .iter()
            .filter(|p| of.contains(&p.stream))
            .map(|p| (p.at, if unit == Unit::Iops { 1 } else { self.streams[p.stream].bytes }))
            .collect();
        let one = units.iter().map(|(_, n)| *n).max().unwrap_or(1);
        let (least, most) = (rate - rate / 100, rate + rate / 100 + one);
        let (mut end, mut sum) = (0, 0);
        for (begin, (start, first)) in units.iter().enumerate() {
            while end < units.len() && units[end].0 < *start + SECOND {
                sum += units[end].1;
                end += 1;
            }
            if *start >= from && *start + SECOND <= until {
                assert!(sum <= most, "{sum} of {rate} in the second from {start}");
                // Just behind this request, up to and with the one a second later.
                let behind = sum - first + units.get(end).map_or(0, |_| one);
                assert!(behind + one >= least, "{behind} of {rate} in the second behind {start}");
            }
            debug_assert!(begin < end);
            sum -= first;
        }
    }

    /// The streams' requests went in their order.
    pub fn assert_fifo(&self) {
        let mut next = vec![0; self.streams.len()];
        for p in &self.passed {
            assert_eq!(p.number, next[p.stream], "stream {} at {}", p.stream, p.at);
            next[p.stream] += 1;
        }
    }
}
