//! Requests of commands to a running daemon, and signals that end a command.

use anyhow::{Context, Result, anyhow};
use seekway_hostd::config;
use seekway_hostd::control::{Client, HostReport, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;
pub use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Path of the daemon's control socket: as given, else that of this user's daemon.
///
/// # Errors
/// A user without a folder for sockets.
pub fn socket(given: Option<PathBuf>) -> Result<PathBuf> {
    let default = || config::default_folder().map(|folder| folder.join(config::CONTROL_NAME));
    given.map_or_else(default, Ok).map_err(|e| anyhow!("{e}: give --socket PATH"))
}

/// Parses an answer.
///
/// # Errors
/// It is of another version.
pub fn read<T: DeserializeOwned>(answer: Value) -> Result<T> {
    serde_json::from_value(answer).context("the daemon's answer is of another version of seekway")
}

/// The state of all devices and disks.
///
/// # Errors
/// The daemon does not answer.
pub fn status(client: &mut Client) -> Result<HostReport> {
    read(client.ask(&Request::Status {})?)
}

// Signals that end a command in good order.

/// Becomes true when one of these signals comes. They do nothing else from now on.
///
/// # Errors
/// The system refuses.
pub fn noted(signals: &[c_int]) -> Result<Arc<AtomicBool>> {
    let came = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        flag::register(signal, came.clone()).context("cannot handle signals")?;
    }
    Ok(came)
}

/// Becomes true when the first of these signals comes. The next one has its default effect.
///
/// # Errors
/// Where the system refuses to note signals.
pub fn first_noted(signals: &[c_int]) -> Result<Arc<AtomicBool>> {
    let came = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        flag::register_conditional_default(signal, came.clone())
            .and_then(|_| flag::register(signal, came.clone()))
            .context("cannot handle signals")?;
    }
    Ok(came)
}
