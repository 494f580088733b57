//! `serve`: the daemon.

use crate::complete;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use seekway_hostd::config::{Config, Key, OPTIONS, SETTINGS, Settings, flag};
use std::path::PathBuf;

/// Serve disks to virtual machines and schedule their requests
///
/// Each disk has two sockets: DIR/NAME.vhost for vhost-user-blk and DIR/NAME.nbd
/// for NBD. One policy schedules all requests to a device. `seekway ctl` connects
/// to DIR/control.sock. Only --disk is needed. See docs/start.md and docs/serve.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway serve --disk web=web.img --disk db=db.img
  seekway serve --disk web=web.img --disk db=db.img,weight=4 --policy pregather --listen /run/vms
  seekway serve --disk a=a.img --emulate seagate-1tb-7200:k=auto --policy cfq
  seekway serve --disk web=web.img --disk db=db.img,cache=off --cache 2GiB --prefetch vio
  seekway serve --disk db=db.img,iops=2000,iops_burst=8000,burst_length=10s
  seekway serve --disk a=a.img,group=t --disk b=b.img,group=t --group t:iops=9000
  seekway serve --config /etc/seekway/serve.toml --check-config
  seekway serve --blk-file web.img --socket-path web.sock

SIGTERM or SIGINT stops it after the requests in flight have ended; a second one
stops it at once. A disk whose image cannot be opened is left out and reported.
Exit status: 0 after a signal, 2 if the settings are wrong or no disk could be served.")]
pub struct ServeArgs {
    /// Serve a raw image or a block device under this name (repeatable)
    #[arg(long = "disk", value_name = "NAME=PATH[,…]", long_help = disk_help())]
    pub disks: Vec<String>,
    /// Limit a group of disks together, `tenant1:bandwidth=300MiB,iops=5000`
    /// (repeatable); a disk joins with `group=tenant1`. With `weight=N` the group has
    /// one share of the device, which its disks divide by their weights
    #[arg(long = "group", value_name = "NAME:LIMIT=N[,…]")]
    pub groups: Vec<String>,
    /// Read settings from this file; flags override it, and disks and groups are added
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Check the settings, print what would be served, and exit
    #[arg(long)]
    pub check_config: bool,
    #[command(flatten)]
    pub settings: SettingArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// The help of `--disk`, with all options.
fn disk_help() -> String {
    let option = |option: &Key<_>| {
        let equals = if option.value.is_empty() { "" } else { "=" };
        format!("`{}{equals}{}` ({})", option.name, option.value, option.help)
    };
    let options: Vec<String> = OPTIONS.iter().map(option).collect();
    format!(
        "Serve a raw image or a block device under this name (repeatable)\n\n\
         Options: {}. Write a comma in the path twice.\n\n\
         Rate limits: `iops=N` and `bandwidth=SIZE` per second, also as `read_iops`, \
         `write_bandwidth` and so on; `iops_burst=N` and `bandwidth_burst=SIZE` (a higher rate \
         after a quiet time) for `burst_length=TIME` [default: 1s]; `iops_size=SIZE` (a larger \
         request counts as several I/Os); `group=NAME` (see --group). Promises: \
         `reserve_iops=N` and `reserve_bandwidth=SIZE` (minimum per second), \
         `latency=TIME` (for 99 of 100 requests). docs/serve.md has all, and what libvirt and \
         QEMU call them",
        options.join(", ")
    )
}

/// A flag for each setting of the file, where it is checked.
#[derive(Debug)]
pub struct SettingArgs(pub Settings);

impl Args for SettingArgs {
    fn augment_args(command: Command) -> Command {
        let mut command = command;
        for (heading, keys) in &SETTINGS {
            command = command.args(keys.iter().map(|key| argument(key).help_heading(*heading)));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingArgs::augment_args(command)
    }
}

/// The flag of a setting.
fn argument(key: &'static Key<Config>) -> Arg {
    // clap wants names that outlive the command line.
    let flag: &'static str = flag(key.name).leak();
    let argument = Arg::new(key.name).long(flag.trim_start_matches('-')).help(key.help);
    let argument = match (key.value, key.is_list()) {
        ("", _) => argument.action(ArgAction::SetTrue),
        (value, true) => argument.value_name(value).action(ArgAction::Append),
        (value, false) => argument.value_name(value),
    };
    match key.name {
        "policy" => argument.add(complete::policy()),
        "prefetch" => argument.add(complete::prefetcher()),
        _ => argument,
    }
}

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingArgs, Error> {
        let mut settings = Settings::default();
        for key in SETTINGS.iter().flat_map(|(_, keys)| *keys) {
            if key.value.is_empty() {
                if matches.get_flag(key.name) {
                    settings.flag(key.name, "true");
                }
                continue;
            }
            for text in matches.get_many::<String>(key.name).into_iter().flatten() {
                settings.flag(key.name, text);
            }
        }
        Ok(SettingArgs(settings))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = SettingArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The conventions for vhost-user back ends, of QEMU's documentation.
#[derive(Args, Debug)]
#[command(next_help_heading = "Back end of one disk, started by a VM manager")]
pub struct BackendArgs {
    /// Serve the disk by vhost-user on this socket
    #[arg(long, value_name = "PATH")]
    pub socket_path: Option<PathBuf>,
    /// Serve the disk by vhost-user on this inherited descriptor, listening or connected
    #[arg(long, value_name = "N", conflicts_with = "socket_path")]
    pub fd: Option<i32>,
    /// Image or block device of the disk, which is named `disk`
    #[arg(long, value_name = "PATH", conflicts_with = "disks")]
    pub blk_file: Option<PathBuf>,
    /// Refuse writes to the disk
    #[arg(long, requires = "blk_file")]
    pub read_only: bool,
    /// Print the back end's capabilities as JSON, and exit
    #[arg(long)]
    pub print_capabilities: bool,
}
