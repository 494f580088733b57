//! The block layer's events as text: which of them are the requests, and that none is dropped
//! without a word.

use crate::texts;
use expect_test::expect;
use seekway_workload::traces::{BlktraceEvent, Scan, TraceError, TraceOptions, scan};

fn read_with(text: &str, options: &TraceOptions) -> Result<Vec<String>, TraceError> {
    texts::read_with(text, options, |record, volume| {
        format!("{volume} {} {}", texts::operation(record), record.process)
    })
}

fn read(text: &str) -> Result<Vec<String>, String> {
    read_with(text, &TraceOptions::default()).map_err(|e| e.to_string())
}

fn by_columns(form: &str, text: &str) -> Result<Vec<String>, String> {
    let options = TraceOptions { columns: Some(form.into()), ..TraceOptions::default() };
    read_with(text, &options).map_err(|e| e.to_string())
}

fn scanned(text: &str, event: Option<BlktraceEvent>) -> Result<Scan, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    std::fs::write(&path, text).unwrap();
    let options = TraceOptions { blktrace_event: event, ..TraceOptions::default() };
    scan(&path, &options).map_err(|e| e.to_string().replace(&path.display().to_string(), "t"))
}

fn line(n: usize, action: &str) -> String {
    format!("  8,0    0        1   {n:5}.000000000     7  {action}   R {} + 8 [a]\n", n * 8)
}

/// A disk with requests under way: their completions, or issues, come first.
#[test]
fn a_busy_disk() {
    let late: String = (0..256).map(|n| line(n, "C")).collect();
    let lives: String =
        (300..310).flat_map(|n| ["Q", "G", "I", "D", "C"].map(|action| line(n, action))).collect();
    let read_as = |text: &str, event| scanned(text, event).unwrap().stats.requests();
    assert_eq!(read_as(&(late.clone() + &lives), None), 10);
    assert_eq!(read_as(&(late.clone() + &lives), Some(BlktraceEvent::Completed)), 266);
    // Beyond the part that tells the format.
    let many: String = (0..5_000).map(|n| line(n, "D")).collect();
    assert_eq!(read_as(&(many.clone() + &lives), None), 10);
    let perf = |n: usize, event: &str| {
        format!(" fio 7 [002] {n}.000001: block:{event}: 8,0 R {} + 8 [fio]\n", n * 8)
    };
    let issued: String = (0..220).map(|n| perf(n, "block_rq_issue")).collect();
    let perf = issued.clone() + &perf(220, "block_bio_queue") + &perf(220, "block_rq_issue");
    assert_eq!(read_as(&perf, None), 1);
    // Asked for, and not there.
    let error = scanned(&issued, Some(BlktraceEvent::Queued)).unwrap_err();
    expect!["t: no requests in this trace (read as perf; 220 other lines or events); its events are 220 issue (D): take them by --event issue"]
        .assert_eq(&error);
}

/// A kind of events that comes only behind what is looked at would be the requests: no silent
/// change, and the advice helps.
#[test]
fn events_that_come_too_late() {
    let issued: String = (0..80_000).map(|n| line(n, "D")).collect();
    assert!(issued.len() > 4 << 20);
    let text = issued + &line(80_000, "Q") + &line(80_001, "D");
    let error = scanned(&text, None).unwrap_err();
    assert!(error.starts_with("t:80001:") && error.contains("--event"), "{error}");
    let read_as = |event| scanned(&text, Some(event)).unwrap().stats.requests();
    assert_eq!(read_as(BlktraceEvent::Queued), 1);
    assert_eq!(read_as(BlktraceEvent::Issued), 80_001);
}

