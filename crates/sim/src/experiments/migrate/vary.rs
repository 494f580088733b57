//! migrate-vary (figures 13 and 14 of the paper): clients that each take a fifth of a
//! processor come to two VMs of two vCPUs on two processors.

use super::super::judge::{listed, mean};
use super::super::results::over;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::completions::Heard;
use super::load::{
    Disk, HDFS, OURS, PAPER, Scene, VANILLA, VSLICER, XBALLOON, cells, io, machine, vm,
};
use super::measure::{agent, bound, gain, machine as ran, rate, ratio, short};
use super::rows::{above, floor};
use crate::metrics::RunResult;
use crate::vcpu::{Load, Start, TaskSpec};
use seekway_policy::units::{Instant, Nanos};

/// Processors, VMs, and vCPUs of each VM (section 5.3).
const CORES: u16 = 2;
const VMS: usize = 2;
/// Figure 14: how many clients come when.
const ADDED: [(u64, usize); 4] = [(0, 8), (4_000, 4), (8_000, 8), (11_000, 16)];
const END_MS: u64 = 16_000;
/// Figure 13: clients at a time, in both VMs.
const CLIENTS: [usize; 5] = [8, 20, 24, 32, 40];
/// Figure 13: all policies are alike with the first, vmigrater and xballoon with the second, and
/// vmigrater is "significantly" ahead with the last.
const FIGURE_13: [usize; 3] = [8, 20, 40];
/// "Almost the same" is within this.
const ALIKE: f64 = 0.15;
/// "Significantly" is by this factor.
const AHEAD: f64 = 1.1;
/// Figure 14: what is read while it finds its way, of what was read before (section 7).
const DROP: f64 = 1.0 - 0.456;
/// From so many on the processors are short; with fewer all policies are alike in the paper.
const CROWD: usize = 24;
/// A client's work before it waits (guess).
const BURST: Nanos = Nanos::from_millis(2);
const PERMILLE: u16 = 200;
/// The paper: it is back within this.
const RECOVERY_S: f64 = 1.3;
/// Back is this share of what it comes to before the next clients come.
const BACK: f64 = 0.9;
/// The last of each phase, of which that is the mean.
const LEVEL_S: f64 = 1.0;
const POLICIES: [&str; 5] = [VANILLA, VSLICER, XBALLOON, PAPER, OURS];

fn client(number: usize, from: Nanos) -> TaskSpec {
    let load = Load::Partly { burst: BURST, permille: PERMILLE };
    let start = Start::On(number as u16 % CORES);
    TaskSpec { from, ..TaskSpec::new(format!("client{number}"), start, load) }
}

/// The VMs with an I/O task each and clients that come at these times, spread evenly.
fn clients(name: String, added: &[(Nanos, usize)], options: &Options) -> Scene {
    let mut vms: Vec<_> = (0..VMS).map(|number| vm(number, CORES)).collect();
    vms.iter_mut().for_each(|vm| vm.tasks.push(io(HDFS)));
    for &(from, count) in added {
        for number in 0..count {
            let tasks = &mut vms[number % VMS].tasks;
            tasks.push(client(tasks.len() - 1, from));
        }
    }
    Scene::new(name, Disk::Ssd, machine(CORES, vms), options)
}

/// A time of figure 14.
fn at(millis: u64, options: &Options) -> Nanos {
    Nanos::from_millis(millis / options.shrink.max(1))
}

fn coming(options: &Options, who: Heard) -> Scene {
    let added = ADDED.map(|(millis, count)| (at(millis, options), count));
    let scene = clients("clients that come".into(), &added, options);
    let measured = at(END_MS, options).saturating_sub(scene.settle).max(scene.measured);
    who.on(Scene { measured, ..scene })
}

fn constant(count: usize, options: &Options, who: Heard) -> Scene {
    who.on(clients(format!("{count} clients"), &[(Nanos::ZERO, count)], options))
}

/// The paper's host: with two vCPUs none can be kept free for one queue's interrupts.
const PAPERS: Heard = Heard::First;

pub(super) fn vary_cells(options: &Options) -> Vec<Cell> {
    let mut made = Vec::new();
    for who in [Heard::Asker, PAPERS] {
        made.extend(cells(&coming(options, who), &[VANILLA, PAPER, OURS]));
        for count in CLIENTS {
            made.extend(cells(&constant(count, options, who), &POLICIES));
        }
    }
    made
}

