//! Seek time against distance in cylinders: one representation, a piecewise
//! linear curve, whether it was measured or comes from a formula.

use super::divisor::Divisor;

/// Time to move the arm, as knots over the distance. Distance 0 takes no time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeekCurve {
    /// (cylinders, ns), strictly ascending in cylinders, which start at 1 or above.
    knots: Vec<(u32, u64)>,
    /// For each knot, cylinders since the one before (1 for the first).
    widths: Vec<Divisor>,
    /// Knots below `bucket << shift`: the start of the search.
    below: Vec<u16>,
    shift: u32,
}

/// Longest distance of a curve, in cylinders.
pub const DISTANCE_MAX: u32 = 1 << 24;

/// Most points of a curve.
pub const POINTS_MAX: usize = 10_000;

/// Pieces of equal width into which distances are divided to find their knots.
const BUCKETS: u32 = 1_024;

impl SeekCurve {
    /// From measured points (cylinders, ms), strictly ascending in cylinders,
    /// 1 to [`POINTS_MAX`] of them, the first at 1 or above; times at 0 or above. A measured curve need not
    /// rise everywhere. Beyond the ends the nearest point counts.
    ///
    /// # Errors
    /// The index of the first point that breaks these rules (0 for none at all).
    pub fn from_table(points_ms: &[(u32, f64)]) -> Result<SeekCurve, usize> {
        let mut previous = 0;
        for (index, &(cylinders, ms)) in points_ms.iter().enumerate() {
            if cylinders <= previous || cylinders > DISTANCE_MAX || !(0.0..=1e4).contains(&ms) {
                return Err(index);
            }
            previous = cylinders;
        }
        if points_ms.is_empty() || points_ms.len() > POINTS_MAX {
            return Err(points_ms.len().min(POINTS_MAX));
        }
        let knots: Vec<(u32, u64)> =
            points_ms.iter().map(|&(d, ms)| (d, (ms * 1e6).round() as u64)).collect();
        // The last knot falls into the last bucket at most.
        let shift = (previous / BUCKETS + 1).next_power_of_two().trailing_zeros();
        let below =
            |bucket: u32| knots.partition_point(|&(d, _): &(u32, u64)| d < bucket << shift) as u16;
        let below = (0..=BUCKETS).map(below).collect();
        let width = |pair: &[(u32, u64)]| Divisor::new(u64::from(pair[1].0 - pair[0].0));
        let widths = [Divisor::new(1)].into_iter().chain(knots.windows(2).map(width)).collect();
        Ok(SeekCurve { knots, widths, below, shift })
    }

    /// From `a + b·√d` up to `split` cylinders and `c + e·d` above, all in ms
    /// (Ruemmler and Wilkes, "An introduction to disk drive modeling", 1994).
    /// The knots lie so close that interpolation differs by less than 0.1 µs
    /// from a square root of a few ms. `cylinders` bounds the distance.
    ///
    /// # Errors
    /// As [`SeekCurve::from_table`], where the formula leaves its range.
    pub fn from_formula(
        (a, b): (f64, f64),
        split: u32,
        (c, e): (f64, f64),
        cylinders: u32,
    ) -> Result<SeekCurve, usize> {
        let last = cylinders.max(2) - 1;
        let mut points = Vec::new();
        let mut distance = 1;
        while distance <= last {
            let d = f64::from(distance);
            points.push((distance, if distance <= split { a + b * d.sqrt() } else { c + e * d }));
            if distance == last {
                break;
            }
            let next = distance + (distance / 32).max(1);
            // The two branches need not meet: a knot on either side of the split.
            let next = if distance < split { next.min(split) } else { next };
            let next = if distance == split { split + 1 } else { next };
            distance = next.min(last);
        }
        SeekCurve::from_table(&points)
    }

    /// Time in ns to move the arm `distance` cylinders.
    #[inline]
    pub fn time_ns(&self, distance: u32) -> u64 {
        if distance == 0 {
            return 0;
        }
        let bucket = (distance >> self.shift).min(BUCKETS - 1) as usize;
        let (low, high) = (self.below[bucket] as usize, self.below[bucket + 1] as usize);
        let right = low + self.knots[low..high].partition_point(|&(d, _)| d < distance);
        if right == 0 {
            return self.knots[0].1;
        }
        let Some(&(d1, t1)) = self.knots.get(right) else {
            return self.knots[right - 1].1;
        };
        let (d0, t0) = self.knots[right - 1];
        debug_assert!(d0 < distance && distance <= d1);
        // Measured curves fall here and there; rounded towards the left knot.
        let part = self.widths[right].div(t0.abs_diff(t1) * u64::from(distance - d0));
        if t1 >= t0 { t0 + part } else { t0 - part }
    }

    /// The knots: (cylinders, ns).
    pub fn knots(&self) -> &[(u32, u64)] {
        &self.knots
    }

    /// Mean over all pairs of `cylinders` equally likely cylinders, in ns, for reports.
    pub fn mean_ns(&self, cylinders: u32) -> f64 {
        let n = f64::from(cylinders);
        (1..cylinders).map(|d| 2.0 * (n - f64::from(d)) / (n * n) * self.time_ns(d) as f64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_interpolated_and_clamped() {
        let c = SeekCurve::from_table(&[(1, 1.0), (11, 2.0), (21, 1.5)]).unwrap();
        let at = |d| c.time_ns(d);
        assert_eq!(
            (at(0), at(1), at(6), at(11), at(16)),
            (0, 1_000_000, 1_500_000, 2_000_000, 1_750_000)
        );
        assert_eq!(at(999), 1_500_000);
        assert_eq!(SeekCurve::from_table(&[(5, 1.0), (5, 2.0)]), Err(1));
        assert_eq!(SeekCurve::from_table(&[(0, 1.0)]), Err(0));
        assert_eq!(SeekCurve::from_table(&[(u32::MAX, 1.0)]), Err(0));
        assert_eq!(SeekCurve::from_table(&[(1, f64::NAN)]), Err(0));
    }

    #[test]
    fn a_formula_is_followed_closely() {
        let c = SeekCurve::from_formula((0.5, 0.03), 20_000, (3.5, 0.000_06), 100_000).unwrap();
        for d in [1u32, 7, 100, 5_000, 19_999, 20_000, 20_001, 60_000, 99_999] {
            let x = f64::from(d);
            let exact = if d <= 20_000 { 0.5 + 0.03 * x.sqrt() } else { 3.5 + 0.000_06 * x };
            let error = (c.time_ns(d) as f64 / 1e6 - exact).abs();
            assert!(error < 1e-3, "{d}: off by {error} ms");
        }
    }
}
