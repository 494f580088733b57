//! All parts at once: eight VMs of an ordinary host on four processors and one disk, with
//! every part on, with every part off, without each part, and with each part alone.
//!
//! What is asked was set before the first run: with everything on no VM is worse off than
//! with everything off, by more than 2 % of its throughput or 10 % of its p99; the geometric
//! mean of throughput is at least 1.3 times as large on disks that turn or have SATA, 1.15
//! times on the others; and each part is worth something on some disk.

mod load;
mod measure;

use super::judge::{Row, mean, short};
use super::results::{across, over};
use super::{Cell, Experiment, Figure, Findings, Options, Results, figure, glob};
use crate::metrics::RunResult;
use load::{DISKS, Disk, Mix, NAMES, Parts, cell, cell_alone, ways};
use measure::{lost_percent, p99_ms, rate, total};

pub(super) static EXPERIMENTS: &[Experiment] = &[Experiment {
    name: "together",
    summary: "eight VMs on four processors and one disk: all parts on, off, each one off, each alone",
    source: "our own: the five papers' parts in one system",
    assumes: "each VM has four vCPUs, its generator's defaults and 512 MiB to 1 GiB of memory; slices of 11 ms; a host cache of 2 GiB; off is noop, no cache, no tags, vanilla vCPUs",
    cells,
    judge,
}];

/// A VM may lose so much of its throughput.
const RATE_FLOOR: f64 = 0.98;
/// A VM's p99 may grow by so much.
const P99_CEILING: f64 = 1.10;
/// A part is worth something if its removal costs at least this, of the geometric mean.
const WORTH: f64 = 1.01;

fn cells(options: &Options) -> Vec<Cell> {
    let of = |disk: &'static Disk, mix: Mix| {
        let alone = (0..NAMES.len()).map(move |vm| cell_alone(disk, mix, vm, options));
        let ways = ways().filter(move |(_, parts)| mix == Mix::Ordinary || parts.is_whole());
        ways.map(move |(_, parts)| cell(disk, mix, parts, options)).chain(alone)
    };
    let mixes = [Mix::Ordinary, Mix::Flood];
    mixes.iter().flat_map(|&mix| disks(options).flat_map(move |disk| of(disk, mix))).collect()
}

/// The names of the disks, for `scenes` of [`Options`].
pub fn disk_names() -> impl Iterator<Item = &'static str> {
    DISKS.iter().map(|disk| disk.name)
}

/// The disks that were chosen.
fn disks(options: &Options) -> impl Iterator<Item = &'static Disk> {
    let chosen = |disk: &&Disk| {
        let mut patterns = options.scenes.iter().flat_map(|scenes| scenes.split(','));
        options.scenes.is_none()
            || patterns.any(|p| glob(p.trim().as_bytes(), disk.name.as_bytes()))
    };
    DISKS.iter().filter(chosen)
}

/// Runs of some VMs on a disk, by seed.
struct Runs<'a> {
    options: &'a Options,
    results: &'a Results,
    disk: &'static Disk,
    mix: Mix,
}

impl Runs<'_> {
    fn name(&self) -> String {
        match self.mix {
            Mix::Ordinary => self.disk.name.into(),
            Mix::Flood => format!("{}, flood", self.disk.name),
        }
    }

    /// A figure with some parts over the same with others, by seed.
    fn ratio(&self, ours: Parts, base: Parts, figure: impl Fn(&RunResult) -> f64) -> Vec<f64> {
        over(&self.each(ours, &figure), &self.each(base, &figure))
    }

    fn each(&self, parts: Parts, figure: impl Fn(&RunResult) -> f64) -> Vec<f64> {
        let cell = cell(self.disk, self.mix, parts, self.options);
        self.results.of_cell(&cell).iter().map(|r| figure(r)).collect()
    }

    fn mean(&self, parts: Parts, figure: impl Fn(&RunResult) -> f64) -> f64 {
        mean(&self.each(parts, figure))
    }

    /// Of what a VM has alone on the host, the least that one of them has, in per cent, and
    /// which one.
    fn worst_share(&self, parts: Parts) -> (f64, usize) {
        let share = |vm: usize| {
            let alone = self.results.of_cell(&cell_alone(self.disk, self.mix, vm, self.options));
            let alone = mean(&alone.iter().map(|r| rate(r, 0)).collect::<Vec<_>>());
            (100.0 * self.mean(parts, |r| rate(r, vm)) / alone, vm)
        };
        let least = (0..NAMES.len()).map(share).min_by(|a, b| a.0.total_cmp(&b.0));
        least.expect("there are VMs")
    }

    /// The geometric mean over the VMs of throughput, by seed.
    fn gain(&self, ours: Parts, base: Parts) -> Vec<f64> {
        let logs = |vm: &usize| {
            let ratios = self.ratio(ours, base, |r| rate(r, *vm));
            ratios.into_iter().map(f64::ln).collect()
        };
        let vms: Vec<usize> = (0..NAMES.len()).collect();
        across(&vms, logs).into_iter().map(f64::exp).collect()
    }
}

