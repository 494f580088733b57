//! `seekway arena`: every policy through every scene, and one scoreboard.

mod json;
mod own;
mod page;
mod tables;

pub(super) use json::Json;

use super::compare;
use crate::args::{ArenaArgs, Drawn, ExperimentArgs, Format};
use crate::caller::NOBODY;
use crate::lists::distinct;
use crate::runs::{self, Running};
use crate::{Verdict, load, output, progress};
use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use seekway_policy::schedulers;
use seekway_policy::units::Nanos;
use seekway_report::table::Table;
use seekway_sim::experiments::Cell;
use seekway_sim::experiments::arena::{
    self, Alone, Figures, Medium, Scene, SceneResult, Score, Unit, figures,
};
use serde::Serialize;

/// By how much `--quick` divides the time.
const QUICK: u64 = 10;

/// The name under which `experiment run` knows it.
pub const NAME: &str = "arena";

/// A scene under every policy.
struct Played {
    about: String,
    unit: Unit,
    /// Are latencies factors of what the VM has alone, rather than ms?
    relative: bool,
    /// What kind of device it runs on; unknown for a load of the user's own.
    medium: Option<Medium>,
    /// Group of an everyday scene.
    group: Option<String>,
    /// Means over the seeds.
    result: SceneResult,
    by_seed: Vec<SceneResult>,
    /// CPU time of a request by policy, in ns, where it was asked for.
    cpu_ns: Option<Vec<f64>>,
}

/// Some scenes, and how the policies stand in them.
struct Board {
    /// How many scenes and of which kind, as in headings: `60 drawn scenes (seed 1)`.
    title: String,
    policies: Vec<String>,
    scenes: Vec<Played>,
    /// Of the scenes, in their order.
    devices: Vec<String>,
    scores: Vec<Score>,
}

/// Everything that is printed.
struct Outcome {
    seeds: Vec<u64>,
    /// The scenes of the file and the user's own load; none if neither was asked for.
    written: Board,
    /// Those of the file's scenes that have a group.
    everyday: Board,
    drawn: Option<Board>,
    drawn_everyday: Option<Board>,
}

impl Board {
    fn new(title: String, policies: &[String], scenes: Vec<Played>) -> Board {
        let results: Vec<SceneResult> = scenes.iter().map(|scene| scene.result.clone()).collect();
        let seeds = scenes.first().map_or(0, |scene| scene.by_seed.len());
        let of_seed =
            |seed: usize| scenes.iter().map(|scene| scene.by_seed[seed].clone()).collect();
        let by_seed: Vec<Vec<SceneResult>> = (0..seeds).map(of_seed).collect();
        let scores = arena::scoreboard(policies, &results, &by_seed);
        Board {
            title,
            policies: policies.into(),
            scenes,
            devices: arena::devices(&results),
            scores,
        }
    }

    /// A policy's mean regret on one kind of device, if any scene runs on it.
    fn regret_on(&self, medium: Medium, policy: &str) -> Option<f64> {
        self.regret(policy, |scene| scene.medium == Some(medium))
    }

    /// A policy's mean regret in one group of everyday scenes, if there are any.
    fn regret_in(&self, group: &str, policy: &str) -> Option<f64> {
        self.regret(policy, |scene| scene.group.as_deref() == Some(group))
    }

    /// A policy's mean regret in some of the scenes.
    fn regret(&self, policy: &str, of: impl Fn(&Played) -> bool) -> Option<f64> {
        let policy = self.policies.iter().position(|known| known == policy)?;
        let some = self.scenes.iter().filter(|&scene| of(scene));
        let regrets: Vec<f64> = some.map(|scene| scene.result.mean_regret(policy)).collect();
        (!regrets.is_empty()).then(|| regrets.iter().sum::<f64>() / regrets.len() as f64)
    }

    /// The groups of its scenes, in their order.
    fn groups(&self) -> Vec<&str> {
        distinct(self.scenes.iter().filter_map(|scene| scene.group.as_deref()))
    }
}

impl Outcome {
    /// The boards that have scenes, the file's first.
    fn boards(&self) -> impl Iterator<Item = &Board> {
        let all = [&self.written, &self.everyday].into_iter();
        let all = all.chain(&self.drawn).chain(&self.drawn_everyday);
        all.filter(|board| !board.scenes.is_empty())
    }
}

