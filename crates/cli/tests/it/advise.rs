//! `seekway advise`: verdicts that follow from arithmetic, and a ranking for each goal.

use crate::common::{Folder, fixture, json, number, policies, seekway, seekway_with, trace};
use serde_json::{Value, json as value};
use std::fmt::Write as _;

const GOALS: [&str; 4] = ["latency", "throughput", "fairness", "balance"];

/// Random reads of 4 KiB every `gap_us` in MQSim's format, all over `sectors` sectors.
fn random_reads(requests: u64, gap_us: u64, sectors: u64) -> String {
    let mut text = String::new();
    for n in 0..requests {
        let (time_ns, place) = (n * gap_us * 1000, n * n * 7_919 % (sectors / 8) * 8);
        let _ = writeln!(text, "{time_ns} 0 {place} 8 1");
    }
    text
}

/// A thousand a second: some eight times what a disk with a head does.
fn flood() -> String {
    random_reads(2_000, 1_000, 80_000_000)
}

const DRIVE: [&str; 2] = ["--device", "seagate-1tb-7200"];

/// On a 7200 rpm drive, unless `args` name a disk.
fn advise(args: &[&str]) -> crate::common::Ran {
    let drive = if args.contains(&DRIVE[0]) { &[][..] } else { &DRIVE };
    seekway(&[&["advise"], args, drive].concat())
}

fn advised(args: &[&str]) -> Value {
    json(&advise(&[args, &["--format", "json"]].concat()).ok())
}

// Loads whose answers are known by arithmetic.

/// A disk that takes `ms` for every request, one after the other, wherever it is.
fn constant(ms: f64) -> String {
    format!(
        "name = \"constant\"\nsummary = \"one request after the other, {ms} ms each\"\n\
         [linear]\ncapacity_sectors = 1000000000\nbase_ms = {ms}\nstroke_ms = 0.0\n\
         rotation_ms = 8.0\nhit_ms = 0.3\nqueue_depth = 1\nsegments = 1\n\
         segment_sectors = 8\nprefetch_sectors = 0\nreplacement = \"lru\"\non_hit = \"keep\"\n"
    )
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Read,
    SyncWrite,
    Write,
}
use Kind::{Read, SyncWrite, Write};

/// Requests of 4 KiB: `count` from `from_ms` on, one every `gap_us`.
#[derive(Clone, Copy)]
struct Series(Kind, u64, u64, u64);

/// The series as one table, sorted by time. No two requests are adjacent.
fn table(series: &[Series], kib: u64) -> String {
    let mut rows: Vec<(u64, Kind)> = Vec::new();
    for &Series(kind, from_ms, count, gap_us) in series {
        rows.extend((0..count).map(|n| (from_ms * 1000 + n * gap_us, kind)));
    }
    rows.sort_by_key(|(time_us, _)| *time_us);
    let mut text = "time_us,op,offset,size,sync\n".to_string();
    for (n, (time_us, kind)) in rows.into_iter().enumerate() {
        let place = (n as u64 * 7_919 % 12_000) << 23;
        let op = if kind == Read { "read" } else { "write" };
        let sync = u8::from(kind != Write);
        let _ = writeln!(text, "{time_us},{op},{place},{},{sync}", kib << 10);
    }
    text
}

/// A load, a disk, and what follows from them.
struct Row {
    what: &'static str,
    /// VMs with their requests of `kib` KiB.
    vms: &'static [&'static [Series]],
    kib: u64,
    /// Milliseconds for each request, or a modelled disk.
    disk: Result<f64, &'static str>,
    args: &'static [&'static str],
    carried: bool,
    /// JSON pointers with values, within 3 %.
    figures: &'static [(&'static str, f64)],
    /// Limit that is exceeded first.
    exceeds: Option<&'static str>,
}

/// Everything that a row may leave out: a disk of 100 requests a second that carries the load.
const ROW: Row = Row {
    what: "",
    vms: &[],
    kib: 4,
    disk: Ok(10.0),
    args: &[],
    carried: true,
    figures: &[],
    exceeds: None,
};

const BUSY: &str = "/service/busy";
const SHARE: &str = "/long_run_share";
const HEADROOM: &str = "/headroom/times";
const LONGEST: &str = "/service/served/0/longest_ms";
const P99: &str = "/service/served/0/p99_ms";
const BACKLOG: &str = "/service/served/0/backlog_mib";
const WORST_DEPTH: &str = "/service/bursts/0/requests";
const WORST_LENGTH: &str = "/service/bursts/0/length_s";

