//! Traces that the kernel fixture does not contain: version 8, the other byte order, payloads and
//! notify events, a preflush with data, requests that are traced twice, damage.

use crate::blktrace;
use blktrace::*;
use seekway_core::request::Op;
use seekway_workload::traces::{
    BlktraceEvent, Reason, Record, TraceError, TraceFiles, TraceOptions, TraceReader, expand, scan,
};
use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn reader(bytes: Vec<u8>, options: &TraceOptions) -> TraceReader {
    TraceReader::from_read("trace", Box::new(Cursor::new(bytes)), options).unwrap()
}

fn read(bytes: Vec<u8>) -> Vec<Record> {
    reader(bytes, &TraceOptions::default()).map(|r| r.unwrap()).collect()
}

/// Operation, sync, sector and length of the requests: the same in both versions of the protocol
/// and both byte orders.
fn ops(events: &[Event]) -> Vec<(Op, bool, u64, u64)> {
    let records = read(stream(events));
    for big in [false, true] {
        assert_eq!(read(events.iter().flat_map(|e| e.bytes(big)).collect()), records);
        assert_eq!(read(events.iter().flat_map(|e| e.bytes2(big)).collect()), records);
    }
    records.iter().map(|r| (r.op, r.sync, r.start.get(), r.len.get())).collect()
}

/// Sectors of the requests by one kind of event, and the notes.
fn by(event: Option<BlktraceEvent>, events: &[Event]) -> (Vec<u64>, Vec<String>) {
    let options = TraceOptions { blktrace_event: event, ..TraceOptions::default() };
    let mut reader = reader(stream(events), &options);
    let sectors = reader.by_ref().map(|r| r.unwrap().start.get()).collect();
    (sectors, reader.notes())
}

#[test]
fn categories_become_operations() {
    assert_eq!(ops(&[Event::with(READ)]), [(Op::Read, true, 64, 8)]);
    assert_eq!(ops(&[Event::with(WRITE)]), [(Op::Write, false, 64, 8)]);
    assert_eq!(ops(&[Event::with(WRITE | SYNC)]), [(Op::Write, true, 64, 8)]);
    assert_eq!(ops(&[Event::with(WRITE | DISCARD)]), [(Op::Discard, false, 64, 8)]);
    let barrier = Event::with(WRITE | FLUSH | SYNC);
    assert_eq!(
        ops(std::slice::from_ref(&barrier)),
        [(Op::Flush, true, 0, 0), (Op::Write, true, 64, 8)]
    );
    assert_eq!(ops(&[Event { bytes: 0, ..barrier }]), [(Op::Flush, true, 0, 0)]);
}

/// Version 8 has categories that do not fit in version 7.
#[test]
fn categories_of_version_8() {
    let events = [
        Event::with(WRITE | WRITE_ZEROES),
        Event::with(WRITE | ZONE_APPEND),
        Event { bytes: 0, ..Event::with(WRITE | ZONE_RESET) },
        Event::with(WRITE | ZONE_CLOSE),
        Event::with(READ),
    ];
    for big in [false, true] {
        let bytes: Vec<u8> = events.iter().flat_map(|e| e.bytes2(big)).collect();
        let mut reader = reader(bytes, &TraceOptions::default());
        let ops: Vec<Op> = reader.by_ref().map(|r| r.unwrap().op).collect();
        assert_eq!(ops, [Op::WriteZeroes, Op::Write, Op::Read]);
        let notes = reader.notes().join("\n");
        assert!(notes.contains("2 zone operations left out"), "{notes}");
        assert!(notes.contains("1 zone appends"), "{notes}");
    }
}

