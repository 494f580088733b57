//! The table of runs in which VMs shared the host's processors.

use crate::json::{CompareReport, Run, Vcpus};
use seekway_report::table::{Cell, Table};

/// One line for each VM and run; none where no processors were shared.
pub fn table(compared: &CompareReport) -> Option<Table> {
    let vms = compared.runs.iter().map(|run| run.vcpus.len()).max().filter(|&vms| vms > 0)?;
    let sharing = || compared.runs.iter().filter(|run| !run.vcpus.is_empty());
    let rows: Vec<(&Run, &Vcpus)> =
        (0..vms).flat_map(|vm| sharing().map(move |run| (run, &run.vcpus[vm]))).collect();
    let seconds = |run: &Run| run.simulated_s.max(f64::MIN_POSITIVE);
    let of_vcpus = |time: f64, (run, vm): &(&Run, &Vcpus)| {
        Cell::Share(time / (seconds(run) * f64::from(vm.vcpus)))
    };
    let table = Table::of("VMs that share processors", &rows)
        .text("VM", |(_, vm)| &vm.vm)
        .text(compared.names.heading(), |(run, _)| &run.label)
        .number("applications", "MiB/s", |(_, vm)| vm.app_mib_s)
        .number("wait", "ms", |(_, vm)| vm.wait_ms.mean)
        .number("p99 of waits", "ms", |(_, vm)| vm.wait_ms.p99)
        .number("CPU", "", |row| of_vcpus(row.1.ran_s, row))
        .number("CPU lost", "", |row| of_vcpus(row.1.stolen_s, row))
        .number("moves", "1/s", |(run, vm)| vm.moves as f64 / seconds(run))
        .number("agent", "", |row| of_vcpus(row.1.agent_s, row))
        .note(
            "applications: what they read and wrote, from the guest's page cache or its disk. \
             wait: of a task for the disk, until it ran again. CPU, CPU lost, agent: of its vCPUs' \
             time, what they ran, what they had something to run in and no processor, and what the \
             agent ran.",
        );
    Some(table.done())
}
