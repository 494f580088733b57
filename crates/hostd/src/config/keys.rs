//! The settings by key, each with what it sets. From this list follow what the file may have, what a
//! flag sets, and what an unknown key is told.

use super::{CacheSize, Config, DEPTH_MAX, POLL_MAX};
use crate::reactor::{Poll, Submitter};
use crate::throttle::Throttle;
use Value::{Path, Text};
use seekway_policy::params::{DURATION_MAX, parse_bytes, parse_duration, parse_size};
use seekway_policy::stack::PIECE_MAX;
use seekway_policy::units::{Nanos, Sectors};
use seekway_policy::{prefetchers, schedulers};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Longest name of a host, in bytes (RFC 1035).
const HOST_NAME_BYTES_MAX: usize = 253;

/// What a setting's text is, and what it sets.
pub(super) enum Value {
    /// A path; in a file it is relative to the file's folder.
    Path(fn(&mut Config, PathBuf)),
    /// Fails with what was expected.
    Text(fn(&mut Config, &str) -> Result<(), String>),
}

/// All settings, in the spelling of the file; the flag has `-` for `_` and `.`.
pub(super) static KEYS: [(&str, Value); 28] = [
    ("policy", Text(|c, text| put(&mut c.policy, valid(text, schedulers::build(text))?))),
    ("listen", Path(|c, path| c.listen = Some(path))),
    ("control", Path(|c, path| c.control = Some(path))),
    ("metrics", Text(|c, text| put(&mut c.metrics, Some(address(text)?)))),
    ("web", Text(|c, text| put(&mut c.web, Some(address(text)?)))),
    ("web_control", Path(|c, path| c.web_control = Some(path))),
    ("allow_host", Text(|c, text| put_one(&mut c.allow_host, host_name(text)?))),
    ("nbd", Text(nbd)),
    ("socket_owner", Text(|c, text| c.sockets.set("socket_owner", text).map(drop))),
    ("socket_group", Text(|c, text| c.sockets.set("socket_group", text).map(drop))),
    ("socket_mode", Text(|c, text| c.sockets.set("socket_mode", text).map(drop))),
    ("emulate", Text(|c, text| put(&mut c.emulate, valid(text, Throttle::parse(text))?))),
    ("depth", Text(|c, text| put(&mut c.depth, Some(depth(text)?)))),
    ("coalesce", Text(|c, text| put(&mut c.coalesce, coalesce(text)?))),
    ("hard_limit", Text(|c, text| put(&mut c.hard_limit, span(text)?))),
    ("poll", Text(|c, text| put(&mut c.poll, poll(text)?))),
    ("threads", Text(|c, text| put(&mut c.submitter, submitter(text)?))),
    ("cache", Text(|c, text| put(&mut c.cache, Some(CacheSize::parse(text)?)))),
    ("prefetch", Text(|c, text| put(&mut c.prefetch, valid(text, prefetchers::build(text))?))),
    ("cache_lock", Text(|c, text| put(&mut c.cache_lock, truth(text)?))),
    ("bandwidth", Text(|c, text| put(&mut c.bandwidth_bytes_per_s, Some(bandwidth(text)?)))),
    ("journal", Path(|c, path| c.journal = Some(path))),
    ("sandbox", Text(|c, text| put(&mut c.sandbox, switch(text)?))),
    ("images", Path(|c, path| c.images.push(path))),
    ("tls.cert", Path(|c, path| c.tls.cert = Some(path))),
    ("tls.key", Path(|c, path| c.tls.key = Some(path))),
    ("tls.client_ca", Path(|c, path| c.tls.client_ca = Some(path))),
    ("tls.required", Text(|c, text| put(&mut c.tls.required, truth(text)?))),
];

