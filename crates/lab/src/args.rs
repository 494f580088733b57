//! The command line.

use anyhow::Result;
use clap::Parser;
use seekway_cli::{Format, NoisyArgs, programs};
use seekway_live::Accelerator;
use std::path::PathBuf;

/// Run an experiment on real QEMU guests, beside the simulator
///
/// `seekway experiment run NAME --live` starts this program.
#[derive(Parser, Debug)]
#[command(
    name = "seekway-live",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Example:
  seekway-live pregather-read --report live.html

Exit status 1 when a row is not accepted, 2 for wrong usage, input or output."
)]
pub struct LabArgs {
    /// pregather-read, cats-direct, vpt-rank, vmcd-fair-sizes, vio-procs, migrate-live, noisy or
    /// together
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Also run this policy (`seekway policy list`)
    #[arg(long, value_name = "SPEC")]
    pub policy: Option<String>,
    /// The policy for vCPUs (`seekway vcpu list`) that migrate-live's agent runs
    #[arg(long, value_name = "SPEC")]
    pub vcpu: Option<String>,
    /// Seed of the loads and of where files lie
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Measure for a short time: shows whether it runs, gives no result
    #[arg(long)]
    pub quick: bool,
    /// Run the guests by KVM instead of emulating them
    #[arg(long)]
    pub kvm: bool,
    /// The `seekway` program whose `serve` is run [default: beside this program, else in PATH]
    #[arg(long, value_name = "FILE")]
    pub daemon: Option<PathBuf>,
    /// noisy: DEVICE/FLOOD with `*` and commas, such as `intel-x25m-g2/*` or `disk/writes`;
    /// together: the disks, `SATA SSD` or `7200 rpm`
    #[arg(long, value_name = "GLOB")]
    pub scenes: Option<String>,
    #[command(flatten)]
    pub noisy: NoisyArgs,
    /// How the result is printed
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
    /// Also write an HTML report, one file, readable without a network
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

impl LabArgs {
    /// The program whose `serve` is run.
    pub fn daemon(&self) -> Result<PathBuf> {
        self.daemon.clone().map_or_else(|| programs::find("seekway", "seekway"), Ok)
    }

    /// What runs the guests.
    pub fn accelerator(&self) -> Accelerator {
        if self.kvm { Accelerator::Kvm } else { Accelerator::Tcg }
    }

    /// Scenes that match `--scenes`.
    pub fn pattern(&self) -> &str {
        self.scenes.as_deref().unwrap_or("*")
    }

    /// Returns whether `--scenes` asks for this scene.
    pub fn wants(&self, scene: &str) -> bool {
        self.pattern().split(',').any(|pattern| glob(pattern.trim().as_bytes(), scene.as_bytes()))
    }

    /// `policies`, and the user's own where it is not one of them.
    pub fn policies(&self, policies: &[&str]) -> Vec<String> {
        let own = self.policy.as_deref().filter(|own| !policies.contains(own));
        policies.iter().copied().chain(own).map(String::from).collect()
    }
}

/// Does `name` match `pattern`, in which `*` stands for anything?
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|n| glob(rest, &name[n..])),
        Some((c, rest)) => name.first() == Some(c) && glob(rest, &name[1..]),
    }
}
