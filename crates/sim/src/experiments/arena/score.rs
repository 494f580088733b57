//! The scoreboard: how far each policy is from the best of all, scene by scene.

use super::measure::{Figures, Measure};

/// How much better a policy has to be in all three of throughput, worst share and p99
/// to dominate another.
pub const DOMINATES_BY: f64 = 0.01;

/// Weightings of the measures go in steps of one part in so many, for [`SceneResult::pareto`].
pub const PARETO_STEPS: u32 = 20;

/// The measures in which a policy is compared as a whole.
const WHOLE: [Measure; 3] = [Measure::Throughput, Measure::WorstShare, Measure::P99];

/// What came of a scene under every policy.
#[derive(Clone, PartialEq, Debug)]
pub struct SceneResult {
    pub scene: String,
    pub device: String,
    /// In the order of the policies.
    pub figures: Vec<Figures>,
}

impl SceneResult {
    /// The best of all policies, if the scene has this measure.
    pub fn best(&self, measure: Measure) -> Option<f64> {
        let values = self.figures.iter().filter_map(|figures| figures.value(measure));
        values.reduce(|a, b| measure.better(a, b))
    }

    /// How far a policy, by number, is from the best.
    pub fn regret(&self, policy: usize, measure: Measure) -> Option<f64> {
        Some(measure.regret(self.figures[policy].value(measure)?, self.best(measure)?))
    }

    /// The mean over the scene's measures.
    pub fn mean_regret(&self, policy: usize) -> f64 {
        mean(Measure::ALL.iter().filter_map(|&measure| self.regret(policy, measure)))
    }

    /// Is another policy better in throughput, in the worst VM's share and in p99? In those
    /// of them that the scene has, at least two.
    pub fn is_dominated(&self, policy: usize) -> bool {
        let beats = |other: usize, measure: Measure| {
            let of = |policy: usize| self.figures[policy].value(measure);
            let (Some(ours), Some(theirs)) = (of(policy), of(other)) else { return false };
            measure.better(ours, theirs) == theirs && measure.regret(ours, theirs) > DOMINATES_BY
        };
        let judged = self.whole();
        let dominates = |other| judged.iter().all(|&measure| beats(other, measure));
        judged.len() > 1 && (0..self.figures.len()).any(dominates)
    }

    /// How far a policy is from the best under the weighting of throughput, worst share and p99
    /// that suits it best: the least, over all weightings, of its weighted regret less the least
    /// of any policy. That is its distance from the convex hull of all policies, taken the same
    /// way in each measure (the dual of the linear program; weights go in steps of
    /// [`PARETO_STEPS`], so it may be too large by less than a step). None if the scene has
    /// fewer than two of the measures.
    pub fn pareto(&self, policy: usize) -> Option<f64> {
        let judged = self.whole();
        if judged.len() < 2 {
            return None;
        }
        let regrets = |policy| {
            let of = |&measure: &Measure| self.regret(policy, measure).unwrap_or(1.0);
            judged.iter().map(of).collect::<Vec<f64>>()
        };
        let all: Vec<Vec<f64>> = (0..self.figures.len()).map(regrets).collect();
        let behind = |weights: &Vec<f64>| {
            let weighted = |regrets: &Vec<f64>| -> f64 {
                weights.iter().zip(regrets).map(|(weight, regret)| weight * regret).sum()
            };
            weighted(&all[policy]) - all.iter().map(weighted).fold(f64::INFINITY, f64::min)
        };
        weightings(judged.len()).iter().map(behind).reduce(f64::min)
    }

    /// Those of the three measures that the scene has.
    fn whole(&self) -> Vec<Measure> {
        WHOLE.into_iter().filter(|&measure| self.best(measure).is_some()).collect()
    }
}

/// All weightings of two or three measures in steps of [`PARETO_STEPS`]; each sums up to 1.
fn weightings(measures: usize) -> Vec<Vec<f64>> {
    let steps = || 0..=PARETO_STEPS;
    let part = |weight: u32| f64::from(weight) / f64::from(PARETO_STEPS);
    let of = |first: u32, second: u32| {
        let third = PARETO_STEPS.checked_sub(first + second)?;
        (measures > 2 || third == 0).then(|| [first, second, third].map(part)[..measures].to_vec())
    };
    steps().flat_map(|first| steps().filter_map(move |second| of(first, second))).collect()
}

