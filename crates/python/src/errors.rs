//! Errors of the library as exceptions of Python, which `seekway/_errors.py` defines.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use seekway_workload::traces::{Place, TraceError};

/// The exception for `error`: with file, line and column where it is about a trace's record.
pub fn exception(py: Python<'_>, error: &anyhow::Error) -> PyErr {
    made(py, error).unwrap_or_else(|problem| problem)
}

fn made(py: Python<'_>, error: &anyhow::Error) -> PyResult<PyErr> {
    let classes = py.import("seekway._errors")?;
    let text = format!("{error:#}");
    let Some(trace) = error.chain().find_map(|e| e.downcast_ref::<TraceError>()) else {
        return Ok(PyErr::from_value(classes.getattr("SeekwayError")?.call1((text,))?));
    };
    let about = PyDict::new(py);
    about.set_item("path", trace.path())?;
    if let TraceError::Record { place, .. } = trace {
        match *place {
            Place::Line { line, column } => {
                about.set_item("line", line)?;
                about.set_item("column", column)?;
            }
            Place::Record { number, offset } => {
                about.set_item("record", number)?;
                about.set_item("offset_bytes", offset)?;
            }
        }
    }
    Ok(PyErr::from_value(classes.getattr("TraceError")?.call((text,), Some(&about))?))
}
