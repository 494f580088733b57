//! Help, exit status and messages: what somebody meets who types it wrong.

#![cfg(target_os = "linux")]

use crate::blktrace::{Event, ISSUE, READ, queued, stream};
use crate::common::{
    Folder, Ran, Tmpfs, command, json, line, listed, seekway, seekway_with, started, trace,
};
use crate::names::FIXTURES;
use crate::process::wait_until;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Each command of before names the one that took its place, whatever stands behind it.
#[test]
fn commands_of_before_name_the_new_one() {
    for (old, new) in [
        ("policy list", "seekway list policies"),
        ("policy show cfq --format json", "seekway list policies"),
        ("prefetcher list", "seekway list prefetchers"),
        ("vcpu show vanilla", "seekway list vcpu"),
        ("workload list", "seekway list [loads|traces]"),
        ("workload run --vm app=sync --on a.img", "seekway load --vm SPEC --on PATH"),
        ("device list", "seekway list devices"),
        ("device validate intel-320", "seekway predict --on PROFILE --against"),
        ("campaign run study.toml", "python -m seekway campaign"),
        ("plan --help", "python -m seekway plan"),
        ("completions bash", "seekway generate SHELL"),
        ("man out", "seekway generate man DIR"),
    ] {
        let ran = seekway(&line(old, &[]));
        assert_eq!(ran.err.lines().count(), 1, "{old}: {}", ran.err);
        ran.refused(&["there is no command", new]);
    }
}

/// Checks the help of a command and of those that it lists; how many these are.
fn check_help(command: &str) -> usize {
    let help = seekway(&line(command, &["--help"])).ok();
    assert!(help.contains("Usage: seekway"), "{command}: {help}");
    let longest = help.lines().map(|l| l.chars().count()).max();
    assert!(longest <= Some(110), "{command}: a line of {longest:?} characters");
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| line.is_empty() || line.starts_with(' '));
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let own = names.filter(|name| !["", "help"].contains(name));
    1 + own.map(|name| check_help(&format!("{command} {name}"))).sum::<usize>()
}

#[test]
fn every_command_has_help() {
    let commands = check_help("");
    assert!(commands > 25, "{commands} commands");
    assert!(seekway(&["--version"]).ok().starts_with("seekway 0."));
}

