//! Random numbers for the generators: one seed for an experiment, split by
//! position (VM, application, thread), so that adding a VM does not change
//! what the others do. The streams are part of the results: they do not
//! depend on the version of a distribution crate.

use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use seekway_core::mix::{STEP, mix64};
use seekway_core::units::{Instant, Nanos};

/// A seeded stream (xoshiro256++).
#[derive(Clone, Debug)]
pub struct Rng(rand_xoshiro::Xoshiro256PlusPlus);

/// The seed of child number `child` of `seed` (the finaliser of SplitMix64).
pub fn split(seed: u64, child: u64) -> u64 {
    mix64(seed.wrapping_add(child.wrapping_add(1).wrapping_mul(STEP)))
}

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(seed))
    }
    /// The next 64 bits of xoshiro256++.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }
    /// Uniform in `0..n`, by multiplication (Lemire) without the rejection step:
    /// the bias is below n / 2^64. Zero for `n` = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }
    /// Uniform in [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// True in `percent` of 100 calls.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    /// Put `items` into random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Zipf's law over ranks `0..n`: P(k) ∝ 1 / (k+1)^s, by rejection-inversion
/// (Hörmann and Derflinger 1996), constant time and memory for any `n`.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    n: f64,
    s: f64,
    h_first: f64,
    h_last: f64,
    shortcut: f64,
}

impl Zipf {
    /// `n` at least 1 (0 counts as 1); `s` > 0.
    pub fn new(n: u64, s: f64) -> Self {
        let n = n.max(1) as f64;
        let mut z = Zipf { n, s, h_first: 0.0, h_last: 0.0, shortcut: 0.0 };
        z.h_first = z.integral(1.5) - 1.0;
        z.h_last = z.integral(n + 0.5);
        z.shortcut = 2.0 - z.inverse(z.integral(2.5) - 2f64.powf(-s));
        z
    }
    /// ∫ x^-s, up to a constant.
    fn integral(&self, x: f64) -> f64 {
        if (self.s - 1.0).abs() < 1e-9 {
            x.ln()
        } else {
            (x.powf(1.0 - self.s) - 1.0) / (1.0 - self.s)
        }
    }
    fn inverse(&self, y: f64) -> f64 {
        if (self.s - 1.0).abs() < 1e-9 {
            y.exp()
        } else {
            (1.0 + y * (1.0 - self.s)).powf(1.0 / (1.0 - self.s))
        }
    }
    /// A rank in `0..n`, 0 the most frequent.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.h_last + rng.unit() * (self.h_first - self.h_last);
            let x = self.inverse(u);
            let k = x.round().clamp(1.0, self.n);
            if k - x <= self.shortcut || u >= self.integral(k + 0.5) - k.powf(-self.s) {
                return k as u64 - 1;
            }
        }
    }
}

// Distributions that published loads are made of, by one uniform stream.

/// Pareto's law: P(X > x) = (scale / x)^shape for x ≥ scale.
pub fn pareto(rng: &mut Rng, shape: f64, scale: f64) -> f64 {
    scale * (1.0 - rng.unit()).powf(-1.0 / shape)
}

/// A standard normal number (Box and Muller; the second of the pair is not used).
pub fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

/// e^(mu + sigma · N).
pub fn lognormal(rng: &mut Rng, mu: f64, sigma: f64) -> f64 {
    (mu + sigma * normal(rng)).exp()
}

/// The gamma distribution with `shape` ≥ 1 and this mean (Marsaglia and Tsang 2000).
pub fn gamma(rng: &mut Rng, shape: f64, mean: f64) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - rng.unit();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v * mean / shape;
        }
    }
}

// Random orders too long to be kept in memory.

/// A random order of `0..n` that needs no memory: a Feistel network over the
/// next even number of bits, walked until it falls inside.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    key: u64,
}

impl Permutation {
    /// Of `0..n`; different keys make different orders.
    pub fn new(n: u64, key: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        Permutation { n, half_bits: bits.div_ceil(2).max(1), key }
    }

    /// The number at place `at` < n.
    pub fn at(&self, at: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let mut x = at;
        loop {
            let (mut left, mut right) = (x >> self.half_bits, x & mask);
            for round in 0..4 {
                let mixed = split(self.key ^ round, right) & mask;
                (left, right) = (right, left ^ mixed);
            }
            x = (left << self.half_bits) | right;
            if x < self.n {
                return x;
            }
        }
    }
}

// When the requests of an open loop are due: at even intervals or as a
// Poisson process, with what a slow disk has delayed made up for or dropped.

/// The arrivals of one stream of requests.
#[derive(Clone, Debug)]
pub struct Pace {
    mean: Nanos,
    exponential: bool,
    drops: bool,
    due: Option<Instant>,
}

impl Pace {
    /// `per_second` requests at even intervals; late ones are made up for.
    /// `None` for zero: no pace is kept.
    pub fn even(per_second: u64) -> Option<Pace> {
        let mean = 1_000_000_000u64.checked_div(per_second).map(Nanos::new)?;
        Some(Pace { mean, exponential: false, drops: false, due: None })
    }
    /// Exponential intervals of the same mean instead of even ones.
    pub fn exponential(self, exponential: bool) -> Pace {
        Pace { exponential, ..self }
    }
    /// Requests that come while nobody can take them are lost.
    pub fn dropping(self, drops: bool) -> Pace {
        Pace { drops, ..self }
    }

    /// Take the next arrival: how long after `now` it is due, zero for a late
    /// one. The first is due at once.
    pub fn wait(&mut self, now: Instant, rng: &mut Rng) -> Nanos {
        let mut due = self.due.unwrap_or(now);
        while self.drops && due < now {
            due = due + self.interval(rng);
        }
        self.due = Some(due + self.interval(rng));
        due.since(now)
    }

