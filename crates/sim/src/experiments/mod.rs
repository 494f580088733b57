//! The papers' experiments: named, repeatable, judged against the paper row by
//! row. An experiment lists [`Cell`]s (a load on a disk under a policy); the
//! caller runs each with each seed, in whatever order and on as many threads
//! as it likes; the experiment then judges the results.
//!
//! Nothing here draws, prints or knows of a terminal: figures are described by
//! [`Figure`] and drawn elsewhere.

pub mod arena;
mod extras;
mod figure;
mod judge;
mod metric;
mod migrate;
mod pregather;
mod results;
mod run;
mod together;
mod vio;
mod vmcd;

pub use extras::{Extras, cells, judge};
pub use figure::{BarSeries, Figure};
pub use judge::{Row, Verdict};
pub use results::{Key, Results, Ways};
pub use run::run_cell;
pub use together::scene_names;

use crate::engine::HostCosts;
use crate::scenario::CACHE_BYTES_DEFAULT;
use crate::vcpu::{MachineSpec, Processors};
use seekway_policy::units::{Lba, Nanos, Sectors};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

/// A load on a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// Unique within the experiment.
    pub name: String,
    /// VMs, each as `workload::generators::parse_vm` reads it.
    pub vms: Vec<String>,
    /// Profile of the disk, with its changes.
    pub device: String,
    /// Adjacent requests are coalesced up to this size.
    pub coalesce: Sectors,
    /// Where the first image begins; the others follow.
    pub place: Lba,
    /// Are the images files of the host's ext3, and not parts of the disk?
    pub files: bool,
    /// What is done before is not measured, if it is not zero.
    pub settle: Nanos,
    /// When the run ends, if not with its work; the time to settle is part of it.
    pub until: Option<Nanos>,
    /// Weights of the VMs; those missing are 1.
    pub weights: Vec<NonZeroU32>,
    /// Groups that VMs are in, as behind `--group`.
    pub groups: Vec<String>,
    /// Limits of the disks of `machine`'s VMs, as `DiskLimits::parse` reads them.
    pub limits: Vec<String>,
    /// The host cache of those of its cells that have a prefetcher.
    pub host: HostSetup,
    /// The VMs with their processors and tasks, instead of `vms`.
    pub machine: Option<MachineSpec>,
    /// The processors that the vCPUs of `vms` share, if they share any.
    pub processors: Option<Processors>,
}

/// A host cache, whichever prefetcher fills it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSetup {
    /// Bytes of data that it keeps at most.
    pub cache_bytes: u64,
    /// What it costs on the host.
    pub costs: HostCosts,
}

/// Adjacent requests are coalesced up to this in the papers' experiments: 512 KiB.
const COALESCE: Sectors = Sectors::new(1024);

impl Scenario {
    /// VMs on a disk from its first sector, to the end of their work, with
    /// everything measured.
    pub fn new(name: impl Into<String>, vms: Vec<String>, device: impl Into<String>) -> Scenario {
        Scenario {
            name: name.into(),
            vms,
            device: device.into(),
            coalesce: COALESCE,
            place: Lba::ZERO,
            files: false,
            settle: Nanos::ZERO,
            until: None,
            weights: Vec::new(),
            groups: Vec::new(),
            limits: Vec::new(),
            host: HostSetup::default(),
            machine: None,
            processors: None,
        }
    }

    /// The same for `measured`, after `settle`, which is not measured.
    fn measured(self, settle: Nanos, measured: Nanos) -> Scenario {
        Scenario { settle, until: Some(settle + measured), ..self }
    }
}

impl Default for HostSetup {
    fn default() -> Self {
        HostSetup { cache_bytes: CACHE_BYTES_DEFAULT, costs: HostCosts::default() }
    }
}

/// One run to be made, with every seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    pub scenario: Arc<Scenario>,
    /// Specification of the policy, as `schedulers::build` takes it.
    pub policy: String,
    /// With which prefetcher in the host cache (`none` is one); without a cache if none.
    pub prefetch: Option<String>,
    /// Is it about having no cache? Then nothing gives it one.
    pub bare: bool,
    /// Under which policy for vCPUs, on a machine; vanilla if none.
    pub vcpu: Option<String>,
}

impl Cell {
    /// A load under a policy, without a host cache of its own.
    pub fn new(scenario: Arc<Scenario>, policy: impl Into<String>) -> Cell {
        Cell { scenario, policy: policy.into(), prefetch: None, bare: false, vcpu: None }
    }

