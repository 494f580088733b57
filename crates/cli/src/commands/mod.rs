//! One file for each command.

mod advise;
mod arena;
pub mod compare;
#[cfg(feature = "parquet")]
mod convert;
#[cfg(feature = "daemon")]
mod daemon;
mod device;
mod docs;
mod experiment;
mod in_python;
mod inspect;
mod listing;
mod live;
mod replay;
mod workload_run;

use crate::Verdict;
use crate::args::Command;
use anyhow::Result;
use seekway_policy::{prefetchers, schedulers, vcpu};

pub fn run(command: Command) -> Result<Verdict> {
    match command {
        Command::Compare(args) => compare::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        #[cfg(feature = "parquet")]
        Command::Convert(args) => convert::run(&args),
        Command::Experiment(command) => experiment::run(&command),
        Command::Arena(args) => arena::run(&args),
        Command::Device(command) => device::run(&command),
        Command::Policy(command) => {
            listing::registry(schedulers::REGISTRY, |entry| entry.source, &command)
        }
        Command::Prefetcher(command) => {
            listing::registry(prefetchers::REGISTRY, |entry| entry.source, &command)
        }
        Command::Vcpu(command) => listing::registry(vcpu::REGISTRY, |entry| entry.source, &command),
        Command::Workload(command) => listing::workload(&command),
        Command::Campaign(args) => in_python::become_command("campaign", &args),
        Command::Plan(args) => in_python::become_command("plan", &args),
        Command::Replay(args) => replay::run(&args),
        #[cfg(feature = "daemon")]
        Command::Daemon(command) => daemon::run(command),
        Command::Completions(args) => docs::completions(&args),
        Command::Man(args) => docs::man(&args),
    }
}
