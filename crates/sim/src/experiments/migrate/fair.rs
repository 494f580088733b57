//! migrate-fair (figure 15 of the paper): VMs with unequal shares of the processors and
//! equal shares of the disk.

use super::super::figure::bars_by;
use super::super::judge::mean;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{CORES, Disk, HDFS, OURS, PAPER, Scene, VANILLA, cells};
use super::measure::{bound, evenness, rate, short, vm_rate};
use crate::metrics::RunResult;
use crate::vcpu::Completes;
use std::num::NonZeroU32;

const POLICIES: [&str; 3] = [VANILLA, PAPER, OURS];
/// Percent of the processors that the first VM has.
const SHARES: [u32; 4] = [10, 20, 30, 40];
/// The VM with less reads at least this much of what the other does, from this share on.
const EVEN: f64 = 0.85;
const FROM: u32 = 20;

const DECIDES: &str = "what decides is who hears of completions: an I/O that has waited for its \
    VM's turn ends while its vCPU is away, and CFQ goes on after 8 ms";

/// VMs with these shares; completions are heard by the vCPU that asked, or by any.
fn scene(percent: u32, completes: Completes, options: &Options) -> Scene {
    let heard = match completes {
        Completes::Any => ", completions on any vCPU that runs",
        _ => "",
    };
    let what = format!("CPU shares {percent}:{}{heard}", 100 - percent);
    Scene::of(HDFS, Disk::Hdd, CORES, 2, options).with(&what, |machine| {
        machine.guest.completes = completes;
        for (vm, percent) in machine.vms.iter_mut().zip([percent, 100 - percent]) {
            vm.cpu_weight = NonZeroU32::new(percent).expect("not zero");
        }
    })
}

fn scenes(options: &Options) -> Vec<(u32, Scene)> {
    let of = |completes| SHARES.map(|percent| (percent, scene(percent, completes, options)));
    [Completes::Submitter, Completes::Any].into_iter().flat_map(of).collect()
}

pub(super) fn fair_cells(options: &Options) -> Vec<Cell> {
    scenes(options).iter().flat_map(|(_, scene)| cells(scene, &POLICIES)).collect()
}

pub(super) fn fair_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let scenes = scenes(options);
    for (percent, scene) in &scenes {
        findings.rows.extend(POLICIES.map(|policy| row(results, scene, *percent, policy)));
    }
    for (scenes, heard) in scenes.chunks(SHARES.len()).zip(["the vCPU that asked", "any that runs"])
    {
        let of = |(_, s): &(u32, Scene), policy: &str| results.each(s, policy, evenness);
        let caption = format!(
            "Unequal shares of the processors, equal ones of the disk, completions on {heard} \
             (figure 15)."
        );
        findings.figures.push(Figure::bars(
            ("throughput of the VM that has less over the other's", "×"),
            SHARES.map(|percent| format!("{percent}:{}", 100 - percent)),
            bars_by(&POLICIES, scenes, of),
            caption,
        ));
    }
    findings
}

fn row(results: &Results, scene: &Scene, percent: u32, policy: &str) -> Row {
    let values = results.each(scene, policy, evenness);
    let of = |figure: fn(&RunResult) -> f64| short(results.mean(scene, policy, figure));
    let why = format!(
        "{} and {} MiB/s, not shared {} together; some vCPU of a VM runs {} % of the time",
        of(|r| vm_rate(r, 0)),
        of(|r| vm_rate(r, 1)),
        short(results.mean(&scene.unshared(), VANILLA, rate)),
        of(bound)
    );
    let name = format!("{}: least over most, {policy}", scene.name);
    match policy {
        PAPER => Row::value(name, 1.0, &values, "×", 0.15).because(why).because(DECIDES),
        OURS if percent >= FROM => {
            let row = Row::measured(name, &values, "×", why);
            row.ask(mean(&values) >= EVEN, &format!("at least {EVEN}"))
        }
        _ => Row::measured(name, &values, "×", why),
    }
}
