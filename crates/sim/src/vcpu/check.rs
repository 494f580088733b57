//! Checks a machine. An error names the fault, its location and what to write.

use super::{Costs, Detector, GuestCpu, HostCpu, Load, MachineSpec, Start, TaskSpec, VmSpec};
use seekway_core::units::{Nanos, Sectors};
use seekway_vcpu::VCPUS_MAX;
use seekway_workload::tasks::TaskSource;

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
