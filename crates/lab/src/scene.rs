//! cats-direct and vmcd-fair-sizes: a scenario of the simulator on real guests,
//! each of which runs its load with `seekway workload run`.

use crate::args::LabArgs;
use crate::cats;
use crate::show::{Page, bars, finish, series, with_steps};
use crate::simulate::{Loads, simulate};
use anyhow::{Context, Result};
use seekway_cli::Verdict;
use seekway_live::experiment::{
    LoadFigures, Scene, SceneFigures, SceneOptions, SceneRun, SceneVm, run_scene,
};
use seekway_policy::fairness;
use seekway_policy::units::Sectors;
use seekway_report::html::{Block, Section};
use seekway_report::plot::Axis;
use seekway_report::table::Table;
use seekway_sim::rank::{Better, ranks, same_order};
use seekway_sim::{RunResult, VmResult};
use seekway_workload::generators::parse_vm;
use serde::Serialize;
use std::time::Duration;

const SETTLE: Duration = Duration::from_secs(3);
const WINDOW: Duration = Duration::from_secs(20);
const QUICK: Duration = Duration::from_secs(5);

/// A scenario that runs live too.
pub struct LiveScene {
    pub experiment: &'static str,
    /// Title of tables and pages.
    summary: &'static str,
    /// Its VMs on their disk.
    loads: fn() -> Loads,
    /// Specifications of the policies; the user's own (`--policy`) is added.
    policies: &'static [&'static str],
    /// Each VM also alone: what it demands, for φ.
    alone: bool,
}

pub static SCENES: &[LiveScene] = &[
    LiveScene {
        experiment: "cats-direct",
        summary: "50 processes read files page by page with O_DIRECT",
        loads: cats::direct,
        policies: &["cfq:generation=2.6.30", "deadline", "cats:busdriver=7ms", "cats"],
        alone: false,
    },
    LiveScene {
        experiment: "vmcd-fair-sizes",
        summary: "sequential readers of 512 B, 64 KiB and 512 KiB",
        loads: sizes,
        policies: &["cfq", "deadline", "anticipatory", "vmcd", "vmcd-time"],
        alone: true,
    },
];

/// One policy, measured and simulated.
struct Pair<'a> {
    policy: &'a str,
    live: &'a SceneFigures,
    sim: RunResult,
}

/// Runs a scene in guests and in the simulator; judges nothing.
pub fn run(args: &LabArgs, live: &LiveScene) -> Result<Verdict> {
    let loads = (live.loads)();
    let scene = scene(args, live, &loads)?;
    let window = if args.quick { QUICK } else { WINDOW };
    let options = SceneOptions {
        program: args.daemon()?,
        settle: SETTLE,
        window,
        accelerator: args.accelerator(),
    };
    let made = with_steps(live.experiment, |step| run_scene(&scene, &options, step));
    let made = made.context("--live")?;
    let pairs = with_steps("the simulator", |_| simulated(&loads, &made, window, args.seed))?;
    let demands: Vec<f64> =
        made.iter().filter(|f| f.run.only.is_some()).map(|f| f.loads[0].mib_s).collect();
    let json: Vec<Ran> = pairs.iter().map(|p| Ran::new(p, &demands)).collect();
    let tables = [totals(live, &json, &loads, window), each_vm(&pairs)];
    finish(args, page(live, &pairs, &tables), &tables, &json, [])
}

/// "sizes" of lab/seekway_lab/papers/vmcd/vmcd-fair-sizes.toml.
fn sizes() -> Loads {
    let vm = |(name, block)| {
        format!("name={name},app=fio:rw=read,bs={block},direct=true,size=4GiB,io_size=1TiB")
    };
    let vms = [("vm1", "512B"), ("vm2", "64KiB"), ("vm3", "512KiB")].map(vm).into();
    Loads { vms, device: "seagate-1tb-7200".into() }
}

