//! The host, its VMs and its disks, and each VM's private disk.

use super::super::{Cell, HostSetup, Options, Scenario};
use super::ways::Parts;
use crate::engine::HostCosts;
use crate::vcpu::Processors;
use seekway_policy::units::Nanos;
use std::sync::Arc;

/// VMs, in the order of every table.
pub(super) const NAMES: [&str; 8] =
    ["database", "web", "mail", "file", "video", "backup", "build", "idle"];

/// What the VMs do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mix {
    /// An ordinary host: who serves users has a few of them at a time; the three that move much
    /// (file, video, backup) each ask for an eighth of what the disk gives them alone.
    Ordinary,
    /// Everybody asks for all that there is: Filebench's own numbers of threads, and a backup
    /// without a rate.
    Flood,
}

impl Mix {
    pub const ALL: [Mix; 2] = [Mix::Ordinary, Mix::Flood];

    fn name(self) -> &'static str {
        match self {
            Mix::Ordinary => "ordinary",
            Mix::Flood => "flood",
        }
    }

    /// The name of the mix on a disk, as in rows and for `scenes` of [`Options`].
    pub fn scene(self, disk: &Disk) -> String {
        match self {
            Mix::Ordinary => disk.name.into(),
            Mix::Flood => format!("{}, {}", disk.name, self.name()),
        }
    }

    /// Memory and load of each VM. Memory is less than the files, as on hosts that are full: the
    /// guests' page caches, full from the start, take a part of the reads. `more_mib` is given
    /// to each VM besides. The idle VM writes a line of a log each second, and waits for it.
    fn vms(self, disk: &Disk, more_mib: u64) -> [String; 8] {
        const BACKUP: &str = "fio:rw=read,bs=1MiB,size=10GiB,iodepth=4,io_size=1TiB,direct=true";
        const IDLE: &str = "fio:rw=write,bs=4KiB,size=64MiB,io_size=1TiB,fsync=1,thinktime=1s";
        let (file, stream) = (disk.files_per_s / 8, disk.mib_per_s / 8);
        let loads = match self {
            Mix::Ordinary => [
                "oltp:threads=16,writers=4".to_string(),
                "webserver:threads=16".into(),
                "mailserver:threads=8".into(),
                format!("fileserver:threads=8,rate={file}"),
                format!("videoserver:threads=16,rate={stream}"),
                format!("{BACKUP},rate_iops={stream}"),
                "build".into(),
                IDLE.into(),
            ],
            Mix::Flood => [
                "oltp".to_string(),
                "webserver".into(),
                "mailserver".into(),
                "fileserver".into(),
                format!("videoserver:rate={stream}"),
                BACKUP.into(),
                "build".into(),
                IDLE.into(),
            ],
        };
        let rams = [768, 512, 512, 1024, 1024, 512, 512, 512];
        let mut rams = rams.into_iter();
        loads.map(|load| {
            format!("ram={}MiB,warm=true,app={load}", rams.next().unwrap_or(512) + more_mib)
        })
    }

    /// Does the load of a VM have a rate, so that more of the disk is of no use to it?
    pub fn is_paced(self, vm: usize) -> bool {
        match self {
            Mix::Ordinary => ["file", "video", "backup", "idle"].contains(&NAMES[vm]),
            Mix::Flood => ["video", "idle"].contains(&NAMES[vm]),
        }
    }
}

/// A disk, and what is asked of it.
pub(super) struct Disk {
    pub name: &'static str,
    device: &'static str,
    /// What it reads in sequence, about.
    mib_per_s: u64,
    /// Rounds of the file server that it does for eight threads alone (measured).
    files_per_s: u64,
    /// Geometric mean of progress, everything on.
    pub mean_asked: f64,
    /// Is it asked that the host moves nearly as much as under any policy? Not where a head
    /// moves: there the host moves most by serving streams alone.
    pub is_throughput_asked: bool,
    /// Caches begin full and settle for so long, and then it is measured for so long.
    settle_ms: u64,
    measured_ms: u64,
}

pub(super) const DISKS: [Disk; 4] = [
    Disk {
        name: "7200 rpm",
        device: "seagate-1tb-7200",
        mib_per_s: 120,
        files_per_s: 42,
        mean_asked: 1.7,
        is_throughput_asked: false,
        settle_ms: 120_000,
        measured_ms: 300_000,
    },
    Disk {
        name: "SATA SSD",
        device: "intel-x25m-g2",
        mib_per_s: 240,
        files_per_s: 623,
        mean_asked: 1.4,
        is_throughput_asked: true,
        settle_ms: 10_000,
        measured_ms: 20_000,
    },
    Disk {
        name: "NVMe",
        device: "samsung-970-pro",
        mib_per_s: 3200,
        files_per_s: 15990,
        mean_asked: 1.4,
        is_throughput_asked: true,
        settle_ms: 2_000,
        measured_ms: 3_000,
    },
    Disk {
        name: "array",
        device: "raid0-8x-x25m-g2",
        mib_per_s: 1900,
        files_per_s: 4300,
        mean_asked: 1.4,
        is_throughput_asked: true,
        settle_ms: 2_000,
        measured_ms: 4_000,
    },
];

