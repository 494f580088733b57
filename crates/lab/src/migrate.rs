//! migrate-live: the agent in real guests, without and with it in turn, beside
//! what the recorded schedule of the host allows. No simulator runs it.

mod judge;
mod shown;

use crate::args::LabArgs;
use crate::procs::agent;
use crate::show::{finish, with_steps};
use anyhow::{Context, Result, bail};
use judge::Ran;
use seekway_cli::Verdict;
use seekway_cli::signals::{self, SIGINT, SIGTERM};
use seekway_live::experiment::{Host, MigrateOptions, MigrateRun, run_migrate};
use std::time::Duration;

pub const NAME: &str = "migrate-live";

/// A solid-state drive as slow as one behind a network: what a read costs an emulated guest and its host in
/// processor time, 0.4 ms, is to be small against its wait. At 0.1 ms the same gain in
/// throughput would take a third of the processors from the compute tasks.
const DEVICE: &str = "intel-x25m-g2:k=1,read_us=2000";
const PAIRS: u32 = 5;
const WINDOW: Duration = Duration::from_secs(4);
const QUICK_PAIRS: u32 = 1;
const QUICK_WINDOW: Duration = Duration::from_secs(2);

/// Guests, by what is scheduled.
const RUNS: [MigrateRun; 4] = [
    MigrateRun { guests: 1, readers: 1, host: Host::Turns },
    MigrateRun { guests: 2, readers: 1, host: Host::Turns },
    MigrateRun { guests: 4, readers: 1, host: Host::Turns },
    MigrateRun { guests: 2, readers: 1, host: Host::Kernel },
];

/// Runs migrate-live; `NotAccepted` if a row misses what is asked.
pub fn run(args: &LabArgs) -> Result<Verdict> {
    if args.policy.is_some() {
        bail!("{NAME}: no --policy: it is about vCPUs (--vcpu SPEC)");
    }
    // The tracer's place in the kernel has to be given back; who asks twice cannot wait.
    let interrupted = signals::first_noted(&[SIGINT, SIGTERM])?;
    let policy = args.vcpu.as_ref().map(|spec| format!("--policy '{spec}'"));
    let options = MigrateOptions {
        agent: agent()?,
        program: args.daemon()?,
        agent_args: policy.unwrap_or_default(),
        runs: RUNS.to_vec(),
        pairs: if args.quick { QUICK_PAIRS } else { PAIRS },
        window: if args.quick { QUICK_WINDOW } else { WINDOW },
        device: DEVICE.into(),
        accelerator: args.accelerator(),
        seed: args.seed,
        interrupted,
    };
    let figures = with_steps(NAME, |step| run_migrate(&options, step)).context("--live")?;
    let rows: Vec<Ran> = figures.iter().map(Ran::new).collect();
    let tables = [shown::results(&rows, &options), shown::hosts(&rows)];
    let page = shown::page(&rows, &figures, &tables);
    finish(args, page, &tables, &rows, rows.iter().map(|r| r.verdict))
}
