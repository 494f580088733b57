//! Tables for Python through Arrow's C interface: nothing is copied.

use crate::errors::exception;
use arrow_array::builder::StringBuilder;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Int8Type, Int32Type, UInt16Type};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int8Array, Int32Array, PrimitiveArray,
    RecordBatch, RecordBatchIterator, RecordBatchReader, StringArray, UInt16Array, UInt32Array,
    UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use seekway_cli::library::{self, Recorded, Values};
use seekway_core::request::Op;
use seekway_workload::traces::{Record, TraceError, TraceOptions, TraceReader, scan};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

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
        let ops = op_names(done.iter().map(|r| r.op));
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

// Traces as batches of Arrow.

/// Requests of a batch.
const BATCH_REQUESTS: usize = 65_536;

/// In the order of their declaration.
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// The columns of a trace: `time_ns` since its first request, `volume` and `op` as names,
/// `process` (0: not known), `sync`, `start_sector` and `sectors` (512 bytes). None has nulls.
fn schema() -> SchemaRef {
    let names = |index| DataType::Dictionary(Box::new(index), Box::new(DataType::Utf8));
    let field = |name: &str, of: DataType| Field::new(name, of, false);
    Arc::new(Schema::new(vec![
        field("time_ns", DataType::UInt64),
        field("volume", names(DataType::Int32)),
        field("process", DataType::UInt32),
        field("op", names(DataType::Int8)),
        field("sync", DataType::Boolean),
        field("start_sector", DataType::UInt64),
        field("sectors", DataType::UInt64),
    ]))
}

/// A column of operations.
pub fn op_names(ops: impl Iterator<Item = Op>) -> Result<DictionaryArray<Int8Type>, ArrowError> {
    let names = StringArray::from_iter_values(OPS.map(Op::word));
    DictionaryArray::try_new(Int8Array::from_iter_values(ops.map(|op| op as i8)), Arc::new(names))
}

/// A trace, batch by batch.
pub struct Batches {
    reader: TraceReader,
}

impl Batches {
    /// All that `reader` has still to read.
    pub fn new(reader: TraceReader) -> Batches {
        Batches { reader }
    }

    /// The next batch, of at most [`BATCH_REQUESTS`]; `None` at the end.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, TraceError> {
        let mut records = Vec::new();
        while records.len() < BATCH_REQUESTS
            && let Some(record) = self.reader.next_record()?
        {
            records.push(record);
        }
        let path = self.reader.path().to_string();
        let made = (!records.is_empty()).then(|| self.batch(&records)).transpose();
        made.map_err(|e| TraceError::Replay { path, problem: e.to_string() })
    }

    fn batch(&self, records: &[Record]) -> Result<RecordBatch, ArrowError> {
        let number = |of: fn(&Record) -> u64| -> ArrayRef {
            Arc::new(UInt64Array::from_iter_values(records.iter().map(of)))
        };
        let mut names = StringBuilder::new();
        let most = records.iter().map(|r| r.volume).max().unwrap_or(0);
        (0..=most).for_each(|volume| names.append_value(self.reader.volume_name(volume)));
        let volumes = Int32Array::from_iter_values(records.iter().map(|r| r.volume as i32));
        let volumes: DictionaryArray<Int32Type> =
            DictionaryArray::try_new(volumes, Arc::new(names.finish()))?;
        let sync: Vec<bool> = records.iter().map(|r| r.sync).collect();
        let columns: Vec<ArrayRef> = vec![
            number(|r| r.at.get()),
            Arc::new(volumes),
            Arc::new(UInt32Array::from_iter_values(records.iter().map(|r| r.process))),
            Arc::new(op_names(records.iter().map(|r| r.op))?),
            Arc::new(BooleanArray::from(sync)),
            number(|r| r.start.get()),
            number(|r| r.len.get()),
        ];
        RecordBatch::try_new(schema(), columns)
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().map_err(|e| ArrowError::ExternalError(Box::new(e))).transpose()
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        schema()
    }
}

// Traces as streams of Arrow.

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