/// A policy over all scenes.
#[derive(Clone, PartialEq, Debug)]
pub struct Score {
    pub policy: String,
    /// Mean over the scenes of the mean over each scene's measures.
    pub mean: f64,
    /// The largest less the least mean regret of a single seed, if there are several.
    pub spread: Option<f64>,
    /// Mean of [`SceneResult::pareto`] over the scenes that have it.
    pub pareto: Option<f64>,
    /// The largest regret, with its scene and measure.
    pub worst: Option<(f64, String, Measure)>,
    /// Mean over the scenes, by [`Measure::ALL`].
    pub by_measure: [Option<f64>; Measure::COUNT],
    /// Mean over the scenes of each device, in the order of [`devices`].
    pub by_device: Vec<f64>,
    /// Scenes in which another policy is better in throughput, worst share and p99.
    pub dominated: Vec<String>,
    /// Mean share of the time in which it withheld the device.
    pub withheld: f64,
}

/// The devices of some scenes, in their order.
pub fn devices(scenes: &[SceneResult]) -> Vec<String> {
    let mut devices: Vec<String> = Vec::new();
    for scene in scenes {
        if !devices.contains(&scene.device) {
            devices.push(scene.device.clone());
        }
    }
    devices
}

/// The scores of all policies, the least mean regret first. `scenes` has the means over all
/// seeds, `by_seed` the same scenes with each seed by itself.
pub fn scoreboard(
    policies: &[String],
    scenes: &[SceneResult],
    by_seed: &[Vec<SceneResult>],
) -> Vec<Score> {
    let spread = |n| {
        let means = by_seed.iter().map(|scenes| mean_regret(n, scenes));
        let (least, most) = means
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), mean| {
                (mean.min(least), mean.max(most))
            });
        (by_seed.len() > 1).then_some(most - least)
    };
    let of =
        |(n, policy): (usize, &String)| Score { spread: spread(n), ..score(n, policy, scenes) };
    let mut scores: Vec<Score> = policies.iter().enumerate().map(of).collect();
    scores.sort_by(|a, b| a.mean.total_cmp(&b.mean));
    scores
}

/// Mean over the scenes of a policy's mean over each scene's measures.
fn mean_regret(policy: usize, scenes: &[SceneResult]) -> f64 {
    mean(scenes.iter().map(|scene| scene.mean_regret(policy)))
}

fn score(n: usize, policy: &str, scenes: &[SceneResult]) -> Score {
    let mut worst: Option<(f64, String, Measure)> = None;
    for scene in scenes {
        for measure in Measure::ALL {
            let Some(regret) = scene.regret(n, measure) else { continue };
            if worst.as_ref().is_none_or(|(most, ..)| regret > *most) {
                worst = Some((regret, scene.scene.clone(), measure));
            }
        }
    }
    let by_measure = |measure| {
        let regrets: Vec<f64> = scenes.iter().filter_map(|s| s.regret(n, measure)).collect();
        (!regrets.is_empty()).then(|| mean(regrets.into_iter()))
    };
    let paretos: Vec<f64> = scenes.iter().filter_map(|scene| scene.pareto(n)).collect();
    let on = |device: &String| {
        mean(scenes.iter().filter(|s| s.device == *device).map(|s| s.mean_regret(n)))
    };
    Score {
        policy: policy.into(),
        mean: mean_regret(n, scenes),
        spread: None,
        pareto: (!paretos.is_empty()).then(|| mean(paretos.into_iter())),
        worst,
        by_measure: Measure::ALL.map(by_measure),
        by_device: devices(scenes).iter().map(on).collect(),
        dominated: scenes
            .iter()
            .filter(|scene| scene.is_dominated(n))
            .map(|scene| scene.scene.clone())
            .collect(),
        withheld: mean(scenes.iter().map(|scene| scene.figures[n].withheld)),
    }
}

