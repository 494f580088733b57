//! The vMigrater paper's evaluation (sections 2.3 and 5) and what experiments.md asks
//! beside it: VMs whose vCPUs share processors, with a compute task on each vCPU and an
//! I/O task in each VM.
//!
//! "Not shared" is the same VMs on the same disk, each on processors of its own: what
//! the disk gives when no vCPU is ever away. The bound is the recorded share of the time
//! in which a VM has any vCPU running. The paper's figures are set beside its own rules only, on
//! its host (`completions.rs`). See docs/experiments/migrate.md.

mod ablation;
mod apps;
mod cached;
mod competitors;
mod completions;
mod cost;
mod fair;
mod inactivity;
mod load;
mod measure;
mod rows;
mod scale;
mod vary;

use super::Experiment;

pub(super) static EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "inactivity",
        summary: "two VMs on the cores of one: what an I/O task loses while its vCPU is away",
        source: "vMigrater, section 2.3, figure 2",
        assumes: "4 vCPUs on 4 cores, slices of 11 ± 0.3 ms; sequential reads of 32 KiB, one at a time, past the page cache; a compute task on each vCPU, on the paper's host on each but the first, which hears of completions; an NVMe drive under noop, a 7200 rpm disk under CFQ with slice_idle 8 ms",
        cells: inactivity::inactivity_cells,
        judge: inactivity::inactivity_judge,
    },
    Experiment {
        name: "migrate-scale",
        summary: "1 to 8 VMs on the processors of one, under each policy for vCPUs",
        source: "vMigrater, section 5.2, figures 8 to 10",
        assumes: "12 vCPUs on 12 processors, vCPU n of each VM on processor n; slices of 11 ± 0.3 ms, heartbeats of 5 µs, the stopper; completions on the vCPU that asked, on the paper's host on the first, which does nothing else; loads as in inactivity, sizes and CPU times of the applications are guesses",
        cells: scale::scale_cells,
        judge: scale::scale_judge,
    },
    Experiment {
        name: "migrate-cost",
        summary: "moves, inactivity, response, and what the compute tasks pay",
        source: "vMigrater, section 5.2, tables 2 and 3, figures 11 and 12",
        assumes: "the paper's host as in migrate-scale; two VMs, for inactivity four; inactivity is counted for each block read, for the paper's runs have a fixed work and these a fixed time",
        cells: cost::cost_cells,
        judge: cost::cost_judge,
    },
    Experiment {
        name: "migrate-vary",
        summary: "clients come: throughput over their number, and how soon it is back",
        source: "vMigrater, section 5.3, figures 13 and 14",
        assumes: "two VMs of 2 vCPUs on 2 processors, HDFS in each; a client computes 2 ms and sleeps 8; the paper's clients are in both VMs by halves; completions on the first vCPU beside its figures",
        cells: vary::vary_cells,
        judge: vary::vary_judge,
    },
    Experiment {
        name: "migrate-fair",
        summary: "VMs with 10:90 to 40:60 of the processors and equal shares of the disk",
        source: "vMigrater, section 5.4, figure 15",
        assumes: "as migrate-scale with two VMs; HDFS on a 7200 rpm disk under CFQ with slice_idle 8 ms, with and without a quota of 46 MiB/s for each VM",
        cells: fair::fair_cells,
        judge: fair::fair_judge,
    },
    Experiment {
        name: "migrate-ablation",
        summary: "what decides: stopper, completions, prediction, costs, detector, slices, and each part of ours",
        source: "experiments.md (vMigrater: what decides it)",
        assumes: "as migrate-scale with four and eight VMs; one thing changed at a time; all shares are of what the VMs have when nothing is shared and nothing is changed",
        cells: ablation::ablation_cells,
        judge: ablation::ablation_judge,
    },
];

#[cfg(test)]
mod tests {
    use super::super::testing::{findings, options, run};
    use super::super::{Extras, cells};
    use super::*;

    /// The judges ask only for what is listed, whatever the runs gave.
    #[test]
    fn every_judge_finds_its_cells() {
        let options = options(1000);
        let further = Extras { policy: Some("fifo"), vcpu: Some("vanilla:again") };
        for experiment in EXPERIMENTS {
            let all = cells(experiment, &options, further);
            let first = all.iter().find(|cell| cell.vcpu.as_deref() == Some("vanilla"));
            let made = run(first.expect("one"));
            let findings = findings(experiment, &options, further, |_| made.clone());
            for name in [": fifo against", ": vanilla:again against vanilla"] {
                assert!(
                    findings.rows.iter().any(|r| r.name.contains(name)),
                    "a policy more: {name}"
                );
            }
            assert!(!findings.figures.is_empty(), "{}", experiment.name);
            // The paper's figures are set beside its own rules only, and beside vanilla, on its
            // host.
            for row in findings.rows.iter().filter(|row| row.paper.is_some()) {
                let ours = row.name.ends_with("vmigrater") || row.name.contains("ours");
                let means_of_cost = row.name.contains("applications: ");
                let hosts = ["the paper's host", "kept free", "on the first vCPU"];
                let papers = means_of_cost || hosts.iter().any(|host| row.name.contains(host));
                assert!(!ours && papers, "{}: {row:?}", experiment.name);
            }
        }
    }
}
