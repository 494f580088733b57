//! `seekway doctor`: what on this host stands in the way of serving, and how to fix it.
//!
//! Each check is a function of [`Facts`], which system calls tell, and of [`Root`], a folder
//! with `/proc`, `/sys` and `/dev` in it. Tests give both. Nothing is changed, and no lock is
//! taken: a daemon or QEMU may run meanwhile.
//!
//! Absent on purpose: huge pages, KSM, transparent huge pages and the read-ahead of the
//! disk below. The daemon uses direct I/O and needs none of them.

use crate::config::{CONTROL_NAME, CacheSize, Config, DiskConfig, SocketConfig};
use crate::control::{Client, HostReport, Request};
use crate::host::{MemorySource, PATH_BYTES_MAX};
use crate::images::{self, ImageError, OpenOptions};
use crate::reactor::ring;
use crate::sandbox;
use rustix::fs::Access;
use rustix::process::{Resource, geteuid, getrlimit};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Level {
    /// As it should be.
    Ok,
    /// Serving works; something is slower, less safe or absent.
    Warning,
    /// Serving does not work.
    Problem,
}

/// Finding of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// The disk of the configuration, or the disk below, that it is about; null for the host.
    pub about: Option<String>,
    pub level: Level,
    /// State that was found.
    pub found: String,
    /// A command or a setting that mends it; null if nothing has to be done.
    pub fix: Option<String>,
}

impl Finding {
    fn new(check: &'static str, level: Level, found: String, fix: Option<String>) -> Finding {
        Finding { check, about: None, level, found, fix }
    }

    fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(check, Level::Ok, found.into(), None)
    }

    fn warning(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::new(check, Level::Warning, found.into(), Some(fix.into()))
    }

    fn problem(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::new(check, Level::Problem, found.into(), Some(fix.into()))
    }

    fn about(self, about: impl Into<String>) -> Finding {
        Finding { about: Some(about.into()), ..self }
    }
}

/// All findings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DoctorReport {
    /// The worst of all.
    pub level: Level,
    /// Number of problems.
    pub problems: usize,
    /// Number of warnings.
    pub warnings: usize,
    /// The user that was asked about: the daemon has to run as this user.
    pub user: String,
    /// In the order in which they are read best: the host, then each disk.
    pub findings: Vec<Finding>,
}

/// A folder with `/proc`, `/sys` and `/dev` below it.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The files of this host itself.
    pub fn host() -> Root {
        Root::at("/")
    }

    /// One in another place, for tests.
    pub fn at(path: impl Into<PathBuf>) -> Root {
        Root(path.into())
    }

    /// The place of an absolute path.
    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file's text without the line feed at its end.
    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        text(&self.path(path))
    }

    /// The number that a file holds; `None` where it cannot be read or holds none.
    fn number<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end().to_string())
}

/// Run all checks. `config` says which disks are to be served, and where; with no disks, the
/// host's physical disks are looked at.
pub fn examine(root: &Root, facts: &Facts, config: &Config) -> DoctorReport {
    let mut findings = vec![
        kernel_version(root),
        io_uring(root, facts),
        landlock(root, facts),
        seccomp(root),
        kvm(root, facts),
        socket_rights(root, facts, config),
        descriptor_limit(facts, config),
        memlock_limit(facts, config),
    ];
    findings.extend(socket_owners(facts, config));
    findings.extend(cache_room(root, config));
    findings.extend(image_findings(root, facts, config));
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    DoctorReport {
        level: findings.iter().map(|f| f.level).max().unwrap_or(Level::Ok),
        problems: count(Level::Problem),
        warnings: count(Level::Warning),
        user: facts.user.clone(),
        findings,
    }
}

// Facts about this host and this process, from system calls.

