//! vpt-rank, live (CATS, section 6, table 2): does the throttle's linear model rank three
//! schedulers as the detailed disk does? One real guest has the load of the simulator's vpt-rank on
//! `serve --emulate` of the detailed disk, of the line fitted to it at k = 1 and at the paper's
//! k = 8, and once on the image itself, without a throttle.

mod judge;
mod shown;

use crate::args::LabArgs;
use crate::cats;
use crate::scene::guests;
use crate::show::{finish, with_steps};
use crate::simulate::{Loads, simulate};
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
    /// Its load and device, at k = 1.
    loads: fn() -> Result<Loads>,
    /// How many times slower the device is.
    k: u32,
    /// The image without a throttle, in one window a policy.
    bare: bool,
}

/// The first is the disk that the others predict.
const TARGETS: [Target; 4] = [
    Target { name: "detailed disk", loads: || Ok(cats::disk()), k: 1, bare: false },
    Target { name: "line, k = 1", loads: cats::line, k: 1, bare: false },
    Target { name: LITERAL, loads: cats::line, k: 8, bare: false },
    Target { name: "image in memory", loads: || Ok(cats::disk()), k: 1, bare: true },
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
    let loads = (target.loads)()?;
    let scene = |runs| -> Result<Scene> {
        let scene = guests(&loads, target.k, runs)?;
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
    let mut scenario = (target.loads)()?.scenario()?;
    scenario.device.slow = target.k;
    let spans = (SETTLE * target.k, window(args) * target.k);
    let one = |seed| {
        let sim = simulate(scenario.clone(), spans, policy, seed)?;
        Ok(Window::simulated(&sim, target.k))
    };
    seeds(args).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_policy::schedulers;

    #[test]
    fn every_target_has_the_load_of_the_first() {
        for target in &TARGETS {
            let found = (target.loads)().expect(target.name);
            assert_eq!(found.vms, cats::disk().vms, "{}", target.name);
            let scenario = found.scenario().expect(target.name);
            assert!(scenario.device.load().is_ok(), "{}", target.name);
        }
        assert!(POLICIES.iter().all(|policy| schedulers::build(policy).is_ok()));
    }
}
