//! A trace in Parquet, cut short at every place and with a changed bit in every byte.
#![cfg(feature = "parquet")]

use seekway_workload::traces::columnar::{self, Batches};
use seekway_workload::traces::{Record, TraceError, TraceOptions, TraceReader};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn reader(path: &Path) -> Result<TraceReader, TraceError> {
    TraceReader::open(path, &TraceOptions::default())
}

fn records(path: &Path) -> Result<Vec<(String, Record)>, TraceError> {
    let mut reader = reader(path)?;
    let mut all = Vec::new();
    while let Some(record) = reader.next_record()? {
        all.push((reader.volume_name(record.volume).to_string(), record));
    }
    Ok(all)
}

/// A trace of two processes and 300 requests on three disks in Parquet.
fn written(folder: &TempDir) -> PathBuf {
    let (text, copy) = (folder.path().join("t.trace"), folder.path().join("t.parquet"));
    let row = |n: u64| {
        let op = if n.is_multiple_of(3) { "W" } else { "R" };
        format!("{} {} db {} 8 {op} 8 {} 0\n", n * 1000, n % 2 + 1, n * 64, n % 3)
    };
    fs::write(&text, (0..300).map(row).collect::<String>()).unwrap();
    let batches = Batches::new(reader(&text).unwrap());
    let rows = columnar::write(columnar::schema(), batches, File::create(&copy).unwrap()).unwrap();
    assert_eq!(rows, 300);
    copy
}

#[test]
fn a_stream_says_that_it_cannot_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let copy = written(&folder);
    let stream = Box::new(File::open(&copy).unwrap());
    let error = TraceReader::from_read("stdin", stream, &TraceOptions::default()).err().unwrap();
    assert!(error.to_string().contains("save it to a file"), "{error}");
}

/// Bytes of a stranger: an error or requests, never a panic.
#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let copy = written(&folder);
    let sound = fs::read(&copy).unwrap();
    let damaged = folder.path().join("damaged.parquet");
    let mut refused = 0;
    let mut read = |bytes: &[u8]| {
        fs::write(&damaged, bytes).unwrap();
        refused += u32::from(records(&damaged).is_err());
    };
    for length in (0..sound.len()).step_by(7) {
        read(&sound[..length]);
    }
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << (at % 8);
        read(&bytes);
    }
    println!("{refused} files refused of {} bytes each", sound.len());
    assert!(refused > 100);
}
