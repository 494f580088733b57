//! A machine at time zero, from its description or from VMs of a command line.

use super::machine::{Events, Machine};
use super::spec::parts;
use super::state::{
    Age, Alarm, Beat, GuestAgent, IoState, Monitor, On, Pcpu, Phase, Slice, State, Tally, Task,
    Vcpu, VcpuRunState, Vm, Wants, WindowLoad,
};
use super::{
    Ablation, Costs, Detector, GuestCpu, HostCpu, Load, MachineSpec, PcpuResult, Start, TaskResult,
    TaskSpec, VmSpec,
};
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_vcpu::{VcpuId, VcpuPolicy, VcpuSet, build};
use seekway_workload::VmDisk;
use seekway_workload::generators::VmPlan;
use seekway_workload::rng::{Rng, split};
use seekway_workload::tasks::TaskSource;
use std::collections::VecDeque;
use std::num::NonZeroU32;

impl Machine {
    /// Nothing runs yet. `spec` was checked.
    pub(super) fn build(spec: &MachineSpec, name: &str, seed: u64, from: Instant) -> Machine {
        let mut machine = Machine {
            host: spec.host,
            guest: spec.guest,
            detector: spec.detector,
            costs: spec.costs,
            ablation: spec.ablation,
            policy: name.into(),
            disks: Vec::new(),
            pcpus: (0..spec.pcpus).map(|p| pcpu(split(seed, u64::from(p)))).collect(),
            vcpus: Vec::new(),
            vms: Vec::new(),
            tasks: Vec::new(),
            ios: Vec::new(),
            free_ios: Vec::new(),
            guests: Vec::new(),
            failed: None,
            issues: Vec::new(),
            events: Events::default(),
            now: Instant::ZERO,
            measured_from: from,
            handled: 0,
        };
        for (n, vm) in spec.vms.iter().enumerate() {
            machine.add(n, vm, split(seed, 1 << 32 | n as u64), spec.pcpus);
        }
        for p in 0..machine.pcpus.len() {
            machine.stagger(p);
        }
        machine
    }

    fn add(&mut self, n: usize, spec: &VmSpec, seed: u64, pcpus: u16) {
        let (first, first_task) = (self.vcpus.len(), self.tasks.len());
        for id in 0..spec.vcpus {
            let (pcpu, weight) = (usize::from(id % pcpus), spec.cpu_weight.get());
            self.vcpus.push(vcpu(n, VcpuId::new(id), pcpu, weight));
        }
        let parts: Vec<(usize, Sectors)> = parts(spec).collect();
        for (t, task) in spec.tasks.iter().enumerate() {
            let place = parts.iter().position(|&(io, _)| io == t);
            let part = place.map(|place| (place as u64, parts[place].1));
            let rng = Rng::new(split(seed, t as u64));
            self.tasks.push(new_task(n, first, spec, task, part, rng));
        }
        let tasks = first_task..self.tasks.len();
        self.vms.push(Vm::new(spec, first, tasks, self.host.slice));
    }

    /// The disks of all VMs: those of its guest, or the one of a VM without.
    pub(super) fn plug_disks(&mut self, spec: &MachineSpec) {
        for ((vm, guest), spec) in self.vms.iter_mut().zip(&self.guests).zip(&spec.vms) {
            let first = self.disks.len();
            match guest {
                Some(guest) => self.disks.extend_from_slice(guest.disks()),
                None => self.disks.push(VmDisk { name: spec.name.clone(), capacity: spec.disk }),
            }
            vm.disks = first..self.disks.len();
        }
    }

    /// A VM's agent begins.
    pub(super) fn give_agent(&mut self, vm: usize, policy: Box<dyn VcpuPolicy>) {
        self.vms[vm].agent = Some(GuestAgent::new(policy, self.vms[vm].first));
    }

    /// The vCPUs of a processor are spread over a slice, in random order: its VMs
    /// have been there for long.
    fn stagger(&mut self, p: usize) {
        let here = |v: &usize| self.vcpus[*v].pcpu == p;
        let mut here: Vec<usize> = (0..self.vcpus.len()).filter(here).collect();
        let slice = self.host.slice.get();
        self.pcpus[p].rng.shuffle(&mut here);
        let places = here.len() as u64;
        for (place, v) in here.into_iter().enumerate() {
            let at =
                slice * (place as u64 * 1024 + self.pcpus[p].rng.below(1024)) / (places * 1024);
            self.vcpus[v].age = Age::of(Nanos::new(at), self.vcpus[v].weight);
        }
    }
}

