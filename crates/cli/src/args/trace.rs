//! Arguments of `seekway advise` and `seekway inspect`.

use super::{DiskArgs, Format, OutArgs, ReadingArgs};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Recommend a policy for traces and a disk
///
/// Runs every policy with its defaults, recommends one, and says by how much it
/// is better and for whom it is worse.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway advise vm.vscsi db.csv --device cheetah-15k5
  blktrace -d /dev/sdb -w 60 -o - | seekway advise - --goal tail")]
pub struct AdviseArgs {
    /// Traces, one VM each; `-` reads standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// What to optimise
    #[arg(long, value_enum, default_value = "response")]
    pub goal: Goal,
    #[command(flatten)]
    pub reading: ReadingArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    /// Stretch the traces' times by this factor (2: half the speed, 0.5: double)
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub time_scale: f64,
    /// Ignore the traces' clock; each VM keeps this many requests outstanding
    #[arg(long, value_name = "N", conflicts_with = "time_scale")]
    pub outstanding: Option<u32>,
    /// Placement of the VMs on the disk (see `compare`)
    #[arg(long, value_name = "PLACE", default_value = "packed")]
    pub map: String,
    #[command(flatten)]
    pub out: OutArgs,
}

/// The measure that `advise` optimises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Goal {
    /// Mean response time.
    Response,
    /// The response time that 99 % stay below.
    Tail,
    /// Bytes per second.
    Throughput,
    /// Jain's index over the VMs' slowdowns.
    Fairness,
}

/// Show what Pregather's model sees in a trace
///
/// Feeds the traces to the vNavigator model, one for each VM, in windows of the
/// trace's own time, and shows hot zones and predicted intervals.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway inspect vm.vscsi --report model.html
  seekway inspect vm.vscsi --at 12.5s --at 60s --format json")]
pub struct InspectArgs {
    /// Traces, one VM each; `-` reads standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Show the model at this time of the trace (repeatable)
    #[arg(long = "at", value_name = "TIME")]
    pub at: Vec<String>,
    /// Size of a zone (sectors, or bytes with a unit)
    #[arg(long, value_name = "SIZE", default_value = "2000")]
    pub zone: String,
    /// Factor by which a zone's density decays from window to window
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub lambda: f64,
    /// Length of a window
    #[arg(long, value_name = "TIME", default_value = "20ms")]
    pub window: String,
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
    /// Also write an HTML report with a heat map for each VM
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}
