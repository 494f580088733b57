//! Damaged traces: a message with the place in strict mode, a count in lenient
//! mode, and a panic never.

use crate::names;

use expect_test::{Expect, expect};
use names::{FIXTURES, fixture};
use proptest::prelude::*;
use seekway_core::units::Nanos;
use seekway_workload::traces::{Format, TraceError, TraceOptions, TraceReader};
use std::io::{Cursor, Read as _};
use std::path::Path;

fn open(bytes: &[u8], options: &TraceOptions) -> Result<TraceReader, TraceError> {
    TraceReader::from_read("trace", Box::new(Cursor::new(bytes.to_vec())), options)
}

/// The first error of each of these read in its format, then the lenient counts.
fn check(cases: &[(Format, &[u8])], expected: Expect) {
    let text: String = cases.iter().map(|&(format, bytes)| faults(format, bytes)).collect();
    expected.assert_eq(&text);
}

fn faults(format: Format, bytes: &[u8]) -> String {
    let mut options = TraceOptions { format: Some(format), ..TraceOptions::default() };
    let failed = open(bytes, &options).unwrap().find_map(Result::err);
    let mut text = failed.map_or("no error".into(), |e| e.to_string()) + "\n";
    options.lenient = true;
    let mut reader = open(bytes, &options).unwrap();
    while reader.next_record().unwrap().is_some() {}
    text += &format!("lenient: {} read", reader.stats().requests());
    for skipped in &reader.stats().skipped {
        text += &format!(", {} {}", skipped.count, skipped.reason);
    }
    text + "\n"
}

