//! Capabilities, and that no program gives new rights.

use super::kind::Kind;
use std::io;

/// Capabilities by number (linux/capability.h).
const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const FOWNER: u32 = 3;
const IPC_LOCK: u32 = 14;
/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits, in two halves.
const VERSION: u32 = 0x2008_0522;

/// What a kind of thread keeps, if it has it.
const fn kept(kind: Kind) -> u64 {
    match kind {
        // Owners of sockets, images of other users, and what reactors keep.
        Kind::Control => 1 << CHOWN | 1 << DAC_OVERRIDE | 1 << FOWNER | 1 << IPC_LOCK,
        // --cache-lock past the limit.
        Kind::Reactor => 1 << IPC_LOCK,
        // A ring's memory counts as locked, against what all of a user's programs may lock together:
        // 1,024 rings with the usual 8 MiB (Linux 6.18).
        Kind::Rings => 1 << IPC_LOCK,
        Kind::FrontEnd | Kind::Helper => 0,
    }
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// Half of each set.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drop all capabilities of this thread that its kind does not keep; what is left.
///
/// # Errors
/// What the kernel refuses.
pub fn drop_capabilities(kind: Kind) -> io::Result<u64> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: the kernel fills both halves; header and sets live through the call.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    let (before, wanted) = (sets, kept(kind));
    for (set, wanted) in sets.iter_mut().zip([wanted as u32, (wanted >> 32) as u32]) {
        let left = set.permitted & wanted;
        *set = Sets { effective: left, permitted: left, inheritable: 0 };
    }
    // A service manager that left none may not allow the call either.
    if sets != before {
        // SAFETY: as above; the kernel only reads.
        check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) })?;
    }
    Ok(u64::from(sets[0].permitted) | u64::from(sets[1].permitted) << 32)
}

/// From now on, no program that this thread could start has more rights than it.
///
/// # Errors
/// What the kernel refuses.
pub fn no_new_privs() -> io::Result<()> {
    // SAFETY: a plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())
}

/// From now on this thread, and those that it starts, make sockets in an empty network namespace: a
/// new socket reaches nothing but the paths of unix sockets. Open sockets stay where they are. Only
/// root can.
///
/// # Errors
/// What the kernel refuses.
pub fn leave_network() -> io::Result<()> {
    // SAFETY: a plain system call.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into())
}

/// The names of capabilities.
pub fn names(capabilities: u64) -> Vec<String> {
    let name = |number: u32| match number {
        CHOWN => "CAP_CHOWN".into(),
        DAC_OVERRIDE => "CAP_DAC_OVERRIDE".into(),
        FOWNER => "CAP_FOWNER".into(),
        IPC_LOCK => "CAP_IPC_LOCK".into(),
        _ => format!("capability {number}"),
    };
    (0..64).filter(|number| capabilities >> number & 1 == 1).map(name).collect()
}

fn check(done: libc::c_long) -> io::Result<()> {
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
