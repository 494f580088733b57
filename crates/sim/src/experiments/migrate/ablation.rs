//! migrate-ablation (ours): what decides. One thing of the model is changed at a time,
//! under vanilla, the paper's policy and ours; and of the policy each of its four parts is
//! taken away from ours and added alone to the paper's.

use super::super::figure::bars_by;
use super::super::judge::{listed, mean};
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::completions::papers;
use super::load::{CORES, Disk, OURS, PAPER, RANDOM, SEQUENTIAL, Scene, VANILLA, cells};
use super::measure::{agent, blocked, bound, moves_over_least, share_of_bound, short};
use crate::metrics::RunResult;
use crate::vcpu::{Completes, Detector, MachineSpec};
use seekway_policy::units::Nanos;

/// What is changed, and how.
struct Setting {
    name: &'static str,
    change: fn(&mut MachineSpec),
}

const fn setting(name: &'static str, change: fn(&mut MachineSpec)) -> Setting {
    Setting { name, change }
}

const fn micros(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

/// One at a time; the first is as it is elsewhere.
const SETTINGS: &[Setting] = &[
    setting("as it is", |_| ()),
    setting("no stopper", |m| m.ablation.free_stopper = true),
    setting("completions heard at once", |m| m.ablation.free_completions = true),
    setting("no stopper, completions heard at once", |m| {
        m.ablation.free_stopper = true;
        m.ablation.free_completions = true;
    }),
    setting("completions on the first vCPU", |m| m.guest.completes = Completes::Fixed),
    setting("completions on any vCPU that runs", |m| m.guest.completes = Completes::Any),
    setting("vCPUs that share no cache", |m| m.guest.shared_cache = false),
    setting("moves for nothing", |m| m.ablation.free_moves = true),
    setting("moves ten times as dear", |m| {
        m.costs.call = m.costs.call.scaled(10, 1);
        m.costs.cold = m.costs.cold.scaled(10, 1);
    }),
    setting("exact edges after 50 µs", |m| {
        m.detector = Detector::Exact { delay: micros(50), edge: micros(1) };
    }),
    setting("exact edges, preemption foretold by 600 µs", |m| {
        m.detector = Detector::Exact { delay: micros(50), edge: micros(1) };
        m.ablation.foresight = Some(micros(600));
    }),
    setting("beats of 18 µs", |m| m.detector = Detector::Heartbeat { beat: micros(18) }),
    setting("slices exact", |m| m.host.jitter = Nanos::ZERO),
    setting("slices of 11 ± 1 ms", |m| m.host.jitter = micros(1_000)),
    setting("slices of 3 ± 0.1 ms", |m| {
        m.host.slice = Nanos::from_millis(3);
        m.host.jitter = micros(100);
    }),
    setting("a tenth of the slices cut short", |m| m.host.cut_permille = 100),
];

/// Each of our four parts taken away from ours, then added to the paper's form; and ours
/// with the paper's beats.
const FORMS: [&str; 10] = [
    "vmigrater:park=false",
    "vmigrater:fresh=false",
    "vmigrater:predict=last",
    "vmigrater:leave=600us",
    "vmigrater:literal=true,park=true",
    "vmigrater:literal=true,fresh=true",
    "vmigrater:literal=true,predict=min8",
    "vmigrater:literal=true,leave=auto",
    "vmigrater:literal=true,keep=20ms",
    "vmigrater:beats=dense",
];

/// What each setting is tried on.
fn bases(options: &Options) -> [Scene; 3] {
    [
        Scene::of(RANDOM, Disk::Ssd, CORES, 4, options),
        Scene::of(RANDOM, Disk::Ssd, CORES, 8, options),
        Scene::of(SEQUENTIAL, Disk::Hdd, CORES, 4, options),
    ]
}

/// On the paper's host only forms of the policy are tried: there its figure is not reached.
fn papers_host(options: &Options) -> Scene {
    papers(&Scene::of(RANDOM, Disk::Ssd, CORES, 8, options))
}

/// The policies that are tried there.
fn all_forms() -> impl Iterator<Item = &'static str> {
    POLICIES.into_iter().chain(FORMS)
}

fn scene(base: &Scene, setting: &Setting) -> Scene {
    base.clone().with(setting.name, setting.change)
}

const POLICIES: [&str; 3] = [VANILLA, PAPER, OURS];

pub(super) fn ablation_cells(options: &Options) -> Vec<Cell> {
    let papers = papers_host(options);
    let mut made: Vec<Cell> = all_forms().map(|form| papers.cell(form)).collect();
    made.push(papers.unshared().cell(VANILLA));
    for base in bases(options) {
        made.extend(cells(&base, &POLICIES));
        made.extend(FORMS.iter().map(|form| base.cell(form)));
        for setting in SETTINGS {
            let scene = scene(&base, setting);
            made.extend(POLICIES.map(|policy| scene.cell(policy)));
        }
    }
    made
}

pub(super) fn ablation_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for base in bases(options) {
        let unshared = base.unshared();
        let share = |scene: &Scene, policy: &str| share_of_bound(results, scene, policy, &unshared);
        for setting in SETTINGS {
            let scene = scene(&base, setting);
            let row = |policy| row(results, &scene, policy, &share(&scene, policy));
            findings.rows.extend(POLICIES.map(row));
        }
        findings.rows.extend(FORMS.map(|form| row(results, &base, form, &share(&base, form))));
        findings.notes.extend([PAPER, OURS].map(|policy| {
            let of = |setting: &Setting| mean(&share(&scene(&base, setting), policy));
            deciding(&base, policy, of)
        }));
        findings.figures.push(figure(&base, &POLICIES, share));
    }
    let papers = papers_host(options);
    findings.rows.extend(all_forms().map(|form| {
        let shares = share_of_bound(results, &papers, form, &papers.unshared());
        row(results, &papers, form, &shares)
    }));
    findings
}

fn row(results: &Results, scene: &Scene, policy: &str, shares: &[f64]) -> Row {
    let of = |figure: fn(&RunResult) -> f64| short(results.mean(scene, policy, figure));
    let why = format!(
        "of the bound, {} % of the time; moves over the clairvoyant's {}, of which {} % waited for \
         a vCPU that was away; the agents take {} % of the CPU time",
        of(bound),
        of(moves_over_least),
        of(blocked),
        of(agent)
    );
    Row::measured(format!("{}: {policy}", scene.name), shares, "×", why)
}

/// What changes a policy's share most, upwards and downwards.
fn deciding(base: &Scene, policy: &str, share: impl Fn(&Setting) -> f64) -> String {
    let (first, others) = SETTINGS.split_first().expect("a setting");
    let asis = share(first);
    let mut others: Vec<(&str, f64)> = others.iter().map(|s| (s.name, share(s))).collect();
    others.sort_by(|a, b| b.1.total_cmp(&a.1));
    let told = |(name, share): &(&str, f64)| format!("{name} {}", short(*share));
    format!(
        "{}, {policy}: {} of the bound as it is; most with {}; least with {}.",
        base.name,
        short(asis),
        listed(others.iter().take(3), told),
        listed(others.iter().rev().take(3), told)
    )
}

fn figure(base: &Scene, policies: &[&str], share: impl Fn(&Scene, &str) -> Vec<f64>) -> Figure {
    let of = |setting: &Setting, policy: &str| share(&scene(base, setting), policy);
    Figure::bars(
        ("throughput, of what the bound allows", "×"),
        SETTINGS.iter().map(|setting| setting.name),
        bars_by(policies, SETTINGS, of),
        format!("{}: what decides, one thing changed at a time.", base.name),
    )
}
