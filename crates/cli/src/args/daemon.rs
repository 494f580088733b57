//! Commands that serve disks, ask who serves them, or measure a disk. They need the daemon's code.

use crate::args::{DispatchArgs, Format, FormatArgs, LoadArgs, OutArgs, PrefetchArgs, RunsArgs};
use crate::complete;
use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, Subcommand, ValueEnum,
};
use seekway_hostd::config::{Config, Key, OPTIONS, SETTINGS, Settings, flag};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Which daemon is asked.
#[derive(Args, Debug)]
pub struct SocketArgs {
    /// Path of the daemon's control socket [default: /run/seekway/control.sock for root,
    /// $XDG_RUNTIME_DIR/seekway/control.sock for others]
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
}

/// The commands of the feature `daemon`.
#[derive(Subcommand, Debug)]
pub enum DaemonCommand {
    Calibrate(CalibrateArgs),
    Predict(Box<PredictArgs>),
    Serve(Box<ServeArgs>),
    Ctl(CtlArgs),
    Top(TopArgs),
    Doctor(DoctorArgs),
}

// Arguments of `seekway doctor`.

/// Check what on this host stands in the way of `seekway serve`, and how to fix it
///
/// Looks at the kernel, io_uring, KVM, limits, the sockets' folder, the images, and the scheduler
/// of the disks below them. It changes nothing, and may run while a daemon serves. Run it as the
/// user that runs the daemon: rights and limits are those of the user who asks.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway doctor
  seekway doctor --disk web=web.img
  sudo -u seekway seekway doctor --config /etc/seekway/serve.toml
  seekway doctor --format json

Exit status: 0 if serving works (there may be warnings), 1 if there is a problem, 2 for wrong
usage or settings.")]
pub struct DoctorArgs {
    /// Check for these settings, as for `serve --config`
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Check for this disk, as for `serve --disk` (repeatable)
    #[arg(long = "disk", value_name = "NAME=PATH[,…]")]
    pub disks: Vec<String>,
    #[command(flatten)]
    pub out: FormatArgs,
}

// Arguments of `seekway top`.

/// Watch a running `seekway serve`: devices, disks, and who waits for whom
///
/// On a terminal it draws once a second, and keys sort and change settings (`?` shows them).
/// Elsewhere it prints one picture as text.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway top
  seekway top --interval 5s --socket /run/other/control.sock
  seekway top --once | mail -s disks operator

Colours follow NO_COLOR. Exit status: 0, 2 if the daemon or the terminal cannot be reached.")]
pub struct TopArgs {
    #[command(flatten)]
    pub daemon: SocketArgs,
    /// Time from one look to the next, 100ms to an hour
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: String,
    /// Print one picture as text and exit
    #[arg(long)]
    pub once: bool,
}

// Arguments of `seekway predict`.

/// Predict what a load would get from another disk, under each policy
///
/// Runs the load under each policy on a model of that disk and ranks the policies by
/// service time, response time and throughput. You do not need the disk. The load
/// is traces, generated VMs, or the guests of a running `seekway serve --emulate
/// PROFILE`. With --cache a host cache lies in front of the disk. With --against it also prints
/// the error of the prediction. See docs/predict.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway predict --trace vm.vscsi --outstanding 8 --on fitted.toml
  seekway predict --vm app=sysbench:mode=RR --on linear-15k4 --against cheetah-15k4 --seeds 5
  seekway predict --trace vm.vscsi --on intel-320 --cache none,2GiB --prefetch vio
  seekway predict --on cheetah-15k5 --against drives/cheetah15k5/random.trace
  seekway predict --on intel-320 --against published
  seekway predict --trace vm.vscsi --on fitted.toml --against measured.json
  seekway predict --live /run/seekway/control.sock --policies cfq,deadline --window 60s")]
