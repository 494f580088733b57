//! `--fair-to private`: each VM alone on a disk of its own, as many times slower as there are
//! VMs, with a part of the processors' time and of the host cache. What a VM has in a run over
//! what it has there is its progress.

use crate::json::{CompareReport, Demands, PrivateRun, PrivateVm, Run, Vm};
use crate::load::distinct;
use crate::runs::{Outcome, Stage};
use anyhow::{Context, Result, bail};
use seekway_core::units::Instant;
use seekway_device::slowed::SLOW_MAX;
use seekway_report::html::Block;
use seekway_report::plot::{Axis, BarSeries, Bars};
use seekway_sim::metrics::{ms, per_second};
use seekway_sim::progress::{geometric_mean, progress, reaches};
use seekway_sim::scenario::{Alone, Load, Scenario};
use seekway_sim::{Layout, RunResult};
use std::ops::Range;

/// The private disks of a load's VMs.
pub struct PrivateDisks {
    /// By VM: how many times slower its disk is.
    slow: Vec<u32>,
    /// By VM: the first that is alike, with a disk that is as slow.
    like: Vec<usize>,
    /// Of the VMs that differ, by what the rest of the stack is; none before [`PrivateDisks::run`].
    runs: Vec<Outcome>,
}

/// The private disks.
///
/// # Errors
/// The VMs have none: there is one VM, they cannot be run alone or are not to be, or a disk is
/// not a whole number of times slower.
pub fn check(stage: &Stage<'_>, stacks: &[Scenario], alone: Alone) -> Result<PrivateDisks> {
    let load = &stage.ready.load;
    let vms = load.source_count();
    if !load.can_split() {
        bail!(
            "--fair-to private: a trace has several volumes, which cannot be run one at a time; \
             give one --trace for each VM"
        );
    }
    if vms < 2 {
        bail!(
            "--fair-to private: one VM has the whole disk; give at least two, with --trace or --vm"
        );
    }
    if stacks.iter().any(|run| run.only.is_some() || run.has_others()) {
        bail!("fair_to = \"private\": all VMs have to run; leave out only and cpu.part");
    }
    if alone == Alone::Never {
        bail!("--fair-to private runs each VM alone, and --alone never forbids that: drop one");
    }
    let slow = times_slower(load)?;
    let alike = first_alike(stage)?;
    let same = |a: usize, b: usize| alike[a] == alike[b] && slow[a] == slow[b];
    let first = |vm| (0..vm).find(|&other| same(other, vm)).unwrap_or(vm);
    let like: Vec<usize> = (0..vms).map(first).collect();
    let different = (0..vms).filter(|&vm| like[vm] == vm).count();
    if alone == Alone::Auto && different > DIFFERENT_MAX {
        bail!(
            "--fair-to private: {different} different VMs, each of which runs once more for each \
             seed, cache and host; --alone always runs more than {DIFFERENT_MAX}"
        );
    }
    Ok(PrivateDisks { slow, like, runs: Vec::new() })
}

/// Slowdown of each VM's disk: by weights, if there are any; a VM with several disks has the weight
/// of the first.
fn times_slower(load: &Load) -> Result<Vec<u32>> {
    let vms = load.source_count();
    let weight = |vm| {
        let first = load.disks_of(vm).start;
        load.weights.get(first).map_or(1, |weight| u64::from(weight.get()))
    };
    let all: u64 = (0..vms).map(weight).sum();
    let disk = |vm| {
        let (name, own) = (&load.disks[load.disks_of(vm).start].name, weight(vm));
        if !all.is_multiple_of(own) {
            bail!(
                "--fair-to private: VM {name} has weight {own} of {all}, and a private disk is a \
                 whole number of times slower; choose weights that divide their sum, such as 1,1,2"
            );
        }
        let slow = u32::try_from(all / own).ok().filter(|slow| *slow <= SLOW_MAX);
        slow.with_context(|| {
            format!(
                "--fair-to private: the disk of VM {name} would be {} times slower, at most \
                 {SLOW_MAX} is possible; give fewer VMs or nearer weights",
                all / own
            )
        })
    };
    (0..vms).map(disk).collect()
}

impl PrivateDisks {
    /// Runs each different VM on its private disk, for each run of `beside` beside which that
    /// differs.
    pub fn run(&mut self, stage: &Stage<'_>, beside: &[Scenario]) -> Result<()> {
        let different: Vec<usize> =
            (0..self.like.len()).filter(|&vm| self.like[vm] == vm).collect();
        let load = &stage.ready.load;
        let of_run = |run| different.iter().map(|&vm| self.disk_of(load, run, vm)).collect();
        let runs: Vec<Vec<Scenario>> = distinct(beside.iter().map(of_run));
        self.runs = stage.run_all(&runs.concat(), &indicatif::ProgressBar::hidden())?;
        Ok(())
    }

    /// A VM's private disk beside a run.
    fn disk_of(&self, load: &Load, run: &Scenario, vm: usize) -> Scenario {
        let vms = self.slow.len() as u32;
        run.private(vm, self.slow[vm], vms, load.guest_number(vm).is_some())
    }

