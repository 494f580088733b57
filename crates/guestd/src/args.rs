//! The command line. Man pages, completions and `--help` all come from here.

use crate::kernel;
use clap::{Args, Parser, Subcommand, ValueEnum};
use seekway_core::params::parse_duration;
use seekway_man::GenerateArgs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Seekway's agent inside a guest
#[derive(Parser, Debug)]
#[command(name = "seekway-guest", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Tag(TagArgs),
    Migrate(MigrateArgs),
    Status(StatusArgs),
    Restore(RestoreArgs),
    /// Print a completion script for a shell, or write the man pages
    #[command(after_help = "Examples:
  seekway-guest generate bash > /etc/bash_completion.d/seekway-guest
  seekway-guest generate man /usr/local/share/man/man1")]
    Generate(GenerateArgs),
}

/// Commands of before, and what took their place.
pub const MOVED: [(&str, &str); 2] =
    [("completions", "seekway-guest generate SHELL"), ("man", "seekway-guest generate man DIR")];

/// Which processes are chosen.
#[derive(Args, Debug)]
pub struct ChosenArgs {
    /// Only processes of this name, and their descendants (repeat for several)
    #[arg(long = "match", value_name = "COMM")]
    pub comms: Vec<String>,
    /// Only this process, and its descendants (repeat for several)
    #[arg(long = "pid", value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
}

/// Format of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON document each line.
    Json,
}

/// Give each process that does I/O a tag that reaches the host
///
/// The tag is the I/O priority of the process's threads (ioprio_set(2)): class
/// best-effort, level 4, the tag as hint. Guests' virtio-blk driver sends it
/// along with each request. Needs Linux 6.5 or later (or Debian's 6.1.192-1). Priorities
/// that somebody has set are left alone. SIGINT, SIGTERM and SIGHUP end it and restore all
/// priorities; after SIGKILL the next start does, or `seekway-guest restore`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway-guest tag --match mysqld --match fio --verbose
  seekway-guest tag --pid 1234 --interval 20ms --status /run/seekway-guest.json
  seekway-guest tag --once --verbose --format json")]
pub struct TagArgs {
    /// Time between two scans of all processes, 5ms to 60s
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    pub interval: Interval,
    #[command(flatten)]
    pub chosen: ChosenArgs,
    /// Tag the processes that do I/O within one interval, and exit; `restore` removes the tags
    #[arg(long)]
    pub once: bool,
    /// Write a JSON file that shows each process with its tag
    #[arg(long, value_name = "FILE")]
    pub status: Option<PathBuf>,
    #[command(flatten)]
    pub state: StateArgs,
    /// Do not ask the kernel for process events (they need CAP_NET_ADMIN)
    #[arg(long)]
    pub no_connector: bool,
    /// Print each change
    #[arg(long, short)]
    pub verbose: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// Keep tasks that wait for I/O on vCPUs that run
///
/// Detects when the host takes a vCPU away, and moves tasks that wait for I/O to running vCPUs, by
/// sched_setaffinity(2), within their owners' masks. Without shared processors it does nothing.
/// SIGINT, SIGTERM and SIGHUP end it and restore all masks; after SIGKILL the next start does, or
/// `seekway-guest restore`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway-guest migrate
  seekway-guest migrate --match mysqld --match fio --verbose
  seekway-guest migrate --policy vmigrater:literal=true --no-bpf
  seekway-guest migrate --probe
  seekway-guest migrate --probe=10s")]
pub struct MigrateArgs {
    /// The policy and its parameters: NAME or NAME:KEY=VALUE,KEY=VALUE
    #[arg(long, value_name = "SPEC", default_value = "vmigrater")]
    pub policy: String,
    /// Use no BPF, also where it works: heartbeats, and states of threads in /proc
    #[arg(long)]
    pub no_bpf: bool,
    #[command(flatten)]
    pub chosen: ChosenArgs,
    /// State file: each change is written there before it is made [default:
    /// /run/seekway-guest-migrate.state, for others than root in $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    #[command(flatten)]
    pub status: StatusFileArgs,
    /// Print this guest's detectors, their observations in TIME (or until Ctrl-C), and why better
    /// detectors do not work; then exit
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "100ms"
    )]
    pub probe: Option<Interval>,
    /// Print every event
    #[arg(long, short)]
    pub verbose: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

