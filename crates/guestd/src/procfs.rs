//! Reads `/proc` about processes and threads. They come and go while it is read, and their names
//! may hold anything: unreadable entries are `None`, never a panic.

use seekway_vcpu::{VCPUS_MAX, VcpuId, VcpuSet};
use std::fs::{self, File};
use std::io::{self, Read};

/// Longest file that is read; those of one process are a tenth of it.
const FILE_BYTES_MAX: u64 = 16 << 10;
/// Set in the flags of kernel threads: `PF_KTHREAD` of include/linux/sched.h.
const PF_KTHREAD: u64 = 0x0020_0000;
/// Fields of `/proc/PID/stat` are numbered as in the manual: the state is this one,
pub const STATE_FIELD: usize = 3;
/// and this the vCPU on which it ran last, or was put to run next.
const VCPU_FIELD: usize = 39;

/// The fields of `/proc/PID/stat` (proc_pid_stat(5)) that the agent uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The name, with unprintable characters escaped.
    pub comm: String,
    /// Waits without interruption, for a disk most often.
    pub waits: bool,
    /// The process that started it.
    pub parent: i32,
    /// A thread of the kernel.
    pub kernel: bool,
    /// Start in clock ticks after boot, which distinguishes processes with one number.
    pub start: u64,
}

/// The numbers of all processes (thread groups), in ascending order.
///
/// # Errors
/// `/proc` cannot be listed: it is not mounted.
pub fn processes() -> io::Result<Vec<i32>> {
    numbers("/proc")
}

/// The threads of a process. None when it has gone.
pub fn threads(pid: i32) -> Vec<i32> {
    numbers(&format!("/proc/{pid}/task")).unwrap_or_default()
}

