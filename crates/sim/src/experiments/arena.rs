//! The arena: every policy in every scene, and how far each is from the best.
//!
//! Scenes are data ([`scenes`], from `arena/scenes.toml`). A caller runs each scene's
//! VMs alone once ([`Scene::alone`]), the scene under every policy ([`Scene::cell`]),
//! takes the [`figures`] of each run, and has the [`scoreboard`].
//!
//! **Regret** of a policy in a scene and measure is its distance from the best of all
//! policies there, 0 to 1: how much less throughput, share or fairness it has, or how
//! much longer its latency is (1 - best / own). Time withheld is shown beside it and is
//! not a measure: it is a means, and what it costs is in the throughput.

mod measure;
mod read;
mod score;

pub use measure::{Alone, Figures, Judging, Measure, figures};
pub use score::{DOMINATES_BY, SceneResult, Score, devices, scoreboard};

use super::{Cell, Scenario, glob};
use serde::Deserialize;
use std::sync::Arc;

/// The scenes as they stand in the repository, with what each key means.
pub const SCENES: &str = include_str!("arena/scenes.toml");

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
    pub judging: Judging,
    pub scenario: Arc<Scenario>,
    /// The different loads of its VMs.
    kinds: Vec<String>,
    /// Which of them each VM has.
    kind_of: Vec<usize>,
}

impl Scene {
    /// The scene under a policy.
    pub fn cell(&self, policy: &str) -> Cell {
        Cell::new(self.scenario.clone(), policy)
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
            Cell::new(Arc::new(scenario), "noop")
        };
        self.kinds.iter().map(cell).collect()
    }

    /// What each VM has alone, from what each kind has.
    pub fn by_vm(&self, kinds: &[Alone]) -> Vec<Alone> {
        self.kind_of.iter().map(|&kind| kinds[kind]).collect()
    }
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
    use super::super::testing::run;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scene_is_read_once_under_its_name_and_builds() {
        let all = scenes("all", 1);
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
    fn patterns_choose_scenes() {
        let names = |p: &str| scenes(p, 1).into_iter().map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(names("nvme/flood,disk/demo"), ["nvme/flood", "disk/demo"]);
        assert!(names("*/flood").len() > 5 && names("nvme/*").len() > 8);
        assert!(names("nothing").is_empty());
    }

    /// No load ends before its run: an early end looks like a result.
    #[test]
    fn no_load_ends_early() {
        for scene in scenes("*/flood,disk/demo,disk-15k/web,sata/commits,nvme/bursts", 20) {
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