    /// The cell, with this prefetcher and a cache of this size unless it has its own
    /// or is to have none.
    pub fn or_prefetch(&self, prefetch: &str, cache_bytes: u64) -> Cell {
        let mut cell = self.clone();
        if cell.prefetch.is_none() && !cell.bare {
            let host = HostSetup { cache_bytes, ..cell.scenario.host };
            cell.scenario = Arc::new(Scenario { host, ..(*cell.scenario).clone() });
            cell.prefetch = Some(prefetch.to_string());
        }
        cell
    }
}

/// A scenario under each of some policies.
fn under(scenario: impl Into<Arc<Scenario>>, policies: &[impl AsRef<str>]) -> Vec<Cell> {
    let scenario = scenario.into();
    policies.iter().map(|p| Cell::new(scenario.clone(), p.as_ref())).collect()
}

/// How an experiment is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Divides the work of every application: 1 for the real thing.
    pub shrink: u64,
    /// CPU time of the calling thread, where the caller has a clock: this crate
    /// has none, and what a policy costs is measured only with one.
    pub cpu_clock: Option<fn() -> Nanos>,
    /// Of an experiment that has scenes, those whose names match (`*` stands for anything);
    /// all of them if none is given.
    pub scenes: Option<String>,
}

/// What an experiment found.
#[derive(Default)]
pub struct Findings {
    /// One for each claim that is judged, or figure that is measured.
    pub rows: Vec<Row>,
    /// What the reader should know: assumptions, findings.
    pub notes: Vec<String>,
    pub figures: Vec<Figure>,
}

/// The text about each experiment, by name.
static TEXTS: LazyLock<BTreeMap<String, Text>> = LazyLock::new(|| {
    toml::from_str(include_str!("experiments.toml")).expect("the texts are part of the program")
});

/// What `experiments.toml` says about an experiment.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    pub summary: String,
    /// Where it stands in the paper.
    pub source: String,
    /// What it assumes where the paper is silent.
    pub assumes: String,
}

pub struct Experiment {
    /// Its name for `experiment run`, as `pregather-read`.
    pub name: &'static str,
    /// What is to be run.
    pub cells: fn(&Options) -> Vec<Cell>,
    /// What came of it.
    pub judge: fn(&Options, &Results) -> Findings,
}

impl Experiment {
    const fn new(
        name: &'static str,
        cells: fn(&Options) -> Vec<Cell>,
        judge: fn(&Options, &Results) -> Findings,
    ) -> Experiment {
        Experiment { name, cells, judge }
    }

    pub fn text(&self) -> &'static Text {
        &TEXTS[self.name]
    }

    /// A hash (64-bit FNV-1a) of everything that the whole experiment runs: another one means
    /// that results of before are of other loads.
    pub fn loads(&self) -> u64 {
        let options = Options { shrink: 1, cpu_clock: None, scenes: None };
        let text = format!("{} {:?}", self.name, (self.cells)(&options));
        // What an experiment had before images could be files is still the same load.
        let text = text.replace(" files: false,", "");
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
    }
}

/// All experiments, in the order of `experiment list`.
pub static REGISTRY: LazyLock<Vec<&Experiment>> = LazyLock::new(|| {
    [
        pregather::EXPERIMENTS,
        vmcd::EXPERIMENTS,
        vio::EXPERIMENTS,
        migrate::EXPERIMENTS,
        together::EXPERIMENTS,
    ]
    .into_iter()
    .flatten()
    .collect()
});

/// The experiments whose names match `pattern` (`*` stands for anything, `all`
/// for all of them).
pub fn matching(pattern: &str) -> Vec<&'static Experiment> {
    let fits = |e: &&Experiment| pattern == "all" || glob(pattern.as_bytes(), e.name.as_bytes());
    REGISTRY.iter().copied().filter(fits).collect()
}

/// Does `name` match `pattern`, in which `*` stands for anything?
pub fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|n| glob(rest, &name[n..])),
        Some((c, rest)) => name.first() == Some(c) && glob(rest, &name[1..]),
    }
}

#[cfg(test)]
mod testing {
    use super::*;
    use crate::metrics::RunResult;

    pub(super) fn options(shrink: u64) -> Options {
        Options { shrink, cpu_clock: None, scenes: None }
    }

