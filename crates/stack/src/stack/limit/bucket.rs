//! Leaky buckets in whole numbers: what a disk or a group has used of its
//! rates, and when it may go on.
//!
//! A request may pass while no bucket that counts it is fuller than its size,
//! and then adds all that it counts as (QEMU's rule). So whether a bucket is
//! ready does not depend on the request, and one that is larger than the
//! bucket passes too: those behind it wait the longer.
//!
//! Levels are billionths of an I/O or of a byte, so that a rate per second
//! times nanoseconds is exact: nothing is rounded, and nothing adds up.

use super::spec::{Direction, Limits, Rate, Scope, Unit, ios};
use seekway_core::units::{Instant, Nanos};
use std::num::NonZeroU64;

const NANOS_PER_S: u128 = 1_000_000_000;
/// Burst that passes at once after a quiet time, as time at the rate: a tenth of a second, as in
/// QEMU. A guest that sends its requests in batches, and a device whose speed varies, reach the
/// limit only with some room.
const ROOM_NS: u128 = 100_000_000;

/// A bucket that leaks at one rate.
#[derive(Clone, Debug)]
struct Leak {
    /// Units per second; billionths per nanosecond.
    per_s: u64,
    /// A request passes up to this level, in billionths.
    size: u128,
    /// Level at `leaked`.
    level: u128,
    leaked: Instant,
}

impl Leak {
    fn new(now: Instant, per_s: u64, size: u128) -> Leak {
        Leak { per_s, size, level: 0, leaked: now }
    }
    #[inline]
    fn leak(&mut self, now: Instant) {
        if now > self.leaked {
            let leaked = u128::from(self.per_s) * u128::from((now - self.leaked).get());
            self.level = self.level.saturating_sub(leaked);
            self.leaked = now;
        }
    }
    fn add(&mut self, billionths: u128) {
        self.level = self.level.saturating_add(billionths);
    }
    fn is_ready(&self) -> bool {
        self.level <= self.size
    }
    /// Time until it is ready, rounded up to a nanosecond.
    fn wait(&self) -> Nanos {
        let over = self.level.saturating_sub(self.size);
        // A division of 64 bits is several times faster than one of 128.
        Nanos::new(match u64::try_from(over) {
            Ok(over) => over.div_ceil(self.per_s),
            Err(_) => {
                let ns = over.div_ceil(u128::from(self.per_s));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        })
    }
    /// Be as full, in proportion, as `old` is, but in no debt.
    fn resume(&mut self, old: &Leak) {
        let used = old.level.min(old.size);
        // Sizes are below 2^80 (RATE_MAX billionths): a product with 2^20 fits.
        let share = (used << 20) / old.size.max(1);
        self.level = (self.size * share) >> 20;
    }
}

/// The state of one rate: a cache line where it has no burst.
#[derive(Clone, Debug)]
struct Bucket {
    /// The rate in the long run. Its size is what a burst adds to it.
    base: Leak,
    /// The rate of the burst.
    peak: Option<Box<Leak>>,
    unit: Unit,
    scope: Scope,
}

impl Bucket {
    fn new(now: Instant, unit: Unit, scope: Scope, rate: Rate) -> Bucket {
        let room = |per_s: u64| u128::from(per_s) * ROOM_NS;
        let mut size = room(rate.per_s);
        let mut peak = None;
        if let Some(burst) = rate.burst {
            // While requests come at the burst's rate, the bucket leaks too: with
            // this size it is full when the burst has lasted for its length.
            let above = u128::from(burst.per_s.saturating_sub(rate.per_s));
            size = size.max(above * u128::from(burst.length.get()));
            peak = Some(Box::new(Leak::new(now, burst.per_s, room(burst.per_s))));
        }
        Bucket { base: Leak::new(now, rate.per_s, size), peak, unit, scope }
    }

    #[inline]
    fn leak(&mut self, now: Instant) {
        self.base.leak(now);
        if let Some(peak) = &mut self.peak {
            peak.leak(now);
        }
    }

    fn is_ready(&self) -> bool {
        self.base.is_ready() && self.peak.as_ref().is_none_or(|peak| peak.is_ready())
    }

    fn wait(&self) -> Nanos {
        self.base.wait().max(self.peak.as_ref().map_or(Nanos::ZERO, |peak| peak.wait()))
    }

