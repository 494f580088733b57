//! `arena --format json`. Keys stay as they are.

use super::{Board, Outcome, Played};
use seekway_sim::experiments::arena::{Measure, Medium, Score};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Json<'a> {
    seeds: &'a [u64],
    /// The least mean regret first.
    scoreboard: Vec<ScoreJson<'a>>,
    scenes: Vec<SceneJson<'a>>,
    /// Scores of the everyday scenes of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    everyday: Option<BoardJson<'a>>,
    /// The same of the scenes that a seed drew.
    #[serde(skip_serializing_if = "Option::is_none")]
    drawn: Option<BoardJson<'a>>,
    /// Scores of the everyday scenes that a seed drew.
    #[serde(skip_serializing_if = "Option::is_none")]
    drawn_everyday: Option<BoardJson<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct BoardJson<'a> {
    scoreboard: Vec<ScoreJson<'a>>,
    scenes: Vec<SceneJson<'a>>,
}

/// Regrets from 0, as good as the best of all policies, to 1.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ScoreJson<'a> {
    policy: &'a str,
    mean_regret: f64,
    /// The largest less the least mean regret of a single seed, if there are several.
    spread: Option<f64>,
    /// Mean distance from the convex hull of all policies in throughput, worst share and p99.
    pareto: Option<f64>,
    worst_regret: f64,
    worst_scene: Option<&'a str>,
    worst_measure: Option<&'static str>,
    regret_by_measure: BTreeMap<&'static str, Option<f64>>,
    regret_by_device: BTreeMap<String, f64>,
    /// On solid-state drives (`flash`), volumes (`cloud`) and disks with a head (`disk`).
    regret_by_medium: BTreeMap<&'static str, Option<f64>>,
    /// In each group of everyday scenes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    regret_by_group: BTreeMap<&'a str, Option<f64>>,
    dominated_in: &'a [String],
    withheld: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SceneJson<'a> {
    scene: &'a str,
    about: &'a str,
    device: &'a str,
    /// Group of an everyday scene.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    /// Unit of throughput.
    unit: &'static str,
    /// Unit of the latencies: `alone` for factors of what the VM has alone, else `ms`.
    latency_unit: &'static str,
    policies: Vec<PolicyJson<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PolicyJson<'a> {
    policy: &'a str,
    #[serde(flatten)]
    values: BTreeMap<&'static str, Option<f64>>,
    withheld: f64,
    requests: f64,
    regret: BTreeMap<&'static str, Option<f64>>,
    mean_regret: f64,
    pareto: Option<f64>,
    /// Measured: differs from run to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ns: Option<f64>,
}

impl Json<'_> {
    pub(super) fn new(outcome: &Outcome) -> Json<'_> {
        let json = |board| BoardJson { scoreboard: scores(board), scenes: scenes(board) };
        let everyday = &outcome.everyday;
        Json {
            seeds: &outcome.seeds,
            scoreboard: scores(&outcome.written),
            scenes: scenes(&outcome.written),
            everyday: (!everyday.scenes.is_empty()).then(|| json(everyday)),
            drawn: outcome.drawn.as_ref().map(json),
            drawn_everyday: outcome.drawn_everyday.as_ref().map(json),
        }
    }
}

fn scores(board: &Board) -> Vec<ScoreJson<'_>> {
    let asked = board.scores.iter().filter(|_| !board.scenes.is_empty());
    asked.map(|score| self::score(board, score)).collect()
}

fn scenes(board: &Board) -> Vec<SceneJson<'_>> {
    board.scenes.iter().map(|played| scene(board, played)).collect()
}

fn score<'a>(board: &'a Board, score: &'a Score) -> ScoreJson<'a> {
    let worst = score.worst.as_ref();
    let by_device = board.devices.iter().cloned().zip(score.by_device.iter().copied());
    let on = |medium: Medium| (medium.name(), board.regret_on(medium, &score.policy));
    let groups = board.groups().into_iter();
    ScoreJson {
        policy: &score.policy,
        mean_regret: score.mean,
        spread: score.spread,
        pareto: score.pareto,
        worst_regret: worst.map_or(0.0, |worst| worst.0),
        worst_scene: worst.map(|worst| worst.1.as_str()),
        worst_measure: worst.map(|worst| worst.2.name()),
        regret_by_measure: by_measure(|measure| score.by_measure[measure as usize]),
        regret_by_device: by_device.collect(),
        regret_by_medium: Medium::ALL.into_iter().map(on).collect(),
        regret_by_group: groups.map(|g| (g, board.regret_in(g, &score.policy))).collect(),
        dominated_in: &score.dominated,
        withheld: score.withheld,
    }
}

fn scene<'a>(board: &'a Board, played: &'a Played) -> SceneJson<'a> {
    let result = &played.result;
    let policy = |(n, name): (usize, &'a String)| PolicyJson {
        policy: name,
        values: by_measure(|measure| result.figures[n].value(measure)),
        withheld: result.figures[n].withheld,
        requests: result.figures[n].requests,
        regret: by_measure(|measure| result.regret(n, measure)),
        mean_regret: result.mean_regret(n),
        pareto: result.pareto(n),
        cpu_ns: played.cpu_ns.as_ref().map(|cpu| cpu[n]),
    };
    SceneJson {
        scene: &result.scene,
        about: &played.about,
        device: &result.device,
        group: played.group.as_deref(),
        unit: played.unit.name(),
        latency_unit: if played.relative { "alone" } else { "ms" },
        policies: board.policies.iter().enumerate().map(policy).collect(),
    }
}

fn by_measure(of: impl Fn(Measure) -> Option<f64>) -> BTreeMap<&'static str, Option<f64>> {
    Measure::ALL.iter().map(|&measure| (measure.name(), of(measure))).collect()
}
