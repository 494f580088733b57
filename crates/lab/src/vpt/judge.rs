//! What the windows come to: the figures with k taken out of them, and the ranks that they
//! predict.

use super::{LITERAL, POLICIES, Target};
use crate::show::LATE_MAX;
use crate::spread::Spread;
use seekway_live::experiment::SceneFigures;
use seekway_sim::RunResult;
use seekway_sim::rank::{relative_error, same_order};
use serde::Serialize;

/// Of the model's mean service, the throttle and the daemon add at most this.
pub(super) const ADDED: f64 = 0.05;

/// Sectors of 512 bytes a millisecond in one MiB a second.
const SECTORS_MS: f64 = 2.048;

/// A window. Times are over k, throughput is times k. Its keys in JSON do not change.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Window {
    /// `None` without an emulated device.
    pub service_ms: Option<f64>,
    pub response_ms: f64,
    pub sectors_ms: f64,
    /// What the daemon adds to the mean service, as a share of what is the model's.
    pub added: Option<f64>,
    /// Share of the commands whose real completion came after the model's.
    pub late: f64,
    /// Of the host's processors, 0 to 1.
    pub host_busy: f64,
}

impl Window {
    /// Of the one guest.
    pub(super) fn of(figures: &SceneFigures, k: u32) -> Window {
        let (k, load) = (f64::from(k), &figures.loads[0]);
        let emulated = figures.emulated;
        Window {
            service_ms: emulated.map(|e| e.service_ms / k),
            response_ms: load.response_ms.mean / k,
            sectors_ms: load.mib_s * SECTORS_MS * k,
            added: emulated.map(|e| e.added_ms / (e.service_ms - e.added_ms)),
            late: emulated.map_or(0.0, |e| e.late as f64 / e.commands as f64),
            host_busy: figures.host_busy,
        }
    }

    pub(super) fn simulated(sim: &RunResult, k: u32) -> Window {
        let k = f64::from(k);
        Window {
            service_ms: Some(sim.service.mean() / 1e6 / k),
            response_ms: sim.response.mean() / 1e6 / k,
            sectors_ms: sim.vms[0].mib_s() * SECTORS_MS * k,
            added: None,
            late: 0.0,
            host_busy: 0.0,
        }
    }
}

/// A measure by which the paper ranks; `None` where a window has none.
pub(super) type Measure = (&'static str, &'static str, fn(&Window) -> Option<f64>);

pub(super) const MEASURES: [Measure; 3] = [
    ("service", "ms", |w| w.service_ms),
    ("response", "ms", |w| Some(w.response_ms)),
    ("throughput", "sectors/ms", |w| Some(w.sectors_ms)),
];

/// A policy on a target. Its keys in JSON do not change.
#[derive(Serialize)]
pub(super) struct Ran {
    pub target: &'static str,
    pub k: u32,
    pub policy: &'static str,
    /// By measure, over the windows.
    pub live: [Option<Spread>; 3],
    /// The model alone in the simulator, over the same seeds.
    pub simulated: [Option<Spread>; 3],
    pub added: Option<Spread>,
    /// The largest share of a window.
    pub late: f64,
    pub host_busy: f64,
    pub windows: Vec<Window>,
    /// `met`, `missed`, `void`, or `measured` without a throttle.
    pub verdict: &'static str,
}

fn spreads(windows: &[Window]) -> [Option<Spread>; 3] {
    MEASURES.map(|(.., of)| Spread::of(windows.iter().filter_map(of)))
}

impl Ran {
    /// `model`: windows of the simulator, none where nothing is emulated.
    pub(super) fn new(
        target: &Target,
        policy: &'static str,
        windows: Vec<Window>,
        model: &[Window],
    ) -> Ran {
        let largest = |of: fn(&Window) -> f64| windows.iter().map(of).fold(0.0, f64::max);
        let added = Spread::of(windows.iter().filter_map(|w| w.added));
        let late = largest(|w| w.late);
        Ran {
            target: target.name,
            k: target.k,
            policy,
            live: spreads(&windows),
            simulated: spreads(model),
            added,
            late,
            host_busy: largest(|w| w.host_busy),
            verdict: match added {
                None => "measured",
                Some(_) if late > LATE_MAX => "void",
                Some(added) if added.median <= ADDED => "met",
                Some(_) => "missed",
            },
            windows,
        }
    }
}

/// How a target ranks the policies by a measure, beside the first target, which is the disk. Its
/// keys in JSON do not change.
#[derive(Serialize)]
pub(super) struct Prediction {
    pub target: &'static str,
    pub measure: &'static str,
    /// Windows in which all three are in the disk's order, of how many.
    pub right: usize,
    pub windows: usize,
    /// Medians of the policies, in their order.
    pub predicted: Vec<f64>,
    pub actual: Vec<f64>,
    /// Share by which each prediction is too large.
    pub errors: Vec<f64>,
    /// Of the paper's claim, only of its form: `holds` when every window is right, `in part` when
    /// the medians are, `refuted` otherwise. Else `measured`; `void` when a side is.
    pub verdict: &'static str,
}

/// All that there is of each target but the first.
pub(super) fn predictions(ran: &[Ran]) -> Vec<Prediction> {
    let mut targets = ran.chunks(POLICIES.len());
    let Some(disk) = targets.next() else { return Vec::new() };
    let of_target = |target| (0..MEASURES.len()).filter_map(move |m| prediction(disk, target, m));
    targets.flat_map(of_target).collect()
}

