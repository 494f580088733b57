//! `seekway experiment`: run the papers' experiments and judge them.

mod machines;
mod page;

use super::arena;
use super::live::{self, ListEntry};
use crate::args::{ExperimentArgs, ExperimentCommand, Format, ListArgs, NoisyArgs, PrefetchArgs};
use crate::caching;
use crate::cpu_time;
use crate::json::Machine;
use crate::runs;
use crate::{Verdict, output, progress};
use anyhow::{Context, Result, bail};
use page::{page, section, table};
use seekway_policy::schedulers;
use seekway_policy::units::Nanos;
use seekway_policy::vcpu;
use seekway_report::html::Block;
use seekway_report::table::Table;
use seekway_sim::experiments::{
    self, Cell, Experiment, Extras, Options, REGISTRY, Results, Row, scene_names,
};
use seekway_sim::scenario::Cache;
use serde::Serialize;
use std::sync::Arc;

/// By how much `--quick` divides the work.
const QUICK: u64 = 10;
/// Seeds of an experiment unless they are given.
const SEEDS: u64 = 5;

/// The arena as `experiment list` shows it: it judges policies by each other, not papers.
const ARENA: ListEntry = ListEntry {
    name: arena::NAME,
    summary: "every policy in every scene: how far is each from the best of all?",
    source: "our own; its scenes: seekway arena --list",
    assumes: "clients of 60 µs between completion and next request, devices as modelled",
    loads: None,
};

pub fn run(command: &ExperimentCommand) -> Result<Verdict> {
    match command {
        ExperimentCommand::List(ListArgs { format }) => list(*format),
        ExperimentCommand::Run(args) => run_all(args),
    }
}

fn list(format: Format) -> Result<Verdict> {
    let simulated = REGISTRY.iter().map(|e| ListEntry {
        name: e.name,
        summary: &e.text().summary,
        source: &e.text().source,
        assumes: &e.text().assumes,
        loads: Some(format!("{:016x}", e.loads())),
    });
    let listed: Vec<ListEntry> =
        simulated.chain([ARENA, live::CATS, live::VPT, live::MIGRATE, live::NOISY]).collect();
    let table = Table::of("", &listed)
        .text("experiment", |l| l.name)
        .text("what it does", |l| l.summary)
        .text("where it comes from", |l| l.source)
        .done();
    output::print_as(format, &[table], &listed)?;
    Ok(Verdict::Done)
}

/// `experiment run --format json`: one document, or a list of several.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Ran {
    experiment: &'static str,
    seeds: Vec<u64>,
    /// Nothing that is asked of Seekway itself is missed. What became of the papers' claims is in
    /// the rows' verdicts.
    holds: bool,
    rows: Vec<RowJson>,
    notes: Vec<String>,
    assumes: &'static str,
    /// The runs whose VMs have vCPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    machines: Vec<Machine>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RowJson {
    name: String,
    paper: Option<f64>,
    ours: Option<f64>,
    range: (f64, f64),
    unit: &'static str,
    /// holds, exceeds, in part, refuted: of what the paper claims; measured: it claims nothing.
    verdict: &'static str,
    /// What is asked of Seekway itself, whatever the paper says: is it met? Null if nothing is.
    asked: Option<bool>,
    why: String,
}

