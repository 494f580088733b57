//! The arena: every policy in every scene, and how far each is from the best.
//!
//! Scenes are data ([`scenes`], from `arena/scenes.toml`), or drawn from a seed ([`drawn`]).
//! Those with a group are the everyday ones; they have a scoreboard of their own.
//! A caller runs each scene's
//! VMs alone once ([`Scene::alone`]), the scene under every policy ([`Scene::cell`]),
//! takes the [`figures`] of each run, and has the [`scoreboard`].
//!
//! **Regret** of a policy in a scene and measure is its distance from the best of all
//! policies there, 0 to 1: how much less throughput, share or fairness it has, or how
//! much longer its latency is (1 - best / own). Time withheld is shown beside it and is
//! not a measure: it is a means, and what it costs is in the throughput.

mod drawn;
mod measure;
mod read;
mod score;

pub use measure::{Alone, Figures, Judging, Measure, figures};
pub use read::Medium;
pub use score::{DOMINATES_BY, PARETO_STEPS, SceneResult, Score, devices, scoreboard};

use super::{Cell, Scenario, glob};
use serde::Deserialize;
use std::sync::Arc;

/// The scenes as they stand in the repository, with what each key means.
pub const SCENES: &str = include_str!("arena/scenes.toml");

/// As `serve` prefetches by default.
const PREFETCHER: &str = "vio:interval=continuous";

/// What throughput is counted in.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    #[default]
    MibS,
    Iops,
}

impl Unit {
    /// The unit as tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Unit::MibS => "MiB/s",
            Unit::Iops => "IOPS",
        }
    }
}

/// VMs on a device, and how a policy is judged there.
#[derive(Clone, PartialEq, Debug)]
pub struct Scene {
    /// Device and scene, such as `nvme/flood`.
    pub name: String,
    /// What happens, in a sentence.
    pub about: String,
    /// The device's name among the scenes: `nvme`.
    pub device: String,
    pub medium: Medium,
    /// Group of an everyday scene, such as `late`; none for the others.
    pub group: Option<String>,
    pub judging: Judging,
    pub scenario: Arc<Scenario>,
    /// Has the host a cache with the default prefetcher? Else it has no cache.
    prefetch: bool,
    /// Policies as an operator would set them for the device.
    set: Vec<String>,
    /// The different loads of its VMs.
    kinds: Vec<String>,
    /// Which of them each VM has.
    kind_of: Vec<usize>,
}

impl Scene {
    /// The scene under a policy, or under one of [`set_policies`].
    pub fn cell(&self, policy: &str) -> Cell {
        let peer = policy.strip_suffix(SET);
        let set = peer.and_then(|peer| self.set.iter().find(|spec| policy_of(spec) == peer));
        self.on_host(self.scenario.clone(), set.map_or(policy, String::as_str))
    }

    /// A run of each kind of VM without the others, under noop. Scenes on the same device
    /// share such runs: cells of equal VMs are equal.
    pub fn alone(&self) -> Vec<Cell> {
        let cell = |load: &String| {
            let scenario = Scenario {
                name: "alone".into(),
                vms: vec![format!("name=alone,{load}")],
                weights: Vec::new(),
                ..(*self.scenario).clone()
            };
            self.on_host(Arc::new(scenario), "noop")
        };
        self.kinds.iter().map(cell).collect()
    }

    fn on_host(&self, scenario: Arc<Scenario>, policy: &str) -> Cell {
        let prefetch = self.prefetch.then(|| PREFETCHER.to_string());
        Cell { prefetch, ..Cell::new(scenario, policy) }
    }

    /// What each VM has alone, from what each kind has.
    pub fn by_vm(&self, kinds: &[Alone]) -> Vec<Alone> {
        self.kind_of.iter().map(|&kind| kinds[kind]).collect()
    }
}

/// Follows the name of a policy that runs as the device's entry in `arena/scenes.toml` sets it.
const SET: &str = ", set";

/// The policies that the scenes' devices set, as [`Scene::cell`] takes them: `kyber, set`.
pub fn set_policies() -> Vec<String> {
    read::devices(SCENES)[0].set.iter().map(|spec| format!("{}{SET}", policy_of(spec))).collect()
}

/// The policy's name in its specification, or in one of [`set_policies`].
pub fn policy_of(spec: &str) -> &str {
    spec.split([':', ',']).next().unwrap_or(spec)
}

/// `count` scenes on the devices of the file that `seed` draws: the first ones are the same
/// whatever the count. Times are divided by `shrink`.
pub fn drawn(seed: u64, count: u32, shrink: u64) -> Vec<Scene> {
    let devices = read::devices(SCENES);
    let scene = |number| drawn::scene(seed, number, &devices, shrink);
    (1..=count).map(scene).collect()
}