pub(super) fn vary_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for who in [Heard::Asker, PAPERS] {
        let scene = coming(options, who);
        for n in 1..ADDED.len() {
            findings.rows.extend(recovery_rows(results, &scene, n, options));
        }
        findings.figures.push(over_time(results, &scene));
        findings.figures.push(over_clients(results, options, who));
    }
    for count in CLIENTS {
        let scene = constant(count, options, Heard::Asker);
        findings.rows.extend(constant_rows(results, &scene));
        if count >= CROWD {
            findings.rows.push(above(results, &scene.name, std::slice::from_ref(&scene)));
        }
    }
    let scenes = FIGURE_13.map(|count| constant(count, options, PAPERS));
    findings.rows.extend(figure_13(results, scenes));
    findings
}

/// The claims of figure 13, of the paper's form.
fn figure_13(results: &Results, [few, some, many]: [Scene; 3]) -> Vec<Row> {
    let ahead = |scene: &Scene, policy: &str| ratio(results, (scene, PAPER), (scene, policy), rate);
    let name = |scene: &Scene, policy: &str| format!("{}: {PAPER} over {policy}", scene.name);
    let told = |scene: &Scene| {
        let of = |p: &&str| format!("{p} {}", short(mean(&gain(results, scene, p))));
        format!("over vanilla: {}", listed(&POLICIES[1..], of))
    };
    let alike = |scene: &Scene, policy: &str| {
        let values = ahead(scene, policy);
        Row::value(name(scene, policy), 1.0, &values, "×", ALIKE).because(told(scene))
    };
    let mut rows = vec![alike(&few, VSLICER), alike(&few, XBALLOON), alike(&some, XBALLOON)];
    for policy in [VSLICER, XBALLOON] {
        let values = ahead(&many, policy);
        let row = Row::ordering(name(&many, policy), &values, AHEAD, "×");
        rows.push(row.because(told(&many)));
        let rise = over(&values, &ahead(&some, policy));
        let name = format!("{}, over that of {}", name(&many, policy), some.name);
        rows.push(Row::ordering(name, &rise, 1.0, "×"));
    }
    rows
}

/// MiB/s of all I/O tasks by quarter of a second: when it began, and how much.
fn series(r: &RunResult) -> Vec<(f64, f64)> {
    let mut sums: Vec<(Instant, f64)> = Vec::new();
    let tasks = ran(r).vms.iter().flat_map(|vm| &vm.tasks).filter(|task| task.io && task.ios > 0);
    for task in tasks {
        let mib = task.bytes as f64 / task.ios as f64 / f64::from(1 << 20);
        for &(begin, blocks) in &task.series {
            match sums.iter_mut().find(|(at, _)| *at == begin) {
                Some((_, sum)) => *sum += blocks as f64 * mib / BIN_S,
                None => sums.push((begin, blocks as f64 * mib / BIN_S)),
            }
        }
    }
    sums.sort_by_key(|(at, _)| *at);
    sums.into_iter().map(|(at, rate)| (at.as_secs_f64(), rate)).collect()
}

/// Length of a bin of `TaskResult::series`.
const BIN_S: f64 = 0.25;

/// What a phase comes to: MiB/s in the last of it.
fn level(series: &[(f64, f64)], phase: [f64; 2]) -> f64 {
    let last = |t: f64| t >= (phase[1] - LEVEL_S).max(phase[0]) && t + BIN_S <= phase[1] + 1e-9;
    mean(&series.iter().filter(|(t, _)| last(*t)).map(|(_, rate)| *rate).collect::<Vec<_>>())
}

/// From the beginning of a phase to the end of the first quarter of a second in which as
/// much is read as it comes to: all of the phase if there is none, s.
fn recovery(series: &[(f64, f64)], phase: [f64; 2]) -> f64 {
    let enough = BACK * level(series, phase);
    let back = series.iter().find(|(t, rate)| *t >= phase[0] && *rate >= enough);
    back.map_or(phase[1] - phase[0], |(t, _)| t + BIN_S - phase[0])
}

/// When, in seconds, and MiB/s from then on.
type Rate = (f64, f64);

