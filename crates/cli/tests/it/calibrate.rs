//! `seekway calibrate`: what a user meets.
#![cfg(target_os = "linux")]

use crate::common::{Folder, Ran, command, json, line, seekway, seekway_with, started};
use crate::process::wait_until;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};

/// A measured trace of 8-sector reads at 4 + 5 (d/D) ms, D 100 million sectors;
/// every `hits`-th takes 0.2 ms.
fn trace(reads: u64, hits: u64) -> String {
    let (mut text, mut from) = (String::new(), 0_u64);
    for n in 0..reads {
        let place = if n == 0 { 100_000_000 } else { n * n * 7_919 % 12_500_000 * 8 };
        let distance = from.abs_diff(place);
        let us = if n % hits == 0 { 200.0 } else { 4e3 + 5e3 * distance as f64 / 1e8 };
        let _ = writeln!(text, "R Hit {place} 8 {us:.3} 10.0");
        from = place + 8;
    }
    text
}

#[test]
fn a_trace_gives_its_line_as_json() {
    let folder = Folder::new();
    let path = folder.file("a.trace", &trace(3_000, u64::MAX));
    let text = seekway(&["calibrate", &path, "--format", "json"]).ok();
    let made = json(&text);
    assert_eq!(made["requests"], 3_000);
    let near = |key: &str, value: f64| {
        let is = made[key].as_f64().expect("a number");
        assert!((is - value).abs() < 0.001, "{key}: {is}");
    };
    near("intercept_ms", 4.0);
    near("full_stroke_ms", 5.0);
    near("residual_ms", 0.0);
    near("mean_model_ms", made["mean_measured_ms"].as_f64().expect("a number"));
    assert!(["hit_ms", "near_ms", "write_ms"].iter().all(|key| made[key].is_null()), "{text}");
    // The same from a pipe, whatever its name says.
    let piped =
        seekway_with(trace(3_000, u64::MAX).as_bytes(), &["calibrate", "-", "--format", "json"]);
    assert_eq!(json(&piped.ok()), made);
    let named = folder.file("disk.img", &trace(3_000, u64::MAX));
    assert_eq!(json(&seekway(&["calibrate", &named, "--format", "json"]).ok()), made);
}

#[test]
fn the_profile_works_at_once_and_has_the_hits() {
    let folder = Folder::new();
    let path = folder.file("a.trace", &trace(3_000, 10));
    let (profile, report) = (folder.arg("mine.toml"), folder.arg("mine.html"));
    let args = ["calibrate", &path, "--profile", &profile, "--report", &report];
    let ran = seekway(&args);
    assert!(ran.err.contains("--device"), "{}", ran.err);
    assert!(ran.ok().contains("cache hit"));
    let text = std::fs::read_to_string(&profile).expect("written");
    assert!(text.contains("name = \"mine\"") && text.contains("hit_ms = 0.200"), "{text}");
    for device in [profile.clone(), format!("{profile}:queue_depth=4")] {
        let vm = "app=sysbench:mode=RR,requests=50";
        seekway(&["compare", "--vm", vm, "--policies", "noop", "--device", &device]).ok();
    }
    let image = folder.file("a.img", &"x".repeat(4096));
    let disk = format!("a={image}");
    let emulate = format!("{profile}:k=auto");
    let listen = folder.arg("run");
    let serve =
        ["serve", "--check-config", "--disk", &disk, "--emulate", &emulate, "--listen", &listen];
    seekway(&serve).ok();
    let page = std::fs::read_to_string(&report).expect("written");
    assert!(page.contains("least squares") && page.contains("trough"), "the figures");
    assert!(!page.contains("http://") || !page.contains("<img"), "needs no network");
}

#[test]
fn the_paper_s_form_and_one_line_for_all_are_other_lines() {
    let folder = Folder::new();
    let mut text = trace(3_000, u64::MAX);
    // Writes that a cache answers.
    for n in 0..1_000_u64 {
        let _ = writeln!(text, "W Hit {} 8 300.0 10.0", n * n * 6_007 % 12_500_000 * 8);
    }
    let path = folder.file("a.trace", &text);
    let fit = |more: &[&str]| {
        let ran = seekway(&[&["calibrate", &path, "--format", "json"], more].concat());
        (ran.err.clone(), json(&ran.ok()))
    };
    let (said, all) = fit(&[]);
    assert!(said.contains("a write cache answers them") && said.contains("0.30 ms"), "{said}");
    let (said, one) = fit(&["--one-line"]);
    assert!(!said.contains("write cache"), "{said}");
    assert!(all["residual_ms"].as_f64() < Some(0.001) && one["residual_ms"].as_f64() > Some(0.1));
    assert_ne!(fit(&["--averaged"]).1["full_stroke_ms"], all["full_stroke_ms"]);
    assert!(fit(&["--beyond", "10000000s"]).1["fitted"].as_u64() < all["fitted"].as_u64());
}

