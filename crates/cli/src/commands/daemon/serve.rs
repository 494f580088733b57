//! `seekway serve`: the host daemon.

use crate::args::{BackendArgs, ServeArgs};
use crate::{Verdict, output, stacks};
use anyhow::{Context, Result, anyhow, bail};
use seekway_hostd::config::{self, CacheSize, Config, DiskConfig, Settings, TlsConfig};
use seekway_hostd::control::Token;
use seekway_hostd::daemon::{
    self, Daemon, Inherited, NotifyState, POLICY_DEFAULT, StartOptions, VhostAt,
};
use seekway_hostd::images::{self, OpenOptions};
use seekway_hostd::log;
use seekway_hostd::reactor::{Poll, Submitter, Tuning};
use std::fmt::{self, Write as _};

/// The only disk's name, where `--blk-file` gives none.
const ONLY_NAME: &str = "disk";
/// Answer to `--print-capabilities`, by the conventions for vhost-user back ends
/// (`VHostUserBackendCapabilities` in QEMU's docs/interop/vhost-user.json).
const CAPABILITIES: &str = r#"{"type": "block", "features": ["read-only", "blk-file"]}"#;

pub fn run(args: &ServeArgs) -> Result<Verdict> {
    if args.backend.print_capabilities {
        output::print(&format!("{CAPABILITIES}\n"))?;
        return Ok(Verdict::Done);
    }
    let mut config = settings(args).resolve()?;
    if is_backend(args) && config.cache.is_none() && config.prefetch.is_none() {
        config.cache = Some(CacheSize::Off);
    }
    if args.check_config {
        if config.listen.is_none() && config.nbd.is_none() && !is_backend(args) {
            // A service manager may have sockets for it. Then it needs no folder.
            config.listen = config::default_folder().ok();
        }
        let problems = check(&config);
        if !problems.is_empty() {
            bail!("{}", problems.join("\n"));
        }
        output::print(&describe(&config))?;
        warn(&config);
        return Ok(Verdict::Done);
    }
    serve(args, config)
}

/// Is it the back end of one disk, beside others that serve other disks?
fn is_backend(args: &ServeArgs) -> bool {
    let BackendArgs { socket_path, fd, blk_file, .. } = &args.backend;
    socket_path.is_some() || fd.is_some() || blk_file.is_some()
}

fn serve(args: &ServeArgs, mut config: Config) -> Result<Verdict> {
    // Descriptors from outside first: nothing of ours may get their numbers.
    let sockets = daemon::activated()?;
    let backend = &args.backend;
    let vhost = match (backend.fd, &backend.socket_path) {
        (Some(fd), _) => Some(match daemon::inherit(fd).context("--fd")? {
            Inherited::Listener(listener) => VhostAt::Listener(listener),
            Inherited::Connected(stream) => VhostAt::Connected(stream),
        }),
        (None, Some(path)) => Some(VhostAt::Path(path.clone())),
        (None, None) => None,
    };
    let reachable = config.listen.is_some() || config.nbd.is_some() || !sockets.is_empty();
    if config.disks.is_empty() && config.control_path().is_none() && sockets.is_empty() {
        bail!("nothing to serve: give --disk NAME=PATH (or --listen DIR, to attach disks later)");
    }
    let is_default_folder = !reachable && vhost.is_none();
    if is_default_folder {
        let folder = config::default_folder();
        config.listen = Some(folder.map_err(|e| {
            anyhow!("{e}: give --listen DIR, --nbd ADDRESS:PORT or --socket-path PATH")
        })?);
    }
    warn(&config);
    daemon::prepare_process();
    let state = config::state_folder();
    let options = StartOptions { sockets, vhost, state, ends_by_signals: true };
    let daemon = Daemon::start(config.clone(), options)?;
    for problem in daemon.confine() {
        log::say(&format!("sandbox: {problem}"));
    }
    // Whoever started us may not read it; guests do not mind.
    let _ = output::print(&served(&daemon, &config, is_default_folder));
    if let Err(e) = daemon::notify(&[NotifyState::Ready]) {
        log::say(&format!("cannot tell the service manager that all is ready: {e}"));
    }
    if let Err(e) = daemon.run() {
        // Not as other commands tell of an error: whoever restarts us must not have to wait for
        // somebody who does not read it.
        log::say(&format!("{:#}", anyhow!(e)));
        log::flush();
        std::process::exit(2);
    }
    Ok(Verdict::Done)
}

