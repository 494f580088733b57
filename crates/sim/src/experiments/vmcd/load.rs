//! What the VMCD experiments run: loads of several VMs, each with what it
//! demands, under the policies that the paper compares.

use super::super::{Cell, Options, Scenario};
use seekway_policy::units::Nanos;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

/// A 7200 rpm drive that leaves the order to the scheduler: one command at a time, no write cache.
pub(super) const DISK: &str = "seagate-1tb-7200";
/// The same as a SATA drive comes: native command queueing, write cache on.
pub(super) const SATA: &str = "seagate-1tb-7200:write_cache=true,queue_depth=32,queue_order=sptf";
/// The paper's guests: 512 MB, and Xen 4.1's ring of 32 requests of 11 pages. The way to the
/// host is a guess.
pub(super) const RING: &str = "ram=512MiB,ring=32,max_request_kib=44,latency=100us,jitter=50us";
/// The same with the way to the host at which one VM streams the 11.7 MiB/s of table 4(b).
pub(super) const FAR: &str = "ram=512MiB,ring=32,max_request_kib=44,latency=8ms,jitter=2ms";
/// Forms of `vmcd` that its text allows as well: how many requests a turn has, whether CFQ's
/// waiting stays, how many credits there are, whether what is late needs one.
pub(super) const FORMS: [&str; 6] = [
    "vmcd:batch=1",
    "vmcd:batch=64",
    "vmcd:credits=period",
    "vmcd:idle=8ms",
    "vmcd:idle=8ms,credits=period",
    "vmcd:late=free",
];
/// What the paper compares with.
pub(super) const BASES: [&str; 3] = ["cfq", "deadline", "anticipatory"];
/// Under which every load runs: the paper's form, ours, and the paper's baselines.
pub(super) const POLICIES: [&str; 5] = ["vmcd", "vmcd-time", "cfq", "deadline", "anticipatory"];
/// A VM by itself: the order of a sorted queue, and nothing is waited for.
const ALONE: &str = "deadline";

/// One VM of a load.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Vm {
    /// As `parse_vm` reads it, without the name.
    pub spec: String,
    /// What it asks for, in MiB/s; none: as much as there is, which is what it gets alone.
    pub demand: Option<f64>,
}

impl Vm {
    /// A VM with an Iometer worker, which does what fio does with these keys as fast as it goes.
    pub fn worker(keys: &str) -> Vm {
        Vm { spec: format!("app=fio:{keys},size=4GiB,io_size=1TiB"), demand: None }
    }

    /// The same with keys of the VM's own, in front of its application.
    pub fn with(self, keys: &str) -> Vm {
        Vm { spec: format!("{keys},{}", self.spec), ..self }
    }
}

/// Several VMs on a disk for some time.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Load {
    /// Unique within the experiment.
    pub name: String,
    pub vms: Vec<Vm>,
    pub device: String,
    pub until: Nanos,
    /// Weights of the VMs; none: all 1.
    pub weights: Vec<NonZeroU32>,
}

impl Load {
    /// VMs on the paper's disk, for `seconds` unless the run is shrunk.
    pub fn new(name: impl Into<String>, vms: Vec<Vm>, seconds: u64, options: &Options) -> Load {
        let millis = (seconds * 1000 / options.shrink.max(1)).max(500);
        let until = Nanos::from_millis(millis);
        Load { name: name.into(), vms, device: DISK.into(), until, weights: Vec::new() }
    }

    /// The same on another disk, or the same disk with a change.
    pub fn on(mut self, device: &str) -> Load {
        self.device = device.into();
        self
    }

    /// The same on the paper's host: its drive, its guests' ring and way to the host ([`RING`] or
    /// [`FAR`]).
    pub fn on_papers_host(mut self, keys: &str) -> Load {
        self.vms = self.vms.into_iter().map(|vm| vm.with(keys)).collect();
        Load { name: format!("paper's host, {}", self.name), ..self.on(SATA) }
    }

    /// The same with weights.
    pub fn weighted(mut self, weights: &[u32]) -> Load {
        self.weights = weights.iter().filter_map(|&w| NonZeroU32::new(w)).collect();
        self
    }

