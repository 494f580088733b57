//! `arena --format json`. Keys stay as they are.

use super::{Board, Played};
use seekway_sim::experiments::arena::{Measure, Score};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Json<'a> {
    seeds: &'a [u64],
    /// The least mean regret first.
    scoreboard: Vec<ScoreJson<'a>>,
    scenes: Vec<SceneJson<'a>>,
}

/// Regrets from 0, as good as the best of all policies, to 1.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ScoreJson<'a> {
    policy: &'a str,
    mean_regret: f64,
    worst_regret: f64,
    worst_scene: Option<&'a str>,
    worst_measure: Option<&'static str>,
    regret_by_measure: BTreeMap<&'static str, Option<f64>>,
    regret_by_device: BTreeMap<String, f64>,
    dominated_in: &'a [String],
    withheld: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SceneJson<'a> {
    scene: &'a str,
    about: &'a str,
    device: &'a str,
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
    /// Measured: differs from run to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ns: Option<f64>,
}

impl Json<'_> {
    pub fn new(board: &Board) -> Json<'_> {
        let score = |score| self::score(score, &board.devices);
        Json {
            seeds: &board.seeds,
            scoreboard: board.scores.iter().map(score).collect(),
            scenes: board.scenes.iter().map(|played| scene(board, played)).collect(),
        }
    }
}

fn score<'a>(score: &'a Score, devices: &[String]) -> ScoreJson<'a> {
    let worst = score.worst.as_ref();
    ScoreJson {
        policy: &score.policy,
        mean_regret: score.mean,
        worst_regret: worst.map_or(0.0, |worst| worst.0),
        worst_scene: worst.map(|worst| worst.1.as_str()),
        worst_measure: worst.map(|worst| worst.2.name()),
        regret_by_measure: by_measure(|measure| score.by_measure[measure as usize]),
        regret_by_device: devices.iter().cloned().zip(score.by_device.iter().copied()).collect(),
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
        cpu_ns: played.cpu_ns.as_ref().map(|cpu| cpu[n]),
    };
    SceneJson {
        scene: &result.scene,
        about: &played.about,
        device: &result.device,
        unit: played.unit.name(),
        latency_unit: if played.relative { "alone" } else { "ms" },
        policies: board.policies.iter().enumerate().map(policy).collect(),
    }
}

fn by_measure(of: impl Fn(Measure) -> Option<f64>) -> BTreeMap<&'static str, Option<f64>> {
    Measure::ALL.iter().map(|&measure| (measure.name(), of(measure))).collect()
}
