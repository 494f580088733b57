//! Traces in Parquet, read by column names.
//!
//! | column | type | what it is |
//! |---|---|---|
//! | `time_ns` | integer, timestamp or duration | time of the request, from any origin; an integer counts nanoseconds; or another name of a time with its unit, as in a CSV |
//! | `op` | text | `read`, `write`, `flush`, `discard`, `write-zeroes`, or R, W, F, D, Z |
//! | `start_sector`, `sectors` | integers | sectors of 512 bytes |
//! | `offset_bytes`, `size_bytes` | integers | instead of those two; rounded outwards to sectors |
//! | `volume` | text or integer, optional | one volume if it is absent |
//! | `process` | integer, optional | 0 or null where it is not known |
//! | `sync` | boolean, optional | does somebody wait for a write? |
//!
//! Other columns are left alone.

mod claims;

use super::cursor::Fault;
use super::error::Reason;
use super::names::{Role, role};
use super::raw::{Decode, Raw, Span, Step, Stop, Volumes, plain_name};
use super::{Place, VOLUME_NAME_BYTES_MAX};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, downcast_integer_array,
    make_array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use claims::{CheckedPages, check_codecs, check_footer, check_places};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use seekway_core::request::Op;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What such a file begins with.
pub(super) const MAGIC: &[u8] = b"PAR1";
/// Requests that are decoded at once.
const BATCH_ROWS: usize = 8192;
/// The columns that are read; the rest is not even decoded.
const COLUMNS: [&str; 8] =
    ["op", "start_sector", "sectors", "offset_bytes", "size_bytes", "volume", "process", "sync"];

pub(super) struct ParquetDecoder {
    batches: ParquetRecordBatchReader,
    time: TimeColumn,
    columns: Option<Columns>,
    /// The next row to decode, of the batch in `columns`, from zero.
    row: usize,
    /// Of the file, from one.
    number: u64,
}

/// The column of times, by its name, and the nanoseconds in one of a number in it.
struct TimeColumn {
    name: String,
    ns: i128,
}

impl TimeColumn {
    fn of(schema: &Schema) -> Result<TimeColumn, String> {
        if schema.field_with_name("time_ns").is_ok() {
            return Ok(TimeColumn { name: "time_ns".into(), ns: 1 });
        }
        let unit = |field: &Field| match role(field.name()) {
            Role::Time(unit) => Some((field.name().clone(), unit, field.data_type().is_temporal())),
            _ => None,
        };
        let times: Vec<_> = schema.fields().iter().filter_map(|field| unit(field)).collect();
        match &times[..] {
            [(name, Some(scale), _)] => {
                Ok(TimeColumn { name: name.clone(), ns: 10_i128.pow(*scale) })
            }
            [(name, None, true)] => Ok(TimeColumn { name: name.clone(), ns: 1 }),
            [(name, None, false)] => Err(format!(
                "column {name} does not say in which unit times are: name it time_s, time_ms, \
                 time_us or time_ns"
            )),
            [] => Err(lacks(schema, "time_ns")),
            [(a, ..), (b, ..), ..] => {
                Err(format!("columns {a} and {b} could both be the time: name one time_ns"))
            }
        }
    }
}

fn lacks(schema: &Schema, name: &str) -> String {
    let all: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    format!("a trace in Parquet has a column {name}; this has {}", all.join(", "))
}

/// The columns of a batch, in the types that requests are made of.
struct Columns {
    rows: usize,
    time_ns: Numbers,
    op: StringArray,
    place: PlaceColumns,
    volume: Option<StringArray>,
    process: Option<Numbers>,
    sync: Option<BooleanArray>,
}

enum PlaceColumns {
    Sectors(Numbers, Numbers),
    Bytes(Numbers, Numbers),
}

/// A column of whole numbers, as 64-bit integers and as the file has it.
struct Numbers {
    /// Null also where the file has a number that does not fit.
    values: Int64Array,
    in_file: ArrayRef,
}

impl ParquetDecoder {
    /// # Errors
    /// It is no Parquet, or lacks a column; the text says which.
    pub(super) fn open(file: File) -> io::Result<ParquetDecoder> {
        check_footer(&file)?;
        let metadata = guarded(|| ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()))?;
        check_places(metadata.metadata(), file.metadata()?.len())?;
        check_codecs(metadata.metadata())?;
        let pages = CheckedPages(file);
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(pages, metadata);
        let schema = builder.schema();
        let has = |name: &str| schema.field_with_name(name).is_ok();
        let time = TimeColumn::of(schema).map_err(damaged)?;
        if !has("op") {
            return Err(damaged(lacks(schema, "op")));
        }
        if !(has("start_sector") && has("sectors") || has("offset_bytes") && has("size_bytes")) {
            let places = "start_sector and one sectors (or offset_bytes and size_bytes)";
            return Err(damaged(lacks(schema, places)));
        }
        let names = COLUMNS.into_iter().chain([time.name.as_str()]);
        let chosen = ProjectionMask::columns(builder.parquet_schema(), names);
        let batches = builder.with_projection(chosen).with_batch_size(BATCH_ROWS);
        let batches = guarded(|| batches.build())?;
        Ok(ParquetDecoder { batches, time, columns: None, row: 0, number: 0 })
    }
}

