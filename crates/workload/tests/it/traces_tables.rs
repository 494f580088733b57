//! Tables, logs and packed files that could be taken for what they are not.

use flate2::{Compression, write::GzEncoder};
use seekway_workload::traces::{Format, TraceOptions, TraceReader, scan};
use std::io::{Cursor, Write as _};

fn bytes_called(name: &str, bytes: &[u8], columns: Option<&str>) -> Result<Vec<String>, String> {
    let options = TraceOptions { columns: columns.map(Into::into), ..TraceOptions::default() };
    let input = Box::new(Cursor::new(bytes.to_vec()));
    let mut reader = TraceReader::from_read(name, input, &options).map_err(|e| e.to_string())?;
    let mut lines = Vec::new();
    while let Some(r) = reader.next_record().map_err(|e| e.to_string())? {
        lines.push(format!("{} {} {}+{}", r.at, r.op.letter(), r.start, r.len));
    }
    Ok(lines)
}

fn read(text: &str) -> Result<Vec<String>, String> {
    bytes_called("t", text.as_bytes(), None)
}

fn listed(columns: &str, text: &str) -> Result<Vec<String>, String> {
    bytes_called("t", text.as_bytes(), Some(columns))
}

/// Is the error one with all of these in it?
#[track_caller]
fn refused(read: Result<Vec<String>, String>, with: &[&str]) {
    let error = read.expect_err("refused");
    assert!(with.iter().all(|part| error.contains(part)), "{error}");
}

/// A hundred rows from time `from` on, `gap` apart.
fn rows(header: &str, from: u64, gap: u64) -> String {
    let row = |n: u64| format!("{},R,{},4096\n", from + n * gap, n * 8192);
    format!("{header},op,offset,size\n") + &(0..100).map(row).collect::<String>()
}

#[test]
fn times_that_can_be_of_a_start_or_of_a_year_are_refused_with_each_reading() {
    const DAY_S: u64 = 86_400;
    // Each is 100 µs apart, in the units since a start that are also a year's.
    for (from, gap, readings) in [
        (17 * DAY_S * 1_000_000_000, 100_000, ["time_us,", "time_ns,"]),
        (1_200_000_000_000, 100_000, ["time_ms,", "time_ns,"]),
        (1_200_000_000, 100, ["time_s,", "time_us,"]),
        (17 * DAY_S * 1_000_000, 100, ["time_ms,", "time_us,"]),
        (17 * DAY_S * 1_000, 1, ["time_s,", "time_ms,"]),
        (1_600_000_000, 1, ["time_s,", "time_ms,"]),
        (0, 100, ["time_s,", "time_us,"]),
    ] {
        refused(read(&rows("ts", from, gap)), &[&readings[..], &["a second"]].concat());
        let named = format!("{}op,offset,size", readings[1]);
        assert_eq!(listed(&named, &rows("ts", from, gap)).unwrap().len(), 100);
    }
    // No start is 50 years ago, and no disk is as fast as these would be in nanoseconds.
    for (from, gap, last) in [
        (1_600_000_000_000_000_000, 100_000, "9900us"),
        (1_600_000_000_000_000, 100, "9900us"),
        (128_166_385_295_514_663, 1000, "9900us"),
    ] {
        let read = read(&rows("ts", from, gap)).unwrap();
        assert!(read[99].starts_with(last), "{}", read[99]);
    }
    // What the first rows tell holds for all.
    let text = rows("ts", 1_600_000_000_000_000_000, 100_000).repeat(3) + "1600000000,R,0,4096\n";
    refused(read(&text), &["t:304:1: malformed field", "time_us"]);
}

#[test]
fn times_that_are_no_numbers_or_in_other_units() {
    for (header, time, why) in [
        ("timestamp", "2024-01-02 03:04:05.000", "has dates"),
        ("timestamp", "2024-01-02T03:04:05Z", "has dates"),
        ("time", "03:04:05.1", "has dates"),
        ("time_min", "7", "a unit that is not read"),
        ("time_h", "7", "a unit that is not read"),
    ] {
        let text = format!("{header},op,offset,size\n{time},R,0,4096\n");
        refused(read(&text), &["column 1", why]);
    }
    // A row that is damaged is no fraction, and none at all tell nothing.
    let damaged = "ts,op,offset,size\n1600000000,R,0,4096\nx,R,0,4096\n";
    refused(read(damaged), &["time_s,", "time_us,"]);
    refused(read("ts,op,offset,size\n"), &["--columns time_s,op,offset,size, or"]);
    refused(read("time_s;op;offset;size\n0,5;R;0;4096\n"), &["t:2:1", "without a comma"]);
}