#[test]
fn wrong_usage_is_status_2_with_a_message() {
    let sizes: Vec<String> = (1..=40).map(|n| format!("{n}MiB")).collect();
    let sizes = sizes.join(",");
    let caches = format!("compare --vm app=sysbench --cache {sizes} --prefetch none,vio");
    for (args, part) in [
        ("compare", "give --trace FILE or --vm SPEC"),
        ("frobnicate", "unrecognized subcommand"),
        ("compare --bogus", "unexpected argument"),
        ("compare --vm app=sysbench --format xml", "possible values: table, json"),
        ("compare --vm app=sysbench --policies wfq", "no policy 'wfq'; there are fairway"),
        ("compare --vm app=sysbench --policies ,", "name at least one"),
        ("compare --vm app=sysbench --policies cfq:quantun=4", "it has slice_idle"),
        ("compare --vm app=sysbench --policies cfq:slice_idle=8", "with its unit"),
        ("compare --vm app=sysbench --device floppy", "cheetah-15k5"),
        ("compare --vm app=sysbench --seeds 1000000000000", "at most 10000"),
        ("compare --vm app=sysbench --device seagate-1tb-7200:heads=9", "heads"),
        ("compare --vm app=sysbench --device none.toml", "cannot read none.toml"),
        ("compare --vm app=sysbench:mode=XX", "SR, SW, RR, RW"),
        ("compare --vm app=nothing", "--vm app=nothing"),
        ("compare --vm app=sysbench --until 60", "a time with its unit"),
        ("compare --vm app=sysbench --seeds 0", "at least 1"),
        ("compare --vm app=sysbench --map pakced", "expected packed"),
        ("compare --vm app=sysbench --weights 1,2", "2 weights for 1 VMs"),
        ("compare --vm app=sysbench --weights 0", "--weights"),
        ("compare --vm app=sysbench --outstanding 0", "at least 1"),
        (
            "compare --vm bandwidth=1MiB,write_bandwidth=1MiB,app=sysbench",
            "bandwidth and write_bandwidth contradict",
        ),
        ("compare --vm app=sysbench,group=t", "no group 't'; give it its limits"),
        ("compare --vm app=sysbench --limits given,none", "no VM has a limit"),
        ("compare --vm iops=5,app=sysbench --limits all", "given, none"),
        ("compare --vm iops=5,app=sysbench --limits none,none", "none is given twice"),
        ("compare --vm app=sysbench --host slice=3ms", "how many processors"),
        ("compare --vm app=sysbench --host cpus=2,cores=1", "it has cpus, slice"),
        ("compare --vm app=sysbench --vcpu vmigrater", "share them with --host"),
        (
            "compare --vm app=sysbench --host cpus=2 --vcpu vsmt",
            "--vcpu: no vCPU policy 'vsmt'; there are vanilla",
        ),
        (&*caches, "16 policies × 80 caches with prefetchers are 1280 stacks to run, at most 1000"),
        (
            "compare --vm app=sysbench --group t:total_iops_sec=5",
            "no limit 'total_iops_sec' (libvirt's name): write iops",
        ),
        ("compare --vm bps-read=5,app=sysbench", "(QEMU's name): write read_bandwidth"),
        ("compare --vm app=sysbench --group t:iops=5,group=u", "cannot be in a group"),
        ("load --vm iops=5,app=sysbench --on absent.img", "is not limited here"),
        ("compare --trace absent.trace", "absent.trace"),
        ("compare --trace x --input-format blktrce", "blktrace, vscsi, fio"),
        ("compare --trace x --columns time_us,op,offst,size", "offst: no column; there are time_s"),
        ("compare --trace x --columns time_us,op,size", "no column is the offset"),
        (
            "compare --trace x --columns time_us,op,offset,size --input-format msr",
            "in the format csv, not msr: give one of both",
        ),
        ("inspect x --columns %T%S --input-format csv", "in the format blkparse, not csv"),
        ("compare --trace - --trace -", "one trace only"),
        ("inspect x --split 0", "at least 1 VM"),
        ("advise", "required"),
        ("inspect absent.trace", "absent.trace"),
        ("list devices floppy", "cheetah-15k5"),
        ("list policies wfq", "pregather"),
        ("list prefetchers amp", "no prefetcher 'amp'; there are none"),
        ("list vcpu vsmt", "no vCPU policy 'vsmt'; there are vanilla"),
        ("list loads bonnie", "sysbench"),
        ("list bonnie", "no name: `seekway list` has all"),
        ("list disks cfq", "no kind 'disks'; there are policies"),
        ("list devices intel-320 --format csv", "a profile is TOML"),
        ("generate bash out", "leave the folder out"),
        ("list traces blktrce", "blktrace, vscsi"),
        ("compare --trace x --event done", "queue, issue, complete"),
        ("compare --trace absent.*", "no file has a name like this"),
        ("replay absent.journal", "absent.journal"),
        ("predict --on cheetah-15k5 --against absent", "absent"),
    ] {
        let ran = seekway(&line(args, &[]));
        assert!(!ran.err.contains("panicked"), "{args:?}: {}", ran.err);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(part), "{args:?}: no {part:?} in {}", ran.err);
    }
}

#[test]
fn a_bad_line_is_named_with_line_and_column() {
    let folder = Folder::new();
    let mut text = trace(40);
    text.insert_str(0, "0 0 800 eight 1\n");
    let bad = folder.file("bad.trace", &text);
    for args in [&["compare", "--trace", &bad][..], &["advise", &bad], &["inspect", &bad]] {
        seekway(args).refused(&["bad.trace:1:9", "eight"]);
    }
    // The same from standard input, under its own name.
    seekway_with(text.as_bytes(), &["inspect", "-"]).refused(&["stdin:1:9"]);
    let lenient = ["compare", "--trace", &bad, "--lenient", "--format", "json"];
    let ran = seekway(&lenient);
    assert!(ran.err.contains("1 records skipped") && ran.err.contains(":1:9"), "{}", ran.err);
    let made = json(&ran.ok());
    assert_eq!(made["runs"][0]["requests"], 40);
}

