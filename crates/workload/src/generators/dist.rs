//! Distributions that published loads are made of, by one uniform stream.

use crate::generators::rng::Rng;

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

#[cfg(test)]
mod tests {
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
