//! Description of a machine: its processors, its VMs, their tasks, and the model of
//! moves; and its checks.

use seekway_core::units::{Nanos, Sectors};
use seekway_vcpu::VCPUS_MAX;
use seekway_workload::tasks::TaskSource;
use std::num::NonZeroU32;

/// A host with its VMs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineSpec {
    /// Processors of the host. vCPU n of every VM is pinned to processor n modulo this.
    pub pcpus: u16,
    /// The host's scheduling.
    pub host: HostCpu,
    pub guest: GuestCpu,
    /// Detector of preemption for a guest's policy.
    pub detector: Detector,
    pub costs: Costs,
    /// Parts of the model that are left out.
    pub ablation: Ablation,
    pub vms: Vec<VmSpec>,
}

/// The host's scheduler: fair by virtual runtime (CFS, EEVDF) with slices of one length. The vCPU
/// that has run least for its weight goes next, and again if it still has: so jitter at times makes
/// two slices one, and a light weight waits for several slices of a heavy one. Processors begin at
/// random points of a slice. A VM whose policy gives it shorter slices has more of them in
/// proportion, whenever it has had less than its share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCpu {
    /// Length of a slice while another vCPU waits.
    pub slice: Nanos,
    /// Slices are longer or shorter by up to this, evenly distributed.
    pub jitter: Nanos,
    /// Slices in a thousand that are cut short, at an evenly distributed point, after which another
    /// vCPU goes next. The lost time is made up for later: shares stay. Shorter slices are cut less
    /// often in proportion, because their interruptions come at the same rate.
    pub cut_permille: u16,
    /// Tells whether a vCPU that wakes takes the processor from one that has used more. Linux does
    /// so when the difference exceeds about half a slice.
    pub wakeup_preempts: bool,
    /// From one vCPU to another.
    pub context_switch: Nanos,
}

/// A guest's scheduler, on each of its vCPUs: fair as the host's is. A task that wakes takes the
/// vCPU from one that has run more, by over half a slice: a task that does little but I/O always
/// does, one that computes as much as others has its share like them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuestCpu {
    /// Slice of tasks that compete on one vCPU.
    pub slice: Nanos,
    /// From one task to another.
    pub context_switch: Nanos,
    /// The vCPU that hears of a completed I/O.
    pub completes: Completes,
    /// Does its load balancer move a task from a queue where it waits to a vCPU that
    /// is idle? (It does not know which are away.) At the ends of slices, and when a vCPU
    /// gets idle. Where a task wakes is another matter: see `irq.rs`.
    pub balances: bool,
    /// Tells whether its vCPUs share a cache, as the guest sees them. Where they do not (`-smp n`
    /// gives each a socket), a task that one vCPU wakes on another is not queued there before that
    /// one runs, and until then nobody can move it (`ttwu_queue_wakelist`, `affine_move_task`); and
    /// the waker does not look for an idle vCPU.
    pub shared_cache: bool,
}

/// Slices of 3 ms, 2 µs from task to task, a disk with a queue for each vCPU, load balancing,
/// one cache.
impl Default for GuestCpu {
    fn default() -> GuestCpu {
        GuestCpu {
            slice: Nanos::from_millis(3),
            context_switch: Nanos::from_micros(2),
            completes: Completes::Submitter,
            balances: true,
            shared_cache: true,
        }
    }
}

/// The vCPU that hears of a completed I/O. A vCPU that is away hears it when it is back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completes {
    /// The submitter: a queue for each vCPU.
    Submitter,
    /// Always the first: a disk with one queue.
    Fixed,
    /// A running one, else the first that runs: posted interrupts that follow the running vCPU.
    Any,
    /// The one to which the VM's agent steers its disk's interrupts: where it moved a task
    /// last. The first, before it has moved any and without an agent.
    Steered,
}

/// Detector of preemption for a guest's policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detector {
    /// A thread on each vCPU that beats as the policy asks; each beat costs this much CPU time, and
    /// is late by the work before it.
    Heartbeat {
        /// CPU time of a beat, with the policy's part.
        beat: Nanos,
    },
    /// Each edge is known this long after it happened, where some vCPU of the guest runs.
    Exact {
        /// From the edge to the policy.
        delay: Nanos,
        /// CPU time of an edge without the policy's turn, while the policy asks for windows: one
        /// that never does has no agent in the guest.
        edge: Nanos,
    },
}

/// Costs of the agent's work, and its effects on tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// To change a task's mask, on the vCPU that decided it: the mask is read, written down
    /// and set. A move takes two changes if the task may then run on several vCPUs. A vCPU on
    /// which the task is current has to run for it: see [`VmCpu`](super::VmCpu)'s `blocked`.
    pub call: Nanos,
    /// Additional run time of a task on its new vCPU, whose caches are cold.
    pub cold: Nanos,
    /// Reading a window of the tasks' loads.
    pub window: Nanos,
    /// A thread of the agent wakes, for a timer of its policy's or for a move.
    pub wake: Nanos,
    /// CPU time of the policy's turn; beats include it.
    pub turn: Nanos,
}

