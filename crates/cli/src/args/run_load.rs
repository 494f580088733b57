//! Arguments of `seekway load`.

use super::FormatArgs;
use clap::Args;
use std::path::PathBuf;

/// Run a generated load on a real disk or file, with O_DIRECT
///
/// The load, with its model of the guest's page cache and think times, is the
/// simulator's; the disk is real. Without --write it only reads.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway load --vm image=1g,app=fio:rw=randread,direct=true,size=512m --on disk.img --for 10s
  seekway load --vm image=64g,tags=true,app=surge:direct=true --on /dev/vda --settle 3s --for 20s")]
pub struct RunLoadArgs {
    /// The VM: `image=1g,app=fio:rw=randread,direct=true` (see `seekway list loads`)
    #[arg(long, value_name = "SPEC")]
    pub vm: String,
    /// Block device or file to load, at least as large as the VM's image
    #[arg(long, value_name = "PATH")]
    pub on: PathBuf,
    /// Time to measure [default: until the load ends]
    #[arg(long = "for", value_name = "TIME")]
    pub window: Option<String>,
    /// Time to run before the measurement begins
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub settle: String,
    /// Seed of the generated load
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Most requests outstanding at once
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: u32,
    /// Allow writes; they DESTROY the data on the disk
    #[arg(long)]
    pub write: bool,
    #[command(flatten)]
    pub out: FormatArgs,
}
