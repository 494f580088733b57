//! Traces as batches of Arrow, and as files in Parquet that `super::parquet` reads.

use super::{Record, TraceError, TraceReader};
use arrow_array::builder::StringBuilder;
use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Int8Array, Int32Array, RecordBatch, RecordBatchReader,
    StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use seekway_core::request::Op;
use std::io::{self, Write};
use std::sync::Arc;

/// Requests of a batch, and of a row group of a file.
pub const BATCH_REQUESTS: usize = 65_536;

/// Operations by their place here, as columns call them.
pub const OPS: [(Op, &str); 5] = [
    (Op::Read, "read"),
    (Op::Write, "write"),
    (Op::Flush, "flush"),
    (Op::Discard, "discard"),
    (Op::WriteZeroes, "write-zeroes"),
];

/// The columns of a trace: `time_ns` since its first request, `volume` and `op` as names,
/// `process` (0: not known), `sync`, `start_sector` and `sectors` (512 bytes). None has nulls.
pub fn schema() -> SchemaRef {
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

/// Names of operations, for arrays of their places in [`OPS`].
pub fn op_names(places: Int8Array) -> Result<DictionaryArray<Int8Type>, ArrowError> {
    let names = StringArray::from_iter_values(OPS.map(|(_, name)| name));
    DictionaryArray::try_new(places, Arc::new(names))
}

/// The place of an operation in [`OPS`].
pub fn op_place(op: Op) -> i8 {
    OPS.iter().position(|(other, _)| *other == op).expect("all operations are listed") as i8
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

    /// What has been read so far.
    pub fn reader(&self) -> &TraceReader {
        &self.reader
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
        let ops = Int8Array::from_iter_values(records.iter().map(|r| op_place(r.op)));
        let sync: Vec<bool> = records.iter().map(|r| r.sync).collect();
        let columns: Vec<ArrayRef> = vec![
            number(|r| r.at.get()),
            Arc::new(volumes),
            Arc::new(UInt32Array::from_iter_values(records.iter().map(|r| r.process))),
            Arc::new(op_names(ops)?),
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

/// Writes batches of one schema as a file in Parquet (zstd); their rows.
///
/// # Errors
/// What the batches or `out` return.
pub fn write(
    schema: SchemaRef,
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    out: impl Write + Send,
) -> io::Result<u64> {
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(zstd).build();
    let mut writer = ArrowWriter::try_new(out, schema, Some(properties)).map_err(failed)?;
    let mut rows = 0;
    for batch in batches {
        let batch = batch.map_err(io::Error::other)?;
        rows += batch.num_rows() as u64;
        writer.write(&batch).map_err(failed)?;
        // A row group each, so that memory stays bounded.
        writer.flush().map_err(failed)?;
    }
    writer.close().map_err(failed)?;
    Ok(rows)
}

/// The error of the file below, where it is one.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(below) => match below.downcast::<io::Error>() {
            Ok(below) => *below,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}