fn pcpu(seed: u64) -> Pcpu {
    Pcpu {
        on: On::Idle,
        since: Instant::ZERO,
        waiting: Vec::new(),
        last: None,
        front: None,
        slice: Slice::default(),
        floor: Age::default(),
        generation: 0,
        is_fresh: true,
        rng: Rng::new(seed),
        result: PcpuResult::default(),
    }
}

fn vcpu(vm: usize, id: VcpuId, pcpu: usize, weight: u32) -> Vcpu {
    let mut away = Tally::default();
    away.start(Instant::ZERO);
    Vcpu {
        vm,
        id,
        pcpu,
        state: VcpuRunState::Halted,
        weight,
        age: Age::default(),
        work: VecDeque::new(),
        current: None,
        last: None,
        queue: Vec::new(),
        used: Nanos::ZERO,
        floor: Age::default(),
        since: Instant::ZERO,
        generation: 0,
        unheard: Vec::new(),
        wake_list: Vec::new(),
        workers: 0,
        starts: false,
        dozes: false,
        doze_generation: 0,
        is_foretold: false,
        monitor: Monitor { state: Beat::None, generation: 0, rests: true, alarm: Alarm::default() },
        ran: Tally::default(),
        away,
        waits: Tally::default(),
    }
}

fn new_task(
    vm: usize,
    first: usize,
    of: &VmSpec,
    spec: &TaskSpec,
    part: Option<(u64, Sectors)>,
    mut rng: Rng,
) -> Task {
    let allowed: VcpuSet = match &spec.allowed[..] {
        [] => VcpuSet::first(usize::from(of.vcpus)),
        some => some.iter().copied().map(VcpuId::new).collect(),
    };
    let on = match spec.start {
        Start::On(n) => usize::from(n),
        Start::Any => {
            let nth = rng.below(allowed.len() as u64) as usize;
            allowed.iter().nth(nth).expect("it may run somewhere").index()
        }
    };
    Task {
        vm,
        load: spec.load,
        allowed,
        within: allowed,
        then: None,
        vcpu: first + on,
        state: State::Sleeping,
        phase: Phase::New,
        left: None,
        cold: Nanos::ZERO,
        age: Age::default(),
        is_acted_on: false,
        naps: 0,
        io: io_state(spec.load, part, rng),
        window: WindowLoad::default(),
        wants: Wants::No,
        result: TaskResult::new(spec.name.clone()),
    }
}

fn io_state(load: Load, part: Option<(u64, Sectors)>, rng: Rng) -> IoState {
    let (place, sectors) = part.unwrap_or((0, Sectors::ZERO));
    let block = match load {
        Load::Io { block, .. } => block.get(),
        Load::Compute | Load::Partly { .. } | Load::Guest(_) => 1,
    };
    let blocks = sectors.get() / block;
    IoState {
        rng,
        first_block: place * blocks,
        blocks,
        next: 0,
        outstanding: 0,
        done: Vec::new(),
        begun: Instant::ZERO,
        in_burst: 0,
        has_waited: false,
    }
}

// A machine of VMs as the command line describes them: loads of `workload` run as tasks on vCPUs
// that share processors.

/// The processors that VMs share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Processors {
    /// Number of processors; vCPU n of every VM is pinned to processor n modulo this.
    pub count: u16,
    pub host: HostCpu,
    pub guest: GuestCpu,
    pub detector: Detector,
    pub costs: Costs,
    /// The VMs have one `part`-th of each processor's time, in slices of the same length; others,
    /// which always have something to compute, have the rest. At least 1.
    pub part: u32,
    /// In each VM a task on each vCPU computes all the time, beside its applications.
    pub guests_compute: bool,
    /// Parts that are not modelled.
    pub ablation: Ablation,
}

