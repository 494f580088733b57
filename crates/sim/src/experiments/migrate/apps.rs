//! The applications of migrate-scale (figures 9 and 10 of the paper), on an SSD.

use super::super::figure::{bars_by, paper_bars};
use super::super::judge::mean;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{
    ALL, APPLICATIONS, COUNTS, Disk, OURS, PAPER, Scene, VANILLA, VSLICER, XBALLOON, cells, scenes,
};
use super::measure::{across, gain, rate, ratio, share_of_bound, short};
use super::rows::{asked, figure, floor, means, papers, vms, without_preemption};
use crate::vcpu::{Load, VmSpec};

/// Figure 9: vmigrater over vanilla by number of VMs.
const PAPER_APPLICATIONS: [f64; 3] = [1.72, 2.92, 4.42];
/// Section 5.2: over vslicer and xballoon, applications.
const PAPER_OVER: [(&str, [f64; 3]); 2] =
    [(VSLICER, [1.8841, 1.7486, 2.2122]), (XBALLOON, [1.0329, 1.8378, 2.7537])];
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
        }
        made.extend(one(count, options).iter().flat_map(|s| cells(s, &[VANILLA, PAPER, OURS])));
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
        findings.rows.extend(means(results, &what, &scenes, Some(PAPER_APPLICATIONS[n])));
        for (policy, paper) in PAPER_OVER {
            let over = across(&scenes, |s| ratio(results, (s, PAPER), (s, policy), rate));
            let name = format!("{what}: {PAPER} over {policy}");
            findings.rows.push(papers(name, paper[n], &over));
        }
        findings.rows.extend(one_rows(results, count, &one(count, options), PAPER_ONE[n]));
    }
    let of = |count| all(count, options);
    findings.figures.push(figure(results, of, Disk::Ssd, "applications", "9"));
    findings.figures.push(one_figure(options, results));
}

fn one_rows(results: &Results, count: usize, scenes: &[Scene], paper: f64) -> [Row; 2] {
    [PAPER, OURS].map(|policy| {
        let values = across(scenes, |scene| gain(results, scene, policy));
        let name = format!("{count} VMs, the agent in one only: {policy} over vanilla");
        let of = |s: &Scene| share_of_bound(results, s, policy, &s.unshared());
        let why = format!("{} of the bound", short(mean(&across(scenes, of))));
        match policy {
            PAPER => papers(name, paper, &values).because(why),
            _ => floor(Row::measured(name, &values, "×", why), &values),
        }
    })
}

fn one_figure(options: &Options, results: &Results) -> Figure {
    let of =
        |&n: &usize, policy: &str| across(&one(n, options), |scene| gain(results, scene, policy));
    let mut series = bars_by(&[PAPER, OURS], &COUNTS, of);
    series.push(paper_bars("vmigrater", &PAPER_ONE));
    let caption = "HDFS and LevelDB in one VM with the agent (figure 10 of the paper).";
    Figure::bars(("throughput over vanilla", "×"), COUNTS.map(vms), series, caption)
}
