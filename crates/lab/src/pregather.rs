//! pregather-read: three guests in which sysbench reads.

use crate::args::LabArgs;
use crate::show::{Page, bars, finish, series};
use crate::simulate::simulate;
use anyhow::{Context, Result};
use seekway_cli::{Verdict, progress};
use seekway_live::experiment::{self, LiveResults, Options, PolicyFigures};
use seekway_policy::units::Lba;
use seekway_report::html::{Block, Section};
use seekway_report::plot::Axis;
use seekway_report::table::{Cell, Column, Table};
use seekway_sim::RunResult;
use seekway_sim::experiments::Scenario;
use serde::Serialize;
use std::time::Duration;

pub const NAME: &str = "pregather-read";
/// The policy that others are compared with.
const BASE: &str = "cfq";
const WINDOW: Duration = Duration::from_secs(20);
const QUICK: Duration = Duration::from_secs(5);

/// Runs the experiment.
pub fn run(args: &LabArgs) -> Result<Verdict> {
    let options = Options {
        program: args.daemon()?,
        policies: args.policies(&[BASE, "pregather", "fairway"]),
        window: if args.quick { QUICK } else { WINDOW },
        accelerator: args.accelerator(),
        seed: args.seed,
    };
    let bar = progress::steps(NAME);
    let results = experiment::run(&options, &mut |step| bar.set_message(step.to_string()));
    let results = results.context("--live")?;
    bar.set_message("the simulator");
    let pairs = simulated(&results, args.seed)?;
    bar.finish_and_clear();
    let tables = [totals(&pairs, &results), each_vm(&pairs)];
    let json: Vec<Ran> = pairs.iter().map(Ran::new).collect();
    finish(args, page(&pairs, &tables), &tables, &json)?;
    Ok(Verdict::Done)
}

/// One policy, measured and simulated.
struct Pair<'a> {
    live: &'a PolicyFigures,
    sim: RunResult,
}

/// Each policy with the same load in the simulator, over a run as long as the window.
fn simulated<'a>(results: &'a LiveResults, seed: u64) -> Result<Vec<Pair<'a>>> {
    let scenario = Scenario::new(NAME, results.vms.clone(), results.device);
    let scenario = Scenario { place: Lba::new(results.place), ..scenario };
    let spans = (Duration::ZERO, results.window);
    let pair = |live: &'a PolicyFigures| {
        let sim = simulate(scenario.clone(), spans, &live.policy, None, seed)?;
        Ok(Pair { live, sim })
    };
    results.runs.iter().map(pair).collect()
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
        let cells = std::iter::once(Cell::Text(live.policy.clone()));
        table.push(cells.chain(figures.map(Cell::Number)));
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
                Cell::Text(vm.name.clone()),
                Cell::Text(live.policy.clone()),
                Cell::Number(vm.mib_s),
                Cell::Number(sim.mib_s()),
                Cell::Number(vm.iops),
                Cell::Number(sim.iops()),
                Cell::Text(apps.join(", ")),
            ]);
        }
    }
    table
}

fn page(pairs: &[Pair<'_>], [totals, vms]: &[Table; 2]) -> Page {
    let subtitle = match pairs {
        [_, pregather, ..] => format!(
            "{} reads {:.2} times as much as {BASE} on real guests, {:.2} times in the simulator.",
            pregather.live.policy,
            over(pairs, 1, |p| p.live.mib_s()),
            over(pairs, 1, |p| p.sim.mib_s())
        ),
        _ => String::new(),
    };
    let section = Section {
        heading: "Real guests and the simulator".into(),
        intro:
            "Three guests read through their page caches: vm1 two sequential sets of files, vm2 \
                one sequential and one random, vm3 two random (figure 5 of the Pregather paper)."
                .into(),
        blocks: vec![Block::Table(totals.clone()), each_bar(pairs), Block::Table(vms.clone())],
    };
    Page {
        title: "Seekway: pregather-read on real guests".into(),
        subtitle,
        sections: vec![section],
    }
}

fn each_bar(pairs: &[Pair<'_>]) -> Block {
    let of_pair = |Pair { live, sim }: &Pair<'_>| {
        let name = |place: &str| format!("{}, {place}", live.policy);
        let real = series(name("real guests"), live.vms.iter().map(|v| v.mib_s), false);
        [real, series(name("simulator"), sim.vms.iter().map(|v| v.mib_s()), true)]
    };
    let axis = Axis::linear("bandwidth", "MiB/s");
    let groups = ["VM1: SR+SR", "VM2: SR+RR", "VM3: RR+RR"].map(String::from).into();
    let caption = "Bandwidth of each VM while all applications read.";
    bars(axis, groups, pairs.iter().flat_map(of_pair).collect(), caption)
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
