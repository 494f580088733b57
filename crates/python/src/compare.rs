//! Commands, by the arguments of their command line.

use crate::errors::exception;
use crate::policy::{self, Fault};
use crate::records::Records;
use anyhow::Result;
use pyo3::prelude::*;
use seekway_cli::library::{self, Described, Watch};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

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

// Work on a thread of its own, while Python's signals are handled.

/// Interval between checks for signals and reports of progress.
const EVERY: Duration = Duration::from_millis(100);

/// A policy of the caller's own: its name and its constructor.
pub type Own = (String, Py<PyAny>);

/// A comparison under way, with policies of the caller's own.
pub struct Comparing {
    pub watch: Watch,
    /// Callback with the number of requests done, and of all requests if that is known.
    progress: Option<Py<PyAny>>,
    fault: Arc<Fault>,
}

impl Comparing {
    pub fn new(
        py: Python<'_>,
        policies: Vec<Own>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Comparing> {
        let fault = Arc::new(Fault::default());
        let own = |(name, make)| policy::own(name, make, &fault);
        let watch = Watch::new(policies.into_iter().map(own).collect());
        Ok(Comparing { watch: watch.map_err(|error| exception(py, &error))?, progress, fault })
    }

    fn tell(&self, py: Python<'_>) -> PyResult<()> {
        let Some(progress) = &self.progress else { return Ok(()) };
        progress.call1(py, self.watch.requests()).map(drop)
    }
}

/// Does `work`, a comparison or another command, without Python's lock, and tells a comparison's
/// caller how far it is. An exception of the caller's own code, or Ctrl-C, ends the work and is
/// raised.
pub fn watched<T: Send>(
    py: Python<'_>,
    comparing: Option<&Comparing>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    let fault = || comparing.and_then(|comparing| comparing.fault.take());
    let tell = |py: Python<'_>| comparing.map_or(Ok(()), |comparing| comparing.tell(py));
    let (result, raised) = py.detach(|| {
        std::thread::scope(|scope| {
            let (done, finished) = channel();
            let worker = scope.spawn(move || drop(done.send(work())));
            let mut raised = None;
            loop {
                match finished.recv_timeout(EVERY) {
                    Ok(result) => return (result, raised.or_else(fault)),
                    Err(RecvTimeoutError::Disconnected) => {
                        let panic = worker.join().expect_err("it sends unless it panics");
                        std::panic::resume_unwind(panic);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if raised.is_none() {
                    let told = Python::attach(|py| py.check_signals().and_then(|()| tell(py)));
                    raised = fault().or(told.err());
                }
                if raised.is_some() {
                    comparing.map_or_else(library::stop, |comparing| comparing.watch.caller.stop());
                }
            }
        })
    });
    if let Some(error) = raised {
        return Err(error);
    }
    if result.is_ok() {
        tell(py)?;
    }
    result.map_err(|error| exception(py, &error))
}
