//! Capabilities, and that no program gives new rights.

use super::kind::Kind;
use rustix::thread::{self, CapabilitySet, CapabilitySets, UnshareFlags};
use std::io;

/// Capabilities that a kind of thread keeps, if it has them.
fn kept(kind: Kind) -> CapabilitySet {
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
/// What the kernel refuses.
pub fn drop_capabilities(kind: Kind) -> io::Result<u64> {
    let before = thread::capabilities(None)?;
    let left = before.permitted & kept(kind);
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
/// What the kernel refuses.
pub fn no_new_privs() -> io::Result<()> {
    Ok(thread::set_no_new_privs(true)?)
}

/// From now on this thread, and those that it starts, make sockets in an empty network namespace: a
/// new socket reaches nothing but the paths of unix sockets. Open sockets stay where they are. Only
/// root can.
///
/// # Errors
/// What the kernel refuses.
pub fn leave_network() -> io::Result<()> {
    // SAFETY: descriptors stay those of all threads.
    Ok(unsafe { thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// The names of capabilities.
pub fn names(capabilities: u64) -> Vec<String> {
    let name = |number: u32| match CapabilitySet::from_bits_retain(1 << number) {
        CapabilitySet::CHOWN => "CAP_CHOWN".into(),
        CapabilitySet::DAC_OVERRIDE => "CAP_DAC_OVERRIDE".into(),
        CapabilitySet::FOWNER => "CAP_FOWNER".into(),
        CapabilitySet::IPC_LOCK => "CAP_IPC_LOCK".into(),
        _ => format!("capability {number}"),
    };
    (0..64).filter(|number| capabilities >> number & 1 == 1).map(name).collect()
}