impl MigrateArgs {
    pub fn state_path(&self) -> PathBuf {
        given_or(&self.state, MIGRATE_STATE)
    }
}

/// Show the state of `seekway-guest migrate`: vCPUs, tasks, its own cost
///
/// Exits with status 1 if no agent is running.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway-guest status
  seekway-guest status --format json")]
pub struct StatusArgs {
    #[command(flatten)]
    pub file: StatusFileArgs,
    /// Format of the output
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// The status file, which `migrate` writes and `status` reads.
#[derive(Args, Debug)]
pub struct StatusFileArgs {
    /// Status file, written when `status` asks [default:
    /// /run/seekway-guest-migrate.json, for others than root in $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "FILE")]
    status: Option<PathBuf>,
}

impl StatusFileArgs {
    pub fn path(&self) -> PathBuf {
        given_or(&self.status, "seekway-guest-migrate.json")
    }
}

const MIGRATE_STATE: &str = "seekway-guest-migrate.state";

/// The user's file, or else this name in the runtime folder.
fn given_or(file: &Option<PathBuf>, name: &str) -> PathBuf {
    let runtime = || std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !kernel::is_root());
    let in_run = || runtime().map_or_else(|| "/run".into(), PathBuf::from).join(name);
    file.clone().unwrap_or_else(in_run)
}

/// Restore the changes of a killed agent or of `tag --once`
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway-guest restore
  seekway-guest restore migrate")]
pub struct RestoreArgs {
    /// Restore the changes of this command only
    #[arg(value_enum)]
    of: Option<Agent>,
    /// State file of that command (tag's, if none is named)
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

/// A command that changes threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Agent {
    /// Priorities.
    Tag,
    /// Affinities.
    Migrate,
}

impl RestoreArgs {
    /// The agents whose changes have to be put back, and their state files.
    pub fn states(&self) -> Vec<(Agent, PathBuf)> {
        let tag = StateArgs { file: self.state.clone() }.path();
        let migrate = given_or(&self.state, MIGRATE_STATE);
        match (self.of, &self.state) {
            (Some(Agent::Migrate), _) => vec![(Agent::Migrate, migrate)],
            (Some(Agent::Tag), _) | (None, Some(_)) => vec![(Agent::Tag, tag)],
            (None, None) => vec![(Agent::Tag, tag), (Agent::Migrate, migrate)],
        }
    }
}

/// Where changes are written down.
#[derive(Args, Debug)]
pub struct StateArgs {
    /// State file: each change is written there before it is made [default:
    /// /run/seekway-guest.state, for others than root in $XDG_RUNTIME_DIR]
    #[arg(long = "state", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl StateArgs {
    pub fn path(&self) -> PathBuf {
        given_or(&self.file, "seekway-guest.state")
    }
}

/// A time between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval(Duration);

impl From<Interval> for Duration {
    fn from(interval: Interval) -> Duration {
        interval.0
    }
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Interval, String> {
        let wrong = || format!("'{text}': expected a time from 5ms to 60s, such as 100ms or 1s");
        let time = parse_duration(text).map_err(|_| wrong())?;
        let time = Duration::from_nanos(time.get());
        let allowed = Duration::from_millis(5)..=Duration::from_secs(60);
        if allowed.contains(&time) { Ok(Interval(time)) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_interval_has_a_unit_and_limits() {
        let ms = |text: &str| text.parse::<Interval>().map(|i| i.0.as_millis());
        assert_eq!((ms("5ms"), ms("60s")), (Ok(5), Ok(60_000)));
        for wrong in ["4ms", "4.9ms", "61s", "2m", "100", "", "ms", "-1s", "99999999999999999999s"]
        {
            assert!(ms(wrong).is_err(), "{wrong}");
        }
    }
}