/// CAP_IPC_LOCK's bit in the capabilities of a process.
const IPC_LOCK: u64 = 1 << 14;
/// A daemon that does not answer within this time is as good as none.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Facts from system calls. Tests make their own.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The effective user of this process, by name and number.
    pub user: String,
    /// A ring like that of the daemon can be made, or the kernel's error with its number; and
    /// the operations of the ring that the kernel lacks.
    pub ring: Result<Vec<&'static str>, (i32, String)>,
    /// Most open files that this process may have.
    pub descriptors: u64,
    /// Bytes that this process may lock in memory; `None` for any number.
    pub memlock_bytes: Option<u64>,
    /// The kernel's version of landlock.
    pub landlock_abi: Option<u32>,
    /// Where sockets are by default, or why nowhere.
    pub folder: Result<PathBuf, String>,
    /// Images that a running daemon with the same control socket serves.
    pub served: BTreeSet<PathBuf>,
    /// A daemon answers at that control socket.
    pub daemon_runs: bool,
    /// Users and groups of the configuration that do not exist, in words.
    pub unknown_owners: Vec<String>,
}

impl Facts {
    /// Ask this host. `config` says which control socket to ask, and which users have to exist.
    pub fn ask(config: &Config) -> Facts {
        let folder = crate::config::default_folder();
        let control = config.control_path().or_else(|| {
            folder.as_ref().ok().map(|folder| folder.join(crate::config::CONTROL_NAME))
        });
        let status = control.as_deref().and_then(status);
        Facts {
            user: user(geteuid().as_raw()),
            ring: ring::try_out()
                .map_err(|e| (e.raw_os_error().unwrap_or_default(), e.to_string())),
            descriptors: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
            memlock_bytes: getrlimit(Resource::Memlock).maximum.filter(|_| !may_lock()),
            landlock_abi: sandbox::abi(),
            folder,
            daemon_runs: status.is_some(),
            served: status.map(served).unwrap_or_default(),
            unknown_owners: unknown_owners(config),
        }
    }
}

/// Status of a daemon, if one answers.
fn status(control: &Path) -> Option<HostReport> {
    let mut client = Client::connect_within(control, ANSWER_TIME).ok()?;
    serde_json::from_value(client.ask(&Request::Status {}).ok()?).ok()
}

fn served(status: HostReport) -> BTreeSet<PathBuf> {
    let disks = status.devices.into_iter().flat_map(|device| device.disks);
    disks.filter_map(|disk| std::fs::canonicalize(disk.path).ok()).collect()
}

fn unknown_owners(config: &Config) -> Vec<String> {
    let disks = config.disks.iter().map(|disk| &disk.sockets);
    let all = [&config.sockets].into_iter().chain(disks);
    let found: BTreeSet<String> = all.filter_map(|s| SocketConfig::check_names(s).err()).collect();
    found.into_iter().collect()
}

/// May this process lock any amount of memory?
fn may_lock() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set & IPC_LOCK != 0)
}

/// `root (0)`, or the number alone for a user without a name.
fn user(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_string())
    });
    name.map_or(uid.to_string(), |name| format!("{name} ({uid})"))
}

// Checks of the kernel: does it have what the daemon needs?

/// The oldest Linux that the rings of the daemon work on.
const OLDEST: (u32, u32) = (5, 19);
/// The version of landlock that restricts all that the daemon wants restricted.
const LANDLOCK_FULL: u32 = 6;

fn kernel_version(root: &Root) -> Finding {
    const CHECK: &str = "kernel";
    let release = root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let (oldest_major, oldest_minor) = OLDEST;
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => {
            Finding::ok(CHECK, format!("Linux {release}"))
        }
        (Some(_), Some(_)) => Finding::problem(
            CHECK,
            format!("Linux {release}; needed: {oldest_major}.{oldest_minor} or later"),
            "install a newer kernel and restart the host, on Debian 11: apt-get install -t \
             bullseye-backports linux-image-amd64",
        ),
        _ => Finding::warning(
            CHECK,
            format!("/proc/sys/kernel/osrelease says '{release}'"),
            format!("check that `uname -r` is {oldest_major}.{oldest_minor} or later"),
        ),
    }
}

