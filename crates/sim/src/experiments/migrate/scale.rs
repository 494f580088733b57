//! migrate-scale (figures 8 to 10 of the paper): two, four and eight VMs on the
//! processors of one, under each policy, and one VM alone.

use super::super::{Cell, Findings, Options, Results, Row};
use super::apps;
use super::load::{
    ALL, COUNTS, Disk, MICRO, OURS, PAPER, RANDOM, SEQUENTIAL, Scene, VANILLA, Work, XBALLOON,
    cells, scenes,
};
use super::rows::{above, alone, asked, figure, means, slicer, without_preemption};
use crate::vcpu::{Completes, MachineSpec};

/// Of the recorded bound (experiments.md, vMigrater, "Accept").
const SHARE: f64 = 0.90;
/// The same with a tenth of the slices cut short, by the number of VMs.
const SHARES_CUT: [(usize, f64); 2] = [(4, 0.80), (8, 0.65)];
const CUT_PERMILLE: u16 = 100;

/// Figure 8: vmigrater over vanilla by number of VMs.
const PAPER_MICRO: [f64; 3] = [1.97, 3.25, 5.31];
/// The I/O tasks that run on a disk: bursts of 100 MB are for the SSD.
fn micro(disk: Disk) -> &'static [Work] {
    match disk {
        Disk::Ssd => &MICRO,
        Disk::Hdd => &[SEQUENTIAL, RANDOM],
    }
}

const CUT: &str = "a tenth of the slices cut short";

fn cut(scene: &Scene) -> Scene {
    scene.clone().with(CUT, |m| m.host.cut_permille = CUT_PERMILLE)
}

fn any(scene: &Scene) -> Scene {
    let change = |m: &mut MachineSpec| m.guest.completes = Completes::Any;
    scene.clone().with("completions on any vCPU that runs", change)
}

const DISKS: [Disk; 2] = [Disk::Ssd, Disk::Hdd];

pub(super) fn scale_cells(options: &Options) -> Vec<Cell> {
    let mut all = Vec::new();
    for disk in DISKS {
        for scene in scenes(micro(disk), disk, 1, options) {
            all.extend([VANILLA, PAPER, OURS].map(|policy| scene.cell(policy)));
        }
        for scene in COUNTS.iter().flat_map(|&n| scenes(micro(disk), disk, n, options)) {
            all.extend(cells(&scene, &ALL));
            all.push(without_preemption(&scene).cell(XBALLOON));
            if disk == Disk::Hdd {
                all.extend(ALL.map(|policy| any(&scene).cell(policy)));
            }
        }
        for scene in SHARES_CUT.iter().flat_map(|&(n, _)| scenes(micro(disk), disk, n, options)) {
            all.extend(ALL.map(|policy| cut(&scene).cell(policy)));
        }
    }
    all.extend(apps::app_cells(options));
    all
}

pub(super) fn scale_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for disk in DISKS {
        for scene in scenes(micro(disk), disk, 1, options) {
            findings.rows.extend(alone(results, &scene));
        }
        for (n, &count) in COUNTS.iter().enumerate() {
            let scenes = scenes(micro(disk), disk, count, options);
            findings.rows.extend(shared(results, disk, count, &scenes, PAPER_MICRO[n]));
        }
        for (count, share) in SHARES_CUT {
            let scenes = scenes(micro(disk), disk, count, options);
            findings.rows.extend(cut_short(results, disk, count, &scenes, share));
        }
        let of = |count| scenes(micro(disk), disk, count, options);
        findings.figures.push(figure(results, of, disk, "micro-benchmarks", "8"));
    }
    apps::app_judge(options, results, &mut findings);
    findings
}

/// The paper's figure is of its SSD. There ours is held to its share of the bound; on the
/// HDD it is where completions are heard by any vCPU that runs: an I/O that waits
/// for its VM's turn longer than a slice is else heard when its vCPU is back, wherever the
/// task is (migrate-ablation).
fn shared(results: &Results, disk: Disk, count: usize, scenes: &[Scene], paper: f64) -> Vec<Row> {
    let what = format!("{count} VMs, micro-benchmarks on {}", disk.name());
    let mut rows = Vec::new();
    for scene in scenes {
        let share = (disk == Disk::Ssd).then_some(SHARE);
        rows.extend(asked(results, scene, scene, share));
        if disk == Disk::Hdd {
            rows.extend(asked(results, &any(scene), scene, Some(SHARE)));
        }
    }
    rows.extend(means(results, &what, scenes, (disk == Disk::Ssd).then_some(paper)));
    if disk == Disk::Ssd {
        rows.push(slicer(results, &what, scenes));
    }
    rows
}

fn cut_short(
    results: &Results,
    disk: Disk,
    count: usize,
    scenes: &[Scene],
    share: f64,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for scene in scenes {
        let share = (disk == Disk::Ssd).then_some(share);
        rows.extend(asked(results, &cut(scene), scene, share));
    }
    let what = format!("{count} VMs, micro-benchmarks on {}, {CUT}", disk.name());
    rows.push(above(results, &what, &scenes.iter().map(cut).collect::<Vec<_>>()));
    rows
}
