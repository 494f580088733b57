//! `seekway experiment run NAME --live`: real guests on the daemon, beside the
//! simulator with the same guests and loads. pregather-read runs sysbench in
//! them, the others their own load ([`scene`]).

mod migrate;
mod procs;
mod scene;

pub(super) use migrate::{ONLY, run as run_only};

use crate::args::ExperimentArgs;
use crate::{Verdict, output, progress};
use anyhow::{Context, Result, bail};
use seekway_live::Accelerator;
use seekway_live::experiment::{self, LiveResults, Options, PolicyFigures};
use seekway_policy::units::{Lba, Nanos, Sectors};
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars};
use seekway_report::table::{Cell as TableCell, Column, Table};
use seekway_sim::RunResult;
use seekway_sim::experiments::{Cell, Experiment, HostSetup, Scenario, run_cell};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// The experiment that runs on real guests too.
const NAME: &str = "pregather-read";
/// Against which others are shown.
const BASE: &str = "cfq";
/// The daemon's default.
const COALESCE: Sectors = Sectors::new(1024);
const WINDOW: Duration = Duration::from_secs(20);
const QUICK: Duration = Duration::from_secs(5);

/// Run the command.
pub fn run(args: &ExperimentArgs, chosen: &[&Experiment]) -> Result<Verdict> {
    let names: Vec<&str> = chosen.iter().map(|e| e.name).collect();
    if let [name] = names[..]
        && let Some(live) = scene::SCENES.iter().find(|s| s.experiment == name)
    {
        return scene::run(args, live);
    }
    if names == [procs::NAME] {
        return procs::run(args);
    }
    if names != [NAME] {
        let scenes = scene::SCENES.iter().map(|s| s.experiment);
        let others: Vec<&str> = scenes.chain([procs::NAME]).collect();
        let known = others.join(", ");
        let asked = names.join(", ");
        bail!("--live: {NAME}, {known} run on real guests, one at a time, not {asked}");
    }
    let mut policies = vec![BASE.to_string(), "pregather".to_string()];
    policies.extend(args.policy.clone().filter(|p| !policies.contains(p)));
    let options = Options {
        program: std::env::current_exe().context("the path of this program")?,
        policies,
        window: if args.quick { QUICK } else { WINDOW },
        accelerator: if args.kvm { Accelerator::Kvm } else { Accelerator::Tcg },
        seed: args.seed,
    };
    let bar = progress::steps(NAME);
    let results = experiment::run(&options, &mut |step| bar.set_message(step.to_string()));
    let results = results.context("--live")?;
    bar.set_message("the simulator");
    let simulated = simulate(&results, args.seed)?;
    bar.finish_and_clear();
    let pairs: Vec<Pair<'_>> =
        results.runs.iter().zip(&simulated).map(|(live, sim)| Pair { live, sim }).collect();
    let (totals, vms) = (totals(&pairs, &results), each_vm(&pairs));
    if let Some(path) = &args.out.report {
        let report = page(&pairs, totals.clone(), vms.clone(), args.quick);
        output::write_file(path, |out| report.write_html(out))?;
        eprintln!("report: {}", path.display());
    }
    let json: Vec<Ran> = pairs.iter().map(Ran::new).collect();
    output::print_as(args.out.format, &[totals, vms], &json)?;
    Ok(Verdict::Done)
}

/// One policy, measured and simulated.
struct Pair<'a> {
    live: &'a PolicyFigures,
    sim: &'a RunResult,
}

/// The same load in the simulator, over a run as long as the window.
fn simulate(results: &LiveResults, seed: u64) -> Result<Vec<RunResult>> {
    let window = u64::try_from(results.window.as_nanos()).context("the window")?;
    let scenario = Arc::new(Scenario {
        name: NAME.into(),
        vms: results.vms.clone(),
        device: results.device.into(),
        coalesce: COALESCE,
        place: Lba::new(results.place),
        settle: Nanos::ZERO,
        until: Some(Nanos::new(window)),
        weights: Vec::new(),
        host: HostSetup::default(),
        machine: None,
    });
    let cell = |r: &PolicyFigures| Cell::new(scenario.clone(), &r.policy);
    let run = |r| run_cell(&cell(r), seed, &mut |_, _| true).map_err(|e| anyhow::anyhow!("{e}"));
    results.runs.iter().map(run).collect()
}

