//! Closed pipes, full disks, Ctrl-C: the program ends in order and leaves no
//! half file behind.
#![cfg(target_os = "linux")]

use crate::common::{Folder, Ran, Tmpfs, command, seekway, started, trace};
use crate::process::wait_until;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

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
