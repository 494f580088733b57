//! `experiment`: experiments on real guests.

use super::{Format, ListArgs};
use crate::complete;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run experiments on real guests
#[derive(Subcommand, Debug)]
pub enum ExperimentCommand {
    /// List the experiments
    List(ListArgs),
    Run(Box<ExperimentArgs>),
}

/// Run an experiment on real QEMU guests, beside the simulator with the same loads
///
/// Starts `seekway-live`, beside this program or in PATH. In the simulator alone the papers'
/// experiments are studies of the laboratory: `scripts/lab list`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway experiment run pregather-read --live --report read.html
  seekway experiment run migrate-live --live --vcpu vmigrater:literal=true
  seekway experiment run noisy --live --scenes 'intel-x25m-g2/*'
  seekway experiment run together --live --scenes 'SATA*'")]
pub struct ExperimentArgs {
    /// Name of the experiment (`seekway experiment list`)
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Run it for real
    #[arg(long)]
    pub live: bool,
    /// Seed of the loads and of where files lie
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also run this policy
    #[arg(long, value_name = "SPEC", add = complete::policy())]
    pub policy: Option<String>,
    /// migrate-live: the policy for vCPUs (`seekway vcpu list`) that the guests' agents run;
    /// parameters as `NAME:key=value,…`
    #[arg(long, value_name = "SPEC", add = complete::vcpu_policy())]
    pub vcpu: Option<String>,
    /// noisy: DEVICE/FLOOD with `*` and commas, such as `intel-x25m-g2/*` or `disk/writes`;
    /// together: the disks, `SATA SSD` or `7200 rpm`
    #[arg(long, value_name = "GLOB")]
    pub scenes: Option<String>,
    /// Measure for a short time: shows whether it runs, gives no result
    #[arg(long)]
    pub quick: bool,
    /// Run the guests by KVM instead of emulating them
    #[arg(long)]
    pub kvm: bool,
    #[command(flatten)]
    pub noisy: NoisyArgs,
    /// Output format
    #[arg(long, visible_alias = "output", value_enum, default_value = "table")]
    pub format: Format,
    /// Also write an HTML report: one file that needs no network
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// What `noisy --live` measures, and for how long.
#[derive(Args, Debug, Default, PartialEq)]
#[command(next_help_heading = "For noisy --live")]
pub struct NoisyArgs {
    /// Servers to measure, separated by commas: noop, cfq, kyber, iocost, fairway,
    /// qemu-storage-daemon, throttled (the same with the flood behind a throttle
    /// group) [default: all; noop always runs]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub servers: Vec<String>,
    /// Length of each measurement in seconds, 0.1 to 60, after half of it that is
    /// not counted [default: 1; 0.3 with --quick]
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Measurements of each figure, 1 to 100 [default: 3; 1 with --quick]
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Folder on the disk that the rows `disk` measure [default: the folder for
    /// temporary files]
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
}

impl NoisyArgs {
    /// These options as arguments of `seekway-live`.
    pub fn to_args(&self) -> Vec<OsString> {
        let given: [(&str, Option<OsString>); 4] = [
            ("--servers", (!self.servers.is_empty()).then(|| self.servers.join(",").into())),
            ("--seconds", self.seconds.map(|seconds| seconds.to_string().into())),
            ("--rounds", self.rounds.map(|rounds| rounds.to_string().into())),
            ("--work-dir", self.work_dir.clone().map(Into::into)),
        ];
        given
            .into_iter()
            .filter_map(|(flag, value)| Some([flag.into(), value?]))
            .flatten()
            .collect()
    }
}
