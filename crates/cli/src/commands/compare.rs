//! `seekway compare`: one load, one disk, several stacks.

mod alone;
#[cfg(feature = "parquet")]
mod columns;
mod csv;
mod prefetching;
mod private;
mod tables;
mod vcpus;
mod warnings;

pub use warnings::warnings;

use crate::Verdict;
use crate::args::{Alone, CompareArgs, CompareFormat, FairTo, Format};
use crate::caller::Caller;
use crate::figures::{self, Shown};
use crate::json::{CompareReport, Demands, Run};
use crate::lists::{check_distinct, distinct};
use crate::load::{self, Load};
use crate::runs::{Outcome, Plan, Running, Stage};
use crate::stacks::{LimitsChoice, StackLists, StackNames, StackSpec};
use crate::{caching, host, output, progress};
use anyhow::{Context, Result, bail};
#[cfg(feature = "parquet")]
use arrow_array::RecordBatch;
use seekway_device::profile::Profile;
use seekway_policy::dispatcher::Config;
use seekway_policy::params::split_specs;
use seekway_policy::schedulers::REGISTRY;
use seekway_policy::units::Nanos;
use seekway_report::html::{Block, Report, Section};
use seekway_report::table::Table;
use seekway_workload::Recorded;
#[cfg(feature = "parquet")]
use seekway_workload::traces::columnar;
use std::io::IsTerminal;
#[cfg(feature = "parquet")]
use std::io::Write;
use std::path::Path;

/// Of a comparison's page.
pub const TITLE: &str = "Seekway: one load, several policies";
/// VMs with a figure of their own in the report.
const VMS_SHOWN: usize = 8;

/// What is compared, read and checked.
pub struct Asked {
    pub load: Load,
    pub disk: (Profile, Config),
    /// The disk as the command line names it.
    pub device: String,
    /// The stacks that compete.
    pub stacks: Vec<StackSpec>,
    pub seeds: Vec<u64>,
    /// What `--until` says.
    pub until: Option<Nanos>,
    /// When VMs are run alone as well.
    pub alone: Alone,
    /// What each VM's part is judged against.
    pub fair_to: FairTo,
    /// Does each run keep its journal?
    pub journal: bool,
}

/// Requests and figures of one comparison.
pub struct Comparison {
    /// The figures, as `--format json` prints them.
    pub compared: CompareReport,
    /// The runs themselves, in the same order.
    pub outcomes: Vec<Outcome>,
    /// Warnings that a reader needs before trusting a figure.
    pub warnings: Vec<String>,
}

pub fn run(args: &CompareArgs) -> Result<Verdict> {
    if args.out.format.text().is_none() && std::io::stdout().is_terminal() {
        bail!("--format parquet: its bytes are not for a terminal; write them with > FILE");
    }
    let made = made(args, &Running::shown(args.out.jobs))?;
    for warning in &made.warnings {
        eprintln!("warning: {warning}");
    }
    if let Some(dir) = &args.journal {
        write_journals(dir, made.compared.names, &made.outcomes)?;
    }
    output::write_report(args.out.report.as_deref(), || report(&made, TITLE))?;
    print(&made, args.out.format)?;
    Ok(Verdict::Done)
}

/// The comparison that the arguments ask for.
pub fn made(args: &CompareArgs, running: &Running<'_>) -> Result<Comparison> {
    compare(&Asked::new(args, running.caller)?, running)
}

impl Asked {
    fn new(args: &CompareArgs, caller: &Caller) -> Result<Asked> {
        let lists = StackLists {
            policies: policies(&args.policies, caller)?,
            caches: caching::caches(&args.prefetch)?,
            limits: limits(&args.limits)?,
            hosts: host::sharing(&args.sharing)?,
        };
        let stacks = lists.product()?;
        let seeds = load::seeds(args.seed, args.seeds)?;
        let until = args.until.as_deref().map(|t| load::duration("--until", t)).transpose()?;
        if let Some(dir) = &args.journal {
            std::fs::create_dir_all(dir).with_context(|| format!("--journal {}", dir.display()))?;
        }
        let load = Load::new(&args.load)?;
        Ok(Asked {
            stacks: for_load(stacks, &load)?,
            disk: load::disk(&args.disk)?,
            device: args.disk.device.clone(),
            load,
            seeds,
            until,
            alone: args.alone,
            fair_to: args.fair_to,
            journal: args.journal.is_some(),
        })
    }

