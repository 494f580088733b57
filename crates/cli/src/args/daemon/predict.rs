//! Arguments of `seekway predict`.

use crate::args::{DispatchArgs, LoadArgs, OutArgs, PrefetchArgs, RunsArgs};
use crate::complete;
use clap::Args;
use std::path::PathBuf;

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
    /// `published` figures of a solid-state drive (all of pure loads and of 70 % reads within 15 %,
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