/// The file's settings, and the flags' after them.
fn settings(args: &ServeArgs) -> Settings {
    let mut settings = args.config.as_deref().map(config::read).unwrap_or_default();
    let mut flags = args.settings.0.clone();
    args.disks.iter().for_each(|disk| flags.disk_flag(disk));
    args.groups.iter().for_each(|group| flags.group_flag(group));
    if let Some(path) = &args.backend.blk_file {
        let read_only = args.backend.read_only;
        let disk = DiskConfig { read_only, ..DiskConfig::new(ONLY_NAME, path) };
        flags.disks.push((disk, config::Origin::Flag("--blk-file".into())));
    }
    settings.extend(flags);
    settings
}

/// Finds problems with images and certificates. Locks and sockets are left
/// alone: the daemon that has them may be running.
fn check(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    for disk in &config.disks {
        // As one that another has: its lock is not looked at.
        let options = OpenOptions { incoming: true, ..disk.open_options() };
        let looked = images::look(&disk.path, &options);
        problems.extend(looked.err().map(|e| format!("disk {}: {e}", disk.name)));
    }
    if let Err(e) = daemon::check_tls(config) {
        problems.push(e.to_string());
    }
    if let Some(Err(e)) = config.web_control.as_deref().map(Token::read) {
        problems.push(format!("web_control: {e}"));
    }
    problems
}

/// Warn of what the policy does not keep.
fn warn(config: &Config) {
    let policy = config.policy.as_deref().unwrap_or(POLICY_DEFAULT);
    let disks = config.disks.iter().map(|disk| ("disk", disk.name.as_str(), &disk.limits.limits));
    let groups = config.groups.iter().map(|group| ("group", group.name.as_str(), &group.limits));
    for (what, name, limits) in disks.chain(groups) {
        let keys = stacks::targets_not_kept(policy, [limits]);
        if !keys.is_empty() {
            let (keys, keepers) = (keys.join(", "), stacks::target_keepers());
            eprintln!(
                "warning: {what} {name}: policy {policy} does not keep {keys}; {keepers} does"
            );
        }
    }
}

// Descriptions of what is served: where, in which way, and for which reason.

/// Describes what a configuration would serve.
fn describe(config: &Config) -> String {
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
    let Tuning { depth, coalesce, merge, hard_limit, poll, submitter } = config.tuning;
    let depth = depth.map_or("the device's (default)".into(), |d| d.to_string());
    let poll = (poll != Poll::AUTO).then(|| poll.to_string());
    let threads = (submitter == Submitter::Kernel).then(|| "2".into());
    for (key, value) in [
        ("policy", Some(policy(config))),
        ("emulate", config.emulate.clone()),
        ("depth", Some(depth)),
        ("coalesce", Some(format!("{} sectors", coalesce.get()))),
        ("merge at arrival", merge.then(|| "on".into())),
        ("hard limit", Some(hard_limit.to_string())),
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
    match config.unconfined {
        true => "off".into(),
        false if folders.is_empty() => "on".into(),
        false => format!("on, images also in {}", folders.join(", ")),
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
fn served(daemon: &Daemon, config: &Config, is_default_folder: bool) -> String {
    let host = daemon.host();
    let mut text = String::new();
    let default = |is_set: bool| if is_set { "" } else { " (default)" };
    for (device, status) in host.statuses() {
        let (policy, depth) = (&status.policy, status.depth);
        let (of_policy, of_depth) =
            (default(config.policy.is_some()), default(config.tuning.depth.is_some()));
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
