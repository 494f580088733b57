//! The Pregather paper's evaluation (section VI) and what experiments.md adds.
//!
//! Common to all: the 7200 rpm 1 TB disk, images of 12 GB one after the other
//! from sector 1.2832·10⁹ (figure 1 of the paper), noop and Linux read-ahead
//! in the guests, queue depth 1 at the disk, closed loops. Beside the paper's
//! figures stand its literal form, guests behind Xen's block ring and the CFQ
//! of Linux 2.6.18, and images as files of the host's ext3.

mod hadoop;
mod mix;
mod read;
mod seeks;
mod variations;
mod write;
mod zones;

use super::judge::count;
use super::{Experiment, Options, Row, Scenario, under};
use seekway_policy::units::Lba;

/// Where the paper's first image lies.
const PLACE: Lba = Lba::new(1_283_200_000);
const DISK: &str = "seagate-1tb-7200";

/// The guest beside the paper's figures: Xen's block ring has 32 requests of at most 11 pages.
/// The paper does not say how long a completion takes to the guest and back; 0.5 ms is a guess.
const XEN: &str = "max_request_kib=44,ring=32,latency=500us";
const XEN_NAME: &str = "Xen ring";

/// What decides table III: how much a guest keeps outstanding against the 512 KiB that are
/// coalesced. Name and guest's keys; the first is the paper's.
const GUESTS: [(&str, &str); 3] = [
    (XEN_NAME, XEN),
    ("128 requests of 128 KiB", "max_request_kib=128"),
    ("8 requests of 44 KiB", "max_request_kib=44,ring=8,latency=500us"),
];

/// The paper's algorithm to the letter, and ours.
const LITERAL: &str = "pregather:literal=true";
const OURS: &str = "pregather";
const AS: &str = "anticipatory";
/// The paper's host ran Linux 2.6.18. CFQ there has one queue for each VM, and takes every write
/// for one that nobody waits for: `cfq_queue_pid` compares the direction of a request with
/// `WRITE_SYNC`, which it never is (V. Tarasov's patch of 11 December 2006 mends it).
const CFQ: &str = "cfq:generation=2.6.18,sync_writes=false";
/// The same with the patch: writes of who waits for them are synchronous.
const CFQ_MENDED: &str = "cfq:generation=2.6.18";

/// Under a heavy load every request is past CFQ's deadlines of 125 and 250 ms, and EDF degrades
/// to a FIFO. The same policies with deadlines that fit such a load.
const PATIENT: &str = "pregather:sync_expire=1s,async_expire=2s";
const PATIENT_LITERAL: &str = "pregather:literal=true,sync_expire=1s,async_expire=2s";
const PATIENT_CFQ: &str =
    "cfq:generation=2.6.18,sync_writes=false,fifo_expire_sync=1s,fifo_expire_async=2s";
const PATIENT_AS: &str = "anticipatory:read_expire=1s,write_expire=2s";

/// One zone over the whole disk: the fine timer never waits, what is left is the turns.
const ONE_ZONE: &str = "pregather:zone=4000000000";
const ONE_ZONE_LITERAL: &str = "pregather:literal=true,zone=4000000000";

/// How rows call a policy.
fn label(policy: &str) -> &str {
    match policy {
        LITERAL => "literal form",
        OURS => "corrected form",
        CFQ => "cfq",
        CFQ_MENDED => "cfq with synchronous writes",
        PATIENT => "corrected form with deadlines of 1 and 2 s",
        PATIENT_LITERAL => "literal form with deadlines of 1 and 2 s",
        PATIENT_CFQ => "cfq with deadlines of 1 and 2 s",
        PATIENT_AS => "anticipatory with deadlines of 1 and 2 s",
        ONE_ZONE => "corrected form with one zone",
        ONE_ZONE_LITERAL => "literal form with one zone",
        other => other,
    }
}