pub fn run(args: &ArenaArgs) -> Result<Verdict> {
    if args.list {
        return list(args);
    }
    let seeds = load::seeds(args.seed, args.seeds)?;
    if let Some(path) = &args.out.report {
        output::check_place(path)?;
    }
    let own = own::Own::new(args)?;
    let policies = policies(args, own.is_none())?;
    let scenes = written(args, own.is_some())?;
    let jobs = runs::jobs(args.out.jobs);
    let board = |what: &str, scenes: &[Scene], own: Option<own::Own>| {
        let mut played = play(scenes, &policies, &seeds, jobs, args.cpu)?;
        if let Some(own) = own {
            played.push(own.play(&policies, &seeds, &Running::shown(args.out.jobs))?);
        }
        Ok::<_, anyhow::Error>(Board::new(format!("{} {what}", played.len()), &policies, played))
    };
    let (everyday, scenes): (Vec<_>, Vec<_>) =
        scenes.into_iter().partition(|scene| scene.group.is_some());
    let draw = |of: &str, asked: Option<Drawn>, draws: Draws| {
        let scenes = |drawn| drawn_scenes(args, drawn, draws);
        let made =
            asked.map(|drawn| board(&format!("{of} (seed {})", drawn.seed), &scenes(drawn), None));
        made.transpose()
    };
    let outcome = Outcome {
        written: board("scenes", &scenes, own)?,
        everyday: board("everyday scenes", &everyday, None)?,
        drawn: draw("drawn scenes", args.drawn, arena::drawn)?,
        drawn_everyday: draw("drawn everyday scenes", args.drawn_everyday, arena::drawn_everyday)?,
        seeds: seeds.clone(),
    };
    for warning in outcome.boards().flat_map(ended_early) {
        eprintln!("warning: {warning}");
    }
    if args.quick {
        eprintln!("warning: a tenth of each scene's time: this shows that it runs, not a result");
    }
    output::write_report(args.out.report.as_deref(), || page::report(&outcome, args.quick))?;
    print(&outcome, args)?;
    Ok(Verdict::Done)
}

/// `experiment run arena`, with what that command can ask of it.
pub fn run_as_experiment(args: &ExperimentArgs) -> Result<Verdict> {
    if args.live || args.vcpu.is_some() {
        bail!("{NAME}: not with --live or --vcpu");
    }
    if !args.prefetch.prefetch.is_empty() || args.prefetch.cache.is_some() {
        bail!(
            "{NAME}: its scenes say whether the host has a cache: not with --prefetch or --cache"
        );
    }
    let mut words = vec!["arena".to_string()];
    words.push(format!("--seed={}", args.seed));
    words.push(format!("--seeds={}", args.seeds.unwrap_or(1)));
    words.extend(args.scenes.iter().map(|scenes| format!("--scenes={scenes}")));
    words.extend(args.policy.iter().map(|policy| format!("--policy={policy}")));
    words.extend(args.quick.then(|| "--quick".to_string()));
    let mut own = Words::try_parse_from(words).map_err(|e| anyhow!("{e}"))?.args;
    own.out = args.out.clone();
    run(&own)
}

/// The arena's arguments alone, with their defaults.
#[derive(Parser)]
struct Words {
    #[command(flatten)]
    args: ArenaArgs,
}

/// The policies of the command line, each once. `all` has those too that the arena's devices
/// set, unless a load of the user's own runs, on a device for which nobody has set them.
fn policies(args: &ArenaArgs, with_set: bool) -> Result<Vec<String>> {
    let mut policies = compare::policies(&args.policies, &NOBODY)?;
    if args.policies == "all" && with_set {
        policies.extend(arena::set_policies());
    }
    for extra in &args.extra {
        schedulers::build(extra).context("--policy")?;
        policies.push(extra.clone());
    }
    Ok(distinct(policies))
}

/// The scenes of the file that the arguments ask for.
fn written(args: &ArenaArgs, others: bool) -> Result<Vec<Scene>> {
    let others = others || args.drawn.or(args.drawn_everyday).is_some();
    let pattern = args.scenes.as_deref().or((!others).then_some("all"));
    pattern.map_or(Ok(Vec::new()), |pattern| chosen(pattern, args.quick))
}