/// `traces_blktrace` has this trace in binary form.
#[test]
fn a_request_that_was_split_or_remapped_or_requeued_is_taken_once() {
    let texts = |events: &[&str]| -> [String; 3] {
        let mut texts = [const { String::new() }; 3];
        for (n, event) in events.iter().enumerate() {
            let [action, device, rest] = event.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                panic!("{event}");
            };
            let name = match action {
                "Q" => "bio_queue",
                "D" => "rq_issue",
                "C" => "rq_complete",
                "A" => "bio_remap",
                "X" => "split",
                _ => "rq_requeue",
            };
            let forms = [
                format!("  {device}  3  {n}  0.00{n}000000  100  {action}  {rest} [fio]\n"),
                format!("  fio-100 [003] ..... 5.00{n}:   {device}  {action}  {rest} [fio]\n"),
                format!("fio 100 [003] 5.00{n}: block:block_{name}: {device} {rest} [fio]\n"),
            ];
            texts.iter_mut().zip(forms).for_each(|(text, form)| text.push_str(&form));
        }
        texts
    };
    let check = |events: &[&str], requests: u64, repeated: u64| {
        for text in texts(events) {
            let scan = scanned(&text, None).unwrap();
            assert_eq!(scan.stats.requests(), requests, "{text}");
            let said = format!(
                "{repeated} events left out that repeat a request (rest of a split, remapped from \
                 another device of the trace, or requeued)"
            );
            assert_eq!(scan.notes.contains(&said), repeated > 0, "{text}");
        }
    };
    check(&["Q 8,0 R 0 + 32", "X 8,0 R 0 / 8", "Q 8,0 R 8 + 24"], 1, 1);
    check(&["Q 8,0 R 0 + 32", "X 8,0 R 0 / 8", "Q 8,0 R 800 + 8"], 2, 0);
    // A partition's request is queued once. A volume's is queued on the disk as well.
    check(&["A 8,0 R 2048 + 8 <- (8,1) 0", "Q 8,0 R 2048 + 8"], 1, 0);
    check(
        &["Q 253,0 R 0 + 8", "A 8,0 R 8 + 8 <- (253,0) 0", "Q 8,0 R 8 + 8", "D 8,0 R 8 + 8"],
        1,
        1,
    );
    check(&["D 8,0 R 8 + 8", "R 8,0 R 8 + 8", "D 8,0 R 8 + 8", "D 8,0 R 8 + 8"], 2, 1);
    check(&["D 8,0 R 8 + 8", "C 8,0 R 8 + 8", "D 8,0 R 8 + 8", "C 8,0 R 8 + 8"], 2, 0);
}

/// `-f` prints neither where a request was remapped from nor where a split one goes on.
#[test]
fn a_request_in_a_form_is_taken_once() {
    let read = |events: &[&str]| {
        let line = |(n, event): (usize, &&str)| format!("0.{n:09} {event}\n");
        let text: String = events.iter().enumerate().map(line).collect();
        by_columns("%T.%t %D %a %d %S %n", &text).unwrap()
    };
    let volume = ["253,0 Q R 0 8", "8,0 A R 64 8", "8,0 Q R 64 8", "8,0 D R 64 8", "8,0 C R 64 8"];
    assert_eq!(read(&volume), ["253:0 R sync 0+8 0"]);
    assert_eq!(read(&[&volume[..], &volume[1..]].concat()).len(), 2, "and then of a partition");
    let other = ["253,0 Q R 0 8", "8,0 A R 64 16", "8,0 Q R 64 16"];
    assert_eq!(read(&other).len(), 2, "not as long");
    // Two disks with partitions.
    let disks = ["8,0 A R 64 8", "8,0 Q R 64 8", "8,16 A R 32 8", "8,16 Q R 32 8"];
    assert_eq!(read(&disks).len(), 2);
    let bare = ["8,0 D R 9 8", "8,0 Q R 64 8", "8,16 A R 32 8", "8,16 Q R 32 8"];
    assert_eq!(read(&bare).len(), 2);
    let split = ["8,0 Q R 0 32", "8,0 X R 0 8", "8,0 Q R 8 24"];
    assert_eq!(read(&split), ["8:0 R sync 0+32 0"]);
}

/// blkparse 1.2.0's lines of what has no data are events; what it does not print is none.
#[test]
fn blkparse_without_a_plus() {
    let line = |rest: &str| format!("  8,16   0        1     0.000000000   100 {rest}\n");
    let text = [
        " Q  WS 2048 + 8 [a + b]",
        " Q FWS [jbd2/sdb1-8]",
        " Q FWS (      12) [jbd2/sdb1-8]",
        " D   R 36 (12 01 00 00 24 00 ..) [smartctl]",
        " D   R 36 [smartctl]",
        " C  WS 0 [0]",
        " C   N (35 00 ..) [0]",
        " Q  WS [kworker/0:1H]",
        " m   N cfq100A / dispatched a request",
        "UT   N [Web Content] 1",
    ]
    .map(line)
    .concat();
    let scan = scanned(&text, None).unwrap();
    assert_eq!(scan.stats.requests(), 3);
    assert_eq!(scan.notes, ["1 requests without data left out"]);
    // `blkparse -f`, with a flush that has neither a sector nor a length.
    for form in ["R 2048 8", "R 2048 4096", "R 2048 8 fio", "R 2048 8 [fio]", "R 2048"] {
        let text = format!("0.000000000 Q {form}\n0.000001000 Q FWS [a]\n0.000002000 Q FWS [a]\n");
        let refused = read(&text).unwrap_err();
        assert!(refused.contains("--columns '%T.%t %a %d %S %n'"), "{refused}");
        let options = TraceOptions {
            format: seekway_workload::traces::Format::from_name("blkparse"),
            ..TraceOptions::default()
        };
        let error = read_with(&text, &options).unwrap_err().to_string();
        assert!(error.starts_with("t:1:") && error.contains("--columns"), "{error}");
    }
    // A line in the midst.
    for damaged in [" Q   R 2048 8 [a]", " Q   R 2048", " Q", " 100  2048 + 8 [a]"] {
        let text = (0..20).map(|_| line(" Q   R 8 + 8 [a]")).collect::<String>() + &line(damaged);
        assert!(read(&text).unwrap_err().starts_with("t:21:"), "{damaged}");
    }
}

