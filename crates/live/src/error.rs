//! What can go wrong around a guest, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result of what this crate does.
pub type Result<T> = std::result::Result<T, LiveError>;

/// Why a guest could not be built, booted or talked to.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// A program of the host that is not there.
    #[error("{program} is not installed: install Debian's package {package} (make install-deps)")]
    Missing {
        /// What was to be run.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// A program of the host failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        command: String,
        status: String,
        /// What it said, its end.
        stderr: String,
    },
    /// A file or socket of the host.
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// A package does not hold what it should.
    #[error("package {package}: {why}")]
    Package { package: String, why: String },
    /// QEMU ended, or the guest did, when neither should have.
    #[error("guest {guest} is gone ({status})\nqemu: {stderr}\nconsole, its end:\n{console}")]
    Gone {
        guest: String,
        /// How QEMU ended; `?` if that is not known.
        status: String,
        stderr: String,
        /// The last lines of the guest's console.
        console: String,
    },
    /// Nothing came in time.
    #[error("guest {guest}: no {what} within {} s; console, its end:\n{console}", after.as_secs())]
    Timeout {
        guest: String,
        /// What was waited for.
        what: String,
        after: Duration,
        /// The last lines of the guest's console.
        console: String,
    },
    /// The guest or QEMU answered something that is no answer.
    #[error("guest {guest}: {why}")]
    Protocol { guest: String, why: String },
    /// A command in the guest failed.
    #[error("guest {guest}: `{command}` ended with {status}:\n{output}")]
    InGuest {
        guest: String,
        command: String,
        /// Its exit status; 137 when it was killed after its time.
        status: i32,
        output: String,
    },
    /// The daemon did not start, ended, or refused.
    #[error("seekway: {0}")]
    Daemon(String),
    /// What was measured is not what it should be.
    #[error("{0}")]
    Measured(String),
}

/// Puts the verb and the path to an I/O error.
pub(crate) trait At<T> {
    /// `what` is a verb: "read", "create".
    fn at(self, what: &'static str, path: &Path) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| LiveError::Io { what, path: path.to_path_buf(), source })
    }
}
