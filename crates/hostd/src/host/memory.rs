//! The system's figures about memory: the memory available to this process, and signs that tasks
//! wait for some. Those of the host, and those of the control groups (v1 or v2) that the process is
//! in.

use crate::config::DiskConfig;
use crate::sandbox::{Access, Places};
use seekway_stack::cache::sizing::Reading;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most of a file that is read: the kernel's are much shorter.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Most control groups inside each other that are looked at.
const GROUPS_MAX: usize = 64;
/// Thresholds of pressure: time that some task waited for memory, and the window (µs). An ordinary
/// user may only have windows of whole two seconds.
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
    /// The own control group and those around it, up to the root: in a container the root is the
    /// container's own group, and has limits.
    groups: Vec<PathBuf>,
    files: &'static GroupFiles,
}

/// Names of a control group's files.
#[derive(Debug)]
struct GroupFiles {
    /// Files with a limit in bytes; the lowest limit counts.
    most: &'static [&'static str],
    used: &'static str,
    /// The line of `memory.stat` with the page cache that nobody used for a while.
    idle: &'static str,
}

const V1: GroupFiles = GroupFiles {
    most: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    idle: "total_inactive_file ",
};
const V2: GroupFiles = GroupFiles {
    most: &["memory.max", "memory.high"],
    used: "memory.current",
    idle: "inactive_file ",
};

