//! `compare`: one load, several policies.

use super::{DiskArgs, LoadArgs, OutArgs, PrefetchArgs};
use clap::Args;
use std::path::PathBuf;

/// Put a load through several policies on one disk
///
/// Every policy serves the same load on the same model. What each VM gets, and
/// all together, is printed as a table, JSON or CSV; --report writes a page with
/// figures that needs no network.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway compare --trace vm.vscsi --trace db.csv --device seagate-1tb-7200 --report out.html
  seekway compare --vm name=a,app=sysbench:mode=SR --vm name=b,app=sysbench:mode=RR --until 60s
  seekway compare --vm name=a,iops=50,app=sysbench:mode=RR --vm name=b,app=sysbench:mode=SR --until 60s
  seekway compare --trace t.blktrace.0 --policies noop,cfq:slice_idle=4ms,pregather --format json
  seekway compare --trace vm.vscsi --device intel-320 --policies noop --prefetch none,vio --cache 2GiB")]
pub struct CompareArgs {
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    /// `all`, or policies with their parameters: `noop,cfq:quantum=4,slice_idle=0`
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub policies: String,
    #[command(flatten)]
    pub prefetch: PrefetchArgs,
    /// First seed of generated loads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Run with so many seeds, from --seed on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seeds: u64,
    /// Stop each run at this simulated time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    #[command(flatten)]
    pub out: OutArgs,
    /// Write each run's decisions into this folder, for `seekway replay`
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
}
