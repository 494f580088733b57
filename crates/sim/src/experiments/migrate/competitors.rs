//! The competitors of figure 12 of the paper: applications that compute on each vCPU, read now
//! and then, and lose CPU time to the I/O task beside them. Part of migrate-cost.

use super::super::{Cell, Options, Results, Row};
use super::completions::papers;
use super::load::{
    CORES, Disk, HDFS, OURS, PAPER, Scene, VANILLA, VSLICER, Work, XBALLOON, bursts,
};
use super::measure::{machine, ratio};
use crate::metrics::RunResult;
use crate::vcpu::Load;

const POLICIES: [&str; 5] = [VANILLA, VSLICER, XBALLOON, PAPER, OURS];
/// Each reads so much and computes, on every vCPU; sizes and times are guesses.
const COMPETITORS: [Work; 3] = [
    // A block of its split in parts of 128 KiB, then sorting.
    Work { name: "TeraSort", load: bursts(128, true, 40, 8, 10_000, true) },
    // Lines are counted as they come.
    Work { name: "WordCount", load: bursts(64, true, 30, 16, 15_000, true) },
    // A file of some 64 KiB, then its scan.
    Work { name: "ClamAV", load: bursts(16, false, 15, 4, 3_000, true) },
];
/// "Almost would not delay": within this of vanilla's.
const UNDELAYED: f64 = 0.05;

/// Two VMs with HDFS, and with a competitor on each vCPU instead of what only computes.
fn scenes(options: &Options) -> [Scene; 3] {
    COMPETITORS.map(|work| {
        let scene = papers(&Scene::of(HDFS, Disk::Ssd, CORES, 2, options));
        scene.with(work.name, |machine| {
            let tasks = machine.vms.iter_mut().flat_map(|vm| &mut vm.tasks);
            tasks.filter(|task| task.load == Load::Compute).for_each(|task| task.load = work.load);
        })
    })
}

pub(super) fn competitor_cells(options: &Options) -> Vec<Cell> {
    scenes(options).iter().flat_map(|scene| POLICIES.map(|policy| scene.cell(policy))).collect()
}

/// Blocks of the competitors: their work is the faster, the more they have read.
fn work(r: &RunResult) -> f64 {
    let tasks = machine(r).vms.iter().flat_map(|vm| &vm.tasks);
    tasks.filter(|task| task.name != HDFS.name).map(|task| task.ios as f64).sum()
}

pub(super) fn competitor_rows(options: &Options, results: &Results) -> Vec<Row> {
    scenes(options).iter().flat_map(|scene| rows(results, scene)).collect()
}

/// Times for the same work: of the first policy over the second.
fn rows(results: &Results, scene: &Scene) -> Vec<Row> {
    let time = |policy, base| ratio(results, (scene, base), (scene, policy), work);
    let name = |policy: &str, base: &str| format!("{}: its time, {policy} over {base}", scene.name);
    let mut rows =
        vec![Row::value(name(PAPER, VANILLA), 1.0, &time(PAPER, VANILLA), "×", UNDELAYED)];
    for policy in [VSLICER, XBALLOON, OURS] {
        let why = "competitors of figure 12";
        rows.push(Row::measured(name(policy, VANILLA), &time(policy, VANILLA), "×", why));
    }
    for (slower, faster) in [(XBALLOON, VSLICER), (XBALLOON, PAPER), (VSLICER, PAPER)] {
        rows.push(Row::ordering(name(slower, faster), &time(slower, faster), 1.0, "×"));
    }
    rows
}
