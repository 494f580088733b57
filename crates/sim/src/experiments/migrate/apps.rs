//! The applications of migrate-scale (figures 9 and 10 of the paper), on an SSD.

use super::super::figure::{bars_by, paper_bars};
use super::super::judge::{listed, mean};
use super::super::results::over;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::completions::papers;
use super::load::{
    ALL, APPLICATIONS, COUNTS, Disk, OURS, PAPER, Scene, VANILLA, VSLICER, XBALLOON, cells, scenes,
};
use super::measure::{across, gain, share_of_bound, short};
use super::rows::{asked, figure, floor, means, papers_row, vms, without_preemption};
use crate::vcpu::{Load, VmSpec};

/// Figure 9: vmigrater over vanilla by number of VMs.
const PAPER_APPLICATIONS: [f64; 3] = [1.72, 2.92, 4.42];
/// Section 5.2: over vslicer and xballoon, applications.
const PAPER_OVER: [(&str, [f64; 3]); 2] =
    [(VSLICER, [1.8841, 1.7486, 2.2122]), (XBALLOON, [1.0329, 1.8378, 2.7537])];
/// What the two lines before imply of each over vanilla, by number of VMs.
fn implied(over: [f64; 3]) -> [f64; 3] {
    [0, 1, 2].map(|n| PAPER_APPLICATIONS[n] / over[n])
}
/// Figure 10: the agent in one VM only.
const PAPER_ONE: [f64; 3] = [1.6272, 2.7692, 3.1875];

fn all(count: usize, options: &Options) -> Vec<Scene> {
    scenes(&APPLICATIONS, Disk::Ssd, count, options)
}

/// HDFS and LevelDB in one VM that has the agent; the others have neither.
fn one(count: usize, options: &Options) -> Vec<Scene> {
    let without = |vm: &mut VmSpec| {
        vm.agent = false;
        vm.tasks.retain(|task| task.load == Load::Compute);
    };
    let works: Vec<_> =
        APPLICATIONS.into_iter().filter(|work| ["HDFS", "LevelDB"].contains(&work.name)).collect();
    let alone = |scene: Scene| {
        scene.with("the agent in one VM only", |m| m.vms[1..].iter_mut().for_each(without))
    };
    scenes(&works, Disk::Ssd, count, options).into_iter().map(alone).collect()
}

pub(super) fn app_cells(options: &Options) -> Vec<Cell> {
    let mut made = Vec::new();
    for count in COUNTS {
        for scene in all(count, options) {
            made.extend(cells(&scene, &ALL));
            made.push(without_preemption(&scene).cell(XBALLOON));
            made.extend([VANILLA, VSLICER, XBALLOON, PAPER].map(|p| papers(&scene).cell(p)));
        }
        for scene in one(count, options) {
            made.extend(cells(&scene, &[VANILLA, PAPER, OURS]));
            made.extend([VANILLA, PAPER].map(|policy| papers(&scene).cell(policy)));
        }
    }
    made
}

pub(super) fn app_judge(options: &Options, results: &Results, findings: &mut Findings) {
    for (n, &count) in COUNTS.iter().enumerate() {
        let scenes = all(count, options);
        for scene in &scenes {
            findings.rows.extend(asked(results, scene, scene, None));
        }
        let what = format!("{count} VMs, applications on SSD");
        findings.rows.extend(means(results, &what, &scenes));
        let row = |pair, paper| papers_row(results, &what, &scenes, pair, paper);
        findings.rows.push(row((PAPER, VANILLA), PAPER_APPLICATIONS[n]));
        for (policy, over) in PAPER_OVER {
            findings.rows.push(row((PAPER, policy), over[n]));
            findings.rows.push(row((policy, VANILLA), implied(over)[n]));
        }
        let (what, one) = (format!("{count} VMs, the agent in one only"), one(count, options));
        findings.rows.extend(one_rows(results, &what, &one));
        let pair = (PAPER, VANILLA);
        findings.rows.push(papers_row(results, &what, &one, pair, PAPER_ONE[n]));
    }
    findings.rows.push(rises(results, options));
    let of = |count| all(count, options);
    findings.figures.push(figure(results, of, Disk::Ssd, "applications", "9"));
    findings.figures.push(one_figure(options, results));
}

/// The paper's form gains the more, the more VMs there are.
fn rises(results: &Results, options: &Options) -> Row {
    let gains = COUNTS.map(|count| {
        let scenes: Vec<Scene> = all(count, options).iter().map(papers).collect();
        across(&scenes, |scene| gain(results, scene, PAPER))
    });
    let seeds = gains[0].len();
    let rises = |&s: &usize| gains[0][s] < gains[1][s] && gains[1][s] < gains[2][s];
    let right = (0..seeds).filter(rises).count();
    let why = format!(
        "over vanilla with 2, 4 and 8 VMs: {}; in this order on {right} of {seeds} seeds",
        listed(&gains, |values| short(mean(values)))
    );
    let name = format!("applications on SSD, the paper's host: {PAPER}'s gain with 8 VMs over 2");
    Row::measured(name, &over(&gains[2], &gains[0]), "×", why).ordered(right, seeds)
}

fn one_rows(results: &Results, what: &str, scenes: &[Scene]) -> [Row; 2] {
    [PAPER, OURS].map(|policy| {
        let values = across(scenes, |scene| gain(results, scene, policy));
        let of = |s: &Scene| share_of_bound(results, s, policy, &s.unshared());
        let why = format!("{} of the bound", short(mean(&across(scenes, of))));
        let row = Row::measured(format!("{what}: {policy} over vanilla"), &values, "×", why);
        if policy == OURS { floor(row, &values) } else { row }
    })
}

fn one_figure(options: &Options, results: &Results) -> Figure {
    let of = |&n: &usize, policy: &str| {
        across(&one(n, options), |scene| gain(results, &papers(scene), policy))
    };
    let mut series = bars_by(&[PAPER], &COUNTS, of);
    series.push(paper_bars("vmigrater", &PAPER_ONE));
    let caption =
        "HDFS and LevelDB in one VM with the agent, the paper's host (figure 10 of the paper).";
    Figure::bars(("throughput over vanilla", "×"), COUNTS.map(vms), series, caption)
}
