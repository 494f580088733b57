//! migrate-vary (figures 13 and 14 of the paper): clients that each take a fifth of a
//! processor come to two VMs of two vCPUs on two processors.

use super::super::judge::mean;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
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
const CLIENTS: [usize; 5] = [8, 16, 24, 32, 40];
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
    TaskSpec {
        name: format!("client{number}"),
        start: Start::On(number as u16 % CORES),
        allowed: Vec::new(),
        from,
        load: Load::Partly { burst: BURST, permille: PERMILLE },
    }
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

fn coming(options: &Options) -> Scene {
    let added = ADDED.map(|(millis, count)| (at(millis, options), count));
    let scene = clients("clients that come".into(), &added, options);
    let measured = at(END_MS, options).saturating_sub(scene.settle).max(scene.measured);
    Scene { measured, ..scene }
}

fn constant(count: usize, options: &Options) -> Scene {
    clients(format!("{count} clients"), &[(Nanos::ZERO, count)], options)
}

pub(super) fn vary_cells(options: &Options) -> Vec<Cell> {
    let mut made = cells(&coming(options), &[VANILLA, PAPER, OURS]);
    for count in CLIENTS {
        made.extend(cells(&constant(count, options), &POLICIES));
    }
    made
}

pub(super) fn vary_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let scene = coming(options);
    for (n, &(from, count)) in ADDED.iter().enumerate().skip(1) {
        let until = ADDED.get(n + 1).map_or(END_MS, |next| next.0);
        let phase = [from, until].map(|millis| at(millis, options).as_secs_f64());
        findings.rows.extend(recovery_rows(results, &scene, count, phase));
    }
    for count in CLIENTS {
        let scene = constant(count, options);
        findings.rows.extend(constant_rows(results, &scene));
        if count >= CROWD {
            findings.rows.push(above(results, &scene.name, std::slice::from_ref(&scene)));
        }
    }
    findings.figures.push(over_time(results, &scene));
    findings.figures.push(over_clients(results, options));
    findings
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

fn recovery_rows(results: &Results, scene: &Scene, count: usize, phase: [f64; 2]) -> [Row; 2] {
    [PAPER, OURS].map(|policy| {
        let by_seed: Vec<_> = results.of(scene, policy).iter().map(|r| series(r)).collect();
        let times: Vec<f64> = by_seed.iter().map(|s| recovery(s, phase)).collect();
        let level = |policy: &str| {
            let runs = results.of(scene, policy).iter();
            short(mean(&runs.map(|r| level(&series(r), phase)).collect::<Vec<_>>()))
        };
        let name = format!("{count} clients more at {:.0} s: back after, {policy}", phase[0]);
        let why = format!(
            "to {BACK} of {} MiB/s, which it comes to; vanilla {}",
            level(policy),
            level(VANILLA)
        );
        match policy {
            PAPER => Row::limit(name, RECOVERY_S, &times, "s").because(why),
            _ => {
                let row = Row::measured(name, &times, "s", why);
                row.ask(mean(&times) <= RECOVERY_S, &format!("at most {RECOVERY_S} s"))
            }
        }
    })
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
    let caption = "Clients come at 4, 8 and 11 s (figure 14 of the paper).";
    Figure::lines(("time", "s"), ("read", "MiB/s"), [VANILLA, PAPER, OURS].map(of), caption)
}

fn over_clients(results: &Results, options: &Options) -> Figure {
    let of = |policy: &str| {
        let point = |count: usize| {
            let scene = constant(count, options);
            let values = ratio(results, (&scene, policy), (&scene.unshared(), VANILLA), rate);
            (count as f64, mean(&values))
        };
        (policy.to_string(), CLIENTS.map(point).into())
    };
    let y = ("throughput over that without sharing", "×");
    let caption = "Clients of a fifth of a processor each (figure 13 of the paper).";
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