/// As [`drawn`], everyday scenes: VMs come late, pause, read ahead and ask for much at once.
pub fn drawn_everyday(seed: u64, count: u32, shrink: u64) -> Vec<Scene> {
    let devices = read::devices(SCENES);
    let scene = |number| drawn::everyday(seed, number, &devices, shrink);
    (1..=count).map(scene).collect()
}

/// The scenes whose names match `pattern` (`*` stands for anything, commas separate
/// several), in the order of the file. Times are divided by `shrink`.
pub fn scenes(pattern: &str, shrink: u64) -> Vec<Scene> {
    let all = read::scenes(SCENES, shrink).expect("the scenes are part of the program");
    let wanted = |name: &str| {
        let mut patterns = pattern.split(',').map(str::trim);
        patterns.any(|p| p == "all" || glob(p.as_bytes(), name.as_bytes()))
    };
    all.into_iter().filter(|scene| wanted(&scene.name)).collect()
}

#[cfg(test)]
mod tests {
    mod peers;

    use super::super::testing::run;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scene_is_read_once_under_its_name_and_builds() {
        let mut all = scenes("all", 1);
        all.extend(drawn(20_261_127, 60, 1));
        all.extend(drawn_everyday(20_261_127, 60, 1));
        let names: BTreeSet<&str> = all.iter().map(|scene| scene.name.as_str()).collect();
        assert_eq!(names.len(), all.len(), "a name twice");
        let mut loads: Vec<(String, Vec<String>)> = Vec::new();
        for scene in &all {
            let load = (scene.scenario.device.clone(), scene.kinds.clone());
            if !loads.contains(&load) {
                super::super::run::check(&scene.cell("noop")).unwrap_or_else(|e| panic!("{e}"));
                loads.push(load);
            }
            assert!(
                !scene
                    .scenario
                    .vms
                    .iter()
                    .any(|vm| vm.contains("uniform") && !vm.contains("think="))
            );
        }
    }

    #[test]
    fn a_policy_that_is_set_runs_as_its_device_sets_it() {
        let set = set_policies();
        assert_eq!(set, ["iocost, set", "kyber, set", "bfq, set"]);
        for scene in scenes("*/flood", 1) {
            for policy in &set {
                let spec = scene.cell(policy).policy;
                assert!(spec.contains(':'), "{}: {policy} is not set: {spec}", scene.name);
                seekway_policy::schedulers::build(&spec).unwrap_or_else(|e| panic!("{e}"));
            }
            assert_eq!(scene.cell("kyber").policy, "kyber");
        }
    }

    #[test]
    fn a_seed_draws_the_same_scenes_each_time() {
        let first = drawn(7, 40, 1);
        assert_eq!(first, drawn(7, 40, 1));
        assert_eq!(first[..10], drawn(7, 10, 1));
        assert_ne!(first, drawn(8, 40, 1));
        let has = |of: &dyn Fn(&Scene) -> bool| first.iter().any(of) && !first.iter().all(of);
        assert!(has(&|scene| scene.judging.quiet.is_some()));
        assert!(has(&|scene| scene.judging.latency));
        assert!(has(&|scene| scene.medium == Medium::Flash));
        for scene in &first {
            let vms = scene.scenario.vms.len();
            assert!((2..=25).contains(&vms), "{}: {vms} VMs", scene.name);
        }
    }

    /// Figures in documents are of these scenes.
    #[test]
    fn the_published_draws_stay() {
        let line = |scene: &Scene| {
            let Scene { name, about, scenario, judging, .. } = scene;
            format!("{name} {about} {:?} {:?}\n", scenario.vms, judging.weights)
        };
        let text: String = drawn(20_261_127, 60, 1).iter().map(line).collect();
        let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
        assert_eq!(
            hash, 0x9d0d_722e_1c49_d0d1,
            "another seed's draws, or drawn otherwise: {hash:#x}"
        );
    }

    #[test]
    fn everyday_scenes_have_a_group_and_draw_who_comes_and_with_what() {
        let written: Vec<Scene> =
            scenes("all", 1).into_iter().filter(|scene| scene.group.is_some()).collect();
        let group = |scene: &Scene| scene.group.clone().expect("one");
        let groups: BTreeSet<String> = written.iter().map(group).collect();
        assert_eq!(Vec::from_iter(groups), ["late", "long", "pauses", "prefetch"]);
        for scene in &written {
            let group = format!("{}/{}-", scene.device, group(scene));
            assert!(scene.name.starts_with(&group), "{} is of {group}", scene.name);
        }
        let drawn = drawn_everyday(7, 60, 1);
        assert_eq!(drawn[..10], drawn_everyday(7, 10, 1));
        let has = |of: &dyn Fn(&Scene) -> bool| drawn.iter().any(of) && !drawn.iter().all(of);
        let quiet = |scene: &Scene, part: &str| scene.scenario.vms[0].contains(part);
        assert!(has(&|scene| quiet(scene, ",start=")) && has(&|scene| quiet(scene, "think=60us")));
        assert!(has(&|scene| scene.prefetch));
        assert!(has(&|scene| scene.scenario.vms[1].contains("size=65536KiB")));
    }