    fn interval(&self, rng: &mut Rng) -> Nanos {
        if !self.exponential {
            return self.mean;
        }
        let span = -(1.0 - rng.unit()).ln() * self.mean.get() as f64;
        Nanos::new((span as u64).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_fixed_and_children_differ() {
        let mut a = Rng::new(7);
        let mut b = Rng::new(7);
        assert!((0..100).all(|_| a.bits() == b.bits()));
        assert_ne!(split(7, 0), split(7, 1));
        assert!((0..1000).all(|_| a.below(10) < 10));
    }

    #[test]
    fn zipf_has_its_frequencies() {
        let (mut rng, z) = (Rng::new(1), Zipf::new(1000, 1.2));
        let mut count = [0u32; 1000];
        for _ in 0..200_000 {
            count[z.sample(&mut rng) as usize] += 1;
        }
        let harmonic: f64 = (1..=1000).map(|k| f64::from(k).powf(-1.2)).sum();
        for k in [1u32, 2, 5] {
            let expected = 200_000.0 * f64::from(k).powf(-1.2) / harmonic;
            let got = f64::from(count[k as usize - 1]);
            assert!((got / expected - 1.0).abs() < 0.05, "rank {k}: {got} for {expected}");
        }
    }
}

#[cfg(test)]
mod dist_tests {
    use super::*;

    const N: usize = 200_000;

    fn sorted(draw: impl Fn(&mut Rng) -> f64) -> Vec<f64> {
        let mut rng = Rng::new(11);
        let mut all: Vec<f64> = (0..N).map(|_| draw(&mut rng)).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// The share of values below the quantile is the quantile's, to five
    /// standard deviations.
    fn check(all: &[f64], quantiles: &[(f64, f64)]) {
        for (share, x) in quantiles {
            let below = all.partition_point(|v| v < x) as f64 / N as f64;
            let sd = (share * (1.0 - share) / N as f64).sqrt();
            assert!((below - share).abs() < 5.0 * sd, "{below} below {x}, not {share} (seed 11)");
        }
    }

    #[test]
    fn pareto_has_its_quantiles_and_mean() {
        let all = sorted(|rng| pareto(rng, 2.43, 1.0));
        let at = |q: f64| (q, (1.0 - q).powf(-1.0 / 2.43));
        check(&all, &[at(0.1), at(0.5), at(0.9), at(0.99), at(0.999)]);
        assert!(all[0] >= 1.0);
        // The sleeps of SURGE have no variance: their mean is not checked.
        let mean = all.iter().sum::<f64>() / N as f64;
        assert!((mean / (2.43 / 1.43) - 1.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn lognormal_has_its_quantiles() {
        let all = sorted(|rng| lognormal(rng, 9.357, 1.318));
        // Quantiles of the normal distribution.
        let at = |q: f64, z: f64| (q, (9.357 + 1.318 * z).exp());
        check(&all, &[at(0.1, -1.281_552), at(0.5, 0.0), at(0.9, 1.281_552), at(0.975, 1.959_964)]);
    }

    #[test]
    fn gamma_has_its_mean_and_variance() {
        let all = sorted(|rng| gamma(rng, 1.5, 128.0));
        let mean = all.iter().sum::<f64>() / N as f64;
        let variance = all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / N as f64;
        assert!((mean / 128.0 - 1.0).abs() < 0.01, "{mean}");
        assert!((variance / (128.0 * 128.0 / 1.5) - 1.0).abs() < 0.03, "{variance}");
        // Gamma(3/2) is half of χ² with three degrees of freedom: its median
        // is 2.365974, its 95 % quantile 7.814728.
        check(&all, &[(0.5, 2.365_974 / 3.0 * 128.0), (0.95, 7.814_728 / 3.0 * 128.0)]);
    }
}

#[cfg(test)]
mod permutation_tests {
    use super::*;

    #[test]
    fn a_permutation_visits_each_once() {
        for n in [1u64, 2, 3, 100, 1024, 5000] {
            let order = Permutation::new(n, 99);
            let mut seen: Vec<u64> = (0..n).map(|i| order.at(i)).collect();
            let shuffled = seen.clone();
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
            assert!(n < 100 || shuffled != seen);
        }
    }
}

#[cfg(test)]
mod pace_tests {
    use super::*;

    /// Arrivals of two seconds when each request takes `busy`, one at a time.
    fn arrivals(mut pace: Pace, busy: Nanos) -> usize {
        let (mut now, mut rng, mut count) = (Instant::ZERO, Rng::new(5), 0);
        loop {
            now = now + pace.wait(now, &mut rng);
            if now >= Instant::ZERO + Nanos::from_secs(2) {
                return count;
            }
            count += 1;
            now = now + busy;
        }
    }

    #[test]
    fn the_rate_is_kept_and_what_is_late_made_up_for_or_dropped() {
        let pace = || Pace::even(1000).unwrap();
        assert!(Pace::even(0).is_none());
        assert_eq!(arrivals(pace(), Nanos::from_micros(10)), 2000);
        assert_eq!(arrivals(pace().dropping(true), Nanos::from_micros(10)), 2000);
        let poisson = arrivals(pace().exponential(true), Nanos::from_micros(10));
        assert!((1900..2100).contains(&poisson), "{poisson}"); // sd 45
        // A server of 1.5 ms is always late: with a backlog it never rests, ...
        assert_eq!(arrivals(pace(), Nanos::from_micros(1500)), 1334);
        // ... and without one it waits for the next even millisecond.
        assert_eq!(arrivals(pace().dropping(true), Nanos::from_micros(1500)), 1000);
    }
}
