//! Arguments of `seekway ctl`.

use super::SocketArgs;
use crate::args::Format;
use crate::complete;
use clap::{Args, Subcommand};

/// Query or change a running `seekway serve`
///
/// Programs can use the control socket directly; it takes one line of JSON for each
/// command: docs/serve.md.
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
    /// What is under way ends first. With a COMMAND, it is run while they are frozen, and they thaw
    /// when it has ended; without one, they thaw by `thaw`, or when the time is over.
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
