//! The CATS paper's evaluation and the throttle's (experiments.md, CATS and the
//! throttle).

use super::Experiment;

pub(super) static EXPERIMENTS: &[Experiment] = &[];
