//! inactivity (figure 2 of the paper): what is lost when vCPUs share processors, without
//! anybody's help. Two VMs of four vCPUs on four cores, a compute task on each vCPU.

use super::super::figure::{bars, paper_bars};
use super::super::judge::mean;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::completions::papers;
use super::load::{AHEAD, Disk, SEQUENTIAL, Scene, VANILLA, Work};
use super::measure::{bound, evenness, normalized, rate, short, vm_rate};
use crate::metrics::RunResult;

/// Cores of the host, and vCPUs of each VM (section 2.3).
const CORES: u16 = 4;
const DISKS: [Disk; 2] = [Disk::Ssd, Disk::Hdd];
/// Figure 2: what one task keeps, what two keep together, and how far the second is ahead.
const PAPER: [f64; 3] = [0.5, 1.0 - 0.721, 5.8];

/// Figure 2(a): one I/O task; the other VM only computes.
fn one(work: Work, disk: Disk, options: &Options) -> Scene {
    two(work, disk, options).with("one I/O task", |machine| {
        let io = |task: &crate::vcpu::TaskSpec| task.name == work.name;
        machine.vms[1].tasks.retain(|task| !io(task));
    })
}

/// Figure 2(b): one in each VM.
fn two(work: Work, disk: Disk, options: &Options) -> Scene {
    Scene::of(work, disk, CORES, 2, options)
}

/// Figure 2(c): the VMs have 20 and 80 per cent of the processors.
fn unequal(work: Work, disk: Disk, options: &Options) -> Scene {
    two(work, disk, options).with_cpu_share(20)
}

/// Figure 2 on a disk. The paper's is the HDD: seeks and CFQ's waiting explain its figures.
fn scenes(work: Work, disk: Disk, options: &Options) -> [Scene; 3] {
    [one, two, unequal].map(|scene| scene(work, disk, options))
}

/// The same on the paper's host.
fn on_papers(work: Work, options: &Options) -> [Scene; 3] {
    scenes(work, Disk::Hdd, options).map(|scene| papers(&scene))
}

fn quotas(options: &Options) -> Scene {
    papers(&unequal(SEQUENTIAL, Disk::Hdd, options)).with_quotas()
}

pub(super) fn inactivity_cells(options: &Options) -> Vec<Cell> {
    let asked = DISKS.into_iter().flat_map(|disk| scenes(SEQUENTIAL, disk, options));
    let papers = [SEQUENTIAL, AHEAD].into_iter().flat_map(|work| on_papers(work, options));
    let all = asked.chain(papers).chain([quotas(options)]);
    all.flat_map(|scene| [scene.cell(VANILLA), scene.unshared().cell(VANILLA)]).collect()
}

/// MiB/s with and without sharing, and the bound.
fn told(results: &Results, scene: &Scene) -> String {
    let of =
        |scene: &Scene, figure: fn(&RunResult) -> f64| short(results.mean(scene, VANILLA, figure));
    format!(
        "{} MiB/s, not shared {}; some vCPU of a VM runs {} % of the time",
        of(scene, rate),
        of(&scene.unshared(), rate),
        of(scene, bound)
    )
}

pub(super) fn inactivity_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for disk in DISKS {
        findings.rows.extend(rows(results, &scenes(SEQUENTIAL, disk, options), None));
    }
    findings.rows.extend(rows(results, &on_papers(SEQUENTIAL, options), Some(PAPER)));
    findings.rows.extend(rows(results, &on_papers(AHEAD, options), None));
    findings.figures.push(figure(options, results));
    let quotas = quotas(options);
    let (name, why) = (format!("{}: VM 2 over VM 1", quotas.name), told(results, &quotas));
    findings.rows.push(Row::measured(name, &ahead(results, &quotas), "×", why));
    findings.rows.push(even(results, &unequal(SEQUENTIAL, Disk::Hdd, options)));
    findings
}

/// A row for each part of figure 2, beside the paper's figures if they are given.
fn rows(results: &Results, scenes: &[Scene; 3], paper: Option<[f64; 3]>) -> Vec<Row> {
    const KEPT: &str = "throughput over that without sharing";
    let parts = [KEPT, KEPT, "VM 2 over VM 1"];
    let row = |(n, scene): (usize, &Scene)| {
        let values =
            if n < 2 { normalized(results, scene, VANILLA) } else { ahead(results, scene) };
        let (name, why) = (format!("{}: {}", scene.name, parts[n]), told(results, scene));
        match paper {
            Some(paper) => Row::factor(name, paper[n], &values).because(why),
            None => Row::measured(name, &values, "×", why),
        }
    };
    scenes.iter().enumerate().map(row).collect()
}

/// By how much the VM with 80 per cent of the processors is ahead.
fn ahead(results: &Results, scene: &Scene) -> Vec<f64> {
    results.each(scene, VANILLA, |r| vm_rate(r, 1) / vm_rate(r, 0))
}

/// Shares of the processors decide nothing when nothing is shared.
fn even(results: &Results, scene: &Scene) -> Row {
    let scene = scene.unshared();
    let values = results.each(&scene, VANILLA, evenness);
    let name = format!("{}: least over most", scene.name);
    let row = Row::measured(name, &values, "×", "the paper: similar");
    row.ask(mean(&values) >= 0.9, "at least 0.9")
}

fn figure(options: &Options, results: &Results) -> Figure {
    let scenes = on_papers(SEQUENTIAL, options);
    let values: Vec<Vec<f64>> =
        scenes[..2].iter().map(|scene| normalized(results, scene, VANILLA)).collect();
    let name = "two VMs on the same cores";
    Figure::bars(
        ("throughput over that without sharing", "×"),
        ["one I/O task", "one in each VM"],
        vec![bars(name, &values), paper_bars(name, &PAPER[..2])],
        "What vCPU sharing costs on the HDD, the paper's host (figure 2 of the paper).",
    )
}
