//! Files, TCP ports, abstract sockets and signals that a thread may reach (landlock).
//!
//! A rule belongs to the file or folder that is there when a thread is restricted: a path that is
//! replaced later leads nowhere else. As long as the thread lives it keeps that from being freed, but
//! not its file system from being unmounted. What is open already is not restricted.

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::path::{Path, PathBuf};

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
/// What the kernel refuses.
pub fn restrict(places: &Places, abstract_sockets: bool) -> Result<Restriction, String> {
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