pub struct PredictArgs {
    #[command(flatten)]
    pub load: LoadArgs,
    /// Model of the disk to predict: a profile (`seekway list devices`), with changes as
    /// `NAME:key=value,…`, or a profile file, as `seekway calibrate` writes it
    #[arg(long, value_name = "PROFILE", help_heading = "Prediction", add = complete::profiles())]
    pub on: Option<String>,
    /// Compare the prediction with another profile (a more detailed model of that
    /// disk), with a measured trace of the disk (`DiskSim`'s validation format; this
    /// trace is then the load), with a JSON file of a real run's measurements, or with the
    /// `published` figures of the disk (all of pure loads and of 70 % reads within 15 %,
    /// other mixes and response times within 25 %; exit status 1 if one is missed)
    #[arg(long, value_name = "WHAT", help_heading = "Prediction")]
    pub against: Option<String>,
    #[command(flatten, next_help_heading = "Prediction")]
    pub dispatch: DispatchArgs,
    #[command(flatten)]
    pub runs: RunsArgs,
    #[command(flatten)]
    pub prefetch: PrefetchArgs,
    #[command(flatten)]
    pub live: LivePredictArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

/// Guests of a running daemon instead of a simulated load.
#[derive(Args, Debug)]
#[command(next_help_heading = "Live guests")]
pub struct LivePredictArgs {
    /// Control socket of a running `seekway serve`: its guests are the load, and its
    /// emulated disk is the disk to predict. Each policy runs in turn; the original
    /// policy is set again at the end
    #[arg(long, value_name = "SOCKET")]
    pub live: Option<PathBuf>,
    /// Device of the daemon, if it has several
    #[arg(long, value_name = "NAME", requires = "live")]
    pub device: Option<String>,
    /// Time to measure each policy in each round
    #[arg(long, value_name = "TIME", default_value = "20s", requires = "live")]
    pub window: String,
    /// Time to run each policy before it is measured
    #[arg(long, value_name = "TIME", default_value = "3s", requires = "live")]
    pub settle: String,
    /// Number of rounds over all policies (A B A B), so that drift affects all alike
    #[arg(long, value_name = "N", default_value_t = 2, requires = "live")]
    pub rounds: u64,
}

// Arguments of `seekway calibrate`.

/// Make a device profile from a real disk, a file on it, or a measured trace
///
/// Fits service = R/2 + S·(distance/D) to single requests, finds the time of a
/// cache hit, and says how good the fit is. A disk, or a file on one, is read at
/// random places with O_DIRECT, one read at a time; nothing is written
/// to it unless --overwrite says so. A trace needs no disk: it holds measured times, in `DiskSim`'s
/// validation format, `R|W Hit|Miss lbn sectors service_us gap_us`.
///
/// With --flash it fits the model of a flash drive instead, to reads and, with
/// --overwrite, writes of 4 KiB to 1 MiB at depths 1 to 128, each beside a quiet reader.
/// See docs/calibrate.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway calibrate /dev/sdb --profile sdb.toml --report sdb.html
  seekway calibrate /srv/images/web.img --reads 2000 --time-max 1min
  seekway calibrate random.trace --averaged --format json
  seekway calibrate --flash /dev/nvme1n1 --profile nvme.toml
  seekway calibrate --flash /srv/spare.img --overwrite --quick
  seekway compare --trace vm.vscsi --device ./sdb.toml")]
pub struct CalibrateArgs {
    /// A block device, a file on the disk to measure, or a measured trace; `-` reads
    /// a trace from standard input
    #[arg(value_name = "DEVICE|FILE|TRACE")]
    pub what: PathBuf,
    /// Kind of input, if its first bytes do not tell
    #[arg(long = "as", value_enum, default_value = "auto")]
    pub kind: Kind,
    /// Write the profile to this file, for --device and `serve --emulate`
    #[arg(long, value_name = "FILE.toml")]
    pub profile: Option<PathBuf>,
    /// Name of the profile [default: the file's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Revolutions per minute, if known; recorded in the profile for policies
    #[arg(long, value_name = "RPM", value_parser = clap::value_parser!(u32).range(60..=100_000))]
    pub rpm: Option<u32>,
    #[command(flatten)]
    pub measuring: MeasuringArgs,
    #[command(flatten)]
    pub fitting: FittingArgs,
    #[command(flatten)]
    pub flash: FlashArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "table", help_heading = "Output")]
    pub format: Format,
    /// Also write an HTML report: the line, the points and the histogram; of a flash drive, tables
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub report: Option<PathBuf>,
}