/// One line says as what a trace is read, once for each trace; what no disk has is warned of.
#[test]
fn reading_says_as_what() {
    let folder = Folder::new();
    let bytes = |n: u64| format!("{} 0 {} 4096 1\n", n * 10, n % 100 * 8192);
    let text: String = (0..100).map(bytes).collect();
    let path = folder.file("ms.trace", &text);
    seekway(&["inspect", &path]).refused(&["ms.trace: could be mqsim", "--columns time_ms,volume"]);
    let list = "time_ms,volume,offset_bytes,size_bytes,is_read";
    let end = ["--policies", "noop,deadline", "--seeds", "2", "--columns", list];
    let ran = seekway(&[&["compare", "--trace", &path], &end[..]].concat());
    let said = "csv (times in ms, offsets in bytes, sizes in bytes): 100 requests of 4 KiB, \
                in 990 ms, 100 a second, 1 volume";
    assert_eq!(ran.err, format!("{path}: {said}\n"));
    let piped = seekway_with(text.as_bytes(), &["inspect", "-", "--columns", list]);
    assert_eq!(piped.err, format!("stdin: {said}\n"));
    let named = seekway(&["inspect", &path, "--input-format", "mqsim"]);
    assert_eq!(named.code, Some(0), "{}", named.err);
    assert!(named.err.contains("mqsim (ns, sectors): 100 requests of 2 MiB"), "{}", named.err);
    assert!(named.err.contains("warning: 100,000,000 requests a second"), "{}", named.err);
}

#[test]
fn what_is_no_trace_is_refused() {
    let folder = Folder::new();
    for (name, text) in [("empty", ""), ("prose", "Once upon a time\nthere was a disk.\n")] {
        let path = folder.file(name, text);
        seekway(&["compare", "--trace", &path]).refused(&[name]);
    }
    seekway_with(b"", &["inspect", "-"]).refused(&["stdin"]);
    let folder_itself = folder.arg("");
    seekway(&["compare", "--trace", &folder_itself]).refused(&[]);
}

#[test]
fn every_format_is_read_from_a_file_and_from_a_pipe() {
    // The disks of the two in vSCSI's format are larger than the device.
    for name in FIXTURES.into_iter().filter(|name| !name.ends_with(".vscsi")) {
        let path = crate::names::fixture(name).display().to_string();
        // By hand, with flaws that `--lenient` counts; MQSim's columns fit others too.
        let format = if name == "mqsim.trace" { &["--input-format", "mqsim"][..] } else { &[] };
        let end = &["--lenient", "--policies", "noop", "--format", "json"];
        let file = seekway(&[&["compare", "--trace", &path][..], format, end].concat()).ok();
        let bytes = std::fs::read(&path).expect("a fixture");
        let pipe = [&["compare", "--trace", "-"][..], format, end].concat();
        let pipe = json(&seekway_with(&bytes, &pipe).ok());
        let file = json(&file);
        let requests = &file["runs"][0]["requests"];
        assert!(requests.as_u64() > Some(0), "{name}");
        assert_eq!(*requests, pipe["runs"][0]["requests"], "{name}");
    }
}

/// Requests and VMs of a comparison of these traces, and what was said.
fn read(traces: &[&str], more: &[&str]) -> (u64, usize, String) {
    let traces = traces.iter().flat_map(|trace| ["--trace", trace]);
    let args = ["compare", "--policies", "noop", "--device", "samsung-970-pro", "--format", "json"];
    let args: Vec<&str> = args.into_iter().chain(traces).chain(more.iter().copied()).collect();
    let ran = seekway(&args);
    let said = ran.err.clone();
    let run = json(&ran.ok())["runs"][0].clone();
    let vms = run["vms"].as_array().expect("a list").len();
    (run["requests"].as_u64().expect("a number"), vms, said)
}

#[test]
fn the_files_of_a_blktrace_are_one_vm() {
    let folder = Folder::new();
    let event = |cpu, time| Event { cpu, ..queued().at(time, 8 * time) };
    for (name, cpu) in [("sdz", 0), ("sdz", 1), ("sdy", 0)] {
        let bytes = stream(&[event(cpu, 1000), event(cpu, 9000 + u64::from(cpu))]);
        fs::write(folder.path(&format!("{name}.blktrace.{cpu}")), bytes).expect("written");
    }
    let path = |name: &str| folder.arg(name);
    let (zero, one) = (path("sdz.blktrace.0"), path("sdz.blktrace.1"));
    for name in ["sdz", "sdz.blktrace", "sdz.blktrace.1", "sdz.blktrace.*"] {
        let (requests, vms, _) = read(&[&path(name)], &[]);
        assert_eq!((requests, vms), (4, 1), "{name}");
    }
    let (requests, vms, said) = read(&[&one, &zero], &[]);
    assert_eq!((requests, vms), (4, 1));
    assert!(said.contains("the other CPUs' files beside it, 2 in all"), "{said}");
    // The same name twice is two VMs with the same load; another device is another trace.
    assert_eq!(read(&[&zero, &zero], &[]).1, 2);
    assert_eq!(read(&[&path("*.blktrace.*")], &[]).1, 2);
    assert_eq!(read(&[&zero, &path("sdy")], &[]).1, 2);
    seekway(&["convert", &path("*.blktrace.*"), &path("out.csv")]).refused(&["2 traces"]);
}

