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
const ONE_ZONE: &str = "pregather:zone=4000000000s";
const ONE_ZONE_LITERAL: &str = "pregather:literal=true,zone=4000000000s";

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
    Experiment::new("pregather-b", zones::cells, zones::judge),
    Experiment::new("pregather-mix", mix::cells, mix::judge),
    Experiment::new("pregather-read", read::cells, read::judge),
    Experiment::new("pregather-sensitivity", variations::cells, variations::judge),
    Experiment::new("pregather-write", write::cells, write::judge),
    Experiment::new("pregather-hadoop", hadoop::cells, hadoop::judge),
    Experiment::new("pregather-memory", read::memory_cells, read::memory_judge),
    Experiment::new("pregather-sync", variations::sync_cells, variations::sync_judge),
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
