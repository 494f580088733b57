//! The host, its VMs and its disks; and what "on" and "off" are.

use super::super::{Cell, HostSetup, Options, Scenario};
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
    pub fn name(self) -> &'static str {
        match self {
            Mix::Ordinary => "ordinary",
            Mix::Flood => "flood",
        }
    }

    /// Memory and load of each VM. Memory is less than the files, as on hosts that are full:
    /// the guests' page caches take a part of the reads. The idle VM writes a line of a log
    /// each second, and waits for it.
    fn vms(self, disk: &Disk) -> [String; 8] {
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
        loads.map(|load| format!("ram={}MiB,app={load}", rams.next().unwrap_or(512)))
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
    /// Geometric mean of throughput, all on over all off.
    pub gain_asked: f64,
    /// Caches fill for so long, and then it is measured for so long.
    settle_ms: u64,
    measured_ms: u64,
}

pub(super) const DISKS: [Disk; 4] = [
    Disk {
        name: "7200 rpm",
        device: "seagate-1tb-7200",
        mib_per_s: 120,
        files_per_s: 42,
        gain_asked: 1.3,
        settle_ms: 600_000,
        measured_ms: 60_000,
    },
    Disk {
        name: "SATA SSD",
        device: "intel-x25m-g2",
        mib_per_s: 240,
        files_per_s: 623,
        gain_asked: 1.3,
        settle_ms: 40_000,
        measured_ms: 12_000,
    },
    Disk {
        name: "NVMe",
        device: "samsung-970-pro",
        mib_per_s: 3200,
        files_per_s: 15990,
        gain_asked: 1.15,
        settle_ms: 6_000,
        measured_ms: 3_000,
    },
    Disk {
        name: "array",
        device: "raid0-8x-x25m-g2",
        mib_per_s: 1900,
        files_per_s: 4300,
        gain_asked: 1.15,
        settle_ms: 8_000,
        measured_ms: 3_000,
    },
];

/// Processors of the host, and vCPUs of each VM.
const PROCESSORS: u16 = 4;
/// What the host gives its cache.
const CACHE_BYTES: u64 = 2 << 30;
/// What is measured is at least this long, however much a run is shrunk.
const MEASURED_MIN_MS: u64 = 200;

/// Which parts are on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parts {
    /// The host's policy for the disk.
    pub scheduler: &'static str,
    pub cache: bool,
    pub prefetch: bool,
    pub tags: bool,
    pub agent: bool,
}

/// What is served with everything off, and with everything on.
const OFF: &str = "noop";
const ON: &str = "fairway";
/// Linux's own for disks with one queue, beside all else off: what an operator has today.
const LINUX: &str = "deadline";

impl Parts {
    pub const NONE: Parts =
        Parts { scheduler: OFF, cache: false, prefetch: false, tags: false, agent: false };
    pub const ALL: Parts =
        Parts { scheduler: ON, cache: true, prefetch: true, tags: true, agent: true };
    /// Each part with those that are nothing without it: prefetching needs the cache, and
    /// nothing else reads tags.
    pub const EACH: [(&'static str, Parts); 5] = [
        ("fairway", Parts { scheduler: ON, ..Parts::NONE }),
        ("the cache", Parts { cache: true, prefetch: true, tags: true, ..Parts::NONE }),
        ("prefetching", Parts { prefetch: true, tags: true, ..Parts::NONE }),
        ("tags", Parts { tags: true, ..Parts::NONE }),
        ("the agent", Parts { agent: true, ..Parts::NONE }),
    ];

    /// Is everything on, or everything off?
    pub fn is_whole(self) -> bool {
        self == Parts::ALL || self == Parts::NONE
    }

    /// These, but for `others`.
    pub fn without(self, others: Parts) -> Parts {
        Parts {
            scheduler: if others.scheduler == ON { OFF } else { self.scheduler },
            cache: self.cache && !others.cache,
            prefetch: self.prefetch && !others.prefetch,
            tags: self.tags && !others.tags,
            agent: self.agent && !others.agent,
        }
    }
}

/// Everything that is run on each disk.
pub(super) fn ways() -> impl Iterator<Item = (String, Parts)> {
    let whole = [("all on".to_string(), Parts::ALL), ("all off".to_string(), Parts::NONE)];
    let without = Parts::EACH.map(|(name, p)| (format!("without {name}"), Parts::ALL.without(p)));
    let none = Parts::NONE;
    let alone = [
        ("fairway alone", Parts { scheduler: ON, ..none }),
        ("the cache alone", Parts { cache: true, ..none }),
        ("cache and prefetching alone", Parts { cache: true, prefetch: true, ..none }),
        (
            "cache, prefetching and tags alone",
            Parts { cache: true, prefetch: true, tags: true, ..none },
        ),
        ("the agent alone", Parts { agent: true, ..none }),
        ("deadline alone, as Linux has it", Parts { scheduler: LINUX, ..none }),
    ];
    let alone = alone.map(|(name, parts)| (name.to_string(), parts));
    whole.into_iter().chain(without).chain(alone)
}

/// The VMs on a disk with these parts.
pub(super) fn cell(disk: &Disk, mix: Mix, parts: Parts, options: &Options) -> Cell {
    let tags = if parts.tags { ", tags" } else { "" };
    let name = format!("{}, {}{tags}", disk.name, mix.name());
    cell_of(disk, mix, 0..NAMES.len(), name, parts, options)
}

/// One of them alone on the host, with everything off.
pub(super) fn cell_alone(disk: &Disk, mix: Mix, vm: usize, options: &Options) -> Cell {
    let name = format!("{}, {}, {} alone", disk.name, mix.name(), NAMES[vm]);
    cell_of(disk, mix, vm..vm + 1, name, Parts::NONE, options)
}

fn cell_of(
    disk: &Disk,
    mix: Mix,
    vms: std::ops::Range<usize>,
    name: String,
    parts: Parts,
    options: &Options,
) -> Cell {
    let tags = if parts.tags { "tags=true," } else { "" };
    let texts = mix.vms(disk);
    let vm = |n: usize| format!("name={},vcpus={PROCESSORS},{tags}{}", NAMES[n], texts[n]);
    let shrunk = |millis: u64| millis / options.shrink.max(1);
    let settle = Nanos::from_millis(shrunk(disk.settle_ms));
    let measured = Nanos::from_millis(shrunk(disk.measured_ms).max(MEASURED_MIN_MS));
    let scenario = Scenario::new(name, vms.map(vm).collect(), disk.device);
    let scenario = Scenario {
        processors: Some(Processors::new(PROCESSORS)),
        host: HostSetup { cache_bytes: CACHE_BYTES, costs: HostCosts::default() },
        ..scenario.measured(settle, measured)
    };
    let prefetch = match (parts.cache, parts.prefetch) {
        (false, _) => None,
        (true, false) => Some("none".to_string()),
        (true, true) => Some("vio".to_string()),
    };
    Cell {
        prefetch,
        bare: !parts.cache,
        vcpu: Some(if parts.agent { "vmigrater" } else { "vanilla" }.into()),
        ..Cell::new(Arc::new(scenario), parts.scheduler)
    }
}
