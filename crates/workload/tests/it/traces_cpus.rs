//! A blktrace with a file for each CPU: which names stand for it, and how they are merged.

use crate::blktrace;

use blktrace::*;
use seekway_workload::traces::{Record, TraceFiles, TraceOptions, TraceReader, expand, scan};
use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn open(path: &Path) -> TraceReader {
    let reader = TraceReader::open(path, &TraceOptions::default());
    reader.unwrap_or_else(|e| panic!("{e}"))
}

fn records(path: &Path) -> Vec<Record> {
    open(path).map(|r| r.unwrap()).collect()
}

fn notes(path: &Path) -> Vec<String> {
    scan(path, &TraceOptions::default()).unwrap().notes
}

/// A folder with files of `CPU` and the time and sector of its requests.
fn folder(base: &str, cpus: &[(u32, &[u64])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (cpu, requests) in cpus {
        write(folder.path(), &format!("{base}.{cpu}"), *cpu, requests);
    }
    folder
}

fn write(folder: &Path, name: &str, cpu: u32, requests: &[u64]) {
    let event = |n: &u64| Event { cpu, ..queued().at(*n * 1000, *n) };
    let events: Vec<Event> = requests.iter().map(event).collect();
    fs::write(folder.join(name), stream(&events)).unwrap();
}

/// The sectors of the requests in the order of time.
fn sectors(path: &Path) -> Vec<u64> {
    records(path).iter().map(|r| r.start.get()).collect()
}

/// The kernel's trace, taken apart by CPU as `blktrace` writes it, reads the same as in one
/// stream, by any of its names.
#[test]
fn the_files_of_all_cpus_are_read_by_any_of_their_names() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kernel-loop.blktrace");
    let whole = fs::read(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut files = [Vec::new(), Vec::new()];
    let mut at = 0;
    while at < whole.len() {
        let record = &whole[at..];
        let end = 48 + usize::from(u16::from_le_bytes([record[46], record[47]]));
        files[usize::from(record[40])].extend_from_slice(&record[..end]);
        at += end;
    }
    let file = |name: &str| folder.path().join(name);
    for (cpu, bytes) in files.iter().enumerate() {
        fs::write(file(&format!("sda.blktrace.{cpu}")), bytes).unwrap();
    }
    fs::write(file("sda.blktrace.2"), b"").unwrap();
    for other in ["sda.txt", "sda.blktrace.0.md5", "sda.blktrace.old", "sda2.blktrace.0.txt"] {
        fs::write(file(other), b"no part of it").unwrap();
    }
    let expected: Vec<Record> = TraceReader::from_read(
        "sda",
        Box::new(Cursor::new(&*whole.leak())),
        &TraceOptions::default(),
    )
    .unwrap()
    .map(|r| r.unwrap())
    .collect();
    let names = [
        "sda",
        "sda.blktrace",
        "sda.blktrace.",
        "sda.blktrace.0",
        "sda.blktrace.1",
        "sda.blktrace.2",
        "sda.blktrace.[0-9]",
        "sda.blktrace.?",
    ];
    for name in names {
        assert_eq!(records(&file(name)), expected, "{name}");
    }
    let one = format!("read with the other CPUs' files beside it, {} in all", 3);
    assert_eq!(notes(&file("sda.blktrace.1")), [one]);
    assert_eq!(notes(&file("sda")), [""; 0]);
    fs::write(file("sda.blktrace.1"), &files[1][..60]).unwrap();
    let message = open(&file("sda.blktrace.0")).find_map(Result::err).unwrap().to_string();
    assert!(
        message.contains("truncated record") && message.contains("sda.blktrace.1)"),
        "{message}"
    );
}

#[test]
fn cpus_are_in_the_order_of_their_numbers_and_missing_ones_are_named() {
    let cpus: Vec<(u32, &[u64])> =
        vec![(0, &[8, 80]), (2, &[16]), (10, &[24, 72]), (100, &[32]), (127, &[40, 96])];
    let folder = folder("nvme0n1.blktrace", &cpus);
    let path = folder.path().join("nvme0n1");
    assert_eq!(sectors(&path), [8, 16, 24, 32, 40, 72, 80, 96]);
    assert_eq!(notes(&path), ["no file of CPU 1 and of 122 others: its requests are missing"]);
    let found = TraceFiles::find(&path, None).unwrap();
    let names: Vec<_> = found.files.iter().map(|f| f.extension().unwrap().to_owned()).collect();
    assert_eq!(names, ["0", "2", "10", "100", "127"]);
    let one = self::folder("e.blktrace", &[(1, &[8])]);
    let said = "no file of CPU 0: its requests are missing";
    assert_eq!(notes(&one.path().join("e.blktrace.1")), [said]);
    // Of equal times, the lower CPU comes first.
    let folder = self::folder("e.blktrace", &[(0, &[8]), (9, &[8]), (10, &[8])]);
    for file in [9, 10] {
        let event = Event { cpu: file, ..queued().at(8000, u64::from(file)) };
        fs::write(folder.path().join(format!("e.blktrace.{file}")), event.bytes(false)).unwrap();
    }
    assert_eq!(sectors(&folder.path().join("e")), [8, 9, 10]);
}

#[test]
fn files_may_be_packed_and_of_either_version_and_byte_order() {
    let folder = folder("v.blktrace", &[(0, &[8, 40])]);
    let file = |name: &str| folder.path().join(name);
    fs::write(file("v.blktrace.1"), queued().at(16_000, 16).bytes(true)).unwrap();
    fs::write(file("v.blktrace.2"), queued().at(24_000, 24).bytes2(false)).unwrap();
    let mut packed = Vec::new();
    let bytes = queued().at(32_000, 32).bytes2(true);
    flate2::read::GzEncoder::new(&*bytes, flate2::Compression::new(6))
        .read_to_end(&mut packed)
        .unwrap();
    fs::write(file("v.blktrace.3.gz"), &packed).unwrap();
    for name in ["v", "v.blktrace.0", "v.blktrace.3.gz"] {
        assert_eq!(sectors(&file(name)), [8, 16, 24, 32, 40], "{name}");
    }
    // The same CPU twice is read once: the file that was named, or the one that is not packed.
    write(folder.path(), "v.blktrace.3", 3, &[48]);
    for (name, last) in [("v", [40, 48]), ("v.blktrace.3", [40, 48]), ("v.blktrace.3.gz", [32, 40])]
    {
        assert_eq!(sectors(&file(name))[3..], last, "{name}");
        let notes = notes(&file(name));
        assert!(notes.iter().any(|n| n.contains("is not read")), "{name}: {notes:?}");
    }
    // A packed file that is damaged is named.
    fs::write(file("v.blktrace.4.gz"), &packed[..packed.len() - 9]).unwrap();
    let error = open(&file("v")).find_map(Result::err).unwrap().to_string();
    assert!(error.contains("v.blktrace.4.gz: gzip data truncated"), "{error}");
}

/// Any trace may be called `NAME.1`. The records say whether it is one CPU's.
#[test]
fn names_without_blktrace_are_told_by_their_records() {
    let folder = folder("t", &[(0, &[8]), (1, &[16])]);
    let file = |name: &str| folder.path().join(name);
    for name in ["t", "t.0", "t.1"] {
        assert_eq!(sectors(&file(name)), [8, 16], "{name}");
    }
    write(folder.path(), "run.1", 0, &[8]);
    write(folder.path(), "run.2", 0, &[16]);
    assert_eq!(sectors(&file("run.1")), [8]);
    assert_eq!(sectors(&file("run.2")), [16]);
    fs::write(file("t.2"), "1,2,3").unwrap();
    assert_eq!(sectors(&file("t.0")), [8, 16]);
    // The files that blktrace names so come before others.
    write(folder.path(), "t.blktrace.0", 0, &[24]);
    assert_eq!(sectors(&file("t")), [24]);
}

#[test]
fn a_pattern_is_one_trace_or_refused() {
    let folder = folder("a.blktrace", &[(0, &[8]), (1, &[16])]);
    let file = |name: &str| folder.path().join(name);
    assert_eq!(sectors(&file("a.*")), [8, 16]);
    write(folder.path(), "b.blktrace.0", 0, &[24]);
    let error = |name: &str| {
        let opened = TraceReader::open(&file(name), &TraceOptions::default());
        opened.err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(error("*.blktrace.0").contains("name one trace"), "{}", error("*.blktrace.0"));
    assert!(error("c*").contains("no file has a name like this"), "{}", error("c*"));
    assert!(error("c").contains("No such file"), "{}", error("c"));
    let found: Vec<PathBuf> = expand(&file("*.blktrace.*")).unwrap();
    assert_eq!(found.len(), 3);
    // A file with such a name is itself.
    write(folder.path(), "a[0].bin", 0, &[32]);
    assert_eq!(sectors(&file("a[0].bin")), [32]);
}
