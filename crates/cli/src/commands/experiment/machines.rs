//! What became of the vCPUs and tasks of an experiment's machines, as a table.

use crate::json::{Machine, MachineVm};
use seekway_report::table::{Cell, Column, Table};

/// One line a run, its VMs together; none without machines.
pub fn table(machines: &[Machine]) -> Option<Table> {
    if machines.is_empty() {
        return None;
    }
    let columns = vec![
        Column::text("scenario"),
        Column::text("vCPU policy"),
        Column::number("seed", ""),
        Column::number("I/O", "MiB/s"),
        Column::number("block to block", "ms"),
        Column::number("some vCPU ran", ""),
        Column::number("inactive", ""),
        Column::number("moves", ""),
        Column::number("least", ""),
        Column::number("blocked", ""),
        Column::number("computed", "s"),
        Column::number("agent", ""),
    ];
    let mut table = Table::new("vCPUs and tasks, by run", columns);
    for machine in machines {
        table.push(row(machine));
    }
    table.notes.push(
        "All VMs of a run together. block to block: as the I/O tasks see it, with CPU time and \
         absence. some vCPU ran: mean share of the time in which a VM had any vCPU running. \
         inactive: mean share of the time in which an I/O task could have run and its vCPU was \
         away. least: moves that a clairvoyant needs. blocked: moves that waited for a vCPU that \
         was away. agent: its CPU time, as a share of what the vCPUs had."
            .into(),
    );
    Some(table)
}

fn row(machine: &Machine) -> [Cell; 12] {
    let vms = &machine.vms;
    let sum = |figure: fn(&MachineVm) -> f64| vms.iter().map(figure).sum::<f64>();
    let count = |figure: fn(&MachineVm) -> u64| vms.iter().map(figure).sum::<u64>();
    // Means over the VMs, and over their blocks; a run without any shows zeros.
    let over = |sum: f64, of: f64| if of > 0.0 { sum / of } else { 0.0 };
    let reading = vms.iter().filter(|vm| vm.ios > 0).count() as f64;
    [
        Cell::Text(machine.scenario.clone()),
        Cell::Text(machine.vcpu.clone()),
        Cell::Count(machine.seed),
        Cell::Number(sum(|vm| vm.io_mib_s)),
        Cell::Number(over(sum(|vm| vm.io_ms * vm.ios as f64), count(|vm| vm.ios) as f64)),
        Cell::Share(over(sum(|vm| vm.any_ran_share), vms.len() as f64)),
        Cell::Share(over(sum(|vm| vm.inactive_s), machine.simulated_s * reading)),
        Cell::Count(count(|vm| vm.moves)),
        Cell::Count(count(|vm| vm.moves_least)),
        Cell::Count(count(|vm| vm.moves_blocked)),
        Cell::Number(sum(|vm| vm.computed_s)),
        Cell::Share(over(sum(|vm| vm.agent_s), sum(|vm| vm.ran_s))),
    ]
}