impl Decode for ParquetDecoder {
    fn step(&mut self, volumes: &mut Volumes) -> Result<Step, Stop> {
        loop {
            if let Some(columns) = self.columns.as_ref().filter(|c| self.row < c.rows) {
                let row = self.row;
                self.row += 1;
                self.number += 1;
                let place = Place::Row { number: self.number };
                let raw = columns.raw(row, volumes);
                return raw.map(Step::Request).map_err(|fault| Stop::Record { fault, place });
            }
            let (batches, time) = (&mut self.batches, &self.time);
            let next = guarded(|| batches.next().map(|b| Columns::of(&b?, time)).transpose())?;
            let Some(columns) = next else { return Ok(Step::End) };
            (self.columns, self.row) = (Some(columns), 0);
        }
    }

    fn units(&self) -> Option<String> {
        (self.time.name != "time_ns").then(|| format!("times in `{}`, sectors", self.time.name))
    }
}

impl Columns {
    fn of(batch: &RecordBatch, time: &TimeColumn) -> Result<Columns, ArrowError> {
        let number = |name: &str| {
            let found = batch.column_by_name(name);
            let ns = (name == time.name).then_some(time.ns);
            found.map(|column| Numbers::of(name, column, ns)).transpose()
        };
        let text =
            |name: &str| batch.column_by_name(name).map(|column| texts(name, column)).transpose();
        let missing = |name: &str| ArrowError::SchemaError(format!("no column {name}"));
        let sync = batch.column_by_name("sync").map(truths);
        let place = match (number("start_sector")?, number("sectors")?) {
            (Some(start), Some(len)) => PlaceColumns::Sectors(start, len),
            _ => PlaceColumns::Bytes(
                number("offset_bytes")?.ok_or_else(|| missing("offset_bytes"))?,
                number("size_bytes")?.ok_or_else(|| missing("size_bytes"))?,
            ),
        };
        Ok(Columns {
            rows: batch.num_rows(),
            time_ns: number(&time.name)?.ok_or_else(|| missing(&time.name))?,
            op: text("op")?.ok_or_else(|| missing("op"))?,
            place,
            volume: text("volume")?,
            process: number("process")?,
            sync: sync.transpose()?,
        })
    }

    fn raw(&self, row: usize, volumes: &mut Volumes) -> Result<Raw, Fault> {
        let time_ns = natural(&self.time_ns, row, "time_ns, or another time: a number from 0 on")?;
        let op = self.op(row)?;
        let flush = op == Op::Flush;
        let span = match &self.place {
            _ if flush => Span::NONE,
            PlaceColumns::Sectors(start, len) => {
                let start = natural(start, row, "start_sector: a sector from 0 on")?;
                let len = natural(len, row, "sectors: their number")?;
                Span::sectors(start, len)
                    .map_err(|r| outside(r, format!("{start}+{len} sectors")))?
            }
            PlaceColumns::Bytes(offset, size) => {
                let offset = natural(offset, row, "offset_bytes: a byte from 0 on")?;
                let size = natural(size, row, "size_bytes: their number")?;
                Span::bytes(offset, size)
                    .map_err(|r| outside(r, format!("{offset}+{size} bytes")))?
            }
        };
        let name = self.volume.as_ref().filter(|v| v.is_valid(row)).map_or("", |v| v.value(row));
        let volume = volumes.intern(name.as_bytes(), plain_name).map_err(|reason| {
            let expected = "volume: a name of at most 255 bytes, at most 65536 of them";
            Fault::binary(reason, expected, shown(name))
        })?;
        let process = match &self.process {
            Some(process) if process.in_file.is_valid(row) => {
                let number = natural(process, row, "process: its number")?;
                u32::try_from(number).map_err(|_| outside(Reason::Overflow, number.to_string()))?
            }
            _ => 0,
        };
        let waited = self.sync.as_ref().is_some_and(|s| s.is_valid(row) && s.value(row));
        Ok(Raw { time_ns, volume, process, op, sync: op == Op::Read || waited, span })
    }

    fn op(&self, row: usize) -> Result<Op, Fault> {
        const EXPECTED: &str = "op: read, write, flush, discard or write-zeroes";
        if self.op.is_null(row) {
            return Err(Fault::binary(Reason::Missing, EXPECTED, "null".into()));
        }
        Ok(match self.op.value(row) {
            "read" | "R" | "r" => Op::Read,
            "write" | "W" | "w" => Op::Write,
            "flush" | "F" | "f" => Op::Flush,
            "discard" | "D" | "d" => Op::Discard,
            "write-zeroes" | "Z" | "z" => Op::WriteZeroes,
            other => return Err(Fault::binary(Reason::UnknownOp, EXPECTED, shown(other))),
        })
    }
}

