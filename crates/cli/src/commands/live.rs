//! `seekway experiment run NAME --live`: starts `seekway-lab`, which runs the
//! experiment on real guests. This program boots none: it also serves disks as
//! root, and what boots guests (downloads, ptrace, tracefs) stays out of it.

use crate::args::ExperimentArgs;
use crate::{Verdict, output, programs};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The program, and the package that it is built from.
const LAB: &str = "seekway-lab";

/// An experiment as `experiment list` shows it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListEntry {
    pub name: &'static str,
    pub summary: &'static str,
    pub source: &'static str,
    pub assumes: &'static str,
    /// Hash of all that it runs in the simulator, in hexadecimal; null if it runs nothing there.
    pub loads: Option<String>,
}

/// The experiments that the simulator does not run.
pub static ONLY: [ListEntry; 4] = [CATS, VPT, MIGRATE, NOISY];

pub const CATS: ListEntry = ListEntry {
    name: "cats-direct",
    summary: "50 processes read files page by page with O_DIRECT (--live only)",
    source: "CATS, section 6, table 2",
    assumes: "one guest on the detailed disk, files spread over the whole disk; simulated it is a \
              study of the laboratory (lab/README.md)",
    loads: None,
};

pub const VPT: ListEntry = ListEntry {
    name: "vpt-rank",
    summary: "does the throttle's linear model rank three schedulers as the disk does? (--live only)",
    source: "CATS, section 6, table 2",
    assumes: "the load of cats-direct on the detailed disk, on the line fitted to it at k = 1 and \
              k = 8, and on the image itself; simulated it is a study of the laboratory \
              (lab/README.md)",
    loads: None,
};

/// Its agents take `--vcpu`.
pub const MIGRATE: ListEntry = ListEntry {
    name: "migrate-live",
    summary: "the agent in 1, 2 and 4 real guests that share the host's processors (--live only)",
    source: "vMigrater",
    assumes: "guests of 4 vCPUs pinned evenly, slices of 11 ± 0.3 ms held by the experiment and \
              those of the kernel, a compute task on each vCPU, one reader at depth 1 on an \
              emulated solid-state drive; the bound is from the recorded schedule of the host",
    loads: None,
};

pub const NOISY: ListEntry = ListEntry {
    name: "noisy",
    summary: "a quiet VM beside floods, through real servers, ours and QEMU's (--live only)",
    source: "our own; the simulator has the same loads: seekway arena --scenes '*/flood'",
    assumes: "vhost-user clients in a closed loop instead of guests, images of 256 MiB in memory \
              on emulated drives, of 64 MiB on the disk below",
    loads: None,
};

/// What to run instead of `only` without `--live`.
pub fn needs_live(only: &ListEntry) -> String {
    let name = only.name;
    if name == NOISY.name {
        return format!(
            "{name}: measures real servers: add --live. The simulator has the same loads as \
             scenes: seekway arena --scenes '*/flood,*/stream,*/writes' --details"
        );
    }
    let others = if name == MIGRATE.name { "" } else { "; simulated: scripts/lab run cats" };
    format!("{name}: runs on real guests only: add --live{others}")
}

/// Becomes `seekway-lab`, which then has this process's signals, output and exit
/// status. Returns only when it cannot be started.
pub fn start(args: &ExperimentArgs, names: &[&str]) -> Result<Verdict> {
    let [name] = names else {
        bail!("--live: one experiment at a time, not {}", names.join(", "));
    };
    let lab = programs::find(LAB, LAB).context("--live")?;
    let mut command = Command::new(&lab);
    command.arg(name).arg("--daemon").arg(programs::this()?);
    command.env(output::COMMAND, output::command_line());
    command.arg(format!("--seed={}", args.seed));
    let format = args.out.format.to_possible_value().expect("no format is hidden");
    command.arg(format!("--format={}", format.get_name()));
    for (flag, value) in [("--policy", &args.policy), ("--vcpu", &args.vcpu)] {
        command.args(value.iter().map(|value| format!("{flag}={value}")));
    }
    for (flag, given) in [("--quick", args.quick), ("--kvm", args.kvm)] {
        command.args(given.then_some(flag));
    }
    command.args(args.scenes.iter().map(|scenes| format!("--scenes={scenes}")));
    command.args(args.noisy.to_args());
    if let Some(report) = &args.out.report {
        command.arg("--report").arg(report);
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", lab.display()))
}
