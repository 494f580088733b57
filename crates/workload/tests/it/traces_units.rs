//! No silent guess: what decides about columns and units, and what is refused or warned of.

use crate::texts;
use expect_test::expect;
use seekway_workload::traces::{Scan, TraceError, TraceOptions, TraceReader, scan};
use std::io::Cursor;

fn read_with(text: &str, options: &TraceOptions) -> Result<Vec<String>, TraceError> {
    texts::read_with(text, options, |record, volume| {
        format!("{} {volume} {}", record.at, texts::operation(record))
    })
}

fn read(text: &str) -> Result<Vec<String>, String> {
    read_with(text, &TraceOptions::default()).map_err(|e| e.to_string())
}

fn by_columns(list: &str, text: &str) -> Result<Vec<String>, String> {
    let options = TraceOptions { columns: Some(list.into()), ..TraceOptions::default() };
    read_with(text, &options).map_err(|e| e.to_string())
}

fn scanned(text: &str, options: &TraceOptions) -> Scan {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    std::fs::write(&path, text).unwrap();
    scan(&path, options).unwrap()
}

/// Two requests of 4 KiB at 0 and 1 MiB, 1.5 ms apart.
const TWO: [&str; 2] = ["0ms a R sync 0+8", "1500us a W 2048+8"];

#[test]
fn names_and_units_of_a_header_in_many_forms() {
    for text in [
        "time_us,op,offset,size,disk\n0,read,0,4096,a\n1500,write,1048576,4096,a\n",
        "TIME(ms);RW;Offset_KiB;Len_KiB;Volume\n0;R;0;4;a\n1.5;W;1024;4;a\n",
        "ts_ns\tlba\tsectors\tis_write\tvm\n0\t0\t8\t0\ta\n1500000\t2048\t8\t1\ta\n",
        "# a comment\n\"time_s\",\"type\",\"offset_bytes\",\"size_bytes\",\"lun\"\n\"0\",\"R\",\"0\",\"4096\",\"a\"\n\"1.5e-03\",\"W\",\"1048576\",\"4096\",\"a\"\n",
        ",timestamp_us,op,lbn,bytes,device\n0,7,28,0,4096,a\n1,1507,2a,2048,4096.0,a\n",
        "time_us,op,offset,size,disk,\n0,read,0,4096,a,\n1500,write,1048576,4096,a,\n",
        "\u{feff}time_us , op , offset , size , disk\r\n0 , r , 0 , 4096 , a\r\n1500 , w , 1048576 , 4096 , a\r\n",
        "timeMs|iotype|startSector|sizeKiB|diskName\n0|RA|0|4|a\n1.5|WM|2048|4|a\n",
        "time_filetime,is_read,sector,size_sectors,host\n128166385295514663,true,0,8,a\n128166385295529663,false,2048,8,a\n",
        "#time_us op sector sectors volume\n0 R 0 8 a\n1500 W 2048 8 a\n",
        "timestamp,rw,offset,length,volume\n1600000000.0,R,0,4096,a\n1600000000.0015,W,1048576,4096,a\n",
        "timestamp,rw,offset,length,volume\n1600000000000000000,R,0,4096,a\n1600000000001500000,W,1048576,4096,a\n",
        "timestamp,rw,offset,length,volume\n128166385295514663,R,0,4096,a\n128166385295529663,W,1048576,4096,a\n",
        "timestamp,rw,offset,length,volume\n1600000000000.5,R,0,4096,a\n1600000000002,W,1048576,4096,a\n",
        "ms_time,rw,offset,length,volume\n0,R,0,4096,a\n1.5,W,1048576,4096,a\n",
        "time_us,op,offset,size,disk\n# begin\n\n0,read,0,4096,a\n1500,write,1048576,4096,a\n",
        "time_us,op,offset,size,disk,latency_us\n0,read,0,4096,a,\n1500,write,1048576,4096,a,7\n",
        "time_us\top\toffset_8k\tsize_b\tdisk\tnote\n0\tread\t0\t4096\ta\t\n1500\twrite\t128\t4096\ta\tx\n",
    ] {
        assert_eq!(read(text).as_deref(), Ok(&TWO.map(String::from)[..]), "{text}");
    }
}

