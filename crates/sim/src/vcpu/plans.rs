//! A machine of VMs as the command line describes them: loads of `workload` run as tasks on vCPUs
//! that share processors.

use super::{
    Ablation, Costs, Detector, GuestCpu, HostCpu, Load, Machine, MachineSpec, Start, TaskSpec,
    VmSpec,
};
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_vcpu::build;
use seekway_workload::generators::VmPlan;
use seekway_workload::tasks::TaskSource;
use std::num::NonZeroU32;

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