impl Numbers {
    /// Converts a column to 64-bit integers; times become nanoseconds, of which a number is `ns`.
    fn of(name: &str, column: &ArrayRef, ns: Option<i128>) -> Result<Numbers, ArrowError> {
        let kind = column.data_type();
        let (counted, ns) = &match kind {
            DataType::Timestamp(unit, _) | DataType::Duration(unit) if ns.is_some() => {
                let counted = column.to_data().into_builder().data_type(DataType::Int64).build()?;
                let unit_ns = match unit {
                    TimeUnit::Second => 1_000_000_000i128,
                    TimeUnit::Millisecond => 1_000_000,
                    TimeUnit::Microsecond => 1000,
                    TimeUnit::Nanosecond => 1,
                };
                (make_array(counted), unit_ns)
            }
            // Seconds of a data frame.
            DataType::Float64 if ns.is_some_and(|ns| ns > 1) => {
                let of = ns.unwrap_or(1) as f64;
                let whole = |value: f64| {
                    let value = (value * of).round();
                    (value.abs() < i64::MAX as f64).then_some(value as i64)
                };
                let counted: Int64Array = column.as_primitive::<Float64Type>().unary_opt(whole);
                (Arc::new(counted) as ArrayRef, 1)
            }
            kind if kind.is_integer() => (column.clone(), ns.unwrap_or(1)),
            kind => return Err(unread(name, kind, "whole numbers")),
        };
        let values = downcast_integer_array!(
            counted => counted.unary_opt::<_, Int64Type>(|value| {
                i64::try_from(i128::from(value) * ns).ok()
            }),
            kind => return Err(unread(name, kind, "whole numbers")),
        );
        Ok(Numbers { values, in_file: column.clone() })
    }
}

/// A column of names as text. What is not UTF-8 is null.
fn texts(name: &str, column: &ArrayRef) -> Result<StringArray, ArrowError> {
    let utf8 = |bytes: Option<&[u8]>| bytes.and_then(|b| Some(str::from_utf8(b).ok()?.to_string()));
    Ok(match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().clone(),
        DataType::LargeUtf8 => column.as_string::<i64>().iter().collect(),
        DataType::Utf8View => column.as_string_view().iter().collect(),
        DataType::Binary => column.as_binary::<i32>().iter().map(utf8).collect(),
        DataType::LargeBinary => column.as_binary::<i64>().iter().map(utf8).collect(),
        DataType::BinaryView => column.as_binary_view().iter().map(utf8).collect(),
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let (values, keys) = (texts(name, dictionary.values())?, dictionary.normalized_keys());
            let text = |row: usize| {
                let is_there = column.is_valid(row) && values.is_valid(keys[row]);
                is_there.then(|| values.value(keys[row]))
            };
            (0..column.len()).map(text).collect()
        }
        _ => downcast_integer_array!(
            column => column.iter().map(|v| v.map(|v| v.to_string())).collect(),
            kind => return Err(unread(name, kind, "text and whole numbers")),
        ),
    })
}

/// A column of yes and no, which some write as 1 and 0.
fn truths(column: &ArrayRef) -> Result<BooleanArray, ArrowError> {
    Ok(downcast_integer_array!(
        column => column.iter().map(|v| v.map(|v| v != 0)).collect(),
        DataType::Boolean => column.as_boolean().clone(),
        kind => return Err(unread("sync", kind, "booleans and whole numbers")),
    ))
}

fn unread(name: &str, kind: &DataType, read: &str) -> ArrowError {
    ArrowError::SchemaError(format!("column {name} has the type {kind}; {read} are read"))
}

fn natural(column: &Numbers, row: usize, expected: &'static str) -> Result<u64, Fault> {
    if column.in_file.is_null(row) {
        return Err(Fault::binary(Reason::Missing, expected, "null".into()));
    }
    if column.values.is_null(row) {
        let found = "a number of 2^63 or more".into();
        return Err(Fault::binary(Reason::Overflow, expected, found));
    }
    let value = column.values.value(row);
    let negative = |_| Fault::binary(Reason::Negative, expected, value.to_string());
    u64::try_from(value).map_err(negative)
}

fn outside(reason: Reason, found: String) -> Fault {
    Fault::binary(reason, "an extent of at least 1 sector below 2^55", found)
}

/// The beginning of a text, for a message.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(VOLUME_NAME_BYTES_MAX / 4).collect();
    format!("{short:?}")
}

/// The library panics on some damaged files (`parquet` 60 does in its decoder of run lengths):
/// that too is an error of the file. The panic's message is printed all the same.
fn guarded<T, E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    work: impl FnOnce() -> Result<T, E>,
) -> io::Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(damaged),
        Err(_) => Err(damaged("the file is damaged: a column cannot be decoded")),
    }
}

fn damaged(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
