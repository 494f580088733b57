//! `seekway compare`: one load, one disk, several stacks.

mod page;
mod private;
pub mod tables;

pub use page::report;

use crate::args::{CompareArgs, Format, LimitsArg};
use crate::json::{CompareReport, Demands, Run};
use crate::load::{self, check_distinct, distinct};
use crate::ranked::better;
use crate::runs::{self, Caller, NOBODY, Outcome, Running, Stage, with_seeds};
use crate::stacks::{self, StackLists, StackNames};
use crate::{Verdict, output, toml_text};
use anyhow::{Context, Result, bail};
use seekway_core::params::split_specs;
use seekway_core::units::Nanos;
use seekway_policy::schedulers::REGISTRY;
use seekway_report::table::Table;
use seekway_sim::RunResult;
use seekway_sim::scenario::read::study_of_file;
use seekway_sim::scenario::tables::Values;
use seekway_sim::scenario::{FairTo, LimitsChoice, Load, Measure, Ready, Scenario, Study, Wanted};
use seekway_workload::Recorded;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Of a comparison's page.
pub const TITLE: &str = "Seekway: one load, several policies";
/// Longest name of a journal without its seed: file systems take 255 bytes.
const JOURNAL_NAME_MAX: usize = 200;

/// One load on one device with the stacks that compete, read and checked.
pub struct Asked {
    pub ready: Ready,
    /// The stacks that compete.
    pub stacks: Vec<Scenario>,
    pub seeds: Vec<u64>,
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
    if args.print_scenario {
        let (base, lists, seeds) = described(args, &NOBODY)?;
        output::print(&toml_text::scenario(&base, &lists, &seeds)?)?;
        return Ok(Verdict::Done);
    }
    let made = made(args, &Running::shown(args.out.jobs))?;
    for warning in made.iter().flat_map(|made| &made.warnings) {
        eprintln!("warning: {warning}");
    }
    let mut written = HashSet::new();
    for made in &made {
        if let Some(dir) = &args.journal {
            write_journals(dir, &made.compared, &made.outcomes, &mut written)?;
        }
    }
    output::write_report(args.out.report.as_deref(), || report(&made, TITLE))?;
    print(&made, args.out.format)?;
    Ok(Verdict::Done)
}

/// The comparisons that the arguments ask for: one, or those of a scenario, by loads and devices.
pub fn made(args: &CompareArgs, running: &Running<'_>) -> Result<Vec<Comparison>> {
    let asked = Asked::all(args, running.caller)?;
    asked.iter().map(|asked| compare(asked, running)).collect()
}

/// Reads a command line without a scenario: the part that all runs have in common, the stacks, and
/// the seeds.
fn described(args: &CompareArgs, caller: &Caller) -> Result<(Scenario, StackLists, Vec<u64>)> {
    let lists = StackLists {
        policies: policies(args.runs.policies.as_deref().unwrap_or("all"), caller)?,
        caches: stacks::caches(&args.prefetch)?,
        limits: limits(&args.limits)?,
        hosts: stacks::sharing(&args.sharing)?,
    };
    let base = Scenario {
        measure: load::measure(args.runs.until.as_deref())?,
        outcome: Wanted {
            alone: args.alone.into(),
            fair_to: args.fair_to.into(),
            ..Wanted::default()
        },
        ..load::on_disk(&args.disk.device, &args.disk.dispatch, load::scenario(&args.load)?)?
    };
    Ok((base, lists, load::seeds(&args.runs)?))
}

/// Reads a scenario, with the options that replace a part of it: stacks with their seeds.
fn of_file(path: &Path, args: &CompareArgs, caller: &Caller) -> Result<Vec<Study>> {
    let mut all = study_of_file(path)?;
    let measure = load::measure(args.runs.until.as_deref())?;
    let untils = distinct(all.iter().map(|study| study.scenario.measure.until));
    if measure.until.is_some() && untils.len() > 1 {
        let path = path.display();
        bail!("--until: {path} has several measure.until; give one there, or leave --until out");
    }
    let are_given = args.runs.seed.is_some() || args.runs.seeds.is_some();
    let seeds = are_given.then(|| load::seeds(&args.runs)).transpose()?;
    for study in &mut all {
        study.scenario.measure.until = measure.until.or(study.scenario.measure.until);
        study.seeds = seeds.clone().unwrap_or_else(|| study.seeds.clone());
    }
    if let Some(list) = &args.runs.policies {
        let under = |study: &Study, policy: &String| Study {
            scenario: study.scenario.under(policy),
            seeds: study.seeds.clone(),
        };
        let policies = policies(list, caller)?;
        all = distinct(policies.iter().flat_map(|p| all.iter().map(|study| under(study, p))));
    }
    for study in &all {
        let policy = &study.scenario.policy;
        if !caller.has(policy) {
            caller.build(policy).with_context(|| format!("{}: policy", path.display()))?;
        }
    }
    Ok(all)
}

