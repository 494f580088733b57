//! The host, its VMs and its disks, and each VM's private disk.

use super::super::{Cell, HostSetup, Options, Scenario};
use super::ways::Parts;
use crate::engine::HostCosts;
use crate::vcpu::Processors;
use seekway_policy::units::Nanos;
use serde::Deserialize;
use std::sync::{Arc, LazyLock};

/// VMs of each mix.
pub(super) const VMS: usize = 8;

/// What the VMs do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mix {
    /// An ordinary host: who serves users has a few of them at a time; the three that move much
    /// (file, video, backup) each ask for an eighth of what the disk gives them alone.
    Ordinary,
    /// Everybody asks for all that there is: Filebench's own numbers of threads, and a backup
    /// without a rate.
    Flood,
    /// What the five papers have, at once: a compute task on each vCPU, readers in sequence,
    /// readers of both kinds in one guest, SURGE with O_DIRECT, and three demands.
    Union,
}

impl Mix {
    pub const ALL: [Mix; 3] = [Mix::Ordinary, Mix::Flood, Mix::Union];

    fn name(self) -> &'static str {
        match self {
            Mix::Ordinary => "ordinary",
            Mix::Flood => "flood",
            Mix::Union => "union",
        }
    }

    /// The VMs, in the order of every table.
    pub fn names(self) -> [&'static str; VMS] {
        match self {
            Mix::Ordinary | Mix::Flood => {
                ["database", "web", "mail", "file", "video", "backup", "build", "idle"]
            }
            Mix::Union => ["streams", "reader", "mixed", "surge", "little", "even", "much", "idle"],
        }
    }

    /// Does it run on this disk? The papers' disks are a turning one and an array.
    pub fn is_on(self, disk: &Disk) -> bool {
        self != Mix::Union || disk.random_per_s.is_some()
    }

    /// Do its parts run one by one?
    pub fn has_each_part(self) -> bool {
        self != Mix::Flood
    }

    /// The name of the mix on a disk, as in rows and for `scenes` of [`Options`].
    pub fn scene(self, disk: &Disk) -> String {
        match self {
            Mix::Ordinary => disk.name.clone(),
            Mix::Flood | Mix::Union => format!("{}, {}", disk.name, self.name()),
        }
    }

    /// Memory and load of each VM. Memory is less than the files, as on hosts that are full: the
    /// guests' page caches, full from the start, take a part of the reads. `more_mib` is given
    /// to each VM besides. The idle VM writes a line of a log each second, and waits for it.
    fn vms(self, disk: &Disk, more_mib: u64) -> [String; VMS] {
        const RAMS: [u64; VMS] = [768, 512, 512, 1024, 1024, 512, 512, 512];
        let (loads, rams) = match self {
            Mix::Ordinary => (ordinary(disk), RAMS),
            Mix::Flood => (flood(disk), RAMS),
            Mix::Union => (union(disk), [512; VMS]),
        };
        let mut rams = rams.into_iter();
        loads.map(|load| {
            format!("ram={}MiB,warm=true,{load}", rams.next().unwrap_or(512) + more_mib)
        })
    }

    /// Does the load of a VM have a rate, so that more of the disk is of no use to it?
    pub fn is_paced(self, vm: usize) -> bool {
        let paced: &[&str] = match self {
            Mix::Ordinary => &["file", "video", "backup", "idle"],
            Mix::Flood => &["video", "idle"],
            Mix::Union => &["little", "even", "much", "idle"],
        };
        paced.contains(&self.names()[vm])
    }
}

const BACKUP: &str = "app=fio:rw=read,bs=1MiB,size=10GiB,iodepth=4,io_size=1TiB,direct=true";
const IDLE: &str = "app=fio:rw=write,bs=4KiB,size=64MiB,io_size=1TiB,fsync=1,thinktime=1s";

/// Readers of videos of 1 GiB have an eighth of what the disk reads in sequence, and begin anywhere
/// in popular ones. The writer of new videos writes half as much.
fn videos(disk: &Disk, threads: u32) -> String {
    let stream = disk.mib_per_s / 8;
    let interval_s = 2048 / stream;
    format!(
        "image=24GiB,app=videoserver:threads={threads},active=16,passive=4,size=1GiB,\
         starts=zipf,rate={stream}MiB,interval={interval_s}s"
    )
}

fn ordinary(disk: &Disk) -> [String; VMS] {
    [
        "app=oltp:threads=16,writers=4".into(),
        "app=webserver:threads=16".into(),
        "app=mailserver:threads=8".into(),
        format!("app=fileserver:threads=8,rate={}", disk.files_per_s / 8),
        videos(disk, 16),
        format!("{BACKUP},rate_iops={}", disk.mib_per_s / 8),
        "app=build".into(),
        IDLE.into(),
    ]
}

fn flood(disk: &Disk) -> [String; VMS] {
    [
        "app=oltp".into(),
        "app=webserver".into(),
        "app=mailserver".into(),
        "app=fileserver".into(),
        videos(disk, 48),
        BACKUP.into(),
        "app=build".into(),
        IDLE.into(),
    ]
}

