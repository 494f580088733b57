//! Machines to start from, and a run of one.

use crate::engine::{Limits, Setup, run};
use crate::layout::{Layout, Placement};
use crate::metrics::RunResult;
use crate::vcpu::*;
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_device::profile;
use seekway_policy::schedulers;
use seekway_vcpu::VcpuPolicy;
use seekway_workload::Source;
use std::num::NonZeroU32;

pub fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

pub fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

pub fn at(span: Nanos) -> Instant {
    Instant::ZERO + span
}

/// A host with slices of 11 ms and nothing irregular.
pub fn spec(pcpus: u16, vms: Vec<VmSpec>) -> MachineSpec {
    MachineSpec {
        pcpus,
        host: HostCpu {
            slice: ms(11),
            jitter: us(300),
            cut_permille: 0,
            wakeup_preempts: false,
            context_switch: us(5),
        },
        guest: GuestCpu {
            slice: ms(3),
            context_switch: us(2),
            completes: Completes::Submitter,
            balances: false,
            shared_cache: true,
        },
        detector: Detector::Exact { delay: us(20), edge: us(1) },
        costs: Costs { call: us(5), cold: us(10), window: us(20), wake: us(5), turn: us(2) },
        ablation: Ablation::default(),
        vms,
    }
}

/// A VM with a compute task on each vCPU, and others.
pub fn vm(name: &str, vcpus: u16, more: Vec<TaskSpec>) -> VmSpec {
    let computes = (0..vcpus).map(|n| task(&format!("compute{n}"), n, Load::Compute));
    VmSpec {
        name: name.into(),
        vcpus,
        cpu_weight: NonZeroU32::MIN,
        agent: true,
        disk: Sectors::from_bytes(4 << 30),
        tasks: computes.chain(more).collect(),
    }
}

/// VMs with a compute task on each vCPU and a reader on the first.
pub fn reading(vms: usize, vcpus: u16) -> MachineSpec {
    let one = |n| vm(&format!("vm{n}"), vcpus, vec![task("io", 0, reads())]);
    spec(vcpus, (0..vms).map(one).collect())
}

pub fn task(name: &str, on: u16, load: Load) -> TaskSpec {
    TaskSpec::new(name, Start::On(on), load)
}

/// The fields of [`Load::Io`].
pub struct Io {
    pub block: Sectors,
    pub sequential: bool,
    pub cpu: Nanos,
    pub depth: u16,
    pub burst: u32,
    pub between: Nanos,
    pub computes: bool,
}

/// Reads 4 KiB at a time, one after the other, anywhere.
pub fn reads() -> Load {
    io(|_| {})
}

/// A load of random 4 KiB I/O at depth 1, after `change`.
pub fn io(change: impl FnOnce(&mut Io)) -> Load {
    let (block, between) = (Sectors::new(8), Nanos::ZERO);
    let (sequential, computes) = (false, false);
    let mut io = Io { block, sequential, cpu: us(10), depth: 1, burst: 0, between, computes };
    change(&mut io);
    let Io { block, sequential, cpu, depth, burst, between, computes } = io;
    Load::Io { block, sequential, cpu, depth, burst, between, computes }
}

pub fn run_with(
    spec: &MachineSpec,
    policy: &dyn Fn() -> Box<dyn VcpuPolicy>,
    seed: u64,
    until: Nanos,
) -> (MachineResult, RunResult) {
    let machine = Machine::with(spec, "test", &|| Ok(policy()), seed, Instant::ZERO);
    drive(machine.unwrap(), until)
}

/// Measured from `from`, under a policy of the registry.
pub fn run_from(
    spec: &MachineSpec,
    policy: &str,
    seed: u64,
    from: Nanos,
    until: Nanos,
) -> MachineResult {
    drive(Machine::new(spec, policy, seed, at(from)).unwrap(), until).0
}

pub fn run_named(spec: &MachineSpec, policy: &str, seed: u64, until: Nanos) -> MachineResult {
    run_from(spec, policy, seed, Nanos::ZERO, until)
}

/// A run on one drive, under noop, to its end or to `until`.
pub fn run_source(source: Box<dyn Source + '_>, until: Option<Nanos>) -> RunResult {
    let device = profile::load("samsung-970-pro").unwrap().build();
    let capacity = device.profile().capacity;
    let layout = Layout::place(source.vms(), capacity, &Placement::Spread).unwrap();
    let setup = Setup::new(schedulers::build("noop").unwrap(), device, layout);
    let limits = Limits { until: until.map(at), ..Limits::default() };
    run(vec![source], setup, limits, &mut |_, _| true).unwrap().0
}

fn drive(mut machine: Machine, until: Nanos) -> (MachineResult, RunResult) {
    let result = run_source(Box::new(&mut machine), Some(until));
    (machine.result(at(until)), result)
}