impl Asked {
    /// All comparisons that the arguments ask for: one for each load and device.
    fn all(args: &CompareArgs, caller: &Caller) -> Result<Vec<Asked>> {
        let Some(path) = &args.file else {
            let (base, lists, seeds) = described(args, caller)?;
            let stacks = lists.product(&keeping(args.journal.as_deref(), base)?)?;
            return Ok(vec![Asked::of(stacks, seeds)?]);
        };
        let mut studies = of_file(path, args, caller)?;
        for study in &mut studies {
            study.scenario = keeping(args.journal.as_deref(), study.scenario.clone())?;
        }
        Asked::of_studies(studies).with_context(|| path.display().to_string())
    }

    /// One comparison for each load and device.
    pub fn of_studies(studies: Vec<Study>) -> Result<Vec<Asked>> {
        let mut groups: Vec<(Scenario, Vec<Scenario>, Vec<u64>)> = Vec::new();
        for Study { scenario, seeds } in studies {
            let base = scenario.base();
            match groups.iter_mut().find(|(known, _, of)| *known == base && *of == seeds) {
                Some((_, stacks, _)) => stacks.push(scenario),
                None => groups.push((base, vec![scenario], seeds)),
            }
        }
        groups.into_iter().map(|(_, stacks, seeds)| Asked::of(stacks, seeds)).collect()
    }

    /// Reads and checks what the stacks, of which there is at least one, have in common.
    pub fn of(stacks: Vec<Scenario>, seeds: Vec<u64>) -> Result<Asked> {
        let ready = load::ready(&stacks[0])?;
        let stacks = for_load(stacks, &ready.load)?;
        let names = StackNames::of(&stacks);
        let mut labels: Vec<String> = stacks.iter().map(|stack| names.label(stack)).collect();
        labels.sort_unstable();
        if let Some(two) = labels.windows(2).find(|two| two[0] == two[1] && stacks.len() > 1)
            && distinct(stacks.iter()).len() == stacks.len()
        {
            bail!(
                "two runs would both be called '{}': they differ in keys that names do not show \
                 (cache.costs, cpu.guest, cpu.detector, cpu.costs, cpu.without); make each a \
                 [[case]] with a name",
                two[0]
            );
        }
        Ok(Asked { stacks, ready, seeds })
    }

    /// The part that all stacks have in common.
    fn base(&self) -> &Scenario {
        &self.stacks[0]
    }

    /// Where its runs are made.
    pub fn stage<'a>(&'a self, running: &'a Running<'_>) -> Stage<'a> {
        Stage::new(&self.ready, &self.stacks, running)
    }
}