impl RowJson {
    fn new(row: &Row) -> RowJson {
        RowJson {
            name: row.name.clone(),
            paper: row.paper,
            ours: row.ours.is_finite().then_some(row.ours),
            range: row.range,
            unit: row.unit,
            verdict: row.verdict.name(),
            asked: row.asked,
            why: row.why.clone(),
        }
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>> {
    let mut chosen: Vec<&'static Experiment> = Vec::new();
    for name in names {
        let found = experiments::matching(name);
        if found.is_empty() {
            let known = REGISTRY.iter().map(|e| e.name);
            let known: Vec<&str> =
                known.chain([arena::NAME]).chain(live::ONLY.iter().map(|e| e.name)).collect();
            bail!("no experiment '{name}'; there are {}", known.join(", "));
        }
        for e in found {
            if !chosen.iter().any(|c| c.name == e.name) {
                chosen.push(e);
            }
        }
    }
    Ok(chosen)
}

/// Its scenes are disks with a mix of VMs.
const TOGETHER: &str = "together";

fn run_all(args: &ExperimentArgs) -> Result<Verdict> {
    if args.names == [arena::NAME] {
        return arena::run_as_experiment(args);
    }
    let only_live = live::ONLY.iter().find(|e| args.names == [e.name]);
    fit_together(args)?;
    if let Some(only) = only_live
        && !args.live
    {
        bail!("{}", live::needs_live(only));
    }
    let chosen = if only_live.is_some() { Vec::new() } else { chosen(&args.names)? };
    let seeds = crate::load::seeds(args.seed, args.seeds.unwrap_or(SEEDS))?;
    if let Some(policy) = &args.policy {
        schedulers::build(policy).context("--policy")?;
    }
    if let Some(vcpu) = &args.vcpu {
        vcpu::build(vcpu).context("--vcpu")?;
    }
    let under = host_cache(&args.prefetch)?;
    if args.live {
        if under.is_some() {
            bail!("--prefetch, --cache: for the simulator only, not with --live");
        }
        if args.vcpu.is_some() && args.names != [live::MIGRATE.name] {
            bail!("--vcpu: not with --live, except for {}", live::MIGRATE.name);
        }
        let simulated = chosen.iter().map(|e| e.name);
        let names: Vec<&str> = simulated.chain(only_live.map(|only| only.name)).collect();
        return live::start(args, &names);
    }
    let options = options(args, &chosen)?;
    simulate(args, &chosen, &options, &seeds, under.as_ref())
}

/// Names and options that do not go together are refused.
fn fit_together(args: &ExperimentArgs) -> Result<()> {
    if args.names.iter().any(|name| name == arena::NAME) {
        bail!("{}: runs by itself, not with other experiments", arena::NAME);
    }
    let is_noisy = args.names == [live::NOISY.name];
    let has_scenes = is_noisy || args.names == [TOGETHER];
    if args.scenes.is_some() && !has_scenes {
        bail!(
            "--scenes: for {}, {} and {TOGETHER} only, each by itself",
            arena::NAME,
            live::NOISY.name
        );
    }
    if args.noisy != NoisyArgs::default() && !is_noisy {
        bail!("--servers, --seconds, --rounds, --work-dir: for {} only", live::NOISY.name);
    }
    Ok(())
}

/// How the chosen experiments run in the simulator.
fn options(args: &ExperimentArgs, chosen: &[&Experiment]) -> Result<Options> {
    let shrink = if args.quick { QUICK } else { 1 };
    let cpu_clock = cpu_time::of_this_thread().map(|_| clock as fn() -> Nanos);
    let options = Options { shrink, cpu_clock, scenes: args.scenes.clone() };
    if let Some(scenes) = &args.scenes
        && chosen.iter().all(|e| (e.cells)(&options).is_empty())
    {
        let known: Vec<String> = scene_names().collect();
        bail!(
            "--scenes {scenes}: no scene of {TOGETHER} has such a name; it has {}",
            known.join("; ")
        );
    }
    if args.vcpu.is_some() && !chosen.iter().any(|e| has_vcpus(e, &options)) {
        let known: Vec<&str> =
            REGISTRY.iter().filter(|e| has_vcpus(e, &options)).map(|e| e.name).collect();
        bail!("--vcpu: no vCPUs in what is to be run; they are in {}", known.join(", "));
    }
    Ok(options)
}

/// Run one experiment after the other, print each as it comes, and then the page.
fn simulate(
    args: &ExperimentArgs,
    chosen: &[&'static Experiment],
    options: &Options,
    seeds: &[u64],
    under: Option<&Cache>,
) -> Result<Verdict> {
    let extras = Extras { policy: args.policy.as_deref(), vcpu: args.vcpu.as_deref() };
    let mut sections = Vec::new();
    let mut ran = Vec::new();
    for &experiment in chosen {
        let cells = experiments::cells(experiment, options, extras);
        let jobs = runs::jobs(args.out.jobs);
        let results = run_cells(experiment, &cells, seeds, under, jobs)?;
        let findings = experiments::judge(experiment, options, extras, &results);
        if !matches!(args.out.format, Format::Json | Format::Csv) {
            // As they come: a long series is read while it runs.
            output::print_as(args.out.format, &[table(experiment, &findings)], "")?;
            output::print("\n")?;
        }
        let machines = machines(&cells, seeds, &results);
        if args.out.report.is_some() {
            let mut section = section(experiment, &findings, &results);
            section.blocks.extend(machines::table(&machines).map(Block::Table));
            sections.push(section);
        }
        ran.push(Ran {
            experiment: experiment.name,
            seeds: seeds.to_vec(),
            holds: findings.rows.iter().all(|r| r.asked != Some(false)),
            rows: findings.rows.iter().map(RowJson::new).collect(),
            notes: findings.notes,
            assumes: &experiment.text().assumes,
            machines,
        });
    }
    output::write_report(args.out.report.as_deref(), || page(sections, &ran, args.quick))?;
    print(&ran, args.out.format)?;
    let met = ran.iter().all(|r| r.holds);
    Ok(if met { Verdict::Done } else { Verdict::NotAccepted })
}

/// Do the VMs of an experiment have vCPUs, and policies for them?
fn has_vcpus(experiment: &Experiment, options: &Options) -> bool {
    (experiment.cells)(options).iter().any(|cell| cell.vcpu.is_some())
}

/// CPU time of this thread for experiments, which are given it only where the system tells it.
fn clock() -> Nanos {
    cpu_time::of_this_thread().unwrap_or(Nanos::ZERO)
}

/// The host cache under all cells that have none of their own.
fn host_cache(args: &PrefetchArgs) -> Result<Option<Cache>> {
    let mut caches = caching::caches(args)?;
    if caches.len() > 1 {
        bail!("--prefetch, --cache: one for all cells; run the experiment again for another");
    }
    Ok(caches.pop().flatten())
}

/// Run every cell with every seed; under those without a prefetcher of their own
/// lies `under`. They are findings as the cells that they are listed as.
fn run_cells(
    experiment: &Experiment,
    cells: &[Cell],
    seeds: &[u64],
    under: Option<&Cache>,
    jobs: usize,
) -> Result<Results> {
    let mut items = Vec::new();
    for cell in cells {
        let put = |cache: &Cache| cell.or_prefetch(&cache.prefetch, cache.size);
        let cell = under.map_or_else(|| cell.clone(), put);
        items.extend(seeds.iter().map(|&seed| (cell.clone(), seed)));
    }
    let bar = progress::runs(items.len() as u64, experiment.name);
    let made = runs::parallel(&items, jobs, |(cell, seed)| {
        let result = runs::run_cell(cell, *seed, &bar)?;
        result.map(Arc::new).map_err(|e| anyhow::anyhow!("{}, seed {seed}: {e}", experiment.name))
    })?;
    bar.finish_and_clear();
    let mut results = Results::default();
    for (cell, runs) in cells.iter().zip(made.chunks(seeds.len())) {
        results.insert(cell, runs.to_vec());
    }
    Ok(results)
}

/// The runs of those cells that are machines.
fn machines(cells: &[Cell], seeds: &[u64], results: &Results) -> Vec<Machine> {
    let of = |cell: &Cell| {
        let runs = seeds.iter().zip(results.of_cell(cell));
        runs.filter_map(|(&seed, run)| Machine::new(cell, seed, run)).collect::<Vec<_>>()
    };
    cells.iter().flat_map(of).collect()
}

fn print(ran: &[Ran], format: Format) -> Result<()> {
    match format {
        Format::Json | Format::Csv => match ran {
            [one] => output::print_as(format, &[flat(ran)], one),
            all => output::print_as(format, &[flat(ran)], all),
        },
        // Tables were printed as they came; the end is a summary.
        Format::Table | Format::Markdown => {
            let rows = || ran.iter().flat_map(|r| &r.rows);
            let of = |verdict| rows().filter(|r| r.verdict == verdict).count();
            let asked = |met| rows().filter(|r| r.asked == Some(met)).count();
            let [holds, exceeds, in_part, refuted] =
                ["holds", "exceeds", "in part", "refuted"].map(of);
            output::print(&format!(
                "rows beside a paper's figure: {holds} hold, {exceeds} exceed it, {in_part} in \
                 part, {refuted} refuted; asked of Seekway: {} met, {} missed\n",
                asked(true),
                asked(false),
            ))
        }
    }
}

fn flat(ran: &[Ran]) -> Table {
    let rows: Vec<(&Ran, &RowJson)> =
        ran.iter().flat_map(|r| r.rows.iter().map(move |row| (r, row))).collect();
    Table::of("", &rows)
        .text("experiment", |(r, _)| r.experiment)
        .text("row", |(_, row)| &row.name)
        .number("paper", "", |(_, row)| row.paper)
        .number("ours", "", |(_, row)| row.ours)
        .number("least", "", |(_, row)| row.range.0)
        .number("largest", "", |(_, row)| row.range.1)
        .text("unit", |(_, row)| row.unit)
        .text("verdict", |(_, row)| row.verdict)
        .text("asked", |(_, row)| row.asked.map_or("", |met| if met { "met" } else { "missed" }))
        .text("why", |(_, row)| &row.why)
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_once_and_unknown_ones_refused() {
        let names = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|s| s.to_string()).collect();
            chosen(&list).map(|c| c.len())
        };
        assert_eq!(names(&["all", "pregather-b"]).unwrap(), REGISTRY.len());
        let error = names(&["pregather-x"]).unwrap_err().to_string();
        assert!(error.contains("there are pregather-b"), "{error}");
    }
}
