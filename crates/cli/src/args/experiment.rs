//! `experiment`: the papers' experiments.

use super::{ListArgs, OutArgs, PrefetchArgs};
use crate::complete;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Reproduce the papers' experiments
#[derive(Subcommand, Debug)]
pub enum ExperimentCommand {
    /// List the experiments
    List(ListArgs),
    Run(Box<ExperimentArgs>),
}

/// Run experiments and judge every row against the paper
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway experiment run pregather-read --report read.html
  seekway experiment run 'pregather-*' --seeds 2 --format json
  seekway experiment run all --policy cfq:low_latency=false
  seekway experiment run pregather-read --prefetch vio --cache 512MiB
  seekway experiment run migrate-scale --vcpu vmigrater:literal=true
  seekway experiment run arena --scenes 'nvme/*'
  seekway experiment run noisy --live --scenes 'intel-x25m-g2/*'
  seekway experiment run together --scenes 'SATA*' --seeds 1")]
pub struct ExperimentArgs {
    /// A name, a pattern with `*`, or `all`
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Number of seeds [default: 5; 1 for arena]
    #[arg(long, value_name = "N")]
    pub seeds: Option<u64>,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also run this policy
    #[arg(long, value_name = "SPEC", add = complete::policy())]
    pub policy: Option<String>,
    /// Also run this policy for vCPUs (`seekway vcpu list`) in the experiments whose
    /// VMs have vCPUs (`migrate-*`); parameters as `NAME:key=value,…`
    #[arg(long, value_name = "SPEC", add = complete::vcpu_policy())]
    pub vcpu: Option<String>,
    #[command(flatten)]
    pub prefetch: PrefetchArgs,
    /// arena: the scenes by name, with `*` and commas (`seekway arena --list`);
    /// noisy: DEVICE/FLOOD, such as `intel-x25m-g2/*` or `disk/writes`; together: the disks,
    /// such as `SATA*`, or one scene, such as `7200 rpm, flood`
    #[arg(long, value_name = "GLOB")]
    pub scenes: Option<String>,
    /// Run a tenth of the work: to see whether it runs, not what it gives
    #[arg(long)]
    pub quick: bool,
    /// Run on real QEMU guests beside the simulator: pregather-read, vmcd-fair-sizes,
    /// vio-procs, cats-direct, vpt-rank or together; migrate-live runs in guests only, noisy
    /// with clients instead of guests. Starts `seekway-lab`, beside this program or in PATH
    #[arg(long, conflicts_with = "seeds")]
    pub live: bool,
    /// With --live: run the guests by KVM instead of emulating them
    #[arg(long, requires = "live")]
    pub kvm: bool,
    #[command(flatten)]
    pub noisy: NoisyArgs,
    #[command(flatten)]
    pub out: OutArgs,
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
    /// The same as arguments for `seekway-lab`.
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
