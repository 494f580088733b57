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
    Experiment {
        name: "vio-vms",
        summary: "1 to 12 VMs with a sequential reader each: prefetchers against the guest's read-ahead",
        source: "VIO-prefetching, section 4.3, figure 5(a)",
        assumes: "'as in the paper' is the paper's rules and no others, vio alone 0.5 s and 0.60 with our corrections; measured from 1 s on, two of its intervals; 64 KiB reads, one at a time, through the guest's page cache; files that do not end within the run; no time from guest to host (vio-room has some)",
        cells: |options| cells(&sequential::vms(options), &SEQUENTIAL),
        judge: sequential::vms_judge,
    },
    Experiment {
        name: "vio-procs",
        summary: "1 to 12 sequential processes in one VM",
        source: "VIO-prefetching, section 4.3, figure 5(b)",
        assumes: "as vio-vms; 12 vCPUs, 6 GB, a file for each process",
        cells: |options| cells(&sequential::procs(options), &SEQUENTIAL),
        judge: sequential::procs_judge,
    },
    Experiment {
        name: "vio-mixed-vms",
        summary: "12 VMs, of which 1 to 12 read in sequence and the others read and write at random",
        source: "VIO-prefetching, section 4.3, figure 5(c)",
        assumes: "as vio-vms; the others through their page caches with write-back; the readers' throughput alone counts",
        cells: |options| cells(&mixed::vms(options), &SEQUENTIAL),
        judge: mixed::vms_judge,
    },
    Experiment {
        name: "vio-mixed-procs",
        summary: "the same with 12 processes in one VM",
        source: "VIO-prefetching, section 4.3, figure 5(d)",
        assumes: "as vio-procs and vio-mixed-vms; readers and random processes are fio jobs of one guest",
        cells: |options| cells(&mixed::procs(options), &SEQUENTIAL),
        judge: mixed::procs_judge,
    },
    Experiment {
        name: "vio-random",
        summary: "guests that read and write at random only: what prefetching costs them",
        source: "experiments.md (VIO, Accept)",
        assumes: "as vio-mixed-vms in forms and times, without sequential readers; the baseline has the cache, a row has none",
        cells: |options| cells(&mixed::random_loads(options), &mixed::RANDOM_COLUMNS),
        judge: mixed::random_judge,
    },
    Experiment {
        name: "vio-apps",
        summary: "seven applications in 1 to 12 VMs: speed-up, accuracy, cost",
        source: "VIO-prefetching, section 4.4, figures 6 to 8",
        assumes: "forms and times as in vio-vms; in the room that the paper's VMs may have had (a ring of 32 requests of 44 KiB, 200 µs to the host, 400 MiB/s a disk); Filebench's personalities; Cloudstone, Wiki and Darwin as generators of ours (their files say what is a guess); eight workers without think time; FS, whose files are read and written whole, is measured for 4 s and held to our floor in the mean; data scaled down, page caches cold",
        cells: apps::apps_cells,
        judge: apps::apps_judge,
    },
    Experiment {
        name: "vio-ratio",
        summary: "eight VMs with four processes each, 0 to 100 % of them readers",
        source: "VIO-prefetching, section 4.4, figure 9",
        assumes: "forms and times as in vio-vms, room as in vio-apps; readers and writers go through files of their own in sequence, 64 KiB a call; written data counts when the guest's page cache has it",
        cells: |options| cells(&host::ratio_loads(options), &host::RATIO_COLUMNS),
        judge: host::ratio_judge,
    },
    Experiment {
        name: "vio-schedulers",
        summary: "Darwin under noop and CFQ in guest and host",
        source: "VIO-prefetching, section 4.4, figure 10",
        assumes: "forms and times as in vio-vms, room as in vio-apps; one VM of 8 vCPUs and 8 GB; CFQ in the guest is the host's with a queue for each process, on a disk that does not rotate, and merges nothing",
        cells: |options| cells(&host::scheduler_loads(options), &BUFFERED),
        judge: host::scheduler_judge,
    },
    Experiment {
        name: "vio-mix",
        summary: "eight VMs, of which 0 to 8 stream and the others are servers",
        source: "VIO-prefetching, section 4.4, figure 11",
        assumes: "forms and times as in vio-vms, room as in vio-apps; file server, web server, web proxy and database in turn, where the paper draws them; with two or more file servers measured for 4 s and held to our floor in the mean; bytes of all VMs are summed, so that the fast ones weigh most",
        cells: |options| cells(&host::mix_loads(options), &BUFFERED),
        judge: host::mix_judge,
    },
    Experiment {
        name: "vio-queues",
        summary: "Darwin and YCSB3 with queues of 128 and 8192 requests in guest and host",
        source: "VIO-prefetching, section 4.4, figure 12",
        assumes: "forms and times as in vio-vms, room as in vio-apps; one VM of 8 vCPUs and 8 GB; the guest's queue is nr_requests, the host's the commands that the array takes; YCSB3 is a guess (its generator says which)",
        cells: |options| cells(&host::queue_loads(options), &BUFFERED),
        judge: host::queue_judge,
    },
    Experiment {
        name: "vio-interval",
        summary: "2 to 16 VMs reading 1 MiB at a time: polling intervals of 0.25 to 2 s",
        source: "VIO-prefetching, section 4.2, figures 3 and 4",
        assumes: "forms as in vio-vms, room as in vio-apps, every interval under the paper's rules; measured from 4 s on, two of the longest intervals; files of 10 GB, one read at a time; each poll and each read since the last one cost the host's one thread time",
        cells: |options| cells(&interval::loads(options), &interval::columns()),
        judge: interval::interval_judge,
    },
    Experiment {
        name: "vio-room",
        summary: "one to six readers: the gain over how much of the array is in use",
        source: "VIO-prefetching, sections 4.3 and 4.4; what room is, is ours",
        assumes: "as vio-vms, behind the ring of Xen 4.1, with 200 µs to the host, with and without 400 MiB/s at most a disk; the paper gives none of these",
        cells: |options| cells(&room::room_loads(options), &room::COLUMNS),
        judge: room::room_judge,
    },
    Experiment {
        name: "vio-blend",
        summary: "one to eight readers on a turning disk, a drive and the array, without a prefetcher",
        source: "VIO-prefetching, section 2.2, figure 1",
        assumes: "as vio-room without a bound; the paper's turning disk is a Samsung Spinpoint M7, ours a Seagate of 7200 rpm; noop; its host has four cores, ours any number",
        cells: |options| cells(&room::blend_loads(options), &room::BLEND_COLUMNS),
        judge: room::blend_judge,
    },
    Experiment {
        name: "vio-ablation",
        summary: "what decides: time to the host, workers, CPU, stripe, host costs",
        source: "experiments.md (VIO: what decides it)",
        assumes: "three VMs as in vio-vms; one thing changed at a time, with six VMs beside six VMs as they are, with an application's workers beside all eight of them",
        cells: ablation::ablation_cells,
        judge: ablation::ablation_judge,
    },
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
                findings.rows.iter().any(|r| r.name.contains(": fifo against")),
                "a policy more"
            );
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