    /// Where its runs are made.
    pub fn stage<'a>(&'a self, running: &'a Running<'_>) -> Stage<'a> {
        let stage = Stage::new(&self.load, &self.disk, &self.stacks, self.until, running);
        Stage { journal: self.journal, ..stage }
    }
}

/// The requests of one run of a comparison, by its number in [`CompareReport::runs`], in the order
/// of their completion, with the VMs' names.
///
/// # Errors
/// As the comparison's, or there is no such run.
pub fn requests(
    args: &CompareArgs,
    running: &Running<'_>,
    number: usize,
) -> Result<(Vec<String>, Vec<Recorded>)> {
    let asked = Asked::new(args, running.caller)?;
    let plans = Plan::all(&asked.stacks, &asked.seeds);
    let Some(plan) = plans.get(number) else {
        bail!("run {number}: the comparison has {} runs, counted from 0", plans.len());
    };
    let total = asked.load.requests();
    let bar = running.bar.clone().unwrap_or_else(|| progress::requests(total, "running"));
    let stage = Stage { journal: false, ..asked.stage(running) };
    let recorded = stage.recorded(plan, &bar)?;
    bar.finish_and_clear();
    Ok((asked.load.disks.iter().map(|disk| disk.name.clone()).collect(), recorded))
}

/// The policies that `--policies` names, checked.
pub fn policies(list: &str, caller: &Caller) -> Result<Vec<String>> {
    if list == "all" {
        return Ok(REGISTRY.iter().map(|e| e.name.to_string()).collect());
    }
    let specs = split_specs(list);
    if specs.is_empty() {
        bail!("--policies: name at least one, or `all`");
    }
    for spec in &specs {
        if !caller.has(spec) {
            caller.build(spec).context("--policies")?;
        }
    }
    Ok(specs)
}

/// The choices that `--limits` lists, each once.
fn limits(list: &[LimitsChoice]) -> Result<Vec<LimitsChoice>> {
    check_distinct("--limits", list, |choice| choice.name().to_string())?;
    Ok(list.to_vec())
}

/// The stacks for a load: one without limits has none that could hold.
fn for_load(mut stacks: Vec<StackSpec>, load: &Load) -> Result<Vec<StackSpec>> {
    if load.is_limited() {
        return Ok(stacks);
    }
    if stacks.iter().any(|stack| stack.limits != stacks[0].limits) {
        bail!("--limits given,none: no VM has a limit, both are the same; give --vm iops=N,…");
    }
    stacks.iter_mut().for_each(|stack| stack.limits = LimitsChoice::Dropped);
    Ok(stacks)
}

