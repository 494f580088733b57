//! The table of runs in which VMs shared the host's processors.

use super::tables::label;
use crate::json::{CompareReport, Vcpus};
use seekway_report::table::{Cell, Column, Table};

/// One line for each VM and run; none where no processors were shared.
pub fn table(compared: &CompareReport) -> Option<Table> {
    let vms = compared.runs.iter().map(|run| run.vcpus.len()).max().filter(|&vms| vms > 0)?;
    let columns = vec![
        Column::text("VM"),
        Column::text(compared.names.heading()),
        Column::number("applications", "MiB/s"),
        Column::number("wait", "ms"),
        Column::number("p99 of waits", "ms"),
        Column::number("CPU", ""),
        Column::number("CPU lost", ""),
        Column::number("moves", "1/s"),
        Column::number("agent", ""),
    ];
    let mut table = Table::new("VMs that share processors", columns);
    for vm in 0..vms {
        for run in compared.runs.iter().filter(|run| !run.vcpus.is_empty()) {
            let name = label(&compared.runs, run);
            table.push(row(&run.vcpus[vm], name, run.simulated_s));
        }
    }
    table.notes.push(
        "applications: what they read and wrote, from the guest's page cache or its disk. wait: of \
         a task for the disk, until it ran again. CPU, CPU lost, agent: of its vCPUs' time, what \
         they ran, what they had something to run in and no processor, and what the agent ran."
            .into(),
    );
    Some(table)
}

fn row(vm: &Vcpus, name: String, simulated_s: f64) -> Vec<Cell> {
    let seconds = simulated_s.max(f64::MIN_POSITIVE);
    let of_vcpus = |time: f64| Cell::Share(time / (seconds * f64::from(vm.vcpus)));
    vec![
        Cell::Text(vm.vm.clone()),
        Cell::Text(name),
        Cell::Number(vm.app_mib_s),
        Cell::Number(vm.wait_ms.mean),
        Cell::Number(vm.wait_ms.p99),
        of_vcpus(vm.ran_s),
        of_vcpus(vm.stolen_s),
        Cell::Number(vm.moves as f64 / seconds),
        of_vcpus(vm.agent_s),
    ]
}
