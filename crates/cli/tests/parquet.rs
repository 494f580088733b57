//! Parquet: traces that `convert` writes, and `compare --format parquet`.
#![cfg(feature = "parquet")]

mod common;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use common::{Folder, command, fixture, seekway, seekway_with, timeless_runs, trace};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fs::{self, File};
use std::process::Stdio;

fn figures(trace: &str) -> Vec<serde_json::Value> {
    let args = ["compare", "--trace", trace, "--policies", "noop,cfq", "--format", "json"];
    timeless_runs(&seekway(&args).ok())
}

#[test]
fn a_converted_trace_gives_the_same_figures() {
    let folder = Folder::new();
    let text = trace(300);
    let (before, after) = (folder.file("a.trace", &text), folder.arg("a.parquet"));
    assert_eq!(seekway(&["convert", &before, &after]).ok(), "");
    assert_eq!(figures(&before), figures(&after));
    // From the standard input, and Parquet itself from there.
    let (piped, again) = (folder.arg("piped.parquet"), folder.arg("again.parquet"));
    seekway_with(text.as_bytes(), &["convert", "-", &piped]).ok();
    let bytes = fs::read(&after).expect("written");
    seekway_with(&bytes, &["convert", "-", &again]).ok();
    assert!(bytes == fs::read(&again).expect("written"));
    assert_eq!(folder.names(), ["a.parquet", "a.trace", "again.parquet", "piped.parquet"]);
}

#[test]
fn what_fails_leaves_nothing() {
    let folder = Folder::new();
    let (good, out) = (folder.file("a.trace", &trace(10)), folder.arg("out.parquet"));
    let damaged = folder.file("b.trace", &format!("{}broken\n", trace(300)));
    seekway(&["convert", &damaged, &out]).refused(&["b.trace:301:"]);
    seekway(&["convert", &good, &good]).refused(&["is the trace itself"]);
    let link = folder.path("link.parquet");
    std::os::unix::fs::symlink(&good, &link).expect("a link");
    seekway(&["convert", &good, &folder.arg("link.parquet")]).refused(&["is the trace itself"]);
    seekway(&["convert", &good, &folder.arg("absent/out.parquet")]).refused(&["folder"]);
    seekway(&["convert", &good, "/dev/full"]).refused(&["/dev/full", "No space left"]);
    assert_eq!(folder.names(), ["a.trace", "b.trace", "link.parquet"]);
    assert_eq!(fs::read_to_string(&good).expect("still there"), trace(10));
}

#[test]
fn damaged_parquet_is_an_error_that_names_the_file() {
    let folder = Folder::new();
    let whole = folder.arg("whole.parquet");
    seekway(&["convert", &fixture("kernel-loop.blktrace"), &whole]).ok();
    let bytes = fs::read(&whole).expect("written");
    let cut = folder.arg("cut.parquet");
    fs::write(&cut, &bytes[..bytes.len() - 3]).expect("room");
    seekway(&["compare", "--trace", &cut]).refused(&["cut.parquet: cannot read on"]);
}

/// What `--format csv` has in a cell.
fn cell(batch: &RecordBatch, column: usize, row: usize) -> String {
    let array = batch.column(column);
    if array.is_null(row) {
        return String::new();
    }
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(row).to_string(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(row).to_string(),
        DataType::Float64 => array.as_primitive::<Float64Type>().value(row).to_string(),
        other => panic!("a column of type {other}"),
    }
}

#[test]
fn a_comparison_has_the_cells_of_its_csv() {
    let folder = Folder::new();
    let (a, b) = (folder.file("a.trace", &trace(300)), folder.file("b.trace", &trace(200)));
    let args = ["compare", "--trace", &a, "--trace", &b, "--policies", "noop,cfq", "--format"];
    let csv = seekway(&[&args[..], &["csv"]].concat()).ok();
    let file = folder.path("made.parquet");
    let mut made = command(&[&args[..], &["parquet"]].concat());
    made.stdout(Stdio::from(File::create(&file).expect("room")));
    assert!(made.status().expect("the program starts").success());

    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&file).expect("written"));
    let batches: Vec<_> = reader.and_then(|r| r.build()).expect("Parquet").collect();
    let [Ok(batch)] = &batches[..] else { panic!("{} batches", batches.len()) };
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let schema = batch.schema();
    let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(names, lines.next().expect("a heading"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), batch.num_rows());
    for (row, line) in lines.iter().enumerate() {
        for (column, name) in names.iter().enumerate() {
            assert_eq!(cell(batch, column, row), line[column], "{name} of row {row}");
        }
    }
    let kind = |name: &str| schema.field_with_name(name).expect("a column").data_type();
    assert_eq!(kind("requests"), &DataType::UInt64);
    assert_eq!(kind("p99_ms"), &DataType::Float64);
}

#[test]
fn only_compare_prints_parquet() {
    let folder = Folder::new();
    let file = folder.file("a.trace", &trace(10));
    seekway(&["inspect", &file, "--format", "parquet"]).refused(&["parquet", "possible values"]);
}