/// Columns in the places of another format: the header's units are what counts.
#[test]
fn a_header_decides_before_the_order_of_the_columns() {
    let tencent = "Timestamp,Offset,Size,IOType,VolumeID\n";
    let rows = "1600000000,8,16,0,7\n1600000001,2048,8,1,7\n";
    let read_as = |header: &str| read(&format!("{header}{rows}"));
    assert_eq!(read_as("").unwrap(), ["0ms 7 R sync 8+16", "1s 7 W 2048+8"]);
    assert_eq!(read_as(tencent).unwrap(), read_as("").unwrap());
    let milliseconds = read_as("time_ms,sector,sectors,is_write,volume\n").unwrap();
    assert_eq!(milliseconds, ["0ms 7 R sync 8+16", "1ms 7 W 2048+8"]);
    let swapped = read_as("Time_s,sectors,sector,is_read,VolumeID\n").unwrap();
    assert_eq!(swapped, ["0ms 7 W 16+8", "1s 7 R sync 8+2048"]);
    let kib = read_as("time_s,offset_kib,size_kib,is_write,volume\n").unwrap();
    assert_eq!(kib, ["0ms 7 R sync 16+32", "1s 7 W 4096+16"]);
}

#[test]
fn what_has_two_readings_is_refused_with_both() {
    let errors = [
        "time,op,offset,size\n0,R,0,4096\n100,W,4096,4096\n",
        "time_us,op,offset,size\n0,R,7,4096\n100,W,4096,4096\n",
        "time_us,op,lba,size\n0,R,0,8\n100,W,8,16\n",
        "time_us,type,offset,size\n0,0,0,4096\n100,1,4096,4096\n",
        "time_us,op,block,size\n0,R,0,4096\n",
        "time_us,op,offset,lba,size\n0,R,0,0,4096\n",
        "time_us,op,offset\n0,R,0\n",
        "time_us,op,offset,size\n0,R,0,4096\n1,R,0,4096,7\n",
        "time_us,op,offset,size\n0,R,\"0,4096\n",
        "time_us,op,offset,size\n0,X,0,4096\n",
        "12, 2000, 0, 4096, 0\n13, 500, 1, 8192, 0\n",
    ]
    .map(|text| read(text).unwrap_err())
    .join("\n");
    expect![[r#"
        t: column 1 `time` does not say in which unit times are: --columns time_s,op,offset,size (from 0 ns on, in 100 s, one every 100 s), or --columns time_ms,op,offset,size (from 0 ns on, in 100 ms, 10 a second), or --columns time_us,op,offset,size (from 0 ns on, in 100 µs, 10,000 a second), or --columns time_ns,op,offset,size (from 0 ns on, in 100 ns, 10,000,000 a second)
        t: column 3 `offset` does not say bytes or sectors: --columns time_us,op,offset_bytes,size, or time_us,op,sector,size
        t: column 4 `size` does not say bytes or sectors: --columns time_us,op,lba,size_bytes, or time_us,op,lba,sectors
        t: column 2 `type` does not say what is a write: --columns time_us,is_write,offset,size, or time_us,is_read,offset,size
        t: column 3 `block` does not say bytes or sectors: --columns time_us,op,offset_bytes,size, or time_us,op,sector,size
        t: columns 3 `offset` and 4 `lba` could both be the offset: list the columns with --columns, and - for those to be left alone
        t: no column is the size among `time_us,op,offset`; list the columns with --columns, such as time_us,op,offset_bytes,size_bytes,volume
        t:3:12: malformed field: expected as many fields as the header, found 5 fields where the header has 4
        t:2:5: malformed field: expected a quote that ends the field, found `\"0,4096`
        t:2:3: unknown operation: expected an operation such as R, write, WS or 2a, found `X,0,4096`
        t: a log of fio's without offsets: run fio with log_offset=1, or with write_iolog"#]]
    .assert_eq(&errors);
}

/// With `log_issue_time=1`, fio writes the time of issue into `_clat` logs and zero into `_lat` logs.
#[test]
fn fio_logs_with_a_time_of_issue() {
    let log = |issue: fn(u64) -> String| -> String {
        let line = |n| format!("{n}, 200000, 0, 4096, {}, 0{}\n", n * 4096, issue(n));
        (1..=3).map(line).collect()
    };
    let times = ["0ms t R sync 8+8", "1ms t R sync 16+8", "2ms t R sync 24+8"];
    let without = read(&log(|_| String::new())).unwrap();
    assert_eq!(without, times);
    assert_eq!(read(&log(|_| ", 0".into())).unwrap(), without);
    assert_eq!(read(&log(|n| format!(", {}", n * 1_000_000 - 200_000))).unwrap(), without);
}

/// Requests of 4 KiB, `gap` units of time apart.
fn five_columns(count: u64, gap: u64, unit: u64) -> String {
    let row = |n: u64| {
        format!("{} 0 {} {} {}\n", n * gap, n * 7919 % 4096 * 4096 / unit, 4096 / unit, n % 2)
    };
    (0..count).map(row).collect()
}

#[test]
fn bare_numbers_that_would_be_absurd_are_refused() {
    let milliseconds = five_columns(200, 10, 1);
    expect!["t: could be mqsim, in ns, sectors: then its first 200 requests are of 2 MiB each, in 1.99 µs, 100,000,000 a second; or the same columns in other units. Say --input-format mqsim for the first, or name the units by --columns, as in --columns time_ms,volume,offset_bytes,size_bytes,is_read"]
    .assert_eq(&read(&milliseconds).unwrap_err());
    let list = "time_ms,volume,offset_bytes,size_bytes,is_read";
    let read_as = by_columns(list, &milliseconds).unwrap();
    assert_eq!((read_as.len(), read_as.last().unwrap().as_str()), (200, "1990ms 0 R sync 24136+8"));
    // In sectors, and microseconds in bytes.
    assert!(read(&five_columns(200, 10, 512)).unwrap_err().contains("time_ms,volume,sector,"));
    assert!(read(&five_columns(200, 10_000, 1)).unwrap_err().contains("offset_bytes"));
    // As MQSim has it.
    assert_eq!(read(&five_columns(200, 100_000, 512)).unwrap().len(), 200);
    // Asked for, it is read, with a warning.
    let named = TraceOptions {
        format: seekway_workload::traces::Format::from_name("mqsim"),
        ..TraceOptions::default()
    };
    let scanned = scanned(&milliseconds, &named);
    expect![
        "mqsim (ns, sectors): 200 requests of 2 MiB, in 1.99 µs, 100,000,000 a second, 1 volume"
    ]
    .assert_eq(&scanned.summary());
    expect!["100,000,000 requests a second: are the units right (ns, sectors)? --columns names others, such as time_us,op,offset_bytes,size_bytes"]
        .assert_eq(&scanned.warnings().join("\n"));
}

/// Other formats of bare numbers, in units that are not theirs.
#[test]
fn other_formats_of_bare_numbers() {
    let rows = |row: fn(u64) -> String| (0..100).map(row).collect::<String>();
    // MSR's columns with seconds, Alibaba's with seconds, Tencent's with bytes, Alibaba's with sectors.
    for (text, columns) in [
        (rows(|n| format!("{},hm,0,Read,{},4096,7\n", 1_200_000_000 + n, n * 8192)), "time_s"),
        (rows(|n| format!("7,R,{},4096,{}\n", n * 8192, 1_600_000_000 + n / 50)), "time_s"),
        (rows(|n| format!("{},{},4096,0,7\n", 1_600_000_000 + n / 50, n * 8192)), "offset_bytes"),
        (
            rows(|n| format!("7,R,{},8,{}\n", n * 8 + 1, 1_600_000_000_000_000 + n * 1000)),
            "sector,",
        ),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.contains("could be") && error.contains(columns), "{error}\n{text}");
    }
}

/// SPC's sizes are bytes, so that only its starts tell.
#[test]
fn starts_of_spc_in_bytes() {
    let rows = |count: u64, at: u64, start: u64, size: u64| {
        let row = |n| format!("0,{},{size},R,{n}.5\n", at + n * 7919 % 4096 * start);
        (0..count).map(row).collect::<String>()
    };
    // Blocks of 4 KiB; blocks behind a partition's 63 sectors; whole MiB.
    for (at, start, size) in [(0, 4096, 8192), (63 * 512, 4096, 4096), (0, 1 << 20, 1 << 20)] {
        let text = rows(300, at, start, size);
        let error = read(&text).unwrap_err();
        let other = "volume,offset_bytes,size_bytes,op,time_s";
        assert!(error.contains("--input-format spc") && error.contains(other), "{error}");
        let first = by_columns(other, &text).unwrap()[1].clone();
        assert_eq!(first, format!("1s 0 R sync {}+{}", (at + 3823 * start) / 512, size / 512));
    }
    // Sectors: of blocks, of large requests one behind the other, and too few to tell.
    assert_eq!(read(&rows(300, 63, 8, 4096)).unwrap().len(), 300);
    assert_eq!(read(&rows(300, 0, 512, 512 * 512)).unwrap().len(), 300);
    assert_eq!(read(&rows(300, 0, 4096, 4096 * 512)).unwrap().len(), 300);
    assert_eq!(read(&rows(15, 0, 4096, 4096)).unwrap().len(), 15);
    // Sizes in sectors.
    let error = read(&rows(300, 63, 8, 8)).unwrap_err();
    assert!(error.contains("--columns volume,sector,sectors,op,time_s"), "{error}");
}

#[test]
fn wall_clocks_of_alibaba_and_msr_in_other_units() {
    let alibaba = |count: u64, from: u64, gap: u64| {
        let row = |n: u64| format!("3,R,{},4096,{}\n", n * 8192, from + n * gap);
        (0..count).map(row).collect::<String>()
    };
    let msr = |count: u64, from: u64, gap: u64| {
        let row = |n: u64| format!("{},hm,0,Read,{},4096,7\n", from + n * gap, n * 8192);
        (0..count).map(row).collect::<String>()
    };
    let header = "device_id,opcode,offset,length,timestamp\n".to_owned();
    const US: u64 = 1_577_808_144_360_767;
    for (text, time, told) in [
        (alibaba(60, US / 1_000_000, 1), "time_s", "2019 on, in 59 s, 1.00 a second"),
        (header.clone() + &alibaba(60, US / 1_000_000, 1), "time_s", "2019 on"),
        (alibaba(2, US / 1000, 7), "time_ms", "2019 on, in 7 ms"),
        (header.clone() + &alibaba(60, US / 1000, 7), "time_ms", "2019 on, in 413 ms"),
        (msr(60, US, 1500), "time_us", "2019 on, in 88.5 ms"),
        (msr(60, US / 1000, 1500), "time_ms", "2019 on, in 88.5 s"),
        (msr(60, US / 1_000_000, 1), "time_s", "2019 on, in 59 s"),
        // Since a start, and too fast.
        (msr(100, 0, 10), "time_ms", ""),
        (alibaba(100, 0, 7), "time_ms", ""),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.contains("--input-format") && error.contains(told), "{error}");
        assert!(error.split("--columns ").nth(1).is_some_and(|c| c.contains(time)), "{error}");
    }
    assert!(read(&alibaba(60, US * 1000, 1_500_000)).unwrap_err().contains("--columns"));
    // Their own wall clock, however fast, and times since a start.
    for text in [
        alibaba(60, US, 7),
        header + &alibaba(60, US, 7),
        alibaba(60, 0, 1500),
        alibaba(60, 86_400_000_000 * 30, 1500),
        msr(60, 128_166_372_003_061_629, 70),
        msr(60, 0, 15_000),
        msr(60, 864_000_000_000 * 30, 15_000),
    ] {
        assert!(read(&text).is_ok_and(|read| read.len() > 59), "{text}");
    }
}