fn io_uring(root: &Root, facts: &Facts) -> Finding {
    const CHECK: &str = "io_uring";
    let disabled: u32 = root.number("/proc/sys/kernel/io_uring_disabled").unwrap_or(0);
    let (errno, error) = match &facts.ring {
        Ok(missing) if missing.is_empty() => {
            return Finding::ok(CHECK, "a ring works, with all operations");
        }
        Ok(missing) => {
            return Finding::problem(
                CHECK,
                format!("this kernel lacks the operations {}", missing.join(", ")),
                "install a newer kernel and restart the host",
            );
        }
        Err((errno, error)) => (*errno, error),
    };
    let found = format!("no ring: {error}; kernel.io_uring_disabled = {disabled}");
    let fix = match (disabled, errno) {
        (2, _) => {
            "sysctl -w kernel.io_uring_disabled=0   (for good: a file in /etc/sysctl.d)".into()
        }
        (1, _) => {
            let group = root.number::<i64>("/proc/sys/kernel/io_uring_group");
            match group.filter(|group| *group >= 0) {
                Some(group) => format!(
                    "add the daemon's user to group {group} (usermod -aG), or sysctl -w \
                     kernel.io_uring_disabled=0"
                ),
                None => "sysctl -w kernel.io_uring_disabled=0".into(),
            }
        }
        (_, libc::ENOMEM) => "raise LimitMEMLOCK= in the daemon's unit (ulimit -l), or give the \
                              host more memory"
            .into(),
        (_, libc::EMFILE | libc::ENFILE) => "raise LimitNOFILE= in the daemon's unit".into(),
        (_, libc::ENOSYS) => "use a kernel with CONFIG_IO_URING=y".into(),
        _ => "a filter of system calls refuses it: in a container allow io_uring_setup, \
              io_uring_enter and io_uring_register (docker run --security-opt \
              seccomp=PROFILE.json); in a unit SystemCallFilter="
            .to_string(),
    };
    Finding::problem(CHECK, found, fix)
}

fn landlock(root: &Root, facts: &Facts) -> Finding {
    const CHECK: &str = "landlock";
    match facts.landlock_abi {
        Some(abi) if abi >= LANDLOCK_FULL => Finding::ok(CHECK, format!("ABI {abi}")),
        Some(abi) => Finding::warning(
            CHECK,
            format!("ABI {abi}: the sandbox of the daemon is weaker (serving works)"),
            format!("a kernel with landlock ABI {LANDLOCK_FULL} (Linux 6.12) or later"),
        ),
        None => {
            let modules = root.text("/sys/kernel/security/lsm");
            let modules = modules.map_or(String::new(), |lsm| format!(" (now: {lsm})"));
            Finding::warning(
                CHECK,
                "none: the daemon's access to files is not confined (serving works)",
                format!("add landlock to lsm= on the kernel's command line{modules}"),
            )
        }
    }
}

fn seccomp(root: &Root) -> Finding {
    const CHECK: &str = "seccomp";
    let actions = root.text("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    match actions.split(' ').any(|action| action == "errno") {
        true => Finding::ok(CHECK, "filters work"),
        false => Finding::warning(
            CHECK,
            "none: the daemon's system calls are not confined (serving works)",
            "use a kernel with CONFIG_SECCOMP_FILTER=y",
        ),
    }
}

// Checks of limits: are descriptors and memory enough?

/// Descriptors of the daemon itself: rings, control, metrics, journals.
const OWN: u64 = 64;
/// Descriptors of a disk with a guest that has eight queues: image, listeners, connection, memory
/// regions, and three for each queue; some more for NBD clients.
const EACH_DISK: u64 = 64;
/// Limit that a host for many guests should allow. The unit allows 65,536.
const MANY: u64 = 4096;

fn descriptor_limit(facts: &Facts, config: &Config) -> Finding {
    const CHECK: &str = "descriptors";
    let (limit, disks) = (facts.descriptors, config.disks.len() as u64);
    let needed = OWN + EACH_DISK * disks.max(1);
    let fix = |needed: u64| {
        format!(
            "LimitNOFILE={} in the daemon's unit; in a shell: ulimit -Hn {0}",
            needed.max(65536)
        )
    };
    if limit == u64::MAX {
        return Finding::ok(CHECK, "no limit");
    }
    if limit < needed {
        let found = format!("{limit} open files at most; {disks} disks need about {needed}");
        return Finding::problem(CHECK, found, fix(needed));
    }
    if limit < MANY.max(needed) {
        let guests = (limit - OWN) / EACH_DISK;
        let found = format!("{limit} open files at most: enough for about {guests} guests' disks");
        return Finding::warning(CHECK, found, fix(needed));
    }
    Finding::ok(CHECK, format!("{limit} open files at most"))
}

