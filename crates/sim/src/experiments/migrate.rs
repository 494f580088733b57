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
    Experiment::new("inactivity", inactivity::inactivity_cells, inactivity::inactivity_judge),
    Experiment::new("migrate-scale", scale::scale_cells, scale::scale_judge),
    Experiment::new("migrate-cost", cost::cost_cells, cost::cost_judge),
    Experiment::new("migrate-vary", vary::vary_cells, vary::vary_judge),
    Experiment::new("migrate-fair", fair::fair_cells, fair::fair_judge),
    Experiment::new("migrate-ablation", ablation::ablation_cells, ablation::ablation_judge),
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