const ROWS: &[Row] = &[
    Row {
        // 40 of 100 a second. Two copies need 80 %, three 120 %.
        what: "reads that leave room",
        vms: &[&[Series(Read, 0, 2_400, 25_000)]],
        figures: &[(BUSY, 0.4), (LONGEST, 10.0), (HEADROOM, 2.0), (SHARE, 1.0)],
        ..ROW
    },
    Row {
        // 200 a second on a disk of 140: 200 / 140 = 1.43, and 70 % in the long run.
        what: "reads above the disk's rate",
        vms: &[&[Series(Read, 0, 6_000, 5_000)]],
        disk: Ok(1000.0 / 140.0),
        carried: false,
        figures: &[(BUSY, 1.43), (SHARE, 0.7)],
        exceeds: Some("rate"),
        ..ROW
    },
    Row {
        // Half as fast: 100 of 140.
        what: "the same reads at half the speed",
        vms: &[&[Series(Read, 0, 6_000, 5_000)]],
        disk: Ok(1000.0 / 140.0),
        args: &["--time-scale", "2"],
        figures: &[(BUSY, 0.714), (HEADROOM, 1.0)],
        ..ROW
    },
    Row {
        // 300 reads in 300 s and 217 within 10 ms: 5.17 s of work. The burst's last read waits
        // 2.17 s, and one in a hundred of all longer than 2.12 s.
        what: "one burst of reads in a quiet load",
        vms: &[&[Series(Read, 0, 300, 1_000_000), Series(Read, 100_500, 217, 46)]],
        carried: false,
        figures: &[(BUSY, 0.0172), (SHARE, 1.0), (P99, 2_120.0), (WORST_DEPTH, 217.0)],
        exceeds: Some("p99"),
        ..ROW
    },
    Row {
        // Nobody waits for these writes: they drain in 2.17 s.
        what: "one burst of writes in a quiet load",
        vms: &[&[Series(Write, 0, 300, 1_000_000), Series(Write, 100_500, 217, 46)]],
        figures: &[(BUSY, 0.0172), (BACKLOG, 217.0 / 256.0), (WORST_LENGTH, 2.17)],
        ..ROW
    },
    Row {
        // As the reads: somebody waits.
        what: "one burst of synchronous writes in a quiet load",
        vms: &[&[Series(SyncWrite, 0, 300, 1_000_000), Series(SyncWrite, 100_500, 217, 46)]],
        carried: false,
        figures: &[(BUSY, 0.0172), (P99, 2_120.0)],
        exceeds: Some("p99"),
        ..ROW
    },
    Row {
        // 2,000 writes in 2 s: 200 are done by then, 1,800 × 4 KiB wait, all are done after 20 s.
        what: "a checkpoint that drains in 20 s",
        vms: &[&[Series(Write, 10_000, 2_000, 1_000), Series(Write, 300_000, 2, 1_000_000)]],
        figures: &[(BUSY, 0.069), (BACKLOG, 1_800.0 / 256.0), (WORST_LENGTH, 20.0)],
        ..ROW
    },
    Row {
        // 4,000 writes within 0.4 s need 40 s, above 30 s.
        what: "a checkpoint that drains in 40 s",
        vms: &[&[Series(Write, 10_000, 4_000, 100), Series(Write, 300_000, 2, 1_000_000)]],
        carried: false,
        figures: &[(BUSY, 0.137), (SHARE, 1.0), (WORST_LENGTH, 40.0)],
        exceeds: Some("longest"),
        ..ROW
    },
    Row {
        // A limit of 60 s admits them.
        what: "a checkpoint that may drain in 60 s",
        vms: &[&[Series(Write, 10_000, 4_000, 100), Series(Write, 300_000, 2, 1_000_000)]],
        args: &["--hard-limit", "60s"],
        figures: &[(BUSY, 0.137), (WORST_LENGTH, 40.0)],
        ..ROW
    },
    Row {
        // 120 a second for 100 s: 12,000 × 10 ms = 120 s of work, 5/6 in the long run. After 100 s
        // 20 s are left, which is below the limit of 30 s: the rate alone is too much.
        what: "writes above the disk's rate",
        vms: &[&[Series(Write, 0, 12_000, 8_333)]],
        carried: false,
        figures: &[(BUSY, 1.2), (SHARE, 0.833), ("/service/behind_s", 20.0)],
        exceeds: Some("rate"),
        ..ROW
    },
    Row {
        // 30 + 30 of 100 a second; two copies need 120 %.
        what: "reads beside writes",
        vms: &[&[Series(Read, 0, 1_800, 33_333), Series(Write, 5, 1_800, 33_333)]],
        figures: &[(BUSY, 0.6), (HEADROOM, 1.0)],
        ..ROW
    },
    Row {
        // As one VM.
        what: "two VMs that leave room",
        vms: &[&[Series(Read, 0, 1_800, 33_333)], &[Series(Read, 5, 1_800, 33_333)]],
        figures: &[(BUSY, 0.6), (HEADROOM, 1.0)],
        ..ROW
    },
    Row {
        // 60 + 60 of 100.
        what: "two VMs that are too many",
        vms: &[&[Series(Read, 0, 3_600, 16_667)], &[Series(Read, 5, 3_600, 16_667)]],
        carried: false,
        figures: &[(BUSY, 1.2), (SHARE, 0.833)],
        exceeds: Some("rate"),
        ..ROW
    },
    Row {
        // 50 at once take 0.5 s. Three such bursts in 30 s: 150 × 10 ms.
        what: "short bursts of reads",
        vms: &[&[
            Series(Read, 0, 50, 0),
            Series(Read, 10_000, 50, 0),
            Series(Read, 20_000, 50, 0),
            Series(Read, 30_000, 1, 0),
        ]],
        figures: &[(BUSY, 0.05), (LONGEST, 500.0), (WORST_DEPTH, 50.0), (WORST_LENGTH, 0.5)],
        ..ROW
    },
    Row {
        // 150 at once take 1.5 s: the 149th has waited 1.49 s.
        what: "long bursts of reads",
        vms: &[&[Series(Read, 0, 150, 0), Series(Read, 10_000, 150, 0)]],
        carried: false,
        figures: &[(P99, 1_490.0), (WORST_DEPTH, 150.0), (WORST_LENGTH, 1.5)],
        exceeds: Some("p99"),
        ..ROW
    },
    Row {
        // A limit of 2 s admits these reads.
        what: "long bursts of reads that may take 2 s",
        vms: &[&[Series(Read, 0, 150, 0), Series(Read, 10_000, 150, 0)]],
        args: &["--p99-limit", "2s"],
        figures: &[(P99, 1_490.0)],
        ..ROW
    },
    Row {
        // 2,000 of 3,000 a second. In this model a command is in flight for some 0.7 ms.
        what: "a cloud volume below its rate",
        vms: &[&[Series(Read, 0, 20_000, 500)]],
        disk: Err("aws-gp3"),
        figures: &[(SHARE, 1.0), (HEADROOM, 1.0)],
        ..ROW
    },
    Row {
        // 4,500 a second on 3,000.
        what: "a cloud volume above its rate",
        vms: &[&[Series(Read, 0, 45_000, 222)]],
        disk: Err("aws-gp3"),
        carried: false,
        figures: &[(BUSY, 1.5), (SHARE, 0.667)],
        exceeds: Some("rate"),
        ..ROW
    },
    Row {
        // 150 MiB/s of 1 MiB reads on 125 MiB/s.
        what: "a cloud volume above its bandwidth",
        vms: &[&[Series(Read, 0, 3_000, 6_667)]],
        kib: 1024,
        disk: Err("aws-gp3"),
        carried: false,
        figures: &[(BUSY, 1.2), (SHARE, 0.833)],
        exceeds: Some("rate"),
        ..ROW
    },
    Row {
        // 2,000 a second for 10 s from credit: 20,000 of 5.4 million.
        what: "a cloud volume with credit",
        vms: &[&[Series(Read, 0, 20_000, 500)]],
        disk: Err("azure-p10"),
        figures: &[(SHARE, 1.0)],
        ..ROW
    },
    Row {
        // Without credit 500 a second: a quarter.
        what: "a cloud volume without credit",
        vms: &[&[Series(Read, 0, 20_000, 500)]],
        disk: Err("azure-p10:io_credit=0,burst_iops=500"),
        carried: false,
        figures: &[(BUSY, 4.0), (SHARE, 0.25)],
        exceeds: Some("rate"),
        ..ROW
    },
];

