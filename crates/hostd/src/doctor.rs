//! `seekway doctor`: what on this host stands in the way of serving, and how to fix it.
//!
//! Each check is a function of [`Facts`], which system calls tell, and of [`Root`], a folder
//! with `/proc`, `/sys` and `/dev` in it. Tests give both. Nothing is changed, and no lock is
//! taken: a daemon or QEMU may run meanwhile.
//!
//! What is absent on purpose: huge pages, KSM, transparent huge pages and the read-ahead of the
//! disk below. The daemon uses direct I/O and needs none of them.

mod access;
mod disks;
mod facts;
mod kernel;
mod limits;

pub use facts::Facts;

use crate::config::Config;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

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
        kernel::version(root),
        kernel::io_uring(root, facts),
        kernel::landlock(root, facts),
        kernel::seccomp(root),
        access::kvm(root, facts),
        access::sockets(root, facts, config),
        limits::descriptors(facts, config),
        limits::memlock(facts, config),
    ];
    findings.extend(access::owners(facts, config));
    findings.extend(limits::cache(root, config));
    findings.extend(disks::images(root, facts, config));
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    DoctorReport {
        level: findings.iter().map(|f| f.level).max().unwrap_or(Level::Ok),
        problems: count(Level::Problem),
        warnings: count(Level::Warning),
        user: facts.user.clone(),
        findings,
    }
}

#[cfg(test)]
mod tests;
