//! All parts at once: eight VMs of a host on four processors and one disk, under every policy
//! with all else on, with everything off, without each part, and with each part alone.
//!
//! A VM's progress is what it gets over what it would have alone on a private disk, eight times
//! slower, with an eighth of the processors and of the host's cache. What is asked was set
//! before the first run; it is in [`asked`].

mod load;
mod measure;
mod oracle;
mod progress;
mod ways;

use super::judge::{Row, listed, mean, short};
use super::results::over;
use super::{Cell, Experiment, Figure, Findings, Options, Results, figure, glob};
use load::{DISKS, Disk, Mix, VMS, cell, cell_alone, cell_private, cell_whole};
use measure::{lost_percent, p99_ms, rate, total};
use progress::{Scene, interval};
use ways::Parts;

pub(super) static EXPERIMENTS: &[Experiment] = &[Experiment::new("together", cells, judge)];

/// No VM has less progress with everything on.
const WORST_ASKED: f64 = 0.95;
/// The host moves this part at least of what it moves under the policy that moves most.
const MOVED_ASKED: f64 = 0.92;
/// No VM's p99 is longer than so many times that on its private disk.
const P99_ASKED: f64 = 1.0;
/// The default policy comes this near to the first of all.
const NEAR_FIRST: f64 = 0.98;
/// Each part adds so much to the geometric mean in some scene, and takes no more in any.
const WORTH: f64 = 1.03;
const HARM: f64 = 0.99;

/// The scenes that were chosen: by the whole name, or by patterns with commas between them.
fn scenes(options: &Options) -> impl Iterator<Item = (Mix, &'static Disk)> {
    let fits = |pattern: &str, name: &str| glob(pattern.trim().as_bytes(), name.as_bytes());
    let is_one = options.scenes.as_ref().is_some_and(|p| scene_names().any(|name| fits(p, &name)));
    let is_chosen = move |name: &str| match &options.scenes {
        None => true,
        Some(pattern) if is_one => fits(pattern, name),
        Some(patterns) => patterns.split(',').any(|p| fits(p, name)),
    };
    every_scene().filter(move |(mix, disk)| is_chosen(&mix.scene(disk)))
}

fn every_scene() -> impl Iterator<Item = (Mix, &'static Disk)> {
    let of =
        |mix: Mix| DISKS.iter().filter(move |disk| mix.is_on(disk)).map(move |disk| (mix, disk));
    Mix::ALL.into_iter().flat_map(of)
}

/// The names of the scenes, for `scenes` of [`Options`].
pub fn scene_names() -> impl Iterator<Item = String> {
    every_scene().map(|(mix, disk)| mix.scene(disk))
}

/// Everything that runs in a scene with a mix.
fn ways(mix: Mix) -> Vec<(String, Parts)> {
    ways::ways(mix.has_each_part())
}

fn cells(options: &Options) -> Vec<Cell> {
    let of = |(mix, disk): (Mix, &'static Disk)| {
        let private = (0..VMS).map(move |vm| cell_private(disk, mix, vm, options));
        let whole = (0..VMS).map(move |vm| cell_whole(disk, mix, vm, options));
        let paced = (0..VMS).filter(move |&vm| mix.is_paced(vm));
        let alone = paced.map(move |vm| cell_alone(disk, mix, vm, options));
        let ways = ways(mix).into_iter().map(move |(_, parts)| cell(disk, mix, parts, options));
        ways.chain(private).chain(whole).chain(alone)
    };
    scenes(options).flat_map(of).collect()
}

fn judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let scene = |(mix, disk)| Scene { options, results, disk, mix };
    let all: Vec<Scene<'_>> = scenes(options).map(scene).collect();
    for scene in &all {
        findings.rows.extend(asked(scene));
        findings.rows.extend((0..VMS).map(|vm| vm_row(scene, vm)));
        findings
            .rows
            .extend(ways(scene.mix).iter().map(|(way, parts)| way_row(scene, way, *parts)));
        findings.rows.extend(oracle_row(scene));
        findings.rows.extend(spread_row(scene));
        findings.figures.push(scene_figure(scene));
    }
    let each: Vec<&Scene<'_>> = all.iter().filter(|s| s.mix.has_each_part()).collect();
    if !each.is_empty() {
        findings.rows.extend(Parts::EACH.map(|(name, part)| worth_row(&each, name, part)));
    }
    findings.notes.extend(sentence(&all));
    findings
}