/// Rings of Linux 5.12 and later need no locked memory; `--cache-lock` does.
fn memlock_limit(facts: &Facts, config: &Config) -> Finding {
    const CHECK: &str = "memlock";
    let Some(limit) = facts.memlock_bytes else {
        return Finding::ok(CHECK, "no limit");
    };
    let fix = "LimitMEMLOCK=infinity in the daemon's unit; in a shell: ulimit -l unlimited";
    let needed = match config.cache_size() {
        _ if !config.cache_lock => {
            return Finding::ok(CHECK, format!("{limit} bytes; only --cache-lock needs more"));
        }
        CacheSize::Bytes(bytes) => bytes,
        CacheSize::Auto => {
            let found = format!("{limit} bytes; --cache-lock with --cache auto needs more");
            return Finding::warning(CHECK, found, fix);
        }
        CacheSize::Off => 0,
    };
    if limit < needed {
        let found = format!("{limit} bytes; --cache-lock needs {needed} for each device");
        return Finding::problem(CHECK, found, fix);
    }
    Finding::ok(CHECK, format!("{limit} bytes"))
}

/// Can `--cache auto` follow the memory?
fn cache_room(root: &Root, config: &Config) -> Vec<Finding> {
    const CHECK: &str = "memory";
    if config.cache_size() != CacheSize::Auto {
        return Vec::new();
    }
    let source = MemorySource::at(&root.path("/proc"), &root.path("/sys/fs/cgroup"));
    let memory = match source.reading(0) {
        Some(reading) => {
            let mebibytes = |bytes: u64| bytes >> 20;
            Finding::ok(
                CHECK,
                format!(
                    "{} of {} MiB available to this process (with its control groups)",
                    mebibytes(reading.available),
                    mebibytes(reading.total)
                ),
            )
        }
        None => Finding::problem(
            CHECK,
            "/proc/meminfo does not say how much memory is available",
            "give the cache a size: --cache 512MiB",
        ),
    };
    let pressure = match root.text("/proc/pressure/memory") {
        Some(_) => Finding::ok("pressure", "the kernel tells of memory pressure"),
        None => Finding::warning(
            "pressure",
            "no /proc/pressure/memory: --cache auto looks at the memory several times a second",
            "psi=1 on the kernel's command line (CONFIG_PSI), or give the cache a size: --cache \
             512MiB",
        ),
    };
    vec![memory, pressure]
}

// Checks of rights: may the daemon, and the VMs, use what they need?

/// Ends the name of the longer socket of a disk.
const LONGEST_SUFFIX: &str = ".vhost";
/// Permission of users who are neither owner nor in the group to pass through a folder.
const PASS_OTHERS: u32 = 0o001;

/// Without KVM, QEMU emulates the guests' processors. The daemon does not care.
fn kvm(root: &Root, facts: &Facts) -> Finding {
    const CHECK: &str = "KVM";
    let opened = File::options().read(true).write(true).open(root.path("/dev/kvm"));
    let error = match opened {
        Ok(_) => return Finding::ok(CHECK, "/dev/kvm can be opened"),
        Err(e) => e,
    };
    let slow = "guests run emulated and slow";
    if error.kind() != io::ErrorKind::NotFound {
        let user = facts.user.split(' ').next().unwrap_or_default();
        let fix = format!("usermod -aG kvm {user}, and log in again (QEMU's user needs it too)");
        return Finding::warning(CHECK, format!("/dev/kvm: {error}: {slow}"), fix);
    }
    let cpus = root.text("/proc/cpuinfo").unwrap_or_default();
    let flags = cpus.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
    let fix = match (has("vmx"), has("svm")) {
        (true, _) => "modprobe kvm_intel",
        (_, true) => "modprobe kvm_amd",
        _ => {
            "turn virtualisation on in the firmware; in a VM, nested virtualisation on its host \
             (QEMU: -cpu host)"
        }
    };
    Finding::warning(CHECK, format!("no /dev/kvm: {slow}"), fix)
}