/// VIO's streams, vMigrater's reader, VIO's mixed processes, CATS's server (which has 50 processes),
/// and three demands as VMCD has them (10, 100 and 300 reads a second): a third of a private disk,
/// all of it, and three of it.
fn union(disk: &Disk) -> [String; VMS] {
    const SEQUENTIAL: &str = "app=fio:rw=read,bs=64KiB,io_size=1TiB";
    let demand = |per_s: u64| {
        format!(
            "app=fio:rw=randread,bs=64KiB,direct=true,size=4GiB,io_size=1TiB,iodepth=16,\
             rate_iops={per_s}"
        )
    };
    let even = disk.random_per_s.unwrap_or(0) / VMS as u64;
    [
        format!("{SEQUENTIAL},size=2GiB,numjobs=4"),
        "app=fio:rw=read,bs=32KiB,size=8GiB,io_size=1TiB,direct=true".into(),
        format!(
            "{SEQUENTIAL},size=1GiB,numjobs=3,\
             app=fio:rw=randread,bs=16KiB,size=1GiB,io_size=1TiB,numjobs=3"
        ),
        "image=7GiB,app=surge:processes=16,files=100000,requests=1000000000".into(),
        demand(even / 3),
        demand(even),
        demand(3 * even),
        IDLE.into(),
    ]
}

/// A disk, and what is asked of it, as `disks.toml` states it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Disk {
    pub name: String,
    device: String,
    /// What it reads in sequence, about.
    mib_per_s: u64,
    /// Rounds of the file server that it does for eight threads alone (measured).
    files_per_s: u64,
    /// Random reads of 64 KiB that it does, 16 at a time (measured), where *union* runs on it.
    random_per_s: Option<u64>,
    /// Geometric mean of progress, everything on.
    pub mean_asked: f64,
    /// Is it asked that the host moves nearly as much as under any policy? Not where a head
    /// moves: there the host moves most by serving streams alone.
    pub is_throughput_asked: bool,
    /// Caches begin full and settle for so long, and then it is measured for so long.
    settle_ms: u64,
    measured_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    disk: Vec<Disk>,
}

pub(super) static DISKS: LazyLock<Vec<Disk>> = LazyLock::new(|| {
    let file: File =
        toml::from_str(include_str!("disks.toml")).expect("the disks are part of the program");
    file.disk
});

/// Processors of the host, and vCPUs of each VM.
const PROCESSORS: u16 = 4;
/// What the host gives its cache.
const CACHE_BYTES: u64 = 2 << 30;
/// As `serve` prefetches by default.
const VIO: &str = "vio:interval=continuous";
/// What is measured is at least this long, however much a run is shrunk.
const MEASURED_MIN_MS: u64 = 50;

/// What each guest has more where the host keeps no cache for them all.
const EQUAL_MIB: u64 = (CACHE_BYTES >> 20) / VMS as u64;

/// The VMs on a disk with these parts.
pub(super) fn cell(disk: &Disk, mix: Mix, parts: Parts, options: &Options) -> Cell {
    let tags = if parts.tags { ", tags" } else { "" };
    let memory = if parts.guests_have_cache { ", equal memory" } else { "" };
    let name = format!("{}, {}{tags}{memory}", disk.name, mix.name());
    let vms = vms(disk, mix, parts);
    let scenario = scenario(disk, mix, name, vms, CACHE_BYTES, options);
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
    let name = format!("{}, {}, {} alone", disk.name, mix.name(), mix.names()[vm]);
    let vms = vec![vms(disk, mix, Parts::NONE).swap_remove(vm)];
    let scenario = scenario(disk, mix, name, vms, CACHE_BYTES, options);
    let vcpu = Some("vanilla".into());
    Cell { bare: true, vcpu, ..Cell::new(Arc::new(scenario), Parts::NONE.scheduler) }
}

/// One of them alone on the host with its part of the cache, everything on but a scheduler: there
/// is nobody to divide for.
pub(super) fn cell_whole(disk: &Disk, mix: Mix, vm: usize, options: &Options) -> Cell {
    let all = cell(disk, mix, Parts::ALL.under(Parts::NONE.scheduler), options);
    let name = format!("{}, {}, {} with the whole disk", disk.name, mix.name(), mix.names()[vm]);
    let vms = vec![all.scenario.vms[vm].clone()];
    let scenario = scenario(disk, mix, name, vms, CACHE_BYTES / VMS as u64, options);
    Cell { scenario: Arc::new(scenario), ..all }
}

/// One of them on its private disk: as many times slower as there are VMs, with one part of so
/// many of the processors' time and of the host's cache.
pub(super) fn cell_private(disk: &Disk, mix: Mix, vm: usize, options: &Options) -> Cell {
    let share = VMS as u32;
    let name = format!("{}, {}, {} on a private disk", disk.name, mix.name(), mix.names()[vm]);
    let vms = vec![vms(disk, mix, Parts::NONE).swap_remove(vm)];
    let scenario = scenario(disk, mix, name, vms, CACHE_BYTES / u64::from(share), options);
    let scenario = Scenario {
        device: format!("{}:slow={share}", disk.device),
        processors: Some(Processors { part: share, ..processors(mix) }),
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
    let vm = |(name, text)| format!("name={name},vcpus={PROCESSORS},{tags}{text}");
    mix.names().into_iter().zip(texts).map(vm).collect()
}

fn scenario(
    disk: &Disk,
    mix: Mix,
    name: String,
    vms: Vec<String>,
    cache_bytes: u64,
    options: &Options,
) -> Scenario {
    let shrunk = |millis: u64| millis / options.shrink.max(1);
    let settle = Nanos::from_millis(shrunk(disk.settle_ms));
    let measured = Nanos::from_millis(shrunk(disk.measured_ms).max(MEASURED_MIN_MS));
    Scenario {
        processors: Some(processors(mix)),
        host: HostSetup { cache_bytes, costs: HostCosts::default() },
        ..Scenario::new(name, vms, &disk.device).measured(settle, measured)
    }
}

fn processors(mix: Mix) -> Processors {
    Processors { guests_compute: mix == Mix::Union, ..Processors::new(PROCESSORS) }
}
