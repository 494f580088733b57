//! `serve`: the daemon.

use crate::complete;
use clap::Args;
use std::path::PathBuf;

/// Serve disks to virtual machines and schedule their requests
///
/// Each disk has two sockets: DIR/NAME.vhost for vhost-user-blk and DIR/NAME.nbd
/// for NBD. One policy schedules all requests to a device. `seekway ctl` connects
/// to DIR/control.sock. Only --disk is needed. See docs/start.md and docs/serve.md.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  seekway serve --disk web=web.img --disk db=db.img
  seekway serve --disk web=web.img --disk db=db.img,weight=4 --policy pregather --listen /run/vms
  seekway serve --disk a=a.img --emulate seagate-1tb-7200:k=auto --policy cfq
  seekway serve --disk web=web.img --disk db=db.img,cache=off --cache 2GiB --prefetch vio
  seekway serve --disk db=db.img,iops=2000,iops_burst=8000,burst_length=10s
  seekway serve --disk a=a.img,group=t --disk b=b.img,group=t --group t:iops=9000
  seekway serve --config /etc/seekway/serve.toml --check-config
  seekway serve --blk-file web.img --socket-path web.sock

SIGTERM or SIGINT stops it after the requests in flight have ended; a second one
stops it at once. A disk whose image cannot be opened is left out and reported.
Exit status: 0 after a signal, 2 if the settings are wrong or no disk could be served.")]
pub struct ServeArgs {
    /// Serve a raw image or a block device under this name (repeatable)
    ///
    /// Options: `weight=N` (share of the device), `ro` (read-only),
    /// `lba=SECTORS|BYTES` (its place on an emulated device), `buffered` (use the
    /// page cache), `cache=off` (do not use --cache), `accept-lost-writes` (serve an
    /// image that lost acknowledged writes), `incoming` (another daemon serves the image until
    /// the guest has migrated), `block_size=512|4096` (logical blocks that guests see),
    /// `guest_memory=SIZE` (most memory of its guest that a VMM may hand over [default: the host's
    /// memory]), `serial=TEXT` (the serial number that the guest sees, at most 20 bytes [default: of
    /// the name]), `on=PATH` (the image's data lie on the device of this path), `nbd=off` (no NBD socket), `allow=NAME` (over TCP only clients
    /// whose certificate has this name; repeatable, see --tls-client-ca),
    /// `socket_owner=USER`, `socket_group=GROUP` and `socket_mode=MODE` (see --socket-owner),
    /// `fault=SPEC` (inject faults, for tests; must be last). Write a comma in the path twice.
    ///
    /// Rate limits: `iops=N` and `bandwidth=SIZE` per second, also as `read_iops`,
    /// `write_bandwidth` and so on; `iops_burst=N` and `bandwidth_burst=SIZE` (a
    /// higher rate after a quiet time) for `burst_length=TIME` [default: 1s];
    /// `iops_size=SIZE` (a larger request counts as several I/Os); `group=NAME`
    /// (see --group). Promises: `reserve_iops=N` and `reserve_bandwidth=SIZE` (at
    /// least so much per second), `latency=TIME` (for 99 of 100 requests). docs/serve.md has all,
    /// and what libvirt and QEMU call them
    #[arg(long = "disk", value_name = "NAME=PATH[,…]")]
    pub disks: Vec<String>,
    /// Limit a group of disks together, `tenant1:bandwidth=300MiB,iops=5000`
    /// (repeatable); a disk joins with `group=tenant1`. With `weight=N` the group has
    /// one share of the device, which its disks divide by their weights
    #[arg(long = "group", value_name = "NAME:LIMIT=N[,…]")]
    pub groups: Vec<String>,
    /// Read settings from this file; flags override it, and disks and groups are added
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Check the settings, print what would be served, and exit
    #[arg(long)]
    pub check_config: bool,
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub reach: ReachArgs,
    #[command(flatten)]
    pub confine: ConfineArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// How a daemon serves. Each is a setting of the file too, and checked there.
#[derive(Args, Debug)]
#[command(next_help_heading = "Scheduling")]
pub struct ScheduleArgs {
    /// Scheduling policy (`seekway policy list`), with parameters as `NAME:key=value,…`
    /// [default: fairway]
    #[arg(long, value_name = "SPEC", add = complete::policy())]
    pub policy: Option<String>,
    /// Emulate one device for all disks (`seekway device list`); `k` scales its
    /// times when the real device is too slow: `auto`, `1`, or a factor
    #[arg(long, value_name = "PROFILE[:…][:k=…]")]
    pub emulate: Option<String>,
    /// Queue depth of each device [default: 1 on rotational devices, 128 on others,
    /// the model's own with --emulate]
    #[arg(long, value_name = "N")]
    pub depth: Option<String>,
    /// Coalesce adjacent requests up to this size, at most 1MiB; 0 turns it off [default: 512KiB]
    #[arg(long, value_name = "SIZE")]
    pub coalesce: Option<String>,
    /// Serve a request that has waited this long, whatever the policy decides
    /// [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub hard_limit: Option<String>,
    /// Poll for requests this long before sleeping: lower latency, but uses a core while there is
    /// work; 0 turns it off; `auto`: up to 50us while requests come often, and not at all while
    /// they do not or others want the processor [default: auto]
    #[arg(long, value_name = "TIME|auto")]
    pub poll: Option<String>,
    /// Threads of each device: with 2, a thread of the kernel's submits its I/O, which uses another
    /// core while there is work [default: 1]
    #[arg(long, value_name = "1|2")]
    pub threads: Option<String>,
    /// Write a journal of each device's decisions to this folder, for `seekway replay`
    #[arg(long, value_name = "DIR")]
    pub journal: Option<String>,
}

/// What a daemon keeps of what guests read. Each is a setting of the file too.
#[derive(Args, Debug)]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    /// Size of the read cache in the host's memory for each device; `auto`: a tenth of the
    /// available memory for all devices together, less under memory pressure; `off`
    /// [default: auto; off with --emulate, --blk-file, --socket-path and --fd]
    #[arg(long, value_name = "SIZE|auto|off")]
    pub cache: Option<String>,
    /// Prefetch into the cache (`seekway prefetcher list`), with parameters as
    /// `NAME:key=value,…` [default: vio:interval=continuous]
    #[arg(long, value_name = "SPEC", add = complete::prefetcher())]
    pub prefetch: Option<String>,
    /// Lock the cache in memory, so that it is never swapped; needs CAP_IPC_LOCK or a
    /// large enough RLIMIT_MEMLOCK
    #[arg(long)]
    pub cache_lock: bool,
    /// Highest read bandwidth of a device per second, as `550MiB` [default: measured
    /// on its first image that holds data]
    #[arg(long, value_name = "SIZE")]
    pub bandwidth: Option<String>,
}