/// Makes all runs of a comparison.
pub fn compare(asked: &Asked, running: &Running<'_>) -> Result<Comparison> {
    let Asked { load, stacks, .. } = asked;
    let stage = asked.stage(running);
    let mut private = match asked.fair_to {
        FairTo::Alone => None,
        FairTo::Private => Some(private::check(&stage, asked.alone)?),
    };
    let plans = Plan::all(stacks, &asked.seeds);
    let bar = stage.bar(plans.len(), "comparing");
    let outcomes = stage.run_all(&plans, &bar)?;
    let demands = demands(&stage, asked, &outcomes)?;
    if let Some(disks) = &mut private {
        disks.run(&stage, &plans)?;
    }
    bar.finish_and_clear();
    let weights: Vec<f64> = load.weights.iter().map(|w| f64::from(w.get())).collect();
    let run = |o: &Outcome| Run::new(o, of_limits(&demands, o.plan.stack.limits), &weights);
    let mut runs: Vec<Run> = outcomes.iter().map(run).collect();
    for (run, outcome) in runs.iter_mut().zip(&outcomes) {
        if asked.seeds.len() > 1 {
            run.label = format!("{} #{}", run.label, run.seed);
        }
        let demands = of_limits(&demands, outcome.plan.stack.limits);
        private.iter().for_each(|disks| disks.judge(run, outcome, demands, load));
    }
    let warnings = warnings(load, &outcomes, asked.until);
    let unknown = demands.iter().find_map(|(_, demands)| match demands {
        Demands::Unknown(why) => Some(why.clone()),
        Demands::Known(_) | Demands::Equal => None,
    });
    let beyond_disk = |stack: &StackSpec| stack.cache.is_some() || stack.host.is_some();
    let known = demands.iter().any(|(_, demands)| matches!(demands, Demands::Known(_)));
    let explain = known && !load.open_loop && stacks.iter().any(beyond_disk);
    let compared = CompareReport {
        device: asked.device.clone(),
        names: stage.names,
        same: stage.names.same(stacks),
        demand_note: explain.then_some(alone::NOTE),
        runs,
        no_fairness: unknown,
    };
    Ok(Comparison { compared, outcomes, warnings })
}

/// What VMs ask for, for each choice of limits that any run has.
fn demands(
    stage: &Stage<'_>,
    asked: &Asked,
    outcomes: &[Outcome],
) -> Result<Vec<(LimitsChoice, Demands)>> {
    let of = |limits| {
        let demands = alone::demands(stage, outcomes, limits, asked.seeds[0], asked.alone);
        Ok((limits, demands?))
    };
    distinct(asked.stacks.iter().map(|stack| stack.limits)).into_iter().map(of).collect()
}

fn of_limits(demands: &[(LimitsChoice, Demands)], limits: LimitsChoice) -> &Demands {
    let found = demands.iter().find(|(known, _)| *known == limits);
    &found.expect("every run's limits are among the stacks'").1
}

fn write_journals(dir: &Path, names: StackNames, outcomes: &[Outcome]) -> Result<()> {
    for outcome in outcomes {
        let keep = |c: char| if c.is_ascii_alphanumeric() || "=.+-".contains(c) { c } else { '_' };
        let label = names.for_files().label(&outcome.plan.stack).replace(" + ", "+");
        let label: String = label.chars().map(keep).collect();
        let path = dir.join(format!("{label}.{}.journal", outcome.plan.seed));
        output::write_file(&path, |out| out.write_all(outcome.journal.as_bytes()))?;
    }
    Ok(())
}

/// Print the result in the format asked for.
fn print(made: &Comparison, format: CompareFormat) -> Result<()> {
    let Some(format) = format.text() else { return print_parquet(made) };
    let tables = match format {
        Format::Csv => vec![csv::flat(&made.compared)],
        _ => tables(&made.compared),
    };
    output::print_as(format, &tables, &made.compared)
}

#[cfg(feature = "parquet")]
fn print_parquet(made: &Comparison) -> Result<()> {
    let batch = batch(made)?;
    let mut bytes = Vec::new();
    columnar::write(batch.schema(), std::iter::once(Ok(batch)), &mut bytes)?;
    let mut out = std::io::stdout().lock();
    out.write_all(&bytes).and_then(|()| out.flush()).context("standard output")
}

#[cfg(not(feature = "parquet"))]
fn print_parquet(_: &Comparison) -> Result<()> {
    bail!("this program was built without the feature parquet")
}

/// The table of `--format csv` in typed columns.
#[cfg(feature = "parquet")]
pub fn batch(made: &Comparison) -> Result<RecordBatch> {
    columns::batch(&csv::flat(&made.compared))
}

/// The result as `--format csv` prints it.
pub fn csv(made: &Comparison) -> Result<String> {
    let mut text = Vec::new();
    csv::flat(&made.compared).write_csv(&mut text)?;
    Ok(String::from_utf8(text)?)
}

