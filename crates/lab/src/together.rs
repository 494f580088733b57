//! together: the guests of an ordinary host with everything of Seekway off, with everything
//! on, and each alone on its private disk, in turn in the same guests.

mod judge;
mod shown;

use crate::args::LabArgs;
use crate::procs::agent;
use crate::show::{finish, with_steps};
use anyhow::{Context, Result, bail};
use judge::{Ran, SceneRan};
use seekway_cli::signals::{self, SIGINT, SIGTERM};
use seekway_cli::{Format, Verdict, output};
use seekway_live::experiment::{TogetherLoad, TogetherOptions, TogetherSide, run_together};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub const NAME: &str = "together";

/// A disk that the guests share.
#[derive(Clone, Copy, Debug)]
struct Scene {
    /// As the simulator's scene of the same disk.
    name: &'static str,
    device: &'static str,
    /// So many times slower than the model: emulated guests reach a tenth of the requests that
    /// keep an X25-M busy.
    slower: usize,
}

const SCENES: [Scene; 2] = [
    Scene { name: "SATA SSD", device: "intel-x25m-g2", slower: 8 },
    Scene { name: "7200 rpm", device: "seagate-1tb-7200", slower: 1 },
];
const LOADS: [TogetherLoad; 4] =
    [TogetherLoad::Database, TogetherLoad::Files, TogetherLoad::Video, TogetherLoad::Build];
const POLICIES: [&str; 2] = ["noop", "fairway"];
/// Less than what a guest reads in two windows.
const CACHE_BYTES: u64 = 256 << 20;
/// Processes of this name are tagged when they start. Ten looks at all processes a second, the
/// default, take an emulated guest 3 to 4 % of a vCPU; one takes 1 to 2 %.
const TAGS: &str = "--match fio --interval 1s";
/// As `serve` prefetches by default.
const PREFETCHER: &str = "vio:interval=continuous";
const ROUNDS: u32 = 7;
const WINDOW: Duration = Duration::from_secs(5);
const QUICK_ROUNDS: u32 = 1;
const QUICK_WINDOW: Duration = Duration::from_secs(3);

/// Runs together; `NotAccepted` if a scene misses what is asked.
pub fn run(args: &LabArgs) -> Result<Verdict> {
    if args.policy.is_some() {
        bail!("{NAME}: no --policy: it has {} off and {} on", POLICIES[0], POLICIES[1]);
    }
    // Daemons are ended and images removed on the way out; who asks twice cannot wait.
    let interrupted = signals::first_noted(&[SIGINT, SIGTERM])?;
    let scenes = scenes(args)?;
    let mut ran = Vec::new();
    for scene in scenes {
        let options = options(args, &scene, &interrupted)?;
        let figures = with_steps(scene.name, |step| {
            run_together(&options, &mut |what| step(&format!("{}: {what}", scene.name)))
        });
        let figures = figures.context("--live")?;
        ran.push(SceneRan::new(scene.name, &options, &figures));
    }
    let ran = Ran::new(ran);
    let tables: Vec<_> = ran.scenes.iter().flat_map(shown::tables).collect();
    let verdicts = ran.scenes.iter().map(|scene| scene.verdict);
    let verdict = finish(args, shown::page(&ran), &tables, &ran, verdicts)?;
    if !matches!(args.format, Format::Json | Format::Csv) {
        output::print(&format!("\n{}\n", ran.sentence))?;
    }
    Ok(verdict)
}

/// Those that were asked for, of which there is at least one.
fn scenes(args: &LabArgs) -> Result<Vec<Scene>> {
    let scenes: Vec<Scene> = SCENES.into_iter().filter(|scene| args.wants(scene.name)).collect();
    if scenes.is_empty() {
        let known: Vec<&str> = SCENES.iter().map(|scene| scene.name).collect();
        bail!("--scenes {}: none; with --live {NAME} has {}", args.pattern(), known.join(", "));
    }
    Ok(scenes)
}

fn options(
    args: &LabArgs,
    scene: &Scene,
    interrupted: &Arc<AtomicBool>,
) -> Result<TogetherOptions> {
    Ok(TogetherOptions {
        program: args.daemon()?,
        agent: agent()?,
        loads: LOADS.to_vec(),
        sides: sides(scene),
        rounds: if args.quick { QUICK_ROUNDS } else { ROUNDS },
        window: if args.quick { QUICK_WINDOW } else { WINDOW },
        accelerator: args.accelerator(),
        seed: args.seed,
        interrupted: Arc::clone(interrupted),
    })
}

/// Everything off, everything on, and the private disks: as many times slower as there are
/// guests, each with its part of the host's cache.
fn sides(scene: &Scene) -> [TogetherSide; 3] {
    let device = |times: usize| format!("{}:k={}", scene.device, scene.slower * times);
    let off = TogetherSide {
        policy: POLICIES[0].into(),
        cache: None,
        tags: None,
        agent: None,
        device: device(1),
    };
    let on = TogetherSide {
        policy: POLICIES[1].into(),
        cache: Some((CACHE_BYTES, PREFETCHER.into())),
        tags: Some(TAGS.into()),
        agent: Some(String::new()),
        ..off.clone()
    };
    let guests = LOADS.len();
    let cache = Some((CACHE_BYTES / guests as u64, "none".into()));
    let private = TogetherSide { cache, device: device(guests), ..off.clone() };
    [off, on, private]
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use seekway_policy::{prefetchers, schedulers};

    #[test]
    fn all_sides_are_what_the_daemon_takes() {
        for scene in &SCENES {
            for side in sides(scene) {
                assert!(schedulers::build(&side.policy).is_ok());
                assert!(
                    side.cache
                        .is_none_or(|(_, prefetcher)| prefetchers::build(&prefetcher).is_ok())
                );
            }
        }
    }

    #[test]
    fn a_private_disk_is_a_fourth_of_the_host() {
        let [off, on, private] = sides(&SCENES[1]);
        assert_eq!(
            (&*off.device, &*private.device),
            ("seagate-1tb-7200:k=1", "seagate-1tb-7200:k=4")
        );
        let bytes = |side: TogetherSide| side.cache.expect("a cache").0;
        assert_eq!(bytes(on), 4 * bytes(private));
    }

    #[test]
    fn scenes_are_chosen_by_name() {
        let chosen = |scenes: &[&str]| {
            let args = [&["seekway-live", NAME][..], scenes].concat();
            scenes_of(&LabArgs::parse_from(args))
        };
        assert_eq!(chosen(&[]).expect("all"), ["SATA SSD", "7200 rpm"]);
        assert_eq!(chosen(&["--scenes", "7200*"]).expect("one"), ["7200 rpm"]);
        let error = chosen(&["--scenes", "tape"]).expect_err("no such disk").to_string();
        assert!(
            error.contains("--scenes tape: none; with --live together has SATA SSD"),
            "{error}"
        );
    }

    fn scenes_of(args: &LabArgs) -> Result<Vec<&'static str>> {
        Ok(scenes(args)?.iter().map(|scene| scene.name).collect())
    }
}
