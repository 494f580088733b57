//! Arguments of `seekway doctor`.

use crate::args::FormatArgs;
use clap::Args;
use std::path::PathBuf;

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
