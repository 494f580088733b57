//! Arguments of `seekway advise` and `seekway inspect`.

use super::{DiskArgs, FormatArgs, OutArgs, PaceArgs, PrefetchArgs, ReadingArgs};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Recommend a policy for traces and a disk
///
/// First says whether the disk can carry the load at all: under the best policy, are 99 %
/// of each VM's requests answered within --p99-limit, and is none forced out at
/// --hard-limit or kept from the queue? If not, it says how much of the load the disk
/// carries and which modelled disks carry all of it. Then it runs every policy with its
/// defaults, recommends one, and says who loses by it. Of policies that are equal (closer
/// than 2 percent) the first in `seekway list policies` is taken; policies that make a request
/// wait past --hard-limit come last.
///
/// With --cache or --prefetch it ranks stacks: every policy with each cache and prefetcher,
/// with each cache alone, and without a cache. It says what of the gain is the cache's.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway advise vm.vscsi db.csv --device cheetah-15k5
  blktrace -d /dev/sdb -w 60 -o - | seekway advise - --for latency
  seekway advise vm.vscsi db.csv --cache 512MiB,2GiB --prefetch vio --for latency")]
pub struct AdviseArgs {
    /// Traces, one VM each; `-` reads standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Goal to judge policies by
    #[arg(long = "for", value_enum, value_name = "GOAL", default_value = "balance")]
    pub goal: Goal,
    /// Replaced by --for
    #[arg(long = "goal", hide = true, value_parser = refuse_goal)]
    pub replaced_goal: Option<String>,
    /// The disk carries a load if 99 % of each VM's requests take at most this long
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub p99_limit: String,
    #[command(flatten)]
    pub reading: ReadingArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    #[command(flatten)]
    pub prefetch: PrefetchArgs,
    #[command(flatten)]
    pub pace: PaceArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

fn refuse_goal(_: &str) -> Result<String, String> {
    Err("it is now --for latency, throughput, fairness or balance".into())
}

/// Goal by which `advise` judges policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Goal {
    /// p99 of the VM that comes off worst, over what it has alone
    Latency,
    /// MiB a second of all VMs together
    Throughput,
    /// Speed of the VM that comes off worst, as a share of what it has alone
    Fairness,
    /// Mean distance from the best policy in these three
    Balance,
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
    /// Size of a zone
    #[arg(long, value_name = "SIZE", default_value = "1000KiB")]
    pub zone: String,
    /// Factor by which a zone's density decays from window to window
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub lambda: f64,
    /// Length of a window
    #[arg(long, value_name = "TIME", default_value = "20ms")]
    pub window: String,
    #[command(flatten)]
    pub reading: ReadingArgs,
    #[command(flatten)]
    pub out: FormatArgs,
    /// Also write an HTML report with a heat map for each VM
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}
