//! Candidates that a running daemon has.

use super::candidate;
use crate::control;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use seekway_hostd::control::{Client, HostReport};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Whoever presses Tab waits no longer for a daemon.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// Names of the disks that a daemon serves.
pub fn disks() -> ArgValueCandidates {
    of_status(|status| {
        let disks = status.devices.into_iter().flat_map(|device| device.disks);
        disks.map(|disk| candidate(&disk.name, &disk.path)).collect()
    })
}

/// Names of the disks that a daemon failed to serve: `attach` tries them again.
pub fn failed_disks() -> ArgValueCandidates {
    of_status(|status| {
        status.failed.iter().map(|disk| candidate(&disk.name, &disk.error)).collect()
    })
}

/// Names of a daemon's devices.
pub fn devices() -> ArgValueCandidates {
    of_status(|status| status.devices.iter().map(|d| candidate(&d.name, &d.policy)).collect())
}

/// Names of a daemon's groups.
pub fn groups() -> ArgValueCandidates {
    of_status(|status| status.groups.iter().map(|(name, limits)| candidate(name, limits)).collect())
}

/// Candidates of the daemon whose socket the command line names, or of the default one.
fn of_status(candidates: fn(HostReport) -> Vec<CompletionCandidate>) -> ArgValueCandidates {
    ArgValueCandidates::new(move || status().map_or_else(Vec::new, candidates))
}

fn status() -> Option<HostReport> {
    let socket = control::socket(socket(std::env::args_os())).ok()?;
    control::status(&mut Client::connect_within(&socket, ANSWER_TIME).ok()?).ok()
}

/// Finds the value of `--socket` among the words that are typed already.
fn socket(words: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let mut found = None;
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if let Some(path) = text.strip_prefix("--socket=") {
            found = Some(PathBuf::from(path));
        } else if text == "--socket" {
            found = words.peek().map(PathBuf::from);
        }
    }
    found.filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_that_was_typed_is_asked() {
        let of = |words: &[&str]| socket(words.iter().map(OsString::from));
        assert_eq!(of(&["ctl", "--socket", "/a", "weight", ""]), Some("/a".into()));
        assert_eq!(of(&["ctl", "--socket=/b"]), Some("/b".into()));
        assert_eq!(of(&["ctl", "--socket"]), None);
        assert_eq!(of(&["ctl", "weight"]), None);
    }
}
