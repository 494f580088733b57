//! One file for each command.

mod advise;
pub mod compare;
mod convert;
#[cfg(feature = "daemon")]
mod daemon;
mod device;
mod docs;
mod in_python;
mod inspect;
mod listing;
mod replay;
mod workload_run;

use crate::Verdict;
use crate::args::Command;
use anyhow::Result;
use seekway_policy::{prefetchers, schedulers};
use seekway_vcpu as vcpu;

pub fn run(command: Command) -> Result<Verdict> {
    match command {
        Command::Compare(args) => compare::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Device(command) => device::run(&command),
        Command::Policy(command) => {
            listing::registry(&schedulers::REGISTRY, |entry| entry.source, &command)
        }
        Command::Prefetcher(command) => {
            listing::registry(&prefetchers::REGISTRY, |entry| entry.source, &command)
        }
        Command::Vcpu(command) => {
            listing::registry(&vcpu::REGISTRY, |entry| entry.source, &command)
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::CompareReport;
    use seekway_testing::{OneOrMany, schema};

    /// With a trace, and without one.
    #[derive(schemars::JsonSchema)]
    #[schemars(untagged)]
    #[expect(dead_code)]
    enum Validated<'a> {
        Trace(device::ValidationReport<'a>),
        Published(device::PublishedReport<'a>),
    }

    /// Of a generator, and of a trace format.
    #[derive(schemars::JsonSchema)]
    #[schemars(untagged)]
    #[expect(dead_code)]
    enum ShownLoad {
        Format(listing::ShownFormat),
        Generator(listing::ShownEntry),
    }

    #[test]
    fn schemas_are_made_of_what_is_printed() {
        schema::<OneOrMany<CompareReport>>("compare", "seekway compare --format json");
        schema::<advise::Advice>("advise", "seekway advise --format json");
        schema::<OneOrMany<inspect::Snapshot>>("inspect", "seekway inspect --format json");
        schema::<replay::ReplayReport>("replay", "seekway replay --format json");
        schema::<workload_run::Ran>("workload-run", "seekway workload run --format json");
        schema::<Vec<device::DeviceEntry>>("device-list", "seekway device list --format json");
        schema::<Validated<'_>>("device-validate", "seekway device validate --format json");
        for name in ["policy", "prefetcher", "vcpu", "workload"] {
            let command = |word| format!("seekway {name} {word} --format json");
            schema::<Vec<listing::ListEntry>>(&format!("{name}-list"), &command("list"));
            match name {
                "workload" => schema::<ShownLoad>("workload-show", &command("show")),
                _ => schema::<listing::ShownEntry>(&format!("{name}-show"), &command("show")),
            }
        }
    }
}
