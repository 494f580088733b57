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
    Experiment {
        name: "vmcd-fair-same",
        summary: "2 to 4 VMs with the same load: how far from equal bandwidths",
        source: "VMCD, section 4.2.1, figure 5",
        assumes: "closed loops without think time; reads of 512 B through the guests' page caches, for figure 6 has 31,700 a second; reads 8 ms from the disk, at which one VM has the 11.7 MiB/s of table 4(b); φ over the whole run, and the geometric mean of its ratios over 2 to 4 VMs",
        cells: fair::same_cells,
        judge: fair::same_judge,
    },
    Experiment {
        name: "vmcd-stable",
        summary: "3 VMs: bandwidth from second to second",
        source: "VMCD, section 4.2.1, figure 6",
        assumes: "as vmcd-fair-same; spans of one second, which the paper does not name; its text has 64 KiB random writes where its figure has sequential reads: both; stability is not judged where vmcd has less than half of CFQ's bandwidth (64 KiB reads)",
        cells: stable::stable_cells,
        judge: stable::stable_judge,
    },
    Experiment {
        name: "vmcd-fair-sizes",
        summary: "sequential readers of 512 B, 64 KiB and 512 KiB",
        source: "VMCD, section 4.2.2, figures 7 and 8, table 2",
        assumes: "as vmcd-fair-same; both mixes of table 2, as three and as four VMs; demands in φ are what each VM has alone",
        cells: fair::sizes_cells,
        judge: fair::sizes_judge,
    },
    Experiment {
        name: "vmcd-fair-demand",
        summary: "three VMs that ask for 10, 100 and 300 random reads of 64 KiB a second",
        source: "VMCD, section 4.2.2, figure 9, table 3",
        assumes: "weights of 1, for equation 5 has none; at a rate, what is late is made up for; the paper's VMs get up to 14 times their rates, so the same with so many outstanding beside it; demands in φ are the rates",
        cells: demand::cells_disk,
        judge: demand::judge_disk,
    },
    Experiment {
        name: "vmcd-bandwidth",
        summary: "aggregate bandwidth of 1 to 4 VMs with the same load",
        source: "VMCD, section 4.3.1, table 4, figure 10",
        assumes: "as vmcd-fair-same; for figure 10 the paper does not say whether the VMs read or write: both",
        cells: volume::bandwidth_cells,
        judge: volume::bandwidth_judge,
    },
    Experiment {
        name: "vmcd-art",
        summary: "mean response of three VMs with different demands",
        source: "VMCD, section 4.3.2, figure 11",
        assumes: "the paper does not say which demands: closed loops of different depths and open loops of different rates",
        cells: art::art_cells,
        judge: art::art_judge,
    },
    Experiment {
        name: "vmcd-real",
        summary: "file server, web server and OLTP at queue depths 1 to 256, and one of each",
        source: "VMCD, section 4.4, figures 12 to 14",
        assumes: "Iometer's access specifications of these names at their mean sizes, which the paper's remarks on sizes fit; random over 4 GiB, O_DIRECT; figures 12 and 13 as the geometric mean over five depths",
        cells: servers::real_cells,
        judge: servers::real_judge,
    },
    Experiment {
        name: "vmcd-ssd",
        summary: "three VMs that ask for 10, 100 and 300 random writes of 64 KiB a second on an SSD",
        source: "VMCD, section 4.5, figure 15",
        assumes: "as vmcd-fair-demand, on the model of the Intel 320",
        cells: demand::cells_ssd,
        judge: demand::judge_ssd,
    },
    Experiment {
        name: "vmcd-cpu",
        summary: "CPU time of the policy with 1 to 5 sequential readers",
        source: "VMCD, section 4.5, figure 16",
        assumes: "512 B reads, one at a time: the most requests a second; the policy alone in a loop, times the requests a second of the simulated run",
        cells: |options| load::cells(&cost::loads(options)),
        judge: cost::cpu_judge,
    },
    Experiment {
        name: "vmcd-flood",
        summary: "two quiet VMs and one with 64 requests outstanding: device time of each",
        source: "experiments.md (VMCD, Accept)",
        assumes: "the quiet VMs ask for the next block at once, one at a time; device time is what completions took of the device, holds left out",
        cells: |options| load::cells(&flood::loads(options)),
        judge: flood::flood_judge,
    },
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