/// Its VMs on its disk, k times slower.
pub fn guests(loads: &Loads, k: u32, runs: Vec<SceneRun>) -> Result<Scene> {
    let mut vms = Vec::new();
    for text in &loads.vms {
        let plan = parse_vm(text)?;
        let image_bytes = Sectors::new(plan.guest.image_sectors).bytes();
        vms.push(SceneVm { name: plan.name, image_bytes, load: text.clone() });
    }
    Ok(Scene { vms, device: Some(loads.device.clone()), k, place: 0, runs })
}

fn scene(args: &LabArgs, live: &LiveScene, loads: &Loads) -> Result<Scene> {
    let run = |policy, only| SceneRun { policy, only, seed: args.seed };
    let together = args.policies(live.policies).into_iter().map(|policy| run(policy, None));
    let mut runs: Vec<SceneRun> = together.collect();
    if live.alone {
        runs.extend((0..loads.vms.len()).map(|n| run("noop".into(), Some(n))));
    }
    guests(loads, 1, runs)
}

/// Each policy with the same loads in the simulator, over a run as long as the window.
fn simulated<'a>(
    loads: &Loads,
    made: &'a [SceneFigures],
    window: Duration,
    seed: u64,
) -> Result<Vec<Pair<'a>>> {
    let together = made.iter().filter(|f| f.run.only.is_none());
    let scenario = loads.scenario()?;
    let pair = |live: &'a SceneFigures| {
        let policy = &live.run.policy;
        let sim = simulate(scenario.clone(), (Duration::ZERO, window), policy, seed)?;
        Ok(Pair { policy, live, sim })
    };
    together.map(pair).collect()
}

/// As JSON. The keys stay.
#[derive(Serialize)]
struct Ran {
    policy: String,
    live: Figures,
    simulated: Figures,
    /// Commands whose real completion came after the emulated disk's.
    late_commands: u64,
    /// Of the host's processors, 0 to 1.
    host_busy: f64,
    /// Requests carried process tags.
    tagged: bool,
}

#[derive(Serialize)]
struct Figures {
    mib_s: f64,
    iops: f64,
    response_ms: f64,
    response_stdev_ms: f64,
    service_ms: Option<f64>,
    /// VMCD's, of the bandwidths against what each VM gets alone.
    phi: Option<f64>,
    jain: Option<f64>,
    vms_mib_s: Vec<f64>,
}

/// Mean and deviation over all loads from those of each.
fn pooled(loads: &[LoadFigures]) -> (f64, f64) {
    let n: f64 = loads.iter().map(|l| l.requests as f64).sum();
    let over = |f: &dyn Fn(&LoadFigures) -> f64| {
        loads.iter().map(|l| f(l) * l.requests as f64).sum::<f64>() / n.max(1.0)
    };
    let mean = over(&|l| l.response_ms.mean);
    let square = over(&|l| l.response_ms.mean.powi(2) + l.response_ms.stdev.powi(2));
    (mean, (square - mean * mean).max(0.0).sqrt())
}

impl Ran {
    fn new(pair: &Pair<'_>, demands: &[f64]) -> Ran {
        let (live, sim) = (pair.live, &pair.sim);
        let fair = |got: &[f64]| {
            let several = got.len() > 1;
            let phi = (demands.len() == got.len())
                .then(|| fairness::phi(demands, got, &vec![1.0; got.len()]))
                .flatten();
            (phi, several.then(|| fairness::jain(got)).flatten())
        };
        let got: Vec<f64> = live.loads.iter().map(|l| l.mib_s).collect();
        let simulated: Vec<f64> = sim.vms.iter().map(VmResult::mib_s).collect();
        let (mean, stdev) = pooled(&live.loads);
        let ((phi, jain), (sim_phi, sim_jain)) = (fair(&got), fair(&simulated));
        Ran {
            policy: pair.policy.to_string(),
            live: Figures {
                mib_s: got.iter().sum(),
                iops: live.loads.iter().map(|l| l.iops).sum(),
                response_ms: mean,
                response_stdev_ms: stdev,
                service_ms: live.emulated.map(|e| e.service_ms),
                phi,
                jain,
                vms_mib_s: got,
            },
            simulated: Figures {
                mib_s: simulated.iter().sum(),
                iops: sim.vms.iter().map(VmResult::iops).sum(),
                response_ms: sim.response.mean() / 1e6,
                response_stdev_ms: sim.response.stdev() / 1e6,
                service_ms: Some(sim.service.mean() / 1e6),
                phi: sim_phi,
                jain: sim_jain,
                vms_mib_s: simulated,
            },
            late_commands: live.emulated.map_or(0, |e| e.late),
            host_busy: live.host_busy,
            tagged: live.loads.iter().any(|l| l.tagged),
        }
    }
}