/// The arithmetic mean; zero if there are no values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(values: [f64; 3]) -> Figures {
        let [throughput, share, p99] = values.map(Some);
        let values = [throughput, share, p99, None, None, None];
        Figures { values, withheld: 0.1, requests: 1.0, ended_early: false }
    }

    fn scene(name: &str, device: &str, values: &[[f64; 3]]) -> SceneResult {
        let figures = values.iter().copied().map(figures).collect();
        SceneResult { scene: name.into(), device: device.into(), figures }
    }

    #[test]
    fn policies_stand_by_their_mean_regret_over_scenes() {
        let scenes = [
            scene("a/x", "a", &[[100.0, 0.5, 2.0], [50.0, 1.0, 1.0], [40.0, 0.9, 1.5]]),
            scene("b/x", "b", &[[10.0, 1.0, 1.0], [10.0, 1.0, 1.0], [5.0, 0.5, 4.0]]),
        ];
        let names = ["fast", "fair", "poor"].map(String::from);
        // With the second seed, both scenes come out as the first one.
        let second = vec![scenes[0].clone(); 2];
        let scores = scoreboard(&names, &scenes, &[scenes.to_vec(), second]);
        let order: Vec<&str> = scores.iter().map(|score| score.policy.as_str()).collect();
        assert_eq!(order, ["fair", "fast", "poor"]);
        // Half of the throughput in one scene and one of three measures.
        assert!((scores[0].mean - 0.5 / 3.0 / 2.0).abs() < 1e-12);
        assert_eq!(scores[0].worst, Some((0.5, "a/x".into(), Measure::Throughput)));
        assert_eq!(scores[0].by_device, [0.5 / 3.0, 0.0]);
        assert_eq!(scores[0].by_measure[3], None);
        assert!((scores[0].spread.unwrap() - 0.5 / 3.0 / 2.0).abs() < 1e-12);
        assert_eq!(scoreboard(&names, &scenes, &[scenes.to_vec()])[0].spread, None);
        assert_eq!(scores[2].dominated, ["a/x", "b/x"]);
        assert!(scores[0].dominated.is_empty() && scores[1].dominated.is_empty());
    }

    /// By hand: of the best, the policies reach (1, ½, ½), (½, 1, 1), (½, ½, ½) and (¾, ¾, ¾).
    #[test]
    fn the_distance_from_the_hull_is_what_no_weighting_excuses() {
        let all = [[100.0, 0.5, 2.0], [50.0, 1.0, 1.0], [50.0, 0.5, 2.0], [75.0, 0.75, 4.0 / 3.0]];
        let mut scene = scene("a/x", "a", &all);
        let close = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-12;
        assert!(close(scene.pareto(0), 0.0) && close(scene.pareto(1), 0.0));
        // Half of the time under each of the first two reaches ¾ of each.
        assert!(close(scene.pareto(2), 0.25), "{:?}", scene.pareto(2));
        assert!(close(scene.pareto(3), 0.0), "{:?}", scene.pareto(3));
        scene.figures.iter_mut().for_each(|figures| figures.values[2] = None);
        assert!(close(scene.pareto(2), 0.25), "{:?}", scene.pareto(2));
        scene.figures.iter_mut().for_each(|figures| figures.values[1] = None);
        assert_eq!(scene.pareto(2), None);
    }

    #[test]
    fn weightings_are_whole() {
        for (measures, count) in [(2, 21), (3, 231)] {
            let all = weightings(measures);
            assert_eq!(all.len(), count);
            let whole = |of: &Vec<f64>| (of.iter().sum::<f64>() - 1.0).abs() < 1e-12;
            assert!(all.iter().all(|of| of.len() == measures && whole(of)));
        }
    }

    #[test]
    fn a_policy_that_is_better_by_a_hair_does_not_dominate() {
        let hair = scene("a/x", "a", &[[100.0, 0.5, 2.0], [100.5, 0.502, 1.99]]);
        assert!(!hair.is_dominated(0));
        let clearly = scene("a/x", "a", &[[100.0, 0.5, 2.0], [102.0, 0.51, 1.9]]);
        assert!(clearly.is_dominated(0) && !clearly.is_dominated(1));
        // Without latency, throughput and share decide; by one measure nobody dominates.
        let mut two = clearly.clone();
        two.figures.iter_mut().for_each(|figures| figures.values[2] = None);
        assert!(two.is_dominated(0));
        two.figures.iter_mut().for_each(|figures| figures.values[1] = None);
        assert!(!two.is_dominated(0));
    }
}
