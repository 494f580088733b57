//! Is the simulated machine plausible? What the I/O tasks of 2, 4 and 8 VMs read, as a share
//! of what the host's schedule allows, under each policy for virtual CPUs and each detector,
//! without and with a tenth of the slices cut short.
//!
//! ```text
//! cargo run -p seekway-sim --example vcpu_bound             # one seed
//! cargo run -p seekway-sim --example vcpu_bound -- 4        # the mean of four
//! cargo run -p seekway-sim --example vcpu_bound -- 1 apart  # vCPUs share no cache
//! ```
//!
//! 12 processors, VMs of 12 vCPUs, on each a task that computes, in each VM one that reads
//! 16 KiB at a time anywhere. What the schedule allows is what such a task reads on processors
//! of its own, for as long as one of its VM's vCPUs is to be had.

use seekway_device::profile;
use seekway_policy::dispatcher::Config;
use seekway_policy::schedulers;
use seekway_policy::units::{Instant, Nanos, Sectors};
use seekway_sim::engine::{Limits, Setup, run};
use seekway_sim::layout::{Layout, Placement};
use seekway_sim::vcpu::{
    Ablation, Costs, Detector, GuestCpu, HostCpu, Load, Machine, MachineResult, MachineSpec, Start,
    TaskSpec, VmSpec,
};
use seekway_workload::Source;
use std::num::NonZeroU32;

const CORES: u16 = 12;
const SETTLE: Nanos = Nanos::from_millis(1000);
const MEASURED: Nanos = Nanos::from_millis(3000);
const POLICIES: [&str; 5] =
    ["vanilla", "vslicer", "xballoon", "vmigrater:literal=true", "vmigrater"];

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

/// A VM whose vCPUs are those of `cores` only.
fn vm(number: usize, vcpus: u16, cores: std::ops::Range<u16>) -> VmSpec {
    let allowed: Vec<u16> = cores.clone().collect();
    let task = |name: String, start, load| TaskSpec {
        name,
        start,
        allowed: allowed.clone(),
        from: Nanos::ZERO,
        load,
    };
    let computes = cores.map(|n| task(format!("compute{n}"), Start::On(n), Load::Compute));
    let reads = Load::Io {
        block: Sectors::new(32),
        sequential: false,
        cpu: us(8),
        depth: 1,
        burst: 0,
        between: Nanos::ZERO,
        computes: false,
    };
    VmSpec {
        name: format!("vm{number}"),
        vcpus,
        cpu_weight: NonZeroU32::MIN,
        agent: true,
        disk: Sectors::new(40 << 21),
        tasks: computes.chain([task("io".into(), Start::Any, reads)]).collect(),
    }
}

fn machine(pcpus: u16, vms: Vec<VmSpec>) -> MachineSpec {
    MachineSpec {
        pcpus,
        host: HostCpu {
            slice: Nanos::from_millis(11),
            jitter: us(300),
            cut_permille: 0,
            wakeup_preempts: true,
            context_switch: us(5),
        },
        guest: GuestCpu::default(),
        detector: Detector::Heartbeat { beat: us(5) },
        costs: Costs::default(),
        ablation: Ablation::default(),
        vms,
    }
}

fn run_one(spec: &MachineSpec, policy: &str, seed: u64) -> MachineResult {
    let until = Instant::ZERO + SETTLE + MEASURED;
    let mut machine = Machine::new(spec, policy, seed, Instant::ZERO + SETTLE).expect("it can be");
    let device = profile::load("samsung-970-pro").expect("a profile of ours").build();
    let source: Box<dyn Source + '_> = Box::new(&mut machine);
    let capacity = device.profile().capacity;
    let layout = Layout::place(source.vms(), capacity, &Placement::Spread).expect("they fit");
    let setup = Setup {
        scheduler: schedulers::build("noop").expect("a scheduler of ours"),
        device,
        config: Config::default(),
        layout,
        weights: Vec::new(),
        journal: None,
        host: None,
    };
    let limits = Limits { until: Some(until), ..Limits::default() };
    run(vec![source], setup, limits, &mut |_, _| true).expect("machines do not fail");
    machine.result(until)
}

fn bytes(result: &MachineResult) -> f64 {
    result.vms.iter().flat_map(|vm| &vm.tasks).map(|task| task.bytes as f64).sum()
}

/// The mean over VMs of a figure of theirs.
fn mean(result: &MachineResult, figure: impl Fn(&seekway_sim::vcpu::VmCpu) -> f64) -> f64 {
    result.vms.iter().map(figure).sum::<f64>() / result.vms.len() as f64
}

/// VMs on processors of their own.
fn apart(vms: usize) -> MachineSpec {
    let all = CORES * vms as u16;
    let of = |n: usize| vm(n, all, n as u16 * CORES..(n as u16 + 1) * CORES);
    machine(all, (0..vms).map(of).collect())
}

fn row(spec: &MachineSpec, policy: &str, seeds: u64) -> String {
    let vms = spec.vms.len();
    let mut sums = [0.0; 5];
    for seed in 1..=seeds {
        let alone = bytes(&run_one(&apart(vms), "vanilla", seed));
        let result = run_one(spec, policy, seed);
        let bound = mean(&result, |vm| vm.any_ran.as_secs_f64() / MEASURED.as_secs_f64());
        let moves = mean(&result, |vm| vm.moves as f64);
        let figures = [
            bytes(&result) / (alone * bound),
            bound,
            moves / mean(&result, |vm| vm.moves_min.max(1) as f64),
            mean(&result, |vm| vm.blocked as f64) / moves.max(1.0),
            mean(&result, |vm| vm.agent.as_secs_f64() / vm.ran.as_secs_f64()),
        ];
        sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure / seeds as f64);
    }
    let [share, bound, moves, blocked, agent] = sums;
    format!(
        "{:5.1} % of {:5.1} %, {moves:4.2} of the least moves, {:4.1} % blocked, agent {:4.2} %",
        100.0 * share,
        100.0 * bound,
        100.0 * blocked,
        100.0 * agent
    )
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seeds = args.first().map_or(1, |seeds| seeds.parse().expect("a number of seeds"));
    let exact = Detector::Exact { delay: us(50), edge: us(5) };
    let heartbeat = Detector::Heartbeat { beat: us(5) };
    let shared_cache = args.get(1).is_none_or(|word| word != "apart");
    println!("seeds 1 to {seeds}");
    for vms in [2, 4, 8] {
        for cut_permille in [0, 100] {
            for policy in POLICIES {
                for (name, detector) in [("exact", exact), ("heartbeat", heartbeat)] {
                    let each = (0..vms).map(|n| vm(n, CORES, 0..CORES));
                    let mut spec = machine(CORES, each.collect());
                    spec.guest.shared_cache = shared_cache;
                    (spec.host.cut_permille, spec.detector) = (cut_permille, detector);
                    let figures = row(&spec, policy, seeds);
                    println!("{vms} VMs, {cut_permille:3} cut, {policy:22} {name:9} {figures}");
                }
            }
        }
    }
}
