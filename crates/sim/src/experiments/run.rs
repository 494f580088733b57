//! Running one cell of an experiment with one seed.

use super::{Cell, HostSetup, Scenario};
use crate::engine::{Host, Limits, Progress, Setup, run};
use crate::layout::{Layout, Placement};
use crate::metrics::RunResult;
use seekway_device::profile;
use seekway_policy::cache;
use seekway_policy::dispatcher::Config;
use seekway_policy::schedulers;
use seekway_policy::units::{Instant, Nanos};
use seekway_workload::Source;
use seekway_workload::generators::parse_vm;
use std::fmt::Display;

/// Run `cell` with `seed`. The error says what could not be built or run.
pub fn run_cell(cell: &Cell, seed: u64, progress: Progress<'_>) -> Result<RunResult, String> {
    let (sources, setup) = prepare(cell, seed)?;
    let Scenario { settle, until, .. } = *cell.scenario;
    let at = |span: Nanos| Instant::ZERO + span;
    let settle = (settle > Nanos::ZERO).then(|| at(settle));
    let limits = Limits { settle, until: until.map(at), requests: None };
    let made = run(sources, setup, limits, progress);
    made.map(|(result, _)| result).map_err(|e| what(cell, &e))
}

/// An error, and the cell that it is of.
fn what(cell: &Cell, error: &dyn Display) -> String {
    let with = cell.prefetch.iter().map(|p| format!(" with {p}")).collect::<String>();
    format!("{}, {}{with}: {error}", cell.scenario.name, cell.policy)
}

/// Sources and setup of a cell.
pub(super) fn prepare(cell: &Cell, seed: u64) -> Result<(Vec<Box<dyn Source>>, Setup), String> {
    let scenario = &cell.scenario;
    let what = |e: &dyn Display| what(cell, e);
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    for (n, vm) in scenario.vms.iter().enumerate() {
        let plan = parse_vm(vm).map_err(|e| what(&e))?;
        sources.push(plan.source(seed, n as u16).map_err(|e| what(&e))?);
    }
    let profile = profile::load(&scenario.device).map_err(|e| what(&e))?;
    let device = profile.build();
    let disks: Vec<_> = sources.iter().flat_map(|s| s.vms().to_vec()).collect();
    let placement = Placement::Packed(scenario.place);
    let layout =
        Layout::place(&disks, device.profile().capacity, &placement).map_err(|e| what(&e))?;
    let HostSetup { cache_bytes, costs } = scenario.host;
    let host = |spec: &String| {
        let cache = cache::Config::new(cache_bytes);
        Host::new(cache, spec, costs, profile.build()).map_err(|e| what(&e))
    };
    let setup = Setup {
        host: cell.prefetch.as_ref().map(host).transpose()?,
        scheduler: schedulers::build(&cell.policy).map_err(|e| what(&e))?,
        device,
        config: Config { coalesce: scenario.coalesce, ..Config::default() },
        layout,
        weights: scenario.weights.clone(),
        journal: None,
    };
    Ok((sources, setup))
}
