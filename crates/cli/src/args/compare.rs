//! Arguments of `compare` (one load, several stacks) and `load`, and those that other commands share.

use super::{DiskArgs, FormatArgs, LoadArgs, OutArgs, RunsArgs};
use crate::complete;
use clap::{Args, ValueEnum};
use seekway_sim::scenario;
use std::path::PathBuf;

/// Which rate limits and promises hold in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LimitsArg {
    /// Those of --vm and --group
    Given,
    /// No rate limits, reservations, targets and groups; weights stay
    None,
}

impl From<LimitsArg> for scenario::LimitsChoice {
    fn from(choice: LimitsArg) -> scenario::LimitsChoice {
        match choice {
            LimitsArg::Given => scenario::LimitsChoice::Given,
            LimitsArg::None => scenario::LimitsChoice::Dropped,
        }
    }
}

impl From<Alone> for scenario::Alone {
    fn from(when: Alone) -> scenario::Alone {
        match when {
            Alone::Never => scenario::Alone::Never,
            Alone::Auto => scenario::Alone::Auto,
            Alone::Always => scenario::Alone::Always,
        }
    }
}

impl From<FairTo> for scenario::FairTo {
    fn from(disk: FairTo) -> scenario::FairTo {
        match disk {
            FairTo::Alone => scenario::FairTo::Alone,
            FairTo::Private => scenario::FairTo::Private,
        }
    }
}

/// When each VM runs once more, alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Alone {
    /// Never: the columns stay empty
    Never,
    /// With at most 16 different VMs
    Auto,
    /// With any number of VMs
    Always,
}

/// Reference that each VM's share is judged against.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FairTo {
    /// The disk alone: what the VM asks for
    Alone,
    /// Also a disk of its own, as many times slower as there are VMs
    Private,
}

/// Options that a scenario has itself.
const IN_THE_FILE: [&str; 27] = [
    "traces",
    "vms",
    "groups",
    "input_format",
    "event",
    "columns",
    "lenient",
    "split",
    "max_requests",
    "max_time",
    "time_scale",
    "outstanding",
    "map",
    "weights",
    "capacity",
    "device",
    "coalesce",
    "merge",
    "hard_limit",
    "prefetch",
    "cache",
    "limits",
    "host",
    "vcpu",
    "alone",
    "fair_to",
    "print_scenario",
];

/// Put a load through several stacks on one disk
///
/// Runs the same load on the same model of a disk under each policy, and prints what
/// each VM and all VMs together get, as a table, JSON or CSV. --report writes a page
/// with figures that needs no network. Host cache, prefetcher, limits, shared processors
/// and the guests' agent are lists as well: every combination runs, and runs are named by
/// what differs.
///
/// FILE describes the runs instead, as TOML (docs/scenario.md): of the options, only --policies,
/// --seed, --seeds and --until change what it says.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway compare --trace vm.vscsi --trace db.csv --device seagate-1tb-7200 --report out.html
  seekway compare --vm name=a,app=sysbench:mode=SR --vm name=b,app=sysbench:mode=RR --until 60s
  seekway compare --vm name=a,iops=50,app=sysbench:mode=RR --vm name=b,app=sysbench:mode=SR --until 60s
  seekway compare --trace t.blktrace.0 --policies noop,cfq:slice_idle=4ms,pregather --format json
  seekway compare --trace vm.vscsi --device intel-320 --policies noop --prefetch none,vio --cache none,512MiB,2GiB
  seekway compare --vm iops=50,app=sysbench:mode=RR --policies noop,fairway --limits given,none --until 60s
  seekway compare --vm app=sysbench:mode=RR --policies noop --host none --host cpus=1 --vcpu vanilla,vmigrater
  seekway compare --vm app=sysbench:mode=RR --until 60s --print-scenario > rr.toml && seekway compare rr.toml")]
