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
    Experiment::new("table-example", |_| Vec::new(), |_, _| table::judge()),
    Experiment::new("cats-direct", |o| paper::direct().cells(o), |_, r| paper::direct().judge(r)),
    Experiment::new(
        "cats-buffered",
        |o| paper::buffered().cells(o),
        |_, r| paper::buffered().judge(r),
    ),
    Experiment::new("cats-shadow", shadow::cells, shadow::judge),
    Experiment::new("cats-sweep", sweep::cells, sweep::judge),
    Experiment::new("cats-caches", caches::cells, caches::judge),
    Experiment::new("vpt-rank", rank::cells, rank::judge),
    Experiment::new("vpt-fit", |_| Vec::new(), |o, _| fit::judge(o)),
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