fn judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let of = |mix: Mix| disks(options).map(move |disk| Runs { options, results, disk, mix });
    let ordinary: Vec<Runs<'_>> = of(Mix::Ordinary).collect();
    for runs in &ordinary {
        findings.rows.extend(asked(runs));
        findings.rows.extend(vm_rows(runs));
        findings.rows.extend(part_rows(runs));
    }
    if !ordinary.is_empty() {
        findings.rows.extend(Parts::EACH.map(|(name, part)| worth_row(&ordinary, name, part)));
    }
    of(Mix::Flood).for_each(|runs| findings.rows.extend(vm_rows(&runs)));
    findings.notes.push(FLOOD.into());
    findings.figures.push(vms_figure(&ordinary));
    findings
}

const FLOOD: &str = "Where everybody asks for all that there is, nobody can have more without somebody having less, but for what seeks, the cache and processors leave over: the rows of the flood are not judged.";

/// What is asked of all parts together on a disk.
fn asked(runs: &Runs<'_>) -> Vec<Row> {
    let name = runs.name();
    let gain = runs.gain(Parts::ALL, Parts::NONE);
    let enough = mean(&gain) >= runs.disk.gain_asked;
    let gain = Row::measured(
        format!("{name}: throughput, geometric mean of the VMs"),
        &gain,
        "×",
        "all parts on over all off",
    )
    .ask(enough, &format!("at least {}", runs.disk.gain_asked));
    let worst = |figure: fn(&RunResult, usize) -> f64, least: bool| {
        let of = |vm: usize| (vm, runs.ratio(Parts::ALL, Parts::NONE, |r| figure(r, vm)));
        let order =
            |a: &(usize, Vec<f64>), b: &(usize, Vec<f64>)| mean(&a.1).total_cmp(&mean(&b.1));
        let all = (0..NAMES.len()).map(of);
        let found = if least { all.min_by(order) } else { all.max_by(order) };
        found.expect("there are VMs")
    };
    let (vm, rates) = worst(rate, true);
    let enough = mean(&rates) >= RATE_FLOOR;
    let why = format!("{}: all parts on over all off", NAMES[vm]);
    let slowest = Row::measured(format!("{name}: the VM that loses most"), &rates, "×", why)
        .ask(enough, &format!("at least {RATE_FLOOR}"));
    let (vm, times) = worst(p99_ms, false);
    let enough = mean(&times) <= P99_CEILING;
    let why = format!("{}: all parts on over all off", NAMES[vm]);
    let longest = Row::measured(format!("{name}: the p99 that grows most"), &times, "×", why)
        .ask(enough, &format!("at most {P99_CEILING}"));
    vec![gain, slowest, longest]
}

/// Each VM with everything off and on, and all together.
fn vm_rows(runs: &Runs<'_>) -> Vec<Row> {
    let mut rows: Vec<Row> = (0..NAMES.len()).map(|vm| vm_row(runs, vm)).collect();
    rows.push(host_row(runs));
    rows
}

fn vm_row(runs: &Runs<'_>, vm: usize) -> Row {
    let ratios = runs.ratio(Parts::ALL, Parts::NONE, |r| rate(r, vm));
    let of = |parts: Parts| {
        let figure = |f: fn(&RunResult, usize) -> f64| short(runs.mean(parts, |r| f(r, vm)));
        let (rate, p99, lost) = (figure(rate), figure(p99_ms), figure(lost_percent));
        format!("{rate} MiB/s, p99 {p99} ms, {lost} % of its vCPUs' time lost")
    };
    let why = format!("off: {}; on: {}", of(Parts::NONE), of(Parts::ALL));
    Row::measured(format!("{}: {}", runs.name(), NAMES[vm]), &ratios, "×", why)
}

