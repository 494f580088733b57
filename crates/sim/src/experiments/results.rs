//! The results of an experiment's runs, and where they are found.

use super::Cell;
use super::judge::mean;
use crate::metrics::RunResult;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All results of an experiment, one a seed.
#[derive(Default)]
pub struct Results {
    runs: BTreeMap<Key, Vec<Arc<RunResult>>>,
}

/// Of which cell: names and specifications.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Key {
    pub(super) scenario: String,
    pub(super) policy: String,
    pub(super) prefetch: Option<String>,
    pub(super) vcpu: Option<String>,
}

impl Key {
    fn of(cell: &Cell) -> Key {
        let Cell { scenario, policy, prefetch, vcpu, .. } = cell.clone();
        Key { scenario: scenario.name.clone(), policy, prefetch, vcpu }
    }
}

/// A load that runs in several ways.
pub trait Ways {
    /// What differs: the policy, the prefetcher or the policy for vCPUs.
    type Way<'a>: Copy;
    /// The cell of one way.
    fn key(&self, way: Self::Way<'_>) -> Key;
}

/// A scenario by its name, under policies of the disk.
impl<S: AsRef<str> + ?Sized> Ways for S {
    type Way<'a> = &'a str;
    fn key(&self, policy: &str) -> Key {
        Key { scenario: self.as_ref().into(), policy: policy.into(), ..Key::default() }
    }
}

impl Results {
    /// Adds the runs of a cell, in the order of the seeds.
    pub fn insert(&mut self, cell: &Cell, runs: Vec<Arc<RunResult>>) {
        self.runs.insert(Key::of(cell), runs);
    }

    /// The runs of a load in one of its ways. Panics if there are none: an
    /// experiment lists what it judges.
    pub fn of<L: Ways + ?Sized>(&self, load: &L, way: L::Way<'_>) -> &[Arc<RunResult>] {
        self.find(&load.key(way))
    }

    /// The runs of a cell; panics likewise.
    pub fn of_cell(&self, cell: &Cell) -> &[Arc<RunResult>] {
        self.find(&Key::of(cell))
    }

    fn find(&self, key: &Key) -> &[Arc<RunResult>] {
        match self.runs.get(key) {
            Some(runs) => runs,
            None => panic!("the experiment did not list {key:?}"),
        }
    }

    /// A figure of each run.
    pub(super) fn each<L: Ways + ?Sized>(
        &self,
        load: &L,
        way: L::Way<'_>,
        figure: impl Fn(&RunResult) -> f64,
    ) -> Vec<f64> {
        self.of(load, way).iter().map(|r| figure(r)).collect()
    }

    /// Figures of each run of a cell.
    pub(super) fn each_of<T>(&self, cell: &Cell, figures: impl Fn(&RunResult) -> T) -> Vec<T> {
        self.of_cell(cell).iter().map(|r| figures(r)).collect()
    }

    /// Mean of a figure over the seeds.
    pub(super) fn mean<L: Ways + ?Sized>(
        &self,
        load: &L,
        way: L::Way<'_>,
        figure: impl Fn(&RunResult) -> f64,
    ) -> f64 {
        mean(&self.each(load, way, figure))
    }

    /// A figure in one way over that in another, seed by seed.
    pub(super) fn ratio<L: Ways + ?Sized>(
        &self,
        load: &L,
        (ours, base): (L::Way<'_>, L::Way<'_>),
        figure: impl Fn(&RunResult) -> f64,
    ) -> Vec<f64> {
        over(&self.each(load, ours, &figure), &self.each(load, base, &figure))
    }
}

/// One figure over another, seed by seed.
pub(super) fn over(ours: &[f64], base: &[f64]) -> Vec<f64> {
    ours.iter().zip(base).map(|(o, b)| o / b).collect()
}

/// Several figures made one, seed by seed.
pub(super) fn by_seed(all: &[Vec<f64>], of: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let seeds = all.iter().map(Vec::len).min().unwrap_or(0);
    (0..seeds).map(|seed| of(&all.iter().map(|v| v[seed]).collect::<Vec<_>>())).collect()
}

/// Seed by seed, the mean over several loads.
pub(super) fn across<L>(loads: &[L], of: impl Fn(&L) -> Vec<f64>) -> Vec<f64> {
    by_seed(&loads.iter().map(of).collect::<Vec<_>>(), mean)
}
