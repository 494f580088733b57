//! What the kernel fixture does not contain: a file per CPU, payloads and
//! notify events, the other byte order, a preflush with data, damage.

use seekway_policy::request::Op;
use seekway_workload::traces::{Reason, Record, TraceOptions, TraceReader};
use std::fs;
use std::io::Cursor;
use std::path::Path;

const SYNC: u32 = 1 << 3;
const WRITE: u32 = 1 << 1;
const READ: u32 = 1 << 0;
const FLUSH: u32 = 1 << 2;
const QUEUE: u32 = 1 << 4;
const NOTIFY: u32 = 1 << 10;
const DISCARD: u32 = 1 << 13;

/// A `blk_io_trace` as the kernel lays it out.
#[derive(Clone, Copy)]
struct Event {
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    device: u32,
    payload: u16,
}

const QUEUED: Event = Event {
    time: 1000,
    sector: 64,
    bytes: 4096,
    action: 1 | (QUEUE | READ) << 16,
    device: 8 << 20 | 1,
    payload: 0,
};

impl Event {
    fn with(bits: u32) -> Event {
        Event { action: 1 | (QUEUE | bits) << 16, ..QUEUED }
    }

    fn bytes(self, big: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |value: u64, size: usize| {
            let le = &value.to_le_bytes()[..size];
            if big { out.extend(le.iter().rev()) } else { out.extend(le) }
        };
        put(0x6561_7407, 4);
        put(1, 4);
        put(self.time, 8);
        put(self.sector, 8);
        put(u64::from(self.bytes), 4);
        put(u64::from(self.action), 4);
        put(77, 4);
        put(u64::from(self.device), 4);
        put(0, 4);
        put(0, 2);
        put(u64::from(self.payload), 2);
        out.resize(out.len() + usize::from(self.payload), 0xaa);
        out
    }
}

fn reader(bytes: Vec<u8>, options: &TraceOptions) -> TraceReader {
    TraceReader::from_read("trace", Box::new(Cursor::new(bytes)), options).unwrap()
}

fn read(bytes: Vec<u8>) -> Vec<Record> {
    reader(bytes, &TraceOptions::default()).map(|r| r.unwrap()).collect()
}

fn ops(events: &[Event]) -> Vec<(Op, bool, u64, u64)> {
    for big in [false, true] {
        let bytes = events.iter().flat_map(|e| e.bytes(big)).collect();
        let little = events.iter().flat_map(|e| e.bytes(false)).collect();
        assert_eq!(read(bytes), read(little));
    }
    let records = read(events.iter().flat_map(|e| e.bytes(false)).collect());
    records.iter().map(|r| (r.op, r.sync, r.start.get(), r.len.get())).collect()
}

#[test]
fn categories_become_operations() {
    assert_eq!(ops(&[Event::with(READ)]), [(Op::Read, true, 64, 8)]);
    assert_eq!(ops(&[Event::with(WRITE)]), [(Op::Write, false, 64, 8)]);
    assert_eq!(ops(&[Event::with(WRITE | SYNC)]), [(Op::Write, true, 64, 8)]);
    assert_eq!(ops(&[Event::with(WRITE | DISCARD)]), [(Op::Discard, false, 64, 8)]);
    let barrier = Event::with(WRITE | FLUSH | SYNC);
    assert_eq!(ops(&[barrier]), [(Op::Flush, true, 0, 0), (Op::Write, true, 64, 8)]);
    assert_eq!(ops(&[Event { bytes: 0, ..barrier }]), [(Op::Flush, true, 0, 0)]);
}

#[test]
fn notify_events_and_payloads_are_passed_over() {
    let process_name = Event { payload: 16, ..Event::with(NOTIFY) };
    let remap = Event { action: 15 | QUEUE << 16, payload: 16, ..QUEUED };
    let cgroup = Event { action: 1 | 1 << 8 | (QUEUE | READ) << 16, payload: 8, ..QUEUED };
    assert_eq!(ops(&[process_name, remap, cgroup]), [(Op::Read, true, 64, 8)]);
}

#[test]
fn damage_is_passed_over_to_the_next_record() {
    let mut bytes = QUEUED.bytes(false);
    bytes.extend([0x07, 0x74, 1, 2, 3, 4, 5]);
    bytes.extend(QUEUED.bytes(false));
    bytes.extend([0xff; 200_000]);
    bytes.extend(QUEUED.bytes(false));
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

/// The kernel's trace, taken apart by CPU as `blktrace` writes it, reads the
/// same as in one stream.
#[test]
fn a_file_per_cpu_is_merged_by_time() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kernel-loop.blktrace");
    let whole = fs::read(path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut files = [Vec::new(), Vec::new()];
    let mut at = 0;
    while at < whole.len() {
        let record = &whole[at..];
        let end = 48 + usize::from(u16::from_le_bytes([record[46], record[47]]));
        files[usize::from(record[40])].extend_from_slice(&record[..end]);
        at += end;
    }
    for (cpu, bytes) in files.iter().enumerate() {
        fs::write(folder.path().join(format!("sda.blktrace.{cpu}")), bytes).unwrap();
    }
    fs::write(folder.path().join("sda.blktrace.10"), b"").unwrap();
    fs::write(folder.path().join("sda.txt"), b"no part of it").unwrap();
    for name in ["sda", "sda.blktrace"] {
        let merged =
            TraceReader::open(&folder.path().join(name), &TraceOptions::default()).unwrap();
        let merged: Vec<Record> = merged.map(|r| r.unwrap()).collect();
        assert_eq!(merged, read(whole.clone()), "{name}");
    }
    fs::write(folder.path().join("sda.blktrace.1"), &files[1][..60]).unwrap();
    let mut cut = TraceReader::open(&folder.path().join("sda"), &TraceOptions::default()).unwrap();
    let message = cut.find_map(Result::err).unwrap().to_string();
    assert!(
        message.contains("truncated record") && message.contains("sda.blktrace.1)"),
        "{message}"
    );
}
