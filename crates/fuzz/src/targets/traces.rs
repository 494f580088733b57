//! Traces in all formats, packed or not. The first byte chooses the format, or its detection; with
//! its highest bit the first line is a list of columns. Records keep to the limits and to the order
//! of time, and strict reading gives the same as lenient reading, up to the first error.

use crate::Target;
use seekway_workload::traces::{
    Format, REQUEST_SECTORS_MAX, Record, SECTORS_MAX, TraceError, TraceOptions, TraceReader,
    VOLUME_NAME_BYTES_MAX, VOLUMES_MAX,
};
use std::io::Cursor;

/// A packed trace may be long.
const RECORDS_MAX: u64 = 10_000;

pub const TARGET: Target = Target {
    name: "traces",
    run,
    // The dictionary of xz (256 MiB), and a decoder's own. Nothing of it is touched unless used.
    heap_bytes_max: 320 << 20,
    test_runs: 60_000,
    words: &[
        b"\n",
        b",",
        b"Read",
        b"Write",
        b" ",
        b"18446744073709551615",
        b"-1",
        b"0",
        b"fio version 3 iolog\n",
        b"\x1f\x8b\x08",
        b"BZh9",
        b"\xfd7zXZ\0",
        b"\x28\xb5\x2f\xfd",
        b"\x50\x2a\x4d\x18",
        b"\x07tae",
        b"\x08tae",
        b".5",
        b";",
        b"\"",
        b"\t",
        b"|",
        b" + ",
        b"Q",
        b"FWS",
        b"block:block_rq_issue: ",
        b"TIME(s) COMM PID DISK T SECTOR BYTES",
        b"time_us,op,offset,size,volume",
        b"%T.%t %d %S %N\n",
        b"1e-5",
        b"0x",
    ],
};

fn run(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else { return };
    // The kept inputs name formats by their numbers.
    let formats: Vec<Format> = Format::all().collect();
    // The number of the detection among the kept inputs, too.
    const DETECT: usize = 12;
    let (columns, bytes) = match bytes.iter().position(|b| *b == b'\n') {
        Some(end) if choice & 0x80 != 0 => (Some(&bytes[..end]), &bytes[end + 1..]),
        _ => (None, bytes),
    };
    let format = match usize::from(choice & 0x7f) % (formats.len() + 1) {
        _ if columns.is_some() => None,
        DETECT => None,
        choice => formats.get(choice - usize::from(choice > DETECT)).copied(),
    };
    let mut options = TraceOptions {
        format,
        columns: columns.map(|text| String::from_utf8_lossy(text).into_owned()),
        limit: Some(RECORDS_MAX),
        ..TraceOptions::default()
    };
    let (strict, error) = read(bytes, &options);
    options.lenient = true;
    let (lenient, lenient_error) = read(bytes, &options);
    assert!(lenient.starts_with(&strict), "{strict:?} is not the beginning of {lenient:?}");
    match error {
        None => assert_eq!((strict.len(), lenient_error.is_none()), (lenient.len(), true)),
        Some(TraceError::Record { .. }) => {}
        Some(error) => assert_eq!(Some(error.to_string()), lenient_error.map(|e| e.to_string())),
    }
}

fn read(bytes: &[u8], options: &TraceOptions) -> (Vec<Record>, Option<TraceError>) {
    let input = Box::new(Cursor::new(bytes.to_vec()));
    let mut reader = match TraceReader::from_read("trace", input, options) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut records: Vec<Record> = Vec::new();
    loop {
        match reader.next_record() {
            Ok(None) => break,
            Ok(Some(record)) => {
                assert!(records.last().is_none_or(|last| last.at <= record.at), "time goes back");
                assert!(record.len.get() <= REQUEST_SECTORS_MAX);
                assert!(record.start.get() + record.len.get() <= SECTORS_MAX);
                assert!((record.volume as usize) < VOLUMES_MAX);
                let name = reader.volume_name(record.volume);
                assert!(!name.is_empty() && name.len() <= VOLUME_NAME_BYTES_MAX, "{name:?}");
                records.push(record);
            }
            Err(error) => {
                assert!(
                    matches!(reader.next_record(), Ok(None)),
                    "a trace goes on behind an error"
                );
                let is_of_record = matches!(error, TraceError::Record { .. });
                assert!(!(options.lenient && is_of_record), "lenient: {error}");
                return (records, Some(error));
            }
        }
    }
    assert!(records.len() as u64 <= RECORDS_MAX);
    (records, None)
}
