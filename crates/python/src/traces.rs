//! Traces as streams of Arrow.

use crate::errors::exception;
use crate::records::Records;
use anyhow::Context;
use arrow_array::RecordBatchReader;
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use seekway_cli::{library, output};
use seekway_workload::traces::columnar::{self, Batches};
use seekway_workload::traces::{Scan, TraceError, TraceOptions, scan};
use std::path::Path;
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
        let batches = opened.map_err(|error| exception(py, &error))?;
        Ok(TraceBatches { batches: Mutex::new(Some(batches)) })
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

/// Writes the batches of a stream to a trace in Parquet, whole or not at all; returns the number of
/// requests. Requests that a reader of traces would refuse are refused.
#[pyfunction]
pub fn write_trace(py: Python<'_>, capsule: &Bound<'_, PyCapsule>, path: String) -> PyResult<u64> {
    let pointer = capsule.pointer_checked(Some(c"arrow_array_stream"))?;
    // SAFETY: a capsule of this name holds such a stream, which is moved out of it and leaves an
    // empty one behind (the Arrow PyCapsule interface).
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.cast().as_ptr()) };
    let reader = RecordBatchStreamReader::try_new(stream)
        .map_err(|error| exception(py, &anyhow::Error::from(error)))?;
    let written = py.detach(|| written(reader, Path::new(&path)));
    written.map_err(|error| exception(py, &error))
}

fn written(reader: RecordBatchStreamReader, path: &Path) -> anyhow::Result<u64> {
    output::check_place(path)?;
    let beside = path.with_added_extension(format!("unchecked{}", std::process::id()));
    let schema = reader.schema();
    let made = output::write_file(&beside, |out| columnar::write(schema, reader, out).map(drop));
    let checked = made.and_then(|()| check(&beside, path));
    let renamed = checked.and_then(|scan| {
        std::fs::rename(&beside, path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(scan.stats.requests())
    });
    if renamed.is_err() {
        let _ = std::fs::remove_file(&beside); // it may not exist; the first error is the one to tell
    }
    renamed
}

/// Reads the written file, under the name that the user knows.
fn check(beside: &Path, path: &Path) -> anyhow::Result<Scan> {
    let shown = |error: TraceError| error.renamed(&path.display().to_string());
    Ok(scan(beside, &TraceOptions::default()).map_err(shown)?)
}
