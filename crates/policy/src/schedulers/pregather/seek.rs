//! SeekTime: the device's profile where it has a curve, else what completions
//! have taught.

use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Lba, Nanos, Sectors};

/// Buckets of distance: 0, 1, 2–3, 4–7, …
const BUCKETS: usize = 65;

/// Service time against distance, learnt on line: a moving average (7/8) for
/// each power of two.
#[derive(Debug)]
pub(super) struct Seek {
    /// The average, by the number of bits of the distance.
    learnt: [Option<Nanos>; BUCKETS],
    /// Where the last completed request ended.
    stood: Option<Lba>,
}

impl Default for Seek {
    fn default() -> Self {
        Seek { learnt: [None; BUCKETS], stood: None }
    }
}

impl Seek {
    /// A request that starts at `start` and ends at `end` took `service`.
    /// Requests that rode along in a command take none and teach none.
    pub fn learn(&mut self, start: Lba, end: Lba, service: Nanos) {
        let stood = self.stood.replace(end);
        let (Some(stood), true) = (stood, service > Nanos::ZERO) else { return };
        let bucket = &mut self.learnt[bits(stood.distance(start))];
        *bucket = Some(bucket.map_or(service, |mean| average(mean, service)));
    }

    /// Time to position the head `distance` away; `None` while nothing is known.
    pub fn time(
        &self,
        profile: &DeviceProfile,
        distance: Sectors,
        half_rotation: bool,
    ) -> Option<Nanos> {
        if distance == Sectors::ZERO {
            return Some(Nanos::ZERO);
        }
        let time = profile.positioning(distance).or_else(|| self.estimate(distance))?;
        let turn = profile.rotation.unwrap_or(Nanos::ZERO);
        Some(if half_rotation { time } else { time.saturating_sub(Nanos::new(turn.get() / 2)) })
    }

    /// Estimates what a distance adds to the service of a request at distance zero. Never falls
    /// with distance; straight between the middles of two buckets on a logarithmic scale.
    fn estimate(&self, distance: Sectors) -> Option<Nanos> {
        let (mut below, mut above) = (None, None);
        let bucket = bits(distance);
        let mut highest = Nanos::ZERO;
        for (at, mean) in self.learnt.iter().enumerate().skip(1) {
            let Some(mean) = *mean else { continue };
            highest = highest.max(mean);
            if at <= bucket {
                below = Some((at, highest));
            } else {
                above = Some((at, highest));
                break;
            }
        }
        let total = match (below, above) {
            (Some((b0, t0)), Some((b1, t1))) => {
                // In 256ths of a bucket: b0 stands for 2^(b0-1).
                let (span, into) =
                    (((b1 - b0) as u64) << 8, log2(distance) - ((b0 as u64 - 1) << 8));
                t0 + t1.saturating_sub(t0).scaled(into.min(span), span)
            }
            (known, other) => known.or(other)?.1,
        };
        Some(total.saturating_sub(self.learnt[0].unwrap_or(Nanos::ZERO)))
    }
}

/// The moving average with weight 7/8.
fn average(mean: Nanos, sample: Nanos) -> Nanos {
    mean.scaled(7, 8) + Nanos::new(sample.get() / 8)
}

/// The number of bits of a distance: 0 for 0, 1 for 1, 2 for 2–3.
fn bits(distance: Sectors) -> usize {
    (u64::BITS - distance.get().leading_zeros()) as usize
}

/// log2 in 256ths, linear between powers of two. Of a distance above zero.
fn log2(distance: Sectors) -> u64 {
    let d = distance.get();
    let whole = d.ilog2();
    let fraction = (u128::from(d - (1 << whole)) << 8) >> whole;
    (u64::from(whole) << 8) + fraction as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learns_a_curve_that_never_falls() {
        let mut seek = Seek::default();
        let unknown = DeviceProfile::unknown(Sectors::new(1 << 40), true);
        let time = |s: &Seek, d| s.time(&unknown, Sectors::new(d), true);
        assert_eq!((time(&seek, 0), time(&seek, 9)), (Some(Nanos::ZERO), None));
        let mut at = Lba::ZERO;
        for (distance, ms) in [(0, 1), (0, 1), (1_000, 9), (1_000_000, 7), (1 << 30, 17)] {
            let start = at + Sectors::new(distance);
            at = start + Sectors::new(8);
            seek.learn(start, at, Nanos::from_millis(ms));
            seek.learn(at, at + Sectors::new(8), Nanos::ZERO);
            at = at + Sectors::new(8);
        }
        let times: Vec<u64> = (0..50).map(|b| time(&seek, 1 << b).unwrap().get()).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!((times[0], times[49]), (8_000_000, 16_000_000));
        let without = seek.time(&unknown, Sectors::new(1), false).unwrap();
        assert_eq!(without.get(), 8_000_000 - 8_333_333 / 2);
    }
}