/// Where a daemon is reached. Each is a setting of the file too.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sockets")]
pub struct ReachArgs {
    /// Folder for the sockets; created if missing [default: /run/seekway for root,
    /// $XDG_RUNTIME_DIR/seekway for others; none if the disks are reached otherwise, as by
    /// --nbd]
    #[arg(long, value_name = "DIR")]
    pub listen: Option<String>,
    /// Path of the control socket [default: DIR/control.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<String>,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    /// Show what the daemon does, with its history, at http://ADDRESS:PORT/ (docs/web.md); by the
    /// control socket too, without this option
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub web: Option<String>,
    /// Let the page change weights, limits and policies for whoever has the token in this file
    /// (mode 0600, at least 16 letters) [default: the page is read-only]
    #[arg(long, value_name = "TOKENFILE")]
    pub web_control: Option<String>,
    /// Host name by which requests for metrics and the page may call this host, besides its
    /// addresses and localhost (repeatable) [default: none, so that no other site's page can ask
    /// through a browser]
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Serve all disks by NBD over TCP, each as an export of its name; `off`: no NBD at all, the
    /// disks have no NBD sockets either
    #[arg(long, value_name = "ADDRESS:PORT|off")]
    pub nbd: Option<String>,
    /// Owner of the disks' sockets, by name or number [default: who runs the daemon]
    #[arg(long, value_name = "USER")]
    pub socket_owner: Option<String>,
    /// Group of the disks' sockets, by name or number [default: that of who runs the daemon]
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// Permissions of the disks' sockets, in octal [default: 600, with --socket-group 660]
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<String>,
    /// Certificate chain of the NBD server (PEM); turns TLS on
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<String>,
    /// Accept only clients with a certificate signed by one of these authorities (PEM); over TCP
    /// clients without TLS are refused
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<String>,
    /// Refuse NBD clients that do not use TLS
    #[arg(long)]
    pub tls_required: bool,
}

/// What a daemon gives up once it serves. Each is a setting of the file too.
#[derive(Args, Debug)]
#[command(next_help_heading = "Confinement")]
pub struct ConfineArgs {
    /// Give up all that serving does not need: system calls, files, capabilities; `off` for
    /// debugging. What the kernel cannot do is said at the start and in `ctl status` [default: on]
    #[arg(long, value_name = "on|off")]
    pub sandbox: Option<String>,
    /// Let programs attach images in this folder by path (repeatable); `seekway ctl attach` opens
    /// images itself and does not need it
    #[arg(long, value_name = "DIR")]
    pub images: Vec<String>,
}

/// The conventions for vhost-user back ends, of QEMU's documentation.
#[derive(Args, Debug)]
#[command(next_help_heading = "Back end of one disk, started by a VM manager")]
pub struct BackendArgs {
    /// Serve the disk by vhost-user on this socket
    #[arg(long, value_name = "PATH")]
    pub socket_path: Option<PathBuf>,
    /// Serve the disk by vhost-user on this inherited descriptor, listening or connected
    #[arg(long, value_name = "N", conflicts_with = "socket_path")]
    pub fd: Option<i32>,
    /// Image or block device of the disk, which is named `disk`
    #[arg(long, value_name = "PATH", conflicts_with = "disks")]
    pub blk_file: Option<PathBuf>,
    /// Refuse writes to the disk
    #[arg(long, requires = "blk_file")]
    pub read_only: bool,
    /// Print the back end's capabilities as JSON, and exit
    #[arg(long)]
    pub print_capabilities: bool,
}
