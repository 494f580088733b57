//! Machines to start from, and a run of one.

use crate::engine::{Limits, Setup, run};
use crate::layout::{Layout, Placement};
use crate::metrics::RunResult;
use crate::vcpu::*;
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_device::profile;
use seekway_policy::schedulers;
use seekway_vcpu::{VcpuPolicy, *};
use seekway_workload::Source;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

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

// A policy that records its news, and does what a test says.

/// News for the script's policy.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// A sign: when it was made, by which vCPU.
    Sign(Instant, usize, Sign),
    Window(Vec<TaskLoad>),
    Moved(TaskId, Outcome),
    Acted,
    /// A decision at this time, for which it had asked.
    Asked(Instant),
}

/// The news and their times. Signs carry no time of telling: it is that of the next decision.
pub type Log = Arc<Mutex<Vec<(Instant, Told)>>>;

pub type Answer = Box<dyn Fn(&Told) -> Option<Action> + Send>;

pub struct Script {
    pub log: Log,
    /// From beat to beat of each vCPU.
    pub beats: Option<Nanos>,
    pub windows: Option<Nanos>,
    /// From asking to asking.
    pub wakes: Option<Nanos>,
    wake: Instant,
    /// The vCPU that it expects to run on; it knows nothing of others.
    pub lasts: Option<VcpuId>,
    pub slice: Option<Nanos>,
    /// Answer to each piece of news.
    pub answer: Answer,
    due: Vec<Instant>,
    untimed: Vec<Told>,
    wanted: Vec<Action>,
}

impl Script {
    pub fn new(log: &Log) -> Script {
        Script {
            log: log.clone(),
            beats: None,
            windows: None,
            wakes: None,
            wake: Instant::ZERO,
            lasts: None,
            slice: None,
            answer: Box::new(|_| None),
            due: Vec::new(),
            untimed: Vec::new(),
            wanted: Vec::new(),
        }
    }

    fn told(&mut self, now: Instant, told: Told) {
        self.wanted.extend((self.answer)(&told));
        self.log.lock().unwrap().push((now, told));
    }
}

/// Scripts with one log, each changed.
pub fn scripted(log: &Log, change: impl Fn(&mut Script)) -> impl Fn() -> Box<dyn VcpuPolicy> {
    move || {
        let mut script = Script::new(log);
        change(&mut script);
        Box::new(script)
    }
}

impl VcpuPolicy for Script {
    fn attach(&mut self, now: Instant, online: &VcpuSet) {
        self.due = vec![now; online.len()];
    }

    fn heard(&mut self, at: Instant, vcpu: VcpuId, sign: Sign) {
        if let (Sign::Beat { .. }, Some(beats)) = (sign, self.beats) {
            self.due[vcpu.index()] = at + beats;
        }
        self.untimed.push(Told::Sign(at, vcpu.index(), sign));
    }

    fn window(&mut self, now: Instant, loads: &[TaskLoad]) {
        self.told(now, Told::Window(loads.to_vec()));
    }

    fn moved(&mut self, now: Instant, task: TaskId, outcome: Outcome) {
        self.told(now, Told::Moved(task, outcome));
    }

    fn next(&mut self, now: Instant) -> Option<Action> {
        for told in std::mem::take(&mut self.untimed) {
            self.told(now, told);
        }
        if let Some(wakes) = self.wakes.filter(|_| now >= self.wake) {
            self.told(now, Told::Asked(self.wake));
            self.wake = now + wakes;
        }
        let action = self.wanted.pop()?;
        self.log.lock().unwrap().push((now, Told::Acted));
        Some(action)
    }

    fn beat_at(&self, vcpu: VcpuId) -> Option<Instant> {
        self.beats.map(|_| self.due[vcpu.index()])
    }

    fn windows(&self) -> Option<Nanos> {
        self.windows
    }

    fn vcpus(&self, _: Instant) -> Vec<VcpuView> {
        let view = |vcpu| VcpuView {
            vcpu,
            active: true,
            slice: None,
            remaining: Some(Nanos::from_secs(1)),
            slices: 0,
            away: Nanos::ZERO,
        };
        self.lasts.map(view).into_iter().collect()
    }

    fn next_wake(&self) -> Option<Instant> {
        self.wakes.map(|_| self.wake)
    }

    fn slice(&self, whole: Nanos) -> Nanos {
        self.slice.unwrap_or(whole)
    }
}

/// The spans for which a vCPU ran, as exact edges tell.
pub fn spans(log: &Log, vcpu: usize) -> Vec<(Instant, Instant)> {
    let (mut spans, mut from) = (Vec::new(), None);
    for (_, told) in log.lock().unwrap().iter() {
        match *told {
            Told::Sign(at, v, Sign::Resumed) if v == vcpu => from = Some(at),
            Told::Sign(at, v, _) if v == vcpu => spans.extend(from.take().map(|from| (from, at))),
            _ => {}
        }
    }
    spans
}
