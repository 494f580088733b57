//! A disk of the configuration whose image could not be opened, and why.

use crate::config::DiskConfig;
use crate::daemon::error::HostError;
use crate::log::say;
use std::time::Duration;

/// A file that comes late is served when nobody has written to it for so long: it may be a copy
/// that is being made.
const QUIET: Duration = Duration::from_secs(5);

/// A disk of the configuration that is not served.
#[derive(Clone, Debug)]
pub struct FailedDisk {
    /// As it was asked for.
    pub config: DiskConfig,
    /// The error of the last attempt to serve it, as text.
    pub error: String,
    /// It is tried again without a command.
    pub is_retried: bool,
    /// Another program has its image.
    pub(super) is_taken: bool,
}

impl FailedDisk {
    pub(super) fn new(config: DiskConfig, error: &HostError) -> FailedDisk {
        let (is_retried, is_taken) = match error {
            HostError::Image(_, e) => (e.may_pass(), e.is_taken()),
            // It was opened, or its configuration was refused before.
            _ => (true, false),
        };
        FailedDisk { config, error: error.to_string(), is_retried, is_taken }
    }

    /// Tell the log of it.
    pub(super) fn say(&self) {
        let (name, error) = (&self.config.name, &self.error);
        say(&match self.is_retried {
            true => format!("{error}; NOT SERVED yet: the daemon tries it again by itself"),
            false => format!("{error}; NOT SERVED: mend it, then run: seekway ctl attach {name}"),
        });
    }

    /// Why it should not be served now, though it can be opened perhaps.
    pub(super) fn is_being_written(&self) -> Option<String> {
        let path = &self.config.path;
        let about = std::fs::metadata(path).ok().filter(|about| about.is_file())?;
        let age = about.modified().ok()?.elapsed().unwrap_or_default();
        (!self.is_taken && age < QUIET).then(|| {
            let (path, quiet) = (path.display(), QUIET.as_secs());
            format!("{path}: somebody writes to it; it is served when nobody has for {quiet} s")
        })
    }
}