#[test]
fn verdicts_follow_from_arithmetic() {
    let folder = Folder::new();
    let mut wrong = Vec::new();
    for (n, row) in ROWS.iter().enumerate() {
        let vm = |(vm, series): (usize, &&[Series])| {
            folder.file(&format!("vm{n}-{vm}.csv"), &table(series, row.kib))
        };
        let traces: Vec<String> = row.vms.iter().enumerate().map(vm).collect();
        let disk = match row.disk {
            Ok(ms) => folder.file(&format!("disk{n}.toml"), &constant(ms)),
            Err(name) => name.to_string(),
        };
        let mut args: Vec<&str> = traces.iter().map(String::as_str).collect();
        args.extend(["--device", &disk]);
        args.extend(row.args);
        let made = advised(&args);
        let mut check = |holds: bool, what: String| {
            if !holds {
                wrong.push(format!("{}: {what}; {}", row.what, made["advice"]));
            }
        };
        check(made["carried"] == row.carried, format!("carried: {}", made["carried"]));
        let exceeds = made["excesses"][0]["of"].as_str();
        check(exceeds == row.exceeds, format!("exceeds {exceeds:?}"));
        for &(pointer, expected) in row.figures {
            let value = made.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
            let is_near = (value / expected - 1.0).abs() <= 0.03;
            check(is_near, format!("{pointer} is {value}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_first_line_has_disk_verdict_busy_time_and_worst_burst() {
    let folder = Folder::new();
    // Two of the quiet load's reads come into the burst of 217.
    let quiet = [Series(Read, 0, 300, 1_000_000), Series(Read, 100_500, 217, 46)];
    let path = folder.file("quiet.csv", &table(&quiet, 4));
    let disk = folder.file("disk.toml", &constant(10.0));
    let text = advise(&[&path, "--device", &disk]).ok();
    let first = text.lines().next().unwrap_or_default();
    for part in [
        "No, ",
        "disk.toml does not carry this load: it is busy 1.7 % of the time; worst burst: 2.19 s ",
        "from 100 s on, 217 requests (868 KiB) deep, quiet's reads take up to 2.1",
    ] {
        assert!(first.contains(part), "no {part:?} in {first}");
    }
    assert!(text.contains("The rate is not too much, the bursts are."), "{text}");
    // At the full rate of the burst the disk would not be asked for more.
    let flood = folder.file("flood.csv", &table(&[Series(Read, 0, 6_000, 5_000)], 4));
    let disk = folder.file("140.toml", &constant(1000.0 / 140.0));
    let text = advise(&[&flood, "--device", &disk]).ok();
    let rate = "it needs 143 % of the disk's time, so in the long run the disk does 70 % of it";
    assert!(text.starts_with("No, ") && text.contains(rate), "{text}");
    assert!(text.contains("No policy mends that."), "{text}");
    let csv = advise(&[&flood, "--device", &disk, "--format", "csv"]);
    assert!(csv.err.contains("No, ") && csv.out.starts_with("policy,"), "{}", csv.err);
}

#[test]
fn the_longest_wait_is_exact_and_no_p99_is_above_it() {
    let folder = Folder::new();
    let disk = folder.file("disk.toml", &constant(10.0));
    for kind in [Read, SyncWrite, Write] {
        // The last of 50 at once is done after 500 ms.
        let path =
            folder.file("a.csv", &table(&[Series(kind, 0, 50, 0), Series(kind, 10_000, 1, 0)], 4));
        let made = advised(&[&path, "--device", &disk]);
        let served = &made["service"]["served"][0];
        assert_eq!((&served["longest_ms"], &served["p99_ms"]), (&value!(500.0), &value!(500.0)));
        assert_eq!(made["service"]["bursts"][0]["longest_ms"], 500.0);
        assert_eq!(made["runs"][0]["response_ms"]["max"], 500.0);
    }
}

#[test]
fn credit_that_pays_for_a_load_is_said_to_end() {
    let folder = Folder::new();
    let path = folder.file("a.csv", &table(&[Series(Read, 0, 30_000, 1_000)], 4));
    let made = advised(&[&path, "--device", "aws-gp2"]);
    // 5.4 million I/Os. It has 300 a second, the load needs 700 more.
    let lasts_s = number(&made["credit_lasts_s"]);
    assert!((lasts_s / 7_714.0 - 1.0).abs() < 0.03, "{lasts_s} s");
    let advice = made["advice"].as_str().expect("a text");
    assert!(advice.starts_with("Yes, ") && advice.contains("with credit"), "{advice}");
    assert_eq!(advised(&[&path, "--device", "aws-gp3"])["credit_lasts_s"], Value::Null);
}

#[test]
fn a_policy_that_keeps_the_disk_idle_carries_no_more() {
    let folder = Folder::new();
    let path = folder.file("a.csv", &table(&[Series(Write, 0, 21_000, 1_429)], 4));
    let made = advised(&[&path]);
    for judged in made["ranking"].as_array().expect("a list") {
        assert_eq!(judged["carries"], false, "{judged:#}");
    }
    // 217 in 10 ms that nobody waits for are no rate, and drain.
    let path = folder.file("burst.csv", &table(&[Series(Write, 0, 217, 46)], 4));
    let made = advised(&[&path, "--device", "linear-7200"]);
    assert_eq!((&made["carried"], &made["service"]["busy"]), (&value!(true), &Value::Null));
    assert_eq!(made["long_run_share"], Value::Null);
}

#[test]
fn headroom_is_the_recommended_stack_s_and_another_may_carry_more() {
    let folder = Folder::new();
    let path = folder.file("a.trace", &random_reads(2_400, 25_000, 900_000_000));
    let made = advised(&[&path, "--for", "latency"]);
    let (headroom, recommend) = (&made["headroom"], made["recommend"].as_str().expect("a name"));
    let (times, more) = (number(&headroom["times"]), &headroom["more"]);
    assert!(number(&more["times"]) > times, "{headroom:#}");
    assert_ne!(more["policy"], recommend);
    let advice = made["advice"].as_str().expect("a text");
    for part in [
        format!("Headroom under {recommend}: {times} such loads side by side"),
        format!("Under {} the disk carries {}.", more["policy"].as_str().unwrap(), more["times"]),
    ] {
        assert!(advice.contains(&part), "no {part:?} in {advice}");
    }
    // On a disk that takes the same time for every request no order carries more.
    let disk = folder.file("disk.toml", &constant(10.0));
    let made = advised(&[&path, "--device", &disk]);
    assert_eq!((&made["headroom"]["times"], &made["headroom"]["more"]), (&value!(2), &Value::Null));
}

/// Requests as MQSim has them: time in ns, first sector, sectors, 1 for a read.
type Rows = Vec<[u64; 4]>;

fn mqsim(rows: &Rows) -> String {
    let line =
        |[time_ns, start, len, read]: &[u64; 4]| format!("{time_ns} 0 {start} {len} {read}\n");
    rows.iter().map(line).collect()
}

/// Copy `n` of a trace as docs/advise.md has it: from another request on, what lies before it at the
/// end, and as much further on in the image.
fn copy_by_hand(rows: &Rows, n: u64) -> Rows {
    const MIB_SECTORS: u64 = 2048;
    let turn = n * 618_034 % 1_000_000;
    let span_ns = rows[rows.len() - 1][0];
    let period_ns = span_ns + span_ns / (rows.len() as u64 - 1);
    let image = rows.iter().map(|[_, start, len, _]| start + len).max().expect("requests");
    let image_mib = image / MIB_SECTORS;
    let further = image_mib * turn / 1_000_000 * MIB_SECTORS;
    let from_ns = u128::from(period_ns) * u128::from(turn) / 1_000_000;
    let first = rows.iter().position(|row| u128::from(row[0]) >= from_ns).unwrap_or(0);
    let begin_ns = rows[first][0];
    let moved = |(row, later_ns): (&[u64; 4], u64)| {
        let [time_ns, start, len, read] = *row;
        let start = ((start + further) % (image_mib * MIB_SECTORS)).min(image - len);
        [time_ns + later_ns - begin_ns, start, len, read]
    };
    let behind = rows[first..].iter().map(|row| (row, 0));
    let before = rows[..first].iter().map(|row| (row, period_ns));
    behind.chain(before).map(moved).collect()
}

#[test]
fn copies_of_the_load_are_those_that_can_be_made_by_hand() {
    let folder = Folder::new();
    let place = |n: u64| n * n * 7_919 % 26_000_000 * 8;
    let reads = (0..4_000).map(|n| [n * 50_000_000, place(n), 8, 1]);
    let burst = (0..2_500).map(|n| [100_001_000_000 + n * 10_000, place(n * 3 + 1), 8, 0]);
    let mut rows: Rows = reads.chain(burst).collect();
    rows.sort_unstable();
    let copy = |n: u64| {
        let rows = if n == 0 { rows.clone() } else { copy_by_hand(&rows, n) };
        folder.file(&format!("copy{n}.trace"), &mqsim(&rows))
    };
    let copies: Vec<String> = (0..3).map(copy).collect();
    // Every policy has the same bandwidth: fairway is recommended for the load and for its copies.
    let advised = |copies: &[String]| {
        let mut args: Vec<&str> = copies.iter().map(String::as_str).collect();
        args.extend(["--map", "identity", "--device", "linear-7200", "--for", "throughput"]);
        advised(&args)
    };
    let headroom = &advised(&copies[..1])["headroom"];
    assert_eq!(headroom["times"], 2, "{headroom:#}");
    let (two, three) = (advised(&copies[..2]), advised(&copies));
    assert_eq!((&two["carried"], &three["carried"]), (&value!(true), &value!(false)));
    for made in [&two, &three] {
        assert_eq!(made["recommend"], "fairway");
    }
    for key in ["of", "operation", "value", "limit"] {
        assert_eq!(headroom["breaks"][key], three["excesses"][0][key], "{headroom:#}");
    }
}

#[test]
fn the_reasons_of_a_no_are_those_of_the_recommended_policy() {
    let folder = Folder::new();
    // Some policies drain the burst a little sooner, and let reads wait behind it.
    let series = [Series(Read, 0, 4_000, 50_000), Series(Write, 100_000, 6_000, 10)];
    let path = folder.file("a.csv", &table(&series, 4));
    let made = advised(&[&path, "--device", "linear-7200"]);
    let (service, recommend) = (&made["service"], &made["recommend"]);
    assert_eq!((&made["carried"], &service["policy"]), (&value!(false), recommend));
    let reads = &service["served"][0];
    assert_eq!(
        (&reads["operation"], &reads["p99_ms"]),
        (&value!("read"), &made["ranking"][0]["p99_ms"])
    );
    let excesses = made["excesses"].as_array().expect("a list");
    assert_eq!(excesses.len(), 1, "{excesses:#?}");
    assert_eq!(excesses[0]["operation"], "write");
    assert_eq!(made["nearer"], Value::Null, "{:#}", made["nearer"]);
}

#[test]
fn a_policy_that_comes_nearer_to_carrying_the_load_is_named() {
    let folder = Folder::new();
    // The policy that is best for the reads lets them pass the other VM's burst. A policy that
    // serves by place ends the burst earlier.
    let later = Series(Read, 60_000, 1, 0);
    let many = folder.file("many.csv", &table(&[Series(Write, 0, 6_000, 10), later], 4));
    let few = folder.file("few.csv", &table(&[Series(Read, 5, 300, 100_000), later], 4));
    let disk = "seagate-1tb-7200:write_cache=false";
    let made = advised(&[&many, &few, "--device", disk, "--for", "latency", "--hard-limit", "5s"]);
    assert_eq!(made["carried"], false);
    let ratio = |excess: &Value| number(&excess["value"]) / number(&excess["limit"]);
    let own = ratio(&made["excesses"][0]);
    let nearer = &made["nearer"];
    assert!(ratio(&nearer["excess"]) < own / 1.02, "{nearer:#}");
    assert_ne!(nearer["policy"], made["recommend"]);
    let said =
        format!("Nearest to carrying it is {}: ", nearer["policy"].as_str().expect("a name"));
    assert!(made["advice"].as_str().expect("a text").contains(&said), "{}", made["advice"]);
}

#[test]
fn what_a_vm_has_alone_is_measured_or_not_called_so() {
    let folder = Folder::new();
    let vm = |n: u64| {
        folder.file(&format!("vm{n}.csv"), &table(&[Series(Read, n, 20, 1_000_000 + n)], 4))
    };
    let vms: Vec<String> = (0..18).map(vm).collect();
    let disk = constant(10.0).replace("sectors = 1000000000", "sectors = 10000000000");
    let disk = folder.file("disk.toml", &disk);
    let mut args: Vec<&str> = vms.iter().map(String::as_str).collect();
    args.extend(["--device", &disk]);
    let made = advised(&args);
    assert_eq!(made["is_alone_measured"], true);
    let text = advise(&args).ok();
    assert!(text.contains("of what it has alone") && text.contains("over alone"), "{text}");
    // Volumes of one trace are one source, whose VMs cannot run alone.
    let split = [&fixture("tencent.csv"), "--split", "--device", "samsung-970-pro"];
    let made = advised(&split);
    assert_eq!(made["is_alone_measured"], false);
    let text = advise(&split).ok();
    assert!(text.contains("of its least under any policy") && text.contains("over best"), "{text}");
    assert!(!text.contains("has alone") && !text.contains("speed alone"), "{text}");
    assert!(!text.contains("over alone"), "{text}");
}

#[test]
fn a_guest_has_128_requests_at_its_disk_and_reads_go_first_in_the_guest() {
    let folder = Folder::new();
    // A read comes 1 s after 1,000 writes. Under noop it waits for the 128 that have left the
    // guest, and not for the 772 behind them.
    let later = Series(Write, 20_000, 2, 1_000_000);
    let series = [Series(Write, 0, 1_000, 1), Series(Read, 1_000, 1, 0), later];
    let path = folder.file("a.csv", &table(&series, 4));
    let disk = folder.file("disk.toml", &constant(10.0));
    let made = advised(&[&path, "--device", &disk]);
    let p99 = |policy: &str| {
        let ranking = made["ranking"].as_array().expect("a list");
        let found = ranking.iter().find(|judged| judged["policy"] == policy).expect("it ran");
        number(&found["p99_ms"])
    };
    assert!((1_250.0..1_310.0).contains(&p99("noop")), "{}", p99("noop"));
    assert!(p99("fairway") < 30.0, "{}", p99("fairway"));
    assert_eq!(made["carried"], true);
}

#[test]
fn a_write_cache_that_decides_is_said_to() {
    let folder = Folder::new();
    // Eight synchronous writes at once, and the drive's cache has room for eight.
    let series: Vec<Series> = (0..60).map(|n| Series(SyncWrite, n * 1_000, 8, 0)).collect();
    let path = folder.file("a.csv", &table(&series, 4));
    let args = [&path, "--device", "seagate-1tb-7200", "--p99-limit", "30ms"];
    let made = advised(&args);
    assert_eq!(made["carried"], true);
    assert_eq!(made["without_write_cache"]["excesses"][0]["of"], "p99");
    let advice = made["advice"].as_str().expect("a text");
    assert!(advice.contains("With the drive's write cache off it does not carry"), "{advice}");
    // A user who sets the write cache hears of that setting alone.
    let off = "seagate-1tb-7200:write_cache=false";
    let made = advised(&[&path, "--device", off, "--p99-limit", "30ms"]);
    assert_eq!(made["carried"], false);
    assert_eq!(made["without_write_cache"], Value::Null);
    // It decides nothing for reads.
    let reads = folder.file("reads.trace", &random_reads(200, 50_000, 8_000_000));
    assert_eq!(advised(&[&reads])["without_write_cache"], Value::Null);
}

#[test]
fn writes_that_no_trace_marks_are_said_to_count_as_write_back() {
    let folder = Folder::new();
    let said = "No write of a is marked as synchronous";
    for (kind, is_said) in [(Write, true), (SyncWrite, false), (Read, false)] {
        let path = folder.file("a.csv", &table(&[Series(kind, 0, 100, 50_000)], 4));
        assert_eq!(advise(&[&path]).ok().contains(said), is_said);
    }
}

#[test]
fn other_disks_are_named_for_a_load_that_is_too_much() {
    let folder = Folder::new();
    let path = folder.file("flood.trace", &flood());
    let made = advised(&[&path]);
    assert_eq!((&made["carried"], &made["headroom"]), (&Value::Bool(false), &Value::Null));
    let disks = made["disks"].as_array().expect("a list");
    let carrying: Vec<&Value> = disks.iter().filter(|disk| disk["carries"] == true).collect();
    assert!(carrying.len() > 2, "{disks:#?}");
    let name = carrying[0]["disk"].as_str().expect("a name");
    assert_eq!(advised(&[&path, "--device", name])["carried"], true);
    let too_small: Vec<&Value> = disks.iter().filter(|disk| disk["service"].is_null()).collect();
    assert!(!too_small.is_empty() && too_small.iter().all(|disk| disk["carries"] == false));
    let text = advise(&[&path]).ok();
    for (disk, verdict) in [("samsung-970-pro ", "yes"), ("cheetah-9lp ", "too small")] {
        let is_row = |line: &&str| line.starts_with(disk) && line.contains(verdict);
        assert!(text.lines().any(|line| is_row(&line)), "{disk}: {text}");
    }
}

#[test]
fn policies_under_which_the_disk_carries_the_load_come_first() {
    let folder = Folder::new();
    let later = Series(Write, 20_000, 2, 1_000_000);
    let series = [Series(Write, 0, 1_000, 1), Series(Read, 1_000, 1, 0), later];
    let path = folder.file("a.csv", &table(&series, 4));
    let disk = folder.file("disk.toml", &constant(10.0));
    for goal in GOALS {
        let made = advised(&[&path, "--device", &disk, "--for", goal]);
        let ranking = made["ranking"].as_array().expect("a list");
        let carries: Vec<bool> = ranking.iter().filter_map(|r| r["carries"].as_bool()).collect();
        assert!(carries.is_sorted_by(|a, b| a >= b), "{carries:?}");
        assert!(carries[0] && carries.contains(&false), "{carries:?}");
    }
}

// The ranking.

#[test]
fn a_load_without_a_clock_asks_for_no_more_than_the_disk_gives() {
    let folder = Folder::new();
    let path = folder.file("flood.trace", &flood());
    let made = advised(&[&path, "--outstanding", "4"]);
    assert_eq!((&made["carried"], &made["excesses"]), (&Value::Null, &Value::Array(vec![])));
}

#[test]
fn each_goal_ranks_by_its_figure() {
    let folder = Folder::new();
    let quiet = folder.file("quiet.trace", &random_reads(150, 20_000, 8_000_000));
    let busy = folder.file("busy.trace", &random_reads(400, 6_000, 40_000_000));
    for (goal, key) in
        GOALS.into_iter().zip(["worst_vm_p99_over_alone", "mib_s", "worst_vm_speed", "regret"])
    {
        // Nothing is too late for anybody.
        let made = advised(&[&quiet, &busy, "--for", goal, "--p99-limit", "1h"]);
        assert_eq!(made["goal"], goal);
        let ranking = made["ranking"].as_array().expect("a list");
        let mut names: Vec<&str> = ranking.iter().filter_map(|r| r["policy"].as_str()).collect();
        assert_eq!(made["recommend"], names[0]);
        names.sort_unstable();
        let mut all = policies();
        all.sort_unstable();
        assert_eq!(names, all);
        let values: Vec<f64> = ranking.iter().map(|r| number(&r["value"])).collect();
        assert!(ranking.iter().all(|r| r["value"] == r[key]), "{ranking:#?}");
        let larger_is_better = matches!(goal, "throughput" | "fairness");
        let best = |a: f64, b: f64| if larger_is_better { a.max(b) } else { a.min(b) };
        let first = values.iter().copied().reduce(best).expect("policies");
        let near = if goal == "balance" { 0.02 } else { 0.02 * first };
        assert!((values[0] - first).abs() <= near + 1e-9, "{goal}: {values:?}");
        for r in ranking {
            assert!((0.0..=1.0).contains(&number(&r["worst_vm_speed"])), "{r:#}");
            assert!((0.0..=1.0).contains(&number(&r["regret"])), "{r:#}");
            assert!(number(&r["worst_vm_p99_ms"]) > 0.0 && number(&r["mean_ms"]) > 0.0, "{r:#}");
            assert!(["quiet", "busy"].contains(&r["worst_vm"].as_str().expect("a name")));
        }
    }
    let text = advise(&[&quiet, &busy]).ok();
    assert!(text.contains("best first") && text.contains("worst VM") && text.contains("regret"));
    assert!(text.contains("for balance: mean response"), "{text}");
}

#[test]
fn policies_that_are_equal_leave_the_first_place_to_fairway() {
    let folder = Folder::new();
    let path = folder.file("light.trace", &random_reads(50, 100_000, 8_000_000));
    for goal in GOALS {
        let made = advised(&[&path, "--for", goal, "--device", "samsung-970-pro"]);
        assert_eq!(made["recommend"], "fairway", "{goal}");
    }
}

#[test]
fn one_vm_has_no_neighbour_to_lose_by() {
    let folder = Folder::new();
    let text = advise(&[&folder.file("a.trace", &trace(300))]).ok();
    assert!(!text.contains("worst VM") && !text.contains("Who loses"), "{text}");
    let piped = seekway_with(trace(300).as_bytes(), &["advise", "-"]).ok();
    assert!(piped.contains("Use "), "{piped}");
    // It runs on other disks, though a pipe is read only once.
    let piped =
        seekway_with(flood().as_bytes(), &["advise", "-", "--device", "seagate-1tb-7200"]).ok();
    assert!(piped.starts_with("No, "), "{piped}");
}

#[test]
fn vms_of_one_trace_are_held_against_the_best_policy() {
    let made = advised(&[&fixture("tencent.csv"), "--split", "--device", "samsung-970-pro"]);
    assert!(made["runs"][0]["vms"].as_array().is_some_and(|vms| vms.len() > 1), "{made:#}");
    let ranking = made["ranking"].as_array().expect("a list");
    assert!(ranking.iter().all(|r| number(&r["worst_vm_p99_over_alone"]) >= 1.0), "{ranking:#?}");
}

#[test]
fn a_trace_with_one_request_or_none_divides_by_nothing() {
    let folder = Folder::new();
    let one = folder.file("one.trace", &trace(1));
    let other = folder.file("other.trace", "0 0 0 8 1\n");
    for goal in GOALS {
        let made = advised(&[&one, &other, "--for", goal]);
        assert_eq!(made["carried"], true, "{goal}");
        let text = made.to_string();
        assert!(!text.contains("NaN"), "{text}");
        for judged in made["ranking"].as_array().expect("a list") {
            assert!(judged["value"].is_f64() && judged["regret"].is_f64(), "{judged:#}");
        }
        let single = advise(&[&one, "--for", goal]).ok();
        assert!(single.contains("Use ") && !single.contains("NaN"), "{single}");
    }
    // Even that is too much for a limit that no disk keeps.
    let strict = advise(&[&other, "--p99-limit", "1us"]).ok();
    assert!(strict.starts_with("No, "), "{strict}");
    let empty = folder.file("empty.trace", "");
    advise(&[&empty]).refused(&["empty.trace"]);
}

#[test]
fn a_wrong_goal_is_refused_with_those_there_are() {
    let folder = Folder::new();
    let path = folder.file("a.trace", &trace(10));
    let all = "[possible values: latency, throughput, fairness, balance]";
    advise(&[&path, "--for", "speed"]).refused(&["--for", all]);
    // As they were called before.
    advise(&[&path, "--for", "tail"]).refused(&["--for", all]);
    advise(&[&path, "--goal", "tail"])
        .refused(&["--goal", "it is now --for latency, throughput, fairness or balance"]);
    advise(&[&path, "--p99-limit", "0s"]).refused(&["--p99-limit 0s: more than 0"]);
    advise(&[&path, "--hard-limit", "0s"]).refused(&["--hard-limit 0s: every", "such as 30s"]);
    advise(&[&path, "--p99-limit", "10"]).refused(&["--p99-limit 10: expected a time"]);
}

/// Reads of 4 KiB that come again and again to the same 4 MiB, every `gap_us`.
fn repeated_reads(requests: u64, gap_us: u64) -> String {
    random_reads(requests, gap_us, 8192)
}

#[test]
fn a_cache_that_helps_is_recommended() {
    let folder = Folder::new();
    let hot = folder.file("hot.trace", &repeated_reads(3_000, 4_000));
    let cold = folder.file("cold.trace", &random_reads(600, 20_000, 80_000_000));
    let args = [&hot, &cold, "--cache", "16MiB", "--prefetch", "vio", "--for", "latency"];
    let made = advised(&args);
    let ranking = made["ranking"].as_array().expect("a list");
    // Each policy without a cache, with it, and with its prefetcher.
    assert_eq!(ranking.len(), 3 * policies().len());
    assert_eq!(ranking[0]["cache_mib"], 16.0, "{:#}", ranking[0]);
    assert_eq!(made["recommend"], ranking[0]["policy"]);
    let text = advise(&args).ok();
    assert!(text.contains("Stacks on ") && text.contains(" + cache 16MiB"), "{text}");
}

#[test]
fn a_cache_that_does_not_help_is_not_recommended() {
    let folder = Folder::new();
    // Nothing is read twice.
    let path = folder.file("cold.trace", &random_reads(200, 50_000, 80_000_000));
    let args = [&path, "--cache", "1MiB", "--for", "latency"];
    let made = advised(&args);
    assert_eq!(made["ranking"].as_array().map(Vec::len), Some(2 * policies().len()));
    assert_eq!(made["ranking"][0]["cache_mib"], Value::Null);
    let text = advise(&args).ok();
    assert!(text.contains("A cache does not help.") || text.contains("All stacks lie"), "{text}");
    let bare = advise(&[&path]).ok();
    assert!(!bare.contains("A cache") && bare.contains("Policies on "), "{bare}");
    assert!(bare.contains("The same in all runs: cache none, prefetch none, no limits,"), "{bare}");
}

/// A thousand reads a second of 64 places all over the disk, each read once before, in peace.
/// The drive's own cache has half as many segments.
fn hot_places() -> String {
    let mut text = String::new();
    for n in 0..4_064u64 {
        let time_us = if n < 64 { n * 20_000 } else { 1_280_000 + (n - 64) * 1_000 };
        let _ = writeln!(text, "{} 0 {} 8 1", time_us * 1000, n * 13 % 64 * 20_000_000);
    }
    text
}

#[test]
fn a_load_that_only_a_cache_carries_is_said_to_need_it() {
    let folder = Folder::new();
    let path = folder.file("hot.trace", &hot_places());
    let args = [&path, "--p99-limit", "50ms"];
    let carried = |more: &[&str]| {
        let made = advised(&[&args[..], more].concat());
        [&made["carried"], &made["carried_without_cache"]].map(|c| c.as_bool().expect("a verdict"))
    };
    assert_eq!(carried(&[]), [false, false]);
    assert_eq!(carried(&["--cache", "16MiB"]), [true, false]);
    let text = advise(&[&args[..], &["--cache", "16MiB"]].concat()).ok();
    assert!(text.contains("carries this load, but only behind a host cache"), "{text}");
}

/// Traces of a VM and of a server, each on two disks: what is said agrees with busy time and waits.
#[test]
fn verdicts_of_servers_agree_with_their_figures() {
    for trace in [
        "traces/vm/cloudPhysicsIO.vscsi",
        "traces/host/linux-mysql.load.gz",
        "traces/samples/msr-cambridge1-sample.csv",
    ] {
        let Some(path) = seekway_testing::shared(trace) else { return };
        let path = path.display().to_string();
        for disk in ["seagate-1tb-7200", "intel-320"] {
            let made = advised(&[&path, "--device", disk, "--max-requests", "20000"]);
            let (service, excesses) = (&made["service"], made["excesses"].as_array());
            let served = service["served"].as_array().expect("a list");
            let late = |served: &&Value| match served["operation"].as_str() {
                Some("write") => number(&served["longest_ms"]) > 30_000.0,
                _ => {
                    number(&served["p99_ms"]) > 1_000.0 || number(&served["longest_ms"]) > 30_000.0
                }
            };
            let is_behind = number(&service["busy"]) > 1.0 && number(&service["behind_s"]) > 1.0;
            let count = served.iter().filter(late).count() + usize::from(is_behind);
            assert_eq!(excesses.map(Vec::len), Some(count), "{trace} {disk}");
            assert_eq!(made["carried"], count == 0, "{trace} {disk}");
        }
    }
}

/// The stack takes 4,096 disks; a load of a quarter of that is copied as often as it fits.
#[test]
fn many_volumes_are_copied_as_often_as_the_stack_takes_them() {
    let folder = Folder::new();
    let mut text = "time_us,op,offset,size,disk\n".to_string();
    for n in 0..1_500 {
        let _ = writeln!(text, "{},read,{},4096,v{}", n * 50_000, n << 12, n % 1_500);
    }
    let path = folder.file("volumes.csv", &text);
    let made = advised(&[&path, "--split", "1500"]);
    assert_eq!(made["carried"], true);
    assert!(number(&made["headroom"]["times"]) <= 2.0, "{}", made["headroom"]);
}

#[test]
fn a_trace_that_ends_too_soon_to_tell_says_so() {
    let folder = Folder::new();
    let disk = folder.file("disk.toml", &constant(10.0));
    let path = folder.file("short.csv", &table(&[Series(Read, 0, 170, 6_000)], 4));
    let said = advise(&[&path, "--device", &disk]).ok();
    assert!(said.contains("Yes, ") && said.contains("busy 167 % of the time"), "{said}");
    assert!(said.contains("in the long run the disk does 60 % of this rate"), "{said}");
    assert!(said.contains(": none for a second such load beside it"), "{said}");
    // At its rate it is not too fast, though the last request ends after the trace.
    let path = folder.file("even.csv", &table(&[Series(Read, 0, 200, 10_000)], 4));
    let said = advise(&[&path, "--device", &disk]).ok();
    assert!(said.contains("it is busy 10") && !said.contains("too soon"), "{said}");
}

#[test]
fn a_vm_whose_writes_nobody_waits_for_decides_no_ranking() {
    let folder = Folder::new();
    let disk = folder.file("disk.toml", &constant(10.0));
    let reads = folder.file("reads.csv", &table(&[Series(Read, 0, 300, 30_000)], 4));
    let writes = folder.file("writes.csv", &table(&[Series(Write, 0, 300, 30_000)], 4));
    let made = advised(&[&reads, &writes, "--device", &disk]);
    for judged in made["ranking"].as_array().unwrap() {
        assert_eq!(judged["worst_vm"], "reads", "{judged}");
    }
}

#[test]
fn a_load_without_reads_and_writes_is_not_judged() {
    let folder = Folder::new();
    let path = folder.file("flushes.csv", "time_us,op,offset,size\n0,flush,0,0\n9,flush,0,0\n");
    advise(&[&path]).refused(&["nothing to judge"]);
}