/// Can the daemon make its sockets, and can others reach them?
fn socket_rights(root: &Root, facts: &Facts, config: &Config) -> Finding {
    const CHECK: &str = "sockets";
    let folder = match (&config.listen, &facts.folder) {
        (Some(folder), _) | (None, Ok(folder)) => folder.clone(),
        (None, Err(_)) if config.nbd.is_some() => {
            return Finding::ok(CHECK, "none: the disks are reached by NBD over TCP");
        }
        (None, Err(why)) => {
            let fix = "seekway serve --listen DIR, or log in so that XDG_RUNTIME_DIR is set";
            return Finding::problem(CHECK, why.clone(), fix);
        }
    };
    let shown = folder.display();
    let longest = config.disks.iter().map(|disk| disk.name.len() + LONGEST_SUFFIX.len());
    let longest = longest.chain([CONTROL_NAME.len()]).max().unwrap_or_default();
    let bytes = folder.as_os_str().len() + 1 + longest;
    if bytes > PATH_BYTES_MAX {
        return Finding::problem(
            CHECK,
            format!("{shown}: paths of {bytes} bytes; a socket's has at most {PATH_BYTES_MAX}"),
            "use a folder with a shorter path: --listen DIR",
        );
    }
    if facts.daemon_runs {
        return Finding::ok(CHECK, format!("{shown}: a daemon serves there now"));
    }
    let at = root.path(&folder);
    match fs::metadata(&at) {
        Ok(about) if !about.is_dir() => Finding::problem(
            CHECK,
            format!("{shown} is not a folder"),
            format!("rm {shown}, or choose another one: --listen DIR"),
        ),
        Ok(about) => existing(&at, about.permissions().mode(), facts, config),
        Err(_) => missing(root, &folder, facts),
    }
    .in_folder(&folder)
}

impl Finding {
    /// Says the folder where `{}` stands.
    fn in_folder(self, folder: &Path) -> Finding {
        let fill = |text: String| text.replace("{}", &folder.display().to_string());
        Finding { found: fill(self.found), fix: self.fix.map(fill), ..self }
    }
}

/// A folder that is there.
fn existing(at: &Path, mode: u32, facts: &Facts, config: &Config) -> Finding {
    const CHECK: &str = "sockets";
    if !images::may(at, Access::WRITE_OK | Access::EXEC_OK) {
        let user = facts.user.split(' ').next().unwrap_or_default();
        let found = format!("{{}}: user {} may not make files there", facts.user);
        return Finding::problem(CHECK, found, format!("chown {user} {{}}, or --listen DIR"));
    }
    let others = [&config.sockets].into_iter().chain(config.disks.iter().map(|d| &d.sockets));
    let for_others = others.into_iter().any(|s| s.owner.is_some() || s.group.is_some());
    if for_others && mode & PASS_OTHERS == 0 {
        let found = format!(
            "{{}} has mode {:o}: other users, such as QEMU's, cannot reach the sockets in it",
            mode & 0o777
        );
        return Finding::warning(CHECK, found, "chmod 711 {}");
    }
    Finding::ok(CHECK, "{} can be written")
}

/// A folder that the daemon will make.
fn missing(root: &Root, folder: &Path, facts: &Facts) -> Finding {
    const CHECK: &str = "sockets";
    let above = folder.ancestors().skip(1).find(|above| root.path(above).exists());
    let above = above.unwrap_or(Path::new("/"));
    let at = root.path(above);
    if at.is_dir() && images::may(&at, Access::WRITE_OK | Access::EXEC_OK) {
        return Finding::ok(CHECK, "{} will be made");
    }
    let user = facts.user.split(' ').next().unwrap_or_default();
    Finding::problem(
        CHECK,
        format!("{{}} cannot be made: user {} may not write {}", facts.user, above.display()),
        format!("install -d -m 711 -o {user} {{}}   (as root), or --listen DIR"),
    )
}