fn totals(live: &LiveScene, ran: &[Ran], loads: &Loads, window: Duration) -> Table {
    type Figure = fn(&Figures) -> Option<f64>;
    const FIGURES: [(&str, &str, Figure); 6] = [
        ("bandwidth", "MiB/s", |f| Some(f.mib_s)),
        ("response", "ms", |f| Some(f.response_ms)),
        ("deviation", "ms", |f| Some(f.response_stdev_ms)),
        ("service", "ms", |f| f.service_ms),
        ("φ", "", |f| f.phi),
        ("Jain", "", |f| f.jain),
    ];
    let guests = if loads.vms.len() == 1 { "a real guest" } else { "real guests" };
    let untagged = live.experiment == "cats-direct" && !ran.iter().all(|r| r.tagged);
    Table::of(format!("{} on {guests}", live.experiment), ran)
        .text("policy", |r| &r.policy)
        .each(FIGURES, |table, (name, unit, figure)| {
            table.number(format!("{name}, real"), unit, |r| figure(&r.live)).number(
                "simulator",
                unit,
                |r| figure(&r.simulated),
            )
        })
        .number("late", "", |r| r.late_commands)
        .number("host CPU", "%", |r| 100.0 * r.host_busy)
        .note(format!(
            "Each guest ran its load by `seekway workload run` on a disk of `seekway serve \
             --emulate {}`, all over the same {} s; the simulator the same loads on the same disk. \
             late: commands whose real completion came after the emulated disk's.",
            loads.device,
            window.as_secs()
        ))
        .note(order(ran))
        .notes(untagged.then_some(
            "The guests' kernel did not take process tags: CFQ saw one issuer, not fifty.",
        ))
        .done()
}

/// How both order the policies by mean response.
fn order(ran: &[Ran]) -> String {
    let by = |figure: fn(&Ran) -> f64| -> (Vec<f64>, String) {
        let values: Vec<f64> = ran.iter().map(figure).collect();
        let mut named: Vec<(Option<usize>, &str)> =
            ranks(&values, Better::Less).into_iter().zip(ran.iter().map(|r| &*r.policy)).collect();
        named.sort();
        (values, named.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(" < "))
    };
    let (real, real_order) = by(|r| r.live.response_ms);
    let (sim, sim_order) = by(|r| r.simulated.response_ms);
    if same_order(&real, &sim) {
        format!("Mean response, real guests and simulator alike: {real_order}.")
    } else {
        format!("Mean response, real guests: {real_order}; simulator: {sim_order}.")
    }
}

