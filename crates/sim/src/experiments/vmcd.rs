//! The VMCD paper's evaluation (section 4) and what experiments.md adds.
//!
//! Beside the paper's figures stands its own form (`vmcd`) on its host as near as we have it: a
//! 7200 rpm SATA drive with native command queueing and its write cache on, guests of 512 MB with
//! Xen's ring, kernel 3.8's CFQ (`cfq`, the form of 4.x). The same loads run on a bare disk that
//! takes one command at a time without a write cache, where the order is the scheduler's alone;
//! those rows are measured, and there something is asked of `vmcd-time`.
//!
//! Common to all: images of 12 GB one after the other from the disk's beginning, each with a file
//! of 4 GiB; Iometer-like workers without think time, one request at a time unless said; runs of a
//! fixed time, bandwidth over the whole of it. The paper's "Mbps" are MiB/s.

mod art;
mod cost;
mod demand;
mod fair;
mod flood;
mod load;
mod measure;
mod servers;
mod stable;
mod volume;

use super::Experiment;

pub(super) static EXPERIMENTS: &[Experiment] = &[
    Experiment::new("vmcd-fair-same", fair::same_cells, fair::same_judge),
    Experiment::new("vmcd-stable", stable::stable_cells, stable::stable_judge),
    Experiment::new("vmcd-fair-sizes", fair::sizes_cells, fair::sizes_judge),
    Experiment::new("vmcd-fair-demand", demand::cells_disk, demand::judge_disk),
    Experiment::new("vmcd-bandwidth", volume::bandwidth_cells, volume::bandwidth_judge),
    Experiment::new("vmcd-art", art::art_cells, art::art_judge),
    Experiment::new("vmcd-real", servers::real_cells, servers::real_judge),
    Experiment::new("vmcd-ssd", demand::cells_ssd, demand::judge_ssd),
    Experiment::new("vmcd-cpu", |o| load::cells(&cost::loads(o)), cost::cpu_judge),
    Experiment::new("vmcd-flood", flood::flood_cells, flood::flood_judge),
];

#[cfg(test)]
mod tests {
    use super::super::testing::{findings, named, options, run};
    use super::super::{Cell, Extras, Scenario};
    use super::*;
    use seekway_policy::units::Nanos;
    use std::sync::Arc;

    /// The judges ask only for what is listed, whatever the runs gave: every
    /// cell gets the same run, with as many VMs as it has.
    #[test]
    fn every_judge_finds_its_cells() {
        let vms = (1..=5).map(|n| {
            format!("name=vm{n},app=fio:rw=randread,bs=4KiB,direct=true,size=1GiB,iodepth={n}")
        });
        let scenario = Scenario::new("any", vms.collect(), load::DISK);
        let scenario = scenario.measured(Nanos::ZERO, Nanos::from_secs(3));
        let made = run(&Cell::new(Arc::new(scenario), "cfq"));
        for experiment in EXPERIMENTS {
            let findings = findings(experiment, &options(1000), Extras::default(), |cell| {
                let mut run = made.clone();
                run.vms.truncate(cell.scenario.vms.len());
                run
            });
            assert!(!findings.rows.is_empty(), "{}", experiment.name);
            for row in &findings.rows {
                assert!(row.ours.is_finite(), "{}: {}: {}", experiment.name, row.name, row.ours);
            }
        }
    }

    /// Even half a second of a flood shows who has the device: the paper's form
    /// gives it to the flood, ours to all alike.
    #[test]
    fn a_flood_is_told_from_a_fair_share() {
        let findings = findings(named("vmcd-flood"), &options(1000), Extras::default(), run);
        let find = |policy: &str| {
            let name = format!("random readers, random flood: device time under {policy}, ");
            findings.rows.iter().find(|row| row.name.starts_with(&name)).expect("a row").ours
        };
        assert!(find("vmcd") > 30.0, "{}", find("vmcd"));
        assert!(find("vmcd-time") < 20.0, "{}", find("vmcd-time"));
    }
}
