//! Traces as batches of Arrow.

use arrow_array::builder::StringBuilder;
use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Int8Array, Int32Array, RecordBatch, RecordBatchReader,
    StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use seekway_core::request::Op;
use seekway_workload::traces::{Record, TraceError, TraceReader};
use std::sync::Arc;

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