fn each_vm(pairs: &[Pair<'_>]) -> Table {
    let vms = 0..pairs.first().map_or(0, |p| p.live.loads.len());
    let of_vm = |at: usize| pairs.iter().map(move |p| (p, &p.live.loads[at], &p.sim.vms[at]));
    let rows: Vec<_> = vms.flat_map(of_vm).collect();
    let sim_p99 = |sim: &VmResult| sim.response.value_at_quantile(0.99) as f64 / 1e6;
    Table::of("Each VM", &rows)
        .text("VM", |(_, live, _)| &live.vm)
        .text("policy", |(pair, ..)| pair.policy)
        .number("real", "MiB/s", |(_, live, _)| live.mib_s)
        .number("simulator", "MiB/s", |(.., sim)| sim.mib_s())
        .number("real", "IOPS", |(_, live, _)| live.iops)
        .number("simulator", "IOPS", |(.., sim)| sim.iops())
        .number("response, real", "ms", |(_, live, _)| live.response_ms.mean)
        .number("simulator", "ms", |(.., sim)| sim.response.mean() / 1e6)
        .number("p99, real", "ms", |(_, live, _)| live.response_ms.p99)
        .number("simulator", "ms", |(.., sim)| sim_p99(sim))
        .done()
}

fn page(live: &LiveScene, pairs: &[Pair<'_>], [totals, vms]: &[Table; 2]) -> Page {
    let section = Section {
        heading: "Real guests and the simulator".into(),
        intro: live.summary.into(),
        blocks: vec![Block::Table(totals.clone()), each_bar(pairs), Block::Table(vms.clone())],
    };
    Page::new(format!("Seekway: {} on real guests", live.experiment), vec![section])
}

/// Bandwidth of each VM where there are several, else response.
fn each_bar(pairs: &[Pair<'_>]) -> Block {
    let several = pairs.first().is_some_and(|p| p.live.loads.len() > 1);
    let (axis, groups, caption) = if several {
        let names = pairs[0].live.loads.iter().map(|l| l.vm.clone()).collect();
        (Axis::linear("bandwidth", "MiB/s"), names, "Bandwidth of each VM.")
    } else {
        let names = vec!["mean".to_string(), "deviation".into()];
        (Axis::linear("response", "ms"), names, "Response times of the guest's requests.")
    };
    let of_pair = |Pair { policy, live, sim }: &Pair<'_>| {
        let (real, simulated): (Vec<f64>, Vec<f64>) = if several {
            let real = live.loads.iter().map(|l| l.mib_s).collect();
            (real, sim.vms.iter().map(VmResult::mib_s).collect())
        } else {
            let (mean, stdev) = pooled(&live.loads);
            (vec![mean, stdev], vec![sim.response.mean() / 1e6, sim.response.stdev() / 1e6])
        };
        let real = series(format!("{policy}, real guests"), real, false);
        [real, series(format!("{policy}, simulator"), simulated, true)]
    };
    bars(axis, groups, pairs.iter().flat_map(of_pair).collect(), caption)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_policy::schedulers;
    use seekway_sim::scenario::read::study_of_file;
    use seekway_sim::scenario::{Vm, VmLoad};
    use seekway_workload::generators::VmPlan;
    use std::path::Path;

    fn plan(vm: &Vm) -> VmPlan {
        let VmLoad::Guest(text) = &vm.load else { panic!("no guest: {vm:?}") };
        text.plan().expect("it fits")
    }

    /// Each scene has the load and the disk of the study in the simulator.
    #[test]
    fn every_scene_is_one_of_the_laboratory() {
        let papers =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/seekway_lab/papers"));
        for (live, (paper, case)) in
            SCENES.iter().zip([("cats", "as in the paper"), ("vmcd", "sizes")])
        {
            let path = papers.join(paper).join(format!("{}.toml", live.experiment));
            let cases = study_of_file(&path).expect("a study of the laboratory");
            let theirs = cases.into_iter().map(|study| study.scenario);
            let theirs = { theirs }.find(|theirs| theirs.name.starts_with(case)).expect(case);
            let ours = (live.loads)().scenario().expect("it can be read");
            assert_eq!((&ours.device, ours.vm.len()), (&theirs.device, theirs.vm.len()));
            let mut vms = ours.vm.iter().zip(theirs.vm.iter());
            assert!(vms.all(|(ours, theirs)| plan(ours).is_like(&plan(theirs))));
            assert!(live.policies.iter().all(|policy| schedulers::build(policy).is_ok()));
            assert!(guests(&(live.loads)(), 1, Vec::new()).is_ok());
        }
    }
}