/// Guesses of the right order for KVM on hardware: 5 µs for a wake-up (a timer's exit and
/// two switches), three system calls for a change of a mask, 20 µs for some 200 KiB of caches;
/// and 2.4 µs for a turn, as measured (docs/migrate.md).
impl Default for Costs {
    fn default() -> Costs {
        Costs {
            call: Nanos::from_micros(5),
            cold: Nanos::from_micros(20),
            window: Nanos::from_micros(10),
            wake: Nanos::from_micros(5),
            turn: Nanos::new(2_400),
        }
    }
}

/// Parts of the model that are left out: an ablation shows which ones decide.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ablation {
    /// A task that is current on a vCPU that is away moves at once, as if no stopper
    /// had to run there.
    pub free_stopper: bool,
    /// Completions are heard at once, on any vCPU.
    pub free_completions: bool,
    /// The policy is told of a preemption just before it happens, early enough for its heaviest
    /// user, `leave`. For [`Detector::Exact`] only; a preemption by a wake-up, which ends a slice
    /// early, is not foreseen.
    pub foresight: Option<Nanos>,
    /// Moves cost no CPU time, and no task has a cold cache after one.
    pub free_moves: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VmSpec {
    /// Name of the VM in tables and error messages.
    pub name: String,
    pub vcpus: u16,
    /// Its share of the processors against others'.
    pub cpu_weight: NonZeroU32,
    /// Has it the cell's policy? It is vanilla otherwise.
    pub agent: bool,
    /// Size of its disk; one with a guest has that guest's disks.
    pub disk: Sectors,
    pub tasks: Vec<TaskSpec>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskSpec {
    /// Name of the task in tables and error messages.
    pub name: String,
    pub start: Start,
    /// Numbers of the vCPUs that its owner allows; all if it is empty.
    pub allowed: Vec<u16>,
    /// From when it runs.
    pub from: Nanos,
    pub load: Load,
}

impl TaskSpec {
    /// A task that runs from the beginning on, on any vCPU.
    pub fn new(name: impl Into<String>, start: Start, load: Load) -> TaskSpec {
        TaskSpec { name: name.into(), start, allowed: Vec::new(), from: Nanos::ZERO, load }
    }
}

/// Where a task starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// On the vCPU of this number in its VM.
    On(u16),
    /// On any, by the seed.
    Any,
}

/// Work of a task; for ever, unless its guest has an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Computes without a pause, and does no I/O.
    Compute,
    /// Computes for this share of the time, in bursts of this length, and sleeps between them.
    Partly {
        burst: Nanos,
        /// Share of a processor that it would have alone.
        permille: u16,
    },
    /// Reads one block after the other and waits for each.
    Io {
        /// Length of a block.
        block: Sectors,
        /// Sequential from the start of its part of the disk, otherwise random in it.
        sequential: bool,
        /// CPU time for each block: before it is asked for.
        cpu: Nanos,
        /// Blocks that it keeps under way.
        depth: u16,
        /// Blocks after which it computes for `between`, or sleeps; 0 for never.
        burst: u32,
        between: Nanos,
        /// Computes between bursts rather than sleeping.
        computes: bool,
    },
    /// The work of the task with this number in the VM's guest, with a page cache, a journal and
    /// its own files below it.
    Guest(u32),
}

// Checks a machine. An error names the fault, its location and what to write.

/// Of processors, of vCPUs together, of tasks together.
const COUNT_MAX: usize = 65_536;
const SLICE_MIN: Nanos = Nanos::from_micros(10);
const TIME_MAX: Nanos = Nanos::from_secs(86_400);

pub(super) fn check(spec: &MachineSpec) -> Result<(), String> {
    if spec.pcpus == 0 {
        return Err("the host has no processor: pcpus is at least 1".into());
    }
    if spec.vms.is_empty() {
        return Err("the host has no VM: give it at least one".into());
    }
    check_host(&spec.host)?;
    check_guest(&spec.guest)?;
    let Costs { call, cold, window, wake, turn } = spec.costs;
    let costs = [call, cold, window, wake, turn];
    let detector = match spec.detector {
        Detector::Heartbeat { beat } => [beat, Nanos::ZERO],
        Detector::Exact { delay, edge } => [delay, edge],
    };
    let foresight = spec.ablation.foresight;
    for time in costs.into_iter().chain(detector).chain(foresight) {
        check_time(time).map_err(|e| format!("costs and detector: {e}"))?;
    }
    let vcpus: usize = spec.vms.iter().map(|vm| usize::from(vm.vcpus)).sum();
    let tasks: usize = spec.vms.iter().map(|vm| vm.tasks.len()).sum();
    if vcpus > COUNT_MAX || tasks > COUNT_MAX || spec.vms.len() > usize::from(u16::MAX) {
        return Err(format!(
            "{vcpus} vCPUs and {tasks} tasks: there are at most {COUNT_MAX} of each"
        ));
    }
    spec.vms.iter().try_for_each(|vm| check_vm(vm).map_err(|e| format!("VM {}: {e}", vm.name)))
}

