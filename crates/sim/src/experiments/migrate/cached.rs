//! Variants of migrate-scale whose I/O task reads through a guest's page cache, with the guest's
//! read-ahead. Nobody's claim: SysBench's files are opened as its flags say, which the paper does not.

use super::super::{Cell, Findings, Options, Results, Row, Scenario, Ways};
use super::super::{Key, metric::bandwidth};
use super::load::{CORES, COUNTS, Disk, OURS, PAPER, SEQUENTIAL, Scene, VANILLA, machine};
use crate::vcpu::Processors;
use std::sync::Arc;

const POLICIES: [&str; 3] = [VANILLA, PAPER, OURS];
/// A new file of 8 GiB is read in sequence by blocks of 32 KiB, as [`SEQUENTIAL`] does it past
/// the cache; no run comes to its end.
const READER: &str = "ram=512MiB,app=fio:rw=read,bs=32KiB,size=8GiB,io_size=1TiB";

/// So many VMs, each with a compute task on each vCPU and a reader.
struct Cached {
    scenario: Scenario,
}

fn cached(count: usize, options: &Options) -> Cached {
    let name = format!("{count} VMs, {} on SSD through the page cache", SEQUENTIAL.name);
    let Scene { settle, measured, .. } =
        Scene::new(String::new(), Disk::Ssd, machine(CORES, Vec::new()), options);
    let vm = |n: usize| format!("name=vm{},vcpus={CORES},{READER}", n + 1);
    let vms = (0..count).map(vm).collect();
    let processors = Some(Processors { guests_compute: true, ..Processors::new(CORES) });
    let scenario = Scenario::new(name, vms, Disk::Ssd.device()).measured(settle, measured);
    Cached { scenario: Scenario { processors, ..scenario } }
}

impl Ways for Cached {
    type Way<'a> = &'a str;
    fn key(&self, vcpu: &str) -> Key {
        let policy = Disk::Ssd.policy().into();
        Key {
            scenario: self.scenario.name.clone(),
            policy,
            prefetch: None,
            vcpu: Some(vcpu.into()),
        }
    }
}

pub(super) fn cached_cells(options: &Options) -> Vec<Cell> {
    let of = |count| {
        let scenario = Arc::new(cached(count, options).scenario);
        POLICIES.map(|policy| {
            let cell = Cell::new(scenario.clone(), Disk::Ssd.policy());
            Cell { vcpu: Some(policy.into()), ..cell }
        })
    };
    COUNTS.into_iter().flat_map(of).collect()
}

pub(super) fn cached_judge(options: &Options, results: &Results, findings: &mut Findings) {
    for count in COUNTS {
        let cached = cached(count, options);
        findings.rows.extend([PAPER, OURS].map(|policy| {
            let values = results.ratio(&cached, (policy, VANILLA), bandwidth);
            let name = format!("{}: {policy} over vanilla", cached.scenario.name);
            let why = format!("vanilla {:.0} MiB/s", results.mean(&cached, VANILLA, bandwidth));
            Row::measured(name, &values, "×", why)
        }));
    }
}