#[test]
fn what_cannot_be_calibrated_is_refused() {
    let folder = Folder::new();
    let good = trace(100, u64::MAX);
    let empty = folder.file("empty", "");
    let broken = folder.file("broken", &format!("{good}R Hit eight\n"));
    let one = folder.file("one", "R Hit 1 8 5 5\n");
    let msr = crate::common::fixture("msr.csv");
    let packed = crate::common::fixture("msr.csv.gz");
    let fine = folder.file("fine", &good);
    let nowhere = folder.arg("absent/p.toml");
    for (args, parts) in [
        (&["calibrate"][..], &["required"][..]),
        (&["calibrate", "/nonexistent"], &["/nonexistent"]),
        (&["calibrate", "/"], &["directory"]),
        (&["calibrate", "/dev/null"], &["character device"]),
        (&["calibrate", &empty], &["empty"]),
        (&["calibrate", &broken], &["line 101", "R Hit eight"]),
        (&["calibrate", &one], &["a line needs 10"]),
        (&["calibrate", &msr], &["format msr", "under load"]),
        (&["calibrate", &packed], &["--as disk"]),
        (&["calibrate", &fine, "--reads", "0"], &["--reads"]),
        (&["calibrate", &fine, "--block", "0"], &["--block"]),
        (&["calibrate", &fine, "--time-max", "5"], &["with its unit"]),
        (&["calibrate", &fine, "--beyond", "far"], &["--beyond"]),
        (&["calibrate", &fine, "--name", "a\nb"], &["--name"]),
        (&["calibrate", &fine, "--rpm", "1"], &["--rpm"]),
        (&["calibrate", &fine, "--profile", &nowhere], &["folder does not exist"]),
        (&["calibrate", &fine, "--profile", "/dev/full"], &["No space left"]),
        (&["calibrate", &fine, "--report", "/dev/full"], &["No space left"]),
    ] {
        let ran = seekway(args);
        assert!(!ran.err.contains("panicked"), "{args:?}: {}", ran.err);
        ran.refused(parts);
    }
    seekway_with(b"", &["calibrate", "-"]).refused(&["stdin"]);
    seekway_with(b"\xff\x00\x01", &["calibrate", "-"]).refused(&["stdin", "not text"]);
    assert!(seekway(&["calibrate", "--help"]).ok().contains("Usage: seekway"));
}

#[test]
fn what_is_measured_is_not_written_over() {
    let folder = Folder::new();
    let text = trace(3_000, u64::MAX);
    let path = folder.file("a.trace", &text);
    std::os::unix::fs::symlink(&path, folder.path("link.toml")).expect("a link");
    for (flag, place) in [("--profile", path.clone()), ("--report", folder.arg("link.toml"))] {
        seekway(&["calibrate", &path, flag, &place]).refused(&[flag, "to be measured"]);
        assert_eq!(std::fs::read_to_string(&path).expect("the trace"), text);
    }
}

/// A file of `mib` MiB that holds data, or `None` where it cannot be measured.
fn image(folder: &Folder, mib: usize) -> Option<String> {
    let path = folder.path("disk.img");
    let block: Vec<u8> =
        (0..1_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut bytes = Vec::new();
    (0..mib).for_each(|_| bytes.extend_from_slice(&block));
    std::fs::write(&path, &bytes).expect("room for a fixture");
    let arg = folder.arg("disk.img");
    let ran = seekway(&["calibrate", &arg, "--reads", "50"]);
    let no_disk = ["in memory", "no direct I/O"].iter().any(|why| ran.err.contains(why));
    if no_disk {
        seekway_testing::skip(&ran.err);
    }
    (!no_disk).then_some(arg)
}

#[test]
fn a_file_is_read_and_never_written() {
    let folder = Folder::new();
    let Some(path) = image(&folder, 16) else { return };
    let before = std::fs::read(&path).expect("ours");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).expect("ours");
    let changed = std::fs::metadata(&path).expect("ours").modified().expect("known");
    let profile = folder.arg("p.toml");
    let args = ["calibrate", &path, "--reads", "500", "--profile", &profile, "--format", "json"];
    let ran = seekway(&args);
    assert!(ran.err.contains("distances are between places"), "{}", ran.err);
    let made = json(&ran.ok());
    assert_eq!(made["requests"], 500);
    // Its sign depends on what else the disk does.
    assert!(made["intercept_ms"].is_f64(), "{made}");
    assert!(std::fs::read(&path).expect("ours") == before, "it was written to");
    assert_eq!(std::fs::metadata(&path).expect("ours").modified().expect("known"), changed);
    let compare = "compare --vm app=sysbench:mode=RR,requests=20 --policies noop --device";
    seekway(&line(compare, &[&profile])).ok();
    // A size that is no multiple of a block is no hindrance.
    let odd = folder.arg("odd.img");
    std::fs::write(&odd, &before[..before.len() - 777]).expect("room");
    seekway(&["calibrate", &odd, "--reads", "100"]).ok();
}

