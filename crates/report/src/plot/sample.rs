//! A bounded sample of an unbounded stream of points, for a scatter of a long run.

/// Keeps at most `points_max` points of a stream of any length, chosen by hash and so repeatable.
///
/// Points are chosen by a hash of their index in the stream rather than every n-th, because streams
/// of several processes alternate: every second point might be all of one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct PointSample {
    points_max: usize,
    seen: u64,
    /// Leading zero bits of a kept point's hash.
    halvings: u32,
    kept: Vec<(u64, (f64, f64))>,
}

impl PointSample {
    /// An empty sample of at most `points_max` points (at least two).
    pub fn new(points_max: usize) -> PointSample {
        PointSample { points_max: points_max.max(2), seen: 0, halvings: 0, kept: Vec::new() }
    }

    /// Offers the stream's next point; its number decides whether it is kept.
    pub fn push(&mut self, x: f64, y: f64) {
        let hash = mixed(self.seen);
        self.seen += 1;
        if hash.leading_zeros() < self.halvings {
            return;
        }
        self.kept.push((hash, (x, y)));
        while self.kept.len() > self.points_max {
            self.halvings += 1;
            let halvings = self.halvings;
            self.kept.retain(|(hash, _)| hash.leading_zeros() >= halvings);
        }
    }

    /// Number of points that each kept point stands for: 1 when none was dropped.
    pub fn one_in(&self) -> u64 {
        1 << self.halvings.min(63)
    }

    /// The points that were kept, in the stream's order.
    pub fn points(&self) -> Vec<(f64, f64)> {
        self.kept.iter().map(|(_, point)| *point).collect()
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014): neighbours have unlike hashes.
fn mixed(index: u64) -> u64 {
    let z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_all_of_few_and_some_of_many() {
        let sample = |n: u32| {
            let mut sample = PointSample::new(1000);
            (0..n).for_each(|i| sample.push(f64::from(i), f64::from(i % 2)));
            sample
        };
        let few = sample(1000);
        assert_eq!((few.points().len(), few.one_in()), (1000, 1));
        let many = sample(1_000_000);
        let points = many.points();
        assert!((400..=1000).contains(&points.len()), "{}", points.len());
        assert_eq!(many.seen, 1_000_000);
        assert!(points.windows(2).all(|w| w[0].0 < w[1].0));
        let odd = points.iter().filter(|p| p.1 == 1.0).count() as f64 / points.len() as f64;
        assert!((0.4..0.6).contains(&odd), "both of two alternating streams: {odd}");
        assert_eq!(many, sample(1_000_000));
    }
}
