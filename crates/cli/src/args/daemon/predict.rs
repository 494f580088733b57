//! Arguments of `seekway predict`.

use crate::args::{LoadArgs, OutArgs, PrefetchArgs};
use crate::complete;
use clap::Args;
use std::path::PathBuf;

/// Predict what a load would get from another disk, under each policy
///
/// Runs the load under each policy on a model of that disk and ranks the policies by
/// service time, response time and throughput. You do not need the disk. The load
/// is traces, generated VMs, or the guests of a running `seekway serve --emulate
/// PROFILE`. With --cache a host cache lies in front of the disk. With --against it also prints the error of the prediction. See
/// docs/predict.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway predict --trace vm.vscsi --outstanding 8 --on fitted.toml
  seekway predict --vm app=sysbench:mode=RR --on linear-15k4 --against cheetah-15k4 --seeds 5
  seekway predict --trace vm.vscsi --on intel-320 --cache none,2GiB --prefetch vio
  seekway predict --on cheetah-15k5 --against drives/cheetah15k5/random.trace
  seekway predict --trace vm.vscsi --on fitted.toml --against measured.json
  seekway predict --live /run/seekway/control.sock --policies cfq,deadline --window 60s")]
pub struct PredictArgs {
    #[command(flatten)]
    pub load: LoadArgs,
    /// Model of the disk to predict: a profile (`seekway device list`), with changes as
    /// `NAME:key=value,…`, or a profile file, as `seekway calibrate` writes it
    #[arg(long, value_name = "PROFILE", help_heading = "Prediction", add = complete::profiles())]
    pub on: Option<String>,
    /// Compare the prediction with another profile (a more detailed model of that
    /// disk), with a measured trace of the disk (`DiskSim`'s validation format; this
    /// trace is then the load), or with a JSON file of a real run's measurements
    #[arg(long, value_name = "WHAT", help_heading = "Prediction")]
    pub against: Option<String>,
    /// `all`, or policies with parameters: `noop,cfq:quantum=4,slice_idle=0`
    /// [default: those of the real run in --against, else all]
    #[arg(long, value_name = "LIST", help_heading = "Prediction", add = complete::policies())]
    pub policies: Option<String>,
    /// First seed of generated loads
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Prediction")]
    pub seed: u64,
    /// Number of seeds to run with, starting at --seed
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Prediction")]
    pub seeds: u64,
    /// Stop each run at this simulated time [default: when the load ends, or after 60s if
    /// a VM's load does not end by itself]
    #[arg(long, value_name = "TIME", help_heading = "Prediction")]
    pub until: Option<String>,
    /// Coalesce adjacent requests up to this size, at most 1MiB; 0 turns it off
    #[arg(long, value_name = "SIZE", default_value = "512KiB", help_heading = "Prediction")]
    pub coalesce: String,
    /// Serve a request that has waited this long, whatever the policy decides
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "Prediction")]
    pub hard_limit: String,
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
