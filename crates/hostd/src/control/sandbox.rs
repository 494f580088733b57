//! The daemon's confinement, as JSON.

use crate::sandbox::{self, Measures, Restriction, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The daemon's confinement.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SandboxReport {
    /// `on` or `off`.
    pub mode: String,
    /// The kernel's version of landlock; absent when it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landlock_abi: Option<u32>,
    /// Do the rings of the reactors take only what these need?
    #[serde(default)]
    pub io_uring_restricted: bool,
    /// By kind: `control`, `reactor`, `front_end`, `helper`, `rings`; of those of which there were
    /// threads.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub threads: BTreeMap<String, ThreadsReport>,
    /// Problems of the confinement, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Do core dumps leave out the memory of guests, of caches, and of NBD's buffers? In every mode.
    #[serde(default)]
    pub dumps_without_guests: bool,
}

/// Confinement of the threads of a kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ThreadsReport {
    pub no_new_privs: bool,
    /// `full`, `partial` (an older kernel), or `none`.
    pub landlock: String,
    /// Do their system calls go through a filter?
    pub seccomp: bool,
    /// Those that are left, by name; absent when they could not be dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
}

pub(super) fn report() -> SandboxReport {
    let status = sandbox::status();
    let problems = status.problems();
    let Status { is_on, landlock_abi, threads, rings } = status;
    let threads = threads.into_iter().map(|(kind, taken)| (kind.name().into(), of_threads(taken)));
    SandboxReport {
        mode: if is_on { "on" } else { "off" }.into(),
        landlock_abi,
        io_uring_restricted: matches!(rings, Some(Ok(()))),
        threads: threads.collect(),
        problems,
        dumps_without_guests: sandbox::dumps_are_clean(),
    }
}

fn of_threads(taken: Measures) -> ThreadsReport {
    ThreadsReport {
        no_new_privs: taken.no_new_privs.is_ok(),
        landlock: match taken.landlock {
            Ok(Restriction::Full) => "full",
            Ok(Restriction::Partial) => "partial",
            Ok(Restriction::Absent) | Err(_) => "none",
        }
        .into(),
        seccomp: taken.seccomp.is_ok(),
        capabilities: taken.capabilities.ok(),
    }
}