#[test]
fn columns_are_listed() {
    let rows = "0;a;0;4096;7;R\n1.5;a;1048576;4096;8;W\n";
    assert_eq!(by_columns("time_ms,volume,offset,size,-,op", rows).unwrap(), TWO);
    // Further columns may be left out, and a header is none of the rows.
    let more = format!("t;v;o;l;x;rw;y\n{}", rows.replace('\n', ";z\n"));
    assert_eq!(by_columns("time_ms,volume,offset,size,-,op", &more).unwrap(), TWO);
    let blanks = "0 a   0 8\n1500  a 2048 8\n";
    let read = by_columns("time_us,volume,sector,sectors", blanks).unwrap();
    assert_eq!(read, ["0ms a R sync 0+8", "1500us a R sync 2048+8"]);
    let errors = [
        by_columns("time_us,op,offst,size", rows),
        by_columns("time,op,offset,size", "0,R,0,4096\n"),
        by_columns("time_us,op,size", rows),
    ]
    .map(Result::unwrap_err)
    .join("\n");
    expect![[r#"
        t: offst: no column; there are time_s, time_ms, time_us, time_ns, time_filetime, op, is_write, is_read, offset_bytes, offset_kib, sector, size_bytes, size_kib, sectors, volume, pid, sync, and - for one to be left alone
        t: column 1 `time` does not say in which unit times are: --columns time_s,op,offset,size (from 0 ns on, at one time), or --columns time_ms,op,offset,size (from 0 ns on, at one time), or --columns time_us,op,offset,size (from 0 ns on, at one time), or --columns time_ns,op,offset,size (from 0 ns on, at one time)
        t: no column is the offset among `time_us,op,size`; list the columns with --columns, such as time_us,op,offset_bytes,size_bytes,volume"#]]
    .assert_eq(&errors);
}

/// The output of `blkparse -f` is read by the format string of its `-f`.
#[test]
fn forms_of_blkparse() {
    let expected = ["0ms 8:0 R sync 2048+8", "1us 8:0 W sync 4096+16"];
    for (form, text) in [
        (
            "%D %2c %8s %5T.%9t %5p %2a %3d %S + %n [%C]\\n",
            "  8,0   1        1     5.000000000    70  Q  RA 2048 + 8 [Web Content]\n  8,0   1        2     5.000000500    70  D  RA 2048 + 8 [Web Content]\n  8,0   0        2     5.000001000    70  Q  WS 4096 + 16 [fio]\nCPU0 (sda):\n Reads Queued:           1,        4KiB\n",
        ),
        (
            "%M %m %d %a %N %S %5T.%9t\\n",
            "8 0 R Q 4096 2048     5.000000000\n8 0 R C 4096 2048     5.000000800\n8 0 WS Q 8192 4096     5.000001000\n",
        ),
        ("%T %t,%D,%d,%S,%n", "5 0,8,0,R,2048,8\n5 1000,8,0,WS,4096,16\nTotal (sda):\n"),
    ] {
        assert_eq!(
            by_columns(form, text).as_deref(),
            Ok(&expected.map(String::from)[..]),
            "{form}"
        );
    }
    // Without a device the file's name stands for it.
    let read = by_columns("%T.%t %d %S %n", "5.000000000 R 2048 8\n5.000001000 FN 0 0\n").unwrap();
    assert_eq!(read, ["0ms t R sync 2048+8", "1us t F sync 0+0"]);
    for (form, lacks) in [("%T.%t %d %S", "%n or %N"), ("%T %x", "letters"), ("%d %S %n", "%T")] {
        assert!(by_columns(form, "1 2\n").unwrap_err().contains(lacks), "{form}");
    }
    let bad = by_columns("%T.%t %d %S %n", "5.0 R 8 8\n5.0 Q 8 8\n5.0 R 8 x\n").unwrap_err();
    assert!(bad.starts_with("t:2:5: unknown operation"), "{bad}");
}

/// Lines that keep blkparse's order need no form.
#[test]
fn lines_in_blkparses_order() {
    for text in [
        "5.000000000 Q R 2048 + 8\n5.000001000 Q WS 4096 + 16\n",
        "8,0 5.000000000 70 Q R 2048 + 8 [a b]\n8,0 5.000001000 70 Q WS 4096 + 16 [c]\n",
    ] {
        let read = read(text).unwrap();
        assert!(read[0].ends_with(" R sync 2048+8") && read[1].ends_with(" W sync 4096+16"));
    }
}

/// Without queue events the issue events are the requests, without these the completions.
#[test]
fn events_that_there_are() {
    let all = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/blkparse.txt"
    ))
    .unwrap();
    let only = |letters: &[&str]| -> String {
        let kept = all.lines().filter(|line| {
            let action = line.split_whitespace().nth(5).unwrap_or_default();
            letters.contains(&action)
        });
        kept.map(|line| format!("{line}\n")).collect()
    };
    let of = |letters: &[&str]| {
        let scanned = scanned(&only(letters), &TraceOptions::default());
        (scanned.stats.requests(), scanned.notes.join(" "))
    };
    assert_eq!(of(&["Q", "D", "C"]), (7, String::new()));
    let (requests, note) = of(&["D", "C"]);
    assert!(requests == 3 && note.contains("issue events"), "{requests} {note}");
    let (requests, note) = of(&["C"]);
    assert!(requests == 2 && note.contains("completions"), "{requests} {note}");
}

