//! Confinement: what is left to whoever takes over a thread of the daemon.
//!
//! Each thread confines itself when it begins, by its kind ([`enter`]); the main thread when all
//! that the configuration names is open ([`enter_with`]). Each measure only takes rights away, and
//! threads inherit those of the thread that starts them.
//!
//! Measures: capabilities, no_new_privs, files and ports that may be reached (landlock), system calls
//! (seccomp, in [`calls`]), and core dumps without guests' data.
//!
//! A kernel that lacks a measure does without it: [`status`] says which. Where reading and writing
//! are the whole work of a thread, as in a reactor, there is no path and no socket that it can open.

mod calls;

use crate::threads::lock;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::thread::{self, CapabilitySet, CapabilitySets, UnshareFlags};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Nothing is confined: `--sandbox off`.
static OFF: AtomicBool = AtomicBool::new(false);
static TAKEN: Mutex<Taken> = Mutex::new(Taken { threads: BTreeMap::new(), rings: None });

/// Measures taken until now.
struct Taken {
    threads: BTreeMap<Kind, Measures>,
    /// Result for the last ring that was made.
    rings: Option<Result<(), String>>,
}

/// Confinement of the threads of a kind; of several threads the last one's, or one's that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measures {
    pub no_new_privs: Result<(), String>,
    /// Names of the capabilities that are left.
    pub capabilities: Result<Vec<String>, String>,
    pub landlock: Result<Restriction, String>,
    pub seccomp: Result<(), String>,
}

/// Confinement of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    pub is_on: bool,
    /// The kernel's version of landlock; `None` when it has none.
    pub landlock_abi: Option<u32>,
    /// Measures by kind, of the kinds of which there were threads.
    pub threads: BTreeMap<Kind, Measures>,
    /// Do the rings take only what reactors need? `None` as long as there is no ring.
    pub rings: Option<Result<(), String>>,
}

impl Status {
    /// Problems, a sentence each.
    pub fn problems(&self) -> Vec<String> {
        if !self.is_on {
            return vec![
                "off (--sandbox off): whoever takes over the daemon has all its rights".into(),
            ];
        }
        let mut problems = Vec::new();
        let is_partial = self.threads.values().any(|m| m.landlock == Ok(Restriction::Partial));
        match self.landlock_abi {
            None => problems.push(
                "landlock: this kernel has none (CONFIG_SECURITY_LANDLOCK, and landlock among \
                 lsm=): files and TCP ports are not restricted"
                    .into(),
            ),
            Some(abi) if is_partial => problems.push(format!(
                "landlock: this kernel has ABI {abi}, which lacks some restrictions (truncation \
                 comes with 3, TCP ports with 4, devices with 5, abstract sockets and signals \
                 with 6)"
            )),
            Some(_) => {}
        }
        for (kind, measures) in &self.threads {
            let Measures { no_new_privs, capabilities, landlock, seccomp } = measures;
            for (measure, error) in [
                ("no_new_privs", no_new_privs.as_ref().err()),
                ("capabilities", capabilities.as_ref().err()),
                ("landlock", landlock.as_ref().err()),
                ("seccomp", seccomp.as_ref().err()),
            ] {
                problems
                    .extend(error.map(|e| format!("{measure} of {} threads: {e}", kind.name())));
            }
        }
        if let Some(Err(e)) = &self.rings {
            problems.push(format!("restrictions of io_uring: {e}"));
        }
        problems
    }
}

/// From now on no thread is confined: for debugging.
pub fn switch_off() {
    OFF.store(true, Ordering::SeqCst);
}

pub fn is_on() -> bool {
    !OFF.load(Ordering::SeqCst)
}

/// Confine this thread, which opens no files.
pub fn enter(kind: Kind) {
    enter_with(kind, &Places::default());
}

/// Confine this thread, which opens files in these places only.
pub fn enter_with(kind: Kind, places: &Places) {
    if !is_on() {
        return;
    }
    let text = |e: io::Error| e.to_string();
    let measures = Measures {
        no_new_privs: no_new_privs().map_err(text),
        capabilities: drop_capabilities(kind).map(capability_names).map_err(text),
        landlock: restrict(places, kind == Kind::Control && is_notified_abstractly()),
        // Last: it forbids the calls that the others need.
        seccomp: calls::restrict(kind).map_err(text),
    };
    let mut taken = taken();
    match taken.threads.get(&kind) {
        Some(before) if before.has_failed() => {}
        _ => _ = taken.threads.insert(kind, measures),
    }
}

/// Leave the host's network, where this thread may: rings of io_uring, which no filter sees, then
/// make no socket that reaches anybody. All listeners are open by now.
pub fn leave_network() {
    // The service manager's abstract socket is in that network. Who may not is refused.
    if is_on() && !is_notified_abstractly() {
        let _ = unshare_network();
    }
}

