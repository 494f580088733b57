//! `ctl`: what a daemon is asked and told.

use super::Format;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Ask or tell a running `seekway serve`
///
/// The same as JSON, a line each way, over the socket: docs/serve.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway ctl status
  seekway ctl policy cfq:slice_idle=4ms
  seekway ctl prefetch vio:interval=continuous
  seekway ctl attach db=/images/db.img,weight=4
  seekway ctl limit db iops=2000,bandwidth=100MiB,group=tenant1
  seekway ctl limit --group tenant1 none
  seekway ctl resize db 20GiB
  seekway ctl --socket /run/other/control.sock metrics")]
pub struct CtlArgs {
    /// The control socket
    #[arg(long, value_name = "PATH", default_value = "/run/seekway/control.sock", global = true)]
    pub socket: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// What can be asked of a daemon.
#[derive(Subcommand, Debug)]
pub enum CtlCommand {
    /// How devices and disks stand
    Status {
        /// How the result is printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Another policy, or other parameters: what is queued stays
    Policy {
        /// `NAME:key=value,…` (`seekway policy list`)
        #[arg(value_name = "SPEC")]
        policy: String,
        /// For this device alone (see `status`)
        #[arg(long, value_name = "DEVICE")]
        device: Option<String>,
    },
    /// Another prefetcher, or other parameters: what is cached stays
    Prefetch {
        /// `NAME:key=value,…` (`seekway prefetcher list`); `none` reads nothing ahead
        #[arg(value_name = "SPEC")]
        prefetcher: String,
        /// For this device alone (see `status`)
        #[arg(long, value_name = "DEVICE")]
        device: Option<String>,
    },
    /// Another share for a disk
    Weight {
        /// Its name
        #[arg(value_name = "DISK")]
        disk: String,
        /// Relative to the others', from 1
        #[arg(value_name = "N")]
        weight: std::num::NonZeroU32,
    },
    /// Other rate limits for a disk, or for a group: all that it has is replaced
    #[command(allow_missing_positional = true)]
    Limit {
        /// The disk's name
        #[arg(value_name = "DISK", required_unless_present = "group", conflicts_with = "group")]
        disk: Option<String>,
        /// `iops=2000,bandwidth=100MiB,…` as for `serve --disk`, for a disk with
        /// `group=NAME` if it shall be in one; `none` lifts all
        #[arg(value_name = "LIMITS", required = true)]
        limits: String,
        /// The group's name, in place of a disk's
        #[arg(long, value_name = "NAME")]
        group: Option<String>,
    },
    /// Serve one more disk
    Attach {
        /// As for `serve --disk`
        #[arg(value_name = "NAME=PATH[,…]")]
        disk: String,
    },
    /// Stop serving a disk: its guests lose it
    Detach {
        /// Its name
        #[arg(value_name = "DISK")]
        disk: String,
    },
    /// Tell guests of a disk's new size, and make it first if one is given
    Resize {
        /// Its name
        #[arg(value_name = "DISK")]
        disk: String,
        /// Bytes with a unit (`20GiB`), or sectors; the image's size as it is
        /// now unless given
        #[arg(value_name = "SIZE")]
        size: Option<String>,
        /// It may become smaller; what lies beyond is lost
        #[arg(long, requires = "size")]
        shrink: bool,
    },
    /// The metrics, as Prometheus reads them
    Metrics,
}
