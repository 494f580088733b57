//! What became of the vCPUs and tasks of an experiment's machines, as a table.

use crate::json::{Machine, MachineVm};
use seekway_report::table::{Cell, Table};

/// One line a run, its VMs together; none without machines.
pub fn table(machines: &[Machine]) -> Option<Table> {
    if machines.is_empty() {
        return None;
    }
    let table = Table::of("vCPUs and tasks, by run", machines)
        .text("scenario", |m| &m.scenario)
        .text("vCPU policy", |m| &m.vcpu)
        .number("seed", "", |m| m.seed)
        .number("I/O", "MiB/s", |m| sum(m, |vm| vm.io_mib_s))
        .number("block to block", "ms", |m| {
            over(sum(m, |vm| vm.io_ms * vm.ios as f64), count(m, |vm| vm.ios) as f64)
        })
        .number("some vCPU ran", "", |m| {
            Cell::Share(over(sum(m, |vm| vm.any_ran_share), m.vms.len() as f64))
        })
        .number("inactive", "", |m| {
            let reading = m.vms.iter().filter(|vm| vm.ios > 0).count() as f64;
            Cell::Share(over(sum(m, |vm| vm.inactive_s), m.simulated_s * reading))
        })
        .number("moves", "", |m| count(m, |vm| vm.moves))
        .number("least", "", |m| count(m, |vm| vm.moves_least))
        .number("blocked", "", |m| count(m, |vm| vm.moves_blocked))
        .number("computed", "s", |m| sum(m, |vm| vm.computed_s))
        .number("agent", "", |m| Cell::Share(over(sum(m, |vm| vm.agent_s), sum(m, |vm| vm.ran_s))));
    let table = table.note(
        "All VMs of a run together. block to block: as the I/O tasks see it, with CPU time and \
         absence. some vCPU ran: mean share of the time in which a VM had any vCPU running. \
         inactive: mean share of the time in which an I/O task could have run and its vCPU was \
         away. least: moves that a clairvoyant needs. blocked: moves that waited for a vCPU that \
         was away. agent: its CPU time, as a share of what the vCPUs had.",
    );
    Some(table.done())
}

fn sum(machine: &Machine, figure: fn(&MachineVm) -> f64) -> f64 {
    machine.vms.iter().map(figure).sum()
}

fn count(machine: &Machine, figure: fn(&MachineVm) -> u64) -> u64 {
    machine.vms.iter().map(figure).sum()
}

/// Means over the VMs, and over their blocks; a run without any shows zeros.
fn over(sum: f64, of: f64) -> f64 {
    if of > 0.0 { sum / of } else { 0.0 }
}
