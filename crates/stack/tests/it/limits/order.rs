//! Order of service: reads and writes of a disk, the disks of a group.

use super::load::{Load, Stream, at, vm};
use proptest::prelude::*;
use seekway_core::request::Op;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::stack::limit::{Direction, GroupName, Limiter, Limits, Unit};

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