#[test]
fn notify_events_and_payloads_are_passed_over() {
    let payload = vec![0xaa; 16];
    let process_name = Event { payload: payload.clone(), ..Event::of(0, NOTIFY) };
    let clock = Event { payload: payload.clone(), ..Event::of(1, NOTIFY) };
    let remap = Event { payload, ..Event::of(15, QUEUE) };
    let cgroup = Event { payload: vec![1; 8], ..Event::of(1 | CGROUP, QUEUE | READ) };
    assert_eq!(ops(&[process_name, clock, remap, cgroup]), [(Op::Read, true, 64, 8)]);
}

#[test]
fn records_without_data_are_counted_and_left_out() {
    let (sectors, notes) =
        by(None, &[Event { bytes: 0, ..Event::with(WRITE) }, queued(), queued().at(1, 8)]);
    assert_eq!((sectors, notes), (vec![8, 64], vec!["1 requests without data left out".into()]));
}

#[test]
fn events_that_blktrace_lost_are_counted() {
    let event = |cpu, number| Event { cpu, number, ..queued().at(u64::from(number), 8) };
    let whole = [event(0, 7), event(1, 1), event(1, 2), event(0, 8), Event::of(0, NOTIFY)];
    assert_eq!(by(None, &whole), (vec![8; 4], vec![]));
    let (_, notes) = by(None, &[&whole[..], &[event(0, 12), event(1, 4), event(0, 3)]].concat());
    assert!(notes.len() == 1 && notes[0].starts_with("4 events are missing"), "{notes:?}");
    // The number of a notify event is what the kernel's buffer held before.
    let name = Event { number: 1_627_389_941, ..Event::of(0, NOTIFY) };
    let (_, notes) = by(None, &[event(0, 1), name.clone(), event(0, 2), name, event(0, 4)]);
    assert!(notes.len() == 1 && notes[0].starts_with("1 events are missing"), "{notes:?}");
}

/// The events of one request of 4 KiB, all of them.
fn life(start: u64, sector: u64) -> Vec<Event> {
    let queue = [1, 4, 12].map(|action| Event::of(action, QUEUE | READ));
    let rest = [Event::of(7, ISSUE | READ), Event::of(8, COMPLETE | READ)];
    let all = queue.into_iter().chain(rest).zip(0..);
    all.map(|(event, n)| event.at(start + n * 10, sector)).collect()
}

#[test]
fn the_events_that_there_are_become_the_requests() {
    let lives: Vec<Event> = (0..5).flat_map(|n| life(n * 1000, n * 8)).collect();
    let only = |actions: &[u64]| -> Vec<Event> {
        lives.iter().filter(|e| actions.contains(&(e.action & 0xff))).cloned().collect()
    };
    let all = vec![0, 8, 16, 24, 32];
    assert_eq!(by(None, &lives), (all.clone(), vec![]));
    assert_eq!(by(None, &only(&[1])), (all.clone(), vec![]));
    for (actions, said) in [(&[7, 8][..], "issue events (D)"), (&[7], "(D)"), (&[8], "(C)")] {
        let (sectors, notes) = by(None, &only(actions));
        assert_eq!(sectors, all);
        assert!(notes.len() == 1 && notes[0].contains(said), "{notes:?}");
    }
    // Completions of requests that were under way come before the first queue event.
    let (sectors, notes) = by(None, &lives[3..]);
    assert_eq!((&sectors[..], notes), (&all[1..], vec![]));
    // What is asked for is not said again.
    for event in BlktraceEvent::ALL {
        assert_eq!(by(Some(event), &lives), (all.clone(), vec![]), "{event:?}");
    }
    let options =
        TraceOptions { blktrace_event: Some(BlktraceEvent::Queued), ..TraceOptions::default() };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), stream(&only(&[7, 8]))).unwrap();
    let error = seekway_workload::traces::scan(file.path(), &options).unwrap_err();
    let said = "its events are 5 issue (D), 5 complete (C): take them by --event issue or complete";
    assert!(
        matches!(error, TraceError::Empty { .. }) && error.to_string().ends_with(said),
        "{error}"
    );
}

