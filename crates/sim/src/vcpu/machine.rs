//! The machine as a source of requests: its events, one after the other.

use super::check;
use super::events::{Event, Events};
use super::state::{Heard, Io, Pcpu, Phase, Task, Vcpu, VcpuRunState, Vm};
use super::{Ablation, Costs, Detector, GuestCpu, HostCpu, MachineSpec, PcpuResult, TaskResult};
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{VcpuPolicy, build};
use seekway_workload::tasks::TaskSource;
use seekway_workload::{AppReport, Issue, Source, SourceError, VmDisk};

/// A host with its VMs, running. It comes to an end when all of its VMs have guests, and
/// their loads have ended.
pub struct Machine {
    pub(super) host: HostCpu,
    pub(super) guest: GuestCpu,
    pub(super) detector: Detector,
    pub(super) costs: Costs,
    pub(super) ablation: Ablation,
    pub(super) policy: String,
    /// Of all VMs, one after the other: see [`Vm::disks`].
    pub(super) disks: Vec<VmDisk>,
    pub(super) pcpus: Vec<Pcpu>,
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) vms: Vec<Vm>,
    pub(super) tasks: Vec<Task>,
    /// By token; none where it is free.
    pub(super) ios: Vec<Option<Io>>,
    pub(super) free_ios: Vec<usize>,
    pub(super) issues: Vec<Issue>,
    /// The guests of VMs whose tasks have a kernel below them, by VM.
    pub(super) guests: Vec<Option<Box<dyn TaskSource>>>,
    /// Why it cannot go on.
    pub(super) failed: Option<SourceError>,
    pub(super) events: Events,
    pub(super) now: Instant,
    pub(super) measured_from: Instant,
    pub(super) handled: u64,
}

impl Machine {
    /// Makes a machine whose agents have this policy. Its result covers the time from
    /// `measured_from` on.
    ///
    /// # Errors
    /// The policy is none, or the machine cannot be.
    pub fn new(
        spec: &MachineSpec,
        policy: &str,
        seed: u64,
        measured_from: Instant,
    ) -> Result<Machine, String> {
        let agent = || build(policy).map_err(|e| e.to_string());
        Machine::with(spec, policy, &agent, seed, measured_from)
    }

    /// As [`Machine::new`], with policies that are in no registry: `policy` builds one for each
    /// agent.
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn with(
        spec: &MachineSpec,
        name: &str,
        policy: &dyn Fn() -> Result<Box<dyn VcpuPolicy>, String>,
        seed: u64,
        measured_from: Instant,
    ) -> Result<Machine, String> {
        let guests = spec.vms.iter().map(|_| None).collect();
        Machine::with_guests(spec, guests, name, policy, seed, measured_from)
    }

    /// As [`Machine::with`], with a guest for each VM that has tasks of one
    /// ([`Load::Guest`](super::Load)).
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn with_guests(
        spec: &MachineSpec,
        guests: Vec<Option<Box<dyn TaskSource>>>,
        name: &str,
        policy: &dyn Fn() -> Result<Box<dyn VcpuPolicy>, String>,
        seed: u64,
        measured_from: Instant,
    ) -> Result<Machine, String> {
        check::check(spec)?;
        check::check_guests(spec, &guests)?;
        let mut machine = Machine::build(spec, name, seed, measured_from);
        machine.guests = guests;
        machine.plug_disks(spec);
        for (n, vm) in spec.vms.iter().enumerate() {
            if vm.agent {
                machine.give_agent(n, policy()?);
            }
        }
        machine.attach();
        machine.events.push(measured_from, Event::Measured);
        for (task, spec) in spec.vms.iter().flat_map(|vm| &vm.tasks).enumerate() {
            let vcpu = machine.tasks[task].vcpu;
            machine.events.push(Instant::ZERO + spec.from, Event::Slept { task, vcpu, nap: 0 });
        }
        Ok(machine)
    }

    /// Handles the events of this instant.
    fn handle_due(&mut self, now: Instant) {
        while let Some((at, event)) = self.events.peek() {
            if at <= now {
                debug_assert!(at >= self.now, "time ran backwards");
                self.now = at;
                self.events.pop();
                self.handle(event);
            } else if self.is_stale(event) {
                self.events.pop();
            } else {
                break;
            }
        }
        self.now = now;
    }