/// Do the users and groups of the sockets exist?
fn socket_owners(facts: &Facts, config: &Config) -> Vec<Finding> {
    const CHECK: &str = "socket owners";
    let unknown = facts.unknown_owners.iter();
    let mut found: Vec<Finding> = unknown
        .map(|what| {
            Finding::problem(
                CHECK,
                what.clone(),
                "create it (groupadd --system NAME, useradd --system NAME), or correct \
                 socket_owner or socket_group",
            )
        })
        .collect();
    let disks = config.disks.iter().map(|disk| &disk.sockets);
    let has_owner =
        [&config.sockets].into_iter().chain(disks).any(|s| s.owner.is_some() || s.group.is_some());
    if found.is_empty() && has_owner {
        found.push(Finding::ok(CHECK, "they exist"));
    }
    found
}

// Checks of images, and of the disks below them.

/// Devices on top of each other (partitions, LVM, RAID, loop) that are followed.
const LAYERS_MAX: usize = 16;
/// Disks that are looked at.
const DISKS_MAX: usize = 256;

/// Each disk of the configuration, and each disk that they lie on. Without a configuration, the
/// disks of the host.
fn image_findings(root: &Root, facts: &Facts, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut below = BTreeSet::new();
    let mut are_seen = false;
    for disk in &config.disks {
        let (found, device) = image(facts, disk);
        findings.extend(found.into_iter().map(|finding| finding.about(&disk.name)));
        if let Some(device) = device {
            follow(root, device, LAYERS_MAX, &mut below);
            are_seen = true;
        }
    }
    if config.disks.is_empty() {
        below.extend(physical(root));
    }
    if are_seen && below.is_empty() {
        findings.push(Finding::ok(
            "scheduler",
            "the images' file systems name no disk (tmpfs, network, btrfs, a container)",
        ));
    }
    findings.extend(below.iter().take(DISKS_MAX).flat_map(|folder| disk(folder)));
    findings
}

/// An image, and the number of the device that it is or lies on.
fn image(facts: &Facts, disk: &DiskConfig) -> (Vec<Finding>, Option<u64>) {
    let path = &disk.path;
    let is_served = fs::canonicalize(path).is_ok_and(|path| facts.served.contains(&path));
    let options = OpenOptions { incoming: disk.incoming || is_served, ..disk.open_options() };
    let shown = path.display();
    let look = match images::look(path, &options) {
        Ok(look) => look,
        Err(e) => {
            let problem = Finding::problem("image", e.to_string(), fix(&e));
            return (vec![problem], None);
        }
    };
    let mut findings = vec![Finding::ok(
        "image",
        match is_served {
            true => format!("{shown}: served by the daemon that runs now"),
            false => format!("{shown}: {} bytes, not in use", look.size_bytes),
        },
    )];
    let warned = look.warnings.iter().map(|warning| {
        let fix = "use a raw image on ext4, XFS or a block device, or say that it is meant: the \
                   disk's option buffered";
        Finding::warning("direct I/O", warning.clone(), fix)
    });
    findings.extend(warned);
    if look.is_direct && look.warnings.is_empty() {
        findings.push(Finding::ok("direct I/O", "O_DIRECT works"));
    }
    if look.is_in_memory {
        findings.push(Finding::warning(
            "direct I/O",
            format!("{shown} is in memory (tmpfs): its data is lost when the host restarts"),
            "put the image on a disk, unless this is a test",
        ));
    }
    // The operator may say on which device the data lie (option `on`).
    let device =
        disk.on.as_deref().and_then(|on| images::device_of(on).ok()).unwrap_or(look.device);
    (findings, Some(device))
}

/// Advice about an image that cannot be opened.
fn fix(error: &ImageError) -> String {
    match error {
        ImageError::Missing { path } => format!("qemu-img create -f raw {path} 10G"),
        ImageError::Kind { .. } => "give the path of a raw image or a block device".into(),
        ImageError::Denied { path, right, .. } => {
            let mode = if *right == "read" { "r" } else { "rw" };
            format!(
                "setfacl -m u:USER:{mode} {path}   (USER runs the daemon), or chown USER {path}"
            )
        }
        ImageError::Locked { path, .. } => {
            format!("end the program that has it open: fuser -v {path}; lslocks")
        }
        ImageError::Busy { path } => format!("lsblk {path}; umount it, or give another device"),
        ImageError::Size { hint, .. } => hint.clone(),
        ImageError::WriteProtected { path } => {
            format!("serve it read-only (option ro), or: blockdev --setrw {path}")
        }
        ImageError::Format { but, .. } => format!("convert or unpack it; {but}"),
        ImageError::LostWrites { .. } => {
            "check the image (fsck, a backup), then serve it once with accept-lost-writes".into()
        }
        ImageError::Shrunk { .. } => "see docs/operate.md, resize".into(), // of a disk that is served
        ImageError::Io { path, .. } => format!("see `dmesg` and `stat {path}`"),
    }
}

