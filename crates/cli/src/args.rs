//! The command line. Man pages, completions and `--help` all come from here.

mod calibrate;
mod predict;
mod prefetch;
mod workload_run;

pub use calibrate::{CalibrateArgs, Kind, MeasuringArgs};
pub use predict::{LivePredictArgs, PredictArgs};
pub use prefetch::PrefetchArgs;
pub use workload_run::WorkloadRunArgs;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Which disk scheduler for many virtual machines that share a disk?
///
/// Seekway runs the policies of the literature and its own on your traces or
/// on generated loads, against a model of the disk that you have or might buy.
#[derive(Parser, Debug)]
#[command(name = "seekway", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The command line of this process. A program of the name that the
    /// conventions for back ends give, as a link to this one, is `serve`.
    pub fn of_process() -> Cli {
        let mut args: Vec<_> = std::env::args_os().collect();
        let name = args.first().map(std::path::Path::new).and_then(|p| p.file_name());
        if name.is_some_and(|name| name == BACKEND_NAME) {
            args.insert(1, "serve".into());
        }
        Cli::parse_from(args)
    }
}

/// What the conventions call a back end for block devices.
const BACKEND_NAME: &str = "vhost-user-blk";

/// All commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    Compare(CompareArgs),
    Advise(AdviseArgs),
    Inspect(InspectArgs),
    #[command(subcommand)]
    Experiment(ExperimentCommand),
    Calibrate(CalibrateArgs),
    Predict(PredictArgs),
    #[command(subcommand)]
    Device(DeviceCommand),
    #[command(subcommand)]
    Policy(PolicyCommand),
    #[command(subcommand)]
    Workload(WorkloadCommand),
    Replay(ReplayArgs),
    Serve(Box<ServeArgs>),
    Ctl(CtlArgs),
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
    /// A trace, one VM each (repeat for several); `-` is the standard input
    #[arg(long = "trace", value_name = "FILE")]
    pub traces: Vec<PathBuf>,
    /// A generated VM: `name=web,image=12g,app=sysbench:mode=SR,app=sysbench:mode=RR`
    /// (see `seekway workload list`)
    #[arg(long = "vm", value_name = "SPEC")]
    pub vms: Vec<String>,
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Slow the traces' clock by this factor (2: half the speed, 0.5: double)
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub time_scale: f64,
    /// Ignore the traces' clock: each VM keeps so many requests outstanding
    #[arg(long, value_name = "N", conflicts_with = "time_scale")]
    pub outstanding: Option<u32>,
    /// Where the VMs lie on the disk: `packed`, `packed:LBA`, `spread`,
    /// `identity` (each trace's own LBAs), or one LBA for each VM: `0,50000000`
    #[arg(long, value_name = "PLACE", default_value = "packed")]
    pub map: String,
    /// Weights of the VMs in their order, `4,1,1`; those missing are 1
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    pub weights: Vec<std::num::NonZeroU32>,
    /// Size of each trace's disk where it is smaller than the trace says: what
    /// lies beyond wraps round (bytes with a unit, or sectors)
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<String>,
}

/// How traces are read.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Reading traces")]
pub struct ReadingArgs {
    /// The traces' format, where it is not to be detected from their content
    #[arg(long, value_name = "NAME")]
    pub input_format: Option<String>,
    /// Skip records that cannot be read and count them, instead of stopping
    #[arg(long)]
    pub lenient: bool,
    /// A VM for each volume of a trace, the busiest ones at most
    #[arg(long, value_name = "VMS", num_args = 0..=1, default_missing_value = "64")]
    pub split: Option<usize>,
    /// Read no more than so many requests of each trace
    #[arg(long, value_name = "N")]
    pub max_requests: Option<u64>,
    /// Read no more than this span of each trace (`30s`, `5min`)
    #[arg(long, value_name = "TIME")]
    pub max_time: Option<String>,
}

/// What serves them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Disk")]
pub struct DiskArgs {
    /// The disk: a profile (`seekway device list`), with changes as
    /// `NAME:key=value,…`, or a profile file
    #[arg(long, value_name = "PROFILE", default_value = "seagate-1tb-7200")]
    pub device: String,
    /// Adjacent requests are coalesced up to this size; 0 never
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    pub coalesce: String,
    /// A request that has waited longer is served whatever the policy says
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub hard_limit: String,
}

