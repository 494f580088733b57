//! The command line. Man pages, completions and `--help` all come from here.

mod compare;
#[cfg(feature = "daemon")]
mod daemon;

use crate::complete;
use anyhow::{Context, bail};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
pub use compare::{CompareArgs, LimitsArg, PrefetchArgs, RunLoadArgs, SharingArgs};
#[cfg(feature = "daemon")]
pub use daemon::*;
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
        explained(Cli::command())
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
        default_value = seekway_sim::scenario::DEVICE_DEFAULT,
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
    /// Merge adjacent requests as they arrive, up to --coalesce, before the policy sees them, as
    /// Linux's block layer does; policies other than noop, deadline, anticipatory, cfq and pregather
    /// take no merged requests
    #[arg(long)]
    pub merge: bool,
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

// Arguments of `seekway list`.

/// List policies, prefetchers, loads, trace formats and devices, or describe one
///
/// The description is Markdown with all parameters; of a device it is the profile as TOML, with the
/// source of every figure.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway list
  seekway list policies
  seekway list cfq
  seekway list loads sysbench
  seekway list devices seagate-1tb-7200 > mine.toml")]
pub struct ListArgs {
    /// `policies`, `prefetchers`, `vcpu` (policies for virtual CPUs), `loads`, `traces` or
    /// `devices`; or the name of an entry [default: the names of all]
    #[arg(value_name = "KIND|NAME", add = complete::entries(&Listed::WORDS))]
    pub what: Option<String>,
    /// Name of an entry of this kind
    #[arg(value_name = "NAME", add = complete::entries(&[]))]
    pub name: Option<String>,
    /// Output format [default: table for a list, markdown or toml for a description]
    #[arg(long, visible_alias = "output", value_enum)]
    pub format: Option<Format>,
}

/// A kind of entries, which are listed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
    Policies,
    Prefetchers,
    Vcpu,
    Loads,
    Traces,
    Devices,
}

impl Listed {
    pub const ALL: [Listed; 6] = [
        Listed::Policies,
        Listed::Prefetchers,
        Listed::Vcpu,
        Listed::Loads,
        Listed::Traces,
        Listed::Devices,
    ];
    /// The words of the command line, in the order of `ALL`.
    pub const WORDS: [&str; 6] = ["policies", "prefetchers", "vcpu", "loads", "traces", "devices"];

    pub fn word(self) -> &'static str {
        Listed::WORDS[self as usize]
    }

    /// The kind of this word.
    pub fn of_word(word: &str) -> Option<Listed> {
        Listed::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

// Arguments of `seekway convert`.

/// Write a trace as CSV
///
/// The columns are time_ns (nanoseconds since the first request), op (read, write, flush,
/// discard, write-zeroes), start_sector and sectors (of 512 bytes), volume, pid (0: not known)
/// and sync (1: somebody waits for it). DuckDB, pandas and Polars read the file, and every
/// command of Seekway takes it as a trace.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway convert vm.vscsi vm.csv.gz
  blktrace -d /dev/sdb -w 60 -o - | seekway convert - sdb.csv.gz
  duckdb -c \"select op, count(*), avg(sectors) from 'vm.csv.gz' group by op\"")]
pub struct ConvertArgs {
    /// Trace in any format; `-` reads standard input
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// File to write, whole or not at all; packed with gzip if its name ends in .gz
    #[arg(value_name = "OUT.csv[.gz]")]
    pub out: PathBuf,
    #[command(flatten)]
    pub reading: ReadingArgs,
}

// Arguments of `seekway advise` and `seekway inspect`.

/// Recommend a policy for traces and a disk
///
/// First says whether the disk can carry the load at all: under some policy, are 99 % of each
/// VM's reads and synchronous writes answered within --p99-limit, does every other write reach the
/// disk within --hard-limit, and does the disk keep up with the rate? Times count from when the
/// trace has the request; a guest has 128 at its disk at once. A drive's write cache is on, as it
/// is sold (--device NAME:write_cache=false).
///
/// Then it says by how many times the load could grow, or which modelled disks carry it. It runs
/// every policy with its defaults, recommends one, and says who loses by it. Of policies that are
/// equal (closer than 2 percent) the first in `seekway list policies` is taken; policies under
/// which the disk does not carry the load come last.
///
/// With --cache or --prefetch it ranks stacks: every policy with each cache and prefetcher,
/// with each cache alone, and without a cache.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway advise vm.vscsi db.csv --device cheetah-15k5
  blktrace -d /dev/sdb -w 60 -o - | seekway advise - --for latency
  seekway advise vm.vscsi db.csv --cache 512MiB,2GiB --prefetch vio --for latency")]
