//! Work on a thread of its own, while Python's signals are heard.

use crate::errors::exception;
use anyhow::Result;
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often signals are heard and progress is told.
const EVERY: Duration = Duration::from_millis(100);

/// How a piece of work is seen and ended.
pub trait Watched: Sync {
    /// Requests that are done, and all there are if that is known.
    fn done(&self) -> (u64, Option<u64>);
    /// The work ends soon.
    fn stop(&self);
    /// An exception that came up inside of the work, once.
    fn take_error(&self) -> Option<PyErr>;
}

/// Does `work` without Python's lock, and tells `progress` how far it is. An exception of
/// `progress` or of the work's own, or Ctrl-C, ends the work and is raised.
pub fn watched<T: Send>(
    py: Python<'_>,
    watch: &impl Watched,
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
                    Ok(result) => return (result, raised.or_else(|| watch.take_error())),
                    Err(RecvTimeoutError::Disconnected) => {
                        let panic = worker.join().expect_err("it sends unless it panics");
                        std::panic::resume_unwind(panic);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if raised.is_none() {
                    let told = Python::attach(|py| tell(py, watch, progress)).err();
                    raised = watch.take_error().or(told);
                }
                if raised.is_some() {
                    watch.stop();
                }
            }
        })
    });
    if let Some(error) = raised {
        return Err(error);
    }
    if let (Some(progress), Ok(_)) = (progress, &result) {
        progress.call1(py, watch.done())?;
    }
    result.map_err(|error| exception(py, &error))
}

fn tell(py: Python<'_>, watch: &impl Watched, progress: Option<&Py<PyAny>>) -> PyResult<()> {
    py.check_signals()?;
    progress.map_or(Ok(()), |progress| progress.call1(py, watch.done()).map(drop))
}
