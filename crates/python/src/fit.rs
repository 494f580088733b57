//! Fits of device models.

use crate::errors::exception;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use seekway_device::fit::{self, Form};

/// The line through random reads of a profile's device: its figures, and the profile of that line.
#[pyfunction]
pub fn fit_model(
    py: Python<'_>,
    profile: &str,
    averaged: bool,
    reads: usize,
    seed: u64,
) -> PyResult<Py<PyDict>> {
    let form = if averaged { Form::Averaged } else { Form::Points };
    let fit = py.detach(|| fit::of_model(profile, form, reads, seed));
    let fit = fit.map_err(|error| exception(py, &error.into()))?;
    let made = PyDict::new(py);
    made.set_item("intercept_ms", fit.line.intercept_ms)?;
    made.set_item("stroke_ms", fit.device_stroke_ms())?;
    made.set_item("residual_ms", fit.residual_ms)?;
    made.set_item("demerit_ms", fit.demerit_ms())?;
    made.set_item("hit_ms", fit.hit_ms)?;
    made.set_item("profile", fit.profile_toml("fitted", profile))?;
    Ok(made.unbind())
}

/// Sectors that a profile's device reads ahead when another read comes at once; whether it reads
/// further after a hit, and whether it does when idle.
#[pyfunction]
pub fn read_ahead(py: Python<'_>, profile: &str) -> PyResult<(u64, bool, bool)> {
    let found = py.detach(|| fit::read_ahead(profile));
    let found = found.map_err(|error| exception(py, &error.into()))?;
    Ok((found.sectors, found.after_hits, found.when_idle))
}
