//! migrate-scale (figures 8 to 10 of the paper): two, four and eight VMs on the
//! processors of one, under each policy, and one VM alone.

use super::super::{Cell, Findings, Options, Results, Row};
use super::completions::Heard;
use super::load::{
    ALL, COUNTS, Disk, MICRO, OURS, PAPER, RANDOM, SEQUENTIAL, Scene, VANILLA, Work, XBALLOON,
    cells, scenes,
};
use super::measure::{across, gain};
use super::rows::{above, alone, asked, figure, means, papers_row, without_preemption};
use super::{apps, cached};

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
    Heard::Any.on(scene.clone())
}

/// The paper's micro-benchmarks, whoever hears of completions.
fn heard(heard: Heard, count: usize, options: &Options) -> Vec<Scene> {
    let scenes = scenes(&MICRO, Disk::Ssd, count, options);
    scenes.into_iter().map(|scene| heard.on(scene)).collect()
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
    for (&count, who) in COUNTS.iter().flat_map(|n| Heard::OTHERS.map(|who| (n, who))) {
        let scenes = heard(who, count, options);
        all.extend(scenes.iter().flat_map(|s| [VANILLA, PAPER, OURS].map(|policy| s.cell(policy))));
    }
    all.extend(cached::cached_cells(options));
    all.extend(apps::app_cells(options));
    all
}

pub(super) fn scale_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for disk in DISKS {
        for scene in scenes(micro(disk), disk, 1, options) {
            findings.rows.extend(alone(results, &scene));
        }
        for count in COUNTS {
            let scenes = scenes(micro(disk), disk, count, options);
            findings.rows.extend(shared(results, disk, count, &scenes));
        }
        for (count, share) in SHARES_CUT {
            let scenes = scenes(micro(disk), disk, count, options);
            findings.rows.extend(cut_short(results, disk, count, &scenes, share));
        }
        let of = |count| scenes(micro(disk), disk, count, options);
        findings.figures.push(figure(results, of, disk, "micro-benchmarks", "8"));
    }
    for (&count, paper) in COUNTS.iter().zip(PAPER_MICRO) {
        let scenes = scenes(&MICRO, Disk::Ssd, count, options);
        let what = format!("{count} VMs, micro-benchmarks on SSD");
        let row = papers_row(results, &what, &scenes, (PAPER, VANILLA), paper);
        findings.rows.push(row);
        findings.rows.extend(by_completions(results, &what, count, options));
    }
    cached::cached_judge(options, results, &mut findings);
    apps::app_judge(options, results, &mut findings);
    findings
}

/// The paper's form and ours, whoever hears of completions.
fn by_completions(results: &Results, what: &str, count: usize, options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    for who in Heard::OTHERS {
        let scenes = heard(who, count, options);
        let policies = if who == Heard::Apart { &[OURS][..] } else { &[PAPER, OURS] };
        rows.extend(policies.iter().map(|policy| {
            let values = across(&scenes, |scene| gain(results, scene, policy));
            let name = format!("{what}, {}: {policy} over vanilla", who.name());
            Row::measured(name, &values, "×", "the mean of the micro-benchmarks")
        }));
    }
    rows
}

/// On the SSD ours is held to its share of the bound; on the
/// HDD it is where completions are heard by any vCPU that runs: an I/O that waits
/// for its VM's turn longer than a slice is else heard when its vCPU is back, wherever the
/// task is (migrate-ablation).
fn shared(results: &Results, disk: Disk, count: usize, scenes: &[Scene]) -> Vec<Row> {
    let what = format!("{count} VMs, micro-benchmarks on {}", disk.name());
    let mut rows = Vec::new();
    for scene in scenes {
        let share = (disk == Disk::Ssd).then_some(SHARE);
        rows.extend(asked(results, scene, scene, share));
        if disk == Disk::Hdd {
            rows.extend(asked(results, &any(scene), scene, Some(SHARE)));
        }
    }
    rows.extend(means(results, &what, scenes));
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
