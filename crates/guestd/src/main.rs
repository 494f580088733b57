//! `seekway-guest`, the agent inside a guest: one static file that needs
//! nothing else. `tag` gives each I/O process an identity that reaches the host
//! through stock virtio-blk (docs/guest.md).
//!
//! Results go to standard output, warnings and errors to standard error. Exit
//! status 0 when it did what was asked, 1 when something failed that may pass (a
//! full disk), 2 when it was told wrong, another agent is at work, or the file of
//! the state is none.

mod agent;
mod args;
mod connector;
mod events;
mod kernel;
#[allow(dead_code, reason = "status comes with the next commits")]
mod migrate;
mod netlink;
mod pace;
mod pool;
mod procfs;
mod restore;
mod say;
mod signals;
mod state;
mod supervise;
mod system;
mod tagger;

use agent::{AgentError, Voice, failed, put_back};
use args::{Cli, Command, CompletionsArgs, Format, ManArgs, MigrateArgs, RestoreArgs, TagArgs};
use clap::{CommandFactory, Parser};
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Tag(args) => tag(&args),
        Command::Migrate(args) => migrate(&args),
        Command::Restore(args) => restore(&args),
        Command::Completions(args) => completions(&args),
        Command::Man(args) => man(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say::warn(&e.to_string());
            ExitCode::from(e.exit_status())
        }
    }
}

fn tag(args: &TagArgs) -> Result<(), AgentError> {
    if args.supervise {
        return supervise::supervise(args);
    }
    // A supervisor that has gone already restarts nothing: this is not to stay.
    if args.parent.is_some_and(|parent| !kernel::end_with_parent(parent)) {
        return Ok(());
    }
    agent::tag(args)
}

fn migrate(args: &MigrateArgs) -> Result<(), AgentError> {
    migrate::migrate(args)
}

fn restore(args: &RestoreArgs) -> Result<(), AgentError> {
    let file = state::StateFile::lock(&args.state.path())?;
    let voice = Voice { verbose: true, format: Format::Text };
    if put_back(&system::Linux, &file, voice)?.is_none() {
        say::say(&mut std::io::stdout(), "nothing to put back");
    }
    Ok(())
}

fn completions(args: &CompletionsArgs) -> Result<(), AgentError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "seekway-guest", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script).map_err(failed("write"))
}

fn man(args: &ManArgs) -> Result<(), AgentError> {
    let written = std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir));
    written.map_err(failed(args.dir.display().to_string()))
}
