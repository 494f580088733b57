//! The `seekway` program: the command line around simulator and reports.
//!
//! Results go to standard output, everything else to standard error. Exit
//! status 0 when it did what was asked, 1 when an experiment's row or a
//! validation was not accepted, 2 for wrong usage, input or output.
#![forbid(unsafe_code)]

mod args;
mod caching;
mod commands;
mod figures;
mod json;
mod load;
mod output;
mod progress;
mod runs;

use std::process::ExitCode;

/// What a command came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Did what was asked.
    Done,
    /// Ran, and what it judged was not accepted.
    NotAccepted,
}

fn main() -> ExitCode {
    let cli = args::Cli::of_process();
    match commands::run(cli.command) {
        Ok(Verdict::Done) => ExitCode::SUCCESS,
        Ok(Verdict::NotAccepted) => ExitCode::from(1),
        // Whoever reads our output has seen enough: `seekway … | head`.
        Err(e) if output::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("seekway: {e:#}");
            ExitCode::from(2)
        }
    }
}
