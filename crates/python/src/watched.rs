//! Work on a thread of its own, while Python's signals are heard.

use crate::errors::exception;
use crate::policy::Fault;
use anyhow::{Result, anyhow};
use pyo3::prelude::*;
use seekway_cli::library::Watch;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often signals are heard and progress is told.
const EVERY: Duration = Duration::from_millis(100);

/// Does `work` without Python's lock. Tells `progress` how many requests are done, and how many
/// there are if that is known. An exception of it or of a policy, or Ctrl-C, ends the work and is
/// raised.
pub fn watched<T: Send>(
    py: Python<'_>,
    watch: &Watch,
    fault: &Fault,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    let (result, raised) = py.detach(|| {
        std::thread::scope(|scope| {
            let (done, finished) = channel();
            let worker = scope.spawn(move || drop(done.send(work())));
            let mut raised = None;
            loop {
                match finished.recv_timeout(EVERY) {
                    Ok(result) => return (result, raised),
                    Err(RecvTimeoutError::Disconnected) => {
                        let panic = worker.join().expect_err("it sends unless it panics");
                        std::panic::resume_unwind(panic);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if fault.is_set() {
                    watch.caller.stop();
                }
                if raised.is_none()
                    && let Err(error) = Python::attach(|py| tell(py, watch, progress))
                {
                    watch.caller.stop();
                    raised = Some(error);
                }
            }
        })
    });
    if let Some(error) = raised {
        return Err(error);
    }
    fault.raise()?;
    if let (Some(progress), Ok(_)) = (progress, &result) {
        progress.call1(py, watch.requests())?;
    }
    result.map_err(|error| exception(py, &error))
}

fn tell(py: Python<'_>, watch: &Watch, progress: Option<&Py<PyAny>>) -> PyResult<()> {
    py.check_signals()?;
    progress.map_or(Ok(()), |progress| progress.call1(py, watch.requests()).map(drop))
}

/// Does `work`, which nobody can stop, without Python's lock; Ctrl-C is heard at its end.
pub fn aside<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let made = py.detach(|| std::thread::scope(|scope| scope.spawn(work).join()));
    let made = made.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    py.check_signals()?;
    made.map_err(|error| exception(py, &anyhow!(error)))
}