/// Put a load through several policies on one disk
///
/// Every policy serves the same load on the same model. What each VM gets, and
/// all together, is printed as a table, JSON or CSV; --report writes a page with
/// figures that needs no network.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway compare --trace vm.vscsi --trace db.csv --device seagate-1tb-7200 --report out.html
  seekway compare --vm name=a,app=sysbench:mode=SR --vm name=b,app=sysbench:mode=RR --until 60s
  seekway compare --trace t.blktrace.0 --policies noop,cfq:slice_idle=4ms,pregather --format json
  seekway compare --vm … --device intel-320 --policies noop,cfq --prefetch none,linux --cache 2GiB")]
pub struct CompareArgs {
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    /// `all`, or policies with their parameters: `noop,cfq:quantum=4,slice_idle=0`
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub policies: String,
    #[command(flatten)]
    pub prefetch: PrefetchArgs,
    /// First seed of generated loads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Run with so many seeds, from --seed on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seeds: u64,
    /// Stop each run at this simulated time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    #[command(flatten)]
    pub out: OutArgs,
    /// Write each run's decisions into this folder, for `seekway replay`
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
}

/// How results leave.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutArgs {
    /// How the result is printed
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
    /// Also write an HTML report, one file, readable without a network
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Runs at the same time; the machine's cores unless given
    #[arg(long, value_name = "N")]
    pub jobs: Option<std::num::NonZeroUsize>,
}

/// Recommend a policy for traces and a disk
///
/// Runs every policy with its defaults, recommends one, and says by how much it
/// is better and for whom it is worse.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway advise vm.vscsi db.csv --device cheetah-15k5
  blktrace -d /dev/sdb -w 60 -o - | seekway advise - --goal tail")]
pub struct AdviseArgs {
    /// Traces, one VM each; `-` is the standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// What counts
    #[arg(long, value_enum, default_value = "response")]
    pub goal: Goal,
    #[command(flatten)]
    pub reading: ReadingArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    /// Slow the traces' clock by this factor
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub time_scale: f64,
    /// Ignore the traces' clock: each VM keeps so many requests outstanding
    #[arg(long, value_name = "N", conflicts_with = "time_scale")]
    pub outstanding: Option<u32>,
    /// Where the VMs lie on the disk (see `compare`)
    #[arg(long, value_name = "PLACE", default_value = "packed")]
    pub map: String,
    #[command(flatten)]
    pub out: OutArgs,
}

/// What `advise` judges by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Goal {
    /// Mean response time.
    Response,
    /// The response time that 99 % stay below.
    Tail,
    /// Bytes per second.
    Throughput,
    /// Jain's index over the VMs' slowdowns.
    Fairness,
}

/// Show what Pregather's model sees in a trace
///
/// Feeds the traces to the vNavigator model, one for each VM, in windows of the
/// trace's own time, and shows hot zones and predicted intervals.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway inspect vm.vscsi --report model.html
  seekway inspect vm.vscsi --at 12.5s --at 60s --format json")]
