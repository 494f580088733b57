//! Commands, by the arguments of their command line.

use crate::policy::{self, Fault};
use crate::records::Records;
use crate::watched::{aside, watched};
use pyo3::prelude::*;
use seekway_cli::library::{self, Watch};
use std::sync::Arc;

/// A policy of the caller's own: its name, and what makes one.
type Own = (String, Py<PyAny>);

/// `seekway compare ARGUMENTS…`: JSON, CSV, page and warnings.
#[pyfunction]
#[pyo3(signature = (arguments, policies=Vec::new(), progress=None))]
pub fn compare(
    py: Python<'_>,
    arguments: Vec<String>,
    policies: Vec<Own>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, String, String, Vec<String>)> {
    let (watch, fault) = watch(py, policies)?;
    let made =
        watched(py, &watch, &fault, progress.as_ref(), || library::compare(&arguments, &watch))?;
    Ok((made.json, made.csv, made.html, made.warnings))
}

/// All requests of one run of `seekway compare ARGUMENTS…`, by the run's number.
#[pyfunction]
#[pyo3(signature = (arguments, run, policies=Vec::new(), progress=None))]
pub fn requests(
    py: Python<'_>,
    arguments: Vec<String>,
    run: usize,
    policies: Vec<Own>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Records> {
    let (watch, fault) = watch(py, policies)?;
    let made = watched(py, &watch, &fault, progress.as_ref(), || {
        library::requests(&arguments, run, &watch)
    });
    let (names, recorded) = made?;
    Records::of_requests(&names, &recorded)
}

/// Any other command: what it prints, and whether what it judged was accepted.
#[pyfunction]
pub fn run(py: Python<'_>, arguments: Vec<String>) -> PyResult<(String, bool)> {
    aside(py, || library::run(&arguments))
}

fn watch(py: Python<'_>, policies: Vec<Own>) -> PyResult<(Watch, Arc<Fault>)> {
    let fault = Arc::new(Fault::default());
    let own = policies.into_iter().map(|(name, make)| policy::own(name, make, &fault)).collect();
    let watch = Watch::new(own).map_err(|error| crate::errors::exception(py, &error))?;
    Ok((watch, fault))
}