pub struct CompareArgs {
    /// A scenario, which describes the runs in place of the options for load, disk and stack
    #[arg(value_name = "FILE", conflicts_with_all = IN_THE_FILE)]
    pub file: Option<PathBuf>,
    /// Print the scenario of this command line instead of running it
    #[arg(long, conflicts_with_all = ["file", "journal", "report"])]
    pub print_scenario: bool,
    /// Print all tables of FILE's outcome as JSON, with a list for each column. FILE may be `-`:
    /// standard input, as TOML or JSON
    #[arg(long, requires = "file",
        conflicts_with_all = ["policies", "seed", "seeds", "until", "journal", "report", "format"])]
    pub outcome: bool,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    #[command(flatten)]
    pub runs: RunsArgs,
    #[command(flatten)]
    pub prefetch: PrefetchArgs,
    /// Rate limits of the VMs: `given` by --vm and --group, `none`, or both for runs with
    /// and without them
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "given",
        help_heading = "Comparison"
    )]
    pub limits: Vec<LimitsArg>,
    #[command(flatten)]
    pub sharing: SharingArgs,
    /// Run each VM once more, alone, under noop on the disk itself (no cache, no shared
    /// processors): what it gets then is its demand, which φ, Jain and max-min need. The demand of
    /// a trace with a clock is the rate of its requests: none is run. Equal VMs share one such run.
    /// VMs are equal if they are described alike but for their names and, on a rotating disk, lie
    /// in the same eighth of it
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Comparison"
    )]
    pub alone: Alone,
    /// Reference for each VM's share: its throughput alone on the disk, or also that on a private
    /// disk: n times slower for n VMs (W/w times for a weight w of W in all), with an n-th of the
    /// processors' time and of the host cache. Adds progress: MiB/s over those on the private disk
    #[arg(
        long,
        value_enum,
        value_name = "DISK",
        default_value = "alone",
        help_heading = "Comparison"
    )]
    pub fair_to: FairTo,
    #[command(flatten)]
    pub out: OutArgs,
    /// Write each run's journal to this folder, for `seekway replay`
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
}

// Arguments for the host's processors and the guests' agents.

/// Options for sharing the host's processors among VMs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Shared processors")]
pub struct SharingArgs {
    /// VMs' vCPUs share the processors of a host, `cpus=4,slice=11ms`; keys: cpus, slice,
    /// jitter, cut (slices in 1000 that end early), switch, completes (submitter, fixed,
    /// any, steered). Repeat it to compare hosts; `none` shares nothing [default: none]
    #[arg(long, value_name = "SPEC")]
    pub host: Vec<String>,
    /// Policies for vCPUs of the guests' agents (`seekway list vcpu`), a list or `all`;
    /// each runs on every --host [default: vanilla, which is no agent]
    #[arg(long, value_name = "LIST", add = complete::vcpu_policy())]
    pub vcpu: Option<String>,
}

// Arguments for the host cache of `compare`, `predict` and `advise`.

/// A host cache and its prefetcher.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Host cache")]
pub struct PrefetchArgs {
    /// Prefetch into a host cache (`seekway list prefetchers`), with parameters as
    /// `NAME:key=value,…`; a list or `all`, each runs with every size of --cache
    #[arg(long, value_name = "LIST", add = complete::prefetcher())]
    pub prefetch: Vec<String>,
    /// Sizes of the host cache, `none,512MiB,2GiB`; every policy runs with each
    /// [default: 1GiB with --prefetch, else none]
    #[arg(long, value_name = "LIST")]
    pub cache: Option<String>,
}

// Arguments of `seekway load`.

/// Run a generated load on a real disk or file, with O_DIRECT
///
/// The load, with its model of the guest's page cache and think times, is the
/// simulator's; the disk is real. Without --write it only reads.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway load --vm image=1g,app=fio:rw=randread,direct=true,size=512m --on disk.img --for 10s
  seekway load --vm image=64g,tags=true,app=surge:direct=true --on /dev/vda --settle 3s --for 20s")]
pub struct RunLoadArgs {
    /// The VM: `image=1g,app=fio:rw=randread,direct=true` (see `seekway list loads`)
    #[arg(long, value_name = "SPEC")]
    pub vm: String,
    /// Block device or file to load, at least as large as the VM's image
    #[arg(long, value_name = "PATH")]
    pub on: PathBuf,
    /// Time to measure [default: until the load ends]
    #[arg(long = "for", value_name = "TIME")]
    pub window: Option<String>,
    /// Time to run before the measurement begins
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub settle: String,
    /// Seed of the generated load
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Most requests outstanding at once
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: u32,
    /// Allow writes; they DESTROY the data on the disk
    #[arg(long)]
    pub write: bool,
    #[command(flatten)]
    pub out: FormatArgs,
}