/// Records of libCacheSim's oracleGeneral: time, object, size, next access.
fn oracle(records: &[(u32, u64, u32, i64)]) -> Result<usize, String> {
    let mut bytes = Vec::new();
    for (time, object, size, next) in records {
        bytes.extend_from_slice(&time.to_le_bytes());
        bytes.extend_from_slice(&object.to_le_bytes());
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend_from_slice(&next.to_le_bytes());
    }
    let options = TraceOptions::default();
    let reader = TraceReader::from_read("t", Box::new(Cursor::new(bytes)), &options);
    let reader = reader.map_err(|e| e.to_string())?;
    assert_eq!(reader.format().name(), "oracle-general");
    let records: Result<Vec<_>, _> = reader.collect();
    records.map(|records| records.len()).map_err(|e| e.to_string())
}

#[test]
fn records_of_libcachesim_have_to_agree() {
    // The next access counts from zero, or from one.
    assert_eq!(oracle(&[(1, 8, 512, 2), (1, 16, 512, -1), (2, 8, 512, -1)]), Ok(3));
    assert_eq!(oracle(&[(1, 8, 512, 3), (1, 16, 512, -1), (2, 8, 512, i64::MAX)]), Ok(3));
    for wrong in [
        [(1, 8, 512, 2), (1, 16, 512, -1), (2, 24, 512, -1)],
        [(2, 8, 512, -1), (1, 16, 512, -1), (2, 24, 512, -1)],
        [(1, 8, 0, -1), (1, 16, 512, -1), (2, 24, 512, -1)],
        [(1, 8, 512, 0), (1, 16, 512, -1), (2, 24, 512, -1)],
    ] {
        assert!(oracle(&wrong).unwrap_err().contains("not recognised"), "{wrong:?}");
    }
    let hash = oracle(&[(1, 0x9e37_79b9_7f4a_7c15, 512, -1)]).unwrap_err();
    assert!(hash.contains("a hash is no place on a disk"), "{hash}");
}

/// CSV formats that a program has written anew.
#[test]
fn csv_formats_with_quotes_tabs_and_a_comma_too_many() {
    let plain = "128166385295514663,hm,0,Write,9056014336,2048,2833\n128166385295514878,hm,0,Read,11855351808,512,2617\n";
    let expected = read(plain).unwrap();
    assert_eq!(expected.len(), 2);
    for text in [
        plain.replace(',', "\t"),
        plain.replace(',', ";"),
        plain.replace('\n', ",\n"),
        plain.replace(",9056014336,2048,", ",9056014336.0,2048.0,"),
        plain.replace("hm", "\"hm\"").replace("128", "\"128").replace(",\"hm", "\",\"hm"),
        format!("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n{plain}"),
        format!(
            "\"Timestamp\",\"Hostname\",\"DiskNumber\",\"Type\",\"Offset\",\"Size\",\"ResponseTime\"\n{plain}"
        ),
        format!(
            ",Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n0,{}",
            plain.replacen('\n', "\n1,", 1)
        ),
    ] {
        assert_eq!(read(&text).as_ref(), Ok(&expected), "{text}");
    }
}