fn prediction(disk: &[Ran], target: &[Ran], measure: usize) -> Option<Prediction> {
    let medians = |side: &[Ran]| -> Option<Vec<f64>> {
        side.iter().map(|ran| Some(ran.live[measure]?.median)).collect()
    };
    let (predicted, actual) = (medians(target)?, medians(disk)?);
    let (name, _, of) = MEASURES[measure];
    let windows = target.iter().chain(disk).map(|ran| ran.windows.len()).min()?;
    let in_window = |side: &[Ran], n: usize| -> Vec<f64> {
        side.iter().map(|ran| of(&ran.windows[n]).unwrap_or(f64::NAN)).collect()
    };
    let is_right = |n: &usize| same_order(&in_window(target, *n), &in_window(disk, *n));
    let right = (0..windows).filter(is_right).count();
    let void = target.iter().chain(disk).any(|ran| ran.verdict == "void");
    let errors = predicted.iter().zip(&actual);
    Some(Prediction {
        target: target[0].target,
        measure: name,
        right,
        windows,
        errors: errors.map(|(p, a)| relative_error(*p, *a).unwrap_or(f64::NAN)).collect(),
        verdict: match target[0].target {
            _ if void => "void",
            LITERAL if right == windows => "holds",
            LITERAL if same_order(&predicted, &actual) => "in part",
            LITERAL => "refuted",
            _ => "measured",
        },
        predicted,
        actual,
    })
}

#[derive(Serialize)]
pub(super) struct Json<'a> {
    pub ran: &'a [Ran],
    pub predictions: Vec<Prediction>,
}

#[cfg(test)]
mod tests {
    use super::super::TARGETS;
    use super::*;
    use seekway_live::experiment::{Emulated, LoadFigures, ResponseFigures, SceneRun};

    #[test]
    fn what_is_measured_has_no_k_in_it() {
        let response_ms =
            ResponseFigures { mean: 320.0, stdev: 9.0, p50: 300.0, p99: 900.0, max: 950.0 };
        let load = LoadFigures {
            vm: "guest".into(),
            seconds: 32.0,
            requests: 3200,
            iops: 100.0,
            mib_s: 0.5,
            response_ms,
            tagged: true,
        };
        let figures = SceneFigures {
            run: SceneRun { policy: "deadline".into(), only: None, seed: 1 },
            loads: vec![load],
            emulated: Some(Emulated { commands: 200, late: 1, service_ms: 8.4, added_ms: 0.4 }),
            host_busy: 0.5,
        };
        let window = Window::of(&figures, 8);
        assert_eq!((window.response_ms, window.sectors_ms), (40.0, 8.192));
        let near = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-9);
        assert!(near(window.service_ms, 1.05) && near(window.added, 0.05));
        assert_eq!(window.late, 0.005);
    }

    fn window(response_ms: f64) -> Window {
        let (service_ms, sectors_ms) = (Some(response_ms / 50.0), 400.0 / response_ms);
        Window { service_ms, response_ms, sectors_ms, added: Some(0.02), late: 0.0, host_busy: 0.3 }
    }

    /// The three policies on a target, by their responses window by window.
    fn on(target: &Target, responses: [[f64; 2]; 3]) -> Vec<Ran> {
        let one = |(policy, responses): (_, [f64; 2])| {
            Ran::new(target, policy, responses.map(window).into(), &[])
        };
        POLICIES.into_iter().zip(responses).map(one).collect()
    }

    #[test]
    fn a_rank_holds_when_every_window_has_it() {
        let [disk, line, literal, _] = &TARGETS;
        let real = || on(disk, [[40.0, 41.0], [60.0, 61.0], [120.0, 130.0]]);
        let verdict = |target, responses| {
            let ran: Vec<Ran> = real().into_iter().chain(on(target, responses)).collect();
            let of_response = predictions(&ran).into_iter().find(|p| p.measure == "response");
            let found = of_response.expect("a response");
            (found.right, found.verdict)
        };
        let right = [[50.0, 51.0], [70.0, 71.0], [110.0, 111.0]];
        assert_eq!(verdict(literal, right), (2, "holds"));
        assert_eq!(verdict(line, right), (2, "measured"));
        assert_eq!(verdict(literal, [[50.0, 72.0], [70.0, 71.0], [90.0, 95.0]]), (1, "in part"));
        assert_eq!(verdict(literal, [[90.0, 91.0], [70.0, 71.0], [95.0, 99.0]]), (0, "refuted"));
        let ran: Vec<Ran> = real().into_iter().chain(on(line, right)).collect();
        let errors = &predictions(&ran)[1].errors;
        assert!((errors[0] - (50.5 / 40.5 - 1.0)).abs() < 1e-9, "{errors:?}");
    }

    #[test]
    fn what_the_throttle_adds_is_judged_and_late_commands_void_it() {
        let verdict = |added, late| {
            let window = Window { added, late, ..window(40.0) };
            Ran::new(&TARGETS[0], POLICIES[0], vec![window], &[]).verdict
        };
        assert_eq!(verdict(Some(0.05), 0.01), "met");
        assert_eq!(verdict(Some(0.06), 0.0), "missed");
        assert_eq!(verdict(Some(0.0), 0.02), "void");
        assert_eq!(verdict(None, 0.0), "measured");
    }

    #[test]
    fn what_has_no_service_predicts_none() {
        let [disk, .., bare] = &TARGETS;
        let real = on(disk, [[40.0; 2], [60.0; 2], [120.0; 2]]);
        let mut file = on(bare, [[4.0; 2]; 3]);
        file.iter_mut().for_each(|ran| ran.live[0] = None);
        let all: Vec<Ran> = real.into_iter().chain(file).collect();
        let found: Vec<_> = predictions(&all).iter().map(|p| (p.measure, p.right)).collect();
        assert_eq!(found, [("response", 0), ("throughput", 0)]);
    }
}
