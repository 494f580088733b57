//! Arguments of `seekway predict`.

use super::{LoadArgs, OutArgs};
use clap::Args;
use std::path::PathBuf;

/// What a load would get from another disk, under each policy
///
/// Puts the load through each policy on a model of that disk, which need not be
/// there, and ranks the policies by service time, response time and throughput.
/// The load is traces, generated VMs, or the guests of a running `seekway serve
/// --emulate PROFILE`. With --against it also says how far the prediction is off.
/// See docs/predict.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway predict --trace vm.vscsi --outstanding 8 --on fitted.toml
  seekway predict --vm app=sysbench:mode=RR --on linear-15k4 --against cheetah-15k4 --seeds 5
  seekway predict --on cheetah-15k5 --against drives/cheetah15k5/random.trace
  seekway predict --trace vm.vscsi --on fitted.toml --against measured.json
  seekway predict --live /run/seekway/control.sock --policies cfq,deadline --window 60s")]
pub struct PredictArgs {
    #[command(flatten)]
    pub load: LoadArgs,
    /// The disk to predict: a profile (`seekway device list`), with changes as
    /// `NAME:key=value,…`, or a profile file, as `seekway calibrate` writes it
    #[arg(long, value_name = "PROFILE", help_heading = "Prediction")]
    pub on: Option<String>,
    /// How good it is: another profile (a more detailed model of that disk), a
    /// measured trace of it (`DiskSim`'s validation format; it is the load then),
    /// or a JSON file with what a real run measured
    #[arg(long, value_name = "WHAT", help_heading = "Prediction")]
    pub against: Option<String>,
    /// `all`, or policies with their parameters: `noop,cfq:quantum=4,slice_idle=0`
    /// [default: those of the real run that --against names, else all]
    #[arg(long, value_name = "LIST", help_heading = "Prediction")]
    pub policies: Option<String>,
    /// First seed of generated loads
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Prediction")]
    pub seed: u64,
    /// Run with so many seeds, from --seed on
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Prediction")]
    pub seeds: u64,
    /// Stop each run at this simulated time [default: when the load ends, or after 60s if
    /// a VM's load does not end by itself]
    #[arg(long, value_name = "TIME", help_heading = "Prediction")]
    pub until: Option<String>,
    /// Adjacent requests are coalesced up to this size; 0 never
    #[arg(long, value_name = "SIZE", default_value = "512KiB", help_heading = "Prediction")]
    pub coalesce: String,
    /// A request that has waited longer is served whatever the policy says
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "Prediction")]
    pub hard_limit: String,
    #[command(flatten)]
    pub live: LivePredictArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

/// Guests of a running daemon instead of a simulated load.
#[derive(Args, Debug)]
#[command(next_help_heading = "Live guests")]
pub struct LivePredictArgs {
    /// The control socket of a running `seekway serve`: its guests are the load,
    /// its emulated disk is the one to predict. Each policy is put in charge in
    /// turn; the one of before comes back at the end
    #[arg(long, value_name = "SOCKET")]
    pub live: Option<PathBuf>,
    /// Which of the daemon's devices, where it has several
    #[arg(long, value_name = "NAME", requires = "live")]
    pub device: Option<String>,
    /// How long each policy is measured at a time
    #[arg(long, value_name = "TIME", default_value = "20s", requires = "live")]
    pub window: String,
    /// How long each policy is in charge before it is measured
    #[arg(long, value_name = "TIME", default_value = "3s", requires = "live")]
    pub settle: String,
    /// Go round all policies so often (A B A B), so that drift hits all alike
    #[arg(long, value_name = "N", default_value_t = 2, requires = "live")]
    pub rounds: u64,
}
