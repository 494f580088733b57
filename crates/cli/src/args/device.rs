//! Arguments of `seekway device`.

use super::{Format, ListArgs};
use crate::complete;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// List, describe and validate models of disks
#[derive(Subcommand, Debug)]
pub enum DeviceCommand {
    /// List available profiles
    List(ListArgs),
    /// Print a profile as TOML, with the source of every figure
    Show {
        /// Name of the profile
        #[arg(add = complete::profiles())]
        name: String,
        /// Output format
        #[arg(long, visible_alias = "output", value_enum, default_value = "toml")]
        format: ProfileFormat,
    },
    Validate(ValidateArgs),
}

/// How a profile is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ProfileFormat {
    /// As it is kept, with its comments.
    Toml,
    /// One JSON document, without comments.
    Json,
}

/// Compare a model with a measured drive's trace, or with published figures
///
/// With a trace: replays it and prints the demerit figure (RMS horizontal
/// distance between the two distributions of response times) and both means.
/// Without one, for solid-state drives: runs the published tests on the model,
/// sequential reads and writes of 128 KiB, random ones of 4 KiB, and the mixes
/// of reads and writes that its profile lists.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway device validate cheetah-15k5 --trace random.trace
  seekway device validate intel-320")]
pub struct ValidateArgs {
    /// Name or file of the profile
    #[arg(add = complete::profiles())]
    pub profile: String,
    /// A measured trace: `R|W Hit|Miss lbn sectors service_us interarrival_us`.
    /// Without a trace, a solid-state drive is compared with its published figures;
    /// exit status 1 if one is missed: pure loads and 70 % reads by more than 15 %,
    /// other mixes and response times by more than 25 %
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Exit with status 1 if the demerit figure is above this
    #[arg(long, value_name = "MS", requires = "trace")]
    pub max_demerit: Option<f64>,
    /// Output format
    #[arg(long, visible_alias = "output", value_enum, default_value = "table")]
    pub format: Format,
}
