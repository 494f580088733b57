//! Work on a thread of its own, while Python's signals are handled.

use crate::errors::exception;
use crate::policy::{self, Fault};
use anyhow::Result;
use pyo3::prelude::*;
use seekway_cli::library::{self, Watch};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

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
