//! migrate-fair (figure 15 of the paper): VMs with unequal shares of the processors and
//! equal shares of the disk.

use super::super::figure::bars_by;
use super::super::judge::mean;
use super::super::results::over;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::completions::Heard;
use super::load::{CORES, Disk, HDFS, OURS, PAPER, Scene, VANILLA, cells};
use super::measure::{across, bound, evenness, rate, short, vm_rate};
use crate::metrics::RunResult;

const POLICIES: [&str; 3] = [VANILLA, PAPER, OURS];
/// Percent of the processors that the first VM has.
const SHARES: [u32; 4] = [10, 20, 30, 40];
/// The VM with less reads at least this much of what the other does, from this share on.
const EVEN: f64 = 0.85;
const FROM: u32 = 20;

/// "VMIGRATER reduces unfairness between VMs by 6.22X" (section 1). Unfairness is the throughput
/// of the VM that has more over the other's (our reading).
const PAPER_FAIRER: f64 = 6.22;

/// A host on which the VMs run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Host {
    heard: Heard,
    quotas: bool,
}

const fn host(heard: Heard, quotas: bool) -> Host {
    Host { heard, quotas }
}

/// The first two are the paper's, which gives the VMs "the same I/O bandwidth" and does not say
/// how: CFQ gives them equal shares in both, and the second has quotas too.
const HOSTS: [Host; 4] = [
    host(Heard::Apart, false),
    host(Heard::Apart, true),
    host(Heard::Asker, false),
    host(Heard::Any, false),
];

impl Host {
    fn name(self) -> String {
        let quotas = if self.quotas { ", equal quotas" } else { "" };
        format!("2 VMs, HDFS on HDD, {}{quotas}", self.heard.name())
    }

    fn is_papers(self) -> bool {
        self.heard == Heard::Apart
    }

    /// Two VMs of which the first has so many per cent of the processors.
    fn scene(self, percent: u32, options: &Options) -> Scene {
        let scene = Scene::of(HDFS, Disk::Hdd, CORES, 2, options).with_cpu_share(percent);
        let scene = self.heard.on(scene);
        if self.quotas { scene.with_quotas() } else { scene }
    }

    fn scenes(self, options: &Options) -> [Scene; 4] {
        SHARES.map(|percent| self.scene(percent, options))
    }
}

pub(super) fn fair_cells(options: &Options) -> Vec<Cell> {
    let all = HOSTS.iter().flat_map(|host| host.scenes(options));
    all.flat_map(|scene| cells(&scene, &POLICIES)).collect()
}

pub(super) fn fair_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for host in HOSTS {
        let scenes = host.scenes(options);
        for (scene, percent) in scenes.iter().zip(SHARES) {
            findings.rows.extend(POLICIES.map(|policy| row(results, host, scene, percent, policy)));
        }
        if host.is_papers() {
            findings.rows.extend(over_all(results, host, &scenes));
        }
        let of = |s: &Scene, policy: &str| results.each(s, policy, evenness);
        findings.figures.push(Figure::bars(
            ("throughput of the VM that has less over the other's", "×"),
            SHARES.map(|percent| format!("{percent}:{}", 100 - percent)),
            bars_by(&POLICIES, &scenes, of),
            format!("{} (figure 15 of the paper).", host.name()),
        ));
    }
    findings
}

fn row(results: &Results, host: Host, scene: &Scene, percent: u32, policy: &str) -> Row {
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
        PAPER if host.is_papers() => Row::value(name, 1.0, &values, "×", 0.15).because(why),
        OURS if percent >= FROM && !host.is_papers() => Row::measured(name, &values, "×", why)
            .ask(mean(&values) >= EVEN, &format!("at least {EVEN}")),
        _ => Row::measured(name, &values, "×", why),
    }
}

/// What the paper says of all four parts of figure 15.
fn over_all(results: &Results, host: Host, scenes: &[Scene; 4]) -> [Row; 2] {
    let [uneven, .., even] = scenes;
    let ahead = |s: &Scene| results.each(s, VANILLA, |r| vm_rate(r, 1) / vm_rate(r, 0));
    let follows = over(&ahead(uneven), &ahead(even));
    let name = format!("{}: vanilla, VM 2 over VM 1 with 10:90 over that with 40:60", host.name());
    let follows = Row::ordering(name, &follows, 1.0, "×");
    let fairer = across(scenes, |s| {
        over(&results.each(s, PAPER, evenness), &results.each(s, VANILLA, evenness))
    });
    let name = format!("{}: unfairness, vanilla over {PAPER}", host.name());
    [follows, Row::factor(name, PAPER_FAIRER, &fairer)]
}
