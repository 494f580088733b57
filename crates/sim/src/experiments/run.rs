//! Running one cell of an experiment with one seed.

use super::{Cell, HostSetup, Scenario};
use crate::engine::{Host, Limits, Progress, Setup, run};
use crate::layout::{Layout, Placement};
use crate::metrics::RunResult;
use crate::vcpu::Machine;
use seekway_device::profile;
use seekway_policy::cache;
use seekway_policy::dispatcher::Config;
use seekway_policy::schedulers;
use seekway_policy::stack::limit::{DiskLimits, parse_group};
use seekway_policy::units::{Instant, Nanos};
use seekway_workload::Source;
use seekway_workload::generators::{VmPlan, parse_vm};
use std::fmt::Display;

/// Run `cell` with `seed`. The error says what could not be built or run.
pub fn run_cell(cell: &Cell, seed: u64, progress: Progress<'_>) -> Result<RunResult, String> {
    let Scenario { settle, until, .. } = cell.scenario.as_ref();
    let at = |span: &Nanos| Instant::ZERO + *span;
    let settle = Some(settle).filter(|s| **s > Nanos::ZERO).map(at);
    let limits = Limits { settle, until: until.as_ref().map(at), requests: None };
    let mut machine = machine(cell, seed)?;
    let sources = match &mut machine {
        Some(machine) => vec![Box::new(machine) as Box<dyn Source + '_>],
        None => sources(cell, seed)?,
    };
    let setup = setup(cell, &sources)?;
    let made = run(sources, setup, limits, progress);
    let (mut result, _) = made.map_err(|e| what(cell, &e))?;
    let end = settle.unwrap_or(Instant::ZERO) + result.simulated;
    result.machine = machine.map(|mut machine| machine.result(end));
    Ok(result)
}

/// The machine of a cell, if it has one.
fn machine(cell: &Cell, seed: u64) -> Result<Option<Machine>, String> {
    let policy = cell.vcpu.as_deref().unwrap_or("vanilla");
    let from = Instant::ZERO + cell.scenario.settle;
    let Scenario { machine, processors, .. } = cell.scenario.as_ref();
    let machine = match (machine, processors) {
        (None, None) => return Ok(None),
        (Some(_), _) if cell.scenario.until.is_none() => {
            return Err(what(cell, &"a machine runs for ever: say until when"));
        }
        (Some(spec), _) => Machine::new(spec, policy, seed, from),
        (None, Some(processors)) => {
            let plans = plans(cell)?;
            let plans: Vec<(u16, &VmPlan)> = (0..).zip(&plans).collect();
            Machine::of_plans(processors, &plans, policy, seed, from)
        }
    };
    machine.map(Some).map_err(|e| what(cell, &e))
}

/// The VMs of a cell, as their texts describe them.
fn plans(cell: &Cell) -> Result<Vec<VmPlan>, String> {
    let plan = |text: &String| parse_vm(text).map_err(|e| what(cell, &e));
    cell.scenario.vms.iter().map(plan).collect()
}

/// An error, and the cell that it is of.
fn what(cell: &Cell, error: &dyn Display) -> String {
    let with = cell.prefetch.iter().map(|p| format!(" with {p}")).collect::<String>();
    format!("{}, {}{with}: {error}", cell.scenario.name, cell.policy)
}

/// Can the cell be run?
#[cfg(test)]
pub(super) fn check(cell: &Cell) -> Result<(), String> {
    let mut machine = machine(cell, 1)?;
    let sources = match &mut machine {
        Some(machine) => vec![Box::new(machine) as Box<dyn Source + '_>],
        None => sources(cell, 1)?,
    };
    setup(cell, &sources).map(drop)
}

/// Sources of a cell without a machine.
fn sources(cell: &Cell, seed: u64) -> Result<Vec<Box<dyn Source>>, String> {
    let source =
        |(n, plan): (usize, &VmPlan)| plan.source(seed, n as u16).map_err(|e| what(cell, &e));
    plans(cell)?.iter().enumerate().map(source).collect()
}

/// The limits of each disk of a cell's VMs.
fn limits(cell: &Cell) -> Result<Vec<DiskLimits>, String> {
    let given = cell.scenario.limits.iter();
    let given = given.map(|text| DiskLimits::parse(text).map_err(|e| what(cell, &e)));
    let planned = plans(cell)?;
    let planned = planned.iter().flat_map(|plan| plan.limits_by_disk().cloned());
    planned.map(Ok).chain(given).collect()
}

/// What a cell needs besides its sources.
fn setup(cell: &Cell, sources: &[Box<dyn Source + '_>]) -> Result<Setup, String> {
    let scenario = &cell.scenario;
    let what = |e: &dyn Display| what(cell, e);
    let profile = profile::load(&scenario.device).map_err(|e| what(&e))?;
    let device = profile.build();
    let disks: Vec<_> = sources.iter().flat_map(|s| s.vms().to_vec()).collect();
    let placement = if scenario.files { Placement::Ext3 } else { Placement::Packed };
    let layout = Layout::place(&disks, device.profile().capacity, &placement(scenario.place))
        .map_err(|e| what(&e))?;
    let HostSetup { cache_bytes, costs } = scenario.host;
    let host = |spec: &String| {
        let cache = cache::Config::new(cache_bytes);
        Host::new(cache, spec, costs, profile.build()).map_err(|e| what(&e))
    };
    Ok(Setup {
        host: cell.prefetch.as_ref().map(host).transpose()?,
        scheduler: schedulers::build(&cell.policy).map_err(|e| what(&e))?,
        device,
        config: Config { coalesce: scenario.coalesce, ..Config::default() },
        layout,
        weights: scenario.weights.clone(),
        limits: limits(cell)?,
        groups: scenario
            .groups
            .iter()
            .map(|g| parse_group(g))
            .collect::<Result<_, _>>()
            .map_err(|e| what(&e))?,
        journal: None,
    })
}
