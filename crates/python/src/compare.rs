//! Commands, by the arguments of their command line.

use crate::records::Records;
use crate::watched::{Comparing, Own, watched};
use pyo3::prelude::*;
use seekway_cli::library::{self, Described};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// `seekway compare ARGUMENTS…`: JSON, CSV, the same in columns, page and warnings.
#[pyfunction]
#[pyo3(signature = (arguments, policies=Vec::new(), progress=None))]
pub fn compare(
    py: Python<'_>,
    arguments: Vec<String>,
    policies: Vec<Own>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, String, Records, String, Vec<String>)> {
    let comparing = Comparing::new(py, policies, progress)?;
    let made = watched(py, Some(&comparing), || library::compare(&arguments, &comparing.watch))?;
    Ok((made.json, made.csv, Records::of_columns(made.columns)?, made.html, made.warnings))
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
    let comparing = Comparing::new(py, policies, progress)?;
    let made =
        watched(py, Some(&comparing), || library::requests(&arguments, run, &comparing.watch));
    let (names, recorded) = made?;
    Records::of_requests(&names, &recorded)
}

/// Tables by their names.
type NamedTables = Vec<(&'static str, Records)>;

/// All runs of a scenario, in a file or as JSON: its tables by their names, and warnings.
#[pyfunction]
#[pyo3(signature = (file, json, jobs=None, policies=Vec::new(), progress=None))]
pub fn scenario(
    py: Python<'_>,
    file: Option<PathBuf>,
    json: String,
    jobs: Option<NonZeroUsize>,
    policies: Vec<Own>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(NamedTables, Vec<String>)> {
    let comparing = Comparing::new(py, policies, progress)?;
    let described = match &file {
        Some(path) => Described::File(path),
        None => Described::Json(&json),
    };
    let made =
        watched(py, Some(&comparing), || library::scenario(&described, jobs, &comparing.watch))?;
    let tables = made.tables.into_iter().map(|table| {
        let columns = table.columns.into_iter().map(|column| (column.name, column.values));
        Ok((table.name, Records::of_columns(columns)?))
    });
    Ok((tables.collect::<PyResult<_>>()?, made.warnings))
}

/// Runs any other command; returns its output, and whether its judgement was favourable.
#[pyfunction]
pub fn run(py: Python<'_>, arguments: Vec<String>) -> PyResult<(String, bool)> {
    watched(py, None, || library::run(&arguments))
}
