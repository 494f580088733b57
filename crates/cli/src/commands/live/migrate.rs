//! `seekway experiment run migrate-live --live`: the agent in real guests, without and with
//! it in turn, beside what the recorded schedule of the host allows.

mod judge;
mod shown;

use super::procs::agent;
use crate::args::ExperimentArgs;
use crate::commands::experiment::Listed;
use crate::{Verdict, output, progress};
use anyhow::{Context, Result, bail};
use judge::Ran;
use seekway_live::Accelerator;
use seekway_live::experiment::{Host, MigrateOptions, MigrateRun, run_migrate};
use seekway_policy::vcpu;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The experiment, which no simulator runs.
pub const ONLY: Listed = Listed {
    name: "migrate-live",
    summary: "the agent in 1, 2 and 4 real guests that share the host's processors (--live only)",
    source: "vMigrater",
    assumes: "guests of 4 vCPUs pinned evenly, slices of 11 ± 0.3 ms held by the experiment and \
              those of the kernel, a compute task on each vCPU, one reader at depth 1 on an \
              emulated solid-state drive; the bound is from the recorded schedule of the host",
};

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

/// Run the command.
pub fn run(args: &ExperimentArgs) -> Result<Verdict> {
    if !args.live {
        bail!("{}: runs on real guests only: add --live", ONLY.name);
    }
    if args.policy.is_some() || !args.prefetch.prefetch.is_empty() {
        bail!("{}: no --policy, --prefetch: it is about vCPUs (--vcpu SPEC)", ONLY.name);
    }
    if let Some(spec) = &args.vcpu {
        vcpu::build(spec).context("--vcpu")?;
    }
    let program = std::env::current_exe().context("the path of this program")?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The tracer's place in the kernel has to be given back; who asks twice cannot wait.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&interrupted))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .context("handle signals")?;
    }
    let policy = args.vcpu.as_ref().map(|spec| format!("--policy '{spec}'"));
    let options = MigrateOptions {
        agent: agent(&program)?,
        program,
        agent_args: policy.unwrap_or_default(),
        runs: RUNS.to_vec(),
        pairs: if args.quick { QUICK_PAIRS } else { PAIRS },
        window: if args.quick { QUICK_WINDOW } else { WINDOW },
        device: DEVICE.into(),
        accelerator: if args.kvm { Accelerator::Kvm } else { Accelerator::Tcg },
        seed: args.seed,
        interrupted,
    };
    let bar = progress::steps(ONLY.name);
    let figures = run_migrate(&options, &mut |step| bar.set_message(step.to_string()));
    let figures = figures.context("--live")?;
    bar.finish_and_clear();
    let rows: Vec<Ran> = figures.iter().map(Ran::new).collect();
    let tables = [shown::results(&rows, &options), shown::hosts(&rows)];
    if let Some(path) = &args.out.report {
        let report = shown::page(&rows, &figures, &tables, args.quick);
        output::write_file(path, |out| report.write_html(out))?;
        eprintln!("report: {}", path.display());
    }
    output::print_as(args.out.format, &tables, &rows)?;
    let missed = rows.iter().any(|r| r.verdict == "missed");
    Ok(if missed { Verdict::NotAccepted } else { Verdict::Done })
}
