//! The command line. Man pages, completions and `--help` all come from here.

mod compare;
mod convert;
#[cfg(feature = "daemon")]
mod daemon;
mod device;
mod exit_status;
mod prefetch;
mod sharing;
mod trace;
mod workload_run;

pub use compare::{CompareArgs, LimitsArg};
pub use convert::ConvertArgs;
#[cfg(feature = "daemon")]
pub use daemon::*;
pub use device::{DeviceCommand, ProfileFormat, ValidateArgs};
pub use prefetch::PrefetchArgs;
pub use sharing::SharingArgs;
pub use trace::{AdviseArgs, Goal, InspectArgs};
pub use workload_run::WorkloadRunArgs;

use crate::complete;
use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use seekway_core::registry::{Registry, RegistryEntry};
use seekway_policy::{prefetchers, schedulers};
use seekway_vcpu as vcpu;
use seekway_workload::generators;
use std::ffi::OsString;
use std::path::PathBuf;

/// Which disk scheduler for many virtual machines that share a disk?
///
/// Seekway runs the policies of the literature and its own on your traces or
/// on generated loads, against a model of the disk that you have or might buy.
#[derive(Parser, Debug)]
#[command(name = "seekway", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The command line of this process. Under the name that the conventions
    /// for back ends give (a link to this program), it is `serve`'s.
    ///
    /// # Errors
    /// Help that cannot be printed. Wrong usage ends the process with status 2.
    pub fn of_process() -> anyhow::Result<Cli> {
        let mut args: Vec<_> = std::env::args_os().collect();
        let name = args.first().map(std::path::Path::new).and_then(|p| p.file_name());
        if name.is_some_and(|name| name == BACKEND_NAME) {
            args.insert(1, "serve".into());
        }
        let found = Cli::described().try_get_matches_from(args);
        match found.and_then(|found| Cli::from_arg_matches(&found)) {
            Ok(cli) => Ok(cli),
            // Help is a result too: a full disk is an error.
            Err(e) => match e.print() {
                Err(why) if !e.use_stderr() => Err(why).context("standard output"),
                _ => std::process::exit(e.exit_code()),
            },
        }
    }

    /// The command line with everything that help and man pages say.
    pub fn described() -> clap::Command {
        exit_status::explained(Cli::command())
    }
}

/// What the conventions call a back end for block devices.
const BACKEND_NAME: &str = "vhost-user-blk";

/// All commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    Compare(Box<CompareArgs>),
    Advise(AdviseArgs),
    Inspect(InspectArgs),
    Convert(ConvertArgs),
    #[command(subcommand)]
    Device(DeviceCommand),
    /// List and describe scheduling policies
    #[command(subcommand, mut_subcommands(shows(&schedulers::REGISTRY, "policy", AS_PAGE)))]
    Policy(RegistryCommand),
    /// List and describe prefetchers (`serve --prefetch`, `compare --prefetch`)
    #[command(subcommand, mut_subcommands(shows(&prefetchers::REGISTRY, "prefetcher", AS_PAGE)))]
    Prefetcher(RegistryCommand),
    /// List and describe policies for virtual CPUs (`compare --vcpu`)
    #[command(subcommand, mut_subcommands(shows(&vcpu::REGISTRY, "vCPU policy", AS_PAGE)))]
    Vcpu(RegistryCommand),
    #[command(subcommand, mut_subcommands(shows_loads))]
    Workload(WorkloadCommand),
    /// Studies of thousands of comparisons, here or on a cluster (needs the Python package)
    #[command(disable_help_flag = true)]
    Campaign(InPythonArgs),
    /// How many disks do these VMs need, so that each meets a target? (needs the Python package)
    #[command(disable_help_flag = true)]
    Plan(InPythonArgs),
    Replay(ReplayArgs),
    #[cfg(feature = "daemon")]
    #[command(flatten)]
    Daemon(DaemonCommand),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Aligned text.
    Table,
    /// One JSON document.
    Json,
    /// Comma-separated values.
    Csv,
    /// Tables for a document.
    Markdown,
}

/// Where the requests come from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// Replay a trace as one VM (repeatable); `-` reads standard input. One CPU's file of a
    /// blktrace stands for the files of all CPUs
    #[arg(long = "trace", value_name = "FILE")]
    pub traces: Vec<PathBuf>,
    /// Generate the load of a VM (repeatable):
    /// `name=web,image=12g,app=sysbench:mode=SR,app=sysbench:mode=RR` (see `seekway
    /// workload list`), with rate limits as for `serve --disk`:
    /// `iops=2000,bandwidth=100MiB,group=tenant1`. More disks: `disk=log:2GiB` before the
    /// first app=, followed by that disk's limits, and `disk=log` behind an application
    /// whose files are on it. Each disk counts like a VM of its own, shown as `web.log`
    #[arg(long = "vm", value_name = "SPEC")]
    pub vms: Vec<String>,
    /// Limit a group of VMs together, `tenant1:bandwidth=300MiB` (repeatable)
    #[arg(long = "group", value_name = "NAME:LIMIT=N[,…]", requires = "vms")]
    pub groups: Vec<String>,
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Stretch the traces' times by this factor (2: half the speed, 0.5: double)
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub time_scale: f64,
    /// Ignore the traces' clock; each VM keeps this many requests outstanding
    #[arg(long, value_name = "N", conflicts_with = "time_scale")]
    pub outstanding: Option<u32>,
    /// Where the VMs lie on the disk: `packed`, `packed:LBA`, `spread`, `identity` (each trace's
    /// own LBAs), `ext3` or `ext3:LBA` (as files of the host's ext3, whose journal is on the same
    /// disk), or one LBA for each disk: `0,50000000`
    #[arg(long, value_name = "PLACE", default_value = "packed")]
    pub map: String,
    /// Weights of the VMs' disks in their order, `4,1,1` [default: 1 each]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub weights: Vec<std::num::NonZeroU32>,
    /// Size of each trace's disk; addresses beyond it wrap
    /// around [default: as large as the trace needs]
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<String>,
}

