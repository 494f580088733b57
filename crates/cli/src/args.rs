//! The command line. Man pages, completions and `--help` all come from here.

mod compare;
mod convert;
#[cfg(feature = "daemon")]
mod daemon;
mod exit_status;
mod list;
mod prefetch;
mod run_load;
mod sharing;
mod trace;

pub use compare::{CompareArgs, LimitsArg};
pub use convert::ConvertArgs;
#[cfg(feature = "daemon")]
pub use daemon::*;
pub use list::{ListArgs, Listed};
pub use prefetch::PrefetchArgs;
pub use run_load::RunLoadArgs;
pub use sharing::SharingArgs;
pub use trace::{AdviseArgs, Goal, InspectArgs};

use crate::complete;
use anyhow::{Context, bail};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use seekway_man::GenerateArgs;
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
    /// Help that cannot be printed, or a command of before. Wrong usage ends the process with
    /// status 2.
    pub fn of_process() -> anyhow::Result<Cli> {
        let mut args: Vec<_> = std::env::args_os().collect();
        let name = args.first().map(std::path::Path::new).and_then(|p| p.file_name());
        if name.is_some_and(|name| name == BACKEND_NAME) {
            args.insert(1, "serve".into());
        }
        if let Some(moved) = args.get(1..).and_then(|args| seekway_man::moved(args, &MOVED)) {
            bail!("{moved}");
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

/// Name of a back end for block devices, by the vhost-user conventions.
const BACKEND_NAME: &str = "vhost-user-blk";

/// Commands of before, and what took their place.
pub const MOVED: [(&str, &str); 11] = [
    ("policy", "seekway list policies [NAME]"),
    ("prefetcher", "seekway list prefetchers [NAME]"),
    ("vcpu", "seekway list vcpu [NAME]"),
    ("workload run", "seekway load --vm SPEC --on PATH"),
    ("workload", "seekway list [loads|traces] [NAME]"),
    ("device validate", "seekway predict --on PROFILE --against TRACE|published"),
    ("device", "seekway list devices [NAME]"),
    ("campaign", "python -m seekway campaign"),
    ("plan", "python -m seekway plan"),
    ("completions", "seekway generate SHELL"),
    ("man", "seekway generate man DIR"),
];

/// All commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    Compare(Box<CompareArgs>),
    Advise(AdviseArgs),
    Inspect(InspectArgs),
    Convert(ConvertArgs),
    List(ListArgs),
    Load(RunLoadArgs),
    Replay(ReplayArgs),
    #[cfg(feature = "daemon")]
    #[command(flatten)]
    Daemon(DaemonCommand),
    /// Print a completion script for a shell, or write the man pages
    #[command(after_help = "Examples:
  seekway generate bash > /etc/bash_completion.d/seekway
  seekway generate man /usr/local/share/man/man1")]
    Generate(GenerateArgs),
}

/// Output format of results.
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
    /// list loads`), with rate limits as for `serve --disk`:
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
    #[command(flatten)]
    pub pace: PaceArgs,
    /// Weights of the VMs' disks in their order, `4,1,1` [default: 1 each]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub weights: Vec<std::num::NonZeroU32>,
    /// Size of each trace's disk; addresses beyond it wrap
    /// around [default: as large as the trace needs]
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<String>,
}

/// When and where requests come.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub struct PaceArgs {
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
}

/// Options for reading traces.
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

/// Options of the device.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Disk")]
pub struct DiskArgs {
    /// Model of the disk: a profile (`seekway list devices`), with changes as
    /// `NAME:key=value,…`, or a profile file
    #[arg(
        long,
        value_name = "PROFILE",
        default_value = "seagate-1tb-7200",
        add = complete::profiles()
    )]
    pub device: String,
    #[command(flatten)]
    pub dispatch: DispatchArgs,
}

/// Options for making commands of requests.
#[derive(Args, Clone, Debug)]
pub struct DispatchArgs {
    /// Coalesce adjacent requests up to this size, at most 1MiB; 0 turns it off
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    pub coalesce: String,
    /// Serve a request that has waited this long, whatever the policy decides
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub hard_limit: String,
}

/// Which runs are made.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Runs")]
pub struct RunsArgs {
    /// `all`, or policies with their parameters: `noop,cfq:quantum=4,slice_idle=0` [default: those
    /// of the scenario in FILE or of the real run in --against, else all]
    #[arg(long, value_name = "LIST", add = complete::policies())]
    pub policies: Option<String>,
    /// First seed of generated loads [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Number of seeds to run with, from --seed on [default: 1]
    #[arg(long, value_name = "N")]
    pub seeds: Option<u64>,
    /// Stop each run at this simulated time [default: when the load ends, or after 60s if
    /// a VM's load does not end by itself]
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
}

/// Output options of commands without a report.
#[derive(Args, Debug)]
pub struct FormatArgs {
    /// Output format
    #[arg(long, visible_alias = "output", value_enum, default_value = "table")]
    pub format: Format,
}

/// Output options.
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

/// Replay a journal and check that the policy makes the same decisions
///
/// If they differ, prints the first difference and exits with status 1.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  seekway compare --trace t.csv --policies cfq --journal out/ && seekway replay out/cfq.1.journal")]
pub struct ReplayArgs {
    /// Path of the journal; `-` reads standard input
    pub journal: PathBuf,
    #[command(flatten)]
    pub out: FormatArgs,
}