/// Kind of input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// Detected from its type and first bytes.
    Auto,
    /// A measured trace.
    Trace,
    /// A disk, or a file on the disk to measure.
    Disk,
}

/// Options for measuring a disk.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measuring a disk")]
pub struct MeasuringArgs {
    /// Number of random reads
    #[arg(long, value_name = "N", default_value = "10000")]
    pub reads: NonZeroU32,
    /// Size of each read
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub block: String,
    /// Stop reading after this time and fit the reads done
    #[arg(long, value_name = "TIME", default_value = "5min")]
    pub time_max: String,
    /// Seed of the random places
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Options for measuring a flash drive.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measuring a flash drive")]
pub struct FlashArgs {
    /// Fit the flash model: 8 minutes of random reads of several sizes and depths, half an hour
    /// with --overwrite
    #[arg(long, conflicts_with_all = [
        "kind", "rpm", "reads", "block", "time_max", "one_line", "averaged", "beyond",
    ])]
    pub flash: bool,
    /// Measure writes too. They DESTROY what the file or device holds
    #[arg(long, requires = "flash")]
    pub overwrite: bool,
    /// Shorter loads, and fewer: 90 s, three minutes with --overwrite
    #[arg(long, requires = "flash")]
    pub quick: bool,
    /// Time of each load, 100ms to 1h [default: 37.5s, or 7.5s with --quick]
    #[arg(long, value_name = "TIME", requires = "flash")]
    pub cell_time: Option<String>,
}

/// Options for fitting the line.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Fitting")]
pub struct FittingArgs {
    /// One line for all requests, as the throttle paper has it: no times of their own for
    /// places near the head and for writes that the disk's write cache answers
    #[arg(long)]
    pub one_line: bool,
    /// Fit the moving average over 1001 requests, as the throttle paper does, instead
    /// of the requests themselves
    #[arg(long)]
    pub averaged: bool,
    /// Leave out requests within this distance of their predecessor's end
    #[arg(long, value_name = "SIZE", default_value = "500KiB")]
    pub beyond: String,
}

// Arguments of `seekway ctl`.

/// Query or change a running `seekway serve`
///
/// Programs can use the control socket directly; it takes one line of JSON for each
/// command: docs/json.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway ctl status
  seekway ctl policy cfq:slice_idle=4ms
  seekway ctl prefetch vio:interval=continuous
  seekway ctl cache 512MiB
  seekway ctl attach db=/images/db.img,weight=4
  seekway ctl limit db iops=2000,bandwidth=100MiB,group=tenant1
  seekway ctl limit --group tenant1 none
  seekway ctl resize db 20GiB
  seekway ctl slow --over 100ms
  seekway ctl freeze web -- cp --reflink=always web.img web.snapshot.img
  seekway ctl --socket /run/other/control.sock metrics")]