pub(super) static EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "pregather-b",
        summary: "two sequential readers in one VM, zone size B from 1 to 10^7 sectors",
        source: "Pregather, section VI-A, figure 4",
        assumes: "1 GiB a reader, 16 threads each, 16 KiB blocks, read-ahead 128 KiB; guests behind Xen's ring (32 requests of 44 KiB), 0.5 ms from a completion to the guest and back; images as files of the host's ext3, preallocated, its log in the middle of the disk; to CFQ no write is synchronous, as in 2.6.18",
        cells: zones::cells,
        judge: zones::judge,
    },
    Experiment {
        name: "pregather-mix",
        summary: "pairs of sequential and random readers and writers in one VM",
        source: "Pregather, section VI-A, table III",
        assumes: "sequential work 1 GiB, random work 10,000 requests of 16 KiB (sysbench's default), fsync every 100 random writes, ordered journal; guests as in pregather-b",
        cells: mix::cells,
        judge: mix::judge,
    },
    Experiment {
        name: "pregather-read",
        summary: "three VMs: SR+SR, SR+RR, RR+RR",
        source: "Pregather, section VI-B1, figure 5 and table IV",
        assumes: "SR 1 GiB, RR 10,000 requests of 16 KiB, 16 threads each; guests as in pregather-b, as variants with requests of 48, 64 and 128 KiB and images as parts of the disk; total bandwidth is the sum of the VMs' means over their own times",
        cells: read::cells,
        judge: read::judge,
    },
    Experiment {
        name: "pregather-sensitivity",
        summary: "pregather-read with one thing varied at a time: coalescing, drive, latency, model, slice, every correction",
        source: "experiments.md (Pregather, Accept)",
        assumes: "as pregather-read, guests behind Xen's ring",
        cells: variations::cells,
        judge: variations::judge,
    },
    Experiment {
        name: "pregather-write",
        summary: "three VMs: SW+SW, SW+RW, RW+RW",
        source: "Pregather, section III, figure 1(b)",
        assumes: "SW 1 GiB, RW 10,000 requests of 16 KiB with fsync every 100, ordered journal; guests as in pregather-b",
        cells: write::cells,
        judge: write::judge,
    },
    Experiment {
        name: "pregather-hadoop",
        summary: "a MapReduce sort in four VMs, with and without a TPC-H-like VM",
        source: "Pregather, section VI-B2, figures 6 to 8",
        assumes: "one physical machine: 8 maps and 2 reducers a VM over 512 MiB of input (2 maps with TPC-H); no network; guests as in pregather-b",
        cells: hadoop::cells,
        judge: hadoop::judge,
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
        assumes: "64 KiB sequential and 4 KiB random reads, one at a time, no think time; images as parts of the disk",
        cells: variations::sync_cells,
        judge: variations::sync_judge,
    },
];

/// A row of ratios that the paper says are above 1, without a figure.
fn above(name: impl Into<String>, ratios: &[f64], why: &str) -> Row {
    Row::measured(name, ratios, "×", why).ordered(count(ratios, |r| r > 1.0), ratios.len())
}

/// The same of ratios that it says are below 1.
fn below(name: impl Into<String>, ratios: &[f64], why: &str) -> Row {
    Row::measured(name, ratios, "×", why).ordered(count(ratios, |r| r < 1.0), ratios.len())
}

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

/// Three VMs with two applications each, S+S, S+R and R+R; `guest` is what their VM keys say.
fn three_vms(guest: &str, s: &str, r: &str) -> Vec<String> {
    [(1, s, s), (2, s, r), (3, r, r)].map(|(n, a, b)| format!("name=vm{n},{guest},{a},{b}")).into()
}

/// The read experiment's VMs: SR+SR, SR+RR, RR+RR.
fn read_vms(guest: &str, options: &Options) -> Vec<String> {
    three_vms(guest, &sequential("SR", options), &random("RR", options))
}

/// A scenario on the paper's disk, with images as files.
fn scenario(name: impl Into<String>, vms: Vec<String>) -> Scenario {
    Scenario { files: true, ..on_parts(name, vms) }
}

/// The same with images as parts of the disk.
fn on_parts(name: impl Into<String>, vms: Vec<String>) -> Scenario {
    Scenario { place: PLACE, ..Scenario::new(name, vms, DISK) }
}

/// What is behind the name of a scenario whose images are parts of the disk.
const ON_PARTS: &str = "images as parts of the disk";

#[cfg(test)]
mod tests {
    use super::super::testing::{findings, options, run};
    use super::super::{Extras, Verdict};
    use super::*;

    /// The judges ask only for what is listed, whatever the runs gave, and what they judge by the
    /// paper is the literal form or a baseline, in one claim.
    #[test]
    fn each_row_that_is_judged_is_of_one_claim() {
        let claims = include_str!("../../../../docs/experiments/claims.toml");
        let options = options(1000);
        let made = run(&read::cells(&options)[0]);
        for experiment in EXPERIMENTS {
            let findings = findings(experiment, &options, Extras::default(), |_| made.clone());
            assert!(!findings.rows.is_empty(), "{}", experiment.name);
            for row in findings.rows {
                let claimed = claims.matches(&format!("\"{}\"", row.name)).count();
                let judged = row.paper.is_some() || row.verdict != Verdict::Measured;
                assert!(claimed <= 1 && (claimed == 1 || !judged), "{}: {claimed}", row.name);
                assert!(!judged || !row.name.contains("corrected form"), "{}", row.name);
            }
        }
    }
}