#[test]
fn holes_are_refused_and_time_ends_it() {
    let folder = Folder::new();
    let Some(path) = image(&folder, 4) else { return };
    let hole = folder.path("hole.img");
    File::create(&hole).and_then(|f| f.set_len(64 << 20)).expect("room");
    // It begins with zeroes, as an image does, and not with text.
    let hole = folder.arg("hole.img");
    let ran: Ran = seekway(&["calibrate", &hole]);
    ran.refused(&["hole.img", "written"]);
    // A time that is over before the tenth read.
    seekway(&["calibrate", &path, "--time-max", "1ns"]).refused(&["a line needs 10"]);
}

/// Sends it a signal when it has asked for 4 MiB: `rchar` to read, `wchar` to write.
fn interrupted(args: &[&str], what: &str, signal: i32) -> Ran {
    let child = started(command(args));
    let path = format!("/proc/{}/io", child.id());
    wait_until("it reads or writes", || {
        let io = std::fs::read_to_string(&path).unwrap_or_default();
        let line = io.lines().find_map(|l| l.strip_prefix(what)?.strip_prefix(": "));
        line.and_then(|n| n.trim().parse().ok()).unwrap_or(0) >= 4_u64 << 20
    });
    seekway_testing::signal(&child, signal);
    Ran::ended(child)
}

#[test]
fn an_interrupt_ends_it_with_what_was_measured() {
    let folder = Folder::new();
    let Some(path) = image(&folder, 16) else { return };
    let reads = ["--reads", "10000000", "--time-max", "10min", "--format", "json"];
    // Some hundred reads, beyond what the program itself and the file's head take.
    let args = [&["calibrate", &path][..], &reads].concat();
    let ended = interrupted(&args, "rchar", libc::SIGTERM);
    assert!(ended.err.contains("interrupted"), "{}", ended.err);
    let made = json(&ended.ok());
    assert!(made["requests"].as_u64() > Some(100), "{made}");
}

#[test]
fn a_flash_drive_is_read_fitted_and_judged() {
    let folder = Folder::new();
    let Some(path) = image(&folder, 96) else { return };
    let before = std::fs::read(&path).expect("ours");
    let (profile, report) = (folder.arg("nvme.toml"), folder.arg("nvme.html"));
    let args = ["calibrate", &path, "--flash", "--quick", "--cell-time", "100ms"];
    let more = ["--profile", &profile, "--report", &report, "--format", "json"];
    let ran = seekway(&[&args[..], &more].concat());
    assert!(ran.err.contains("only reads were measured"), "{}", ran.err);
    assert!(!ran.err.contains("destroys"), "{}", ran.err);
    assert!(std::fs::read(&path).expect("ours") == before, "it was written to");
    // A slow or busy disk completes nothing of some loads in that time: they are named, and left
    // out. What is left may be too little for a fit, or for a verdict.
    let left_out = ran.err.matches("nothing completed in its time; it is left out").count();
    if left_out > 0 {
        assert!(left_out <= 12 && !ran.err.contains("panicked"), "{}", ran.err);
        return seekway_testing::skip(format!("a disk that answers 12 loads: {}", ran.err));
    }
    assert!(ran.err.contains("held out: the model is off by"), "{}", ran.err);
    let made = json(&ran.ok());
    assert_eq!(made["cells"].as_array().map(Vec::len), Some(12), "{made}");
    let held = &made["halves"][1];
    assert!(held["half"] == "held out" && held["mean_error"].is_f64(), "{made}");
    let text = std::fs::read_to_string(&profile).expect("written");
    assert!(text.contains("name = \"nvme\"") && text.contains("# Fitted to "), "{text}");
    assert!(text.contains("program_us = 185.000 # not told by the matrix: the default"), "{text}");
    let vm = "image=32MiB,app=fio:rw=randread,bs=4k,size=1MiB,direct=true";
    seekway(&["compare", "--vm", vm, "--policies", "noop", "--device", &profile]).ok();
    assert!(std::fs::read_to_string(&report).expect("written").contains("held out"));
}

