//! `seekway-guest`, the agent inside a guest: one static file that needs
//! nothing else. `tag` gives each I/O process an identity that reaches the host
//! through stock virtio-blk (docs/guest.md); `migrate` keeps tasks that wait for I/O on
//! virtual CPUs that run (docs/migrate.md).
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

use agent::{AgentError, Voice, failed};
use args::{
    Agent, Cli, Command, CompletionsArgs, Format, ManArgs, MigrateArgs, RestoreArgs, TagArgs,
};
use clap::{CommandFactory, Parser};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Tag(args) => tag(&args),
        Command::Migrate(args) => migrate(&args),
        Command::Status(args) => migrate::status(&args),
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
        let voice = Voice { verbose: args.verbose, format: args.format };
        let state = args.state.path();
        return supervise::supervise(voice, || put_back(Agent::Tag, &state, voice).map(drop));
    }
    if has_lost(args.parent) { Ok(()) } else { agent::tag(args) }
}

fn migrate(args: &MigrateArgs) -> Result<(), AgentError> {
    if let Some(time) = args.probe {
        return migrate::probe(args, time.into());
    }
    if args.supervise {
        let voice = Voice { verbose: args.verbose, format: args.format };
        let state = args.state_path();
        return supervise::supervise(voice, || put_back(Agent::Migrate, &state, voice).map(drop));
    }
    if has_lost(args.parent) { Ok(()) } else { migrate::migrate(args) }
}

/// A supervisor that has gone already restarts nothing: what it started is not to stay.
fn has_lost(parent: Option<u32>) -> bool {
    parent.is_some_and(|parent| !kernel::end_with_parent(parent))
}

/// What an agent has left; false if that is nothing.
fn put_back(of: Agent, state: &Path, voice: Voice) -> Result<bool, AgentError> {
    let file = state::StateFile::lock(state)?;
    match of {
        Agent::Tag => Ok(agent::put_back(&system::Linux, &file, voice)?.is_some()),
        Agent::Migrate => Ok(migrate::put_back(&system::Linux, &file, voice)?.is_some()),
    }
}

fn restore(args: &RestoreArgs) -> Result<(), AgentError> {
    let voice = Voice { verbose: true, format: Format::Text };
    // One that cannot be done is no reason to leave the other.
    let done = args.states().into_iter().map(|(of, state)| put_back(of, &state, voice));
    let done: Vec<_> = done.collect();
    if done.iter().all(|done| matches!(done, Ok(false))) {
        say::say(&mut std::io::stdout(), "nothing to put back");
    }
    done.into_iter().try_for_each(|done| done.map(drop))
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
