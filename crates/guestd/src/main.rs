//! `seekway-guest`, the agent inside a guest: one static file that needs
//! nothing else. `tag` gives each I/O process an identity that reaches the host
//! through stock virtio-blk (docs/guest.md); `migrate` keeps tasks that wait for I/O on
//! virtual CPUs that run (docs/migrate.md).
//!
//! Results go to standard output, warnings and errors to standard error. Exit status: 0 for
//! success, 1 for a failure that may pass (a full disk), 2 for one that does not: a usage
//! error, a kernel that lacks something, another agent at work, or an invalid state file.

mod agent;
mod args;
mod connector;
mod events;
mod kernel;
mod migrate;
mod netlink;
mod pace;
mod pool;
mod procfs;
mod restore;
mod say;
mod signals;
mod state;
mod system;
mod tagger;

use agent::{AgentError, Voice, failed};
use args::{Agent, Cli, Command, Format, MigrateArgs, RestoreArgs};
use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use seekway_man::GenerateArgs;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(moved) = seekway_man::moved(&arguments, &args::MOVED) {
        say::warn(&moved);
        return ExitCode::from(2);
    }
    let result = match Cli::parse().command {
        Command::Tag(args) => agent::tag(&args),
        Command::Migrate(args) => migrate(&args),
        Command::Status(args) => migrate::status(&args),
        Command::Restore(args) => restore(&args),
        Command::Generate(args) => generate(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say::warn(&e.to_string());
            ExitCode::from(e.exit_status())
        }
    }
}

fn migrate(args: &MigrateArgs) -> Result<(), AgentError> {
    match args.probe {
        Some(time) => migrate::probe(args, time.into()),
        None => migrate::migrate(args),
    }
}

/// Puts back the changes that an agent left behind. Returns false if there are none.
fn put_back(of: Agent, state: &Path, voice: Voice) -> Result<bool, AgentError> {
    let file = state::StateFile::lock(state)?;
    match of {
        Agent::Tag => Ok(agent::put_back(&system::Linux, &file, voice)?.is_some()),
        Agent::Migrate => Ok(migrate::put_back(&system::Linux, &file, voice)?.is_some()),
    }
}

fn restore(args: &RestoreArgs) -> Result<(), AgentError> {
    let voice = Voice { verbose: true, format: Format::Text };
    // A failure of the first does not keep the second from being restored.
    let done = args.states().into_iter().map(|(of, state)| put_back(of, &state, voice));
    let done: Vec<_> = done.collect();
    if done.iter().all(|done| matches!(done, Ok(false))) {
        say::say(&mut std::io::stdout(), "nothing to put back");
    }
    done.into_iter().try_for_each(|done| done.map(drop))
}

fn generate(args: &GenerateArgs) -> Result<(), AgentError> {
    let Some(dir) = args.man_folder().map_err(AgentError::Usage)? else {
        let shell: Shell = args.what.parse().map_err(AgentError::Usage)?;
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "seekway-guest", &mut script);
        return std::io::Write::write_all(&mut std::io::stdout(), &script).map_err(failed("write"));
    };
    let written =
        std::fs::create_dir_all(dir).and_then(|()| seekway_man::write_pages(Cli::command(), dir));
    written.map_err(failed(dir.display().to_string()))
}