impl MemorySource {
    /// The memory of this host, and of the control groups of this process.
    pub fn here() -> MemorySource {
        MemorySource::at(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }

    /// With these folders for `/proc` and for the control groups' file system.
    pub fn at(proc: &Path, groups: &Path) -> MemorySource {
        let own = read(&proc.join("self/cgroup")).unwrap_or_default();
        let (files, root, own) = match groups.join("cgroup.controllers").exists() {
            true => (&V2, groups.to_path_buf(), own_group(&own, str::is_empty)),
            false => {
                let has_memory = |controllers: &str| controllers.split(',').any(|c| c == "memory");
                (&V1, groups.join("memory"), own_group(&own, has_memory))
            }
        };
        let around = own.iter().flat_map(|own| own.ancestors()).take(GROUPS_MAX);
        let groups: Vec<PathBuf> = around.map(|group| root.join(group)).collect();
        // The host's root group has no limits, and its pressure is the host's.
        let own_group =
            groups.first().filter(|own| **own != root || own.join("memory.max").exists());
        let own_pressure = own_group.map(|group| group.join("memory.pressure"));
        let pressures = [proc.join("pressure/memory")].into_iter().chain(own_pressure).collect();
        MemorySource { meminfo: proc.join("meminfo"), pressures, groups, files }
    }

    /// Memory of the host, when the cache has `cached` bytes. `None` when the system does not say
    /// it.
    pub fn reading(&self, cached: u64) -> Option<Reading> {
        let text = read(&self.meminfo).ok()?;
        let field = |name| kib_field(&text, name);
        let mut reading =
            Reading { total: field("MemTotal:")?, available: field("MemAvailable:")?, cached };
        for group in &self.groups {
            let Some((most, available)) = group_memory(group, self.files) else { continue };
            reading.total = reading.total.min(most);
            reading.available = reading.available.min(available);
        }
        Some(reading)
    }

    /// Bytes of the host's memory; `None` where the system does not say it.
    pub fn host_bytes(&self) -> Option<u64> {
        kib_field(&read(&self.meminfo).ok()?, "MemTotal:")
    }

    /// A warning for administrators who limit the daemon's memory: the limit also counts pages of
    /// these disks' guests that the daemon touches first.
    pub fn guests_that_count(&self, disks: &[DiskConfig]) -> Option<String> {
        let total = self.reading(0)?.total;
        if disks.is_empty() || total >= self.host_bytes()? {
            return None;
        }
        let open: Vec<&str> = disks
            .iter()
            .filter(|disk| disk.guest_memory.is_none())
            .map(|disk| disk.name.as_str())
            .collect();
        let sum = disks.iter().filter_map(|disk| disk.guest_memory).fold(0, u64::saturating_add);
        let limit = format!("the daemon's control group may have {} MiB", total >> 20);
        match (open.is_empty(), sum > total) {
            (false, _) => Some(format!(
                "{limit}, and memory of guests counts there that only the daemon has touched: give \
                 each disk guest_memory= (without it: {})",
                open.join(", ")
            )),
            (true, true) => Some(format!("{limit}, and guest_memory= of the disks is more")),
            (true, false) => None,
        }
    }

    /// Time (µs) that tasks have waited for memory since the host was started; of the host and of
    /// the own group together.
    pub fn stalled_us(&self) -> u64 {
        let stalled = |path: &PathBuf| stalled_us(&read(path).ok()?);
        self.pressures.iter().filter_map(stalled).fold(0, u64::saturating_add)
    }

    /// Allow to open what is read here.
    pub fn allow(&self, places: &mut Places) {
        places.allow(&self.meminfo, Access::Read);
        self.groups.iter().for_each(|group| places.allow(group, Access::Read));
        self.pressures.iter().for_each(|path| places.allow(path, Access::Write));
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

/// The path of the own control group, relative to the root of the hierarchy of which
/// `is_wanted` says by its controllers that it is the one: lines are `4:cpu,memory:/path`, and
/// without controllers in version 2.
fn own_group(text: &str, is_wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        path.strip_prefix('/').filter(|_| is_wanted(controllers))
    });
    let path = Path::new(path?);
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

/// Limit of a control group, and how much more it could have: unused memory, and page cache that
/// nobody used for a while. `None` for one without a limit.
fn group_memory(group: &Path, files: &GroupFiles) -> Option<(u64, u64)> {
    let number = |file: &str| -> Option<u64> {
        fs::read_to_string(group.join(file)).ok()?.trim().parse().ok() // "max" is no number
    };
    let most = files.most.iter().filter_map(|file| number(file)).min()?;
    let used = number(files.used)?;
    let stat = read(&group.join("memory.stat")).unwrap_or_default();
    let idle = stat.lines().find_map(|line| line.strip_prefix(files.idle));
    let idle: u64 = idle.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    Some((most, most.saturating_sub(used.saturating_sub(idle))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::units::{Instant, Nanos};
    use seekway_stack::cache::sizing::{AutoSize, Bounds, LOOK_OFTEN};

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
        assert_eq!(source.pressures.len(), 1, "the root group's pressure is the host's");
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
    fn who_limits_the_daemon_is_told_of_guests_memory() {
        let (_dir, source) = world(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/seekway.service\n"),
            ("groups/cgroup.controllers", "memory\n"),
            ("groups/seekway.service/memory.max", "4294967296\n"),
            ("groups/seekway.service/memory.current", "0\n"),
        ]);
        assert_eq!(source.host_bytes(), Some(16_384_000_000));
        let disk = |name, guest_memory| DiskConfig { guest_memory, ..DiskConfig::new(name, "x") };
        let told = |disks: &[DiskConfig]| source.guests_that_count(disks).unwrap_or_default();
        let (web, db) = (disk("web", None), disk("db", Some(3 << 30)));
        assert!(told(&[web, db.clone()]).ends_with("(without it: web)"));
        assert_eq!(told(&[db.clone(), disk("log", Some(1 << 30))]), "");
        assert!(told(&[db, disk("log", Some((1 << 30) + 1))]).contains("4096 MiB"));
        assert_eq!(told(&[]), "");
        let (_dir, host) = world(&[("proc/meminfo", MEMINFO)]);
        assert_eq!(host.guests_that_count(&[disk("web", None)]), None, "no limit");
    }

    /// A container's own group is the root of what it sees.
    #[test]
    fn the_limit_of_a_container_counts() {
        let (dir, source) = world(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/\n"),
            ("groups/cgroup.controllers", "memory\n"),
            ("groups/memory.max", "2000000000\n"),
            ("groups/memory.current", "500000000\n"),
            ("groups/memory.pressure", "some total=3\n"),
        ]);
        let container = Reading { total: 2_000_000_000, available: 1_500_000_000, cached: 0 };
        assert_eq!(source.reading(0), Some(container));
        let own = dir.path().join("groups/memory.pressure");
        assert_eq!((source.pressures.get(1), source.stalled_us()), (Some(&own), 3));
    }

    /// Version 1, with a hierarchy of version 2 beside it that has no controllers (systemd's
    /// hybrid layout). What has no limit has a very large one there.
    #[test]
    fn limits_of_version_1_count() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "7:cpu,cpuacct:/a\n4:memory:/vms/seekway\n0::/x\n"),
            ("groups/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("groups/memory/memory.usage_in_bytes", "9000000000\n"),
            ("groups/memory/vms/memory.limit_in_bytes", "3000000000\n"),
            ("groups/memory/vms/memory.usage_in_bytes", "2500000000\n"),
            ("groups/memory/vms/memory.stat", "inactive_file 1\ntotal_inactive_file 500000000\n"),
            ("groups/memory/vms/seekway/memory.limit_in_bytes", "9223372036854771712\n"),
            ("groups/memory/vms/seekway/memory.usage_in_bytes", "7\n"),
        ];
        let (_dir, source) = world(&files);
        let tight = Reading { total: 3_000_000_000, available: 1_000_000_000, cached: 0 };
        assert_eq!(source.reading(0), Some(tight));
        // A container sees its own group as the root, whatever path the host has for it.
        let (_dir, source) = world(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "4:memory:/docker/0123\n"),
            ("groups/memory/memory.limit_in_bytes", "2000000000\n"),
            ("groups/memory/memory.usage_in_bytes", "500000000\n"),
        ]);
        let container = Reading { total: 2_000_000_000, available: 1_500_000_000, cached: 0 };
        assert_eq!(source.reading(0), Some(container));
    }

    /// No `/proc/pressure`: too little memory is noticed by looking, and often.
    #[test]
    fn without_word_of_pressure_the_size_follows_what_is_available() {
        let (dir, source) = world(&[("proc/meminfo", MEMINFO)]);
        let is_told = !source.triggers().is_empty();
        let reading = source.reading(0).unwrap();
        let mut size = AutoSize::new(Bounds::of_memory(reading.total), &reading, is_told);
        assert_eq!((is_told, size.look_after()), (false, LOOK_OFTEN));
        let before = size.bytes();
        assert_eq!(before, 819_200_000, "a tenth");
        // The cache has all of it, and others have taken the rest but for a hundredth.
        let scarce = MEMINFO.replace(" 8000000 kB", " 160000 kB");
        fs::write(dir.path().join("proc/meminfo"), scarce).unwrap();
        let at = |seconds| Instant::ZERO + Nanos::from_secs(seconds);
        size.look(at(2), &source.reading(before).unwrap());
        assert!(size.bytes() <= before * 3 / 4, "{} of {before}", size.bytes());
        // Enough again: it does not grow before a minute has passed.
        fs::write(dir.path().join("proc/meminfo"), MEMINFO).unwrap();
        let pressed = size.bytes();
        size.look(at(60), &source.reading(pressed).unwrap());
        assert_eq!(size.bytes(), pressed);
        size.look(at(62), &source.reading(pressed).unwrap());
        assert!(size.bytes() > pressed);
    }

    #[test]
    fn what_cannot_be_read_is_not_guessed() {
        for meminfo in
            ["", "MemTotal: many kB", "MemTotal: 5 kB\n", "MemTotal: 99999999999999999999 kB"]
        {
            let (_dir, source) = world(&[("proc/meminfo", meminfo)]);
            assert_eq!(source.reading(0), None, "{meminfo:?}");
        }
        assert_eq!(own_group("0::/../outside\n", str::is_empty), None);
        assert_eq!(own_group("4:memory:/old\n", str::is_empty), None);
        assert_eq!(own_group("4:memory\nnonsense\n", |_| true), None);
        let here = MemorySource::here().reading(0).expect("this computer tells of its memory");
        assert!(here.available <= here.total && here.total > 0);
    }
}
