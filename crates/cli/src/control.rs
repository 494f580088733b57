//! Requests of commands to a running daemon.

use anyhow::{Context, Result, anyhow};
use seekway_hostd::config;
use seekway_hostd::control::{Client, HostReport, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::PathBuf;

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
