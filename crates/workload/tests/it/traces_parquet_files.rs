//! Traces in Parquet: what was written is read again, files of others are read, and a damaged
//! file is an error.
#![cfg(feature = "parquet")]

use crate::names;

use arrow_array::types::{Int8Type, UInt16Type};
use arrow_array::*;
use names::{FIXTURES, fixture};
use proptest::prelude::*;
use seekway_core::request::Op;
use seekway_workload::traces::columnar::{self, Batches};
use seekway_workload::traces::{
    Format, Reason, Record, SECTORS_MAX, TraceError, TraceOptions, TraceReader, scan,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const SAMPLES: [&str; 6] = [
    "vm/cloudPhysicsIO.vscsi",
    "host/linux-mysql.load.gz",
    "samples/cloud_storage-sample.bz2",
    "samples/msr-cambridge1-sample.csv",
    "samples/systor17-additional-sample.csv.gz",
    "samples/tpcc-small.trace",
];

/// A file that is removed in the end.
struct Temporary(PathBuf, #[allow(dead_code)] TempDir);

impl Temporary {
    fn with(name: &str, bytes: &[u8]) -> Temporary {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!("{name}.parquet"));
        fs::write(&path, bytes).unwrap();
        Temporary(path, dir)
    }
}

fn open(path: &Path) -> Result<TraceReader, TraceError> {
    TraceReader::open(path, &TraceOptions::default())
}

fn converted(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    columnar::write(columnar::schema(), Batches::new(open(path).unwrap()), &mut bytes).unwrap();
    bytes
}

/// Each request with the name of its volume: numbers go by the file's order, names do not.
fn named(path: &Path) -> Vec<(Record, String)> {
    let mut reader = open(path).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        let name = reader.volume_name(record.volume).to_string();
        all.push((Record { volume: 0, ..record }, name));
    }
    all
}

fn comes_back(path: &Path) {
    let shown = path.display();
    let name = format!("back-{}", path.file_name().unwrap().display());
    let file = Temporary::with(&name, &converted(path));
    assert_eq!(open(&file.0).unwrap().format(), Format::Parquet, "{shown}");
    let (before, after) = (named(path), named(&file.0));
    assert_eq!(before.len(), after.len(), "{shown}");
    for (n, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_eq!(before, after, "{shown}: request {n}");
    }
    let scanned = |path: &Path| {
        let scan = scan(path, &TraceOptions::default()).unwrap();
        let mut volumes = scan.volumes;
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        (volumes, scan.stats.ops, scan.stats.duration)
    };
    assert_eq!(scanned(path), scanned(&file.0), "{shown}");
}

#[test]
fn a_trace_of_each_format_comes_back_as_it_was() {
    FIXTURES.iter().for_each(|name| comes_back(&fixture(name)));
}

#[test]
fn the_samples_come_back_as_they_were() {
    let found = SAMPLES.iter().filter_map(|s| seekway_testing::shared(&format!("traces/{s}")));
    found.for_each(|path| comes_back(&path));
}

/// A file with these columns.
fn with_columns(name: &str, columns: Vec<(&str, ArrayRef)>) -> Temporary {
    let with_null = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(with_null).unwrap();
    let mut bytes = Vec::new();
    columnar::write(batch.schema(), std::iter::once(Ok(batch)), &mut bytes).unwrap();
    Temporary::with(name, &bytes)
}

