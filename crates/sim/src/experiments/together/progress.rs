//! Progress: what a VM has over what it has on its private disk.

use super::super::judge::{mean, short};
use super::super::results::over;
use super::super::{Options, Results};
use super::load::{Disk, Mix, VMS, cell, cell_alone, cell_private, cell_whole};
use super::measure::{p99_ms, rate, total};
use super::ways::{Parts, contestants};
use crate::metrics::RunResult;
use crate::progress::{geometric_mean, progress, reaches};

/// The quantiles 0.975 of Student's t by degrees of freedom, from 1; beyond them the last.
const STUDENT: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// A mix on a disk, and its runs.
pub(super) struct Scene<'a> {
    pub options: &'a Options,
    pub results: &'a Results,
    pub disk: &'static Disk,
    pub mix: Mix,
}

impl Scene<'_> {
    pub fn name(&self) -> String {
        self.mix.scene(self.disk)
    }

    pub fn names(&self) -> [&'static str; VMS] {
        self.mix.names()
    }

    /// A figure with these parts, by seed.
    pub fn each(&self, parts: Parts, figure: impl Fn(&RunResult) -> f64) -> Vec<f64> {
        let cell = cell(self.disk, self.mix, parts, self.options);
        self.results.each_of(&cell, figure)
    }

    /// A figure of a VM on its private disk, by seed.
    pub fn private(&self, vm: usize, figure: fn(&RunResult, usize) -> f64) -> Vec<f64> {
        let cell = cell_private(self.disk, self.mix, vm, self.options);
        self.results.each_of(&cell, |r| figure(r, 0))
    }

    /// Figures of a VM with the whole host, by seed.
    pub fn whole<T>(&self, vm: usize, figures: fn(&RunResult) -> T) -> Vec<T> {
        let cell = cell_whole(self.disk, self.mix, vm, self.options);
        self.results.each_of(&cell, figures)
    }

    /// A VM's MiB/s over those on its private disk, by seed. At least 1 where it has a rate
    /// and reaches it.
    pub fn progress(&self, parts: Parts, vm: usize) -> Vec<f64> {
        let ours = self.each(parts, |r| rate(r, vm));
        let asked: Vec<f64> = if self.mix.is_paced(vm) {
            let alone = cell_alone(self.disk, self.mix, vm, self.options);
            self.results.each_of(&alone, |r| rate(r, 0))
        } else {
            Vec::new()
        };
        let private = self.private(vm, rate).into_iter().enumerate();
        let all = ours.iter().zip(private);
        let reached = |ours, n: usize| asked.get(n).is_some_and(|asked| reaches(ours, *asked));
        // Rates are never 0.
        all.filter_map(|(ours, (n, private))| progress(*ours, private, reached(*ours, n))).collect()
    }

    /// A VM's p99 over that on its private disk, by seed.
    pub fn p99(&self, parts: Parts, vm: usize) -> Vec<f64> {
        over(&self.each(parts, |r| p99_ms(r, vm)), &self.private(vm, p99_ms))
    }

    /// The VM with the least progress in the mean over the seeds, and its progress.
    pub fn worst(&self, parts: Parts) -> (usize, Vec<f64>) {
        let all = (0..VMS).map(|vm| (vm, self.progress(parts, vm)));
        let least = all.min_by(|a, b| mean(&a.1).total_cmp(&mean(&b.1)));
        least.expect("there are VMs")
    }

    /// The VM whose p99 is longest beside that on its private disk, and the ratio.
    pub fn longest(&self, parts: Parts) -> (usize, Vec<f64>) {
        let all = (0..VMS).map(|vm| (vm, self.p99(parts, vm)));
        let most = all.max_by(|a, b| mean(&a.1).total_cmp(&mean(&b.1)));
        most.expect("there are VMs")
    }

    /// The geometric mean of progress over the VMs without a rate, by seed.
    pub fn geometric(&self, parts: Parts) -> Vec<f64> {
        let vms: Vec<usize> = (0..VMS).filter(|&vm| !self.mix.is_paced(vm)).collect();
        let all: Vec<Vec<f64>> = vms.iter().map(|vm| self.progress(parts, *vm)).collect();
        let seeds = all.iter().map(Vec::len).min().unwrap_or(0);
        let mean = |seed: usize| geometric_mean(all.iter().map(|vm| vm[seed]));
        (0..seeds).filter_map(mean).collect()
    }

    /// MiB/s of all VMs over those under the policy that moves most, by seed.
    pub fn moved(&self, parts: Parts) -> Vec<f64> {
        let all = contestants().map(|(_, parts)| self.each(parts, total));
        let most = all.max_by(|a, b| mean(a).total_cmp(&mean(b)));
        over(&self.each(parts, total), &most.expect("there are policies"))
    }

    /// The policy that is first by a figure with everything else on, and its figure.
    pub fn first(&self, figure: impl Fn(Parts) -> Vec<f64>) -> (&'static str, f64) {
        let all = contestants().map(|(name, parts)| (name, mean(&figure(parts))));
        all.max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are policies")
    }

    /// The largest half-width of the yardstick's 95 % interval over its mean, and whose it is,
    /// among VMs without a rate; none with one seed.
    pub fn spread(&self) -> Option<(usize, f64)> {
        let vms = (0..VMS).filter(|&vm| !self.mix.is_paced(vm));
        let spread = |vm: usize| {
            let values = self.private(vm, rate);
            Some((vm, half_width(&values)? / mean(&values)))
        };
        vms.filter_map(spread).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Half the width of the 95 % interval of the mean, by Student's t; none for fewer than two.
fn half_width(values: &[f64]) -> Option<f64> {
    let freedom = values.len().checked_sub(1).filter(|&n| n > 0)?;
    let middle = mean(values);
    let squares: f64 = values.iter().map(|v| (v - middle).powi(2)).sum();
    let error = (squares / freedom as f64 / values.len() as f64).sqrt();
    Some(STUDENT[freedom.min(STUDENT.len()) - 1] * error)
}

/// The 95 % interval of the mean in words.
pub(super) fn interval(values: &[f64]) -> String {
    half_width(values).map_or("one seed".into(), |half| {
        format!("± {} at 95 %, {} seeds", short(half), values.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 1, 2, 3, 4, 5 the standard error is √0.5, and t(4) is 2.776.
    #[test]
    fn the_interval_is_students() {
        let half = half_width(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("five values");
        assert!((half - 2.776 * 0.5_f64.sqrt()).abs() < 1e-9, "{half}");
        assert_eq!(half_width(&[1.0]), None);
        assert_eq!(half_width(&[]), None);
    }
}