/// What is asked of all parts together in a scene.
fn asked(scene: &Scene<'_>) -> Vec<Row> {
    let (name, all) = (scene.name(), Parts::ALL);
    let row = |what: &str, values: &[f64], why: String| {
        let why = format!("{why}, all parts on; {}", interval(values));
        Row::measured(format!("{name}: {what}"), values, "×", why)
    };
    let at_least = |row: Row, least: f64| {
        let enough = row.ours >= least;
        row.ask(enough, &format!("at least {least}"))
    };
    let (vm, worst) = scene.worst(all);
    let why = format!("{}: progress", scene.names()[vm]);
    let mut rows = vec![at_least(row("the VM with the least progress", &worst, why), WORST_ASKED)];
    let why = "of VMs without a rate".to_string();
    let middle = row("progress, geometric mean", &scene.geometric(all), why);
    rows.push(at_least(middle, scene.disk.mean_asked));
    if scene.disk.is_throughput_asked {
        let why = "MiB/s of all VMs over those under the policy that moves most".to_string();
        rows.push(at_least(row("what the host moves", &scene.moved(all), why), MOVED_ASKED));
    }
    let (vm, longest) = scene.longest(all);
    let why = format!("{}: p99 over that on the private disk", scene.names()[vm]);
    let longest = row("the longest p99", &longest, why);
    let enough = longest.ours <= P99_ASKED;
    rows.push(longest.ask(enough, &format!("at most {P99_ASKED}")));
    let beside = |what: &str, values: Vec<f64>, (first, best): (&str, f64)| {
        let near: Vec<f64> = values.iter().map(|v| v / best).collect();
        let why = format!("fairway over {first}, the first of all policies");
        at_least(row(what, &near, why), NEAR_FIRST)
    };
    let first = scene.first(|parts| scene.worst(parts).1);
    rows.push(beside("near the first, the VM with the least progress", worst, first));
    let first = scene.first(|parts| scene.geometric(parts));
    rows.push(beside("near the first, geometric mean", scene.geometric(all), first));
    rows
}

/// A VM's progress with everything on, beside what it has with everything off and privately.
fn vm_row(scene: &Scene<'_>, vm: usize) -> Row {
    let progress = scene.progress(Parts::ALL, vm);
    let of = |parts: Parts| {
        let rate = short(mean(&scene.each(parts, |r| rate(r, vm))));
        let p99 = short(mean(&scene.each(parts, |r| p99_ms(r, vm))));
        let lost = short(mean(&scene.each(parts, |r| lost_percent(r, vm))));
        format!("{rate} MiB/s, p99 {p99} ms, {lost} % of its vCPUs' time lost")
    };
    let private = [rate, p99_ms].map(|figure| short(mean(&scene.private(vm, figure))));
    let off = short(mean(&scene.progress(Parts::NONE, vm)));
    let rates = [Parts::ALL, Parts::NONE].map(|parts| scene.each(parts, |r| rate(r, vm)));
    let ratio = short(mean(&over(&rates[0], &rates[1])));
    let paced = if scene.mix.is_paced(vm) { "has a rate; " } else { "" };
    let why = format!(
        "{paced}{}; off {off}; on over off {ratio}; on: {}; off: {}; private disk: {} MiB/s, p99 {} ms",
        interval(&progress),
        of(Parts::ALL),
        of(Parts::NONE),
        private[0],
        private[1],
    );
    Row::measured(format!("{}: {}", scene.name(), scene.names()[vm]), &progress, "×", why)
}

/// One way of running a scene: the geometric mean of progress, the worst VM, what the host moves.
fn way_row(scene: &Scene<'_>, way: &str, parts: Parts) -> Row {
    let values = scene.geometric(parts);
    let (vm, worst) = scene.worst(parts);
    let (longest_vm, longest) = scene.longest(parts);
    let why = format!(
        "worst VM {} ({}); {} MiB/s, {} of the most; longest p99 {} of the private disk's ({}); {}",
        short(mean(&worst)),
        scene.names()[vm],
        short(mean(&scene.each(parts, total))),
        short(mean(&scene.moved(parts))),
        short(mean(&longest)),
        scene.names()[longest_vm],
        interval(&values),
    );
    Row::measured(format!("{}: {way}", scene.name()), &values, "×", why)
}

/// The geometric mean that [`oracle`] finds; nothing where the time is not enough for everybody.
fn oracle_row(scene: &Scene<'_>) -> Option<Row> {
    let values = oracle::oracle(scene);
    if values.is_empty() {
        return None;
    }
    let why = format!(
        "geometric mean of progress if each VM made of a part of the disk's time that part of what it makes of all of it, with an equal part of the cache; all on over that: {}; {}",
        short(mean(&scene.geometric(Parts::ALL)) / mean(&values)),
        interval(&values),
    );
    Some(Row::measured(format!("{}: oracle", scene.name()), &values, "×", why))
}

/// How far the yardstick itself is known; nothing with one seed.
fn spread_row(scene: &Scene<'_>) -> Option<Row> {
    let (vm, spread) = scene.spread()?;
    let why = format!(
        "{}: half of the 95 % interval over the mean, of VMs without a rate",
        scene.names()[vm]
    );
    let name = format!("{}: the private disk's own spread", scene.name());
    Some(Row::measured(name, &[100.0 * spread], "%", why))
}

