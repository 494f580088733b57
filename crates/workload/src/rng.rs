//! Random numbers for the generators: one seed for an experiment, split by
//! position (VM, application, thread), so that adding a VM does not change
//! what the others do. The streams are part of the results: they do not
//! depend on the version of a distribution crate.

use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use seekway_core::mix::{STEP, mix64};

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
