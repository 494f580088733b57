//! The rows that a scene of migrate-scale gets: what the paper claims of it, what is
//! asked of it (experiments.md, vMigrater, "Accept"), and the other policies beside.

use super::super::figure::bars_by;
use super::super::judge::{listed, mean};
use super::super::{Figure, Results, Row};
use super::completions::papers;
use super::load::{ALL, COUNTS, Disk, OTHERS, OURS, PAPER, Scene, VANILLA, XBALLOON};
use super::measure::{across, agent, bound, gain, normalized, rate, ratio, share_of_bound, short};

/// Nothing may be slower than without a policy by more than this.
const FLOOR: f64 = 0.98;

/// xBalloon where a vCPU that wakes has to wait for the end of others' slices.
pub(super) fn without_preemption(scene: &Scene) -> Scene {
    let host = "no wake-up preemption on the host";
    scene.clone().with(host, |m| m.host.wakeup_preempts = false)
}

/// One VM alone: there is nothing to do, and doing it costs little.
pub(super) fn alone(results: &Results, scene: &Scene) -> [Row; 2] {
    [PAPER, OURS].map(|policy| {
        let values = gain(results, scene, policy);
        let why = format!(
            "nothing is shared; the agent takes {} % of the CPU time",
            short(results.mean(scene, policy, agent))
        );
        let name = format!("{}: {policy} over vanilla", scene.name);
        let row = Row::measured(name, &values, "×", why);
        if policy == OURS { floor(row, &values) } else { row }
    })
}

/// Never slower than without.
pub(super) fn floor(row: Row, gains: &[f64]) -> Row {
    row.ask(mean(gains) >= FLOOR, &format!("at least {FLOOR} of vanilla"))
}

/// What ours is asked of a scene: its share of the bound, and never to be below vanilla.
pub(super) fn asked(
    results: &Results,
    scene: &Scene,
    base: &Scene,
    share: Option<f64>,
) -> [Row; 2] {
    let unshared = base.unshared();
    let of = |policy: &str| share_of_bound(results, scene, policy, &unshared);
    let why = format!(
        "shares of the bound, which is {} % of the time: {}",
        short(results.mean(scene, VANILLA, bound)),
        listed(ALL, |policy| format!("{policy} {}", short(mean(&of(policy)))))
    );
    let values = of(OURS);
    let row = Row::measured(format!("{}: share of the bound", scene.name), &values, "×", why);
    let row = match share {
        Some(share) => row.ask(mean(&values) >= share, &format!("at least {share}")),
        None => row,
    };
    let gains = gain(results, scene, OURS);
    let name = format!("{}: ours over vanilla", scene.name);
    [row, floor(Row::measured(name, &gains, "×", OURS), &gains)]
}

/// Ours over the best of the others, seed by seed the mean over the scenes.
pub(super) fn above(results: &Results, what: &str, scenes: &[Scene]) -> Row {
    let over =
        |policy: &str| across(scenes, |scene| ratio(results, (scene, OURS), (scene, policy), rate));
    let each = OTHERS.map(|policy| (policy, over(policy)));
    let least = each.iter().min_by(|a, b| mean(&a.1).total_cmp(&mean(&b.1)));
    let (best, values) = least.expect("there are others");
    let told = listed(&each, |(p, v)| format!("{p} {}", short(mean(v))));
    let name = format!("{what}: ours over the best of the others");
    let why = format!("{best}; ours over {told}");
    Row::measured(name, values, "×", why).ask(mean(values) > 1.0, "above all of them")
}

/// Means over the works, of each policy.
pub(super) fn means(results: &Results, what: &str, scenes: &[Scene]) -> Vec<Row> {
    let over = |policy: &str| across(scenes, |scene| gain(results, scene, policy));
    let share = |policy: &str| {
        let of = |s: &Scene| share_of_bound(results, s, policy, &s.unshared());
        short(mean(&across(scenes, of)))
    };
    let row = |policy: &str| {
        let why = format!("{} of the bound", share(policy));
        Row::measured(format!("{what}: {policy} over vanilla"), &over(policy), "×", why)
    };
    let mut rows: Vec<Row> = ALL.into_iter().filter(|&p| p != VANILLA).map(row).collect();
    let waking = across(scenes, |scene| {
        ratio(results, (&without_preemption(scene), XBALLOON), (scene, VANILLA), rate)
    });
    let why = "a vCPU that wakes waits for the end of others' slices";
    let name = format!("{what}: {XBALLOON} without the host's wake-up preemption over vanilla");
    rows.push(Row::measured(name, &waking, "×", why));
    rows.push(above(results, what, scenes));
    rows
}

/// A policy over another on the paper's host, the mean over its loads, beside the paper's figure.
pub(super) fn papers_row(
    results: &Results,
    what: &str,
    scenes: &[Scene],
    (policy, base): (&str, &str),
    paper: f64,
) -> Row {
    let scenes: Vec<Scene> = scenes.iter().map(papers).collect();
    let values = across(&scenes, |s| ratio(results, (s, policy), (s, base), rate));
    Row::factor(format!("{what}, the paper's host: {policy} over {base}"), paper, &values)
}

pub(super) fn figure(
    results: &Results,
    of: impl Fn(usize) -> Vec<Scene>,
    disk: Disk,
    what: &str,
    number: &str,
) -> Figure {
    let of = |&count: &usize, policy: &str| {
        across(&of(count), |scene| normalized(results, scene, policy))
    };
    let series = bars_by(&ALL, &COUNTS, of);
    let caption = format!("{what} on {}, each policy (figure {number} of the paper).", disk.name());
    Figure::bars(("throughput over that without sharing", "×"), COUNTS.map(vms), series, caption)
}

/// The name of a group of bars.
pub(super) fn vms(count: usize) -> String {
    format!("{count} VMs")
}
