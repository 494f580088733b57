//! `serve`: the daemon.

use clap::Args;
use std::path::PathBuf;

/// Serve disks to virtual machines, scheduled by a policy
///
/// For each disk there is a socket for vhost-user-blk, DIR/NAME.vhost, and one
/// for NBD, DIR/NAME.nbd. All requests to one device meet in one dispatcher;
/// `seekway ctl` talks to DIR/control.sock. See docs/serve.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway serve --disk web=web.img --disk db=db.img,weight=4 --policy pregather --listen /run/seekway
  seekway serve --disk a=a.img --emulate seagate-1tb-7200:k=auto --policy cfq --listen /run/seekway
  seekway serve --disk web=web.img --disk db=db.img,cache=off --cache 2GiB --prefetch vio --listen /run/seekway
  seekway serve --disk db=db.img,iops=2000,iops_burst=8000,burst_length=10s --listen /run/seekway
  seekway serve --disk a=a.img,group=t --disk b=b.img,group=t --group t:iops=9000 --listen /run/seekway
  seekway serve --config /etc/seekway/serve.toml --check-config
  seekway serve --blk-file web.img --socket-path web.sock

SIGTERM or SIGINT ends it in good order, a second one at once. Exit status 0
then, 2 when something could not be served.")]
pub struct ServeArgs {
    /// A disk: an image (raw) or block device under a name, with `weight=N`,
    /// `ro`, `lba=SECTORS|BYTES` (where it lies on an emulated device),
    /// `buffered` (through the page cache), `cache=off` (past --cache),
    /// `accept-lost-writes` (serve an image that lacks writes which a guest was
    /// told are done), `fault=SPEC` (for tests; last); repeat for several. A comma in the path
    /// is written twice.
    ///
    /// Rate limits: `iops=N`, `bandwidth=SIZE` per second, each also with
    /// `read_` or `write_` in front instead; `iops_burst=N`, `bandwidth_burst=SIZE`
    /// (a higher rate after a quiet time) for `burst_length=TIME` [default: 1s];
    /// `iops_size=SIZE` (a larger request counts as several I/Os); `group=NAME`
    /// (see --group). The names of libvirt's <iotune> and of QEMU's throttle
    /// groups work too: docs/serve.md
    #[arg(long = "disk", value_name = "NAME=PATH[,…]")]
    pub disks: Vec<String>,
    /// A group of disks, with rate limits that its disks have together:
    /// `tenant1:bandwidth=300MiB,iops=5000`, as for --disk; a disk joins with
    /// `group=tenant1`; repeat for several
    #[arg(long = "group", value_name = "NAME:LIMIT=N[,…]")]
    pub groups: Vec<String>,
    /// A file with the same settings; flags win, disks and groups add
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Check the settings, say what would be served, and end
    #[arg(long)]
    pub check_config: bool,
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
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

/// What a daemon keeps of what guests read. Each is a setting of the file too.
#[derive(Args, Debug)]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    /// Keep so much of what guests read in the host's memory, for each device
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<String>,
    /// Read ahead of guests into the cache (`seekway prefetcher list`), with
    /// parameters as `NAME:key=value,…`; needs --cache [default: none]
    #[arg(long, value_name = "SPEC")]
    pub prefetch: Option<String>,
    /// Lock the cache in memory: it is never swapped. Needs CAP_IPC_LOCK or an
    /// RLIMIT_MEMLOCK of its size
    #[arg(long)]
    pub cache_lock: bool,
    /// What a device reads a second at best, as `550MiB`; unless given, measured
    /// with its first image that has data
    #[arg(long, value_name = "SIZE")]
    pub bandwidth: Option<String>,
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