/// What becomes of the throughput when the clients of [`ADDED`]`[n]` come.
fn recovery_rows(results: &Results, scene: &Scene, n: usize, options: &Options) -> Vec<Row> {
    let begin = |n: usize| ADDED.get(n).map_or(END_MS, |added| added.0);
    let phase = |n| [begin(n), begin(n + 1)].map(|millis| at(millis, options).as_secs_f64());
    let (before, now) = (phase(n - 1), phase(n));
    let of = |policy: &str, figure: &dyn Fn(&[Rate]) -> f64| -> Vec<f64> {
        results.of(scene, policy).iter().map(|r| figure(&series(r))).collect()
    };
    let name = |what: &str, policy: &str| {
        format!("{}, {} more at {:.0} s: {what}, {policy}", scene.name, ADDED[n].1, now[0])
    };
    let level_of = |p: &str| format!("{p} {}", short(mean(&of(p, &|s| level(s, now)))));
    let levels = listed([VANILLA, PAPER, OURS], level_of);
    let why = format!("to {BACK} of what it comes to, MiB/s: {levels}");
    let [back, ours] = [PAPER, OURS].map(|policy| of(policy, &|s| recovery(s, now)));
    let back_name = name("back after", PAPER);
    if scene.name != coming(options, PAPERS).name {
        let ours_row = Row::measured(name("back after", OURS), &ours, "s", why.clone())
            .ask(mean(&ours) <= RECOVERY_S, &format!("at most {RECOVERY_S} s"));
        return vec![Row::measured(back_name, &back, "s", why), ours_row];
    }
    let again = of(PAPER, &|s| level(s, now) / level(s, before));
    let mut rows = vec![
        Row::limit(back_name, RECOVERY_S, &back, "s").because(why),
        Row::value(name("what it comes to over that before", PAPER), 1.0, &again, "×", ALIKE),
    ];
    if n + 1 == ADDED.len() {
        // The text gives the drop for the last clients only.
        let drop = of(PAPER, &|s| worst(s, now) / level(s, before));
        let name = name("the worst quarter of a second over that before", PAPER);
        rows.push(Row::factor(name, DROP, &drop));
    }
    rows
}

/// The least that is read in a quarter of a second of a phase, MiB/s.
fn worst(series: &[(f64, f64)], phase: [f64; 2]) -> f64 {
    let within = |t: f64| t >= phase[0] && t + BIN_S <= phase[1] + 1e-9;
    series.iter().filter(|(t, _)| within(*t)).map(|s| s.1).fold(f64::NAN, f64::min)
}

fn constant_rows(results: &Results, scene: &Scene) -> Vec<Row> {
    let row = |policy: &str| {
        let values = gain(results, scene, policy);
        let of = |figure: fn(&RunResult) -> f64| short(results.mean(scene, policy, figure));
        let why = format!(
            "some vCPU of a VM runs {} % of the time; the agents take {} % of the CPU time",
            of(bound),
            of(agent)
        );
        let name = format!("{}: {policy} over vanilla", scene.name);
        let row = Row::measured(name, &values, "×", why);
        if policy == OURS { floor(row, &values) } else { row }
    };
    POLICIES.into_iter().filter(|&policy| policy != VANILLA).map(row).collect()
}

fn over_time(results: &Results, scene: &Scene) -> Figure {
    let of = |policy: &str| {
        let first = results.of(scene, policy).first();
        (policy.to_string(), first.map(|r| series(r)).unwrap_or_default())
    };
    let caption = format!("{} at 4, 8 and 11 s (figure 14 of the paper).", scene.name);
    Figure::lines(("time", "s"), ("read", "MiB/s"), [VANILLA, PAPER, OURS].map(of), caption)
}

fn over_clients(results: &Results, options: &Options, who: Heard) -> Figure {
    let of = |policy: &str| {
        let point = |count: usize| {
            let scene = constant(count, options, who);
            let values = ratio(results, (&scene, policy), (&scene.unshared(), VANILLA), rate);
            (count as f64, mean(&values))
        };
        (policy.to_string(), CLIENTS.map(point).into())
    };
    let y = ("throughput over that without sharing", "×");
    let heard = who.name();
    let caption =
        format!("Clients of a fifth of a processor each, {heard} (figure 13 of the paper).");
    Figure::lines(("clients", ""), y, POLICIES.map(of), caption)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_back_when_it_reads_as_much_as_in_the_end() {
        let bins = |rates: &[f64]| -> Vec<(f64, f64)> {
            rates.iter().enumerate().map(|(n, &rate)| (4.0 + n as f64 * BIN_S, rate)).collect()
        };
        let phase = [4.0, 6.0];
        let slow = bins(&[10.0, 50.0, 95.0, 100.0, 100.0, 100.0, 100.0, 100.0]);
        assert_eq!((level(&slow, phase), recovery(&slow, phase)), (100.0, 0.75));
        let at_once = bins(&[100.0; 8]);
        assert_eq!(recovery(&at_once, phase), 0.25);
        assert_eq!(recovery(&[], phase), 2.0, "never");
    }
}
