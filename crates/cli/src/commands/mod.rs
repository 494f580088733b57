//! One file for each command.

mod advise;
pub mod compare;
mod convert;
#[cfg(feature = "daemon")]
mod daemon;
mod generate;
mod inspect;
mod list;
pub mod outcome;
mod replay;
mod run_load;

use crate::Verdict;
use crate::args::Command;
use anyhow::Result;

pub fn run(command: Command) -> Result<Verdict> {
    match command {
        Command::Compare(args) => match (args.outcome, &args.file) {
            (true, Some(file)) => outcome::run(file, args.out.jobs),
            _ => compare::run(&args),
        },
        Command::Advise(args) => advise::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::List(args) => list::run(&args),
        Command::Load(args) => run_load::run(&args),
        Command::Replay(args) => replay::run(&args),
        #[cfg(feature = "daemon")]
        Command::Daemon(command) => daemon::run(command),
        Command::Generate(args) => generate::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::CompareReport;
    use seekway_testing::{OneOrMany, schema};

    #[test]
    fn schemas_are_made_of_what_is_printed() {
        schema::<OneOrMany<CompareReport>>("compare", "seekway compare --format json");
        schema::<advise::Advice<'_>>("advise", "seekway advise --format json");
        schema::<inspect::Inspected>("inspect", "seekway inspect --format json");
        let zones = "seekway inspect --zones --format json";
        schema::<OneOrMany<inspect::Snapshot>>("inspect-zones", zones);
        schema::<replay::ReplayReport>("replay", "seekway replay --format json");
        schema::<run_load::Ran>("load", "seekway load --format json");
        schema::<Vec<list::ListEntry>>("list", "seekway list [KIND] --format json");
        schema::<Vec<list::DeviceEntry>>("list-devices", "seekway list devices --format json");
        schema::<list::ShownEntry>("list-entry", "seekway list NAME --format json");
        schema::<list::ShownFormat>("list-trace", "seekway list traces NAME --format json");
    }
}
