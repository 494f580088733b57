//! The zones with a density of at least 1, counted and summed without a list
//! of them (Definition 3).
//!
//! A density is known to fall below 1 in a certain window unless a request
//! comes, so each zone is filed under that window; leaving the mean is then
//! one subtraction for all that leave together. In its own bucket a density is
//! expressed as of the bucket's window, where it lies in `[1/λ, 1)`: values of
//! one magnitude, kept as integers, so that adding and taking away a million
//! of them leaves no rounding behind.

use std::collections::VecDeque;

/// One in a bucket's fixed-point sum: 2^20 zones below it fit 64 bits.
const ONE: f64 = (1_u64 << 43) as f64;

/// λ^-k for every k that can matter.
#[derive(Debug)]
pub(super) struct Decay {
    powers: Vec<f64>,
    lambda: f64,
}

impl Decay {
    /// The powers of `lambda`, which must exceed 1.
    pub fn new(lambda: f64) -> Self {
        assert!(lambda > 1.0, "densities must decay");
        // The largest density that rounds correctly, down to the smallest kept.
        const LEAST: f64 = 1e-12 / (1_u64 << 53) as f64;
        let power = |p: &f64| (*p >= LEAST).then_some(p / lambda);
        Decay { powers: std::iter::successors(Some(1.0), power).collect(), lambda }
    }
    /// A density `age` windows later.
    #[inline]
    pub fn faded(&self, density: f64, age: u64) -> f64 {
        self.powers.get(age as usize).map_or(0.0, |power| density * power)
    }
    /// The number of windows after which a density of at least 1 is below 1.
    #[inline]
    fn lifetime(&self, density: f64) -> usize {
        let mut k = 1;
        // Densities are small: the first steps are the common ones.
        while k < 6 && density * self.powers[k] >= 1.0 {
            k += 1;
        }
        if k < 6 {
            return k;
        }
        self.powers.partition_point(|power| density * power >= 1.0)
    }
    /// The memory it occupies.
    pub fn bytes(&self) -> usize {
        self.powers.capacity() * size_of::<f64>()
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    zones: u32,
    /// Σ D(Z, the bucket's window), fixed point.
    sum: u64,
}

/// Count and sum of the densities that are at least 1.
#[derive(Debug, Default)]
pub(super) struct Members {
    window: u64,
    /// Those that leave in `window + 1`, `window + 2`, …
    leaving: VecDeque<Bucket>,
    zones: u32,
    sum: f64,
}

impl Members {
    /// Number of zones in the mean.
    pub fn zones(&self) -> usize {
        self.zones as usize
    }
    /// δ: the mean of their densities.
    #[inline]
    pub fn mean(&self) -> Option<f64> {
        (self.zones > 0).then(|| self.sum / f64::from(self.zones))
    }
    /// The memory it occupies beside itself.
    pub fn bytes(&self) -> usize {
        self.leaving.capacity() * size_of::<Bucket>()
    }

    /// A later window begins. Costs a step for each bucket in use: the
    /// logarithm of the largest density.
    pub fn advance(&mut self, window: u64, decay: &Decay) {
        let passed = window - self.window;
        self.window = window;
        for _ in 0..passed.min(self.leaving.len() as u64) {
            self.zones -= self.leaving.pop_front().map_or(0, |b| b.zones);
        }
        let later = |sum, bucket: &Bucket| (sum + bucket.sum as f64 / ONE) * decay.lambda;
        self.sum = self.leaving.iter().rev().fold(0.0, later);
    }

    /// A zone gets the density `density ≥ 1` in this window.
    #[inline]
    pub fn add(&mut self, density: f64, decay: &Decay) {
        let lifetime = decay.lifetime(density);
        if self.leaving.len() < lifetime {
            self.leaving.resize(lifetime, Bucket::default());
        }
        let bucket = &mut self.leaving[lifetime - 1];
        bucket.zones += 1;
        bucket.sum += fixed(decay.faded(density, lifetime as u64));
        self.zones += 1;
        self.sum += density;
    }

    /// Take out a zone that got `density` in `window`; nothing happens when it
    /// has left by now.
    #[inline]
    pub fn remove(&mut self, density: f64, window: u64, decay: &Decay) {
        let (lifetime, age) = (decay.lifetime(density) as u64, self.window - window);
        if age >= lifetime {
            return;
        }
        let bucket = &mut self.leaving[(lifetime - age - 1) as usize];
        bucket.zones -= 1;
        bucket.sum -= fixed(decay.faded(density, lifetime));
        self.zones -= 1;
        self.sum = if self.zones == 0 { 0.0 } else { self.sum - decay.faded(density, age) };
    }
}

fn fixed(density: f64) -> u64 {
    (density * ONE) as u64
}
