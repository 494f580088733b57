//! Traces that the kernel fixture does not contain: version 8, the other byte order, payloads and
//! notify events, a preflush with data, requests that are traced twice, damage.

use crate::blktrace;

use blktrace::*;
use seekway_core::request::Op;
use seekway_workload::traces::{
    BlktraceEvent, Reason, Record, TraceError, TraceOptions, TraceReader,
};
use std::io::Cursor;

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
