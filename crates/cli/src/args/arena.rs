//! `arena`: every policy in every scene.

use super::{DiskArgs, LoadArgs, OutArgs};
use crate::complete;
use clap::Args;
use std::str::FromStr;

/// Put every policy through every scene and print one scoreboard
///
/// A scene is some VMs on a modelled device: a quiet VM beside a flood, a hundred equal
/// VMs, a boot storm, on disks, flash and cloud volumes. In each scene and measure a policy's
/// regret is its distance from the best of all policies, 0 to 1; the scoreboard shows
/// each policy's mean and worst regret. Everyday scenes, in which VMs come late, pause, read
/// ahead or ask for much at once, have a scoreboard of their own. See docs/arena.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway arena
  seekway arena --scenes 'nvme/*,*/flood' --policies noop,cfq,vmcd-time --details
  seekway arena --scenes all --drawn 20261127 --seeds 5
  seekway arena --policy cfq:low_latency=false --report arena.html
  seekway arena --trace vm1.vscsi --trace vm2.vscsi --device seagate-1tb-7200
  seekway arena --list")]
pub struct ArenaArgs {
    /// Scenes by name, with `*` and commas: `'disk/*,*/flood'` [default: all, or none
    /// beside a load of your own, --drawn or --drawn-everyday]
    #[arg(long, value_name = "GLOB")]
    pub scenes: Option<String>,
    /// Also run scenes that this seed draws, and score them by themselves. 60 scenes unless
    /// COUNT is given
    #[arg(long, value_name = "SEED[:COUNT]")]
    pub drawn: Option<Drawn>,
    /// Also run everyday scenes that this seed draws, and score them by themselves
    #[arg(long, value_name = "SEED[:COUNT]")]
    pub drawn_everyday: Option<Drawn>,
    /// List the scenes and run nothing
    #[arg(long)]
    pub list: bool,
    /// Policies with their parameters (`noop,cfq:quantum=4,slice_idle=0`), or `all`: beside the
    /// arena's own scenes, iocost, kyber and bfq then run a second time, as an operator would
    /// set them for each device
    #[arg(long, value_name = "LIST", default_value = "all", add = complete::policies())]
    pub policies: String,
    /// Also run this policy (repeatable)
    #[arg(long = "policy", value_name = "SPEC", add = complete::policy())]
    pub extra: Vec<String>,
    /// First seed of generated loads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of seeds. The figures are their means; the spread of each mean regret is shown
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seeds: u64,
    /// Run a tenth of each scene's time: to see whether it runs, not what it gives
    #[arg(long)]
    pub quick: bool,
    /// Also print every scene
    #[arg(long)]
    pub details: bool,
    /// Also show the CPU time of a request, simulator and device model included. It is
    /// measured, so it differs from run to run
    #[arg(long)]
    pub cpu: bool,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    /// Stop the runs of your own load at this simulated time [default: when it ends, or
    /// after 60s if a VM's load does not end by itself]
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    #[command(flatten)]
    pub out: OutArgs,
}

/// Scenes that a seed draws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drawn {
    pub seed: u64,
    pub count: u32,
}

impl Drawn {
    const COUNT_DEFAULT: u32 = 60;
    const COUNT_MAX: u32 = 10_000;
}

impl FromStr for Drawn {
    type Err = String;

    fn from_str(text: &str) -> Result<Drawn, String> {
        let (seed, count) = match text.split_once(':') {
            Some((seed, count)) => (seed, count.parse().ok()),
            None => (text, Some(Drawn::COUNT_DEFAULT)),
        };
        let count = count.filter(|count| (1..=Drawn::COUNT_MAX).contains(count));
        seed.parse().ok().zip(count).map(|(seed, count)| Drawn { seed, count }).ok_or_else(|| {
            format!(
                "expected SEED or SEED:COUNT, such as 20261127:60; at most {}",
                Drawn::COUNT_MAX
            )
        })
    }
}