pub struct AdviseArgs {
    /// Traces, one VM each; `-` reads standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Goal to judge policies by
    #[arg(long = "for", value_enum, value_name = "GOAL", default_value = "balance")]
    pub goal: Goal,
    /// Replaced by --for
    #[arg(long = "goal", hide = true, value_parser = refuse_goal)]
    pub replaced_goal: Option<String>,
    /// Limit for 99 % of each VM's reads and synchronous writes on a disk that carries the load
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub p99_limit: String,
    #[command(flatten)]
    pub reading: ReadingArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    #[command(flatten)]
    pub prefetch: PrefetchArgs,
    #[command(flatten)]
    pub pace: PaceArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

fn refuse_goal(_: &str) -> Result<String, String> {
    Err("it is now --for latency, throughput, fairness or balance".into())
}

/// Goal by which `advise` judges policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Goal {
    /// p99 of the VM that comes off worst, over what it has alone
    Latency,
    /// MiB a second of all VMs together
    Throughput,
    /// Speed of the VM that comes off worst, as a share of what it has alone
    Fairness,
    /// Mean distance from the best policy in these three
    Balance,
}

/// Show what is in a trace
///
/// Says how the trace was read, how many requests it has, of which sizes, how many of them follow
/// one another, at which rates they come, how many are under way at once if the trace tells, which
/// part of the disk they touch, and how many reads a cache would answer; for reads and writes, and
/// by volume. Memory is bounded, whatever the size of the trace. --zones shows hot zones instead.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway inspect vm.vscsi --report trace.html
  blktrace -d /dev/sdb -w 60 -o - | seekway inspect - --format json
  seekway inspect vm.vscsi --zones --at 12.5s --at 60s")]
pub struct InspectArgs {
    /// Traces; `-` reads standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub zones: ZoneArgs,
    #[command(flatten)]
    pub reading: ReadingArgs,
    #[command(flatten)]
    pub out: FormatArgs,
    /// Also write an HTML report with figures over time
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Options of the zone model.
#[derive(Args, Debug)]
#[command(next_help_heading = "Zone model")]
pub struct ZoneArgs {
    /// Show what Pregather's model sees: feeds each VM's requests to the vNavigator model, in
    /// windows of the trace's own time, and shows hot zones and predicted intervals
    #[arg(long)]
    pub zones: bool,
    /// Show the model at this time of the trace (repeatable)
    #[arg(long = "at", value_name = "TIME", requires = "zones")]
    pub at: Vec<String>,
    /// Size of a zone
    #[arg(long, value_name = "SIZE", default_value = "1000KiB", requires = "zones")]
    pub zone: String,
    /// Factor by which a zone's density decays from window to window
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0, requires = "zones")]
    pub lambda: f64,
    /// Length of a window
    #[arg(long, value_name = "TIME", default_value = "20ms", requires = "zones")]
    pub window: String,
}

// The exit statuses of all commands, in `--help` and in the man pages. docs/exit-status.md
// has the same for all commands together.

/// Text of `--help` for commands with the usual exit status.
const USUAL: &str = "Exit status: 0 if it did what was asked, 2 for wrong usage, input or output.";

/// Commands that judge something: status 1.
const JUDGES: [(&str, &str); 2] = [
    (
        "replay",
        "Exit status: 0 if the policy decides the same, 1 if not, 2 for wrong usage or input.",
    ),
    (
        "predict",
        "Exit status: 0 if it did what was asked, 1 if the model misses a figure of \
         --against published, 2 for\nwrong usage or input.",
    ),
];

/// Adds the exit status to all commands that do not say theirs.
fn explained(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(explained);
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if command.has_subcommands() || help.contains("Exit status") {
        return command;
    }
    let judge = JUDGES.iter().find(|(name, _)| *name == command.get_name());
    let said = match judge {
        Some((_, said)) => said,
        None => USUAL,
    };
    let blank = if help.is_empty() { "" } else { "\n\n" };
    command.after_help(format!("{help}{blank}{said}"))
}