/// All VMs together, each VM, time withheld by cause.
pub fn tables(compared: &CompareReport) -> Vec<Table> {
    let mut all = vec![tables::totals(compared)];
    if tables::ended_early(compared) || compared.runs.iter().any(|r| r.vms.len() > 1) {
        all.push(tables::by_vm(compared));
    }
    all.extend(tables::withheld(compared));
    all.extend(vcpus::table(compared));
    all.extend(prefetching::totals(compared));
    all
}

/// The best run by a figure, and the figure.
fn best(compared: &CompareReport, figure: impl Fn(&Run) -> f64) -> Option<(&Run, f64)> {
    let finite = compared.runs.iter().map(|r| (r, figure(r)));
    finite.filter(|(_, v)| v.is_finite()).min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The result in a sentence.
fn sentence(compared: &CompareReport) -> String {
    let mut parts = Vec::new();
    if let Some((run, ms)) = best(compared, |r| r.response_ms.mean) {
        let (policy, worst) = (&run.label, run.response_ms.max / 1e3);
        parts.push(format!(
            "{policy} answers fastest in the mean ({ms:.2} ms, at worst {worst:.1} s)"
        ));
    }
    if let Some((run, ms)) = best(compared, |r| r.response_ms.p999) {
        parts.push(format!("{} has the shortest tail (p99.9 {ms:.1} ms)", run.label));
    }
    if let Some((run, negative)) = best(compared, |r| -r.mib_s) {
        parts.push(format!("{} moves most ({:.2} MiB/s)", run.label, -negative));
    }
    let n = compared.runs.len();
    format!("Of {n} runs on {}: {}.", compared.device, parts.join("; "))
}

/// The page of a comparison.
pub fn report(made: &Comparison, title: &str) -> Report {
    let compared = &made.compared;
    let seed = compared.runs.first().map_or(0, |r| r.seed);
    // Figures show the runs of the first seed: one line for each stack.
    let shown = made.outcomes.iter().filter(|o| o.plan.seed == seed);
    let shown: Vec<Shown<'_>> = shown.map(|o| (o.label.as_str(), &o.result)).collect();
    let mut result: Vec<Block> = made.warnings.iter().cloned().map(Block::Warning).collect();
    result.extend(tables(compared).into_iter().map(Block::Table));
    result.extend(prefetching::by_process(compared).map(Block::Table));
    let mut sections = vec![Section::new("Result", result)];
    sections.extend(private::section(compared, seed));
    sections.extend(pictures(&shown));
    let about = [("Disk", compared.device.clone()), ("Seed", seed.to_string())];
    output::report(title, sentence(compared), about, sections)
}

fn pictures(shown: &[Shown<'_>]) -> Vec<Section> {
    let Some((first, result)) = shown.first() else { return Vec::new() };
    let vms = &result.vms;
    let each = if vms.len() > 1 { &vms[..vms.len().min(VMS_SHOWN)] } else { &[] };
    let places = vec![
        Block::figure(
            figures::places(result),
            format!("Where each VM's requests went as they arrived (under {first})."),
        ),
        Block::figure(
            figures::seeks(shown),
            "Seek distances from command to command. A tall middle is a head that stayed where it \
             was.",
        ),
    ];
    let mut responses = vec![Block::figure(
        figures::responses(shown),
        "Response times of all requests; the axis stretches the tail.",
    )];
    for (n, vm) in each.iter().enumerate() {
        let caption = format!("Response times of {}.", vm.name);
        responses.push(Block::figure(figures::responses_of_vm(shown, n), caption));
    }
    let total = figures::total_bandwidth(shown);
    let mut bandwidth = vec![Block::figure(total, "Bandwidth of all VMs together.")];
    for (label, result) in shown.iter().filter(|_| !each.is_empty()) {
        let caption = format!("Bandwidth of each VM under {label}.");
        bandwidth.push(Block::figure(figures::bandwidth(result), caption));
    }
    vec![
        Section::new("Where the requests go", places),
        Section::new("Response times", responses),
        Section::new("Bandwidth over time", bandwidth),
    ]
}
