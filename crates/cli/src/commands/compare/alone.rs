//! Demand of each VM, which the fairness figures are judged against. In an open loop that is known;
//! otherwise the VM runs alone on the disk itself: under noop, without host cache, shared
//! processors and agent, with the limits of the run that is judged. So runs with different caches,
//! prefetchers, hosts and agents are judged by one yardstick: a cache that raises the throughput of
//! a VM does not raise its demand. Limits are not part of the host but of the demand of a VM.

use crate::json::Demands;
use crate::runs::{Outcome, Stage};
use anyhow::Result;
use seekway_core::units::Instant;
use seekway_sim::Layout;
use seekway_sim::metrics::per_second;
use seekway_sim::scenario::{Alone, Scenario};

/// Most different VMs that `--alone auto` runs.
pub(super) const DIFFERENT_MAX: usize = 16;

/// Number of parts of equal size of a rotating disk. VMs in one part count as equally placed: the
/// outer edge of a disk is up to twice as fast as the inner one, and within an eighth the
/// difference is below a tenth on the drives that are modelled.
const PLACES: u64 = 8;

/// Below totals where runs have more than the disk itself, and VMs were run alone.
pub const NOTE: &str = "φ, Jain and max-min are judged against what each VM gets alone on the \
                        disk itself (noop, no cache, no shared processors, with the run's limits): \
                        the same for all caches, prefetchers, hosts and agents.";

/// Demand of each disk of each VM. `outcomes` are the runs of all VMs together; limits and
/// seed of the runs alone are those of `all`.
pub fn demands(stage: &Stage<'_>, outcomes: &[Outcome], all: &Scenario) -> Result<Demands> {
    let load = &stage.ready.load;
    let disks = load.disks.len();
    if disks < 2 {
        return Ok(Demands::Equal);
    }
    if load.open_loop {
        let offered = |v: &seekway_sim::VmResult| {
            let span = v.last_arrival.since(Instant::ZERO);
            per_second(v.offered_bytes as f64 / f64::from(1 << 20), span)
        };
        let vms = outcomes.first().map(|o| o.result.vms.iter().map(offered).collect());
        return Ok(vms.map_or(Demands::Equal, Demands::Known));
    }
    if load.has_tasks() {
        let why = "a VM with tasks of its own cannot be run without the host's processors";
        return Ok(Demands::Unknown(why.into()));
    }
    // Several VMs of one closed-loop trace cannot be run alone.
    if !load.can_split() {
        return Ok(Demands::Equal);
    }
    let like = first_alike(stage)?;
    let different: Vec<usize> = (0..like.len()).filter(|&vm| like[vm] == vm).collect();
    let n = different.len();
    match all.outcome.alone {
        Alone::Never => return Ok(Demands::Unknown("no VM was run alone (--alone never)".into())),
        Alone::Auto if n > DIFFERENT_MAX => {
            return Ok(Demands::Unknown(format!(
                "{n} different VMs were not run alone, as there are more than {DIFFERENT_MAX}; \
                 --alone always runs them"
            )));
        }
        Alone::Auto | Alone::Always => {}
    }
    let runs: Vec<Scenario> = different.iter().map(|&vm| all.alone(vm)).collect();
    let outcomes = stage.run_all(&runs, &indicatif::ProgressBar::hidden())?;
    let mib_s = |vm: usize| {
        let ran = different.binary_search(&vm).expect("each that differs was run");
        outcomes[ran].result.vms.iter().map(|disk| disk.mib_s())
    };
    Ok(Demands::Known(like.iter().flat_map(|&vm| mib_s(vm)).collect()))
}

/// For each VM the first that is equal to it: the same load, guest and limits, or the
/// same trace, on the same part of the disk.
pub(super) fn first_alike(stage: &Stage<'_>) -> Result<Vec<usize>> {
    let load = &stage.ready.load;
    let device = stage.ready.profile.build().profile();
    let layout = Layout::place(&load.disks, device.capacity, &load.placement)?;
    let place = |disk: usize| {
        let region = layout.region(disk);
        let middle = region.start().get() + region.len().get() / 2;
        if device.rotational() { middle * PLACES / device.capacity.get() } else { 0 }
    };
    let places = |vm: usize| load.disks_of(vm).map(place).collect::<Vec<u64>>();
    let mut different: Vec<usize> = Vec::new();
    let first = |vm| {
        let known = different.iter().find(|&&d| load.alike(d, vm) && places(d) == places(vm));
        known.copied().unwrap_or_else(|| {
            different.push(vm);
            vm
        })
    };
    Ok((0..load.source_count()).map(first).collect())
}