fn numbers(dir: &str) -> io::Result<Vec<i32>> {
    let mut found: Vec<i32> = fs::read_dir(dir)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// About a process or one of its threads; `None` when it has gone.
pub fn stat(id: i32) -> Option<Stat> {
    parse_stat(&read(&format!("/proc/{id}/stat")).ok()?)
}

/// Bytes that a process has read from disks and written to them: all its threads together, those
/// that have ended, and all its children that have ended and been waited for.
///
/// # Errors
/// When the task has ended or may not be read (CAP_SYS_PTRACE).
pub fn io_bytes(pid: i32) -> io::Result<u64> {
    let text = read(&format!("/proc/{pid}/io"))?;
    parse_io(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// As [`io_bytes`], of one thread alone.
///
/// # Errors
/// When the task has ended or may not be read (CAP_SYS_PTRACE).
pub fn thread_io_bytes(pid: i32, tid: i32) -> io::Result<u64> {
    let text = read(&format!("/proc/{pid}/task/{tid}/io"))?;
    parse_io(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The CPUs on which a thread may run, including those that are off line. `None` when it has gone,
/// or when there are more of them than [`VcpuSet`] holds.
pub fn affinity(tid: i32) -> Option<VcpuSet> {
    let text = read(&format!("/proc/{tid}/status")).ok()?;
    let list = text.split(|&b| b == b'\n').find_map(|l| l.strip_prefix(b"Cpus_allowed_list:"))?;
    str::from_utf8(list).ok()?.parse().ok()
}

/// The vCPU on which a thread ran last, or was put to run next; `None` when it has gone.
pub fn vcpu(tid: i32) -> Option<VcpuId> {
    let text = read(&format!("/proc/{tid}/stat")).ok()?;
    let (_, rest) = name_and_rest(&text)?;
    let number: u16 = rest.split_ascii_whitespace().nth(VCPU_FIELD - STATE_FIELD)?.parse().ok()?;
    (usize::from(number) < VCPUS_MAX).then(|| VcpuId::new(number))
}

/// The CPUs that are on line.
///
/// # Errors
/// `/sys` is not mounted, or there are more CPUs than [`VcpuSet`] holds.
pub fn online() -> io::Result<VcpuSet> {
    cpus("online")
}

/// The CPUs that can ever be on line.
///
/// # Errors
/// As [`online`].
#[cfg(feature = "bpf")]
pub fn possible() -> io::Result<VcpuSet> {
    cpus("possible")
}

fn cpus(which: &str) -> io::Result<VcpuSet> {
    let text = read(&format!("/sys/devices/system/cpu/{which}"))?;
    let list = str::from_utf8(&text).map_err(|_| io::ErrorKind::InvalidData)?;
    list.parse().map_err(io::Error::other)
}

/// The control group's `io.prio.class`, where it has one (cgroup v2).
pub fn io_class(pid: i32) -> Option<(String, String)> {
    let text = read(&format!("/proc/{pid}/cgroup")).ok()?;
    let path = parse_cgroup(&text)?;
    let class = read(&format!("/sys/fs/cgroup{path}/io.prio.class")).ok()?;
    let class = String::from_utf8_lossy(&class).trim().to_string();
    Some((path, class))
}

/// Tells one boot from the next.
pub fn boot_id() -> String {
    let id = read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    String::from_utf8_lossy(&id).trim().to_string()
}

/// Disks that have a queue of hardware or more, and how many.
pub fn disk_queues() -> Vec<(String, usize)> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let queues = |entry: fs::DirEntry| {
        let queues = fs::read_dir(entry.path().join("mq")).ok()?.count();
        // Loop devices and the like have no interrupts.
        entry.path().join("device").exists().then_some(())?;
        Some((entry.file_name().to_string_lossy().into_owned(), queues))
    };
    let mut found: Vec<(String, usize)> = entries.filter_map(queues).collect();
    found.sort_unstable();
    found
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    // Room for all of most of them: fewer calls.
    let mut bytes = Vec::with_capacity(1024);
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let (name, rest) = name_and_rest(bytes)?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |n: usize| fields.get(n - STATE_FIELD).copied();
    Some(Stat {
        comm: String::from_utf8_lossy(name).escape_debug().to_string(),
        waits: field(3)? == "D",
        parent: field(4)?.parse().ok()?,
        kernel: is_kernel(field(9)?)?,
        start: field(22)?.parse().ok()?,
    })
}

/// Splits `PID (NAME) STATE PARENT …` into the name and the rest from field [`STATE_FIELD`] on. The
/// name may hold anything, parentheses and line ends too, and ends at the last parenthesis.
pub fn name_and_rest(bytes: &[u8]) -> Option<(&[u8], &str)> {
    let open = bytes.iter().position(|&b| b == b'(')?;
    let close = bytes.iter().rposition(|&b| b == b')')?;
    let rest = str::from_utf8(bytes.get(close + 1..)?).ok()?;
    Some((bytes.get(open + 1..close)?, rest))
}

/// Do the flags of a thread (field 9) say that it is the kernel's?
pub fn is_kernel(flags: &str) -> Option<bool> {
    flags.parse::<u64>().ok().map(|flags| flags & PF_KTHREAD != 0)
}

/// Bytes from and to disks in `/proc/PID/io`.
pub fn parse_io(bytes: &[u8]) -> Option<u64> {
    let text = str::from_utf8(bytes).ok()?;
    let value = |name: &str| -> Option<u64> {
        text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok())
    };
    Some(value("read_bytes")?.saturating_add(value("write_bytes")?))
}

/// The path in the hierarchy of version 2: `0::/path`.
fn parse_cgroup(bytes: &[u8]) -> Option<String> {
    let text = str::from_utf8(bytes).ok()?;
    let path = text.lines().find_map(|l| l.strip_prefix("0::"))?;
    // Outside of this namespace it begins with "/..".
    let inside = path.starts_with('/') && !path.split('/').any(|part| part == "..");
    inside.then(|| path.trim_end_matches('/').to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REST: &str = "D 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 2 3";

    #[test]
    fn names_may_hold_anything() {
        for name in ["cat", "a) R 1 2 3", "((", "x\ny", "", "\u{1b}[31m"] {
            let stat = parse_stat(format!("12 ({name}) {REST}").as_bytes()).unwrap();
            assert_eq!((stat.parent, stat.start, stat.waits, stat.kernel), (1, 4711, true, false));
            assert_eq!(stat.comm, name.escape_debug().to_string());
        }
        let kernel = REST.replace("4194560", "2129984");
        assert!(parse_stat(format!("2 (kthreadd) {kernel}").as_bytes()).unwrap().kernel);
    }

    proptest! {
        #[test]
        fn noise_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (parse_stat(&bytes), parse_io(&bytes), parse_cgroup(&bytes));
            let _ = parse_stat(&[b"1 (", &bytes[..], b") ", REST.as_bytes()].concat());
        }
    }

    #[test]
    fn io_is_what_reached_disks() {
        let text = "rchar: 9\nwchar: 9\nsyscr: 1\nread_bytes: 4096\nwrite_bytes: 512\n\
                    cancelled_write_bytes: 1\n";
        assert_eq!(parse_io(text.as_bytes()), Some(4608));
        assert_eq!(parse_io(b"read_bytes: x\nwrite_bytes: 1\n"), None);
    }

    #[test]
    fn groups_outside_are_left_alone() {
        assert_eq!(parse_cgroup(b"1:cpu:/x\n0::/a b/c\n"), Some("/a b/c".into()));
        assert_eq!(parse_cgroup(b"0::/\n"), Some(String::new()));
        assert_eq!(parse_cgroup(b"0::/../x\n"), None);
        assert_eq!(parse_cgroup(b"1:cpu:/x\n"), None);
    }

    #[test]
    fn this_process_is_found() {
        let pid = std::process::id() as i32;
        assert!(processes().unwrap().contains(&pid));
        assert!(!threads(pid).is_empty());
        let stat = stat(pid).unwrap();
        assert!(!stat.kernel && stat.start > 0);
        assert!(io_bytes(pid).is_ok() && thread_io_bytes(pid, pid).is_ok());
        assert!(super::stat(i32::MAX).is_none() && threads(i32::MAX).is_empty());
    }
}
