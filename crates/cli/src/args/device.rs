//! `device`: the models of disks.

use super::Format;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Models of disks
#[derive(Subcommand, Debug)]
pub enum DeviceCommand {
    /// The profiles there are
    List {
        /// How the result is printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// A profile as TOML, with the source of every figure
    Show {
        /// Its name
        name: String,
    },
    Validate(ValidateArgs),
}

/// Compare a model with a measured drive's trace, or with published figures
///
/// With a trace: replays it and prints the demerit figure (RMS horizontal
/// distance between the two distributions of response times) and both means.
/// Without one, for solid-state drives: runs the maker's tests on the model,
/// sequential reads and writes of 128 KiB and random ones of 4 KiB.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway device validate cheetah-15k5 --trace ../shared/traces/drives/cheetah15k5/random.trace
  seekway device validate intel-320")]
pub struct ValidateArgs {
    /// The profile
    pub profile: String,
    /// A measured trace: `R|W Hit|Miss lbn sectors service_us interarrival_us`.
    /// Without it a solid-state drive is held against the figures that its
    /// maker published, and the exit status is 1 when one is off by more than 15 %
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Exit with 1 when the demerit figure is above this
    #[arg(long, value_name = "MS", requires = "trace")]
    pub max_demerit: Option<f64>,
    /// How the result is printed
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
}