/// Lines of blkparse 1.2.0 beside those in the form of its `-f`.
const ASIDE: &str = "Input file sdb.blktrace.0 added\n  8,16   0        0     0.009000005     0  m   N cfq100A / dispatched a request\nCPU0 (sdb):\n Reads Queued:           1,        4KiB\t Writes Queued:           0,        0KiB\n Read Dispatches:        1,        4KiB\t Write Dispatches:        0,        0KiB\n PC Reads Queued:        0,        0KiB\t PC Writes Queued:        0,        0KiB\n IO unplugs:             0        \t Timer unplugs:           0\n\nfio (100)\nfio worker (100, ...)\n Allocation wait:        0        \t Allocation wait:         0\n Dispatch wait:          0        \t Dispatch wait:           0\n Completion wait:        0        \t Completion wait:         0\nTotal (sdb):\n\nThroughput (R/W): 20KiB/s / 0KiB/s\nEvents (sdb): 20 entries\nSkips: 0 forward (0 -   0.0%)\n";

#[test]
fn messages_and_summaries_in_a_form() {
    for (form, text) in [
        (
            "%D %2c %8s %5T.%9t %5p %2a %3d %S + %n [%C]",
            "  8,16   0        1     0.000000000   100  Q   R 2048 + 8 [fio worker]",
        ),
        ("%D %T.%t %p %a %d %S %n", "  8,16  0.000000000 100 Q R 2048 8"),
        ("%M,%m %a %p %d %T.%t %S %n", "8,16 Q 100 R 0.000000000 2048 8"),
        ("%a %p %d %D %T.%t %S %n", "Q 100 R   8,16  0.000000000 2048 8"),
        ("%d %p %D %T.%t %S %n %a", "R 100   8,16  0.000000000 2048 8 Q"),
        // The time of day, a cgroup, and a name with blanks.
        (
            "%z %g %T.%t %D %p %C %a %d %S %n",
            "10:11:12.123456 1,1 0.0   8,16  100 a b c Q R 2048 8",
        ),
        ("%T.%t %D %p %a %d %S %n %C", "0.000000000   8,16  100 Q R 2048 8 fio worker"),
    ] {
        let read = by_columns(form, &format!("{text}\n{ASIDE}{text}\n"));
        let request = || "8:16 R sync 2048+8 100".to_string();
        assert_eq!(read, Ok(vec![request(), request()]), "{form}");
        // A line that is neither is not passed over.
        for damaged in [text.replace("2048", "20x8"), text.replace("Q ", "? ")] {
            let read = by_columns(form, &format!("{text}\n{damaged}\n"));
            assert!(damaged == text || read.unwrap_err().starts_with("t:2:"), "{form}: {damaged}");
        }
    }
    let form = "%T.%t %d %S %n";
    let options = TraceOptions {
        columns: Some(form.into()),
        blktrace_event: Some(BlktraceEvent::Issued),
        ..TraceOptions::default()
    };
    let error = read_with("0.0 R 8 8\n", &options).unwrap_err().to_string();
    assert_eq!(error, "t: --event issue: --columns has no %a, which says the events");
}

