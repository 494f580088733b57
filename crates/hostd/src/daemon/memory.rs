//! What the system says of its memory: how much is available to this process, and when tasks
//! wait for some. The host's, and that of the control groups (v2) that the process is in.

use seekway_policy::cache::sizing::Reading;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most of a file that is read: the kernel's are much shorter.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Most control groups inside each other that are looked at.
const GROUPS_MAX: usize = 64;
/// What is pressure: some task waited so long for memory in so long (µs). An ordinary user may
/// only have windows of whole two seconds.
const TRIGGERS: [&str; 2] = ["some 150000 1000000", "some 300000 2000000"];
/// Less than this since the last word of pressure (µs) is none: the first word of a window of two
/// seconds may be of all stalls since the host was started (seen with Linux 6.18).
pub const STALL_LEAST_US: u64 = 100_000;

/// Where the system tells of its memory.
#[derive(Clone, Debug)]
pub struct MemorySource {
    meminfo: PathBuf,
    /// `memory` of the host's pressure, and `memory.pressure` of the own group.
    pressures: Vec<PathBuf>,
    /// The own control group and those around it, without the root.
    groups: Vec<PathBuf>,
}

impl MemorySource {
    /// Of this process.
    pub fn here() -> MemorySource {
        MemorySource::at(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }

    /// With these folders for `/proc` and for the control groups' file system.
    fn at(proc: &Path, groups: &Path) -> MemorySource {
        let own = read(&proc.join("self/cgroup")).unwrap_or_default();
        let groups: Vec<PathBuf> = match own_group(&own) {
            Some(own) if groups.join("cgroup.controllers").exists() => {
                let around = own.ancestors().filter(|group| !group.as_os_str().is_empty());
                around.take(GROUPS_MAX).map(|group| groups.join(group)).collect()
            }
            _ => Vec::new(),
        };
        let own_pressure = groups.first().map(|group| group.join("memory.pressure"));
        let pressures = [proc.join("pressure/memory")].into_iter().chain(own_pressure).collect();
        MemorySource { meminfo: proc.join("meminfo"), pressures, groups }
    }

    /// How much memory there is, when the cache has `cached` bytes. `None` when the system does
    /// not say it.
    pub fn reading(&self, cached: u64) -> Option<Reading> {
        let text = read(&self.meminfo).ok()?;
        let field = |name| kib_field(&text, name);
        let mut reading =
            Reading { total: field("MemTotal:")?, available: field("MemAvailable:")?, cached };
        for group in &self.groups {
            let Some((most, available)) = group_memory(group) else { continue };
            reading.total = reading.total.min(most);
            reading.available = reading.available.min(available);
        }
        Some(reading)
    }

    /// Time (µs) that tasks have waited for memory since the host was started; of the host and of
    /// the own group together.
    pub fn stalled_us(&self) -> u64 {
        let stalled = |path: &PathBuf| stalled_us(&read(path).ok()?);
        self.pressures.iter().filter_map(stalled).fold(0, u64::saturating_add)
    }

    /// Files that are ready for `EPOLLPRI` when tasks wait for memory. None where the kernel
    /// does not tell (no CONFIG_PSI, `psi=0`, or no right to ask).
    pub fn triggers(&self) -> Vec<File> {
        self.pressures.iter().filter_map(|path| trigger(path).ok()).collect()
    }
}

/// Ask the kernel to tell of pressure.
fn trigger(path: &Path) -> io::Result<File> {
    let mut last = io::Error::other("no trigger");
    for text in TRIGGERS {
        let options = &mut OpenOptions::new();
        let mut file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        // The kernel wants the NUL of a C program.
        match file.write_all(format!("{text}\0").as_bytes()) {
            Ok(()) => return Ok(file),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn read(path: &Path) -> io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX as u64).read_to_string(&mut text)?;
    Ok(text)
}

/// The path of the own control group in the hierarchy of version 2, relative to its root.
fn own_group(text: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let path = Path::new(path);
    let is_plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    is_plain.then(|| path.to_path_buf())
}

/// A field of /proc/meminfo, in bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// The time in the line `some avg10=0.00 … total=N`.
fn stalled_us(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// What a control group may have at most, and how much more it could have: what is not used, and
/// the page cache that nobody used for a while. `None` for one without a limit.
fn group_memory(group: &Path) -> Option<(u64, u64)> {
    let number = |file: &str| -> Option<u64> {
        fs::read_to_string(group.join(file)).ok()?.trim().parse().ok() // "max" is no number
    };
    let most = number("memory.max").into_iter().chain(number("memory.high")).min()?;
    let used = number("memory.current")?;
    let stat = read(&group.join("memory.stat")).unwrap_or_default();
    let idle = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let idle: u64 = idle.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    Some((most, most.saturating_sub(used.saturating_sub(idle))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n";

    /// A `/proc` and control groups of these files.
    fn world(files: &[(&str, &str)]) -> (tempfile::TempDir, MemorySource) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let source = MemorySource::at(&dir.path().join("proc"), &dir.path().join("groups"));
        (dir, source)
    }

    #[test]
    fn the_host_s_memory_is_read_where_no_group_limits_it() {
        let (_dir, source) = world(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "1:cpu:/x\n0::/\n"),
            ("groups/cgroup.controllers", "memory\n"),
        ]);
        let reading = Reading { total: 16_384_000_000, available: 8_192_000_000, cached: 5 };
        assert_eq!(source.reading(5), Some(reading));
        assert_eq!((source.groups.len(), source.pressures.len()), (0, 1));
        assert!(source.triggers().is_empty(), "there is no pressure file");
        assert_eq!(source.stalled_us(), 0);
    }

    #[test]
    fn the_tightest_group_counts() {
        let (dir, source) = world(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/vms.slice/seekway.service\n"),
            ("groups/cgroup.controllers", "memory\n"),
            ("groups/vms.slice/memory.max", "4000000000\n"),
            ("groups/vms.slice/memory.high", "3000000000\n"),
            ("groups/vms.slice/memory.current", "2500000000\n"),
            ("groups/vms.slice/memory.stat", "anon 1\ninactive_file 500000000\n"),
            ("proc/pressure/memory", "some avg10=0.00 total=70\nfull avg10=0.00 total=9\n"),
            ("groups/vms.slice/seekway.service/memory.pressure", "some total=5\n"),
            ("groups/vms.slice/seekway.service/memory.max", "max\n"),
            ("groups/vms.slice/seekway.service/memory.current", "7\n"),
        ]);
        let tight = Reading { total: 3_000_000_000, available: 1_000_000_000, cached: 0 };
        assert_eq!(source.reading(0), Some(tight));
        let own = dir.path().join("groups/vms.slice/seekway.service/memory.pressure");
        assert_eq!((&source.pressures[1], source.stalled_us()), (&own, 75));
    }

    #[test]
    fn what_cannot_be_read_is_not_guessed() {
        for meminfo in
            ["", "MemTotal: many kB", "MemTotal: 5 kB\n", "MemTotal: 99999999999999999999 kB"]
        {
            let (_dir, source) = world(&[("proc/meminfo", meminfo)]);
            assert_eq!(source.reading(0), None, "{meminfo:?}");
        }
        assert_eq!(own_group("0::/../outside\n"), None);
        assert_eq!(own_group("4:memory:/old\n"), None);
        let here = MemorySource::here().reading(0).expect("this computer tells of its memory");
        assert!(here.available <= here.total && here.total > 0);
    }
}