/// Draws scenes: seed, count, and what times are divided by.
type Draws = fn(u64, u32, u64) -> Vec<Scene>;

fn drawn_scenes(args: &ArenaArgs, drawn: Drawn, draws: Draws) -> Vec<Scene> {
    draws(drawn.seed, drawn.count, shrink(args.quick))
}

fn shrink(quick: bool) -> u64 {
    if quick { QUICK } else { 1 }
}

fn chosen(pattern: &str, quick: bool) -> Result<Vec<Scene>> {
    let scenes = arena::scenes(pattern, shrink(quick));
    if scenes.is_empty() {
        let all = arena::scenes("all", 1);
        let known: Vec<&str> = all.iter().map(|scene| scene.name.as_str()).collect();
        bail!("--scenes {pattern}: no such scene; there are {}", known.join(", "));
    }
    Ok(scenes)
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Listed<'a> {
    scene: &'a str,
    about: &'a str,
    device: &'a str,
    /// Group of an everyday scene.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    vms: usize,
    settle_s: f64,
    measured_s: f64,
}

fn list(args: &ArenaArgs) -> Result<Verdict> {
    let mut scenes = written(args, false)?;
    let draws: [(Option<Drawn>, Draws); 2] =
        [(args.drawn, arena::drawn), (args.drawn_everyday, arena::drawn_everyday)];
    for (asked, draws) in draws {
        scenes.extend(asked.iter().flat_map(|drawn| drawn_scenes(args, *drawn, draws)));
    }
    let seconds = |span: Option<Nanos>| span.map_or(f64::NAN, Nanos::as_secs_f64);
    let rows: Vec<Listed<'_>> = scenes
        .iter()
        .map(|scene| Listed {
            scene: &scene.name,
            about: &scene.about,
            device: &scene.scenario.device,
            group: scene.group.as_deref(),
            vms: scene.scenario.vms.len(),
            settle_s: seconds(Some(scene.scenario.settle)),
            measured_s: seconds(scene.scenario.until) - seconds(Some(scene.scenario.settle)),
        })
        .collect();
    let table = Table::of("", &rows)
        .text("scene", |row| row.scene)
        .text("what happens", |row| row.about)
        .text("device", |row| row.device)
        .number("VMs", "", |row| row.vms)
        .number("settles", "s", |row| row.settle_s)
        .number("measured", "s", |row| row.measured_s)
        .done();
    output::print_as(args.out.format, &[table], &rows)?;
    Ok(Verdict::Done)
}

/// What one run gave, and the CPU time of its thread.
type Sample = (Figures, Option<f64>);

/// Runs all scenes under all policies with all seeds.
fn play(
    scenes: &[Scene],
    policies: &[String],
    seeds: &[u64],
    jobs: usize,
    cpu: bool,
) -> Result<Vec<Played>> {
    let alone = alone(scenes, seeds, jobs)?;
    let mut items = Vec::new();
    for (n, scene) in scenes.iter().enumerate() {
        for policy in policies {
            items.extend(
                seeds.iter().enumerate().map(|(s, &seed)| (scene, policy, seed, &alone[n][s])),
            );
        }
    }
    let bar = progress::runs(items.len() as u64, NAME);
    let samples: Vec<Sample> = runs::parallel(&items, jobs, |(scene, policy, seed, alone)| {
        let began = cpu.then(crate::cpu_time::of_this_thread).flatten();
        let made = runs::run_cell(&scene.cell(policy), *seed, &bar)?;
        let result = made.map_err(|e| anyhow!("{e}, seed {seed}"))?;
        let ended = cpu.then(crate::cpu_time::of_this_thread).flatten();
        let figures = figures(&scene.judging, &result, Some(alone));
        let took = began.zip(ended).map(|(began, ended)| ended.saturating_sub(began).get() as f64);
        // Like the time, of the whole run.
        let requests = (result.stats.requests as f64).max(1.0);
        Ok((figures, took.map(|took| took / requests)))
    })?;
    bar.finish_and_clear();
    let of_scene = samples.chunks(policies.len() * seeds.len());
    Ok(scenes.iter().zip(of_scene).map(|(scene, of)| played(scene, of, seeds.len())).collect())
}

