//! The VMCD paper's evaluation and what experiments.md adds.

use super::Experiment;

pub(super) static EXPERIMENTS: &[Experiment] = &[];
