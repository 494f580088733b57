//! Every format against its fixture, as text.

use expect_test::{Expect, expect};
use seekway_workload::traces::{BlktraceEvent, Record, TraceOptions, TraceReader, scan};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

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

fn check_with(name: &str, options: &TraceOptions, expected: Expect) {
    // The feature `parquet` adds a name to the list of formats.
    expected.assert_eq(&render(&fixture(name), options).replace(", parquet", ""));
}

fn check(name: &str, expected: Expect) {
    check_with(name, &TraceOptions::default(), expected);
}

#[test]
fn msr() {
    check(
        "msr.csv",
        expect![[r#"
        msr
        0ms alpha_0 R sync 800+64
        1234500ns alpha_0 W 1600+32
        500ms beta_0 R sync 1+3
        1s alpha_1 W 9+1
        R 2 W 2 F 0 D 0
        ignored 0 reordered 1 clamped 0 rounded 1 duration 1s
        alpha_0 ends at 1632
        alpha_1 ends at 10
        beta_0 ends at 4
    "#]],
    );
}

#[test]
fn systor() {
    check(
        "systor.csv",
        expect![[r#"
        systor
        0ms lun0 R sync 2048+64
        250ms lun0 W 16+128
        500ms lun4 R sync 4194304+8
        750000001ns lun0 W 144+32
        R 2 W 2 F 0 D 0
        ignored 1 reordered 1 clamped 0 rounded 0 duration 750000001ns
        lun0 ends at 2112
        lun4 ends at 4194312
    "#]],
    );
}

#[test]
fn tencent() {
    check(
        "tencent.csv",
        expect![[r#"
        tencent
        0ms 23 R sync 4096+8
        1s 17 W 2048+128
        2s 17 R sync 2176+16
        R 2 W 1 F 0 D 0
        ignored 0 reordered 1 clamped 0 rounded 0 duration 2s
        17 ends at 2192
        23 ends at 4104
    "#]],
    );
}

#[test]
fn alibaba() {
    check(
        "alibaba.csv",
        expect![[r#"
        alibaba
        0ms 7 W 2048+32
        150us 3 R sync 102400+704
        900us 7 R sync 2080+16
        R 2 W 1 F 0 D 0
        ignored 0 reordered 0 clamped 0 rounded 0 duration 900us
        7 ends at 2096
        3 ends at 103104
    "#]],
    );
}

#[test]
fn spc() {
    check(
        "spc.txt",
        expect![[r#"
        spc
        0ms asu0 W 4096+16
        250ms asu0 W 4112+16
        750001us asu2 R sync 512+31
        R 1 W 2 F 0 D 0
        ignored 0 reordered 0 clamped 0 rounded 0 duration 750001us
        asu0 ends at 4128
        asu2 ends at 543
    "#]],
    );
}

#[test]
fn fiu() {
    check(
        "fiu.txt",
        expect![[r#"
        fiu
        0ms 6,0 W 40960+8 pid 711
        39064ns 6,0 W 81920+8 pid 96
        467651ns 8,1 R sync 40968+16 pid 711
        567651ns 8,1 R sync 512+8 pid 4711
        R 2 W 2 F 0 D 0
        ignored 0 reordered 0 clamped 0 rounded 0 duration 567651ns
        6,0 ends at 81928
        8,1 ends at 40984
    "#]],
    );
}

#[test]
fn vscsi_of_both_versions() {
    let expected = expect![[r#"
        vscsi
        0ms vscsi1 R sync 2048+8
        200us vscsi1 R sync 2056+16
        250us vscsi1 W 8192+128
        1ms vscsi1 F 0+0
        2ms vscsi1 W 8589934592+2
        R 2 W 2 F 1 D 0
        ignored 1 reordered 1 clamped 0 rounded 1 duration 2ms
        vscsi1 ends at 8589934594
    "#]];
    let [one, two] = ["vscsi1.vscsi", "vscsi2.vscsi"]
        .map(|name| render(&fixture(name), &TraceOptions::default()));
    assert_eq!(one.replace("vscsi1", "vscsi2"), two);
    expected.assert_eq(&one);
}

#[test]
fn mqsim() {
    check(
        "mqsim.trace",
        expect![[r#"
        mqsim
        0ms 4 W 100000+16
        315us 3 R sync 200000+16
        431us 4 W 100016+32
        R 1 W 2 F 0 D 0
        ignored 0 reordered 0 clamped 0 rounded 0 duration 431us
        4 ends at 100048
        3 ends at 200016
    "#]],
    );
}

#[test]
fn disksim() {
    check(
        "disksim.trace",
        expect![[r#"
        disksim
        0ms disksim W 100000+4
        45ms disksim R sync 200000+12
        109000123ns disksim R sync 200012+16
        R 2 W 1 F 0 D 0
        ignored 0 reordered 0 clamped 0 rounded 0 duration 109000123ns
        disksim ends at 200028
    "#]],
    );
}

#[test]
fn blkreplay() {
    check(
        "blkreplay.load",
        expect![[r#"
            blkreplay
            0ms blkreplay W 4096+64
            250ms blkreplay W sync 4160+14
            500ms blkreplay R sync 0+1
            1000000001ns blkreplay D 2048+2048
            R 1 W 2 F 0 D 1
            ignored 5 reordered 0 clamped 0 rounded 0 duration 1000000001ns
            blkreplay ends at 4174
        "#]],
    );
}

#[test]
fn fio_version_2() {
    check(
        "fio2.log",
        expect![[r#"
            fio
            0ms /dev/vda W 0+8
            1500ms /dev/vda R sync 16+32
            1500ms /dev/vda F 0+0
            1500ms /dev/vda D 2048+128
            R 1 W 1 F 1 D 1
            ignored 6 reordered 0 clamped 0 rounded 0 duration 1500ms
            /dev/vda ends at 2176
        "#]],
    );
}

#[test]
fn fio_version_3() {
    check(
        "fio3.log",
        expect![[r#"
        fio
        0ms /dev/vda W 0+32
        10us /dev/vdb R sync 8+1
        13us /dev/vda F 0+0
        R 1 W 1 F 1 D 0
        ignored 5 reordered 0 clamped 0 rounded 1 duration 13us
        /dev/vda ends at 32
        /dev/vdb ends at 9
    "#]],
    );
}

/// Counts as `blkparse` prints them: see the fixtures' README.
#[test]
fn blktrace_of_a_real_kernel() {
    check(
        "kernel-loop.blktrace",
        expect![[r#"
        blktrace
        0ms 7:0 W sync 320+32 pid 6387
        367491ns 7:0 W sync 352+32 pid 6387
        584537ns 7:0 W sync 384+32 pid 6387
        798873ns 7:0 W sync 416+32 pid 6387
        1008595ns 7:0 W sync 448+32 pid 6387
        1183195ns 7:0 W sync 480+32 pid 6387
        2886444ns 7:0 R sync 24+8 pid 6388
        3093282ns 7:0 R sync 32+8 pid 6388
        R 38 W 38 F 1 D 1
        ignored 266 reordered 0 clamped 0 rounded 0 duration 13025827ns
        7:0 ends at 16384
    "#]],
    );
    let issued = TraceOptions { blktrace_event: BlktraceEvent::Issued, ..TraceOptions::default() };
    check_with(
        "kernel-loop.blktrace",
        &issued,
        expect![[r#"
        blktrace
        0ms 7:0 W sync 320+32 pid 6387
        354392ns 7:0 W sync 352+32 pid 6387
        569504ns 7:0 W sync 384+32 pid 6387
        783294ns 7:0 W sync 416+32 pid 6387
        992246ns 7:0 W sync 448+32 pid 6387
        1166747ns 7:0 W sync 480+32 pid 6387
        2914930ns 7:0 R sync 24+8 pid 6388
        3079162ns 7:0 R sync 32+8 pid 6388
        R 38 W 7 F 1 D 1
        ignored 297 reordered 0 clamped 0 rounded 0 duration 13018640ns
        7:0 ends at 16384
    "#]],
    );
}

#[test]
fn a_missing_file_and_a_folder() {
    check(
        "no-such-file",
        expect![[r#"
        ./tests/fixtures/no-such-file: cannot open the trace: No such file or directory (os error 2)
    "#]],
    );
    check(
        "",
        expect![[r#"
        ./tests/fixtures/: cannot open the trace: is a directory
    "#]],
    );
    check(
        "README.md",
        expect![[r#"
        ./tests/fixtures/README.md: trace format not recognised; name it with --input-format: blktrace, vscsi, fio, blkreplay, msr, systor, tencent, alibaba, spc, fiu, mqsim, disksim
    "#]],
    );
}

#[test]
fn packed_in_several_members() {
    let plain = scan(&fixture("msr.csv"), &TraceOptions::default()).unwrap();
    for name in ["msr.csv.gz", "msr.csv.bz2", "msr.csv.xz", "msr.csv.zst"] {
        assert_eq!(scan(&fixture(name), &TraceOptions::default()).unwrap(), plain, "{name}");
    }
}
