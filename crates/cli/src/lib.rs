//! The command line around simulator, daemon and reports: all of the program `seekway`.
//!
//! Results go to standard output, everything else to standard error. Exit
//! status 0 when it did what was asked, 1 when what it judged was not
//! accepted, 2 for wrong usage, input or output.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod complete;
#[cfg(feature = "daemon")]
mod control;
mod figures;
mod json;
pub mod library;
mod load;
pub mod output;
mod ranked;
mod runs;
mod stacks;
mod toml_text;

use seekway_policy::schedulers::{Entry, REGISTRY};
use std::process::ExitCode;

/// Verdict of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Did what was asked.
    Done,
    /// Ran, and what it judged was not accepted.
    NotAccepted,
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    main_with(&[])
}

/// Runs the command of this process with policies of the program around it, which Seekway lists
/// after its own. Status 2, and a message, if one of their names cannot be or is taken.
pub fn main_with(policies: &'static [Entry]) -> ExitCode {
    if let Err(error) = REGISTRY.add(policies) {
        return exit("seekway", Err(error.into()));
    }
    complete::answer_shell(args::Cli::described);
    exit("seekway", args::Cli::of_process().and_then(|cli| commands::run(cli.command)))
}

/// The exit status of `program` for what its command came to. Prints an error
/// to standard error.
pub fn exit(program: &str, result: anyhow::Result<Verdict>) -> ExitCode {
    match result {
        Ok(Verdict::Done) => ExitCode::SUCCESS,
        Ok(Verdict::NotAccepted) => ExitCode::from(1),
        // Whoever reads our output has seen enough: `seekway … | head`.
        Err(e) if output::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{program}: {e:#}");
            ExitCode::from(2)
        }
    }
}
