//! A page for each format: its columns with their units, and an example. A test reads the
//! examples. Pages are found by the format's name.

/// A column of a text format, or a field of a binary one.
pub struct Column {
    /// As the format's own description calls it.
    pub name: &'static str,
    /// Its unit, or the values that it may have.
    pub unit: &'static str,
}

/// How traces of one format look.
pub struct FormatPage {
    /// The format's name.
    pub(super) format: &'static str,
    /// In the order of the file.
    pub columns: &'static [Column],
    /// The beginning of such a trace; for binary formats a command.
    pub example: &'static str,
    /// Further facts that a user needs, in whole sentences; may be empty.
    pub more: &'static str,
}

impl FormatPage {
    pub(super) fn of(format: &str) -> Option<&'static FormatPage> {
        PAGES.iter().find(|page| page.format == format)
    }
}

const fn column(name: &'static str, unit: &'static str) -> Column {
    Column { name, unit }
}

const BYTES: &str = "bytes";
const SECTORS: &str = "sectors of 512 bytes";
const NOT_READ: &str = "not read";
const RWBS: &str = "`R`, `W`, `WZ` (write-zeroes), `ZA` (zone append), `D` (discard), `F` (flush), \
                    then `A`, `S` (sync), `M`, `U` (atomic)";
const READ_OR_WRITE: &str = "`R`, `W`, `Read` or `Write`";