/// A figure of each policy over that of [`BASE`], which is the first.
fn over(pairs: &[Pair<'_>], at: usize, figure: impl Fn(&Pair<'_>) -> f64) -> f64 {
    figure(&pairs[at]) / figure(&pairs[0])
}

fn totals(pairs: &[Pair<'_>], results: &LiveResults) -> Table {
    let columns = vec![
        Column::text("policy"),
        Column::number("real guests", "MiB/s"),
        Column::number("over cfq", "×"),
        Column::number("simulator", "MiB/s"),
        Column::number("over cfq", "×"),
        Column::number("a command, real", "KiB"),
        Column::number("simulator", "KiB"),
        Column::number("seeks at 0, real", "%"),
        Column::number("simulator", "%"),
        Column::number("withheld", "%"),
        Column::number("waits", ""),
        Column::number("paid", "%"),
        Column::number("late", ""),
        Column::number("host CPU", "%"),
    ];
    let mut table = Table::new(format!("{NAME} on three real guests"), columns);
    for (at, pair @ Pair { live, sim }) in pairs.iter().enumerate() {
        let sim_kib = sim.bytes() as f64 / 1024.0 / sim.stats.commands.max(1) as f64;
        let held: f64 = live.held_ms.values().sum();
        let figures = [
            pair.live.mib_s(),
            over(pairs, at, |p| p.live.mib_s()),
            sim.mib_s(),
            over(pairs, at, |p| p.sim.mib_s()),
            live.kib_per_command(),
            sim_kib,
            100.0 * live.zero_seeks,
            100.0 * sim.seeks_per_command.zero_share(),
            held / live.seconds / 10.0,
            live.waits_tried as f64,
            100.0 * live.waits_paid as f64 / live.waits_tried.max(1) as f64,
            live.late as f64,
            100.0 * live.host_busy,
        ];
        let cells = std::iter::once(TableCell::Text(live.policy.clone()));
        table.push(cells.chain(figures.map(TableCell::Number)));
    }
    table.notes.push(format!(
        "sysbench in QEMU guests on `seekway serve --emulate {}`, windows of {} s in which all \
         six applications read; the simulator with the same disk, places and files. late: \
         commands whose real completion came after the emulated disk's. Where the host's \
         processors are nearly all busy, the guests' emulation is measured and not the disk.",
        results.device,
        results.window.as_secs()
    ));
    table
}

fn each_vm(pairs: &[Pair<'_>]) -> Table {
    let columns = vec![
        Column::text("VM"),
        Column::text("policy"),
        Column::number("real", "MiB/s"),
        Column::number("simulator", "MiB/s"),
        Column::number("real", "IOPS"),
        Column::number("simulator", "IOPS"),
        Column::text("applications, real (MiB/s)"),
    ];
    let mut table = Table::new("Each VM", columns);
    for at in 0..pairs.first().map_or(0, |p| p.live.vms.len()) {
        for Pair { live, sim } in pairs {
            let (vm, sim) = (&live.vms[at], &sim.vms[at]);
            let app = |a: &experiment::AppFigures| format!("{} {:.2}", a.mode.name(), a.mib_s);
            let apps: Vec<String> = vm.apps.iter().map(app).collect();
            table.push([
                TableCell::Text(vm.name.clone()),
                TableCell::Text(live.policy.clone()),
                TableCell::Number(vm.mib_s),
                TableCell::Number(sim.mib_s()),
                TableCell::Number(vm.iops),
                TableCell::Number(sim.iops()),
                TableCell::Text(apps.join(", ")),
            ]);
        }
    }
    table
}

fn page(pairs: &[Pair<'_>], totals: Table, vms: Table, quick: bool) -> Report {
    let mut subtitle = match pairs {
        [_, pregather, ..] => format!(
            "{} reads {:.2} times as much as {BASE} on real guests, {:.2} times in the simulator.",
            pregather.live.policy,
            over(pairs, 1, |p| p.live.mib_s()),
            over(pairs, 1, |p| p.sim.mib_s())
        ),
        _ => String::new(),
    };
    if quick {
        subtitle += " A quick run: not a result.";
    }
    let section = Section {
        heading: "Real guests and the simulator".into(),
        intro:
            "Three guests read through their page caches: vm1 two sequential sets of files, vm2 \
                one sequential and one random, vm3 two random (figure 5 of the Pregather paper)."
                .into(),
        blocks: vec![Block::Table(totals), bars(pairs), Block::Table(vms)],
    };
    Report {
        title: "Seekway: pregather-read on real guests".into(),
        subtitle,
        meta: vec![
            ("Command".into(), output::command_line()),
            ("Version".into(), env!("CARGO_PKG_VERSION").into()),
        ],
        sections: vec![section],
    }
}

fn bars(pairs: &[Pair<'_>]) -> Block {
    let bar = |value| Some(Bar { value, range: None });
    let series = |pair: &Pair<'_>| {
        let live = BarSeries {
            name: format!("{}, real guests", pair.live.policy),
            bars: pair.live.vms.iter().map(|v| bar(v.mib_s)).collect(),
            reference: false,
        };
        let sim = BarSeries {
            name: format!("{}, simulator", pair.live.policy),
            bars: pair.sim.vms.iter().map(|v| bar(v.mib_s())).collect(),
            reference: true,
        };
        [live, sim]
    };
    let bars = Bars {
        title: String::new(),
        axis: Axis::linear("bandwidth", "MiB/s"),
        groups: ["VM1: SR+SR", "VM2: SR+RR", "VM3: RR+RR"].map(String::from).into(),
        series: pairs.iter().flat_map(series).collect(),
    };
    let caption = "Bandwidth of each VM while all applications read.".into();
    Block::Figure { svg: bars.render(), caption }
}

/// As JSON.
#[derive(Serialize)]
struct Ran {
    policy: String,
    seconds: f64,
    mib_s: f64,
    simulated_mib_s: f64,
    zero_seeks: f64,
    simulated_zero_seeks: f64,
    kib_per_command: f64,
    held_ms: f64,
    waits_tried: u64,
    waits_paid: u64,
    late_commands: u64,
    host_busy: f64,
    vms: Vec<VmRan>,
}

#[derive(Serialize)]
struct VmRan {
    name: String,
    mib_s: f64,
    iops: f64,
    simulated_mib_s: f64,
    simulated_iops: f64,
    apps_mib_s: Vec<f64>,
}

impl Ran {
    fn new(Pair { live, sim }: &Pair<'_>) -> Ran {
        let vms = live.vms.iter().zip(&sim.vms).map(|(vm, sim)| VmRan {
            name: vm.name.clone(),
            mib_s: vm.mib_s,
            iops: vm.iops,
            simulated_mib_s: sim.mib_s(),
            simulated_iops: sim.iops(),
            apps_mib_s: vm.apps.iter().map(|a| a.mib_s).collect(),
        });
        Ran {
            policy: live.policy.clone(),
            seconds: live.seconds,
            mib_s: live.mib_s(),
            simulated_mib_s: sim.mib_s(),
            zero_seeks: live.zero_seeks,
            simulated_zero_seeks: sim.seeks_per_command.zero_share(),
            kib_per_command: live.kib_per_command(),
            held_ms: live.held_ms.values().sum(),
            waits_tried: live.waits_tried,
            waits_paid: live.waits_paid,
            late_commands: live.late,
            host_busy: live.host_busy,
            vms: vms.collect(),
        }
    }
}
