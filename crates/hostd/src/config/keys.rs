//! The settings, each with its help and what it sets. From this table follow the keys of the file,
//! the flags of `serve`, their help, and what an unknown key is told.

use super::sockets::{account, mode};
use super::{CacheSize, Config, DEPTH_MAX, POLL_MAX};
use crate::reactor::{Poll, Submitter};
use crate::throttle::Throttle;
use Value::{Path, Text};
use seekway_core::params::{DURATION_MAX, parse_bytes, parse_duration, parse_size};
use seekway_core::units::{Nanos, Sectors};
use seekway_policy::{prefetchers, schedulers};
use seekway_stack::stack::PIECE_MAX;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Longest name of a host, in bytes (RFC 1035).
const HOST_NAME_BYTES_MAX: usize = 253;

/// A setting of the daemon or of a disk.
pub struct Key<C: 'static> {
    /// In the spelling of the file; a flag has `-` for `_` and `.`.
    pub name: &'static str,
    /// Stands for the value in the help; empty for a switch, which has none or `true` or `false`.
    pub value: &'static str,
    /// For an operator: the meaning, with the default.
    pub help: &'static str,
    pub(super) set: Value<C>,
}

/// Sets what the text says.
pub(super) enum Value<C: 'static> {
    Path(fn(&mut C, PathBuf)),
    /// Fails with the text and what was expected.
    Text(fn(&mut C, &str) -> Result<(), String>),
}

impl<C> Key<C> {
    /// Takes several values: a list in the file, a flag that is repeated.
    pub fn is_list(&self) -> bool {
        ["allow", "allow_host", "images"].contains(&self.name)
    }

    /// The value is a path; in a file it is relative to the file's folder.
    pub(super) fn is_path(&self) -> bool {
        matches!(self.set, Path(_))
    }

    pub(super) fn apply(&self, to: &mut C, text: &str) -> Result<(), String> {
        match self.set {
            Path(_) if text.is_empty() || text.contains('\0') => Err("expected a path".into()),
            Path(set) => {
                set(to, text.into());
                Ok(())
            }
            Text(set) => set(to, text),
        }
    }
}