/// Letters of newer and of older kernels, and the one that means several operations.
#[test]
fn letters_of_all_kernels() {
    let event = |event: &str, rwbs: &str, extent: &str| {
        format!(
            " fio 1234 [002]  5512.345678: block:{event}: 8,0 {rwbs} 4096 () {extent} none,0,0 [fio]\n"
        )
    };
    let issue = |rwbs: &str, extent: &str| event("block_rq_issue", rwbs, extent);
    let text = [("WSU", 8), ("ZAS", 16), ("ZR", 0), ("N", 0), ("N", 24), ("WZ", 32), ("WB", 40)]
        .map(|(rwbs, sectors)| issue(rwbs, &format!("4096 + {sectors}")));
    let scan = scanned(&text.concat(), None).unwrap();
    expect!["perf (s, sectors): 6 requests of 10.7 KiB, at one time, 1 volume; requests are its issue events (D), as the kernel merged them; 1 zone operations left out; 1 requests without data left out; 1 zone appends stand at the start of their zone; --event complete has their sectors; 1 events N with sectors taken as write-zeroes; on a zoned disk they can be zone appends; 2 other lines or events left out"]
        .assert_eq(&scan.summary());
    let completed = event("block_rq_complete", "N", "18446744073709551615 + 8")
        + &event("block_rq_complete", "R", "8 + 8");
    let scan = scanned(&completed, None).unwrap();
    assert_eq!(scan.stats.requests(), 1);
    let said = "1 events N with sectors left out: write-zeroes, or commands";
    assert_eq!(scan.notes.last().unwrap(), said);
}

#[test]
fn processes_with_strokes_in_their_names() {
    for (task, process) in [
        ("kworker/0:1H-77    [000] d..1.", 77),
        ("jbd2/sda1-8-333   [001] .....", 333),
        ("jbd2/sda1-8   333/335 [001]", 333),
        ("my-app-77    (   70) [001] ....", 77),
        ("<idle>-0       [000] d.h1.", 0),
    ] {
        let text = format!(" {task} 5512.345678: block_bio_queue: 8,0 R 2048 + 8 [x]\n");
        assert_eq!(read(&text), Ok(vec![format!("8:0 R sync 2048+8 {process}")]), "{task}");
    }
}

/// ftrace's `trace` with `current_tracer` `blk`.
#[test]
fn the_tracer_blk_of_ftrace() {
    let text = "# tracer: blk\n#\n# entries-in-buffer/entries-written: 12/12   #P:4\n#\n#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n#              | |         |   |||||     |         |\n             fio-1234    [002] ..... 5512.345678:   8,0    Q  WS 2048 + 8 [fio]\n             fio-1234    [002] d..1. 5512.345690:   8,0    D  WS 2048 + 8 [fio]\n          <idle>-0       [000] d.h1. 5512.345800:   8,0    C  WS 2048 + 8 [0]\n   kworker/0:1H-77       [002] ..... 5512.346678:   8,16   Q FWS [kworker/0:1H]\n             fio-1234    [002] ..... 5512.346680: sched_switch: prev_comm=fio\n";
    assert_eq!(read(text).unwrap(), ["8:0 W sync 2048+8 1234", "8:16 F sync 0+0 77"]);
}

#[test]
fn forms_that_are_not_read_are_named() {
    let errors = [
        "PERFILE2\0\0\0\0\0\0\0\0",
        "\x17\x08\x44tracing6\0",
        "     0.000 fio/1234 block:block_rq_issue(dev: 8388608, sector: 2048, nr_sector: 8, bytes: 4096, rwbs: \"WS\", comm: \"fio\", cmd: \"\")\n",
        " fio  1234 [002]  5512.345690: block:block_io_start: 8,0 WS 8192 () 4096 + 16 none,0,0 [fio]\n",
        "Attaching 4 probes...\nTIME(ms)     DISK ID        COMM             PID    LAT(ms)\n             MAJOR MINOR\n2966         259   0        jbd2/nvme0n1-8   615          0\n",
    ]
    .map(|text| read(text).unwrap_err());
    expect![[r#"
        t: the binary file of perf record: give what `perf script` prints of it
        t: the binary file of trace-cmd: give what `trace-cmd report` prints of it
        t: the text of perf trace, which is not read: trace by `perf record -e block:block_rq_issue -a`, and give what `perf script` prints
        t: events block_io_start and block_io_done are not read, for they are no requests as they were queued or issued: trace block:block_rq_issue
        t: a table of bpftrace's biosnoop, which has no sectors and sizes: use that of bcc"#]]
    .assert_eq(&errors.join("\n"));
}

/// libbpf's biosnoop: a command of a program has no sectors, and is no flush.
#[test]
fn commands_in_biosnoops_table() {
    let text = "TIME(s)     COMM           PID     DISK    T    SECTOR     BYTES   LAT(ms)\n0.000000    smartctl       77      sda     N    0          0         0.512\n0.000100    jbd2           88      sda     FF   0          0         0.512\n0.000200    fio            99      sda     WSU  2048       4096      0.512\n";
    assert_eq!(read(text).unwrap(), ["sda F sync 0+0 88", "sda W sync 2048+8 99"]);
}
