//! `seekway experiment`: the experiments that run on real guests, by `seekway-live`. This program
//! boots none: it also serves disks as root, and what boots guests (downloads, ptrace, tracefs)
//! stays out of it.

use crate::args::{ExperimentArgs, ExperimentCommand, Format, ListArgs, NoisyArgs};
use crate::{Verdict, output, programs};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use seekway_policy::{schedulers, vcpu};
use seekway_report::table::Table;
use serde::Serialize;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The program of live experiments.
const LIVE: &str = "seekway-live";
/// The only experiment that takes `--vcpu`.
const MIGRATE: &str = "migrate-live";
/// The experiments that take `--scenes`.
const NOISY: &str = "noisy";
const TOGETHER: &str = "together";

/// An experiment as `experiment list` shows it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListEntry {
    pub name: &'static str,
    pub summary: &'static str,
    pub source: &'static str,
    pub assumes: &'static str,
    /// Command that runs the same loads in the simulator; null if none does.
    pub simulated: Option<&'static str>,
}

/// All experiments, in the order of `experiment list`.
static EXPERIMENTS: [ListEntry; 8] = [
    ListEntry {
        name: "pregather-read",
        summary: "sequential and random readers in three guests",
        source: "Pregather, section VI-B1, figure 5",
        assumes: "three guests of two applications each read files through their page caches, on \
                  a 7200 rpm disk",
        simulated: Some("scripts/lab run pregather-read"),
    },
    ListEntry {
        name: "cats-direct",
        summary: "50 processes read files page by page with O_DIRECT",
        source: "CATS, section 6, table 2",
        assumes: "one guest on the detailed disk, files spread over the whole disk",
        simulated: Some("scripts/lab run cats-direct"),
    },
    ListEntry {
        name: "vpt-rank",
        summary: "does the throttle's linear model rank three schedulers as the disk does?",
        source: "CATS, section 6, table 2",
        assumes: "the load of cats-direct on the detailed disk, on the line fitted to it at k = 1 \
                  and k = 8, and on the image itself",
        simulated: Some("scripts/lab run vpt-rank"),
    },
    ListEntry {
        name: "vmcd-fair-sizes",
        summary: "sequential readers of 512 B, 64 KiB and 512 KiB in three guests",
        source: "VMCD, section 4.2.2, figure 7",
        assumes: "the bare disk of the paper's size; demands in φ are what each VM has alone",
        simulated: Some("scripts/lab run vmcd-fair-sizes"),
    },
    ListEntry {
        name: "vio-procs",
        summary: "sequential processes in one guest under the host's prefetchers",
        source: "VIO-prefetching, section 4.3, figure 5(b)",
        assumes: "one to six processes in a guest of two vCPUs, on one of the paper's drives",
        simulated: Some("scripts/lab run vio-procs"),
    },
    ListEntry {
        name: MIGRATE,
        summary: "the agent in 1, 2 and 4 real guests that share the host's processors",
        source: "vMigrater",
        assumes: "guests of 4 vCPUs pinned evenly, slices of 11 ± 0.3 ms held by the experiment \
                  and those of the kernel, a compute task on each vCPU, one reader at depth 1 on \
                  an emulated solid-state drive; the bound is from the recorded schedule of the \
                  host",
        simulated: None,
    },
    ListEntry {
        name: NOISY,
        summary: "a quiet VM beside floods, through real servers, ours and QEMU's",
        source: "our own",
        assumes: "vhost-user clients in a closed loop instead of guests, images of 256 MiB in \
                  memory on emulated drives, of 64 MiB on the disk below",
        simulated: Some("scripts/lab arena --scenes '*/flood,*/stream,*/writes' --details"),
    },
    ListEntry {
        name: TOGETHER,
        summary: "four guests with all parts off and on, and each on a private disk",
        source: "our own: the five papers' parts in one system",
        assumes: "a private disk is the disk four times slower, with a fourth of the host's cache",
        simulated: Some("scripts/lab together"),
    },
];

pub fn run(command: &ExperimentCommand) -> Result<Verdict> {
    match command {
        ExperimentCommand::List(ListArgs { format }) => list(*format),
        ExperimentCommand::Run(args) => {
            check(args)?;
            start(args)
        }
    }
}

fn list(format: Format) -> Result<Verdict> {
    let table = Table::of("", &EXPERIMENTS)
        .text("experiment", |l| l.name)
        .text("what it does", |l| l.summary)
        .text("where it comes from", |l| l.source)
        .text("simulated", |l| l.simulated.unwrap_or(""))
        .done();
    output::print_as(format, &[table], &EXPERIMENTS)?;
    Ok(Verdict::Done)
}

/// Names and options that do not go together are refused.
fn check(args: &ExperimentArgs) -> Result<()> {
    let name = &*args.name;
    let Some(experiment) = EXPERIMENTS.iter().find(|e| e.name == name) else {
        let known: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
        bail!(
            "no experiment '{name}' runs live; there are {}. Simulated ones are studies of the \
             laboratory: scripts/lab list",
            known.join(", ")
        );
    };
    if args.scenes.is_some() && ![NOISY, TOGETHER].contains(&name) {
        bail!("--scenes: for {NOISY} and {TOGETHER} only");
    }
    if args.noisy != NoisyArgs::default() && name != NOISY {
        bail!("--servers, --seconds, --rounds, --work-dir: for {NOISY} only");
    }
    if let Some(policy) = &args.policy {
        schedulers::build(policy).context("--policy")?;
    }
    if let Some(spec) = &args.vcpu {
        vcpu::build(spec).context("--vcpu")?;
        if name != MIGRATE {
            bail!("--vcpu: for {MIGRATE} only");
        }
    }
    match experiment.simulated {
        _ if args.live => Ok(()),
        None => bail!("{name}: runs on real guests only: add --live"),
        Some(command) => bail!(
            "{name}: add --live to run it for real; simulated it is a study of the laboratory: \
             {command}"
        ),
    }
}

/// Becomes `seekway-live`, which then has this process's signals, output and exit
/// status. Returns only when it cannot be started.
fn start(args: &ExperimentArgs) -> Result<Verdict> {
    let lab = programs::find(LIVE, "seekway-lab").context("--live")?;
    let mut command = Command::new(&lab);
    command.arg(&args.name).arg("--daemon").arg(programs::this()?);
    command.env(output::COMMAND, output::command_line());
    command.arg(format!("--seed={}", args.seed));
    let format = args.format.to_possible_value().expect("no format is hidden");
    command.arg(format!("--format={}", format.get_name()));
    for (flag, value) in [("--policy", &args.policy), ("--vcpu", &args.vcpu)] {
        command.args(value.iter().map(|value| format!("{flag}={value}")));
    }
    for (flag, given) in [("--quick", args.quick), ("--kvm", args.kvm)] {
        command.args(given.then_some(flag));
    }
    command.args(args.scenes.iter().map(|scenes| format!("--scenes={scenes}")));
    command.args(args.noisy.to_args());
    if let Some(report) = &args.report {
        command.arg("--report").arg(report);
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", lab.display()))
}