#[test]
fn text_faults_have_line_and_column() {
    let good = b"130000000000000000,a,0,Read,4096,512,1\n";
    let bad: [&[u8]; 11] = [
        b"130000000000000000,a,0,Read,4096",
        b"130000000000000000,a,0,Reed,4096,512,1",
        b"130000000000000000,a,0,Read,-4096,512,1",
        b"130000000000000000,a,0,Read,4096,0,1",
        b"130000000000000000,a,0,Read,18446744073709551615,512,1",
        b"130000000000000000,a,0,Read,99999999999999999999,512,1",
        b"1300000000000000000,a,0,Read,4096,512,1",
        b"130000000000000000,a,0,Re\0d,4096,512,1",
        b"\xff\xfe\x00\x01\x02",
        b"130000000000000000,a,0,Read,4096,512,1,junk",
        &[b'7'; 5000],
    ];
    let texts = bad.map(|bad| [good, bad, b"\n\n", good].concat());
    check(
        &texts.each_ref().map(|text| (Format::Msr, &text[..])),
        expect![[r#"
            trace:2:33: missing field: expected a comma, found the end of the line
            lenient: 2 read, 1 missing field
            trace:2:24: unknown operation: expected an operation: R, W, Read or Write, found `Reed,4096,512,1`
            lenient: 2 read, 1 unknown operation
            trace:2:29: negative number: expected an offset in bytes, found `-4096,512,1`
            lenient: 2 read, 1 negative number
            trace:2:29: zero length: expected a length in bytes, not zero, found `4096,0,1`
            lenient: 2 read, 1 zero length
            trace:2:29: number too large: expected a length in bytes, not zero, found `18446744073709551615,512,1`
            lenient: 2 read, 1 number too large
            trace:2:29: number too large: expected an offset in bytes, found `99999999999999999999,512,1`
            lenient: 2 read, 1 number too large
            trace:2:1: number too large: expected a time below 584 years, found `1300000000000000000,a,0,Read,409…`
            lenient: 2 read, 1 number too large
            trace:2:26: binary bytes in text: expected an operation: R, W, Read or Write, found `\x00d,4096,512,1`
            lenient: 2 read, 1 binary bytes in text
            trace:2:1: binary bytes in text: expected a time in units of 100 ns, found `\xff\xfe\x00\x01\x02`
            lenient: 2 read, 1 binary bytes in text
            trace:2:39: malformed field: expected the end of the line, found `,junk`
            lenient: 2 read, 1 malformed field
            trace:2:4097: line too long: expected a line of at most 4096 bytes, found a longer one
            lenient: 2 read, 1 line too long
        "#]],
    );
}

#[test]
fn other_texts() {
    check(
        &[
            (Format::Fio, b"fio version 4 iolog\n/dev/a read 0 512\n"),
            (Format::Fio, b"fio version 2 iolog\n/dev/a rade 0 512\n"),
            (Format::Tencent, b"1,2,3,2,4\n1,2,3,1,4\n"),
            (Format::Disksim, b"R Hot 1 1 1.0 1.0\n"),
            (Format::Blkreplay, b"0.0 ; 1 ; 1 ; R\nprose\n"),
            (Format::Systor, b"1.0,0.1,R,0,7,9e9\n"),
        ],
        expect![[r#"
            trace:1:1: unsupported version: expected fio version 2 iolog or version 3, found `fio version 4 iolog`
            lenient: 0 read, 2 unsupported version
            trace:2:8: unknown operation: expected read, write, trim, sync, datasync, wait, add, open or close, found `rade 0 512`
            lenient: 0 read, 1 unknown operation
            trace:1:7: unknown operation: expected 0 for a read or 1 for a write, found `2,4`
            lenient: 1 read, 1 unknown operation
            trace:1:3: malformed field: expected Hit or Miss, found `Hot 1 1 1.0 1.0`
            lenient: 0 read, 1 malformed field
            trace:2:1: malformed field: expected a time in seconds, found `prose`
            lenient: 1 read, 1 malformed field
            trace:1:16: malformed field: expected a length in bytes, not zero, found `e9`
            lenient: 0 read, 1 malformed field
        "#]],
    );
}

#[test]
fn binary_faults_have_record_and_byte() {
    let mut record = [0u8; 32];
    record[4..8].copy_from_slice(&4096u32.to_le_bytes());
    record[12] = 0x28;
    record[15] = 1;
    let with = |at: usize, value: &[u8]| {
        let mut bad = record;
        bad[at..at + value.len()].copy_from_slice(value);
        [&record[..], &bad, &record].concat()
    };
    check(
        &[
            (Format::Vscsi, &with(15, &[3])),
            (Format::Vscsi, &with(4, &[0; 4])),
            (Format::Vscsi, &with(16, &[0xff; 8])),
            (Format::Vscsi, &with(24, &[0xff; 8])),
            (Format::Vscsi, &with(12, &[0x12])),
            (Format::Vscsi, &[&record[..], &record[..20]].concat()),
            (Format::Blktrace, &record),
        ],
        expect![[r#"
            trace: record 2 at byte 32: unsupported version: expected the version of the first record (1 or 2), found version 3
            lenient: 2 read, 1 unsupported version
            trace: record 2 at byte 32: zero length: expected an extent, found 0 bytes at sector 0
            lenient: 2 read, 1 zero length
            trace: record 2 at byte 32: number too large: expected an extent, found 4096 bytes at sector 18446744073709551615
            lenient: 2 read, 1 number too large
            trace: record 2 at byte 32: number too large: expected a time below 584 years, found 18446744073709551615 microseconds
            lenient: 2 read, 1 number too large
            no error
            lenient: 2 read
            trace: record 2 at byte 32: truncated record: expected a whole record of 32 or 40 bytes, found 20 bytes
            lenient: 1 read, 1 truncated record
            trace: record 1 at byte 0: truncated record: expected a whole record of 48 bytes (version 8: 64), found 32 bytes
            lenient: 0 read, 1 truncated record
        "#]],
    );
}

#[test]
fn packed_data_cut_short_names_the_file() {
    const MEMBERS: usize = 3;
    for name in ["msr.csv.gz", "msr.csv.bz2", "msr.csv.xz", "msr.csv.zst"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        let mut silent = Vec::new();
        for len in 6..whole.len() {
            let options = TraceOptions { lenient: true, ..TraceOptions::default() };
            let reader = open(&whole[..len], &options);
            let failed = match reader {
                Ok(mut reader) => reader.find_map(Result::err),
                Err(e) => Some(e),
            };
            match failed {
                Some(e) => assert!(e.to_string().starts_with("trace: "), "{name}: {e}"),
                None => silent.push(len),
            }
        }
        // Between two members the file is whole.
        assert!(silent.len() <= MEMBERS, "{name} may be cut at {silent:?}");
    }
    let whole = std::fs::read(fixture("msr.csv.gz")).unwrap();
    let cut = open(&whole[..whole.len() - 3], &TraceOptions::default());
    let message = cut.err().unwrap().to_string();
    expect![
        "trace: gzip data truncated or damaged (unexpected end of file); check it with `gzip -t`"
    ]
    .assert_eq(&message);
}

/// `bytes` as a frame of zstd that is not compressed, with a window of 2^`log` bytes.
fn zstd(bytes: &[u8], log: u8) -> Vec<u8> {
    let block = (bytes.len() as u32) << 3 | 1;
    let header = [0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3];
    [&header[..], &block.to_le_bytes()[..3], bytes].concat()
}

fn crc(bytes: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    [bytes, &crc.sum().to_le_bytes()].concat()
}

/// `bytes` in xz, not compressed and not checked, with a dictionary of 2^`log` bytes.
fn xz(bytes: &[u8], log: u8) -> Vec<u8> {
    let pad = |mut bytes: Vec<u8>| {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let head = crc(&[2, 0, 0x21, 1, (log - 12) * 2, 0, 0, 0]);
    let len = (bytes.len() - 1) as u16;
    let block = [&head[..], &[1], &len.to_be_bytes(), bytes, &[0]].concat();
    let varint = |n: usize| [n as u8 | 0x80, (n >> 7) as u8];
    let sizes = [varint(block.len()), varint(bytes.len())].concat();
    let index = crc(&pad([&[0, 1], &sizes[..]].concat()));
    let backward = (index.len() as u32 / 4 - 1).to_le_bytes();
    let mut checked = crc(&[&backward[..], &[0, 0]].concat());
    let sum = checked.split_off(6);
    let magic = [0xfd, b'7', b'z', b'X', b'Z', 0];
    [&magic[..], &crc(&[0, 0]), &pad(block), &index, &sum, &checked, b"YZ"].concat()
}

#[test]
fn large_windows_are_read_and_larger_ones_refused_with_the_command() {
    let plain = std::fs::read(fixture("msr.csv")).unwrap();
    let requests = |bytes: &[u8]| match open(bytes, &TraceOptions::default()) {
        Ok(reader) => Ok(reader.map(Result::unwrap).count()),
        Err(error) => Err(error.to_string()),
    };
    for log in [21, 26, 27] {
        assert_eq!(requests(&zstd(&plain, log)), Ok(4), "zstd, 2^{log}");
        assert_eq!(requests(&xz(&plain, log)), Ok(4), "xz, 2^{log}");
    }
    assert_eq!(requests(&xz(&plain, 28)), Ok(4));
    expect!["trace: zstd: its window of 256 MiB is larger than the 128 MiB that are kept while a trace is read; unpack it first: `zstd -d --long=28 trace`"]
        .assert_eq(&requests(&zstd(&plain, 28)).unwrap_err());
    expect!["trace: zstd: its window of 2048 MiB is larger than the 128 MiB that are kept while a trace is read; unpack it first: `zstd -d --long=31 trace`"]
        .assert_eq(&requests(&zstd(&plain, 31)).unwrap_err());
    // More than zstd itself makes, in a header that has the size in 8 bytes.
    let damaged = [&[0x28, 0xb5, 0x2f, 0xfd, 0xe0][..], &[0xff; 8], &[1, 0, 0]].concat();
    expect!["trace: zstd data truncated or damaged (Specified window_size is too big; Requested: 18446744073709551615, Max: 134217728); check it with `zstd -t`"]
        .assert_eq(&requests(&damaged).unwrap_err());
    expect!["trace: xz: its dictionary is larger than the 256 MiB that are kept while a trace is read; unpack it first: `xz -d trace`"]
        .assert_eq(&requests(&xz(&plain, 29)).unwrap_err());
}

#[test]
fn what_is_packed_in_another_way_is_named() {
    let error = |bytes: &[u8]| open(bytes, &TraceOptions::default()).err().map(|e| e.to_string());
    let rest = [7; 600];
    let said = |magic: &[u8]| error(&[magic, &rest].concat()).unwrap();
    expect!["trace: packed with zip, which is not read: unpack it first, `unzip -p trace`"]
        .assert_eq(&said(b"PK\x03\x04"));
    for (magic, name) in [
        (&b"\x04\x22\x4d\x18"[..], "LZ4, "),
        (b"LZIP", "lzip, "),
        (b"\x89LZO\0", "lzop, "),
        (b"7z\xbc\xaf\x27\x1c", "7-Zip, "),
        (b"\x5d\0\0", "LZMA, "),
        (b"\x1f\x9d", "compress, "),
    ] {
        assert!(said(magic).contains(&format!("packed with {name}")), "{}", said(magic));
    }
    let mut tar = [0; 512];
    tar[..5].copy_from_slice(b"a.csv");
    tar[257..262].copy_from_slice(b"ustar");
    assert!(error(&tar).unwrap().contains("packed with tar"), "{:?}", error(&tar));
    let mut packed = Vec::new();
    flate2::read::GzEncoder::new(&tar[..], flate2::Compression::new(6))
        .read_to_end(&mut packed)
        .unwrap();
    assert!(error(&packed).unwrap().contains("`tar -xOf trace`"), "{:?}", error(&packed));
}

#[test]
fn unknown_empty_and_ambiguous() {
    let text = |error: TraceError| error.to_string();
    let message = |bytes: &[u8]| open(bytes, &TraceOptions::default()).err().map(text);
    expect!["trace: the trace is empty: 0 bytes"].assert_eq(&message(b"").unwrap());
    expect!["trace: trace format not recognised; name it with --input-format: blktrace, vscsi, fio, blkreplay, msr, systor, tencent, alibaba, spc, fiu, mqsim, disksim, blkparse, perf, biosnoop, fio-log, disksim-ascii, oracle-general, cachesim, csv; or list its columns: --columns time_us,op,offset_bytes,size_bytes"].assert_eq(&message(&[0; 4096]).unwrap());
    // Lines of one format that are prose to another, and then a line of that one.
    let msr = "130000000000000000,a,0,Read,4096,512,1\n".repeat(20);
    let both = msr + "0.5 ; 8 ; 8 ; R\n";
    expect!["trace: could be blkreplay or msr: name the right one with --input-format"]
        .assert_eq(&message(both.as_bytes()).unwrap());
}

#[test]
fn fiu_names_with_blanks() {
    let rest = "6 0 00112233445566778899aabbccddeeff";
    let text = format!(
        "1 2 Web Content 8 16 W {rest}\n1 2 a b 8 x W {rest}\n1 2 a b 8 16 X {rest}\n1 2 a b\n"
    );
    check(
        &[(Format::Fiu, text.as_bytes())],
        expect![[r#"
            trace:2:7: malformed field: expected a sector number, found `b 8 x W 6 0 00112233445566778899…`
            lenient: 1 read, 3 malformed field
        "#]],
    );
}

/// A stream that never ends, of one byte over and over.
#[test]
fn what_never_ends_is_refused_at_once() {
    for format in Format::all().map(Some).chain([None]) {
        for byte in [0, b'7', b'a', 0xff] {
            let options = TraceOptions { format, ..TraceOptions::default() };
            let endless = Box::new(std::io::repeat(byte));
            let failed = match TraceReader::from_read("trace", endless, &options) {
                // Prose in front of a blkreplay trace may be a line of any length.
                Ok(mut reader) => reader.next_record().err(),
                Err(e) => Some(e),
            };
            let message = failed.map(|e| e.to_string()).unwrap_or_default();
            assert!(message.starts_with("trace:"), "{format:?} {byte}: `{message}`");
        }
    }
}

#[test]
fn marks_of_windows_do_not_disturb() {
    for name in FIXTURES.into_iter().filter(|n| n.matches('.').count() == 1) {
        let plain = std::fs::read(fixture(name)).unwrap();
        let Ok(text) = String::from_utf8(plain.clone()) else { continue };
        if text.contains('\0') {
            continue; // binary
        }
        let windows = format!("\u{feff}{}", text.replace('\n', "\r\n"));
        let records = |bytes: &[u8]| -> Vec<_> {
            open(bytes, &TraceOptions::default()).unwrap().map(Result::unwrap).collect()
        };
        assert_eq!(records(windows.as_bytes()), records(&plain), "{name}");
        let unended = text.trim_end();
        assert_eq!(records(unended.as_bytes()), records(&plain), "{name} without its last newline");
    }
}

#[test]
fn files_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let message = |path: &Path| {
        let error = TraceReader::open(path, &TraceOptions::default()).err().unwrap().to_string();
        error.replace(folder.to_str().unwrap(), "F")
    };
    expect!["F: cannot open the trace: is a directory"].assert_eq(&message(folder));
    let ring = folder.join("ring");
    std::os::unix::fs::symlink(&ring, &ring).unwrap();
    expect!["F/ring: cannot open the trace: Too many levels of symbolic links (os error 40)"]
        .assert_eq(&message(&ring));
    expect!["F/none: cannot open the trace: No such file or directory (os error 2)"]
        .assert_eq(&message(&folder.join("none")));
}

#[test]
fn limits() {
    let text = b"0 0 1 1 0\n10 0 1 1 0\n1000 0 1 1 0\n1010 0 1 1 0\n";
    let times = |options: TraceOptions| -> Vec<u64> {
        open(text, &options).unwrap().map(|r| r.unwrap().at.get()).collect()
    };
    let d = TraceOptions::default;
    assert_eq!(times(d()), [0, 10, 1000, 1010]);
    assert_eq!(times(TraceOptions { limit: Some(2), ..d() }), [0, 10]);
    assert_eq!(times(TraceOptions { duration_max: Some(Nanos::new(1000)), ..d() }), [0, 10, 1000]);
}

/// Read to the end in both modes; times must not decrease and no request may
/// be empty or overflow.
fn survives(bytes: &[u8], format: Option<Format>) {
    for lenient in [false, true] {
        let options = TraceOptions { format, lenient, ..TraceOptions::default() };
        let Ok(reader) = open(bytes, &options) else { continue };
        let mut last = Nanos::ZERO;
        for record in reader {
            let Ok(r) = record else { break };
            assert!(r.at >= last);
            assert!(r.len.get() > 0 || r.op == seekway_core::request::Op::Flush);
            assert!(r.start.get() + r.len.get() <= seekway_workload::traces::SECTORS_MAX);
            last = r.at;
        }
    }
}

fn any_format() -> impl Strategy<Value = Format> {
    prop::sample::select(Format::all().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        format in prop::option::of(any_format()),
    ) {
        survives(&bytes, format);
    }

    #[test]
    fn text_like_bytes_never_panic(
        text in "[0-9RWDrw,;. \n\t-]{0,200}",
        format in any_format(),
    ) {
        survives(text.as_bytes(), Some(format));
    }

    #[test]
    fn tables_never_panic(
        columns in prop::option::of("[a-z_,%TtdSnNDMmaC. +-]{0,40}"),
        header in prop::sample::select(&[
            "", "time_us,op,offset,size,volume\n", "ts\trw\tlba\tsectors\n",
            "TIME(s) COMM PID DISK T SECTOR BYTES\n",
        ][..]),
        text in "[0-9RWDQFSrw,;\"| \n\t.eEx+-]{0,200}",
    ) {
        let bytes = format!("{header}{text}");
        for lenient in [false, true] {
            let columns = columns.clone();
            let options = TraceOptions { columns, lenient, ..TraceOptions::default() };
            if let Ok(reader) = open(bytes.as_bytes(), &options) {
                let _ = reader.take_while(Result::is_ok).count();
            }
        }
    }

    #[test]
    fn mutated_files_never_panic(
        name in prop::sample::select(&FIXTURES[..]),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..8),
        detect in any::<bool>(),
    ) {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        let format = match TraceReader::open(&fixture(name), &TraceOptions::default()) {
            Ok(reader) if !detect => Some(reader.format()),
            _ => None,
        };
        for (at, value, kind) in edits {
            if bytes.is_empty() { break }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = value,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, value),
            }
        }
        survives(&bytes, format);
    }
}