fn numbers(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn texts(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

#[test]
fn bytes_timestamps_dictionaries_and_numbers_as_names() {
    let times = TimestampMicrosecondArray::from(vec![1_700_000_000_000_000, 1_700_000_000_000_005]);
    let ops: DictionaryArray<Int8Type> = ["W", "r"].into_iter().collect();
    let file = with_columns(
        "bytes",
        vec![
            ("host", texts(&[Some("a"), None])),
            ("time_ns", Arc::new(times.with_timezone("UTC"))),
            ("op", Arc::new(ops)),
            ("offset_bytes", numbers(&[Some(100), Some(1024)])),
            ("size_bytes", numbers(&[Some(512), Some(4096)])),
            ("volume", numbers(&[Some(7), Some(8)])),
            ("process", numbers(&[None, Some(3)])),
            ("sync", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ],
    );
    let read = named(&file.0);
    let brief = |(r, volume): &(Record, String)| {
        let place = (r.start.get(), r.len.get());
        (r.at.get(), r.op, place, volume.clone(), r.process, r.sync)
    };
    let read: Vec<_> = read.iter().map(brief).collect();
    let expected = [
        (0, Op::Write, (0, 2), "7".to_string(), 0, true),
        (5000, Op::Read, (2, 8), "8".to_string(), 3, true),
    ];
    assert_eq!(read, expected);
}

#[test]
fn each_column_may_have_any_type_of_its_kind() {
    let text = ["read", "write"];
    let names: [ArrayRef; 7] = [
        Arc::new(StringArray::from_iter_values(text)),
        Arc::new(LargeStringArray::from_iter_values(text)),
        Arc::new(StringViewArray::from_iter_values(text)),
        Arc::new(BinaryArray::from_iter_values(text)),
        Arc::new(LargeBinaryArray::from_iter_values(text)),
        Arc::new(BinaryViewArray::from_iter_values(text)),
        Arc::new(text.into_iter().collect::<DictionaryArray<UInt16Type>>()),
    ];
    let thousands: [ArrayRef; 6] = [
        Arc::new(TimestampSecondArray::from(vec![0, 3])),
        Arc::new(TimestampMillisecondArray::from(vec![0, 3000])),
        Arc::new(TimestampNanosecondArray::from(vec![0, 3_000_000_000])),
        Arc::new(DurationSecondArray::from(vec![7, 10])),
        Arc::new(DurationMicrosecondArray::from(vec![7, 3_000_007])),
        Arc::new(UInt32Array::from(vec![0, 3_000_000_000])),
    ];
    let small: [ArrayRef; 6] = [
        Arc::new(Int8Array::from(vec![8, 100])),
        Arc::new(Int16Array::from(vec![8, 100])),
        Arc::new(Int32Array::from(vec![8, 100])),
        Arc::new(UInt8Array::from(vec![8, 100])),
        Arc::new(UInt16Array::from(vec![8, 100])),
        Arc::new(UInt64Array::from(vec![8, 100])),
    ];
    let flags: [ArrayRef; 2] = [
        Arc::new(BooleanArray::from(vec![Some(true), None])),
        Arc::new(Int8Array::from(vec![Some(1), None])),
    ];
    for n in 0..7 {
        let file = with_columns(
            &format!("kinds-{n}"),
            vec![
                ("time_ns", thousands[n % 6].clone()),
                ("op", names[n].clone()),
                ("start_sector", small[n % 6].clone()),
                ("sectors", small[(n + 1) % 6].clone()),
                ("sync", flags[n % 2].clone()),
            ],
        );
        let brief = |(r, _): &(Record, String)| (r.at.get(), r.op, r.start.get(), r.len.get());
        let read: Vec<_> = named(&file.0).iter().map(brief).collect();
        let expected = [(0, Op::Read, 8, 8), (3_000_000_000, Op::Write, 100, 100)];
        assert_eq!(read, expected, "kind {n}");
    }
    for (column, kind) in [("time_ns", "Float64"), ("op", "Boolean"), ("sync", "Utf8")] {
        let of = |name: &str, sound: &ArrayRef, other: ArrayRef| match name == column {
            true => other,
            false => sound.clone(),
        };
        let file = with_columns(
            &format!("no-{column}"),
            vec![
                (
                    "time_ns",
                    of("time_ns", &thousands[0], Arc::new(Float64Array::from(vec![0.; 2]))),
                ),
                ("op", of("op", &names[0], flags[0].clone())),
                ("start_sector", small[0].clone()),
                ("sectors", small[0].clone()),
                ("sync", of("sync", &flags[0], names[0].clone())),
            ],
        );
        let error = open(&file.0).unwrap().find_map(Result::err).unwrap().to_string();
        assert!(error.contains(&format!("column {column} has the type {kind}")), "{error}");
    }
}

#[test]
fn an_unusable_row_is_named_and_can_be_skipped() {
    let far = SECTORS_MAX as i64;
    /// Time, operation, place and length, and what is wrong with it.
    type Row = (Option<i64>, Option<&'static str>, Option<i64>, Option<i64>, Option<Reason>);
    let rows: [Row; 8] = [
        (Some(0), Some("read"), Some(0), Some(8), None),
        (None, Some("read"), Some(0), Some(8), Some(Reason::Missing)),
        (Some(-1), Some("read"), Some(0), Some(8), Some(Reason::Negative)),
        (Some(1), None, Some(0), Some(8), Some(Reason::Missing)),
        (Some(1), Some("erase"), Some(0), Some(8), Some(Reason::UnknownOp)),
        (Some(1), Some("write"), Some(0), Some(0), Some(Reason::ZeroLength)),
        (Some(1), Some("write"), Some(far), Some(1), Some(Reason::Overflow)),
        (Some(2), Some("flush"), None, None, None),
    ];
    let file = with_columns(
        "rows",
        vec![
            ("time_ns", numbers(&rows.map(|r| r.0))),
            ("op", texts(&rows.map(|r| r.1))),
            ("start_sector", numbers(&rows.map(|r| r.2))),
            ("sectors", numbers(&rows.map(|r| r.3))),
        ],
    );
    let error = open(&file.0).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(error.contains(": row 2: missing field: expected time_ns"), "{error}");
    let lenient = TraceOptions { lenient: true, ..TraceOptions::default() };
    let scanned = scan(&file.0, &lenient).unwrap();
    assert_eq!(scanned.stats.requests(), 2);
    let mut skipped: Vec<_> = scanned.stats.skipped.iter().map(|s| (s.reason, s.count)).collect();
    skipped.sort();
    use Reason::{Missing, Negative, Overflow, UnknownOp, ZeroLength};
    let expected = [(Missing, 2), (Negative, 1), (Overflow, 1), (ZeroLength, 1), (UnknownOp, 1)];
    assert_eq!(skipped, expected);
}

#[test]
fn what_cannot_be_read_says_why() {
    let error = |file: &Temporary| open(&file.0).err().unwrap().to_string();
    let one = || numbers(&[Some(1)]);
    let no_op = with_columns("no-op", vec![("time_ns", one()), ("sectors", one())]);
    assert!(
        error(&no_op).contains("has a column op; this has time_ns, sectors"),
        "{}",
        error(&no_op)
    );
    let no_place = vec![("time_ns", one()), ("op", texts(&[Some("read")])), ("sectors", one())];
    let no_place = with_columns("no-place", no_place);
    assert!(error(&no_place).contains("start_sector"), "{}", error(&no_place));
    let bytes = converted(&fixture("fio3.log"));
    let half = Temporary::with("half", &bytes[..bytes.len() / 2]);
    assert!(error(&half).starts_with(&half.0.display().to_string()), "{}", error(&half));
    let stream = Box::new(std::io::Cursor::new(bytes));
    let streamed = TraceReader::from_read("stdin", stream, &TraceOptions::default());
    let streamed = streamed.err().unwrap().to_string();
    assert!(streamed.contains("save it to a file"), "{streamed}");
}

/// As in a CSV; what its name does not say is refused.
#[test]
fn times_have_the_unit_of_their_names() {
    let numbers = || numbers(&[Some(7), Some(9)]);
    let seconds: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 0.502]));
    let stamps: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![7, 9]));
    let of = |name: &str, times: ArrayRef| {
        let ops = texts(&[Some("R"), Some("W")]);
        let columns = vec![
            (name, times),
            ("op", ops),
            ("offset_bytes", numbers()),
            ("size_bytes", numbers()),
        ];
        let file = with_columns(name, columns);
        let reader = open(&file.0).map_err(|e| e.to_string())?;
        let units = reader.units();
        Ok::<_, String>((reader.last().unwrap().unwrap().at.get(), units))
    };
    let milliseconds = (2_000_000, "times in `time_ms`, sectors".to_string());
    assert_eq!(of("time_ms", numbers()), Ok(milliseconds));
    assert_eq!(of("ts_us", numbers()).unwrap().0, 2_000);
    assert_eq!(of("time_s", seconds).unwrap().0, 2_000_000);
    assert_eq!(of("timestamp", stamps).unwrap().0, 2_000_000);
    assert!(of("time", numbers()).unwrap_err().contains("does not say in which unit"));
    assert!(of("when", numbers()).unwrap_err().contains("has a column time_ns"));
}

