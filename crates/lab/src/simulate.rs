//! The same guests and loads in the simulator.

use anyhow::{Context, Result, anyhow};
use seekway_policy::units::{Nanos, Sectors};
use seekway_sim::RunResult;
use seekway_sim::experiments::{Cell, Scenario, run_cell};
use std::time::Duration;

/// The daemon coalesces up to this by default.
const COALESCE: Sectors = Sectors::new(1024);

/// Runs `scenario` for `settle`, which is not measured, and then for `window`.
pub fn simulate(
    scenario: Scenario,
    (settle, window): (Duration, Duration),
    policy: &str,
    prefetch: Option<&str>,
    seed: u64,
) -> Result<RunResult> {
    let settle = nanos(settle)?;
    let until = Some(settle + nanos(window)?);
    let scenario = Scenario { coalesce: COALESCE, settle, until, ..scenario };
    let cell = Cell { prefetch: prefetch.map(String::from), ..Cell::new(scenario.into(), policy) };
    run_cell(&cell, seed, &mut |_, _| true).map_err(|e| anyhow!("{e}"))
}

fn nanos(span: Duration) -> Result<Nanos> {
    Ok(Nanos::new(u64::try_from(span.as_nanos()).context("the window")?))
}
