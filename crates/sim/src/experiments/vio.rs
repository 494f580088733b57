//! The VIO-prefetching paper's evaluation (section 4) and what experiments.md
//! asks beside it.
//!
//! Common to all: eight solid-state drives in RAID 0; noop on the host; the
//! guests' own read-ahead of 128 KiB, and beside it the paper's protocol for
//! sequential readers (read-ahead off, O_DIRECT). The baseline has the same host
//! cache of 2 GiB as the prefetchers, and fetches nothing ahead. Runs have a fixed
//! length, of which two intervals pass before anything is measured, and throughput
//! is what the applications moved. Guests tag their processes. What is "as in the
//! paper" has its rules and no others, and it alone is set beside the paper's
//! figures, in its protocol where it names one; `vio` has its 0.5 s and 0.60 and our
//! corrections. See docs/experiments/vio.md.

mod ablation;
mod apps;
mod host;
mod interval;
mod load;
mod measure;
mod mixed;
mod room;
mod rows;
mod sequential;

use super::Experiment;
use load::{BUFFERED, SEQUENTIAL, cells};

pub(super) static EXPERIMENTS: &[Experiment] = &[
    Experiment::new("vio-vms", |o| cells(&sequential::vms(o), &SEQUENTIAL), sequential::vms_judge),
    Experiment::new(
        "vio-procs",
        |o| cells(&sequential::procs(o), &SEQUENTIAL),
        sequential::procs_judge,
    ),
    Experiment::new("vio-mixed-vms", |o| cells(&mixed::vms(o), &SEQUENTIAL), mixed::vms_judge),
    Experiment::new(
        "vio-mixed-procs",
        |o| cells(&mixed::procs(o), &SEQUENTIAL),
        mixed::procs_judge,
    ),
    Experiment::new(
        "vio-random",
        |o| cells(&mixed::random_loads(o), &mixed::RANDOM_COLUMNS),
        mixed::random_judge,
    ),
    Experiment::new("vio-apps", apps::apps_cells, apps::apps_judge),
    Experiment::new(
        "vio-ratio",
        |o| cells(&host::ratio_loads(o), &host::RATIO_COLUMNS),
        host::ratio_judge,
    ),
    Experiment::new(
        "vio-schedulers",
        |o| cells(&host::scheduler_loads(o), &BUFFERED),
        host::scheduler_judge,
    ),
    Experiment::new("vio-mix", |o| cells(&host::mix_loads(o), &BUFFERED), host::mix_judge),
    Experiment::new("vio-queues", |o| cells(&host::queue_loads(o), &BUFFERED), host::queue_judge),
    Experiment::new(
        "vio-interval",
        |o| cells(&interval::loads(o), &interval::columns()),
        interval::interval_judge,
    ),
    Experiment::new("vio-room", |o| cells(&room::room_loads(o), &room::COLUMNS), room::room_judge),
    Experiment::new(
        "vio-blend",
        |o| cells(&room::blend_loads(o), &room::BLEND_COLUMNS),
        room::blend_judge,
    ),
    Experiment::new("vio-ablation", ablation::ablation_cells, ablation::ablation_judge),
];

#[cfg(test)]
mod tests {
    use super::super::Extras;
    use super::super::testing::{findings, named, options, run};
    use super::*;

    /// The judges ask only for what is listed, whatever the runs gave.
    #[test]
    fn every_judge_finds_its_cells() {
        let options = options(1000);
        let made = run(&(named("vio-vms").cells)(&options)[0]);
        for experiment in EXPERIMENTS {
            let extra = Extras { policy: Some("fifo"), vcpu: None };
            let findings = findings(experiment, &options, extra, |_| made.clone());
            assert!(
                !findings.rows.is_empty() && !findings.figures.is_empty(),
                "{}",
                experiment.name
            );
            // The paper's figures are set beside its own rules only.
            let papers = findings.rows.iter().filter(|row| row.paper.is_some());
            for row in papers {
                let forms = ["the paper's rules and no others", "no prefetcher on the host"];
                let literal = forms.iter().any(|form| row.why.contains(form));
                assert!(literal, "{}: {row:?}", experiment.name);
            }
        }
    }

    /// Two intervals of three readers show it: continuous top-up is above the
    /// guest's own read-ahead, and the guest's larger window is too.
    #[test]
    fn readers_gain_where_the_array_has_room() {
        let findings = findings(named("vio-vms"), &options(2), Extras::default(), run);
        let row = |name: &str| {
            let found = findings.rows.iter().find(|row| row.name == name);
            found.unwrap_or_else(|| panic!("no row {name}")).ours
        };
        let ours = row("mean of all: vio, continuous");
        assert!(ours > 1.1, "{ours}");
        assert!(row("mean of all: guest's window 512 KiB") > 1.1);
        assert!(row("1 VMs: vio as in the paper, guest's read-ahead off") > 0.1);
    }
}