    #[test]
    fn a_late_vm_is_measured_from_when_it_comes_however_short_the_run() {
        for shrink in [1, 20] {
            let scene = scenes("sata/late-flood", shrink).remove(0);
            let come = format!(",start={}ns", scene.scenario.settle.get());
            assert!(scene.scenario.vms[0].ends_with(&come), "{}", scene.scenario.vms[0]);
            assert_eq!(scene.scenario.settle.get(), 2_000_000_000 / shrink);
        }
        let scene = scenes("sata/late-flood", 20).remove(0);
        let alone: Vec<Alone> = scene.alone().iter().map(|cell| Alone::of(&run(cell))).collect();
        assert!(alone[0].mib_s > 10.0, "{alone:?}");
    }

    #[test]
    fn scenes_of_prefetches_have_a_cache_alone_too_and_others_none() {
        let cached = |scene: &Scene| {
            let cells = [vec![scene.cell("noop")], scene.alone()].concat();
            cells.iter().map(|cell| cell.prefetch.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(cached(&scenes("sata-320/prefetch-readers", 1)[0]), [true; 3]);
        assert_eq!(cached(&scenes("sata-320/flood", 1)[0]), [false; 3]);
        let run = run(&scenes("sata-320/prefetch-readers", 20)[0].cell("noop"));
        assert!(run.host.is_some(), "the host has no cache");
    }

    #[test]
    fn patterns_choose_scenes() {
        let names = |p: &str| scenes(p, 1).into_iter().map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(names("nvme/flood,disk/demo"), ["nvme/flood", "disk/demo"]);
        assert!(names("*/flood").len() > 5 && names("nvme/*").len() > 8);
        assert!(names("nothing").is_empty());
    }

    /// No load ends before its run: an early end looks like a result.
    #[test]
    fn no_load_ends_early() {
        let some = "*/flood,disk/demo,disk-15k/web,sata/commits,nvme/bursts,sata/prefetch-*";
        for scene in scenes(some, 20) {
            let result = run(&scene.cell("noop"));
            assert!(!result.finished, "{}", scene.name);
            for vm in &result.vms {
                assert!(vm.ended.is_none(), "{}: {} ended", scene.name, vm.name);
            }
        }
    }

    #[test]
    fn a_quiet_vm_beside_a_flood_is_measured_against_its_run_alone() {
        let scene = scenes("nvme/flood", 4).remove(0);
        let kinds: Vec<Alone> = scene.alone().iter().map(|cell| Alone::of(&run(cell))).collect();
        assert_eq!(kinds.len(), 2);
        let alone = scene.by_vm(&kinds);
        let found = figures(&scene.judging, &run(&scene.cell("noop")), Some(&alone));
        let value = |measure| found.value(measure).unwrap();
        // As fairway.md has it: 21 times the latency alone, a twentieth of its rate.
        assert!((3_000.0..3_300.0).contains(&value(Measure::Throughput)), "{found:?}");
        assert!(value(Measure::P99) > 10.0, "{found:?}");
        assert!((0.02..0.3).contains(&value(Measure::WorstShare)), "{found:?}");
        assert!((0.4..0.8).contains(&value(Measure::Jain)), "{found:?}");
        assert_eq!(found.withheld, 0.0);
    }

    #[test]
    fn equal_vms_under_noop_are_served_alike() {
        let scene = scenes("sata/equal-10", 4).remove(0);
        let kinds: Vec<Alone> = scene.alone().iter().map(|cell| Alone::of(&run(cell))).collect();
        assert_eq!((kinds.len(), scene.by_vm(&kinds).len()), (1, 10));
        let run = run(&scene.cell("noop"));
        let found = figures(&scene.judging, &run, Some(&scene.by_vm(&kinds)));
        assert!(found.value(Measure::WorstShare).unwrap() > 0.95, "{found:?}");
        assert!(found.value(Measure::Jain).unwrap() > 0.98, "{found:?}");
        assert_eq!(found.value(Measure::Throughput), Some(run.iops()));
        // Forty requests on ten channels: each waits, and whoever waits longest counts.
        assert!((1.0..10.0).contains(&found.value(Measure::P99).unwrap()), "{found:?}");
    }
}