#[test]
fn numbers_above_2_to_the_63rd_are_too_large() {
    let large: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
    let one = || numbers(&[Some(1)]);
    let columns = vec![
        ("time_ns", one()),
        ("op", texts(&[Some("R")])),
        ("start_sector", large),
        ("sectors", one()),
    ];
    let file = with_columns("large", columns);
    let error = open(&file.0).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("row 1: number too large"), "{error}");
}

/// Read to the end in both modes: records within the limits, or an error.
fn survives(name: &str, bytes: &[u8]) {
    let file = Temporary::with(name, bytes);
    for lenient in [false, true] {
        let options = TraceOptions {
            format: Some(Format::Parquet),
            lenient,
            limit: Some(10_000),
            ..TraceOptions::default()
        };
        let Ok(reader) = TraceReader::open(&file.0, &options) else { continue };
        for record in reader.map_while(Result::ok) {
            assert!(record.len.get() > 0 || record.op == Op::Flush);
            assert!(record.start.get() + record.len.get() <= SECTORS_MAX);
        }
    }
}

fn a_file() -> &'static [u8] {
    static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    BYTES.get_or_init(|| converted(&fixture("kernel-loop.blktrace")))
}

/// Cut short at every place, and with a changed bit in every byte, of a trace of three volumes.
#[test]
fn a_damaged_file_never_panics() {
    let sound = converted(&fixture("msr.csv"));
    for at in 0..sound.len() {
        let cut = Temporary::with("cut", &sound[..at]);
        assert!(open(&cut.0).is_err(), "cut at {at}");
        let mut changed = sound.clone();
        changed[at] ^= 1 << (at % 8);
        survives("changed", &changed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn flipped_bits_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
    ) {
        let mut bytes = a_file().to_vec();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        survives("flipped", &bytes);
    }

    #[test]
    fn other_bytes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = a_file().to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        survives("changed", &bytes);
    }
}