    /// Adds what `outcome`, which `run` shows, is beside the private disks.
    pub fn judge(&self, run: &mut Run, outcome: &Outcome, demands: &Demands, load: &Load) {
        let mut all: Vec<(f64, String)> = Vec::new();
        for (vm, &like) in self.like.iter().enumerate() {
            let private = self.disk_of(load, &outcome.scenario, like);
            let is_of = |o: &&Outcome| o.scenario.only == Some(like) && o.scenario == private;
            let private = &self.runs.iter().find(is_of).expect("each was run").result;
            let disks = load.disks_of(vm);
            let own = 0..disks.len();
            let by_apps = app_bytes(private, &own) > 0;
            let reached = has_all(&outcome.result, &disks, demands);
            let mib_s = rate(private, &own, by_apps);
            let got = rate(&outcome.result, &disks, by_apps);
            let progress = progress(got, mib_s, reached);
            let name = &load.disks[disks.start].name;
            all.extend(progress.map(|progress| (progress, name.clone())));
            for (n, disk) in disks.enumerate() {
                let p99_ms = ms(private.vms[n].response.value_at_quantile(0.99));
                let ours = run.vms[disk].response_ms.p99;
                run.vms[disk].private = Some(PrivateVm {
                    slow: self.slow[vm],
                    mib_s,
                    p99_ms,
                    progress,
                    p99_over_private: (p99_ms > 0.0).then(|| ours / p99_ms),
                });
            }
        }
        let least = all.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        run.private = Some(PrivateRun {
            least_progress: least.map(|(progress, _)| *progress),
            least_progress_vm: least.map(|(_, name)| name.clone()),
            mean_progress: geometric_mean(all.iter().map(|(progress, _)| *progress)),
        });
    }
}

/// Has the VM on these disks what it asks for: what it offers, or what it gets alone on the whole
/// disk? That is so of a load with a rate that it reaches.
fn has_all(result: &RunResult, disks: &Range<usize>, demands: &Demands) -> bool {
    let Demands::Known(demands) = demands else { return false };
    let got: f64 = result.vms[disks.clone()].iter().map(|disk| disk.mib_s()).sum();
    demands.get(disks.clone()).is_some_and(|asked| reaches(got, asked.iter().sum()))
}

fn app_bytes(result: &RunResult, disks: &Range<usize>) -> u64 {
    let apps = result.apps.iter().filter(|app| disks.contains(&usize::from(app.vm)));
    apps.map(|app| app.bytes).sum()
}

/// MiB/s of the VM on these disks, of its applications or else of its requests.
fn rate(result: &RunResult, disks: &Range<usize>, by_apps: bool) -> f64 {
    let vms = &result.vms[disks.clone()];
    if !by_apps {
        return vms.iter().map(|disk| disk.mib_s()).sum();
    }
    let ended: Option<Vec<Instant>> = vms.iter().map(|disk| disk.ended).collect();
    let ended = ended.and_then(|all| all.into_iter().max());
    let span = ended.map_or(result.simulated, |at| at.since(Instant::ZERO));
    per_second(app_bytes(result, disks) as f64 / f64::from(1 << 20), span)
}

/// VMs that a figure shows in their order.
const VMS_IN_ORDER: usize = 8;

/// One bar for each VM and run, against the private disk; of the runs with this seed. Of many VMs
/// the one that a run hurts most comes first.
pub fn figure(compared: &CompareReport, seed: u64) -> Option<Block> {
    let runs: Vec<&Run> =
        compared.runs.iter().filter(|run| run.seed == seed && run.private.is_some()).collect();
    let vms = &runs.first()?.vms;
    let progress = |vm: &Vm| vm.private.as_ref()?.progress;
    let mut order: Vec<usize> = (0..vms.len()).collect();
    if vms.len() > VMS_IN_ORDER {
        let of = |n: usize| runs.iter().filter_map(move |run| progress(&run.vms[n]));
        let least = |n: &usize| of(*n).fold(f64::INFINITY, f64::min);
        order.sort_by(|a, b| least(a).total_cmp(&least(b)));
    }
    let series = |run: &&Run| BarSeries {
        name: run.label.clone(),
        bars: order.iter().map(|n| progress(&run.vms[*n]).map(Into::into)).collect(),
        reference: false,
    };
    let line = BarSeries {
        name: "a private disk".into(),
        bars: vec![Some(1.0.into()); vms.len()],
        reference: true,
    };
    let bars = Bars {
        axis: Axis::linear("progress", ""),
        groups: order.iter().map(|n| vms[*n].name.clone()).collect(),
        series: runs.iter().map(series).chain([line]).collect(),
    };
    let mut caption = "What each VM has over what a disk of its own would give it, as many times \
                       slower as there are VMs. At 1 it loses nothing by sharing."
        .to_string();
    if vms.len() > VMS_IN_ORDER {
        caption += " The VM that a run hurts most comes first.";
    }
    Some(Block::figure(bars.render(), caption))
}

// Demand of each VM, which the fairness figures are judged against. In an open loop that is known;
// otherwise the VM runs alone on the disk itself: under noop, without host cache, shared
// processors and agent, with the limits of the run that is judged. So runs with different caches,
// prefetchers, hosts and agents are judged by one yardstick: a cache that raises the throughput of
// a VM does not raise its demand. Limits are not part of the host but of the demand of a VM.

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