#[test]
fn the_events_of_a_blktrace_are_chosen_and_said() {
    let folder = Folder::new();
    let issued = stream(&[Event::of(7, ISSUE | READ), Event::of(7, ISSUE | READ).at(2000, 72)]);
    fs::write(folder.path("d.bin"), &issued).expect("written");
    let trace = folder.arg("d.bin");
    let (requests, _, said) = read(&[&trace], &[]);
    assert!(requests == 2 && said.contains("read by its issue events (D)"), "{said}");
    let (requests, _, said) = read(&[&trace], &["--event", "issue"]);
    assert!(requests == 2 && !said.contains("no queue events"), "{said}");
    let args = ["inspect", &trace, "--event", "complete"];
    seekway(&args).refused(&["no requests", "2 issue (D): take them by --event issue"]);
    let ran = seekway_with(&issued, &["inspect", "-"]);
    assert!(ran.err.contains("stdin: ") && ran.err.contains("no queue events (Q)"), "{}", ran.err);
}

/// Without a kind, all names; a name alone is enough where it is the only one.
#[test]
fn everything_is_listed_and_described() {
    let all = json(&seekway(&["list", "--format", "json"]).ok());
    let all = all.as_array().expect("a list");
    for kind in ["policies", "prefetchers", "vcpu", "loads", "traces", "devices"] {
        for (name, summary) in listed(kind) {
            let is_it = |e: &&Value| e["name"] == name.as_str() && e["summary"] == summary.as_str();
            assert!(all.iter().any(|e| is_it(&e)), "{kind}: {name}");
            let shown = seekway(&["list", kind, &name]).ok();
            match all.iter().filter(|e| e["name"] == name.as_str()).count() {
                1 => assert_eq!(seekway(&["list", &name]).ok(), shown),
                _ => seekway(&["list", &name]).refused(&[&format!("seekway list {kind} {name}")]),
            }
        }
    }
    let text = seekway(&["list"]).ok();
    assert!(text.lines().count() >= all.len(), "{text}");
}

#[test]
fn every_trace_format_shows_its_columns() {
    for (name, _) in listed("traces") {
        let shown = json(&seekway(&["list", "traces", &name, "--format", "json"]).ok());
        assert!(!shown["columns"].as_array().expect("a list").is_empty(), "{name}");
        let page = seekway(&["list", "traces", &name]).ok();
        assert!(page.contains("| column | unit or values |"), "{name}: {page}");
        assert!(page.contains(shown["example"].as_str().expect("text")), "{name}: {page}");
    }
}

#[test]
fn completions_and_man_pages() {
    for shell in ["bash", "zsh", "fish"] {
        // The script asks the program for what it proposes: tests/system/test_completion.py.
        assert!(seekway(&["generate", shell]).ok().contains("SEEKWAY_COMPLETE"));
    }
    let folder = Folder::new();
    seekway(&["generate", "man", &folder.arg("man")]).ok();
    let pages = std::fs::read_dir(folder.path("man")).expect("made").count();
    assert!(pages >= 15, "{pages} pages");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let folder = Folder::new();
    let path = folder.file("a.trace", &trace(200));
    let mut child = started(command(&["compare", "--trace", &path, "--format", "json"]));
    // Closed before a result is there to be written.
    drop(child.stdout.take());
    let ended = Ran::ended(child);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    // As what the trace was read, and nothing else.
    let only = ended.err.starts_with(&format!("{path}: mqsim (")) && ended.err.lines().count() == 1;
    assert!(only, "{}", ended.err);

    let mut child = started(command(&["list", "policies", "pregather"]));
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut first).expect("a line");
    assert_eq!(first, "# pregather\n");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// A trace that can be read only once is read by every policy all the same.