pub struct CtlArgs {
    #[command(flatten)]
    pub daemon: SocketArgs,
    /// Output format; with `json`, commands that change something print the daemon's answer
    #[arg(long, visible_alias = "output", value_enum, default_value = "table", global = true)]
    pub format: Format,
    /// Command
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// The commands of a daemon.
#[derive(Subcommand, Debug)]
pub enum CtlCommand {
    /// Show the state of devices and disks
    Status,
    /// Change the policy or its parameters; queued requests stay
    Policy {
        /// `NAME:key=value,…` (`seekway list policies`)
        #[arg(value_name = "SPEC", add = complete::policy())]
        policy: String,
        /// Change only this device (see `status`)
        #[arg(long, value_name = "DEVICE", add = complete::daemon::devices())]
        device: Option<String>,
    },
    /// Change the prefetcher or its parameters; cached data stays
    Prefetch {
        /// `NAME:key=value,…` (`seekway list prefetchers`); `none` turns prefetching off
        #[arg(value_name = "SPEC", add = complete::prefetcher())]
        prefetcher: String,
        /// Change only this device (see `status`)
        #[arg(long, value_name = "DEVICE", add = complete::daemon::devices())]
        device: Option<String>,
    },
    /// Change the size of the caches; what no longer fits is let go, and the memory with it
    Cache {
        /// `auto`, `off`, or a size for each device, up to what the daemon was started with
        #[arg(value_name = "SIZE|auto|off")]
        size: String,
    },
    /// Change a disk's share of its device
    Weight {
        /// Name of the disk
        #[arg(value_name = "DISK", add = complete::daemon::disks())]
        disk: String,
        /// Weight relative to other disks, at least 1
        #[arg(value_name = "N")]
        weight: std::num::NonZeroU32,
    },
    /// Replace all rate limits and promises of a disk or a group
    #[command(allow_missing_positional = true)]
    Limit {
        /// Name of the disk
        #[arg(
            value_name = "DISK",
            required_unless_present = "group",
            conflicts_with = "group",
            add = complete::daemon::disks()
        )]
        disk: Option<String>,
        /// `iops=2000,reserve_iops=500,latency=2ms,group=NAME` as for `serve --disk`;
        /// `none` removes all
        #[arg(value_name = "LIMITS", required = true)]
        limits: String,
        /// Change this group's limits instead of a disk's
        #[arg(long, value_name = "NAME", add = complete::daemon::groups())]
        group: Option<String>,
    },
    /// Start serving another disk, or one of the configuration that failed when the daemon started
    Attach {
        /// The disk and its options, as for `serve --disk`; of one that failed the name alone
        #[arg(value_name = "NAME=PATH[,…]|NAME", add = complete::daemon::failed_disks())]
        disk: String,
    },
    /// Stop serving a disk; guests that use it lose it
    Detach {
        /// Name of the disk
        #[arg(value_name = "DISK", add = complete::daemon::disks())]
        disk: String,
    },
    /// Announce a disk's new size to its guests; with SIZE, resize the image first
    Resize {
        /// Name of the disk
        #[arg(value_name = "DISK", add = complete::daemon::disks())]
        disk: String,
        /// New size: `20GiB`, or a number of bytes [default: the image's present size]
        #[arg(value_name = "SIZE")]
        size: Option<String>,
        /// Allow a smaller size; data beyond it is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Show the last requests that took long, and where their time went
    Slow {
        /// Requests that took at least this time
        #[arg(long, value_name = "TIME", default_value = "100ms")]
        over: String,
        /// Only those of this disk
        #[arg(long, value_name = "DISK", add = complete::daemon::disks())]
        disk: Option<String>,
    },
    /// Take no requests of disks for a while, to take a snapshot of their images
    ///
    /// Requests under way end first. A COMMAND runs while the disks are frozen; they thaw when it
    /// ends. Without a COMMAND, they thaw by `thaw` or when the time is over.
    #[command(after_help = "Examples:
  seekway ctl freeze web -- cp --reflink=always web.img web.snapshot.img
  seekway ctl freeze web db --timeout 10s -- lvcreate --snapshot --name web-1 vg0/web")]
    Freeze {
        /// Names of the disks
        #[arg(value_name = "DISK", required = true, add = complete::daemon::disks())]
        disks: Vec<String>,
        /// They thaw by themselves then, up to a minute
        #[arg(long, value_name = "TIME", default_value = "30s")]
        timeout: String,
        /// Command to run while they are frozen
        #[arg(value_name = "COMMAND", last = true)]
        command: Vec<String>,
    },
    /// Take requests of frozen disks again
    Thaw {
        /// Names of the disks
        #[arg(value_name = "DISK", required = true, add = complete::daemon::disks())]
        disks: Vec<String>,
    },
    /// Print the metrics in Prometheus's text format
    Metrics,
}

// `serve`: the daemon.

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
         `latency=TIME` (for 99 of 100 requests). docs/limits.md has all, and what libvirt and \
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