    pub(super) fn named(name: &str) -> &'static Experiment {
        matching(name)[0]
    }

    pub(super) fn run(cell: &Cell) -> RunResult {
        run_cell(cell, 1, &mut |_, _| true).expect("a run")
    }

    /// What an experiment judges when `run` gives what each cell has with both of
    /// two seeds. Every row has a name of its own, and every further policy has rows.
    pub(super) fn findings(
        experiment: &Experiment,
        options: &Options,
        extras: Extras<'_>,
        run: impl Fn(&Cell) -> RunResult,
    ) -> Findings {
        let mut results = Results::default();
        for cell in cells(experiment, options, extras) {
            let run = Arc::new(run(&cell));
            results.insert(&cell, vec![run.clone(), run]);
        }
        let findings = judge(experiment, options, extras, &results);
        let mut names: Vec<&str> = findings.rows.iter().map(|r| r.name.as_str()).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|w| w[0] == w[1]);
        assert_eq!(twice, None, "{}: a name twice", experiment.name);
        for policy in extras.policy.iter().chain(&extras.vcpu) {
            let further = format!(": {policy} against");
            assert!(names.iter().any(|name| name.contains(&further)), "{}", experiment.name);
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::testing::options;
    use super::*;
    use seekway_policy::{prefetchers, schedulers, vcpu};

    #[test]
    fn patterns_match_names() {
        let names = |p| matching(p).iter().map(|e| e.name).collect::<Vec<_>>();
        assert_eq!(names("pregather-read"), ["pregather-read"]);
        assert_eq!(names("pregather-*").len(), pregather::EXPERIMENTS.len());
        assert!(names("*-b").contains(&"pregather-b") && names("nothing").is_empty());
    }

    #[test]
    fn every_experiment_has_its_text() {
        let mut names: Vec<&str> = REGISTRY.iter().map(|e| e.name).collect();
        names.sort_unstable();
        assert!(TEXTS.keys().eq(&names));
    }

    /// A further policy runs in every experiment in which anything does.
    #[test]
    fn a_further_policy_is_run_and_judged_everywhere() {
        let options = options(1000);
        for experiment in REGISTRY.iter() {
            let nobodys = Extras { policy: Some("nobody's"), vcpu: Some("nobody's") };
            let own = cells(experiment, &options, Extras::default());
            let more = cells(experiment, &options, nobodys);
            assert!(!own.is_empty() && more.len() > own.len(), "{}", experiment.name);
        }
    }

    /// The hash of what is run is the same every time, and each experiment has its own.
    #[test]
    fn what_is_run_has_a_hash() {
        let loads = || REGISTRY.iter().map(|e| e.loads()).collect::<Vec<_>>();
        assert_eq!(loads(), loads());
        let mut each = loads();
        each.sort_unstable();
        each.dedup();
        assert_eq!(each.len(), loads().len());
    }

    /// No `--prefetch` gives a cache to a cell that is about having none.
    #[test]
    fn a_cell_without_a_cache_stays_without() {
        let options = options(1000);
        let random = matching("vio-random")[0];
        let given = (random.cells)(&options).into_iter().map(|c| c.or_prefetch("vio", 1 << 20));
        assert!(given.filter(|cell| cell.prefetch.is_none()).count() > 0);
        let read = (matching("pregather-read")[0].cells)(&options);
        assert!(
            !read.is_empty()
                && read.iter().all(|cell| cell.or_prefetch("vio", 1 << 20).prefetch.is_some())
        );
    }

    /// Every cell of every experiment can be built: loads parse, devices and
    /// policies exist, images fit.
    #[test]
    fn every_cell_builds() {
        let options = options(1);
        for experiment in REGISTRY.iter() {
            // A load once, under whatever: making its VMs is what takes long.
            let mut loads: Vec<Scenario> = Vec::new();
            let noop = Extras { policy: Some("noop"), vcpu: None };
            for cell in cells(experiment, &options, noop) {
                schedulers::build(&cell.policy).expect("a policy");
                cell.prefetch.iter().for_each(|p| drop(prefetchers::build(p).expect("one")));
                cell.vcpu.iter().for_each(|p| drop(vcpu::build(p).expect("one")));
                if loads.contains(&cell.scenario) {
                    continue;
                }
                let built = run::check(&cell);
                assert!(built.is_ok(), "{} {}: {:?}", experiment.name, cell.policy, built.err());
                loads.push((*cell.scenario).clone());
            }
        }
    }
}