fn check_host(host: &HostCpu) -> Result<(), String> {
    check_slice("the host's slice", host.slice)?;
    check_time(host.context_switch).map_err(|e| format!("the host's context switch: {e}"))?;
    if host.jitter >= host.slice {
        return Err(format!("jitter of {} on slices of {}: it is less", host.jitter, host.slice));
    }
    if host.cut_permille > 1000 {
        return Err(format!("{} of 1000 slices cut short: at most 1000", host.cut_permille));
    }
    Ok(())
}

fn check_guest(guest: &GuestCpu) -> Result<(), String> {
    check_slice("the guests' slice", guest.slice)?;
    check_time(guest.context_switch).map_err(|e| format!("the guests' context switch: {e}"))
}

fn check_slice(what: &str, slice: Nanos) -> Result<(), String> {
    if slice < SLICE_MIN || slice > TIME_MAX {
        return Err(format!("{what} is {slice}: from {SLICE_MIN} to {TIME_MAX}"));
    }
    Ok(())
}

fn check_time(time: Nanos) -> Result<(), String> {
    if time > TIME_MAX { Err(format!("{time} is longer than {TIME_MAX}")) } else { Ok(()) }
}

fn check_vm(vm: &VmSpec) -> Result<(), String> {
    if vm.vcpus == 0 || usize::from(vm.vcpus) > VCPUS_MAX {
        return Err(format!("{} vCPUs: it has 1 to {VCPUS_MAX}", vm.vcpus));
    }
    for task in &vm.tasks {
        check_task(vm, task).map_err(|e| format!("task {}: {e}", task.name))?;
    }
    for (task, part) in parts(vm) {
        let Load::Io { block, .. } = vm.tasks[task].load else { continue };
        if part < block {
            let name = &vm.tasks[task].name;
            return Err(format!(
                "task {name}: its part of the disk has {part} sectors, less than a block"
            ));
        }
    }
    Ok(())
}

fn check_task(vm: &VmSpec, task: &TaskSpec) -> Result<(), String> {
    let exists = |n: u16| {
        let none = || format!("vCPU {n}: the VM has 0 to {}", vm.vcpus - 1);
        if n < vm.vcpus { Ok(()) } else { Err(none()) }
    };
    task.allowed.iter().try_for_each(|&n| exists(n))?;
    if let Start::On(n) = task.start {
        exists(n)?;
        if !task.allowed.is_empty() && !task.allowed.contains(&n) {
            return Err(format!("it starts on vCPU {n}, where it is not allowed"));
        }
    }
    check_time(task.from)?;
    match task.load {
        Load::Compute | Load::Guest(_) => Ok(()),
        Load::Partly { burst, permille } => {
            if permille == 0 || permille > 1000 {
                return Err(format!("{permille} of 1000 of a processor: from 1 to 1000"));
            }
            check_slice("a burst", burst)
        }
        Load::Io { block, cpu, depth, between, .. } => {
            if block == Sectors::ZERO || depth == 0 {
                return Err("it reads blocks of at least a sector, at least one at a time".into());
            }
            check_time(cpu)?;
            check_time(between)
        }
    }
}

/// Checks that each task of a guest has a guest, and that nothing else uses a part of that guest's
/// disk.
pub(super) fn check_guests(
    spec: &MachineSpec,
    guests: &[Option<Box<dyn TaskSource>>],
) -> Result<(), String> {
    if guests.len() != spec.vms.len() {
        return Err(format!("{} guests for {} VMs: one for each", guests.len(), spec.vms.len()));
    }
    let disks: usize = guests.iter().map(|g| g.as_ref().map_or(1, |g| g.disks().len())).sum();
    if disks > usize::from(u16::MAX) {
        return Err(format!("{disks} disks of all VMs: there are at most {}", u16::MAX));
    }
    for (vm, guest) in spec.vms.iter().zip(guests) {
        let tasks = guest.as_ref().map_or(0, |guest| guest.tasks().len());
        let leads = vm.tasks.iter().take(tasks).enumerate();
        let fits = leads.clone().count() == tasks
            && leads.clone().all(|(n, task)| task.load == Load::Guest(n as u32));
        let rest = &vm.tasks[tasks.min(vm.tasks.len())..];
        let own = |task: &TaskSpec| match task.load {
            Load::Guest(_) => true,
            Load::Io { .. } => tasks > 0,
            Load::Compute | Load::Partly { .. } => false,
        };
        if !fits || rest.iter().any(own) {
            return Err(format!(
                "VM {}: its first {tasks} tasks are its guest's, in their order; behind them \
                 stand only tasks that compute",
                vm.name
            ));
        }
    }
    Ok(())
}

/// The tasks of a VM that do I/O, each with its part of the disk.
pub(super) fn parts(vm: &VmSpec) -> impl Iterator<Item = (usize, Sectors)> {
    let is_io = |task: &TaskSpec| matches!(task.load, Load::Io { .. });
    let tasks: Vec<usize> = (0..vm.tasks.len()).filter(|&n| is_io(&vm.tasks[n])).collect();
    let part = Sectors::new(vm.disk.get() / tasks.len().max(1) as u64);
    tasks.into_iter().map(move |n| (n, part))
}
