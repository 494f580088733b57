//! `seekway serve`: the host daemon.

use crate::args::ServeArgs;
use crate::promises;
use crate::{Verdict, output};
use anyhow::{Context, Result, bail};
use seekway_hostd::config::{self, Config, DiskConfig, Settings, TlsConfig};
use seekway_hostd::daemon::{
    self, Daemon, Inherited, NotifyState, POLICY_DEFAULT, StartOptions, VhostAt,
};
use seekway_policy::units::Nanos;
use std::fmt::Write as _;
use std::os::unix::fs::FileTypeExt;

/// The only disk's name, where `--blk-file` gives none.
const ONLY_NAME: &str = "disk";
/// What the conventions for vhost-user back ends ask for
/// (`VHostUserBackendCapabilities` in QEMU's docs/interop/vhost-user.json).
const CAPABILITIES: &str = r#"{"type": "block", "features": ["read-only", "blk-file"]}"#;

pub fn run(args: &ServeArgs) -> Result<Verdict> {
    if args.backend.print_capabilities {
        output::print(&format!("{CAPABILITIES}\n"))?;
        return Ok(Verdict::Done);
    }
    let config = settings(args).resolve()?;
    if args.check_config {
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

fn serve(args: &ServeArgs, config: Config) -> Result<Verdict> {
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
    if !reachable && vhost.is_none() {
        bail!("nowhere to serve: give --listen DIR, --nbd ADDRESS:PORT or --socket-path PATH");
    }
    if config.disks.is_empty() && config.control_path().is_none() {
        bail!("nothing to serve: give --disk NAME=PATH (or --listen DIR, to attach disks later)");
    }
    warn(&config);
    daemon::prepare_process();
    let daemon = Daemon::start(config, StartOptions { sockets, vhost })?;
    daemon.end_by_signals().context("cannot handle signals")?;
    // Whoever started us may not read it; guests do not mind.
    let _ = output::print(&served(&daemon));
    if let Err(e) = daemon::notify(&[NotifyState::Ready]) {
        seekway_hostd::log::say(&format!("cannot tell the service manager that all is ready: {e}"));
    }
    daemon.run()?;
    Ok(Verdict::Done)
}

/// The file's settings, and the flags' after them.
fn settings(args: &ServeArgs) -> Settings {
    let mut settings = args.config.as_deref().map(config::read).unwrap_or_default();
    let mut flags = Settings::default();
    let (schedule, cache, reach) = (&args.schedule, &args.cache, &args.reach);
    let set = |flag: bool| flag.then(|| "true".to_string());
    let (required, cache_lock) = (set(reach.tls_required), set(cache.cache_lock));
    for (key, value) in [
        ("policy", &schedule.policy),
        ("emulate", &schedule.emulate),
        ("depth", &schedule.depth),
        ("coalesce", &schedule.coalesce),
        ("hard_limit", &schedule.hard_limit),
        ("poll", &schedule.poll),
        ("cache", &cache.cache),
        ("prefetch", &cache.prefetch),
        ("cache_lock", &cache_lock),
        ("bandwidth", &cache.bandwidth),
        ("journal", &schedule.journal),
        ("listen", &reach.listen),
        ("control", &reach.control),
        ("metrics", &reach.metrics),
        ("nbd", &reach.nbd),
        ("tls.cert", &reach.tls_cert),
        ("tls.key", &reach.tls_key),
        ("tls.client_ca", &reach.tls_client_ca),
        ("tls.required", &required),
    ] {
        if let Some(text) = value {
            flags.flag(key, text);
        }
    }
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

/// What would be wrong with images and certificates. Locks and sockets are left
/// alone: the daemon that has them may be running.
fn check(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    for DiskConfig { name, path, read_only, .. } in &config.disks {
        let opened = std::fs::OpenOptions::new().read(true).write(!read_only).open(path);
        let about = opened.and_then(|file| file.metadata());
        match about {
            Err(e) => problems.push(format!("disk {name}: {}: {e}", path.display())),
            Ok(about) if about.file_type().is_block_device() => {}
            Ok(about) if !about.is_file() => problems.push(format!(
                "disk {name}: {}: neither a file nor a block device",
                path.display()
            )),
            Ok(about) if about.len() < 512 => {
                problems.push(format!("disk {name}: {}: less than a sector", path.display()));
            }
            Ok(_) => {}
        }
    }
    if let Err(e) = daemon::check_tls(config) {
        problems.push(e.to_string());
    }
    problems
}

/// Warn of what the policy does not keep.
fn warn(config: &Config) {
    let policy = config.policy.as_deref().unwrap_or(POLICY_DEFAULT);
    let disks = config.disks.iter().map(|disk| ("disk", disk.name.as_str(), &disk.limits.limits));
    let groups = config.groups.iter().map(|group| ("group", group.name.as_str(), &group.limits));
    for (what, name, limits) in disks.chain(groups) {
        let keys = promises::not_kept(policy, [limits]);
        if !keys.is_empty() {
            let (keys, keepers) = (keys.join(", "), promises::keepers());
            eprintln!(
                "warning: {what} {name}: policy {policy} does not keep {keys}; {keepers} does"
            );
        }
    }
}

/// What a configuration would serve.
fn describe(config: &Config) -> String {
    let mut text = String::new();
    for disk in &config.disks {
        let _ = write!(text, "disk {}: {}, weight {}", disk.name, disk.path.display(), disk.weight);
        for (set, word) in [
            (disk.read_only, "read-only"),
            (disk.buffered, "buffered"),
            (disk.accept_lost_writes, "accepting lost writes"),
            (!disk.cache && config.cache_bytes.is_some(), "past the cache"),
        ] {
            text += &if set { format!(", {word}") } else { String::new() };
        }
        if let Some(lba) = disk.lba {
            let _ = write!(text, ", from sector {lba}");
        }
        if !disk.limits.is_none() {
            let _ = write!(text, ", limits {}", disk.limits);
        }
        if let Some(fault) = &disk.fault {
            let _ = write!(text, ", with faults: {fault}");
        }
        text.push('\n');
        if let Some(folder) = &config.listen {
            let socket = |kind: &str| folder.join(format!("{}.{kind}", disk.name));
            let (vhost, nbd) = (socket("vhost"), socket("nbd"));
            let _ = writeln!(text, "  {}\n  {}", vhost.display(), nbd.display());
        }
    }
    for group in &config.groups {
        let _ = writeln!(text, "group {}: limits {}", group.name, group.limits);
    }
    let shown = |p: std::path::PathBuf| p.display().to_string();
    let default = POLICY_DEFAULT.to_string();
    let depth = config.depth.map_or("the device's".into(), |d| d.to_string());
    let poll = config.poll.map(|d| Nanos::new(d.as_nanos() as u64).to_string());
    for (key, value) in [
        ("policy", Some(config.policy.clone().unwrap_or(default))),
        ("emulate", config.emulate.clone()),
        ("depth", Some(depth)),
        ("coalesce", Some(format!("{} sectors", config.coalesce.get()))),
        ("hard limit", Some(config.hard_limit.to_string())),
        ("poll", poll),
        ("cache", config.cache_bytes.map(|bytes| cache_of(config, bytes))),
        ("journal", config.journal.clone().map(shown)),
        ("control", config.control_path().map(shown)),
        ("metrics", config.metrics.map(|a| format!("http://{a}/metrics"))),
        ("nbd", config.nbd.map(|a| format!("nbd://{a}/{}", tls_word(&config.tls)))),
    ] {
        if let Some(value) = value {
            let _ = writeln!(text, "{key}: {value}");
        }
    }
    text
}

/// The cache of each device in words.
fn cache_of(config: &Config, bytes: u64) -> String {
    let locked = if config.cache_lock { ", locked in memory" } else { "" };
    let mut text =
        format!("{bytes} bytes for each device{locked}, prefetch {}", config.prefetcher());
    if let Some(bytes_per_s) = config.bandwidth_bytes_per_s {
        let _ = write!(text, ", {bytes_per_s} bytes/s");
    }
    text
}

fn tls_word(tls: &TlsConfig) -> &'static str {
    match tls {
        TlsConfig { cert: None, .. } => "",
        TlsConfig { required: false, .. } => " (TLS offered)",
        TlsConfig { required: true, .. } => " (TLS required)",
    }
}

/// What is served, once it is.
fn served(daemon: &Daemon) -> String {
    let host = daemon.host();
    let mut text = String::new();
    for (device, status) in host.statuses() {
        let _ = writeln!(text, "device {}: {}, depth {}", device.name, status.policy, status.depth);
        for disk in host.disks().iter().filter(|d| std::sync::Arc::ptr_eq(&d.device, &device)) {
            let _ = writeln!(text, "  {}: {}", disk.config.name, disk.config.path.display());
            for (kind, address) in host.addresses(Some(disk)) {
                let _ = writeln!(text, "    {kind}: {address}");
            }
        }
    }
    for (kind, address) in host.addresses(None) {
        let _ = writeln!(text, "{kind}: {address}");
    }
    text + "ready\n"
}