#[test]
fn operations_under_a_name_that_is_not_known() {
    let table = |name: &str, ops: [&str; 2]| {
        let [a, b] = ops;
        format!("time_us,{name},size_b,offset_b,x\n0,{a},512,0,0\n9,{b},512,512,0\n")
    };
    for name in ["Operation Type", "IO", "req_op", "RWFlag", "ReadOrWrite", "mode", "event", "é"] {
        assert_eq!(read(&table(name, ["W", "R"])).unwrap(), ["0ms W 0+1", "9us R 1+1"], "{name}");
        refused(read(&(table(name, ["R", "W"]) + "10,X,512,0,0\n")), &["t:4:4: unknown operation"]);
    }
    for name in ["rw_flag", "RWFlag", "io_direction", "op_name", "writes", "ReadOrWrite"] {
        refused(read(&table(name, ["0", "1"])), &["what is a write", "is_write,", "is_read,"]);
    }
    refused(read(&table("a,b", ["R,W", "W,R"])), &["could both be the operation"]);
    // No column is one of operations: all are reads, with a warning.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    for (ops, warnings) in [(["x", "1"], 1), (["R", "W"], 0)] {
        std::fs::write(&path, table("thread", ops)).unwrap();
        let scanned = scan(&path, &TraceOptions::default()).unwrap();
        assert_eq!(scanned.warnings().len(), warnings, "{:?}", scanned.warnings());
        assert_eq!(scanned.units.ends_with("all reads"), warnings == 1);
    }
}

#[test]
fn sectors_are_not_taken_for_bytes() {
    // The first 250 rows can be bytes.
    let row = |n: u64, size: u64| format!("{n},R,{},{size}\n", n * size);
    let first: String = (0..250).map(|n| row(n, 512)).collect();
    let text = format!("time_us,op,offset,size\n{first}");
    assert_eq!(read(&text).unwrap().len(), 250);
    refused(read(&(text + &row(251, 8))), &["t:252:7: malformed field", "offset_bytes or sector"]);
    for (columns, readings) in [
        ("lba,size", "lba,size_bytes, or --columns time_us,op,lba,sectors"),
        ("offset_kib,size", "size_kib"),
        ("offset,sectors", "sector,sectors"),
        ("offset_pages,size_bytes", "sector,size_bytes"),
        ("offset_bytes,size_bits", "offset_bytes,sectors"),
    ] {
        let readings = readings.replace("--columns ", "");
        refused(read(&format!("time_us,op,{columns}\n0,R,0,1024\n")), &[&readings]);
    }
    assert_eq!(read("time_us,op,offset_gib,size_8k\n0,R,1,1\n").unwrap(), ["0ms R 2097152+16"]);
    refused(read("time_us,op,offset_tib,size_gb\n0,R,99999999,1\n"), &["t:2:5", "too large"]);
}

#[test]
fn a_header_is_no_line_that_is_left_out() {
    let summary = |lines: &[&str], columns: Option<&str>| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines.concat()).unwrap();
        let options = TraceOptions { columns: columns.map(Into::into), ..TraceOptions::default() };
        scan(file.path(), &options).unwrap().summary()
    };
    let own = ["time_us,op,offset,size\n", "0,R,0,4096\n"];
    let msr = [
        "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n",
        "128166372003061629,hm,0,Read,512,512,1331.5\n",
    ];
    let given = "time_us,op,offset_bytes,size_bytes";
    for ([header, one], columns) in [(own, None), (own, Some(given)), (msr, None)] {
        let plain = summary(&[header, one, one], columns);
        assert!(plain.contains("2 requests") && !plain.contains("left out"), "{plain}");
        let commented = summary(&["# mine\n", header, one], columns);
        assert!(commented.ends_with("; 1 other line or event left out"), "{commented}");
    }
    // Files that were put one behind the other have it again.
    for [header, one] in [own, msr] {
        let twice = summary(&[header, one, header, one], None);
        assert!(twice.contains("2 requests") && !twice.contains("left out"), "{twice}");
    }
    let commented = summary(&["# mine\n", own[1]], Some(given));
    assert!(commented.ends_with("; 1 other line or event left out"), "{commented}");
}

