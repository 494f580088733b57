//! Traces in Parquet: written and read back, and damaged in every way.
#![cfg(feature = "parquet")]

use seekway_workload::traces::columnar::{self, Batches};
use seekway_workload::traces::{Format, Record, TraceError, TraceOptions, TraceReader};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("seekway-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // only the test's own files are in it
    }
}

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

/// A trace of two processes and 300 requests on three disks, and the same in Parquet.
fn written(folder: &Folder) -> (PathBuf, PathBuf) {
    let (text, copy) = (folder.0.join("t.trace"), folder.0.join("t.parquet"));
    let row = |n: u64| {
        let op = if n.is_multiple_of(3) { "W" } else { "R" };
        format!("{} {} db {} 8 {op} 8 {} 0\n", n * 1000, n % 2 + 1, n * 64, n % 3)
    };
    fs::write(&text, (0..300).map(row).collect::<String>()).unwrap();
    let batches = Batches::new(reader(&text).unwrap());
    let rows = columnar::write(columnar::schema(), batches, File::create(&copy).unwrap()).unwrap();
    assert_eq!(rows, 300);
    (text, copy)
}

#[test]
fn what_is_written_comes_back() {
    let folder = Folder::new("back");
    let (text, copy) = written(&folder);
    assert_eq!(reader(&copy).unwrap().format(), Format::Parquet);
    let all = records(&text).unwrap();
    assert_eq!(all.len(), 300);
    assert!(all.iter().any(|(_, r)| r.process == 2) && all.iter().any(|(_, r)| r.volume == 2));
    assert_eq!(records(&copy).unwrap(), all);
}

#[test]
fn a_stream_says_that_it_cannot_be_one() {
    let folder = Folder::new("stream");
    let (_, copy) = written(&folder);
    let stream = Box::new(File::open(&copy).unwrap());
    let error = TraceReader::from_read("stdin", stream, &TraceOptions::default()).err().unwrap();
    assert!(error.to_string().contains("save it to a file"), "{error}");
}

/// Bytes of a stranger: an error or requests, never a panic.
#[test]
fn damaged_files_are_errors() {
    let folder = Folder::new("damaged");
    let (_, copy) = written(&folder);
    let sound = fs::read(&copy).unwrap();
    let damaged = folder.0.join("damaged.parquet");
    let mut refused = 0;
    let mut read = |bytes: &[u8]| {
        fs::write(&damaged, bytes).unwrap();
        refused += u32::from(records(&damaged).is_err());
    };
    for length in (0..sound.len()).step_by(7) {
        read(&sound[..length]);
    }
    for at in 0..sound.len() {
        for bit in [0x01, 0x10, 0x80] {
            let mut bytes = sound.clone();
            bytes[at] ^= bit;
            read(&bytes);
        }
    }
    println!("{refused} files refused of {} bytes each", sound.len());
    assert!(refused > 100);
}