static PAGES: &[FormatPage] = &[
    FormatPage {
        format: "blktrace",
        columns: &[
            column("magic", "0x65617407 (records of 48 bytes) or 0x65617408 (64 bytes)"),
            column("sequence", "the record's number on its CPU, which tells of lost ones"),
            column("time", "nanoseconds"),
            column("sector", SECTORS),
            column("bytes", BYTES),
            column("action", "what happened, and to which kind of request"),
            column("pid", "process"),
            column("device", "major and minor number: the volume"),
            column("cpu", "CPU"),
            column("error", NOT_READ),
            column("pdu_len", "bytes of the payload that follows"),
        ],
        example: "blktrace -d /dev/sdb -w 60 -o sdb\nseekway advise sdb.blktrace.0",
        more: "The name of one CPU's file (`sdb.blktrace.0`), the beginning of the names (`sdb`, \
               `sdb.blktrace`) and a pattern (`sdb.blktrace.*`) stand for the files of all CPUs, \
               packed or not, which are merged by time: one trace. Either byte order is read. In \
               version 8 the order is magic, sequence, time, sector, bytes, pid, action (64 bits), \
               device, cpu, error, pdu_len and 12 bytes of nothing.\n\nOne kind of event is taken \
               as the requests: `--event queue` (Q), `issue` (D) or `complete` (C); unless given, \
               the first of these that the trace has. Standard error says when it is not Q. Zone \
               operations and requests without data are counted and left out, and each request is \
               taken once, also if it was split, remapped from another traced device or requeued.",
    },
    FormatPage {
        format: "vscsi",
        columns: &[
            column("sn", NOT_READ),
            column("len", BYTES),
            column("nSG", NOT_READ),
            column("cmd", "operation code of SCSI: 0x28 reads, 0x2A writes"),
            column("ver", "version in the upper byte"),
            column("lbn", SECTORS),
            column("ts", "microseconds"),
        ],
        example: "seekway advise vm.vscsi",
        more: "Records of 32 bytes, little-endian. In version 2 they have 40: cmd and ver come \
               first, and a response time last, which is not read.",
    },
    FormatPage {
        format: "fio",
        columns: &[
            column("time", "microseconds; version 3 only"),
            column("file", "the volume"),
            column("action", "`read`, `write`, `trim`, `sync`, `datasync`; others are passed over"),
            column("offset", BYTES),
            column("length", BYTES),
        ],
        example: "fio version 3 iolog\n\
                  0 /dev/vdb add\n\
                  10 /dev/vdb open\n\
                  878 /dev/vdb write 0 16384\n\
                  888 /dev/vdb read 4096 4096\n\
                  891 /dev/vdb datasync 0 0",
        more: "fio writes one with `--write_iolog=FILE`. Version 2 has no times but `wait`, in \
               milliseconds since the start.",
    },
    FormatPage {
        format: "blkreplay",
        columns: &[
            column("start", "seconds"),
            column("sector", SECTORS),
            column("length", SECTORS),
            column("op", "`R`, `W` or `D`, then any of `A`, `S` (sync), `M`, `F`"),
            column("replay_delay", NOT_READ),
            column("replay_duration", NOT_READ),
        ],
        example: "start ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n\
                  0.000000000 ; 4096 ; 64 ; W ; 0.0 ; 0.0\n\
                  0.250000000 ; 4160 ; 16 ; RA ; 0.0 ; 0.0",
        more: "Lines of prose before the first request are passed over.",
    },
    FormatPage {
        format: "msr",
        columns: &[
            column("Timestamp", "100 ns since 1601 (FILETIME)"),
            column("Hostname", "the volume, with the disk's number"),
            column("DiskNumber", "a number"),
            column("Type", READ_OR_WRITE),
            column("Offset", BYTES),
            column("Size", BYTES),
            column("ResponseTime", NOT_READ),
        ],
        example: "130000000000000000,alpha,0,Read,409600,32768,1331\n\
                  130000000000012345,alpha,0,Write,819200,16384,2326",
        more: "",
    },
    FormatPage {
        format: "systor",
        columns: &[
            column("Timestamp", "seconds"),
            column("Response", "not read; may be empty"),
            column("IOType", READ_OR_WRITE),
            column("LUN", "the volume"),
            column("Offset", BYTES),
            column("Size", BYTES),
        ],
        example: "Timestamp,Response,IOType,LUN,Offset,Size\n\
                  1500000000.250000000,0.004000000,R,0,1048576,32768\n\
                  1500000000.500000000,,W,0,8192,65536",
        more: "Its rows are in the order of completion; they are sorted within a second.",
    },
    FormatPage {
        format: "tencent",
        columns: &[
            column("Timestamp", "seconds"),
            column("Offset", SECTORS),
            column("Size", SECTORS),
            column("IOType", "0 reads, 1 writes"),
            column("VolumeID", "the volume"),
        ],
        example: "1600000000,4096,8,0,23\n1600000001,2048,128,1,17",
        more: "",
    },
    FormatPage {
        format: "alibaba",
        columns: &[
            column("device_id", "the volume"),
            column("opcode", READ_OR_WRITE),
            column("offset", BYTES),
            column("length", BYTES),
            column("timestamp", "microseconds"),
        ],
        example: "7,W,1048576,16384,1600000000000100\n3,R,52428800,360448,1600000000000250",
        more: "",
    },
    FormatPage {
        format: "spc",
        columns: &[
            column("ASU", "the volume"),
            column("LBA", SECTORS),
            column("Size", BYTES),
            column("Opcode", READ_OR_WRITE),
            column("Timestamp", "seconds"),
        ],
        example: "0,4096,8192,W,0.250000\n2,512,15872,r,1.000001",
        more: "Further columns are not read.",
    },
    FormatPage {
        format: "fiu",
        columns: &[
            column("ts", "nanoseconds"),
            column("pid", "process"),
            column("process", "its name, not read; may have blanks"),
            column("lba", SECTORS),
            column("size", SECTORS),
            column("op", "`R` or `W`"),
            column("major", "the volume, with the minor number"),
            column("minor", "a number"),
            column("md5", "not read; may be absent"),
        ],
        example: "1000000 711 writerd 40960 8 W 6 0 00112233445566778899aabbccddeeff\n\
                  1467651 711 writerd 40968 16 R 8 1",
        more: "",
    },
    FormatPage {
        format: "mqsim",
        columns: &[
            column("time", "nanoseconds"),
            column("device", "the volume"),
            column("lba", SECTORS),
            column("sectors", SECTORS),
            column("type", "0 writes, 1 reads"),
        ],
        example: "5000000 4 100000 16 0\n5315000 3 200000 16 1",
        more: "",
    },
    FormatPage {
        format: "disksim",
        columns: &[
            column("op", "`R` or `W`"),
            column("cache", "`Hit` or `Miss`, not read"),
            column("lbn", SECTORS),
            column("sectors", SECTORS),
            column("service", "microseconds, not read"),
            column("gap", "microseconds to the next request"),
        ],
        example: "W Hit 100000 4 700.00000 45000.00000\nR Miss 200000 12 6500.50000 64000.12300",
        more: "`seekway calibrate` reads the service times of such a trace.",
    },
    FormatPage {
        format: "blkparse",
        columns: &[
            column("device", "major and minor number: the volume"),
            column("cpu", "tells which events are of the same request"),
            column("sequence", NOT_READ),
            column("time", "seconds"),
            column("pid", "process"),
            column("action", "`Q`, `D` or `C` is a request; others are passed over"),
            column("RWBS", RWBS),
            column("sector", SECTORS),
            column("sectors", "sectors of 512 bytes, behind a `+`"),
            column("process", "its name in brackets, not read"),
        ],
        example: "  8,16   0        1     0.000000000   100  Q  WS 2048 + 8 [fio]\n  \
                  8,16   0        2     0.002000000   100  Q   R 4096 + 16 [fio]",
        more: "`blkparse -i sdb` prints it, and ftrace's tracer `blk` behind its own columns. The \
               text of `blkparse -f FORMAT` is read with `--columns FORMAT`, which needs `%T`, `%d`, \
               `%S`, `%n` or `%N`, and `%a` if there are events of several kinds. A line of Q, D or \
               C that cannot be read is an error; messages (`m`), the summary and other events are \
               counted and left out. Each request is taken once, as in blktrace's own files, by the \
               lines of X, A and R. `-f` does not print where a request was remapped from (A): there \
               it is taken to be the request before it, if that is as long and its device has no D.",
    },
    FormatPage {
        format: "perf",
        columns: &[
            column("process", "its name, not read"),
            column("pid", "process"),
            column("cpu", "in brackets; tells which events are of the same request"),
            column("time", "seconds"),
            column(
                "event",
                "`block_bio_queue`, `block_rq_issue` or `block_rq_complete` is a request",
            ),
            column("device", "major and minor number: the volume"),
            column("RWBS", RWBS),
            column("sector", SECTORS),
            column("sectors", "sectors of 512 bytes, behind a `+`"),
        ],
        example: "fio 1234 [002]  5512.345678: block:block_rq_issue: 8,0 WS 4096 () 2048 + 8 [fio]\n\
                  fio 1234 [002]  5512.347678: block:block_rq_issue: 8,0 R 8192 () 4096 + 16 [fio]",
        more: "`perf record -e block:block_rq_issue -a` and `perf script`, or `trace-cmd report`, \
               print it. `perf.data`, `trace.dat`, what `perf trace` prints and the events \
               `block_io_start` and `block_io_done` are refused with what to do. An `N` with sectors \
               is taken as write-zeroes and counted, for the kernel has that letter for zone appends, \
               too. Each request is taken once if the trace has `block_split`, `block_bio_remap` and \
               `block_rq_requeue`, too.",
    },
    FormatPage {
        format: "biosnoop",
        columns: &[
            column("TIME(s)", "seconds"),
            column("COMM", "not read"),
            column("PID", "process"),
            column("DISK", "the volume"),
            column("T", "`R` or `W`"),
            column("SECTOR", SECTORS),
            column("BYTES", BYTES),
            column("LAT(ms)", NOT_READ),
        ],
        example: "TIME(s) COMM PID DISK T SECTOR BYTES LAT(ms)\n\
                  0.000004 appd 1950 vdb W 13092560 4096 0.74\n\
                  0.001469 appd 1956 vdb R 13092440 4096 1.24",
        more: "The tools of bcc print it (BPF and libbpf); columns are found by their headings. That of \
               bpftrace has no sectors and sizes.",
    },
    FormatPage {
        format: "fio-log",
        columns: &[
            column("time", "milliseconds, when the request was done"),
            column(
                "latency",
                "nanoseconds (fio 2: microseconds); the request came so much earlier",
            ),
            column("direction", "0 reads, 1 writes, 2 discards"),
            column("size", BYTES),
            column("offset", BYTES),
            column("priority", NOT_READ),
        ],
        example: "12, 2000000, 0, 4096, 8192, 0\n13, 500000, 1, 8192, 1048576, 0",
        more: "fio writes one with `--write_lat_log=NAME --log_offset=1`. There is no priority before \
               fio 3.18; there the latencies tell whether they are of fio 2, or both readings are \
               named. Logs of bandwidth and rate (`_bw.`, `_iops.`), and means (`log_avg_msec`), \
               are refused.",
    },
    FormatPage {
        format: "disksim-ascii",
        columns: &[
            column("time", "milliseconds"),
            column("device", "the volume"),
            column("block", SECTORS),
            column("size", SECTORS),
            column("flags", "odd reads, even writes"),
        ],
        example: "0.000000 0 303567 8 1\n15.500000 0 303575 16 0",
        more: "",
    },
    FormatPage {
        format: "oracle-general",
        columns: &[
            column("clock_time", "seconds, 32 bits"),
            column("obj_id", "sectors of 512 bytes, 64 bits"),
            column("obj_size", "bytes, 32 bits"),
            column("next_access_vtime", "not read; 64 bits"),
        ],
        example: "seekway advise trace.oracleGeneral.bin.zst",
        more: "Records of 24 bytes, little-endian, without gaps. All are reads.",
    },
    FormatPage {
        format: "cachesim",
        columns: &[
            column("version", NOT_READ),
            column("time", "seconds"),
            column("op", "operation code of SCSI: 28 reads, 2a writes"),
            column("size", BYTES),
            column("lbn", SECTORS),
        ],
        example: "version,time,op,size,lbn\n1,33898,2a,512,42932745\n1,33899,28,6656,40409911",
        more: "",
    },
    FormatPage {
        format: "csv",
        columns: &[
            column("time_us", "by its name: `_s`, `_ms`, `_us` or `_ns`"),
            column("op", "read, write, flush, discard, and their letters"),
            column("offset", "bytes; or `sector`, sectors of 512 bytes"),
            column("size", "bytes; or `sectors`, sectors of 512 bytes"),
            column("volume", "the volume; may be absent"),
        ],
        example: "time_us,op,offset,size,volume\n0,read,0,4096,a\n1500,write,1048576,8192,a",
        more: "Columns are found by the names in the header, in any order, or by `--columns`.",
    },
    FormatPage {
        format: "parquet",
        columns: &[
            column(
                "time_ns",
                "nanoseconds; or `time_us` and others as in a CSV; a timestamp or a duration has \
                 its own unit",
            ),
            column("op", "`read`, `write`, `flush`, `discard`, `write-zeroes` or R, W, F, D, Z"),
            column("start_sector", "sectors of 512 bytes; or `offset_bytes`, bytes"),
            column("sectors", "sectors of 512 bytes; or `size_bytes`, bytes"),
            column("volume", "the volume; may be absent"),
            column("process", "process; may be absent"),
            column("sync", "does somebody wait for a write? may be absent"),
        ],
        example: "seekway convert vm.vscsi vm.parquet",
        more: "Columns are found by their names, in any order.",
    },
];

#[cfg(test)]
mod tests {
    use super::super::{Format, TraceOptions, TraceReader};
    use super::FormatPage;
    use std::io::Cursor;

    #[test]
    fn every_format_has_a_page_and_its_example_is_read() {
        for format in Format::all() {
            let page = FormatPage::of(format.name()).unwrap_or_else(|| panic!("{format}: no page"));
            assert!(!page.columns.is_empty() && !page.example.is_empty(), "{format}");
            if format.parser().is_none() {
                continue;
            }
            let text = format!("{}\n", page.example).into_bytes();
            let options = TraceOptions { format: Some(format), ..TraceOptions::default() };
            let reader =
                TraceReader::from_read(format.name(), Box::new(Cursor::new(text)), &options);
            let requests = reader.unwrap().map(Result::unwrap).count();
            assert!(requests >= 2, "{format}: {requests} requests");
        }
    }
}