    fn scenario(&self, name: String, vms: Vec<String>) -> Arc<Scenario> {
        let weights = if vms.len() > 1 { self.weights.clone() } else { Vec::new() };
        let scenario = Scenario::new(name, vms, &self.device).measured(Nanos::ZERO, self.until);
        Arc::new(Scenario { weights, ..scenario })
    }

    /// Name of the scenario in which that VM is alone.
    pub fn alone(&self, vm: &Vm) -> (String, &'static str) {
        (format!("alone for {} on {}: {}", self.until, self.device, vm.spec), ALONE)
    }

    /// The load under each of some policies.
    pub fn under(&self, policies: &[&str]) -> Vec<Cell> {
        let vm = |(n, vm): (usize, &Vm)| format!("name=vm{},{}", n + 1, vm.spec);
        let vms = self.vms.iter().enumerate().map(vm).collect();
        super::super::under(self.scenario(self.name.clone(), vms), policies)
    }

    /// Each VM alone, where that is its demand. Like VMs are listed once.
    fn demands(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        for vm in self.vms.iter().filter(|vm| vm.demand.is_none()) {
            let (name, policy) = self.alone(vm);
            let scenario = self.scenario(name, vec![format!("name=alone,{}", vm.spec)]);
            let cell = Cell::new(scenario, policy);
            if !cells.contains(&cell) {
                cells.push(cell);
            }
        }
        cells
    }

    /// All that judging the load takes.
    pub fn cells(&self) -> Vec<Cell> {
        [self.under(&POLICIES), self.demands()].concat()
    }
}

/// The sets of `loads.toml`, which says what each key means.
static SETS: LazyLock<BTreeMap<String, Vec<LoadFile>>> = LazyLock::new(|| {
    toml::from_str(include_str!("loads.toml")).expect("the loads are part of the program")
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadFile {
    name: String,
    vms: Vec<String>,
    #[serde(default)]
    counts: Vec<usize>,
    seconds: u64,
    host: Option<Host>,
    keys: Option<String>,
    device: Option<String>,
    #[serde(default)]
    weights: Vec<u32>,
    #[serde(default)]
    rates: Vec<u32>,
    #[serde(default)]
    mib_s: Vec<f64>,
}

/// How far the paper's guests are from the disk.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Host {
    Ring,
    Far,
}

impl LoadFile {
    fn vm(&self, n: usize) -> Vm {
        let mut vm = Vm { demand: self.mib_s.get(n).copied(), ..Vm::worker(&self.vms[n]) };
        if let Some(rate) = self.rates.get(n) {
            vm.spec.push_str(&format!(",rate_iops={rate}"));
        }
        self.keys.iter().fold(vm, |vm, keys| vm.with(keys))
    }

    fn load(&self, name: String, vms: Vec<Vm>, options: &Options) -> Load {
        let load = Load::new(name, vms, self.seconds, options).weighted(&self.weights);
        let load = match self.host {
            Some(Host::Ring) => load.on_papers_host(RING),
            Some(Host::Far) => load.on_papers_host(FAR),
            None => load,
        };
        self.device.iter().fold(load, |load, device| load.on(device))
    }

    fn family(&'static self, options: &Options) -> Family {
        let vms = (0..self.vms.len()).map(|n| self.vm(n)).collect();
        let equal = |&count: &usize| {
            let name = format!("{count} VMs, {}", self.name);
            self.load(name, vec![self.vm(0); count], options)
        };
        let loads = match &self.counts[..] {
            [] => vec![self.load(self.name.clone(), vms, options)],
            counts => counts.iter().map(equal).collect(),
        };
        Family { name: &self.name, is_papers_host: self.host.is_some(), loads }
    }
}

/// A load, or one with several numbers of VMs.
pub(super) struct Family {
    /// Without the number of VMs and the host.
    pub name: &'static str,
    pub is_papers_host: bool,
    pub loads: Vec<Load>,
}

/// What `loads.toml` has in a set.
pub(super) fn families(set: &str, options: &Options) -> Vec<Family> {
    SETS[set].iter().map(|file| file.family(options)).collect()
}

/// The loads of a set, one after the other.
pub(super) fn loads(set: &str, options: &Options) -> Vec<Load> {
    families(set, options).into_iter().flat_map(|family| family.loads).collect()
}

/// The cells of some loads.
pub(super) fn cells(loads: &[Load]) -> Vec<Cell> {
    loads.iter().flat_map(Load::cells).collect()
}
