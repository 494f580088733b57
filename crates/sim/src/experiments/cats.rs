//! The CATS paper's evaluation and the throttle's (experiments.md, CATS and the
//! throttle).
//!
//! Common to all that run a load: one guest with SURGE-like processes on a
//! Cheetah 15K.4, closed loop, each request with its process's tag (the
//! paper's scheduler ran under the processes themselves, and CFQ's queues are
//! theirs). `cheetah-15k4` is the detailed disk and stands for the paper's real
//! drive, `linear-15k4` for what its throttle made of a virtual one.

mod caches;
mod fit;
mod measures;
mod paper;
mod rank;
mod shadow;
mod sweep;
mod table;

use super::{Experiment, Options, Scenario, under};

/// The detailed disk. It reads 64 sectors ahead before another command cuts in:
/// what the paper takes its drive to do. `CUT_SHORT` does not.
const DISK: &str = "cheetah-15k4:read_ahead_min=64";
/// The profile as it stands: the next command ends the read-ahead at once.
const CUT_SHORT: &str = "cheetah-15k4";
/// The paper's model of it.
const LINEAR: &str = "linear-15k4";
/// CFQ as the paper's kernel had it.
const CFQ: &str = "cfq:generation=2.6.30";
/// CATS as in the paper, the literal form; our default is `busdriver=auto`.
const CATS_7: &str = "cats:busdriver=7ms";
const CATS_0: &str = "cats:busdriver=0";
/// Of the 50,000 requests of the paper's run under CATS, the drive's actual hits: 31,949.
const HITS_PERCENT: f64 = 63.9;

pub(super) static EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "table-example",
        summary: "the table's order for a head at 100 and requests at 20, 82, 120, 200",
        source: "CATS, section 2.2, table 1",
        assumes: "time is distance, all four requests wait from the start, no cache, no busdriver delay",
        cells: |_| Vec::new(),
        judge: |_, _| table::judge(),
    },
    Experiment {
        name: "cats-direct",
        summary: "50 processes read files page by page with O_DIRECT",
        source: "CATS, section 6, table 2",
        assumes: "closed loop of 50 processes with one request each and a sleep of Pareto(1.5, 2 ms) after each page; one command at a time at the disk; drive cache of 64 FIFO segments of 221 sectors, 64 read ahead whatever comes, hits reading on in their own segment; files over the whole disk, noatime; coalescing up to 512 KiB; CFQ with a queue for each process",
        cells: |options| paper::direct().cells(options),
        judge: |_, results| paper::direct().judge(results),
    },
    Experiment {
        name: "cats-buffered",
        summary: "the same through a page cache of 65 MB",
        source: "CATS, section 6, table 3",
        assumes: "as cats-direct; guest read-ahead of 128 KiB, page cache of 62 MiB; 200,000 pages, which are some 22,000 requests to the disk",
        cells: |options| paper::buffered().cells(options),
        judge: |_, results| paper::buffered().judge(results),
    },
    Experiment {
        name: "cats-shadow",
        summary: "predicted against actual hits of the drive's cache, where it differs from the shadow",
        source: "CATS, section 6",
        assumes: "as cats-direct; the shadow has 64 FIFO segments of which each command takes one, the drive what the row says: the paper does not know its own drive's rules",
        cells: shadow::cells,
        judge: shadow::judge,
    },
    Experiment {
        name: "cats-sweep",
        summary: "busdriver delay and READDELAY at 8 and 50 processes, drive caches FIFO, LRU and none",
        source: "experiments.md (CATS)",
        assumes: "as cats-direct with 10,000 requests a run",
        cells: sweep::cells,
        judge: sweep::judge,
    },
    Experiment {
        name: "cats-caches",
        summary: "40 drive caches: does any give the paper's ratios with its hits?",
        source: "CATS, section 6, table 2",
        assumes: "as cats-direct with 10,000 requests a run; drive caches of 8 to 64 segments of 221 sectors, FIFO and LRU, with no read-ahead or 64 or 221 sectors of it, kept or cut short by the next command; the shadow as in the paper, whatever the drive",
        cells: caches::cells,
        judge: caches::judge,
    },
    Experiment {
        name: "vpt-rank",
        summary: "the throttle's linear model as a prediction of the detailed disk",
        source: "CATS, section 6, tables 2 and 3, virtual against real",
        assumes: "as cats-direct with 20,000 and cats-buffered with 80,000 pages a run; the line is fitted to 100,000 random reads of the disk without its cache, the cache to a few reads; k = 1, and 8 for the paper's form, where the device is eight times slower and nothing else is",
        cells: rank::cells,
        judge: rank::judge,
    },
    Experiment {
        name: "vpt-fit",
        summary: "the throttle's line recovered from random reads, and measured drives fitted",
        source: "CATS, section 5, figure 1",
        assumes: "100,000 random reads of a page, one at a time, cache off; measured drives from --drives",
        cells: |_| Vec::new(),
        judge: |options, _| fit::judge(options),
    },
];

/// How a load is laid out and run.
#[derive(Clone, Copy)]
struct Load {
    processes: u32,
    requests: u64,
    direct: bool,
    /// Keys of the guest.
    guest: &'static str,
    /// Further keys of the generator.
    surge: &'static str,
}

/// The paper's two workloads. The files are spread over the whole disk, as a
/// million of them were on the paper's, which was half as large.
const DIRECT: Load =
    Load { processes: 50, requests: 50_000, direct: true, guest: SPREAD, surge: ",fill=34" };
/// Pages, four or five of which make a request to the disk.
const BUFFERED: Load = Load { direct: false, requests: 200_000, guest: SMALL_CACHE, ..DIRECT };
const SPREAD: &str = "image=134GiB,atime=false";
/// 162 MiB of memory, of which the page cache cannot have 100: the paper's 65 MB.
const SMALL_CACHE: &str = "image=134GiB,atime=false,ram=162MiB";

impl Load {
    /// As `workload::generators::parse_vm` reads it.
    fn vm(&self, options: &Options) -> String {
        let Load { processes, direct, guest, surge, .. } = self;
        let requests = (self.requests / options.shrink).max(200);
        format!(
            "name=guest,tags=true,{guest},app=surge:processes={processes},requests={requests},\
             direct={direct}{surge}"
        )
    }
}

/// A scenario of one guest with that load.
fn scenario(name: impl Into<String>, load: &Load, device: &str, options: &Options) -> Scenario {
    Scenario::new(name, vec![load.vm(options)], device)
}

#[cfg(test)]
mod tests {
    use super::super::Extras;
    use super::super::testing::{findings, options, run};
    use super::*;

    /// Everything runs and is judged on a few requests: each row has a figure
    /// and a name of its own.
    #[test]
    fn every_row_has_a_figure() {
        for experiment in EXPERIMENTS {
            let findings = findings(experiment, &options(100), Extras::default(), run);
            for row in &findings.rows {
                assert!(row.ours.is_finite(), "{}: {row:?}", experiment.name);
            }
        }
    }
}