/// A VM on shared processors.
#[derive(Clone, Copy, Debug)]
pub enum PlannedVm<'p> {
    /// A plan's load, on a guest's kernel.
    Guest {
        plan: &'p VmPlan,
        /// Number of its stream of random numbers (see
        /// [`VmPlan::source`](seekway_workload::generators::VmPlan::source)).
        stream: u16,
        cpu_weight: NonZeroU32,
        agent: bool,
    },
    /// Tasks without a guest.
    Tasks(&'p VmSpec),
}

impl Processors {
    /// Processors as KVM on Linux shares them: slices of 11 ms (Red Hat's advice for KVM, which the
    /// vMigrater paper follows), which vary by 0.3 ms. The costs are guesses of the right order for
    /// hardware: 5 µs for a switch of vCPUs or a beat (a timer's exit and two switches).
    pub fn new(count: u16) -> Processors {
        let micros = Nanos::from_micros;
        Processors {
            count,
            host: HostCpu {
                slice: Nanos::from_millis(11),
                jitter: micros(300),
                cut_permille: 0,
                wakeup_preempts: true,
                context_switch: micros(5),
            },
            guest: GuestCpu::default(),
            detector: Detector::Heartbeat { beat: micros(5) },
            costs: Costs::default(),
            part: 1,
            guests_compute: false,
            ablation: Ablation::default(),
        }
    }

    /// These VMs on them.
    pub fn machine(&self, vms: Vec<VmSpec>) -> MachineSpec {
        let Processors { count, host, guest, detector, costs, ablation, .. } = *self;
        MachineSpec { pcpus: count, host, guest, detector, costs, ablation, vms }
    }

    /// The VM that computes all the time beside VMs that have only a part of a processor.
    fn others(&self) -> Option<VmSpec> {
        let cpu_weight = NonZeroU32::new(self.part.saturating_sub(1))?;
        Some(VmSpec {
            name: "others".into(),
            vcpus: self.count,
            cpu_weight,
            agent: false,
            disk: Sectors::new(1),
            tasks: (0..self.count).map(computes).collect(),
        })
    }
}

impl Machine {
    /// Makes these VMs on these processors, those with an agent under this policy. The result
    /// covers the time from `measured_from` on.
    ///
    /// # Errors
    /// The policy is unknown, or a VM's files exceed its image.
    pub fn of_vms(
        processors: &Processors,
        planned: &[PlannedVm<'_>],
        policy: &str,
        seed: u64,
        measured_from: Instant,
    ) -> Result<Machine, String> {
        let (mut vms, mut guests) = (Vec::new(), Vec::new());
        for vm in planned {
            match *vm {
                PlannedVm::Guest { plan, stream, cpu_weight, agent } => {
                    let guest = plan.tasks(seed, stream).map_err(|e| e.to_string())?;
                    let spec = vm_of(plan, guest.as_ref(), processors.guests_compute);
                    vms.push(VmSpec { cpu_weight, agent, ..spec });
                    guests.push(Some(guest));
                }
                PlannedVm::Tasks(spec) => {
                    vms.push(spec.clone());
                    guests.push(None);
                }
            }
        }
        if let Some(others) = processors.others() {
            vms.push(others);
            guests.push(None);
        }
        let spec = processors.machine(vms);
        let agent = || build(policy).map_err(|e| e.to_string());
        Machine::with_guests(&spec, guests, policy, &agent, seed, measured_from)
    }
}

/// Computes on vCPU `n` all the time.
fn computes(n: u16) -> TaskSpec {
    let task = TaskSpec::new(format!("cpu{n}"), Start::On(n), Load::Compute);
    TaskSpec { allowed: vec![n], ..task }
}

fn vm_of(plan: &VmPlan, guest: &dyn TaskSource, computing: bool) -> VmSpec {
    let task = |(n, name): (u32, String)| TaskSpec::new(name, Start::Any, Load::Guest(n));
    let vcpus = plan.guest.vcpus as u16;
    let computing = (0..vcpus).filter(|_| computing).map(computes);
    VmSpec {
        name: plan.name.clone(),
        vcpus,
        cpu_weight: NonZeroU32::MIN,
        agent: true,
        disk: guest.disks()[0].capacity,
        tasks: (0..).zip(guest.tasks()).map(task).chain(computing).collect(),
    }
}