/// Set what this key names.
pub(super) fn apply(config: &mut Config, key: &str, text: &str) -> Result<(), String> {
    match KEYS.iter().find(|(name, _)| *name == key) {
        Some((_, Path(_))) if text.is_empty() || text.contains('\0') => {
            Err("expected a path".into())
        }
        Some((_, Path(set))) => {
            set(config, text.into());
            Ok(())
        }
        Some((_, Text(set))) => set(config, text),
        None => Err(unknown(key)),
    }
}

fn put<T>(to: &mut T, value: T) -> Result<(), String> {
    *to = value;
    Ok(())
}

fn put_one<T>(to: &mut Vec<T>, value: T) -> Result<(), String> {
    to.push(value);
    Ok(())
}

/// The text, if something could be built of it.
fn valid<T>(text: &str, built: Result<T, impl ToString>) -> Result<Option<String>, String> {
    built.map(|_| Some(text.into())).map_err(|e| e.to_string())
}

/// What to say about a key that does not exist.
pub(super) fn unknown(key: &str) -> String {
    let there: Vec<&str> = KEYS.iter().map(|(name, _)| *name).collect();
    format!("no setting '{key}'; there are disk, group, {}", there.join(", "))
}

/// `off`, or the address of all exports.
fn nbd(config: &mut Config, text: &str) -> Result<(), String> {
    (config.nbd, config.sockets.nbd) = match text {
        "off" => (None, Some(false)),
        _ => (Some(address(text)?), None),
    };
    Ok(())
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(format!("{text}: expected on or off")),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text}: expected ADDRESS:PORT, such as 127.0.0.1:10809 or [::1]:10809")
    })
}

fn host_name(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    check_host_name(name).map(|()| name.to_string())
}

/// Is it a name by which a host may be called?
///
/// # Errors
/// What a name is made of.
pub fn check_host_name(name: &str) -> Result<(), String> {
    let is_label = |label: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        !label.is_empty() && label.len() <= 63 && label.chars().all(plain)
    };
    if name.len() <= HOST_NAME_BYTES_MAX && name.split('.').all(is_label) {
        return Ok(());
    }
    let shown: String = name.escape_debug().take(HOST_NAME_BYTES_MAX).collect();
    Err(format!(
        "{shown}: expected a host's whole name, such as kvm1.example.org, without http:// and port"
    ))
}

fn truth(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text}: expected true or false"))
}

fn bandwidth(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(0) => Err(format!("{text}: expected what a device reads a second, such as 550MiB")),
        Ok(bytes) => Ok(bytes),
        Err(e) => Err(format!("{text}: {e}")),
    }
}

fn coalesce(text: &str) -> Result<Sectors, String> {
    match parse_size(text) {
        Ok(most) if most <= PIECE_MAX => Ok(most),
        Ok(_) => Err(format!("{text}: expected at most 1MiB, or 0")),
        Err(e) => Err(format!("{text}: {e}")),
    }
}

fn depth(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(n) if (1..=DEPTH_MAX).contains(&n) => Ok(n),
        _ => Err(format!("{text}: expected a number of commands from 1 to {DEPTH_MAX}")),
    }
}

fn span(text: &str) -> Result<Nanos, String> {
    let span = parse_duration(text).ok().filter(|s| *s > Nanos::ZERO);
    span.filter(|s| *s <= DURATION_MAX).ok_or_else(|| {
        format!("{text}: expected a time with its unit, such as 500ms or 30s, at most 1000h")
    })
}

fn poll(text: &str) -> Result<Poll, String> {
    if text == "auto" {
        return Ok(Poll::AUTO);
    }
    let time = parse_duration(text).ok().filter(|time| *time <= POLL_MAX);
    time.map(Poll::fixed).ok_or_else(|| {
        format!("{text}: expected auto, or a time with its unit, such as 50us, at most 1s")
    })
}

fn submitter(text: &str) -> Result<Submitter, String> {
    match text {
        "1" => Ok(Submitter::Own),
        "2" => Ok(Submitter::Kernel),
        _ => Err(format!("{text}: expected 1, or 2: the kernel's thread beside each device's own")),
    }
}
