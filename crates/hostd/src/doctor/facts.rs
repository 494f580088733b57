//! Facts that system calls tell about this host and this process.

use crate::config::{Config, SocketConfig};
use crate::control::{Client, HostReport, Request};
use crate::reactor::ring;
use crate::sandbox;
use rustix::process::{Resource, geteuid, getrlimit};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// May this process, by its effective user, use a path so?
pub(super) fn may(path: &Path, mode: libc::c_int) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path ends with a NUL and lives through the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, libc::AT_EACCESS) == 0 }
}