/// Settings, each with its help, name, value and what it sets.
macro_rules! settings {
    ($($(#[doc = $help:literal])+ $name:literal $value:literal => $set:expr;)+) => {
        &[$($crate::config::keys::Key {
            name: $name,
            value: $value,
            help: concat!($($help),+).trim_ascii_start(),
            set: $set,
        }),+]
    };
}
pub(super) use settings;

/// All settings, by the headings of the help.
pub static GROUPS: [(&str, &[Key<Config>]); 4] = [
    (
        "Scheduling",
        settings! {
            /// Scheduling policy (`seekway list policies`), with parameters as `NAME:key=value,…`
            /// [default: fairway]
            "policy" "SPEC" => Text(|c, text| put(&mut c.policy, valid(text, schedulers::build(text))?));
            /// Emulate one device for all disks (`seekway list devices`); `k` scales its times when the
            /// real device is too slow: `auto`, `1`, or a factor
            "emulate" "PROFILE[:…][:k=…]" => Text(|c, text| put(&mut c.emulate, valid(text, Throttle::parse(text))?));
            /// Queue depth of each device [default: 1 on rotational devices, 128 on others, the model's
            /// own with --emulate]
            "depth" "N" => Text(|c, text| put(&mut c.tuning.depth, Some(depth(text)?)));
            /// Coalesce adjacent requests up to this size, at most 1MiB; 0 turns it off [default:
            /// 512KiB]
            "coalesce" "SIZE" => Text(|c, text| put(&mut c.tuning.coalesce, coalesce(text)?));
            /// Merge adjacent requests as they arrive, up to `coalesce`, before the policy sees them, as
            /// Linux's block layer does; policies other than noop, deadline, anticipatory, cfq and
            /// pregather take no merged requests
            "merge" "" => Text(|c, text| put(&mut c.tuning.merge, switch(text)?));
            /// Serve a request that has waited this long, whatever the policy decides [default: 30s]
            "hard_limit" "TIME" => Text(|c, text| put(&mut c.tuning.hard_limit, span(text)?));
            /// Poll for requests this long before sleeping: lower latency, but uses a core while there
            /// is work; 0 turns it off; `auto`: up to 50us while requests come often, and not at all
            /// while they do not or others want the processor [default: auto]
            "poll" "TIME|auto" => Text(|c, text| put(&mut c.tuning.poll, poll(text)?));
            /// Threads of each device: with 2, a thread of the kernel's submits its I/O, which uses
            /// another core while there is work [default: 1]
            "threads" "1|2" => Text(|c, text| put(&mut c.tuning.submitter, submitter(text)?));
            /// Write a journal of each device's decisions to this folder, for `seekway replay`
            "journal" "DIR" => Path(|c, path| c.journal = Some(path));
        },
    ),
    (
        "Cache",
        settings! {
            /// Size of the read cache in the host's memory for each device; `auto`: a tenth of the
            /// available memory for all devices together, less under memory pressure; `off` [default:
            /// auto; off with --emulate, --blk-file, --socket-path and --fd]
            "cache" "SIZE|auto|off" => Text(|c, text| put(&mut c.cache, Some(CacheSize::parse(text)?)));
            /// Prefetch into the cache (`seekway list prefetchers`), with parameters as
            /// `NAME:key=value,…` [default: vio:interval=continuous]
            "prefetch" "SPEC" => Text(|c, text| put(&mut c.prefetch, valid(text, prefetchers::build(text))?));
            /// Lock the cache in memory, so that it is never swapped; needs CAP_IPC_LOCK or a large
            /// enough RLIMIT_MEMLOCK
            "cache_lock" "" => Text(|c, text| put(&mut c.cache_lock, switch(text)?));
            /// Highest read bandwidth of a device per second, as `550MiB` [default: measured on its
            /// first image that holds data]
            "bandwidth" "SIZE" => Text(|c, text| put(&mut c.bandwidth_bytes_per_s, Some(bytes(text, "what a device reads a second, such as 550MiB")?)));
        },
    ),
    (
        "Sockets",
        settings! {
            /// Folder for the sockets; created if missing [default: /run/seekway for root,
            /// $XDG_RUNTIME_DIR/seekway for others; none if the disks are reached otherwise, as by
            /// --nbd]
            "listen" "DIR" => Path(|c, path| c.listen = Some(path));
            /// Path of the control socket [default: DIR/control.sock]
            "control" "PATH" => Path(|c, path| c.control = Some(path));
            /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics
            "metrics" "ADDRESS:PORT" => Text(|c, text| put(&mut c.metrics, Some(address(text)?)));
            /// Show what the daemon does, with its history, at http://ADDRESS:PORT/ (docs/web.md); by
            /// the control socket too, without this option
            "web" "ADDRESS:PORT" => Text(|c, text| put(&mut c.web, Some(address(text)?)));
            /// Let the page change weights, limits and policies for whoever has the token in this file
            /// (mode 0600, at least 16 letters) [default: the page is read-only]
            "web_control" "TOKENFILE" => Path(|c, path| c.web_control = Some(path));
            /// Host name by which requests for metrics and the page may call this host, besides its
            /// addresses and localhost (repeatable) [default: none, so that no other site's page can
            /// ask through a browser]
            "allow_host" "NAME" => Text(|c, text| put_one(&mut c.allow_host, host_name(text)?));
            /// Serve all disks by NBD over TCP, each as an export of its name; `off`: no NBD at all,
            /// the disks have no NBD sockets either
            "nbd" "ADDRESS:PORT|off" => Text(nbd);
            /// Owner of the disks' sockets, by name or number [default: who runs the daemon]
            "socket_owner" "USER" => Text(|c, text| put(&mut c.sockets.owner, Some(account(text)?)));
            /// Group of the disks' sockets, by name or number [default: that of who runs the daemon]
            "socket_group" "GROUP" => Text(|c, text| put(&mut c.sockets.group, Some(account(text)?)));
            /// Permissions of the disks' sockets, in octal [default: 600, with --socket-group 660]
            "socket_mode" "MODE" => Text(|c, text| put(&mut c.sockets.mode, Some(mode(text)?)));
            /// Certificate chain of the NBD server (PEM); turns TLS on
            "tls.cert" "FILE" => Path(|c, path| c.tls.cert = Some(path));
            /// Private key of the certificate (PEM)
            "tls.key" "FILE" => Path(|c, path| c.tls.key = Some(path));
            /// Accept only clients with a certificate signed by one of these authorities (PEM); over
            /// TCP clients without TLS are refused
            "tls.client_ca" "FILE" => Path(|c, path| c.tls.client_ca = Some(path));
            /// Refuse NBD clients that do not use TLS
            "tls.required" "" => Text(|c, text| put(&mut c.tls.required, switch(text)?));
        },
    ),
    (
        "Confinement",
        settings! {
            /// Give up all that serving does not need: system calls, files, capabilities; `off` for
            /// debugging. What the kernel cannot do is said at the start and in `ctl status` [default:
            /// on]
            "sandbox" "on|off" => Text(|c, text| put(&mut c.unconfined, !switch(text)?));
            /// Let programs attach images in this folder by path (repeatable); `seekway ctl attach`
            /// opens images itself and does not need it
            "images" "DIR" => Path(|c, path| c.images.push(path));
        },
    ),
];

/// The setting of this name.
pub(super) fn find(name: &str) -> Result<&'static Key<Config>, String> {
    let all = || GROUPS.iter().flat_map(|(_, keys)| *keys);
    all().find(|key| key.name == name).ok_or_else(|| {
        let there: Vec<&str> = all().map(|key| key.name).collect();
        format!("no setting '{name}'; there are disk, group, {}", there.join(", "))
    })
}

pub(super) fn put<T>(to: &mut T, value: T) -> Result<(), String> {
    *to = value;
    Ok(())
}

pub(super) fn put_one<T>(to: &mut Vec<T>, value: T) -> Result<(), String> {
    to.push(value);
    Ok(())
}

/// The text, if something could be built of it.
fn valid<T>(text: &str, built: Result<T, impl ToString>) -> Result<Option<String>, String> {
    built.map(|_| Some(text.into())).map_err(|e| e.to_string())
}

/// `off`, or the address of all exports.
fn nbd(config: &mut Config, text: &str) -> Result<(), String> {
    (config.nbd, config.sockets.nbd) = match text {
        "off" => (None, Some(false)),
        _ => (Some(address(text)?), None),
    };
    Ok(())
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err(format!("{text}: expected on or off, or true or false")),
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
/// For the operator: the characters that a name may have.
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

/// Bytes, at least one.
pub(super) fn bytes(text: &str, what: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(0) => Err(format!("{text}: expected {what}")),
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
