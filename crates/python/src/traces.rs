//! Traces as streams of Arrow.

use crate::batches::Batches;
use crate::errors::exception;
use crate::records::Records;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use seekway_cli::library;
use seekway_workload::traces::{TraceOptions, scan};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A trace that is read batch by batch.
#[pyclass(frozen)]
pub struct TraceBatches {
    /// `None` when it has been handed over as a stream.
    batches: Mutex<Option<Batches>>,
}

#[pymethods]
impl TraceBatches {
    /// The trace at `path`; `arguments` as those of `seekway convert`.
    #[new]
    fn new(py: Python<'_>, path: String, arguments: Vec<String>) -> PyResult<TraceBatches> {
        let opened = py.detach(|| library::trace(&path, &arguments));
        let reader = opened.map_err(|error| exception(py, &error))?;
        Ok(TraceBatches { batches: Mutex::new(Some(Batches::new(reader))) })
    }

    /// The next batch, `None` at the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Records>> {
        let next = py.detach(|| {
            let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
            batches.as_mut().map_or(Ok(None), Batches::next_batch)
        });
        let batch = next.map_err(|error| exception(py, &error.into()))?;
        Ok(batch.map(Records::new))
    }

    /// All that is left, as Arrow's C stream, once.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner).take();
        let batches = batches.ok_or_else(|| {
            PyTypeError::new_err("the trace was handed over before: read it once more")
        })?;
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }
}

/// Reads a whole trace that a caller calls `shown`: the number of its requests.
#[pyfunction]
pub fn check_trace(py: Python<'_>, path: PathBuf, shown: &str) -> PyResult<u64> {
    let scanned = py.detach(|| scan(&path, &TraceOptions::default()));
    let scan = scanned.map_err(|error| exception(py, &error.renamed(shown).into()))?;
    Ok(scan.stats.requests())
}