fn host_row(runs: &Runs<'_>) -> Row {
    let of = |parts: Parts| {
        let (share, vm) = runs.worst_share(parts);
        let total = short(runs.mean(parts, total));
        format!("{total} MiB/s, {} has {} % of what it has alone", NAMES[vm], short(share))
    };
    let why = format!("off: {}; on: {}", of(Parts::NONE), of(Parts::ALL));
    let ratios = runs.ratio(Parts::ALL, Parts::NONE, total);
    Row::measured(format!("{}: the host", runs.name()), &ratios, "×", why)
}

/// What each part is worth beside the others and alone.
fn part_rows(runs: &Runs<'_>) -> Vec<Row> {
    let name = runs.name();
    let of = |parts: Parts| {
        let total = short(runs.mean(parts, total));
        let least = |vm: usize| mean(&runs.ratio(parts, Parts::NONE, |r| rate(r, vm)));
        let least = (0..NAMES.len()).map(|vm| (least(vm), vm)).min_by(|a, b| a.0.total_cmp(&b.0));
        let (least, vm) = least.expect("there are VMs");
        format!(
            "{total} MiB/s in all, {} has {} of what it has with all off",
            NAMES[vm],
            short(least)
        )
    };
    let ours = ways().filter(|(_, parts)| !parts.is_whole());
    ours.map(|(way, parts)| {
        let values = runs.gain(parts, Parts::NONE);
        Row::measured(format!("{name}: {way}"), &values, "×", of(parts))
    })
    .collect()
}

/// Is a part worth something beside all others, on some disk?
fn worth_row(all: &[Runs<'_>], name: &str, part: Parts) -> Row {
    let worth = |runs: &Runs<'_>| runs.gain(Parts::ALL, Parts::ALL.without(part));
    let by_disk: Vec<(f64, &str, Vec<f64>)> = all
        .iter()
        .map(|runs| {
            let values = worth(runs);
            (mean(&values), runs.disk.name, values)
        })
        .collect();
    let listed: Vec<String> =
        by_disk.iter().map(|(mean, disk, _)| format!("{disk} {}", short(*mean))).collect();
    let best = by_disk.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let (value, _, values) = best.expect("there are disks");
    let why = format!("all parts over all but it: {}", listed.join(", "));
    Row::measured(format!("{name}: what it adds to the others, at best"), &values, "×", why)
        .ask(value >= WORTH, &format!("at least {WORTH} on some disk"))
}

fn vms_figure(all: &[Runs<'_>]) -> Figure {
    let series = all.iter().map(|runs| {
        let of = |vm| runs.ratio(Parts::ALL, Parts::NONE, |r| rate(r, vm));
        figure::bars(runs.disk.name, &(0..NAMES.len()).map(of).collect::<Vec<_>>())
    });
    let caption = "Throughput of each VM with all parts on, over that with all off.";
    let axis = ("throughput, on over off", "×");
    Figure::bars(axis, NAMES, series.collect(), caption)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{findings, named, options, run};
    use super::super::{Extras, Verdict};
    use super::*;

    /// The whole experiment on short runs: each disk has every row, and what is asked is judged.
    #[test]
    fn every_part_is_judged_on_every_disk() {
        let options = options(200);
        let found = findings(named("together"), &options, Extras::default(), run);
        let rows =
            |start: &str| found.rows.iter().filter(|row| row.name.starts_with(start)).count();
        for disk in &DISKS {
            let parts = ways().filter(|(_, parts)| !parts.is_whole()).count();
            let vms = NAMES.len() + 1;
            assert_eq!(rows(&format!("{}: ", disk.name)), 3 + vms + parts, "{}", disk.name);
            assert_eq!(rows(&format!("{}, flood: ", disk.name)), vms, "{}", disk.name);
        }
        let judged = found.rows.iter().filter(|row| row.why.contains("is asked"));
        assert_eq!(judged.clone().count(), 3 * DISKS.len() + Parts::EACH.len());
        for row in judged {
            let missed = row.why.ends_with("NOT MET");
            assert_eq!(row.verdict == Verdict::Missed, missed, "{}", row.name);
            assert!(row.ours.is_finite(), "{}: {}", row.name, row.ours);
        }
    }
}
