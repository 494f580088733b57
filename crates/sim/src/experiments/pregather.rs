//! The Pregather paper's evaluation (section VI) and what experiments.md adds.
//!
//! Common to all: the 7200 rpm 1 TB disk, images of 12 GB one after the other
//! from sector 1.2832·10⁹ (figure 1 of the paper), noop and Linux read-ahead
//! in the guests, queue depth 1 at the disk, closed loops.

mod mix;
mod read;
mod variations;
mod write;

use super::{Experiment, Options, Scenario, under};
use seekway_policy::units::Lba;

/// Where the paper's first image lies.
const PLACE: Lba = Lba::new(1_283_200_000);
const DISK: &str = "seagate-1tb-7200";
/// The ablation that decides several rows: under a heavy load every request is
/// past CFQ's deadlines of 125 and 250 ms, and EDF degrades to a FIFO.
const PATIENT: &str = "pregather:sync_expire=1s,async_expire=2s";

pub(super) static EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "pregather-b",
        summary: "two sequential readers in one VM, zone size B from 1 to 10^7 sectors",
        source: "Pregather, section VI-A, figure 4",
        assumes: "1 GiB a reader, 16 threads each, 16 KiB blocks, guest requests of 128 KiB, read-ahead 128 KiB, 0.5 ms from a completion to the guest and back",
        cells: mix::b_cells,
        judge: mix::b_judge,
    },
    Experiment {
        name: "pregather-mix",
        summary: "pairs of sequential and random readers and writers in one VM",
        source: "Pregather, section VI-A, table III",
        assumes: "sequential work 1 GiB, random work 10,000 requests of 16 KiB (sysbench's default), fsync every 100 random writes, guest requests of 128 KiB, ordered journal",
        cells: mix::mix_cells,
        judge: mix::mix_judge,
    },
    Experiment {
        name: "pregather-read",
        summary: "three VMs: SR+SR, SR+RR, RR+RR",
        source: "Pregather, section VI-B1, figure 5 and table IV",
        assumes: "SR 1 GiB, RR 10,000 requests of 16 KiB, 16 threads each; guest requests of 48, 64 and 128 KiB; total bandwidth is the sum of the VMs' means over their own times",
        cells: read::cells,
        judge: read::judge,
    },
    Experiment {
        name: "pregather-sensitivity",
        summary: "pregather-read with one thing varied at a time: coalescing, drive, latency, model, slice, every correction",
        source: "experiments.md (Pregather, Accept)",
        assumes: "as pregather-read with guest requests of 128 KiB",
        cells: variations::cells,
        judge: variations::judge,
    },
    Experiment {
        name: "pregather-write",
        summary: "three VMs: SW+SW, SW+RW, RW+RW",
        source: "Pregather, section III, figure 1(b)",
        assumes: "SW 1 GiB, RW 10,000 requests of 16 KiB with fsync every 100, ordered journal, guest requests of 128 KiB",
        cells: write::write_cells,
        judge: write::write_judge,
    },
    Experiment {
        name: "pregather-hadoop",
        summary: "a MapReduce sort in four VMs, with and without a TPC-H-like VM",
        source: "Pregather, section VI-B2, figures 6 to 8",
        assumes: "one physical machine: 8 maps and 2 reducers a VM over 512 MiB of input (2 maps with TPC-H); no network",
        cells: write::hadoop_cells,
        judge: write::hadoop_judge,
    },
    Experiment {
        name: "pregather-memory",
        summary: "memory of the policy in the read experiment",
        source: "Pregather, section VI-C, figure 9",
        assumes: "as pregather-read; the scheduler's own state, models included, at the end of the run",
        cells: read::memory_cells,
        judge: read::memory_judge,
    },
    Experiment {
        name: "pregather-sync",
        summary: "one synchronous O_DIRECT reader in each of three VMs",
        source: "experiments.md (Pregather, Accept)",
        assumes: "64 KiB sequential and 4 KiB random reads, one at a time, no think time",
        cells: variations::sync_cells,
        judge: variations::sync_judge,
    },
];

/// Work of a sequential sysbench run.
fn sequential(mode: &str, options: &Options) -> String {
    let mib = (1024 / options.shrink).max(16);
    format!("app=sysbench:mode={mode},size={mib}MiB")
}

/// Work of a random sysbench run over 1 GiB of files.
fn random(mode: &str, options: &Options) -> String {
    let requests = (10_000 / options.shrink).max(100);
    format!("app=sysbench:mode={mode},requests={requests}")
}

/// Three VMs with two applications each; `guest` is what their VM keys say.
fn three_vms(guest: &str, apps: [[String; 2]; 3]) -> Vec<String> {
    let vm = |(n, [a, b]): (usize, [String; 2])| format!("name=vm{},{guest},{a},{b}", n + 1);
    apps.into_iter().enumerate().map(vm).collect()
}

/// The read experiment's VMs: SR+SR, SR+RR, RR+RR.
fn read_vms(guest: &str, options: &Options) -> Vec<String> {
    let (s, r) = (sequential("SR", options), random("RR", options));
    three_vms(guest, [[s.clone(), s.clone()], [s, r.clone()], [r.clone(), r]])
}

/// A scenario on the paper's disk.
fn scenario(name: impl Into<String>, vms: Vec<String>) -> Scenario {
    Scenario { place: PLACE, ..Scenario::new(name, vms, DISK) }
}
