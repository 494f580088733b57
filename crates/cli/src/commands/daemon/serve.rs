//! `seekway serve`: the host daemon.

mod words;

use crate::args::{BackendArgs, ServeArgs};
use crate::promises;
use crate::{Verdict, output};
use anyhow::{Context, Result, anyhow, bail};
use seekway_hostd::config::{self, CacheSize, Config, DiskConfig, Settings};
use seekway_hostd::control::Token;
use seekway_hostd::daemon::{
    self, Daemon, Inherited, NotifyState, POLICY_DEFAULT, StartOptions, VhostAt,
};
use seekway_hostd::log;
use std::os::unix::fs::FileTypeExt;

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
        output::print(&words::describe(&config))?;
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
    let _ = output::print(&words::served(&daemon, &config, is_default_folder));
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
        let keys = promises::not_kept(policy, [limits]);
        if !keys.is_empty() {
            let (keys, keepers) = (keys.join(", "), promises::keepers());
            eprintln!(
                "warning: {what} {name}: policy {policy} does not keep {keys}; {keepers} does"
            );
        }
    }
}