#[test]
fn overwrite_writes_and_an_interrupt_fits_what_was_measured() {
    let folder = Folder::new();
    let Some(path) = image(&folder, 96) else { return };
    let before = std::fs::read(&path).expect("ours");
    // Long enough that each load has an answer from a slow disk, and that the signal comes before
    // the last one.
    let args = ["calibrate", &path, "--flash", "--quick", "--cell-time", "1s", "--overwrite"];
    // Reads come first.
    let args = [&args[..], &["--format", "json"]].concat();
    let ended = interrupted(&args, "wchar", libc::SIGINT);
    let said = &ended.err;
    assert!(said.contains(&format!("--overwrite destroys what {path} holds")), "{said}");
    assert!(said.contains("of 24 loads were measured"), "{said}");
    assert!(std::fs::read(&path).expect("ours") != before, "it was not written to");
    if said.contains("nothing completed in its time") {
        return seekway_testing::skip(format!("a disk that answers the loads: {said}"));
    }
    let made = json(&ended.ok());
    assert!(made["cells"].as_array().is_some_and(|cells| cells.len() >= 6), "{made}");
}

#[test]
fn what_is_no_flash_drive_to_measure_is_refused() {
    let folder = Folder::new();
    let Some(path) = image(&folder, 16) else { return };
    let nowhere = folder.arg("absent/p.toml");
    for (args, parts) in [
        (&["--quick"][..], &["--flash"][..]),
        (&["--overwrite"], &["--flash"]),
        (&["--flash", "--reads", "5"], &["--reads"]),
        (&["--flash", "--as", "trace"], &["--as"]),
        (&["--flash", "--cell-time", "5"], &["--cell-time 5", "with its unit"]),
        (&["--flash", "--cell-time", "1ms"], &["--cell-time 1ms", "100ms to 1h"]),
        (&["--flash", "--profile", &nowhere], &["folder does not exist"]),
        (&["--flash"], &["disk.img", "16 MiB", "at least 64 MiB"]),
    ] {
        seekway(&[&["calibrate", &path][..], args].concat()).refused(parts);
    }
    seekway(&["calibrate", "--flash", "-"]).refused(&["-"]);
    let bytes = vec![7; 80 << 20];
    let whole = folder.path("whole.img");
    std::fs::write(&whole, &bytes).expect("room");
    std::fs::set_permissions(&whole, PermissionsExt::from_mode(0o400)).expect("ours");
    let whole = folder.arg("whole.img");
    seekway(&["calibrate", &whole, "--flash", "--overwrite"]).refused(&[
        "whole.img",
        "read-only",
        "without --overwrite only reads",
    ]);
    assert!(std::fs::read(&whole).expect("ours") == bytes);
    // Somebody else has it.
    std::fs::set_permissions(folder.path("whole.img"), PermissionsExt::from_mode(0o600))
        .expect("ours");
    let held = File::options().write(true).open(&whole).expect("ours");
    // SAFETY: plain numbers; the descriptor is open.
    let lock: libc::flock = unsafe { std::mem::zeroed() };
    let lock = libc::flock { l_type: libc::F_WRLCK as _, ..lock };
    // SAFETY: the lock is read within the call.
    let locked = unsafe { libc::fcntl(held.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    assert_eq!(locked, 0);
    let ran = seekway(&["calibrate", &whole, "--flash", "--overwrite"]);
    ran.refused(&["whole.img", "without --overwrite only reads"]);
    drop(held);
    assert!(std::fs::read(&whole).expect("ours") == bytes);
    // Holes are not measured.
    let hole = File::options().write(true).open(&whole).expect("ours");
    hole.set_len(200 << 20)
        .and_then(|()| hole.write_all_at(&[1; 4096], (200 << 20) - 4096))
        .expect("room");
    seekway(&["calibrate", &whole, "--flash"]).refused(&["whole.img", "holes", "fill it first"]);
}

#[test]
fn an_interrupt_before_a_fit_can_be_made_says_so() {
    let folder = Folder::new();
    let Some(path) = image(&folder, 96) else { return };
    let args = ["calibrate", &path, "--flash", "--cell-time", "1h"];
    let ended = interrupted(&args, "rchar", libc::SIGINT);
    ended.refused(&["interrupted: 0 of 12 loads", "a fit needs 3"]);
}