    fn resume(&mut self, old: &Bucket) {
        self.base.resume(&old.base);
        if let (Some(peak), Some(old)) = (&mut self.peak, &old.peak) {
            peak.resume(old);
        }
    }
}

/// The buckets of one disk or of one group.
#[derive(Clone, Default, Debug)]
pub(super) struct Meter {
    /// For each rate that there is.
    buckets: Vec<Bucket>,
    io_size_bytes: Option<NonZeroU64>,
    /// The limits from which the buckets were made. Apart, because no request looks at them.
    limits: Box<Limits>,
}

impl Meter {
    /// Is no rate limited, so that there is no bucket?
    pub(super) fn is_none(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Take other limits. A rate that was there before goes on as full as it
    /// was, so that a change gives nobody a new burst; one that was in debt is
    /// in none, so that a new rate holds from now on.
    pub(super) fn set(&mut self, now: Instant, limits: &Limits) {
        if *self.limits == *limits {
            return;
        }
        let mut old = std::mem::take(&mut self.buckets);
        old.iter_mut().for_each(|b| b.leak(now));
        for unit in Unit::ALL {
            for scope in Scope::ALL {
                let Some(rate) = limits.rate(unit, scope) else { continue };
                let mut bucket = Bucket::new(now, unit, scope, rate);
                if let Some(old) = old.iter().find(|b| (b.unit, b.scope) == (unit, scope)) {
                    bucket.resume(old);
                }
                self.buckets.push(bucket);
            }
        }
        self.io_size_bytes = limits.io_size_bytes;
        *self.limits = *limits;
    }

    /// May a request in this direction pass now?
    #[inline]
    pub(super) fn is_ready(&mut self, now: Instant, direction: Direction) -> bool {
        self.buckets.iter_mut().filter(|b| b.scope.counts(direction)).all(|bucket| {
            bucket.leak(now);
            bucket.is_ready()
        })
    }

    /// When a request in this direction may pass, if nothing passes before.
    pub(super) fn ready_at(&mut self, now: Instant, direction: Direction) -> Instant {
        let counting = self.buckets.iter_mut().filter(|b| b.scope.counts(direction));
        let wait = counting.map(|bucket| {
            bucket.leak(now);
            bucket.wait()
        });
        now + wait.max().unwrap_or(Nanos::ZERO)
    }

    /// Count a request that passes.
    #[inline]
    pub(super) fn charge(&mut self, now: Instant, direction: Direction, bytes: u64) {
        let ios = ios(self.io_size_bytes, bytes);
        for bucket in self.buckets.iter_mut().filter(|b| b.scope.counts(direction)) {
            bucket.leak(now);
            let units = match bucket.unit {
                Unit::Iops => ios,
                Unit::Bytes => bytes,
            };
            let billionths = u128::from(units) * NANOS_PER_S;
            bucket.base.add(billionths);
            if let Some(peak) = &mut bucket.peak {
                peak.add(billionths);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Direction = Direction::Read;

    fn meter(text: &str) -> Meter {
        let mut meter = Meter::default();
        meter.set(Instant::ZERO, &Limits::parse(text).unwrap());
        meter
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    #[test]
    fn a_tenth_of_a_second_passes_at_once() {
        let mut m = meter("iops=100");
        for _ in 0..11 {
            assert!(m.is_ready(at(0), READ));
            m.charge(at(0), READ, 4096);
        }
        assert!(!m.is_ready(at(0), READ));
        assert_eq!(m.ready_at(at(0), READ), at(10));
        assert!(!m.is_ready(Instant::from_nanos(9_999_999), READ) && m.is_ready(at(10), READ));
    }

    #[test]
    fn what_is_larger_than_the_bucket_passes_and_is_paid_back() {
        let mut m = meter("bandwidth=1000");
        assert!(m.is_ready(at(0), READ));
        m.charge(at(0), READ, 10_100);
        assert_eq!(m.ready_at(at(0), READ), at(10_000));
    }

    #[test]
    fn waits_are_exact_where_rates_do_not_divide_a_second() {
        let mut m = meter("iops=7");
        let (mut now, mut passed) = (at(0), 0);
        while now < at(1_000_000) {
            m.charge(now, READ, 0);
            passed += 1;
            now = m.ready_at(now, READ);
        }
        // A thousand seconds at 7 per second, and the 0.7 that may pass at once.
        assert_eq!(passed, 7_001);
    }

    #[test]
    fn directions_count_apart_and_sizes_in_parts() {
        let mut m = meter("read_iops=1,bandwidth=1TiB,iops_size=4KiB");
        m.charge(at(0), READ, 8193);
        assert!(m.is_ready(at(0), Direction::Write));
        assert_eq!(m.ready_at(at(0), READ), at(2_900));
    }

    #[test]
    fn a_change_keeps_the_share_that_was_used() {
        let mut m = meter("iops=100");
        m.charge(at(0), READ, 0);
        for _ in 0..100 {
            m.charge(at(0), READ, 0); // deep in debt
        }
        m.set(at(0), &Limits::parse("iops=10").unwrap());
        assert!(m.is_ready(at(0), READ)); // full, but in no debt
        m.charge(at(0), READ, 0);
        assert_eq!(m.ready_at(at(0), READ), at(100));
        // A quiet disk has its whole burst at once.
        let mut m = meter("iops=100");
        m.set(at(0), &Limits::parse("iops=100,iops_burst=1000,burst_length=60s").unwrap());
        assert_eq!((m.buckets[0].base.level, m.buckets[0].peak.as_ref().unwrap().level), (0, 0));
        m.set(at(0), &Limits::default());
        assert!(m.is_none());
    }

    #[test]
    fn no_number_is_too_large() {
        let mut m = meter("bandwidth=1000000000000000,iops=1,iops_size=1");
        for _ in 0..1000 {
            m.charge(at(0), READ, u64::MAX);
        }
        assert_eq!(m.ready_at(at(0), READ), Instant::from_nanos(u64::MAX));
        assert!(!m.is_ready(Instant::from_nanos(u64::MAX), READ));
        m.set(at(0), &Limits::parse("bandwidth=1").unwrap());
        assert!(m.is_ready(at(0), READ));
    }
}
