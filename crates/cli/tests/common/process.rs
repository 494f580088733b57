//! Resources of a process, and limits of them.
#![allow(dead_code)] // each test file uses its part

use super::common::PATIENCE;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Waits until something is so.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "not within {} s: {what}", PATIENCE.as_secs());
        sleep(Duration::from_millis(2));
    }
}

/// The numbers of its open descriptors, in order.
pub fn descriptors(pid: u32) -> Vec<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives");
    let number = |e: std::io::Result<fs::DirEntry>| {
        e.expect("an entry").file_name().to_string_lossy().parse().expect("a number")
    };
    let mut numbers: Vec<u64> = entries.map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// The names of its threads, without the workers of the kernel's io_uring, which come and go.
pub fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(name).map(|name| name.trim().to_string());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with("iou-")).collect();
    names.sort();
    names
}

/// A value of /proc/PID/status in KiB, such as `VmRSS`.
pub fn status_kib(pid: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
    let value = line.and_then(|l| l.trim().strip_suffix(" kB")).expect("a size");
    value.parse().expect("a number")
}

/// Lowers or raises a soft limit of a process of ours; `None` for the hard limit.
pub fn limit(pid: u32, resource: u32, soft: Option<u64>) {
    // SAFETY: a plain struct that the first call fills and the second reads.
    unsafe {
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        let none = std::ptr::null();
        let got = libc::prlimit(pid.cast_signed(), resource, none, &raw mut limit);
        assert_eq!(got, 0, "prlimit: {}", std::io::Error::last_os_error());
        limit.rlim_cur = soft.unwrap_or(limit.rlim_max);
        let set =
            libc::prlimit(pid.cast_signed(), resource, &raw const limit, std::ptr::null_mut());
        assert_eq!(set, 0, "prlimit: {}", std::io::Error::last_os_error());
    }
}

/// Limits the process to `more` descriptors beyond those that it has.
pub fn limit_new_descriptors(pid: u32, more: usize) {
    let used = descriptors(pid);
    let free = (0..).filter(|number| !used.contains(number)).nth(more);
    limit(pid, libc::RLIMIT_NOFILE, free);
}
