//! Variants of migrate-scale whose I/O task reads through a guest's page cache, with the guest's
//! read-ahead. Nobody's claim: SysBench's files are opened as its flags say, which the paper does not.

use super::super::judge::mean;
use super::super::metric::bandwidth;
use super::super::results::over;
use super::super::{Cell, Findings, Options, Results, Row, Scenario};
use super::load::{CORES, COUNTS, Disk, OURS, PAPER, SEQUENTIAL, Scene, VANILLA, machine};
use crate::vcpu::Processors;
use std::sync::Arc;

/// A new file of 8 GiB is read in sequence by blocks of 32 KiB, as [`SEQUENTIAL`] does it past
/// the cache; no run comes to its end.
const READER: &str = "ram=512MiB,app=fio:rw=read,bs=32KiB,size=8GiB,io_size=1TiB";

/// So many VMs, each with a compute task on each vCPU and a reader, under a policy for vCPUs.
fn cell(count: usize, vcpu: &str, options: &Options) -> Cell {
    let name = format!("{count} VMs, {} on SSD through the page cache", SEQUENTIAL.name);
    let Scene { settle, measured, .. } =
        Scene::new(String::new(), Disk::Ssd, machine(CORES, Vec::new()), options);
    let vm = |n: usize| format!("name=vm{},vcpus={CORES},{READER}", n + 1);
    let vms = (0..count).map(vm).collect();
    let processors = Some(Processors { guests_compute: true, ..Processors::new(CORES) });
    let scenario = Scenario::new(name, vms, Disk::Ssd.device()).measured(settle, measured);
    let scenario = Arc::new(Scenario { processors, ..scenario });
    Cell { vcpu: Some(vcpu.into()), ..Cell::new(scenario, Disk::Ssd.policy()) }
}

pub(super) fn cached_cells(options: &Options) -> Vec<Cell> {
    let of = |count| [VANILLA, PAPER, OURS].map(|policy| cell(count, policy, options));
    COUNTS.into_iter().flat_map(of).collect()
}

pub(super) fn cached_judge(options: &Options, results: &Results, findings: &mut Findings) {
    for count in COUNTS {
        let vanilla = cell(count, VANILLA, options);
        let base = results.each_of(&vanilla, bandwidth);
        findings.rows.extend([PAPER, OURS].map(|policy| {
            let ours = results.each_of(&cell(count, policy, options), bandwidth);
            let name = format!("{}: {policy} over vanilla", vanilla.scenario.name);
            Row::measured(
                name,
                &over(&ours, &base),
                "×",
                format!("vanilla {:.0} MiB/s", mean(&base)),
            )
        }));
    }
}
