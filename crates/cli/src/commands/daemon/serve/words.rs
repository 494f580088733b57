//! Descriptions of what is served: where, in which way, and for which reason.

use seekway_hostd::config::{CacheSize, Config, TlsConfig};
use seekway_hostd::daemon::{Daemon, POLICY_DEFAULT};
use seekway_hostd::reactor::{Poll, Submitter};
use std::fmt::{self, Write as _};

/// Describes what a configuration would serve.
pub fn describe(config: &Config) -> String {
    let mut text = String::new();
    for disk in &config.disks {
        let _ = write!(text, "disk {}: {}, weight {}", disk.name, disk.path.display(), disk.weight);
        let is_past_cache = !disk.cache && config.cache_size() != CacheSize::Off;
        let options = [
            disk.read_only.then(|| "read-only".into()),
            disk.buffered.then(|| "buffered".into()),
            disk.accept_lost_writes.then(|| "accepting lost writes".into()),
            disk.incoming.then(|| "from another daemon".into()),
            is_past_cache.then(|| "past the cache".into()),
            disk.on.as_ref().map(|on| format!("on the device of {}", on.display())),
            disk.block_size.map(|size| format!("blocks of {size} bytes")),
            disk.guest_memory.map(|bytes| format!("at most {bytes} bytes of its guest's memory")),
            disk.serial.as_ref().map(|serial| format!("serial number {serial}")),
            (!disk.allow.is_empty())
                .then(|| format!("over TCP only for {}", disk.allow.join(", "))),
            disk.lba.map(|lba| format!("from sector {lba}")),
            (!disk.limits.is_none()).then(|| format!("limits {}", disk.limits)),
            disk.fault.as_ref().map(|fault| format!("with faults: {fault}")),
        ];
        text.extend(options.into_iter().flatten().map(|option| format!(", {option}")));
        text.push('\n');
        if let Some(folder) = &config.listen {
            let socket = |kind: &str| folder.join(format!("{}.{kind}", disk.name));
            let _ = writeln!(text, "  {}", socket("vhost").display());
            if disk.sockets.or(&config.sockets).nbd != Some(false) {
                let _ = writeln!(text, "  {}", socket("nbd").display());
            }
        }
    }
    for group in &config.groups {
        let _ = writeln!(text, "group {}: limits {}", group.name, group.limits);
    }
    let shown = |p: std::path::PathBuf| p.display().to_string();
    let some = |text: String| (!text.is_empty()).then_some(text);
    let depth = config.depth.map_or("the device's (default)".into(), |d| d.to_string());
    let poll = (config.poll != Poll::AUTO).then(|| config.poll.to_string());
    let threads = (config.submitter == Submitter::Kernel).then(|| "2".into());
    for (key, value) in [
        ("policy", Some(policy(config))),
        ("emulate", config.emulate.clone()),
        ("depth", Some(depth)),
        ("coalesce", Some(format!("{} sectors", config.coalesce.get()))),
        ("hard limit", Some(config.hard_limit.to_string())),
        ("poll", poll),
        ("threads", threads),
        ("cache", Some(cache(config))),
        ("prefetch", prefetch(config)),
        ("journal", config.journal.clone().map(shown)),
        ("sandbox", Some(sandbox(config))),
        ("control", config.control_path().map(shown)),
        ("metrics", config.metrics.map(|a| format!("http://{a}/metrics"))),
        ("web", config.web.map(|a| format!("http://{a}/"))),
        ("web control", config.web_control.clone().map(shown)),
        ("allowed hosts", some(config.allow_host.join(", "))),
        ("nbd", config.nbd.map(|a| format!("nbd://{a}/{}", tls_word(&config.tls)))),
    ] {
        if let Some(value) = value {
            let _ = writeln!(text, "{key}: {value}");
        }
    }
    text
}

fn policy(config: &Config) -> String {
    config.policy.clone().unwrap_or_else(|| format!("{POLICY_DEFAULT} (default)"))
}

/// Is it confined, and where may it open more images?
fn sandbox(config: &Config) -> String {
    let folders: Vec<String> = config.images.iter().map(|p| p.display().to_string()).collect();
    match config.sandbox {
        false => "off".into(),
        true if folders.is_empty() => "on".into(),
        true => format!("on, images also in {}", folders.join(", ")),
    }
}