/// The disks at the bottom of a device: of a partition its disk, of LVM and RAID their members,
/// of a loop device what its file lies on.
fn follow(root: &Root, device: u64, layers: usize, found: &mut BTreeSet<PathBuf>) {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let Ok(folder) = fs::canonicalize(root.path(format!("/sys/dev/block/{major}:{minor}"))) else {
        return;
    };
    follow_folder(root, folder, layers, found);
}

fn follow_folder(root: &Root, mut folder: PathBuf, layers: usize, found: &mut BTreeSet<PathBuf>) {
    if layers == 0 {
        return;
    }
    if folder.join("partition").exists() {
        folder.pop();
    }
    if let Some(file) = text(&folder.join("loop/backing_file"))
        && let Ok(about) = fs::metadata(file)
    {
        return follow(root, about.dev(), layers - 1, found);
    }
    let members = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
    let members: Vec<PathBuf> =
        members.filter_map(|member| fs::canonicalize(member.path()).ok()).collect();
    if members.is_empty() {
        found.insert(folder);
    }
    members.into_iter().for_each(|member| follow_folder(root, member, layers - 1, found));
}

/// The host's disks with hardware behind them.
fn physical(root: &Root) -> Vec<PathBuf> {
    let all = fs::read_dir(root.path("/sys/block")).into_iter().flatten().flatten();
    let folders = all.filter_map(|disk| fs::canonicalize(disk.path()).ok());
    folders.filter(|folder| folder.join("device").exists()).collect()
}

/// The scheduler of a disk, and what else the kernel says of it.
fn disk(folder: &Path) -> Vec<Finding> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let value = |file: &str| text(&folder.join("queue").join(file));
    let mut findings = vec![scheduler(&name, value("scheduler").as_deref())];
    let kind = match value("rotational").as_deref() {
        Some("1") if images::is_virtual(folder) => {
            "says that it rotates, as virtual disks do; seekway does not believe it"
        }
        Some("1") => "rotates: one command at a time, unless --depth says more",
        _ => "does not rotate",
    };
    let cache = match value("write_cache").as_deref() {
        Some("write back") => "; its write cache is on: guests' flushes reach it",
        Some("write through") => "; it has no volatile write cache",
        _ => "",
    };
    let is_read_only = text(&folder.join("ro")).as_deref() == Some("1");
    findings.push(match is_read_only {
        true => Finding::warning(
            "disk below",
            format!("{kind}{cache}; the kernel has it read-only"),
            format!("blockdev --setrw /dev/{name}, after `dmesg` says why"),
        ),
        false => Finding::ok("disk below", format!("{kind}{cache}")),
    });
    findings.into_iter().map(|finding| finding.about(&name)).collect()
}

/// A scheduler of the host's under ours would change the order that the policy decided.
fn scheduler(name: &str, text: Option<&str>) -> Finding {
    const CHECK: &str = "scheduler";
    let Some(text) = text else {
        return Finding::ok(CHECK, "none (the disk has no queue of requests)");
    };
    let chosen = text.split_whitespace().find(|word| word.starts_with('['));
    let chosen = chosen.unwrap_or(text).trim_matches(['[', ']']);
    if chosen == "none" {
        return Finding::ok(CHECK, "none");
    }
    Finding::new(
        CHECK,
        Level::Warning,
        format!("{chosen} orders requests again below seekway's policy"),
        Some(format!(
            "echo none > /sys/block/{name}/queue/scheduler; for good, a line in \
             /etc/udev/rules.d/60-seekway.rules: ACTION==\"add|change\", KERNEL==\"{name}\", \
             ATTR{{queue/scheduler}}=\"none\""
        )),
    )
}

#[cfg(test)]
mod tests;
