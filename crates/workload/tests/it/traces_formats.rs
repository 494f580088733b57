//! Every format against its fixture, as text in `golden/formats.txt`.
//! `UPDATE_EXPECT=1 cargo test -p seekway-workload --test it traces_formats` rewrites it.

use crate::names;

use expect_test::{expect, expect_file};
use names::{FIXTURES, fixture};
use seekway_workload::traces::{BlktraceEvent, Record, TraceOptions, TraceReader, scan};
use std::fmt::Write as _;
use std::path::Path;

fn line(reader: &TraceReader, r: &Record) -> String {
    let sync = if r.sync { " sync" } else { "" };
    let process = if r.process == 0 { String::new() } else { format!(" pid {}", r.process) };
    let volume = reader.volume_name(r.volume);
    format!("{} {volume} {}{sync} {}+{}{process}", r.at, r.op.letter(), r.start, r.len)
}

/// The first eight records and all counts.
fn render(path: &Path, options: &TraceOptions) -> String {
    let mut text = String::new();
    let mut reader = match TraceReader::open(path, options) {
        Ok(reader) => reader,
        Err(e) => return format!("{e}\n").replace(env!("CARGO_MANIFEST_DIR"), "."),
    };
    writeln!(text, "{}", reader.format()).unwrap();
    loop {
        match reader.next_record() {
            Ok(Some(record)) if reader.stats().requests() <= 8 => {
                writeln!(text, "{}", line(&reader, &record)).unwrap();
            }
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(e) => {
                let message = e.to_string().replace(env!("CARGO_MANIFEST_DIR"), ".");
                writeln!(text, "{message}").unwrap();
                break;
            }
        }
    }
    let s = reader.stats();
    let ops = s.ops;
    writeln!(text, "R {} W {} F {} D {}", ops.read, ops.write, ops.flush, ops.discard).unwrap();
    writeln!(
        text,
        "ignored {} reordered {} clamped {} rounded {} duration {}",
        s.ignored, s.reordered, s.clamped, s.rounded, s.duration
    )
    .unwrap();
    for (number, volume) in s.volumes.iter().enumerate() {
        writeln!(text, "{} ends at {}", reader.volume_name(number as u32), volume.end).unwrap();
    }
    text
}

/// Counts of `kernel-loop.blktrace` are those that `blkparse` prints: see the fixtures' README.
#[test]
fn each_fixture_is_read_as_it_was() {
    let plain = FIXTURES.into_iter().filter(|name| name.matches('.').count() == 1);
    let mut text = String::new();
    let mut add = |name: &str, blktrace_event| {
        let options = TraceOptions { blktrace_event, ..TraceOptions::default() };
        let of = if blktrace_event == Some(BlktraceEvent::Issued) { ", issued" } else { "" };
        writeln!(text, "{name}{of}:\n{}", render(&fixture(name), &options)).unwrap();
    };
    plain.for_each(|name| add(name, None));
    add("kernel-loop.blktrace", Some(BlktraceEvent::Issued));
    expect_file!["../golden/formats.txt"].assert_eq(&text);
}

#[test]
fn a_missing_file_and_a_folder() {
    let text = ["no-such-file", "", "README.md"]
        .map(|name| render(&fixture(name), &TraceOptions::default()))
        .concat();
    expect![[r#"
        ./tests/fixtures/no-such-file: cannot open the trace: No such file or directory (os error 2)
        ./tests/fixtures/: cannot open the trace: is a directory
        ./tests/fixtures/README.md: trace format not recognised; name it with --input-format: blktrace, vscsi, fio, blkreplay, msr, systor, tencent, alibaba, spc, fiu, mqsim, disksim, blkparse, perf, biosnoop, fio-log, disksim-ascii, oracle-general, cachesim, csv; or list its columns: --columns time_us,op,offset_bytes,size_bytes
    "#]]
    .assert_eq(&text);
}

#[test]
fn packed_in_several_members() {
    let plain = scan(&fixture("msr.csv"), &TraceOptions::default()).unwrap();
    for name in ["msr.csv.gz", "msr.csv.bz2", "msr.csv.xz", "msr.csv.zst"] {
        assert_eq!(scan(&fixture(name), &TraceOptions::default()).unwrap(), plain, "{name}");
    }
}