/// Describes the size of each device's cache, and the reason for it.
fn cache(config: &Config) -> String {
    let locked = if config.cache_lock { ", locked in memory" } else { "" };
    let default = if config.cache.is_none() { " (default)" } else { "" };
    match (config.cache_size(), &config.emulate) {
        (CacheSize::Off, Some(_)) if config.cache.is_none() => {
            "off (default with --emulate: a cache would hide the device)".into()
        }
        (CacheSize::Off, _) => "off".into(),
        (CacheSize::Auto, _) => format!(
            "auto{default}{locked}: a tenth of the available memory for all devices together, less \
             under memory pressure"
        ),
        (CacheSize::Bytes(bytes), _) => {
            format!("{}{locked} for each device", Bytes(bytes))
        }
    }
}

/// Describes the prefetcher, and when it prefetches; nothing without a cache.
fn prefetch(config: &Config) -> Option<String> {
    let default = if config.prefetch.is_none() { " (default)" } else { "" };
    if config.cache_size() == CacheSize::Off {
        return None;
    }
    let prefetcher = config.prefetcher();
    let mut text = format!("{prefetcher}{default}");
    if prefetcher != "none" {
        text += ": only while no guest's request waits for the device";
    }
    if let Some(bytes_per_s) = config.bandwidth_bytes_per_s {
        let _ = write!(text, ", which reads {} a second", Bytes(bytes_per_s));
    }
    Some(text)
}

/// A size in words: `512 MiB`, or bytes where that would not be exact.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes.is_multiple_of(1 << 20) => write!(f, "{} MiB", bytes >> 20),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

fn tls_word(tls: &TlsConfig) -> &'static str {
    match tls {
        TlsConfig { cert: None, .. } => "",
        _ if tls.is_required(true) => " (TLS required)",
        _ => " (TLS offered)",
    }
}

/// Describes what is served, and where, after the start.
pub fn served(daemon: &Daemon, config: &Config, is_default_folder: bool) -> String {
    let host = daemon.host();
    let mut text = String::new();
    let default = |is_set: bool| if is_set { "" } else { " (default)" };
    for (device, status) in host.statuses() {
        let (policy, depth) = (&status.policy, status.depth);
        let (of_policy, of_depth) =
            (default(config.policy.is_some()), default(config.depth.is_some()));
        let name = &device.name;
        let _ = writeln!(text, "device {name}: {policy}{of_policy}, depth {depth}{of_depth}");
        let _ = writeln!(text, "  cache: {}", cache(config));
        if let Some(cache) = &status.cache {
            let (now, most) = (cache.capacity_bytes >> 20, cache.room_bytes >> 20);
            let _ = writeln!(text, "    now {now} MiB, at most {most} MiB on this device");
        }
        if let Some(prefetch) = prefetch(config) {
            let _ = writeln!(text, "  prefetch: {prefetch}");
        }
        for disk in host.disks().iter().filter(|d| std::sync::Arc::ptr_eq(&d.device, &device)) {
            let _ = write!(text, "  {}: {}", disk.config.name, disk.config.path.display());
            let is_cached = status.disks.iter().any(|d| d.id == disk.id && d.cache.is_some());
            let is_past = status.cache.is_some() && !is_cached;
            text += match (is_past, disk.is_direct) {
                (true, false) => ", past the cache (it is in the host's page cache)",
                (true, true) => ", past the cache",
                (false, _) => "",
            };
            text.push('\n');
            for (kind, address) in host.addresses(Some(disk)) {
                let _ = writeln!(text, "    {kind}: {address}");
            }
        }
    }
    for failed in host.failed() {
        let (yet, again) =
            if failed.is_retried { (" yet", "; tried again by itself") } else { ("", "") };
        let name = &failed.config.name;
        let _ = writeln!(text, "{name}: NOT SERVED{yet}: {}{again}", failed.error);
    }
    for (kind, address) in host.addresses(None) {
        let _ = writeln!(text, "{kind}: {address}");
    }
    if let (true, Some(folder)) = (is_default_folder, &config.listen) {
        let _ = writeln!(
            text,
            "sockets are in {} (default; --listen DIR changes it)",
            folder.display()
        );
    }
    text + "ready\n"
}