pub struct InspectArgs {
    /// Traces, one VM each; `-` is the standard input
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Show the model as it is at this time of the trace (repeat for several)
    #[arg(long = "at", value_name = "TIME")]
    pub at: Vec<String>,
    /// Zone size (sectors, or bytes with a unit)
    #[arg(long, value_name = "SIZE", default_value = "2000")]
    pub zone: String,
    /// Decay of a zone's density from window to window
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub lambda: f64,
    /// Length of a window
    #[arg(long, value_name = "TIME", default_value = "20ms")]
    pub window: String,
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// How the result is printed
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
    /// Also write an HTML report with a heat map for each VM
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Reproduce the papers' experiments
#[derive(Subcommand, Debug)]
pub enum ExperimentCommand {
    /// What there is
    List {
        /// How the result is printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    Run(ExperimentArgs),
}

/// Run experiments and judge every row against the paper
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway experiment run pregather-read --report read.html
  seekway experiment run 'pregather-*' --seeds 2 --format json
  seekway experiment run all --policy cfq:low_latency=false
  seekway experiment run pregather-read --prefetch none --cache 512MiB

Exit status 1 when a row is not accepted.")]
pub struct ExperimentArgs {
    /// A name, a pattern with `*`, or `all`
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seeds: u64,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Put this policy through too, beside the paper's
    #[arg(long, value_name = "SPEC")]
    pub policy: Option<String>,
    #[command(flatten)]
    pub prefetch: PrefetchArgs,
    /// Run a tenth of the work: to see whether it runs, not what it gives
    #[arg(long)]
    pub quick: bool,
    /// On real QEMU guests, on a disk that `seekway serve` emulates, beside the
    /// simulator: pregather-read, cats-direct or vmcd-fair-sizes
    #[arg(long, conflicts_with = "seeds")]
    pub live: bool,
    /// Real drives with measured service times, each a folder with a `.trace`
    /// (`DiskSim`'s validation format): vpt-fit and vpt-rank use them
    #[arg(long, value_name = "DIR")]
    pub drives: Option<PathBuf>,
    /// With --live: run the guests by KVM instead of emulating them
    #[arg(long, requires = "live")]
    pub kvm: bool,
    #[command(flatten)]
    pub out: OutArgs,
}

/// Models of disks
#[derive(Subcommand, Debug)]
pub enum DeviceCommand {
    /// The profiles there are
    List {
        /// How the result is printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// A profile as TOML, with the source of every figure
    Show {
        /// Its name
        name: String,
    },
    Validate(ValidateArgs),
}

/// Compare a model with a measured drive's trace, or with published figures
///
/// With a trace: replays it and prints the demerit figure (RMS horizontal
/// distance between the two distributions of response times) and both means.
/// Without one, for solid-state drives: runs the maker's tests on the model,
/// sequential reads and writes of 128 KiB and random ones of 4 KiB.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway device validate cheetah-15k5 --trace ../shared/traces/drives/cheetah15k5/random.trace
  seekway device validate intel-320")]
pub struct ValidateArgs {
    /// The profile
    pub profile: String,
    /// A measured trace: `R|W Hit|Miss lbn sectors service_us interarrival_us`.
    /// Without it a solid-state drive is held against the figures that its
    /// maker published, and the exit status is 1 when one is off by more than 15 %
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Exit with 1 when the demerit figure is above this
    #[arg(long, value_name = "MS", requires = "trace")]
    pub max_demerit: Option<f64>,
    /// How the result is printed
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
}

/// The scheduling policies
#[derive(Subcommand, Debug)]
pub enum PolicyCommand {
    /// What there is
    List {
        /// How the result is printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// One policy with its parameters, as Markdown
    Show {
        /// Its name
        name: String,
    },
}

/// The generated loads and the trace formats
#[derive(Subcommand, Debug)]
pub enum WorkloadCommand {
    /// What there is
    List {
        /// How the result is printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// A generator's parameters, or `vm` for those of the guest
    Show {
        /// Its name
        name: String,
    },
    Run(WorkloadRunArgs),
}

/// Replay a journal and check that the policy decides the same
///
/// Exit status 1 and the first difference when it does not.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  seekway compare --trace t.csv --policies cfq --journal out/ && seekway replay out/cfq.1.journal")]
pub struct ReplayArgs {
    /// The journal; `-` is the standard input
    pub journal: PathBuf,
}

/// Serve disks to virtual machines, scheduled by a policy
///
/// For each disk there is a socket for vhost-user-blk, DIR/NAME.vhost, and one
/// for NBD, DIR/NAME.nbd. All requests to one device meet in one dispatcher;
/// `seekway ctl` talks to DIR/control.sock. See docs/serve.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway serve --disk web=web.img --disk db=db.img,weight=4 --policy pregather --listen /run/seekway
  seekway serve --disk a=a.img --emulate seagate-1tb-7200:k=auto --policy cfq --listen /run/seekway
  seekway serve --config /etc/seekway/serve.toml --check-config
  seekway serve --blk-file web.img --socket-path web.sock

SIGTERM or SIGINT ends it in good order, a second one at once. Exit status 0
then, 2 when something could not be served.")]
pub struct ServeArgs {
    /// A disk: an image (raw) or block device under a name, with `weight=N`,
    /// `ro`, `lba=SECTORS|BYTES` (where it lies on an emulated device),
    /// `buffered` (through the page cache), `fault=SPEC` (for tests; last);
    /// repeat for several. A comma in the path is written twice
    #[arg(long = "disk", value_name = "NAME=PATH[,…]")]
    pub disks: Vec<String>,
    /// A file with the same settings; flags win, disks add
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Check the settings, say what would be served, and end
    #[arg(long)]
    pub check_config: bool,
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    #[command(flatten)]
    pub reach: ReachArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// How a daemon serves. Each is a setting of the file too, and checked there.
#[derive(Args, Debug)]
#[command(next_help_heading = "Scheduling")]
pub struct ScheduleArgs {
    /// The policy (`seekway policy list`), with parameters as
    /// `NAME:key=value,…`; unless given, pregather on a device that turns and
    /// noop on one that does not
    #[arg(long, value_name = "SPEC")]
    pub policy: Option<String>,
    /// Let all disks lie on one device that behaves like this one
    /// (`seekway device list`); `k` stretches its time when the real device is
    /// too slow: `auto`, `1`, or a factor
    #[arg(long, value_name = "PROFILE[:…][:k=…]")]
    pub emulate: Option<String>,
    /// Commands at once on a device; unless given, what it is good for
    #[arg(long, value_name = "N")]
    pub depth: Option<String>,
    /// Adjacent requests are coalesced up to this size; 0 never [default: 512KiB]
    #[arg(long, value_name = "SIZE")]
    pub coalesce: Option<String>,
    /// A request that has waited longer is served whatever the policy says
    /// [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub hard_limit: Option<String>,
    /// Look for requests for so long before sleeping: faster, and costs a core
    #[arg(long, value_name = "TIME")]
    pub poll: Option<String>,
    /// Write each device's decisions into this folder, for `seekway replay`
    #[arg(long, value_name = "DIR")]
    pub journal: Option<String>,
}

/// Where a daemon is reached. Each is a setting of the file too.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sockets")]
pub struct ReachArgs {
    /// Folder for the sockets; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub listen: Option<String>,
    /// The control socket [default: DIR/control.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<String>,
    /// Metrics for Prometheus by HTTP, at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    /// All disks by NBD over TCP, each under its name
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub nbd: Option<String>,
    /// Certificates of the NBD server, PEM: offers TLS
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// Their private key, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<String>,
    /// Clients need a certificate that is signed by one of these, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<String>,
    /// Refuse clients of NBD without TLS
    #[arg(long)]
    pub tls_required: bool,
}

/// The conventions for vhost-user back ends, of QEMU's documentation.
#[derive(Args, Debug)]
#[command(next_help_heading = "As a back end that a VMM's manager starts")]
pub struct BackendArgs {
    /// Serve the only disk by vhost-user at this socket
    #[arg(long, value_name = "PATH")]
    pub socket_path: Option<PathBuf>,
    /// Serve it at this inherited descriptor, listening or connected
    #[arg(long, value_name = "N", conflicts_with = "socket_path")]
    pub fd: Option<i32>,
    /// The image or block device of the only disk, which is called `disk`
    #[arg(long, value_name = "PATH", conflicts_with = "disks")]
    pub blk_file: Option<PathBuf>,
    /// Refuse writes to it
    #[arg(long, requires = "blk_file")]
    pub read_only: bool,
    /// Print what this back end can do, as JSON, and end
    #[arg(long)]
    pub print_capabilities: bool,
}

/// Ask or tell a running `seekway serve`
///
/// The same as JSON, a line each way, over the socket: docs/serve.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway ctl status
  seekway ctl policy cfq:slice_idle=4ms
  seekway ctl attach db=/images/db.img,weight=4
  seekway ctl resize db 20GiB
  seekway ctl --socket /run/other/control.sock metrics")]
pub struct CtlArgs {
    /// The control socket
    #[arg(long, value_name = "PATH", default_value = "/run/seekway/control.sock", global = true)]
    pub socket: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// What can be asked of a daemon.
#[derive(Subcommand, Debug)]
pub enum CtlCommand {
    /// How devices and disks stand
    Status {
        /// How the result is printed
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Another policy, or other parameters: what is queued stays
    Policy {
        /// `NAME:key=value,…` (`seekway policy list`)
        #[arg(value_name = "SPEC")]
        policy: String,
        /// For this device alone (see `status`)
        #[arg(long, value_name = "DEVICE")]
        device: Option<String>,
    },
    /// Another share for a disk
    Weight {
        /// Its name
        #[arg(value_name = "DISK")]
        disk: String,
        /// Relative to the others', from 1
        #[arg(value_name = "N")]
        weight: std::num::NonZeroU32,
    },
    /// Serve one more disk
    Attach {
        /// As for `serve --disk`
        #[arg(value_name = "NAME=PATH[,…]")]
        disk: String,
    },
    /// Stop serving a disk: its guests lose it
    Detach {
        /// Its name
        #[arg(value_name = "DISK")]
        disk: String,
    },
    /// Tell guests of a disk's new size, and make it first if one is given
    Resize {
        /// Its name
        #[arg(value_name = "DISK")]
        disk: String,
        /// Bytes with a unit (`20GiB`), or sectors; the image's size as it is
        /// now unless given
        #[arg(value_name = "SIZE")]
        size: Option<String>,
        /// It may become smaller; what lies beyond is lost
        #[arg(long, requires = "size")]
        shrink: bool,
    },
    /// The metrics, as Prometheus reads them
    Metrics,
}

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "Example:
  seekway completions bash > /etc/bash_completion.d/seekway")]
pub struct CompletionsArgs {
    /// Which shell
    pub shell: clap_complete::Shell,
}

/// Write the man pages into a folder
#[derive(Args, Debug)]
pub struct ManArgs {
    /// The folder
    pub dir: PathBuf,
}