impl Measures {
    fn has_failed(&self) -> bool {
        let Measures { no_new_privs, capabilities, landlock, seccomp } = self;
        no_new_privs.is_err() || capabilities.is_err() || landlock.is_err() || seccomp.is_err()
    }
}

/// Does the service manager listen at an abstract socket (sd_notify(3))?
fn is_notified_abstractly() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|at| at.as_encoded_bytes().starts_with(b"@"))
}

/// A ring was made, with restrictions or without.
pub fn note_ring(restricted: Result<(), String>) {
    taken().rings = Some(restricted);
}

/// Confinement of the daemon.
pub fn status() -> Status {
    let taken = taken();
    let (threads, rings) = (taken.threads.clone(), taken.rings.clone());
    Status { is_on: is_on(), landlock_abi: abi(), threads, rings }
}

fn taken() -> MutexGuard<'static, Taken> {
    lock(&TAKEN)
}

// The kinds of threads that are confined differently.

/// Purpose of a thread of the daemon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// The main thread and those that carry out commands of the control socket: they open images,
    /// make sockets and start all other threads.
    Control,
    /// The data path of a device: all that guests and clients send ends up here.
    Reactor,
    /// One connection: the messages of a VMM, NBD's negotiation, TLS, HTTP.
    FrontEnd,
    /// Threads that only wait for something slow: journals, messages, block status, memory.
    Helper,
    /// The thread that makes the rings that call guests, for threads that may make none.
    Rings,
}

impl Kind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Kind; 5] =
        [Kind::Control, Kind::Reactor, Kind::FrontEnd, Kind::Helper, Kind::Rings];

    /// Its name in `ctl status`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Control => "control",
            Kind::Reactor => "reactor",
            Kind::FrontEnd => "front_end",
            Kind::Helper => "helper",
            Kind::Rings => "rings",
        }
    }
}

// Capabilities, and that no program gives new rights.

/// Capabilities that a kind of thread keeps, if it has them.
fn kept_capabilities(kind: Kind) -> CapabilitySet {
    match kind {
        // Owners of sockets, images of other users, and what reactors keep.
        Kind::Control => {
            let owners = CapabilitySet::CHOWN | CapabilitySet::FOWNER;
            owners | CapabilitySet::DAC_OVERRIDE | CapabilitySet::IPC_LOCK
        }
        // --cache-lock past the limit.
        Kind::Reactor => CapabilitySet::IPC_LOCK,
        // A ring's memory counts as locked, against what all of a user's programs may lock together:
        // 1,024 rings with the usual 8 MiB (Linux 6.18).
        Kind::Rings => CapabilitySet::IPC_LOCK,
        Kind::FrontEnd | Kind::Helper => CapabilitySet::empty(),
    }
}

/// Drop all capabilities of this thread that its kind does not keep; what is left.
///
/// # Errors
/// The kernel's error.
fn drop_capabilities(kind: Kind) -> io::Result<u64> {
    let before = thread::capabilities(None)?;
    let left = before.permitted & kept_capabilities(kind);
    let inheritable = CapabilitySet::empty();
    let sets = CapabilitySets { effective: left, permitted: left, inheritable };
    // A service manager that left none may not allow the call either.
    if sets != before {
        thread::set_capabilities(None, sets)?;
    }
    Ok(left.bits())
}

/// From now on, no program that this thread could start has more rights than it.
///
/// # Errors
/// The kernel's error.
fn no_new_privs() -> io::Result<()> {
    Ok(thread::set_no_new_privs(true)?)
}

/// From now on this thread, and those that it starts, make sockets in an empty network namespace: a
/// new socket reaches nothing but the paths of unix sockets. Open sockets stay where they are. Only
/// root can.
///
/// # Errors
/// The kernel's error.
fn unshare_network() -> io::Result<()> {
    // SAFETY: descriptors stay those of all threads.
    Ok(unsafe { thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// The names of capabilities.
fn capability_names(capabilities: u64) -> Vec<String> {
    let name = |number: u32| match CapabilitySet::from_bits_retain(1 << number) {
        CapabilitySet::CHOWN => "CAP_CHOWN".into(),
        CapabilitySet::DAC_OVERRIDE => "CAP_DAC_OVERRIDE".into(),
        CapabilitySet::FOWNER => "CAP_FOWNER".into(),
        CapabilitySet::IPC_LOCK => "CAP_IPC_LOCK".into(),
        _ => format!("capability {number}"),
    };
    (0..64).filter(|number| capabilities >> number & 1 == 1).map(name).collect()
}

// Core dumps without guests' data.

static FAILED: AtomicBool = AtomicBool::new(false);

/// Leave memory out of core dumps: it holds guests' data.
pub fn leave_out(start: *mut u8, bytes: usize) {
    // SAFETY: advice; memory that is not mapped is an error and no more.
    if unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTDUMP) } != 0 {
        FAILED.store(true, Ordering::Relaxed);
    }
}

/// Is all of it left out?
pub fn dumps_are_clean() -> bool {
    !FAILED.load(Ordering::Relaxed)
}

/// Is the mapping at this address left out, as the kernel tells (`dd` among its flags)?
#[cfg(test)]
pub fn is_left_out(address: *const u8) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("/proc is mounted");
    let number = |text| usize::from_str_radix(text, 16).ok();
    let mut inside = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((first, last)) = range.and_then(|(a, b)| Some((number(a)?, number(b)?))) {
            inside = (first..last).contains(&(address as usize));
        } else if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
            return flags.split_whitespace().any(|flag| flag == "dd");
        }
    }
    panic!("nothing is mapped at {address:p}")
}