/// With a journal of each run, if there is a folder for it.
fn keeping(dir: Option<&Path>, mut scenario: Scenario) -> Result<Scenario> {
    if let Some(dir) = dir {
        std::fs::create_dir_all(dir).with_context(|| format!("--journal {}", dir.display()))?;
        scenario.outcome.journal = true;
    }
    Ok(scenario)
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
    let all = Asked::all(args, running.caller)?;
    let of = |asked: &Asked| with_seeds(&asked.stacks, &asked.seeds);
    let mut runs = all.iter().flat_map(|asked| of(asked).into_iter().map(move |run| (asked, run)));
    let Some((asked, scenario)) = runs.nth(number) else {
        let count: usize = all.iter().map(|asked| of(asked).len()).sum();
        bail!("run {number}: the comparison has {count} runs, counted from 0");
    };
    let load = &asked.ready.load;
    let total = load.requests();
    let bar = running.bar.clone().unwrap_or_else(|| runs::requests(total, "running"));
    let recorded = asked.stage(running).recorded(&scenario, &bar)?;
    bar.finish_and_clear();
    Ok((load.disks.iter().map(|disk| disk.name.clone()).collect(), recorded))
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
fn limits(list: &[LimitsArg]) -> Result<Vec<LimitsChoice>> {
    let list: Vec<LimitsChoice> = list.iter().map(|choice| (*choice).into()).collect();
    check_distinct("--limits", &list, |choice| choice.name().to_string())?;
    Ok(list)
}

/// The stacks for a load: one without limits has none that could hold.
fn for_load(mut stacks: Vec<Scenario>, load: &Load) -> Result<Vec<Scenario>> {
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
    let Asked { ready: Ready { load, .. }, stacks, .. } = asked;
    let (stage, wanted) = (asked.stage(running), &asked.base().outcome);
    let mut private = match wanted.fair_to {
        FairTo::Alone => None,
        FairTo::Private => Some(private::check(&stage, stacks, wanted.alone)?),
    };
    let runs = with_seeds(stacks, &asked.seeds);
    let bar = stage.bar(runs.len(), "comparing");
    let outcomes = stage.run_all(&runs, &bar)?;
    let demands = demands(&stage, asked, &outcomes)?;
    if let Some(disks) = &mut private {
        disks.run(&stage, &runs)?;
    }
    bar.finish_and_clear();
    let weights: Vec<f64> = load.weights.iter().map(|w| f64::from(w.get())).collect();
    let run = |o: &Outcome| Run::new(o, of_limits(&demands, o.scenario.limits), &weights);
    let mut runs: Vec<Run> = outcomes.iter().map(run).collect();
    for (run, outcome) in runs.iter_mut().zip(&outcomes) {
        if asked.seeds.len() > 1 {
            run.label = format!("{} #{}", run.label, run.seed);
        }
        let demands = of_limits(&demands, outcome.scenario.limits);
        private.iter().for_each(|disks| disks.judge(run, outcome, demands, load));
    }
    let warnings = warnings(load, &Signs::all(&outcomes), &asked.base().measure);
    let unknown = demands.iter().find_map(|(_, demands)| match demands {
        Demands::Unknown(why) => Some(why.clone()),
        Demands::Known(_) | Demands::Equal => None,
    });
    let beyond_disk = |stack: &Scenario| stack.cache.is_some() || stack.cpu.is_some();
    let known = demands.iter().any(|(_, demands)| matches!(demands, Demands::Known(_)));
    let explain = known && !load.open_loop && stacks.iter().any(beyond_disk);
    let compared = CompareReport {
        scenario: Some(asked.base().name.clone()).filter(|name| !name.is_empty()),
        device: asked.base().device.shown(),
        names: stage.names,
        same: stage.names.same(stacks),
        is_open_loop: load.open_loop,
        demand_note: explain.then_some(private::NOTE),
        runs,
        no_fairness: unknown,
    };
    Ok(Comparison { compared, outcomes, warnings })
}

/// Finds the demand of VMs, for each choice of limits that any run has.
fn demands(
    stage: &Stage<'_>,
    asked: &Asked,
    outcomes: &[Outcome],
) -> Result<Vec<(LimitsChoice, Demands)>> {
    let others = outcomes.iter().any(|o| o.result.vms.len() != asked.ready.load.disks.len());
    let of = |limits| {
        if others {
            let why = "a run has other VMs than the load (only, cpu.part)";
            return Ok((limits, Demands::Unknown(why.into())));
        }
        let alone = Scenario { limits, seed: asked.seeds[0], ..asked.base().clone() };
        Ok((limits, private::demands(stage, outcomes, &alone)?))
    };
    distinct(asked.stacks.iter().map(|stack| stack.limits)).into_iter().map(of).collect()
}

fn of_limits(demands: &[(LimitsChoice, Demands)], limits: LimitsChoice) -> &Demands {
    let found = demands.iter().find(|(known, _)| *known == limits);
    &found.expect("every run's limits are among the stacks'").1
}

/// Writes the journals of a comparison. `written` are those of others, which are not overwritten.
fn write_journals(
    dir: &Path,
    of: &CompareReport,
    outcomes: &[Outcome],
    written: &mut HashSet<PathBuf>,
) -> Result<()> {
    for outcome in outcomes {
        let keep = |c: char| if c.is_ascii_alphanumeric() || "=.+-".contains(c) { c } else { '_' };
        let label = of.names.for_files().label(&outcome.scenario).replace(" + ", "+");
        let scenario = of.scenario.iter().map(|name| format!("{name}."));
        let label: String = scenario.collect::<String>() + &label;
        let label: String = label.chars().map(keep).collect();
        let label = &label[..label.len().min(JOURNAL_NAME_MAX)];
        let seed = outcome.scenario.seed;
        let mut path = dir.join(format!("{label}.{seed}.journal"));
        for n in 2.. {
            if written.insert(path.clone()) {
                break;
            }
            path = dir.join(format!("{label}.{seed}.{n}.journal"));
        }
        output::write_file(&path, |out| out.write_all(outcome.journal.as_bytes()))?;
    }
    Ok(())
}

/// Print the result in the format asked for.
fn print(made: &[Comparison], format: Format) -> Result<()> {
    let tables: Vec<Table> = match format {
        Format::Csv => vec![tables::flat(&compared(made))],
        _ => made.iter().flat_map(|made| tables(&made.compared)).collect(),
    };
    match made {
        [one] => output::print_as(format, &tables, &one.compared),
        several => output::print_as(format, &tables, &compared(several)),
    }
}

fn compared(made: &[Comparison]) -> Vec<&CompareReport> {
    made.iter().map(|made| &made.compared).collect()
}

/// As `--format json` prints it: of several comparisons a list.
pub fn json(made: &[Comparison]) -> Result<String> {
    Ok(match made {
        [one] => serde_json::to_string(&one.compared)?,
        several => serde_json::to_string(&compared(several))?,
    })
}

/// The table of `--format csv` in typed columns.
pub fn columns(made: &[Comparison]) -> Vec<(String, Values)> {
    tables::of(tables::flat(&compared(made)))
}

/// The result as `--format csv` prints it.
pub fn csv(made: &[Comparison]) -> Result<String> {
    let mut text = Vec::new();
    tables::flat(&compared(made)).write_csv(&mut text)?;
    Ok(String::from_utf8(text)?)
}

/// All VMs together, each VM, time withheld by cause.
pub fn tables(compared: &CompareReport) -> Vec<Table> {
    let mut all = vec![tables::totals(compared)];
    if tables::ended_early(compared) || compared.runs.iter().any(|r| r.vms.len() > 1) {
        all.push(tables::by_vm(compared));
    }
    all.extend(tables::withheld(compared));
    all.extend(tables::table(compared));
    all.extend(tables::cache_totals(compared));
    for table in &mut all {
        table.mark_best(|column| better(&column.name));
        if let Some(name) = &compared.scenario {
            table.title = format!("{name}: {}", table.title);
        }
    }
    all
}

// Warnings: reasons to doubt the figures of a comparison.

/// Signs of a run that warnings are made of.
pub struct Signs {
    label: String,
    policy: String,
    limits: LimitsChoice,
    outstanding_max: usize,
    forced: u64,
    finished: bool,
}

impl Signs {
    /// Of a run that tables call `label`.
    pub fn new(label: String, scenario: &Scenario, result: &RunResult) -> Signs {
        Signs {
            label,
            policy: scenario.policy.clone(),
            limits: scenario.limits,
            outstanding_max: result.outstanding_max,
            forced: result.stats.forced,
            finished: result.finished,
        }
    }

    /// Of each of these runs.
    pub fn all(outcomes: &[Outcome]) -> Vec<Signs> {
        outcomes.iter().map(|o| Signs::new(o.label.clone(), &o.scenario, &o.result)).collect()
    }
}

/// Warnings that a reader needs before trusting a figure.
pub fn warnings(load: &Load, runs: &[Signs], measure: &Measure) -> Vec<String> {
    let until = measure.until.map(|time| time.0);
    let mut warnings = Vec::new();
    if let (None, Some(vm)) = (until, load.endless()) {
        warnings.push(format!(
            "VM {vm}'s load does not end by itself: each run stops at {} (see --until)",
            load::RUN_DEFAULT
        ));
    }
    // Joins the warnings of runs that have one.
    let told = |of: &dyn Fn(&Signs) -> Option<String>| {
        let told: Vec<String> = runs.iter().filter_map(of).collect();
        (!told.is_empty()).then(|| told.join(", "))
    };
    let named = |o: &Signs, is_so: bool| is_so.then(|| o.label.clone());
    if let Some(limit) = load.stalls_at()
        && let Some(full) = told(&|o| named(o, o.outstanding_max >= limit))
    {
        warnings.push(format!(
            "the disk could not keep up with the trace's clock under {full}: {limit} requests were \
             outstanding and the clock waited; response times then measure the backlog \
             (try --time-scale 2 or --outstanding)"
        ));
    }
    let limits = load.limits.iter().map(|l| &l.limits);
    let limits: Vec<_> = limits.chain(load.groups.iter().map(|(_, limits)| limits)).collect();
    let broken = |o: &Signs| {
        let keys = stacks::targets_not_kept(&o.policy, limits.iter().copied());
        let is_broken = o.limits == LimitsChoice::Given && !keys.is_empty();
        is_broken.then(|| format!("{} ({})", o.label, keys.join(", ")))
    };
    if let Some(broken) = told(&broken) {
        let keepers = stacks::target_keepers();
        warnings.push(format!("these policies do not keep all promises, {keepers} does: {broken}"));
    }
    let forced = |o: &Signs| {
        let forced = o.forced;
        (forced > 0).then(|| format!("{} ({forced})", o.label))
    };
    if let Some(forced) = told(&forced) {
        warnings.push(format!(
            "requests waited past the hard limit and were forced out under {forced}"
        ));
    }
    let ends = load.until(until, Nanos::ZERO).is_none() && measure.requests.is_none();
    if let Some(unfinished) = told(&|o| named(o, ends && !o.finished)) {
        warnings.push(format!("the load did not come to its end under {unfinished}"));
    }
    warnings
}
