//! What the vMigrater experiments run: VMs whose vCPUs share processors, a compute
//! task on each vCPU, and an I/O task in each VM.
//!
//! What is a guess says so: the paper names its applications and no more.

use super::super::{Cell, Options, Scenario};
use crate::vcpu::{Load, MachineSpec, Processors, Start, TaskSpec, VmSpec};
use seekway_policy::units::{Nanos, Sectors};
use std::num::NonZeroU32;
use std::sync::Arc;

/// The paper's server: processors, and vCPUs of each VM.
pub(super) const CORES: u16 = 12;
/// Each VM's disk: larger than what a run reads.
const DISK_GIB: u64 = 40;
/// Policies learn the slices before anything is measured.
const SETTLE_MS: u64 = 1_000;
/// What is measured is at least this long, however much a run is shrunk.
const MEASURED_MIN_MS: u64 = 200;

const fn micros(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

/// What the VMs' disks lie on, and the host's policy for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Disk {
    /// With room for all VMs, so that nothing but processors is short.
    Ssd,
    /// The paper's slow disk, with its idling.
    Hdd,
}

impl Disk {
    pub fn name(self) -> &'static str {
        match self {
            Disk::Ssd => "SSD",
            Disk::Hdd => "HDD",
        }
    }

    /// The host's policy for the disk.
    pub fn policy(self) -> &'static str {
        match self {
            Disk::Ssd => "noop",
            Disk::Hdd => "cfq:slice_idle=8ms",
        }
    }

    pub fn device(self) -> &'static str {
        match self {
            Disk::Ssd => "samsung-970-pro",
            Disk::Hdd => "seagate-1tb-7200",
        }
    }

    /// How long is measured: a disk with few I/Os a second needs longer.
    fn measured_ms(self) -> u64 {
        match self {
            Disk::Ssd => 4_000,
            Disk::Hdd => 8_000,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Work {
    pub name: &'static str,
    pub load: Load,
}

/// Blocks of so many KiB with so much CPU time before each, one at a time.
const fn reads(kib: u64, sequential: bool, cpu_micros: u64) -> Load {
    bursts(kib, sequential, cpu_micros, 0, 0, false)
}

/// The same, and after so many blocks so many microseconds of computing or sleep.
pub(super) const fn bursts(
    kib: u64,
    sequential: bool,
    cpu_micros: u64,
    burst: u32,
    between_micros: u64,
    computes: bool,
) -> Load {
    Load::Io {
        block: Sectors::new(kib * 2),
        sequential,
        cpu: micros(cpu_micros),
        depth: 1,
        burst,
        between: micros(between_micros),
        computes,
    }
}

/// SysBench's sequential read: 32 KiB, so that eight of them do not fill the SSD, and
/// 12 µs of CPU for the call and its pages (guesses).
pub(super) const SEQUENTIAL: Work = Work { name: "sequential read", load: reads(32, true, 12) };
/// The same as a guest's read-ahead asks for it: 128 KiB, and the next before these are taken.
pub(super) const AHEAD: Work = Work {
    name: "sequential read ahead",
    load: Load::Io {
        block: Sectors::new(256),
        sequential: true,
        cpu: micros(48),
        depth: 2,
        burst: 0,
        between: Nanos::ZERO,
        computes: false,
    },
};
/// SysBench's random read of its usual 16 KiB; 8 µs of CPU (guess).
pub(super) const RANDOM: Work = Work { name: "random read", load: reads(16, false, 8) };
/// "Bursty read implemented by us": the paper's example of a phase (section 3.3), 100 MB,
/// then sleep of 20 ms (guess).
pub(super) const BURSTY: Work =
    Work { name: "bursty read", load: bursts(32, true, 12, 3_125, 20_000, false) };
/// The paper's micro-benchmarks (section 5).
pub(super) const MICRO: [Work; 3] = [SEQUENTIAL, RANDOM, BURSTY];

/// TestDFSIO reads in sequence (table 1); 64 KiB and 60 µs for checksums are guesses.
pub(super) const HDFS: Work = Work { name: "HDFS", load: reads(64, true, 60) };
/// The paper's applications (table 1). Whether they read in sequence or at random is
/// the paper's; sizes and CPU times are guesses, and so is that PostMark and Nginx read
/// only.
pub(super) const APPLICATIONS: [Work; 7] = [
    HDFS,
    // db_bench's random scan; a block of LevelDB's has 4 KiB.
    Work { name: "LevelDB", load: reads(4, false, 15) },
    // Transcoding computes in the task that reads: 64 blocks, then 8 ms.
    Work { name: "MediaTomb", load: bursts(64, true, 18, 64, 8_000, true) },
    // PerfEval's random reads; a block of HBase's has 64 KiB.
    Work { name: "HBase", load: reads(64, false, 50) },
    // Small files of a mail server.
    Work { name: "PostMark", load: reads(8, false, 12) },
    // An image, then its watermark.
    Work { name: "Nginx", load: bursts(64, false, 18, 8, 500, true) },
    // A scan by YCSB.
    Work { name: "MongoDB", load: reads(32, true, 30) },
];

/// VMs on processors for some time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Scene {
    /// Unique within the experiment.
    pub name: String,
    pub disk: Disk,
    pub machine: MachineSpec,
    /// What each VM may read at most, MiB/s.
    pub quota_mib: Option<u64>,
    pub settle: Nanos,
    pub measured: Nanos,
}

/// A compute task on each of so many vCPUs.
fn computing(vcpus: u16) -> impl Iterator<Item = TaskSpec> {
    (0..vcpus).map(|n| TaskSpec::new(format!("compute{n}"), Start::On(n), Load::Compute))
}

/// The I/O task of a VM, anywhere.
pub(super) fn io(work: Work) -> TaskSpec {
    TaskSpec::new(work.name, Start::Any, work.load)
}

/// A VM with so many vCPUs, no tasks yet.
pub(super) fn vm(number: usize, vcpus: u16) -> VmSpec {
    VmSpec {
        name: format!("vm{}", number + 1),
        vcpus,
        cpu_weight: NonZeroU32::MIN,
        agent: true,
        disk: Sectors::new(DISK_GIB << 21),
        tasks: Vec::new(),
    }
}

/// The paper's host: slices of 11 ms, section 5 (see [`Processors::new`]).
pub(super) fn machine(pcpus: u16, vms: Vec<VmSpec>) -> MachineSpec {
    Processors::new(pcpus).machine(vms)
}

impl Scene {
    /// A machine on a disk.
    pub fn new(name: String, disk: Disk, machine: MachineSpec, options: &Options) -> Scene {
        let shrunk = |millis: u64| millis / options.shrink.max(1);
        Scene {
            name,
            disk,
            machine,
            quota_mib: None,
            settle: Nanos::from_millis(shrunk(SETTLE_MS)),
            measured: Nanos::from_millis(shrunk(disk.measured_ms()).max(MEASURED_MIN_MS)),
        }
    }

    /// The paper's VMs: as many vCPUs as there are processors, a compute task on each,
    /// and an I/O task.
    pub fn of(work: Work, disk: Disk, cores: u16, vms: usize, options: &Options) -> Scene {
        let vm = |number: usize| VmSpec {
            tasks: computing(cores).chain([io(work)]).collect(),
            ..vm(number, cores)
        };
        let name = format!("{vms} VMs, {} on {}", work.name, disk.name());
        Scene::new(name, disk, machine(cores, (0..vms).map(vm).collect()), options)
    }

    /// The same with something changed.
    pub fn with(mut self, what: &str, change: impl FnOnce(&mut MachineSpec)) -> Scene {
        change(&mut self.machine);
        self.name = format!("{}, {what}", self.name);
        self
    }

    /// The same two VMs, of which the first has so many per cent of the processors: 1 to 99.
    pub fn with_cpu_share(self, percent: u32) -> Scene {
        let shares = [percent, 100 - percent];
        self.with(&format!("CPU shares {}:{}", shares[0], shares[1]), |machine| {
            for (vm, percent) in machine.vms.iter_mut().zip(shares) {
                vm.cpu_weight = NonZeroU32::new(percent).expect("not zero");
            }
        })
    }

    /// The same with equal quotas: half of what two VMs that read in sequence have from the disk
    /// when nothing is shared (92.6 MiB/s, inactivity). The paper gives no figure.
    pub fn with_quotas(mut self) -> Scene {
        self.quota_mib = Some(46);
        self.name = format!("{}, equal quotas", self.name);
        self
    }

    /// The same VMs on the same disk, each on processors of its own: what there is to be
    /// had when no vCPU is ever away. A VM's vCPU n lies on processor n, so each VM has
    /// vCPUs for all processors, and tasks on those of its own part only.
    pub fn unshared(&self) -> Scene {
        let mut scene = self.clone();
        scene.name = format!("{}, not shared", self.name);
        let (cores, count) = (self.machine.pcpus, self.machine.vms.len() as u16);
        scene.machine.pcpus = cores * count;
        for (number, vm) in scene.machine.vms.iter_mut().enumerate() {
            let first = cores * number as u16;
            vm.agent = false;
            for task in &mut vm.tasks {
                if task.allowed.is_empty() {
                    task.allowed = (0..vm.vcpus).collect();
                }
                task.allowed.iter_mut().for_each(|vcpu| *vcpu += first);
                if let Start::On(vcpu) = &mut task.start {
                    *vcpu += first;
                }
            }
            vm.vcpus = cores * count;
        }
        scene
    }

    /// The scene under a policy for vCPUs.
    pub fn cell(&self, vcpu: &str) -> Cell {
        let scenario = Scenario::new(&self.name, Vec::new(), self.disk.device());
        let machine = Some(self.machine.clone());
        let quotas = self.quota_mib.iter().map(|mib| format!("bandwidth={mib}MiB"));
        let limits = quotas.cycle().take(self.machine.vms.len()).collect();
        let scenario =
            Scenario { machine, limits, ..scenario.measured(self.settle, self.measured) };
        let cell = Cell::new(Arc::new(scenario), self.disk.policy());
        Cell { vcpu: Some(vcpu.into()), ..cell }
    }
}

/// VMs on the processors of one.
pub(super) const COUNTS: [usize; 3] = [2, 4, 8];

/// So many of the paper's VMs with each of these works.
pub(super) fn scenes(works: &[Work], disk: Disk, count: usize, options: &Options) -> Vec<Scene> {
    works.iter().map(|&work| Scene::of(work, disk, CORES, count, options)).collect()
}

/// What is run of a scene: it under some policies, and unshared.
pub(super) fn cells(scene: &Scene, policies: &[&str]) -> Vec<Cell> {
    let own = policies.iter().map(|policy| scene.cell(policy));
    own.chain([scene.unshared().cell(VANILLA)]).collect()
}

/// Policies for vCPUs by their specification.
pub(super) const VANILLA: &str = "vanilla";
pub(super) const VSLICER: &str = "vslicer";
pub(super) const XBALLOON: &str = "xballoon";
pub(super) const VSCHED: &str = "vsched";
/// The paper's rules and no others: what is set beside its figures.
pub(super) const PAPER: &str = "vmigrater:literal=true";
pub(super) const OURS: &str = "vmigrater";
/// What ours has to be above.
pub(super) const OTHERS: [&str; 3] = [PAPER, VSLICER, XBALLOON];
pub(super) const ALL: [&str; 6] = [VANILLA, VSLICER, XBALLOON, VSCHED, PAPER, OURS];

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> Scene {
        Scene::of(RANDOM, Disk::Ssd, 4, 2, &super::super::super::testing::options(1))
    }

    /// No processor has tasks of two VMs when nothing is shared.
    #[test]
    fn nothing_is_shared_where_nothing_is_to_be() {
        let scene = scene().unshared();
        assert_eq!(scene.machine.pcpus, 8);
        let of = |vm: &VmSpec| {
            let mut of: Vec<u16> = vm.tasks.iter().flat_map(|t| t.allowed.clone()).collect();
            of.sort_unstable();
            of.dedup();
            assert!(vm.tasks.iter().all(|t| !t.allowed.is_empty() && !vm.agent));
            assert!(vm.vcpus <= scene.machine.pcpus);
            of
        };
        let by_vm: Vec<Vec<u16>> = scene.machine.vms.iter().map(of).collect();
        assert_eq!(by_vm, [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        let started = |vm: &VmSpec| vm.tasks.iter().filter(|t| t.start == Start::On(4)).count();
        assert_eq!(scene.machine.vms.iter().map(started).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn a_change_shows_in_the_name() {
        let changed = scene().with("slices of 3 ms", |m| m.host.slice = Nanos::from_millis(3));
        assert_eq!(changed.name, "2 VMs, random read on SSD, slices of 3 ms");
        assert_ne!(changed.machine, scene().machine);
    }
}
