//! What the VMCD experiments run: loads of several VMs, each with what it
//! demands, under the policies that the paper compares.

use super::super::{Cell, Options, Scenario};
use seekway_policy::units::Nanos;
use std::num::NonZeroU32;
use std::sync::Arc;

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

/// An Iometer worker's access specification.
#[derive(Clone, Copy)]
pub(super) struct Access {
    /// `read`, `randread`, `randwrite` or `randrw`, as fio names them.
    pub pattern: &'static str,
    /// Block size, with its unit.
    pub block: &'static str,
    /// Requests outstanding at a time: fio's `iodepth`.
    pub depth: u32,
    /// O_DIRECT, as Iometer opens its file; else through the guest's page
    /// cache with its read-ahead.
    pub direct: bool,
}

impl Access {
    /// One request at a time, O_DIRECT.
    pub const fn direct(pattern: &'static str, block: &'static str) -> Access {
        Access { pattern, block, depth: 1, direct: true }
    }
    pub const fn depth(self, depth: u32) -> Access {
        Access { depth, ..self }
    }
    pub const fn buffered(self) -> Access {
        Access { direct: false, ..self }
    }

    /// The application, as fast as it goes.
    fn app(self) -> String {
        let Access { pattern, block, depth, direct } = self;
        format!(
            "app=fio:rw={pattern},bs={block},iodepth={depth},direct={direct},size=4GiB,io_size=1TiB"
        )
    }

    /// A VM that does this as fast as it goes.
    pub fn vm(self) -> Vm {
        Vm { spec: self.app(), demand: None }
    }

    /// A VM that asks for `iops` a second of `block_kib`, with at most `depth`
    /// outstanding; what is late is made up for.
    pub fn vm_at(self, iops: u32, block_kib: u32) -> Vm {
        let spec = format!("{},rate_iops={iops}", self.app());
        Vm { spec, demand: Some(f64::from(iops * block_kib) / 1024.0) }
    }
}

/// The cells of some loads.
pub(super) fn cells(loads: &[Load]) -> Vec<Cell> {
    loads.iter().flat_map(Load::cells).collect()
}
