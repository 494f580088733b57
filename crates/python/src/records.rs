//! Tables for Python through Arrow's C interface: nothing is copied.

use crate::batches;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::UInt16Type;
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, PrimitiveArray, RecordBatch,
    RecordBatchIterator, StringArray, UInt16Array, UInt64Array,
};
use arrow_schema::ArrowError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use seekway_cli::library::{Recorded, Values};
use std::sync::Arc;

/// A table that any reader of Arrow's C stream takes: `pyarrow.table(records)`,
/// `polars.DataFrame(records)`, `duckdb.sql("from records")`.
#[pyclass(frozen)]
pub struct Records {
    batch: RecordBatch,
}

#[pymethods]
impl Records {
    /// The PyCapsule of Arrow's C stream interface; `requested_schema` is not followed.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let schema = self.batch.schema();
        let batches = RecordBatchIterator::new([Ok(self.batch.clone())], schema);
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// Rows.
    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// The columns' names in their order.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }
}

impl Records {
    /// A batch as it is.
    pub fn new(batch: RecordBatch) -> Records {
        Records { batch }
    }

    /// Columns under their names.
    pub fn of_columns<N: AsRef<str>>(
        columns: impl IntoIterator<Item = (N, Values)>,
    ) -> PyResult<Records> {
        let array = |values| -> ArrayRef {
            match values {
                Values::Text(words) => Arc::new(words.iter().collect::<StringArray>()),
                Values::Count(values) => Arc::new(UInt64Array::from(values)),
                Values::Number(values) => Arc::new(Float64Array::from(values)),
                Values::Flag(values) => Arc::new(BooleanArray::from(values)),
            }
        };
        let columns = columns.into_iter().map(|(name, values)| (name, array(values), true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns).map_err(broken)?;
        Ok(Records { batch })
    }

    /// Requests of a run, a row each; `names` are the VMs' by their number.
    pub fn of_requests(names: &[String], done: &[Recorded]) -> PyResult<Records> {
        let number = |of: fn(&Recorded) -> u64| -> ArrayRef {
            Arc::new(done.iter().map(of).collect::<UInt64Array>())
        };
        let vms: PrimitiveArray<UInt16Type> = done.iter().map(|r| r.vm).collect::<UInt16Array>();
        let vms = DictionaryArray::<UInt16Type>::try_new(
            vms,
            Arc::new(StringArray::from_iter_values(names)),
        );
        let ops = batches::op_names(done.iter().map(|r| r.op));
        let columns: [(&str, ArrayRef); 8] = [
            ("vm", Arc::new(vms.map_err(broken)?)),
            ("process", Arc::new(done.iter().map(|r| r.process).collect::<UInt16Array>())),
            ("op", Arc::new(ops.map_err(broken)?)),
            ("sync", Arc::new(done.iter().map(|r| Some(r.sync)).collect::<BooleanArray>())),
            ("start_sector", number(|r| r.start.get())),
            ("sectors", number(|r| r.len.get())),
            ("submitted_ns", number(|r| r.submitted.as_nanos())),
            ("completed_ns", number(|r| r.completed.as_nanos())),
        ];
        Ok(Records { batch: RecordBatch::try_from_iter(columns).map_err(broken)? })
    }
}

fn broken(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