    fn handle(&mut self, event: Event) {
        if self.is_stale(event) {
            return;
        }
        self.handled += 1;
        match event {
            Event::Processor { pcpu, .. } => self.processor_event(pcpu),
            Event::Foreseen { pcpu, .. } => self.foreseen(pcpu),
            Event::Executed { vcpu, .. } => self.executed(vcpu),
            Event::Slept { task, vcpu, nap } if self.tasks[task].phase == Phase::New => {
                self.hear(vcpu, Heard::Slept { task, nap });
            }
            Event::Slept { task, vcpu, nap } => self.interrupt(vcpu, Heard::Slept { task, nap }),
            Event::Interrupt { token } => self.io_done(token),
            Event::Kernel { vm, .. } => self.kernel_is_due(vm),
            Event::Dozed { vcpu, .. } => self.host_wake(vcpu),
            Event::Beat { vcpu, .. } => self.beat(vcpu),
            Event::Edge { vcpu, at, sign } => self.edge(vcpu, at, sign),
            Event::Alarm { vcpu, .. } => self.wake_monitor(vcpu),
            Event::Measured => self.begin_measuring(),
        }
    }

    fn is_stale(&self, event: Event) -> bool {
        match event {
            Event::Processor { pcpu, generation } | Event::Foreseen { pcpu, generation } => {
                self.pcpus[pcpu].generation != generation
            }
            Event::Executed { vcpu, generation } => self.vcpus[vcpu].generation != generation,
            Event::Dozed { vcpu, generation } => self.vcpus[vcpu].doze_generation != generation,
            Event::Beat { vcpu, generation } => self.vcpus[vcpu].monitor.generation != generation,
            Event::Alarm { vcpu, generation } => {
                self.vcpus[vcpu].monitor.alarm.generation != generation
            }
            Event::Slept { task, nap, .. } => self.tasks[task].naps != nap,
            Event::Kernel { vm, generation } => self.vms[vm].kernel_timer.1 != generation,
            Event::Interrupt { .. } | Event::Edge { .. } | Event::Measured => false,
        }
    }

    /// Forgets the counts up to now.
    fn begin_measuring(&mut self) {
        let now = self.now;
        self.account(now);
        for pcpu in &mut self.pcpus {
            pcpu.result = PcpuResult::default();
        }
        for task in &mut self.tasks {
            task.result = TaskResult::new(std::mem::take(&mut task.result.name));
        }
        for vm in &mut self.vms {
            vm.any.restart(now);
            vm.least.restart();
            (vm.agent_time, vm.switching) = (Nanos::ZERO, Nanos::ZERO);
            (vm.moves, vm.releases, vm.blocked) = (0, 0, 0);
        }
        for vcpu in &mut self.vcpus {
            vcpu.ran.restart(now);
            vcpu.waits.restart(now);
        }
    }

    /// Everything is counted up to `now`.
    pub(super) fn account(&mut self, now: Instant) {
        self.now = now;
        (0..self.pcpus.len()).for_each(|p| self.charge(p));
        let running = |v: &usize| self.vcpus[*v].state == VcpuRunState::Running;
        let running: Vec<usize> = (0..self.vcpus.len()).filter(running).collect();
        running.into_iter().for_each(|v| self.settle(v));
        (0..self.tasks.len()).for_each(|t| self.flush_wants(t));
    }
}

impl Source for &mut Machine {
    fn vms(&self) -> &[VmDisk] {
        &self.disks
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        self.handle_due(now);
        out.append(&mut self.issues);
        self.failed.take().map_or(Ok(()), Err)
    }

    fn completed(&mut self, now: Instant, token: u64) {
        self.handle_before(now);
        self.answered(token as usize);
    }

    fn next_wake(&self) -> Option<Instant> {
        // Agents and slices would go on for ever.
        if self.finished() { None } else { self.events.peek().map(|(at, _)| at) }
    }

    fn finished(&self) -> bool {
        self.guests.iter().all(|guest| guest.as_ref().is_some_and(|g| g.finished()))
    }

    fn lacks(&self, disk: usize) -> Vec<Extent> {
        let vm = self.vms.iter().position(|vm| vm.disks.contains(&disk));
        let guest = vm.and_then(|vm| Some((self.guests[vm].as_ref()?, self.vms[vm].disks.start)));
        guest.map_or(Vec::new(), |(guest, first)| guest.lacks(disk - first))
    }

    fn apps(&self) -> Vec<AppReport> {
        let of = |(vm, guest): (&Vm, &Option<Box<dyn TaskSource>>)| {
            let first = vm.disks.start as u16;
            let apps = guest.iter().flat_map(|guest| guest.apps());
            apps.map(|app| AppReport { vm: first + app.vm, ..app }).collect::<Vec<_>>()
        };
        self.vms.iter().zip(&self.guests).flat_map(of).collect()
    }
}

impl Machine {
    /// Nothing is due before `now`: the engine polls at each wake.
    fn handle_before(&mut self, now: Instant) {
        debug_assert!(self.events.peek().is_none_or(|(at, _)| at >= now), "a wake was missed");
        self.now = now;
    }
}
