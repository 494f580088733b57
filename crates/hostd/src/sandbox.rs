//! Confinement: what is left to whoever takes over a thread of the daemon.
//!
//! Each thread confines itself when it begins, by its kind ([`enter`]); the main thread when all
//! that the configuration names is open ([`enter_with`]). Each measure only takes rights away, and
//! threads inherit those of the thread that starts them.
//!
//! ```text
//!  kind    kinds of threads
//!  rights  capabilities, no_new_privs       files   files and ports that may be reached (landlock)
//!  calls   system calls (seccomp)           dumps   core dumps without guests' data
//! ```
//!
//! A kernel that lacks a measure does without it: [`status`] says which. Where reading and writing
//! are the whole work of a thread, as in a reactor, there is no path and no socket that it can open.

mod calls;
mod dumps;
mod files;
mod kind;
mod rights;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub use dumps::is_left_out;
pub use dumps::{are_clean as dumps_are_clean, leave_out};
pub use files::{Access, Places, Restriction, abi};
pub use kind::Kind;

use crate::threads::lock;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Nothing is confined: `--sandbox off`.
static OFF: AtomicBool = AtomicBool::new(false);
static TAKEN: Mutex<Taken> = Mutex::new(Taken { threads: BTreeMap::new(), rings: None });

/// Measures taken until now.
struct Taken {
    threads: BTreeMap<Kind, Measures>,
    /// Of the last ring that was made.
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
    /// Of the kinds of which there were threads.
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
        no_new_privs: rights::no_new_privs().map_err(text),
        capabilities: rights::drop_capabilities(kind).map(rights::names).map_err(text),
        landlock: files::restrict(places, kind == Kind::Control && is_notified_abstractly()),
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
        let _ = rights::leave_network();
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