/// How traces are read.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Reading traces")]
pub struct ReadingArgs {
    /// Format of the traces [default: detected from their content]
    #[arg(long, value_name = "NAME")]
    pub input_format: Option<String>,
    /// Which events of a blktrace are its requests [default: the first of these that it has]
    #[arg(long, value_enum, value_name = "EVENT")]
    pub event: Option<Event>,
    /// Columns of a table, or the format of `blkparse -f`, instead of what the traces say: names with
    /// units such as `time_us,op,offset_bytes,size_bytes,volume`, `-` for a column to leave alone
    #[arg(long, value_name = "NAMES")]
    pub columns: Option<String>,
    /// Skip and count invalid records instead of stopping at the first
    #[arg(long)]
    pub lenient: bool,
    /// Make one VM of each volume of a trace, at most this many (the busiest)
    /// [default without a number: 64]
    #[arg(long, value_name = "VMS", num_args = 0..=1, default_missing_value = "64")]
    pub split: Option<usize>,
    /// Read at most this many requests of each trace
    #[arg(long, value_name = "N")]
    pub max_requests: Option<u64>,
    /// Read at most this time span of each trace (`30s`, `5min`)
    #[arg(long, value_name = "TIME")]
    pub max_time: Option<String>,
}

/// Events of a blktrace, as its option `-a` names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Event {
    /// Q: as the guest's file systems asked
    Queue,
    /// D: as the kernel sent them to the driver, merged
    Issue,
    /// C: at the time when the driver was done
    Complete,
}

/// What serves them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Disk")]
pub struct DiskArgs {
    /// Model of the disk: a profile (`seekway device list`), with changes as
    /// `NAME:key=value,…`, or a profile file
    #[arg(
        long,
        value_name = "PROFILE",
        default_value = "seagate-1tb-7200",
        add = complete::profiles()
    )]
    pub device: String,
    /// Coalesce adjacent requests up to this size, at most 1MiB; 0 turns it off
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    pub coalesce: String,
    /// Serve a request that has waited this long, whatever the policy decides
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub hard_limit: String,
}

/// How results leave.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutArgs {
    /// Output format
    #[arg(long, visible_alias = "output", value_enum, default_value = "table")]
    pub format: Format,
    /// Also write an HTML report: one file that needs no network
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Number of runs at the same time [default: number of cores]
    #[arg(long, value_name = "N")]
    pub jobs: Option<std::num::NonZeroUsize>,
}

// No doc comment: it would stand in the place of the commands' own help.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Output format
    #[arg(long, visible_alias = "output", value_enum, default_value = "table")]
    pub format: Format,
}

// No doc comment, as above.
#[derive(Subcommand, Debug)]
pub enum RegistryCommand {
    /// List available entries
    List(ListArgs),
    // Its description is the registry's: see `shows`.
    Show {
        /// Name of the entry
        name: String,
        /// Output format
        #[arg(long, visible_alias = "output", value_enum, default_value = "markdown")]
        format: Format,
    },
}

/// What the pages of most registries are.
const AS_PAGE: &str = ", as Markdown";
/// Descriptions that `workload show` has beside generators.
const OR_MORE: &str = "; or the guest, `vm`; or a trace format";

/// Lets the subcommand `show` say `what` it describes, and complete the names of a registry.
fn shows(
    registry: &'static Registry<impl RegistryEntry + Sync>,
    what: &'static str,
    more: &'static str,
) -> impl Fn(clap::Command) -> clap::Command {
    move |command| match command.get_name() {
        "show" => command
            .about(format!("Describe one {what} and its parameters{more}"))
            .mut_arg("name", |name| name.add(complete::names(registry))),
        _ => command,
    }
}

fn shows_loads(command: clap::Command) -> clap::Command {
    let is_show = command.get_name() == "show";
    let command = shows(&generators::REGISTRY, "generator", OR_MORE)(command);
    match is_show {
        true => command.mut_arg("name", |name| name.add(complete::loads())),
        false => command,
    }
}

/// List and describe load generators and trace formats, or run a load on a real disk
#[derive(Subcommand, Debug)]
pub enum WorkloadCommand {
    #[command(flatten)]
    Registry(RegistryCommand),
    Run(WorkloadRunArgs),
}

/// Replay a journal and check that the policy makes the same decisions
///
/// If they differ, prints the first difference and exits with status 1.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  seekway compare --trace t.csv --policies cfq --journal out/ && seekway replay out/cfq.1.journal")]
pub struct ReplayArgs {
    /// Path of the journal; `-` reads standard input
    pub journal: PathBuf,
    /// Output format
    #[arg(long, visible_alias = "output", value_enum, default_value = "table")]
    pub format: Format,
}

/// Arguments of a command that the Python package has.
#[derive(Args, Debug)]
pub struct InPythonArgs {
    /// Arguments of that command; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub arguments: Vec<OsString>,
}

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "Example:
  seekway completions bash > /etc/bash_completion.d/seekway")]
pub struct CompletionsArgs {
    /// Name of the shell
    pub shell: clap_complete::Shell,
}

/// Write the man pages into a folder
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Path of the folder; created if missing
    pub dir: PathBuf,
}