/// Processors of the host, and vCPUs of each VM.
const PROCESSORS: u16 = 4;
/// What the host gives its cache.
const CACHE_BYTES: u64 = 2 << 30;
/// As `serve` prefetches by default.
const VIO: &str = "vio:interval=continuous";
/// What is measured is at least this long, however much a run is shrunk.
const MEASURED_MIN_MS: u64 = 50;

/// What each guest has more where the host keeps no cache for them all.
const EQUAL_MIB: u64 = (CACHE_BYTES >> 20) / NAMES.len() as u64;

/// The VMs on a disk with these parts.
pub(super) fn cell(disk: &Disk, mix: Mix, parts: Parts, options: &Options) -> Cell {
    let tags = if parts.tags { ", tags" } else { "" };
    let memory = if parts.guests_have_cache { ", equal memory" } else { "" };
    let name = format!("{}, {}{tags}{memory}", disk.name, mix.name());
    let vms = vms(disk, mix, parts);
    let scenario = scenario(disk, name, vms, CACHE_BYTES, options);
    let prefetch = match (parts.cache, parts.prefetch) {
        (false, _) => None,
        (true, false) => Some("none".to_string()),
        (true, true) => Some(VIO.to_string()),
    };
    Cell {
        prefetch,
        bare: !parts.cache,
        vcpu: Some(if parts.agent { "vmigrater" } else { "vanilla" }.into()),
        ..Cell::new(Arc::new(scenario), parts.scheduler)
    }
}

/// One of them alone on the host, with everything off: what it asks for, if it has a rate.
pub(super) fn cell_alone(disk: &Disk, mix: Mix, vm: usize, options: &Options) -> Cell {
    let name = format!("{}, {}, {} alone", disk.name, mix.name(), NAMES[vm]);
    let vms = vec![vms(disk, mix, Parts::NONE).swap_remove(vm)];
    let scenario = scenario(disk, name, vms, CACHE_BYTES, options);
    let vcpu = Some("vanilla".into());
    Cell { bare: true, vcpu, ..Cell::new(Arc::new(scenario), Parts::NONE.scheduler) }
}

/// One of them on its private disk: as many times slower as there are VMs, with one part of so
/// many of the processors' time and of the host's cache.
pub(super) fn cell_private(disk: &Disk, mix: Mix, vm: usize, options: &Options) -> Cell {
    let share = NAMES.len() as u32;
    let name = format!("{}, {}, {} on a private disk", disk.name, mix.name(), NAMES[vm]);
    let vms = vec![vms(disk, mix, Parts::NONE).swap_remove(vm)];
    let scenario = scenario(disk, name, vms, CACHE_BYTES / u64::from(share), options);
    let scenario = Scenario {
        device: format!("{}:slow={share}", disk.device),
        processors: Some(Processors { part: share, ..Processors::new(PROCESSORS) }),
        ..scenario
    };
    let vcpu = Some("vanilla".into());
    let cell = Cell::new(Arc::new(scenario), Parts::NONE.scheduler);
    Cell { prefetch: Some("none".into()), vcpu, ..cell }
}

/// The VMs' texts with these parts.
fn vms(disk: &Disk, mix: Mix, parts: Parts) -> Vec<String> {
    let tags = if parts.tags { "tags=true," } else { "" };
    let texts = mix.vms(disk, if parts.guests_have_cache { EQUAL_MIB } else { 0 });
    let vm =
        |(n, text): (usize, String)| format!("name={},vcpus={PROCESSORS},{tags}{text}", NAMES[n]);
    texts.into_iter().enumerate().map(vm).collect()
}

fn scenario(
    disk: &Disk,
    name: String,
    vms: Vec<String>,
    cache_bytes: u64,
    options: &Options,
) -> Scenario {
    let shrunk = |millis: u64| millis / options.shrink.max(1);
    let settle = Nanos::from_millis(shrunk(disk.settle_ms));
    let measured = Nanos::from_millis(shrunk(disk.measured_ms).max(MEASURED_MIN_MS));
    Scenario {
        processors: Some(Processors::new(PROCESSORS)),
        host: HostSetup { cache_bytes, costs: HostCosts::default() },
        ..Scenario::new(name, vms, disk.device).measured(settle, measured)
    }
}
