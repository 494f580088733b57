//! inactivity (figure 2 of the paper): what is lost when vCPUs share processors, without
//! anybody's help. Two VMs of four vCPUs on four cores, a compute task on each vCPU.

use super::super::figure::{bars, paper_bars};
use super::super::judge::mean;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{Disk, SEQUENTIAL, Scene, VANILLA};
use super::measure::{bound, evenness, normalized, rate, short, vm_rate};
use std::num::NonZeroU32;

/// Cores of the host, and vCPUs of each VM (section 2.3).
const CORES: u16 = 4;
const DISKS: [Disk; 2] = [Disk::Ssd, Disk::Hdd];

/// Figure 2(a): one I/O task; the other VM only computes.
fn one(disk: Disk, options: &Options) -> Scene {
    Scene::of(SEQUENTIAL, disk, CORES, 2, options).with("one I/O task", |machine| {
        let io = |task: &crate::vcpu::TaskSpec| task.name == SEQUENTIAL.name;
        machine.vms[1].tasks.retain(|task| !io(task));
    })
}

/// Figure 2(b): one in each VM.
fn two(disk: Disk, options: &Options) -> Scene {
    Scene::of(SEQUENTIAL, disk, CORES, 2, options)
}

/// Figure 2(c): the VMs have 20 and 80 per cent of the processors.
fn unequal(disk: Disk, options: &Options) -> Scene {
    two(disk, options).with("CPU shares 20:80", |machine| {
        for (vm, percent) in machine.vms.iter_mut().zip([20, 80]) {
            vm.cpu_weight = NonZeroU32::new(percent).expect("not zero");
        }
    })
}

pub(super) fn inactivity_cells(options: &Options) -> Vec<Cell> {
    let mut cells = Vec::new();
    for disk in DISKS {
        let scenes = [one(disk, options), two(disk, options), unequal(disk, options)];
        for scene in scenes {
            cells.extend([scene.cell(VANILLA), scene.unshared().cell(VANILLA)]);
        }
    }
    cells
}

/// MiB/s with and without sharing, and the bound.
fn told(results: &Results, scene: &Scene) -> String {
    let of = |scene: &Scene, figure: fn(&crate::metrics::RunResult) -> f64| {
        short(results.mean(scene, VANILLA, figure))
    };
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
        let name = disk.name();
        for (what, scene, paper) in [
            ("one I/O task", one(disk, options), 0.5),
            ("two I/O tasks, together", two(disk, options), 1.0 - 0.721),
        ] {
            let values = normalized(results, &scene, VANILLA);
            let row = Row::factor(format!("{name}, {what}: throughput"), paper, &values);
            findings.rows.push(row.because(told(results, &scene)));
        }
        findings.rows.extend(apart(results, &unequal(disk, options)));
        findings.figures.push(figure(options, results, disk));
    }
    findings
}

/// By how much the VM with 80 per cent of the processors is ahead, and that it is not
/// when nothing is shared.
fn apart(results: &Results, scene: &Scene) -> [Row; 2] {
    let ahead = |scene: &Scene| results.each(scene, VANILLA, |r| vm_rate(r, 1) / vm_rate(r, 0));
    let name = |what: &str| format!("{}, CPU shares 20:80: {what}", scene.disk.name());
    let shared = Row::factor(name("VM 2 over VM 1"), 5.8, &ahead(scene));
    let alone = results.each(&scene.unshared(), VANILLA, evenness);
    [
        shared.because(told(results, scene)),
        Row::measured(
            name("not shared, least over most"),
            &alone,
            "×",
            "the paper: similar; at least 0.9 is asked",
        )
        .accept_if(mean(&alone) >= 0.9),
    ]
}

fn figure(options: &Options, results: &Results, disk: Disk) -> Figure {
    let scenes = [one(disk, options), two(disk, options)];
    let values: Vec<Vec<f64>> =
        scenes.iter().map(|scene| normalized(results, scene, VANILLA)).collect();
    let name = "two VMs on the same cores";
    Figure::bars(
        ("throughput over that without sharing", "×"),
        ["one I/O task", "one in each VM"],
        vec![bars(name, &values), paper_bars(name, &[0.5, 1.0 - 0.721])],
        format!("{}: what vCPU sharing costs (figure 2 of the paper).", disk.name()),
    )
}