/// What a part adds to all others: enough in some scene, and harm in none.
fn worth_row(all: &[&Scene<'_>], name: &str, part: Parts) -> Row {
    let worth = |scene: &&Scene<'_>| {
        let without = scene.geometric(Parts::ALL.without(part));
        (scene.name(), over(&scene.geometric(Parts::ALL), &without))
    };
    let by_scene: Vec<(String, Vec<f64>)> = all.iter().map(worth).collect();
    let each = listed(&by_scene, |(scene, values)| format!("{scene} {}", short(mean(values))));
    let harms = by_scene.iter().any(|(_, values)| mean(values) < HARM);
    let best = by_scene.into_iter().max_by(|a, b| mean(&a.1).total_cmp(&mean(&b.1)));
    let (_, values) = best.expect("there are scenes");
    let why = format!("all parts over all but it: {each}");
    let enough = mean(&values) >= WORTH && !harms;
    Row::measured(format!("{name}: what it adds to the others, at best"), &values, "×", why)
        .ask(enough, &format!("at least {WORTH} in some scene and {HARM} in each"))
}

/// The result in a sentence.
fn sentence(all: &[Scene<'_>]) -> Option<String> {
    let of = |parts: Parts| {
        let worst = all.iter().map(|scene| (scene, scene.worst(parts)));
        let least = worst.min_by(|a, b| mean(&a.1.1).total_cmp(&mean(&b.1.1)));
        least.map(|(scene, (vm, values))| (short(mean(&values)), scene.names()[vm], scene.name()))
    };
    let ((on, vm, scene), (off, ..)) = (of(Parts::ALL)?, of(Parts::NONE)?);
    Some(format!(
        "Every VM has at least {on} of what a disk of its own would give it ({vm}, {scene}); with everything off, at least {off}."
    ))
}

/// Each VM's progress off and on, and the private disk.
fn scene_figure(scene: &Scene<'_>) -> Figure {
    let of = |parts| (0..VMS).map(|vm| scene.progress(parts, vm)).collect::<Vec<_>>();
    let mut private = figure::bars("a private disk", &vec![vec![1.0]; VMS]);
    private.paper = true;
    let series = vec![
        figure::bars("all off", &of(Parts::NONE)),
        figure::bars("all on", &of(Parts::ALL)),
        private,
    ];
    let caption = format!(
        "{}: what each VM gets over what it would have on a disk of its own, eight times slower.",
        scene.name()
    );
    Figure::bars(("progress", "×"), scene.names(), series, caption)
}

#[cfg(test)]
mod tests {
    use super::super::Extras;
    use super::super::testing::{findings, named, options, run};
    use super::*;

    /// The whole experiment on short runs: each scene has every row, and what is asked is judged.
    #[test]
    fn every_way_is_judged_in_every_scene() {
        let options = options(200);
        let found = findings(named("together"), &options, Extras::default(), run);
        let rows =
            |start: &str| found.rows.iter().filter(|row| row.name.starts_with(start)).count();
        let mut judged_rows = Parts::EACH.len();
        for (mix, disk) in every_scene() {
            let asked = if disk.is_throughput_asked { 6 } else { 5 };
            let name = mix.scene(disk);
            // The time of a short run need not be enough for everybody's private disk.
            let oracles = rows(&format!("{name}: oracle"));
            assert!(oracles <= 1);
            assert_eq!(rows(&format!("{name}: ")), asked + VMS + ways(mix).len() + oracles + 1);
            judged_rows += asked;
        }
        let judged = found.rows.iter().filter(|row| row.why.contains("is asked"));
        assert_eq!(judged.clone().count(), judged_rows);
        for row in judged {
            let missed = row.why.ends_with("NOT MET");
            assert_eq!(row.asked, Some(!missed), "{}", row.name);
            assert!(row.ours.is_finite(), "{}: {}", row.name, row.ours);
        }
        let last = found.notes.last().expect("a sentence");
        assert!(last.starts_with("Every VM has at least "), "{last}");
    }

    /// Scenes are chosen by a whole name, even one with a comma, or by patterns.
    #[test]
    fn scenes_are_chosen_by_name() {
        let chosen = |pattern: &str| {
            let options = Options { scenes: Some(pattern.into()), ..options(1) };
            scenes(&options).map(|(mix, disk)| mix.scene(disk)).collect::<Vec<_>>()
        };
        assert_eq!(chosen("7200 rpm, flood"), ["7200 rpm, flood"]);
        assert_eq!(chosen("7200 rpm"), ["7200 rpm"]);
        assert_eq!(chosen("SATA*,NVMe"), ["SATA SSD", "NVMe", "SATA SSD, flood"]);
        assert_eq!(chosen("*, flood").len(), DISKS.len());
        assert_eq!(chosen("*, union"), ["7200 rpm, union", "array, union"]);
        assert_eq!(chosen("tape").len(), 0);
    }
}