#[test]
fn a_line_that_begins_with_a_letter_is_no_header() {
    let good = "128166372003061629,hm,0,Read,512,512,1331.5\n";
    let header = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n";
    let many = good.repeat(20);
    assert_eq!(read(&[header, &many, "# more\n", header, good].concat()).unwrap().len(), 21);
    refused(read(&[&many, "end\n", good].concat()), &["t:21:1: malformed field"]);
    for bad in ["hm,0,Read,512,512,1\n", &format!("x{good}")] {
        refused(read(&[&many, bad, good].concat()), &["t:21:1: malformed field"]);
        refused(read(&[bad, &many].concat()), &["t:1:1: malformed field"]);
    }
    let columns = "time_us,op,sector,size_bytes";
    refused(listed(columns, "-5,R,0,4096\n1,W,8,4096\n"), &["t:1:1: negative"]);
    refused(listed(columns, "x5,R,0,4096\n1,W,8,4096\n"), &["t:1:1: malformed"]);
    let read = listed(columns, "# a\n# b\nt,o,s,l\n1,W,8,4096\n").unwrap();
    assert_eq!(read, ["0ms W 8+8"]);
}

/// A hundred rows of a vm's own columns, in the order of a public format.
#[test]
fn names_of_ones_own_are_no_public_format() {
    type Row<'a> = &'a dyn Fn(u64) -> String;
    let table =
        |header: &str, row: Row<'_>| format!("{header}\n") + &(0..100).map(row).collect::<String>();
    let spc = |n| format!("0,{},4096,R,{n}.5\n", n * 8);
    let alibaba = |n| format!("0,R,{},4096,{}\n", n * 8192, n * 1000);
    let msr = |n| format!("{},a,0,Read,{},4096,7\n", n * 1000, n * 8192);
    let tencent = |n| format!("{},{},512,0,3\n", n * 7, n * 8192);
    let systor = |n| format!("{},0.5,R,0,{},4096\n", n * 7, n * 8192);
    let cases: [(&str, &str, Row<'_>); 8] = [
        ("vm,offset,size,op,time", "ASU,LBA,Size,Opcode,Timestamp", &spc),
        ("id,offset,length,type,time", "asu,lba,size,opcode,timestamp", &spc),
        ("disk,op,lba,size,time", "device_id,opcode,offset,length,timestamp", &alibaba),
        (
            "time,host,disk,op,offset,size,latency",
            "timestamp,hostname,disknumber,type,offset,size,responsetime,",
            &msr,
        ),
        (
            "timestamp,vm,lun,type,offset,size,rt",
            "\"Timestamp\",\"Hostname\",\"DiskNumber\",\"Type\",\"Offset\",\"Size\",\"ResponseTime\"",
            &msr,
        ),
        ("time,lba,size,op,volume", "Timestamp,Offset,Size,IOType,VolumeID", &tencent),
        (
            "timestamp,offset,size,is_write,volume",
            "# timestamp,offset,size,iotype,volume_id",
            &tencent,
        ),
        ("time,latency,op,lun,offset,size", "Timestamp,Response,IOType,LUN,Offset,Size", &systor),
    ];
    for (own, public, row) in cases {
        refused(read(&table(own, row)), &["does not say", "--columns"]);
        let public = read(&table(public, row)).unwrap_or_else(|e| panic!("{public}: {e}"));
        assert_eq!(public, read(&table("", row)).unwrap());
        refused(read(&table("a,b,c,d,e,f,g", row)), &["not recognised"]);
    }
    // The format that the user names decides.
    let text = table("vm,offset,size,op,time", &spc);
    let options = TraceOptions { format: Format::from_name("spc"), ..TraceOptions::default() };
    let input = Box::new(Cursor::new(text.into_bytes()));
    assert_eq!(TraceReader::from_read("t", input, &options).unwrap().count(), 100);
}

#[test]
fn what_is_empty_or_glued_at_the_end() {
    let flush = "time_us,op,offset_b,size_b\n0,W,0,512\n7,FLUSH,,\n";
    assert_eq!(read(flush).unwrap(), ["0ms W 0+1", "7us F 0+0"]);
    refused(read(&(flush.to_owned() + "8,R,0,\n")), &["t:4:7: missing field", "a size"]);
    // bcc prints bytes as %-7s and milliseconds as %7.2f.
    for (behind, glued) in
        [("LAT(ms)", "10485761234.56"), ("QUE(ms) LAT(ms)", "10485761234.56   7.10")]
    {
        let text = format!(
            "TIME(s)     COMM           PID     DISK      T SECTOR     BYTES  {behind}\n\
             0.100000    kworker a b    5       sda       W 2048       {glued}\n\
             0.200000    dd             5       sda       R 2048       {}\n",
            glued.replace("1048576", "512    ")
        );
        assert_eq!(read(&text).unwrap(), ["0ms W 2048+2048", "100ms R 2048+1"], "{text}");
    }
}

/// `time, value, direction, size, offset` every 5 ms.
fn fio(first_ms: u64, value: u64, tail: &str) -> String {
    let row = |n: u64| format!("{}, {value}, 0, 4096, {}{tail}\n", first_ms + 5 * n, n * 4096);
    (0..20).map(row).collect()
}

#[test]
fn logs_of_fio_by_version() {
    let span = |text: &str| read(text).unwrap().last().unwrap().clone();
    // From offset 0 on, as fio 3.0 to 3.17 logs it; in microseconds it would begin before 0.
    assert_eq!(span(&fio(0, 180_000, "")), "94820us R 152+8");
    assert_eq!(span(&fio(1000, 180_000, "")), "95ms R 152+8");
    // fio 2: nothing is done in 180 ns.
    assert_eq!(read(&fio(1000, 180, "").replacen("180", "5000", 1)).unwrap()[1], "9820us R 8+8");
    refused(read(&fio(1000, 8000, "")), &["in ns (fio 3.0 to 3.17)", "in µs (fio 2)", "--columns"]);
    let columns = "time_ms,-,is_write,size_bytes,offset_bytes";
    assert_eq!(listed(columns, &fio(1000, 8000, "")).unwrap().len(), 20);
    refused(read(&(fio(0, 180_000, ", 0") + "100, 180000, 0, 4096, 7\n")), &["t:21:24: missing"]);
    for (text, why) in [
        (fio(0, 1, ", 0"), "bandwidth or rate"),
        (fio(0, 7, ", 0").replace(", 4096, ", ", 0, "), "log_avg_msec"),
        ("5, 70000, 0, 4096, 0x4001\n".repeat(20), "log_offset=1"),
    ] {
        refused(read(&text), &[why]);
    }
    let bandwidth = fio(0, 22_000, ", 0");
    refused(bytes_called("a_bw.1.log", bandwidth.as_bytes(), None), &["bandwidth"]);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn files_that_are_no_lines_say_why() {
    let text = "time_us,op,offset,size\n".to_owned() + &"7,R,0,4096\n".repeat(100);
    let text = text.as_bytes();
    let read = |bytes: &[u8]| bytes_called("t", bytes, None);
    // Zeros behind and between the members.
    let padded = [&gzip(text)[..], &[0; 700], &gzip(text), &[0; 99_999]].concat();
    assert_eq!(read(&padded).unwrap().len(), 200);
    refused(read(&[&gzip(text)[..], b"junk"].concat()), &["gzip -t"]);
    refused(read(&gzip(&gzip(text))), &["packed twice, with gzip and then gzip"]);
    let mut tar = vec![0; 512];
    tar[..5].copy_from_slice(b"t.csv");
    tar[257..262].copy_from_slice(b"ustar");
    tar.extend_from_slice(text);
    for tar in [&tar, &gzip(&tar)] {
        refused(read(tar), &["packed with tar", "`tar -xOf t`"]);
        refused(bytes_called("t", tar, Some("time_us,op,offset,size")), &["packed with tar"]);
    }
    let wide: Vec<u8> = text.iter().flat_map(|b| [*b, 0]).collect();
    refused(read(&[&[0xff, 0xfe], &wide[..]].concat()), &["UTF-16", "iconv"]);
    let alone: Vec<u8> = text.iter().map(|b| if *b == b'\n' { b'\r' } else { *b }).collect();
    refused(read(&alone), &["CR alone"]);
    refused(read(b"{\"time_us\":7,\"op\":\"R\"}\n"), &["JSON"]);
}
