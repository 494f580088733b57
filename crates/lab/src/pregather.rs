//! pregather-read: three guests in which sysbench reads.

use crate::args::LabArgs;
use crate::show::{Page, bars, finish, host_full, series, with_steps};
use crate::simulate::{Loads, simulate};
use anyhow::{Context, Result};
use seekway_cli::Verdict;
use seekway_live::experiment::{self, LiveResults, Options, PolicyFigures};
use seekway_policy::units::Lba;
use seekway_report::html::{Block, Section};
use seekway_report::plot::Axis;
use seekway_report::table::Table;
use seekway_sim::RunResult;
use seekway_sim::layout::Placement;
use seekway_sim::scenario::{Images, Scenario};
use serde::Serialize;
use std::time::Duration;

pub const NAME: &str = "pregather-read";
/// The policy that others are compared with.
const BASE: &str = "cfq";
const WINDOW: Duration = Duration::from_secs(20);
const QUICK: Duration = Duration::from_secs(5);

/// Runs pregather-read in guests and in the simulator; judges nothing.
pub fn run(args: &LabArgs) -> Result<Verdict> {
    let options = Options {
        program: args.daemon()?,
        policies: args.policies(&[BASE, "pregather", "fairway"]),
        window: if args.quick { QUICK } else { WINDOW },
        accelerator: args.accelerator(),
        seed: args.seed,
    };
    let results = with_steps(NAME, |step| experiment::run(&options, step)).context("--live")?;
    let pairs = with_steps("the simulator", |_| simulated(&results, args.seed))?;
    let tables = [totals(&pairs, &results), each_vm(&pairs)];
    let json: Vec<Ran> = pairs.iter().map(Ran::new).collect();
    finish(args, page(&pairs, &tables), &tables, &json, [])
}

/// One policy, measured and simulated.
struct Pair<'a> {
    live: &'a PolicyFigures,
    sim: RunResult,
}

/// Each policy with the same load in the simulator, over a run as long as the window.
fn simulated<'a>(results: &'a LiveResults, seed: u64) -> Result<Vec<Pair<'a>>> {
    let loads = Loads { vms: results.vms.clone(), device: results.device.into() };
    let images = Images(Placement::Packed(Lba::new(results.place)));
    let scenario = Scenario { images, ..loads.scenario()? };
    let spans = (Duration::ZERO, results.window);
    let pair = |live: &'a PolicyFigures| {
        let sim = simulate(scenario.clone(), spans, &live.policy, seed)?;
        Ok(Pair { live, sim })
    };
    results.runs.iter().map(pair).collect()
}

/// A figure of a policy over that of [`BASE`], which is the first.
fn over<'p>(pairs: &[Pair<'p>], pair: &Pair<'p>, figure: fn(&Pair<'p>) -> f64) -> f64 {
    figure(pair) / figure(&pairs[0])
}

fn totals(pairs: &[Pair<'_>], results: &LiveResults) -> Table {
    let sim_kib = |sim: &RunResult| sim.bytes() as f64 / 1024.0 / sim.stats.commands.max(1) as f64;
    let held = |live: &PolicyFigures| live.held_ms.values().sum::<f64>() / live.seconds / 10.0;
    let paid = |live: &PolicyFigures| live.waits_paid as f64 / live.waits_tried.max(1) as f64;
    Table::of(format!("{NAME} on three real guests"), pairs)
        .text("policy", |pair| &pair.live.policy)
        .number("real guests", "MiB/s", |pair| pair.live.mib_s())
        .number("over cfq", "×", |pair| over(pairs, pair, |p| p.live.mib_s()))
        .number("simulator", "MiB/s", |pair| pair.sim.mib_s())
        .number("over cfq", "×", |pair| over(pairs, pair, |p| p.sim.mib_s()))
        .number("a command, real", "KiB", |pair| pair.live.kib_per_command())
        .number("simulator", "KiB", |pair| sim_kib(&pair.sim))
        .number("seeks at 0, real", "%", |pair| 100.0 * pair.live.zero_seeks)
        .number("simulator", "%", |pair| 100.0 * pair.sim.seeks_per_command.zero_share())
        .number("withheld", "%", |pair| held(pair.live))
        .number("waits", "", |pair| pair.live.waits_tried as f64)
        .number("paid", "%", |pair| 100.0 * paid(pair.live))
        .number("late", "", |pair| pair.live.late as f64)
        .number("host CPU", "%", |pair| 100.0 * pair.live.host_busy)
        .note(format!(
            "sysbench in QEMU guests on `seekway serve --emulate {}`, windows of {} s in which all \
             six applications read; the simulator with the same disk, places and files. late: \
             commands whose real completion came after the emulated disk's. Where the host's \
             processors are nearly all busy, the guests' emulation is measured and not the disk.",
            results.device,
            results.window.as_secs()
        ))
        .done()
}

fn each_vm(pairs: &[Pair<'_>]) -> Table {
    let vms = 0..pairs.first().map_or(0, |p| p.live.vms.len());
    let of_vm = |at: usize| pairs.iter().map(move |p| (p, &p.live.vms[at], &p.sim.vms[at]));
    let rows: Vec<_> = vms.flat_map(of_vm).collect();
    let app = |a: &experiment::AppFigures| format!("{} {:.2}", a.mode.name(), a.mib_s);
    Table::of("Each VM", &rows)
        .text("VM", |(_, vm, _)| &vm.name)
        .text("policy", |(pair, ..)| &pair.live.policy)
        .number("real", "MiB/s", |(_, vm, _)| vm.mib_s)
        .number("simulator", "MiB/s", |(.., sim)| sim.mib_s())
        .number("real", "IOPS", |(_, vm, _)| vm.iops)
        .number("simulator", "IOPS", |(.., sim)| sim.iops())
        .text("applications, real (MiB/s)", |(_, vm, _)| {
            vm.apps.iter().map(app).collect::<Vec<_>>().join(", ")
        })
        .done()
}

fn page(pairs: &[Pair<'_>], [totals, vms]: &[Table; 2]) -> Page {
    let subtitle = match pairs {
        [_, pregather, ..] => format!(
            "{} reads {:.2} times as much as {BASE} on real guests, {:.2} times in the simulator.",
            pregather.live.policy,
            over(pairs, pregather, |p| p.live.mib_s()),
            over(pairs, pregather, |p| p.sim.mib_s())
        ),
        _ => String::new(),
    };
    let warnings = pairs.iter().filter_map(|pair| {
        let why = host_full(pair.live.host_busy)?;
        Some(Block::Warning(format!(
            "{}: {why}. What real guests get is bound by their emulation there, not by the disk.",
            pair.live.policy
        )))
    });
    let [totals, vms] = [totals, vms].map(|table| Block::Table(table.clone()));
    let section = Section {
        heading: "Real guests and the simulator".into(),
        intro:
            "Three guests read through their page caches: vm1 two sequential sets of files, vm2 \
                one sequential and one random, vm3 two random (figure 5 of the Pregather paper)."
                .into(),
        blocks: warnings.chain([totals, each_bar(pairs), vms]).collect(),
    };
    Page { subtitle, ..Page::new("Seekway: pregather-read on real guests", vec![section]) }
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

/// One policy in guests and in the simulator, as JSON.
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