fn played(scene: &Scene, samples: &[Sample], seeds: usize) -> Played {
    let runs: Vec<Figures> = samples.iter().map(|(figures, _)| figures.clone()).collect();
    let cpu = |of: &[Sample]| {
        let known: Option<Vec<f64>> = of.iter().map(|(_, cpu)| *cpu).collect();
        known.map(|known| known.iter().sum::<f64>() / known.len() as f64)
    };
    let (result, by_seed) = results(&scene.name, &scene.device, &runs, seeds);
    Played {
        about: scene.about.clone(),
        unit: scene.judging.unit,
        relative: true,
        medium: Some(scene.medium),
        group: scene.group.clone(),
        result,
        by_seed,
        cpu_ns: samples.chunks(seeds).map(cpu).collect(),
    }
}

/// A scene's results, the mean of all seeds and those of each. `runs` are by policy, and each
/// policy's by seed.
fn results(
    scene: &str,
    device: &str,
    runs: &[Figures],
    seeds: usize,
) -> (SceneResult, Vec<SceneResult>) {
    let result = |figures| SceneResult { scene: scene.into(), device: device.into(), figures };
    let of_seed = |seed| result(runs.iter().skip(seed).step_by(seeds).cloned().collect());
    let mean = result(runs.chunks(seeds).map(Figures::mean).collect());
    (mean, (0..seeds).map(of_seed).collect())
}

/// What each VM of each scene has alone, by seed. VMs that are equal on one device for
/// one time share a run.
fn alone(scenes: &[Scene], seeds: &[u64], jobs: usize) -> Result<Vec<Vec<Vec<Alone>>>> {
    let cells: Vec<Cell> = distinct(scenes.iter().flat_map(Scene::alone));
    let items: Vec<(&Cell, u64)> =
        cells.iter().flat_map(|cell| seeds.iter().map(move |&seed| (cell, seed))).collect();
    let bar = progress::runs(items.len() as u64, "each VM alone");
    let made = runs::parallel(&items, jobs, |(cell, seed)| {
        let result = runs::run_cell(cell, *seed, &bar)?;
        result.map(|run| Alone::of(&run)).map_err(|e| anyhow!("{e}, seed {seed}"))
    })?;
    bar.finish_and_clear();
    let place = |cell: Cell| cells.iter().position(|known| *known == cell).expect("all were run");
    let by_seed = scenes.iter().map(|scene| {
        let places: Vec<usize> = scene.alone().into_iter().map(place).collect();
        let of_seed = |seed: usize| {
            let alone = places.iter().map(|place| made[place * seeds.len() + seed]);
            scene.by_vm(&alone.collect::<Vec<Alone>>())
        };
        (0..seeds.len()).map(of_seed).collect()
    });
    Ok(by_seed.collect())
}

/// Scenes whose figures are of another load than they say.
fn ended_early(board: &Board) -> Vec<String> {
    let of_scene = |played: &Played| {
        let figures = board.policies.iter().zip(&played.result.figures);
        let ended = figures.filter(|(_, figures)| figures.ended_early);
        let under: Vec<&str> = ended.map(|(policy, _)| policy.as_str()).collect();
        (!under.is_empty()).then(|| {
            let (scene, under) = (&played.result.scene, under.join(", "));
            format!("{scene}: a VM's load was over before its run was, under {under}")
        })
    };
    board.scenes.iter().filter_map(of_scene).collect()
}

fn print(outcome: &Outcome, args: &ArenaArgs) -> Result<()> {
    let json = Json::new(outcome);
    let tables = match args.out.format {
        Format::Csv => vec![tables::flat(outcome)],
        _ => {
            let of = |board: &Board| {
                let mut all = vec![tables::scoreboard(outcome, board)];
                all.extend(tables::by_device(board));
                if args.details {
                    all.extend((0..board.scenes.len()).map(|n| tables::scene(board, n)));
                }
                all
            };
            outcome.boards().flat_map(of).chain(tables::by_group(outcome)).collect()
        }
    };
    output::print_as(args.out.format, &tables, &json)
}