#[test]
fn a_trace_whose_queue_events_come_late_is_not_guessed() {
    let mut events: Vec<Event> =
        (0..40_000).map(|n| Event::of(8, COMPLETE | READ).at(n, n * 8)).collect();
    events.push(queued().at(50_000, 0));
    let error = reader(stream(&events), &TraceOptions::default()).find_map(Result::err).unwrap();
    assert!(error.to_string().contains("--event complete or --event queue"), "{error}");
    assert_eq!(by(Some(BlktraceEvent::Completed), &events).0.len(), 40_000);
    assert_eq!(by(Some(BlktraceEvent::Queued), &events).0, [0]);
}

#[test]
fn a_request_that_was_split_or_remapped_or_requeued_is_taken_once() {
    let (dm, disk) = (253 << 20, 8 << 20);
    let queue = |time, device, sector, bytes| Event { device, bytes, ..queued().at(time, sector) };
    let split = |time, sector, rest: u64| Event {
        bytes: 4096,
        payload: rest.to_be_bytes().into(),
        device: disk,
        ..Event::of(13, 0).at(time, sector)
    };
    let remap = |time, from: u32, sector| {
        let payload = [&from.to_be_bytes()[..], &[0; 12]].concat();
        Event { payload, device: disk, ..Event::of(15, QUEUE | READ).at(time, sector) }
    };
    let repeated = |n: u64| format!("{n} events left out that repeat a request");
    let check = |events: &[Event], event, sectors: &[u64], n: u64| {
        let (found, notes) = by(event, events);
        assert_eq!(found, sectors);
        assert!(notes.iter().any(|note| note.starts_with(&repeated(n))) || n == 0, "{notes:?}");
        assert_eq!(notes.is_empty(), n == 0, "{notes:?}");
    };
    // Before Linux 4.12 the rest of a split request is queued again, after it is not.
    let old = [queue(1, disk, 0, 16384), split(2, 0, 8), queue(3, disk, 8, 12288)];
    check(&old, None, &[0], 1);
    check(&[&old[..2], &[queue(4, disk, 800, 4096)]].concat(), None, &[0, 800], 0);
    // A payload that begins with a cgroup.
    let mut cgroup = old.clone();
    cgroup[1].action |= CGROUP;
    cgroup[1].payload.splice(..0, [9; 8]);
    check(&cgroup, None, &[0], 1);
    // A partition's request is queued once. A volume's is queued on the disk as well.
    let part = disk + 1;
    check(&[remap(1, part, 2048), queue(2, disk, 2048, 4096)], None, &[2048], 0);
    let volume = [queue(1, dm, 0, 4096), remap(2, dm, 4096), queue(3, disk, 4096, 4096)];
    check(&volume, None, &[0], 1);
    let issue = |time| Event { device: disk, ..Event::of(7, ISSUE | READ).at(time, 8) };
    let requeue = Event { device: disk, ..Event::of(6, READ).at(2, 8) };
    check(&[issue(1), requeue, issue(3), issue(4)], None, &[8, 8], 1);
}

#[test]
fn damage_is_passed_over_to_the_next_record() {
    let mut bytes = queued().bytes(false);
    bytes.extend([0x07, 0x74, 1, 2, 3, 4, 5]);
    bytes.extend(queued().bytes(false));
    bytes.extend([0xff; 200_000]);
    bytes.extend(queued().bytes(false));
    let strict = reader(bytes.clone(), &TraceOptions::default()).find_map(Result::err).unwrap();
    assert!(
        strict.to_string().starts_with("trace: record 2 at byte 48: no magic number"),
        "{strict}"
    );
    let mut lenient = reader(bytes, &TraceOptions { lenient: true, ..TraceOptions::default() });
    assert_eq!(lenient.by_ref().filter(|r| r.is_ok()).count(), 3);
    let skipped = &lenient.stats().skipped;
    assert_eq!((skipped[0].reason, skipped[0].count), (Reason::BadMagic, 2));
}

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