#[test]
fn a_named_pipe_is_a_trace_like_any_other() {
    let folder = Folder::new();
    let text = trace(200);
    let path = folder.file("a.trace", &text);
    let pipe = folder.arg("pipe.trace");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let writer = {
        let (pipe, text) = (pipe.clone(), text.clone());
        std::thread::spawn(move || {
            let mut end = File::options().write(true).open(pipe).expect("the pipe opens");
            end.write_all(text.as_bytes()).expect("it is read whole");
        })
    };
    let args = ["--policies", "noop,cfq", "--format", "csv"];
    let from_pipe = seekway(&[&["compare", "--trace", &pipe][..], &args].concat()).ok();
    writer.join().expect("the writer ends");
    let from_file = seekway(&[&["compare", "--trace", &path][..], &args].concat()).ok();
    // The VMs are named after their files.
    assert_eq!(from_pipe.replace(",pipe,", ",a,"), from_file);
}

#[test]
fn a_full_disk_is_an_error() {
    let folder = Folder::new();
    let path = folder.file("a.trace", &trace(200));
    let request = |n: u64| {
        let (place, us) = (n * n * 7_919 % 12_500_000 * 8, 4_000 + n * n % 977);
        format!("R Hit {place} 8 {us} 10\n")
    };
    let measured = folder.file("measured.trace", &(0..100).map(request).collect::<String>());
    let full = || Stdio::from(File::options().write(true).open("/dev/full").expect("/dev/full"));
    for args in [
        &["compare", "--trace", &path][..],
        &["compare", "--trace", &path, "--format", "csv"],
        &["inspect", &path],
        &["list", "policies"],
        &["generate", "bash"],
        &["calibrate", &measured],
    ] {
        let ran = command(args).stdout(full()).stderr(Stdio::piped()).output().expect("it runs");
        Ran::new(ran).refused(&["No space left", "standard output"]);
    }
    seekway(&["compare", "--trace", &path, "--policies", "noop", "--report", "/dev/full"])
        .refused(&["/dev/full", "No space left"]);
    let nowhere = folder.arg("absent/out.html");
    seekway(&["compare", "--trace", &path, "--policies", "noop", "--report", &nowhere])
        .refused(&["absent/out.html", "folder does not exist"]);
}

#[test]
fn a_report_that_has_no_room_leaves_the_old_one() {
    let folder = Folder::new();
    let path = folder.file("a.trace", &trace(2_000));
    let Some(_mounted) = Tmpfs::mount(folder.path("tiny"), 64 << 10) else { return };
    let report = folder.file("tiny/out.html", "the old one");
    seekway(&["compare", "--trace", &path, "--report", &report])
        .refused(&["out.html", "No space left"]);
    assert_eq!(std::fs::read_to_string(&report).expect("still there"), "the old one");
    let dir = folder.arg("tiny");
    assert_eq!(std::fs::read_dir(&dir).expect("ours").count(), 1, "no half file");
    seekway(&["compare", "--trace", &path, "--journal", &dir]).refused(&["No space left"]);
}

/// Ends with the test, however that ends.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail when it has ended already, as it should have.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The signal of Ctrl-C, or SIGTERM where whoever runs the tests has it
/// ignored, as a shell does for what it starts in the background.
fn interrupt() -> i32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    if mask & 0b10 == 0 { libc::SIGINT } else { libc::SIGTERM }
}

#[test]
fn ctrl_c_ends_at_once_and_leaves_nothing() {
    let folder = Folder::new();
    let (report, path) = (folder.arg("out.html"), folder.file("a.trace", &trace(200)));
    let temporary = folder.path("tmp");
    std::fs::create_dir(&temporary).expect("our folder");
    // Far more work than the test waits for, and a trace from a pipe.
    let vm = "app=uniform:requests=1000000000";
    let child = command(&["compare", "--trace", "-", "--vm", vm, "--report", &report])
        .env("TMPDIR", &temporary)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut running = Running(child);
    let child = &mut running.0;
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&std::fs::read(&path).expect("ours")).expect("it reads");
    drop(stdin);
    // It takes the trace from the pipe to a file without a name.
    let open = format!("/proc/{}/fd", child.id());
    wait_until("it begins", || {
        let files = std::fs::read_dir(&open).expect("it runs").flatten();
        files.flat_map(|file| file.path().read_link()).any(|to| to.starts_with(&temporary))
    });
    assert!(child.try_wait().expect("alive").is_none(), "it was done before the signal");
    seekway_testing::signal(child, interrupt());
    // The work would take hours.
    wait_until("it ends", || child.try_wait().expect("a child").is_some());
    assert_eq!(folder.names(), ["a.trace", "tmp"], "no report, whole or half");
    assert_eq!(std::fs::read_dir(&temporary).expect("ours").count(), 0, "no temporary file");
}
