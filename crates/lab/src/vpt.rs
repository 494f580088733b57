//! vpt-rank, live (CATS, section 6, table 2): does the throttle's linear model rank three
//! schedulers as the detailed disk does? One real guest has the load of the simulator's vpt-rank on
//! `serve --emulate` of the detailed disk, of the line fitted to it at k = 1 and at the paper's
//! k = 8, and once on the image itself, without a throttle.

mod judge;
mod shown;

use crate::args::LabArgs;
use crate::scene::{guests, scenario};
use crate::show::{finish, with_steps};
use crate::simulate::simulate;
use anyhow::{Context, Result, bail};
use judge::{Ran, Window};
use seekway_cli::Verdict;
use seekway_live::experiment::{Scene, SceneFigures, SceneOptions, SceneRun, run_scene};
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

pub const NAME: &str = "vpt-rank";

/// The paper's three schedulers.
const POLICIES: [&str; 3] = ["cats:busdriver=7ms", "deadline", "cfq:generation=2.6.30"];

/// What the guest's image lies on.
#[derive(Clone, Copy, Debug)]
struct Target {
    name: &'static str,
    /// Scenario of the simulator's vpt-rank whose device and load this has, at k = 1.
    scenario: &'static str,
    /// The scenario whose device is k times slower.
    slowed: &'static str,
    k: u32,
    /// The image without a throttle, in one window a policy.
    bare: bool,
}

const REAL: &str = "disk, direct: itself";
const LINE: &str = "disk, direct: fitted line, shadow's cache";
/// The first is the disk that the others predict.
const TARGETS: [Target; 4] = [
    Target { name: "detailed disk", scenario: REAL, slowed: REAL, k: 1, bare: false },
    Target { name: "line, k = 1", scenario: LINE, slowed: LINE, k: 1, bare: false },
    Target {
        name: LITERAL,
        scenario: LINE,
        slowed: "disk, direct: fitted line, shadow's cache, k = 8",
        k: 8,
        bare: false,
    },
    Target { name: "image in memory", scenario: REAL, slowed: REAL, k: 1, bare: true },
];
/// The slowed line of the paper: the name of a target.
const LITERAL: &str = "line, k = 8";

/// In the device's time: a window at k = 8 takes eight times as long.
const SETTLE: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(4);
const WINDOWS: u64 = 5;
const QUICK_WINDOW: Duration = Duration::from_secs(1);
const QUICK_WINDOWS: u64 = 1;

/// Runs vpt-rank in guests; `NotAccepted` if the throttle adds more than is asked.
pub fn run(args: &LabArgs) -> Result<Verdict> {
    if args.policy.is_some() {
        bail!("{NAME}: no --policy: it ranks the paper's three");
    }
    let mut ran = Vec::new();
    for target in &TARGETS {
        let made = with_steps(target.name, |_| measure(args, target)).context("--live")?;
        for policy in POLICIES {
            let of_policy = made.iter().filter(|figures| figures.run.policy == policy);
            let windows = of_policy.map(|figures| Window::of(figures, target.k)).collect();
            let model = match target.bare {
                true => Vec::new(),
                false => simulated(args, target, policy)?,
            };
            ran.push(Ran::new(target, policy, windows, &model));
        }
    }
    let predictions = judge::predictions(&ran);
    let tables = [shown::figures(&ran, window(args)), shown::ranks(&predictions)];
    let json = judge::Json { ran: &ran, predictions };
    finish(args, shown::page(&ran, &tables), &tables, &json, ran.iter().map(|ran| ran.verdict))
}

fn window(args: &LabArgs) -> Duration {
    if args.quick { QUICK_WINDOW } else { WINDOW }
}

/// The seeds of the windows: the same on every target.
fn seeds(args: &LabArgs) -> impl Iterator<Item = u64> + use<> {
    let windows = if args.quick { QUICK_WINDOWS } else { WINDOWS };
    args.seed..args.seed + windows
}

/// All windows on a target. At k = 8 the policies have a guest and a daemon each, at the same time:
/// one alone makes an eighth of the requests.
fn measure(args: &LabArgs, target: &Target) -> Result<Vec<SceneFigures>> {
    let windows = if target.bare { 1 } else { usize::MAX };
    let runs: Vec<SceneRun> = seeds(args)
        .take(windows)
        .flat_map(|seed| POLICIES.map(|p| SceneRun { policy: p.into(), only: None, seed }))
        .collect();
    let groups: Vec<Vec<SceneRun>> = match target.k {
        1 => vec![runs],
        _ => POLICIES
            .map(|policy| runs.iter().filter(|run| run.policy == policy).cloned().collect())
            .into(),
    };
    let scenario = scenario(NAME, target.scenario)?;
    let scene = |runs| -> Result<Scene> {
        let scene = guests(&scenario, target.k, runs)?;
        Ok(Scene { device: scene.device.filter(|_| !target.bare), ..scene })
    };
    let scenes: Vec<Scene> = groups.into_iter().map(scene).collect::<Result<_>>()?;
    let options = &SceneOptions {
        program: args.daemon()?,
        settle: SETTLE * target.k,
        window: window(args) * target.k,
        accelerator: args.accelerator(),
    };
    let made = thread::scope(|scope| {
        let begin = |scene| scope.spawn(move || run_scene(scene, options, &mut |_| ()));
        let running: Vec<_> = scenes.iter().map(begin).collect();
        let end =
            running.into_iter().map(|thread| thread.join().unwrap_or_else(|p| resume_unwind(p)));
        end.collect::<Result<Vec<_>, _>>()
    });
    Ok(made?.into_iter().flatten().collect())
}

/// The same load on the model alone, seed by seed.
fn simulated(args: &LabArgs, target: &Target, policy: &str) -> Result<Vec<Window>> {
    let scenario = scenario(NAME, target.slowed)?;
    let spans = (SETTLE * target.k, window(args) * target.k);
    let one = |seed| {
        let sim = simulate((*scenario).clone(), spans, policy, None, seed)?;
        Ok(Window::simulated(&sim, target.k))
    };
    seeds(args).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_device::profile;
    use seekway_policy::schedulers;

    #[test]
    fn every_target_is_a_scenario_with_the_load_of_the_first() {
        let load = scenario(NAME, TARGETS[0].scenario).expect("the disk").vms.clone();
        for target in &TARGETS {
            for name in [target.scenario, target.slowed] {
                let found = scenario(NAME, name).expect(name);
                assert_eq!(found.vms, load, "{name}");
                assert!(profile::load(&found.device).is_ok(), "{name}");
            }
        }
        assert!(POLICIES.iter().all(|policy| schedulers::build(policy).is_ok()));
    }
}
