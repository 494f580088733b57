//! Traces that were written as CSV are read again as they were; Parquet is refused.

use crate::names;

use names::{FIXTURES, fixture};
use seekway_core::units::Nanos;
use seekway_workload::traces::{
    Format, Record, TraceError, TraceOptions, TraceReader, WriteError, scan, write_csv,
};
use std::fs;
use std::io::Cursor;
use std::path::Path;

const SAMPLES: [&str; 6] = [
    "vm/cloudPhysicsIO.vscsi",
    "host/linux-mysql.load.gz",
    "samples/cloud_storage-sample.bz2",
    "samples/msr-cambridge1-sample.csv",
    "samples/systor17-additional-sample.csv.gz",
    "samples/tpcc-small.trace",
];

fn open(path: &Path) -> TraceReader {
    TraceReader::open(path, &TraceOptions::default()).unwrap()
}

fn read(name: &str, bytes: &[u8]) -> TraceReader {
    let input = Box::new(Cursor::new(bytes.to_vec()));
    TraceReader::from_read(name, input, &TraceOptions::default()).unwrap()
}

/// Each request with the name of its volume: numbers go by the file's order, names do not.
fn named(mut reader: TraceReader) -> Vec<(Record, String)> {
    let mut all = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        let name = reader.volume_name(record.volume).to_string();
        all.push((Record { volume: 0, took: Nanos::ZERO, ..record }, name));
    }
    all
}

fn comes_back(path: &Path, packed: bool) {
    let (shown, mut bytes) = (path.display(), Vec::new());
    let count = write_csv(&mut open(path), &mut bytes, packed).unwrap();
    assert_eq!(bytes.starts_with(b"\x1f\x8b"), packed, "{shown}");
    let again = read("again", &bytes);
    assert_eq!(again.format(), Format::Csv, "{shown}");
    let (before, after) = (named(open(path)), named(again));
    assert_eq!((before.len() as u64, before.len()), (count, after.len()), "{shown}");
    for (n, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_eq!(before, after, "{shown}: request {n}");
    }
    // Nothing is left to guess, and so to warn of.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("again.csv");
    fs::write(&file, &bytes).unwrap();
    let scanned = scan(&file, &TraceOptions::default()).unwrap();
    assert!(!scanned.warnings().iter().any(|w| w.contains("reads")), "{:?}", scanned.warnings());
}

#[test]
fn a_trace_of_each_format_comes_back_as_it_was() {
    for (n, name) in FIXTURES.iter().enumerate() {
        comes_back(&fixture(name), n % 2 == 0);
    }
}

#[test]
fn the_samples_come_back_as_they_were() {
    let found = SAMPLES.iter().filter_map(|s| seekway_testing::shared(&format!("traces/{s}")));
    found.for_each(|path| comes_back(&path, true));
}

#[test]
fn all_operations_names_and_processes_come_back() {
    let text = "time_ns,op,start_sector,sectors,volume,pid,sync\n\
                0,read,0,8,\"8,16\",0,1\n\
                7,write,18014398509481976,8,\"the \"\"best\"\", of all\",4294967295,0\n\
                7,write,8,2147483648,8:16,1,1\n\
                8,flush,0,0,8:16,0,0\n\
                9,flush,0,0,8:16,0,1\n\
                10,discard,8,1,8:16,0,0\n\
                11,write-zeroes,8,1,é,0,1\n";
    let mut bytes = Vec::new();
    assert_eq!(write_csv(&mut read("all", text.as_bytes()), &mut bytes, false).unwrap(), 7);
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    let names: Vec<String> = named(read("all", text.as_bytes())).into_iter().map(|r| r.1).collect();
    assert_eq!(names[..2], ["8,16", "the \"best\", of all"]);
}

/// A column `sync` says it; without one, the operation does.
#[test]
fn who_waits_is_said_by_a_column() {
    let sync = |text: &str| -> Vec<bool> {
        named(read("t", text.as_bytes())).iter().map(|(record, _)| record.sync).collect()
    };
    let rows = ["0,R,0,512,", "1,W,0,512,", "2,WS,0,512,", "3,F,0,0,"];
    let table = |header: &str, told: [&str; 4]| {
        let rows = rows.iter().zip(told).map(|(row, told)| format!("{row}{told}\n"));
        format!("time_us,op,offset_bytes,size_bytes,{header}\n{}", rows.collect::<String>())
    };
    assert_eq!(sync(&table("name", ["0"; 4])), [true, false, true, true]);
    assert_eq!(sync(&table("sync", ["0"; 4])), [true, false, false, false]);
    assert_eq!(sync(&table("sync", ["", "true", "", ""])), [true, true, true, true]);
    let wrong = table("sync", ["0", "x", "0", "0"]);
    let error = read("t", wrong.as_bytes()).find_map(Result::err).unwrap().to_string();
    assert_eq!(error, "t:3:11: malformed field: expected 0, 1, true or false, found `x`");
}

#[test]
fn what_stops_the_reading_stops_the_writing() {
    let text = "0 0 0 8 1\n1000 0 8 8 0\n2000 0 x 8 0\n";
    let options = TraceOptions { format: Some(Format::Mqsim), ..TraceOptions::default() };
    let input = Box::new(Cursor::new(text.as_bytes()));
    let mut reader = TraceReader::from_read("t", input, &options).unwrap();
    let error = write_csv(&mut reader, &mut Vec::new(), true).unwrap_err();
    assert!(matches!(&error, WriteError::Trace(e) if e.to_string().contains("t:3:8")), "{error}");
}

#[test]
fn parquet_is_refused_with_what_converts_it() {
    let input = Box::new(Cursor::new(b"PAR1\x15\x04\x15".to_vec()));
    let error = TraceReader::from_read("d/vm.parquet", input, &TraceOptions::default());
    let error = error.err().unwrap();
    let says = |error: &TraceError, path: &str| {
        let line = format!(
            "python3 -c \"import seekway; seekway.write_trace('{path}', '{path}.csv.gz')\""
        );
        let text = error.to_string();
        let begins = text.starts_with(&format!("{path}: Parquet,"));
        assert!(begins && text.ends_with(&line), "{text}");
    };
    says(&error, "d/vm.parquet");
    says(&error.renamed("stdin"), "stdin");
}
