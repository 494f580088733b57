//! Arguments for the host's processors and the guests' agents.

use crate::complete;
use clap::Args;

/// Options for sharing the host's processors among VMs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Shared processors")]
pub struct SharingArgs {
    /// VMs' vCPUs share the processors of a host, `cpus=4,slice=11ms`; keys: cpus, slice,
    /// jitter, cut (slices in 1000 that end early), switch, completes (submitter, fixed,
    /// any, steered). Repeat it to compare hosts; `none` shares nothing [default: none]
    #[arg(long, value_name = "SPEC")]
    pub host: Vec<String>,
    /// Policies for vCPUs of the guests' agents (`seekway list vcpu`), a list or `all`;
    /// each runs on every --host [default: vanilla, which is no agent]
    #[arg(long, value_name = "LIST", add = complete::vcpu_policy())]
    pub vcpu: Option<String>,
}