// Files, TCP ports, abstract sockets and signals that a thread may reach (landlock).
//
// A rule belongs to the file or folder that is there when a thread is restricted: a path that is
// replaced later leads nowhere else. As long as the thread lives it keeps that from being freed, but
// not its file system from being unmounted. What is open already is not restricted.

/// Restricted actions, as far as the kernel knows them. Later versions restrict the paths of unix
/// sockets, which the daemon needs for its service manager.
const RESTRICTED: ABI = ABI::V7;

/// Rights to a file, or below a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Open all that lie there as images.
    Images,
    /// Make sockets there, and remove them.
    Sockets,
    /// Remove a socket that was made there.
    Remove,
    /// Read files there, and list folders.
    Read,
    /// Write a file that is there.
    Write,
    /// Make files there, and write them.
    Journals,
}

impl Access {
    fn rights(self, is_folder: bool) -> BitFlags<AccessFs> {
        let (read, write) = (AccessFs::ReadFile, AccessFs::WriteFile);
        let image = read | write | AccessFs::Truncate | AccessFs::IoctlDev;
        let rights = match self {
            Access::Images => image,
            Access::Sockets => AccessFs::MakeSock | AccessFs::RemoveFile | AccessFs::ReadDir,
            Access::Remove => AccessFs::RemoveFile.into(),
            Access::Read => read | AccessFs::ReadDir,
            Access::Write => read | write,
            Access::Journals => AccessFs::MakeReg | AccessFs::MakeDir | write,
        };
        if is_folder { rights } else { rights & AccessFs::from_file(RESTRICTED) }
    }
}

/// Files and folders that may be used.
#[derive(Debug, Default)]
pub struct Places(Vec<(PathBuf, Access)>);

impl Places {
    /// Allow something. What is not there when a thread is restricted is left out.
    pub fn allow(&mut self, path: &Path, access: Access) {
        self.0.push((path.into(), access));
    }

    /// The places that exist, open, with their rights.
    fn open(&self) -> impl Iterator<Item = (PathFd, BitFlags<AccessFs>)> {
        self.0.iter().filter_map(|(path, access)| {
            let (fd, about) = (PathFd::new(path).ok()?, std::fs::metadata(path).ok()?);
            let rights = access.rights(about.is_dir());
            (!rights.is_empty()).then_some((fd, rights))
        })
    }
}

/// Degree of a thread's restriction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restriction {
    Full,
    /// This kernel does not know all of it.
    Partial,
    /// This kernel has no landlock.
    Absent,
}

/// Let this thread, and those that it starts, use these places only, and no TCP port.
/// `abstract_sockets`: it may connect to abstract unix sockets.
///
/// # Errors
/// The kernel's error.
fn restrict(places: &Places, abstract_sockets: bool) -> Result<Restriction, String> {
    if abi().is_none() {
        return Ok(Restriction::Absent);
    }
    let scope = match abstract_sockets {
        true => Scope::Signal.into(),
        false => Scope::from_all(RESTRICTED),
    };
    let restricted = || -> Result<_, RulesetError> {
        let ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(RESTRICTED))?
            .handle_access(AccessNet::from_all(RESTRICTED))?
            .scope(scope)?;
        let mut ruleset = ruleset.create()?;
        for (fd, rights) in places.open() {
            ruleset = ruleset.add_rule(PathBeneath::new(fd, rights))?;
        }
        ruleset.restrict_self()
    };
    let status = restricted().map_err(|e| e.to_string())?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Restriction::Full,
        RulesetStatus::PartiallyEnforced => Restriction::Partial,
        RulesetStatus::NotEnforced => Restriction::Absent,
    })
}

/// The version of landlock that this kernel has.
pub fn abi() -> Option<u32> {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag and no attributes the kernel only answers.
    let version = unsafe {
        let none = std::ptr::null::<libc::c_void>();
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, VERSION)
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

#[cfg(test)]
mod tests;
