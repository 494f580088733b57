//! Arguments of `seekway calibrate`.

use crate::args::Format;
use clap::{Args, ValueEnum};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Make a device profile from a real disk, a file on it, or a measured trace
///
/// Fits service = R/2 + S·(distance/D) to single requests, finds the time of a
/// cache hit, and says how good the fit is. A disk, or a file on one, is read at
/// random places with O_DIRECT, one read at a time; nothing is written
/// to it unless --overwrite says so. A trace needs no disk: it holds measured times, in `DiskSim`'s
/// validation format, `R|W Hit|Miss lbn sectors service_us gap_us`.
///
/// With --flash it fits the model of a flash drive instead, to reads and, with
/// --overwrite, writes of 4 KiB to 1 MiB at depths 1 to 128, each beside a quiet reader.
/// See docs/calibrate.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway calibrate /dev/sdb --profile sdb.toml --report sdb.html
  seekway calibrate /srv/images/web.img --reads 2000 --time-max 1min
  seekway calibrate random.trace --averaged --format json
  seekway calibrate --flash /dev/nvme1n1 --profile nvme.toml
  seekway calibrate --flash /srv/spare.img --overwrite --quick
  seekway compare --trace vm.vscsi --device ./sdb.toml")]
pub struct CalibrateArgs {
    /// A block device, a file on the disk to measure, or a measured trace; `-` reads
    /// a trace from standard input
    #[arg(value_name = "DEVICE|FILE|TRACE")]
    pub what: PathBuf,
    /// Kind of input, if its first bytes do not tell
    #[arg(long = "as", value_enum, default_value = "auto")]
    pub kind: Kind,
    /// Write the profile to this file, for --device and `serve --emulate`
    #[arg(long, value_name = "FILE.toml")]
    pub profile: Option<PathBuf>,
    /// Name of the profile [default: the file's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Revolutions per minute, if known; recorded in the profile for policies
    #[arg(long, value_name = "RPM", value_parser = clap::value_parser!(u32).range(60..=100_000))]
    pub rpm: Option<u32>,
    #[command(flatten)]
    pub measuring: MeasuringArgs,
    #[command(flatten)]
    pub fitting: FittingArgs,
    #[command(flatten)]
    pub flash: FlashArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "table", help_heading = "Output")]
    pub format: Format,
    /// Also write an HTML report: the line, the points and the histogram; of a flash drive, tables
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub report: Option<PathBuf>,
}

/// Kind of input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// Detected from its type and first bytes.
    Auto,
    /// A measured trace.
    Trace,
    /// A disk, or a file on the disk to measure.
    Disk,
}

/// Options for measuring a disk.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measuring a disk")]
pub struct MeasuringArgs {
    /// Number of random reads
    #[arg(long, value_name = "N", default_value = "10000")]
    pub reads: NonZeroU32,
    /// Size of each read
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub block: String,
    /// Stop reading after this time and fit the reads done
    #[arg(long, value_name = "TIME", default_value = "5min")]
    pub time_max: String,
    /// Seed of the random places
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Options for measuring a flash drive.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measuring a flash drive")]
pub struct FlashArgs {
    /// Fit the flash model: 8 minutes of random reads of several sizes and depths, half an hour
    /// with --overwrite
    #[arg(long, conflicts_with_all = [
        "kind", "rpm", "reads", "block", "time_max", "one_line", "averaged", "beyond",
    ])]
    pub flash: bool,
    /// Measure writes too. They DESTROY what the file or device holds
    #[arg(long, requires = "flash")]
    pub overwrite: bool,
    /// Shorter loads, and fewer: 90 s, three minutes with --overwrite
    #[arg(long, requires = "flash")]
    pub quick: bool,
    /// Time of each load, 100ms to 1h [default: 37.5s, or 7.5s with --quick]
    #[arg(long, value_name = "TIME", requires = "flash")]
    pub cell_time: Option<String>,
}

/// Options for fitting the line.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Fitting")]
pub struct FittingArgs {
    /// One line for all requests, as the throttle paper has it: no times of their own for
    /// places near the head and for writes that the disk's write cache answers
    #[arg(long)]
    pub one_line: bool,
    /// Fit the moving average over 1001 requests, as the throttle paper does, instead
    /// of the requests themselves
    #[arg(long)]
    pub averaged: bool,
    /// Leave out requests within this distance of their predecessor's end
    #[arg(long, value_name = "SIZE", default_value = "500KiB")]
    pub beyond: String,
}
