//! Commands, by the arguments of their command line.

use crate::errors::exception;
use crate::policy::{self, Fault};
use crate::records::Records;
use crate::watched::{Watched, watched};
use pyo3::prelude::*;
use seekway_cli::library::{self, Watch};
use std::sync::Arc;

/// A policy of the caller's own: its name, and what makes one.
type Own = (String, Py<PyAny>);

/// A comparison under way, with policies of the caller's own.
struct Comparing {
    watch: Watch,
    fault: Arc<Fault>,
}

impl Comparing {
    fn new(py: Python<'_>, policies: Vec<Own>) -> PyResult<Comparing> {
        let fault = Arc::new(Fault::default());
        let own = |(name, make)| policy::own(name, make, &fault);
        let watch = Watch::new(policies.into_iter().map(own).collect());
        Ok(Comparing { watch: watch.map_err(|error| exception(py, &error))?, fault })
    }
}

impl Watched for Comparing {
    fn done(&self) -> (u64, Option<u64>) {
        self.watch.requests()
    }

    fn stop(&self) {
        self.watch.caller.stop();
    }

    fn take_error(&self) -> Option<PyErr> {
        self.fault.take()
    }
}

/// Another command under way.
struct Running;

impl Watched for Running {
    fn done(&self) -> (u64, Option<u64>) {
        (0, None)
    }

    fn stop(&self) {
        library::stop();
    }

    fn take_error(&self) -> Option<PyErr> {
        None
    }
}

/// `seekway compare ARGUMENTS…`: JSON, CSV, the same in columns, page and warnings.
#[pyfunction]
#[pyo3(signature = (arguments, policies=Vec::new(), progress=None))]
pub fn compare(
    py: Python<'_>,
    arguments: Vec<String>,
    policies: Vec<Own>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, String, Records, String, Vec<String>)> {
    let comparing = Comparing::new(py, policies)?;
    let made = watched(py, &comparing, progress.as_ref(), || {
        library::compare(&arguments, &comparing.watch)
    })?;
    Ok((made.json, made.csv, Records::new(made.columns), made.html, made.warnings))
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
    let comparing = Comparing::new(py, policies)?;
    let (names, recorded) = watched(py, &comparing, progress.as_ref(), || {
        library::requests(&arguments, run, &comparing.watch)
    })?;
    Records::of_requests(&names, &recorded)
}

/// Any other command: what it prints, and whether what it judged was accepted.
#[pyfunction]
pub fn run(py: Python<'_>, arguments: Vec<String>) -> PyResult<(String, bool)> {
    watched(py, &Running, None, || library::run(&arguments))
}
